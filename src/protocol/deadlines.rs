//! All deadlines of a node in one place: what wakes it, and how the origin of its clock is moved.

use super::Node;
use super::membership::Doubt;
use super::node::Phase;
#[cfg(test)]
use super::node::{Sent, UnitState};
#[cfg(test)]
use super::record::{Incarnation, KvRevision};
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
}

/// For models: what keeps their states few. The node cannot tell, since it compares deadlines with now and names with names, and nothing
/// else.
#[cfg(test)]
impl Node {
    /// An answer to `ticket` would be taken.
    pub fn awaits(&self, ticket: &super::Ticket) -> bool {
        self.pending.get(&ticket.subject).is_some_and(|sent| sent.number == ticket.number)
    }

    /// Moves the origin of the clock `ms` forward, names every request in flight 1, and renames the kv revisions of sessions.
    pub fn rebase(&mut self, ms: u64, rename: &dyn Fn(Incarnation, KvRevision) -> KvRevision) {
        let back = |moment: &mut Moment| {
            if *moment != Moment::NEVER {
                moment.0 = moment.0.saturating_sub(ms);
            }
        };
        for moment in [&mut self.session_until, &mut self.beat_at, &mut self.quiet_until] {
            back(moment);
        }
        if let Phase::Leaving { give_up_at } = &mut self.phase {
            back(give_up_at);
        }
        self.session = rename(self.inc, self.session);
        for (inc, doubt) in &mut self.doubts {
            if let Doubt::Suspect { dead_at, revision } = doubt {
                back(dead_at);
                *revision = rename(*inc, *revision);
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

    /// [`Node::rebase`] by nothing would change nothing.
    pub fn is_rebased(&self, rename: &dyn Fn(Incarnation, KvRevision) -> KvRevision) -> bool {
        self.requests == 1
            && self.pending.values().all(|sent| sent.number == 1)
            && self.session_revisions().iter().all(|(inc, revision)| rename(*inc, *revision) == *revision)
    }

    /// Something is known, or asked, about the session of another member.
    pub fn doubts(&self, inc: Incarnation) -> bool {
        self.doubts.contains_key(&inc) || self.pending.contains_key(&super::Subject::Session(inc))
    }

    /// The kv revisions of sessions that this node compares with.
    pub fn session_revisions(&self) -> Vec<(Incarnation, KvRevision)> {
        let doubts = self.doubts.iter().filter_map(|(inc, doubt)| match doubt {
            Doubt::Suspect { revision, .. } => Some((*inc, *revision)),
            Doubt::Gone => None,
        });
        doubts.chain([(self.inc, self.session)]).collect()
    }

    /// The tenure is given up by time alone at the next step.
    pub fn gives_up(&self, unit: &super::record::Unit, now: Moment) -> bool {
        self.units.get(unit).and_then(|state| state.tenure.as_ref()).is_some_and(|tenure| tenure.keep_until.passed(now))
    }

    /// Told to stop and not known to have stopped.
    pub fn is_stopping(&self, unit: &super::record::Unit) -> bool {
        self.units.get(unit).is_some_and(|state| state.stopping)
    }

    /// What this node would learn from the record: nothing while it holds the unit.
    pub fn has_seen(&self, unit: &super::record::Unit, record: Option<&(KvRevision, super::record::Lease)>) -> bool {
        use super::lease::Seen;
        let Some(state) = self.units.get(unit) else { return true };
        state.tenure.is_some()
            || match (&state.seen, record) {
                (Seen::Absent, None) => true,
                (Seen::Record(known, _), Some((revision, _))) => known == revision,
                _ => false,
            }
    }
}

#[cfg(test)]
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
