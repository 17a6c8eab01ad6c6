//! The world of one seed: virtual time, the queue of what is due, the members, and how a run goes: faults, then healing, then calm.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::chance::Chance;
use crate::faults::{FAULTS, Fault};
use crate::process::{Clock, Inbound, Process};
use crate::protocol::mutant::Mutant;
use crate::protocol::predicates::Broken;
use crate::protocol::record::{Generation, Incarnation, TenureNumber, Unit};
use crate::protocol::{Checked, Class, Node, Request, Role, Settings, Timers, UnitSpec};
use crate::store::{Announced, Message, Store};

/// What can be owned here.
pub struct Kind {
    pub name: &'static str,
    pub role: Role,
    pub class: Class,
    pub fenced: bool,
    /// Its content is a function of its position.
    pub repeatable: bool,
}

const fn kind(name: &'static str, role: Role, class: Class, fenced: bool, repeatable: bool) -> Kind {
    Kind { name, role, class, fenced, repeatable }
}

pub const UNITS: [Kind; 6] = [
    kind("source/interval", Role::Worker, Class::Fenced, true, true),
    kind("source/kafka/0", Role::Worker, Class::Fenced, true, true),
    kind("source/poll", Role::Worker, Class::Exclusive, true, false),
    kind("source/exec", Role::Worker, Class::Exclusive, true, false),
    kind("chore/trim", Role::Worker, Class::Fenced, false, false),
    kind("sink/ordered", Role::Sink, Class::Exclusive, false, false),
];

/// Faults happen for this long.
pub const FAULTS_MS: u64 = 9_000;
/// After healing each unit has somebody that may act within this: the quiet time of a bucket just made, or the expiry of a lease and
/// the time until it is noticed.
pub const OWNED_MS_MAX: u64 = 2 * TTL_MS + LAG_MS_MAX + 1_500;
/// After healing each unit is with the first in rank within this: as above, and two claims.
pub const SETTLED_MS_MAX: u64 = OWNED_MS_MAX + 7_000;
/// How long nothing may move once all is settled.
pub const CALM_MS: u64 = 1_500;
pub const TTL_MS: u64 = 3_000;
/// A record expires this much late at most.
pub const LAG_MS_MAX: u64 = 300;
const LOOK_MS: u64 = 100;

/// Short times to live, and clocks that are far off.
pub fn timers() -> Checked {
    let timers = Timers { drift_ppm: 50_000, ..Timers::for_ttl(TTL_MS) };
    timers.check().expect("timers whose relations hold")
}

/// A request on its way to the bus.
#[derive(Debug, Clone)]
pub struct Flight {
    pub member: usize,
    pub process: u64,
    /// The life of the bus it was sent in.
    pub bus: u64,
    pub ask: Ask,
}

#[derive(Debug, Clone)]
pub enum Ask {
    Node { request: Box<Request>, messages: Vec<Message> },
    Announce { inc: Incarnation, announced: Announced },
    Withdraw { inc: Incarnation },
    Bucket { life: u64 },
}

#[derive(Debug)]
pub enum Task {
    To { member: usize, process: u64, inbound: Inbound },
    Arrive(Flight),
    Boot { member: usize },
    Connect { member: usize },
    Resume { member: usize, process: u64 },
    Fault,
    Heal,
    Look,
}

