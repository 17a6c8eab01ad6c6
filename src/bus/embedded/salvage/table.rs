//! Reads fjall's table files without fjall: block after block, going on behind a damaged one.
//!
//! A table is data blocks in key order, then index, filter and meta blocks, a table of contents, and a trailer of 38 bytes
//! (`SFA!`, version, checksum type, checksum of the contents u128, their position u64, their length u64). A block is a head (`LSM\x03`,
//! type u8, checksum u128, stored length u32, plain length u32, checksum of the head u32) and the stored bytes. Checksums are XXH3.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use super::Damage;

const BLOCK_MAGIC: &[u8; 4] = b"LSM\x03";
const BLOCK_HEAD_BYTES: usize = 33;
const TRAILER_BYTES: u64 = 38;
const CONTENTS_MAGIC: &[u8; 4] = b"TOC!";
/// Largest table of contents, in bytes; real ones have some 200.
const CONTENTS_BYTES_MAX: u64 = 64 * 1024;
/// Largest block, plain: a chunk has one message of at most 66 MiB.
const BLOCK_BYTES_MAX: u32 = 256 * 1024 * 1024;
/// What is read at a time to add up a file or to look for the next block.
const STEP_BYTES: usize = 256 * 1024;
/// What stands at the end of a data block: restart interval, index and hash positions, counts.
const BLOCK_TRAILER_BYTES: usize = 31;
const DATA: u8 = 0;
const META: u8 = 3;

/// A version of a key.
#[derive(Debug, Clone)]
pub(in super::super) struct Entry {
    pub key: Bytes,
    pub seqno: u64,
    /// None removes it.
    pub value: Option<Bytes>,
}

/// What a table says about itself.
#[derive(Debug, Clone)]
pub(in super::super) struct Facts {
    pub id: u64,
    pub data_end: u64,
    pub seqno_max: u64,
    compressed: bool,
}

#[derive(Debug)]
pub(in super::super) struct Table {
    file: File,
    length: u64,
    /// None when its end is damaged; the blocks may be whole all the same.
    pub facts: Option<Facts>,
}

fn damage(offset: u64, bytes: u64, what: impl Into<String>) -> Damage {
    Damage { offset, bytes, what: what.into() }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(bytes.get(at..at + 16)?.try_into().ok()?))
}

/// Name, position and length of each section of an archive file.
type Sections = Vec<(Vec<u8>, u64, u64)>;

pub(super) fn contents(file: &File, length: u64) -> io::Result<Result<Sections, Damage>> {
    let Some(trailer_at) = length.checked_sub(TRAILER_BYTES) else {
        return Ok(Err(damage(0, length, "shorter than its trailer")));
    };
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.read_exact_at(&mut trailer, trailer_at)?;
    let broken = |what: &str| Ok(Err(damage(trailer_at, TRAILER_BYTES, what)));
    if &trailer[..6] != b"SFA!\x01\x00" {
        return broken("its trailer is damaged");
    }
    let (Some(checksum), Some(at)) = (u128_at(&trailer, 6), u64_at(&trailer, 22)) else { return broken("trailer") };
    let Some(bytes) = trailer_at.checked_sub(at).filter(|bytes| *bytes <= CONTENTS_BYTES_MAX) else {
        return broken("its trailer points outside of the file");
    };
    let mut raw = vec![0; usize::try_from(bytes).unwrap_or(0)];
    file.read_exact_at(&mut raw, at)?;
    if xxh3_128(&raw) != checksum || !raw.starts_with(CONTENTS_MAGIC) {
        return Ok(Err(damage(at, bytes, "its table of contents is damaged")));
    }
    let mut sections = Vec::new();
    let mut rest = &raw[8..];
    while let (Some(at), Some(bytes), Some(name)) = (u64_at(rest, 0), u64_at(rest, 8), rest.get(16..18)) {
        let name_bytes = usize::from(u16::from_le_bytes([name[0], name[1]]));
        let Some(name) = rest.get(18..18 + name_bytes) else { break };
        sections.push((name.to_vec(), at, bytes));
        rest = &rest[18 + name_bytes..];
    }
    Ok(Ok(sections))
}

/// The checksum of a whole file, as fjall notes it when it has written one.
pub(super) fn checksum(file: &File, length: u64) -> io::Result<u128> {
    let mut sum = Xxh3Default::new();
    let mut buffer = vec![0; STEP_BYTES];
    let mut at = 0;
    while at < length {
        let step = STEP_BYTES.min(usize::try_from(length - at).unwrap_or(STEP_BYTES));
        file.read_exact_at(&mut buffer[..step], at)?;
        sum.update(&buffer[..step]);
        at += step as u64;
    }
    Ok(sum.digest128())
}

