//! The store of a world: what a request does when it is applied, and which requests can never do anything again.

use std::collections::{BTreeMap, BTreeSet};

use crate::kept::{MEMBERS, STORES};
use crate::protocol::predicates::{self, Stored};
use crate::protocol::record::{Fence, Generation, Hold, Incarnation, KvRevision, Lease, Sequence, Session};
use crate::protocol::{Action, Event, Outcome, Request};
use crate::world::{Flaw, NOW, Record, State, Store, World, note, place};

pub fn writes(action: &Action) -> bool {
    matches!(action, Action::PutSession { .. } | Action::PutLease { .. } | Action::AppendFence { .. })
}

fn revision<T>(record: Option<&Record<T>>) -> Option<KvRevision> {
    record.map(|record| record.revision)
}

fn read<T: Clone>(record: Option<&Record<T>>) -> Option<(KvRevision, T)> {
    record.map(|record| (record.revision, record.value.clone()))
}

pub fn last_fence(store: &Store) -> Option<(Sequence, Fence)> {
    store.log.iter().rev().find_map(|(sequence, stored)| match stored {
        Stored::Fence(fence) => Some((*sequence, fence.clone())),
        Stored::Message { .. } => None,
    })
}

impl World {
    /// What the keys of a member that knows this generation carry.
    fn keys(&self, generation: Generation) -> Generation {
        if self.flaw == Some(Flaw::KeysWithoutGeneration) { Generation(1) } else { generation }
    }

    /// The lease under the keys that this member uses.
    pub fn lease_for(&self, state: &State, m: usize, u: usize) -> Option<(KvRevision, Lease)> {
        let keys = self.keys(state.members[m].node.generation()?);
        read(state.store.leases.get(&(keys, u)))
    }

    pub fn apply(&self, state: &mut State, request: &Request) -> Outcome {
        let keys = self.keys(request.generation);
        match &request.action {
            Action::ReadBucket => Outcome::Bucket(Generation(state.store.generation)),
            Action::ReadLease(unit) => Outcome::Lease(read(state.store.leases.get(&(keys, place(unit))))),
            Action::ReadSession(inc) => Outcome::Session(read(state.store.sessions.get(&(keys, *inc)))),
            Action::ReadFence(_) => Outcome::Fence(last_fence(&state.store)),
            Action::PutSession { expected, session } => self.put_session(state, keys, *expected, session),
            Action::PutLease { expected, lease } => self.put_lease(state, keys, *expected, lease),
            Action::AppendFence { expected, fence, batch } => {
                append(state.store.edit(), *expected, fence, batch.is_some()).map_or(Outcome::Lost, |sequence| {
                    note(state, predicates::stored_is_right(&state.store.log));
                    note(state, predicates::runs_are_of_one_maker(&state.store.log));
                    Outcome::Won(sequence.0)
                })
            }
        }
    }

    fn put_session(
        &self,
        state: &mut State,
        keys: Generation,
        expected: Option<KvRevision>,
        session: &Session,
    ) -> Outcome {
        if !self.sessions {
            return Outcome::Won(1);
        }
        let key = (keys, session.inc);
        if revision(state.store.sessions.get(&key)) != expected {
            return Outcome::Lost;
        }
        // Renamed after every step; larger than any that is compared with.
        let next = KvRevision(100);
        state.store.edit().sessions.insert(key, Record { revision: next, value: session.clone(), age: 0 });
        Outcome::Won(next.0)
    }

    fn put_lease(&self, state: &mut State, keys: Generation, expected: Option<KvRevision>, lease: &Lease) -> Outcome {
        let u = place(&lease.unit);
        let grant = self.grants > 0 && lease.tenure.is_none();
        let blind = self.flaw == Some(Flaw::ReleaseUnconditional) && lease.hold != Hold::Held;
        let fits = revision(state.store.leases.get(&(keys, u))) == expected || blind;
        let budget = if self.grants > 0 { self.grants } else { self.writes };
        if state.store.writes >= budget && (grant || self.grants == 0) && !state.healed {
            return if fits && self.grants == 0 { Outcome::Unknown } else { Outcome::Lost };
        }
        if !fits && !grant {
            return Outcome::Lost;
        }
        let healed = state.healed;
        let store = state.store.edit();
        store.writes += u64::from((grant || self.grants == 0) && !healed);
        store.last += 1;
        let next = KvRevision(store.last);
        let record = Record { revision: next, value: lease.clone(), age: 0 };
        let before = read(store.leases.insert((keys, u), record).as_ref());
        if self.grants == 0 {
            let tenure = lease.tenure_at(next).0;
            let grows = tenure > store.tenure_max[u] || (tenure == store.tenure_max[u] && lease.tenure.is_some());
            store.tenure_max[u] = store.tenure_max[u].max(tenure);
            note(state, predicates::tenures_grow(grows, lease));
            note(state, predicates::only_own_is_given_up(before.as_ref(), lease));
            let clocks = state.members.iter().map(|member| (&member.node, NOW));
            let found = predicates::taken_from_the_gone(before.as_ref(), lease, clocks);
            note(state, found);
        }
        Outcome::Won(next.0)
    }

