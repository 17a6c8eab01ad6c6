//! The worlds: what is in them, and what is left out so that they can be explored to the end.

use crate::protocol::Class;
use crate::world::{NEVER, World, ticks};

/// Leases by TTL: sessions are always fine.
pub fn lease() -> World {
    let mut timers = ticks();
    timers.beat_ms = NEVER;
    timers.idle_beat_ms = NEVER;
    World { timers, ..World::small("A lease by TTL") }
}

pub fn lease_of_slow_clocks() -> World {
    World { lag: true, writes: 2, zombies: 0, name: "A lease by TTL, slow clocks", ..lease() }
}

pub fn slow_replies() -> World {
    World { slow_replies: true, zombies: 0, name: "A lease by TTL, slow replies", ..lease() }
}

/// Two processes that were given one instance name.
pub fn namesakes() -> World {
    World { one_name: true, unowned: true, writes: 2, name: "A lease by TTL, two of one name", ..lease() }
}

pub fn bucket() -> World {
    World { recreations: 1, lives: 2, writes: 2, zombies: 0, name: "A bucket made anew", ..lease() }
}

/// The revisions begin at 1 again, as they would if the stream's first sequence were not set; everybody notices, late requests do not.
/// Short of everything else: nobody renews, and the quiet time is one tick.
pub fn bucket_of_restarting_numbers() -> World {
    let mut timers = lease().timers;
    timers.ttl_ms = 1;
    timers.lease_gate_ms = 1;
    timers.renew_ms = NEVER;
    let name = "A bucket made anew, numbers restart";
    World { timers, restarts: true, noticed: true, leaves: 1, writes: 3, zombies: 1, name, ..bucket() }
}

/// Marks in the session, and the session gate. Nothing expires: take-over is by suspicion alone.
pub fn session() -> World {
    let mut timers = ticks();
    for timer in [&mut timers.ttl_ms, &mut timers.renew_ms, &mut timers.lease_gate_ms, &mut timers.idle_beat_ms] {
        *timer = NEVER;
    }
    World {
        timers,
        class: Class::Exclusive,
        sessions: true,
        suspicions: 1,
        writes: 2,
        ..World::small("E marks in the session")
    }
}

pub fn session_of_slow_clocks() -> World {
    World { lag: true, name: "E marks in the session, slow clocks", ..session() }
}

/// Sessions expire as well.
pub fn session_that_expires() -> World {
    let mut timers = session().timers;
    timers.ttl_ms = 3;
    timers.idle_beat_ms = 1;
    World { timers, name: "E marks in the session, sessions expire", ..session() }
}

/// Leases and sessions expire as well, after two ticks. The first three are looked at.
pub fn session_by_ttl() -> World {
    let timers = crate::protocol::Timers { ttl_ms: 2, lease_gate_ms: 1, ..ticks() };
    let ticks = Some(timers.ttl_ms + 1);
    World { timers, ticks, zombies: 0, name: "E marks in the session, and TTL", ..session() }
}

pub fn leave() -> World {
    World { leaves: 1, writes: 3, suspicions: 0, name: "L leaving", ..session() }
}

pub fn leave_two_units() -> World {
    World { units: 2, writes: 5, zombies: 0, name: "L leaving with two units", ..leave() }
}

pub fn source() -> World {
    let mut timers = ticks();
    for timer in [&mut timers.beat_ms, &mut timers.idle_beat_ms, &mut timers.renew_ms, &mut timers.lease_gate_ms] {
        *timer = NEVER;
    }
    timers.retry_ms = 0;
    World { timers, grants: 3, pages: 2, ..World::small("D source") }
}

pub fn reopening() -> World {
    World { publications: 1, pages: 1, grants: 2, name: "D source, a new publication", ..source() }
}

pub fn handover() -> World {
    let mut timers = source().timers;
    timers.settle_ms = 0;
    timers.rank_delay_ms = NEVER;
    World { timers, members: 3, views: 2, writes: 5, zombies: 0, ..World::small("H rebalance") }
}

/// Ranks do not wait for each other: a unit may have two first owners.
pub fn hasty() -> World {
    let mut timers = handover().timers;
    timers.rank_delay_ms = 0;
    World { timers, first_owners: 2, writes: 6, views: 1, name: "H rebalance, ranks in haste", ..handover() }
}

/// Claims of a tenure long past arrive again and again, and views may leave out the member itself.
pub fn old_claims() -> World {
    World {
        members: 2,
        views: 2,
        writes: 6,
        views_without_self: true,
        old_claims: true,
        name: "H rebalance, old claims",
        ..handover()
    }
}

/// Somebody acts within the TTL, whatever happened before.
pub fn healing_by_ttl() -> World {
    let mut timers = lease().timers;
    timers.recheck_ms = timers.ttl_ms;
    let bound = Some(timers.ttl_ms);
    World { timers, crashes: 1, lives: 2, writes: 2, heals_within: bound, name: "Live A, TTL alone", ..lease() }
}

/// Somebody acts within the grace and one probe more (there is a probe in each tick): nothing expires, but probers tell the truth in the
/// end.
pub fn healing_by_suspicion() -> World {
    let mut timers = session().timers;
    timers.idle_beat_ms = 1;
    let heals_within = Some(timers.grace_ms + 1);
    World { timers, crashes: 1, heals_within, name: "Live E, suspicion", ..session() }
}

/// Nobody owns anything at first, so that an acquisition may be the request whose fate is not known.
pub fn healing_of_orphans() -> World {
    World { unowned: true, suspicions: 0, name: "Live E, nobody owns at first", ..healing_by_suspicion() }
}

/// No fault at all: a member leaves, its heir was idle until then.
pub fn calm_leaving() -> World {
    World {
        leaves: 1,
        suspicions: 0,
        timers: ticks(),
        ticks: None,
        heals_within: Some(0),
        calm_ticks: Some(6),
        name: "Live L, leaving without a fault",
        ..session_by_ttl()
    }
}
