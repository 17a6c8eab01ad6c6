//! The records of the versions bucket: what is published (`head`), what each unit works on (`run/<unit>`), and what the versions
//! are made of (`content/<digest>/<chunk>`).
//!
//! Records are changed by compare-and-set. Contents are written once, before anything names them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::contents::{self, Piece};
use crate::id::{Names, UnitId};
use crate::ports::bus::Error;
use crate::ports::store::{Condition, Outcome, Store, Write};
use crate::protocol::parts::Run;
use crate::time::Timestamp;

/// Bytes of one chunk of a content.
const CHUNK_BYTES: usize = 512 << 10;
/// Entries listed together.
const PAGE_ENTRIES: usize = 256;
const HEAD: &str = "head";

/// What is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Grows by one with every publication.
    pub no: u64,
    /// The digest over all units and their digests.
    pub revision: String,
}

/// A record and the store's revision of it.
pub type Held<T> = Option<(T, u64)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// The new revision of the record.
    Won(u64),
    /// Somebody else wrote it.
    Lost,
}

pub struct Versions {
    store: Arc<dyn Store>,
    bucket: String,
    /// Contents that are known to be stored.
    stored: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Versions({})", self.bucket)
    }
}

impl Versions {
    pub fn new(store: Arc<dyn Store>, names: &Names) -> Self {
        Versions { store, bucket: names.versions_bucket(), stored: Mutex::default() }
    }

    pub async fn head(&self) -> Result<Held<Head>, Error> {
        self.read(HEAD).await
    }

    /// Makes a set of units the head, with the next number, unless somebody has written the head since it was read `at` that
    /// revision of the store. The set's contents are stored before.
    pub async fn publish(&self, revision: &str, at: Option<u64>) -> Result<Option<Head>, Error> {
        let held = self.head().await?;
        let (no, condition) = match &held {
            Some((head, revision)) => (head.no + 1, Condition::Revision(*revision)),
            None => (1, Condition::Absent),
        };
        if held.as_ref().map(|(_, revision)| *revision) != at {
            return Ok(None);
        }
        let head = Head { no, revision: revision.to_owned() };
        let written = self.write(self.record(HEAD.to_owned(), &head, condition)).await?;
        Ok(matches!(written, Written::Won(_)).then_some(head))
    }

    pub async fn run(&self, unit: &UnitId) -> Result<Held<Run>, Error> {
        self.read(&run_key(unit)).await
    }

    pub async fn write_run(&self, unit: &UnitId, run: &Run, at: Option<u64>) -> Result<Written, Error> {
        let condition = at.map_or(Condition::Absent, Condition::Revision);
        self.write(self.record(run_key(unit), run, condition)).await
    }

