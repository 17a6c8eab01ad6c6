//! Buckets: a stream each, laid out as NATS lays out its key-value buckets, with one message a key.
//!
//! The client library's key-value calls are not used, because a decision about ownership must not rest on them: its create
//! takes any failed first try and a record that is there for "exists", so a create that won and whose answer was lost looks
//! like a loss; its reads go to any replica that is at hand, so they may be stale; and its writes over a delete marker drop
//! the time to live. Here every write is a publish of ours with a condition, every read is answered by the leader, and a lost
//! answer is [`Error::Unavailable`], never won or lost.
//!
//! A bucket's time to live is the stream's maximum age, an entry's own the per-message one, in whole seconds, rounded up.
//! Sequences of a new bucket begin at the wall clock's microseconds, so that revisions go on growing when a bucket is made again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, Message, Subject};
use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::oneshot;

use super::Shared;
use super::api::{self, Fail, Held};
use super::header;
use super::link::{Lane, Link};
use super::publish::is_busy;
use super::stream::{Shape, object, time, token};
use crate::ports::bus::Error;
use crate::ports::store::{BucketInfo, Condition, Entry, Outcome, VALUE_BYTES_MAX, Write};

/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 1024;
/// Room for the headers of a write.
const HEADERS_BYTES_MAX: usize = 512;
/// Bytes one bucket may hold.
const BUCKET_BYTES_MAX: u64 = 1 << 30;
/// How long the marker of a deleted key is kept. Nothing depends on it but watchers that are behind, and those list again.
const MARKER_TTL_SECS: u64 = 300;
/// Longest window of transport ids, which buckets do not use.
const WINDOW_MAX: Duration = Duration::from_secs(120);
const WINDOW_MIN: Duration = Duration::from_millis(100);
/// Tries of one write that is refused although what is there would allow it, or that met another in flight.
const TRIES_MAX: u32 = 12;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// Reads in flight for one list.
const READS_IN_FLIGHT_MAX: usize = 64;

/// The stream behind a bucket.
pub(super) fn stream_of(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// Keys may hold anything; what a subject cannot carry is written `=XX`.
pub(super) fn encode_key(key: &str) -> String {
    let mut encoded = String::with_capacity(key.len());
    let bytes = key.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        let lone_dot = *byte == b'.' && at > 0 && at + 1 < bytes.len() && bytes[at - 1] != b'.';
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/') || lone_dot {
            encoded.push(char::from(*byte));
        } else {
            encoded.push_str(&format!("={byte:02X}"));
        }
    }
    encoded
}

