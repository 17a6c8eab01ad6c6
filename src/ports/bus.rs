//! Where messages are stored and handed out.
//!
//! A *stream* numbers its messages from 1 without gaps in the order they were stored. A *durable* is a named
//! position in a stream that survives restarts: it hands out each matching message until that is acknowledged.
//! The contract every adapter keeps is `tests/contract/`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::store::Write;
use crate::flow::message::{Outgoing, Stored};
use crate::time::Timestamp;

/// Share of a stream's byte limit that is kept for settlements. Without it a full stream could never be worked off: to
/// acknowledge an input, its outputs have to be stored first.
pub const SETTLEMENT_RESERVE_PERCENT: u64 = 10;
/// Messages one pull may ask for.
pub const PULL_MESSAGES_MAX: usize = 4096;

/// Messages one batch may hold that has to be stored together.
pub const BATCH_MESSAGES_MAX: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    pub name: String,
    /// Filters of the subjects it stores. No two streams share a subject.
    pub subjects: Vec<String>,
    /// A message that would take the stream beyond this is refused with [`Error::Full`]; one that is not part of a
    /// settlement already when only [`SETTLEMENT_RESERVE_PERCENT`] of it are left.
    pub bytes_max: u64,
    /// Largest message (subject, headers and payload).
    pub message_bytes_max: usize,
    /// How long a transport id is remembered.
    pub duplicate_window: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    pub config: StreamConfig,
    /// Tells this stream from another of the same name that was made before or after it.
    pub created: Timestamp,
    /// Sequence of the oldest message still held; `last + 1` when there is none.
    pub first: u64,
    /// Sequence of the newest message ever stored; 0 before the first.
    pub last: u64,
    pub messages: u64,
    pub bytes: u64,
    /// Why no new messages are taken now: the stream is as good as full, or the disk has no room.
    pub refuses: Option<String>,
}

/// Where a new durable begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    First,
    /// After the newest message at creation.
    End,
    /// At this sequence.
    Sequence(u64),
    /// At the first message stored at or after this time.
    Time(Timestamp),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurableConfig {
    pub name: String,
    /// A message that matches any of them is handed out, once, whatever the number of filters it matches.
    pub filters: Vec<String>,
    /// Read only when the durable is created.
    pub start: Start,
    /// A delivery that is neither acknowledged nor put off nor reported in progress for this long is handed out again.
    pub ack_wait: Duration,
    /// Deliveries that may be unacknowledged at once; beyond it a pull waits.
    pub in_flight_max: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurableInfo {
    pub config: DurableConfig,
    /// Every matching message up to here is acknowledged.
    pub ack_floor: u64,
    /// Highest sequence handed out so far.
    pub delivered: u64,
    /// Handed out and not acknowledged.
    pub in_flight: usize,
    /// Waiting for a repeated delivery (put off or timed out). A bus that cannot tell these apart counts them as in flight.
    pub redelivering: usize,
    /// Matching messages not yet handed out.
    pub pending: u64,
    /// When the oldest unacknowledged matching message was stored.
    pub oldest_unacknowledged: Option<Timestamp>,
}

/// Names a durable in calls. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Durable {
    pub stream: Arc<str>,
    pub name: Arc<str>,
}

/// One handing-out of a message. Answered by naming its `sequence` to the durable it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub message: Stored,
    /// 1 for the first delivery. Counts on over restarts.
    pub attempt: u32,
    /// Matching messages behind this one that were not handed out yet; a lower bound.
    pub pending: u64,
}

/// A condition the bus checks as it stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    pub subject: String,
    /// The subject's last sequence must be this; 0 for "no message yet".
    pub last: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PubAck {
    pub sequence: u64,
    /// The transport id was known: nothing was stored, `sequence` is the first message's.
    pub duplicate: bool,
}

/// Messages that are stored in one stream together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub stream: Arc<str>,
    pub messages: Vec<Outgoing>,
    /// All must hold, or nothing of the batch is stored.
    pub expected: Vec<Expected>,
}

/// Which acknowledgements of a settlement the bus has to confirm one by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Confirm {
    /// Each: for work whose repetition shows outside.
    #[default]
    Each,
    /// The last for those before it, which travel the same way. Where the bus itself changes hands on that way one of them may get
    /// lost; its message is then handed out again. For work whose outputs carry transport ids.
    Last,
}

/// What ends work on deliveries: outputs and marks first, then the acknowledgements.
///
/// An adapter whose [`Bus::settles_atomically`] does all of it in one commit or none. Another one stores every
/// batch and write, and acknowledges only after all of them succeeded.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    pub batches: Vec<Batch>,
    pub writes: Vec<Write>,
    pub acknowledged: Vec<(Durable, u64)>,
    pub confirm: Confirm,
}

