//! The kill campaign on one process and its embedded bus, or on a cluster. Prints a line per round and, as the last line, `RESULT {…}`; the keys
//! are documented in `bench/README.md`. Exits with 1 when something was lost or doubled on the bus, or could not be measured.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

mod campaign;
mod cluster;
#[path = "../support/cluster.rs"]
mod instances;
#[path = "../../tests/support/nats.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use campaign::{Campaign, Report};

/// Kills `vejas` at random moments under load and compares what was acknowledged with what is there.
#[derive(Debug, Parser)]
struct Options {
    /// The `vejas` binary to kill.
    #[arg(long)]
    binary: PathBuf,
    /// `nats` kills instances of a cluster.
    #[arg(long, default_value = "embedded")]
    bus: Bus,
    /// Instances of a cluster; any number of them means `--bus nats`. 3 without a word.
    #[arg(long)]
    instances: Option<usize>,
    /// Messages to send in all, spread over the rounds: 200,000 for one process, 20,000 for a cluster.
    #[arg(long)]
    messages: Option<u64>,
    /// Rounds, each with a kill at least: 50 for one process, 10 for a cluster.
    #[arg(long)]
    rounds: Option<u32>,
    /// The seed of the moments, as an earlier run printed it.
    #[arg(long)]
    seed: Option<u64>,
    /// `[MESSAGES] [ROUNDS]`, in place of the flags.
    #[arg(num_args = 0..=2)]
    sizes: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Bus {
    Embedded,
    Nats,
}

const INSTANCES: usize = 3;

impl Options {
    /// `None` is one process with its embedded bus.
    fn instances(&self) -> Option<usize> {
        self.instances.or((self.bus == Bus::Nats).then_some(INSTANCES))
    }

    fn sizes(&self) -> Result<(u64, u32), String> {
        let (messages, rounds) = if self.instances().is_some() { (20_000, 10) } else { (200_000, 50) };
        let messages = self.sizes.first().copied().or(self.messages).unwrap_or(messages);
        let rounds = self.sizes.get(1).map_or(Ok(self.rounds.unwrap_or(rounds)), |rounds| u32::try_from(*rounds));
        let rounds = rounds.map_err(|_| "that many rounds would never end".to_owned())?;
        if self.instances() == Some(0) {
            return Err("at least one instance".to_owned());
        }
        if rounds == 0 || messages < u64::from(rounds) {
            return Err("at least one round, and a message for each".to_owned());
        }
        Ok((messages, rounds))
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let (messages, rounds) = match options.sizes() {
        Ok(sizes) => sizes,
        Err(message) => {
            eprintln!("kill9: {message}");
            return ExitCode::from(2);
        }
    };
    let seed = options.seed.unwrap_or_else(support::random::seed);
    println!("seed {seed}: {messages} messages, {rounds} rounds");
    let campaign = Campaign { binary: &options.binary, messages, rounds, seed };
    let instances = options.instances();
    let mut progress = |line| println!("{line}");
    let report = match instances {
        None => campaign::run(&campaign, &mut progress),
        Some(instances) => cluster::run(&campaign, instances, &mut progress),
    };
    match report {
        Ok(report) => tell(&campaign, instances, &report),
        Err(failure) => {
            eprintln!("kill9: could not measure (seed {seed}): {failure}");
            ExitCode::FAILURE
        }
    }
}

fn tell(campaign: &Campaign<'_>, instances: Option<usize>, report: &Report) -> ExitCode {
    let found = &report.comparison;
    let mut result = serde_json::json!({
        "lost": found.lost,
        "duplicated_bus": found.duplicated_bus,
        "duplicated_sink": found.duplicated_sink,
        "duplicated_sink_unexplained": found.unexplained,
        "foreign": found.foreign,
        "drain_s": (report.drain.as_secs_f64() * 100.0).round() / 100.0,
        "rounds": campaign.rounds,
        "kills": report.kills,
        "messages": campaign.messages,
        "acknowledged": report.acknowledged,
        "unknown": report.unknown,
        "seed": campaign.seed,
    });
    if let Some(instances) = instances {
        result["instances"] = instances.into();
    }
    println!("\n{:<30} {:>14}", "measure", "value");
    for (name, value) in result.as_object().into_iter().flatten() {
        println!("{name:<30} {value:>14}");
    }
    if !found.examples.is_empty() {
        eprintln!("kill9: lost, among others: {}", found.examples.join(", "));
    }
    println!("RESULT {result}");
    let clean = found.lost + found.duplicated_bus + found.unexplained + found.foreign == 0;
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
