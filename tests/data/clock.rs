//! A wall clock that is set back and forward, while the bus runs and while it does not, by the port and on the real binary.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use vejas::bus::embedded::{Embedded, Options};
use vejas::flow::message::Outgoing;
use vejas::ports::bus::{Bus, Durable, DurableConfig, Start, StreamConfig};
use vejas::ports::clock::Clock;
use vejas::ports::store::{Condition, Store, Write};
use vejas::time::Timestamp;

use crate::support::{PATIENCE, Vejas, post};

const SECOND: Duration = Duration::from_secs(1);
const HOUR_S: i64 = 3600;

/// A clock whose wall time can be set; the other only goes on.
struct Turned(Mutex<(Duration, i64)>);

impl Turned {
    fn pass(&self, by: Duration) {
        self.0.lock().unwrap().0 += by;
    }

    /// Sets the wall clock by so many seconds, from what it shows.
    fn set(&self, seconds: i64) {
        self.0.lock().unwrap().1 += seconds;
    }
}

impl Clock for Turned {
    fn now(&self) -> Timestamp {
        let (passed, offset) = *self.0.lock().unwrap();
        Timestamp(1_800_000_000_000_000_000 + offset * 1_000_000_000).plus(passed)
    }

    fn monotonic(&self) -> Duration {
        self.0.lock().unwrap().0
    }
}

struct World {
    dir: tempfile::TempDir,
    clock: Arc<Turned>,
    bus: Arc<Embedded>,
    durable: Durable,
}

