//! Manifests on an embedded bus in a folder of its own, without entrances.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use vejas::bus::embedded::{Embedded, Options};
use vejas::flow::message::{Headers, Outgoing, Stored};
use vejas::id::Names;
use vejas::ports::bus::{Batch, DurableConfig, Error, Start};
use vejas::runtime::clock::SystemClock;
use vejas::runtime::config::{BusConfig, Config};
use vejas::runtime::ownership::{self, members::Describes};
use vejas::runtime::publisher::Publisher;
use vejas::runtime::reading::Backlogs;
use vejas::runtime::units::Units;
use vejas::runtime::{load, streams};
use vejas::unit::context::Context;
use vejas::unit::status::{Registry, State, UnitView};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub messages_bytes_max: u64,
    pub dead_letters_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { messages_bytes_max: 1 << 30, dead_letters_bytes_max: 1 << 30 }
    }
}

pub struct Stage {
    folder: tempfile::TempDir,
    limits: Limits,
    pub context: Context,
    embedded: Arc<Embedded>,
    registry: Arc<Registry>,
    config: Arc<Config>,
    units: Option<Units>,
    entrances: CancellationToken,
}

fn config(folder: &Path, limits: Limits) -> Config {
    Config {
        manifests: folder.join("manifests"),
        git: None,
        data_dir: folder.join("data"),
        names: Names::default(),
        instance: "test".to_owned(),
        api_addr: "127.0.0.1:8686".to_owned(),
        api_tls: None,
        ingress_addr: "127.0.0.1:0".to_owned(),
        token: None,
        read_token: None,
        secrets_dir: None,
        messages_bytes_max: limits.messages_bytes_max,
        bus: BusConfig::Embedded,
        bus_message_bytes_max: usize::MAX,
        ownership: ownership::Settings::alone(),
        dead_letters_bytes_max: limits.dead_letters_bytes_max,
        retention: Duration::from_secs(3600),
        drain: Duration::from_secs(10),
        look_period: None,
        strict: true,
        environment: Arc::new(|_| None),
        jitter: Arc::new(|| 0.5),
        seed: 7,
    }
}

impl Stage {
    pub async fn start(manifest: &str, limits: Limits) -> Self {
        let mut stage = Stage::prepare(manifest, limits).await;
        stage.run().await;
        stage
    }

