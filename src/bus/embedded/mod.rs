//! The bus that lives in this process: streams, durables and buckets in one data directory, on fjall.
//!
//! Read `engine` first: one lock around what is in memory, one open batch. `commit` writes batches and makes them
//! visible; `settle` stores and acknowledges; `pull` hands out; `trim` does the chores. `stream`, `durable`, `kv`, `ids`
//! are the state, `chunk`, `codec`, `db` its form on disk, `select` reads it back, `watch` and `cache` are what they say.
//!
//! Upholds: what was acknowledged to a caller is synced to disk; readers see only that; a settlement is one commit or
//! nothing; calls take effect in the order they are made. After a failed write or sync nothing is ever tried again.
//!
//! Does not: replicate, serve another process, or notice that the middle of fjall's journal was damaged.

mod cache;
mod chunk;
mod codec;
mod commit;
mod db;
mod durable;
mod engine;
mod ids;
mod kv;
mod open;
mod pull;
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

use futures_util::stream::BoxStream;
use tokio::sync::oneshot;

use codec::meta;
use db::{Item, Space};
use engine::{Engine, Life, Shared};
pub use open::{FORMAT, OpenError, Options};
use select::Selection;

use crate::flow::message::{Outgoing, Stored};
use crate::ports::bus::{
    Answer, Batch, Bus, Delivery, Durable, DurableConfig, DurableInfo, Error, Expected, PubAck, Settlement, Start,
    StreamConfig, StreamInfo,
};
use crate::ports::store::{Change, Entry, Outcome, Store, Write};
use crate::time::Timestamp;

/// Bytes one [`Bus::read`] gives at most, about.
const READ_BYTES_MAX: usize = 1024 * 1024;

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
        let (lock, engine) = open::open(&options)?;
        let db = engine.db.clone();
        let shared = Arc::new(Shared::new(engine));
        let bus = Embedded { shared, threads: Mutex::default(), lock: Mutex::new(Some(lock)) };
        if let Some(db) = db {
            let io = |source| OpenError::Io { path: options.data_dir.clone(), source };
            let (shared, for_commits) = (Arc::clone(&bus.shared), Arc::clone(&db));
            bus.spawn("bus-commit", move || commit::run(&shared, &for_commits)).map_err(io)?;
            let shared = Arc::clone(&bus.shared);
            bus.spawn("bus-chores", move || trim::run(&shared, &db)).map_err(io)?;
        }
        Ok(Arc::new(bus))
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
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

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}

impl Engine {
    /// Tells compactions how long ids are needed.
    fn set_window(&self) {
        let longest = self.streams.iter().map(|stream| stream.config.duplicate_window).max();
        self.window.set(longest.unwrap_or_default());
    }

    fn ensure_stream(&mut self, config: StreamConfig) -> Result<StreamInfo, Error> {
        if let Ok(id) = self.stream_id(&config.name) {
            let stream = &mut self.streams[id as usize];
            stream::check_subjects(&stream.config, &config)?;
            stream.dirty |= stream.config != config;
            stream.config = config;
            self.open.sync = true;
            self.set_window();
            return Ok(self.streams[id as usize].info());
        }
        for other in &self.streams {
            stream::check_overlap(&other.config, &config)?;
        }
        let id = self.streams.len() as u32;
        let mut stream = stream::Stream::new(id, config, self.clock.now());
        stream.dirty = true;
        let info = stream.info();
        self.stream_ids.insert(Arc::clone(&stream.name), id);
        self.streams.push(stream);
        self.open.sync = true;
        self.set_window();
        Ok(info)
    }

    /// `reached` is where a new durable begins when its start is a time.
    fn ensure_durable(&mut self, stream: &str, config: DurableConfig, reached: Option<u64>) -> Result<Durable, Error> {
        let stream_id = self.stream_id(stream)?;
        let stream = &mut self.streams[stream_id as usize];
        let named = Durable { stream: Arc::clone(&stream.name), name: config.name.as_str().into() };
        self.open.sync = true;
        if let Some(id) = stream.durables.get(&named.name).copied() {
            let Some(durable) = &mut self.durables[id as usize] else { return Ok(named) };
            check_filters(&durable.config, &config)?;
            durable.config.ack_wait = config.ack_wait;
            durable.config.in_flight_max = config.in_flight_max;
            durable.notify.notify_one();
            self.open.put(Item::put(Space::Meta, meta::durable(id), durable.encode_config()));
            return Ok(named);
        }
        let reached = match config.start {
            Start::First => 0,
            Start::End => stream.last,
            Start::Sequence(sequence) => sequence.saturating_sub(1),
            Start::Time(_) => reached.unwrap_or(0),
        };
        // What lies before the first message held will never come.
        let reached = reached.max(stream.first - 1);
        let id = self.durables.len() as u32;
        let durable = durable::Durable::new(id, stream_id, config, reached);
        stream.attach(id, &durable.config.filters);
        stream.durables.insert(Arc::clone(&named.name), id);
        self.open.put(Item::put(Space::Meta, meta::durable(id), durable.encode_config()));
        self.durables.push(Some(durable));
        Ok(named)
    }

