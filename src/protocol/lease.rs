//! Tenures: acquiring, renewing and losing a unit (rules own-L-acquire, own-L-renew, own-L-expiry, own-S3, own-S4).
//!
//! Every write is a compare-and-set on the kv revision that this member saw. A gate counts from the *send* of the last won renewal. An
//! Unknown outcome never ends a tenure, never starts one and moves no gate: the next request finds out.

use super::Node;
use super::effect::{Action, Effect, Effects, Subject};
use super::event::{Class, Outcome};
use super::mutant::mutant;
use super::node::{Phase, Purpose, Sent, UnitState};
use super::record::{Generation, Hold, Incarnation, KvRevision, Lease, TenureNumber, Unit};
use super::timers::Moment;

/// The lease of a unit as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Seen {
    Nothing,
    Absent,
    Record(KvRevision, Lease),
}

impl Seen {
    /// The incarnations the record names.
    pub fn names(&self) -> impl Iterator<Item = Incarnation> + use<> {
        let named = match self {
            Seen::Record(_, lease) => match lease.hold {
                Hold::Offered { heir } => [Some(lease.inc), Some(heir)],
                Hold::Held | Hold::Free => [Some(lease.inc), None],
            },
            Seen::Nothing | Seen::Absent => [None, None],
        };
        named.into_iter().flatten()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Stage {
    /// Won; the bucket's identity is read again before the win is used (own-R3).
    Confirming,
    /// The fence record is read and a new one appended (own-O1); units without a fence wait for open gates only.
    Opening,
    Active,
    /// Stops, then offers the unit to the heir, or frees it.
    Yielding {
        heir: Option<Incarnation>,
    },
}

/// One holding of a unit by this member.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Tenure {
    pub number: TenureNumber,
    /// Of the lease record.
    pub revision: KvRevision,
    /// The lease gate.
    pub act_until: Moment,
    /// The gate was closed for too long: the tenure is given up.
    pub keep_until: Moment,
    pub renew_at: Moment,
    /// Of confirming, opening and offering.
    pub retry_at: Moment,
    /// The unit's loop passed its watchdog point since the last renewal.
    pub progressed: bool,
    pub stage: Stage,
}

impl UnitState {
    /// The tenure is over: whatever runs must stop.
    pub fn drop_tenure(&mut self, unit: &Unit, effects: &mut Effects) {
        self.tenure = None;
        self.writer = None;
        self.order_stop(unit, effects);
    }

    pub fn order_stop(&mut self, unit: &Unit, effects: &mut Effects) {
        if self.running && !self.stopping {
            self.stopping = true;
            effects.push(Effect::Stop { unit: unit.clone() });
        }
    }
}

impl Node {
    /// Until when the gates of a tenure are open.
    pub(super) fn gates(&self, state: &UnitState, tenure: &Tenure) -> Moment {
        let lease = if mutant!(self, NoLeaseGate) { Moment(u64::MAX) } else { tenure.act_until };
        match state.spec.class {
            Class::Exclusive if !mutant!(self, NoSessionGate) => lease.min(self.session_until),
            _ => lease,
        }
    }

    /// What a watch or a listing shows. While a tenure of this member runs its own requests find out.
    pub(super) fn watched(
        &mut self,
        now: Moment,
        unit: &Unit,
        seen: Option<(KvRevision, Lease)>,
        effects: &mut Effects,
    ) {
        self.decline_if_unwanted(unit, seen.as_ref(), effects);
        let Some(state) = self.units.get(unit) else { return };
        if state.tenure.is_some() {
            return;
        }
        if let (Seen::Record(known, _), Some((revision, _))) = (&state.seen, &seen)
            && revision <= known
        {
            return;
        }
        self.saw(now, unit, seen);
    }

