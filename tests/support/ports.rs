//! Ports for servers that tests start, end and start again.
//!
//! Not port 0: what the system gives it also gives to the next outgoing connection, while the server is away.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// Test binaries that run beside each other begin this far apart.
const PER_PROCESS: u32 = 211;

/// A port of the range that nobody listens on, each time another. Ranges of different callers do not overlap, and lie below the ports
/// that the system gives to outgoing connections.
pub fn free_port(range: Range<u16>) -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let count = u32::from(range.end - range.start);
    for _ in 0..count {
        let given = u32::from(GIVEN.fetch_add(1, Ordering::Relaxed));
        let offset = (std::process::id().wrapping_mul(PER_PROCESS) % count + given) % count;
        let port = range.start + u16::try_from(offset).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port of {range:?} is free");
}
