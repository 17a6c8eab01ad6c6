//! Measures one `vejas` process from outside: hop, entrance, end to end, memory, start. Beside each rate stands the
//! limit of this machine, measured in the same run.
//!
//! Prints a table and, as the last line, `RESULT {…}`; the keys are documented in `bench/README.md`. Exits with 1 when
//! something could not be measured.

#![allow(clippy::disallowed_methods)]

mod limits;
mod nats;
mod raw;
mod scenarios;
#[path = "../../tests/support/nats.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use support::Failure;

/// How fast one process is, each figure beside the limit of this machine.
#[derive(Debug, Parser)]
pub struct Options {
    /// The `vejas` binary to measure.
    #[arg(long)]
    binary: PathBuf,
    /// The load generator.
    #[arg(long)]
    load: PathBuf,
    /// Where messages are stored. For `nats` the environment names a server in VEJAS_TEST_NATS_SERVER.
    #[arg(long, value_enum, default_value_t = Bus::Embedded)]
    bus: Bus,
    /// Over NATS, how often hop and limit are measured in turn.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Messages that pass each hop.
    #[arg(long, default_value_t = 400_000)]
    messages: usize,
    /// How long each HTTP scenario runs, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// HTTP connections.
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Flows in the loading scenario; a tenth as many distinct programs.
    #[arg(long, default_value_t = 1_000)]
    flows: usize,
    /// Only the scenarios whose name begins with this. Without the limits no ratios are reported.
    #[arg(long, default_value = "")]
    only: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bus {
    Embedded,
    Nats,
}

type Figures = BTreeMap<&'static str, f64>;

fn measure(options: &Options) -> Result<Figures, Failure> {
    let mut figures = Figures::new();
    type Scenario = fn(&Options, &mut Figures) -> Result<(), Failure>;
    let embedded: &[(&str, Scenario)] = &[
        ("limits of this machine", limits::measure),
        ("cold start", scenarios::cold_start),
        ("hops", scenarios::hops),
        ("HTTP", scenarios::http),
        ("many flows", scenarios::many_flows),
    ];
    let nats: &[(&str, Scenario)] = &[("hops", nats::hops), ("end to end", nats::end_to_end)];
    let scenarios = if options.bus == Bus::Nats { nats } else { embedded };
    for (name, scenario) in scenarios.iter().filter(|(name, _)| name.starts_with(&options.only)) {
        let known = figures.len();
        eprintln!("throughput: {name} …");
        scenario(options, &mut figures).map_err(|failure| format!("{name}: {failure}; so far {figures:?}"))?;
        debug_assert!(figures.len() > known, "a scenario reports something");
    }
    if options.only.is_empty() && options.bus == Bus::Embedded {
        ratios(&mut figures);
    }
    Ok(figures)
}

fn ratios(figures: &mut Figures) {
    let limit = figures["limit_disk_per_s"].min(figures["limit_language_per_s"]);
    figures.insert("limit_per_s", limit);
    figures.insert("ratio", figures["hop_per_s"] / limit);
    let simple = figures["limit_disk_per_s"].min(figures["limit_language_simple_per_s"]);
    figures.insert("ratio_simple", figures["hop_simple_per_s"] / simple);
    figures.insert("ratio_http", figures["http_in_per_s"] / figures["limit_fsync_shared_per_s"]);
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(figures) => {
            println!("\n{:<28} {:>14}", "measure", "value");
            for (name, value) in &figures {
                println!("{name:<28} {value:>14.2}");
            }
            println!("RESULT {}", serde_json::to_string(&figures).expect("numbers are JSON"));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("throughput: could not measure: {failure}");
            ExitCode::FAILURE
        }
    }
}
