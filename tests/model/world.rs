//! The world around the nodes: how large it is, what is in it, and how it begins.
//!
//! A store with compare-and-set and expiry, requests that are applied at any later time or never, replies that get lost, clocks that lose
//! ticks, processes that crash and come back, probers that lie. Nothing here knows the protocol. Every step is one action of [`Act`]; a
//! pause is any delay of a member's steps, so it needs no action. Time is relative: the clock of every node stands at 0 and a tick moves
//! its deadlines instead, so states are finite.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::kept::Kept;
use crate::protocol::mutant::Mutant;
use crate::protocol::predicates::{Broken, Stored};
use crate::protocol::record::{Generation, Incarnation, KvRevision, Lease, Sequence, Session, Unit};
use crate::protocol::{
    Action, Checked, Class, Event, Moment, Node, Outcome, Request, Role, Settings, Timers, UnitSpec,
};
use crate::source::Worker;

pub const NOW: Moment = Moment(0);
pub const NEVER: u64 = u64::MAX;

/// A wrong rule, or none, and how large the world is.
#[derive(Debug, Clone)]
pub struct World {
    pub name: &'static str,
    pub members: usize,
    pub units: usize,
    pub timers: Timers,
    pub mutant: Option<Mutant>,
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
    /// A bucket made anew counts its revisions from 1 again.
    pub restarts: bool,
    /// All notice at once that the bucket was made anew; late requests do not.
    pub noticed: bool,
    /// Changes of one member's view.
    pub views: u8,
    /// A view may leave out the member itself.
    pub views_without_self: bool,
    /// Claims of a tenure long past are on their way, and arrive again and again.
    pub old_claims: bool,
    /// Owners that a unit may have before it is where it should be.
    pub first_owners: u8,
    /// Nobody owns anything at the beginning; else the first member owns all.
    pub unowned: bool,
    /// All members have the same instance name.
    pub one_name: bool,
    /// Lies of probers and true evidence alike.
    pub suspicions: u8,
    /// Sessions are written and expire; else they are always fine. Leases expire where they are renewed.
    pub sessions: bool,
    /// Only so many ticks are looked at.
    pub ticks: Option<u64>,
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
    /// Nothing fails from some moment on; then somebody must act within this many ticks.
    pub heals_within: Option<u64>,
    /// Nothing fails from the beginning, and this many ticks are looked at. With `heals_within`.
    pub calm_ticks: Option<u64>,
    pub flaw: Option<Flaw>,
    /// A counterexample was found: the first is a shortest one.
    pub found: Arc<AtomicBool>,
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
            units: 1,
            timers: ticks(),
            mutant: None,
            class: Class::Fenced,
            writes: 3,
            zombies: 1,
            crashes: 0,
            lives: 1,
            leaves: 0,
            recreations: 0,
            restarts: false,
            noticed: false,
            views: 0,
            views_without_self: false,
            old_claims: false,
            first_owners: 1,
            unowned: false,
            one_name: false,
            suspicions: 0,
            sessions: false,
            ticks: None,
            lag: false,
            slow_reads: false,
            slow_replies: false,
            grants: 0,
            pages: 0,
            publications: 0,
            heals_within: None,
            calm_ticks: None,
            flaw: None,
            found: Arc::default(),
        }
    }

    pub fn with(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }

    pub fn flawed(mut self, flaw: Flaw) -> Self {
        self.flaw = Some(flaw);
        self
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
pub struct Letter {
    pub to: Incarnation,
    pub from: Incarnation,
    pub unit: usize,
    pub tenure: u64,
    pub kind: LetterKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LetterKind {
    Claim,
    Decline,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record<T> {
    pub revision: KvRevision,
    pub value: T,
    pub age: u64,
}

/// The bucket that is there now. Its keys carry a generation, and nobody is kept from writing keys of an older one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Store {
    pub generation: u64,
    pub leases: BTreeMap<(Generation, usize), Record<Lease>>,
    pub sessions: BTreeMap<(Generation, Incarnation), Record<Session>>,
    pub last: u64,
    pub writes: u64,
    pub tenure_max: [u64; UNITS_MAX],
    /// All that the unit stored.
    pub log: Vec<(Sequence, Stored)>,
}

/// Units of a world.
pub const UNITS_MAX: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    /// Which of the members: two nodes are compared without their settings.
    pub place: usize,
    pub node: Node,
    pub lives: u8,
    /// The last of them was announced.
    pub announced: bool,
    /// Ticks until its clock may lose one again.
    pub steady: u64,
    pub worker: Option<Worker>,
    pub no: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub members: Vec<Kept<Member>>,
    pub store: Kept<Store>,
    pub flying: Vec<Flying>,
    pub letters: Vec<Letter>,
    pub crashes: u8,
    pub leaves: u8,
    pub recreations: u8,
    pub views: u8,
    pub suspicions: u8,
    pub publications: u8,
    /// Starts of the unit by each member, where moves are counted.
    pub starts: u8,
    /// Nothing fails any more.
    pub healed: bool,
    /// Ticks, where they are counted; and those in a row since the heal after which nobody acted.
    pub ticks: u64,
    pub idle: [u64; UNITS_MAX],
    pub broken: Option<Broken>,
}

impl State {
    pub fn member(&mut self, m: usize) -> &mut Member {
        self.members[m].edit()
    }
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
    Watch(usize, usize),
    Suspect(usize, Incarnation),
    Crash(usize),
    Begin(usize),
    Stopped(usize, usize),
    Leave(usize),
    Letter(usize),
    View(usize, u8),
    Recreate,
    SeeBucket(usize),
    Work(usize),
    Publish(usize),
    /// From now on nothing fails.
    Heal,
}

pub fn unit(u: usize) -> Unit {
    Unit::new(["source/0", "source/1"][u])
}

/// The place of a unit among those of the world.
pub fn place(unit: &Unit) -> usize {
    usize::from(unit.as_str().ends_with('1'))
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
        (0..self.units).map(|u| (unit(u), spec.clone())).collect()
    }

    fn name_of(&self, m: usize) -> &'static str {
        if self.one_name { "a" } else { ["a", "b", "c"][m] }
    }

    pub fn view(&self, state: &State, mask: u8) -> Event {
        let there = (0..self.members).filter(|m| mask & (1 << m) != 0);
        let members =
            there.map(|m| (incarnation(m, state.members[m].lives.saturating_sub(1)), self.name_of(m).into())).collect();
        Event::Members { role: Role::Worker, members }
    }

    /// All incarnations a member may ever have: where views do not matter, everybody may try.
    fn view_of_all(&self) -> Event {
        let all = (0..self.members)
            .flat_map(|m| (0..self.lives).map(move |life| (incarnation(m, life), self.name_of(m).into())));
        Event::Members { role: Role::Worker, members: all.collect() }
    }

    /// A process before its first life.
    pub fn member(&self, m: usize) -> Member {
        let mut settings = Settings::new(self.name_of(m), Checked::assumed(self.timers.clone()));
        settings.mutant = self.mutant;
        Member { place: m, node: Node::new(settings), lives: 0, announced: false, steady: 0, worker: None, no: 0 }
    }

    pub fn start(&self) -> State {
        let mut state = State {
            members: (0..self.members).map(|m| Kept::new(self.member(m))).collect(),
            store: Kept::new(Store { generation: 1, ..Store::default() }),
            flying: vec![],
            letters: vec![],
            crashes: 0,
            leaves: 0,
            recreations: 0,
            views: 0,
            suspicions: 0,
            publications: 0,
            starts: 0,
            healed: self.calm_ticks.is_some(),
            ticks: 0,
            idle: [0; UNITS_MAX],
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
        if self.old_claims {
            let pairs = (0..self.members).flat_map(|to| (0..self.members).map(move |from| (to, from)));
            let claims = pairs.filter(|(to, from)| to != from).map(|(to, from)| Letter {
                to: incarnation(to, 0),
                from: incarnation(from, 0),
                unit: 0,
                tenure: 0,
                kind: LetterKind::Claim,
            });
            state.letters.extend(claims);
        }
        self.canonical(&mut state);
        state
    }

    /// Sessions stand, and where somebody owns at the beginning it is the first member.
    fn is_early(&self, request: &Request) -> bool {
        match request.action {
            Action::PutSession { .. } => true,
            Action::PutLease { .. } => !self.unowned,
            _ => false,
        }
    }

    pub fn begin(&self, state: &mut State, m: usize) {
        let life = state.members[m].lives;
        let life = if self.mutant == Some(Mutant::SameIncarnationAgain) { 0 } else { life };
        state.member(m).lives += 1;
        state.member(m).announced = false;
        let generation = Generation(state.store.generation);
        let age_ms = if state.store.generation == 1 { NEVER } else { 0 };
        self.step(state, m, Event::Begin { inc: incarnation(m, life), generation, age_ms });
        if self.views == 0 {
            self.step(state, m, self.view_of_all());
        }
        let no = state.members[m].no;
        self.step(state, m, Event::Units(self.spec(no)));
    }
}

/// The first invariant that breaks is kept.
pub fn note(state: &mut State, found: Result<(), Broken>) {
    if let Err(broken) = found {
        state.broken.get_or_insert(broken);
    }
}