    pub fn recreate(&self, state: &mut State) {
        state.recreations += 1;
        let store = state.store.edit();
        store.generation += 1;
        store.leases.clear();
        store.sessions.clear();
        if self.restarts || self.flaw == Some(Flaw::NumbersRestart) {
            store.last = 0;
        }
        if self.restarts {
            store.tenure_max = Default::default();
        }
        if self.noticed {
            let generation = Generation(state.store.generation);
            for m in 0..self.members {
                self.step(state, m, Event::Bucket { generation, regressed: false });
            }
        }
    }
}

fn append(store: &mut Store, expected: Sequence, fence: &Fence, batch: bool) -> Option<Sequence> {
    let last = last_fence(store).map_or(Sequence(0), |(sequence, _)| sequence);
    if last != expected {
        return None;
    }
    if let (true, Some(position)) = (batch, &fence.position) {
        let off = position.off - 1;
        let message =
            Stored::Message { inc: fence.inc, tenure: fence.tenure, run: position.run, page: position.page, off };
        store.log.push((Sequence(store.log.len() as u64 + 1), message));
    }
    let sequence = Sequence(store.log.len() as u64 + 1);
    store.log.push((sequence, Stored::Fence(fence.clone())));
    Some(sequence)
}

impl World {
    /// Requests that wait for nobody and can never be accepted again are forgotten, names of requests are made equal, and the kv revisions
    /// of sessions are numbered by their order: they are compared for equality only.
    pub fn settle(&self, state: &mut State) {
        for flying in &mut state.flying {
            let waits = flying.from.is_some_and(|m| state.members[m].node.awaits(&flying.request.ticket));
            flying.from = flying.from.filter(|_| waits);
            flying.request.ticket.number = u64::from(waits);
        }
        let fence = last_fence(&state.store).map_or(Sequence(0), |(sequence, _)| sequence);
        let store = &state.store;
        let restarts = (self.restarts || self.flaw == Some(Flaw::NumbersRestart)) && self.recreations > 0;
        // A creation may find its key gone at any later time. Revisions never come again, unless they are counted anew.
        let may_fit = |expected: &Option<KvRevision>, there: Option<KvRevision>| match expected {
            None => true,
            Some(revision) => {
                let again = restarts && (state.recreations < self.recreations || revision.0 > store.last);
                again || *expected == there
            }
        };
        state.flying.retain(|flying| {
            let keys = self.keys(flying.request.generation);
            flying.from.is_some()
                || flying.reply.is_none()
                    && match &flying.request.action {
                        Action::PutSession { expected, session } => {
                            may_fit(expected, revision(store.sessions.get(&(keys, session.inc))))
                        }
                        Action::PutLease { expected, lease } => {
                            may_fit(expected, revision(store.leases.get(&(keys, place(&lease.unit)))))
                                || (lease.hold != Hold::Held && self.flaw == Some(Flaw::ReleaseUnconditional))
                        }
                        Action::AppendFence { expected, .. } => *expected >= fence,
                        _ => false,
                    }
        });
        if self.sessions {
            rename_session_revisions(state);
        } else {
            rebase(state, &|_, revision| revision);
        }
        state.flying.sort();
        state.flying.dedup();
        state.letters.sort();
        state.store.keep(&STORES);
        for member in &mut state.members {
            member.keep(&MEMBERS);
        }
    }
}

fn rename_session_revisions(state: &mut State) {
    let mut used: BTreeMap<Incarnation, BTreeSet<KvRevision>> = BTreeMap::new();
    for flying in &state.flying {
        if let Action::PutSession { expected: Some(expected), session } = &flying.request.action {
            used.entry(session.inc).or_default().insert(*expected);
        }
    }
    for ((_, inc), record) in &state.store.sessions {
        used.entry(*inc).or_default().insert(record.revision);
    }
    for member in &state.members {
        for (inc, revision) in member.node.session_revisions() {
            used.entry(inc).or_default().insert(revision);
        }
    }
    let rename = |inc: Incarnation, revision: KvRevision| {
        let place = used.get(&inc).and_then(|known| known.iter().position(|r| *r == revision));
        KvRevision(place.map_or(0, |place| place as u64 + 1))
    };
    for flying in &mut state.flying {
        if let Action::PutSession { expected: Some(expected), session } = &mut flying.request.action {
            *expected = rename(session.inc, *expected);
        }
    }
    if state.store.sessions.iter().any(|((_, inc), record)| rename(*inc, record.revision) != record.revision) {
        for ((_, inc), record) in &mut state.store.edit().sessions {
            record.revision = rename(*inc, record.revision);
        }
    }
    rebase(state, &rename);
}

fn rebase(state: &mut State, rename: &dyn Fn(Incarnation, KvRevision) -> KvRevision) {
    for m in 0..state.members.len() {
        if !state.members[m].node.is_rebased(rename) {
            state.member(m).node.rebase(0, rename);
        }
    }
}
