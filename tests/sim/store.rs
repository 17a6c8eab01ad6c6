//! The bus in memory: a lease bucket with compare-and-set and expiry, the bucket of members, and for each unit the stream with its fence.
//!
//! It keeps what it acknowledged, as assumption 1 of the protocol says. A request of an older bucket names keys of that bucket: it can
//! create them here, and match nothing else.

use std::collections::BTreeMap;

use crate::protocol::predicates::{Broken, Stored};
use crate::protocol::record::{
    Fence, Generation, Incarnation, Instance, KvRevision, Lease, Run, Sequence, Session, TenureNumber, Unit,
};
use crate::protocol::{Action, Outcome, Request};

/// Wall clock of the store's servers at the start, in milliseconds. Numbers of a bucket begin at its creation in microseconds.
const WALL_MS_AT_START: u64 = 1_000_000;

/// One message of a batch: where it belongs, and which fetch its content came from.
#[derive(Debug, Clone)]
pub struct Message {
    pub run: Run,
    pub page: u64,
    pub off: u64,
    pub fetch: u64,
}

#[derive(Debug, Clone)]
struct Record<T> {
    revision: KvRevision,
    value: T,
    expires_wall_ms: u64,
}

impl<T: Clone> Record<T> {
    fn at(&self, wall_ms: u64) -> Option<(KvRevision, T)> {
        (wall_ms < self.expires_wall_ms).then(|| (self.revision, self.value.clone()))
    }
}

/// A member as it is announced: its instance, and which member of the simulation it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    pub instance: Instance,
    pub member: usize,
}

pub type Announcements = BTreeMap<Incarnation, Announced>;

/// An accepted write of a lease.
#[derive(Debug, Clone)]
pub struct Change {
    pub before: Option<(KvRevision, Lease)>,
    pub revision: KvRevision,
    pub lease: Lease,
    pub generation: Generation,
}

#[derive(Debug)]
pub struct Store {
    pub generation: Generation,
    created_wall_ms: u64,
    last: u64,
    ttl_ms: u64,
    /// How far the wall clock of the servers is ahead of where it was; at most the skew of the timers.
    pub jump_ms: u64,
    leases: BTreeMap<(Generation, Unit), Record<Lease>>,
    sessions: BTreeMap<(Generation, Incarnation), Record<Session>>,
    members: BTreeMap<Incarnation, Record<Announced>>,
    pub logs: BTreeMap<Unit, Vec<(Sequence, Stored)>>,
    fences: BTreeMap<Unit, (Sequence, Fence)>,
    fetches: BTreeMap<(Unit, u64, Run), u64>,
    sequence: u64,
    pub tenure_max: BTreeMap<Unit, TenureNumber>,
}

impl Store {
    /// The bucket is `age_ms` old.
    pub fn new(ttl_ms: u64, age_ms: u64) -> Self {
        let created_wall_ms = WALL_MS_AT_START - age_ms;
        Store {
            generation: Generation(created_wall_ms),
            created_wall_ms,
            last: created_wall_ms * 1_000,
            ttl_ms,
            jump_ms: 0,
            leases: BTreeMap::new(),
            sessions: BTreeMap::new(),
            members: BTreeMap::new(),
            logs: BTreeMap::new(),
            fences: BTreeMap::new(),
            fetches: BTreeMap::new(),
            sequence: 0,
            tenure_max: BTreeMap::new(),
        }
    }

    pub fn wall_ms(&self, t: u64) -> u64 {
        WALL_MS_AT_START + t + self.jump_ms
    }

    pub fn age_ms(&self, t: u64) -> u64 {
        self.wall_ms(t).saturating_sub(self.created_wall_ms)
    }

    pub fn recreate(&mut self, t: u64) {
        self.created_wall_ms = self.wall_ms(t);
        self.generation = Generation(self.created_wall_ms);
        self.last = self.created_wall_ms * 1_000;
        self.leases.clear();
        self.sessions.clear();
    }

    pub fn lease(&self, t: u64, generation: Generation, unit: &Unit) -> Option<(KvRevision, Lease)> {
        self.leases.get(&(generation, unit.clone()))?.at(self.wall_ms(t))
    }

