//! Runs Test manifests: a flow on the messages of a test, and what came out beside what was expected.
//!
//! The steps, ids, headers and dead letters are those of the runtime ([`Passage`]); only the store of `dedupe` marks is
//! replaced, by one that lasts for the test. Pure: the clock is the test's, files come in through a function.

mod between;
mod compare;
mod diff;
mod marks;
mod outcome;
pub mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::flow::message::{self, HeadersBuilder, Stored};
use crate::id::{Names, UnitId, UnitKind};
use crate::manifest::Spec;
use crate::manifest::check::{Checked, CheckedManifest, FileFault, flow_tests};
use crate::manifest::flow::Flow;
use crate::manifest::problem::Position;
use crate::manifest::test::{Input, Test};
use crate::time::Timestamp;
use crate::transforms::{self, BuildError, Passage, Pipeline, Stamp};

pub use between::{DIFFERENCE_BYTES_MAX, between};
pub use marks::Marks;
pub use outcome::Outcome;

/// 2026-01-01T00:00:00Z: the time of a test that gives none.
const CLOCK_DEFAULT: Timestamp = Timestamp(1_767_225_600_000_000_000);

/// Reads the golden file that a manifest names.
pub type ReadGolden<'a> = dyn Fn(&str, &str) -> Result<Vec<u8>, FileFault> + 'a;

/// A Test manifest and the flow it is about, both without errors.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    checked: &'a CheckedManifest,
    test: &'a Test,
    flow: &'a CheckedManifest,
    steps: &'a Flow,
}

/// What is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Of the expectation.
    pub at: Position,
    pub message: String,
    /// Lines that begin with `-` (expected), `+` (found) or a blank; may be empty.
    pub diff: String,
}

/// How one test went.
#[derive(Debug)]
pub struct Verdict {
    pub differences: Vec<Difference>,
    /// The golden file as it should be, when it is not.
    pub golden: Option<Golden>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Golden {
    /// Relative to the manifest.
    pub path: String,
    pub contents: String,
}

/// The sound tests of a tree, by file and place.
pub fn cases<'c>(checked: &'c Checked) -> Vec<Case<'c>> {
    let flows: BTreeMap<&str, (&CheckedManifest, &Flow)> = checked
        .manifests
        .iter()
        .filter_map(|one| match &one.manifest.spec {
            Spec::Flow(flow) => Some((one.manifest.name(), (one, flow))),
            _ => None,
        })
        .collect();
    let case = |one: &'c CheckedManifest| {
        let Spec::Test(test) = &one.manifest.spec else { return None };
        let (flow, steps) = *flows.get(test.flow.as_str())?;
        Some(Case { checked: one, test, flow, steps })
    };
    checked.manifests.iter().filter_map(case).collect()
}

impl<'a> Case<'a> {
    pub fn name(&self) -> &'a str {
        self.checked.manifest.name()
    }

    pub fn flow(&self) -> &'a str {
        self.test.flow.as_str()
    }

    pub fn file(&self) -> String {
        self.checked.file.display().to_string()
    }

    /// Where the manifest begins.
    pub fn line(&self) -> usize {
        self.checked.line
    }

    pub fn inputs(&self) -> usize {
        self.test.input.len()
    }

    /// Runs the test.
    pub fn run(&self, checked: &Checked, read_golden: &ReadGolden<'_>) -> Result<Verdict, BuildError> {
        let outcome = self.outcome(checked)?;
        let Some(path) = &self.test.expect.golden else {
            return Ok(Verdict { differences: self.compare(&outcome), golden: None });
        };
        let contents = outcome.golden();
        let differences = self.compare_golden(path, &contents, read_golden(&self.file(), path));
        let golden = (!differences.is_empty()).then(|| Golden { path: path.clone(), contents });
        Ok(Verdict { differences, golden })
    }

    fn outcome(&self, checked: &Checked) -> Result<Outcome, BuildError> {
        let names = Names::default();
        let unit = UnitId::new(UnitKind::Flow, self.flow());
        let pipeline = self.pipeline(checked, &names, &unit)?;
        let stamp = Stamp {
            unit,
            digest: "test".to_owned(),
            names: names.clone(),
            message_bytes_max: message::MESSAGE_BYTES_MAX,
            transport_ids: false,
        };
        let stream = names.messages();
        let mut marks = Marks::default();
        let mut outcome = Outcome::default();
        for (at, input) in self.test.input.iter().enumerate() {
            let message = self.message(at, input, &names);
            let now = message.time;
            let mut passage = Passage::start(&pipeline, message, 1, None);
            while passage.waits() {
                let wanted = passage.marks(&pipeline, &stream);
                let own: Vec<bool> = wanted.into_iter().map(|mark| marks.take(mark, now)).collect();
                passage.resume(&pipeline, &own, None);
            }
            outcome.add(&names, passage.finish(&stamp, now, None));
        }
        Ok(outcome)
    }

    fn pipeline(&self, checked: &Checked, names: &Names, unit: &UnitId) -> Result<Pipeline, BuildError> {
        let programs = &self.checked.programs;
        let validators =
            checked.schemas.iter().map(|(name, schema)| (name.clone(), Arc::clone(&schema.validator))).collect();
        let declared = format!("{}:{}", self.flow.file.display(), self.flow.line);
        let parts = transforms::Parts {
            unit: unit.clone(),
            names,
            programs: &programs.iter().map(|(at, one)| (at.clone(), Arc::clone(&one.program))).collect(),
            tables: &flow_tests::tables_of(self.test, &checked.tables),
            validators: &validators,
            locate: transforms::locator(declared, programs.clone()),
        };
        transforms::build(self.steps, &parts)
    }

    /// The message as the bus would hold it.
    fn message(&self, at: usize, input: &Input, names: &Names) -> Stored {
        let mut headers = HeadersBuilder::default();
        for (name, value) in &input.headers {
            headers.set(name, value);
        }
        let id = input.id.clone().unwrap_or_else(|| format!("input-{}", at + 1));
        headers.set(message::ID, &id);
        let from = self.steps.from.as_slice().first().map_or("", |pattern| pattern.as_str());
        let subject = input.subject.as_ref().map_or(from, |subject| subject.as_str());
        let payload = match (&input.text, &input.payload) {
            (Some(text), _) => Bytes::from(text.clone()),
            (None, Some(payload)) => Bytes::from(payload.to_string()),
            (None, None) => Bytes::new(),
        };
        let clock = self.test.clock.map_or(CLOCK_DEFAULT, |time| time.0);
        Stored {
            sequence: at as u64 + 1,
            subject: names.stored(subject),
            headers: headers.build(),
            payload,
            time: input.time.map_or(clock, |time| time.0),
        }
    }

    /// Where an expectation stands, or what holds it when it is left out.
    fn place(&self, path: &str) -> Position {
        let places = &self.checked.places;
        let place = places.get(path).or_else(|| places.get("expect"));
        place.copied().unwrap_or(Position { line: self.checked.line, column: 1 })
    }
}
