//! The two versions, and one message through both. No bus: what comes out is held in memory and compared.

use std::sync::Arc;

use super::view::{self, Failure};
use crate::flow::message::Stored;
use crate::id::{Names, subject_matches};
use crate::manifest::Spec;
use crate::runtime::load::LoadedUnit;
use crate::testing::{Marks, Outcome, between};
use crate::transforms::{self, BuildError, Passage, Pipeline, Stamp};
use crate::unit::status;

/// One version, with the marks it has set.
struct Version {
    pipeline: Pipeline,
    stamp: Stamp,
    /// As manifests write it.
    from: Vec<String>,
    marks: Marks,
    /// Where its messages are stored.
    stream: String,
}

pub(super) struct Sides {
    active: Version,
    candidate: Version,
    names: Names,
}

impl Version {
    fn new(unit: &LoadedUnit, names: &Names, message_bytes_max: usize) -> Result<Self, BuildError> {
        let Spec::Flow(flow) = &unit.manifest.spec else { unreachable!("{} was asked for as a flow", unit.id) };
        let parts = transforms::Parts {
            unit: unit.id.clone(),
            names,
            programs: &unit.programs,
            tables: &unit.tables,
            validators: &unit.validators,
            locate: Arc::clone(&unit.locate),
        };
        let stamp = Stamp {
            unit: unit.id.clone(),
            digest: status::short(&unit.digest).to_owned(),
            names: names.clone(),
            message_bytes_max,
            transport_ids: false,
        };
        Ok(Version {
            pipeline: transforms::build(flow, &parts)?,
            stamp,
            from: flow.from.as_slice().iter().map(|pattern| pattern.as_str().to_owned()).collect(),
            marks: Marks::default(),
            stream: names.messages(),
        })
    }

    fn reads(&self, subject: &str) -> bool {
        self.from.iter().any(|pattern| subject_matches(pattern, subject))
    }

    /// The time is the message's own: an old message gives what it gave.
    fn run(&mut self, message: &Stored, names: &Names) -> Outcome {
        let now = message.time;
        let mut passage = Passage::start(&self.pipeline, message.clone(), 1, None);
        while passage.waits() {
            let wanted = passage.marks(&self.pipeline, &self.stream);
            let own: Vec<bool> = wanted.into_iter().map(|mark| self.marks.take(mark, now)).collect();
            passage.resume(&self.pipeline, &own, None);
        }
        let mut outcome = Outcome::default();
        outcome.add(names, passage.finish(&self.stamp, now, None));
        outcome
    }
}

impl Sides {
    pub fn new(
        active: &LoadedUnit,
        candidate: &LoadedUnit,
        names: &Names,
        message_bytes_max: usize,
    ) -> Result<Self, BuildError> {
        Ok(Sides {
            active: Version::new(active, names, message_bytes_max)?,
            candidate: Version::new(candidate, names, message_bytes_max)?,
            names: names.clone(),
        })
    }

    /// What either version reads, as it is stored.
    pub fn filters(&self) -> Vec<String> {
        let both = self.active.from.iter().chain(&self.candidate.from);
        let mut filters: Vec<String> = both.map(|pattern| self.names.stored(pattern)).collect();
        filters.sort_unstable();
        filters.dedup();
        filters
    }

    /// `is_letter`: the message comes to the flow whatever its subject.
    pub fn compare(&mut self, message: &Stored, id: String, is_letter: bool) -> view::Message {
        let subject = self.names.written(&message.subject);
        let run = |version: &mut Version| {
            let reads = is_letter || version.reads(subject);
            (reads, if reads { version.run(message, &self.names) } else { Outcome::default() })
        };
        let (active, candidate) = (run(&mut self.active), run(&mut self.candidate));
        let diff = between(&active.1, &candidate.1);
        view::Message {
            sequence: message.sequence,
            subject: subject.to_owned(),
            id,
            time: message.time.to_string(),
            outcome: outcome(&active.1, &candidate.1, diff.is_some()),
            active: shown(active),
            candidate: shown(candidate),
            diff,
        }
    }
}

fn outcome(active: &Outcome, candidate: &Outcome, differ: bool) -> view::Outcome {
    let fails = |outcome: &Outcome| !outcome.dead_letters.is_empty();
    match (fails(active), fails(candidate)) {
        _ if !differ && fails(active) == fails(candidate) => view::Outcome::Unchanged,
        (false, true) => view::Outcome::Failed,
        (true, false) => view::Outcome::Mended,
        _ if active.outputs.is_empty() && !candidate.outputs.is_empty() => view::Outcome::Added,
        _ if candidate.outputs.is_empty() && !active.outputs.is_empty() => view::Outcome::Dropped,
        _ => view::Outcome::Changed,
    }
}

fn shown((reads, outcome): (bool, Outcome)) -> view::Side {
    let failure = outcome.dead_letters.into_iter().next();
    view::Side {
        reads,
        outputs: outcome.outputs.len(),
        failure: failure.map(|letter| Failure { code: letter.code, message: letter.text }),
    }
}
