//! Expressions and programs: compiled with what is known of the event at their step, faults at their place in the file;
//! and what one unit writes against the schema that the next checks first.
//!
//! A flow's event type begins with its own first `validate` step and with nothing else: what a flow means must not
//! change because an entrance elsewhere did, and its digest covers only what it refers to itself.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::thread;

use serde_json::json;

use super::draft::Draft;
use super::subjects::{Matcher, Use};
use super::{Check, CheckedProgram};
use crate::language::{Environment, EventType, Fault, Purpose, Tables};
use crate::manifest::Spec;
use crate::manifest::flow::{Flow, Lookup, Step};
use crate::manifest::problem::{Code, Problem, Region};
use crate::manifest::reader::origin::Origin;

static ARRAY: LazyLock<EventType> = LazyLock::new(|| EventType::from_json_schema(&json!({ "type": "array" })));
static KEY: LazyLock<EventType> =
    LazyLock::new(|| EventType::from_json_schema(&json!({ "type": ["string", "number", "boolean"] })));

/// What compiling one manifest gave.
#[derive(Default)]
pub(super) struct Compiled {
    pub programs: BTreeMap<String, CheckedProgram>,
    pub problems: Vec<Problem>,
    /// The event type at each place that writes, by its path below `spec`.
    outputs: BTreeMap<String, EventType>,
}

impl Check<'_> {
    pub(super) fn check_programs(&mut self) {
        let work: Vec<usize> = (0..self.drafts.len()).filter(|at| self.has_programs(*at)).collect();
        let chunk = work.len().div_ceil(self.world.threads.max(1)).max(1);
        let shared: &Check<'_> = self;
        let compiled: Vec<(usize, Compiled)> = thread::scope(|scope| {
            let running: Vec<_> = work
                .chunks(chunk)
                .map(|drafts| {
                    scope.spawn(move || {
                        drafts.iter().map(|at| (*at, shared.compile(*at, &shared.tables))).collect::<Vec<_>>()
                    })
                })
                .collect();
            running.into_iter().flat_map(|thread| thread.join().expect("compiling catches panics itself")).collect()
        });
        let mut outputs = BTreeMap::new();
        for (at, compiled) in compiled {
            for name in self.tables_named(&compiled) {
                self.refer(at, "Table", &name);
            }
            compiled.problems.into_iter().for_each(|problem| self.report(at, problem));
            outputs.extend(compiled.outputs.into_iter().map(|(path, event)| ((at, path), event)));
            self.drafts[at].programs = compiled.programs;
        }
        self.check_edges(&outputs);
    }

    /// Sources have none; of a manifest whose shape is wrong they are not compiled.
    fn has_programs(&self, at: usize) -> bool {
        matches!(self.drafts[at].manifest.as_ref().map(|m| &m.spec), Some(Spec::Flow(_) | Spec::Sink(_)))
    }

    /// Tables that a program looks into by name. One too many does no harm.
    pub(super) fn tables_named(&self, compiled: &Compiled) -> Vec<String> {
        let texts = compiled.programs.values().map(|program| program.origin.text());
        let mut named: Vec<String> = texts
            .filter(|text| text.contains("table"))
            .flat_map(|text| text.split('"'))
            .filter(|part| self.tables.contains_key(*part))
            .map(str::to_owned)
            .collect();
        named.sort_unstable();
        named.dedup();
        named
    }

    /// Compiles the programs of one manifest, with what `tables` says of the rows they look up.
    pub(super) fn compile(&self, at: usize, tables: &Tables) -> Compiled {
        let draft = &self.drafts[at];
        let event = EventType::any();
        let mut work = Work { check: self, draft, tables, event, unknown: false, compiled: Compiled::default() };
        match draft.manifest.as_ref().map(|manifest| &manifest.spec) {
            Some(Spec::Flow(flow)) => work.flow(flow),
            Some(Spec::Sink(sink)) => {
                if let Some(order_by) = &sink.order_by {
                    work.key("orderBy", &order_by.0);
                }
            }
            _ => {}
        }
        work.compiled
    }

    /// What is written against the schema that the reader checks before it changes anything.
    fn check_edges(&mut self, outputs: &BTreeMap<(usize, String), EventType>) {
        let checked_first: Vec<(usize, String, String)> = (0..self.drafts.len())
            .filter_map(|at| self.first_schema(at).map(|(path, name)| (at, path, name)))
            .collect();
        if checked_first.is_empty() {
            return;
        }
        let by_draft: BTreeMap<usize, usize> = checked_first.iter().enumerate().map(|(n, (at, ..))| (*at, n)).collect();
        let mut readers = Matcher::default();
        let reads: Vec<Use> = self.reads().into_iter().filter(|read| by_draft.contains_key(&read.draft)).collect();
        reads.iter().for_each(|read| readers.insert(&read.subject, by_draft[&read.draft]));
        let mut found = Vec::new();
        for write in self.writes() {
            let Some(event) = self.written(&write, outputs) else { continue };
            for (reader, path, name) in readers.matches(&write.subject).into_iter().map(|n| &checked_first[n]) {
                let Some(schema) = self.schemas.get(name) else { continue };
                let Some(conflict) = event.can_never_match(&schema.event_type) else { continue };
                let (writer, reader) = (&self.drafts[write.draft], &self.drafts[*reader]);
                let message = format!("what is written to `{}` can never match the schema `{name}`", write.subject);
                let problem = Problem::error(Code::NeverMatches, writer.place(write.region), message)
                    .label(conflict.to_string())
                    .and(reader.at(path), format!("{} checks it here", reader.title()))
                    .help("change what is written or the schema, so that both mean the same");
                found.push((write.draft, problem));
            }
        }
        self.report_all(found);
    }

    fn written(&self, write: &Use, outputs: &BTreeMap<(usize, String), EventType>) -> Option<EventType> {
        let draft = &self.drafts[write.draft];
        match draft.manifest.as_ref().map(|manifest| &manifest.spec)? {
            Spec::HttpIn(spec) => Some(self.schemas.get(spec.schema.as_ref()?.as_str())?.event_type.clone()),
            _ => outputs.get(&(write.draft, write.path.clone())).cloned(),
        }
    }

    /// The first `validate` of a flow, when nothing before it changes the event.
    fn first_schema(&self, at: usize) -> Option<(String, String)> {
        let Spec::Flow(flow) = &self.drafts[at].manifest.as_ref()?.spec else { return None };
        // A filter or route before it may let through just what fits.
        let mut steps = flow.steps.iter().enumerate().skip_while(|(_, step)| matches!(step, Step::Dedupe(_)));
        match steps.next()? {
            (number, Step::Validate(v)) => Some((format!("spec.steps.{number}.validate.schema"), v.schema.to_string())),
            _ => None,
        }
    }
}