pub type Answer<T> = BoxFuture<'static, Result<T, Error>>;

/// Object-safe on purpose: units hold `Arc<dyn Bus>`.
///
/// Calls that write take effect in the order they are made, even before the returned future is first polled.
pub trait Bus: Send + Sync + 'static {
    /// Makes the stream, or checks that it has this configuration. Byte limits and windows of an existing stream
    /// are brought in line; other subjects are refused with [`Error::Mismatch`].
    fn ensure_stream(&self, config: StreamConfig) -> Answer<StreamInfo>;

    fn stream(&self, name: &str) -> Answer<StreamInfo>;

    /// Stores one message and answers when it is durable.
    fn publish(&self, stream: &Arc<str>, message: Outgoing, expected: Option<Expected>) -> Answer<PubAck>;

    /// Stores several in order, all or none, and answers when they are durable.
    fn publish_batch(&self, batch: Batch) -> Answer<Vec<PubAck>>;

    /// Makes the durable, or checks that it has these filters ([`Error::Mismatch`] otherwise). The start of an
    /// existing one stays; ack wait and in-flight limit are brought in line.
    fn ensure_durable(&self, stream: &str, config: DurableConfig) -> Answer<Durable>;

    /// Succeeds when there is none.
    fn delete_durable(&self, durable: &Durable) -> Answer<()>;

    fn durable(&self, durable: &Durable) -> Answer<DurableInfo>;

    fn durables(&self, stream: &str) -> Answer<Vec<DurableInfo>>;

    /// Hands out between 1 and `messages_max` messages, as soon as there is one and within `bytes_max` (always at
    /// least one); none when nothing came within `wait`. First deliveries come in sequence order.
    fn pull(&self, durable: &Durable, messages_max: usize, bytes_max: usize, wait: Duration) -> Answer<Vec<Delivery>>;

    /// Hands the message out again after `delay`.
    fn put_off(&self, durable: &Durable, sequence: u64, delay: Duration) -> Answer<()>;

    /// Work on these goes on: their ack wait starts anew.
    fn in_progress(&self, durable: &Durable, sequences: &[u64]) -> Answer<()>;

    /// See [`Settlement`]. The answer has one entry per message, batch by batch.
    fn settle(&self, settlement: Settlement) -> Answer<Vec<PubAck>>;

    fn settles_atomically(&self) -> bool;

    /// Up to `messages_max` (and about 1 MiB) messages with a sequence of at least `from` that match any filter; no filters is all.
    fn read(&self, stream: &str, from: u64, filters: &[String], messages_max: usize) -> Answer<Vec<Stored>>;

    /// The newest message of one subject.
    fn last(&self, stream: &str, subject: &str) -> Answer<Option<Stored>>;

    /// The first sequence stored at or after `time`; `last + 1` when there is none.
    fn sequence_at(&self, stream: &str, time: Timestamp) -> Answer<u64>;

    /// Removes the messages below `first`, but never the newest message of a subject that matches `keep_last_of`.
    /// Answers how many were removed.
    fn trim(&self, stream: &str, first: u64, keep_last_of: &[String]) -> Answer<u64>;

    /// Removes single messages wherever they lie; unknown ones are passed over. Answers how many were removed.
    fn remove(&self, stream: &str, sequences: &[u64]) -> Answer<u64>;
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("stream {stream} is full ({bytes_max} bytes)")]
    Full { stream: String, bytes_max: u64 },
    #[error("message of {bytes} bytes is above the limit of {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: usize },
    #[error("last sequence of {subject} is {actual}, not {expected}")]
    WrongLast { subject: String, expected: u64, actual: u64 },
    #[error("store entry {bucket}/{key} is not at the expected revision")]
    WrongRevision { bucket: String, key: String },
    #[error("subject {subject} is not stored by stream {stream}")]
    ForeignSubject { stream: String, subject: String },
    #[error("no stream {0}")]
    NoStream(String),
    #[error("no durable {durable} on stream {stream}")]
    NoDurable { stream: String, durable: String },
    #[error("{what} is {found}, wanted {wanted}")]
    Mismatch { what: String, found: String, wanted: String },
    /// The disk has no room. Nothing was stored.
    #[error("no space left for the bus: {0}")]
    NoSpace(String),
    /// The bus cannot be reached now. Whether a write took effect is not known.
    #[error("bus unavailable: {0}")]
    Unavailable(String),
    /// The bus has stopped for good: the process has to end.
    #[error("bus stopped: {0}")]
    Stopped(String),
}

impl Error {
    /// Whether the same call may succeed later without anybody changing it.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Full { .. } | Error::NoSpace(_) | Error::Unavailable(_))
    }
}
