//! Data directories made by the real bus, what was acknowledged on them, and whether a directory still has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vejas::bus::embedded::salvage::Report;
use vejas::bus::embedded::{Embedded, Options};
use vejas::flow::message::{Headers, Outgoing};
use vejas::ports::bus::{Batch, Bus, Durable, DurableConfig, Settlement, Start, StreamConfig};
use vejas::ports::clock::Clock;
use vejas::ports::store::{Condition, Store, Write};
use vejas::time::Timestamp;

/// Stands still.
pub struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_millis(1_800_000_000_000)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(1)
    }
}

pub fn options(dir: &Path) -> Options {
    Options::new(dir, Arc::new(Still))
}

/// What was acknowledged.
#[derive(Debug, Default, Clone)]
pub struct Acknowledged {
    /// By stream and sequence: subject and payload.
    pub messages: BTreeMap<(String, u64), (String, Bytes)>,
    pub entries: BTreeMap<String, Bytes>,
    /// The commits that each message, as `stream/sequence`, or entry can be in.
    pub commits: BTreeMap<String, (u64, u64)>,
    /// Per durable what it still has to hand out.
    pub unsettled: BTreeMap<(String, String), BTreeSet<u64>>,
}

pub struct Ground {
    pub dir: tempfile::TempDir,
    pub acknowledged: Acknowledged,
}

struct Maker {
    bus: Arc<Embedded>,
    dir: PathBuf,
    told: Acknowledged,
    /// Of each stream the last message that was there when its durable was worked on.
    begun: BTreeMap<String, u64>,
}

impl Maker {
    /// The number in the file `synced`.
    fn synced(&self) -> u64 {
        u64::from_le_bytes(fs::read(self.dir.join("synced")).unwrap()[..8].try_into().unwrap())
    }

    async fn publish(&mut self, stream: &str, subject: &str, payloads: Vec<Bytes>) {
        let messages = payloads.iter().enumerate().map(|(n, payload)| Outgoing {
            subject: subject.into(),
            headers: [("Vejas-Id", format!("{subject}-{n}").as_str())].into_iter().collect::<Headers>(),
            payload: payload.clone(),
            transport_id: (n == 0).then(|| format!("id-{subject}-{}", self.told.messages.len())),
        });
        let batch = Batch { stream: stream.into(), messages: messages.collect(), expected: Vec::new() };
        let before = self.synced();
        let acks = self.bus.publish_batch(batch).await.unwrap();
        for (ack, payload) in acks.iter().zip(payloads) {
            self.told.commits.insert(format!("{stream}/{}", ack.sequence), (before + 1, self.synced()));
            self.told.messages.insert((stream.into(), ack.sequence), (subject.into(), payload));
        }
    }

    async fn put(&mut self, key: &str, value: &str) {
        let current = self.bus.get("marks", key).await.unwrap();
        let condition = current.map_or(Condition::Absent, |entry| Condition::Revision(entry.revision));
        let value = Bytes::from(value.to_owned());
        let write = Write { bucket: "marks".into(), key: key.into(), value: Some(value.clone()), condition, ttl: None };
        let before = self.synced();
        self.bus.write(vec![write]).await.unwrap();
        self.told.commits.insert(format!("marks/{key}"), (before + 1, self.synced()));
        self.told.entries.insert(key.into(), value);
    }

    /// Takes `count` messages and acknowledges every second of them.
    async fn work(&mut self, durable: &Durable, count: usize) {
        let pulled = self.bus.pull(durable, count, usize::MAX, Duration::ZERO).await.unwrap();
        let sequences = pulled.iter().map(|delivery| delivery.message.sequence).filter(|sequence| sequence % 2 == 0);
        let acknowledged: Vec<_> = sequences.map(|sequence| (durable.clone(), sequence)).collect();
        let key = (durable.stream.to_string(), durable.name.to_string());
        let unsettled = self.told.unsettled.get_mut(&key).unwrap();
        acknowledged.iter().for_each(|(_, sequence)| assert!(unsettled.remove(sequence)));
        self.bus.settle(Settlement { acknowledged, ..Settlement::default() }).await.unwrap();
    }
}

/// What a made directory has to contain.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub rounds: usize,
    pub payload_bytes: usize,
    /// Sizes at which memory is written out to tables.
    pub memtable_bytes: u64,
}

/// All of it in the journal.
pub const JOURNAL: Shape = Shape { rounds: 12, payload_bytes: 200, memtable_bytes: 4 << 20 };
/// Most of it in tables.
pub const TABLES: Shape = Shape { rounds: 60, payload_bytes: 700, memtable_bytes: 24 << 10 };