/// One manifest's programs, in the order in which an event meets them.
struct Work<'a> {
    check: &'a Check<'a>,
    draft: &'a Draft,
    tables: &'a Tables,
    event: EventType,
    /// What gives the event its type has an error of its own. Until the next `validate` faults that may only follow from
    /// the missing type are not reported.
    unknown: bool,
    compiled: Compiled,
}

impl Work<'_> {
    fn flow(&mut self, flow: &Flow) {
        for (number, step) in flow.steps.iter().enumerate() {
            let path = format!("steps.{number}");
            match step {
                Step::Validate(validate) => {
                    let schema = self.check.schemas.get(validate.schema.as_str());
                    self.unknown = schema.is_none();
                    self.event = schema.map_or_else(EventType::any, |schema| schema.event_type.clone());
                }
                Step::Filter(expression) => {
                    self.program(&format!("{path}.filter"), &expression.0, Purpose::Condition);
                }
                Step::Map(program) => {
                    let output = self.program(&format!("{path}.map"), &program.0, Purpose::Program);
                    self.unknown |= output.is_none();
                    self.event = output.unwrap_or_else(EventType::any);
                }
                Step::Split(expression) => self.split(&format!("{path}.split"), &expression.0),
                Step::Lookup(lookup) => {
                    self.key(&format!("{path}.lookup.key"), &lookup.key.0);
                    self.event = self.after_lookup(lookup);
                }
                Step::Dedupe(dedupe) => self.key(&format!("{path}.dedupe.key"), &dedupe.key.0),
                Step::Route(arms) => {
                    for (arm, route) in arms.iter().enumerate() {
                        let path = format!("{path}.route.{arm}");
                        if let Some(when) = &route.when {
                            self.program(&format!("{path}.when"), &when.0, Purpose::Condition);
                        }
                        self.compiled.outputs.insert(format!("{path}.to"), self.event.clone());
                    }
                }
            }
        }
        self.compiled.outputs.insert("to".to_owned(), self.event.clone());
    }

    /// Compiles one text; the type it gives, or `None` when it has faults.
    fn program(&mut self, path: &str, text: &str, purpose: Purpose) -> Option<EventType> {
        let node = self.draft.find(&format!("spec.{path}"))?;
        let origin = Origin::of(&self.draft.source, node)?;
        let environment = Environment { event: &self.event, tables: self.tables };
        match self.check.world.compiler.compile(text, purpose, &environment) {
            Ok(program) => {
                let output = program.output().clone();
                let checked = CheckedProgram { program, event: self.event.clone(), origin };
                self.compiled.programs.insert(path.to_owned(), checked);
                Some(output)
            }
            Err(faults) => {
                let own = faults.iter().filter(|fault| !(self.unknown && follows_from_type(fault)));
                let problems = own.map(|fault| problem(self.draft, &origin, fault));
                self.compiled.problems.extend(problems.collect::<Vec<_>>());
                None
            }
        }
    }

    fn split(&mut self, path: &str, text: &str) {
        let output = self.program(path, text, Purpose::Value);
        self.refuse(path, output, &ARRAY, "`split` needs an array");
        self.event = EventType::any();
    }

    fn key(&mut self, path: &str, text: &str) {
        let output = self.program(path, text, Purpose::Value);
        self.refuse(path, output, &KEY, "a key is text, a number or a boolean");
    }

    fn refuse(&mut self, path: &str, output: Option<EventType>, wanted: &EventType, why: &str) {
        let Some(conflict) = output.and_then(|output| output.can_never_match(wanted)) else { return };
        let place = self.draft.at(&format!("spec.{path}"));
        self.compiled.programs.remove(path);
        let message = format!("{why}, this is {}", conflict.found);
        self.compiled.problems.push(Problem::error(Code::InvalidProgram, place, message));
    }

    /// The type of the event with a row in it, as the language itself sees it: that of the assignment.
    fn after_lookup(&mut self, lookup: &Lookup) -> EventType {
        self.unknown |= !self.check.tables.contains_key(lookup.table.as_str());
        if self.unknown {
            return EventType::any();
        }
        let into = lookup.into.strip_prefix('.').unwrap_or(&lookup.into);
        let assignment = format!(".{into} = table(\"{}\", \"\")", lookup.table);
        let environment = Environment { event: &self.event, tables: self.tables };
        let compiled = self.check.world.compiler.compile(&assignment, Purpose::Program, &environment);
        compiled.map_or_else(|_| EventType::any(), |program| program.output().clone())
    }
}

