//! Instances of the real binary on a real nats-server, and what is on its streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vejas::bus::nats::{Nats, Options};
use vejas::flow::message::{self, Stored};
use vejas::id::Names;
use vejas::ports::bus::Bus;
use vejas::runtime::clock::SystemClock;

use crate::nats::Server;
use crate::support::{PATIENCE, Vejas, get};

/// Instances that share a server and were given the same manifests.
pub struct World {
    pub server: Server,
    pub instances: Vec<Vejas>,
    runtime: tokio::runtime::Runtime,
}

pub fn name(number: usize) -> String {
    format!("vejas-{number}")
}

impl World {
    /// `count` instances with these manifests; none runs yet.
    pub fn new(manifests: &str, count: usize) -> Self {
        let server = Server::start();
        let url = server.url();
        World::on(server, &url, manifests, count)
    }

    /// The same on a server that is there, reached at `url`.
    pub fn on(server: Server, url: &str, manifests: &str, count: usize) -> Self {
        let instance = |number: usize| {
            let mut instance = Vejas::new(&[("all.yaml", manifests)]);
            instance
                .environment("VEJAS_CLUSTER", "1")
                .environment("VEJAS_NATS_URL", url)
                .environment("VEJAS_INSTANCE", &name(number))
                .environment("VEJAS_LOG", "info,vejas=debug");
            instance
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        World { instances: (1..=count).map(instance).collect(), server, runtime }
    }

    /// Starts them all and waits until all are ready.
    pub fn start(&mut self) -> &mut Self {
        self.instances.iter_mut().for_each(Vejas::launch);
        for instance in &self.instances {
            eventually("an instance is ready", || get(instance.api, "/readyz").is_ok_and(|(status, _)| status == 200));
        }
        self
    }

    /// What any running instance says.
    pub fn ask(&self, path: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for instance in &self.instances {
                if let Ok((200, body)) = get(instance.api, path) {
                    return serde_json::from_str(&body).unwrap();
                }
            }
            assert!(Instant::now() < deadline, "nobody answers {path}");
            thread::sleep(Duration::from_millis(50));
        }
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
        eventually("the unit has an owner", || {
            found = self.owners().get(unit).cloned();
            found.is_some()
        });
        let found = found.unwrap();
        (0..self.instances.len()).find(|number| name(number + 1) == found).unwrap()
    }

    /// All messages under a subject of the manifests, in the order of the stream.
    pub fn stored(&self, subject: &str) -> Vec<Stored> {
        let names = Names::default();
        let filters = [names.stored(subject)];
        self.runtime.block_on(async {
            let options = Options::new(self.server.url(), 4711, Arc::new(SystemClock));
            let bus = Nats::connect(options).await.unwrap();
            let (mut all, mut from) = (Vec::new(), 1);
            loop {
                let some = bus.read(&names.messages(), from, &filters, 1_000).await.unwrap();
                let Some(last) = some.last() else { return all };
                from = last.sequence + 1;
                all.extend(some);
            }
        })
    }

    /// The slots of an interval source that were stored, in the order of the stream.
    pub fn slots(&self, source: &str, subject: &str) -> Vec<i64> {
        let prefix = format!("i/{source}/");
        let id = |stored: &Stored| stored.headers.get(message::ID).unwrap().to_owned();
        self.stored(subject).iter().map(|stored| id(stored).strip_prefix(&prefix).unwrap().parse().unwrap()).collect()
    }

    pub fn logs(&self) -> String {
        self.instances.iter().map(|instance| format!("{}\n", instance.log())).collect()
    }
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
