//! The duplicate window: which transport ids a stream has seen lately.
//!
//! Ids live in their own keyspace and are looked up there (its bloom filters answer for almost every new id). Memory
//! holds only the ids of batches that are not durable yet. Old ids are passed over when they are met and dropped by
//! compactions, see `db::Window`.

use std::collections::HashMap;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::codec::{Damaged, Decoder, Encoder};
use super::db::{Db, Item, Space};
use super::engine::Broken;
use crate::time::Timestamp;

/// Longer ids are stored by their digest.
const ID_PLAIN_BYTES_MAX: usize = 96;

#[derive(Debug, Clone, Copy)]
struct Seen {
    sequence: u64,
    time: Timestamp,
    commit: u64,
}

/// Ids of batches that are not durable yet.
#[derive(Debug, Default)]
pub(super) struct Ids {
    pending: HashMap<Vec<u8>, Seen>,
}

pub(super) fn id_key(stream: u32, id: &str) -> Vec<u8> {
    let mut key = stream.to_be_bytes().to_vec();
    if id.len() <= ID_PLAIN_BYTES_MAX {
        key.push(b'i');
        key.extend_from_slice(id.as_bytes());
    } else {
        key.push(b'd');
        key.extend_from_slice(&Sha256::digest(id.as_bytes()));
    }
    key
}

impl Ids {
    /// The sequence of the message that first had this id, if that was inside the window.
    pub fn find(&self, db: &Db, key: &[u8], now: Timestamp, window: Duration) -> Result<Option<u64>, Broken> {
        let (sequence, time) = match self.pending.get(key) {
            Some(seen) => (seen.sequence, seen.time),
            None => match db.get(Space::Ids, key)? {
                Some(value) => decode(&value)?,
                None => return Ok(None),
            },
        };
        Ok((now.since(time) < window).then_some(sequence))
    }

    pub fn remember(&mut self, key: Vec<u8>, sequence: u64, time: Timestamp, commit: u64) -> Item {
        let mut encoder = Encoder::default();
        encoder.u64(sequence).time(time);
        self.pending.insert(key.clone(), Seen { sequence, time, commit });
        Item::put(Space::Ids, key, encoder.0)
    }

    /// What was remembered for this commit is on disk now.
    pub fn settle(&mut self, keys: &[Vec<u8>], commit: u64) {
        for key in keys {
            if self.pending.get(key).is_some_and(|seen| seen.commit <= commit) {
                self.pending.remove(key);
            }
        }
        if self.pending.is_empty() {
            self.pending.shrink_to(1024);
        }
    }
}

fn decode(value: &[u8]) -> Result<(u64, Timestamp), Damaged> {
    let mut decoder = Decoder(value);
    Ok((decoder.u64()?, decoder.time()?))
}
