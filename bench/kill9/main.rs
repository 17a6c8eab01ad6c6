//! The kill campaign on one process and its embedded bus. Prints a line per round and, as the last line, `RESULT {…}`; the keys
//! are documented in `bench/README.md`. Exits with 1 when something was lost or doubled on the bus, or could not be measured.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

mod campaign;
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
    /// Messages to send in all, spread over the rounds.
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Rounds, each with a kill at least.
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// The seed of the moments, as an earlier run printed it.
    #[arg(long)]
    seed: Option<u64>,
    /// `[MESSAGES] [ROUNDS]`, in place of the flags.
    #[arg(num_args = 0..=2)]
    sizes: Vec<u64>,
}

impl Options {
    fn sizes(&self) -> Result<(u64, u32), String> {
        let messages = self.sizes.first().copied().unwrap_or(self.messages);
        let rounds = self.sizes.get(1).map_or(Ok(self.rounds), |rounds| u32::try_from(*rounds));
        let rounds = rounds.map_err(|_| "that many rounds would never end".to_owned())?;
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
    match campaign::run(&campaign, &mut |line| println!("{line}")) {
        Ok(report) => tell(&campaign, &report),
        Err(failure) => {
            eprintln!("kill9: could not measure (seed {seed}): {failure}");
            ExitCode::FAILURE
        }
    }
}

fn tell(campaign: &Campaign<'_>, report: &Report) -> ExitCode {
    let found = &report.comparison;
    let result = serde_json::json!({
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
