//! All deadlines of a node in one place: what wakes it, and how the origin of its clock is moved.

use super::Node;
use super::membership::Doubt;
use super::node::{Phase, Sent, UnitState};
use super::timers::Moment;

impl Node {
    /// The next moment at which a tick would do something. After a step at `now`, what was due by then is done or waits for an event.
    pub fn wakes_at(&self, now: Moment) -> Option<Moment> {
        let mut next: Option<Moment> = None;
        let mut consider = |moment: Moment| {
            if !moment.passed(now) && next.is_none_or(|known| moment < known) {
                next = Some(moment);
            }
        };
        if self.phase == Phase::Ended {
            return None;
        }
        consider(self.beat_at);
        consider(self.quiet_until);
        if let Phase::Leaving { give_up_at } = self.phase {
            consider(give_up_at);
        }
        for doubt in self.doubts.values() {
            if let Doubt::Suspect { dead_at, .. } = doubt {
                consider(*dead_at);
            }
        }
        for state in self.units.values() {
            for moment in [state.ask_at, state.claim_at, Some(state.recheck_at)].into_iter().flatten() {
                consider(moment);
            }
            if let Some(tenure) = &state.tenure {
                consider(tenure.keep_until);
                consider(tenure.renew_at);
                consider(tenure.retry_at);
            }
            if let Some(check) = state.writer.as_ref().and_then(|writer| writer.check.as_ref()) {
                consider(check.at);
            }
        }
        next
    }

    /// Moves the origin of the clock `ms` forward and renames the requests in flight; answers to others are no longer recognised. The
    /// node cannot tell: it compares deadlines with now and names with names, and nothing else. A model uses it to keep its states few.
    pub fn rebase(&mut self, ms: u64) {
        let back = |moment: &mut Moment| moment.0 = moment.0.saturating_sub(ms);
        for moment in [&mut self.session_until, &mut self.beat_at, &mut self.quiet_until] {
            back(moment);
        }
        if let Phase::Leaving { give_up_at } = &mut self.phase {
            back(give_up_at);
        }
        for doubt in self.doubts.values_mut() {
            if let Doubt::Suspect { dead_at, .. } = doubt {
                back(dead_at);
            }
        }
        for Sent { number, gate, keep, .. } in self.pending.values_mut() {
            *number = 1;
            back(gate);
            back(keep);
        }
        self.requests = 1;
        for state in self.units.values_mut() {
            rebase_unit(state, &back);
        }
    }
}

fn rebase_unit(state: &mut UnitState, back: &impl Fn(&mut Moment)) {
    for moment in [state.ask_at.as_mut(), state.claim_at.as_mut(), Some(&mut state.recheck_at)].into_iter().flatten() {
        back(moment);
    }
    if let Some(tenure) = &mut state.tenure {
        for moment in [&mut tenure.act_until, &mut tenure.keep_until, &mut tenure.renew_at, &mut tenure.retry_at] {
            back(moment);
        }
    }
    if let Some(check) = state.writer.as_mut().and_then(|writer| writer.check.as_mut()) {
        back(&mut check.at);
    }
}
