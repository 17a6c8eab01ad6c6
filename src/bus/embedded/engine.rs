//! The state of the whole bus in memory, behind one lock, and how calls reach it.
//!
//! A call that writes locks, checks and applies itself at once, so calls take effect in the order they are made; what
//! it wants on disk goes into the open batch. `commit` writes batch after batch, makes them visible and answers.
//! Nothing holds the lock while it waits for the disk to sync; look-ups of single keys are the only reads under it.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::cache::Cache;
use super::chunk::{Builder, Chunk};
use super::codec::Damaged;
use super::db::{Db, Item, Window};
use super::durable::Durable;
use super::ids::Ids;
use super::kv::Buckets;
use super::stream::Stream;
use super::trim::Chore;
use crate::ports::bus::{self, Answer, Error};
use crate::ports::clock::SharedClock;
use crate::ports::store::Change;
use crate::time::Timestamp;

/// Bytes one batch takes before further calls wait for the next one.
const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long the answer to "is there room on the disk" is believed.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The disk failed or holds something this program did not write. The bus stops.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("{0}")]
    Store(#[from] fjall::Error),
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        Error::Stopped(broken.to_string())
    }
}

pub(super) type Reply = Box<dyn FnOnce(Result<(), Error>) + Send>;
type Request = Box<dyn FnOnce(&mut Engine) + Send>;

/// What the next commit will write.
#[derive(Default)]
pub(super) struct Open {
    /// Number of the batch since the start; the commits on disk have numbers of their own, see `ledger`.
    pub commit: u64,
    items: Vec<Item>,
    /// Filled chunks; those still being filled are in their streams.
    pub builders: Vec<Builder>,
    /// Subjects whose record changes, as (stream, subject).
    pub subjects: Vec<(u32, u32)>,
    pub ids: Vec<Vec<u8>>,
    pub entries: Vec<Vec<u8>>,
    pub changes: Vec<(u32, Change)>,
    /// Chunks written again or removed, as (stream, first).
    pub rewritten: Vec<(u32, u64, Option<Arc<Chunk>>)>,
    replies: Vec<Reply>,
    pub bytes: usize,
    /// Somebody is told that this is durable.
    pub sync: bool,
}

impl Open {
    pub fn put(&mut self, item: Item) {
        self.bytes += item.key.len() + item.value.as_ref().map_or(0, |value| value.len());
        self.items.push(item);
        self.sync = true;
    }
}

/// An open batch that was closed: what is to be written and whom to tell.
pub(super) struct Batch {
    pub open: Open,
    pub items: Vec<Item>,
    pub replies: Vec<Reply>,
}

pub(super) enum Life {
    Running,
    Closing,
    Stopped(String),
}

struct Space {
    path: PathBuf,
    bytes_min: u64,
    checked: Option<Duration>,
    /// Bytes, at the last look.
    free: u64,
}

pub(super) struct Engine {
    pub clock: SharedClock,
    pub opened: Timestamp,
    pub db: Option<Arc<Db>>,
    pub window: Arc<Window>,
    pub life: Life,
    pub streams: Vec<Stream>,
    pub stream_ids: HashMap<Arc<str>, u32>,
    /// By number; a deleted one leaves its place empty.
    pub durables: Vec<Option<Durable>>,
    pub buckets: Buckets,
    pub ids: Ids,
    pub hot: Cache,
    pub cold: Cache,
    /// Counts changes to stored chunks, so that a chunk read meanwhile is not cached.
    pub rewrites: u64,
    pub open: Open,
    waiting: VecDeque<Request>,
    /// No durable changes by time alone before this.
    pub next_wake: Option<Duration>,
    /// When hand-outs that nothing else wrote down are written.
    pub lazy_due: Option<Duration>,
    pub lazy_after: Duration,
    pub chores: VecDeque<Chore>,
    pub chores_wanted: bool,
    /// How many journals there were after the last commit. One more is a reason to flush.
    pub journals: usize,
    pub commits: u64,
    space: Space,
}

impl Engine {
    pub fn new(db: Arc<Db>, window: Arc<Window>, options: &super::open::Options) -> Self {
        Engine {
            clock: Arc::clone(&options.clock),
            opened: options.clock.now(),
            db: Some(db),
            window,
            life: Life::Running,
            streams: Vec::new(),
            stream_ids: HashMap::new(),
            durables: Vec::new(),
            buckets: Buckets::default(),
            ids: Ids::default(),
            hot: Cache::new(options.hot_cache_bytes),
            cold: Cache::new(options.cold_cache_bytes),
            rewrites: 0,
            open: Open { commit: 1, ..Open::default() },
            waiting: VecDeque::new(),
            next_wake: None,
            lazy_due: None,
            lazy_after: options.delivered_written_after,
            chores: VecDeque::new(),
            chores_wanted: true,
            journals: 1,
            commits: 0,
            space: Space {
                path: options.data_dir.clone(),
                bytes_min: options.free_bytes_min,
                checked: None,
                free: u64::MAX,
            },
        }
    }

