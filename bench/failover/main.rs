//! How long a unit that one instance runs stands still when that instance goes. Prints a line per fault and, as the last line,
//! `RESULT {…}`; the keys are documented in `bench/README.md`.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

#[path = "../../tests/cluster/proxy.rs"]
mod proxy;
#[path = "../../tests/support/nats.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Map, Value, json};
use vejas::bus::nats::Nats;
use vejas::flow::message::{self, Stored};
use vejas::id::Names;
use vejas::ports::bus::Bus;

use proxy::{Cut, Proxy};
use server::Server;
use support::Failure;
use support::process::{Process, get};

const INSTANCES: usize = 3;
const PERIOD_MS: i64 = 100;
/// How long any step may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// An owner that has been one for so long is not about to hand over.
const SETTLED: Duration = Duration::from_secs(4);

const MANIFEST: &str = "apiVersion: vejas/v1
kind: Source
metadata: { name: beat }
spec:
  interval: { every: 100ms, onMissed: fireAll }
  to: ops.beat
";

/// Measures the gap that each kind of fault leaves in an interval source.
#[derive(Debug, Parser)]
struct Options {
    /// The `vejas` binary.
    #[arg(long)]
    binary: PathBuf,
    /// How often each fault is made.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Leave out the faults that last a lease time.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// SIGTERM.
    Graceful,
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Pause,
    /// Its connection is closed and new ones are refused.
    Refused,
    /// Nothing gets through.
    BlackHole,
}

impl Fault {
    const ALL: [Fault; 5] = [Fault::Graceful, Fault::Kill, Fault::Refused, Fault::Pause, Fault::BlackHole];

    fn key(self) -> &'static str {
        match self {
            Fault::Graceful => "graceful_ms",
            Fault::Kill => "kill9_ms",
            Fault::Pause => "pause_ms",
            Fault::Refused => "cut_ms",
            Fault::BlackHole => "blackhole_ms",
        }
    }

    fn lasts_a_lease(self) -> bool {
        matches!(self, Fault::Pause | Fault::BlackHole)
    }
}

struct Instance {
    process: Process,
    proxy: Proxy,
}

struct World {
    binary: PathBuf,
    _server: Server,
    runtime: tokio::runtime::Runtime,
    bus: Arc<Nats>,
    instances: Vec<Instance>,
}