    /// All units that have a record.
    pub async fn runs(&self) -> Result<Vec<(UnitId, Run)>, Error> {
        let mut runs = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(&self.bucket, RUN_PREFIX, after.as_deref(), PAGE_ENTRIES).await?;
            let Some(last) = page.last() else { return Ok(runs) };
            after = Some(last.key.clone());
            for entry in page {
                let unit = entry.key.strip_prefix(RUN_PREFIX).and_then(UnitId::parse);
                let unit = unit.ok_or_else(|| damaged(&entry.key, "the name is none of a unit"))?;
                runs.push((unit, decode(&entry.key, &entry.value)?));
            }
        }
    }

    /// Stores what is not stored yet. Must be done before a record names it.
    pub async fn store_contents(&self, pieces: &[Arc<Piece>]) -> Result<(), Error> {
        for piece in pieces {
            if self.known().contains(&piece.digest) {
                continue;
            }
            // Chunks are written together, so the first one stands for all.
            if self.store.get(&self.bucket, &chunk_key(&piece.digest, 0)).await?.is_none() {
                let chunks = piece.bytes.len().div_ceil(CHUNK_BYTES).max(1);
                let chunk = |at: usize| {
                    let end = piece.bytes.len().min((at + 1) * CHUNK_BYTES);
                    piece.bytes.slice(at * CHUNK_BYTES..end)
                };
                let write = |at: usize| Write {
                    bucket: self.bucket.clone(),
                    key: chunk_key(&piece.digest, at),
                    value: Some(chunk(at)),
                    condition: Condition::Absent,
                    ttl: None,
                };
                // Lost is won: the same digest is the same content.
                self.store.write((0..chunks).rev().map(write).collect()).await?;
            }
            self.known().insert(piece.digest.clone());
        }
        Ok(())
    }

    pub async fn content(&self, digest: &str) -> Result<Option<Bytes>, Error> {
        let prefix = format!("content/{digest}/");
        let mut bytes = BytesMut::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(&self.bucket, &prefix, after.as_deref(), PAGE_ENTRIES).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            page.iter().for_each(|entry| bytes.extend_from_slice(&entry.value));
        }
        Ok(after.map(|_| bytes.freeze()))
    }

    /// Removes contents that no record and none of `current` names and that were stored before `stored_before`. Answers how many
    /// versions and files that were.
    pub async fn collect(
        &self,
        current: impl Iterator<Item = String>,
        stored_before: Timestamp,
    ) -> Result<usize, Error> {
        let runs = self.runs().await?;
        let parts = runs.iter().flat_map(|(_, run)| &run.parts);
        let mut wanted: Vec<String> = parts.filter_map(|part| part.digest.clone()).chain(current).collect();
        if let Some((head, _)) = self.head().await? {
            let set = self.content(&head.revision).await?.unwrap_or_default();
            let set = String::from_utf8_lossy(&set);
            wanted.extend(set.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())));
            wanted.push(head.revision);
        }
        let mut named = BTreeSet::new();
        while let Some(digest) = wanted.pop() {
            if named.contains(&digest) {
                continue;
            }
            if let Some(bytes) = self.content(&digest).await? {
                wanted.extend(contents::references(&bytes));
            }
            named.insert(digest);
        }
        let mut removed = BTreeSet::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(&self.bucket, CONTENT_PREFIX, after.as_deref(), PAGE_ENTRIES).await?;
            let Some(last) = page.last() else { return Ok(removed.len()) };
            after = Some(last.key.clone());
            let mut writes = Vec::new();
            for entry in page {
                let Some((digest, _)) = entry.key[CONTENT_PREFIX.len()..].split_once('/') else { continue };
                if entry.written >= stored_before || named.contains(digest) {
                    continue;
                }
                self.known().remove(digest);
                removed.insert(digest.to_owned());
                let (key, condition) = (entry.key, Condition::Revision(entry.revision));
                writes.push(Write { bucket: self.bucket.clone(), key, value: None, condition, ttl: None });
            }
            self.store.write(writes).await?;
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read<T: for<'de> Deserialize<'de>>(&self, key: &str) -> Result<Held<T>, Error> {
        match self.store.get(&self.bucket, key).await? {
            Some(entry) => Ok(Some((decode(key, &entry.value)?, entry.revision))),
            None => Ok(None),
        }
    }

    fn record<T: Serialize>(&self, key: String, value: &T, condition: Condition) -> Write {
        let value = serde_json::to_vec(value).expect("a record is JSON");
        Write { bucket: self.bucket.clone(), key, value: Some(Bytes::from(value)), condition, ttl: None }
    }

    async fn write(&self, write: Write) -> Result<Written, Error> {
        let outcomes = self.store.write(vec![write]).await?;
        Ok(match outcomes.into_iter().next() {
            Some(Outcome::Won(revision)) => Written::Won(revision),
            _ => Written::Lost,
        })
    }
}

const RUN_PREFIX: &str = "run/";
const CONTENT_PREFIX: &str = "content/";

fn run_key(unit: &UnitId) -> String {
    format!("{RUN_PREFIX}{unit}")
}

fn chunk_key(digest: &str, at: usize) -> String {
    format!("content/{digest}/{at:06}")
}

fn decode<T: for<'de> Deserialize<'de>>(key: &str, value: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(value).map_err(|error| damaged(key, &error.to_string()))
}

fn damaged(key: &str, reason: &str) -> Error {
    Error::Stopped(format!("the record {key} cannot be read: {reason}"))
}
