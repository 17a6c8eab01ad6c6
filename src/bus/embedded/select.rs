//! Reading back from disk: which sequences match, the messages of sequences, and points in time.
//!
//! Everything here works on what is durable and takes no lock. A few subjects are read along their own index; many of
//! them, or all, along the spans of the chunks.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::chunk::{Chunk, Span, index_sequences};
use super::codec::{chunk_key, first_of_key, index_key, span_key};
use super::db::{Db, Space, to_bytes};
use super::engine::Broken;
use crate::flow::message::Stored;
use crate::time::Timestamp;

/// With more subjects than this, spans are read instead of one index per subject.
const SUBJECTS_MERGED_MAX: usize = 16;
/// Sequences that are counted at a time.
const COUNT_STEP: usize = 65_536;

/// Which messages of a stream.
#[derive(Debug, Clone)]
pub(super) enum Selection {
    All,
    Subjects(Vec<u32>),
}

impl From<Option<Vec<u32>>> for Selection {
    fn from(subjects: Option<Vec<u32>>) -> Self {
        subjects.map_or(Selection::All, Selection::Subjects)
    }
}

/// The chunk's span with the greatest first sequence up to `sequence`.
pub(super) fn span_at(db: &Db, stream: u32, sequence: u64) -> Result<Option<Span>, Broken> {
    let Some(item) = db.range(Space::Records, span_key(stream, 0), span_key(stream, sequence)).next_back() else {
        return Ok(None);
    };
    let (key, value) = item.into_inner()?;
    Ok(Some(Span::decode(first_of_key(&key)?, &value)?))
}

/// Spans in order, from the one that covers `from`.
pub(super) fn spans(
    db: &Db,
    stream: u32,
    from: u64,
) -> Result<impl Iterator<Item = Result<Span, Broken>> + use<>, Broken> {
    let first = span_at(db, stream, from)?.map_or(from, |span| span.first);
    Ok(db.range(Space::Records, span_key(stream, first), span_key(stream, u64::MAX)).map(|item| {
        let (key, value) = item.into_inner()?;
        Ok(Span::decode(first_of_key(&key)?, &value)?)
    }))
}

/// The sequences of one subject in one chunk.
fn indexed(db: &Db, stream: u32, subject: u32, first: u64) -> Result<Vec<u64>, Broken> {
    let value = db.get(Space::Records, &index_key(stream, subject, first))?;
    Ok(value.map(|value| index_sequences(first, &value).collect()).unwrap_or_default())
}

/// Sequence and subject of every message of a chunk.
pub(super) fn subjects_of(db: &Db, stream: u32, span: &Span) -> Result<Vec<(u64, u32)>, Broken> {
    let mut found = Vec::with_capacity(span.count as usize);
    for subject in &span.subjects {
        found.extend(indexed(db, stream, *subject, span.first)?.into_iter().map(|sequence| (sequence, *subject)));
    }
    found.sort_unstable();
    Ok(found)
}

/// About `count_max` matching sequences of a range, ascending, and up to where they are all there are.
pub(super) fn sequences(
    db: &Db,
    stream: u32,
    selection: &Selection,
    range: RangeInclusive<u64>,
    count_max: usize,
) -> Result<(Vec<u64>, u64), Broken> {
    match selection {
        Selection::Subjects(subjects) if subjects.len() <= SUBJECTS_MERGED_MAX => {
            merged(db, stream, subjects, range, count_max)
        }
        _ => scanned(db, stream, selection, range, count_max),
    }
}

fn merged(
    db: &Db,
    stream: u32,
    subjects: &[u32],
    range: RangeInclusive<u64>,
    count_max: usize,
) -> Result<(Vec<u64>, u64), Broken> {
    let (from, mut until) = (*range.start(), *range.end());
    let mut found = Vec::new();
    for subject in subjects {
        let before = db.range(Space::Records, index_key(stream, *subject, 0), index_key(stream, *subject, from));
        let begin = match { before }.next_back() {
            Some(item) => first_of_key(&item.key()?)?,
            None => from,
        };
        let mut count = 0;
        let (begin, end) = (index_key(stream, *subject, begin), index_key(stream, *subject, until));
        for item in db.range(Space::Records, begin, end) {
            let (key, value) = item.into_inner()?;
            let first = first_of_key(&key)?;
            let inside = index_sequences(first, &value).filter(|sequence| range.contains(sequence));
            let before = found.len();
            found.extend(inside);
            count += found.len() - before;
            if count >= count_max {
                until = found.last().map_or(until, |last| until.min(*last));
                break;
            }
        }
    }
    found.retain(|sequence| *sequence <= until);
    found.sort_unstable();
    Ok((found, until))
}