    fn saw(&mut self, now: Moment, unit: &Unit, seen: Option<(KvRevision, Lease)>) {
        let recheck_at = now.after(self.settings.timers.recheck_ms);
        let Some(state) = self.units.get_mut(unit) else { return };
        let seen = seen.map_or(Seen::Absent, |(revision, lease)| Seen::Record(revision, lease));
        let mine = matches!(&seen, Seen::Record(_, lease) if lease.hold == Hold::Held && lease.inc == self.inc);
        if state.seen == seen {
            // A record that did not change expires a TTL after it was written, however often it was read since.
            state.recheck_at = match (&seen, mine) {
                (_, true) => now,
                (Seen::Record(..), _) if state.recheck_at.passed(now) => {
                    now.after(self.settings.timers.retry_ms.max(1))
                }
                (Seen::Record(..), _) => state.recheck_at,
                _ => recheck_at,
            };
            return;
        }
        state.recheck_at = if mine { now } else { recheck_at };
        let same_tenure = match (&state.seen, &seen) {
            (Seen::Record(a, before), Seen::Record(b, after)) => {
                before.tenure_at(*a) == after.tenure_at(*b) && before.hold == after.hold && before.inc == after.inc
            }
            _ => false,
        };
        if !same_tenure {
            state.claim_at = None;
            state.declined = false;
        }
        state.seen = seen;
        state.ask_at = None;
    }

    /// How long to wait before asking for the unit as seen; `None` when it is not to be asked for (own-L-acquire).
    fn claimable(&self, unit: &Unit, state: &UnitState) -> Option<u64> {
        let timers = &self.settings.timers;
        let by_rank = || self.rank_of(unit, self.inc).map(|rank| (rank as u64).saturating_mul(timers.rank_delay_ms));
        let Seen::Record(_, lease) = &state.seen else {
            return if state.seen == Seen::Absent { by_rank() } else { None };
        };
        match lease.hold {
            Hold::Free => by_rank(),
            Hold::Held if self.is_gone(lease.inc) => by_rank(),
            Hold::Held => None,
            Hold::Offered { heir } if heir == self.inc => Some(0),
            Hold::Offered { heir } if self.is_gone(heir) => by_rank(),
            Hold::Offered { .. } if lease.inc == self.inc && (state.declined || mutant!(self, OffererTakesBack)) => {
                by_rank()
            }
            Hold::Offered { .. } if self.is_gone(lease.inc) || mutant!(self, OfferWaitWhileOffererLives) => {
                by_rank().map(|delay_ms| delay_ms.saturating_add(timers.offer_wait_ms))
            }
            Hold::Offered { .. } => None,
        }
    }

    pub(super) fn lease_due(&mut self, now: Moment, unit: &Unit, effects: &mut Effects) {
        let Some(state) = self.units.get_mut(unit) else { return };
        if let Some(tenure) = &state.tenure
            && tenure.keep_until.passed(now)
        {
            state.drop_tenure(unit, effects);
            state.recheck_at = now;
        }
        if state.tenure.is_some() { self.tenure_due(now, unit, effects) } else { self.wish_due(now, unit, effects) }
    }

    fn tenure_due(&mut self, now: Moment, unit: &Unit, effects: &mut Effects) {
        let bucket_free = self.is_free(&Subject::Bucket(unit.clone()));
        let lease_free = self.is_free(&Subject::Lease(unit.clone()));
        let may_offer = !matches!(self.phase, Phase::Leaving { .. }) || self.all_stopped();
        let offers_early = mutant!(self, OfferBeforeStop);
        let renew_ms = self.settings.timers.renew_ms;
        let Some(state) = self.units.get_mut(unit) else { return };
        let Some(tenure) = &mut state.tenure else { return };
        if tenure.stage == Stage::Confirming && bucket_free && tenure.retry_at.passed(now) {
            self.ask(now, Subject::Bucket(unit.clone()), Purpose::Confirm, Action::ReadBucket, effects);
        }
        if !lease_free {
            return;
        }
        let Some(state) = self.units.get_mut(unit) else { return };
        let Some(tenure) = &mut state.tenure else { return };
        if let Stage::Yielding { heir } = tenure.stage
            && (!state.running || offers_early)
            && (may_offer || offers_early)
        {
            if tenure.retry_at.passed(now) {
                self.offer(now, unit, heir, effects);
            }
        } else if tenure.renew_at.passed(now) && (tenure.progressed || !state.running || state.stopping) {
            tenure.renew_at = now.after(renew_ms);
            tenure.progressed = false;
            let number = tenure.number;
            self.renew(now, unit, number, effects);
        }
    }

    /// Renews under `number`: the tenure's own, or a higher one that the fence asks for (own-O1).
    pub(super) fn renew(&mut self, now: Moment, unit: &Unit, number: TenureNumber, effects: &mut Effects) {
        let Some(tenure) = self.units.get(unit).and_then(|state| state.tenure.as_ref()) else { return };
        let expected = Some(tenure.revision);
        let lease = self.lease(unit, Hold::Held, Some(number));
        let action = Action::PutLease { expected, lease };
        self.ask(now, Subject::Lease(unit.clone()), Purpose::Renew { number }, action, effects);
    }

