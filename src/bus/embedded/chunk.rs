//! A chunk: the messages one group commit stored in one stream, in one value.
//!
//! Layout, little endian: format u8, number of the stream u24, CRC-32 of all but itself u32, first sequence u64, time i64,
//! count u32, then the records, then a table with one `(sequence - first, offset)` pair of u32 per message. A record is
//! subject length u16, headers length u32, payload length u32, and the three. Sequences grow and may have holes: a
//! removed message is left out when its chunk is written again. Messages handed out are slices of the chunk.

use bytes::Bytes;

use super::codec::{Damaged, Encoder};
use crate::flow::message::{Headers, Outgoing, Stored};
use crate::time::Timestamp;

const FORMAT: u8 = 2;
const HEAD_BYTES: usize = 28;
const TABLE_ENTRY_BYTES: usize = 8;
const RECORD_HEAD_BYTES: usize = 10;
/// A chunk takes no further message at this many bytes: what is read to get at one message stays small.
pub(super) const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// A chunk takes no further message at this count. Below 65,536, so that the index can use 16 bits.
pub(super) const CHUNK_MESSAGES_MAX: usize = 1024;

/// A chunk that is being filled.
#[derive(Debug)]
pub(super) struct Builder {
    pub stream: u32,
    pub first: u64,
    pub time: Timestamp,
    body: Vec<u8>,
    table: Vec<(u32, u32)>,
    /// Subject of each message, for the index.
    pub subjects: Vec<u32>,
    /// Sum of what counts against the stream's limit.
    pub charged_bytes: u64,
}

impl Builder {
    pub fn new(stream: u32, first: u64, time: Timestamp) -> Self {
        let (body, table, subjects) = (vec![0; HEAD_BYTES], Vec::new(), Vec::new());
        Builder { stream, first, time, body, table, subjects, charged_bytes: 0 }
    }

    pub fn is_full(&self) -> bool {
        self.body.len() >= CHUNK_BYTES_MAX || self.table.len() >= CHUNK_MESSAGES_MAX
    }

    /// Adds a message. Its lengths were checked when it was accepted.
    pub fn push(&mut self, sequence: u64, subject: u32, message: &Outgoing) {
        let headers = message.headers.as_bytes();
        self.charged_bytes += message.size_bytes() as u64;
        self.push_record(sequence, subject, message.subject.as_bytes(), headers, &message.payload);
    }

    /// Adds a message of another chunk: what stays when others are removed.
    pub fn push_kept(&mut self, sequence: u64, subject: u32, message: &Stored) {
        let headers = message.headers.as_bytes();
        self.charged_bytes += (message.subject.len() + headers.len() + message.payload.len()) as u64;
        self.push_record(sequence, subject, message.subject.as_bytes(), headers, &message.payload);
    }

    fn push_record(&mut self, sequence: u64, subject_id: u32, subject: &[u8], headers: &[u8], payload: &[u8]) {
        debug_assert!(self.table.last().is_none_or(|(delta, _)| self.first + u64::from(*delta) < sequence));
        self.table.push(((sequence - self.first) as u32, self.body.len() as u32));
        self.subjects.push(subject_id);
        self.body.extend_from_slice(&(subject.len() as u16).to_le_bytes());
        self.body.extend_from_slice(&(headers.len() as u32).to_le_bytes());
        self.body.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.body.extend_from_slice(subject);
        self.body.extend_from_slice(headers);
        self.body.extend_from_slice(payload);
    }

    /// The chunk's bytes, and what describes it.
    pub fn finish(mut self) -> Finished {
        let sequences: Vec<u64> = self.table.iter().map(|(delta, _)| self.first + u64::from(*delta)).collect();
        for (delta, offset) in &self.table {
            self.body.extend_from_slice(&delta.to_le_bytes());
            self.body.extend_from_slice(&offset.to_le_bytes());
        }
        self.body[0] = FORMAT;
        self.body[8..16].copy_from_slice(&self.first.to_le_bytes());
        self.body[16..24].copy_from_slice(&self.time.0.to_le_bytes());
        self.body[24..28].copy_from_slice(&(self.table.len() as u32).to_le_bytes());
        self.body[1..4].copy_from_slice(&self.stream.to_le_bytes()[..3]);
        let checksum = checksum(&self.body);
        self.body[4..8].copy_from_slice(&checksum.to_le_bytes());
        let mut by_subject: Vec<(u32, u16)> =
            self.subjects.iter().zip(&self.table).map(|(subject, (delta, _))| (*subject, *delta as u16)).collect();
        by_subject.sort_unstable();
        let span = Span {
            first: self.first,
            last: sequences.last().copied().unwrap_or(self.first),
            count: sequences.len() as u32,
            bytes: self.charged_bytes,
            time: self.time,
            subjects: by_subject.chunk_by(|a, b| a.0 == b.0).map(|run| run[0].0).collect(),
        };
        let index = by_subject
            .chunk_by(|a, b| a.0 == b.0)
            .map(|run| (run[0].0, run.iter().flat_map(|(_, delta)| delta.to_le_bytes()).collect()))
            .collect();
        let messages = sequences.into_iter().zip(self.subjects).collect();
        Finished { stream: self.stream, bytes: self.body, span, index, messages }
    }
}

