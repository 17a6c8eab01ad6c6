//! Who there is, as this member sees it: the announced members by role, and what it knows about sessions of others.
//!
//! Ranking uses the announced members whose session is not known to be dead; suspicion does not change it (own-S7). Views may differ
//! between members at any time: the protocol is safe under any view, and quiet once the views agree.

use std::collections::BTreeMap;

use super::event::Role;
use super::record::{Incarnation, Instance, KvRevision, Unit};
use super::timers::Moment;
use super::{Node, hrw};

/// Members of one role. More are cut off in the order of their incarnation, the same everywhere.
pub const MEMBERS_MAX: usize = 256;

/// Sessions of others under doubt or known to be gone. The shell repeats evidence, so one that does not fit is only later.
pub const DOUBTS_MAX: usize = 1024;

/// What is known about the session of another member. Nothing known is the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doubt {
    /// Seen as suspect at this revision; dead at that moment unless the revision changes.
    Suspect { revision: KvRevision, dead_at: Moment },
    /// Dead or absent: this incarnation can never act again.
    Gone,
}

/// The announced members by role.
pub type Views = BTreeMap<Role, BTreeMap<Incarnation, Instance>>;

impl Node {
    pub(super) fn is_gone(&self, inc: Incarnation) -> bool {
        self.doubts.get(&inc) == Some(&Doubt::Gone)
    }

    /// Announced in some role, or named by a lease that was seen. Both happen only after its session was won, so for such a member an
    /// absent session means gone.
    pub(super) fn is_known(&self, inc: Incarnation) -> bool {
        self.views.values().any(|view| view.contains_key(&inc))
            || self.units.values().any(|unit| unit.seen.names().any(|named| named == inc))
    }

    /// The members of `role` that are ranked.
    pub(super) fn ranked(&self, role: Role) -> BTreeMap<Incarnation, Instance> {
        let Some(view) = self.views.get(&role) else { return BTreeMap::new() };
        let mut ranked = view.clone();
        ranked.retain(|inc, _| !self.is_gone(*inc));
        ranked
    }

    /// Where `inc` stands for `unit` in this member's view.
    pub(super) fn rank_of(&self, unit: &Unit, inc: Incarnation) -> Option<usize> {
        let role = self.units.get(unit)?.spec.role;
        hrw::rank(unit, &self.ranked(role), inc)
    }

    /// The member that should own `unit` once this one is gone.
    pub(super) fn next_after_me(&self, unit: &Unit) -> Option<Incarnation> {
        let mut members = self.ranked(self.units.get(unit)?.spec.role);
        members.remove(&self.inc);
        hrw::ranking(unit, &members).into_iter().next()
    }

    /// Digest of the ranked members, for the records people read.
    pub(super) fn view_digest(&self, role: Role) -> u64 {
        let bytes: Vec<u8> = self.ranked(role).keys().flat_map(|inc| inc.0.to_le_bytes()).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    /// Ranks are different now: whoever waits for its turn counts anew, and every claim settles anew.
    pub(super) fn view_changed(&mut self) {
        for unit in self.units.values_mut() {
            unit.ask_at = None;
            unit.claim_at = None;
        }
    }

    pub(super) fn members(&mut self, role: Role, mut members: BTreeMap<Incarnation, Instance>) {
        while members.len() > MEMBERS_MAX {
            members.pop_last();
        }
        if self.views.get(&role) == Some(&members) {
            return;
        }
        self.views.insert(role, members);
        let stale: Vec<_> = self.doubts.keys().copied().filter(|inc| !self.is_known(*inc)).collect();
        for inc in stale {
            self.doubts.remove(&inc);
        }
        self.view_changed();
    }
}
