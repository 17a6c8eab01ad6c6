//! The wrong rules, and the worlds that catch them.

use crate::protocol::mutant::Mutant;
use crate::world::{Flaw, World};
use crate::worlds::*;

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
        .caught_by(&["own-L3", "own-T1", "own-A1"]);
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
    hasty().with(YieldFrees).caught_by(&["own-H1"]);
    handover().with(AnyClaimant).caught_by(&["own-H1"]);
    hasty().with(OffererTakesBack).caught_by(&["own-H1"]);
}

#[test]
fn n_claim_without_tenure() {
    old_claims().with(Mutant::ClaimWithoutTenure).caught_by(&["own-H1"]);
}
#[test]
fn n_offer_wait() {
    let mut h = hasty();
    h.timers.offer_wait_ms = 0;
    h.with(Mutant::OfferWaitWhileOffererLives).caught_by(&["own-H1"]);
}
#[test]
fn n_keys() {
    bucket_of_restarting_numbers().flawed(Flaw::KeysWithoutGeneration).caught_by(&["own-L4"]);
}
#[test]
fn n_not_confirmed() {
    World { writes: 3, ..bucket() }.with(Mutant::WinNotConfirmed).caught_by(&["own-L3"]);
}
#[test]
fn n_suspect_taken() {
    session().with(Mutant::SuspectIsTaken).caught_by(&["own-A1"]);
}
#[test]
fn n_orphan() {
    healing_by_suspicion().with(Mutant::OrphanNotAdopted).caught_by(&["own-L5"]);
}
#[test]
fn n_idle() {
    calm_leaving().with(Mutant::IdleDoNotBeat).caught_by(&["own-L5"]);
}
#[test]
fn n_busy_idle() {
    let mut w = healing_by_suspicion();
    w.timers.idle_beat_ms = crate::world::NEVER;
    w.with(Mutant::BusyBeatAsIdle).caught_by(&["own-L5"]);
}
#[test]
fn n_by_name() {
    namesakes().with(Mutant::AdoptByName).caught_by(&["own-L1", "own-L3"]);
}
#[test]
fn n_same_inc() {
    session_that_expires().with(Mutant::SameIncarnationAgain).caught_by(&["own-L3", "own-T1"]);
}
#[test]
fn n_no_reopening() {
    reopening().with(Mutant::NoReopening).caught_by(&["own-D7"]);
}
#[test]
fn n_memory() {
    reopening().with(Mutant::PositionFromMemory).caught_by(&["own-D4"]);
}
#[test]
fn n_batch_stored() {
    reopening().with(Mutant::BatchTakenAsStored).caught_by(&["own-D2"]);
}
#[test]
fn n_run() {
    World { grants: 2, pages: 1, ..source() }.with(Mutant::RunNamesPageOnly).caught_by(&["own-G2"]);
}
#[test]
fn n_ttl_tight() {
    World { heals_within: Some(2), ..healing_by_ttl() }.caught_by(&["own-L5"]);
}
#[test]
fn n_grace_tight() {
    World { heals_within: Some(1), ..healing_by_suspicion() }.caught_by(&["own-L5"]);
}
