//! What the benchmarks and campaigns share: the real process in a folder, a client, producers, a receiver, random numbers
//! from a seed. Nothing here measures or judges.

#![allow(dead_code, reason = "each program uses its part")]
#![allow(clippy::disallowed_methods, reason = "programs of their own that measure time")]

pub mod client;
pub mod ledger;
pub mod process;
pub mod producers;
pub mod random;
pub mod receiver;

pub type Failure = Box<dyn std::error::Error>;