    pub fn db(&self) -> Result<Arc<Db>, Error> {
        self.db.clone().ok_or_else(|| Error::Stopped("closed".to_owned()))
    }

    pub fn stream_id(&self, name: &str) -> Result<u32, Error> {
        self.stream_ids.get(name).copied().ok_or_else(|| Error::NoStream(name.to_owned()))
    }

    pub fn stream(&self, name: &str) -> Result<&Stream, Error> {
        Ok(&self.streams[self.stream_id(name)? as usize])
    }

    pub fn durable_id(&self, durable: &bus::Durable) -> Result<u32, Error> {
        let id = self.stream(&durable.stream)?.durables.get(&durable.name);
        id.copied()
            .ok_or_else(|| Error::NoDurable { stream: durable.stream.to_string(), durable: durable.name.to_string() })
    }

    pub fn durable(&mut self, durable: &bus::Durable) -> Result<&mut Durable, Error> {
        let id = self.durable_id(durable)?;
        Ok(self.durables[id as usize].as_mut().expect("a named durable is there"))
    }

    /// Whether there is room for new messages. A settlement may use half of what is kept free: it makes room by what it
    /// acknowledges. Acknowledging alone and trimming always go on.
    pub fn check_space(&mut self, settles: bool) -> Result<(), Error> {
        let now = self.clock.monotonic();
        if self.space.checked.is_none_or(|checked| now.saturating_sub(checked) >= SPACE_CHECK_INTERVAL) {
            self.space.checked = Some(now);
            self.space.free =
                rustix::fs::statvfs(&self.space.path).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        }
        let bytes = if settles { self.space.bytes_min / 2 } else { self.space.bytes_min };
        if self.space.free >= bytes {
            return Ok(());
        }
        let path = self.space.path.display();
        Err(Error::NoSpace(format!("less than {bytes} bytes free in {path}")))
    }

    /// Whether the commit thread has something to do now.
    pub fn has_work(&self, now: Duration) -> bool {
        let closing = !matches!(self.life, Life::Running);
        let lazy = self.lazy_due.is_some_and(|due| closing || due <= now);
        lazy || self.open.sync || !self.open.replies.is_empty()
    }

    /// Closes the open batch and starts the next one.
    pub fn take_batch(&mut self) -> Batch {
        use super::codec::meta;
        use super::db::Space::Records;

        let next = Open { commit: self.open.commit + 1, ..Open::default() };
        let mut open = std::mem::replace(&mut self.open, next);
        self.lazy_due = None;
        let mut items = std::mem::take(&mut open.items);
        let replies = std::mem::take(&mut open.replies);
        for (stream_id, id) in &open.subjects {
            let stream = &mut self.streams[*stream_id as usize];
            stream.subjects[*id as usize].dirty = false;
            items.push(Item::put(Records, meta::subject(*stream_id, *id), stream.encode_subject(*id)));
        }
        for stream in &mut self.streams {
            open.builders.extend(stream.building.take());
            if std::mem::take(&mut stream.dirty) {
                items.push(Item::put(Records, meta::stream(stream.id), stream.encode()));
            }
        }
        for durable in self.durables.iter_mut().flatten() {
            if std::mem::take(&mut durable.dirty) {
                items.push(Item::put(Records, meta::position(durable.id), durable.encode_position()));
            }
        }
        for (id, bucket) in (0_u32..).zip(&mut self.buckets.all) {
            if std::mem::take(&mut bucket.dirty) {
                items.push(Item::put(Records, meta::bucket(id), bucket.encode()));
            }
        }
        Batch { open, items, replies }
    }

    /// Applies calls that waited because the batch before was full.
    pub fn admit_waiting(&mut self) {
        while self.open.bytes < BATCH_BYTES_MAX
            && let Some(request) = self.waiting.pop_front()
        {
            request(self);
        }
    }

    /// Repeats deliveries that were not answered in time.
    pub fn expire(&mut self, now: Duration) {
        if self.next_wake.is_none_or(|wake| wake > now) {
            return;
        }
        self.next_wake = None;
        for durable in self.durables.iter_mut().flatten() {
            if durable.expire(now) {
                durable.notify.notify_one();
            }
            self.next_wake = [self.next_wake, durable.next_wake].into_iter().flatten().min();
        }
    }

    /// A durable may change by time at `wake`. Answers whether that is sooner than anything before.
    pub fn wake_by(&mut self, wake: Option<Duration>) -> bool {
        let sooner = wake.is_some_and(|wake| self.next_wake.is_none_or(|next| wake < next));
        if sooner {
            self.next_wake = wake;
        }
        sooner
    }

    /// How long the commit thread may sleep.
    pub fn sleep(&self, now: Duration) -> Option<Duration> {
        let next = [self.next_wake, self.lazy_due].into_iter().flatten().min();
        next.map(|next| next.saturating_sub(now))
    }

