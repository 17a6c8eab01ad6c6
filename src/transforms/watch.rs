//! Looking on while a message passes the steps of a flow. Nothing here changes what becomes of it.

use std::sync::Arc;

use bytes::Bytes;

use super::pipeline::Event;
use super::{Next, Verb};
use crate::flow::failure::Failure;
use crate::flow::message::Stored;
use crate::language::{Value, json};

/// One step that was taken by a message or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Counted from 1; the `to` of a flow comes after its last step. `None` is the unit as a whole.
    pub number: Option<usize>,
    pub verb: &'static str,
    /// The payload as it reached the step.
    pub before: Bytes,
    pub became: Became,
}

/// What a step made of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Became {
    /// It goes on, as this payload.
    Passed(Bytes),
    /// It ends here on purpose.
    Ended,
    /// It is to be stored under this subject.
    Emitted(Arc<str>),
    /// Several go on in its place; together they are this array.
    Split {
        parts: usize,
        array: Bytes,
    },
    Failed(Failure),
    /// A receiver took it.
    Delivered,
}

/// Hears of every step that any message takes. Told from many threads.
pub trait Watch: Sync {
    fn see(&self, message: &Stored, attempt: u32, seen: Seen);
}

/// Looks on at one message.
pub(super) struct Looking<'a> {
    watch: &'a dyn Watch,
    message: &'a Stored,
    attempt: u32,
    /// A step told of its failure, so that it need not be told again.
    pub told_failure: bool,
}

impl<'a> Looking<'a> {
    pub fn new(watch: &'a dyn Watch, message: &'a Stored, attempt: u32) -> Self {
        Looking { watch, message, attempt, told_failure: false }
    }

    pub fn see(&mut self, seen: Seen) {
        self.told_failure |= matches!(seen.became, Became::Failed(_));
        self.watch.see(self.message, self.attempt, seen);
    }
}

/// Who looks on, if anybody does.
pub(super) type Watcher<'a, 'b> = Option<&'a mut Looking<'b>>;

/// `None` when nobody looks on, so that it costs nothing then.
pub(super) fn before(watch: &Watcher<'_, '_>, event: &Event) -> Option<Bytes> {
    watch.is_some().then(|| event.to_payload())
}

/// Tells of a step that was taken. A step that waits for a mark is told of when it is known what becomes of it.
pub(super) fn tell(
    watch: &mut Watcher<'_, '_>,
    before: Option<Bytes>,
    (number, verb): (usize, &Verb),
    event: &Event,
    next: &Result<Next, Failure>,
    subjects: &[Arc<str>],
) {
    let (Some(watch), Some(before)) = (watch.as_deref_mut(), before) else { return };
    let became = match next {
        Ok(Next::On) => Became::Passed(event.to_payload()),
        Ok(Next::Ended) => Became::Ended,
        Ok(Next::Emit(subject)) => Became::Emitted(Arc::clone(&subjects[*subject])),
        Ok(Next::Many(elements)) => {
            Became::Split { parts: elements.len(), array: json::to_bytes(&Value::Array(elements.clone())) }
        }
        Ok(Next::Wait(_)) => return,
        Err(failure) => Became::Failed(failure.clone()),
    };
    watch.see(Seen { number: Some(number), verb: verb.name(), before, became });
}
