//! A bus that is killed again and again while it flushes, compacts and rotates journals: no directory it leaves is taken
//! for a damaged one, and nothing that was acknowledged is missing.
//!
//! The child is this test binary, started for one test with a directory to fill.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use vejas::bus::embedded::salvage::{Verdict, check};
use vejas::bus::embedded::{Embedded, Options};
use vejas::flow::message::Outgoing;
use vejas::ports::bus::{Bus, DurableConfig, Settlement, Start, StreamConfig};

use super::ground::options;

const DIRECTORY: &str = "VEJAS_TEST_KILLED_DIRECTORY";
const CHILD: &str = "killed::fills_a_directory_when_it_is_told_to";
/// Some messages are large, so that a journal of 64 MiB is full every second or two.
const PAYLOAD_BYTES: [usize; 4] = [200, 3_000, 90_000, 400_000];

fn small(dir: &Path) -> Options {
    Options { memtable_bytes_max: 512 << 10, records_bytes_max: 16 << 10, ..options(dir) }
}

async fn fill(dir: &Path) {
    let bus = Embedded::open(small(dir)).unwrap();
    let config = StreamConfig {
        name: "S".into(),
        subjects: vec!["a.>".into()],
        bytes_max: 1 << 30,
        message_bytes_max: 1 << 20,
        duplicate_window: Duration::from_secs(60),
    };
    bus.ensure_stream(config).await.unwrap();
    let config = DurableConfig {
        name: "d".into(),
        filters: vec!["a.>".into()],
        start: Start::First,
        ack_wait: Duration::from_secs(60),
        in_flight_max: 1000,
    };
    let durable = bus.ensure_durable("S", config).await.unwrap();
    for n in 0_usize.. {
        let payload = Bytes::from(vec![n as u8; PAYLOAD_BYTES[n % 4]]);
        let subject = format!("a.{}", n % 7);
        let message = Outgoing { subject, headers: Default::default(), payload, transport_id: Some(n.to_string()) };
        let ack = bus.publish(&"S".into(), message, None).await.unwrap();
        println!("stored {}", ack.sequence);
        if n % 5 == 0 {
            let pulled = bus.pull(&durable, 20, usize::MAX, Duration::ZERO).await.unwrap();
            let acknowledged = pulled.iter().map(|delivery| (durable.clone(), delivery.message.sequence)).collect();
            bus.settle(Settlement { acknowledged, ..Settlement::default() }).await.unwrap();
        }
        if n % 400 == 399 {
            bus.trim("S", ack.sequence - 200, &[]).await.unwrap();
            println!("trimmed {}", ack.sequence - 200);
        }
    }
}

/// The child of the test below. Does nothing by itself.
#[test]
fn fills_a_directory_when_it_is_told_to() {
    if let Ok(dir) = std::env::var(DIRECTORY) {
        tokio::runtime::Runtime::new().unwrap().block_on(fill(Path::new(&dir)));
    }
}

#[test]
fn a_directory_that_a_kill_leaves_is_never_called_damaged() {
    let rounds = if std::env::var("VEJAS_TEST_FULL").is_ok() { 60 } else { 8 };
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut last, mut trimmed) = (0, 0);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD, "--nocapture"])
            .env(DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Between one message and some hundreds, never at the same place.
        let count = 1 + (round * 211 + round * round * 97) % 600;
        let mut told = 0;
        let mut note = |line: String| {
            if let Some(sequence) = line.strip_prefix("stored ") {
                last = sequence.parse().unwrap();
                told += 1;
            }
            if let Some(first) = line.strip_prefix("trimmed ") {
                trimmed = first.parse().unwrap();
            }
            told
        };
        while let Some(Ok(line)) = lines.next() {
            if note(line) >= count {
                break;
            }
        }
        child.kill().unwrap();
        // What it said before it was killed.
        for line in lines.map_while(Result::ok) {
            note(line);
        }
        child.wait().unwrap();

        let report = check(dir.path(), &mut |_, _, _| {}).unwrap();
        assert_ne!(report.verdict, Verdict::Damaged, "round {round}: {report}");
        let bus = Embedded::open(small(dir.path())).unwrap();
        let mut next = runtime.block_on(bus.stream("S")).unwrap().first;
        assert!(next <= trimmed + 400, "round {round}: begins with {next}");
        loop {
            let read = runtime.block_on(bus.read("S", next, &[], 1000)).unwrap();
            let Some(end) = read.last().map(|message| message.sequence) else { break };
            assert!(read.iter().map(|message| message.sequence).eq(next..=end), "round {round}: a hole after {next}");
            next = end + 1;
        }
        assert!(next > last, "round {round}: {last} was acknowledged, {next} comes next");
        bus.close();
    }
}
