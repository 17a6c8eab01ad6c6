//! One ordered view of a keyspace: the newest version of every key, from tables and journals together.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use bytes::Bytes;

use super::journal::{Item, Part, Parts};
use super::survey::{Survey, read_journal};
use super::table::{Cursor, Step};
use super::tree;
use crate::bus::embedded::chunk::Chunk;
use crate::bus::embedded::codec::{first_of_key, meta};

/// The version of a key that a journal holds.
#[derive(Debug, Clone)]
pub(super) struct Version {
    /// Of its commit.
    number: u64,
    /// Newer than anything in the tables.
    newest: bool,
    seqno: u64,
    value: Option<Bytes>,
}

type Versions = BTreeMap<Bytes, Version>;

/// What the journals hold, per keyspace, newest versions only.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    versions: [Versions; 3],
    /// Keys that a damaged commit seems to have written and that nothing newer tells of, by keyspace.
    pub unproven: Vec<(usize, Bytes)>,
}

/// Reads all journals into memory.
pub(super) fn overlay(survey: &Survey) -> io::Result<Overlay> {
    let mut overlay = Overlay::default();
    let at_of = |id: u64| survey.keyspaces.iter().position(|keyspace| keyspace.id == id);
    let (mut number, mut seqno) = (0, 0);
    let mut unproven = Vec::new();
    for path in &survey.journals {
        let cut = survey.torn.iter().find(|(torn, _)| torn == path).map(|(_, offset)| *offset);
        for part in Parts::new(read_journal(path)?) {
            let (items, offset, own, proven) = match part {
                Part::Batch(batch) => {
                    let Some(mark) = batch.mark() else { continue };
                    (number, seqno) = (mark.number, batch.seqno);
                    (batch.items, batch.offset, number, true)
                }
                Part::Gap(gap) => (gap.items, gap.offset, number + 1, false),
            };
            if cut.is_some_and(|cut| offset as u64 >= cut) {
                break;
            }
            for item in items {
                let Some(at) = at_of(item.keyspace) else { continue };
                let tree = &survey.keyspaces[at].tree;
                let newest = tree.mark.is_none_or(|held| held.number < own);
                // What the tables hold, too, is of use only where they are damaged: they may have removed it since.
                if !newest && tree.faults.is_empty() {
                    continue;
                }
                // A chunk proves itself; all else needs the batch's checksum.
                if proven || (at == 1 && is_whole_chunk(&item)) {
                    overlay.put(at, item.key, Version { number: own, newest, seqno, value: item.value });
                } else if item.key != meta::MARK {
                    unproven.push((at, item.key, own));
                }
            }
        }
    }
    unproven.retain(|(at, key, own)| overlay.versions[*at].get(key).is_none_or(|version| version.number < *own));
    overlay.unproven = unproven.into_iter().map(|(at, key, _)| (at, key)).collect();
    Ok(overlay)
}

fn is_whole_chunk(item: &Item) -> bool {
    let stream = item.key.first_chunk::<4>().map(|id| u32::from_be_bytes(*id));
    let (Some(stream), Ok(first)) = (stream, first_of_key(&item.key)) else { return false };
    let chunk = item.value.clone().and_then(|value| Chunk::read(value).ok());
    chunk.is_some_and(|chunk| item.key.len() == 12 && chunk.belongs(stream, first))
}

impl Overlay {
    /// The commit's number decides: journals that were exchanged are not in order, and fjall's count is not proven.
    fn put(&mut self, at: usize, key: Bytes, version: Version) {
        let known = self.versions[at].get(&key);
        if known.is_none_or(|known| known.number <= version.number) {
            self.versions[at].insert(key, version);
        }
    }
}

/// A key with its newest value.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub key: Bytes,
    pub value: Bytes,
    /// A newer version of it may have been in a block that is damaged.
    pub doubtful: bool,
}