struct Due {
    at: u64,
    order: u64,
    task: Task,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

/// A member: its name stays, its processes come and go.
pub struct Member {
    pub name: String,
    pub process: Option<Process>,
    pub lives: u64,
    /// Until when each fault lasts.
    pub until: [u64; FAULTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Faults,
    Healing,
    Calm,
}

/// What became of a seed.
#[derive(Debug)]
pub struct Report {
    pub broken: Option<Broken>,
    /// Faults of each kind that had an effect.
    pub seen: [u64; FAULTS],
    pub steps: u64,
    pub moves: u64,
    pub owned_ms: u64,
    pub settled_ms: u64,
    /// Of the whole log, if it was kept.
    pub hash: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    Off,
    Hash,
    Print,
}

pub struct World {
    pub t: u64,
    pub chance: Chance,
    queue: BinaryHeap<Reverse<Due>>,
    order: u64,
    pub timers: Checked,
    pub mutant: Option<Mutant>,
    pub store: Store,
    pub units: Vec<Unit>,
    /// The publication number of each unit.
    pub heads: BTreeMap<Unit, u64>,
    pub members: Vec<Member>,
    /// The faults of this seed, and how long one waits for the next at most.
    pub faults: Vec<Fault>,
    pub pace_ms: u64,
    pub seen: [u64; FAULTS],
    /// Lives of the bus, and until when it is down.
    pub bus: u64,
    pub bus_up_at: u64,
    pub stage: Stage,
    pub stage_since: u64,
    pub numbers: u64,
    pub broken: Option<Broken>,
    pub holders: BTreeMap<(Generation, Unit, TenureNumber), Incarnation>,
    /// The last tenure of each unit that began where no record was.
    pub created: BTreeMap<(Generation, Unit), TenureNumber>,
    /// Units that an incarnation worked on since all healed.
    pub advanced: BTreeSet<(Unit, Incarnation)>,
    /// Starts of each unit, and changes of anybody's view, since all is calm.
    pub starts: BTreeMap<Unit, u8>,
    pub views: u8,
    pub moves: u64,
    pub steps: u64,
    pub owned_ms: Option<u64>,
    pub settled_ms: u64,
    pub log: Log,
    pub hash: u64,
}

impl World {
    pub fn new(seed: u64, mutant: Option<Mutant>, log: Log) -> Self {
        let mut chance = Chance::new(seed);
        let units: Vec<Unit> = UNITS.iter().map(|kind| Unit::new(kind.name)).collect();
        let members = chance.between(3, 5);
        // Names may clash.
        let twins = chance.percent(15);
        let name = |m: u64| if twins && m == 1 { "vejas-0".to_owned() } else { format!("vejas-{m}") };
        let member = |m: u64| Member { name: name(m), process: None, lives: 0, until: [0; FAULTS] };
        let faults = crate::faults::some(&mut chance);
        let pace_ms = chance.between(200, 1_500);
        let age_ms = chance.below(2 * TTL_MS);
        let mut world = World {
            t: 0,
            chance,
            queue: BinaryHeap::new(),
            order: 0,
            timers: timers(),
            mutant,
            store: Store::new(TTL_MS, age_ms),
            heads: units.iter().map(|unit| (unit.clone(), 1)).collect(),
            units,
            members: (0..members).map(member).collect(),
            faults,
            pace_ms,
            seen: [0; FAULTS],
            bus: 0,
            bus_up_at: 0,
            stage: Stage::Faults,
            stage_since: 0,
            numbers: 0,
            broken: None,
            holders: BTreeMap::new(),
            created: BTreeMap::new(),
            advanced: BTreeSet::new(),
            starts: BTreeMap::new(),
            views: 0,
            moves: 0,
            steps: 0,
            owned_ms: None,
            settled_ms: 0,
            log,
            hash: 0,
        };
        for member in 0..world.members.len() {
            let at = world.chance.below(300);
            world.schedule(at, Task::Boot { member });
        }
        world.schedule(1_000, Task::Fault);
        world.schedule(FAULTS_MS, Task::Heal);
        world
    }

    /// These faults instead of those of the seed.
    pub fn with(mut self, faults: &[Fault]) -> Self {
        self.faults = faults.to_vec();
        self
    }

    pub fn run(mut self) -> Report {
        while self.broken.is_none() {
            let Some(Reverse(due)) = self.queue.pop() else { break };
            self.t = due.at;
            if self.stage == Stage::Calm && self.t > self.stage_since + CALM_MS {
                break;
            }
            self.perform_task(due.task);
        }
        self.check_stored();
        Report {
            broken: self.broken,
            seen: self.seen,
            steps: self.steps,
            moves: self.moves,
            owned_ms: self.owned_ms.unwrap_or(0),
            settled_ms: self.settled_ms,
            hash: self.hash,
        }
    }

    pub fn schedule(&mut self, at: u64, task: Task) {
        self.order += 1;
        self.queue.push(Reverse(Due { at: at.max(self.t), order: self.order, task }));
    }

