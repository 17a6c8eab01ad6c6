//! What only this adapter promises: one process per directory, crashes, shared syncs, a full or failing disk.
//!
//! A crash is a copy of the directory while the bus is open: what the copy holds is what a killed process leaves.

use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;

use super::*;
use crate::flow::message::Headers;
use crate::ports::clock::Clock;
use crate::ports::store::Condition;

struct ManualClock(Mutex<Duration>);

impl ManualClock {
    fn new() -> Arc<Self> {
        Arc::new(ManualClock(Mutex::default()))
    }

    fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_millis(1_800_000_000_000).plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

fn open_at(dir: &Path, clock: &Arc<ManualClock>) -> Arc<Embedded> {
    Embedded::open(Options::new(dir, clock.clone())).unwrap()
}

fn message(subject: &str, payload: impl ToString) -> Outgoing {
    let payload = Bytes::from(payload.to_string());
    Outgoing { subject: subject.into(), headers: Headers::default(), payload, transport_id: None }
}

async fn make_stream(bus: &Embedded) -> Arc<str> {
    let config = StreamConfig {
        name: "S".into(),
        subjects: vec!["a.>".into()],
        bytes_max: 1 << 30,
        message_bytes_max: 1 << 20,
        duplicate_window: Duration::from_secs(60),
    };
    bus.ensure_stream(config).await.unwrap();
    "S".into()
}

async fn make_durable(bus: &Embedded) -> Durable {
    let config = DurableConfig {
        name: "d".into(),
        filters: vec!["a.>".into()],
        start: Start::First,
        ack_wait: Duration::from_secs(3),
        in_flight_max: 100,
    };
    bus.ensure_durable("S", config).await.unwrap()
}

async fn attempts(bus: &Embedded, durable: &Durable, messages_max: usize) -> Vec<(u64, u32)> {
    let pulled = bus.pull(durable, messages_max, usize::MAX, Duration::from_secs(5)).await.unwrap();
    pulled.iter().map(|delivery| (delivery.message.sequence, delivery.attempt)).collect()
}

fn crash(dir: &Path) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &to);
            } else {
                std::fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let left = tempfile::tempdir().unwrap();
    // First, as a copy takes time: the bus goes on, and the number may be older than the rest, never newer.
    std::fs::copy(dir.join(ledger::NAME), left.path().join(ledger::NAME)).unwrap();
    let number = std::fs::read(left.path().join(ledger::NAME)).unwrap();
    copy(dir, left.path());
    std::fs::write(left.path().join(ledger::NAME), number).unwrap();
    left
}

/// A directory with 50 acknowledged messages that only the journal holds.
async fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let bus = open_at(dir.path(), &ManualClock::new());
    let stream = make_stream(&bus).await;
    for n in 0..50 {
        bus.publish(&stream, message("a.x", n), None).await.unwrap();
    }
    let left = crash(dir.path());
    bus.close();
    left
}