/// Two streams, two durables with messages in hand, a bucket; some messages removed, some trimmed. Left as a killed
/// process leaves it.
pub async fn make(shape: Shape) -> Ground {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        memtable_bytes_max: shape.memtable_bytes,
        records_bytes_max: shape.memtable_bytes,
        ..options(dir.path())
    };
    let bus = Embedded::open(options).unwrap();
    for (name, subjects) in [("orders", "orders.>"), ("letters", "letters.>")] {
        let config = StreamConfig {
            name: name.into(),
            subjects: vec![subjects.into()],
            bytes_max: 1 << 30,
            message_bytes_max: 4 << 20,
            duplicate_window: Duration::from_secs(600),
        };
        bus.ensure_stream(config).await.unwrap();
    }
    let mut durables = Vec::new();
    for (stream, name, filter) in [("orders", "all", "orders.>"), ("letters", "some", "letters.a")] {
        let config = DurableConfig {
            name: name.into(),
            filters: vec![filter.into()],
            start: Start::First,
            ack_wait: Duration::from_secs(60),
            in_flight_max: 10_000,
        };
        durables.push(bus.ensure_durable(stream, config).await.unwrap());
    }
    bus.ensure_bucket("marks", None).await.unwrap();
    let mut maker = Maker { bus, dir: dir.path().to_owned(), told: Acknowledged::default(), begun: BTreeMap::new() };
    for round in 0..shape.rounds {
        let payload =
            |n: usize| Bytes::from(format!("{round}/{n}/{}", "x".repeat((round * 37 + n) % shape.payload_bytes)));
        maker.publish("orders", ["orders.new", "orders.paid"][round % 2], (0..4).map(payload).collect()).await;
        maker.publish("letters", ["letters.a", "letters.b", "letters.c"][round % 3], vec![payload(9)]).await;
        maker.put(&format!("key-{}", round % 5), &format!("value of round {round}")).await;
        if round == shape.rounds / 3 {
            for durable in &durables {
                let key = (durable.stream.to_string(), durable.name.to_string());
                let wanted = maker.told.messages.iter().filter(|((stream, _), (subject, _))| {
                    **stream == *durable.stream && (*durable.name == *"all" || subject == "letters.a")
                });
                let all: BTreeSet<u64> = wanted.map(|((_, sequence), _)| *sequence).collect();
                let last = maker.bus.stream(&durable.stream).await.unwrap().last;
                maker.begun.insert(durable.stream.to_string(), last);
                maker.told.unsettled.insert(key, all);
                maker.work(durable, 7).await;
            }
        }
        if round == shape.rounds / 2 {
            maker.bus.remove("letters", &[2, 3]).await.unwrap();
            maker.bus.trim("orders", 6, &[]).await.unwrap();
            maker.told.messages.retain(|(stream, sequence), _| match stream.as_str() {
                "letters" => !matches!(sequence, 2 | 3),
                _ => *sequence >= 6,
            });
        }
    }
    wait_for_tables(dir.path(), shape);
    finish(&mut maker.told, &maker.begun);
    let left = tempfile::tempdir().unwrap();
    copy(dir.path(), left.path());
    maker.bus.close();
    Ground { dir: left, acknowledged: maker.told }
}

/// What came after the durables began is unsettled, too, and what was removed is not.
fn finish(told: &mut Acknowledged, begun: &BTreeMap<String, u64>) {
    for ((stream, durable), unsettled) in &mut told.unsettled {
        let held = told
            .messages
            .iter()
            .filter(|((of, _), (subject, _))| of == stream && (durable == "all" || subject == "letters.a"));
        let held: BTreeSet<u64> = held.map(|((_, sequence), _)| *sequence).collect();
        unsettled.extend(held.range(begun[stream] + 1..));
        unsettled.retain(|sequence| held.contains(sequence));
    }
}

fn wait_for_tables(dir: &Path, shape: Shape) {
    if shape.memtable_bytes >= JOURNAL.memtable_bytes {
        return;
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    let tables = |id: u32| fs::read_dir(dir.join(format!("bus/keyspaces/{id}/tables"))).map_or(0, Iterator::count);
    while (1..=2).any(|id| tables(id) == 0) {
        assert!(std::time::Instant::now() < deadline, "no tables were written");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Compactions may be at work; a copy is what a crash leaves, and that has to be taken between two of them.
    std::thread::sleep(Duration::from_millis(300));
}

/// Copies a directory, `synced` first, holes as holes.
pub fn copy(from: &Path, to: &Path) {
    let synced = fs::read(from.join("synced")).unwrap_or_default();
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        copy_file(&file, &target);
    }
    for folder in folders(from) {
        fs::create_dir_all(to.join(folder.strip_prefix(from).unwrap())).unwrap();
    }
    if !synced.is_empty() {
        fs::write(to.join("synced"), synced).unwrap();
    }
}

fn copy_file(from: &Path, to: &Path) {
    let used = used(from);
    let source = File::open(from).unwrap();
    let mut bytes = vec![0; used as usize];
    source.read_exact_at(&mut bytes, 0).unwrap();
    let mut target = File::create(to).unwrap();
    target.write_all(&bytes).unwrap();
    target.set_len(source.metadata().unwrap().len()).unwrap();
}

/// Bytes of a file up to the last that is not zero, looked for in its first megabytes.
pub fn used(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let mut step = vec![0; 256 << 10];
    let (mut at, mut used) = (0, 0);
    while at < length {
        let size = file.read_at(&mut step, at).unwrap();
        if size == 0 {
            break;
        }
        if step[..size] == vec![0; size] && path.extension().is_some_and(|extension| extension == "jnl") {
            break;
        }
        used = at + size as u64 - step[..size].iter().rev().take_while(|byte| **byte == 0).count() as u64;
        at += size as u64;
    }
    used
}

pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(folders(&path));
            found.push(path);
        }
    }
    found
}