/// Of everything but the place where it is kept.
fn checksum(body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&body[..4]);
    hasher.update(&body[8..]);
    hasher.finalize()
}

/// A chunk that is ready to be written.
#[derive(Debug)]
pub(super) struct Finished {
    pub stream: u32,
    pub bytes: Vec<u8>,
    pub span: Span,
    /// Per subject the value of its index entry, see [`index_sequences`].
    pub index: Vec<(u32, Vec<u8>)>,
    /// Sequence and subject of each message.
    pub messages: Vec<(u64, u32)>,
}

/// The sequences an index entry names.
pub(super) fn index_sequences(first: u64, value: &[u8]) -> impl DoubleEndedIterator<Item = u64> + '_ {
    value.as_chunks::<2>().0.iter().map(move |delta| first + u64::from(u16::from_le_bytes(*delta)))
}

/// What is known about a chunk without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    /// The chunk's key; its first message may have been removed since.
    pub first: u64,
    pub last: u64,
    pub count: u32,
    pub bytes: u64,
    pub time: Timestamp,
    /// Distinct, ascending.
    pub subjects: Vec<u32>,
}

impl Span {
    /// Whether every sequence from first to last is there.
    pub fn is_dense(&self) -> bool {
        u64::from(self.count) == self.last - self.first + 1
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.varint(self.last - self.first).varint(u64::from(self.count)).varint(self.bytes).time(self.time);
        for subject in &self.subjects {
            encoder.varint(u64::from(*subject));
        }
        encoder.0
    }

    pub fn decode(first: u64, value: &[u8]) -> Result<Self, Damaged> {
        let mut decoder = super::codec::Decoder(value);
        let last = first.checked_add(decoder.varint()?).ok_or(Damaged("span too long"))?;
        let count = u32::try_from(decoder.varint()?).map_err(|_| Damaged("span count"))?;
        let (bytes, time) = (decoder.varint()?, decoder.time()?);
        let mut subjects = Vec::new();
        while !decoder.0.is_empty() {
            subjects.push(u32::try_from(decoder.varint()?).map_err(|_| Damaged("subject id"))?);
        }
        Ok(Span { first, last, count, bytes, time, subjects })
    }
}

/// A chunk that is read from.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    data: Bytes,
    pub first: u64,
    pub last: u64,
    time: Timestamp,
    count: usize,
}

impl Chunk {
    /// Checks the whole of a chunk that comes from disk.
    pub fn read(data: Bytes) -> Result<Self, Damaged> {
        let stored = data.get(4..8).ok_or(Damaged("chunk too short"))?;
        if data[0] != FORMAT {
            return Err(Damaged("chunk format"));
        }
        if stored != self::checksum(&data).to_le_bytes() {
            return Err(Damaged("chunk checksum"));
        }
        Chunk::trusted(data)
    }

    /// Takes bytes that were just made, or whose checksum was just compared.
    pub fn trusted(data: Bytes) -> Result<Self, Damaged> {
        let mut head = super::codec::Decoder(data.get(8..).ok_or(Damaged("chunk too short"))?);
        let (first, time, count) = (head.u64()?, head.time()?, head.u32()? as usize);
        let mut chunk = Chunk { data, first, last: first, time, count };
        if count == 0 || HEAD_BYTES + count * TABLE_ENTRY_BYTES > chunk.data.len() {
            return Err(Damaged("chunk count"));
        }
        chunk.last = chunk.sequence(count - 1);
        Ok(chunk)
    }