fn refused(dir: &Path) -> String {
    match Embedded::open(Options::new(dir, ManualClock::new())) {
        Err(OpenError::Damaged { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened as if nothing had been lost"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_damaged_journal_is_refused_instead_of_starting_short() {
    let is_journal = |path: &Path| path.extension().is_some_and(|extension| extension == "jnl");
    for damage in ["deleted", "emptied", "first byte", "middle"] {
        let dir = filled().await;
        let journals = std::fs::read_dir(dir.path().join("bus")).unwrap().map(|entry| entry.unwrap().path());
        let journals: Vec<_> = journals.filter(|path| is_journal(path)).collect();
        assert!(!journals.is_empty());
        for journal in journals {
            let mut bytes = std::fs::read(&journal).unwrap();
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            match damage {
                "deleted" => std::fs::remove_file(&journal).unwrap(),
                "emptied" => std::fs::write(&journal, b"").unwrap(),
                "first byte" => {
                    bytes[0] ^= 0xff;
                    std::fs::write(&journal, bytes).unwrap();
                }
                _ => {
                    bytes[used / 2] ^= 0xff;
                    std::fs::write(&journal, bytes).unwrap();
                }
            }
        }
        let reason = refused(dir.path());
        assert!(!reason.is_empty(), "{damage}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_whose_database_is_gone_is_not_taken_for_a_new_one() {
    let dir = filled().await;
    std::fs::remove_dir_all(dir.path().join("bus")).unwrap();
    let reason = refused(dir.path());
    assert!(reason.contains("missing") && reason.contains("commits 1 to"), "{reason}");
}

#[test]
fn a_second_holder_is_refused_and_told_who_the_first_is() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let bus = open_at(dir.path(), &clock);
    let refused = Embedded::open(Options::new(dir.path(), clock.clone())).unwrap_err();
    match &refused {
        OpenError::InUse { path, pid } => {
            assert_eq!((path.as_path(), pid), (dir.path(), &std::process::id().to_string()));
        }
        other => panic!("{other}"),
    }
    bus.close();
    open_at(dir.path(), &clock);
}

#[test]
fn another_format_is_refused_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    drop(open_at(dir.path(), &clock));
    let options = Options::new(dir.path(), clock.clone());
    // As a newer program would write it.
    let content = format!("vejas-data {}", FORMAT + 1);
    let line = format!("{content} {:08x}\n", crc32fast::hash(content.as_bytes()));
    std::fs::write(dir.path().join("format"), line).unwrap();
    match Embedded::open(options).unwrap_err() {
        OpenError::Format { found, wanted, .. } => assert_eq!((found, wanted), (FORMAT + 1, FORMAT)),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let bus = open_at(dir.path(), &clock);
    let stream = make_stream(&bus).await;
    let durable = make_durable(&bus).await;
    bus.ensure_bucket("B", None).await.unwrap();
    for n in 0..30 {
        bus.publish(&stream, message("a.x", n), None).await.unwrap();
    }
    assert_eq!(attempts(&bus, &durable, 1).await, [(1, 1)]);
    let taken = attempts(&bus, &durable, 9).await.len() as u64 + 1;
    let output = Batch { stream: stream.clone(), messages: vec![message("a.out", "out")], expected: Vec::new() };
    let write = Write {
        bucket: "B".into(),
        key: "k".into(),
        value: Some(Bytes::from_static(b"v")),
        condition: Condition::Absent,
        ttl: None,
    };
    let acknowledged = (1..=taken).filter(|sequence| sequence % 2 == 0).map(|s| (durable.clone(), s)).collect();
    bus.settle(Settlement { batches: vec![output], writes: vec![write], acknowledged, ..Settlement::default() })
        .await
        .unwrap();

    let left = crash(dir.path());
    let after = open_at(left.path(), &clock);
    let info = after.stream("S").await.unwrap();
    assert_eq!((info.last, info.messages), (31, 31));
    assert_eq!(after.get("B", "k").await.unwrap().unwrap().value, "v");
    let mut again = Vec::new();
    while again.len() < 31 - (taken as usize / 2) {
        again.extend(attempts(&after, &durable, 100).await);
    }
    let wanted = (1..=taken).filter(|s| s % 2 == 1).map(|s| (s, 2)).chain((taken + 1..=31).map(|s| (s, 1)));
    assert_eq!(again, wanted.collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_out_is_written_down_soon_so_that_a_crash_counts_it() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let bus = open_at(dir.path(), &clock);
    let stream = make_stream(&bus).await;
    let durable = make_durable(&bus).await;
    bus.publish(&stream, message("a.x", "poison"), None).await.unwrap();
    assert_eq!(attempts(&bus, &durable, 1).await, [(1, 1)]);
    let commits = bus.commits();
    clock.advance(Duration::from_millis(20));
    bus.wake();
    // Answered after the batch that is open now.
    bus.stream("S").await.unwrap();
    assert!(bus.commits() > commits);
    let left = crash(dir.path());
    assert_eq!(attempts(&open_at(left.path(), &clock), &durable, 1).await, [(1, 2)]);
}

#[test]
fn concurrent_publishers_share_syncs() {
    const THREADS: u64 = 8;
    const EACH: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let bus = open_at(dir.path(), &ManualClock::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS as usize).build().unwrap();
    let stream = runtime.block_on(make_stream(&bus));
    let before = bus.commits();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bus, stream, runtime) = (&bus, &stream, &runtime);
            scope.spawn(move || {
                for n in 0..EACH {
                    runtime.block_on(bus.publish(stream, message(&format!("a.{thread}"), n), None)).unwrap();
                }
            });
        }
    });
    let commits = bus.commits() - before;
    assert!(commits < THREADS * EACH * 3 / 4, "{commits} commits");
    assert_eq!(runtime.block_on(bus.stream("S")).unwrap().last, THREADS * EACH);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_on_the_disk_messages_are_refused_and_acknowledgements_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let bus = open_at(dir.path(), &clock);
    let stream = make_stream(&bus).await;
    let durable = make_durable(&bus).await;
    bus.publish(&stream, message("a.x", 1), None).await.unwrap();
    bus.close();
    let options = Options { free_bytes_min: u64::MAX, ..Options::new(dir.path(), clock.clone()) };
    let bus = Embedded::open(options).unwrap();
    let refused = bus.publish(&stream, message("a.x", 2), None).await.unwrap_err();
    assert!(matches!(refused, Error::NoSpace(_)) && refused.is_retryable(), "{refused}");
    assert_eq!(attempts(&bus, &durable, 1).await, [(1, 1)]);
    bus.settle(Settlement { acknowledged: vec![(durable.clone(), 1)], ..Settlement::default() }).await.unwrap();
    assert_eq!(bus.durable(&durable).await.unwrap().ack_floor, 1);
    assert_eq!(bus.trim("S", 2, &[]).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failure_everything_answers_that_the_bus_has_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let bus = open_at(dir.path(), &ManualClock::new());
    let stream = make_stream(&bus).await;
    let durable = make_durable(&bus).await;
    let pulling = tokio::spawn(bus.pull(&durable, 1, 1, Duration::from_secs(30)));
    let stopped = tokio::spawn(bus.stopped());
    bus.shared.broken(&codec::Damaged("for this test").into());
    let reason = stopped.await.unwrap();
    assert!(reason.starts_with("damaged record: for this test") && reason.contains("vejas data check"), "{reason}");
    assert!(matches!(pulling.await.unwrap(), Err(Error::Stopped(_))));
    let refused = bus.publish(&stream, message("a.x", 1), None).await.unwrap_err();
    assert!(matches!(&refused, Error::Stopped(reason) if reason.contains("for this test")), "{refused}");
    assert!(!refused.is_retryable());
    assert!(matches!(bus.get("B", "k").await, Err(Error::Stopped(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_answers_what_was_accepted_and_refuses_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let bus = open_at(dir.path(), &clock);
    let stream = make_stream(&bus).await;
    let calls: Vec<_> = (0..50).map(|n| bus.publish(&stream, message("a.x", n), None)).collect();
    bus.close();
    for call in calls {
        call.await.unwrap();
    }
    assert!(matches!(bus.publish(&stream, message("a.x", 1), None).await, Err(Error::Stopped(_))));
    assert_eq!(open_at(dir.path(), &clock).stream("S").await.unwrap().last, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_one_batch_of_calls_at_once_is_stored_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let bus = open_at(dir.path(), &ManualClock::new());
    let stream = make_stream(&bus).await;
    // Three times what one batch takes.
    let payload = Bytes::from(vec![b'x'; 1_000_000]);
    let large = |n: usize| Outgoing { payload: payload.clone(), ..message(&format!("a.{n}"), "") };
    let calls: Vec<_> = (0..100).map(|n| bus.publish(&stream, large(n), None)).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().sequence, n as u64 + 1);
    }
    let last = bus.last("S", "a.99").await.unwrap().unwrap();
    assert_eq!((last.sequence, last.payload.len()), (100, 1_000_000));
}