fn name(number: usize) -> String {
    format!("vejas-{number}")
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("failover: could not measure: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<bool, Failure> {
    let mut world = World::start(options)?;
    let mut result = Map::new();
    for fault in Fault::ALL.into_iter().filter(|fault| !(options.quick && fault.lasts_a_lease())) {
        let mut gaps = Vec::new();
        for round in 1..=options.rounds.max(1) {
            let gap = world.measure(fault)?;
            println!("{} {round}: {gap} ms", fault.key());
            gaps.push(gap);
        }
        gaps.sort_unstable();
        result.insert(fault.key().to_owned(), json!(gaps[gaps.len() / 2]));
        result.insert(fault.key().replace("_ms", "_max_ms"), json!(gaps[gaps.len() - 1]));
    }
    let slots = slots(&world.stored()?);
    let double: usize = slots.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    let missed: i64 = slots.windows(2).map(|pair| ((pair[1] - pair[0]) / PERIOD_MS - 1).max(0)).sum();
    result.insert("double_slots".to_owned(), json!(double));
    result.insert("missed_slots".to_owned(), json!(missed));
    result.insert("slots".to_owned(), json!(slots.len()));
    result.insert("rounds".to_owned(), json!(options.rounds));
    println!("\n{:<30} {:>14}", "measure", "value");
    for (name, value) in &result {
        println!("{name:<30} {value:>14}");
    }
    println!("RESULT {}", Value::Object(result));
    Ok(double == 0 && missed == 0)
}

fn slots(stored: &[Stored]) -> Vec<i64> {
    let slot = |stored: &Stored| stored.headers.get(message::ID)?.strip_prefix("i/beat/")?.parse().ok();
    stored.iter().filter_map(slot).collect()
}

impl World {
    fn start(options: &Options) -> Result<Self, Failure> {
        let server = Server::start();
        let mut instances = Vec::new();
        for number in 1..=INSTANCES {
            let proxy = Proxy::to(server.address());
            let mut process = Process::new(MANIFEST)?;
            process.environment("VEJAS_CLUSTER", "1");
            process.environment("VEJAS_NATS_URL", proxy.url());
            process.environment("VEJAS_INSTANCE", name(number));
            process.launch(&options.binary)?;
            instances.push(Instance { process, proxy });
        }
        for instance in &mut instances {
            instance.process.wait_ready()?;
        }
        let runtime = tokio::runtime::Runtime::new()?;
        let bus = runtime.block_on(server::connect(&server));
        let binary = options.binary.clone();
        Ok(World { binary, _server: server, runtime, bus, instances })
    }

    /// All beats, in the order of the stream.
    fn stored(&self) -> Result<Vec<Stored>, Failure> {
        let (stream, filters) = (Names::default().messages(), [Names::default().stored("ops.beat")]);
        let (mut all, mut from) = (Vec::new(), 1);
        loop {
            let some = self.runtime.block_on(self.bus.read(&stream, from, &filters, 1_000))?;
            let Some(last) = some.last() else { return Ok(all) };
            from = last.sequence + 1;
            all.extend(some);
        }
    }

    /// The newest sequence of the stream.
    fn last(&self) -> Result<u64, Failure> {
        Ok(self.runtime.block_on(self.bus.stream(&Names::default().messages()))?.last)
    }

    /// When the beats since this sequence were stored, in milliseconds.
    fn times_since(&self, sequence: u64) -> Result<Vec<i64>, Failure> {
        let (stream, filters) = (Names::default().messages(), [Names::default().stored("ops.beat")]);
        let some = self.runtime.block_on(self.bus.read(&stream, sequence.max(1), &filters, 1_000))?;
        Ok(some.iter().map(|stored| stored.time.unix_millis()).collect())
    }

    /// Who owns the source, as any instance but `but` says.
    fn owner(&self, but: Option<usize>) -> Option<usize> {
        let asked = self.instances.iter().enumerate().filter(|(number, _)| Some(*number) != but);
        asked.into_iter().find_map(|(_, instance)| {
            let (_, body) = get(instance.process.api, "/api/v1/leases").ok()?;
            let leases: Value = serde_json::from_str(&body).ok()?;
            let found = leases["leases"].as_array()?.iter().find(|lease| lease["unit"] == "source/beat")?.clone();
            let held = found["state"] == "held";
            let owner = found["instance"].as_str()?.to_owned();
            held.then(|| (0..INSTANCES).find(|number| name(number + 1) == owner)).flatten()
        })
    }

    fn settled_owner(&self) -> Result<usize, Failure> {
        let began = Instant::now();
        let mut since: Option<(usize, Instant)> = None;
        loop {
            let owner = self.owner(None);
            since = match (owner, since) {
                (Some(owner), Some((known, at))) if owner == known => Some((owner, at)),
                (Some(owner), _) => Some((owner, Instant::now())),
                (None, _) => None,
            };
            if let Some((owner, at)) = since
                && at.elapsed() > SETTLED
            {
                return Ok(owner);
            }
            if began.elapsed() > PATIENCE {
                return Err("no instance keeps the source".into());
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The longest time between two beats around the fault, less the period.
    fn measure(&mut self, fault: Fault) -> Result<i64, Failure> {
        let owner = self.settled_owner()?;
        // Somewhere between two slots.
        let before = self.last()?.saturating_sub(20);
        self.make(fault, owner)?;
        let began = Instant::now();
        while self.owner(Some(owner)).is_none_or(|next| next == owner) {
            if began.elapsed() > PATIENCE {
                return Err(format!("{fault:?}: nobody takes the source over: {}", self.logs()).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_secs(1));
        let times = self.times_since(before)?;
        let gap = times.windows(2).map(|pair| pair[1] - pair[0]).max().ok_or("no beats")?;
        self.mend(fault, owner)?;
        Ok((gap - PERIOD_MS).max(0))
    }

    fn make(&mut self, fault: Fault, owner: usize) -> Result<(), Failure> {
        let instance = &mut self.instances[owner];
        match fault {
            Fault::Graceful => instance.process.stop()?,
            Fault::Kill => instance.process.kill()?,
            Fault::Pause => instance.process.signal("STOP")?,
            Fault::Refused => instance.proxy.set(Cut::Refused),
            Fault::BlackHole => instance.proxy.set(Cut::BlackHole),
        }
        Ok(())
    }

    fn mend(&mut self, fault: Fault, owner: usize) -> Result<(), Failure> {
        let binary = self.binary.clone();
        let instance = &mut self.instances[owner];
        match fault {
            Fault::Graceful | Fault::Kill => instance.process.launch(&binary)?,
            Fault::Pause => instance.process.signal("CONT")?,
            Fault::Refused | Fault::BlackHole => instance.proxy.set(Cut::No),
        }
        // One that was away for longer than a lease time may have ended by itself, for its supervisor to start it again.
        thread::sleep(Duration::from_secs(1));
        if instance.process.has_ended()? {
            instance.process.launch(&binary)?;
        }
        instance.process.wait_ready()
    }

    fn logs(&self) -> String {
        self.instances.iter().map(|instance| format!("{}\n", instance.process.log())).collect()
    }
}
