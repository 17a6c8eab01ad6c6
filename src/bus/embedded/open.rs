//! Opening and closing a data directory: the lock file, the format, and everything that is read into memory.
//!
//! All files are under the data directory: `lock` with the process id of the holder, `format`, `synced`, and the database in `bus`.
//! What the database would silently cut off or delete is found before it is opened, by `salvage`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::codec::{Damaged, meta};
use super::db::{Db, Space, Window};
use super::durable::Durable;
use super::engine::{Broken, Engine};
use super::format;
use super::kv::Bucket;
use super::ledger::{Ledger, Mark};
use super::salvage::{self, Verdict};
use super::select;
use super::stream::Stream;
use crate::ports::clock::SharedClock;

/// Sizes and places. The defaults keep the bus at about 50 MB of memory.
#[derive(Clone)]
pub struct Options {
    pub data_dir: PathBuf,
    pub clock: SharedClock,
    /// Newly written chunks kept in memory until they are sorted to disk.
    pub memtable_bytes_max: u64,
    /// The same for records and for transport ids, each. Costs about four times as much in memory.
    pub records_bytes_max: u64,
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
            records_bytes_max: 2 * MIB as u64,
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
    #[error(
        "data directory {} has format {found}; this program reads format {wanted}{}",
        path.display(),
        if found < wanted { ". No release ever wrote the older one: begin with an empty folder" } else { ": take a newer program" }
    )]
    Format { path: PathBuf, found: u32, wanted: u32 },
    #[error(
        "data directory {} is damaged: {reason}. Put back a copy of it, or see `vejas data check` for what is lost and \
         `vejas data repair` to go on with the rest",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error("data directory {}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// Holds the data directory. The system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
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
        Ok(Lock { file })
    }
}

impl Drop for Lock {
    /// Closing is not enough: a child that is being started holds the same open file until it runs its own program.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Opens or makes the database and reads what is kept in memory. Nothing is changed in a directory that is refused.
pub(super) fn open(options: &Options) -> Result<(Lock, Engine, Ledger), OpenError> {
    let path = options.data_dir.clone();
    let io = |source| OpenError::Io { path: path.clone(), source };
    std::fs::create_dir_all(&path).map_err(io)?;
    let lock = Lock::take(&path)?;
    let mut survey = salvage::survey(&path, None).map_err(io)?;
    format::check(&path, &mut survey)?;
    let damaged = |reason: String| OpenError::Damaged { path: path.clone(), reason };
    if survey.report.verdict == Verdict::Damaged {
        return Err(damaged(survey.report.summary()));
    }
    for (journal, offset) in &survey.torn {
        cut(journal, *offset).map_err(io)?;
    }
    for note in &survey.report.notes {
        tracing::warn!(data_dir = %path.display(), "{note}");
    }
    let bus = path.join("bus");
    if survey.unborn && bus.exists() {
        // A first start that was cut off: the database would not go on with it.
        std::fs::remove_dir_all(&bus).map_err(io)?;
    }
    if bus.exists() {
        // Holds nothing, and the database does not open without it.
        OpenOptions::new().append(true).create(true).open(bus.join("lock")).map_err(io)?;
    }
    format::ensure(&path).map_err(io)?;
    let window = Arc::new(Window::new(Arc::clone(&options.clock)));
    let db = Db::open(&bus, options, Arc::clone(&window)).map_err(|error| match error {
        fjall::Error::Io(source) => OpenError::Io { path: path.clone(), source },
        other => damaged(other.to_string()),
    })?;
    if survey.unborn {
        prepare(&db, &path).map_err(|e| damaged(e.to_string()))?;
    }
    let last = newest_mark(&db).map_err(|e| damaged(e.to_string()))?;
    if survey.report.synced.is_some_and(|synced| synced > last.number) {
        return Err(damaged(format!("it ends with commit {}", last.number)));
    }
    let engine = load(Arc::new(db), window, options).map_err(|e| damaged(e.to_string()))?;
    let mut ledger = Ledger::open(&path, last).map_err(io)?;
    // Opening has synced the journal.
    ledger.note().map_err(io)?;
    Ok((lock, engine, ledger))
}

/// Removes a torn tail, which fjall would read first.
fn cut(journal: &Path, offset: u64) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(journal)?;
    tracing::warn!(journal = %journal.display(), offset, "cutting off a write that was never finished or acknowledged");
    file.set_len(offset)?;
    file.sync_all()
}

/// The first commit of a new database.
fn prepare(db: &Db, data_dir: &Path) -> Result<(), Broken> {
    let before = Mark { number: 0, chain: 0, synced: 0, base: 1 };
    let mut ledger = Ledger::open(data_dir, before).map_err(fjall::Error::Io)?;
    let mut items = vec![format::item()];
    ledger.seal(&mut items);
    db.write(items, true)?;
    ledger.note().map_err(fjall::Error::Io)?;
    Ok(())
}

/// The mark that all keyspaces agree on.
fn newest_mark(db: &Db) -> Result<Mark, Broken> {
    let mut marks = Vec::new();
    for space in [Space::Records, Space::Chunks, Space::Ids] {
        let value = db.get(space, meta::MARK)?.ok_or(Damaged("a keyspace without commits"))?;
        marks.push(Mark::decode(&value)?);
    }
    if marks.iter().any(|mark| *mark != marks[0]) {
        return Err(Damaged("the keyspaces end with different commits").into());
    }
    Ok(marks[0])
}

fn load(db: Arc<Db>, window: Arc<Window>, options: &Options) -> Result<Engine, Broken> {
    let mut engine = Engine::new(Arc::clone(&db), window, options);
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
