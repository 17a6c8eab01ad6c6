//! The worlds of the suite, and the wrong rules that they catch.

use crate::protocol::Class;
use crate::protocol::mutant::Mutant;
use crate::world::{Flaw, NEVER, World, ticks};

/// Leases by TTL: sessions are always fine.
fn lease() -> World {
    let mut timers = ticks();
    timers.beat_ms = NEVER;
    timers.idle_beat_ms = NEVER;
    World { timers, ..World::small("A lease by TTL") }
}

fn lease_of_slow_clocks() -> World {
    World { lag: true, writes: 2, zombies: 0, name: "A lease by TTL, slow clocks", ..lease() }
}

fn bucket() -> World {
    World { recreations: 1, lives: 2, writes: 2, name: "A bucket made anew", ..lease() }
}

/// Marks in the session, and the session gate.
fn session() -> World {
    World {
        class: Class::Exclusive,
        sessions: true,
        suspicions: 1,
        writes: 2,
        zombies: 0,
        ..World::small("E marks in the session")
    }
}

fn leave() -> World {
    World { leaves: 1, suspicions: 0, name: "L leaving", ..session() }
}

fn source() -> World {
    let mut timers = ticks();
    for timer in [&mut timers.beat_ms, &mut timers.idle_beat_ms, &mut timers.renew_ms, &mut timers.lease_gate_ms] {
        *timer = NEVER;
    }
    timers.retry_ms = 0;
    World { timers, grants: 3, pages: 2, ..World::small("D source") }
}

fn handover() -> World {
    let mut timers = source().timers;
    timers.settle_ms = 0;
    World { timers, members: 3, views: 2, writes: 5, zombies: 0, ..World::small("H rebalance") }
}

#[test]
fn a_lease_by_ttl_has_one_holder() {
    lease().exhaust();
}
#[test]
fn slow() {
    lease_of_slow_clocks().exhaust();
}
#[test]
fn bucket_() {
    bucket().exhaust();
}
#[test]
fn session_() {
    session().exhaust();
}
#[test]
fn leave_() {
    leave().exhaust();
}
#[test]
fn source_() {
    source().exhaust();
}
#[test]
fn handover_() {
    handover().exhaust();
}
