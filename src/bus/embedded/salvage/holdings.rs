//! What a directory holds, read in the order of the keys and told to a [`Visitor`]: state first, messages, then entries.
//!
//! A chunk of messages and the span that describes it lie in two keyspaces under the same order; they are joined here. The
//! chunk is the truth about what is in it, the span about whether it is there at all.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;

use super::merge::{Found, Merge, Overlay};
use super::names::{Names, leading_name};
use super::survey::Survey;
use super::{Error, Progress};
use crate::bus::embedded::chunk::{Chunk, Span};
use crate::bus::embedded::codec::{Decoder, first_of_key, meta};
use crate::bus::embedded::durable::Durable;
use crate::bus::embedded::kv::Bucket;
use crate::bus::embedded::stream::Stream;

/// Keys looked at between two words about progress.
const PROGRESS_KEYS: u64 = 16 * 1024;

/// A record, and whether a newer one may have been lost.
#[derive(Debug)]
pub(super) struct Known<T> {
    pub value: T,
    pub doubtful: bool,
}

/// Everything small: what the bus keeps in memory.
#[derive(Debug, Default)]
pub(super) struct Heads {
    pub format: Option<u32>,
    pub streams: BTreeMap<u32, Known<Stream>>,
    /// By stream and number: the last sequence and the name.
    pub subjects: BTreeMap<(u32, u32), Known<(u64, String)>>,
    pub durables: BTreeMap<u32, Known<Durable>>,
    pub positions: BTreeMap<u32, Known<Bytes>>,
    pub buckets: BTreeMap<u32, Known<Bucket>>,
    pub names: Names,
    /// Records that are there and cannot be read.
    pub unreadable: Vec<Bytes>,
}

/// Streams and buckets beyond the last known one that are taken for real: their own records may be what is lost.
const UNKNOWN_MAX: u32 = 64;

/// One chunk, or the lack of it.
#[derive(Debug)]
pub(super) struct Piece {
    pub stream: u32,
    pub first: u64,
    pub span: Option<Span>,
    pub chunk: Option<Chunk>,
}

pub(super) trait Visitor {
    fn heads(&mut self, _heads: &Heads) -> Result<(), Error> {
        Ok(())
    }

    fn piece(&mut self, _heads: &Heads, _piece: &Piece) -> Result<(), Error> {
        Ok(())
    }

