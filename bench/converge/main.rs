//! Publications while a flow works: three instances share a nats-server, the flow's constant is changed a hundred times under
//! half the load that it bears, and every message is looked at. Prints, as the last line, `RESULT {…}`; the keys are
//! documented in `bench/README.md`.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

#[path = "../support/cluster.rs"]
mod instances;
mod judge;
mod load;
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
use serde_json::{Value, json};
use vejas::id::{Names, UnitId, UnitKind};
use vejas::runtime::streams;
use vejas::runtime::versions::Versions;

use instances::Cluster;
use judge::{Parts, Window};
use load::Load;
use support::Failure;
use support::process::{Process, request};

const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);
/// Of the rate at which the flow works off what waits.
const LOAD_SHARE: f64 = 0.5;

/// Publishes changes of a flow under load, and looks at every message.
#[derive(Debug, Parser)]
struct Options {
    /// The `vejas` binary.
    #[arg(long)]
    binary: PathBuf,
    #[arg(default_value_t = 3)]
    instances: usize,
    /// At least so many while it is published; as many as it takes for all publications.
    #[arg(default_value_t = 40_000)]
    messages: u64,
    #[arg(long, default_value_t = 100)]
    publications: u32,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.instances == 0 || options.messages == 0 || options.publications == 0 {
        eprintln!("converge: at least one instance, one message and one publication");
        return ExitCode::from(2);
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("converge: could not measure: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn manifest(version: u32) -> String {
    format!(
        "apiVersion: vejas/v1\nkind: Flow\nmetadata: {{ name: work }}\nspec:\n  from: {}\n  startFrom: first\n  steps:\n    - map: .version = {version}\n  to: {}\n",
        judge::FROM,
        judge::TO
    )
}

fn run(options: &Options) -> Result<bool, Failure> {
    let mut cluster = Cluster::new(&options.binary, &manifest(0))?;
    // What waits before anybody works tells how fast they are.
    let waiting = options.messages / 2;
    cluster.runtime.block_on(async {
        streams::ensure_messages(&*cluster.bus, &Names::default(), 4 << 30).await?;
        load::store(&*cluster.bus, 0..waiting).await
    })?;
    cluster.launch(options.instances)?;
    cluster.wait_ready()?;
    drain(&cluster)?;
    let hop_per_s = cluster.runtime.block_on(judge::rate(&*cluster.bus))?;
    println!("{} instances work off {hop_per_s:.0}/s; the load is half of that", options.instances);

    let load = Load::start(&cluster, waiting, hop_per_s * LOAD_SHARE)?;
    load.wait_for(options.messages / 10)?;
    let pace =
        Duration::from_secs_f64(options.messages as f64 / (hop_per_s * LOAD_SHARE) / f64::from(options.publications));
    let versions = Versions::new(Arc::clone(&cluster.bus) as _, &Names::default());
    let (mut parts, mut took) = (Parts::default(), Vec::new());
    let begun = load::now();
    for version in 1..=options.publications {
        let next = Instant::now() + pace;
        took.push(publish(&cluster, version)?);
        let held = cluster.runtime.block_on(versions.run(&UnitId::new(UnitKind::Flow, "work")))?;
        parts.see(&held.ok_or("the flow has no record")?.0);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    load.wait_for(options.messages)?;
    let window = Window { from: begun, to: load::now() };
    let (sent, fed_per_s) = load.end()?;
    drain(&cluster)?;
    let found = cluster.runtime.block_on(judge::judge(&*cluster.bus, &parts, sent, &window))?;
    cluster.instances.iter_mut().try_for_each(Process::stop)?;

    took.sort();
    let percentile = |share: f64| took[((took.len() - 1) as f64 * share).round() as usize].as_secs_f64() * 1e3;
    let tenth = |value: f64| (value * 10.0).round() / 10.0;
    let result = json!({
        "instances": options.instances,
        "messages": sent,
        "publications": options.publications,
        "hop_per_s": hop_per_s.round(),
        "fed_per_s": fed_per_s.round(),
        "lost": found.lost,
        "duplicated": found.duplicated,
        "mixed": found.mixed,
        "versions": found.versions,
        "gap_ms": tenth(found.gap_ms),
        "gap_p99_ms": tenth(found.gap_p99_ms),
        "apply_p50_ms": tenth(percentile(0.5)),
        "apply_p99_ms": tenth(percentile(0.99)),
    });
    println!("\n{:<30} {:>14}", "measure", "value");
    for (name, value) in result.as_object().into_iter().flatten() {
        println!("{name:<30} {value:>14}");
    }
    println!("RESULT {result}");
    Ok(found.lost == 0 && found.duplicated == 0 && found.mixed == 0)
}

/// Through one instance, by turns; answers how long it took until all had it in effect.
fn publish(cluster: &Cluster, version: u32) -> Result<Duration, Failure> {
    let files = json!([{ "path": "bench.yaml", "text": manifest(version) }]);
    let body = json!({ "upload": { "root": "bench", "files": files }, "reason": version.to_string() }).to_string();
    let instance = &cluster.instances[version as usize % cluster.instances.len()];
    let began = Instant::now();
    let (status, answer) = request(instance.api, "POST", "/api/v1/revisions/publish", &[], body.as_bytes())?;
    let took = began.elapsed();
    let told: Value = serde_json::from_str(&answer).unwrap_or_default();
    let in_effect = told["pending"].as_array().is_some_and(Vec::is_empty);
    if status == 200 && in_effect && told["unchanged"] == false {
        return Ok(took);
    }
    Err(format!("publication {version}: {status} {answer}\n{}", cluster.logs()).into())
}

/// Waits until nobody has anything left.
fn drain(cluster: &Cluster) -> Result<(), Failure> {
    let began = Instant::now();
    // Twice, because what one has just let go another may not have taken yet.
    let mut idle = 0;
    while idle < 2 {
        let busy = cluster.instances.iter().any(|instance| instance.is_busy().unwrap_or(true));
        idle = if busy { 0 } else { idle + 1 };
        if began.elapsed() > PATIENCE {
            return Err(format!("not worked off after {PATIENCE:?}: {}", cluster.logs()).into());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}
