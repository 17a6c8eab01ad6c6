//! Every record looked at: what is there, and what should be and is not.
//!
//! Streams number their messages without holes, so what is missing shows. A hole may also be what was removed; the count
//! that every stream keeps tells the two apart: as many messages are lost as it counts more than can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;

use super::holdings::{Heads, Holes, Piece, Visitor, walk};
use super::merge::{Overlay, overlay};
use super::report::{LISTED_MAX, LostMessages, StreamFound};
use super::survey::{Survey, survey};
use super::tree::Depth;
use super::{Damage, Error, Progress, Report, Verdict};
use crate::bus::embedded::chunk::index_sequences;
use crate::bus::embedded::codec::Decoder;
use crate::bus::embedded::open::Lock;

/// What was met of one stream.
#[derive(Debug, Default)]
struct Tally {
    held: u64,
    /// Sequences of chunks that are known and cannot be read.
    lost: Vec<(u64, u64)>,
    gaps: Vec<(u64, u64)>,
    /// The next sequence that nothing was said about yet.
    next: u64,
    last: u64,
}

/// Adds a range, to the one before when it goes on with it.
fn push(ranges: &mut Vec<(u64, u64)>, first: u64, last: u64) {
    match ranges.last_mut() {
        Some(open) if open.1 + 1 == first => open.1 = last,
        _ => ranges.push((first, last)),
    }
}

fn sum(ranges: &[(u64, u64)]) -> u64 {
    ranges.iter().map(|(first, last)| last - first + 1).sum()
}

/// Counts what is met.
#[derive(Debug, Default)]
pub(super) struct Counter {
    streams: BTreeMap<u32, Tally>,
    /// Lost chunks from which messages had been removed: the index names what was left.
    sparse: BTreeSet<(u32, u64)>,
    /// Chunks without a span count: their span may be what was lost.
    pub keep_unlisted: bool,
    doubtful_entries: Vec<String>,
    entries_more: u64,
}

impl Visitor for Counter {
    fn heads(&mut self, heads: &Heads) -> Result<(), Error> {
        for (id, stream) in &heads.streams {
            let next = stream.value.first.max(1);
            self.streams.insert(*id, Tally { next, ..Tally::default() });
        }
        Ok(())
    }

    fn piece(&mut self, heads: &Heads, piece: &Piece) -> Result<(), Error> {
        if !is_held(heads, piece, self.keep_unlisted) && piece.span.is_none() {
            return Ok(());
        }
        let tally = self.streams.entry(piece.stream).or_insert_with(|| Tally { next: 1, ..Tally::default() });
        let last = match (&piece.chunk, &piece.span) {
            (Some(chunk), _) => {
                tally.held += chunk.count() as u64;
                chunk.last
            }
            (None, Some(span)) => {
                if span.is_dense() {
                    push(&mut tally.lost, span.first, span.last);
                } else {
                    self.sparse.insert((piece.stream, span.first));
                }
                span.last
            }
            (None, None) => return Ok(()),
        };
        if piece.first > tally.next {
            push(&mut tally.gaps, tally.next, piece.first - 1);
        }
        tally.next = tally.next.max(last + 1);
        tally.last = tally.last.max(last);
        Ok(())
    }

    fn index(&mut self, stream: u32, first: u64, value: &[u8]) -> Result<(), Error> {
        if self.sparse.contains(&(stream, first))
            && let Some(tally) = self.streams.get_mut(&stream)
        {
            index_sequences(first, value).for_each(|sequence| push(&mut tally.lost, sequence, sequence));
        }
        Ok(())
    }

    fn entry(&mut self, heads: &Heads, found: &super::merge::Found) -> Result<(), Error> {
        if found.doubtful {
            if self.doubtful_entries.len() < LISTED_MAX {
                self.doubtful_entries.push(entry_name(heads, &found.key));
            } else {
                self.entries_more += 1;
            }
        }
        Ok(())
    }
}

