//! What the benchmarks and campaigns share: the real process in a folder, a client, producers, a receiver, random numbers
//! from a seed. Nothing here measures or judges.

#![allow(dead_code, reason = "each program uses its part")]
#![allow(clippy::disallowed_methods, reason = "programs of their own that measure time")]

#[path = "../../tests/support/ports.rs"]
mod ports;

pub mod client;
pub mod ledger;
pub mod process;
pub mod producers;
pub mod random;
pub mod receiver;

/// An address for a listener that goes and comes back.
pub fn free_address() -> std::net::SocketAddr {
    ([127, 0, 0, 1], ports::free_port(20_000..30_000)).into()
}

pub type Failure = Box<dyn std::error::Error>;
