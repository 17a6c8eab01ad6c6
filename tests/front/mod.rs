//! What the tests of the front doors share: a real embedded bus in a folder of its own, clocks, a minimal client.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::disallowed_methods, reason = "here is the clock that tests hand down")]

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use vejas::bus::embedded::{Embedded, Options};
use vejas::flow::message::{Outgoing, Stored};
use vejas::id::Names;
use vejas::ports::bus::{
    Answer, Batch, Bus, Delivery, Durable, DurableConfig, DurableInfo, Error, Expected, PubAck, Settlement,
    StreamConfig, StreamInfo,
};
use vejas::ports::clock::Clock;
use vejas::time::Timestamp;
use vejas::unit::context::Context;

/// The real clock, moved by what a test says.
#[derive(Debug)]
pub struct MovedClock {
    began: Instant,
    moved_ms: AtomicI64,
}

impl MovedClock {
    pub fn new() -> Arc<Self> {
        Arc::new(MovedClock { began: Instant::now(), moved_ms: AtomicI64::new(0) })
    }

    pub fn move_by(&self, moved_ms: i64) {
        self.moved_ms.fetch_add(moved_ms, Relaxed);
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp(real.as_nanos() as i64 + self.moved_ms.load(Relaxed) * 1_000_000)
    }

    fn monotonic(&self) -> Duration {
        self.began.elapsed()
    }
}

/// A bus that passes every call on, until it is told to answer writes with an error.
pub struct Moody {
    inner: Arc<dyn Bus>,
    mood: Mutex<Option<Error>>,
}

impl Moody {
    pub fn new(inner: Arc<dyn Bus>) -> Arc<Self> {
        Arc::new(Moody { inner, mood: Mutex::new(None) })
    }

    pub fn set(&self, mood: Option<Error>) {
        *self.mood.lock().unwrap() = mood;
    }

    fn refusal<T: Send + 'static>(&self) -> Option<Answer<T>> {
        let error = self.mood.lock().unwrap().clone()?;
        Some(Box::pin(std::future::ready(Err(error))))
    }
}

impl Bus for Moody {
    fn ensure_stream(&self, config: StreamConfig) -> Answer<StreamInfo> {
        self.inner.ensure_stream(config)
    }
    fn stream(&self, name: &str) -> Answer<StreamInfo> {
        self.refusal().unwrap_or_else(|| self.inner.stream(name))
    }
    fn publish(&self, stream: &Arc<str>, message: Outgoing, expected: Option<Expected>) -> Answer<PubAck> {
        self.refusal().unwrap_or_else(|| self.inner.publish(stream, message, expected))
    }
    fn publish_batch(&self, batch: Batch) -> Answer<Vec<PubAck>> {
        self.refusal().unwrap_or_else(|| self.inner.publish_batch(batch))
    }
    fn ensure_durable(&self, stream: &str, config: DurableConfig) -> Answer<Durable> {
        self.inner.ensure_durable(stream, config)
    }
    fn delete_durable(&self, durable: &Durable) -> Answer<()> {
        self.inner.delete_durable(durable)
    }
    fn durable(&self, durable: &Durable) -> Answer<DurableInfo> {
        self.inner.durable(durable)
    }
    fn durables(&self, stream: &str) -> Answer<Vec<DurableInfo>> {
        self.inner.durables(stream)
    }
    fn pull(&self, durable: &Durable, messages_max: usize, bytes_max: usize, wait: Duration) -> Answer<Vec<Delivery>> {
        self.inner.pull(durable, messages_max, bytes_max, wait)
    }
    fn put_off(&self, durable: &Durable, sequence: u64, delay: Duration) -> Answer<()> {
        self.inner.put_off(durable, sequence, delay)
    }
    fn in_progress(&self, durable: &Durable, sequences: &[u64]) -> Answer<()> {
        self.inner.in_progress(durable, sequences)
    }
    fn settle(&self, settlement: Settlement) -> Answer<Vec<PubAck>> {
        self.inner.settle(settlement)
    }
    fn settles_atomically(&self) -> bool {
        self.inner.settles_atomically()
    }
    fn read(&self, stream: &str, from: u64, filters: &[String], messages_max: usize) -> Answer<Vec<Stored>> {
        self.inner.read(stream, from, filters, messages_max)
    }
    fn last(&self, stream: &str, subject: &str) -> Answer<Option<Stored>> {
        self.inner.last(stream, subject)
    }
    fn sequence_at(&self, stream: &str, time: Timestamp) -> Answer<u64> {
        self.inner.sequence_at(stream, time)
    }
    fn trim(&self, stream: &str, first: u64, keep_last_of: &[String]) -> Answer<u64> {
        self.inner.trim(stream, first, keep_last_of)
    }
    fn remove(&self, stream: &str, sequences: &[u64]) -> Answer<u64> {
        self.inner.remove(stream, sequences)
    }
}

