//! After the heal: nothing fails any more, and nothing waits while something can be done. Whoever should act must act within a bound.
//!
//! Every request is answered, every watch shows what there is, every process that ended begins its next life, and probers tell the truth,
//! all before the next tick. What a watch cannot show is an expiry; members find it by reading again.

use crate::protocol::record::Incarnation;
use crate::protocol::{Event, Phase, predicates};
use crate::world::{Act, NOW, State, World, incarnation, note, unit};

impl World {
    /// Somebody acts for each unit.
    pub fn is_owned(&self, state: &State) -> bool {
        (0..self.units).all(|u| self.is_acted_for(state, u))
    }

    fn is_acted_for(&self, state: &State, u: usize) -> bool {
        state.members.iter().any(|member| member.node.may_act(&unit(u), NOW))
    }

    /// There is somebody who could own: alive, or able to begin again.
    fn somebody_lives(&self, state: &State) -> bool {
        state.members.iter().any(|member| match member.node.phase() {
            Phase::Ended => member.lives < self.lives,
            Phase::Joining | Phase::Live => true,
            Phase::Leaving { .. } => false,
        })
    }

    pub fn heal(&self, state: &mut State) {
        state.healed = true;
        self.wake_all(state);
    }

    /// Everybody wakes in time, and probes those that are gone.
    fn wake_all(&self, state: &mut State) {
        for m in 0..self.members {
            self.step(state, m, Event::Tick);
            for inc in self.gone(state) {
                self.evidence(state, m, inc);
            }
        }
    }

    /// Lives that were announced and are over.
    fn gone(&self, state: &State) -> Vec<Incarnation> {
        let mut gone = vec![];
        for (other, member) in state.members.iter().enumerate().filter(|_| self.sessions) {
            for life in 0..member.lives {
                let inc = incarnation(other, life);
                let lives = member.node.phase() != Phase::Ended && member.node.incarnation() == inc;
                let announced = member.announced || life + 1 < member.lives;
                if !lives && announced {
                    gone.push(inc);
                }
            }
        }
        gone
    }

    /// All that may happen: what is under way, and time only when nothing is.
    pub fn healed_actions(&self, state: &State, acts: &mut Vec<Act>) {
        if self.calm_ticks.is_none() && self.is_owned(state) {
            return;
        }
        let left = acts.len();
        acts.extend((0..state.flying.len()).map(Act::Deliver));
        acts.extend((0..state.letters.len()).map(Act::Letter));
        for m in 0..self.members {
            self.urgent_actions(state, m, acts);
        }
        if acts.len() > left {
            return;
        }
        if self.calm_ticks.is_none_or(|ticks| state.ticks < ticks) && self.must_be_owned(state) {
            acts.push(Act::Tick(None));
        }
        let leaves = state.leaves < self.leaves && self.calm_ticks.is_some();
        acts.extend(
            (0..self.members).filter(|m| leaves && state.members[*m].node.phase() == Phase::Live).map(Act::Leave),
        );
    }

    /// In a world without any fault there is always somebody; in others as long as a member lives.
    fn must_be_owned(&self, state: &State) -> bool {
        self.calm_ticks.is_some() || self.somebody_lives(state)
    }

    fn urgent_actions(&self, state: &State, m: usize, acts: &mut Vec<Act>) {
        let member = &state.members[m];
        if member.node.phase() == Phase::Ended {
            if member.lives < self.lives {
                acts.push(Act::Begin(m));
            }
            return;
        }
        for u in 0..self.units {
            let record = self.lease_for(state, m, u);
            if record.is_some() && !member.node.has_seen(&unit(u), record.as_ref()) {
                acts.push(Act::Watch(m, u));
            }
            if member.node.is_stopping(&unit(u)) {
                acts.push(Act::Stopped(m, u));
            }
        }
        if member.node.phase() == Phase::Live {
            let unknown = self.gone(state).into_iter().filter(|inc| !member.node.doubts(*inc));
            acts.extend(unknown.map(|inc| Act::Suspect(m, inc)));
        }
    }

    /// Time passes, and everybody wakes in time.
    pub fn healed_tick(&self, state: &mut State) {
        for u in 0..self.units {
            let idle = if self.is_acted_for(state, u) { 0 } else { state.idle[u] + 1 };
            state.idle[u] = idle;
            if let Some(bound) = self.heals_within {
                note(state, predicates::owned_again(idle, bound, &unit(u)));
            }
        }
        if self.calm_ticks.is_some() {
            state.ticks += 1;
        }
        self.tick(state, None);
        self.wake_all(state);
    }
}
