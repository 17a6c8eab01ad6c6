//! Buckets of the store: conditional writes, reads, lists and what expires.
//!
//! Entries live on disk; memory holds only those of batches that are not durable yet, because conditions are checked
//! against what was accepted. Reads see what is durable. An expired entry reads as absent at once and is removed by
//! the chores thread a little later, through an index ordered by expiry. Watching is in `watch`.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;

use super::codec::{Damaged, Decoder, Encoder, entry_key, expiry_key};
use super::db::{Db, Item, Space, to_bytes};
use super::engine::{Broken, Engine};
use super::stream::nanos;
use super::watch::Watcher;
use crate::ports::bus::Error;
use crate::ports::store::{Change, Condition, Entry, Outcome, VALUE_BYTES_MAX, Write};
use crate::time::Timestamp;

/// Longest key of an entry, in bytes.
pub(super) const KEY_BYTES_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Bucket {
    pub name: String,
    pub ttl: Option<Duration>,
    pub revision: u64,
    pub dirty: bool,
    pub watchers: Vec<Weak<Watcher>>,
}

impl Bucket {
    pub fn new(name: String, ttl: Option<Duration>, revision: u64) -> Self {
        Bucket { name, ttl, revision, dirty: false, watchers: Vec::new() }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.text(&self.name).varint(self.ttl.map_or(0, |ttl| nanos(ttl).max(1))).varint(self.revision);
        encoder.0
    }

    pub fn decode(value: &[u8]) -> Result<Self, Damaged> {
        let mut decoder = Decoder(value);
        let name = decoder.text()?.to_owned();
        let ttl = Some(decoder.varint()?).filter(|nanos| *nanos > 0).map(Duration::from_nanos);
        Ok(Bucket::new(name, ttl, decoder.varint()?))
    }
}

/// An entry without its key.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub revision: u64,
    written: Timestamp,
    pub expires: Option<Timestamp>,
    value: Bytes,
}

impl Held {
    fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder(Vec::with_capacity(24 + self.value.len()));
        encoder.u64(self.revision).time(self.written).time(self.expires.unwrap_or(Timestamp(i64::MAX)));
        encoder.0.extend_from_slice(&self.value);
        encoder.0
    }

    pub fn decode(value: Bytes) -> Result<Self, Damaged> {
        let mut decoder = Decoder(&value);
        let (revision, written, expires) = (decoder.u64()?, decoder.time()?, decoder.time()?);
        let expires = Some(expires).filter(|expires| *expires < Timestamp(i64::MAX));
        let at = value.len() - decoder.0.len();
        Ok(Held { revision, written, expires, value: value.slice(at..) })
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    fn entry(self, key: &str) -> Entry {
        Entry { key: key.to_owned(), value: self.value, revision: self.revision, written: self.written }
    }
}

#[derive(Debug)]
struct Pending {
    commit: u64,
    held: Option<Held>,
}

#[derive(Debug, Default)]
pub(super) struct Buckets {
    pub all: Vec<Bucket>,
    pending: HashMap<Vec<u8>, Pending>,
    /// Nothing expires before this.
    pub next_expiry: Option<Timestamp>,
}

impl Buckets {
    pub fn find(&self, name: &str) -> Result<u32, Error> {
        let at = self.all.iter().position(|bucket| bucket.name == name);
        at.map(|at| at as u32).ok_or_else(|| Error::Mismatch {
            what: format!("bucket {name}"),
            found: "missing".to_owned(),
            wanted: "made before it is used".to_owned(),
        })
    }

    /// The accepted state of a key.
    pub fn current(&self, db: &Db, key: &[u8], now: Timestamp) -> Result<Option<Held>, Broken> {
        let held = match self.pending.get(key) {
            Some(pending) => pending.held.clone(),
            None => db.get(Space::Records, key)?.map(|value| Held::decode(to_bytes(value))).transpose()?,
        };
        Ok(held.filter(|held| !held.is_expired(now)))
    }

    /// What was accepted for this commit is on disk now.
    pub fn settle(&mut self, keys: &[Vec<u8>], commit: u64) {
        for key in keys {
            if self.pending.get(key).is_some_and(|pending| pending.commit <= commit) {
                self.pending.remove(key);
            }
        }
        if self.pending.is_empty() {
            self.pending.shrink_to(1024);
        }
    }
}

impl Engine {
    pub(super) fn ensure_bucket(&mut self, name: &str, ttl: Option<Duration>) -> Result<(), Error> {
        match self.buckets.find(name) {
            Ok(id) => {
                let bucket = &mut self.buckets.all[id as usize];
                bucket.dirty |= bucket.ttl != ttl;
                bucket.ttl = ttl;
            }
            Err(_) => {
                self.buckets.all.push(Bucket { dirty: true, ..Bucket::new(name.to_owned(), ttl, 0) });
            }
        }
        self.open.sync = true;
        Ok(())
    }

    /// Applies one write if its condition holds.
    pub(super) fn write_entry(&mut self, write: &Write) -> Result<Outcome, Error> {
        let bucket = self.check_write(write)?;
        let now = self.clock.now();
        let key = entry_key(bucket, &write.key);
        let current = self.buckets.current(&*self.db()?, &key, now)?;
        let holds = match write.condition {
            Condition::Absent => current.is_none(),
            Condition::Revision(revision) => current.as_ref().is_some_and(|held| held.revision == revision),
        };
        if !holds {
            return Ok(Outcome::Lost(current.map(|held| held.entry(&write.key))));
        }
        Ok(Outcome::Won(self.apply_write(bucket, key, write, now)))
    }

