//! The scenarios: each starts a process on a folder of its own, measures, and stops it.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use vejas::flow::message::{HOP, Headers, ID, Outgoing, SOURCE, TIME};
use vejas::id::Names;
use vejas::ports::bus::{Batch, Bus, Settlement};

use crate::limits::load_result;
use crate::support::Failure;
use crate::support::process::Process;
use crate::support::receiver::Receiver;
use crate::{Figures, Options};

/// The order mapping: totals, VAT from a table, rounded.
pub const MAPPING: &str = r#"row = table("vat", .country)
rate = to_float(row.rate)
net = 0.0
for_each(array(.items) ?? []) -> |_index, item| {
    net = net + (to_float(item.qty) ?? 0.0) * (to_float(item.price) ?? 0.0)
}
.net = round(net, 2)
.vat = round(net * rate, 2)
.gross = round(net * (1.0 + rate), 2)
.currency = upcase(to_string(.currency) ?? "eur")
"#;

/// One line and a lookup.
pub const SIMPLE: &str = r#".vat = table("vat", .country)"#;

const TABLE: &str = "
apiVersion: vejas/v1
kind: Table
metadata: { name: vat }
spec: { rows: { DE: { rate: 0.19 }, LT: { rate: 0.21 }, FR: { rate: 0.2 } } }
---";

const INSTANT: &str = "
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: in }
spec: { path: /in, to: bench.in }
---";

/// An order of 300 bytes.
pub fn message(number: usize) -> Vec<u8> {
    let body = format!(
        r#"{{"id":"A-{number:08}","country":"DE","currency":"eur","customer":{{"name":"Ona Petraitė","city":"Kaunas"}},"items":[{{"sku":"screw-m4","qty":2,"price":9.5}},{{"sku":"nut-m4","qty":10,"price":0.25}},{{"sku":"washer","qty":4,"price":1.1}}],"note":""#
    );
    let filler = 300_usize.saturating_sub(body.len() + 2);
    format!("{body}{}\"}}", "n".repeat(filler)).into_bytes()
}

pub fn flow(steps: &str) -> String {
    format!(
        "{TABLE}
apiVersion: vejas/v1
kind: Flow
metadata: {{ name: hop }}
spec:
  from: bench.in
  startFrom: first
  steps:
{steps}
  to: bench.out
"
    )
}

fn program(source: &str) -> String {
    let lines: String = source.lines().map(|line| format!("        {line}\n")).collect();
    format!("    - map: |\n{lines}")
}

/// From start to ready, and what an idle process holds.
pub fn cold_start(options: &Options, figures: &mut Figures) -> Result<(), Failure> {
    let manifests = format!("{INSTANT}{}", flow(&program(MAPPING)));
    let mut process = Process::new(&manifests)?;
    process.start(&options.binary)?;
    process.stop()?;
    let mut times = Vec::new();
    for _ in 0..5 {
        times.push(process.start(&options.binary)?.as_secs_f64() * 1_000.0);
        thread::sleep(Duration::from_millis(500));
        figures.insert("rss_idle_mb", process.memory_mb("VmRSS")?);
        process.stop()?;
    }
    times.sort_by(f64::total_cmp);
    figures.insert("cold_start_ms", times[times.len() / 2]);
    Ok(())
}

/// Messages that wait in the bus go through one flow.
pub fn hops(options: &Options, figures: &mut Figures) -> Result<(), Failure> {
    let lookup = "    - lookup: { table: vat, key: .country, into: vat }\n    - map: .seen = true\n";
    for (name, memory, steps) in
        [("hop_per_s", "rss_mb", program(MAPPING)), ("hop_simple_per_s", "rss_simple_mb", lookup.to_owned())]
    {
        let mut process = Process::new(&flow(&steps))?;
        preload(&process, options.messages)?;
        process.start(&options.binary)?;
        process.wait_for("flow/hop", "emitted", options.messages as u64)?;
        figures.insert(memory, process.memory_mb("VmHWM")?);
        process.stop()?;
        figures.insert(name, rate_of_outputs(&process, options.messages)?);
    }
    Ok(())
}

fn open(process: &Process) -> Result<Arc<dyn Bus>, Failure> {
    Ok(vejas::runtime::open_bus(&process.data())?)
}

/// Stores the input before the process starts.
fn preload(process: &Process, count: usize) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async { store_input(&*open(process)?, &Names::default(), count).await })
}

/// Orders under `bench.in`, as an entrance would have stored them.
pub async fn store_input(bus: &dyn Bus, names: &Names, count: usize) -> Result<(), Failure> {
    vejas::runtime::streams::ensure_messages(bus, names, 8 << 30).await?;
    let stream: Arc<str> = Arc::from(names.messages());
    for first in (0..count).step_by(1_000) {
        let messages = (first..count.min(first + 1_000)).map(|number| Outgoing {
            subject: names.stored("bench.in"),
            headers: Headers::from_iter([
                (ID, format!("A-{number:08}").as_str()),
                (TIME, "2026-11-30T00:00:00.000Z"),
                (SOURCE, "http-in/in"),
                (HOP, "0"),
            ]),
            payload: Bytes::from(message(number)),
            transport_id: None,
        });
        let batch = Batch { stream: Arc::clone(&stream), messages: messages.collect(), expected: Vec::new() };
        // Not as an atomic batch, whose headers a program would have to take off again.
        bus.settle(Settlement { batches: vec![batch], ..Settlement::default() }).await?;
    }
    Ok(())
}