impl Table {
    /// Opens a table and reads its end. The damage is what makes its end unreadable.
    pub fn open(path: &Path) -> io::Result<(Self, Option<Damage>)> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut table = Table { file, length, facts: None };
        let found = table.read_end()?;
        match found {
            Ok(facts) => {
                table.facts = Some(facts);
                Ok((table, None))
            }
            Err(damage) => Ok((table, Some(damage))),
        }
    }

    fn read_end(&self) -> io::Result<Result<Facts, Damage>> {
        let sections = match contents(&self.file, self.length)? {
            Ok(sections) => sections,
            Err(damage) => return Ok(Err(damage)),
        };
        let section = |name: &[u8]| sections.iter().find(|(found, ..)| found == name).map(|(_, at, len)| (*at, *len));
        let (Some((meta_at, meta_bytes)), Some((data_end, _))) = (section(b"meta"), section(b"tli")) else {
            return Ok(Err(damage(0, self.length, "its table of contents names no index")));
        };
        let meta = match self.block(meta_at, false)? {
            Ok(block) if block.kind == META => entries(&block.plain, 0),
            Ok(_) | Err(_) => return Ok(Err(damage(meta_at, meta_bytes, "its meta block is damaged"))),
        };
        let Ok(meta) = meta else { return Ok(Err(damage(meta_at, meta_bytes, "its meta block is damaged"))) };
        let get = |name: &[u8]| meta.iter().find(|entry| entry.key == name).and_then(|entry| entry.value.clone());
        let number = |name: &[u8]| get(name).and_then(|value| u64_at(&value, 0));
        let compressed = get(b"compression#data").and_then(|value| value.first().map(|tag| *tag == 1));
        let facts = (number(b"table_id"), number(b"seqno#max"), compressed);
        let (Some(id), Some(seqno_max), Some(compressed)) = facts else {
            return Ok(Err(damage(meta_at, meta_bytes, "its meta block is incomplete")));
        };
        Ok(Ok(Facts { id, data_end, seqno_max, compressed }))
    }

    /// Everything behind the data blocks: what fjall trusts when it opens the table.
    pub fn check_index(&self) -> io::Result<Option<Damage>> {
        let Some(facts) = &self.facts else { return Ok(None) };
        let sections = match contents(&self.file, self.length)? {
            Ok(sections) => sections,
            Err(damage) => return Ok(Some(damage)),
        };
        for (name, at, bytes) in sections.iter().filter(|(_, at, _)| *at >= facts.data_end) {
            let (mut position, end) = (*at, at.saturating_add(*bytes));
            // A section is blocks without a gap, or (what links to blobs, which there are none) no block at all.
            while position < end && matches!(&name[..], b"tli" | b"index" | b"filter_tli" | b"filter" | b"meta") {
                match self.block(position, false)? {
                    Ok(block) => position = block.end,
                    Err(_) => {
                        let name = String::from_utf8_lossy(name).into_owned();
                        return Ok(Some(damage(position, end - position, format!("its block `{name}` is damaged"))));
                    }
                }
            }
        }
        Ok(None)
    }

    pub fn checksum(&self) -> io::Result<u128> {
        checksum(&self.file, self.length)
    }

    /// The entries of one data block or what is wrong, and where the next block is.
    fn block(&self, at: u64, compressed: bool) -> io::Result<Result<Block, u64>> {
        let mut head = [0; BLOCK_HEAD_BYTES];
        if self.length.saturating_sub(at) < BLOCK_HEAD_BYTES as u64 {
            return Ok(Err(self.length));
        }
        self.file.read_exact_at(&mut head, at)?;
        let Some(head) = Head::decode(&head) else { return Ok(Err(self.next_head(at + 1)?)) };
        let end = at + BLOCK_HEAD_BYTES as u64 + u64::from(head.stored_bytes);
        if end > self.length || head.plain_bytes > BLOCK_BYTES_MAX {
            return Ok(Err(self.length));
        }
        let mut stored = vec![0; head.stored_bytes as usize];
        self.file.read_exact_at(&mut stored, at + BLOCK_HEAD_BYTES as u64)?;
        if xxh3_128(&stored) != head.checksum {
            return Ok(Err(end));
        }
        let plain = match compressed && head.kind == DATA {
            true => match lz4_flex::block::decompress(&stored, head.plain_bytes as usize) {
                Ok(plain) => plain,
                Err(_) => return Ok(Err(end)),
            },
            false => stored,
        };
        Ok(Ok(Block { kind: head.kind, plain: Bytes::from(plain), end }))
    }

    /// The newest version of the last key. A flush keeps older versions of a key while somebody reads at an older point, the
    /// newest first; so the last entry of all may be an old one, and the newest may be some blocks before it.
    pub fn last(&self) -> io::Result<Option<Entry>> {
        let Some(facts) = &self.facts else { return Ok(None) };
        let mut end = facts.data_end;
        let mut newest: Option<Entry> = None;
        while end > 0 {
            let Some((begin, mut entries)) = self.block_until(end, facts)? else { break };
            let Some(key) = newest.as_ref().or(entries.last()).map(|entry| entry.key.clone()) else { break };
            let Some(at) = entries.iter().position(|entry| entry.key == key) else { break };
            newest = Some(entries.swap_remove(at));
            if at > 0 {
                break;
            }
            end = begin;
        }
        Ok(newest)
    }

    /// The data block that ends here, and where it begins: looked for backwards, because nothing says so.
    fn block_until(&self, end: u64, facts: &Facts) -> io::Result<Option<(u64, Vec<Entry>)>> {
        let mut window = vec![0; STEP_BYTES + BLOCK_HEAD_BYTES];
        let mut until = end;
        while until > 0 {
            let begin = until.saturating_sub(STEP_BYTES as u64);
            let bytes = window.len().min(usize::try_from(end - begin).unwrap_or(0));
            self.file.read_exact_at(&mut window[..bytes], begin)?;
            for at in (0..bytes.saturating_sub(BLOCK_HEAD_BYTES - 1)).rev() {
                let head =
                    window[at..].starts_with(BLOCK_MAGIC).then(|| Head::decode(&window[at..at + BLOCK_HEAD_BYTES]));
                let Some(Some(head)) = head else { continue };
                let block_at = begin + at as u64;
                if block_at + BLOCK_HEAD_BYTES as u64 + u64::from(head.stored_bytes) != end {
                    continue;
                }
                let block = self.block(block_at, facts.compressed)?;
                return Ok(block.ok().and_then(|block| entries(&block.plain, 0).ok()).map(|all| (block_at, all)));
            }
            until = begin;
        }
        Ok(None)
    }

    /// Where a block begins at or after `from`; the end of the file when none does.
    fn next_head(&self, mut from: u64) -> io::Result<u64> {
        let mut window = vec![0; STEP_BYTES + BLOCK_HEAD_BYTES];
        while from + (BLOCK_HEAD_BYTES as u64) <= self.length {
            let bytes = window.len().min(usize::try_from(self.length - from).unwrap_or(usize::MAX));
            self.file.read_exact_at(&mut window[..bytes], from)?;
            let starts = bytes + 1 - BLOCK_HEAD_BYTES;
            let found = (0..starts).find(|at| {
                window[*at..].starts_with(BLOCK_MAGIC) && Head::decode(&window[*at..*at + BLOCK_HEAD_BYTES]).is_some()
            });
            if let Some(found) = found {
                return Ok(from + found as u64);
            }
            from += starts as u64;
        }
        Ok(self.length)
    }

    pub fn cursor(self) -> Cursor {
        Cursor { table: self, at: 0, block: Vec::new().into_iter(), last: None }
    }
}

