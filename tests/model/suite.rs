//! The worlds of the suite, and the wrong rules that they catch.

use crate::protocol::Class;
use crate::protocol::mutant::Mutant;
use crate::world::{NEVER, World, ticks};

/// Leases by TTL: sessions are always fine.
fn lease() -> World {
    let mut timers = ticks();
    timers.beat_ms = NEVER;
    timers.idle_beat_ms = NEVER;
    World { timers, crashes: 1, lives: 1, lag: true, ..World::small("A lease by TTL") }
}

#[test]
fn a_lease_by_ttl_has_one_holder() {
    lease().exhaust();
}
