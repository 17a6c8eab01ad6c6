//! What one process holds in memory while a receiver is down under load: small messages, messages at the entrance's
//! default limit and at the largest limit there is, and as many taps as there may be, none of which reads.
//!
//! A slow or dead sink costs disk, not memory. After the outage the receiver comes up, the backlog drains, and every
//! acknowledged id is compared with the bus and the receiver. Prints a line per tenth of the time and, as the last line,
//! `RESULT {…}`; the keys are documented in `bench/README.md`. Exits with 1 when something was lost or memory grew beyond
//! [`GROWTH_MB_MAX`], or could not be measured.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

#[path = "../support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use vejas::api::TAPS_MAX;
use vejas::manifest::http_in::BODY_BYTES_MAX;

use support::Failure;
use support::ledger::{Comparison, Deliveries, compare, stored_in};
use support::process::{Process, get};
use support::producers::Producers;
use support::receiver::Receiver;

/// Resident memory above that at the start, in MiB. What may be held at once: bodies of the entrance (256), what a flow and
/// a sink have in hand (32 each, and one message beyond it), caches of the bus, some of it several times on its way (one message
/// of 64 MiB costs about 650 at its most), and what
/// the allocator keeps of it.
const GROWTH_MB_MAX: f64 = 1_024.0;
/// The body limit of an entrance that states none.
const BODY_BYTES_DEFAULT: usize = 1 << 20;
/// One message in so many is at that limit.
const LARGE_EVERY: u64 = 250;
/// One message in so many is at the largest limit.
const LARGEST_EVERY: u64 = 15_000;
/// How long the backlog may take to drain.
const DRAIN_MAX: Duration = Duration::from_secs(900);
const SAMPLE_PERIOD: Duration = Duration::from_millis(100);

/// Measures the memory of one process while a sink's receiver is down.
#[derive(Debug, Parser)]
struct Options {
    /// The `vejas` binary to measure.
    #[arg(long)]
    binary: PathBuf,
    /// How long the receiver is down.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Messages a second.
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// HTTP connections.
    #[arg(long, default_value_t = 16)]
    connections: usize,
}

#[derive(Debug, Default)]
struct Report {
    start_mb: f64,
    /// At most in each half of the outage.
    halves_mb: [f64; 2],
    /// After the outage and the drain.
    end_mb: f64,
    max_mb: f64,
    acknowledged: u64,
    taps: usize,
    drain: Duration,
    comparison: Comparison,
}

/// The flow has no program: those take values of up to 8 MiB.
fn manifests(receiver: SocketAddr) -> String {
    format!(
        "
apiVersion: vejas/v1
kind: HttpIn
metadata: {{ name: in }}
spec: {{ path: /in, to: soak.in, maxBodyBytes: {BODY_BYTES_MAX} }}
---
apiVersion: vejas/v1
kind: Flow
metadata: {{ name: pass }}
spec:
  from: soak.in
  to: soak.out
---
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: receiver }}
spec:
  from: soak.out
  http: {{ url: 'http://{receiver}/', concurrency: 16 }}
"
    )
}

fn body(number: u64, id: &str) -> Vec<u8> {
    let bytes = match number {
        n if n % LARGEST_EVERY == 100 => BODY_BYTES_MAX as usize,
        n if n % LARGE_EVERY == 0 => BODY_BYTES_DEFAULT,
        _ => 300,
    };
    let head = format!("{{\"id\":\"{id}\",\"text\":\"");
    format!("{head}{}\"}}", "x".repeat(bytes.saturating_sub(head.len() + 2))).into_bytes()
}