    /// Ends the bus for good. Everybody who waits is told.
    pub fn stop(&mut self, reason: &str) {
        if matches!(self.life, Life::Stopped(_)) {
            return;
        }
        self.life = Life::Stopped(reason.to_owned());
        let error = Error::Stopped(reason.to_owned());
        self.waiting.clear();
        self.chores.clear();
        for durable in self.durables.iter().flatten() {
            durable.notify.notify_waiters();
            durable.notify.notify_one();
        }
        for watcher in self.buckets.all.iter().flat_map(|bucket| &bucket.watchers) {
            if let Some(watcher) = watcher.upgrade() {
                watcher.break_off(&error);
            }
        }
        for reply in std::mem::take(&mut self.open.replies) {
            reply(Err(error.clone()));
        }
    }
}

pub(super) struct Shared {
    engine: Mutex<Engine>,
    /// Wakes the commit thread.
    pub work: Condvar,
    /// Wakes the chores thread.
    pub chore: Condvar,
    pub clock: SharedClock,
    pub stopped: watch::Sender<Option<String>>,
}

impl Shared {
    pub fn new(engine: Engine) -> Self {
        let clock = Arc::clone(&engine.clock);
        let (stopped, _) = watch::channel(None);
        Shared { engine: Mutex::new(engine), work: Condvar::new(), chore: Condvar::new(), clock, stopped }
    }

    /// The engine, whatever state it is in. A panic under the lock has left it in doubt: it is stopped.
    pub fn lock_any(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(|poisoned| self.recover(poisoned))
    }

    pub fn recover<'a>(&self, poisoned: PoisonError<MutexGuard<'a, Engine>>) -> MutexGuard<'a, Engine> {
        let mut engine = poisoned.into_inner();
        self.stop(&mut engine, "a broken invariant was met; see the log");
        engine
    }

    /// The engine while it runs.
    pub fn lock(&self) -> Result<MutexGuard<'_, Engine>, Error> {
        let engine = self.lock_any();
        match &engine.life {
            Life::Running => Ok(engine),
            Life::Closing => Err(Error::Stopped("closed".to_owned())),
            Life::Stopped(reason) => Err(Error::Stopped(reason.clone())),
        }
    }

    pub fn stop(&self, engine: &mut Engine, reason: &str) {
        engine.stop(reason);
        self.stopped.send_if_modified(|stopped| {
            let first = stopped.is_none();
            stopped.get_or_insert_with(|| reason.to_owned());
            if first {
                tracing::error!(reason, "the bus stops");
            }
            first
        });
        self.work.notify_all();
        self.chore.notify_all();
    }

    /// Applies `change` now, or in its turn, and answers with its value when all it wrote is durable. A refusal is
    /// answered at once.
    pub fn submit<T, F>(self: &Arc<Self>, change: F) -> oneshot::Receiver<Result<T, Error>>
    where
        T: Send + 'static,
        F: FnOnce(&mut Engine) -> Result<T, Error> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let mut engine = match self.lock() {
            Ok(engine) => engine,
            Err(error) => {
                let _ = sender.send(Err(error));
                return receiver;
            }
        };
        let shared = Arc::clone(self);
        let request = move |engine: &mut Engine| match change(engine) {
            Ok(value) => engine.open.replies.push(Box::new(move |written| {
                let _ = sender.send(written.map(|()| value));
            })),
            Err(error) => {
                if let Error::Stopped(reason) = &error {
                    shared.stop(engine, reason);
                }
                let _ = sender.send(Err(error));
            }
        };
        if engine.open.bytes >= BATCH_BYTES_MAX || !engine.waiting.is_empty() {
            engine.waiting.push_back(Box::new(request));
        } else {
            request(&mut engine);
        }
        drop(engine);
        self.work.notify_one();
        receiver
    }

    pub fn answer<T, F>(self: &Arc<Self>, change: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Engine) -> Result<T, Error> + Send + 'static,
    {
        let receiver = self.submit(change);
        Box::pin(async { receiver.await.unwrap_or_else(|_| Err(Error::Stopped("closed".to_owned()))) })
    }

    /// Reads from disk on a thread that may block. A failure to read ends the bus.
    pub async fn read<T, F>(self: &Arc<Self>, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Db, Timestamp) -> Result<T, Broken> + Send + 'static,
    {
        let shared = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let (db, now) = {
                let engine = shared.lock()?;
                (engine.db()?, engine.clock.now())
            };
            read(&db, now).map_err(|broken| shared.broken(&broken))
        });
        done.await.unwrap_or_else(|_| Err(Error::Stopped("a read was cut off".to_owned())))
    }

    /// Ends the bus because of what a read met.
    pub fn broken(&self, broken: &Broken) -> Error {
        let reason = format!("{broken}; `vejas data check` says what of the data folder is damaged");
        self.stop(&mut self.lock_any(), &reason);
        Error::Stopped(reason)
    }
}
