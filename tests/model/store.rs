//! The store of a world: what a request does when it is applied, and which requests can never do anything again.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::predicates::{self, Stored};
use crate::protocol::record::{Fence, Generation, Hold, Incarnation, KvRevision, Lease, Sequence, Session};
use crate::protocol::{Action, Outcome, Request};
use crate::world::{Flaw, Member, NOW, Record, State, Store, World, note};

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
    /// The request names the bucket that is there now. The keys of another match nothing.
    fn matches(&self, state: &State, request: &Request) -> bool {
        request.generation == Generation(state.store.generation) || self.flaw == Some(Flaw::KeysWithoutGeneration)
    }

    pub fn apply(&self, state: &mut State, request: &Request) -> Outcome {
        let here = self.matches(state, request);
        match &request.action {
            Action::ReadBucket => Outcome::Bucket(Generation(state.store.generation)),
            Action::ReadLease(_) => Outcome::Lease(read(state.store.lease.as_ref()).filter(|_| here)),
            Action::ReadSession(inc) => Outcome::Session(read(state.store.sessions.get(inc)).filter(|_| here)),
            Action::ReadFence(_) => Outcome::Fence(last_fence(&state.store)),
            Action::PutSession { expected, session } => self.put_session(state, here, *expected, session),
            Action::PutLease { expected, lease } => self.put_lease(state, here, *expected, lease),
            Action::AppendFence { expected, fence, batch } => {
                append(&mut state.store, *expected, fence, batch.is_some()).map_or(Outcome::Lost, |sequence| {
                    note(state, predicates::stored_is_right(&state.store.log));
                    Outcome::Won(sequence.0)
                })
            }
        }
    }

    fn put_session(&self, state: &mut State, here: bool, expected: Option<KvRevision>, session: &Session) -> Outcome {
        if !self.sessions {
            return Outcome::Won(1);
        }
        let current = state.store.sessions.get(&session.inc);
        if !here || revision(current) != expected {
            return Outcome::Lost;
        }
        // Renamed after every step; larger than any that is compared with.
        let next = KvRevision(100);
        state.store.sessions.insert(session.inc, Record { revision: next, value: session.clone(), age: 0 });
        Outcome::Won(next.0)
    }

    fn put_lease(&self, state: &mut State, here: bool, expected: Option<KvRevision>, lease: &Lease) -> Outcome {
        let grant = self.grants > 0 && lease.tenure.is_none();
        let blind = self.flaw == Some(Flaw::ReleaseUnconditional) && lease.hold != Hold::Held;
        let fits = here && (revision(state.store.lease.as_ref()) == expected || blind);
        let budget = if self.grants > 0 { self.grants } else { self.writes };
        if state.store.writes >= budget && (grant || self.grants == 0) {
            return if fits && self.grants == 0 { Outcome::Unknown } else { Outcome::Lost };
        }
        if !fits && !grant {
            return Outcome::Lost;
        }
        let store = &mut state.store;
        store.writes += u64::from(grant || self.grants == 0);
        store.last += 1;
        let next = KvRevision(store.last);
        let before = read(store.lease.as_ref());
        store.lease = Some(Record { revision: next, value: lease.clone(), age: 0 });
        if self.grants == 0 {
            let tenure = lease.tenure_at(next).0;
            let grows = tenure > store.tenure_max || (tenure == store.tenure_max && lease.tenure.is_some());
            store.tenure_max = store.tenure_max.max(tenure);
            note(state, predicates::tenures_grow(grows, lease));
            note(state, predicates::only_own_is_given_up(before.as_ref(), lease));
            let clocks = state.members.iter().map(|member: &Member| (&member.node, NOW));
            let found = predicates::taken_from_the_gone(before.as_ref(), lease, clocks);
            note(state, found);
        }
        Outcome::Won(next.0)
    }

    pub fn recreate(&self, state: &mut State) {
        state.recreations += 1;
        state.store.generation += 1;
        state.store.lease = None;
        state.store.sessions.clear();
        if self.flaw == Some(Flaw::NumbersRestart) {
            state.store.last = 0;
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

/// Requests that wait for nobody and can never be accepted again are forgotten, names of requests are made equal, and the kv revisions
/// of sessions are numbered by their order: they are compared for equality only.
pub fn canonical(state: &mut State) {
    for flying in &mut state.flying {
        let waits = flying.from.is_some_and(|m| state.members[m].node.awaits(&flying.request.ticket));
        flying.from = flying.from.filter(|_| waits);
        flying.request.ticket.number = u64::from(waits);
    }
    let fence = last_fence(&state.store).map_or(Sequence(0), |(sequence, _)| sequence);
    let store = &state.store;
    let mut used: BTreeMap<Incarnation, BTreeSet<KvRevision>> = BTreeMap::new();
    state.flying.retain(|flying| {
        flying.from.is_some()
            || flying.reply.is_none()
                && match &flying.request.action {
                    Action::PutSession { expected: Some(expected), session } => {
                        revision(store.sessions.get(&session.inc)) == Some(*expected)
                    }
                    Action::PutLease { expected: Some(expected), lease } => {
                        revision(store.lease.as_ref()) == Some(*expected) || lease.hold != Hold::Held
                    }
                    Action::AppendFence { expected, .. } => *expected >= fence,
                    action => writes(action),
                }
    });
    for flying in &state.flying {
        if let Action::PutSession { expected: Some(expected), session } = &flying.request.action {
            used.entry(session.inc).or_default().insert(*expected);
        }
    }
    for (inc, record) in &state.store.sessions {
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
    for (inc, record) in &mut state.store.sessions {
        record.revision = rename(*inc, record.revision);
    }
    for member in &mut state.members {
        member.node.rebase(0, &rename);
    }
    state.flying.sort();
    state.flying.dedup();
    state.letters.sort();
}
