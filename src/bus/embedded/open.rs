//! Opening and closing a data directory: the lock file, the format, and everything that is read into memory.
//!
//! All files are under the data directory: `lock`, with the process id of the holder, and the database in `bus`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::codec::{Damaged, meta};
use super::db::{Db, Item, Space, Window};
use super::durable::Durable;
use super::engine::{Broken, Engine};
use super::kv::Bucket;
use super::select;
use super::stream::Stream;
use super::watermark::{self, Watermark};
use crate::ports::clock::SharedClock;

/// What the database holds and how. Raised by a change that an older program could not read.
pub const FORMAT: u32 = 1;

/// Sizes and places. The defaults keep the bus at about 50 MB of memory.
#[derive(Clone)]
pub struct Options {
    pub data_dir: PathBuf,
    pub clock: SharedClock,
    /// Newly written chunks kept in memory until they are sorted to disk.
    pub memtable_bytes_max: u64,
    pub block_cache_bytes: u64,
    /// Chunks kept for consumers that keep up.
    pub hot_cache_bytes: usize,
    /// Chunks kept for consumers that are behind.
    pub cold_cache_bytes: usize,
    /// With less free space on the disk new messages are refused.
    pub free_bytes_min: u64,
    /// A hand-out that no other commit wrote down within this is written by itself.
    pub delivered_written_after: Duration,
}

impl Options {
    pub fn new(data_dir: impl Into<PathBuf>, clock: SharedClock) -> Self {
        const MIB: usize = 1024 * 1024;
        Options {
            data_dir: data_dir.into(),
            clock,
            memtable_bytes_max: 4 * MIB as u64,
            block_cache_bytes: 4 * MIB as u64,
            hot_cache_bytes: 6 * MIB,
            cold_cache_bytes: 4 * MIB,
            free_bytes_min: 64 * MIB as u64,
            delivered_written_after: Duration::from_millis(20),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("data_dir", &self.data_dir).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("data directory {} is in use by process {pid}", path.display())]
    InUse { path: PathBuf, pid: String },
    #[error("data directory {} has format {found}; this program reads format {wanted}", path.display())]
    Format { path: PathBuf, found: u32, wanted: u32 },
    #[error("data directory {} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("data directory {}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// Holds the data directory. The system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub fn take(data_dir: &Path) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { path: data_dir.to_owned(), source };
        let path = data_dir.join("lock");
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(io(error.into()));
            }
            let mut pid = String::new();
            // The holder may be about to write it.
            let _ = file.read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() };
            return Err(OpenError::InUse { path: data_dir.to_owned(), pid });
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Lock { _file: file })
    }
}

/// Opens or makes the database and reads what is kept in memory.
pub(super) fn open(options: &Options) -> Result<(Lock, Engine, Watermark), OpenError> {
    let path = options.data_dir.clone();
    let io = |source| OpenError::Io { path: path.clone(), source };
    std::fs::create_dir_all(&path).map_err(io)?;
    let lock = Lock::take(&path)?;
    let window = Arc::new(Window::new(Arc::clone(&options.clock)));
    let damaged = |reason: String| OpenError::Damaged { path: path.clone(), reason };
    let (watermark, synced) = Watermark::open(&path).map_err(io)?;
    let lost = |found: &str, synced: u64| {
        let file = path.join(watermark::NAME);
        damaged(format!(
            "{found}, but commit {synced} was stored. Put back a copy of the directory, or delete {} to go on with what is left",
            file.display()
        ))
    };
    if let Some(synced) = synced.filter(|_| !path.join("bus").exists()) {
        return Err(lost("its folder `bus` is missing", synced));
    }
    let db = Db::open(&path.join("bus"), options, Arc::clone(&window)).map_err(|error| match error {
        fjall::Error::Io(source) => OpenError::Io { path: path.clone(), source },
        other => damaged(other.to_string()),
    })?;
    let found = db.get(Space::Records, meta::FORMAT).map_err(|e| damaged(e.to_string()))?;
    match found.as_deref().map(<[u8; 4]>::try_from) {
        None => {
            if let Some(synced) = synced {
                return Err(lost("its folder `bus` is empty", synced));
            }
            prepare(&db).map_err(|e| damaged(e.to_string()))?;
        }
        Some(Ok(bytes)) if u32::from_le_bytes(bytes) == FORMAT => {}
        Some(Ok(bytes)) => {
            return Err(OpenError::Format { path, found: u32::from_le_bytes(bytes), wanted: FORMAT });
        }
        Some(Err(_)) => return Err(damaged("its format has no number".to_owned())),
    }
    let engine = load(Arc::new(db), window, options).map_err(|e| damaged(e.to_string()))?;
    let last = engine.open.commit - 1;
    if let Some(synced) = synced.filter(|synced| *synced > last) {
        return Err(lost(&format!("it ends with commit {last}"), synced));
    }
    Ok((lock, engine, watermark))
}

