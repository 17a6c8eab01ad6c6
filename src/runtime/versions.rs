//! The records of the versions bucket: what is published (`head`), what members say of a candidate
//! (`answer/<candidate>/<incarnation>`), what each unit works on (`run/<unit>`), and what the versions are made of
//! (`content/<digest>/<chunk>`).
//!
//! Records are changed by compare-and-set. Contents are written once, before anything names them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use super::contents::{self, Piece};
use super::sync::Sync;
use crate::id::{Names, UnitId};
use crate::ports::bus::Error;
use crate::ports::store::{Change, Condition, Outcome, Store, Write};
use crate::protocol::parts::Run;
use crate::protocol::publish::Head;
use crate::protocol::record::Incarnation;
use crate::time::Timestamp;

/// Bytes of one chunk of a content.
const CHUNK_BYTES: usize = 512 << 10;
/// Entries listed together.
const PAGE_ENTRIES: usize = 256;
const HEAD: &str = "head";
const SYNC: &str = "sync";
const SYNC_REQUEST: &str = "sync-request";
const WAITING: &str = "waiting";

/// What one member says of a candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub instance: String,
    /// Why it cannot run the candidate; none when it can.
    pub reasons: Vec<String>,
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    pub at: i64,
}

/// A plan that takes effect when a person says yes to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// The publication it was planned on; on another it is another plan.
    pub no: u64,
    pub hash: String,
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

    /// What is published; an empty one when nothing ever was.
    pub async fn head(&self) -> Result<(Head, Option<u64>), Error> {
        let held: Held<Head> = self.read(HEAD).await?;
        Ok(held.map_or((Head::default(), None), |(head, at)| (head, Some(at))))
    }

    /// Replaces the head that was read `at` this revision of the store.
    pub async fn write_head(&self, head: &Head, at: Option<u64>) -> Result<Written, Error> {
        let condition = at.map_or(Condition::Absent, Condition::Revision);
        self.write(self.record(HEAD.to_owned(), head, condition)).await
    }

    /// Changes the head, whoever else does. `None` when there is nothing to change, by `change`.
    pub async fn change_head(&self, change: impl Fn(&Head) -> Option<Head>) -> Result<Option<Head>, Error> {
        loop {
            let (head, at) = self.head().await?;
            let Some(next) = change(&head) else { return Ok(None) };
            if let Written::Won(_) = self.write_head(&next, at).await? {
                return Ok(Some(next));
            }
        }
    }

    /// Says when the head changes.
    pub fn watch_head(&self) -> BoxStream<'static, Result<Change, Error>> {
        self.store.watch_key(&self.bucket, HEAD)
    }

    pub async fn answer(&self, candidate: u64, inc: Incarnation, answer: &Answer) -> Result<(), Error> {
        // Lost: it was given before.
        self.write(self.record(format!("{}{inc}", answers_prefix(candidate)), answer, Condition::Absent))
            .await
            .map(drop)
    }

    /// What these members answered.
    pub async fn answers(&self, candidate: u64, of: &[Incarnation]) -> Result<BTreeMap<Incarnation, Answer>, Error> {
        let prefix = answers_prefix(candidate);
        let read = of.iter().map(|inc| {
            let key = format!("{prefix}{inc}");
            async move { self.read::<Answer>(&key).await }
        });
        let answers = futures_util::future::try_join_all(read).await?;
        Ok(of.iter().copied().zip(answers).filter_map(|(inc, answer)| Some((inc, answer?.0))).collect())
    }

    /// How the git repository stands.
    pub async fn sync(&self) -> Result<Option<Sync>, Error> {
        Ok(self.read(SYNC).await?.map(|(sync, _)| sync))
    }

    /// Written by the one member that follows the repository.
    pub async fn write_sync(&self, sync: &Sync) -> Result<(), Error> {
        let at = self.store.get(&self.bucket, SYNC).await?.map(|entry| entry.revision);
        let condition = at.map_or(Condition::Absent, Condition::Revision);
        match self.write(self.record(SYNC.to_owned(), sync, condition)).await? {
            Written::Won(_) => Ok(()),
            Written::Lost => Err(Error::Unavailable("another member follows the repository too".to_owned())),
        }
    }

    pub async fn waiting(&self) -> Result<Option<Waiting>, Error> {
        Ok(self.read(WAITING).await?.map(|(waiting, _)| waiting))
    }

    /// Written by whoever held it back, at every look.
    pub async fn write_waiting(&self, waiting: &Waiting) -> Result<(), Error> {
        let held = self.read::<Waiting>(WAITING).await?;
        if held.as_ref().is_some_and(|(held, _)| held == waiting) {
            return Ok(());
        }
        let condition = held.map_or(Condition::Absent, |(_, at)| Condition::Revision(at));
        // Lost: somebody else holds one back too, and this one is told again at the next look.
        self.write(self.record(WAITING.to_owned(), waiting, condition)).await.map(drop)
    }

    /// Asks whoever follows the repository to look at it now.
    pub async fn request_sync(&self, at: Timestamp) -> Result<(), Error> {
        let held = self.store.get(&self.bucket, SYNC_REQUEST).await?.map(|entry| entry.revision);
        let condition = held.map_or(Condition::Absent, Condition::Revision);
        // Lost: somebody else asks as well.
        self.write(self.record(SYNC_REQUEST.to_owned(), &at.0, condition)).await.map(drop)
    }

    pub fn watch_sync_requests(&self) -> BoxStream<'static, Result<Change, Error>> {
        self.store.watch_key(&self.bucket, SYNC_REQUEST)
    }

    /// The units of a set and their digests.
    pub async fn set(&self, revision: &str) -> Result<BTreeMap<UnitId, String>, Error> {
        let bytes = self.content(revision).await?;
        let bytes = bytes.ok_or_else(|| damaged(revision, "the set is not stored any more"))?;
        let text = String::from_utf8_lossy(&bytes);
        let unit = |line: &str| {
            let (id, digest) = line.split_once(' ')?;
            Some((UnitId::parse(id)?, digest.to_owned()))
        };
        text.lines().map(|line| unit(line).ok_or_else(|| damaged(revision, "a line is not `unit digest`"))).collect()
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
        let mut bytes = BytesMut::new();
        for at in 0.. {
            let chunk = self.store.get(&self.bucket, &chunk_key(digest, at)).await?;
            let Some(chunk) = chunk.map(|entry| entry.value) else { return Ok((at > 0).then(|| bytes.freeze())) };
            bytes.extend_from_slice(&chunk);
            // Only the last one is shorter.
            if chunk.len() < CHUNK_BYTES {
                break;
            }
        }
        Ok(Some(bytes.freeze()))
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
        let (head, _) = self.head().await?;
        let mut sets: Vec<String> = head.history.into_iter().map(|past| past.revision).collect();
        sets.extend(head.candidate.as_ref().map(|candidate| candidate.revision.clone()));
        sets.push(head.revision);
        for revision in sets {
            let set = self.content(&revision).await?.unwrap_or_default();
            let set = String::from_utf8_lossy(&set);
            wanted.extend(set.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())));
            wanted.push(revision);
        }
        self.forget_answers(head.candidate.map(|candidate| candidate.id), stored_before).await?;
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

    /// Removes what was said of candidates that are decided.
    async fn forget_answers(&self, open: Option<u64>, stored_before: Timestamp) -> Result<(), Error> {
        let open = open.map(answers_prefix);
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(&self.bucket, ANSWER_PREFIX, after.as_deref(), PAGE_ENTRIES).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.key.clone());
            let is_over = |key: &str| open.as_ref().is_none_or(|open| !key.starts_with(open));
            let over = page.into_iter().filter(|entry| entry.written < stored_before && is_over(&entry.key));
            let remove = |entry: crate::ports::store::Entry| Write {
                bucket: self.bucket.clone(),
                key: entry.key,
                value: None,
                condition: Condition::Revision(entry.revision),
                ttl: None,
            };
            self.store.write(over.map(remove).collect()).await?;
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
const ANSWER_PREFIX: &str = "answer/";

fn answers_prefix(candidate: u64) -> String {
    format!("{ANSWER_PREFIX}{candidate}/")
}

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
