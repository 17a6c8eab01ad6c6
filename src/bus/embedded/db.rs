//! The three keyspaces in fjall, how they are set up, and what is written to them in one commit.
//!
//! Which records there are is said in `codec`. Nothing here knows what they mean.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::open::Options;
use crate::ports::clock::SharedClock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    /// Everything small: streams, subjects, durables, spans and indexes, entries.
    Records,
    Chunks,
    /// Transport ids: their own, because compactions drop old ones.
    Ids,
}

/// One key to write; no value removes it.
#[derive(Debug)]
pub(super) struct Item {
    pub space: Space,
    pub key: Vec<u8>,
    pub value: Option<fjall::Slice>,
}

impl Item {
    pub fn put(space: Space, key: Vec<u8>, value: Vec<u8>) -> Self {
        Item { space, key, value: Some(value.into()) }
    }

    pub fn remove(space: Space, key: Vec<u8>) -> Self {
        Item { space, key, value: None }
    }
}

#[derive(Clone)]
pub(super) struct Db {
    database: Database,
    records: Keyspace,
    chunks: Keyspace,
    ids: Keyspace,
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Db")
    }
}

/// Sealed journals beyond this make fjall write memtables out; see also [`Db::flush`]. The least it allows.
const JOURNAL_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// File handles kept open for tables.
const FILES_OPEN_MAX: usize = 128;

impl Db {
    pub fn open(path: &Path, options: &Options, window: Arc<Window>) -> fjall::Result<Self> {
        let database = Database::builder(path)
            .cache_size(options.block_cache_bytes)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .worker_threads(1)
            .max_cached_files(Some(FILES_OPEN_MAX))
            // Reading a compressed journal back compresses it again to compare checksums: opening took 15 times longer.
            .journal_compression(fjall::CompressionType::None)
            .manual_journal_persist(true)
            .with_compaction_filter_factories(Arc::new(move |keyspace| {
                let window: Arc<dyn Factory> = Arc::clone(&window) as Arc<dyn Factory>;
                (keyspace == "ids").then_some(window)
            }))
            .open()?;
        let small = || KeyspaceCreateOptions::default().max_memtable_size(options.records_bytes_max);
        let chunks = || KeyspaceCreateOptions::default().max_memtable_size(options.memtable_bytes_max);
        Ok(Db {
            records: database.keyspace("records", small)?,
            chunks: database.keyspace("chunks", chunks)?,
            ids: database.keyspace("ids", small)?,
            database,
        })
    }

    fn space(&self, space: Space) -> &Keyspace {
        match space {
            Space::Records => &self.records,
            Space::Chunks => &self.chunks,
            Space::Ids => &self.ids,
        }
    }

    /// Writes all items or none, and returns when they are durable if `sync` is set. Readers see them afterwards.
    ///
    /// `SyncData` is enough: the journal is a file made with a length of 64 MiB and synced with its directory when it
    /// is made or rotated. A later write changes only blocks and, beyond that length or after a reopen, the size, and
    /// `fdatasync` writes both of these before it returns; what it leaves out is times.
    pub fn write(&self, items: Vec<Item>, sync: bool) -> fjall::Result<()> {
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch =
            fjall::OwnedWriteBatch::with_capacity(self.database.clone(), items.len()).durability(Some(mode));
        for item in items {
            match item.value {
                Some(value) => batch.insert(self.space(item.space), item.key, value),
                None => batch.remove(self.space(item.space), item.key),
            }
        }
        batch.commit()
    }

    /// The journal being written and those that wait for memtables to be written out.
    pub fn journals(&self) -> usize {
        self.database.journal_count()
    }

    /// Has every memtable written out in the background, so that no journal outlives the one being written.
    ///
    /// Left to itself, a keyspace with little traffic keeps all journals since its last flush, and all of them are
    /// read again when the bus opens.
    pub fn flush(&self) -> fjall::Result<()> {
        for keyspace in [&self.records, &self.chunks, &self.ids] {
            keyspace.rotate_memtable()?;
        }
        Ok(())
    }

    pub fn get(&self, space: Space, key: &[u8]) -> fjall::Result<Option<fjall::Slice>> {
        self.space(space).get(key)
    }

    /// The entries from `from` up to and with `to`, in order.
    pub fn range(&self, space: Space, from: Vec<u8>, to: Vec<u8>) -> fjall::Iter {
        self.space(space).range(from..=to)
    }

    pub fn prefix(&self, space: Space, prefix: &[u8]) -> fjall::Iter {
        self.space(space).prefix(prefix)
    }
}

/// A value without a copy.
pub(super) fn to_bytes(value: fjall::Slice) -> Bytes {
    Bytes::from_owner(value)
}

/// Lets compactions drop transport ids that every stream has forgotten, so that no sweep has to write.
///
/// It only ever drops what a look-up would already pass over, by the longest window of all streams.
pub(super) struct Window {
    clock: SharedClock,
    nanos_max: AtomicI64,
}

impl Window {
    pub fn new(clock: SharedClock) -> Self {
        Window { clock, nanos_max: AtomicI64::new(i64::MAX) }
    }

    pub fn set(&self, longest: std::time::Duration) {
        self.nanos_max.store(i64::try_from(longest.as_nanos()).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}

// `Factory` asks for it; a panic inside a compaction leaves nothing half done here.
impl std::panic::RefUnwindSafe for Window {}

impl Factory for Window {
    fn name(&self) -> &str {
        "duplicate window"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        let window = self.nanos_max.load(Ordering::Relaxed);
        Box::new(Forget { before: self.clock.now().0.saturating_sub(window) })
    }
}

struct Forget {
    before: i64,
}

impl CompactionFilter for Forget {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        if item.key().as_ref() == super::codec::meta::MARK {
            return Ok(Verdict::Keep);
        }
        let value = item.value()?;
        let time = value.last_chunk::<8>().map(|bytes| i64::from_le_bytes(*bytes));
        Ok(if time.is_some_and(|time| time < self.before) { Verdict::Remove } else { Verdict::Keep })
    }
}
