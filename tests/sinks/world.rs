//! A bus in a folder, a receiver that fails on demand, and the worker between them.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::response::Response;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use vejas::bus::embedded::{Embedded, Options};
use vejas::connectors::http::sink::HttpSink;
use vejas::connectors::secret::Secret;
use vejas::flow::breaker;
use vejas::flow::dead_letter;
use vejas::flow::failure::Failure;
use vejas::flow::message::{Headers, Outgoing, Stored};
use vejas::id::{Names, UnitId, UnitKind};
use vejas::manifest::connector::http::Http;
use vejas::manifest::flow::Retry;
use vejas::manifest::value::Setting;
use vejas::manifest::value::StartFrom;
use vejas::ports::bus::{Bus, Durable, DurableConfig, Start, StreamConfig};
use vejas::ports::clock::{Clock, SharedClock};
use vejas::ports::store::Store;
use vejas::protocol::parts;
use vejas::runtime::parts::{Granting, UnitParts};
use vejas::runtime::sink_worker::{self, OrderBy, SinkUnit};
use vejas::runtime::versions::Versions;
use vejas::time::Timestamp;
use vejas::unit::context::Context;
use vejas::unit::status::{Registry, State, Unit};

/// Nothing here should take longer; a test that waits for more has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const ACK_WAIT: Duration = Duration::from_millis(600);

pub struct System(Instant);

