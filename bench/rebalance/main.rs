//! Sources that one instance each may run, while instances join and leave: which units move, how long until all run where they
//! belong, and that no slot is left out or fired twice. Prints a line per phase and, as the last line, `RESULT {…}`; the
//! keys are documented in `bench/README.md`.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

#[path = "../support/cluster.rs"]
mod instances;
#[path = "../../tests/support/nats.rs"]
mod server;
mod slots;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use serde_json::{Value, json};

use instances::{Cluster, name};
use slots::{PERIOD, SUBJECT, Slots};
use support::Failure;

/// Owners that have not changed for so long are where they belong.
const SETTLED: Duration = Duration::from_secs(5);
/// How long any phase may take.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);
/// A slot older than this is stored, or missed.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Moves interval sources between instances that join and leave, and looks at every slot.
#[derive(Debug, Parser)]
struct Options {
    /// The `vejas` binary.
    #[arg(long)]
    binary: PathBuf,
    #[arg(long, default_value_t = 300)]
    sources: usize,
    /// Instances at first and in the end.
    #[arg(long, default_value_t = 3)]
    from: usize,
    /// Instances in between.
    #[arg(long, default_value_t = 5)]
    to: usize,
}

/// The name of the owner by unit.
type Owners = BTreeMap<String, String>;

/// What a change of the members led to.
struct Change {
    owners: Owners,
    /// From the change to the last move.
    even: Duration,
    /// Units whose owner is another than before.
    moved: usize,
    /// Of those, units whose owner before is there still and whose new one was there before: nothing asked for that.
    needless: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.from == 0 || options.to <= options.from || options.sources == 0 {
        eprintln!("rebalance: at least one source and one instance, and more in between");
        return ExitCode::from(2);
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("rebalance: could not measure: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn source(number: usize) -> String {
    format!("s-{number}")
}

fn manifests(sources: usize) -> String {
    let one = |number| {
        format!(
            "apiVersion: vejas/v1\nkind: Source\nmetadata: {{ name: {} }}\nspec:\n  interval: {{ every: {}s, onMissed: fireAll }}\n  to: {SUBJECT}\n",
            source(number),
            PERIOD.as_secs()
        )
    };
    (0..sources).map(one).collect::<Vec<_>>().join("---\n")
}

fn unix_millis() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

fn run(options: &Options) -> Result<bool, Failure> {
    let mut cluster = Cluster::new(&options.binary, &manifests(options.sources))?;
    cluster.launch(options.from)?;
    cluster.wait_ready()?;
    let first = settle(&cluster, options, options.from, &Owners::new(), Instant::now())?.owners;
    println!("{} instances: {}", options.from, shares(&first));
    let watched = unix_millis();

    let joined = Instant::now();
    cluster.launch(options.to - options.from)?;
    let out = settle(&cluster, options, options.to, &first, joined)?;
    println!("{} instances: {}, even after {:.1} s", options.to, shares(&out.owners), out.even.as_secs_f64());

    let left = Instant::now();
    let leaving = cluster.instances.split_off(options.from);
    leaving.iter().try_for_each(|instance| instance.signal("TERM"))?;
    let back = settle(&cluster, options, options.from, &out.owners, left)?;
    println!("{} instances: {}, even after {:.1} s", options.from, shares(&back.owners), back.even.as_secs_f64());
    let elsewhere = first.iter().filter(|(unit, owner)| back.owners.get(*unit) != Some(owner)).count();

    thread::sleep(LATE_MAX);
    let until = unix_millis() - LATE_MAX.as_millis() as i64;
    let mut slots = Slots::default();
    cluster.runtime.block_on(slots.read(&cluster.bus))?;
    let found = slots.judge((0..options.sources).map(source), watched, until);
    for mut instance in leaving {
        instance.wait_end()?;
    }
    cluster.instances.iter_mut().try_for_each(support::process::Process::stop)?;

    let (share_min, share_max) = share_range(&out.owners);
    let seconds = |duration: Duration| (duration.as_secs_f64() * 10.0).round() / 10.0;
    let result = json!({
        "sources": options.sources,
        "members": format!("{}-{}-{}", options.from, options.to, options.from),
        "moved_out": out.moved,
        "moved_back": back.moved,
        "moved_needlessly": out.needless + back.needless,
        "elsewhere": elsewhere,
        "even_out_s": seconds(out.even),
        "even_back_s": seconds(back.even),
        "share_min": share_min,
        "share_max": share_max,
        "double_slots": found.double,
        "missed_slots": found.missed,
        "late_p50_ms": found.late_p50_ms,
        "late_max_ms": found.late_max_ms,
        "slots": found.slots,
    });
    tell(&result);
    Ok(found.double == 0 && found.missed == 0)
}

fn tell(result: &Value) {
    println!("\n{:<30} {:>14}", "measure", "value");
    for (name, value) in result.as_object().into_iter().flatten() {
        println!("{name:<30} {value:>14}");
    }
    println!("RESULT {result}");
}

/// Waits until every unit is held, each instance holds some, and nothing has moved for a while.
fn settle(
    cluster: &Cluster,
    options: &Options,
    members: usize,
    before: &Owners,
    began: Instant,
) -> Result<Change, Failure> {
    let (mut owners, mut changed) = (before.clone(), began);
    loop {
        // A list leaves out a lease that is renewed while it is read: only an owner that is told counts.
        for (unit, owner) in cluster.owners().unwrap_or_default() {
            if owners.get(&unit) != Some(&owner) {
                owners.insert(unit, owner);
                changed = Instant::now();
            }
        }
        let holders = share_by_owner(&owners);
        let complete = owners.len() == options.sources && holders.len() == members;
        if complete && changed.elapsed() > SETTLED {
            break;
        }
        if began.elapsed() > PATIENCE {
            let held = owners.len();
            return Err(format!("{held} units held, {} after {PATIENCE:?}: {}", shares(&owners), cluster.logs()).into());
        }
        thread::sleep(LOOK);
    }
    let there = |owner: &String, of: &Owners| of.values().any(|other| other == owner);
    let moves: Vec<_> = owners.iter().filter(|(unit, owner)| before.get(*unit).is_some_and(|b| b != *owner)).collect();
    let needless = moves.iter().filter(|(unit, owner)| there(&before[*unit], &owners) && there(owner, before)).count();
    Ok(Change { even: changed - began, moved: moves.len(), needless, owners })
}

fn share_by_owner(owners: &Owners) -> BTreeMap<&str, usize> {
    let mut shares = BTreeMap::new();
    owners.values().for_each(|owner| *shares.entry(owner.as_str()).or_default() += 1);
    shares
}

fn share_range(owners: &Owners) -> (usize, usize) {
    let shares = share_by_owner(owners);
    (shares.values().copied().min().unwrap_or(0), shares.values().copied().max().unwrap_or(0))
}

fn shares(owners: &Owners) -> String {
    let shares = share_by_owner(owners);
    let one = |number| format!("{} {}", name(number), shares.get(name(number).as_str()).unwrap_or(&0));
    (0..shares.len()).map(one).collect::<Vec<_>>().join(", ")
}