fn main() -> ExitCode {
    let options = Options::parse();
    match soak(&options) {
        Ok(report) => tell(&options, &report),
        Err(failure) => {
            eprintln!("soak: could not measure: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn soak(options: &Options) -> Result<Report, Failure> {
    // Taken and let go: nobody listens there until the outage is over.
    let receiver_address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut process = Process::new(&manifests(receiver_address))?;
    process.start(&options.binary)?;
    thread::sleep(Duration::from_millis(500));
    let mut report = Report { start_mb: process.memory_mb("VmRSS")?, ..Report::default() };
    let taps = taps(process.api)?;
    report.taps = taps.len();

    let producers = Producers::start(&[process.ingress], "/in", options.connections, "s", body)?;
    let outage = Duration::from_secs_f64(options.minutes * 60.0);
    load(options, &process, &producers, outage, &mut report)?;
    let deliveries = Arc::new(Deliveries::default());
    let noted = Arc::clone(&deliveries);
    let _receiver = Receiver::start(Some(receiver_address), move |delivery| noted.took(delivery))?;
    let began = Instant::now();
    while !producers.is_idle() && began.elapsed() < DRAIN_MAX {
        thread::sleep(SAMPLE_PERIOD);
    }
    let sent = producers.end()?;
    process.drain(DRAIN_MAX)?;
    report.drain = began.elapsed();
    report.end_mb = process.memory_mb("VmRSS")?;
    report.max_mb = process.memory_mb("VmHWM")?;
    drop(taps);
    process.stop()?;
    report.acknowledged = sent.acknowledged.len() as u64;
    report.comparison = compare(&sent, &stored_in(&process.data())?, &["soak.in", "soak.out"], &deliveries);
    Ok(report)
}

/// Sends at the rate, whatever the answers take, and looks at the memory meanwhile.
fn load(
    options: &Options,
    process: &Process,
    producers: &Producers,
    outage: Duration,
    report: &mut Report,
) -> Result<(), Failure> {
    let began = Instant::now();
    let (mut allowed, mut told) = (0, 0);
    while began.elapsed() < outage {
        let due = (began.elapsed().as_secs_f64() * options.rate as f64) as u64;
        producers.allow(due - allowed);
        allowed = due;
        let share = began.elapsed().as_secs_f64() / outage.as_secs_f64();
        let now_mb = process.memory_mb("VmRSS")?;
        let half = &mut report.halves_mb[usize::from(share >= 0.5)];
        *half = half.max(now_mb);
        if (share * 10.0) as u32 > told {
            told = (share * 10.0) as u32;
            println!("{:>3} %: {} acknowledged, {now_mb:.0} MB resident", told * 10, producers.acknowledged());
        }
        thread::sleep(SAMPLE_PERIOD);
    }
    Ok(())
}

/// As many taps as there may be, each open and none read; one more has to be refused.
fn taps(api: SocketAddr) -> Result<Vec<TcpStream>, Failure> {
    let mut open = Vec::new();
    for number in 0..TAPS_MAX {
        let what = if number % 2 == 0 { "subject=soak.*" } else { "unit=flow/pass" };
        let mut stream = TcpStream::connect(api)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /api/v1/tap?{what} HTTP/1.1\r\nHost: soak\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        if !status.ends_with(b" 200") {
            return Err(format!("tap {number} was answered {}", String::from_utf8_lossy(&status)).into());
        }
        open.push(stream);
    }
    match get(api, "/api/v1/tap?subject=soak.*")? {
        (429, _) => Ok(open),
        (status, body) => Err(format!("a tap beyond {TAPS_MAX} was answered {status}: {body}").into()),
    }
}

fn tell(options: &Options, report: &Report) -> ExitCode {
    let found = &report.comparison;
    let rounded = |value: f64| (value * 10.0).round() / 10.0;
    let result = serde_json::json!({
        "rss_mb_start": rounded(report.start_mb),
        "rss_mb_first_half": rounded(report.halves_mb[0]),
        "rss_mb_second_half": rounded(report.halves_mb[1]),
        "rss_mb_end": rounded(report.end_mb),
        "rss_mb_max": rounded(report.max_mb),
        "lost": found.lost,
        "duplicated_bus": found.duplicated_bus,
        "drain_s": rounded(report.drain.as_secs_f64()),
        "acknowledged": report.acknowledged,
        "taps": report.taps,
        "minutes": options.minutes,
    });
    println!("\n{:<20} {:>12}", "measure", "value");
    for (name, value) in result.as_object().into_iter().flatten() {
        println!("{name:<20} {value:>12}");
    }
    if !found.examples.is_empty() {
        eprintln!("soak: lost, among others: {}", found.examples.join(", "));
    }
    let grew = report.max_mb - report.start_mb;
    if grew > GROWTH_MB_MAX {
        eprintln!("soak: memory grew by {grew:.0} MB, more than {GROWTH_MB_MAX:.0}");
    }
    println!("RESULT {result}");
    let clean = found.lost + found.duplicated_bus == 0 && grew <= GROWTH_MB_MAX && report.acknowledged > 0;
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
