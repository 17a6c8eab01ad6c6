//! Identities of messages whose sender gave none: UUIDv7, by time and unique without asking anybody.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use uuid::{Builder, Uuid};

use crate::time::Timestamp;

/// Makes UUIDv7 from the time, a counter of 26 bits and 48 bits that are random per process.
///
/// RFC 9562, section 6.2, method 1: identities made within one millisecond differ in the counter. It wraps after
/// 67 million; more than that in a millisecond is not possible. No system call per identity.
#[derive(Debug)]
pub(super) struct Maker {
    process: [u8; 6],
    counter: AtomicU32,
}

impl Maker {
    /// `seed` is random, and another one in every process.
    pub fn new(seed: u128) -> Self {
        let bytes = seed.to_be_bytes();
        let mut process = [0; 6];
        process.copy_from_slice(&bytes[..6]);
        Maker { process, counter: AtomicU32::new(u32::from_be_bytes([bytes[6], bytes[7], bytes[8], bytes[9]])) }
    }

    pub fn next(&self, now: Timestamp) -> Uuid {
        let count = self.counter.fetch_add(1, Relaxed);
        let [p1, p2, p3, p4, p5, p6] = self.process;
        // The builder overwrites the upper half of the first byte with the version and two bits of the third with the
        // variant: 4 + 8 + 6 + 8 bits are left for the counter, high bits first, so that identities sort by count.
        let [c1, c2, c3, c4] =
            [count >> 22 & 0x0f, count >> 14 & 0xff, count >> 8 & 0x3f, count & 0xff].map(|b| b as u8);
        let random = [c1, c2, c3, c4, p1, p2, p3, p4, p5, p6];
        Builder::from_unix_timestamp_millis(now.unix_millis().max(0).unsigned_abs(), &random).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn identities_of_one_millisecond_are_unique_and_carry_version_and_time() {
        let maker = Maker::new(u128::MAX - 7);
        let now = Timestamp::from_unix_millis(1_800_000_000_123);
        let made: BTreeSet<Uuid> = (0..300_000).map(|_| maker.next(now)).collect();
        assert_eq!(made.len(), 300_000);
        for id in made.iter().take(3) {
            assert_eq!(id.get_version_num(), 7);
            assert_eq!(id.get_timestamp().unwrap().to_unix(), (1_800_000_000, 123_000_000));
        }
    }

    #[test]
    fn two_processes_with_the_same_count_differ() {
        let now = Timestamp::from_unix_millis(1);
        let seed = 0x0102_0304_0506_0000_0000_0000_0000_0000_u128;
        assert_ne!(Maker::new(seed).next(now), Maker::new(seed | (1 << 89)).next(now));
    }

    #[test]
    fn later_identities_sort_after_earlier_ones_also_within_a_millisecond() {
        let maker = Maker::new(0);
        let now = Timestamp::from_unix_millis(1_800_000_000_123);
        let made: Vec<Uuid> = (0..100_000).map(|_| maker.next(now)).collect();
        assert!(made.is_sorted());
    }
}
