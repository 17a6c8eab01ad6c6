//! Test manifests: the flow and the tables they name are there, messages are whole, what is expected can come out at all.
//!
//! A flow is compiled again with the tables that a test gives: programs are typed by rows, so rows of another shape may not
//! do for them, and that is better said here than as a failed message.

use std::path::{Component, Path};
use std::sync::Arc;

use super::draft::Draft;
use super::{Check, FileFault};
use crate::id;
use crate::language::{Table, Tables, Value};
use crate::manifest::Spec;
use crate::manifest::digest;
use crate::manifest::flow::{Flow, Step};
use crate::manifest::problem::{Code, Problem, did_you_mean};
use crate::manifest::test::{GOLDEN_BYTES_MAX, Test};

impl Check<'_> {
    pub(super) fn check_tests(&mut self) {
        for at in 0..self.drafts.len() {
            let Some(Spec::Test(test)) = self.drafts[at].manifest.as_ref().map(|manifest| &manifest.spec) else {
                continue;
            };
            let test = test.clone();
            let mut problems = payloads(&self.drafts[at], &test);
            problems.extend(self.golden(at, &test));
            match self.referred(at, "spec.flow", "Flow", test.flow.as_str()) {
                Ok(flow) => problems.extend(self.check_with_flow(at, flow, &test)),
                Err(problem) => problems.push(*problem),
            }
            problems.into_iter().for_each(|problem| self.report(at, problem));
            self.drafts[at].places = places(&self.drafts[at], &test);
        }
    }

    fn check_with_flow(&mut self, at: usize, flow_at: usize, test: &Test) -> Vec<Problem> {
        let Some(Spec::Flow(flow)) = self.drafts[flow_at].manifest.as_ref().map(|manifest| &manifest.spec) else {
            return Vec::new();
        };
        let flow = flow.clone();
        let mut problems = subjects(&self.drafts[at], &flow, test);
        let mut tables = self.tables.clone();
        for (name, rows) in &test.tables {
            if let Err(problem) = self.referred(at, &format!("spec.tables.{name}"), "Table", name) {
                problems.push(*problem);
                continue;
            }
            tables.insert(name.clone(), Arc::new(mocked(name, rows)));
        }
        if test.tables.is_empty() || !problems.is_empty() {
            self.drafts[at].programs = self.drafts[flow_at].programs.clone();
            return problems;
        }
        let compiled = self.compile(flow_at, &tables);
        let looked_up = lookups(&flow).chain(self.tables_named(&compiled)).collect::<Vec<_>>();
        for name in test.tables.keys().filter(|name| !looked_up.contains(name)) {
            let place = self.drafts[at].at_key(&format!("spec.tables.{name}"));
            let message = format!("the flow `{}` does not look into the Table `{name}`", test.flow);
            problems.push(Problem::warning(Code::InvalidValue, place, message).help("remove its rows from the test"));
        }
        if let Some(fault) = compiled.problems.into_iter().next() {
            let place = self.drafts[at].at_key("spec.tables");
            let message = format!("with these rows the flow does not compile: {}", fault.message);
            let problem = Problem::error(Code::InvalidProgram, place, message).and(fault.place, "here");
            problems.push(problem.help("give the rows the fields and types that the Table has"));
        }
        self.drafts[at].programs = compiled.programs;
        problems
    }

    /// It need not be there: `--update` writes it.
    fn golden(&self, at: usize, test: &Test) -> Vec<Problem> {
        let draft = &self.drafts[at];
        let Some(path) = &test.expect.golden else { return Vec::new() };
        let mut problems = Vec::new();
        let below = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !below || path.is_empty() {
            let message = format!("`{path}` is not the path of a file beside or below the manifest");
            let help = "write a relative path without `..`, such as `golden/orders.json`";
            problems.push(Problem::error(Code::InvalidValue, draft.at("spec.expect.golden"), message).help(help));
        } else if let Err(fault) = (self.world.read_beside)(&draft.source.path, path, GOLDEN_BYTES_MAX)
            && fault != FileFault::Missing
        {
            problems.push(super::settings::missing_file(draft.at("spec.expect.golden"), path, &fault));
        }
        for key in ["output", "deadLetters", "ended"] {
            let path = format!("spec.expect.{key}");
            if draft.find(&path).is_some() {
                let message = format!("`expect` has both `golden` and `{key}`, the golden file says it all");
                let problem = Problem::error(Code::ExactlyOne, draft.at_key(&path), message);
                problems.push(problem.and(draft.at_key("spec.expect.golden"), "the other"));
            }
        }
        problems
    }
}