pub(super) fn decode_key(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first == b'=' {
            let (digits, tail) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn subject_of(bucket: &str, key: &str) -> String {
    format!("$KV.{bucket}.{}", encode_key(key))
}

/// The narrowest filter that every key with this prefix matches: filters match whole tokens.
pub(super) fn filter_of(bucket: &str, prefix: &str) -> String {
    let whole = prefix.rfind('.').map(|at| &prefix[..at]).filter(|whole| !whole.is_empty());
    match whole {
        Some(whole) if encode_key(whole).matches('.').count() == whole.matches('.').count() => {
            format!("$KV.{bucket}.{}.>", encode_key(whole))
        }
        _ => format!("$KV.{bucket}.>"),
    }
}

pub(super) fn entry_of(bucket: &str, held: Held) -> Option<Entry> {
    let key = key_of(bucket, &held.stored.subject)?;
    let stored = held.stored;
    (!held.own.deleted).then_some(Entry { key, value: stored.payload, revision: stored.sequence, written: stored.time })
}

pub(super) fn key_of(bucket: &str, subject: &str) -> Option<String> {
    decode_key(subject.strip_prefix("$KV.")?.strip_prefix(bucket)?.strip_prefix('.')?)
}

type Answer = (Arc<Link>, oneshot::Receiver<Message>);

impl Shared {
    pub(super) async fn ensure_bucket(&self, bucket: &str, ttl: Option<Duration>) -> Result<(), Error> {
        let name = stream_of(token(bucket)?);
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(i64::MAX.unsigned_abs());
        let window = ttl.unwrap_or(WINDOW_MAX).clamp(WINDOW_MIN, WINDOW_MAX);
        let micros = self.connection.options.clock.now().0 / 1000;
        let shape = Shape {
            fixed: object(json!({
                "name": name, "subjects": [format!("$KV.{bucket}.>")], "retention": "limits", "storage": "file",
                "deny_purge": false, "sealed": false,
            })),
            adjusted: object(json!({
                "max_msgs_per_subject": 1, "max_age": ttl.map_or(0, nanos), "duplicate_window": nanos(window),
                "max_bytes": BUCKET_BYTES_MAX, "max_msgs": -1, "max_msg_size": -1, "discard": "new",
                "num_replicas": self.connection.options.replicas, "allow_direct": false, "allow_msg_ttl": true,
            })),
            created_only: object(json!({ "first_seq": micros.max(1) })),
        };
        self.ensure_shape(&name, shape).await.map(drop)
    }

    /// Asked of the leader, whose own clock says how old the bucket is.
    pub(super) async fn bucket_info(&self, bucket: &str) -> Result<BucketInfo, Error> {
        let name = stream_of(token(bucket)?);
        let answer = self.connection.ask(&format!("STREAM.INFO.{name}"), &serde_json::Value::Null).await;
        let answer = answer.map_err(|fail| no_bucket(self.stream_failed(&name, fail), bucket))?;
        let (created, now) = (time(&answer["created"]), time(&answer["ts"]));
        let ttl = answer["config"]["max_age"].as_u64().filter(|nanos| *nanos > 0).map(Duration::from_nanos);
        Ok(BucketInfo {
            identity: created.0.unsigned_abs(),
            age: Duration::from_nanos(u64::try_from(now.0.saturating_sub(created.0)).unwrap_or(0)),
            last: answer["state"]["last_seq"].as_u64().unwrap_or(0),
            ttl,
        })
    }

    pub(super) async fn entry(&self, bucket: &str, key: &str) -> Result<Option<Entry>, Error> {
        Ok(self.held(bucket, key).await?.and_then(|held| entry_of(bucket, held)))
    }

    /// What lies under the key, a delete marker too.
    async fn held(&self, bucket: &str, key: &str) -> Result<Option<Held>, Error> {
        let name = stream_of(token(bucket)?);
        self.get(&name, &json!({ "last_by_subj": subject_of(bucket, key) })).await
    }

    /// Sends the first try of every write, at the time of the call; of several to one key only the first.
    pub(super) fn first_tries(&self, writes: &[Write]) -> Vec<Option<Answer>> {
        let Ok(link) = self.connection.link() else { return Vec::new() };
        if writes.iter().any(|write| check(write, &link).is_err()) {
            return Vec::new();
        }
        let mut seen = HashSet::new();
        let mut tries = Vec::with_capacity(writes.len());
        for write in writes {
            let expected = match write.condition {
                Condition::Absent => 0,
                Condition::Revision(revision) => revision,
            };
            let first = seen.insert((&write.bucket, &write.key));
            let sent = first.then(|| self.send_write(&link, write, expected).ok()).flatten();
            tries.push(sent.map(|sent| (Arc::clone(&link), sent)));
        }
        tries
    }

    fn send_write(&self, link: &Link, write: &Write, expected: u64) -> Result<oneshot::Receiver<Message>, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(header::EXPECTED_LAST, expected.to_string());
        headers.insert(header::EXPECTED_STREAM, stream_of(&write.bucket));
        if write.value.is_none() {
            headers.insert(header::OPERATION, "DEL");
            headers.insert(header::TTL, format!("{MARKER_TTL_SECS}s"));
        } else if let Some(ttl) = write.ttl {
            let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
            headers.insert(header::TTL, format!("{}s", whole.max(1)));
        }
        let subject = Subject::from(subject_of(&write.bucket, &write.key));
        let payload = write.value.clone().unwrap_or_default();
        // Not behind the messages that wait to be stored: a grant is waited for by all of them.
        let sent = link.request(Lane::Direct, subject, Some(headers), payload, self.connection.timeout());
        sent.map_err(Error::Unavailable)
    }

    pub(super) async fn outcomes(&self, writes: Vec<Write>, tries: Vec<Option<Answer>>) -> Result<Vec<Outcome>, Error> {
        let link = self.connection.link()?;
        writes.iter().try_for_each(|write| check(write, &link))?;
        let mut tries = tries.into_iter();
        let mut outcomes = Vec::with_capacity(writes.len());
        for write in &writes {
            outcomes.push(self.outcome(write, tries.next().flatten()).await?);
        }
        Ok(outcomes)
    }

    /// Tries until the write is won or lost. A lost answer ends it: it may have been won.
    async fn outcome(&self, write: &Write, first: Option<Answer>) -> Result<Outcome, Error> {
        let stream = stream_of(&write.bucket);
        let mut expected = match write.condition {
            Condition::Absent => 0,
            Condition::Revision(revision) => revision,
        };
        let mut sent = first;
        for round in 0..TRIES_MAX {
            let (link, answer) = match sent.take() {
                Some(sent) => sent,
                None => {
                    let link = self.connection.link()?;
                    let answer = self.send_write(&link, write, expected)?;
                    (link, answer)
                }
            };
            let answer = match api::answer(&link, answer).await {
                Ok(message) => api::parse(&message),
                Err(fail) => Err(fail),
            };
            let fail = match answer {
                Ok(ack) => return Ok(Outcome::Won(ack["seq"].as_u64().unwrap_or(0))),
                Err(fail) => fail,
            };
            match fail {
                // Nothing was applied; another request on the key was in flight.
                fail if is_busy(&fail) => tokio::time::sleep(TRY_AGAIN_AFTER * (round + 1)).await,
                fail if fail.code() == api::WRONG_LAST => {
                    let held = self.held(&write.bucket, &write.key).await?;
                    let revision = held.as_ref().map_or(0, |held| held.stored.sequence);
                    let entry = held.and_then(|held| entry_of(&write.bucket, held));
                    if write.condition != Condition::Absent || entry.is_some() {
                        return Ok(Outcome::Lost(entry));
                    }
                    // Absent, but the server counts a delete marker, or the entry expired only now.
                    expected = revision;
                }
                Fail::NoResponders => {
                    self.stream_info(&stream).await.map_err(|error| no_bucket(error, &write.bucket))?;
                    return Err(Error::Unavailable(format!("nobody answers for bucket {}", write.bucket)));
                }
                fail => return Err(no_bucket(fail.error(&stream), &write.bucket)),
            }
        }
        Err(Error::Unavailable(format!("{}/{} is written by many at once", write.bucket, write.key)))
    }

    pub(super) async fn entries(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<&str>,
        entries_max: usize,
    ) -> Result<Vec<Entry>, Error> {
        let name = stream_of(token(bucket)?);
        let subjects = self.subjects(&name, &filter_of(bucket, prefix)).await.map_err(|e| no_bucket(e, bucket))?;
        let mut keys: Vec<String> = subjects.iter().filter_map(|subject| key_of(bucket, subject)).collect();
        keys.retain(|key| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after));
        keys.sort_unstable();
        let mut entries = Vec::new();
        let mut keys = keys.as_slice();
        while entries.len() < entries_max && !keys.is_empty() {
            let (page, rest) = keys.split_at(keys.len().min(READS_IN_FLIGHT_MAX).min(entries_max - entries.len()));
            keys = rest;
            for entry in join_all(page.iter().map(|key| self.entry(bucket, key))).await {
                entries.extend(entry?);
            }
        }
        Ok(entries)
    }
}

