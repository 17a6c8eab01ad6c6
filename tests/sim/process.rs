//! One process of a member: its node, its clock, what waits for it, and what it was told.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::record::{Generation, Incarnation, KvRevision, Lease, Sequence, TenureNumber, Unit};
use crate::protocol::{Moment, Node, Outcome, Phase, Ticket};
use crate::store::Announcements;
use crate::worker::Worker;
use crate::world::Flight;

/// The process's own clock: runs at a rate of its own, stands at a number of its own, counts pauses.
#[derive(Debug, Clone)]
pub struct Clock {
    since: u64,
    base: u64,
    /// Ticks a million milliseconds take.
    rate: u64,
}

impl Clock {
    pub fn new(t: u64, base: u64, rate: u64) -> Self {
        Clock { since: t, base, rate }
    }

    pub fn now(&self, t: u64) -> Moment {
        Moment(self.base + (t - self.since) * self.rate / 1_000_000)
    }

    /// The first moment of the world at which the clock shows `moment`.
    pub fn at(&self, moment: Moment) -> u64 {
        let ticks = moment.0.saturating_sub(self.base);
        self.since + (u128::from(ticks) * 1_000_000).div_ceil(u128::from(self.rate)).min(1 << 60) as u64
    }

    pub fn set_rate(&mut self, t: u64, rate: u64) {
        *self = Clock { since: t, base: self.now(t).0, rate };
    }
}

/// What a member tells another on its own subject.
#[derive(Debug, Clone)]
pub enum Letter {
    Claim { from: Incarnation, unit: Unit, tenure: TenureNumber },
    Refused { unit: Unit, tenure: TenureNumber },
    Declined { from: Incarnation, unit: Unit, tenure: TenureNumber },
}

/// What reaches one process. It waits while the process is paused.
#[derive(Debug, Clone)]
pub enum Inbound {
    /// The answer to a request; `bus` is the life of the bus it comes from.
    Reply {
        ticket: Ticket,
        outcome: Outcome,
        bus: u64,
    },
    TimeOut {
        ticket: Ticket,
    },
    Wake,
    Watched {
        unit: Unit,
        generation: Generation,
        seen: Option<(KvRevision, Lease)>,
    },
    Listed(Announcements),
    Letter {
        to: Incarnation,
        letter: Letter,
    },
    Probe,
    /// The unit's loop comes round.
    Work {
        unit: Unit,
        worker: u64,
    },
    /// What the worker began has its effect.
    Effect {
        unit: Unit,
        worker: u64,
        tenure: Option<TenureNumber>,
    },
    Stopped {
        unit: Unit,
        worker: u64,
    },
    /// The heartbeat in the bucket of members, and a look at the identity of the lease bucket.
    Refresh,
    Bucket {
        life: u64,
        generation: Generation,
        age_ms: u64,
    },
    Head {
        unit: Unit,
        no: u64,
    },
    BeginAgain,
}

#[derive(Debug)]
pub struct Process {
    /// Unlike that of any other process of the run.
    pub number: u64,
    pub node: Node,
    pub clock: Clock,
    pub paused: bool,
    /// What came during the pause.
    pub backlog: Vec<Inbound>,
    pub pending: BTreeSet<Ticket>,
    /// Requests that the client holds until it is connected again.
    pub queue: Vec<Flight>,
    pub workers: BTreeMap<Unit, Worker>,
    /// Who holds what, as the watch told.
    pub holders: BTreeMap<Unit, Incarnation>,
    pub listed: Announcements,
    pub announced: Option<Incarnation>,
    /// Lives of the node so far.
    pub life: u64,
    /// It ends by itself once it has left.
    pub leaving: bool,
    pub numbers: BTreeMap<Unit, u64>,
    /// When the next tick is due.
    pub wakes_at: Option<u64>,
    /// A watch tells in order: not before this.
    pub watched_until: u64,
}

impl Process {
    pub fn new(number: u64, node: Node, clock: Clock) -> Self {
        Process {
            number,
            node,
            clock,
            paused: false,
            backlog: vec![],
            pending: BTreeSet::new(),
            queue: vec![],
            workers: BTreeMap::new(),
            holders: BTreeMap::new(),
            listed: BTreeMap::new(),
            announced: None,
            life: 0,
            leaving: false,
            numbers: BTreeMap::new(),
            wakes_at: None,
            watched_until: 0,
        }
    }

    pub fn worker(&mut self, unit: &Unit, number: u64) -> Option<&mut Worker> {
        self.workers.get_mut(unit).filter(|worker| worker.number == number)
    }

    /// Its shell would let the unit begin something now.
    pub fn may_begin(&self, unit: &Unit, now: Moment) -> bool {
        self.workers.get(unit).is_some_and(|worker| worker.may_begin(now))
    }

    pub fn is_live(&self) -> bool {
        self.node.phase() == Phase::Live
    }

    pub fn start(
        &mut self,
        unit: &Unit,
        number: u64,
        epoch: Option<Sequence>,
        position: Option<&crate::protocol::record::Position>,
        (repeatable, mutant): (bool, Option<crate::protocol::mutant::Mutant>),
    ) {
        let worker = Worker::start(number, epoch, position, repeatable, mutant);
        self.workers.insert(unit.clone(), worker);
    }
}