/// A Table with the rows that a test gives.
pub fn mocked<'r>(name: &str, rows: impl IntoIterator<Item = (&'r String, &'r serde_json::Value)>) -> Table {
    let rows: Vec<(String, Value)> =
        rows.into_iter().map(|(key, row)| (key.clone(), Value::from(row.clone()))).collect();
    Table::new(name, rows, digest::bytes(b"given by a test"))
}

/// The tables of a tree as one test sees them.
pub fn tables_of(test: &Test, tables: &Tables) -> Tables {
    let mut all = tables.clone();
    all.extend(test.tables.iter().map(|(name, rows)| (name.clone(), Arc::new(mocked(name, rows)))));
    all
}

/// Every message has exactly one payload.
fn payloads(draft: &Draft, test: &Test) -> Vec<Problem> {
    let inputs = test.input.iter().map(|one| (one.payload.is_some(), one.text.is_some()));
    let outputs = test.expect.output.iter().map(|one| (one.payload.is_some(), one.text.is_some()));
    let inputs = inputs.enumerate().map(|(at, has)| (format!("spec.input.{at}"), has));
    let outputs = outputs.enumerate().map(|(at, has)| (format!("spec.expect.output.{at}"), has));
    let wrong = inputs.chain(outputs).filter(|(_, (payload, text))| payload == text);
    wrong
        .map(|(path, (payload, _))| match payload {
            true => {
                let message = "the message has both `payload` and `text`, exactly one is allowed";
                Problem::error(Code::ExactlyOne, draft.at_key(&format!("{path}.text")), message)
                    .and(draft.at_key(&format!("{path}.payload")), "the other")
            }
            false => {
                let message = "the message has neither `payload` nor `text`, exactly one is needed";
                Problem::error(Code::ExactlyOne, draft.at(&path), message)
            }
        })
        .collect()
}

/// Messages go in where the flow reads and come out where it writes.
fn subjects(draft: &Draft, flow: &Flow, test: &Test) -> Vec<Problem> {
    let mut problems = Vec::new();
    let from = flow.from.as_slice();
    let reads = || from.iter().map(|pattern| format!("`{pattern}`")).collect::<Vec<_>>().join(", ");
    for (at, input) in test.input.iter().enumerate() {
        let path = format!("spec.input.{at}");
        match &input.subject {
            Some(subject) if !from.iter().any(|pattern| id::subject_matches(pattern.as_str(), subject.as_str())) => {
                let message = format!("the flow `{}` does not read `{subject}`", test.flow);
                let problem = Problem::error(Code::InvalidValue, draft.at(&format!("{path}.subject")), message);
                problems.push(problem.help(format!("it reads {}", reads())));
            }
            None if from.len() != 1 || from[0].has_wildcard() => {
                let message = "the message needs a `subject`: the flow reads more than one";
                let problem = Problem::error(Code::MissingKey, draft.at(&path), message);
                problems.push(problem.help(format!("it reads {}", reads())));
            }
            _ => {}
        }
    }
    let writes = written(flow);
    for (at, output) in test.expect.output.iter().enumerate() {
        if writes.contains(&output.subject.as_str()) {
            continue;
        }
        let place = draft.at(&format!("spec.expect.output.{at}.subject"));
        let message = format!("the flow `{}` never writes `{}`", test.flow, output.subject);
        let help = match did_you_mean(output.subject.as_str(), writes.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None if writes.is_empty() => "it writes nothing at all".to_owned(),
            None => format!("it writes {}", writes.join(", ")),
        };
        problems.push(Problem::error(Code::InvalidValue, place, message).help(help));
    }
    problems
}

fn lookups(flow: &Flow) -> impl Iterator<Item = String> {
    flow.steps.iter().filter_map(|step| match step {
        Step::Lookup(lookup) => Some(lookup.table.to_string()),
        _ => None,
    })
}

fn written(flow: &Flow) -> Vec<&str> {
    let arms = flow.steps.iter().filter_map(|step| match step {
        Step::Route(arms) => Some(arms),
        _ => None,
    });
    let mut subjects: Vec<&str> = arms.flatten().map(|arm| arm.to.as_str()).collect();
    subjects.extend(flow.to.as_ref().map(|to| to.as_str()));
    subjects
}

/// What a failure points at.
fn places(draft: &Draft, test: &Test) -> std::collections::BTreeMap<String, crate::manifest::problem::Position> {
    let outputs = (0..test.expect.output.len()).map(|at| format!("expect.output.{at}"));
    let letters = (0..test.expect.dead_letters.len()).map(|at| format!("expect.deadLetters.{at}"));
    let single = ["expect", "expect.output", "expect.deadLetters", "expect.ended", "expect.golden"];
    let paths = outputs.chain(letters).chain(single.into_iter().map(str::to_owned));
    paths.filter_map(|path| Some((path.clone(), draft.at_key(&format!("spec.{path}")).start()?))).collect()
}
