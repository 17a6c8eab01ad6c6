//! The machine: its state and its one door, [`Node::step`].
//!
//! The rules live beside this file, one per machine: sessions and suspicion in `session`, tenures in `lease`, moving them in `handover`,
//! opening and writing in `fence`. Here is what they share: the state, the names of requests, and the order in which things are due.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::effect::{Action, Effect, Effects, Ending, Request, Subject, Ticket};
use super::event::{Event, Outcome, UnitSpec};
use super::fence::Writer;
use super::lease::{Seen, Stage, Tenure};
use super::membership::{Doubt, Views};
use super::predicates;
use super::record::{Generation, Incarnation, Instance, KvRevision, Unit};
use super::timers::{Checked, Moment};

/// Units of one member. More are not taken, in the order of their names.
pub const UNITS_MAX: usize = 4096;

/// What a process is told once.
#[derive(Debug, Clone)]
pub struct Settings {
    pub instance: Instance,
    pub timers: Checked,
    #[cfg(test)]
    pub mutant: Option<super::mutant::Mutant>,
}

impl Settings {
    pub fn new(instance: &str, timers: Checked) -> Self {
        Settings {
            instance: instance.into(),
            timers,
            #[cfg(test)]
            mutant: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No incarnation: before the first life, or between two.
    Ended,
    /// The session is being created.
    Joining,
    Live,
    /// Stops all, hands over, buries its session.
    Leaving {
        give_up_at: Moment,
    },
}

/// What a request in flight was for. The answer is read by this, not by what the node wants by then.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Purpose {
    CreateSession,
    Beat,
    CheckSession,
    Bury,
    LookAt { mark: bool },
    Mark,
    Kill,
    Acquire,
    Renew { number: super::record::TenureNumber },
    CheckLease,
    Offer { heir: Option<Incarnation> },
    Confirm,
    ReadFence,
    Open { no: u64, digest: u64, position: Option<super::record::Position> },
    Write { batch: super::effect::Batch, position: super::record::Position },
    CheckWrite { batch: super::effect::Batch, position: super::record::Position },
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Sent {
    pub number: u64,
    pub purpose: Purpose,
    /// What a win opens the gate until, and until when the tenure is kept with a closed gate: both count from the send.
    pub gate: Moment,
    pub keep: Moment,
}

/// All there is about one unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct UnitState {
    pub spec: UnitSpec,
    /// This member may run it. A unit that is not wanted is kept until nothing of it is left.
    pub wanted: bool,
    pub seen: Seen,
    /// When this member's turn to ask for the record as seen comes.
    pub ask_at: Option<Moment>,
    pub recheck_at: Moment,
    pub claim_at: Option<Moment>,
    /// The heir declined what this member offered.
    pub declined: bool,
    /// Started, and not known to have stopped.
    pub running: bool,
    /// Told to stop.
    pub stopping: bool,
    pub tenure: Option<Tenure>,
    pub writer: Option<Writer>,
}

/// One member of the cluster. Pure: see the module's page.
#[derive(Debug, Clone)]
pub struct Node {
    pub(super) settings: Arc<Settings>,
    pub(super) phase: Phase,
    pub(super) inc: Incarnation,
    pub(super) generation: Option<Generation>,
    pub(super) session: KvRevision,
    /// Until when exclusive units may act.
    pub(super) session_until: Moment,
    pub(super) beat_at: Moment,
    /// Nothing is acquired before.
    pub(super) quiet_until: Moment,
    pub(super) doubts: BTreeMap<Incarnation, Doubt>,
    pub(super) views: Views,
    pub(super) units: BTreeMap<Unit, UnitState>,
    pub(super) pending: BTreeMap<Subject, Sent>,
    pub(super) requests: u64,
}

/// Two nodes are equal when they will behave alike; settings never change.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Node {}

impl std::hash::Hash for Node {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl Node {
    /// A node before its first life.
    pub fn new(settings: Settings) -> Self {
        Node {
            settings: Arc::new(settings),
            phase: Phase::Ended,
            inc: Incarnation(0),
            generation: None,
            session: KvRevision(0),
            session_until: Moment::PAST,
            beat_at: Moment::PAST,
            quiet_until: Moment::PAST,
            doubts: BTreeMap::new(),
            views: BTreeMap::new(),
            units: BTreeMap::new(),
            pending: BTreeMap::new(),
            requests: 0,
        }
    }

