//! A load generator for the HTTP entrance: keep-alive connections in a closed loop, one thread, little work per request,
//! because it shares the machine with what it measures.
//!
//! Prints one line of JSON: `{"requests", "ok", "per_s", "p50_ms", "p99_ms", "errors": {…}}`.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

#[path = "support/client.rs"]
mod client;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};

use client::{Client, write_post};

/// The pause after a failed request: a server that restarts refuses connections at once.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Parser)]
struct Args {
    /// `http://host:port/path`.
    #[arg(long)]
    url: String,
    #[arg(long, default_value_t = 256)]
    connections: usize,
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// A file, or `@SIZE` for a JSON object of about so many bytes.
    #[arg(long, default_value = "@300")]
    body: String,
    #[arg(long, value_enum, default_value_t = Key::None)]
    key: Key,
    /// `Authorization: Bearer <token>`.
    #[arg(long)]
    token: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Key {
    None,
    Unique,
}

/// What all connections share; one thread, so no locks.
struct Run {
    args: Args,
    host: String,
    path: String,
    body: Vec<u8>,
    prefix: String,
    next_id: AtomicU64,
    ends: Instant,
    tally: RefCell<Tally>,
}

#[derive(Default)]
struct Tally {
    ok: u64,
    micros: Vec<u32>,
    errors: BTreeMap<String, u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let run = match prepare(args) {
        Ok(run) => Rc::new(run),
        Err(message) => {
            eprintln!("load: {message}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let began = Instant::now();
    let local = tokio::task::LocalSet::new();
    for _ in 0..run.args.connections {
        local.spawn_local(connection(Rc::clone(&run)));
    }
    runtime.block_on(local);
    report(&run, began.elapsed())
}

fn prepare(args: Args) -> Result<Run, String> {
    let rest = args.url.strip_prefix("http://").ok_or("--url has to begin with http://")?;
    let (host, path) = rest.split_once('/').ok_or("--url has no path")?;
    let body = match args.body.strip_prefix('@') {
        Some(size) => {
            let size: usize = size.parse().map_err(|error| format!("--body: {error}"))?;
            format!("{{\"text\":\"{}\"}}", "x".repeat(size.saturating_sub(11))).into_bytes()
        }
        None => std::fs::read(&args.body).map_err(|error| format!("{}: {error}", args.body))?,
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
    let ends = Instant::now() + Duration::from_secs_f64(args.seconds);
    Ok(Run {
        host: host.to_owned(),
        path: format!("/{path}"),
        body,
        prefix: format!("{}-{}", since.as_micros(), std::process::id()),
        next_id: AtomicU64::new(0),
        ends,
        tally: RefCell::default(),
        args,
    })
}

/// One connection's requests, one after the other. Opened again whenever it broke.
async fn connection(run: Rc<Run>) {
    let mut client = Client::new(run.host.clone());
    let mut request = Vec::new();
    let token = run.args.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    while Instant::now() < run.ends {
        let key = match run.args.key {
            Key::Unique => format!("Idempotency-Key: {}-{}\r\n", run.prefix, run.next_id.fetch_add(1, Relaxed)),
            Key::None => String::new(),
        };
        write_post(&mut request, &run.host, &run.path, &format!("{token}{key}"), &run.body);
        let began = Instant::now();
        match client.exchange(&request).await {
            Ok(()) => run.succeeded(began.elapsed()),
            Err(failure) => {
                *run.tally.borrow_mut().errors.entry(failure.name()).or_default() += 1;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

impl Run {
    fn succeeded(&self, took: Duration) {
        let mut tally = self.tally.borrow_mut();
        tally.ok += 1;
        tally.micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }
}

fn report(run: &Run, took: Duration) -> ExitCode {
    let mut tally = run.tally.borrow_mut();
    tally.micros.sort_unstable();
    let millis_at = |share: f64| {
        let last = tally.micros.len().checked_sub(1)?;
        let index = ((last as f64) * share).round() as usize;
        Some(f64::from(tally.micros[index]) / 1_000.0)
    };
    let failed: u64 = tally.errors.values().sum();
    let line = serde_json::json!({
        "requests": tally.ok + failed,
        "ok": tally.ok,
        "per_s": (tally.ok as f64 / took.as_secs_f64()).round(),
        "p50_ms": millis_at(0.5),
        "p99_ms": millis_at(0.99),
        "errors": tally.errors,
    });
    println!("{line}");
    if tally.ok == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
