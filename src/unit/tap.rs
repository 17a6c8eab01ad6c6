//! Looking at what a unit does with its messages, live.
//!
//! Nobody listening costs one relaxed load per batch. A listener never holds the unit back: what does not fit its queue is
//! left out and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::flow::dead_letter::business_id;
use crate::flow::message::Stored;
use crate::transforms::{Became, Seen, Watch};

/// Records one listener may leave unread.
const RECORDS_MAX: usize = 1_024;
/// Bytes of them; the last one taken may exceed it.
const RECORDS_BYTES_MAX: usize = 1 << 20;
/// What one payload may take of that, in bytes; longer ones are cut.
pub const SHOWN_BYTES_MAX: usize = 256 << 10;

/// A payload as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub bytes: Bytes,
    /// Of the whole payload; more than `bytes` has when it was cut.
    pub bytes_total: usize,
}

impl Shown {
    pub fn new(payload: &Bytes) -> Self {
        let bytes = match payload.len() > SHOWN_BYTES_MAX {
            // A copy, so that the rest is not held.
            true => Bytes::copy_from_slice(&payload[..SHOWN_BYTES_MAX]),
            false => payload.clone(),
        };
        Shown { bytes, bytes_total: payload.len() }
    }
}

/// One step that a message took in a unit.
#[derive(Debug, Clone)]
pub struct Record {
    /// Of the message in its stream.
    pub sequence: u64,
    pub attempt: u32,
    /// As it is stored.
    pub subject: String,
    pub id: String,
    pub step: Option<usize>,
    pub verb: &'static str,
    pub before: Shown,
    /// Of what goes on.
    pub after: Option<Shown>,
    pub became: Became,
}

impl Record {
    pub fn new(message: &Stored, attempt: u32, seen: Seen) -> Self {
        let (after, became) = match seen.became {
            Became::Passed(payload) => (Some(Shown::new(&payload)), Became::Passed(Bytes::new())),
            Became::Split { parts, array } => (Some(Shown::new(&array)), Became::Split { parts, array: Bytes::new() }),
            other => (None, other),
        };
        Record {
            sequence: message.sequence,
            attempt,
            subject: message.subject.clone(),
            id: business_id(message),
            step: seen.number,
            verb: seen.verb,
            before: Shown::new(&seen.before),
            after,
            became,
        }
    }

    fn size_bytes(&self) -> usize {
        let after = self.after.as_ref().map_or(0, |after| after.bytes.len());
        size_of::<Self>() + self.subject.len() + self.id.len() + self.before.bytes.len() + after
    }
}

/// Where a unit tells of its steps.
#[derive(Debug, Default)]
pub struct Tap {
    listening: AtomicUsize,
    queues: Mutex<Vec<Arc<Queue>>>,
}

impl Tap {
    /// Whether anybody listens.
    pub fn is_on(&self) -> bool {
        self.listening.load(Relaxed) > 0
    }

    pub fn tell(&self, record: Record) {
        let record = Arc::new(record);
        for queue in self.queues().iter() {
            queue.push(&record);
        }
    }

    pub fn listen(self: &Arc<Self>) -> Listener {
        let queue = Arc::new(Queue::default());
        let mut queues = self.queues();
        queues.push(Arc::clone(&queue));
        self.listening.store(queues.len(), Relaxed);
        Listener { tap: Arc::clone(self), queue }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Tap {
    fn see(&self, message: &Stored, attempt: u32, seen: Seen) {
        self.tell(Record::new(message, attempt, seen));
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    records: VecDeque<Arc<Record>>,
    bytes: usize,
    /// Left out since the last one read.
    skipped: u64,
}

impl Queue {
    fn push(&self, record: &Arc<Record>) {
        let mut waiting = self.waiting();
        // Once something is left out, nothing comes before the gap has been read: it stands at one place.
        if waiting.skipped > 0 || waiting.records.len() >= RECORDS_MAX || waiting.bytes >= RECORDS_BYTES_MAX {
            waiting.skipped += 1;
        } else {
            waiting.bytes += record.size_bytes();
            waiting.records.push_back(Arc::clone(record));
        }
        drop(waiting);
        self.came.notify_one();
    }

    fn pop(&self) -> Option<Heard> {
        let mut waiting = self.waiting();
        if let Some(record) = waiting.records.pop_front() {
            waiting.bytes -= record.size_bytes();
            return Some(Heard::Record(record));
        }
        match std::mem::take(&mut waiting.skipped) {
            0 => None,
            skipped => Some(Heard::Gap(skipped)),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a listener hears next.
#[derive(Debug)]
pub enum Heard {
    Record(Arc<Record>),
    /// So many were left out here.
    Gap(u64),
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Listener {
    tap: Arc<Tap>,
    queue: Arc<Queue>,
}

impl Listener {
    pub async fn next(&self) -> Heard {
        loop {
            if let Some(heard) = self.queue.pop() {
                return heard;
            }
            self.queue.came.notified().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut queues = self.tap.queues();
        queues.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        self.tap.listening.store(queues.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::message::Headers;
    use crate::time::Timestamp;

    fn record(sequence: u64, payload: &Bytes) -> Record {
        let message = Stored {
            sequence,
            subject: "vx.a".to_owned(),
            headers: Headers::default(),
            payload: payload.clone(),
            time: Timestamp(0),
        };
        let became = Became::Passed(payload.clone());
        Record::new(&message, 1, Seen { number: Some(1), verb: "map", before: payload.clone(), became })
    }

    #[tokio::test]
    async fn who_does_not_read_gets_what_fitted_and_the_count_of_the_rest() {
        let tap = Arc::new(Tap::default());
        assert!(!tap.is_on());
        let listener = tap.listen();
        assert!(tap.is_on());
        for sequence in 0..2_000 {
            tap.tell(record(sequence, &Bytes::from_static(b"{}")));
        }
        for sequence in 0..1_024 {
            let Heard::Record(record) = listener.next().await else { panic!("a gap at {sequence}") };
            assert_eq!(record.sequence, sequence);
        }
        assert!(matches!(listener.next().await, Heard::Gap(976)));
        tap.tell(record(7, &Bytes::new()));
        assert!(matches!(listener.next().await, Heard::Record(record) if record.sequence == 7));
        drop(listener);
        assert!(!tap.is_on());
    }

    #[tokio::test]
    async fn large_payloads_are_cut_and_bounded_by_bytes() {
        let tap = Arc::new(Tap::default());
        let listener = tap.listen();
        for sequence in 0..100 {
            tap.tell(record(sequence, &Bytes::from(vec![b'x'; 8 << 20])));
        }
        let mut bytes = 0;
        let skipped = loop {
            match listener.next().await {
                Heard::Record(record) => {
                    assert_eq!((record.before.bytes.len(), record.before.bytes_total), (SHOWN_BYTES_MAX, 8 << 20));
                    bytes += record.size_bytes();
                }
                Heard::Gap(skipped) => break skipped,
            }
        };
        assert!(bytes < 2 * RECORDS_BYTES_MAX && skipped > 90, "{bytes} {skipped}");
    }
}
