//! One message on its way through a pipeline: from what was stored to what is to be stored in its place, either outputs
//! with their headers or a dead letter.
//!
//! No bus and no clock: whoever drives it asks for the marks, be it the runtime of a store or `vejas test` of its memory.
//! What it upholds: a message passes whole or becomes one dead letter; a panic in a step is a failure of the message.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::watch::{Became, Looking, Seen, Watch};
use super::{Emission, Pipeline, Progress};
use crate::flow::dead_letter::{self, Death, dead_letter};
use crate::flow::failure::Failure;
use crate::flow::message::{self, HOPS_MAX, Headers, Outgoing, Stored};
use crate::id::{Names, UnitId};
use crate::time::Timestamp;

/// What a flow puts on everything that leaves it.
#[derive(Debug)]
pub struct Stamp {
    pub unit: UnitId,
    pub digest: String,
    pub names: Names,
    /// Largest message the stream takes, in bytes.
    pub message_bytes_max: usize,
    /// Ids in outputs are needed only where output and acknowledgement are two steps.
    pub transport_ids: bool,
}

/// A message and how far it has come.
#[derive(Debug)]
pub struct Passage {
    message: Stored,
    attempt: u32,
    result: Result<Progress, Failure>,
    /// Who looks on has heard of the failure.
    told_failure: bool,
}

/// A mark that a waiting part needs: it passes when the key is new or marked by the same owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub key: String,
    /// Identity of the message across redelivery, moves and replays.
    pub owner: String,
    /// How long it lives.
    pub within: Duration,
}

/// One input and all that came of it: settled together or not at all.
#[derive(Debug)]
pub struct Passed {
    pub input: u64,
    pub outputs: Vec<Outgoing>,
    pub letter: Option<(Outgoing, Failure)>,
    /// Parts that ended on purpose.
    pub ended: u64,
}

impl Passage {
    /// Runs the steps up to the end or to the first `dedupe`, while `watch` looks on.
    pub fn start(pipeline: &Pipeline, message: Stored, attempt: u32, watch: Option<&dyn Watch>) -> Self {
        let mut looking = watch.map(|watch| Looking::new(watch, &message, attempt));
        let result = guarded(&pipeline.unit, || {
            check_hops(&message)?;
            pipeline.start_watched(&message, looking.as_mut())
        });
        let told_failure = looking.is_some_and(|looking| looking.told_failure);
        Passage { message, attempt, result, told_failure }
    }

    /// Whether parts wait for their marks.
    pub fn waits(&self) -> bool {
        self.result.as_ref().is_ok_and(|progress| !progress.waiting.is_empty())
    }

    /// The marks of all that waits, in order. `stream` is where the message is stored.
    pub fn marks(&self, pipeline: &Pipeline, stream: &str) -> Vec<Mark> {
        let Ok(progress) = &self.result else { return Vec::new() };
        let owner = origin(stream, &self.message);
        let mark = |waiting: &super::Waiting| Mark {
            key: waiting.key.clone(),
            owner: owner.clone(),
            within: pipeline.within(waiting),
        };
        progress.waiting.iter().map(mark).collect()
    }

    /// Goes on with the parts whose mark is their own; `own` is in the order of [`Passage::marks`].
    pub fn resume(&mut self, pipeline: &Pipeline, own: &[bool], watch: Option<&dyn Watch>) {
        let Ok(progress) = &mut self.result else { return };
        let waiting = std::mem::take(&mut progress.waiting);
        let mut looking = watch.map(|watch| Looking::new(watch, &self.message, self.attempt));
        let result = guarded(&pipeline.unit, || {
            // Parts of one message share its origin: among them only the first of a key passes.
            let mut seen = BTreeSet::new();
            for (nth, part) in waiting.into_iter().enumerate() {
                let first = seen.insert(part.key.clone());
                let passes = first && own.get(nth).copied().unwrap_or(false);
                if let Some(looking) = &mut looking {
                    pipeline.see_mark(&part, passes, looking);
                }
                if passes {
                    pipeline.resume_watched(part, progress, looking.as_mut())?;
                } else {
                    progress.ended += 1;
                }
            }
            Ok(())
        });
        self.told_failure |= looking.is_some_and(|looking| looking.told_failure);
        if let Err(failure) = result {
            self.result = Err(failure);
        }
    }