    pub fn session(&self, t: u64, generation: Generation, inc: Incarnation) -> Option<Session> {
        Some(self.sessions.get(&(generation, inc))?.at(self.wall_ms(t))?.1)
    }

    pub fn fence(&self, unit: &Unit) -> Option<(Sequence, Fence)> {
        self.fences.get(unit).cloned()
    }

    pub fn announce(&mut self, t: u64, inc: Incarnation, announced: Announced) {
        let expires_wall_ms = self.wall_ms(t) + self.ttl_ms;
        self.members.insert(inc, Record { revision: KvRevision(0), value: announced, expires_wall_ms });
    }

    pub fn withdraw(&mut self, inc: Incarnation) {
        self.members.remove(&inc);
    }

    pub fn announced(&self, t: u64) -> Announcements {
        let wall_ms = self.wall_ms(t);
        self.members.iter().filter_map(|(inc, record)| Some((*inc, record.at(wall_ms)?.1))).collect()
    }

    /// What a request does. Records expire `lag_ms` after their time. An accepted write of a lease is returned as well.
    pub fn apply(
        &mut self,
        t: u64,
        request: &Request,
        messages: &[Message],
        lag_ms: u64,
    ) -> Result<(Outcome, Option<Change>), Broken> {
        let generation = request.generation;
        let wall_ms = self.wall_ms(t);
        let expires_wall_ms = wall_ms + self.ttl_ms + lag_ms;
        let outcome = match &request.action {
            Action::ReadBucket => Outcome::Bucket(self.generation),
            Action::ReadLease(unit) => Outcome::Lease(self.lease(t, generation, unit)),
            Action::ReadSession(inc) => {
                Outcome::Session(self.sessions.get(&(generation, *inc)).and_then(|record| record.at(wall_ms)))
            }
            Action::ReadFence(unit) => Outcome::Fence(self.fence(unit)),
            Action::PutSession { expected, session } => {
                let key = (generation, session.inc);
                let current = self.sessions.get(&key).and_then(|record| record.at(wall_ms));
                if current.map(|(revision, _)| revision) != *expected {
                    return Ok((Outcome::Lost, None));
                }
                self.last += 1;
                let revision = KvRevision(self.last);
                self.sessions.insert(key, Record { revision, value: session.clone(), expires_wall_ms });
                Outcome::Won(self.last)
            }
            Action::PutLease { expected, lease } => {
                let before = self.lease(t, generation, &lease.unit);
                if before.as_ref().map(|(revision, _)| *revision) != *expected {
                    return Ok((Outcome::Lost, None));
                }
                self.last += 1;
                let revision = KvRevision(self.last);
                let record = Record { revision, value: lease.clone(), expires_wall_ms };
                self.leases.insert((generation, lease.unit.clone()), record);
                let change = Change { before, revision, lease: lease.clone(), generation };
                return Ok((Outcome::Won(self.last), Some(change)));
            }
            Action::AppendFence { expected, fence, .. } => self.append(*expected, fence, messages)?,
        };
        Ok((outcome, None))
    }

    fn append(&mut self, expected: Sequence, fence: &Fence, messages: &[Message]) -> Result<Outcome, Broken> {
        let last = self.fences.get(&fence.unit).map_or(Sequence(0), |(sequence, _)| *sequence);
        if last != expected {
            return Ok(Outcome::Lost);
        }
        let log = self.logs.entry(fence.unit.clone()).or_default();
        for message in messages {
            let Message { run, page, off, fetch } = *message;
            let first = *self.fetches.entry((fence.unit.clone(), page, run)).or_insert(fetch);
            if first != fetch {
                let what = format!("{}: page {page} mixes two fetches in one run", fence.unit);
                return Err(Broken { id: "own-G2", what });
            }
            self.sequence += 1;
            let stored = Stored::Message { inc: fence.inc, tenure: fence.tenure, run, page, off };
            log.push((Sequence(self.sequence), stored));
        }
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        log.push((sequence, Stored::Fence(fence.clone())));
        self.fences.insert(fence.unit.clone(), (sequence, fence.clone()));
        Ok(Outcome::Won(sequence.0))
    }
}
