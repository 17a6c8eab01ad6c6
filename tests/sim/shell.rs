//! The shell around a node: performs its effects, tells it what reaches the process, and decides nothing. It stands for the one of the
//! product.

use std::collections::{BTreeMap, VecDeque};

use crate::faults::Fault;
use crate::process::{Inbound, Letter};
use crate::protocol::record::{Incarnation, Unit};
use crate::protocol::{Action, Effect, Ending, Event, Evidence, Outcome, Phase, Request, Role};
use crate::store::{Announced, Announcements};
use crate::world::{Ask, Member, Stage, World};

/// A worker's loop takes this long.
const LOOP_MS: (u64, u64) = (80, 240);
/// A worker tells its progress every so many rounds: more than once in each third of the TTL.
const ROUNDS_OF_PROGRESS: u64 = 3;
/// From the check of the permit to the effect; below `sched` of the timers.
const ACTION_MS_MAX: u64 = 40;
/// A worker that is told to stop has stopped after this.
const STOP_MS_MAX: u64 = 150;
const PROBE_MS: (u64, u64) = (150, 300);
/// A tick may be late.
const TICK_LATE_MS_MAX: u64 = 3;

impl World {
    /// One step of a node, and what follows from it.
    pub fn step(&mut self, member: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let t = self.t;
            let Some(process) = &mut self.members[member].process else { return };
            let now = process.clock.now(t);
            let ends = crate::check::may_end(process, &event, now);
            let line = (self.log != crate::world::Log::Off).then(|| format!("m{member} {event:?}"));
            self.steps += 1;
            let effects = process.node.step(now, event);
            if let Some(line) = line {
                self.note(|_| format!("{line} => {effects:?}"));
            }
            self.check_step(member, ends);
            if self.broken.is_some() {
                return;
            }
            for effect in effects {
                self.perform(member, effect, &mut events);
            }
        }
        self.wake_later(member);
    }

    fn wake_later(&mut self, member: usize) {
        let late = self.chance.below(TICK_LATE_MS_MAX);
        let t = self.t;
        let Some(process) = &mut self.members[member].process else { return };
        let next = process.node.wakes_at(process.clock.now(t)).map(|moment| process.clock.at(moment));
        let Some(next) = next.filter(|next| *next < t + 60_000) else { return };
        if process.wakes_at.is_some_and(|at| at > t && at <= next) {
            return;
        }
        process.wakes_at = Some(next + late);
        self.schedule_to(member, next + late, Inbound::Wake);
    }

    fn perform(&mut self, member: usize, effect: Effect, events: &mut VecDeque<Event>) {
        let mutant = self.mutant;
        let Some(process) = &mut self.members[member].process else { return };
        let from = process.node.incarnation();
        match effect {
            Effect::Ask(request) => self.ask(member, request),
            Effect::Announce { inc } => {
                process.announced = Some(inc);
                self.announce(member);
            }
            Effect::Withdraw { inc } => {
                process.announced = None;
                self.send(member, Ask::Withdraw { inc });
            }
            Effect::Start { unit, epoch, position, .. } => {
                let repeatable = self.kind(&unit).repeatable;
                let number = self.number();
                self.moves += 1;
                *self.starts.entry(unit.clone()).or_default() += 1;
                let Some(process) = &mut self.members[member].process else { return };
                process.start(&unit, number, epoch, position.as_ref(), (repeatable, mutant));
                let at = self.t + self.chance.below(20);
                self.schedule_to(member, at, Inbound::Work { unit, worker: number });
            }
            Effect::Permit { unit, until } => {
                if let Some(worker) = process.workers.get_mut(&unit) {
                    worker.permit = until;
                }
            }
            Effect::Stop { unit } => self.stop(member, unit),
            Effect::Written { unit, batch } => {
                let worker = process.workers.get_mut(&unit);
                if worker.is_some_and(|worker| worker.written(batch)) {
                    self.advanced.insert((unit, from));
                }
            }
            Effect::Rewind { unit, position } => {
                if let Some(worker) = process.workers.get_mut(&unit) {
                    worker.rewind(position.as_ref());
                }
            }
            Effect::ReadHead { unit, .. } => self.tell_head(member, unit, 20),
            Effect::Claim { to, unit, tenure } => self.letter(member, to, Letter::Claim { from, unit, tenure }),
            Effect::Refuse { to, unit, tenure } => self.letter(member, to, Letter::Refused { unit, tenure }),
            Effect::Decline { to, unit, tenure } => self.letter(member, to, Letter::Declined { from, unit, tenure }),
            Effect::Ended { inc, why } => {
                self.check_end(member, inc, why);
                self.ended(member, why, events);
            }
        }
    }

    fn ask(&mut self, member: usize, request: Request) {
        let messages = match &request.action {
            Action::AppendFence { fence, batch: Some(_), .. } => self.messages_of(member, &fence.unit),
            _ => vec![],
        };
        let t = self.t;
        let Some(process) = &mut self.members[member].process else { return };
        process.pending.insert(request.ticket.clone());
        let limit = process.clock.now(t).after(self.timers.request_timeout_ms);
        let at = process.clock.at(limit);
        let ticket = request.ticket.clone();
        self.schedule_to(member, at, Inbound::TimeOut { ticket });
        self.send(member, Ask::Node { request: Box::new(request), messages });
    }

    fn announce(&mut self, member: usize) {
        let Member { name, process, .. } = &self.members[member];
        let announced = Announced { instance: name.as_str().into(), member };
        if let Some(inc) = process.as_ref().and_then(|process| process.announced) {
            self.send(member, Ask::Announce { inc, announced });
        }
    }

    fn stop(&mut self, member: usize, unit: Unit) {
        let hung = self.members[member].until[Fault::Hang as usize];
        let at = self.t.max(hung) + self.chance.between(1, STOP_MS_MAX);
        let Some(process) = &mut self.members[member].process else { return };
        let Some(worker) = process.workers.get_mut(&unit) else { return };
        worker.stopping = true;
        let worker = worker.number;
        self.schedule_to(member, at, Inbound::Stopped { unit, worker });
    }

    pub fn tell_head(&mut self, member: usize, unit: Unit, within_ms: u64) {
        let no = self.heads.get(&unit).copied().unwrap_or(1);
        let at = self.t + self.chance.between(1, within_ms);
        self.schedule_to(member, at, Inbound::Head { unit, no });
    }

    fn ended(&mut self, member: usize, why: Ending, events: &mut VecDeque<Event>) {
        let Some(process) = &self.members[member].process else { return };
        if process.leaving || why == Ending::Left {
            events.clear();
            return self.end_process(member, (200, 1_500));
        }
        let at = self.t + self.chance.between(1, 100);
        self.schedule_to(member, at, Inbound::BeginAgain);
    }

    /// The process is gone; its supervisor starts another one.
    pub fn end_process(&mut self, member: usize, (soonest, latest): (u64, u64)) {
        self.note(|_| format!("m{member} process ends"));
        self.members[member].process = None;
        let at = self.t + self.chance.between(soonest, latest);
        self.schedule(at, crate::world::Task::Boot { member });
    }

    /// `late`: it waited while the process was paused.
    pub fn receive(&mut self, member: usize, inbound: Inbound, late: bool) {
        let (t, bus) = (self.t, self.bus);
        let Some(process) = &mut self.members[member].process else { return };
        match inbound {
            Inbound::Reply { ticket, outcome, bus: from } => {
                if from == bus && process.pending.remove(&ticket) {
                    self.step(member, Event::Answer { ticket, outcome });
                }
            }
            Inbound::TimeOut { ticket } => {
                if process.pending.remove(&ticket) {
                    self.step(member, Event::Answer { ticket, outcome: Outcome::Unknown });
                }
            }
            Inbound::Wake => {
                if late || process.wakes_at == Some(t) {
                    process.wakes_at = None;
                    self.step(member, Event::Tick);
                }
            }
            Inbound::Watched { unit, generation, seen } => {
                if process.node.generation() == Some(generation) {
                    match &seen {
                        Some((_, lease)) => process.holders.insert(unit.clone(), lease.inc),
                        None => process.holders.remove(&unit),
                    };
                    self.step(member, Event::Lease { unit, seen });
                }
            }
            Inbound::Listed(listed) => self.listed(member, listed),
            Inbound::Letter { to, letter } => {
                if process.node.incarnation() == to {
                    self.step(member, told(letter));
                }
            }
            Inbound::Probe => self.probe(member),
            Inbound::Work { unit, worker } => self.work(member, unit, worker),
            Inbound::Effect { unit, worker, tenure } => {
                let Some(running) = process.worker(&unit, worker) else { return };
                running.acting -= 1;
                let inc = process.node.incarnation();
                self.check_effect(member, &unit, tenure, late);
                if !self.kind(&unit).fenced {
                    self.advanced.insert((unit, inc));
                }
            }
            Inbound::Stopped { unit, worker } => {
                let Some(running) = process.worker(&unit, worker) else { return };
                if running.acting > 0 {
                    return self.schedule_to(member, t + 5, Inbound::Stopped { unit, worker });
                }
                process.workers.remove(&unit);
                self.step(member, Event::Stopped { unit });
            }
            Inbound::Refresh => {
                let life = process.life;
                self.announce(member);
                self.send(member, Ask::Bucket { life });
                self.list_members(member);
                let at = t + self.timers.ttl_ms / 3 - self.chance.below(100);
                self.schedule_to(member, at, Inbound::Refresh);
            }
            Inbound::Bucket { life, generation, age_ms } => {
                if life != process.life || process.leaving && process.node.phase() == Phase::Ended {
                } else if process.node.phase() == Phase::Ended {
                    self.begin(member, generation, age_ms);
                } else {
                    self.step(member, Event::Bucket { generation, regressed: false });
                }
            }
            Inbound::Head { unit, no } => {
                if self.is_cut(member) {
                    return self.tell_head(member, unit, 500);
                }
                let Some(process) = &mut self.members[member].process else { return };
                let known = process.numbers.entry(unit).or_insert(no);
                *known = (*known).max(no);
                let units = self.specs(member);
                self.step(member, Event::Units(units));
            }
            Inbound::BeginAgain => {
                if process.node.phase() == Phase::Ended {
                    let life = process.life;
                    self.send(member, Ask::Bucket { life });
                    self.schedule_to(member, t + self.timers.request_timeout_ms, Inbound::BeginAgain);
                }
            }
        }
    }

    fn begin(&mut self, member: usize, generation: crate::protocol::record::Generation, age_ms: u64) {
        let lives = &mut self.members[member].lives;
        *lives += 1;
        let inc = Incarnation((member as u128 + 1) << 32 | u128::from(*lives));
        let Some(process) = &mut self.members[member].process else { return };
        process.life += 1;
        process.holders.clear();
        self.step(member, Event::Begin { inc, generation, age_ms });
        let units = self.specs(member);
        self.step(member, Event::Units(units));
        self.list_anew(member);
    }

    fn listed(&mut self, member: usize, listed: Announcements) {
        let Some(process) = &mut self.members[member].process else { return };
        if process.listed == listed {
            return;
        }
        let departed: Vec<_> = process.listed.keys().filter(|inc| !listed.contains_key(*inc)).copied().collect();
        process.listed = listed.clone();
        if self.stage == Stage::Calm {
            self.views = self.views.saturating_add(1);
        }
        for inc in departed {
            self.step(member, Event::Suspicion { inc, evidence: Evidence::Departed });
        }
        for role in [Role::Worker, Role::Sink] {
            let of_role = listed.iter().filter(|(_, announced)| World::has_role(announced.member, role));
            let members: BTreeMap<_, _> = of_role.map(|(inc, a)| (*inc, a.instance.clone())).collect();
            self.step(member, Event::Members { role, members });
        }
    }

    fn probe(&mut self, member: usize) {
        for inc in self.holder_or_listed(member) {
            if let Some(evidence) = self.ping(member, inc) {
                self.step(member, Event::Suspicion { inc, evidence });
            }
        }
        let at = self.t + self.chance.between(PROBE_MS.0, PROBE_MS.1);
        self.schedule_to(member, at, Inbound::Probe);
    }

    /// One round of a worker: tells that it lives, stores a batch, begins an action, each only while it may.
    fn work(&mut self, member: usize, unit: Unit, number: u64) {
        let t = self.t;
        let at = t + self.chance.between(LOOP_MS.0, LOOP_MS.1);
        let wanted = self.chance.between(1, 2);
        let fenced = self.kind(&unit).fenced;
        let hung = self.is_on(member, Fault::Hang);
        let Some(process) = &mut self.members[member].process else { return };
        let now = process.clock.now(t);
        let tenure = process.node.tenure(&unit);
        let Some(worker) = process.worker(&unit, number) else { return };
        if worker.stopping {
            return;
        }
        worker.rounds += 1;
        let tells = worker.rounds % ROUNDS_OF_PROGRESS == 1;
        let begins = worker.may_begin(now);
        let hand = (fenced && begins && !hung && worker.hand.is_none()).then(|| worker.next(wanted));
        worker.acting += u64::from(begins);
        self.schedule_to(member, at, Inbound::Work { unit: unit.clone(), worker: number });
        if begins {
            let effect = Inbound::Effect { unit: unit.clone(), worker: number, tenure };
            let at = t + self.chance.below(ACTION_MS_MAX);
            self.schedule_to(member, at, effect);
        }
        if hung {
            self.seen[Fault::Hang as usize] += 1;
        } else if tells {
            self.step(member, Event::Progress { unit: unit.clone() });
        }
        if let Some(hand) = hand {
            self.step(member, Event::Write { unit, batch: hand.batch, position: hand.position });
        }
    }
}

fn told(letter: Letter) -> Event {
    match letter {
        Letter::Claim { from, unit, tenure } => Event::Claim { from, unit, tenure },
        Letter::Refused { unit, tenure } => Event::Refused { unit, tenure },
        Letter::Declined { from, unit, tenure } => Event::Declined { from, unit, tenure },
    }
}