impl World {
    async fn new() -> Self {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(Turned(Mutex::new((SECOND * 10, 0)))));
        let bus = Embedded::open(Options::new(dir.path(), clock.clone())).unwrap();
        let config = StreamConfig {
            name: "S".into(),
            subjects: vec!["a".into()],
            bytes_max: 1 << 30,
            message_bytes_max: 1 << 20,
            duplicate_window: SECOND * 120,
        };
        bus.ensure_stream(config).await.unwrap();
        let config = DurableConfig {
            name: "d".into(),
            filters: vec!["a".into()],
            start: Start::First,
            ack_wait: SECOND * 30,
            in_flight_max: 100,
        };
        let durable = bus.ensure_durable("S", config).await.unwrap();
        bus.ensure_bucket("B", Some(SECOND * 60)).await.unwrap();
        World { dir, clock, bus, durable }
    }

    async fn publish(&self, id: &str) -> bool {
        let message = Outgoing {
            subject: "a".into(),
            headers: Default::default(),
            payload: Bytes::from_static(b"x"),
            transport_id: Some(id.into()),
        };
        !self.bus.publish(&"S".into(), message, None).await.unwrap().duplicate
    }

    async fn put(&self, key: &str) {
        let value = Some(Bytes::from_static(b"v"));
        let write = Write { bucket: "B".into(), key: key.into(), value, condition: Condition::Absent, ttl: None };
        self.bus.write(vec![write]).await.unwrap();
    }

    async fn has(&self, key: &str) -> bool {
        self.bus.get("B", key).await.unwrap().is_some()
    }

    async fn pull(&self) -> BTreeSet<u64> {
        self.bus.wake();
        // Answered behind everything that is due now.
        self.bus.stream("S").await.unwrap();
        let mut sequences = BTreeSet::new();
        loop {
            let pulled = self.bus.pull(&self.durable, 100, usize::MAX, Duration::ZERO).await.unwrap();
            if pulled.is_empty() {
                return sequences;
            }
            sequences.extend(pulled.iter().map(|delivery| delivery.message.sequence));
        }
    }

    fn restart(&mut self) {
        self.bus.close();
        self.bus = Embedded::open(Options::new(self.dir.path(), self.clock.clone())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_set_back_loses_nothing_and_stretches_no_delay() {
    let mut world = World::new().await;
    for id in ["1", "2", "3"] {
        assert!(world.publish(id).await);
    }
    world.put("k").await;
    assert_eq!(world.pull().await.len(), 3);
    world.bus.put_off(&world.durable, 2, SECOND * 5).await.unwrap();
    world.clock.set(-HOUR_S);
    // While it runs, delays go by the clock that cannot be set.
    world.clock.pass(SECOND * 6);
    assert_eq!(world.pull().await, BTreeSet::from([2]));
    world.bus.put_off(&world.durable, 2, SECOND * 5).await.unwrap();
    // Over a restart they can only be told by the wall clock, but never grow beyond what they were.
    world.clock.set(-HOUR_S);
    world.restart();
    assert_eq!(world.pull().await, BTreeSet::from([1, 3]));
    world.clock.pass(SECOND * 6);
    assert_eq!(world.pull().await, BTreeSet::from([2]));

    assert!(!world.publish("3").await, "the id is remembered at least as long as it was to be");
    assert!(world.publish("4").await);
    assert!(world.has("k").await, "an entry lives at least as long as it was to");
    let stored = world.bus.read("S", 1, &[], 100).await.unwrap();
    assert_eq!(stored.iter().map(|message| message.sequence).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(stored.is_sorted_by_key(|message| message.time), "times that are searched never go back");
    // It is over when the clock is right again.
    world.clock.set(2 * HOUR_S);
    world.clock.pass(SECOND * 120);
    assert!(!world.has("k").await);
    assert!(world.publish("3").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_set_forward_loses_no_message() {
    let mut world = World::new().await;
    for id in ["1", "2"] {
        assert!(world.publish(id).await);
    }
    world.put("k").await;
    assert_eq!(world.pull().await.len(), 2);
    world.bus.put_off(&world.durable, 2, SECOND * 3600).await.unwrap();
    world.clock.set(24 * HOUR_S);
    assert!(world.pull().await.is_empty(), "what is put off or in hand does not come early");
    assert!(!world.has("k").await && world.publish("1").await, "for the clock the time has passed");
    world.restart();
    assert_eq!(world.pull().await, BTreeSet::from([1, 2, 3]));
    // Back again: what was stored meanwhile keeps its place.
    world.clock.set(-24 * HOUR_S);
    assert!(world.publish("5").await);
    let stored = world.bus.read("S", 1, &[], 100).await.unwrap();
    assert_eq!(stored.len(), 4);
    assert!(stored.is_sorted_by_key(|message| message.time));
}

/// Where the package `faketime` puts its library.
fn library() -> String {
    let folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(Path::new);
    let inside = |folder: &&Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let deeper = folders.iter().flat_map(inside);
    let all = deeper.chain(folders.iter().map(|folder| folder.to_path_buf()));
    let found = all.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|path| path.is_file());
    found.expect("the package `faketime` is not installed").display().to_string()
}

const MANIFESTS: &str = "
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: in }
spec: { path: /in, to: clock.in }
---
apiVersion: vejas/v1
kind: Source
metadata: { name: beat }
spec: { interval: { every: 1s, onMissed: fireOnce }, to: clock.beat }
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: all }
spec: { from: clock.in, file: { path: out/in.ndjson } }
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: beats }
spec: { from: clock.beat, file: { path: out/beats.ndjson } }
";

fn lines(vejas: &Vejas, file: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(vejas.folder.path().join(file)).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Slots in milliseconds, in the order in which they were delivered.
fn slots(vejas: &Vejas) -> Vec<i64> {
    let slot = |line: &serde_json::Value| {
        let at = line.get("slot").or_else(|| line["payload"].get("slot")).unwrap_or_else(|| panic!("{line}"));
        Timestamp::parse(at.as_str().unwrap()).unwrap().unix_millis()
    };
    lines(vejas, "out/beats.ndjson").iter().map(slot).collect()
}

fn until(vejas: &Vejas, what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}:\n{}", vejas.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_binary_under_a_turned_clock_loses_nothing_and_repeats_no_slot() {
    let mut vejas = Vejas::new(&[("m.yaml", MANIFESTS)]);
    let offset = vejas.folder.path().join("offset");
    let turn = |text: &str| {
        let fresh = offset.with_extension("new");
        fs::write(&fresh, text).unwrap();
        fs::rename(&fresh, &offset).unwrap();
    };
    turn("+0");
    vejas
        .environment("LD_PRELOAD", &library())
        .environment("FAKETIME_TIMESTAMP_FILE", &offset.display().to_string())
        .environment("FAKETIME_NO_CACHE", "1")
        .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    vejas.start();
    let mut sent = 0;
    let mut send = |vejas: &Vejas| {
        let (status, body) = post(vejas.ingress, "/in", &format!("{{\"n\":{sent}}}"));
        assert_eq!(status, 200, "{body}");
        sent += 1;
    };
    send(&vejas);
    until(&vejas, "no first slots", || slots(&vejas).len() >= 2);
    let begun = slots(&vejas)[0];

    turn("-3600");
    send(&vejas);
    // Two seconds by the clock that cannot be set: what an hour ago was a slot is none again.
    std::thread::sleep(SECOND * 2);
    let after_back = slots(&vejas);
    assert!(after_back.iter().all(|slot| *slot >= begun), "{after_back:?}");
    send(&vejas);

    turn("+86400");
    send(&vejas);
    until(&vejas, "no slot of the next day", || slots(&vejas).iter().any(|slot| *slot > begun + 80_000_000));
    std::thread::sleep(SECOND * 2);
    let all = slots(&vejas);
    let next_day = all.iter().filter(|slot| **slot > begun + 3_600_000).count();
    // One for all that were missed, those within the lateness that is no miss, and those of the seconds since.
    assert!(next_day <= 70, "{next_day} slots after a jump of a day");

    // A restart under yet another clock.
    vejas.stop();
    turn("+0");
    vejas.start();
    send(&vejas);
    until(&vejas, "messages are missing", || lines(&vejas, "out/in.ndjson").len() >= sent);
    let all = slots(&vejas);
    let distinct: BTreeSet<i64> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len(), "a slot came twice: {all:?}");
    assert_eq!(lines(&vejas, "out/in.ndjson").len(), sent);
    assert!(vejas.stop().success());
}