    /// What is to be stored. `now` is the time of death, should it come to that.
    pub fn finish(self, stamp: &Stamp, now: Timestamp, watch: Option<&dyn Watch>) -> Passed {
        let Passage { message, attempt, result, told_failure } = self;
        let settled = result.and_then(|progress| Ok((emit(stamp, &message, progress.emissions)?, progress.ended)));
        match settled {
            Ok((outputs, ended)) => Passed { input: message.sequence, outputs, letter: None, ended },
            Err(failure) => {
                // Beside the steps: the payload is not JSON, a step broke off, an output is too large.
                if let (Some(watch), false) = (watch, told_failure) {
                    let (before, became) = (message.payload.clone(), Became::Failed(failure.clone()));
                    watch.see(&message, attempt, Seen { number: None, verb: "unit", before, became });
                }
                let death =
                    Death { unit: &stamp.unit, digest: &stamp.digest, attempts: attempt, failure: &failure, last: now };
                let letter = dead_letter(&stamp.names, &message, &death);
                Passed { input: message.sequence, outputs: Vec::new(), letter: Some((letter, failure)), ended: 0 }
            }
        }
    }
}

fn guarded<T>(unit: &UnitId, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new("panic", format!("{unit} broke off while it worked on the message: {text}")))
    })
}

fn hops(headers: &Headers) -> u32 {
    headers.get(message::HOP).and_then(|hop| hop.parse().ok()).unwrap_or(0)
}

fn check_hops(message: &Stored) -> Result<(), Failure> {
    if hops(&message.headers) >= HOPS_MAX {
        let text = format!("the message has passed {HOPS_MAX} flows: it runs in a circle");
        return Err(Failure::new("hops", text));
    }
    Ok(())
}

fn origin(stream: &str, message: &Stored) -> String {
    match message.headers.get(message::ORIGIN) {
        Some(origin) => origin.to_owned(),
        None => format!("{stream}/{}", message.sequence),
    }
}

/// Puts headers on what came out of one message.
fn emit(stamp: &Stamp, message: &Stored, emissions: Vec<Emission>) -> Result<Vec<Outgoing>, Failure> {
    let single = emissions.len() == 1;
    let mut outputs = Vec::with_capacity(emissions.len());
    let business_id = dead_letter::business_id(message);
    let hop = (hops(&message.headers) + 1).to_string();
    for (nth, emission) in emissions.into_iter().enumerate() {
        let mut headers = message.headers.to_builder();
        let id = if single { business_id.clone() } else { format!("{business_id}/{nth}") };
        headers.set(message::ID, &id).set(message::REVISION, &stamp.digest).set(message::HOP, &hop);
        headers.remove(message::ORIGIN).remove(message::SUBJECT);
        if dead_letter::was_dead(&message.headers) {
            dead_letter::forget(&mut headers);
        }
        let transport_id = stamp.transport_ids.then(|| format!("f/{}/{}/{nth}", stamp.unit.name, message.sequence));
        let output = Outgoing {
            subject: emission.subject.to_string(),
            headers: headers.build(),
            payload: emission.payload,
            transport_id,
        };
        if output.size_bytes() > stamp.message_bytes_max {
            let text = format!(
                "{}: output {nth} has {} bytes, more than the limit of {}",
                stamp.unit,
                output.size_bytes(),
                stamp.message_bytes_max
            );
            return Err(Failure::new("too-large", text));
        }
        outputs.push(output);
    }
    Ok(outputs)
}
