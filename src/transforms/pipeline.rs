//! Takes one message through its steps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::watch::{self, Became, Looking, Seen, Watcher};
use super::{Next, Place, Verb};
use crate::flow::dead_letter::business_id;
use crate::flow::failure::Failure;
use crate::flow::message::{Stored, TIME};
use crate::id::UnitId;
use crate::language::{self, FieldPath, Input, Meta, Program, Value};
use crate::time::Timestamp;

/// Messages that one message may become.
pub const PARTS_MAX: usize = 10_000;

/// The steps of one flow, compiled.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) unit: UnitId,
    pub(super) verbs: Vec<Verb>,
    /// Subjects that messages are stored under, with the root prefix.
    pub(super) subjects: Vec<Arc<str>>,
    /// Index of the subject after the last step.
    pub(super) to: Option<usize>,
    /// Whether any step looks at the event, so that payloads have to be JSON.
    pub(super) reads_events: bool,
    /// Whether any program looks at `%`.
    pub(super) reads_meta: bool,
}

/// A message, or a part of one, between two steps.
#[derive(Debug)]
pub struct Event {
    input: Input,
    /// What the payload is while no step has changed it.
    payload: Option<Bytes>,
}

/// What comes out: to be stored under `subject`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emission {
    pub subject: Arc<str>,
    pub payload: Bytes,
}

/// A part that has to know whether its key is new.
#[derive(Debug)]
pub struct Waiting {
    event: Event,
    step: usize,
    /// The mark's key, unique to flow and step.
    pub key: String,
}

/// How far a message has come.
#[derive(Debug, Default)]
pub struct Progress {
    pub emissions: Vec<Emission>,
    pub waiting: Vec<Waiting>,
    /// Parts that ended on purpose.
    pub ended: u64,
}

impl Pipeline {
    /// Whether any step needs marks; then messages must pass in order for the first one to win.
    pub fn has_dedupe(&self) -> bool {
        self.verbs.iter().any(|verb| matches!(verb, Verb::Dedupe(_)))
    }

    /// Runs the steps up to the end or to the first `dedupe`.
    pub fn start(&self, message: &Stored) -> Result<Progress, Failure> {
        self.start_watched(message, None)
    }

    /// The same while somebody may look on.
    pub(super) fn start_watched(&self, message: &Stored, watch: Watcher<'_, '_>) -> Result<Progress, Failure> {
        let mut progress = Progress::default();
        let event = if self.reads_events {
            Event::of(message, self.reads_meta)
                .map_err(|error| Failure::new("payload", format!("{}: {error}", self.unit)))?
        } else {
            let input = Input { event: Value::Null, meta: Meta::default() };
            Event { input, payload: Some(message.payload.clone()) }
        };
        self.advance(event, 0, &mut progress, watch)?;
        Ok(progress)
    }

    /// Goes on with a part whose mark was new or its own.
    pub fn resume(&self, waiting: Waiting, progress: &mut Progress) -> Result<(), Failure> {
        self.resume_watched(waiting, progress, None)
    }

    /// The same while somebody may look on.
    pub(super) fn resume_watched(
        &self,
        waiting: Waiting,
        progress: &mut Progress,
        watch: Watcher<'_, '_>,
    ) -> Result<(), Failure> {
        self.advance(waiting.event, waiting.step + 1, progress, watch)
    }

    /// Tells whether the mark of a waiting part lets it pass.
    pub(super) fn see_mark(&self, waiting: &Waiting, passes: bool, watch: &mut Looking<'_>) {
        let before = waiting.event.to_payload();
        let became = if passes { Became::Passed(before.clone()) } else { Became::Ended };
        watch.see(Seen { number: Some(waiting.step + 1), verb: self.verbs[waiting.step].name(), before, became });
    }

    /// How long the mark of a waiting part lives.
    pub fn within(&self, waiting: &Waiting) -> Duration {
        match &self.verbs[waiting.step] {
            Verb::Dedupe(step) => step.within,
            other => unreachable!("a part waits at {other:?}"),
        }
    }