/// The first commit of a new database.
fn prepare(db: &Db) -> fjall::Result<()> {
    let items = vec![
        Item::put(Space::Records, meta::FORMAT.to_vec(), FORMAT.to_le_bytes().to_vec()),
        Item::put(Space::Records, meta::COMMIT.to_vec(), 0_u64.to_le_bytes().to_vec()),
    ];
    db.write(items, true)
}

fn load(db: Arc<Db>, window: Arc<Window>, options: &Options) -> Result<Engine, Broken> {
    let commit = db.get(Space::Records, meta::COMMIT)?.ok_or(Damaged("no commit number"))?;
    let commit = u64::from_le_bytes(commit.as_ref().try_into().map_err(|_| Damaged("commit number"))?);
    let mut engine = Engine::new(Arc::clone(&db), window, commit, options);
    for (id, value) in numbered(&db, meta::STREAM)? {
        if id as usize != engine.streams.len() {
            return Err(Damaged("a stream is missing").into());
        }
        let stream = Stream::decode(id, &value)?;
        engine.stream_ids.insert(Arc::clone(&stream.name), id);
        engine.streams.push(stream);
    }
    for item in db.prefix(Space::Records, &[meta::SUBJECT]) {
        let (key, value) = item.into_inner()?;
        let ids = key.get(1..9).and_then(|ids| ids.split_first_chunk::<4>()).ok_or(Damaged("subject key"))?;
        let (stream, id) = (u32::from_be_bytes(*ids.0), ids.1.try_into().map_err(|_| Damaged("subject key"))?);
        let stream = engine.streams.get_mut(stream as usize).ok_or(Damaged("subject without stream"))?;
        stream.restore_subject(u32::from_be_bytes(id), &value)?;
    }
    load_durables(&mut engine, &db)?;
    for (id, value) in numbered(&db, meta::BUCKET)? {
        if id as usize != engine.buckets.all.len() {
            return Err(Damaged("a bucket is missing").into());
        }
        engine.buckets.all.push(Bucket::decode(&value)?);
    }
    // The first look of the chores thread finds out what is really due.
    engine.buckets.next_expiry = Some(crate::time::Timestamp(i64::MIN));
    for stream in &engine.streams {
        if select::span_at(&db, stream.id, u64::MAX)?.is_some_and(|span| span.last > stream.last) {
            return Err(Damaged("a stream holds messages beyond its end").into());
        }
    }
    engine.set_window();
    Ok(engine)
}

fn load_durables(engine: &mut Engine, db: &Db) -> Result<(), Broken> {
    let (now, now_wall) = (engine.clock.monotonic(), engine.clock.now());
    for (id, value) in numbered(db, meta::DURABLE)? {
        let mut durable = Durable::decode_config(id, &value)?;
        let position = db.get(Space::Records, &meta::position(id))?.ok_or(Damaged("a durable has no position"))?;
        durable.restore_position(&position, now, now_wall)?;
        let stream = engine.streams.get_mut(durable.stream as usize).ok_or(Damaged("durable without stream"))?;
        stream.attach(id, &durable.config.filters);
        stream.durables.insert(durable.config.name.as_str().into(), id);
        engine.next_wake = [engine.next_wake, durable.next_wake].into_iter().flatten().min();
        engine.durables.resize_with(id as usize, || None);
        engine.durables.push(Some(durable));
    }
    Ok(())
}

/// The records of one kind, by number.
fn numbered(db: &Db, kind: u8) -> Result<Vec<(u32, fjall::Slice)>, Broken> {
    db.prefix(Space::Records, &[kind])
        .map(|item| {
            let (key, value) = item.into_inner()?;
            let id = key.get(1..5).and_then(|id| id.try_into().ok()).ok_or(Damaged("record number"))?;
            Ok((u32::from_be_bytes(id), value))
        })
        .collect()
}
