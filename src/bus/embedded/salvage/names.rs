//! Keys of the database in words, for people.

use std::collections::BTreeMap;

use super::super::codec::{Decoder, first_of_key, meta, read_expiry_key};

/// Bytes of a key that has no words.
const SHOWN_BYTES_MAX: usize = 48;

/// A key of any keyspace, without knowing which.
pub(super) fn raw_key(key: &[u8]) -> String {
    if key == meta::MARK {
        return "the commit's mark".to_owned();
    }
    if let (12, Some((stream, first))) = (key.len(), key.split_first_chunk::<4>())
        && stream[0] == 0
        && let Ok(first) = first_of_key(first)
    {
        return format!("messages of stream number {} from {first}", u32::from_be_bytes(*stream));
    }
    Names::default().record(key)
}

/// What numbers stand for, as far as it could be read.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub streams: BTreeMap<u32, String>,
    pub buckets: BTreeMap<u32, String>,
    pub durables: BTreeMap<u32, (u32, String)>,
}

fn number(key: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(at..at + 4)?.try_into().ok()?))
}

impl Names {
    pub fn stream(&self, id: u32) -> String {
        self.streams.get(&id).cloned().unwrap_or_else(|| format!("number {id}"))
    }

    pub fn bucket(&self, id: u32) -> String {
        self.buckets.get(&id).cloned().unwrap_or_else(|| format!("number {id}"))
    }

    pub fn durable(&self, id: u32) -> String {
        match self.durables.get(&id) {
            Some((stream, name)) => format!("{name} on stream {}", self.stream(*stream)),
            None => format!("number {id}"),
        }
    }

    /// A key of the keyspace of records.
    pub fn record(&self, key: &[u8]) -> String {
        let words = match (key.first().copied(), number(key, 1)) {
            (Some(meta::STREAM), Some(id)) => Some(format!("state of stream {}", self.stream(id))),
            (Some(meta::SUBJECT), Some(id)) => Some(format!("a subject of stream {}", self.stream(id))),
            (Some(meta::DURABLE), Some(id)) => Some(format!("durable {}", self.durable(id))),
            (Some(meta::POSITION), Some(id)) => Some(format!("position of durable {}", self.durable(id))),
            (Some(meta::BUCKET), Some(id)) => Some(format!("bucket {}", self.bucket(id))),
            (Some(b'c'), Some(id)) => first_of_key(key)
                .ok()
                .map(|first| format!("index of the messages of stream {} from {first}", self.stream(id))),
            (Some(b'i'), Some(id)) => first_of_key(key)
                .ok()
                .map(|first| format!("index of subjects of stream {} at {first}", self.stream(id))),
            (Some(b'e'), Some(id)) => {
                std::str::from_utf8(&key[5..]).ok().map(|name| format!("entry {}/{name}", self.bucket(id)))
            }
            (Some(b'x'), _) => {
                read_expiry_key(key).ok().map(|(_, id, name)| format!("expiry of {}/{name}", self.bucket(id)))
            }
            _ => (key == meta::FORMAT).then(|| "the format".to_owned()),
        };
        words.unwrap_or_else(|| hex(key))
    }
}

fn hex(key: &[u8]) -> String {
    let shown: String = key.iter().take(SHOWN_BYTES_MAX).map(|byte| format!("{byte:02x}")).collect();
    let more = if key.len() > SHOWN_BYTES_MAX { "…" } else { "" };
    format!("key {shown}{more}")
}

/// The name at the start of a stream's or bucket's record.
pub(super) fn leading_name(value: &[u8]) -> Option<String> {
    Decoder(value).text().ok().map(str::to_owned)
}
