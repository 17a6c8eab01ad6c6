//! Moving a unit while everybody lives: claims, offers, leaving, and what happens when the set of units changes (rules own-H1 to own-H4,
//! own-L-leave, own-L-release).
//!
//! A holder never frees a unit because it thinks that another should have it: views differ for a while, and the unit would bounce. Who is
//! first in its own view asks; the holder agrees only if its own view says the same; then it stops, and only then offers.

use std::collections::BTreeMap;

use super::effect::{Action, Effect, Effects, Ending, Subject};
use super::event::UnitSpec;
use super::lease::{Seen, Stage};
use super::mutant::mutant;
use super::node::{Phase, Purpose, UNITS_MAX, UnitState};
use super::record::{Hold, Incarnation, KvRevision, Lease, SessionState, TenureNumber, Unit};
use super::timers::Moment;
use super::{Node, record};

/// A claim that brought nothing is made again after this many settle times.
const CLAIM_AGAIN_SETTLES: u64 = 4;

impl Node {
    pub(super) fn assign(&mut self, mut units: BTreeMap<Unit, UnitSpec>, effects: &mut Effects) {
        while units.len() > UNITS_MAX {
            units.pop_last();
        }
        let dropped: Vec<_> = self.units.keys().filter(|unit| !units.contains_key(*unit)).cloned().collect();
        for unit in dropped {
            if let Some(state) = self.units.get_mut(&unit) {
                state.wanted = false;
                state.ask_at = None;
            }
            self.yield_unit(&unit, None, effects);
        }
        for (unit, spec) in units {
            self.wish(unit, spec, effects);
        }
    }

    fn wish(&mut self, unit: Unit, spec: UnitSpec, effects: &mut Effects) {
        let reopens = !mutant!(self, NoReopening);
        let state = self.units.entry(unit.clone()).or_insert_with(|| UnitState {
            spec: spec.clone(),
            wanted: true,
            seen: Seen::Nothing,
            ask_at: None,
            recheck_at: Moment::PAST,
            claim_at: None,
            declined: false,
            running: false,
            stopping: false,
            tenure: None,
            writer: None,
        });
        state.wanted = true;
        if state.spec == spec {
            return;
        }
        state.spec = spec;
        // The run in hand is given up; the unit opens again under the same tenure (own-O1b).
        if let Some(tenure) = &mut state.tenure
            && tenure.stage == Stage::Active
            && reopens
        {
            tenure.stage = Stage::Opening;
            tenure.retry_at = Moment::PAST;
            state.order_stop(&unit, effects);
        }
    }

    /// Stops the unit; once it has stopped it is offered to `heir`, or freed.
    pub(super) fn yield_unit(&mut self, unit: &Unit, heir: Option<Incarnation>, effects: &mut Effects) {
        let stops = !mutant!(self, OfferBeforeStop);
        let Some(state) = self.units.get_mut(unit) else { return };
        let Some(tenure) = &mut state.tenure else { return };
        if !matches!(tenure.stage, Stage::Yielding { .. }) {
            tenure.stage = Stage::Yielding { heir };
            tenure.retry_at = Moment::PAST;
            if stops {
                state.order_stop(unit, effects);
            }
        }
    }

    pub(super) fn stopped(&mut self, unit: &Unit) {
        if let Some(state) = self.units.get_mut(unit) {
            state.running = false;
            state.stopping = false;
        }
    }

    pub(super) fn all_stopped(&self) -> bool {
        self.units.values().all(|state| !state.running)
    }

    /// One compare-and-set from `held`. Refused: read; still mine, again.
    pub(super) fn offer(&mut self, now: Moment, unit: &Unit, heir: Option<Incarnation>, effects: &mut Effects) {
        let Some(tenure) = self.units.get(unit).and_then(|state| state.tenure.as_ref()) else { return };
        let expected = Some(tenure.revision);
        let lease = self.lease(unit, heir.map_or(Hold::Free, |heir| Hold::Offered { heir }), Some(tenure.number));
        let action = Action::PutLease { expected, lease };
        self.ask(now, Subject::Lease(unit.clone()), Purpose::Offer { heir }, action, effects);
    }

    pub(super) fn offered(
        &mut self,
        now: Moment,
        unit: &Unit,
        heir: Option<Incarnation>,
        revision: KvRevision,
        effects: &mut Effects,
    ) {
        let Some(number) = self.tenure(unit) else { return };
        let lease = self.lease(unit, heir.map_or(Hold::Free, |heir| Hold::Offered { heir }), Some(number));
        let recheck_at = now.after(self.settings.timers.recheck_ms);
        let Some(state) = self.units.get_mut(unit) else { return };
        state.drop_tenure(unit, effects);
        state.seen = Seen::Record(revision, lease);
        state.recheck_at = recheck_at;
    }

    pub(super) fn decline_if_unwanted(&self, unit: &Unit, seen: Option<&(KvRevision, Lease)>, effects: &mut Effects) {
        let wanted = self.phase == Phase::Live && self.units.get(unit).is_some_and(|state| state.wanted);
        if let Some((revision, lease)) = seen
            && lease.hold == (Hold::Offered { heir: self.inc })
            && !wanted
            && self.phase != Phase::Ended
        {
            effects.push(Effect::Decline { to: lease.inc, unit: unit.clone(), tenure: lease.tenure_at(*revision) });
        }
    }

