//! The world around the nodes: a store with compare-and-set and expiry, requests that are applied at any later time or never, replies
//! that get lost, clocks that lose ticks, processes that crash and come back, probers that lie.
//!
//! Nothing here knows the protocol. Every step is one action of [`Act`]; a pause is any delay of a member's steps, so it needs no action.
//! Time is relative: the clock of every node stands at 0 and a tick moves its deadlines instead, so states are finite.

use std::collections::BTreeMap;

use crate::protocol::predicates::{self, Broken, Stored};
use crate::protocol::record::{Generation, Incarnation, KvRevision, Lease, Sequence, Session, Unit};
use crate::protocol::{
    Action, Checked, Class, Effect, Event, Evidence, Moment, Node, Outcome, Phase, Request, Role, Settings, Timers,
    UnitSpec,
};
use crate::source::Worker;

pub const NOW: Moment = Moment(0);
pub const NEVER: u64 = u64::MAX;

/// A wrong rule, or none, and how large the world is.
#[derive(Debug, Clone)]
pub struct World {
    pub name: &'static str,
    pub members: usize,
    pub timers: Timers,
    pub mutant: Option<crate::protocol::mutant::Mutant>,
    pub class: Class,
    /// Accepted writes to leases.
    pub writes: u64,
    /// Requests whose reply was given up and that may still be applied.
    pub zombies: usize,
    pub crashes: u8,
    /// Incarnations of each member.
    pub lives: u8,
    pub leaves: u8,
    pub recreations: u8,
    /// Changes of one member's view.
    pub views: u8,
    /// Owners that a unit may have before it is where it should be.
    pub first_owners: u8,
    /// Lies of probers and true evidence alike.
    pub suspicions: u8,
    /// Sessions are written and expire; else they are always fine.
    pub sessions: bool,
    /// A clock may lose one tick in each window of the TTL.
    pub lag: bool,
    /// Reads take a step of their own.
    pub slow_reads: bool,
    /// Replies take a step of their own.
    pub slow_replies: bool,
    /// Grants of a lease service that gives a unit to anyone at any moment, for worlds that look at the fence alone.
    pub grants: u64,
    pub pages: u64,
    /// New publications told to members.
    pub publications: u8,
    pub flaw: Option<Flaw>,
}

/// Wrong rules of the store's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    NumbersRestart,
    KeysWithoutGeneration,
    ReleaseUnconditional,
}

impl World {
    pub fn small(name: &'static str) -> Self {
        World {
            name,
            members: 2,
            timers: ticks(),
            mutant: None,
            class: Class::Fenced,
            writes: 3,
            zombies: 1,
            crashes: 0,
            lives: 1,
            leaves: 0,
            recreations: 0,
            views: 0,
            first_owners: 1,
            suspicions: 0,
            sessions: false,
            lag: false,
            slow_reads: false,
            slow_replies: false,
            grants: 0,
            pages: 0,
            publications: 0,
            flaw: None,
        }
    }
}

