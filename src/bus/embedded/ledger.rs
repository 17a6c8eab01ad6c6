//! Which commits there were: a number and a chain of checksums in each of them, and the file `synced` beside the database.
//!
//! The database alone cannot tell that a part of it is missing: a journal that was deleted, cut or damaged reads like
//! one that ends early. So each commit carries a [`Mark`] in every keyspace, and the mark of each synced commit is
//! written to `synced` after the sync. What is missing between two marks, or before the one in `synced`, was lost.
//!
//! `synced` itself is not synced: after a crash of the machine it may be older than the database, never newer.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

use super::codec::{Damaged, Decoder, Encoder, meta};
use super::db::{Item, Space};

/// The file's name in the data directory.
pub(super) const NAME: &str = "synced";
const FILE_BYTES: usize = 20;

/// What a commit says about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Grows by one with each commit.
    pub number: u64,
    /// Checksum over the commit's content and the chain of the commit before.
    pub chain: u64,
    /// The highest commit that was synced when this one was written. A commit that is missing although a later one
    /// names it, or a higher one, as synced was not torn off by a crash: it was lost.
    pub synced: u64,
    /// Number of the first commit of this database.
    pub base: u64,
}

impl Mark {
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder(Vec::with_capacity(32));
        encoder.u64(self.number).u64(self.chain).u64(self.synced).u64(self.base);
        encoder.0
    }

    pub fn decode(value: &[u8]) -> Result<Self, Damaged> {
        let mut decoder = Decoder(value);
        Ok(Mark { number: decoder.u64()?, chain: decoder.u64()?, synced: decoder.u64()?, base: decoder.u64()? })
    }
}

/// Adds up a commit's content.
pub(super) struct Sum(Xxh3Default);

impl Sum {
    /// Begins the commit that follows one with this chain.
    pub fn new(previous_chain: u64, number: u64) -> Self {
        let mut sum = Xxh3Default::new();
        sum.update(&previous_chain.to_le_bytes());
        sum.update(&number.to_le_bytes());
        Sum(sum)
    }

    pub fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        let mut lengths = [0xff; 12];
        lengths[..4].copy_from_slice(&(key.len() as u32).to_le_bytes());
        if let Some(value) = value {
            lengths[4..].copy_from_slice(&(value.len() as u64).to_le_bytes());
        }
        self.0.update(&lengths);
        self.0.update(key);
        self.0.update(value.unwrap_or_default());
    }

    pub fn chain(&self) -> u64 {
        self.0.digest()
    }
}

/// Numbers commits and writes down which of them are durable.
pub(super) struct Ledger {
    file: File,
    last: Mark,
    synced: u64,
}

impl Ledger {
    /// Goes on after `last`, the newest commit there is.
    pub fn open(data_dir: &Path, last: Mark) -> io::Result<Self> {
        let path = data_dir.join(NAME);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Ledger { file, last, synced: last.number })
    }

    /// Adds the mark of the next commit to its items.
    pub fn seal(&mut self, items: &mut Vec<Item>) {
        let number = self.last.number + 1;
        let mut sum = Sum::new(self.last.chain, number);
        for item in items.iter() {
            sum.add(&item.key, item.value.as_deref());
        }
        self.last = Mark { number, chain: sum.chain(), synced: self.synced, base: self.last.base };
        items.extend(marks(&self.last));
    }

    /// Notes that the commit sealed last was synced.
    pub fn note(&mut self) -> io::Result<()> {
        self.synced = self.last.number;
        let mut bytes = [0; FILE_BYTES];
        bytes[..8].copy_from_slice(&self.last.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.last.chain.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&bytes, 0)
    }
}

/// The mark in each keyspace: so each of them can be asked how far it goes.
pub(super) fn marks(mark: &Mark) -> [Item; 3] {
    let value = fjall::Slice::from(mark.encode());
    [Space::Records, Space::Chunks, Space::Ids].map(|space| Item {
        space,
        key: meta::MARK.to_vec(),
        value: Some(value.clone()),
    })
}

/// What `synced` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synced {
    /// Not there, or never written.
    Nothing,
    /// Its checksum does not fit.
    Unreadable,
    Commit {
        number: u64,
        chain: u64,
    },
}

/// Reads `synced` without making it.
pub(super) fn read_synced(data_dir: &Path) -> io::Result<Synced> {
    let bytes = match super::salvage::read_bounded(&data_dir.join(NAME), FILE_BYTES as u64 * 2) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Synced::Nothing),
        Err(error) => return Err(error),
    };
    if bytes.is_empty() {
        return Ok(Synced::Nothing);
    }
    let mut decoder = Decoder(&bytes);
    let (Ok(number), Ok(chain), Ok(sum)) = (decoder.u64(), decoder.u64(), decoder.u32()) else {
        return Ok(Synced::Unreadable);
    };
    let fits = sum == crc32fast::hash(&bytes[..16]);
    Ok(if fits { Synced::Commit { number, chain } } else { Synced::Unreadable })
}