fn scanned(
    db: &Db,
    stream: u32,
    selection: &Selection,
    range: RangeInclusive<u64>,
    count_max: usize,
) -> Result<(Vec<u64>, u64), Broken> {
    let wanted: Option<BTreeSet<u32>> = match selection {
        Selection::All => None,
        Selection::Subjects(subjects) => Some(subjects.iter().copied().collect()),
    };
    let mut found = Vec::new();
    for span in spans(db, stream, *range.start())? {
        let span = span?;
        if span.first > *range.end() {
            break;
        }
        let is_wanted = |subject: &u32| wanted.as_ref().is_none_or(|wanted| wanted.contains(subject));
        if span.is_dense() && span.subjects.iter().all(is_wanted) {
            found.extend(span.first.max(*range.start())..=span.last.min(*range.end()));
        } else if span.subjects.iter().any(is_wanted) {
            let mut inside = Vec::new();
            for subject in span.subjects.iter().filter(|subject| is_wanted(subject)) {
                inside.extend(indexed(db, stream, *subject, span.first)?);
            }
            inside.retain(|sequence| range.contains(sequence));
            inside.sort_unstable();
            found.extend(inside);
        }
        if found.len() >= count_max {
            return Ok((found, span.last.min(*range.end())));
        }
    }
    Ok((found, *range.end()))
}

pub(super) fn count(db: &Db, stream: u32, selection: &Selection, range: RangeInclusive<u64>) -> Result<u64, Broken> {
    let (mut from, to) = range.into_inner();
    let mut count = 0;
    while from <= to {
        let (found, until) = sequences(db, stream, selection, from..=to, COUNT_STEP)?;
        count += found.len() as u64;
        from = until + 1;
    }
    Ok(count)
}

/// The greatest sequence of a subject below `below` that is not among `removed`; 0 for none.
pub(super) fn previous(
    db: &Db,
    stream: u32,
    subject: u32,
    below: u64,
    removed: impl Fn(u64) -> bool,
) -> Result<u64, Broken> {
    let range = db.range(Space::Records, index_key(stream, subject, 0), index_key(stream, subject, below));
    for item in range.rev() {
        let (key, value) = item.into_inner()?;
        let mut found = index_sequences(first_of_key(&key)?, &value).rev();
        if let Some(sequence) = found.find(|sequence| *sequence < below && !removed(*sequence)) {
            return Ok(sequence);
        }
    }
    Ok(0)
}

/// The first sequence whose chunk was stored at or after `time`; chunk times never go back.
pub(super) fn sequence_at(db: &Db, stream: u32, held: RangeInclusive<u64>, time: Timestamp) -> Result<u64, Broken> {
    let (mut low, mut high) = (*held.start(), held.end() + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match span_at(db, stream, middle)? {
            Some(span) if span.time >= time => high = span.first.max(low),
            Some(span) => low = span.last.max(middle) + 1,
            None => low = middle + 1,
        }
    }
    Ok(low.min(held.end() + 1))
}

/// Finds messages by sequence and keeps the chunk it used last.
pub(super) struct Loader<'a> {
    db: &'a Db,
    stream: u32,
    current: Option<Arc<Chunk>>,
    /// Every chunk that was read.
    pub loaded: Vec<Arc<Chunk>>,
}

impl<'a> Loader<'a> {
    pub fn new(db: &'a Db, stream: u32) -> Self {
        Loader { db, stream, current: None, loaded: Vec::new() }
    }

    /// The chunk and the place in it; `None` when the message is not held.
    pub fn find(&mut self, sequence: u64) -> Result<Option<(Arc<Chunk>, usize)>, Broken> {
        let covers = |chunk: &Arc<Chunk>| chunk.first <= sequence && sequence <= chunk.last;
        if !self.current.as_ref().is_some_and(covers) {
            let range = self.db.range(Space::Chunks, chunk_key(self.stream, 0), chunk_key(self.stream, sequence));
            let Some(item) = { range }.next_back() else { return Ok(None) };
            let chunk = Arc::new(Chunk::read(to_bytes(item.value()?))?);
            self.loaded.push(Arc::clone(&chunk));
            self.current = Some(chunk);
        }
        Ok(self.current.as_ref().and_then(|chunk| Some((Arc::clone(chunk), chunk.find(sequence)?))))
    }
}

/// Matching messages of a range, at most so many and about so many bytes.
pub(super) fn messages(
    db: &Db,
    stream: u32,
    selection: &Selection,
    range: RangeInclusive<u64>,
    messages_max: usize,
    bytes_max: usize,
) -> Result<Vec<Stored>, Broken> {
    let (mut from, to) = range.into_inner();
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut loader = Loader::new(db, stream);
    while from <= to && found.len() < messages_max {
        let (sequences, until) = sequences(db, stream, selection, from..=to, messages_max - found.len())?;
        for sequence in sequences {
            let Some((chunk, at)) = loader.find(sequence)? else { continue };
            loader.loaded.clear();
            bytes += chunk.message_bytes(at);
            if found.len() >= messages_max || (bytes > bytes_max && !found.is_empty()) {
                return Ok(found);
            }
            found.push(chunk.message(at)?);
        }
        from = until + 1;
    }
    Ok(found)
}