/// TTL 3, lease gate 2, session gate 1, grace 2, in ticks.
pub fn ticks() -> Timers {
    Timers {
        ttl_ms: 3,
        lease_gate_ms: 2,
        session_gate_ms: 1,
        grace_ms: 2,
        beat_ms: 1,
        idle_beat_ms: 1,
        renew_ms: 1,
        retry_ms: 1,
        request_timeout_ms: 1,
        rank_delay_ms: 0,
        settle_ms: NEVER,
        offer_wait_ms: 1,
        recheck_ms: NEVER,
        drift_ppm: 0,
        store_skew_ms: 0,
        sched_ms: 0,
        commit_p99_ms: 0,
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flying {
    /// Who waits for the reply; `None`: nobody any more.
    pub from: Option<usize>,
    pub request: Request,
    /// It was applied, and this reply is on its way.
    pub reply: Option<Outcome>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Letter {
    Claim { from: Incarnation, tenure: u64 },
    Decline { from: Incarnation, tenure: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record<T> {
    pub revision: KvRevision,
    pub value: T,
    pub age: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Store {
    pub generation: u64,
    pub lease: Option<Record<Lease>>,
    pub sessions: BTreeMap<Incarnation, Record<Session>>,
    pub last: u64,
    pub writes: u64,
    pub tenure_max: u64,
    /// All that the unit stored.
    pub log: Vec<(Sequence, Stored)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    pub node: Node,
    pub lives: u8,
    pub up: bool,
    /// Ticks until its clock may lose one again.
    pub steady: u64,
    pub worker: Option<Worker>,
    pub no: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub members: Vec<Member>,
    pub store: Store,
    pub flying: Vec<Flying>,
    pub letters: Vec<(Incarnation, Letter)>,
    pub crashes: u8,
    pub leaves: u8,
    pub recreations: u8,
    pub views: u8,
    pub suspicions: u8,
    pub publications: u8,
    /// Starts of the unit by each member, where moves are counted.
    pub starts: u8,
    pub broken: Option<Broken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    /// The request is applied and its reply arrives, if somebody waits for it.
    Deliver(usize),
    /// The request is applied; the reply comes later.
    Apply(usize),
    /// Nobody waits any more; the request may be applied later.
    TimeOut(usize),
    /// Time passes; the clock of this member loses the tick.
    Tick(Option<usize>),
    Wake(usize),
    Watch(usize),
    Suspect(usize, usize),
    Crash(usize),
    Begin(usize),
    Stopped(usize),
    Leave(usize),
    Letter(usize),
    View(usize, u8),
    Recreate,
    SeeBucket(usize),
    Work(usize),
    Publish(usize),
}

pub fn unit() -> Unit {
    Unit::new("source/0")
}

pub fn incarnation(member: usize, life: u8) -> Incarnation {
    Incarnation((member as u128 + 1) * 16 + u128::from(life))
}

pub fn member_of(inc: Incarnation) -> usize {
    (inc.0 / 16 - 1) as usize
}

impl World {
    pub fn spec(&self, no: u64) -> BTreeMap<Unit, UnitSpec> {
        let spec = UnitSpec { role: Role::Worker, class: self.class, fenced: self.pages > 0, no, digest: no };
        BTreeMap::from([(unit(), spec)])
    }

    fn view(&self, state: &State, mask: u8) -> Event {
        let there = (0..self.members).filter(|m| mask & (1 << m) != 0);
        let members =
            there.map(|m| (incarnation(m, state.members[m].lives.saturating_sub(1)), name(m).into())).collect();
        Event::Members { role: Role::Worker, members }
    }

    /// All incarnations a member may ever have: where views do not matter, everybody may try.
    fn view_of_all(&self) -> Event {
        let all =
            (0..self.members).flat_map(|m| (0..self.lives).map(move |life| (incarnation(m, life), name(m).into())));
        Event::Members { role: Role::Worker, members: all.collect() }
    }

    pub fn start(&self) -> State {
        let node = |m: usize| {
            let mut settings = Settings::new(name(m), Checked::assumed(self.timers.clone()));
            settings.mutant = self.mutant;
            Node::new(settings)
        };
        let members =
            (0..self.members).map(|m| Member { node: node(m), lives: 0, up: true, steady: 0, worker: None, no: 0 });
        let mut state = State {
            members: members.collect(),
            store: Store { generation: 1, ..Store::default() },
            flying: vec![],
            letters: vec![],
            crashes: 0,
            leaves: 0,
            recreations: 0,
            views: 0,
            suspicions: 0,
            publications: 0,
            starts: 0,
            broken: None,
        };
        for m in 0..self.members {
            self.begin(&mut state, m);
            // The first lives have begun: their sessions stand.
            while let Some(i) =
                state.flying.iter().position(|flying| flying.from == Some(m) && self.is_early(&flying.request))
            {
                self.deliver(&mut state, i);
            }
        }
        if self.views > 0 {
            for m in 0..self.members {
                let view = self.view(&state, 0b011);
                self.step(&mut state, m, view);
            }
        }
        self.canonical(&mut state);
        state
    }

    pub fn begin(&self, state: &mut State, m: usize) {
        let life = state.members[m].lives;
        let life = if self.mutant == Some(crate::protocol::mutant::Mutant::SameIncarnationAgain) { 0 } else { life };
        state.members[m].lives += 1;
        let generation = Generation(state.store.generation);
        let age_ms = if state.store.generation == 1 { NEVER } else { 0 };
        self.step(state, m, Event::Begin { inc: incarnation(m, life), generation, age_ms });
        if self.views == 0 {
            self.step(state, m, self.view_of_all());
        }
        let no = state.members[m].no;
        self.step(state, m, Event::Units(self.spec(no)));
    }

    /// One step of a node, and its effects on the world.
    pub fn step(&self, state: &mut State, m: usize, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let held = state.members[m].node.tenure(&unit());
            let answers = matches!(event, Event::Answer { .. }) && !state.members[m].node.gives_up(&unit(), NOW);
            let effects = state.members[m].node.step(NOW, event);
            let ended = held.filter(|_| answers && state.members[m].node.tenure(&unit()).is_none());
            if let Some(number) = ended
                && state.members[m].node.phase() != Phase::Ended
                && self.grants == 0
            {
                let record = state.store.lease.as_ref().map(|record| (record.revision, record.value.clone()));
                let inc = state.members[m].node.incarnation();
                note(state, predicates::ended_is_not_named(inc, number, record.as_ref()));
            }
            for effect in effects {
                self.perform(state, m, effect, &mut events);
            }
        }
    }

    fn perform(&self, state: &mut State, m: usize, effect: Effect, events: &mut Vec<Event>) {
        let from = state.members[m].node.incarnation();
        match effect {
            Effect::Ask(request) if self.is_calm(&request.action) => {
                let outcome = self.apply(state, &request);
                events.push(Event::Answer { ticket: request.ticket, outcome });
            }
            Effect::Ask(request) => state.flying.push(Flying { from: Some(m), request, reply: None }),
            Effect::Start { epoch, position, .. } => {
                state.starts += u8::from(self.views > 0);
                state.members[m].worker = epoch.map(|epoch| Worker::start(epoch, position.as_ref(), self.mutant));
                events.push(Event::Progress { unit: unit() });
            }
            Effect::Permit { .. } => events.push(Event::Progress { unit: unit() }),
            Effect::Stop { .. } => state.members[m].worker = None,
            Effect::Written { .. } => {
                if let Some(worker) = &mut state.members[m].worker {
                    worker.written();
                }
            }
            Effect::Rewind { position, .. } => {
                if let Some(worker) = &mut state.members[m].worker {
                    worker.rewind(position.as_ref());
                }
            }
            Effect::ReadHead { no, .. } => {
                state.members[m].no = no;
                events.push(Event::Units(self.spec(no)));
            }
            Effect::Claim { to, tenure, .. } => send(state, to, Letter::Claim { from, tenure: tenure.0 }),
            Effect::Decline { to, tenure, .. } => send(state, to, Letter::Decline { from, tenure: tenure.0 }),
            Effect::Refuse { .. } | Effect::Announce { .. } | Effect::Withdraw { .. } | Effect::Ended { .. } => {}
        }
    }

    /// Sessions stand, and where leases are looked at the first member holds the unit.
    fn is_early(&self, request: &Request) -> bool {
        matches!(request.action, Action::PutSession { .. } | Action::PutLease { .. })
    }

    fn is_calm(&self, action: &Action) -> bool {
        match action {
            Action::ReadSession(_) => !self.sessions || !self.slow_reads,
            Action::PutSession { .. } => !self.sessions,
            Action::ReadLease(_) => !self.slow_reads,
            Action::ReadBucket => self.recreations == 0,
            Action::PutLease { .. } => self.grants > 0,
            Action::ReadFence(_) => false,
            Action::AppendFence { .. } => false,
        }
    }

    pub fn deliver(&self, state: &mut State, i: usize) {
        let flying = state.flying.remove(i);
        let outcome = flying.reply.unwrap_or_else(|| self.apply(state, &flying.request));
        if let Some(m) = flying.from {
            self.step(state, m, Event::Answer { ticket: flying.request.ticket, outcome });
        }
    }

    /// The request is applied; its reply takes a step of its own.
    pub fn apply_only(&self, state: &mut State, i: usize) {
        let request = state.flying[i].request.clone();
        state.flying[i].reply = Some(self.apply(state, &request));
    }

    pub fn time_out(&self, state: &mut State, i: usize) {
        let flying = state.flying.remove(i);
        let Some(m) = flying.from else { return };
        let zombies = state.flying.iter().filter(|flying| flying.from.is_none()).count();
        if flying.reply.is_none() && zombies < self.zombies && crate::store::writes(&flying.request.action) {
            state.flying.push(Flying { from: None, request: flying.request.clone(), reply: None });
        }
        self.step(state, m, Event::Answer { ticket: flying.request.ticket, outcome: Outcome::Unknown });
    }

    pub fn tick(&self, state: &mut State, slow: Option<usize>) {
        let ttl = self.timers.ttl_ms;
        let older = u64::from(ttl != NEVER);
        if let Some(record) = &mut state.store.lease {
            record.age += older;
        }
        if self.grants == 0 && state.store.lease.as_ref().is_some_and(|record| record.age >= ttl) {
            state.store.lease = None;
        }
        for record in state.store.sessions.values_mut() {
            record.age += older;
        }
        state.store.sessions.retain(|_, record| record.age < ttl);
        for (m, member) in state.members.iter_mut().enumerate() {
            if slow == Some(m) {
                member.steady = ticks().ttl_ms;
            } else {
                member.node.rebase(1, &|_, revision| revision);
                member.steady = member.steady.saturating_sub(1);
            }
        }
    }

    pub fn crash(&self, state: &mut State, m: usize) {
        let member = &mut state.members[m];
        member.up = false;
        let mut settings = Settings::new(name(m), Checked::assumed(self.timers.clone()));
        settings.mutant = self.mutant;
        member.node = Node::new(settings);
        member.worker = None;
        state.crashes += 1;
    }

    pub fn set_view(&self, state: &mut State, m: usize, mask: u8) {
        let view = self.view(state, mask);
        state.views += 1;
        self.step(state, m, view);
    }

    pub fn evidence(&self, state: &mut State, m: usize, other: usize) {
        let inc = incarnation(other, state.members[other].lives.saturating_sub(1));
        state.suspicions += 1;
        self.step(state, m, Event::Suspicion { inc, evidence: Evidence::NoResponders });
    }

    /// Checks the observer's invariants, and makes states equal that behave alike.
    pub fn canonical(&self, state: &mut State) {
        let clocks = || state.members.iter().map(|member| (&member.node, NOW));
        let found = predicates::one_holder(state.members.iter().map(|member| &member.node), &unit());
        let found = if self.grants == 0 { found.and_then(|()| predicates::one_acts(clocks(), &unit())) } else { found };
        let found = if self.views > 0 {
            found.and_then(|()| predicates::moves_are_bounded(state.starts, self.first_owners, state.views))
        } else {
            found
        };
        note(state, found);
        crate::store::canonical(state);
    }
}

fn name(m: usize) -> &'static str {
    ["a", "b", "c"][m]
}

fn send(state: &mut State, to: Incarnation, letter: Letter) {
    let entry = (to, letter);
    if !state.letters.contains(&entry) {
        state.letters.push(entry);
    }
}

/// The first invariant that breaks is kept.
pub fn note(state: &mut State, found: Result<(), Broken>) {
    if let Err(broken) = found {
        state.broken.get_or_insert(broken);
    }
}
