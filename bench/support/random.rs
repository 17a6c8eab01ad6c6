//! xorshift64*: whoever prints the seed can have the same run again.

use std::time::{SystemTime, UNIX_EPOCH};

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound.max(1)
    }
}

/// A seed for a run that was given none.
pub fn seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
}