    fn delete_durable(&mut self, durable: &Durable) -> Result<(), Error> {
        let Ok(id) = self.durable_id(durable) else { return Ok(()) };
        let Some(deleted) = self.durables[id as usize].take() else { return Ok(()) };
        let stream = &mut self.streams[deleted.stream as usize];
        stream.durables.remove(&durable.name);
        stream.detach(id);
        self.open.put(Item::remove(Space::Meta, meta::durable(id)));
        self.open.put(Item::remove(Space::Meta, meta::position(id)));
        deleted.notify.notify_waiters();
        Ok(())
    }
}

fn check_filters(found: &DurableConfig, wanted: &DurableConfig) -> Result<(), Error> {
    let sorted = |config: &DurableConfig| {
        let mut filters = config.filters.clone();
        filters.sort();
        filters.join(" ")
    };
    let (found, sorted_wanted) = (sorted(found), sorted(wanted));
    if found == sorted_wanted {
        return Ok(());
    }
    Err(Error::Mismatch { what: format!("filters of durable {}", wanted.name), found, wanted: sorted_wanted })
}

/// What is known of a durable under the lock, and what is still to be read.
struct Look {
    info: DurableInfo,
    stream: u32,
    selection: Selection,
    oldest: Option<u64>,
    reached: u64,
    visible: u64,
}

fn look(engine: &Engine, id: u32) -> Option<Look> {
    let durable = engine.durables[id as usize].as_ref()?;
    let stream = &engine.streams[durable.stream as usize];
    Some(Look {
        info: DurableInfo {
            config: durable.config.clone(),
            ack_floor: durable.ack_floor(),
            delivered: durable.delivered,
            in_flight: durable.in_flight(),
            redelivering: durable.redelivering(),
            pending: durable.ready() as u64,
            oldest_unacknowledged: None,
        },
        stream: stream.id,
        selection: stream.matching(&durable.config.filters).into(),
        oldest: durable.oldest(),
        reached: durable.reached,
        visible: stream.visible,
    })
}

impl Look {
    /// Adds what only the index knows.
    fn complete(mut self, db: &db::Db) -> Result<DurableInfo, engine::Broken> {
        let behind = self.reached + 1..=self.visible;
        let mut oldest = self.oldest;
        if !behind.is_empty() {
            if oldest.is_none() {
                oldest = select::sequences(db, self.stream, &self.selection, behind.clone(), 1)?.0.first().copied();
            }
            self.info.pending += select::count(db, self.stream, &self.selection, behind)?;
        }
        if let Some(oldest) = oldest {
            self.info.oldest_unacknowledged = select::span_at(db, self.stream, oldest)?.map(|span| span.time);
        }
        Ok(self.info)
    }
}

impl Bus for Embedded {
    fn ensure_stream(&self, config: StreamConfig) -> Answer<StreamInfo> {
        self.shared.answer(move |engine| engine.ensure_stream(config))
    }

    fn stream(&self, name: &str) -> Answer<StreamInfo> {
        let name = name.to_owned();
        self.shared.answer(move |engine| Ok(engine.stream(&name)?.info()))
    }

    fn publish(&self, stream: &Arc<str>, message: Outgoing, expected: Option<Expected>) -> Answer<PubAck> {
        let batch =
            Batch { stream: Arc::clone(stream), messages: vec![message], expected: expected.into_iter().collect() };
        let settlement = Settlement { batches: vec![batch], ..Settlement::default() };
        self.shared.answer(move |engine| Ok(engine.settle(&settlement)?[0]))
    }

    fn publish_batch(&self, batch: Batch) -> Answer<Vec<PubAck>> {
        self.settle(Settlement { batches: vec![batch], ..Settlement::default() })
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
            engine.next_wake = [engine.next_wake, wake].into_iter().flatten().min();
            engine.open.sync = true;
            Ok(())
        })
    }

    fn in_progress(&self, durable: &Durable, sequences: &[u64]) -> Answer<()> {
        let done = self.shared.lock().and_then(|mut engine| {
            let now = engine.clock.monotonic();
            engine.durable(durable)?.in_progress(sequences, now);
            Ok(())
        });
        Box::pin(async { done })
    }

    fn settle(&self, settlement: Settlement) -> Answer<Vec<PubAck>> {
        self.shared.answer(move |engine| engine.settle(&settlement))
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

impl Store for Embedded {
    fn ensure_bucket(&self, bucket: &str, ttl: Option<Duration>) -> Answer<()> {
        let bucket = bucket.to_owned();
        self.shared.answer(move |engine| engine.ensure_bucket(&bucket, ttl))
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
