//! What goes wrong, by seed, and the end of it.

use crate::chance::Chance;
use crate::process::{Inbound, Process};
use crate::protocol::{Event, Phase};
use crate::world::{Stage, Task, World};

/// Kinds of [`Fault`].
pub const FAULTS: usize = 21;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process is killed; another one starts some time later.
    Kill,
    /// Killed and started again at once: the same name while the old session stands.
    Restart,
    /// SIGTERM.
    Leave,
    /// It stands still, for longer than the TTL at times, and wakes with a queue of old answers.
    Pause,
    /// Its packets vanish: time-outs.
    BlackHole,
    /// Its connection is closed: the bus knows that nobody listens.
    Closed,
    /// As `Closed`, and the client keeps what it could not send, for when it is connected again.
    FlushLate,
    LostRequests,
    LostReplies,
    /// Requests that are applied after they timed out.
    LateRequests,
    SlowReplies,
    /// The store refuses for now.
    Busy,
    ClockRate,
    /// The wall clock of the store's servers steps, within the skew.
    StoreJump,
    /// Requests and replies in flight are of unknown fate; it is down for a while.
    BusRestart,
    /// The lease bucket is made anew.
    Recreate,
    /// Pings of live members bring "no responders".
    FalseEvidence,
    LateWatches,
    LostLetters,
    /// Workers do not pass their watchdog point.
    Hang,
    /// A new version of a unit is published.
    Publish,
}

pub const ALL: [Fault; FAULTS] = [
    Fault::Kill,
    Fault::Restart,
    Fault::Leave,
    Fault::Pause,
    Fault::BlackHole,
    Fault::Closed,
    Fault::FlushLate,
    Fault::LostRequests,
    Fault::LostReplies,
    Fault::LateRequests,
    Fault::SlowReplies,
    Fault::Busy,
    Fault::ClockRate,
    Fault::StoreJump,
    Fault::BusRestart,
    Fault::Recreate,
    Fault::FalseEvidence,
    Fault::LateWatches,
    Fault::LostLetters,
    Fault::Hang,
    Fault::Publish,
];

/// A bucket is made anew at most this often: the numbers of the next one begin above those of the last.
const RECREATE_MS_MIN: u64 = 1_000;

/// The faults of one seed: fewer kinds go deeper than all at once.
pub fn some(chance: &mut Chance) -> Vec<Fault> {
    let chosen: Vec<_> = ALL.into_iter().filter(|_| chance.percent(35)).collect();
    if chosen.is_empty() { ALL.to_vec() } else { chosen }
}

impl World {
    pub fn is_on(&self, member: usize, fault: Fault) -> bool {
        self.members[member].until[fault as usize] > self.t
    }

    pub fn fault(&mut self) {
        if self.stage != Stage::Faults {
            return;
        }
        let next = self.t + self.chance.between(50, self.pace_ms);
        self.schedule(next, Task::Fault);
        let fault = self.faults[self.chance.index(self.faults.len())];
        let member = self.chance.index(self.members.len());
        self.note(|_| format!("!! {fault:?} m{member}"));
        match fault {
            Fault::BusRestart => self.restart_bus(),
            Fault::Recreate => self.recreate(),
            Fault::StoreJump => {
                self.seen[fault as usize] += 1;
                self.store.jump_ms = self.chance.between(0, self.timers.store_skew_ms);
            }
            Fault::Publish => self.publish(),
            Fault::Kill | Fault::Restart | Fault::Leave | Fault::Pause | Fault::ClockRate => {
                if self.members[member].process.is_some() {
                    self.seen[fault as usize] += 1;
                    self.strike(member, fault);
                }
            }
            Fault::BlackHole | Fault::Closed | Fault::FlushLate => {
                let until = self.t + self.chance.between(200, 2 * self.timers.ttl_ms);
                self.seen[fault as usize] += u64::from(fault != Fault::FlushLate);
                self.members[member].until[fault as usize] = until;
                self.schedule(until, Task::Connect { member });
            }
            // The rest lasts a while and counts where it has an effect.
            _ => self.members[member].until[fault as usize] = self.t + self.chance.between(200, 4_000),
        }
    }

    fn strike(&mut self, member: usize, fault: Fault) {
        let rate = self.rate();
        let t = self.t;
        let pause_ms = self.chance.between(200, 2 * self.timers.ttl_ms);
        let within_ms = self.chance.between(300, 4_000);
        let Some(process) = &mut self.members[member].process else { return };
        match fault {
            Fault::Kill => self.end_process(member, (300, 4_000)),
            Fault::Restart => self.end_process(member, (10, 100)),
            Fault::ClockRate => process.clock.set_rate(t, rate),
            Fault::Pause => {
                process.paused = true;
                let process = process.number;
                self.schedule(t + pause_ms, Task::Resume { member, process });
            }
            _ if process.paused => {}
            _ if process.node.phase() == Phase::Ended => self.end_process(member, (200, 1_500)),
            _ => {
                process.leaving = true;
                self.step(member, Event::Leave { within_ms });
            }
        }
    }

    pub fn resume(&mut self, member: usize, number: u64) {
        let timers_first = self.chance.percent(50);
        let is_it = |process: &&mut Process| process.number == number;
        let Some(process) = self.members[member].process.as_mut().filter(is_it) else { return };
        process.paused = false;
        let mut backlog = std::mem::take(&mut process.backlog);
        if timers_first {
            backlog.sort_by_key(|inbound| !matches!(inbound, Inbound::TimeOut { .. } | Inbound::Wake));
        }
        self.note(|_| format!("m{member} wakes"));
        for inbound in backlog {
            if self.members[member].process.as_mut().filter(is_it).is_none() {
                return;
            }
            self.receive(member, inbound, true);
        }
    }

    fn restart_bus(&mut self) {
        self.bus += 1;
        self.bus_up_at = self.t + self.chance.between(50, 1_500);
        for member in 0..self.members.len() {
            self.schedule(self.bus_up_at, Task::Connect { member });
        }
    }

    fn recreate(&mut self) {
        if self.store.age_ms(self.t) < RECREATE_MS_MIN + self.timers.store_skew_ms {
            return;
        }
        self.seen[Fault::Recreate as usize] += 1;
        self.store.recreate(self.t);
        self.note(|world| format!("bucket {:?}", world.store.generation));
    }

    fn publish(&mut self) {
        self.seen[Fault::Publish as usize] += 1;
        let unit = self.units[self.chance.index(self.units.len())].clone();
        *self.heads.entry(unit.clone()).or_default() += 1;
        for member in 0..self.members.len() {
            self.tell_head(member, unit.clone(), 1_500);
        }
    }

    /// Nothing goes wrong any more. What is under way stays under way.
    pub fn heal(&mut self) {
        self.enter(Stage::Healing);
        self.advanced.clear();
        self.bus_up_at = self.bus_up_at.min(self.t);
        for member in 0..self.members.len() {
            self.members[member].until = [0; FAULTS];
            match &self.members[member].process {
                None => self.boot(member),
                Some(process) if process.paused => {
                    let number = process.number;
                    self.resume(member, number);
                }
                Some(_) => {}
            }
            self.connect(member);
        }
    }
}
