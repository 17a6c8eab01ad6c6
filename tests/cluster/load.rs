//! Load with ids of its own, and the account of what became of it.
//!
//! A producer sends a numbered order to one instance after the other until one says that it is stored. From then on it may be missing
//! nowhere: not on the stream, not behind the flow, not in the files of the sinks. Slots of a source run beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::support::{PATIENCE, request};
use crate::world::{World, assert_gapless, id};

/// Orders go in over HTTP, through a flow and into a file; a source has a slot every 100 ms and makes up for all it misses.
pub const ORDERS: &str = "apiVersion: vejas/v1
kind: HttpIn
metadata: { name: orders }
spec:
  path: /orders
  to: orders.raw
---
apiVersion: vejas/v1
kind: Flow
metadata: { name: keep }
spec:
  from: orders.raw
  steps:
    - filter: int!(.n) >= 0
  to: orders.kept
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: file }
spec:
  from: orders.kept
  file: { path: out/orders.ndjson }
---
apiVersion: vejas/v1
kind: Source
metadata: { name: beat }
spec:
  interval: { every: 100ms, onMissed: fireAll }
  to: ops.beat
";

pub const SLOT_MS: i64 = 100;
const PRODUCERS: u64 = 4;
/// Between two orders of one producer.
const PACE: Duration = Duration::from_millis(20);
/// Between tries of one order.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// What comes twice may come this much later than the last that was awaited.
const DRAIN: Duration = Duration::from_secs(1);

/// One try to store an order at one instance: whether it says that it did.
pub fn send(ingress: SocketAddr, number: u64) -> bool {
    let (key, body) = (format!("order-{number}"), format!("{{\"n\":{number}}}"));
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key.as_str())];
    matches!(request(ingress, "POST", "/orders", &headers, body.as_bytes()), Ok((200..=299, _)))
}

/// Producers at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    next: Arc<AtomicU64>,
    acknowledged: Arc<Mutex<BTreeSet<u64>>>,
    producers: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(world: &World) -> Self {
        let doors: Vec<SocketAddr> = world.instances.iter().map(|instance| instance.ingress).collect();
        let mut load =
            Load { stop: Arc::default(), next: Arc::default(), acknowledged: Arc::default(), producers: Vec::new() };
        for _ in 0..PRODUCERS {
            let (stop, next, acknowledged) =
                (Arc::clone(&load.stop), Arc::clone(&load.next), Arc::clone(&load.acknowledged));
            let doors = doors.clone();
            load.producers.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if deliver(&doors, number, &stop) {
                        acknowledged.lock().unwrap().insert(number);
                    }
                    thread::sleep(PACE);
                }
            }));
        }
        load
    }

    pub fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until this many more orders were stored.
    pub fn wait_for_more(&self, world: &World, count: usize) {
        let before = self.acknowledged();
        world.eventually("more orders are taken", || self.acknowledged() >= before + count);
    }

    /// Ends the producers; answers the numbers of all orders that were said to be stored.
    pub fn stop(mut self) -> BTreeSet<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.producers.drain(..).for_each(|producer| producer.join().unwrap());
        self.acknowledged.lock().unwrap().clone()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Tries one instance after the other; gives up only when the load ends.
fn deliver(doors: &[SocketAddr], number: u64, stop: &AtomicBool) -> bool {
    for door in doors.iter().cycle().skip(usize::try_from(number).unwrap() % doors.len()) {
        if send(*door, number) {
            return true;
        }
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        thread::sleep(AGAIN_AFTER);
    }
    false
}

/// What became of the orders that were said to be stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub sent: usize,
    /// Missing behind each hop.
    pub lost: [usize; 3],
    /// More than once behind each hop.
    pub doubled: [usize; 3],
    pub slots: usize,
    pub tenures: usize,
}

/// Waits until everything is through and compares. Nothing is missing anywhere, nothing is on the bus twice, every slot is there
/// once, and no holding of a unit wrote between the records of another.
pub fn settle(world: &World, load: Load) -> Account {
    let orders = load.stop();
    assert!(!orders.is_empty(), "no order was taken");
    let drained = world.within(PATIENCE, || missing(&orders, &lines(world)) == 0);
    thread::sleep(DRAIN);
    let hops = [numbers(world, "orders.raw"), numbers(world, "orders.kept"), lines(world)];
    let slots = world.slots("beat", "ops.beat");
    let account = Account {
        sent: orders.len(),
        lost: hops.each_ref().map(|hop| missing(&orders, hop)),
        doubled: hops.each_ref().map(|hop| hop.values().filter(|count| **count > 1).count()),
        slots: slots.len(),
        tenures: assert_fences(world),
    };
    println!("{account:?}");
    let logs = || if account.lost == [0; 3] { String::new() } else { world.logs() };
    assert_eq!(account.lost, [0; 3], "drained: {drained:?}; {account:?}\n{}", logs());
    assert_eq!(account.doubled[..2], [0; 2], "{account:?}");
    assert_gapless(&slots, SLOT_MS);
    account
}

fn missing(orders: &BTreeSet<u64>, found: &BTreeMap<u64, usize>) -> usize {
    orders.iter().filter(|number| !found.contains_key(number)).count()
}

/// How often each order is on a subject.
pub fn numbers(world: &World, subject: &str) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    for stored in world.stored(subject) {
        let number = id(&stored).strip_prefix("order-").expect("the key is the id").parse().unwrap();
        *found.entry(number).or_default() += 1;
    }
    found
}

/// How often each order is in the files of all instances.
fn lines(world: &World) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    for instance in &world.instances {
        let text = fs::read_to_string(instance.folder.path().join("out/orders.ndjson")).unwrap_or_default();
        // What a kill cut off comes again, on a line of its own.
        let whole = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        for number in whole.filter_map(|line| line["n"].as_u64()) {
            *found.entry(number).or_default() += 1;
        }
    }
    found
}

/// The fence records of every unit: a holding's stand together, and later holdings have larger numbers. Answers how many there are.
pub fn assert_fences(world: &World) -> usize {
    let mut last: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let mut tenures = 0;
    for stored in world.read("vxown.>".to_owned()) {
        let fence: serde_json::Value = serde_json::from_slice(&stored.payload).unwrap();
        let unit = fence["unit"].as_str().unwrap().to_owned();
        let holding = (fence["tenure"].as_u64().unwrap(), fence["inc"].as_str().unwrap().to_owned());
        let before = last.insert(unit, holding.clone());
        match before {
            Some(before) if before == holding => {}
            Some(before) => {
                assert!(before.0 < holding.0, "sequence {}: {holding:?} wrote after {before:?}", stored.sequence);
                tenures += 1;
            }
            None => tenures += 1,
        }
    }
    assert!(tenures > 0, "no unit wrote");
    tenures
}