fn rate_of_outputs(process: &Process, count: usize) -> Result<f64, Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async { rate_of(&*open(process)?, &Names::default(), "bench.out", count).await })
}

/// Messages a second between the first and the last one of a subject, by the times the bus stored them.
pub async fn rate_of(bus: &dyn Bus, names: &Names, subject: &str, count: usize) -> Result<f64, Failure> {
    let (stream, subject) = (names.messages(), names.stored(subject));
    let first = bus.read(&stream, 1, std::slice::from_ref(&subject), 1).await?;
    let first = first.first().ok_or("no output")?;
    let last = bus.last(&stream, &subject).await?.ok_or("no output")?;
    let seconds = last.time.since(first.time).as_secs_f64();
    if seconds <= 0.0 { Err("too few messages to measure".into()) } else { Ok(count as f64 / seconds) }
}

/// The entrance alone, then through a flow to a receiver.
pub fn http(options: &Options, figures: &mut Figures) -> Result<(), Failure> {
    let mut process = Process::new(INSTANT)?;
    process.start(&options.binary)?;
    let result = load(options, &process, options.connections, options.seconds)?;
    figures.insert("http_in_per_s", number(&result, "per_s")?);
    figures.insert("http_in_p99_ms", number(&result, "p99_ms")?);
    figures.insert("rss_http_mb", process.memory_mb("VmHWM")?);
    process.stop()?;

    end_to_end(options, figures, &[])
}

/// From the entrance through a flow to a receiver, with these settings of the process.
pub fn end_to_end(
    options: &Options,
    figures: &mut Figures,
    environment: &[(&'static str, String)],
) -> Result<(), Failure> {
    let ages = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&ages);
    let receiver = Receiver::start(None, move |delivery| {
        noted.lock().expect("no receiver panics").extend(age_ms(delivery.key.as_deref()));
    })?;
    let sink = format!(
        "---
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: receiver }}
spec:
  from: bench.out
  http: {{ url: 'http://{}/', concurrency: 64 }}
",
        receiver.address
    );
    let mut process = Process::new(&format!("{INSTANT}{}{sink}", flow(&program(MAPPING))))?;
    environment.iter().for_each(|(name, value)| process.environment(name, value));
    process.start(&options.binary)?;
    let sent = number(&load(options, &process, 16, options.seconds)?, "ok")? as u64;
    process.wait_for("sink/receiver", "emitted", sent)?;
    process.stop()?;
    let mut latencies: Vec<f64> = ages.lock().expect("no receiver panics").clone();
    if latencies.is_empty() {
        return Err("nothing arrived at the receiver".into());
    }
    latencies.sort_by(f64::total_cmp);
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    figures.insert("end_to_end_p50_ms", at(0.5));
    figures.insert("end_to_end_p99_ms", at(0.99));
    figures.insert("end_to_end_per_s", latencies.len() as f64 / options.seconds as f64);
    Ok(())
}

fn number(result: &std::collections::BTreeMap<String, serde_json::Value>, key: &str) -> Result<f64, Failure> {
    result.get(key).and_then(serde_json::Value::as_f64).ok_or_else(|| format!("the load result has no {key}").into())
}

fn load(
    options: &Options,
    process: &Process,
    connections: usize,
    seconds: u64,
) -> Result<std::collections::BTreeMap<String, serde_json::Value>, Failure> {
    let body = process.folder.path().join("body");
    std::fs::write(&body, message(1))?;
    let output = Command::new(&options.load)
        .args(["--url", &format!("http://{}/in", process.ingress)])
        .args(["--connections", &connections.to_string(), "--seconds", &seconds.to_string()])
        .arg("--body")
        .arg(&body)
        .output()?;
    load_result(&output)
}

/// How old a message is, by the time in the id that the entrance made: version 7, whose first 48 bits are milliseconds.
fn age_ms(key: Option<&str>) -> Option<f64> {
    let entered = key.and_then(|key| key.rsplit('/').next()).and_then(uuid_time_ms)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64() * 1_000.0;
    Some(now - entered)
}

fn uuid_time_ms(id: &str) -> Option<f64> {
    let digits: String = id.chars().filter(|c| *c != '-').take(12).collect();
    u64::from_str_radix(&digits, 16).ok().map(|millis| millis as f64)
}

/// Many units: how long until all are ready.
pub fn many_flows(options: &Options, figures: &mut Figures) -> Result<(), Failure> {
    let distinct = (options.flows / 10).max(1);
    let mut manifests = TABLE.to_owned();
    for number in 0..options.flows {
        let source = format!("{MAPPING}.variant = {}\n", number % distinct);
        manifests.push_str(&format!(
            "\napiVersion: vejas/v1\nkind: Flow\nmetadata: {{ name: f{number} }}\nspec:\n  from: in.f{number}\n  steps:\n{}  to: out.f{number}\n---",
            program(&source)
        ));
    }
    let mut process = Process::new(&manifests)?;
    let fresh = process.start(&options.binary)?;
    figures.insert("many_flows_first_start_ms", fresh.as_secs_f64() * 1_000.0);
    figures.insert("rss_many_flows_mb", process.memory_mb("VmRSS")?);
    process.stop()?;
    figures.insert("many_flows_start_ms", process.start(&options.binary)?.as_secs_f64() * 1_000.0);
    process.stop()
}
