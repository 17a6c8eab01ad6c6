//! Between the members and the bus: what is sent, when it arrives, what comes back, and what a watch shows.

use crate::faults::Fault;
use crate::process::{Inbound, Letter};
use crate::protocol::record::{Incarnation, Unit};
use crate::protocol::{Action, Outcome};
use crate::store::Change;
use crate::world::{Ask, Flight, LAG_MS_MAX, Task, World};

/// One way, when nothing is wrong.
const WAY_MS_MAX: u64 = 8;
/// How much later than its time-out a late request is applied at most.
const LATE_MS_MAX: u64 = 4_000;
/// A watch that is late is late by this at most.
const WATCH_LATE_MS_MAX: u64 = 2_000;

fn writes(ask: &Ask) -> bool {
    let Ask::Node { request, .. } = ask else { return false };
    matches!(request.action, Action::PutSession { .. } | Action::PutLease { .. } | Action::AppendFence { .. })
}

impl World {
    pub fn is_cut(&self, member: usize) -> bool {
        [Fault::BlackHole, Fault::Closed, Fault::FlushLate].into_iter().any(|fault| self.is_on(member, fault))
    }

    fn way_ms(&mut self) -> u64 {
        self.chance.between(1, WAY_MS_MAX)
    }

    pub fn send(&mut self, member: usize, ask: Ask) {
        let Some(process) = &mut self.members[member].process else { return };
        let flight = Flight { member, process: process.number, bus: self.bus, ask };
        if self.is_cut(member) {
            if self.is_on(member, Fault::FlushLate)
                && let Some(process) = &mut self.members[member].process
            {
                process.queue.push(flight);
            }
            return;
        }
        let mut at = self.t + self.way_ms();
        if self.t < self.bus_up_at {
            at = self.bus_up_at + self.chance.below(200);
        } else if self.is_on(member, Fault::LostRequests) && self.chance.percent(30) {
            self.seen[Fault::LostRequests as usize] += 1;
            return;
        } else if self.is_on(member, Fault::LateRequests) && writes(&flight.ask) && self.chance.percent(30) {
            at += self.timers.request_timeout_ms + self.chance.below(LATE_MS_MAX);
        }
        self.schedule(at, Task::Arrive(flight));
    }

    /// The client is connected again: what it held goes out, and its watches list anew.
    pub fn connect(&mut self, member: usize) {
        if self.is_cut(member) {
            return;
        }
        let Some(process) = &mut self.members[member].process else { return };
        for mut flight in std::mem::take(&mut process.queue) {
            flight.bus = self.bus;
            self.seen[Fault::FlushLate as usize] += u64::from(writes(&flight.ask));
            let at = self.t + self.way_ms();
            self.schedule(at, Task::Arrive(flight));
        }
        self.list_anew(member);
    }

    pub fn list_anew(&mut self, member: usize) {
        let generation = self.store.generation;
        for unit in self.units.clone() {
            let seen = self.store.lease(self.t, generation, &unit);
            let at = self.t + self.way_ms();
            self.schedule_to(member, at, Inbound::Watched { unit, generation, seen });
        }
        self.list_members(member);
    }

    pub fn list_members(&mut self, member: usize) {
        if self.is_cut(member) {
            return;
        }
        let listed = self.store.announced(self.t);
        let at = self.t + self.way_ms();
        self.schedule_to(member, at, Inbound::Listed(listed));
    }

    /// A request reaches the bus.
    pub fn arrive(&mut self, flight: Flight) {
        if self.t < self.bus_up_at {
            let at = self.bus_up_at + self.chance.below(200);
            return self.schedule(at, Task::Arrive(flight));
        }
        if flight.bus != self.bus && self.chance.percent(50) {
            self.seen[Fault::BusRestart as usize] += 1;
            return;
        }
        let member = flight.member;
        let inbound = match &flight.ask {
            Ask::Announce { inc, announced } => {
                self.store.announce(self.t, *inc, announced.clone());
                return self.tell_members();
            }
            Ask::Withdraw { inc } => {
                self.store.withdraw(*inc);
                return self.tell_members();
            }
            Ask::Bucket { life } => {
                let (generation, age_ms) = (self.store.generation, self.store.age_ms(self.t));
                Inbound::Bucket { life: *life, generation, age_ms }
            }
            Ask::Node { request, messages } => {
                let ticket = request.ticket.clone();
                let sender = self.members[member].process.as_ref().filter(|p| p.number == flight.process);
                let waits = sender.is_some_and(|process| process.pending.contains(&ticket));
                if !waits && writes(&flight.ask) {
                    self.seen[Fault::LateRequests as usize] += 1;
                }
                let busy = self.is_on(member, Fault::Busy) && writes(&flight.ask) && self.chance.percent(30);
                let outcome = if busy {
                    self.seen[Fault::Busy as usize] += 1;
                    Outcome::Busy
                } else {
                    let lag_ms = self.chance.below(LAG_MS_MAX);
                    match self.store.apply(self.t, request, messages, lag_ms) {
                        Ok((outcome, change)) => {
                            self.note(|_| format!("bus: of m{member} {:?} -> {outcome:?}", request.action));
                            self.check_stored_while_printing();
                            self.changed(change);
                            outcome
                        }
                        Err(broken) => return self.fail(Err(broken)),
                    }
                };
                Inbound::Reply { ticket, outcome, bus: self.bus }
            }
        };
        self.reply(&flight, inbound);
    }

