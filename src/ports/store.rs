//! Small shared state: buckets of keys whose every change has a revision and can be made conditional.
//!
//! Revisions grow within a bucket. An expired or deleted key reads as absent.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::bus::{Answer, Error};
use crate::time::Timestamp;

/// Largest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 768 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Bytes,
    pub revision: u64,
    pub written: Timestamp,
}

/// What has to be true for a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The key is absent.
    Absent,
    /// The key's entry has this revision.
    Revision(u64),
}

/// One conditional change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub bucket: String,
    pub key: String,
    /// `None` deletes.
    pub value: Option<Bytes>,
    pub condition: Condition,
    /// The entry vanishes this long after the write; `None` keeps it for the bucket's time to live.
    pub ttl: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done, durable; the new revision.
    Won(u64),
    /// Refused: this is what is there.
    Lost(Option<Entry>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put(Entry),
    /// Deleted or expired.
    Gone {
        key: String,
        revision: u64,
    },
    /// Everything that was there when the watch began has been reported.
    CaughtUp,
}

/// What a bucket is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketInfo {
    /// Tells this bucket from one of the same name that was made before or after it. A store of one process gives another identity
    /// each time it is opened.
    pub identity: u64,
    /// For how long, at least, nobody can have used the bucket under another identity.
    pub age: Duration,
    /// The newest revision; 0 before the first.
    pub last: u64,
    /// How long entries are kept that say nothing themselves.
    pub ttl: Option<Duration>,
}

/// Object-safe on purpose: units hold `Arc<dyn Store>`.
pub trait Store: Send + Sync + 'static {
    /// Makes the bucket, or brings its time to live in line. `ttl` of `None` keeps entries for ever.
    fn ensure_bucket(&self, bucket: &str, ttl: Option<Duration>) -> Answer<()>;

    /// [`Error::NoStream`] when there is no such bucket.
    fn bucket(&self, bucket: &str) -> Answer<BucketInfo>;

    fn get(&self, bucket: &str, key: &str) -> Answer<Option<Entry>>;

    /// Applies the writes one by one, in order; each wins or loses for itself.
    fn write(&self, writes: Vec<Write>) -> Answer<Vec<Outcome>>;

    /// Entries whose key starts with `prefix`, by key, beginning after `after`; at most `entries_max`.
    fn list(&self, bucket: &str, prefix: &str, after: Option<&str>, entries_max: usize) -> Answer<Vec<Entry>>;

    /// What is there, then [`Change::CaughtUp`], then every change. Only a notification: a watcher that falls behind
    /// may miss intermediate values of a key, never its last one. The stream ends with an error when the watch breaks.
    fn watch(&self, bucket: &str, prefix: &str) -> BoxStream<'static, Result<Change, Error>>;

    /// The same for one key.
    fn watch_key(&self, bucket: &str, key: &str) -> BoxStream<'static, Result<Change, Error>> {
        let wanted = key.to_owned();
        let is_of_key = move |change: &Result<Change, Error>| match change {
            Ok(Change::Put(Entry { key, .. }) | Change::Gone { key, .. }) => *key == wanted,
            Ok(Change::CaughtUp) | Err(_) => true,
        };
        Box::pin(self.watch(bucket, key).filter(move |change| std::future::ready(is_of_key(change))))
    }
}
