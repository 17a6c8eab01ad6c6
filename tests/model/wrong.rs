//! The wrong rules, and the worlds that catch them.

use crate::protocol::mutant::Mutant;
use crate::world::{Flaw, NEVER, World};
use crate::worlds::*;

#[test]
fn wrong_rules_of_leases_are_caught() {
    use Mutant::*;
    lease().with(NoLeaseGate).caught_by(&["own-L3"]);
    lease().with(RenewUnknownIsLost).caught_by(&["own-A1"]);
    lease().with(UnknownCreateIsWon).caught_by(&["own-L1", "own-L3"]);
    namesakes().with(AdoptByName).caught_by(&["own-L1", "own-L3", "own-T1"]);
    slow_replies().with(DeadlineFromReply).caught_by(&["own-L3"]);
    let mut tight = lease_of_slow_clocks();
    tight.timers.lease_gate_ms = tight.timers.ttl_ms;
    tight.name = "A lease gate = TTL";
    tight.caught_by(&["own-L3"]);
}

#[test]
fn wrong_rules_of_the_bucket_are_caught() {
    bucket().with(Mutant::NoQuietTime).caught_by(&["own-L3"]);
    bucket().with(Mutant::WinNotConfirmed).caught_by(&["own-L3"]);
    bucket().flawed(Flaw::NumbersRestart).caught_by(&["own-L2"]);
    bucket_of_restarting_numbers().flawed(Flaw::KeysWithoutGeneration).caught_by(&["own-L4"]);
    let unnoticed = World { noticed: false, name: "A numbers restart unnoticed", ..bucket_of_restarting_numbers() };
    unnoticed.caught_by(&["own-L4"]);
}

#[test]
fn wrong_rules_of_sessions_are_caught() {
    use Mutant::*;
    session().with(TakeOnEvidence).caught_by(&["own-L3", "own-T1"]);
    session().with(TakeOnSuspect).caught_by(&["own-L3", "own-T1"]);
    session().with(SuspectIsTaken).caught_by(&["own-A1"]);
    session_that_expires().with(SameIncarnationAgain).caught_by(&["own-L3", "own-T1"]);
    session().with(NoSessionGate).caught_by(&["own-L3", "own-T1"]);
    World { suspicions: 2, members: 3, zombies: 0, ..session() }
        .with(GraceNotBoundToMark)
        .caught_by(&["own-L3", "own-T1"]);
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
    World { suspicions: 1, writes: 2, zombies: 0, slow_replies: true, ..leave() }
        .with(Mutant::DeadBeforeStop)
        .caught_by(&["own-L3", "own-T1", "own-A1"]);
}

#[test]
fn wrong_rules_of_sources_are_caught() {
    use Mutant::*;
    source().with(OpenOverNewerTenure).caught_by(&["own-D3"]);
    source().with(PositionNotReadAtOpening).caught_by(&["own-D4"]);
    source().with(RetryUnderReadFence).caught_by(&["own-L7", "own-D4"]);
    World { grants: 2, pages: 1, ..source() }.with(RunNamesPageOnly).caught_by(&["own-G2"]);
    reopening().with(ReopenWithoutTenureCheck).caught_by(&["own-D3"]);
    reopening().with(HeadNotReadFirst).caught_by(&["own-D6"]);
    reopening().with(NoReopening).caught_by(&["own-D7"]);
    reopening().with(PositionFromMemory).caught_by(&["own-D4"]);
    reopening().with(BatchTakenAsStored).caught_by(&["own-D2"]);
}

#[test]
fn wrong_rules_of_hand_over_are_caught() {
    use Mutant::*;
    hasty().with(YieldFrees).caught_by(&["own-H1"]);
    handover().with(AnyClaimant).caught_by(&["own-H1"]);
    hasty().with(OffererTakesBack).caught_by(&["own-H1"]);
    old_claims().with(ClaimWithoutTenure).caught_by(&["own-H1"]);
    let mut impatient = World { name: "H rebalance, no wait for an heir", ..hasty() };
    impatient.timers.offer_wait_ms = 0;
    impatient.with(OfferWaitWhileOffererLives).caught_by(&["own-H1"]);
}

#[test]
fn wrong_rules_that_leave_a_unit_alone_are_caught() {
    use Mutant::*;
    healing_of_orphans().with(OrphanNotAdopted).caught_by(&["own-L5"]);
    healing_by_suspicion().with(SuspectNotLookedAtAgain).caught_by(&["own-L5"]);
    calm_leaving().with(IdleDoNotBeat).caught_by(&["own-L5"]);
    let mut seldom = World { name: "Live E, idle members beat seldom", ..healing_by_suspicion() };
    seldom.timers.idle_beat_ms = NEVER;
    seldom.with(BusyBeatAsIdle).caught_by(&["own-L5"]);
}

/// The bounds of own-L5 are the smallest that hold.
#[test]
fn one_tick_less_is_too_little_for_the_owner_to_be_there_again() {
    let by_ttl = healing_by_ttl();
    let bound = by_ttl.heals_within.map(|bound| bound - 1);
    World { heals_within: bound, name: "Live A, one tick less", ..by_ttl }.caught_by(&["own-L5"]);
    let by_suspicion = healing_by_suspicion();
    let bound = by_suspicion.heals_within.map(|bound| bound - 1);
    World { heals_within: bound, name: "Live E, one tick less", ..by_suspicion }.caught_by(&["own-L5"]);
}