    /// Whether it was written under this key: a chunk that is found elsewhere is not taken for what belongs there.
    pub fn belongs(&self, stream: u32, first: u64) -> bool {
        self.first == first && self.data[1..4] == stream.to_le_bytes()[..3]
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    fn table(&self, at: usize) -> (u32, u32) {
        let start = self.data.len() - (self.count - at) * TABLE_ENTRY_BYTES;
        let word = |at: usize| {
            let bytes = &self.data[at..at + 4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        (word(start), word(start + 4))
    }

    fn sequence(&self, at: usize) -> u64 {
        self.first + u64::from(self.table(at).0)
    }

    /// Where in the table this sequence, or the next above it, is.
    pub fn position(&self, sequence: u64) -> usize {
        if sequence <= self.first {
            return 0;
        }
        if self.last - self.first + 1 == self.count as u64 {
            return usize::try_from(sequence - self.first).unwrap_or(self.count).min(self.count);
        }
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.sequence(middle) < sequence { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Where in the table the message with this sequence is; `None` when it is not here.
    pub fn find(&self, sequence: u64) -> Option<usize> {
        let at = self.position(sequence);
        (at < self.count && self.sequence(at) == sequence).then_some(at)
    }

    /// Subject, headers and payload of the message at a table position, in bytes.
    pub fn message_bytes(&self, at: usize) -> usize {
        let start = self.table(at).1 as usize;
        let end = if at + 1 < self.count {
            self.table(at + 1).1 as usize
        } else {
            self.data.len() - self.count * TABLE_ENTRY_BYTES
        };
        end.saturating_sub(start + RECORD_HEAD_BYTES)
    }

    /// The message at a table position.
    pub fn message(&self, at: usize) -> Result<Stored, Damaged> {
        let (delta, offset) = self.table(at);
        let start = offset as usize;
        let head = self.data.get(start..start + RECORD_HEAD_BYTES).ok_or(Damaged("message offset"))?;
        let subject_bytes = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let headers_bytes = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
        let payload_bytes = u32::from_le_bytes([head[6], head[7], head[8], head[9]]) as usize;
        let subject_at = start + RECORD_HEAD_BYTES;
        let headers_at = subject_at + subject_bytes;
        let payload_at = headers_at + headers_bytes;
        let end = payload_at + payload_bytes;
        if end > self.data.len() {
            return Err(Damaged("message length"));
        }
        let subject = std::str::from_utf8(&self.data[subject_at..headers_at]).map_err(|_| Damaged("subject"))?;
        let headers = if headers_bytes == 0 {
            Headers::default()
        } else {
            Headers::from_bytes(self.data.slice(headers_at..payload_at)).ok_or(Damaged("headers"))?
        };
        Ok(Stored {
            sequence: self.first + u64::from(delta),
            subject: subject.to_owned(),
            headers,
            payload: self.data.slice(payload_at..end),
            time: self.time,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(subject: &str, payload: &str) -> Outgoing {
        let headers = [("a", "1")].into_iter().collect();
        Outgoing { subject: subject.into(), headers, payload: Bytes::from(payload.to_owned()), transport_id: None }
    }

    fn chunk() -> Finished {
        let mut builder = Builder::new(3, 10, Timestamp(99));
        builder.push(10, 1, &message("x", "ten"));
        builder.push(12, 0, &message("yy", ""));
        builder.push(15, 1, &message("x", "fifteen"));
        builder.finish()
    }

    #[test]
    fn messages_come_back_whole_and_holes_stay_holes() {
        let finished = chunk();
        let chunk = Chunk::read(Bytes::from(finished.bytes)).unwrap();
        assert_eq!((0..chunk.count).map(|at| chunk.sequence(at)).collect::<Vec<_>>(), [10, 12, 15]);
        assert_eq!((chunk.find(11), chunk.find(12), chunk.position(13)), (None, Some(1), 2));
        let stored = chunk.message(2).unwrap();
        assert_eq!((stored.sequence, stored.subject.as_str(), &stored.payload[..]), (15, "x", &b"fifteen"[..]));
        assert_eq!((stored.time, stored.headers.get("a")), (Timestamp(99), Some("1")));
        for at in 0..3 {
            let stored = chunk.message(at).unwrap();
            let bytes = stored.subject.len() + stored.headers.as_bytes().len() + stored.payload.len();
            assert_eq!(chunk.message_bytes(at), bytes);
        }
    }

    #[test]
    fn the_index_names_each_subjects_sequences() {
        let finished = chunk();
        assert_eq!(finished.span.subjects, [0, 1]);
        let named: Vec<Vec<u64>> = finished.index.iter().map(|(_, v)| index_sequences(10, v).collect()).collect();
        assert_eq!(named, [vec![12], vec![10, 15]]);
        assert_eq!(Span::decode(10, &finished.span.encode()), Ok(finished.span));
    }

    #[test]
    fn one_changed_bit_anywhere_is_noticed() {
        let bytes = chunk().bytes;
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Chunk::read(Bytes::from(changed)).is_err(), "byte {at}");
        }
    }
}