    /// Which messages of a chunk one subject has: comes after all pieces.
    fn index(&mut self, _stream: u32, _first: u64, _value: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn entry(&mut self, _heads: &Heads, _found: &Found) -> Result<(), Error> {
        Ok(())
    }
}

pub(super) type Holes = Vec<(Option<Bytes>, Option<Bytes>)>;

/// Walks over records and chunks. Answers the state, and where keys of the records are missing.
pub(super) fn walk(
    survey: &Survey,
    overlay: &Overlay,
    visitors: &mut [&mut dyn Visitor],
    progress: Progress<'_>,
) -> Result<(Heads, Holes), Error> {
    let io = |source| Error::Io { path: survey.report.data_dir.clone().into(), source };
    let mut records = Merge::new(survey, overlay, 0).map_err(io)?;
    let mut chunks = Merge::new(survey, overlay, 1).map_err(io)?;
    let (heads, mut record) = heads(&mut records).map_err(io)?;
    for visitor in visitors.iter_mut() {
        visitor.heads(&heads)?;
    }
    let mut chunk = next_chunk(&mut chunks).map_err(io)?;
    loop {
        let span_key = record.as_ref().filter(|found| found.key.first() == Some(&b'c')).map(|found| &found.key[1..]);
        let chunk_key = chunk.as_ref().map(|found| &found.key[..]);
        let Some(key) = span_key.into_iter().chain(chunk_key).min().map(<[u8]>::to_vec) else { break };
        let (has_span, has_chunk) = (span_key == Some(&key[..]), chunk_key == Some(&key[..]));
        let mut piece = piece(&key);
        if has_span && let Some(found) = record.take() {
            piece.span = Span::decode(piece.first, &found.value).ok();
            record = records.next().map_err(io)?;
        }
        if has_chunk && let Some(found) = chunk.take() {
            piece.chunk = Chunk::read(found.value).ok().filter(|chunk| chunk.belongs(piece.stream, piece.first));
            chunk = next_chunk(&mut chunks).map_err(io)?;
        }
        for visitor in visitors.iter_mut().filter(|_| heads.can_be_stream(piece.stream)) {
            visitor.piece(&heads, &piece)?;
        }
        tell(&mut *progress, &records, &chunks);
    }
    while let Some(found) = record {
        match (found.key.first(), found.key.get(1..5).and_then(|id| id.try_into().ok()).map(u32::from_be_bytes)) {
            (Some(b'i'), Some(stream)) => {
                let first = first_of_key(&found.key).unwrap_or(0);
                for visitor in visitors.iter_mut() {
                    visitor.index(stream, first, &found.value)?;
                }
            }
            (Some(b'e'), Some(bucket)) if heads.can_be_bucket(bucket) => {
                for visitor in visitors.iter_mut() {
                    visitor.entry(&heads, &found)?;
                }
            }
            _ => {}
        }
        tell(&mut *progress, &records, &chunks);
        record = records.next().map_err(io)?;
    }
    Ok((heads, records.holes_met))
}

fn tell(progress: Progress<'_>, records: &Merge<'_>, chunks: &Merge<'_>) {
    let done = records.entries + chunks.entries;
    if done.is_multiple_of(PROGRESS_KEYS) {
        progress("records", done, 0);
    }
}

fn piece(key: &[u8]) -> Piece {
    let stream = key.first_chunk::<4>().map_or(u32::MAX, |id| u32::from_be_bytes(*id));
    Piece { stream, first: first_of_key(key).unwrap_or(0), span: None, chunk: None }
}

fn next_chunk(chunks: &mut Merge<'_>) -> io::Result<Option<Found>> {
    loop {
        match chunks.next()? {
            Some(found) if found.key == meta::MARK => {}
            found => return Ok(found),
        }
    }
}

/// Reads what sorts before the spans. Answers the first record behind it, too.
fn heads(records: &mut Merge<'_>) -> io::Result<(Heads, Option<Found>)> {
    let mut heads = Heads::default();
    while let Some(found) = records.next()? {
        if found.key.first().is_some_and(u8::is_ascii_lowercase) {
            return Ok((heads, Some(found)));
        }
        if found.key != meta::MARK && heads.take(&found).is_none() {
            heads.unreadable.push(found.key);
        }
    }
    Ok((heads, None))
}

impl Heads {
    /// Whether this can be the number of a stream: numbers begin with 0 and have no holes.
    pub fn can_be_stream(&self, id: u32) -> bool {
        let known = self.streams.keys().chain(self.subjects.keys().map(|(stream, _)| stream)).max();
        id < known.map_or(0, |last| last.saturating_add(1)).saturating_add(UNKNOWN_MAX)
    }

    /// The same for buckets.
    pub fn can_be_bucket(&self, id: u32) -> bool {
        id < self.buckets.keys().max().map_or(0, |last| last.saturating_add(1)).saturating_add(UNKNOWN_MAX)
    }

    fn take(&mut self, found: &Found) -> Option<()> {
        fn known<T>(value: T, doubtful: bool) -> Known<T> {
            Known { value, doubtful }
        }
        let doubtful = found.doubtful;
        if found.key == meta::FORMAT {
            self.format = Some(u32::from_le_bytes(found.value[..].try_into().ok()?));
            return Some(());
        }
        let id = u32::from_be_bytes(found.key.get(1..5)?.try_into().ok()?);
        match *found.key.first()? {
            meta::STREAM => {
                self.names.streams.insert(id, leading_name(&found.value)?);
                self.streams.insert(id, known(Stream::decode(id, &found.value).ok()?, doubtful));
            }
            meta::SUBJECT => {
                let subject = u32::from_be_bytes(found.key.get(5..9)?.try_into().ok()?);
                let mut decoder = Decoder(&found.value);
                let (last, name) = (decoder.u64().ok()?, decoder.text().ok()?.to_owned());
                self.subjects.insert((id, subject), known((last, name), doubtful));
            }
            meta::DURABLE => {
                let durable = Durable::decode_config(id, &found.value).ok()?;
                self.names.durables.insert(id, (durable.stream, durable.config.name.clone()));
                self.durables.insert(id, known(durable, doubtful));
            }
            meta::POSITION => {
                self.positions.insert(id, known(found.value.clone(), doubtful));
            }
            meta::BUCKET => {
                let bucket = Bucket::decode(&found.value).ok()?;
                self.names.buckets.insert(id, bucket.name.clone());
                self.buckets.insert(id, known(bucket, doubtful));
            }
            _ => return None,
        }
        Some(())
    }
}
