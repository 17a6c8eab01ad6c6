//! Reads fjall's journals without fjall, which would cut off whatever comes after a damage.
//!
//! A journal is a run of batches: a start (tag 1, count u32, seqno u64), the items (tag 2, kind u8, compression u8, keyspace
//! u64, key length u16, value length u32, stored length u32, key, value), an end (tag 3, XXH3 of the items, `FJL\x03`), all
//! little endian. Zeros follow: the file is made with its full length. The bus never compresses a journal or clears a keyspace.
//!
//! After a damage reading goes on with the next batch that is whole.

use bytes::Bytes;

use super::super::codec::meta;
use super::super::ledger::{Mark, Sum};

const TRAILER: &[u8; 4] = b"FJL\x03";
const TAG_START: u8 = 1;
const TAG_ITEM: u8 = 2;
const TAG_END: u8 = 3;
const KIND_VALUE: u8 = 0;
const START_BYTES: usize = 13;
const ITEM_HEAD_BYTES: usize = 21;
const END_BYTES: usize = 13;

/// A key that a batch writes; no value removes it.
#[derive(Debug, Clone)]
pub(in super::super) struct Item {
    pub keyspace: u64,
    pub key: Bytes,
    pub value: Option<Bytes>,
}

/// One batch whose checksum is right.
#[derive(Debug)]
pub(in super::super) struct Batch {
    pub offset: usize,
    pub end: usize,
    pub seqno: u64,
    pub items: Vec<Item>,
}

impl Batch {
    /// The commit's mark, and its number and content added up after `previous`.
    pub fn mark(&self) -> Option<Mark> {
        let item = self.items.iter().rev().find(|item| item.key == meta::MARK)?;
        Mark::decode(item.value.as_ref()?).ok()
    }

    /// The chain as it must be if `previous_chain` is that of the commit before.
    pub fn chain_after(&self, previous_chain: u64, number: u64) -> u64 {
        let mut sum = Sum::new(previous_chain, number);
        for item in self.items.iter().filter(|item| item.key != meta::MARK) {
            sum.add(&item.key, item.value.as_deref());
        }
        sum.chain()
    }
}

/// Bytes that are no whole batch.
#[derive(Debug)]
pub(in super::super) struct Gap {
    pub offset: usize,
    pub end: usize,
    /// What its beginning reads like; nothing proves it.
    pub items: Vec<Item>,
}

#[derive(Debug)]
pub(in super::super) enum Part {
    Batch(Batch),
    Gap(Gap),
}

/// Walks over the used part of a journal, without its trailing zeros.
pub(in super::super) struct Parts {
    bytes: Bytes,
    at: usize,
}

impl Parts {
    pub fn new(bytes: Bytes) -> Self {
        Parts { bytes, at: 0 }
    }

    /// The first whole batch that begins behind `from`. Its first item's tag is looked at before it is read as one.
    fn resume(&self, from: usize) -> Option<Batch> {
        let begins = |at: &usize| {
            self.bytes[*at] == TAG_START && self.bytes.get(at + START_BYTES).is_some_and(|tag| *tag == TAG_ITEM)
        };
        (from + 1..self.bytes.len()).filter(begins).find_map(|at| batch(&self.bytes, at).ok())
    }
}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.at >= self.bytes.len() {
            return None;
        }
        match batch(&self.bytes, self.at) {
            Ok(batch) => {
                self.at = batch.end;
                Some(Part::Batch(batch))
            }
            Err(items) => {
                let offset = self.at;
                let end = self.resume(offset).map_or(self.bytes.len(), |batch| batch.offset);
                self.at = end;
                Some(Part::Gap(Gap { offset, end, items }))
            }
        }
    }
}

struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<Bytes> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len())?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let end = self.at.checked_add(N)?;
        let taken = self.bytes.get(self.at..end)?.try_into().ok()?;
        self.at = end;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn item(&mut self) -> Option<Item> {
        let [tag, kind, compression] = self.array()?;
        let keyspace = self.u64()?;
        let key_bytes = u16::from_le_bytes(self.array()?);
        let (value_bytes, stored_bytes) = (self.u32()?, self.u32()?);
        // Kinds 1 and 2 remove; the bus writes no other.
        if tag != TAG_ITEM || kind > 2 || compression != 0 || value_bytes != stored_bytes {
            return None;
        }
        let (key, value) = (self.take(usize::from(key_bytes))?, self.take(stored_bytes as usize)?);
        Some(Item { keyspace, key, value: (kind == KIND_VALUE).then_some(value) })
    }
}

