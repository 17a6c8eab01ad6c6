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

fn slow_replies() -> World {
    World { slow_replies: true, zombies: 0, name: "A lease by TTL, slow replies", ..lease() }
}

fn bucket() -> World {
    World { recreations: 1, lives: 2, writes: 2, zombies: 0, name: "A bucket made anew", ..lease() }
}

/// Marks in the session, and the session gate. Nothing expires: take-over is by suspicion alone.
fn session() -> World {
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
        zombies: 0,
        ..World::small("E marks in the session")
    }
}

fn session_of_slow_clocks() -> World {
    World { lag: true, name: "E marks in the session, slow clocks", ..session() }
}

fn leave() -> World {
    World { leaves: 1, writes: 3, name: "L leaving", ..session() }
}

fn source() -> World {
    let mut timers = ticks();
    for timer in [&mut timers.beat_ms, &mut timers.idle_beat_ms, &mut timers.renew_ms, &mut timers.lease_gate_ms] {
        *timer = NEVER;
    }
    timers.retry_ms = 0;
    World { timers, grants: 3, pages: 2, ..World::small("D source") }
}

fn reopening() -> World {
    World { publications: 1, pages: 1, grants: 2, name: "D source, a new publication", ..source() }
}

fn handover() -> World {
    let mut timers = source().timers;
    timers.settle_ms = 0;
    timers.rank_delay_ms = NEVER;
    World { timers, members: 3, views: 2, writes: 5, zombies: 0, ..World::small("H rebalance") }
}

#[test]
fn a_lease_by_ttl_has_one_holder() {
    lease().exhaust();
}

#[test]
fn a_clock_that_loses_a_tick_in_each_window_is_within_the_margin() {
    lease_of_slow_clocks().exhaust();
}

#[test]
fn a_bucket_made_anew_gives_nobody_a_second_holder() {
    bucket().exhaust();
}

#[test]
fn a_suspect_is_taken_over_only_when_it_cannot_act() {
    session().exhaust();
}

#[test]
fn session_gate_and_grace_hold_with_slow_clocks() {
    World { suspicions: 2, ..session_of_slow_clocks() }.exhaust();
}

#[test]
fn who_leaves_stops_first() {
    leave().exhaust();
}

#[test]
fn a_source_stores_each_message_once_whoever_is_granted_it() {
    World { grants: 2, pages: 1, ..source() }.exhaust();
}

#[test]
fn a_new_publication_opens_again_from_the_stored_position() {
    reopening().exhaust();
}

#[test]
fn a_unit_moves_once_per_change_of_view() {
    handover().exhaust();
}

/// The names of the members are such that each of a, b, c ranks above the one before it.
#[test]
fn c_ranks_before_b_before_a() {
    use crate::protocol::hrw::weight;
    let unit = crate::world::unit();
    assert!(weight(&unit, "c") > weight(&unit, "b") && weight(&unit, "b") > weight(&unit, "a"));
}

#[test]
fn wrong_rules_of_leases_are_caught() {
    use Mutant::*;
    lease().with(NoLeaseGate).caught_by(&["own-L3"]);
    lease().with(RenewUnknownIsLost).caught_by(&["own-A1"]);
    lease().with(UnknownCreateIsWon).caught_by(&["own-L1", "own-L3"]);
    slow_replies().with(DeadlineFromReply).caught_by(&["own-L3"]);
    let mut tight = lease_of_slow_clocks();
    tight.timers.lease_gate_ms = tight.timers.ttl_ms;
    tight.name = "A lease gate = TTL";
    tight.caught_by(&["own-L3"]);
}

#[test]
fn wrong_rules_of_the_bucket_are_caught() {
    bucket().with(Mutant::NoQuietTime).caught_by(&["own-L3"]);
    bucket().flawed(Flaw::NumbersRestart).caught_by(&["own-L2"]);
}

#[test]
fn wrong_rules_of_sessions_are_caught() {
    use Mutant::*;
    session().with(TakeOnEvidence).caught_by(&["own-L3", "own-T1"]);
    session().with(TakeOnSuspect).caught_by(&["own-L3", "own-T1"]);
    session().with(NoSessionGate).caught_by(&["own-L3", "own-T1"]);
    World { suspicions: 2, members: 3, ..session() }.with(GraceNotBoundToMark).caught_by(&["own-L3", "own-T1"]);
    let mut tight = session_of_slow_clocks();
    tight.timers.session_gate_ms = tight.timers.grace_ms;
    tight.name = "E session gate = grace";
    tight.caught_by(&["own-L3", "own-T1"]);
}

#[test]
fn wrong_rules_of_leaving_are_caught() {
    let expires = World { leaves: 1, writes: 4, zombies: 1, name: "L leaving by TTL", ..lease() };
    expires.flawed(Flaw::ReleaseUnconditional).caught_by(&["own-L4", "own-L2"]);
    World { zombies: 1, ..leave() }.with(Mutant::OfferBeforeStop).caught_by(&["own-L3"]);
    World { suspicions: 1, writes: 2, slow_replies: true, ..leave() }
        .with(Mutant::DeadBeforeStop)
        .caught_by(&["own-L3", "own-T1"]);
}

#[test]
fn wrong_rules_of_sources_are_caught() {
    use Mutant::*;
    source().with(OpenOverNewerTenure).caught_by(&["own-D3"]);
    source().with(PositionNotReadAtOpening).caught_by(&["own-D4"]);
    source().with(RetryUnderReadFence).caught_by(&["own-L7", "own-D4"]);
    reopening().with(ReopenWithoutTenureCheck).caught_by(&["own-D3"]);
    reopening().with(HeadNotReadFirst).caught_by(&["own-D6"]);
}

#[test]
fn wrong_rules_of_hand_over_are_caught() {
    use Mutant::*;
    let mut hasty = World { first_owners: 2, writes: 6, views: 1, ..handover() };
    hasty.timers.rank_delay_ms = 0;
    hasty.clone().with(YieldFrees).caught_by(&["own-H1"]);
    handover().with(AnyClaimant).caught_by(&["own-H1"]);
    hasty.with(OffererTakesBack).caught_by(&["own-H1"]);
}