/// A bucket is spoken of by its own name.
pub(super) fn no_bucket(error: Error, bucket: &str) -> Error {
    match error {
        Error::NoStream(_) => Error::NoStream(bucket.to_owned()),
        other => other,
    }
}

/// What makes a write invalid whatever is there.
fn check(write: &Write, link: &Link) -> Result<(), Error> {
    token(&write.bucket)?;
    if write.key.is_empty() {
        let (what, wanted) = ("a key".to_owned(), "at least one character".to_owned());
        return Err(Error::Mismatch { what, found: "empty".to_owned(), wanted });
    }
    let value_bytes = write.value.as_ref().map_or(0, bytes::Bytes::len);
    // A server ends the connection of a client that sends more than it takes.
    let value_bytes_max = VALUE_BYTES_MAX.min(link.server.payload_bytes_max.saturating_sub(HEADERS_BYTES_MAX));
    for (bytes, bytes_max) in [(write.key.len(), KEY_BYTES_MAX), (value_bytes, value_bytes_max)] {
        if bytes > bytes_max {
            return Err(Error::TooLarge { bytes, bytes_max });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_becomes_a_subject_and_comes_back() {
        for key in ["p/1", "a.b.c", ".a", "a.", "a..b", "ü *>", "=", "price-orders/5f_2"] {
            let encoded = encode_key(key);
            assert_eq!(decode_key(&encoded).as_deref(), Some(key), "{encoded}");
            assert!(encoded.split('.').all(|token| !token.is_empty() && !token.contains(['*', '>', ' '])), "{encoded}");
        }
    }

    #[test]
    fn a_prefix_narrows_the_filter_by_whole_tokens() {
        assert_eq!(filter_of("B", "p/"), "$KV.B.>");
        assert_eq!(filter_of("B", "g1.unit.flow/"), "$KV.B.g1.unit.>");
        assert_eq!(filter_of("B", "a."), "$KV.B.a.>");
        assert_eq!(filter_of("B", "a..b"), "$KV.B.>");
    }
}