    #[allow(clippy::type_complexity)]
    fn parts(
        &self,
    ) -> (
        (Phase, Incarnation, Option<Generation>, KvRevision),
        [Moment; 3],
        &BTreeMap<Incarnation, Doubt>,
        &Views,
        &BTreeMap<Unit, UnitState>,
        (&BTreeMap<Subject, Sent>, u64),
    ) {
        (
            (self.phase, self.inc, self.generation, self.session),
            [self.session_until, self.beat_at, self.quiet_until],
            &self.doubts,
            &self.views,
            &self.units,
            (&self.pending, self.requests),
        )
    }

    /// The only door. `now` is the process's own monotonic clock and never goes back.
    pub fn step(&mut self, now: Moment, event: Event) -> Effects {
        let mut effects = Effects::new();
        self.take(now, event, &mut effects);
        self.due(now, &mut effects);
        if cfg!(debug_assertions) {
            predicates::check_node(self);
        }
        effects
    }

    fn take(&mut self, now: Moment, event: Event, effects: &mut Effects) {
        match event {
            Event::Tick => {}
            Event::Begin { inc, generation, age_ms } => self.begin(now, inc, generation, age_ms),
            Event::Bucket { generation, regressed } => {
                if self.phase != Phase::Ended && (regressed || self.generation != Some(generation)) {
                    self.end(Ending::BucketRecreated, effects);
                }
            }
            Event::Members { role, members } => self.members(role, members),
            Event::Units(units) => self.assign(units, effects),
            Event::Lease { unit, seen } => self.watched(now, &unit, seen, effects),
            Event::Answer { ticket, outcome } => self.answer(now, ticket, outcome, effects),
            Event::Suspicion { inc, evidence } => self.suspicion(inc, evidence, now, effects),
            Event::Progress { unit } => self.progress(&unit),
            Event::Stopped { unit } => self.stopped(&unit),
            Event::Write { unit, batch, position } => self.write(now, &unit, batch, position, effects),
            Event::Claim { from, unit, tenure } => self.claimed(from, &unit, tenure, effects),
            Event::Refused { unit, tenure } => self.refused(now, &unit, tenure),
            Event::Declined { from, unit, tenure } => self.declined(from, &unit, tenure),
            Event::Leave { within_ms } => self.leave(now, within_ms, effects),
        }
    }

    /// An answer to a request that is not in flight is ignored: it is older than what the node wants now.
    fn answer(&mut self, now: Moment, ticket: Ticket, outcome: Outcome, effects: &mut Effects) {
        if self.pending.get(&ticket.subject).is_none_or(|sent| sent.number != ticket.number) {
            return;
        }
        let Some(sent) = self.pending.remove(&ticket.subject) else { return };
        match ticket.subject {
            Subject::Session(inc) if inc == self.inc => self.session_answer(now, sent, outcome, effects),
            Subject::Session(inc) => self.doubt_answer(now, inc, &sent, outcome, effects),
            Subject::Lease(unit) => self.lease_answer(now, &unit, sent, outcome, effects),
            Subject::Bucket(unit) => self.bucket_answer(now, &unit, outcome, effects),
            Subject::Fence(unit) => self.fence_answer(now, &unit, sent.purpose, outcome, effects),
        }
    }

    fn due(&mut self, now: Moment, effects: &mut Effects) {
        if self.phase == Phase::Ended {
            return;
        }
        self.session_due(now, effects);
        if matches!(self.phase, Phase::Ended | Phase::Joining) {
            return;
        }
        self.doubts_due(now, effects);
        let units: Vec<Unit> = self.units.keys().cloned().collect();
        for unit in &units {
            self.lease_due(now, unit, effects);
            self.fence_due(now, unit, effects);
            self.handover_due(now, unit, effects);
        }
        // Asking for a unit may have made a beat due.
        self.session_due(now, effects);
        self.units.retain(|_, state| state.wanted || state.running || state.tenure.is_some());
        self.leave_due(now, effects);
    }