struct Block {
    kind: u8,
    plain: Bytes,
    end: u64,
}

struct Head {
    kind: u8,
    checksum: u128,
    stored_bytes: u32,
    plain_bytes: u32,
}

impl Head {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_at_checked(BLOCK_HEAD_BYTES - 4)?;
        let fits = (xxh3_128(content) as u32).to_le_bytes() == sum[..4];
        let word = |at: usize| Some(u32::from_le_bytes(content.get(at..at + 4)?.try_into().ok()?));
        (fits && content.starts_with(BLOCK_MAGIC)).then_some(())?;
        Some(Head { kind: content[4], checksum: u128_at(content, 5)?, stored_bytes: word(21)?, plain_bytes: word(25)? })
    }
}

/// Walks over all entries of a table in order, a block at a time.
pub(in super::super) struct Cursor {
    table: Table,
    at: u64,
    block: std::vec::IntoIter<Entry>,
    last: Option<Bytes>,
}

/// What a cursor gives next.
#[derive(Debug)]
pub(in super::super) enum Step {
    Entry(Entry),
    /// Entries after the key `after` are missing, up to the next entry that comes.
    Lost {
        damage: Damage,
        after: Option<Bytes>,
    },
}

impl Cursor {
    pub fn next(&mut self) -> io::Result<Option<Step>> {
        loop {
            if let Some(entry) = self.block.next() {
                self.last = Some(entry.key.clone());
                return Ok(Some(Step::Entry(entry)));
            }
            let data_end = self.table.facts.as_ref().map_or(self.table.length, |facts| facts.data_end);
            if self.at >= data_end {
                return Ok(None);
            }
            let compressed = self.table.facts.as_ref().is_some_and(|facts| facts.compressed);
            let at = self.at;
            let lost = |end: u64, after: &Option<Bytes>| {
                let damage = damage(at, end.saturating_sub(at), "a data block is damaged");
                Ok(Some(Step::Lost { damage, after: after.clone() }))
            };
            match self.table.block(at, compressed)? {
                Ok(block) if block.kind == DATA => {
                    self.at = block.end;
                    match entries(&block.plain, 0).or_else(|()| self.decompressed(&block)) {
                        Ok(entries) => self.block = entries.into_iter(),
                        Err(()) => return lost(block.end, &self.last),
                    }
                }
                // Without a readable end of the file, the first other block ends the data.
                Ok(_) => self.at = data_end,
                Err(next) => {
                    self.at = next.min(data_end).max(at + 1);
                    return lost(self.at, &self.last);
                }
            }
        }
    }

