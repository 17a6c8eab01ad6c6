//! What the embedded bus alone can do on this machine, with every answer given after a sync to disk.
//!
//! `cargo bench --bench bus` prints a line per measure. The data goes to a temporary directory: set `TMPDIR` to choose
//! the disk. Messages are 300 bytes of JSON-like text.

#![allow(clippy::disallowed_methods)] // It measures time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use vejas::bus::embedded::{Embedded, Options};
use vejas::flow::message::{Headers, Outgoing};
use vejas::ports::bus::{Batch, Bus, DurableConfig, Settlement, Start, StreamConfig};
use vejas::ports::clock::Clock;
use vejas::time::Timestamp;

const BATCH: usize = 256;
const PUBLISHERS: usize = 256;
const HOP_MESSAGES: u64 = 500_000;
const MEASURE: Duration = Duration::from_secs(4);

struct SystemClock(Instant);

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

fn open(dir: &Path) -> Arc<Embedded> {
    Embedded::open(Options::new(dir, Arc::new(SystemClock(Instant::now())))).expect("open the bus")
}

fn message(subject: &str, number: u64) -> Outgoing {
    let mut text = format!(r#"{{"id":"A-{number}","country":"DE","total":{},"items":["#, number % 977);
    while text.len() < 280 {
        text.push_str(&format!(r#"{{"sku":"s{}","qty":2}},"#, (number * 31 + text.len() as u64) % 10_007));
    }
    text.truncate(300);
    let id = format!("A-{number}");
    let headers: Headers = [("Vejas-Id", id.as_str()), ("Vejas-Hop", "1")].into_iter().collect();
    Outgoing { subject: subject.to_owned(), headers, payload: Bytes::from(text), transport_id: None }
}

fn memory_mb(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn report(measure: &str, count: u64, took: Duration) {
    let rate = count as f64 / took.as_secs_f64();
    println!("{measure:<44} {rate:>12.0}/s   ({count} in {:.2} s, rss {} MB)", took.as_secs_f64(), memory_mb("VmRSS"));
}

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    println!("{:<44} {:>12} MB", "rss before", memory_mb("VmRSS"));
    let begin = Instant::now();
    let bus = open(dir.path());
    println!("{:<44} {:>12.1} ms", "open an empty directory", begin.elapsed().as_secs_f64() * 1e3);
    let stream: Arc<str> = "S".into();
    let config = StreamConfig {
        name: "S".into(),
        subjects: vec!["vx.>".into()],
        bytes_max: u64::MAX,
        message_bytes_max: 1 << 20,
        duplicate_window: Duration::from_secs(120),
    };
    bus.ensure_stream(config).await.expect("stream");

    publish_batches(&bus, &stream).await;
    publish_single(&bus, &stream, false).await;
    publish_single(&bus, &stream, true).await;
    hop(&bus, &stream, 1).await;
    hop(&bus, &stream, 4).await;

    println!("{:<44} {:>12} MB, peak {} MB", "rss", memory_mb("VmRSS"), memory_mb("VmHWM"));
    let begin = Instant::now();
    bus.close();
    drop(bus);
    println!("{:<44} {:>12.1} ms", "close", begin.elapsed().as_secs_f64() * 1e3);
    let begin = Instant::now();
    let bus = open(dir.path());
    println!("{:<44} {:>12.1} ms", "open the directory again", begin.elapsed().as_secs_f64() * 1e3);
    let info = bus.stream("S").await.expect("stream");
    println!("{:<44} {:>12}", "messages held", info.messages);
    bus.close();
}

async fn publish_batches(bus: &Arc<Embedded>, stream: &Arc<str>) {
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < MEASURE {
        let messages = (0..1000).map(|n| message("vx.batch", count + n)).collect();
        let batch = Batch { stream: Arc::clone(stream), messages, expected: Vec::new() };
        bus.publish_batch(batch).await.expect("publish");
        count += 1000;
    }
    report("publish, one batch of 1,000 at a time", count, begin.elapsed());
}

async fn publish_single(bus: &Arc<Embedded>, stream: &Arc<str>, with_ids: bool) {
    let begin = Instant::now();
    let commits = bus.commits();
    let count = Arc::new(AtomicU64::new(0));
    let publisher = |publisher: usize| {
        let (bus, stream, count) = (Arc::clone(bus), Arc::clone(stream), Arc::clone(&count));
        tokio::spawn(async move {
            while begin.elapsed() < MEASURE {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let mut message = message("vx.single", number);
                message.transport_id = with_ids.then(|| format!("h/orders/{publisher}/{number}"));
                bus.publish(&stream, message, None).await.expect("publish");
            }
        })
    };
    let publishers: Vec<_> = (0..PUBLISHERS).map(publisher).collect();
    for publisher in publishers {
        publisher.await.expect("publisher");
    }
    let count = count.load(Ordering::Relaxed);
    let measure = if with_ids { "publish, 256 at once, with ids" } else { "publish, 256 at once" };
    report(measure, count, begin.elapsed());
    println!("{:<44} {:>12.1}", "  messages per commit", count as f64 / (bus.commits() - commits) as f64);
}

/// Pull a batch, then store an output for each and acknowledge all in one settlement.
async fn hop(bus: &Arc<Embedded>, stream: &Arc<str>, workers: usize) {
    let (from, to) = (format!("vx.in{workers}"), format!("vx.out{workers}"));
    let config = DurableConfig {
        name: format!("flow{workers}"),
        filters: vec![from.clone()],
        start: Start::First,
        ack_wait: Duration::from_secs(30),
        in_flight_max: 4096,
    };
    let durable = bus.ensure_durable("S", config).await.expect("durable");
    for begin in (0..HOP_MESSAGES).step_by(5000) {
        let messages = (begin..begin + 5000).map(|n| message(&from, n)).collect();
        let batch = Batch { stream: Arc::clone(stream), messages, expected: Vec::new() };
        bus.publish_batch(batch).await.expect("publish");
    }
    let begin = Instant::now();
    let done = Arc::new(AtomicU64::new(0));
    let worker = |_| {
        let (bus, stream, done) = (Arc::clone(bus), Arc::clone(stream), Arc::clone(&done));
        let (durable, to) = (durable.clone(), to.clone());
        tokio::spawn(async move {
            loop {
                let pulled = bus.pull(&durable, BATCH, 1 << 20, Duration::from_millis(100)).await.expect("pull");
                if pulled.is_empty() {
                    return;
                }
                let acknowledged = pulled.iter().map(|d| (durable.clone(), d.message.sequence)).collect();
                let output = |message: vejas::flow::message::Stored| Outgoing {
                    subject: to.clone(),
                    headers: message.headers,
                    payload: message.payload,
                    transport_id: None,
                };
                let count = pulled.len() as u64;
                let messages = pulled.into_iter().map(|delivery| output(delivery.message)).collect();
                let batches = vec![Batch { stream: Arc::clone(&stream), messages, expected: Vec::new() }];
                bus.settle(Settlement { batches, acknowledged, ..Settlement::default() }).await.expect("settle");
                done.fetch_add(count, Ordering::Relaxed);
            }
        })
    };
    let workers_running: Vec<_> = (0..workers).map(worker).collect();
    for worker in workers_running {
        worker.await.expect("worker");
    }
    let idle = Duration::from_millis(100);
    report(&format!("hop, 256 a time, {workers} worker(s)"), done.load(Ordering::Relaxed), begin.elapsed() - idle);
}