    fn begin(&mut self, now: Moment, inc: Incarnation, generation: Generation, age_ms: u64) {
        if self.phase != Phase::Ended {
            return;
        }
        let ttl_ms = self.settings.timers.ttl_ms;
        let fresh = self.generation.is_none_or(|known| known == generation);
        let quiet_ms = if fresh { ttl_ms.saturating_sub(age_ms) } else { ttl_ms };
        let quiet_ms = if super::mutant::mutant!(self, NoQuietTime) { 0 } else { quiet_ms };
        if !fresh {
            for unit in self.units.values_mut() {
                unit.seen = Seen::Nothing;
            }
        }
        self.generation = Some(generation);
        self.quiet_until = self.quiet_until.max(now.after(quiet_ms));
        self.inc = inc;
        self.phase = Phase::Joining;
        self.session = KvRevision(0);
        self.session_until = Moment::PAST;
        self.beat_at = now;
    }

    /// This incarnation is over: everything stops, nothing of it is waited for.
    pub(super) fn end(&mut self, why: Ending, effects: &mut Effects) {
        for (unit, state) in &mut self.units {
            state.drop_tenure(unit, effects);
            state.ask_at = None;
            state.claim_at = None;
            state.recheck_at = Moment::PAST;
        }
        self.pending.clear();
        self.doubts.clear();
        self.phase = Phase::Ended;
        self.session_until = Moment::PAST;
        if why != Ending::NotCreated {
            effects.push(Effect::Withdraw { inc: self.inc });
        }
        effects.push(Effect::Ended { inc: self.inc, why });
    }

    pub(super) fn is_free(&self, subject: &Subject) -> bool {
        !self.pending.contains_key(subject)
    }

    /// Sends a request under a new name.
    pub(super) fn ask(
        &mut self,
        now: Moment,
        subject: Subject,
        purpose: Purpose,
        action: Action,
        effects: &mut Effects,
    ) {
        let gate_ms = match purpose {
            Purpose::CreateSession | Purpose::Beat => self.settings.timers.session_gate_ms,
            Purpose::Acquire | Purpose::Renew { .. } => self.settings.timers.lease_gate_ms,
            _ => 0,
        };
        let (gate, keep) = match gate_ms {
            0 => (Moment::PAST, Moment::PAST),
            ms => (now.after(ms), now.after(ms.saturating_mul(2))),
        };
        self.requests += 1;
        let ticket = Ticket { subject: subject.clone(), number: self.requests };
        let before = self.pending.insert(subject, Sent { number: self.requests, purpose, gate, keep });
        assert!(before.is_none(), "two requests in flight for {:?}", ticket.subject);
        let Some(generation) = self.generation else { return };
        effects.push(Effect::Ask(Request { ticket, generation, action }));
    }

    /// Until when the unit may begin something, if it runs at all (own-S3).
    pub fn permit(&self, unit: &Unit) -> Option<Moment> {
        let state = self.units.get(unit)?;
        let tenure = state.tenure.as_ref()?;
        let early = super::mutant::mutant!(self, OfferBeforeStop) && matches!(tenure.stage, Stage::Yielding { .. });
        if (tenure.stage != Stage::Active && !early) || !state.running || state.stopping {
            return None;
        }
        Some(self.gates(state, tenure))
    }

    /// The unit may begin something now (own-S3).
    pub fn may_act(&self, unit: &Unit, now: Moment) -> bool {
        self.permit(unit).is_some_and(|until| !until.passed(now))
    }

    /// The tenure this member holds, by its own knowledge.
    pub fn tenure(&self, unit: &Unit) -> Option<super::record::TenureNumber> {
        Some(self.units.get(unit)?.tenure.as_ref()?.number)
    }

    pub fn incarnation(&self) -> Incarnation {
        self.inc
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }
}
