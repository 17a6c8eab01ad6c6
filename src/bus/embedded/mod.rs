//! The bus that lives in this process: streams, durables and buckets in one data directory, on fjall.
//!
//! Read `engine` first: one lock around what is in memory, one open batch. `commit` writes batches and makes them
//! visible; `settle` stores and acknowledges; `pull` hands out; `trim` does the chores. `stream`, `durable`, `kv`, `ids`
//! are the state and `configure` makes it, `info` tells of it; `ledger` numbers the commits, `salvage` finds and mends damage; `chunk`, `codec`, `db` its form on disk, `select` reads it back, `watch` and `cache` are what they say.
//!
//! Upholds: what was acknowledged to a caller is synced to disk; readers see only that; a settlement is one commit or
//! nothing; calls take effect in the order they are made. After a failed write or sync nothing is ever tried again.
//!
//! Does not: replicate, serve another process, or go on over damage: a directory that lost what was synced is refused until
//! `salvage::repair` has been told to give that up.

mod cache;
mod chunk;
mod codec;
mod commit;
mod configure;
mod db;
mod durable;
mod engine;
mod format;
#[cfg(test)]
mod fuzz;
mod ids;
mod info;
mod kv;
mod ledger;
mod open;
mod pull;
pub mod salvage;
mod select;
mod settle;
mod stream;
#[cfg(test)]
mod tests;
mod trim;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use tokio::sync::oneshot;

use engine::{Life, Shared};
pub use format::FORMAT;
use info::look;
pub use open::{OpenError, Options};
use select::Selection;

use crate::flow::message::{Outgoing, Stored};
use crate::ports::bus::{
    Answer, Batch, Bus, Delivery, Durable, DurableConfig, DurableInfo, Error, Expected, PubAck,
    SETTLEMENT_RESERVE_PERCENT, Settlement, Start, StreamConfig, StreamInfo,
};
use crate::ports::peers::{Heard, Peers};
use crate::ports::store::{BucketInfo, Change, Entry, Outcome, Store, Write};
use crate::time::Timestamp;

/// Bytes one [`Bus::read`] gives at most, about.
const READ_BYTES_MAX: usize = 1024 * 1024;
/// Trims and removals that may wait for the chores thread.
const CHORES_MAX: usize = 1024;

/// The embedded bus and store. Closed by [`Embedded::close`] or when it is dropped.
pub struct Embedded {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<open::Lock>>,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Embedded")
    }
}