    /// Whoever is first in its own view for the settle time asks the holder (own-H1).
    pub(super) fn handover_due(&mut self, now: Moment, unit: &Unit, effects: &mut Effects) {
        let first = self.rank_of(unit, self.inc) == Some(0);
        let settle_ms = self.settings.timers.settle_ms;
        let Some(state) = self.units.get(unit) else { return };
        if mutant!(self, YieldFrees) && !first && state.running {
            return self.yield_unit(unit, None, effects);
        }
        let holder = match &state.seen {
            Seen::Record(revision, lease) if lease.hold == Hold::Held => Some((lease.inc, lease.tenure_at(*revision))),
            _ => None,
        };
        let ready = self.phase == Phase::Live && state.wanted && state.tenure.is_none() && self.quiet_until.passed(now);
        let holder = holder.filter(|(inc, _)| ready && first && *inc != self.inc && !self.is_gone(*inc));
        let Some(state) = self.units.get_mut(unit) else { return };
        let Some((to, tenure)) = holder else {
            state.claim_at = None;
            return;
        };
        if state.claim_at.get_or_insert(now.after(settle_ms)).passed(now) {
            state.claim_at = Some(now.after(settle_ms.saturating_mul(CLAIM_AGAIN_SETTLES)));
            effects.push(Effect::Claim { to, unit: unit.clone(), tenure });
        }
    }

    /// The holder agrees only if the tenure is current and its own view ranks the claimant first (own-H2).
    pub(super) fn claimed(&mut self, from: Incarnation, unit: &Unit, tenure: TenureNumber, effects: &mut Effects) {
        let current =
            self.tenure(unit) == Some(tenure) || (mutant!(self, ClaimWithoutTenure) && self.tenure(unit).is_some());
        let first = self.rank_of(unit, from) == Some(0) || mutant!(self, AnyClaimant);
        let yields = |state: &UnitState| {
            state.tenure.as_ref().is_some_and(|t| matches!(t.stage, Stage::Yielding { heir } if heir == Some(from)))
        };
        if self.phase == Phase::Live && current && first {
            self.yield_unit(unit, Some(from), effects);
        }
        if !self.units.get(unit).is_some_and(yields) {
            effects.push(Effect::Refuse { to: from, unit: unit.clone(), tenure });
        }
    }

    pub(super) fn refused(&mut self, now: Moment, unit: &Unit, tenure: TenureNumber) {
        let again = now.after(self.settings.timers.settle_ms.saturating_mul(CLAIM_AGAIN_SETTLES));
        let Some(state) = self.units.get_mut(unit) else { return };
        if let Seen::Record(revision, lease) = &state.seen
            && lease.tenure_at(*revision) == tenure
            && state.claim_at.is_some()
        {
            state.claim_at = Some(again);
        }
    }

    /// Only the heir of this very offer can give it back (own-H4).
    pub(super) fn declined(&mut self, from: Incarnation, unit: &Unit, tenure: TenureNumber) {
        let me = self.inc;
        let Some(state) = self.units.get_mut(unit) else { return };
        if let Seen::Record(revision, lease) = &state.seen
            && lease.inc == me
            && lease.hold == (Hold::Offered { heir: from })
            && lease.tenure_at(*revision) == tenure
        {
            state.declined = true;
        }
    }

    pub(super) fn leave(&mut self, now: Moment, within_ms: u64, effects: &mut Effects) {
        match self.phase {
            Phase::Live => {}
            Phase::Joining => return self.end(Ending::Left, effects),
            Phase::Ended | Phase::Leaving { .. } => return,
        }
        self.phase = Phase::Leaving { give_up_at: now.after(within_ms) };
        let units: Vec<_> = self.units.keys().cloned().collect();
        for unit in units {
            let heir = self.next_after_me(&unit);
            if mutant!(self, DeadBeforeStop) {
                continue;
            }
            self.yield_unit(&unit, heir, effects);
            let Some(state) = self.units.get_mut(&unit) else { continue };
            state.ask_at = None;
            state.claim_at = None;
            if let Seen::Record(revision, lease) = state.seen.clone() {
                self.decline_if_unwanted(&unit, Some(&(revision, lease)), effects);
            }
        }
    }

    /// Every unit is stopped and offered, lost or given up, and nothing is under way that could bring one back.
    pub(super) fn has_left_all(&self) -> bool {
        let idle = |state: &UnitState| state.tenure.is_none() && !state.running;
        let early = mutant!(self, DeadBeforeStop);
        matches!(self.phase, Phase::Leaving { .. })
            && (early
                || (self.units.values().all(idle) && !self.pending.keys().any(|s| matches!(s, Subject::Lease(_)))))
    }

    pub(super) fn leave_due(&mut self, now: Moment, effects: &mut Effects) {
        let Phase::Leaving { give_up_at } = self.phase else { return };
        if give_up_at.passed(now) {
            return self.end(Ending::Left, effects);
        }
        let subject = Subject::Session(self.inc);
        if self.has_left_all() && self.is_free(&subject) {
            let instance = self.settings.instance.clone();
            let session = record::Session { instance, inc: self.inc, state: SessionState::Dead, by: self.inc };
            let action = Action::PutSession { expected: Some(self.session), session };
            self.ask(now, subject, Purpose::Bury, action, effects);
        }
    }
}
