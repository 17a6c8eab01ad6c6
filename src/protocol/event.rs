//! What a [`Node`](super::Node) is told. Whatever is not an event does not exist for it: it reads no clock, no store, no chance.
//!
//! # Driving a node
//!
//! One task owns the node. It calls [`Node::step`](super::Node::step) with its monotonic clock (suspend included) and one event, performs
//! the effects, and waits for the next event or for [`Node::wakes_at`](super::Node::wakes_at), whichever comes first; then it steps with
//! [`Event::Tick`]. A late tick is safe: gates close by the moments handed out in [`Effect::Permit`](super::Effect::Permit), not by ticks.
//! The moment of a step that sends a request is the moment from which its gates count, so a request must not leave before it.
//!
//! A life: [`Event::Begin`] with a fresh incarnation, `Effect::Announce`, [`Event::Members`] and [`Event::Units`] whenever they change,
//! leases as the watch shows them; at the end `Effect::Ended`, and another `Begin` unless the node left.

use std::collections::{BTreeMap, BTreeSet};

use super::effect::{Batch, Ticket};
use super::record::{Fence, Generation, Incarnation, Instance, KvRevision, Lease, Position, Sequence, Session};
use super::record::{TenureNumber, Unit};

/// How a request to a store ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Acknowledged: the kv revision (session, lease) or the sequence (fence) of the write.
    Won(u64),
    /// Refused for certain, because the expectation did not hold (code 10071).
    Lost,
    /// Not applied, may be tried again (10164, 503).
    Busy,
    /// Time-out, disconnect, no responders from the API: it may have been applied, or may still be.
    Unknown,
    /// What a leader read found. `None`: no such key, a delete marker counts as none.
    Session(Option<(KvRevision, Session)>),
    /// As [`Outcome::Session`].
    Lease(Option<(KvRevision, Lease)>),
    /// As [`Outcome::Session`].
    Fence(Option<(Sequence, Fence)>),
    /// The identity of the bucket that answers now.
    Bucket(Generation),
}

/// Where something is run, and so among whom it is ranked. Written as in `VEJAS_ROLES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Sources and chores.
    Worker,
    Sink,
    Engine,
    Notifier,
}

/// A unit acts through the bus alone, or also outside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Through the bus alone (interval, kafka, entity shards): the fence keeps it safe.
    Fenced,
    /// Also outside (poll, exec, stream, mqtt, git sync): needs an open session gate as well.
    Exclusive,
}

/// One unit that this member may run. A unit whose digest this member does not hold is not told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitSpec {
    pub role: Role,
    pub class: Class,
    /// It writes under a fence record. Chores that store nothing do not.
    pub fenced: bool,
    /// Publication number and digest, as they go into the fence record.
    pub no: u64,
    pub digest: u64,
}

/// Evidence that a member died. Proves nothing: it makes the node look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// One ping was answered "no responders".
    NoResponders,
    /// Its connection was seen to go, or its announcement.
    Departed,
    /// A ping had no answer in time. Never marks anybody: a paused process looks the same and may wake.
    TimedOut,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// Time passed.
    Tick,
    /// A life begins. `inc` was never used before; `generation` was just read; `age_ms` is how long ago the bucket was created,
    /// by the store's own clock.
    Begin { inc: Incarnation, generation: Generation, age_ms: u64 },
    /// The bucket as the shell sees it: another generation, or a last sequence below one it has seen (`regressed`).
    Bucket { generation: Generation, regressed: bool },
    /// The announced members of a role, this one included once it is announced. At most
    /// [`MEMBERS_MAX`](super::membership::MEMBERS_MAX).
    Members { role: Role, members: BTreeMap<Incarnation, Instance> },
    /// All units this member may run now. At most [`UNITS_MAX`](super::node::UNITS_MAX).
    Units(BTreeMap<Unit, UnitSpec>),
    /// The lease as a watch, a listing or a read of the bucket shows it. May be late.
    Lease { unit: Unit, seen: Option<(KvRevision, Lease)> },
    /// Answers the request of that name.
    Answer { ticket: Ticket, outcome: Outcome },
    /// Somebody seems gone.
    Suspicion { inc: Incarnation, evidence: Evidence },
    /// The unit's loop passed its watchdog point. Told at least every third of the TTL, also when idle; without it no lease is renewed.
    Progress { unit: Unit },
    /// The unit has stopped: nothing of it runs any more, nothing of it is queued.
    Stopped { unit: Unit },
    /// The unit's worker wants its batch stored together with `position`.
    Write { unit: Unit, batch: Batch, position: Position },
    /// A member asks for a unit.
    Claim { from: Incarnation, unit: Unit, tenure: TenureNumber },
    /// The holder refuses the claim of `tenure`.
    Refused { unit: Unit, tenure: TenureNumber },
    /// The heir declines the offer of `tenure`.
    Declined { from: Incarnation, unit: Unit, tenure: TenureNumber },
    /// SIGTERM: stop, hand over, leave. What is not done after `within_ms` is left to the others' timers.
    Leave { within_ms: u64 },
}

/// Incarnations, in the order of their value.
pub type Incarnations = BTreeSet<Incarnation>;