    fn advance(
        &self,
        event: Event,
        step: usize,
        progress: &mut Progress,
        mut watch: Watcher<'_, '_>,
    ) -> Result<(), Failure> {
        // A stack instead of recursion: the depth is the manifest's, the width the message's.
        let mut stack = vec![(event, step)];
        let mut parts = 1_usize;
        while let Some((mut event, step)) = stack.pop() {
            let Some(verb) = self.verbs.get(step) else {
                self.see_end(&event, &mut watch);
                self.finish(event, self.to, progress);
                continue;
            };
            let before = watch::before(&watch, &event);
            let next = verb.apply(&mut event);
            watch::tell(&mut watch, before, (step + 1, verb), &event, &next, &self.subjects);
            match next? {
                Next::On => stack.push((event, step + 1)),
                Next::Ended => progress.ended += 1,
                Next::Emit(subject) => self.finish(event, Some(subject), progress),
                Next::Wait(key) => progress.waiting.push(Waiting { event, step, key }),
                Next::Many(elements) => {
                    parts += elements.len();
                    if parts > PARTS_MAX {
                        let message = format!("{} makes more than {PARTS_MAX} messages of one", self.unit);
                        return Err(Failure::new("split", message));
                    }
                    if elements.is_empty() {
                        progress.ended += 1;
                    }
                    for element in elements.into_iter().rev() {
                        stack.push((event.part(element), step + 1));
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells of what came through all steps.
    fn see_end(&self, event: &Event, watch: &mut Watcher<'_, '_>) {
        let Some(watch) = watch else { return };
        let became = self.to.map_or(Became::Ended, |to| Became::Emitted(Arc::clone(&self.subjects[to])));
        watch.see(Seen { number: Some(self.verbs.len() + 1), verb: "to", before: event.to_payload(), became });
    }

    fn finish(&self, event: Event, subject: Option<usize>, progress: &mut Progress) {
        match subject {
            Some(subject) => {
                let subject = Arc::clone(&self.subjects[subject]);
                progress.emissions.push(Emission { subject, payload: event.into_payload() });
            }
            None => progress.ended += 1,
        }
    }
}

/// What programs read as `%`: the subject as manifests write it, so without the root prefix.
fn meta(message: &Stored) -> Meta {
    let subject = message.subject.split_once('.').map_or(message.subject.as_str(), |(_, written)| written);
    let time = message.headers.get(TIME).and_then(Timestamp::parse).unwrap_or(message.time);
    Meta {
        subject: subject.to_owned(),
        id: business_id(message),
        time,
        headers: message.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    }
}

impl Event {
    /// The payload read as JSON; an error in words when it is none.
    pub(super) fn of(message: &Stored, reads_meta: bool) -> Result<Self, String> {
        let event = language::json::from_slice(&message.payload)
            .map_err(|error| format!("the payload is not JSON: {error}"))?;
        let meta = if reads_meta { meta(message) } else { Meta::default() };
        Ok(Event { input: Input { event, meta }, payload: Some(message.payload.clone()) })
    }

    /// Runs a read-only program.
    pub(super) fn evaluate(&mut self, program: &Program, place: &Place) -> Result<Value, Failure> {
        program.run(&mut self.input).map(|outcome| outcome.value).map_err(|fault| place.fault(&fault))
    }

    /// Runs a program that changes the event.
    pub(super) fn change(&mut self, program: &Program, place: &Place) -> Result<(), Failure> {
        self.payload = None;
        program.run(&mut self.input).map_err(|fault| place.fault(&fault))?;
        Ok(())
    }

    pub(super) fn insert(&mut self, path: &FieldPath, value: Value) {
        self.payload = None;
        path.insert(&mut self.input.event, value);
    }

    /// The event for a JSON Schema validator.
    pub(super) fn to_json(&self, place: &Place) -> Result<serde_json::Value, Failure> {
        let read = match &self.payload {
            Some(payload) => serde_json::from_slice(payload),
            None => serde_json::to_value(&self.input.event),
        };
        read.map_err(|error| place.failure("payload", &format!("the payload is not JSON: {error}"), None))
    }

    fn part(&self, element: Value) -> Event {
        Event { input: Input { event: element, meta: self.input.meta.clone() }, payload: None }
    }

    fn into_payload(self) -> Bytes {
        match self.payload {
            Some(payload) => payload,
            None => language::json::to_bytes(&self.input.event),
        }
    }

    pub(super) fn to_payload(&self) -> Bytes {
        match &self.payload {
            Some(payload) => payload.clone(),
            None => language::json::to_bytes(&self.input.event),
        }
    }
}