    /// Whether a table is compressed is not known when its end is damaged.
    fn decompressed(&self, block: &Block) -> Result<Vec<Entry>, ()> {
        if self.table.facts.is_some() {
            return Err(());
        }
        let mut sizes = [1, 4, 16, 64, 256].into_iter().map(|times| block.plain.len().saturating_mul(4 * times));
        let plain = sizes.find_map(|size| {
            let mut plain = vec![0; size.min(BLOCK_BYTES_MAX as usize)];
            let bytes = lz4_flex::block::decompress_into(&block.plain, &mut plain).ok()?;
            plain.truncate(bytes);
            Some(plain)
        });
        entries(&Bytes::from(plain.ok_or(())?), 0)
    }
}

/// The entries of a plain data or meta block. The checksum was right, so an error means a form this program does not know.
fn entries(plain: &Bytes, begin: usize) -> Result<Vec<Entry>, ()> {
    const END_MARK: u8 = 255;
    const KIND_VALUE: u8 = 0;
    let interval = *plain.get(plain.len().checked_sub(BLOCK_TRAILER_BYTES).ok_or(())?).ok_or(())?;
    let mut reader = Varints { bytes: plain, at: begin };
    let (mut entries, mut base) = (Vec::new(), Bytes::new());
    loop {
        let kind = reader.byte()?;
        if kind == END_MARK {
            return Ok(entries);
        }
        let seqno = reader.varint()?;
        let whole = interval == 0 || entries.len() % usize::from(interval) == 0;
        let shared = if whole { 0 } else { reader.varint()? };
        let rest_bytes = reader.varint()?;
        let rest = reader.take(rest_bytes)?;
        let key = if whole {
            base = rest.clone();
            rest
        } else {
            let prefix = base.get(..usize::try_from(shared).map_err(|_| ())?).ok_or(())?;
            Bytes::from([prefix, &rest[..]].concat())
        };
        let value = match kind {
            KIND_VALUE => {
                let bytes = reader.varint()?;
                Some(reader.take(bytes)?)
            }
            1 | 2 => None,
            _ => return Err(()),
        };
        entries.push(Entry { key, seqno, value });
    }
}

struct Varints<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Varints<'_> {
    fn byte(&mut self) -> Result<u8, ()> {
        let byte = *self.bytes.get(self.at).ok_or(())?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, ()> {
        let rest = self.bytes.get(self.at..).ok_or(())?;
        let mut decoder = super::super::codec::Decoder(rest);
        let value = decoder.varint().map_err(|_| ())?;
        self.at += rest.len() - decoder.0.len();
        Ok(value)
    }

    fn take(&mut self, bytes: u64) -> Result<Bytes, ()> {
        let end = usize::try_from(bytes).ok().and_then(|bytes| self.at.checked_add(bytes)).ok_or(())?;
        if end > self.bytes.len() {
            return Err(());
        }
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use fjall::{Database, KeyspaceCreateOptions};

    use super::*;

    /// A reader at an older point makes a flush keep what it may still see.
    #[test]
    fn the_newest_version_of_the_last_key_is_found_behind_any_number_of_older_ones() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::builder(folder.path()).worker_threads(1).open().unwrap();
        let keyspace = database.keyspace("records", KeyspaceCreateOptions::default).unwrap();
        keyspace.insert("a", "x").unwrap();
        let mut snapshots = Vec::new();
        for number in 0..2_000_u64 {
            keyspace.insert([0xff, 0xff], number.to_be_bytes()).unwrap();
            snapshots.push(database.snapshot());
        }
        keyspace.rotate_memtable_and_wait().unwrap();
        let tables = folder.path().join("keyspaces/1/tables");
        let path = std::fs::read_dir(tables).unwrap().next().unwrap().unwrap().path();
        let open = || Table::open(&path).unwrap().0;
        let (mut entries, mut cursor) = (0, open().cursor());
        while let Some(Step::Entry(_)) = cursor.next().unwrap() {
            entries += 1;
        }
        assert!(entries > 1_000, "the flush kept {entries} entries: the test shows nothing");
        let last = open().last().unwrap().unwrap();
        assert_eq!(last.value.as_deref(), Some(&1_999_u64.to_be_bytes()[..]));
    }
}