/// Whether a fault may be there only because nothing is known of the event. The compiler has no codes for this.
fn follows_from_type(fault: &Fault) -> bool {
    ["fallible", "unhandled error", "argument type", "predicate", "is any"]
        .iter()
        .any(|part| fault.message.contains(part))
}

fn problem(draft: &Draft, origin: &Origin, fault: &Fault) -> Problem {
    let place = |region: Region| draft.place(region);
    let region = origin.region_in_file(fault.span.start, fault.span.end);
    let mut problem = Problem::error(Code::InvalidProgram, place(region), fault.message.as_str());
    for (span, text) in &fault.labels {
        let other = origin.region_in_file(span.start, span.end);
        match problem.label.is_none() && draft.source.first_line(other) == draft.source.first_line(region) {
            true => problem = problem.label(text.as_str()),
            false => problem = problem.and(place(other), text.as_str()),
        }
    }
    problem.help.clone_from(&fault.help);
    if problem.help.is_none() && follows_from_type(fault) {
        problem.help = Some(UNHANDLED.to_owned());
    }
    problem
}

/// What can be done about an operation that may fail.
const UNHANDLED: &str = "give a value for the failure (`to_int(.a) ?? 0`), let the message fail (`to_int!(.a)`), or put a `validate` step \
                         before, so that the types are known; `vejas explain VJ0070` has examples";