struct Source {
    cursor: Cursor,
    next: Option<(Bytes, u64, Option<Bytes>)>,
    /// The last key read, exclusive end of what is known.
    hole: Option<Option<Bytes>>,
}

/// Keys between these, exclusive, may be missing from one table.
#[derive(Debug)]
struct Hole {
    after: Option<Bytes>,
    until: Option<Bytes>,
}

/// Walks over one keyspace in the order of its keys.
pub(super) struct Merge<'a> {
    sources: Vec<Source>,
    journal: std::iter::Peekable<std::collections::btree_map::Iter<'a, Bytes, Version>>,
    holes: VecDeque<Hole>,
    /// Every hole there was, as far as it was walked.
    pub holes_met: Vec<(Option<Bytes>, Option<Bytes>)>,
    pub entries: u64,
}

impl<'a> Merge<'a> {
    pub fn new(survey: &Survey, overlay: &'a Overlay, at: usize) -> io::Result<Self> {
        let mut sources = Vec::new();
        for table in &survey.keyspaces[at].tree.tables {
            sources.push(Source { cursor: tree::open_cursor(&table.path)?, next: None, hole: None });
        }
        let journal = overlay.versions[at].iter().peekable();
        let mut merge = Merge { sources, journal, holes: VecDeque::new(), holes_met: Vec::new(), entries: 0 };
        for at in 0..merge.sources.len() {
            merge.advance(at)?;
        }
        Ok(merge)
    }

    fn advance(&mut self, at: usize) -> io::Result<()> {
        let source = &mut self.sources[at];
        loop {
            match source.cursor.next()? {
                Some(Step::Entry(entry)) => {
                    source.next = Some((entry.key, entry.seqno, entry.value));
                    break;
                }
                Some(Step::Lost { after, .. }) => {
                    source.hole.get_or_insert(after);
                }
                None => {
                    source.next = None;
                    break;
                }
            }
        }
        if let Some(after) = source.hole.take() {
            let until = source.next.as_ref().map(|(key, ..)| key.clone());
            self.holes_met.push((after.clone(), until.clone()));
            self.holes.push_back(Hole { after, until });
        }
        Ok(())
    }

    fn is_doubtful(&mut self, key: &Bytes) -> bool {
        self.holes.retain(|hole| hole.until.as_ref().is_none_or(|until| until >= key));
        self.holes
            .iter()
            .any(|hole| hole.after.as_ref().is_none_or(|after| after < key) && hole.until.as_ref() != Some(key))
    }

    /// The next key that has a value.
    pub fn next(&mut self) -> io::Result<Option<Found>> {
        loop {
            let tables = self.sources.iter().filter_map(|source| source.next.as_ref().map(|(key, ..)| key));
            let journal = self.journal.peek().map(|(key, _)| *key);
            let Some(key) = tables.chain(journal).min().cloned() else { return Ok(None) };
            let mut newest: Option<(u64, Option<Bytes>)> = None;
            let mut take = |seqno: u64, value: &Option<Bytes>| {
                if newest.as_ref().is_none_or(|(known, _)| *known <= seqno) {
                    newest = Some((seqno, value.clone()));
                }
            };
            for at in 0..self.sources.len() {
                while let Some((_, seqno, value)) = self.sources[at].next.as_ref().filter(|(next, ..)| *next == key) {
                    take(*seqno, value);
                    self.advance(at)?;
                }
            }
            let mut in_journal = false;
            if self.journal.peek().is_some_and(|(next, _)| **next == key)
                && let Some((_, version)) = self.journal.next()
            {
                take(if version.newest { u64::MAX } else { version.seqno }, &version.value);
                in_journal = version.newest;
            }
            self.entries += 1;
            // What only the journals hold is newer than any table that could have lost something.
            let doubtful = self.is_doubtful(&key) && !in_journal;
            if let Some((_, Some(value))) = newest {
                return Ok(Some(Found { key, value, doubtful }));
            }
        }
    }
}
