//! Tempting rules that are wrong, as switches that exist only in tests.
//!
//! `mutant!(node, Name)` is the constant `false` in every build but a test's: neither the switch nor the wrong rule is in a binary.

/// One wrong rule each. What goes wrong is told in `src/protocol/README.md`.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    TakeOnEvidence,
    TakeOnSuspect,
    NoSessionGate,
    NoLeaseGate,
    DeadlineFromReply,
    GraceNotBoundToMark,
    RenewUnknownIsLost,
    SuspectIsTaken,
    SuspectNotLookedAtAgain,
    UnknownCreateIsWon,
    OrphanNotAdopted,
    AdoptByName,
    SameIncarnationAgain,
    NoQuietTime,
    WinNotConfirmed,
    IdleDoNotBeat,
    BusyBeatAsIdle,
    OfferBeforeStop,
    DeadBeforeStop,
    OfferWaitWhileOffererLives,
    YieldFrees,
    AnyClaimant,
    OffererTakesBack,
    ClaimWithoutTenure,
    OpenOverNewerTenure,
    PositionNotReadAtOpening,
    PositionFromMemory,
    BatchTakenAsStored,
    RetryUnderReadFence,
    ReopenWithoutTenureCheck,
    NoReopening,
    HeadNotReadFirst,
    RunNamesPageOnly,
}

#[cfg(test)]
macro_rules! mutant {
    ($node:expr, $name:ident) => {
        $node.settings.mutant == Some(crate::protocol::mutant::Mutant::$name)
    };
}

#[cfg(not(test))]
macro_rules! mutant {
    ($node:expr, $name:ident) => {
        false
    };
}

pub(super) use mutant;
