//! Recent chunks in memory, so that consumers who keep up never touch the disk.
//!
//! First in, first out, bounded in bytes. The bytes of a chunk are shared with fjall's memtable while it is there.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::chunk::Chunk;

/// What one cached chunk costs beyond its bytes, about.
const CHUNK_OVERHEAD_BYTES: usize = 192;

#[derive(Debug)]
pub(super) struct Cache {
    chunks: HashMap<u32, BTreeMap<u64, Arc<Chunk>>>,
    order: VecDeque<(u32, u64)>,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Self {
        Cache { chunks: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// The chunk that covers this sequence, which may yet be a hole in it.
    pub fn find(&self, stream: u32, sequence: u64) -> Option<&Arc<Chunk>> {
        let (_, chunk) = self.chunks.get(&stream)?.range(..=sequence).next_back()?;
        (chunk.last >= sequence).then_some(chunk)
    }

    pub fn insert(&mut self, stream: u32, chunk: Arc<Chunk>) {
        let first = chunk.first;
        self.bytes += chunk.bytes() + CHUNK_OVERHEAD_BYTES;
        match self.chunks.entry(stream).or_default().insert(first, chunk) {
            Some(replaced) => self.bytes -= replaced.bytes() + CHUNK_OVERHEAD_BYTES,
            None => self.order.push_back((stream, first)),
        }
        while self.bytes > self.bytes_max
            && let Some((stream, first)) = self.order.pop_front()
        {
            self.drop_chunk(stream, first);
        }
    }

    /// A chunk was written again or removed.
    pub fn replace(&mut self, stream: u32, first: u64, chunk: Option<Arc<Chunk>>) {
        let known = self.chunks.get(&stream).is_some_and(|chunks| chunks.contains_key(&first));
        match chunk {
            Some(chunk) if known => self.insert(stream, chunk),
            _ if known => self.drop_chunk(stream, first),
            _ => {}
        }
    }

    fn drop_chunk(&mut self, stream: u32, first: u64) {
        if let Some(chunk) = self.chunks.get_mut(&stream).and_then(|chunks| chunks.remove(&first)) {
            self.bytes -= chunk.bytes() + CHUNK_OVERHEAD_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::bus::embedded::chunk::Builder;
    use crate::flow::message::{Headers, Outgoing};
    use crate::time::Timestamp;

    fn chunk(first: u64) -> Arc<Chunk> {
        let mut builder = Builder::new(0, first, Timestamp(0));
        let payload = Bytes::from(vec![0; 1000]);
        let message = Outgoing { subject: "a".into(), headers: Headers::default(), payload, transport_id: None };
        builder.push(first, 0, &message);
        builder.push(first + 1, 0, &message);
        Arc::new(Chunk::read(Bytes::from(builder.finish().bytes)).unwrap())
    }

    #[test]
    fn the_oldest_goes_first_and_the_bound_holds() {
        let mut cache = Cache::new(5000);
        for first in [1, 3, 5] {
            cache.insert(7, chunk(first));
        }
        assert!(cache.find(7, 2).is_none());
        assert!(cache.find(7, 4).is_some() && cache.find(7, 6).is_some());
        assert!(cache.find(7, 7).is_none() && cache.find(8, 4).is_none());
        assert!(cache.bytes <= 5000);
        cache.replace(7, 3, None);
        assert!(cache.find(7, 4).is_none());
    }
}