impl Clock for System {
    fn now(&self) -> Timestamp {
        Timestamp(0).plus(std::time::UNIX_EPOCH.elapsed().unwrap())
    }
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// What the receiver got, in order: when, payload, status answered.
#[derive(Default)]
pub struct Log(pub Vec<(Instant, String, u16)>);

impl Log {
    pub fn taken(&self) -> Vec<String> {
        self.0.iter().filter(|(.., status)| *status < 300).map(|(_, body, _)| body.clone()).collect()
    }
    pub fn count(&self, body: &str) -> usize {
        self.0.iter().filter(|(_, got, _)| got == body).count()
    }
}

/// Answers each payload as `answer` says, which also gets the number of requests before this one.
pub struct Receiver {
    pub url: String,
    pub log: watch::Receiver<()>,
    pub got: Arc<Mutex<Log>>,
}

pub struct Reply {
    pub status: u16,
    pub retry_after: Option<&'static str>,
    pub delay: Duration,
}

pub fn reply(status: u16) -> Reply {
    Reply { status, retry_after: None, delay: Duration::ZERO }
}

impl Receiver {
    pub async fn start(answer: impl Fn(&str, usize) -> Reply + Clone + Send + Sync + 'static) -> Self {
        let got = Arc::new(Mutex::new(Log::default()));
        let (changed, log) = watch::channel(());
        let changed = Arc::new(changed);
        let kept = Arc::clone(&got);
        let app = Router::new().fallback(move |body: Bytes| {
            let body = String::from_utf8_lossy(&body).into_owned();
            let reply = {
                let mut got = kept.lock().unwrap();
                let reply = answer(&body, got.0.len());
                got.0.push((Instant::now(), body, reply.status));
                reply
            };
            let changed = Arc::clone(&changed);
            async move {
                tokio::time::sleep(reply.delay).await;
                changed.send_replace(());
                let mut response = Response::builder().status(reply.status);
                if let Some(after) = reply.retry_after {
                    response = response.header("Retry-After", after);
                }
                response.body("no thanks".to_owned()).unwrap()
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Receiver { url, log, got }
    }

    /// Waits until the log satisfies `wanted`.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Log) -> bool) {
        let mut log = self.log.clone();
        let waited = tokio::time::timeout(PATIENCE, async {
            while !wanted(&self.got.lock().unwrap()) {
                log.changed().await.unwrap();
            }
        });
        if waited.await.is_err() {
            panic!("no {what}: {:?}", self.got.lock().unwrap().0.iter().map(|e| (&e.1, e.2)).collect::<Vec<_>>());
        }
    }
}

pub struct World {
    pub folder: TempDir,
    pub bus: Arc<Embedded>,
    pub clock: SharedClock,
    pub names: Names,
    pub durable: Durable,
    pub parts: Arc<UnitParts>,
    pub registry: Registry,
}

pub struct Running {
    pub task: JoinHandle<Result<(), sink_worker::Error>>,
    pub stopping: CancellationToken,
    pub unit: Arc<Unit>,
}

impl Running {
    pub async fn stop(self) {
        self.stopping.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("it stops").unwrap().unwrap();
        assert_eq!(self.unit.state(), State::Stopped);
    }
}

pub struct Wanted {
    pub http: serde_json::Value,
    pub attempts: u32,
    pub ordered: bool,
    pub breaker: breaker::Settings,
    pub drain: Duration,
}

impl Default for Wanted {
    fn default() -> Self {
        let breaker =
            breaker::Settings { failures: 5, pause: Duration::from_millis(100), pause_max: Duration::from_millis(400) };
        Wanted { http: serde_json::json!({}), attempts: 3, ordered: false, breaker, drain: Duration::from_secs(5) }
    }
}

impl World {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        World::open(folder, 64 << 20).await
    }

    pub async fn open(folder: TempDir, letters_bytes_max: u64) -> Self {
        let clock: SharedClock = Arc::new(System(Instant::now()));
        let bus = Embedded::open(Options::new(folder.path(), Arc::clone(&clock))).unwrap();
        let names = Names::default();
        for (name, subjects, bytes_max) in [
            (names.messages(), names.message_subjects(), 64 << 20),
            (names.dead_letters(), names.dead_letter_subjects(), letters_bytes_max),
        ] {
            let duplicate_window = Duration::from_secs(120);
            let config = StreamConfig { name, subjects, bytes_max, message_bytes_max: 1 << 20, duplicate_window };
            bus.ensure_stream(config).await.unwrap();
        }
        let config = DurableConfig {
            name: "sink_erp_1".to_owned(),
            filters: vec!["vx.orders".to_owned()],
            start: Start::First,
            ack_wait: ACK_WAIT,
            in_flight_max: 8_192,
        };
        let durable = bus.ensure_durable(&names.messages(), config).await.unwrap();
        bus.ensure_bucket(&names.versions_bucket(), None).await.unwrap();
        let context = World::context(&bus, &names, &clock, CancellationToken::new());
        let versions = Arc::new(Versions::new(Arc::clone(&context.store), &names));
        let parts = UnitParts::new(context, versions, World::id(), Granting::ByRecord);
        let wanted = parts::Wanted { digest: "d1".to_owned(), reads: vec!["vx.orders".to_owned()] };
        parts.roll(Some((&wanted, StartFrom::First, &[])), 1, None).await.unwrap();
        World { folder, bus, clock, names, durable, parts: Arc::new(parts), registry: Registry::default() }
    }

    fn id() -> UnitId {
        UnitId::new(UnitKind::Sink, "erp")
    }

    fn context(bus: &Arc<Embedded>, names: &Names, clock: &SharedClock, stopping: CancellationToken) -> Context {
        Context {
            bus: Arc::clone(bus) as Arc<dyn Bus>,
            store: Arc::clone(bus) as Arc<dyn Store>,
            names: names.clone(),
            clock: Arc::clone(clock),
            instance: "test".into(),
            stopping,
        }
    }

    /// Ends the process, as far as bus and worker can tell, and starts another.
    pub async fn restart(self, running: Running) -> Self {
        running.task.abort();
        _ = running.task.await;
        self.bus.close();
        World::open(self.folder, 64 << 20).await
    }

    pub async fn publish(&self, payloads: impl IntoIterator<Item = String>) {
        for payload in payloads {
            let headers = Headers::from_iter([("Vejas-Id", payload.as_str())]);
            let message =
                Outgoing { subject: "vx.orders".to_owned(), headers, payload: payload.into(), transport_id: None };
            self.bus.publish(&Arc::from(self.names.messages()), message, None).await.unwrap();
        }
    }

    pub fn run(&self, receiver: &Receiver, wanted: Wanted) -> Running {
        let id = World::id();
        let unit = self.registry.add(id.clone(), "0707070707070707", "test:1".to_owned());
        let stopping = CancellationToken::new();
        let mut http = wanted.http;
        http["url"] = receiver.url.clone().into();
        let http: Http = serde_json::from_value(http).unwrap();
        let resolve = |setting: &Setting| Ok(Secret::open(setting.0.clone()));
        let sink = HttpSink::open(&id, &http, &resolve, None, Arc::clone(&self.clock)).unwrap();
        let mut retry = Retry { max_attempts: wanted.attempts, ..Retry::default() };
        retry.backoff.initial.0 = Duration::from_millis(40);
        retry.backoff.max.0 = Duration::from_millis(200);
        let key: OrderBy = Arc::new(|message: &Stored| match message.payload.first() {
            Some(b'?') => Err(Failure::new("expression", "no key")),
            Some(first) => Ok((*first as char).to_string()),
            None => Ok(String::new()),
        });
        let spec = SinkUnit {
            id,
            digest: "d1".to_owned(),
            sink: Arc::new(sink),
            parts: Arc::clone(&self.parts),
            number: 1,
            former: BTreeMap::new(),
            ack_wait: ACK_WAIT,
            retry,
            order_by: wanted.ordered.then_some(key),
            breaker: wanted.breaker,
            unit: Arc::clone(&unit),
            jitter: Arc::new(|| 0.5),
            drain_max: wanted.drain,
            gate: None,
        };
        let context = World::context(&self.bus, &self.names, &self.clock, stopping.clone());
        Running { task: tokio::spawn(sink_worker::run(context, spec)), stopping, unit }
    }

    /// Dead letters as (payload, attempts, code, error).
    pub async fn letters(&self) -> Vec<(String, u32, String, String)> {
        let letters = self.bus.read(&self.names.dead_letters(), 1, &[], 1_000).await.unwrap();
        let get = |message: &Stored, name| message.headers.get(name).unwrap().to_owned();
        letters
            .iter()
            .map(|letter| {
                let payload = String::from_utf8(letter.payload.to_vec()).unwrap();
                let attempts = get(letter, dead_letter::ATTEMPTS).parse().unwrap();
                (payload, attempts, get(letter, dead_letter::CODE), get(letter, dead_letter::ERROR))
            })
            .collect()
    }

    /// Whether everything published is acknowledged. Asked after the worker has stopped.
    pub async fn is_settled(&self) -> bool {
        let info = self.bus.durable(&self.durable).await.unwrap();
        info.in_flight + info.redelivering == 0 && info.pending == 0
    }

    pub async fn until_dead(&self, count: usize) {
        let waited = tokio::time::timeout(PATIENCE, async {
            while self.letters().await.len() < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(waited.await.is_ok(), "{:?}", self.letters().await);
    }
}

pub fn named(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n:03}")).collect()
}

pub fn set(bodies: &[String]) -> BTreeSet<String> {
    bodies.iter().cloned().collect()
}