/// Whether a piece has messages that count as stored.
pub(super) fn is_held(heads: &Heads, piece: &Piece, keep_unlisted: bool) -> bool {
    let Some(chunk) = &piece.chunk else { return false };
    let trimmed = heads.streams.get(&piece.stream).is_some_and(|stream| chunk.last < stream.value.first);
    !trimmed && (piece.span.is_some() || keep_unlisted)
}

fn entry_name(heads: &Heads, key: &[u8]) -> String {
    let bucket = key.get(1..5).and_then(|id| id.try_into().ok()).map_or(u32::MAX, u32::from_be_bytes);
    format!("{}/{}", heads.names.bucket(bucket), String::from_utf8_lossy(key.get(5..).unwrap_or_default()))
}

impl Counter {
    pub fn new(survey: &Survey) -> Self {
        // Spans can only be missing where records were lost.
        let records = &survey.keyspaces[0].tree;
        let keep_unlisted = !records.faults.is_empty() || !survey.report.lost.commits.is_empty();
        Counter { keep_unlisted, ..Counter::default() }
    }

    /// Adds to the report what the walk has shown.
    pub fn conclude(self, heads: &Heads, holes: &Holes, overlay: &Overlay, report: &mut Report) {
        let damaged_before = report.verdict == Verdict::Damaged;
        report.format = heads.format;
        for (id, mut tally) in self.streams {
            conclude_stream(heads, id, &mut tally, report);
        }
        report.lost.entries = self.doubtful_entries;
        report.lost.more += self.entries_more;
        conclude_records(heads, holes, overlay, report);
        if !damaged_before && !report.lost.is_nothing() {
            let damage = Damage { offset: 0, bytes: 0, what: "its records do not fit together".to_owned() };
            report.fault(Path::new(""), Path::new("bus"), &damage);
        }
        for list in [&mut report.lost.entries, &mut report.lost.records] {
            list.sort();
            list.dedup();
            report.lost.more += list.len().saturating_sub(LISTED_MAX) as u64;
            list.truncate(LISTED_MAX);
        }
    }
}

fn conclude_stream(heads: &Heads, id: u32, tally: &mut Tally, report: &mut Report) {
    let known = heads.streams.get(&id);
    let (first, end) = known.map_or((1, tally.last), |stream| (stream.value.first, stream.value.last));
    if end >= tally.next {
        tally.gaps.push((tally.next, end));
    }
    tally.lost.sort_unstable();
    let (named, in_gaps) = (sum(&tally.lost), sum(&tally.gaps));
    let counted = known.map(|stream| stream.value.messages);
    let missing = counted.map_or(named + in_gaps, |counted| counted.saturating_sub(tally.held));
    let stream = heads.names.stream(id);
    report.streams.push(StreamFound { name: stream.clone(), first, last: end.max(tally.last), messages: tally.held });
    let count = missing.max(named);
    if count == 0 {
        return;
    }
    let mut ranges = std::mem::take(&mut tally.lost);
    let mut exact = true;
    if missing > named {
        ranges.append(&mut tally.gaps);
        ranges.sort_unstable();
        exact = known.is_some() && in_gaps + named == missing;
    }
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(open) if first <= open.1 + 1 => open.1 = open.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    report.lost.more += merged.len().saturating_sub(LISTED_MAX) as u64;
    merged.truncate(LISTED_MAX);
    report.lost.messages.push(LostMessages { stream, count, ranges: merged, exact });
}

