//! From `git push` until all instances run it: told by a webhook, found by polling, and one change among a thousand manifests.
//! Prints a line per phase and, as the last line, `RESULT {…}`; the keys are documented in `bench/README.md`.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

#[path = "../support/cluster.rs"]
mod instances;
mod repository;
#[path = "../../tests/support/nats.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};

use instances::Cluster;
use repository::Repository;
use support::Failure;
use support::process::{Process, request};

const SECRET: &str = "bench";
/// So long that no push of a run is found by polling.
const NEVER: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);
/// Manifests of the phases that are about the way of one push.
const FEW: usize = 10;

/// Pushes changes of manifests to a repository that instances follow.
#[derive(Debug, Parser)]
struct Options {
    /// The `vejas` binary.
    #[arg(long)]
    binary: PathBuf,
    #[arg(long, default_value_t = 3)]
    instances: usize,
    /// Pushes of each phase.
    #[arg(long, default_value_t = 20)]
    pushes: usize,
    /// How often the repository is looked at where there is no webhook, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    interval_ms: u64,
    /// Flows of which one changes.
    #[arg(long, default_value_t = 1_000)]
    manifests: usize,
}

/// What a phase took, push by push.
struct Phase {
    /// From the start of `git push` until all instances ran it.
    took: Vec<Duration>,
    /// Units that an instance did not keep as they were, at most.
    touched: usize,
}

impl Phase {
    fn percentile_ms(&self, share: f64) -> f64 {
        let at = ((self.took.len() - 1) as f64 * share).round() as usize;
        (self.took[at].as_secs_f64() * 1e4).round() / 10.0
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.instances == 0 || options.pushes == 0 || options.manifests == 0 {
        eprintln!("gitops: at least one instance, one push and one manifest");
        return ExitCode::from(2);
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("gitops: could not measure: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<bool, Failure> {
    let told = phase(options, "webhook", FEW, NEVER)?;
    let found = phase(options, "polling", FEW, Duration::from_millis(options.interval_ms))?;
    let many = phase(options, "many manifests", options.manifests, NEVER)?;
    let touched = told.touched.max(found.touched).max(many.touched);
    let result = json!({
        "instances": options.instances,
        "pushes": options.pushes,
        "webhook_p50_ms": told.percentile_ms(0.5),
        "webhook_max_ms": told.percentile_ms(1.0),
        "interval_ms": options.interval_ms,
        "polling_p50_ms": found.percentile_ms(0.5),
        "polling_max_ms": found.percentile_ms(1.0),
        "manifests": options.manifests,
        "many_p50_ms": many.percentile_ms(0.5),
        "many_max_ms": many.percentile_ms(1.0),
        "touched_max": touched,
    });
    println!("\n{:<30} {:>14}", "measure", "value");
    for (name, value) in result.as_object().into_iter().flatten() {
        println!("{name:<30} {value:>14}");
    }
    println!("RESULT {result}");
    Ok(touched == 1)
}

fn file(number: usize) -> String {
    format!("flow-{number}.yaml")
}

/// A flow of which only the constant changes from version to version.
fn flow(number: usize, version: usize) -> String {
    format!(
        "apiVersion: vejas/v1\nkind: Flow\nmetadata: {{ name: f-{number} }}\nspec:\n  from: in.{number}\n  steps:\n    - map: .version = {version}\n  to: out.{number}\n"
    )
}

/// Instances that follow a repository with so many flows; every push changes one of them.
fn phase(options: &Options, name: &str, flows: usize, interval: Duration) -> Result<Phase, Failure> {
    let repository = Repository::new()?;
    for number in 0..flows {
        repository.write(&file(number), &flow(number, 0))?;
    }
    let first = repository.commit("first")?;
    repository.push()?;
    let settings = [
        ("VEJAS_GIT_URL", repository.url()),
        ("VEJAS_GIT_INTERVAL", format!("{}ms", interval.as_millis())),
        ("VEJAS_GIT_WEBHOOK_SECRET", SECRET.to_owned()),
    ];
    let mut cluster = Cluster::following(&options.binary, &settings)?;
    cluster.launch(options.instances)?;
    cluster.wait_ready()?;
    wait(&cluster, &first)?;

    let mut phase = Phase { took: Vec::new(), touched: 0 };
    for push in 1..=options.pushes {
        let number = push % flows;
        repository.write(&file(number), &flow(number, push))?;
        let commit = repository.commit(&format!("change {push}"))?;
        let began = Instant::now();
        repository.push()?;
        if interval == NEVER {
            tell(&cluster, push, &commit)?;
        }
        wait(&cluster, &commit)?;
        phase.took.push(began.elapsed());
    }
    phase.took.sort();
    phase.touched = cluster.instances.iter().map(touched).max().unwrap_or_default();
    println!("{name}: {flows} flows, p50 {} ms, touched at most {}", phase.percentile_ms(0.5), phase.touched);
    cluster.instances.iter_mut().try_for_each(Process::stop)?;
    Ok(phase)
}

/// As a forge does after a push, to one of the instances.
fn tell(cluster: &Cluster, push: usize, commit: &str) -> Result<(), Failure> {
    let instance = &cluster.instances[push % cluster.instances.len()];
    let body = json!({ "after": commit }).to_string();
    let (status, answer) =
        request(instance.api, "POST", "/api/v1/git/webhook", &[("X-Gitlab-Token", SECRET)], body.as_bytes())?;
    if status == 200 { Ok(()) } else { Err(format!("the webhook was answered {status}: {answer}").into()) }
}

/// Waits until a commit is in effect on all.
fn wait(cluster: &Cluster, commit: &str) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        let found = cluster.ask("/api/v1/revisions").unwrap_or_default();
        let members = found["members"].as_array().map_or(0, Vec::len);
        if found["converged"] == true && found["publication"]["commit"] == commit && members == cluster.instances.len()
        {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("{commit} is not in effect on all: {found:#}\n{}", cluster.logs()).into());
        }
        thread::sleep(LOOK);
    }
}

/// Units that one change added, changed or removed at most, by the instance's log; the first set is all new.
fn touched(instance: &Process) -> usize {
    let log = instance.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let changes = lines.filter(|line| line["message"] == "new manifests in effect" && line["no"] != 1);
    let units = |line: &Value, how: &str| line[how].as_str().map_or(0, |units| units.split_whitespace().count());
    changes.map(|line| ["added", "changed", "removed"].iter().map(|how| units(&line, how)).sum()).max().unwrap_or(0)
}
