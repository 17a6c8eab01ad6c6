//! Opening records and fenced writes: what keeps stored data right whatever clocks and leases do (rules own-O1, own-O1b, own-O4, own-P1,
//! own-P3).
//!
//! The fence is the last record of the unit's fence subject, in the stream the unit writes to; its sequence is the epoch. Every write of
//! an owner is one atomic batch that ends with a new fence record and is conditional on the last one. A member that cannot know whether a
//! write took effect reads the fence record and goes on from what stands there; a position never comes from memory.
//!
//! Entities append to a log under the same opening record; their folding is not here.

use super::Node;
use super::effect::{Action, Batch, Effect, Effects, Subject};
use super::event::Outcome;
use super::lease::Stage;
use super::mutant::mutant;
use super::node::Purpose;
use super::record::{Fence, Position, Run, Sequence, TenureNumber, Unit};
use super::timers::Moment;

/// A write of unknown fate: to be looked up at that moment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Check {
    pub at: Moment,
    pub batch: Batch,
    pub position: Position,
}

/// The right to write, once opened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Writer {
    pub epoch: Sequence,
    pub position: Option<Position>,
    pub check: Option<Check>,
}

/// Where a source goes on, given the stored position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// Nothing is stored: a new run at the beginning.
    Begin,
    /// The run in memory, or one whose content is a function of its position: from this offset.
    Continue { off: u64 },
    /// A new run of this page, at offset 0.
    Again { page: u64 },
    /// A new run of what follows this page.
    Advance { page: u64 },
}

/// The rule of own-P1 and own-P3. `in_memory` is the run whose messages the worker still holds; `repeatable` means that the content is a
/// function of the position (interval, kafka).
pub fn resume(in_memory: Option<Run>, stored: Option<&Position>, repeatable: bool) -> Resume {
    match stored {
        None => Resume::Begin,
        Some(position) if position.done => Resume::Advance { page: position.page },
        Some(position) if repeatable || in_memory == Some(position.run) => Resume::Continue { off: position.off },
        Some(position) => Resume::Again { page: position.page },
    }
}

impl Node {
    pub(super) fn fence_due(&mut self, now: Moment, unit: &Unit, effects: &mut Effects) {
        let subject = Subject::Fence(unit.clone());
        if !self.is_free(&subject) {
            return;
        }
        let Some(state) = self.units.get_mut(unit) else { return };
        let Some(tenure) = &state.tenure else { return };
        if let Some(writer) = &mut state.writer
            && let Some(Check { at, batch, position }) = writer.check.clone()
            && at.passed(now)
        {
            writer.check = None;
            let purpose = Purpose::CheckWrite { batch, position };
            return self.ask(now, subject, purpose, Action::ReadFence(unit.clone()), effects);
        }
        let waits = tenure.stage != Stage::Opening || state.running || !tenure.retry_at.passed(now);
        let state = &self.units[unit];
        let Some(tenure) = &state.tenure else { return };
        if waits || self.gates(state, tenure).passed(now) || !self.is_free(&Subject::Lease(unit.clone())) {
            return;
        }
        if state.spec.fenced {
            self.ask(now, subject, Purpose::ReadFence, Action::ReadFence(unit.clone()), effects);
        } else {
            self.activate(unit, None, effects);
        }
    }

    /// The unit is open: it may run.
    fn activate(&mut self, unit: &Unit, opened: Option<(Sequence, Option<Position>)>, effects: &mut Effects) {
        let Some(state) = self.units.get_mut(unit) else { return };
        let Some(tenure) = &mut state.tenure else { return };
        tenure.stage = Stage::Active;
        tenure.progressed = true;
        state.running = true;
        let number = tenure.number;
        let (epoch, position) = opened.clone().map_or((None, None), |(epoch, position)| (Some(epoch), position));
        state.writer = opened.map(|(epoch, position)| Writer { epoch, position, check: None });
        effects.push(Effect::Start { unit: unit.clone(), tenure: number, epoch, position });
        if let Some(until) = self.permit(unit) {
            effects.push(Effect::Permit { unit: unit.clone(), until });
        }
    }

    pub(super) fn fence_answer(
        &mut self,
        now: Moment,
        unit: &Unit,
        purpose: Purpose,
        outcome: Outcome,
        effects: &mut Effects,
    ) {
        let retry_at = now.after(self.settings.timers.retry_ms);
        let taken_as_stored = mutant!(self, BatchTakenAsStored);
        let Some(state) = self.units.get_mut(unit) else { return };
        let Some(tenure) = &mut state.tenure else { return };
        let opening = tenure.stage == Stage::Opening;
        match (purpose, outcome) {
            (Purpose::ReadFence, Outcome::Fence(last)) if opening => self.open(now, unit, last, effects),
            (Purpose::Open { no, digest, position }, Outcome::Won(sequence)) if opening => {
                if (no, digest) != (state.spec.no, state.spec.digest) {
                    // Published while the record was under way: the new one opens for itself.
                    tenure.retry_at = Moment::PAST;
                    return;
                }
                self.activate(unit, Some((Sequence(sequence), position)), effects);
            }
            // Somebody wrote in between, or this very record is stored: the next read tells.
            (Purpose::Open { .. }, Outcome::Lost) if opening => tenure.retry_at = Moment::PAST,
            (Purpose::Write { batch, position }, Outcome::Won(sequence)) => {
                if let Some(writer) = &mut state.writer {
                    writer.epoch = Sequence(sequence);
                    writer.position = Some(position);
                }
                effects.push(Effect::Written { unit: unit.clone(), batch });
            }
            (Purpose::Write { batch, position }, _) => {
                if let (true, Some(writer)) = (taken_as_stored && opening, &mut state.writer) {
                    writer.position = Some(position.clone());
                }
                let purpose = Purpose::CheckWrite { batch, position };
                let action = Action::ReadFence(unit.clone());
                self.ask(now, Subject::Fence(unit.clone()), purpose, action, effects);
            }
            (Purpose::CheckWrite { batch, position }, Outcome::Fence(last)) if !opening => {
                self.write_checked(unit, batch, &position, last, effects);
            }
            (Purpose::CheckWrite { batch, position }, _) if !opening => {
                if let Some(writer) = &mut state.writer {
                    writer.check = Some(Check { at: retry_at, batch, position });
                }
            }
            _ => tenure.retry_at = retry_at,
        }
    }

