//! Instances of the real binary on a real nats-server, and what is on its streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vejas::bus::nats::{Nats, Options};
use vejas::flow::message::{self, Stored};
use vejas::id::Names;
use vejas::ports::bus::{Bus, Durable, Error};
use vejas::runtime::clock::SystemClock;

use crate::nats::Server;
use crate::support::{PATIENCE, Vejas, get};

/// The lease time to live where a fault has to last longer.
pub const SHORT_TTL: Duration = Duration::from_secs(3);
/// Messages read from a stream at a time.
const PAGE_MESSAGES: usize = 1_000;

/// Instances that share a bus and were given the same manifests.
pub struct World {
    // Declared first: they end before the servers do.
    pub instances: Vec<Vejas>,
    pub servers: Vec<Server>,
    runtime: tokio::runtime::Runtime,
}

pub fn name(number: usize) -> String {
    format!("vejas-{number}")
}

impl World {
    /// `count` instances with these manifests on a server of their own; none runs yet.
    pub fn new(manifests: &str, count: usize) -> Self {
        let server = Server::start();
        let url = server.url();
        World::on(vec![server], &url, manifests, count)
    }

    /// The same on servers that are there, reached at `url`.
    pub fn on(servers: Vec<Server>, url: &str, manifests: &str, count: usize) -> Self {
        let instance = |number: usize| {
            let mut instance = Vejas::new(&[("all.yaml", manifests)]);
            instance
                .environment("VEJAS_CLUSTER", "1")
                .environment("VEJAS_NATS_URL", url)
                .environment("VEJAS_INSTANCE", &name(number))
                .environment("VEJAS_STRICT", "1")
                .environment("VEJAS_LOG", "info,vejas=debug");
            instance
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        World { instances: (1..=count).map(instance).collect(), servers, runtime }
    }

    /// For every instance.
    pub fn environment(&mut self, name: &str, value: &str) -> &mut Self {
        self.instances.iter_mut().for_each(|instance| _ = instance.environment(name, value));
        self
    }

    /// Leases and announcements live for [`SHORT_TTL`].
    pub fn with_short_ttl(mut self) -> Self {
        let secs = SHORT_TTL.as_secs().to_string();
        self.environment("VEJAS_LEASE_TTL_SECS", &secs).environment("VEJAS_HEARTBEAT_TTL_SECS", &secs);
        self
    }

    /// Starts them all and waits until all are ready.
    pub fn start(&mut self) -> &mut Self {
        self.instances.iter_mut().for_each(Vejas::launch);
        for number in 0..self.instances.len() {
            self.wait_until_ready(number);
        }
        self
    }

    pub fn is_ready(&self, number: usize) -> bool {
        get(self.instances[number].api, "/readyz").is_ok_and(|(status, _)| status == 200)
    }

    pub fn wait_until_ready(&self, number: usize) {
        self.eventually("an instance is ready", || self.is_ready(number));
    }

    /// Like [`eventually`], and shows what the instances logged when it never happened.
    pub fn eventually(&self, what: &str, mut probe: impl FnMut() -> bool) {
        let within = self.within(PATIENCE, &mut probe);
        assert!(within.is_some(), "never happened: {what}\n{}", self.logs());
    }

    /// How long it took until it held, if it did in time.
    pub fn within(&self, limit: Duration, mut probe: impl FnMut() -> bool) -> Option<Duration> {
        let begun = Instant::now();
        while !probe() {
            if begun.elapsed() > limit {
                return None;
            }
            thread::sleep(Duration::from_millis(20));
        }
        Some(begun.elapsed())
    }

    /// What any running instance says.
    pub fn ask(&self, path: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for instance in self.instances.iter().filter(|instance| instance.is_running()) {
                if let Ok((200, body)) = get(instance.api, path) {
                    return serde_json::from_str(&body).unwrap();
                }
            }
            assert!(Instant::now() < deadline, "nobody answers {path}\n{}", self.logs());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// What one instance says, if it does.
    pub fn ask_one(&self, number: usize, path: &str) -> Option<Value> {
        let (status, body) = get(self.instances[number].api, path).ok()?;
        (status == 200).then(|| serde_json::from_str(&body).unwrap())
    }

    /// The owner of every unit that is held, by unit.
    pub fn owners(&self) -> BTreeMap<String, String> {
        let leases = self.ask("/api/v1/leases");
        let held = leases["leases"].as_array().unwrap().iter().filter(|lease| lease["state"] == "held");
        held.map(|lease| (text(&lease["unit"]), text(&lease["instance"]))).collect()
    }

    /// The number of the instance that owns a unit, once one does.
    pub fn owner(&self, unit: &str) -> usize {
        let mut found = None;
        self.eventually("the unit has an owner", || {
            found = self.owners().get(unit).cloned();
            found.is_some()
        });
        let found = found.unwrap();
        (0..self.instances.len()).find(|number| name(number + 1) == found).unwrap()
    }

    /// All messages under a subject of the manifests, in the order of the stream.
    pub fn stored(&self, subject: &str) -> Vec<Stored> {
        self.read(Names::default().stored(subject))
    }

    /// All messages under a subject as it is stored, in the order of the stream.
    pub fn read(&self, filter: String) -> Vec<Stored> {
        let (names, filters) = (Names::default(), [filter]);
        let url = self.servers.iter().map(Server::url).collect::<Vec<_>>().join(",");
        self.runtime.block_on(async {
            let options = Options::new(&url, 4711, Arc::new(SystemClock));
            let bus = Nats::connect(options).await.unwrap();
            let (mut all, mut from) = (Vec::new(), 1);
            let deadline = Instant::now() + PATIENCE;
            loop {
                let some = match bus.read(&names.messages(), from, &filters, PAGE_MESSAGES).await {
                    // A server that has just come back.
                    Err(Error::Unavailable(_)) if Instant::now() < deadline => continue,
                    some => some.unwrap(),
                };
                let Some(last) = some.last() else { break };
                from = last.sequence + 1;
                all.extend(some);
            }
            bus.close();
            all
        })
    }

    /// Deletes a durable of the message stream, as a person with the server's own tool would.
    pub fn delete_durable(&self, durable: &str) {
        let durable = Durable { stream: Names::default().messages().into(), name: durable.into() };
        self.runtime.block_on(async {
            let options = Options::new(self.servers[0].url(), 4712, Arc::new(SystemClock));
            Nats::connect(options).await.unwrap().delete_durable(&durable).await.unwrap();
        });
    }

    /// The slots of an interval source that were stored, in the order of the stream.
    pub fn slots(&self, source: &str, subject: &str) -> Vec<i64> {
        let prefix = format!("i/{source}/");
        let slot = |stored: &Stored| id(stored).strip_prefix(&prefix).unwrap().parse().unwrap();
        self.stored(subject).iter().map(slot).collect()
    }

    pub fn logs(&self) -> String {
        self.instances.iter().map(|instance| format!("{}\n", instance.log())).collect()
    }
}

/// The business identity of a message.
pub fn id(stored: &Stored) -> String {
    stored.headers.get(message::ID).unwrap().to_owned()
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Waits until it holds; fails the test when it does not in time.
pub fn eventually(what: &str, mut probe: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !probe() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Every slot exactly once and in order.
pub fn assert_gapless(slots: &[i64], period_ms: i64) {
    for pair in slots.windows(2) {
        assert_eq!(pair[1] - pair[0], period_ms, "slots {pair:?}");
    }
}