    /// What makes a write invalid whatever is there.
    pub(super) fn check_write(&self, write: &Write) -> Result<u32, Error> {
        let bucket = self.buckets.find(&write.bucket)?;
        let value_bytes = write.value.as_ref().map_or(0, Bytes::len);
        for (bytes, bytes_max) in [(write.key.len(), KEY_BYTES_MAX), (value_bytes, VALUE_BYTES_MAX)] {
            if bytes > bytes_max {
                return Err(Error::TooLarge { bytes, bytes_max });
            }
        }
        Ok(bucket)
    }

    /// Applies a write whose condition was checked.
    pub(super) fn apply_write(&mut self, bucket_id: u32, key: Vec<u8>, write: &Write, now: Timestamp) -> u64 {
        let bucket = &mut self.buckets.all[bucket_id as usize];
        bucket.revision += 1;
        bucket.dirty = true;
        let revision = bucket.revision;
        let ttl = write.ttl.or(bucket.ttl);
        let held = write.value.clone().map(|value| {
            let expires = ttl.map(|ttl| now.plus(ttl));
            Held { revision, written: now, expires, value }
        });
        let change = match &held {
            Some(held) => {
                if let Some(expires) = held.expires {
                    let due = expiry_key(expires, bucket_id, &write.key);
                    self.open.put(Item::put(Space::Records, due, revision.to_le_bytes().to_vec()));
                    let next = self.buckets.next_expiry.map_or(expires, |next| next.min(expires));
                    self.buckets.next_expiry = Some(next);
                    self.chores_wanted = true;
                }
                self.open.put(Item::put(Space::Records, key.clone(), held.encode()));
                Change::Put(held.clone().entry(&write.key))
            }
            None => {
                self.open.put(Item::remove(Space::Records, key.clone()));
                Change::Gone { key: write.key.clone(), revision }
            }
        };
        self.open.changes.push((bucket_id, change));
        self.open.entries.push(key.clone());
        self.buckets.pending.insert(key, Pending { commit: self.open.commit, held });
        revision
    }

    /// Removes an entry that has expired, unless it was written again since.
    pub(super) fn expire_entry(&mut self, bucket: u32, key: &str, due: Timestamp, revision: u64) -> Result<(), Error> {
        let now = self.clock.now();
        self.open.put(Item::remove(Space::Records, expiry_key(due, bucket, key)));
        let stored = entry_key(bucket, key);
        let unexpired = Timestamp(i64::MIN);
        let current = self.buckets.current(&*self.db()?, &stored, unexpired)?;
        if current.is_some_and(|held| held.revision == revision && held.is_expired(now)) {
            let bucket_name = self.buckets.all[bucket as usize].name.clone();
            let condition = Condition::Revision(revision);
            let write = Write { bucket: bucket_name, key: key.to_owned(), value: None, condition, ttl: None };
            self.apply_write(bucket, stored, &write, now);
        }
        Ok(())
    }
}

/// The durable state of a key.
pub(super) fn get(db: &Db, bucket: u32, key: &str, now: Timestamp) -> Result<Option<Entry>, Broken> {
    let Some(value) = db.get(Space::Records, &entry_key(bucket, key))? else { return Ok(None) };
    let held = Held::decode(to_bytes(value))?;
    Ok(if held.is_expired(now) { None } else { Some(held.entry(key)) })
}

/// Durable entries by key.
pub(super) fn list(
    db: &Db,
    bucket: u32,
    prefix: &str,
    after: Option<&str>,
    entries_max: usize,
    now: Timestamp,
) -> Result<Vec<Entry>, Broken> {
    let from = match after {
        Some(after) if after >= prefix => {
            let mut key = entry_key(bucket, after);
            key.push(0);
            key
        }
        _ => entry_key(bucket, prefix),
    };
    let head_bytes = entry_key(bucket, "").len();
    let prefix = entry_key(bucket, prefix);
    let end = entry_key(bucket.saturating_add(1), "");
    let mut found = Vec::new();
    for item in db.range(Space::Records, from, end) {
        if found.len() >= entries_max {
            break;
        }
        let (key, value) = item.into_inner()?;
        if !key.starts_with(&prefix) {
            break;
        }
        let held = Held::decode(to_bytes(value))?;
        if !held.is_expired(now) {
            let key = std::str::from_utf8(&key[head_bytes..]).map_err(|_| Damaged("key is not UTF-8"))?;
            found.push(held.entry(key));
        }
    }
    Ok(found)
}

/// A new watcher, told of everything that becomes durable from now on.
pub(super) fn register(engine: &mut Engine, bucket: u32, prefix: &str) -> (Arc<Watcher>, u64) {
    let watcher = Arc::new(Watcher::new(prefix.to_owned()));
    let bucket = &mut engine.buckets.all[bucket as usize];
    bucket.watchers.retain(|watcher| watcher.strong_count() > 0);
    bucket.watchers.push(Arc::downgrade(&watcher));
    (watcher, bucket.revision)
}
