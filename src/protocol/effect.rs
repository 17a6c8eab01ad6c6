//! What a [`Node`](super::Node) wants done. Effects are data; the shell performs them in the order they are given and decides nothing.
//!
//! # Performing them
//!
//! [`Effect::Ask`] is a request to a store. It carries a [`Ticket`]; the answer comes back as
//! [`Event::Answer`](super::Event::Answer) with the same ticket, exactly once, at the latest after the request time-out (then as
//! [`Outcome::Unknown`](super::Outcome::Unknown)). A request whose answer came back Unknown may still be applied at any later time.
//! At most one request per [`Subject`] is out at a time. Reads go to the leader of the store; a follower's answer is not an answer.

use super::record::{
    Fence, Generation, Incarnation, KvRevision, Lease, Position, Sequence, Session, TenureNumber, Unit,
};
use super::timers::Moment;

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    Session(Incarnation),
    Lease(Unit),
    /// The identity of the lease bucket, read again after a unit was won.
    Bucket(Unit),
    Fence(Unit),
}

/// The name of one request. An answer that does not echo the name of the request in flight is ignored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub subject: Subject,
    pub number: u64,
}

/// One request to a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub ticket: Ticket,
    /// Enters the keys of sessions and leases.
    pub generation: Generation,
    pub action: Action,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    ReadSession(Incarnation),
    /// Compare-and-set on the kv revision; `None` creates, and is refused when the key has a record.
    PutSession {
        expected: Option<KvRevision>,
        session: Session,
    },
    ReadLease(Unit),
    PutLease {
        expected: Option<KvRevision>,
        lease: Lease,
    },
    /// The creation time of the lease bucket as it is now.
    ReadBucket,
    ReadFence(Unit),
    /// Append the fence record, conditional on `expected` being the last sequence of the fence subject (`Sequence(0)`: none yet).
    /// With `batch`: one atomic batch, the worker's messages first, the fence record last.
    AppendFence {
        expected: Sequence,
        fence: Fence,
        batch: Option<Batch>,
    },
}

/// Messages that a worker holds ready, by the number it gave them in [`Event::Write`](super::Event::Write).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Batch(pub u64);

/// Why an incarnation is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ending {
    /// Its session could not be created for certain; the incarnation was never used.
    NotCreated,
    /// Its session is dead, gone, or not its own.
    SessionLost,
    /// The lease bucket was made anew or lost its tail.
    BucketRecreated,
    /// It left in good order.
    Left,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    Ask(Request),
    /// The session stands: announce this incarnation in `VEJAS_MEMBERS` under its roles. Never before.
    Announce {
        inc: Incarnation,
    },
    /// Withdraw the announcement.
    Withdraw {
        inc: Incarnation,
    },
    /// Run the unit, from `position` if there is one. It may act only before the moment of the latest [`Effect::Permit`].
    Start {
        unit: Unit,
        tenure: TenureNumber,
        /// `None` for a unit without a fence.
        epoch: Option<Sequence>,
        position: Option<Position>,
    },
    /// The unit may begin something while the process's own clock is before `until`. Nothing new may begin later; what is in flight may
    /// end, its result is written under the fence only.
    Permit {
        unit: Unit,
        until: Moment,
    },
    /// Stop the unit, end or abandon what is in flight, then tell [`Event::Stopped`](super::Event::Stopped).
    Stop {
        unit: Unit,
    },
    /// The batch is stored and so is its position.
    Written {
        unit: Unit,
        batch: Batch,
    },
    /// The batch in hand is not stored, or the manifest changed. The stored position is this one: a run in memory that it names goes on
    /// at its `off`, any other begins again at 0 (see [`fence::resume`](super::fence::resume)).
    Rewind {
        unit: Unit,
        position: Option<Position>,
    },
    /// A later publication than the one this member knows was at work here. Read `head` and tell [`Event::Units`](super::Event::Units).
    ReadHead {
        unit: Unit,
        no: u64,
    },
    /// To `to`, on its claim subject: hand the unit over, please.
    Claim {
        to: Incarnation,
        unit: Unit,
        tenure: TenureNumber,
    },
    /// To `to`: its claim is refused.
    Refuse {
        to: Incarnation,
        unit: Unit,
        tenure: TenureNumber,
    },
    /// To `to`: its offer is declined; it may take the unit back.
    Decline {
        to: Incarnation,
        unit: Unit,
        tenure: TenureNumber,
    },
    /// This incarnation is over; all units were told to stop. Unless it left, give the next one with
    /// [`Event::Begin`](super::Event::Begin).
    Ended {
        inc: Incarnation,
        why: Ending,
    },
}

/// What one step wants done, in order.
pub type Effects = Vec<Effect>;