    /// What stands before the opening record decides how to open (own-O1, own-O1b).
    fn open(&mut self, now: Moment, unit: &Unit, last: Option<(Sequence, Fence)>, effects: &mut Effects) {
        let retry_at = now.after(self.settings.timers.retry_ms);
        let mut over_newer = mutant!(self, OpenOverNewerTenure);
        over_newer |= mutant!(self, ReopenWithoutTenureCheck);
        let checks = !mutant!(self, ReopenWithoutTenureCheck);
        let heeds_head = !mutant!(self, HeadNotReadFirst);
        let mut remembers = mutant!(self, PositionFromMemory);
        remembers |= mutant!(self, BatchTakenAsStored);
        let me = self.inc;
        let Some(state) = self.units.get_mut(unit) else { return };
        let Some(tenure) = &mut state.tenure else { return };
        let (number, spec) = (tenure.number, &state.spec);
        if let Some((sequence, fence)) = &last {
            let mine = fence.inc == me && fence.tenure == number;
            if state.writer.is_some() && !mine && checks {
                return state.drop_tenure(unit, effects);
            }
            if !mine && fence.tenure >= number && !over_newer {
                tenure.retry_at = now;
                return self.renew(now, unit, TenureNumber(fence.tenure.0 + 1), effects);
            }
            if fence.no > spec.no && heeds_head {
                tenure.retry_at = retry_at;
                return effects.push(Effect::ReadHead { unit: unit.clone(), no: fence.no });
            }
            if mine && fence.no == spec.no && fence.digest == spec.digest {
                return self.activate(unit, Some((*sequence, fence.position.clone())), effects);
            }
        }
        let expected = last.as_ref().map_or(Sequence(0), |(sequence, _)| *sequence);
        let position = match &state.writer {
            Some(writer) if remembers => writer.position.clone(),
            _ => last.and_then(|(_, fence)| fence.position),
        };
        let position = if mutant!(self, PositionNotReadAtOpening) { None } else { position };
        let Some(fence) = self.fence(unit, position.clone()) else { return };
        let purpose = Purpose::Open { no: fence.no, digest: fence.digest, position };
        let action = Action::AppendFence { expected, fence, batch: None };
        self.ask(now, Subject::Fence(unit.clone()), purpose, action, effects);
    }

    fn fence(&self, unit: &Unit, position: Option<Position>) -> Option<Fence> {
        let state = self.units.get(unit)?;
        Some(Fence {
            unit: unit.clone(),
            instance: self.settings.instance.clone(),
            inc: self.inc,
            tenure: state.tenure.as_ref()?.number,
            no: state.spec.no,
            digest: state.spec.digest,
            position,
        })
    }

    /// One batch at a time: the next one is conditional on the last. A worker that was told to stop is not answered.
    pub(super) fn write(&mut self, now: Moment, unit: &Unit, batch: Batch, position: Position, effects: &mut Effects) {
        let subject = Subject::Fence(unit.clone());
        let Some(state) = self.units.get(unit) else { return };
        let active = state.tenure.as_ref().is_some_and(|tenure| tenure.stage == Stage::Active);
        let Some(writer) = &state.writer else { return };
        if !active || !self.is_free(&subject) || writer.check.is_some() {
            return;
        }
        let expected = writer.epoch;
        let Some(fence) = self.fence(unit, Some(position.clone())) else { return };
        let action = Action::AppendFence { expected, fence, batch: Some(batch) };
        self.ask(now, subject, Purpose::Write { batch, position }, action, effects);
    }

    /// After a doubt: another tenure ends mine, mine gives sequence *and* position.
    fn write_checked(
        &mut self,
        unit: &Unit,
        batch: Batch,
        position: &Position,
        last: Option<(Sequence, Fence)>,
        effects: &mut Effects,
    ) {
        let me = self.inc;
        let blind = mutant!(self, RetryUnderReadFence);
        let Some(state) = self.units.get_mut(unit) else { return };
        let number = state.tenure.as_ref().map(|tenure| tenure.number);
        let mine = last.filter(|(_, fence)| fence.inc == me && Some(fence.tenure) == number);
        let (Some((sequence, fence)), Some(writer)) = (mine, &mut state.writer) else {
            return state.drop_tenure(unit, effects);
        };
        writer.epoch = sequence;
        if blind {
            let position = writer.position.clone();
            return effects.push(Effect::Rewind { unit: unit.clone(), position });
        }
        writer.position = fence.position.clone();
        effects.push(if fence.position.as_ref() == Some(position) {
            Effect::Written { unit: unit.clone(), batch }
        } else {
            Effect::Rewind { unit: unit.clone(), position: fence.position }
        });
    }
}
