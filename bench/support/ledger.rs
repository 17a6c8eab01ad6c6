//! The set comparison: what was acknowledged beside what the bus holds and what the sink's receiver got.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use vejas::flow::message::ID;
use vejas::id::Names;
use vejas::ports::bus::Bus;

use super::Failure;
use super::producers::Sent;
use super::receiver::Delivery;

/// Messages read from the bus at once.
const READ_MESSAGES: usize = 1_000;

/// Deliveries by business id, each with the life of the process that made it.
#[derive(Debug, Default)]
pub struct Deliveries {
    by_id: Mutex<BTreeMap<String, Vec<u32>>>,
    life: AtomicU32,
}

impl Deliveries {
    pub fn took(&self, delivery: Delivery) {
        let key = delivery.key.unwrap_or_default();
        let id = key.rsplit('/').next().unwrap_or_default().to_owned();
        let life = self.life.load(SeqCst);
        self.by_id.lock().expect("no receiver panics").entry(id).or_default().push(life);
    }

    /// The process that runs now ended; what comes is another's.
    pub fn next_life(&self) {
        self.life.fetch_add(1, SeqCst);
    }

    /// Whether all of these came.
    pub fn have_all(&self, ids: &BTreeSet<String>) -> bool {
        let by_id = self.by_id.lock().expect("no receiver panics");
        ids.iter().all(|id| by_id.contains_key(id))
    }

    pub fn distinct(&self) -> usize {
        self.by_id.lock().expect("no receiver panics").len()
    }
}

/// Counts of messages; see `bench/README.md`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Acknowledged and missing behind the entrance, behind the flow, or at the receiver.
    pub lost: u64,
    /// Stored more than once under one subject.
    pub duplicated_bus: u64,
    /// Stored without having been sent.
    pub foreign: u64,
    /// Delivered again.
    pub duplicated_sink: u64,
    /// Of those, by a process that had delivered the message already: no kill explains it.
    pub unexplained: u64,
    /// Some that were lost, for people.
    pub examples: Vec<String>,
}

/// How often each id is stored under each subject.
pub type StoredIds = BTreeMap<String, BTreeMap<String, u64>>;

/// `subjects` are as in manifests: each holds every message once.
pub fn compare(sent: &Sent, stored: &StoredIds, subjects: &[&str], deliveries: &Deliveries) -> Comparison {
    let mut found = Comparison::default();
    let mut lost = BTreeSet::new();
    let none = BTreeMap::new();
    for subject in subjects {
        let ids = stored.get(&Names::default().stored(subject)).unwrap_or(&none);
        lost.extend(sent.acknowledged.iter().filter(|id| !ids.contains_key(*id)));
        found.duplicated_bus += ids.values().map(|count| count - 1).sum::<u64>();
        let known = |id: &String| sent.acknowledged.contains(id) || sent.unknown.contains(id);
        found.foreign += ids.keys().filter(|id| !known(id)).count() as u64;
    }
    let by_id = deliveries.by_id.lock().expect("no receiver panics");
    lost.extend(sent.acknowledged.iter().filter(|id| !by_id.contains_key(*id)));
    for lives in by_id.values() {
        let distinct: BTreeSet<_> = lives.iter().collect();
        found.duplicated_sink += lives.len() as u64 - 1;
        found.unexplained += (lives.len() - distinct.len()) as u64;
    }
    found.lost = lost.len() as u64;
    found.examples = lost.into_iter().take(5).cloned().collect();
    found
}

/// In the data folder of a process that ended.
pub fn stored_in(data: &Path) -> Result<StoredIds, Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async { stored_on(&*vejas::runtime::open_bus(data)?).await })
}

pub async fn stored_on(bus: &dyn Bus) -> Result<StoredIds, Failure> {
    let stream = Names::default().messages();
    let mut found = StoredIds::new();
    let mut from = 1;
    loop {
        let messages = bus.read(&stream, from, &[], READ_MESSAGES).await?;
        let Some(last) = messages.last() else { return Ok(found) };
        from = last.sequence + 1;
        for message in messages {
            let id = message.headers.get(ID).unwrap_or_default().to_owned();
            *found.entry(message.subject).or_default().entry(id).or_default() += 1;
        }
    }
}