/// What a bus gives out.
pub async fn contents(bus: &Embedded) -> Acknowledged {
    let mut found = Acknowledged::default();
    for stream in ["orders", "letters"] {
        let mut from = 0;
        while let Ok(messages) = bus.read(stream, from, &[], 1000).await {
            let Some(last) = messages.last() else { break };
            from = last.sequence + 1;
            for message in messages {
                let key = (stream.to_owned(), message.sequence);
                found.messages.insert(key, (message.subject, message.payload));
            }
        }
    }
    for entry in bus.list("marks", "", None, 1000).await.unwrap_or_default() {
        found.entries.insert(entry.key, entry.value);
    }
    for (stream, name) in [("orders", "all"), ("letters", "some")] {
        let durable = Durable { stream: stream.into(), name: name.into() };
        let mut handed = BTreeSet::new();
        while let Ok(pulled) = bus.pull(&durable, 4096, usize::MAX, Duration::ZERO).await {
            if pulled.is_empty() {
                break;
            }
            handed.extend(pulled.iter().map(|delivery| delivery.message.sequence));
        }
        found.unsettled.insert((stream.into(), name.into()), handed);
    }
    found
}

/// What is wrong with a directory from which nothing may be missing.
pub fn differences(told: &Acknowledged, found: &Acknowledged) -> Vec<String> {
    let mut wrong = Vec::new();
    if told.messages != found.messages {
        let missing: Vec<_> = told.messages.keys().filter(|key| !found.messages.contains_key(*key)).collect();
        wrong.push(format!("messages: {} of {}, missing {missing:?}", found.messages.len(), told.messages.len()));
    }
    if told.entries != found.entries {
        wrong.push(format!("entries: {:?}", found.entries));
    }
    if told.unsettled != found.unsettled {
        wrong.push(format!("deliveries: {:?} for {:?}", found.unsettled, told.unsettled));
    }
    wrong
}

/// What is wrong with a mended directory: all that was acknowledged is there or was reported.
pub fn unreported(told: &Acknowledged, found: &Acknowledged, report: &Report) -> Vec<String> {
    let mut wrong = Vec::new();
    let lost = &report.lost;
    let vague = !lost.is_fully_named();
    // What is not named has to be of a commit that is.
    let in_lost_commit = |key: &str| {
        let (first, last) = told.commits[key];
        lost.commits.iter().any(|lost| !lost.named && lost.first <= last && first <= lost.last)
    };
    let holes = lost.records.iter().any(|record| record.starts_with("everything last written"));
    for (key, message) in &told.messages {
        let named = lost.messages.iter().any(|lost| {
            lost.stream == key.0 && lost.ranges.iter().any(|(first, last)| (*first..=*last).contains(&key.1))
        });
        match found.messages.get(key) {
            Some(found) if found == message => {}
            None if named || in_lost_commit(&format!("{}/{}", key.0, key.1)) => {}
            None => wrong.push(format!("message {key:?} is gone and not reported")),
            Some(_) => wrong.push(format!("message {key:?} is another one")),
        }
    }
    let came_back = found.messages.keys().filter(|key| !told.messages.contains_key(*key)).count();
    if came_back > 0 && !vague && !holes && lost.is_nothing() {
        wrong.push(format!("{came_back} removed messages came back without a word"));
    }
    if !vague {
        for of in ["orders", "letters"] {
            let missing = told.messages.keys().filter(|key| key.0 == of && !found.messages.contains_key(*key)).count();
            let count: u64 = lost.messages.iter().filter(|lost| lost.stream == of).map(|lost| lost.count).sum();
            if missing as u64 != count && came_back == 0 {
                wrong.push(format!("{missing} messages of {of} are gone, {count} were reported"));
            }
        }
    }
    for (key, value) in &told.entries {
        let named = lost.entries.contains(&format!("marks/{key}"));
        let changed = found.entries.get(key) != Some(value);
        if changed
            && !named
            && !in_lost_commit(&format!("marks/{key}"))
            && !holes
            && !lost.records.iter().any(|record| record.contains("bucket"))
        {
            wrong.push(format!("entry {key} is {:?} and not reported", found.entries.get(key)));
        }
    }
    let names_durables = lost.records.iter().any(|record| record.contains("durable")) || holes || vague;
    for (durable, unsettled) in &told.unsettled {
        let handed = &found.unsettled[durable];
        let held = |sequence: &&u64| found.messages.contains_key(&(durable.0.clone(), **sequence));
        let missing: Vec<_> = unsettled.iter().filter(held).filter(|sequence| !handed.contains(sequence)).collect();
        if !missing.is_empty() && !names_durables {
            wrong.push(format!("{durable:?} does not hand out {missing:?}"));
        }
    }
    wrong
}