fn conclude_records(heads: &Heads, holes: &Holes, overlay: &Overlay, report: &mut Report) {
    let mut doubt = |words: String| report.lost.records.push(words);
    let names = &heads.names;
    for (id, _) in heads.streams.iter().filter(|(_, known)| known.doubtful) {
        doubt(format!("newest state of stream {}", names.stream(*id)));
    }
    for (id, _) in heads.positions.iter().filter(|(_, known)| known.doubtful) {
        doubt(format!("newest position of durable {}: messages may come again", names.durable(*id)));
    }
    for (id, _) in heads.buckets.iter().filter(|(_, known)| known.doubtful) {
        doubt(format!("newest state of bucket {}", names.bucket(*id)));
    }
    for key in &heads.unreadable {
        doubt(names.record(key));
    }
    for id in heads.durables.keys().filter(|id| !heads.positions.contains_key(id)) {
        doubt(format!("position of durable {}: it begins anew", names.durable(*id)));
    }
    for id in heads.positions.keys().filter(|id| !heads.durables.contains_key(id)) {
        doubt(format!("durable number {id}, of which only the position is there"));
    }
    for (what, missing) in [
        ("stream", missing_numbers(heads.streams.keys().chain(heads.subjects.keys().map(|(stream, _)| stream)))),
        ("bucket", missing_numbers(heads.buckets.keys())),
    ] {
        for id in missing.into_iter().filter(|id| match what {
            "stream" => !heads.streams.contains_key(id),
            _ => !heads.buckets.contains_key(id),
        }) {
            doubt(format!("name and state of {what} number {id}"));
        }
    }
    for (id, position) in &heads.positions {
        if let Some(words) = impossible_position(heads, *id, &position.value) {
            doubt(words);
        }
    }
    let show = |key: &Option<Bytes>, end: &str| key.as_ref().map_or(end.to_owned(), |key| names.record(key));
    for (after, until) in holes {
        let (after, until) = (show(after, "the first key"), show(until, "the last key"));
        doubt(format!("everything last written after {after} and before {until}"));
    }
    if report.lost.commits.is_empty() {
        return;
    }
    for (at, key) in &overlay.unproven {
        match (at, key.first()) {
            (0, Some(b'e')) => report.lost.entries.push(entry_name(heads, key)),
            (0, Some(b'c' | b'i' | b'x')) | (1, _) => {}
            (0, _) => report.lost.records.push(format!("newest {}", names.record(key))),
            _ => report.lost.records.push("a transport id: its message may be stored again".to_owned()),
        }
    }
}

/// All numbers up to the highest: streams and buckets are numbered without holes.
fn missing_numbers<'a>(ids: impl Iterator<Item = &'a u32>) -> Vec<u32> {
    ids.max().map_or(Vec::new(), |last| (0..=*last).collect())
}

fn impossible_position(heads: &Heads, id: u32, value: &[u8]) -> Option<String> {
    let durable = heads.durables.get(&id)?;
    let stream = heads.streams.get(&durable.value.stream)?;
    let mut decoder = Decoder(value);
    let (Ok(reached), Ok(delivered)) = (decoder.varint(), decoder.varint()) else {
        return Some(format!("position of durable {}", heads.names.durable(id)));
    };
    let last = stream.value.last;
    (reached.max(delivered) > last).then(|| {
        let durable = heads.names.durable(id);
        format!(
            "newest messages of the stream: durable {durable} has got sequence {}, the stream ends with {last}",
            reached.max(delivered)
        )
    })
}

/// Takes the folder and looks at it from outside.
pub(super) fn look(data_dir: &Path) -> Result<(Lock, Survey, Overlay), Error> {
    // Another folder is not to get so much as a lock.
    if !["bus", "synced", "format"].iter().any(|name| data_dir.join(name).exists()) {
        return Err(Error::NoFolder(data_dir.to_owned()));
    }
    let lock = Lock::take(data_dir)?;
    let io = |source| Error::Io { path: data_dir.to_owned(), source };
    let mut survey = survey(data_dir, Some(Depth::Whole)).map_err(io)?;
    super::super::format::check(data_dir, &mut survey)?;
    let overlay = overlay(&survey).map_err(io)?;
    Ok((lock, survey, overlay))
}

/// Looks at every byte of a data directory that no process holds. Changes nothing in it.
pub fn check(data_dir: &Path, progress: Progress<'_>) -> Result<Report, Error> {
    let (_lock, mut survey, overlay) = look(data_dir)?;
    let mut counter = Counter::new(&survey);
    let (heads, holes) = walk(&survey, &overlay, &mut [&mut counter], progress)?;
    counter.conclude(&heads, &holes, &overlay, &mut survey.report);
    Ok(survey.report)
}