    /// To the process that runs at `member` now, if any.
    pub fn schedule_to(&mut self, member: usize, at: u64, inbound: Inbound) {
        if let Some(process) = &self.members[member].process {
            let process = process.number;
            self.schedule(at, Task::To { member, process, inbound });
        }
    }

    fn perform_task(&mut self, task: Task) {
        match task {
            Task::To { member, process, inbound } => {
                let Some(running) = &mut self.members[member].process else { return };
                if running.number != process {
                    return;
                }
                if running.paused {
                    return running.backlog.push(inbound);
                }
                self.receive(member, inbound, false);
            }
            Task::Arrive(flight) => self.arrive(flight),
            Task::Boot { member } => self.boot(member),
            Task::Connect { member } => self.connect(member),
            Task::Resume { member, process } => self.resume(member, process),
            Task::Fault => self.fault(),
            Task::Heal => {
                self.heal();
                self.check_stored();
                self.schedule(self.t + LOOK_MS, Task::Look);
            }
            Task::Look => {
                self.look();
                self.schedule(self.t + LOOK_MS, Task::Look);
            }
        }
    }

    pub fn enter(&mut self, stage: Stage) {
        self.note(|_| format!("-- {stage:?}"));
        self.stage = stage;
        self.stage_since = self.t;
        self.starts.clear();
        self.views = 0;
    }

    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A process starts, under the name of its member.
    pub fn boot(&mut self, member: usize) {
        if self.members[member].process.is_some() {
            return;
        }
        let mut settings = Settings::new(&self.members[member].name, self.timers.clone());
        settings.mutant = self.mutant;
        let number = self.number();
        let base = self.chance.between(1_000, 1_000_000);
        let clock = Clock::new(self.t, base, self.rate());
        self.note(|_| format!("m{member} process {number} starts"));
        let mut process = Process::new(number, Node::new(settings), clock);
        process.numbers = self.heads.clone();
        self.members[member].process = Some(process);
        for inbound in [Inbound::BeginAgain, Inbound::Refresh, Inbound::Probe] {
            let at = self.t + self.chance.between(1, 50);
            self.schedule_to(member, at, inbound);
        }
    }

    /// A clock's rate, within the drift that the timers allow.
    pub fn rate(&mut self) -> u64 {
        let drift = self.timers.drift_ppm;
        self.chance.between(1_000_000 - drift, 1_000_000 + drift)
    }

    /// A member is first, second, fourth and so on in the role of sinks.
    pub fn has_role(member: usize, role: Role) -> bool {
        role == Role::Worker || member != 2
    }

    pub fn specs(&self, member: usize) -> BTreeMap<Unit, UnitSpec> {
        let Some(process) = &self.members[member].process else { return BTreeMap::new() };
        let own = self.units.iter().zip(&UNITS).filter(|(_, kind)| World::has_role(member, kind.role));
        own.map(|(unit, kind)| {
            let no = process.numbers.get(unit).copied().unwrap_or(1);
            (unit.clone(), UnitSpec { role: kind.role, class: kind.class, fenced: kind.fenced, no, digest: no })
        })
        .collect()
    }

    pub fn kind(&self, unit: &Unit) -> &'static Kind {
        let place = self.units.iter().position(|known| known == unit).unwrap_or(0);
        &UNITS[place]
    }

    /// The member whose process lives under this incarnation now.
    pub fn member_of(&self, inc: Incarnation) -> Option<usize> {
        self.members.iter().position(|member| {
            member
                .process
                .as_ref()
                .is_some_and(|p| p.node.incarnation() == inc && p.node.phase() != crate::protocol::Phase::Ended)
        })
    }

    pub fn fail(&mut self, found: Result<(), Broken>) {
        if let Err(broken) = found {
            self.note(|_| format!("BROKEN {}: {}", broken.id, broken.what));
            self.broken.get_or_insert(broken);
        }
    }

    /// One line of the log. Costs nothing where no log is kept.
    pub fn note(&mut self, line: impl FnOnce(&World) -> String) {
        if self.log == Log::Off {
            return;
        }
        let line = format!("{:>6} {}", self.t, line(self));
        if self.log == Log::Print {
            println!("{line}");
        }
        self.hash = line.bytes().fold(self.hash ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    }
}