    fn reply(&mut self, flight: &Flight, inbound: Inbound) {
        let member = flight.member;
        if self.is_cut(member) {
            return;
        }
        if self.is_on(member, Fault::LostReplies) && self.chance.percent(30) {
            self.seen[Fault::LostReplies as usize] += 1;
            return;
        }
        let mut at = self.t + self.way_ms();
        if self.is_on(member, Fault::SlowReplies) {
            self.seen[Fault::SlowReplies as usize] += 1;
            at += self.chance.below(self.timers.request_timeout_ms * 3 / 2);
        }
        self.schedule(at, Task::To { member, process: flight.process, inbound });
    }

    /// An accepted write of a lease: checked, and shown to all watches.
    fn changed(&mut self, change: Option<Change>) {
        let Some(change) = change else { return };
        self.check_change(&change);
        if change.generation != self.store.generation {
            return;
        }
        for member in 0..self.members.len() {
            if self.is_cut(member) {
                continue;
            }
            let mut at = self.t + self.way_ms();
            if self.is_on(member, Fault::LateWatches) {
                self.seen[Fault::LateWatches as usize] += 1;
                at += self.chance.below(WATCH_LATE_MS_MAX);
            }
            let Some(process) = &mut self.members[member].process else { continue };
            process.watched_until = process.watched_until.max(at);
            let at = process.watched_until;
            let unit = change.lease.unit.clone();
            let seen = Some((change.revision, change.lease.clone()));
            self.schedule_to(member, at, Inbound::Watched { unit, generation: change.generation, seen });
        }
    }

    fn tell_members(&mut self) {
        for member in 0..self.members.len() {
            self.list_members(member);
        }
    }

    /// From member to member, not kept by anybody.
    pub fn letter(&mut self, from: usize, to: Incarnation, letter: Letter) {
        let Some(member) = self.member_of(to) else { return };
        if self.is_cut(from) || self.is_cut(member) {
            return;
        }
        if self.is_on(from, Fault::LostLetters) && self.chance.percent(60) {
            self.seen[Fault::LostLetters as usize] += 1;
            return;
        }
        let at = self.t + self.way_ms();
        self.schedule_to(member, at, Inbound::Letter { to, letter });
    }

    /// What a ping of `inc` brings.
    pub fn ping(&mut self, member: usize, inc: Incarnation) -> Option<crate::protocol::Evidence> {
        use crate::protocol::Evidence;
        if self.is_cut(member) || self.t < self.bus_up_at {
            return Some(Evidence::TimedOut);
        }
        let Some(other) = self.member_of(inc) else {
            // The request that is in flight at a death times out.
            return Some(if self.chance.percent(85) { Evidence::NoResponders } else { Evidence::TimedOut });
        };
        if self.is_on(member, Fault::FalseEvidence) {
            self.seen[Fault::FalseEvidence as usize] += 1;
            return Some(Evidence::NoResponders);
        }
        if self.is_on(other, Fault::Closed) || self.is_on(other, Fault::FlushLate) {
            return Some(Evidence::NoResponders);
        }
        let silent = self.is_cut(other) || self.members[other].process.as_ref().is_some_and(|p| p.paused);
        silent.then_some(Evidence::TimedOut)
    }

    pub fn holder_or_listed(&self, member: usize) -> Vec<Incarnation> {
        let Some(process) = &self.members[member].process else { return vec![] };
        let own = process.node.incarnation();
        let mut known: Vec<_> = process.listed.keys().chain(process.holders.values()).copied().collect();
        known.sort_unstable();
        known.dedup();
        known.retain(|inc| *inc != own);
        known
    }

    pub fn messages_of(&self, member: usize, unit: &Unit) -> Vec<crate::store::Message> {
        let process = self.members[member].process.as_ref();
        let hand = process.and_then(|process| process.workers.get(unit)?.hand.clone());
        hand.map(|hand| hand.messages).unwrap_or_default()
    }
}
