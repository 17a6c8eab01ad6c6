//! Bytes on disk: integers, text and the keys of every record. No meaning lives here.
//!
//! Keys are big endian so that their order is the order of the numbers; values are little endian. A record that
//! cannot be read back is [`Damaged`]: it was changed by something other than this program.

use crate::time::Timestamp;

/// A stored record that does not have the form this program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged record: {0}")]
pub(super) struct Damaged(pub &'static str);

/// Appends values to a record.
#[derive(Debug, Default)]
pub(super) struct Encoder(pub Vec<u8>);

impl Encoder {
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn time(&mut self, value: Timestamp) -> &mut Self {
        self.0.extend_from_slice(&value.0.to_le_bytes());
        self
    }

    /// Seven bits a byte, lowest first: small numbers take one byte.
    pub fn varint(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub fn texts(&mut self, texts: &[String]) -> &mut Self {
        self.varint(texts.len() as u64);
        for text in texts {
            self.text(text);
        }
        self
    }
}

/// Reads what an [`Encoder`] wrote, in the same order.
#[derive(Debug)]
pub(super) struct Decoder<'a>(pub &'a [u8]);

impl<'a> Decoder<'a> {
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], Damaged> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(Damaged("too short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        self.take(N)?.try_into().map_err(|_| Damaged("too short"))
    }

    pub fn u32(&mut self) -> Result<u32, Damaged> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Damaged> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn time(&mut self) -> Result<Timestamp, Damaged> {
        Ok(Timestamp(i64::from_le_bytes(self.array()?)))
    }

    pub fn varint(&mut self) -> Result<u64, Damaged> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damaged("number without end"))
    }

    pub fn text(&mut self) -> Result<&'a str, Damaged> {
        let bytes = self.varint()?;
        let bytes = usize::try_from(bytes).map_err(|_| Damaged("too short"))?;
        std::str::from_utf8(self.take(bytes)?).map_err(|_| Damaged("text is not UTF-8"))
    }

    pub fn texts(&mut self) -> Result<Vec<String>, Damaged> {
        let count = self.varint()?;
        (0..count).map(|_| self.text().map(str::to_owned)).collect()
    }
}

fn key(prefix: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + parts.iter().map(|p| p.len()).sum::<usize>());
    key.extend_from_slice(prefix);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

/// Keys of what is read whole when the bus opens. The first byte of every key tells its kind.
pub(super) mod meta {
    use super::key;

    pub const FORMAT: &[u8] = b"F";
    /// The newest commit's mark, in every keyspace. Sorts behind all other keys: a table of new chunks overlaps with no older
    /// one because of it, but for the last.
    pub const MARK: &[u8] = &[0xff];
    pub const STREAM: u8 = b'T';
    pub const SUBJECT: u8 = b'S';
    pub const DURABLE: u8 = b'D';
    pub const POSITION: u8 = b'P';
    pub const BUCKET: u8 = b'B';

    pub fn stream(id: u32) -> Vec<u8> {
        key(&[STREAM], &[&id.to_be_bytes()])
    }

    pub fn subject(stream: u32, id: u32) -> Vec<u8> {
        key(&[SUBJECT], &[&stream.to_be_bytes(), &id.to_be_bytes()])
    }

    pub fn durable(id: u32) -> Vec<u8> {
        key(&[DURABLE], &[&id.to_be_bytes()])
    }

    pub fn position(id: u32) -> Vec<u8> {
        key(&[POSITION], &[&id.to_be_bytes()])
    }

    pub fn bucket(id: u32) -> Vec<u8> {
        key(&[BUCKET], &[&id.to_be_bytes()])
    }
}

/// A chunk, and the span that describes it, are found by their stream and first sequence.
pub(super) fn chunk_key(stream: u32, first: u64) -> Vec<u8> {
    key(&stream.to_be_bytes(), &[&first.to_be_bytes()])
}

pub(super) fn span_key(stream: u32, first: u64) -> Vec<u8> {
    key(b"c", &[&stream.to_be_bytes(), &first.to_be_bytes()])
}

/// Where in a chunk a subject's messages are.
pub(super) fn index_key(stream: u32, subject: u32, first: u64) -> Vec<u8> {
    key(b"i", &[&stream.to_be_bytes(), &subject.to_be_bytes(), &first.to_be_bytes()])
}

/// The sequence that ends a chunk, span or index key.
pub(super) fn first_of_key(key: &[u8]) -> Result<u64, Damaged> {
    let tail = key.last_chunk::<8>().ok_or(Damaged("key too short"))?;
    Ok(u64::from_be_bytes(*tail))
}

pub(super) fn entry_key(bucket: u32, name: &str) -> Vec<u8> {
    key(b"e", &[&bucket.to_be_bytes(), name.as_bytes()])
}

/// Entries that expire, in the order in which they do.
pub(super) fn expiry_key(expires: Timestamp, bucket: u32, name: &str) -> Vec<u8> {
    let nanos = u64::try_from(expires.0).unwrap_or(0);
    key(b"x", &[&nanos.to_be_bytes(), &bucket.to_be_bytes(), name.as_bytes()])
}

/// The inverse of [`expiry_key`].
pub(super) fn read_expiry_key(key: &[u8]) -> Result<(Timestamp, u32, &str), Damaged> {
    let short = Damaged("expiry key too short");
    let (nanos, rest) = key.get(1..).and_then(|k| k.split_first_chunk::<8>()).ok_or(short)?;
    let (bucket, name) = rest.split_first_chunk::<4>().ok_or(short)?;
    let name = std::str::from_utf8(name).map_err(|_| Damaged("key is not UTF-8"))?;
    let nanos = i64::try_from(u64::from_be_bytes(*nanos)).map_err(|_| Damaged("time out of range"))?;
    Ok((Timestamp(nanos), u32::from_be_bytes(*bucket), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut encoder = Encoder::default();
        encoder.varint(0).varint(127).varint(128).varint(u64::MAX).text("é").texts(&["a".into(), String::new()]);
        encoder.u64(7).u32(8).time(Timestamp(-1));
        let mut decoder = Decoder(&encoder.0);
        for expected in [0, 127, 128, u64::MAX] {
            assert_eq!(decoder.varint(), Ok(expected));
        }
        assert_eq!(decoder.text(), Ok("é"));
        assert_eq!(decoder.texts(), Ok(vec!["a".to_owned(), String::new()]));
        assert_eq!((decoder.u64(), decoder.u32(), decoder.time()), (Ok(7), Ok(8), Ok(Timestamp(-1))));
        assert!(decoder.take(1).is_err());
    }

    #[test]
    fn keys_sort_as_their_numbers_do() {
        assert!(chunk_key(0, 255) < chunk_key(0, 256));
        assert!(chunk_key(0, u64::MAX) < chunk_key(1, 0));
        assert!(expiry_key(Timestamp(255), 9, "z") < expiry_key(Timestamp(256), 0, "a"));
        assert_eq!(read_expiry_key(&expiry_key(Timestamp(5), 6, "k")), Ok((Timestamp(5), 6, "k")));
    }
}