/// A bus in a folder, its stream made, and what units are handed.
pub struct Ground {
    pub clock: Arc<MovedClock>,
    pub bus: Arc<Moody>,
    pub embedded: Arc<Embedded>,
    pub names: Names,
}

impl Ground {
    pub async fn open(folder: &Path) -> Self {
        Self::with_limit(folder, 1 << 30).await
    }

    pub async fn with_limit(folder: &Path, bytes_max: u64) -> Self {
        let clock = MovedClock::new();
        let embedded = Embedded::open(Options::new(folder, clock.clone())).unwrap();
        let bus = Moody::new(embedded.clone());
        let names = Names::default();
        let config = StreamConfig {
            name: names.messages(),
            subjects: names.message_subjects(),
            bytes_max,
            message_bytes_max: 8 << 20,
            duplicate_window: Duration::from_secs(120),
        };
        bus.ensure_stream(config).await.unwrap();
        Ground { clock, bus, embedded, names }
    }

    pub fn context(&self, instance: &str) -> Context {
        Context {
            bus: self.bus.clone(),
            store: self.embedded.clone(),
            names: self.names.clone(),
            clock: self.clock.clone(),
            instance: instance.into(),
            stopping: CancellationToken::new(),
        }
    }

    /// Everything stored under a subject of the manifests.
    pub async fn stored(&self, subject: &str) -> Vec<Stored> {
        let filters = [self.names.stored(subject)];
        let mut all = Vec::new();
        let mut from = 1;
        loop {
            let some = self.embedded.read(&self.names.messages(), from, &filters, 1_000).await.unwrap();
            let Some(last) = some.last() else { return all };
            from = last.sequence + 1;
            all.extend(some);
        }
    }

    pub fn close(&self) {
        self.embedded.close();
    }
}

/// Waits until `probe` holds; fails the test when it does not within ten seconds.
pub async fn eventually<'a>(what: &str, mut probe: impl FnMut() -> BoxFuture<'a, bool>) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !probe().await {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A certificate for `localhost` and 127.0.0.1, as files and as PEM.
pub fn certificate(folder: &Path) -> (vejas::connectors::http::tls::Files, String) {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let files = vejas::connectors::http::tls::Files { cert: folder.join("server.crt"), key: folder.join("server.key") };
    std::fs::write(&files.cert, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    (files, made.cert.pem())
}

/// A client that trusts `ca` only, when given.
pub fn client(ca: Option<&str>) -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().timeout(Duration::from_secs(20)).no_proxy();
    match ca {
        Some(pem) => builder.tls_certs_only([reqwest::Certificate::from_pem(pem.as_bytes()).unwrap()]),
        None => builder,
    }
    .build()
    .unwrap()
}

/// The body of an answer, read as JSON.
pub async fn json_of<T: serde::de::DeserializeOwned>(answer: reqwest::Response) -> T {
    serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
}