    pub(super) fn lease(&self, unit: &Unit, hold: Hold, tenure: Option<TenureNumber>) -> Lease {
        let view = self.units.get(unit).map_or(0, |state| self.view_digest(state.spec.role));
        Lease { unit: unit.clone(), hold, instance: self.settings.instance.clone(), inc: self.inc, tenure, view }
    }

    /// No tenure: read again what was not seen to change, and ask when it is one's turn.
    fn wish_due(&mut self, now: Moment, unit: &Unit, effects: &mut Effects) {
        let subject = Subject::Lease(unit.clone());
        let Some(state) = self.units.get(unit) else { return };
        if self.phase != Phase::Live || !self.is_free(&subject) || !state.wanted || state.running {
            return;
        }
        let claimable = if self.quiet_until.passed(now) { self.claimable(unit, state) } else { None };
        let recheck = state.recheck_at.passed(now);
        let Some(delay_ms) = claimable else {
            if recheck {
                self.ask(now, subject, Purpose::CheckLease, Action::ReadLease(unit.clone()), effects);
            }
            return;
        };
        let Some(state) = self.units.get_mut(unit) else { return };
        let ask_at = *state.ask_at.get_or_insert(now.after(delay_ms));
        let expected = match &state.seen {
            Seen::Record(revision, _) => Some(*revision),
            Seen::Nothing | Seen::Absent => None,
        };
        if ask_at.passed(now) {
            state.ask_at = None;
            if !self.is_busy() {
                self.beat_at = now;
            }
            let lease = self.lease(unit, Hold::Held, None);
            self.ask(now, subject, Purpose::Acquire, Action::PutLease { expected, lease }, effects);
        }
    }

    pub(super) fn lease_answer(
        &mut self,
        now: Moment,
        unit: &Unit,
        sent: Sent,
        outcome: Outcome,
        effects: &mut Effects,
    ) {
        let retry_at = now.after(self.settings.timers.retry_ms);
        match (sent.purpose, outcome) {
            (Purpose::Acquire, Outcome::Won(revision)) => {
                let revision = KvRevision(revision);
                self.hold(now, unit, TenureNumber(revision.0), revision, (sent.gate, sent.keep));
            }
            (Purpose::Acquire, Outcome::Unknown) if mutant!(self, UnknownCreateIsWon) => {
                self.hold(now, unit, TenureNumber(0), KvRevision(0), (sent.gate, sent.keep));
            }
            (Purpose::Renew { number }, Outcome::Won(revision)) => {
                self.renewed(now, unit, number, KvRevision(revision), (sent.gate, sent.keep), effects);
            }
            (Purpose::Renew { .. }, Outcome::Unknown) if mutant!(self, RenewUnknownIsLost) => {
                if let Some(state) = self.units.get_mut(unit) {
                    state.drop_tenure(unit, effects);
                }
            }
            (Purpose::Acquire | Purpose::Renew { .. } | Purpose::Offer { .. }, Outcome::Lost) => {
                let subject = Subject::Lease(unit.clone());
                self.ask(now, subject, Purpose::CheckLease, Action::ReadLease(unit.clone()), effects);
            }
            (Purpose::CheckLease, Outcome::Lease(found)) => self.lease_checked(now, unit, found, effects),
            (Purpose::Offer { heir }, Outcome::Won(revision)) => {
                self.offered(now, unit, heir, KvRevision(revision), effects);
            }
            _ => {
                let Some(state) = self.units.get_mut(unit) else { return };
                state.recheck_at = retry_at;
                state.ask_at = Some(retry_at);
                if let Some(tenure) = &mut state.tenure {
                    tenure.renew_at = tenure.renew_at.min(retry_at);
                    tenure.progressed = true;
                    tenure.retry_at = retry_at;
                }
            }
        }
    }