/// The batch at an offset, or what can be read of it.
fn batch(bytes: &Bytes, offset: usize) -> Result<Batch, Vec<Item>> {
    let mut reader = Reader { bytes, at: offset };
    let head = (reader.array::<1>(), reader.u32(), reader.u64());
    let (Some([TAG_START]), Some(count), Some(seqno)) = head else { return Err(Vec::new()) };
    let begin = reader.at;
    debug_assert_eq!(begin, offset + START_BYTES);
    // Not more than the file can hold, whatever the count says.
    let room = bytes.len().saturating_sub(begin) / ITEM_HEAD_BYTES;
    let mut items = Vec::with_capacity((count as usize).min(room));
    for _ in 0..count {
        match reader.item() {
            Some(item) => items.push(item),
            None => return Err(items),
        }
    }
    let content = begin..reader.at;
    let end = (reader.array::<1>(), reader.u64(), reader.array::<4>());
    let (Some([TAG_END]), Some(checksum), Some(trailer)) = end else { return Err(items) };
    if trailer != *TRAILER || checksum != xxhash_rust::xxh3::xxh3_64(&bytes[content]) {
        return Err(items);
    }
    debug_assert!(reader.at - offset >= START_BYTES + END_BYTES);
    Ok(Batch { offset, end: reader.at, seqno, items })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bytes: &mut Vec<u8>, seqno: u64, items: &[(&[u8], Option<&[u8]>)]) {
        bytes.push(TAG_START);
        bytes.extend((items.len() as u32).to_le_bytes());
        bytes.extend(seqno.to_le_bytes());
        let begin = bytes.len();
        for (key, value) in items {
            bytes.extend([TAG_ITEM, u8::from(value.is_none()), 0]);
            bytes.extend(7_u64.to_le_bytes());
            bytes.extend((key.len() as u16).to_le_bytes());
            let length = value.map_or(0, <[u8]>::len) as u32;
            bytes.extend(length.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes.extend(*key);
            bytes.extend(value.unwrap_or_default());
        }
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[begin..]);
        bytes.push(TAG_END);
        bytes.extend(checksum.to_le_bytes());
        bytes.extend(TRAILER);
    }

    fn three() -> (Vec<u8>, usize, usize) {
        let mut bytes = Vec::new();
        put(&mut bytes, 1, &[(b"a", Some(b"one")), (b"b", None)]);
        let second = bytes.len();
        // A value that holds what looks like the end of a batch.
        put(&mut bytes, 2, &[(b"c", Some(b"FJL\x03\x01")), (b"d", Some(b"four"))]);
        let third = bytes.len();
        put(&mut bytes, 3, &[(b"e", Some(b"five"))]);
        (bytes, second, third)
    }

    #[test]
    fn batches_come_back_whole() {
        let (bytes, ..) = three();
        let end = bytes.len();
        let parts: Vec<_> = Parts::new(bytes.into()).collect();
        let [Part::Batch(one), Part::Batch(_), Part::Batch(three)] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!((one.seqno, one.items.len(), three.end), (1, 2, end));
        assert!(one.items[1].value.is_none());
    }

    #[test]
    fn any_damaged_byte_costs_its_own_batch_and_no_other() {
        let (bytes, second, third) = three();
        for at in second..third {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            let parts: Vec<_> = Parts::new(changed.into()).collect();
            let [Part::Batch(_), Part::Gap(gap), Part::Batch(last)] = &parts[..] else {
                // The seqno is covered by no checksum of fjall's: our chain has to notice.
                assert!((second + 5..second + START_BYTES).contains(&at), "byte {at}: {parts:?}");
                continue;
            };
            assert_eq!((gap.offset, gap.end, last.seqno), (second, third, 3), "byte {at}");
        }
    }

    #[test]
    fn a_cut_at_any_length_keeps_what_is_before_it() {
        let (bytes, second, third) = three();
        for length in 0..bytes.len() {
            let whole = [second, third].into_iter().filter(|end| *end <= length).count();
            let parts: Vec<_> = Parts::new(bytes[..length].to_vec().into()).collect();
            assert_eq!(parts.iter().filter(|part| matches!(part, Part::Batch(_))).count(), whole, "{length}");
        }
    }
}