    /// Everything but the running: durables exist, nothing moves.
    pub async fn prepare(manifest: &str, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("manifests")).unwrap();
        std::fs::write(folder.path().join("manifests/test.yaml"), manifest).unwrap();
        let mut stage = Stage::open(folder, limits).await;
        stage.run().await;
        stage.end().await;
        Stage::open(stage.folder, limits).await
    }

    async fn open(folder: tempfile::TempDir, limits: Limits) -> Self {
        let config = Arc::new(config(folder.path(), limits));
        let clock: vejas::ports::clock::SharedClock = Arc::new(SystemClock);
        let embedded = Embedded::open(Options::new(&config.data_dir, Arc::clone(&clock))).unwrap();
        streams::ensure(&*embedded, &*embedded, &config).await.unwrap();
        let context = Context {
            bus: embedded.clone(),
            store: embedded.clone(),
            names: Names::default(),
            clock,
            instance: Arc::from("test"),
            stopping: CancellationToken::new(),
        };
        let registry = Arc::new(Registry::default());
        let entrances = CancellationToken::new();
        Stage { folder, limits, context, embedded, registry, config, units: None, entrances }
    }

    pub async fn run(&mut self) {
        let loaded = load::load(&self.config).await.unwrap();
        let peers = self.embedded.clone();
        let (owner, driver) =
            ownership::start(self.context.clone(), peers, self.config.ownership.clone(), Describes::default());
        tokio::spawn(driver);
        let backlogs = Backlogs::default();
        let publisher = Publisher::new(&self.context, &self.config, &owner);
        let started = Units::start(Some(loaded), &publisher, &self.registry, &self.entrances, backlogs).await;
        self.units = Some(started.unwrap().0);
    }

    /// In order, like a process that is told to stop.
    async fn end(&mut self) {
        self.entrances.cancel();
        self.context.stopping.cancel();
        if let Some(units) = &mut self.units {
            tokio::time::timeout(PATIENCE, units.workers_ended()).await.expect("the units end");
        }
        self.embedded.close();
    }

    pub async fn stop(mut self) {
        self.end().await;
    }

    pub async fn restart(mut self) -> Self {
        self.end().await;
        let (folder, limits) = (self.folder, self.limits);
        let mut stage = Stage::open(folder, limits).await;
        stage.run().await;
        stage
    }

    /// As if the acknowledgement of this input had never been stored.
    pub async fn with_input_again(mut self, sequence: u64) -> Self {
        self.context.stopping.cancel();
        if let Some(units) = &mut self.units {
            units.workers_ended().await;
        }
        let bus = &self.context.bus;
        let durable = bus.durables("VEJAS").await.unwrap().remove(0);
        let config = DurableConfig { start: Start::Sequence(sequence), ..durable.config };
        let named = vejas::ports::bus::Durable { stream: "VEJAS".into(), name: config.name.as_str().into() };
        bus.delete_durable(&named).await.unwrap();
        bus.ensure_durable("VEJAS", config).await.unwrap();
        self.restart().await
    }

    fn message(subject: &str, headers: &[(&str, &str)], payload: &[u8]) -> Outgoing {
        Outgoing {
            subject: Names::default().stored(subject),
            headers: Headers::from_iter(headers.iter().copied()),
            payload: Bytes::copy_from_slice(payload),
            transport_id: None,
        }
    }

    pub async fn publish(&self, subject: &str, headers: &[(&str, &str)], payload: &[u8]) -> u64 {
        let message = Stage::message(subject, headers, payload);
        self.context.bus.publish(&"VEJAS".into(), message, None).await.unwrap().sequence
    }

    pub async fn try_publish(&self, subject: &str, payload: &[u8]) -> Result<(), Error> {
        let message = Stage::message(subject, &[], payload);
        self.context.bus.publish(&"VEJAS".into(), message, None).await.map(|_| ())
    }

    pub async fn publish_all(&self, subject: &str, payloads: &[String]) {
        for some in payloads.chunks(500) {
            let messages = some.iter().map(|payload| Stage::message(subject, &[], payload.as_bytes())).collect();
            let batch = Batch { stream: "VEJAS".into(), messages, expected: Vec::new() };
            self.context.bus.publish_batch(batch).await.unwrap();
        }
    }

    async fn read_all(&self, stream: &str, filter: &str) -> Vec<Stored> {
        let (mut found, mut from) = (Vec::new(), 1);
        loop {
            let some = self.context.bus.read(stream, from, &[filter.to_owned()], 1_000).await.unwrap();
            let Some(last) = some.last() else { return found };
            from = last.sequence + 1;
            found.extend(some);
        }
    }

    /// Everything on a subject, once there is this much.
    pub async fn wait_for(&self, subject: &str, count: usize) -> Vec<Stored> {
        let subject = Names::default().stored(subject);
        self.until(|| async {
            let found = self.read_all("VEJAS", &subject).await;
            (found.len() >= count).then_some(found)
        })
        .await
    }

    pub async fn wait_for_dead_letters(&self, count: usize) -> Vec<Stored> {
        self.until(|| async {
            let found = self.read_all("VEJAS_DLQ", "vxdlq.>").await;
            (found.len() >= count).then_some(found)
        })
        .await
    }

    pub async fn remove_dead_letters(&self, letters: &[Stored]) {
        let sequences: Vec<u64> = letters.iter().map(|letter| letter.sequence).collect();
        self.context.bus.remove("VEJAS_DLQ", &sequences).await.unwrap();
    }

    pub fn unit(&self, name: &str) -> UnitView {
        let all = self.registry.all();
        all.iter().map(|unit| unit.view()).find(|view| view.unit == name).unwrap()
    }

    pub async fn wait_for_state(&self, unit: &str, state: State) {
        self.until(|| async { (self.unit(unit).state == state).then_some(()) }).await;
    }

    pub async fn wait_for_received(&self, unit: &str, count: u64) {
        self.until(|| async { (self.unit(unit).received >= count).then_some(()) }).await;
    }

    async fn until<T, F: Future<Output = Option<T>>>(&self, look: impl Fn() -> F) -> T {
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        match waited.await {
            Ok(found) => found,
            Err(_) => panic!("waited in vain; units: {:#?}", self.registry.all()),
        }
    }
}