impl Embedded {
    /// Opens the data directory, or makes it.
    pub fn open(options: Options) -> Result<Arc<Self>, OpenError> {
        let (lock, engine, mut ledger) = open::open(&options)?;
        let db = engine.db.clone();
        let shared = Arc::new(Shared::new(engine));
        let bus = Embedded { shared, threads: Mutex::default(), lock: Mutex::new(Some(lock)) };
        if let Some(db) = db {
            let io = |source| OpenError::Io { path: options.data_dir.clone(), source };
            let (shared, for_commits) = (Arc::clone(&bus.shared), Arc::clone(&db));
            bus.spawn("bus-commit", move || commit::run(&shared, &for_commits, &mut ledger)).map_err(io)?;
            let shared = Arc::clone(&bus.shared);
            bus.spawn("bus-chores", move || trim::run(&shared, &db)).map_err(io)?;
        }
        Ok(Arc::new(bus))
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let guard = StopOnPanic(Arc::clone(&self.shared));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _guard = guard;
            run();
        })?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Writes what was accepted, answers it, and lets go of the data directory. Blocks for one commit. Everything
    /// asked afterwards is answered with [`Error::Stopped`].
    pub fn close(&self) {
        {
            let mut engine = self.shared.lock_any();
            if matches!(engine.life, Life::Running) {
                engine.life = Life::Closing;
            }
            self.shared.work.notify_all();
            self.shared.chore.notify_all();
        }
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic in a thread has stopped the bus already, and has been reported.
            let _ = thread.join();
        }
        let mut engine = self.shared.lock_any();
        engine.stop("closed");
        engine.db = None;
        drop(engine);
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Resolves with the reason when the bus has failed for good. Never resolves because of [`Embedded::close`].
    pub fn stopped(&self) -> impl Future<Output = String> + Send + 'static {
        let mut stopped = self.shared.stopped.subscribe();
        async move {
            let reason = stopped.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            match reason {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// Looks at the clock now. For clocks that are turned by hand: the bus sleeps by real time.
    pub fn wake(&self) {
        let _engine = self.shared.lock_any();
        self.shared.work.notify_all();
        self.shared.chore.notify_all();
    }

    /// How many commits there were since it was opened.
    pub fn commits(&self) -> u64 {
        self.shared.lock_any().commits
    }

    fn chore(
        &self,
        stream: &str,
        chore: impl FnOnce(u32, oneshot::Sender<Result<u64, Error>>) -> trim::Chore,
    ) -> Answer<u64> {
        let (sender, receiver) = oneshot::channel();
        let queued = self.shared.lock().and_then(|mut engine| {
            let id = engine.stream_id(stream)?;
            if engine.chores.len() >= CHORES_MAX {
                return Err(Error::Unavailable(format!("{CHORES_MAX} trims and removals are waiting")));
            }
            engine.chores.push_back(chore(id, sender));
            self.shared.chore.notify_one();
            Ok(())
        });
        Box::pin(async move {
            queued?;
            receiver.await.unwrap_or_else(|_| Err(Error::Stopped("closed".to_owned())))
        })
    }
}

/// Without its threads nothing would ever be answered.
struct StopOnPanic(Arc<Shared>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop(&mut self.0.lock_any(), "a thread of the bus panicked; see the log");
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}

impl Bus for Embedded {
    fn ensure_stream(&self, config: StreamConfig) -> Answer<StreamInfo> {
        self.shared.answer(move |engine| engine.ensure_stream(config))
    }

    fn stream(&self, name: &str) -> Answer<StreamInfo> {
        let name = name.to_owned();
        self.shared.answer(move |engine| {
            let no_space = engine.check_space(false).err().map(|error| error.to_string());
            let info = engine.stream(&name)?.info();
            Ok(StreamInfo { refuses: no_space.or(info.refuses), ..info })
        })
    }

    fn publish(&self, stream: &Arc<str>, message: Outgoing, expected: Option<Expected>) -> Answer<PubAck> {
        let batch =
            Batch { stream: Arc::clone(stream), messages: vec![message], expected: expected.into_iter().collect() };
        let settlement = Settlement { batches: vec![batch], ..Settlement::default() };
        self.shared.answer(move |engine| Ok(engine.settle(&settlement, SETTLEMENT_RESERVE_PERCENT)?[0]))
    }

    fn publish_batch(&self, batch: Batch) -> Answer<Vec<PubAck>> {
        let settlement = Settlement { batches: vec![batch], ..Settlement::default() };
        self.shared.answer(move |engine| engine.settle(&settlement, SETTLEMENT_RESERVE_PERCENT))
    }

    fn ensure_durable(&self, stream: &str, config: DurableConfig) -> Answer<Durable> {
        let stream = stream.to_owned();
        let Start::Time(time) = config.start else {
            return self.shared.answer(move |engine| engine.ensure_durable(&stream, config, None));
        };
        // The time has to be looked up on disk first, so this takes effect when the future is polled.
        let at = self.sequence_at(&stream, time);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let reached = at.await?.saturating_sub(1);
            shared.answer(move |engine| engine.ensure_durable(&stream, config, Some(reached))).await
        })
    }

    fn delete_durable(&self, durable: &Durable) -> Answer<()> {
        let durable = durable.clone();
        self.shared.answer(move |engine| engine.delete_durable(&durable))
    }

    fn durable(&self, durable: &Durable) -> Answer<DurableInfo> {
        let found = self.shared.lock().and_then(|engine| {
            let id = engine.durable_id(durable)?;
            Ok(look(&engine, id))
        });
        let (shared, durable) = (Arc::clone(&self.shared), durable.clone());
        Box::pin(async move {
            let missing = || Error::NoDurable { stream: durable.stream.to_string(), durable: durable.name.to_string() };
            let look = found?.ok_or_else(missing)?;
            shared.read(move |db, _| look.complete(db)).await
        })
    }

    fn durables(&self, stream: &str) -> Answer<Vec<DurableInfo>> {
        let found = self.shared.lock().and_then(|engine| {
            let ids = engine.stream(stream)?.durables.values();
            Ok(ids.filter_map(|id| look(&engine, *id)).collect::<Vec<_>>())
        });
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let looks = found?;
            shared.read(move |db, _| looks.into_iter().map(|look| look.complete(db)).collect()).await
        })
    }

    fn pull(&self, durable: &Durable, messages_max: usize, bytes_max: usize, wait: Duration) -> Answer<Vec<Delivery>> {
        Box::pin(pull::pull(Arc::clone(&self.shared), durable.clone(), messages_max, bytes_max, wait))
    }

    fn put_off(&self, durable: &Durable, sequence: u64, delay: Duration) -> Answer<()> {
        let durable = durable.clone();
        self.shared.answer(move |engine| {
            let (now, now_wall) = (engine.clock.monotonic(), engine.clock.now());
            let durable = engine.durable(&durable)?;
            durable.put_off(sequence, delay, now, now_wall);
            let wake = durable.next_wake;
            engine.wake_by(wake);
            engine.open.sync = true;
            Ok(())
        })
    }

    fn in_progress(&self, durable: &Durable, sequences: &[u64]) -> Answer<()> {
        let done = self.shared.lock().and_then(|mut engine| {
            let now = engine.clock.monotonic();
            let durable = engine.durable(durable)?;
            durable.in_progress(sequences, now);
            let wake = durable.next_wake;
            if engine.wake_by(wake) {
                self.shared.work.notify_one();
            }
            Ok(())
        });
        Box::pin(async { done })
    }

    fn settle(&self, settlement: Settlement) -> Answer<Vec<PubAck>> {
        self.shared.answer(move |engine| engine.settle(&settlement, 0))
    }

    fn settles_atomically(&self) -> bool {
        true
    }

    fn read(&self, stream: &str, from: u64, filters: &[String], messages_max: usize) -> Answer<Vec<Stored>> {
        let found = self.shared.lock().and_then(|engine| {
            let stream = engine.stream(stream)?;
            let selection = if filters.is_empty() { Selection::All } else { stream.matching(filters).into() };
            Ok((stream.id, selection, from.max(stream.first)..=stream.visible))
        });
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (stream, selection, range) = found?;
            shared
                .read(move |db, _| select::messages(db, stream, &selection, range, messages_max, READ_BYTES_MAX))
                .await
        })
    }

    fn last(&self, stream: &str, subject: &str) -> Answer<Option<Stored>> {
        let (stream, subject) = (stream.to_owned(), subject.to_owned());
        // Through the open batch, so that it is durable by the time it is read.
        let found = self.shared.answer(move |engine| {
            let stream = engine.stream(&stream)?;
            Ok((stream.id, stream.subject_last(&subject)))
        });
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (stream, sequence) = found.await?;
            if sequence == 0 {
                return Ok(None);
            }
            let load = move |db: &db::Db, _| {
                let place = select::Loader::new(db, stream).find(sequence)?;
                Ok(place.map(|(chunk, at)| chunk.message(at)).transpose()?)
            };
            shared.read(load).await
        })
    }

    fn sequence_at(&self, stream: &str, time: Timestamp) -> Answer<u64> {
        let name = stream.to_owned();
        let found = self.shared.answer(move |engine| {
            let stream = engine.stream(&name)?;
            Ok((stream.id, stream.first, stream.last))
        });
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (stream, first, last) = found.await?;
            shared.read(move |db, _| select::sequence_at(db, stream, first..=last, time)).await
        })
    }

    fn trim(&self, stream: &str, first: u64, keep_last_of: &[String]) -> Answer<u64> {
        let keep_last_of = keep_last_of.to_vec();
        self.chore(stream, move |stream, answer| trim::Chore::Trim { stream, first, keep_last_of, answer })
    }

    fn remove(&self, stream: &str, sequences: &[u64]) -> Answer<u64> {
        let sequences = sequences.to_vec();
        self.chore(stream, move |stream, answer| trim::Chore::Remove { stream, sequences, answer })
    }
}