    /// A tenure begins: won, or an earlier Unknown that turns out to have been applied (then with closed gates).
    fn hold(&mut self, now: Moment, unit: &Unit, number: TenureNumber, revision: KvRevision, gates: (Moment, Moment)) {
        let leaving = self.phase != Phase::Live;
        let heir = if leaving { self.next_after_me(unit) } else { None };
        let won = if mutant!(self, WinNotConfirmed) { Stage::Opening } else { Stage::Confirming };
        let Some(state) = self.units.get_mut(unit) else { return };
        let stage = if leaving || !state.wanted { Stage::Yielding { heir } } else { won };
        let (act_until, keep_until) = gates;
        let renew_ms = self.settings.timers.renew_ms;
        let renew_at = if act_until.passed(now) { now } else { now.after(renew_ms) };
        state.tenure =
            Some(Tenure { number, revision, act_until, keep_until, renew_at, retry_at: now, progressed: true, stage });
        state.seen = Seen::Nothing;
        state.claim_at = None;
        state.declined = false;
    }

    fn renewed(
        &mut self,
        now: Moment,
        unit: &Unit,
        number: TenureNumber,
        revision: KvRevision,
        (gate, keep): (Moment, Moment),
        effects: &mut Effects,
    ) {
        let gate_ms = self.settings.timers.lease_gate_ms;
        let gate = if mutant!(self, DeadlineFromReply) { now.after(gate_ms) } else { gate };
        let Some(tenure) = self.units.get_mut(unit).and_then(|state| state.tenure.as_mut()) else { return };
        tenure.number = number;
        tenure.revision = revision;
        tenure.act_until = gate;
        tenure.keep_until = keep;
        if let Some(until) = self.permit(unit) {
            effects.push(Effect::Permit { unit: unit.clone(), until });
        }
    }

    /// What the leader has, after a refusal or a doubt.
    fn lease_checked(&mut self, now: Moment, unit: &Unit, found: Option<(KvRevision, Lease)>, effects: &mut Effects) {
        let mine = |lease: &Lease| {
            let named =
                lease.inc == self.inc || (mutant!(self, AdoptByName) && lease.instance == self.settings.instance);
            lease.hold == Hold::Held && named
        };
        let held = found.as_ref().filter(|(_, lease)| mine(lease)).map(|(r, lease)| (*r, lease.tenure_at(*r)));
        let keep = now.after(self.settings.timers.lease_gate_ms);
        let Some(state) = self.units.get_mut(unit) else { return };
        match (&mut state.tenure, held) {
            // The number may be a raised one whose renewal came back Unknown: still this tenure, nobody else writes this incarnation.
            (Some(tenure), Some((revision, number))) if number >= tenure.number => {
                tenure.number = number;
                tenure.revision = revision;
                tenure.renew_at = now;
                tenure.retry_at = now;
                tenure.progressed = true;
            }
            (None, Some((revision, number))) if !mutant!(self, OrphanNotAdopted) => {
                self.hold(now, unit, number, revision, (Moment::PAST, keep));
            }
            _ => {
                state.drop_tenure(unit, effects);
                self.saw(now, unit, found);
                if let (true, Some(state)) = (mutant!(self, OrphanNotAdopted), self.units.get_mut(unit)) {
                    state.recheck_at = keep;
                }
            }
        }
    }

    /// The win is used only if the bucket is still the one it was asked of (own-R3).
    pub(super) fn bucket_answer(&mut self, now: Moment, unit: &Unit, outcome: Outcome, effects: &mut Effects) {
        let retry_at = now.after(self.settings.timers.retry_ms);
        match outcome {
            Outcome::Bucket(generation) if self.generation == Some(generation) => self.confirmed(unit),
            Outcome::Bucket(_) => self.end(super::effect::Ending::BucketRecreated, effects),
            _ => {
                if let Some(tenure) = self.units.get_mut(unit).and_then(|state| state.tenure.as_mut()) {
                    tenure.retry_at = retry_at;
                }
            }
        }
    }

    fn confirmed(&mut self, unit: &Unit) {
        let tenure = self.units.get_mut(unit).and_then(|state| state.tenure.as_mut());
        if let Some(tenure) = tenure
            && tenure.stage == Stage::Confirming
        {
            tenure.stage = Stage::Opening;
            tenure.retry_at = Moment::PAST;
        }
    }

    pub(super) fn progress(&mut self, unit: &Unit) {
        if let Some(tenure) = self.units.get_mut(unit).and_then(|state| state.tenure.as_mut()) {
            tenure.progressed = true;
        }
    }

    /// The bucket whose keys requests name.
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }
}