/// Whoever else has the folder is not running: it is open here.
impl Peers for Embedded {
    fn call(&self, _: &str, _: Duration) -> BoxFuture<'static, Heard> {
        Box::pin(std::future::ready(Heard::NoResponders))
    }

    fn tell(&self, _: &str, _: Bytes) {}

    fn listen(&self, _: &str) -> BoxStream<'static, Result<Bytes, Error>> {
        Box::pin(futures_util::stream::pending())
    }
}

impl Store for Embedded {
    fn ensure_bucket(&self, bucket: &str, ttl: Option<Duration>) -> Answer<()> {
        let bucket = bucket.to_owned();
        self.shared.answer(move |engine| engine.ensure_bucket(&bucket, ttl))
    }

    fn bucket(&self, bucket: &str) -> Answer<BucketInfo> {
        let bucket = bucket.to_owned();
        self.shared.answer(move |engine| {
            let opened = engine.opened;
            let id = engine.buckets.find(&bucket).map_err(|_| Error::NoStream(bucket.clone()))?;
            let bucket = &engine.buckets.all[id as usize];
            // The lock on the folder was held by nobody when it was opened, so no earlier identity is in use.
            let age = Duration::MAX;
            Ok(BucketInfo { identity: opened.0.unsigned_abs(), age, last: bucket.revision, ttl: bucket.ttl })
        })
    }

    fn get(&self, bucket: &str, key: &str) -> Answer<Option<Entry>> {
        let found = self.shared.lock().and_then(|engine| {
            let id = engine.buckets.find(bucket)?;
            Ok((engine.db()?, id, engine.clock.now()))
        });
        // One key: read here rather than at the price of another thread.
        let found =
            found.and_then(|(db, id, now)| kv::get(&db, id, key, now).map_err(|broken| self.shared.broken(&broken)));
        Box::pin(async { found })
    }

    fn write(&self, writes: Vec<Write>) -> Answer<Vec<Outcome>> {
        self.shared.answer(move |engine| {
            for write in &writes {
                engine.check_write(write)?;
            }
            writes.iter().map(|write| engine.write_entry(write)).collect()
        })
    }

    fn list(&self, bucket: &str, prefix: &str, after: Option<&str>, entries_max: usize) -> Answer<Vec<Entry>> {
        let found = self.shared.lock().and_then(|engine| engine.buckets.find(bucket));
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let bucket = found?;
            shared.read(move |db, now| kv::list(db, bucket, &prefix, after.as_deref(), entries_max, now)).await
        })
    }

    fn watch(&self, bucket: &str, prefix: &str) -> BoxStream<'static, Result<Change, Error>> {
        watch::watch(&self.shared, bucket, prefix)
    }
}
