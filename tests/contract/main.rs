//! The contract of `ports::bus` and `ports::store`: the same cases run on every adapter.
//!
//! A case is an async function over a [`Fixture`] that starts empty. Cases say what every adapter owes its callers;
//! what only one adapter can do is tested beside it. A new adapter gets its own module here that implements `Fixture`
//! and names the cases with `contract_cases!`.

mod durable;
mod embedded;
#[cfg(feature = "full")]
mod nats;
mod publish;
mod read;
mod settle;
mod store;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vejas::flow::message::{Headers, Outgoing};
use vejas::ports::bus::{
    BATCH_MESSAGES_MAX, Batch, Bus, Confirm, Delivery, Durable, DurableConfig, Error, Expected, PubAck, Settlement,
    Start, StreamConfig,
};
use vejas::ports::store::Store;

/// An empty bus and store with a clock that the test turns, or that runs by itself: then waits are short and inexact.
#[allow(async_fn_in_trait)] // Only this suite implements and calls it.
pub trait Fixture {
    /// The ack wait of durables.
    const ACK_WAIT: Duration;
    /// How long a stream remembers transport ids.
    const WINDOW: Duration;
    /// How long a message is put off.
    const PUT_OFF: Duration;
    /// Time to live of a bucket, and of an entry; the latter is the shorter.
    const BUCKET_TTL: Duration;
    const ENTRY_TTL: Duration;
    /// How long after its time an entry may still be there.
    const EXPIRY_LAG: Duration;
    /// The shortest time that can be told from none.
    const GRAIN: Duration;
    /// Between messages that have to differ in time.
    const PACE: Duration;

    fn bus(&self) -> Arc<dyn Bus>;
    fn store(&self) -> Arc<dyn Store>;
    /// Ends the adapter and starts it again on what it has stored.
    async fn reopen(&mut self);
    /// Lets time pass for the adapter.
    async fn advance(&mut self, by: Duration);
}

/// Longer than anything that is expected to come takes.
pub const SOON: Duration = Duration::from_secs(10);
/// How long a pull looks when nothing is expected to come.
pub const BRIEF: Duration = Duration::from_millis(40);
pub const STREAM: &str = "S";

pub fn stream_config<F: Fixture>() -> StreamConfig {
    StreamConfig {
        name: STREAM.into(),
        subjects: vec!["a.>".into(), "b.*".into()],
        bytes_max: 1 << 30,
        message_bytes_max: 64 * 1024,
        duplicate_window: F::WINDOW,
    }
}

pub async fn make_stream<F: Fixture>(fixture: &F) -> Arc<str> {
    fixture.bus().ensure_stream(stream_config::<F>()).await.unwrap();
    STREAM.into()
}

pub fn message(subject: &str, payload: &str) -> Outgoing {
    let headers: Headers = [("Vejas-Id", payload)].into_iter().collect();
    Outgoing { subject: subject.into(), headers, payload: Bytes::from(payload.to_owned()), transport_id: None }
}

pub fn with_id(subject: &str, payload: &str, id: &str) -> Outgoing {
    Outgoing { transport_id: Some(id.into()), ..message(subject, payload) }
}

pub async fn publish<F: Fixture>(fixture: &F, subject: &str, payload: &str) -> u64 {
    let ack = fixture.bus().publish(&STREAM.into(), message(subject, payload), None).await.unwrap();
    assert!(!ack.duplicate);
    ack.sequence
}

/// Publishes `count` messages to a subject, with their numbers as payloads.
pub async fn publish_many<F: Fixture>(fixture: &F, subject: &str, count: usize) -> Vec<u64> {
    let messages: Vec<Outgoing> = (0..count).map(|n| message(subject, &n.to_string())).collect();
    let mut sequences = Vec::new();
    for messages in messages.chunks(BATCH_MESSAGES_MAX) {
        let batch = Batch { stream: STREAM.into(), messages: messages.to_vec(), expected: Vec::new() };
        sequences.extend(sequences_of(&fixture.bus().publish_batch(batch).await.unwrap()));
    }
    sequences
}

pub fn sequences_of(acks: &[PubAck]) -> Vec<u64> {
    acks.iter().map(|ack| ack.sequence).collect()
}

pub fn expected(subject: &str, last: u64) -> Expected {
    Expected { subject: subject.into(), last }
}

pub fn durable_config<F: Fixture>(filters: &[&str]) -> DurableConfig {
    DurableConfig {
        name: "d".into(),
        filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
        start: Start::First,
        ack_wait: F::ACK_WAIT,
        in_flight_max: 1000,
    }
}

pub async fn make_durable<F: Fixture>(fixture: &F, filters: &[&str]) -> Durable {
    fixture.bus().ensure_durable(STREAM, durable_config::<F>(filters)).await.unwrap()
}

pub async fn pull<F: Fixture>(fixture: &F, durable: &Durable, messages_max: usize, wait: Duration) -> Vec<Delivery> {
    fixture.bus().pull(durable, messages_max, usize::MAX, wait).await.unwrap()
}

/// Pulls until there are `count` deliveries, then makes sure that there are no more.
pub async fn pull_exactly<F: Fixture>(fixture: &F, durable: &Durable, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while deliveries.len() < count {
        let more = pull(fixture, durable, 100, SOON).await;
        assert!(!more.is_empty(), "{} of {count} deliveries came", deliveries.len());
        deliveries.extend(more);
    }
    deliveries.extend(pull(fixture, durable, 100, BRIEF).await);
    assert_eq!(deliveries.len(), count, "{:?}", sequences(&deliveries));
    deliveries
}

pub async fn nothing_comes<F: Fixture>(fixture: &F, durable: &Durable) {
    let deliveries = pull(fixture, durable, 100, BRIEF).await;
    assert!(deliveries.is_empty(), "{:?}", sequences(&deliveries));
}

pub fn sequences(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(|delivery| delivery.message.sequence).collect()
}

pub fn attempts(deliveries: &[Delivery]) -> Vec<(u64, u32)> {
    deliveries.iter().map(|delivery| (delivery.message.sequence, delivery.attempt)).collect()
}

pub async fn acknowledge<F: Fixture>(fixture: &F, durable: &Durable, sequences: &[u64]) {
    let acknowledged = sequences.iter().map(|sequence| (durable.clone(), *sequence)).collect();
    let settlement = Settlement { acknowledged, ..Settlement::default() };
    assert_eq!(fixture.bus().settle(settlement).await.unwrap(), []);
}

/// The error of a call that has to be refused.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Error {
    result.expect_err("the call is refused")
}

/// One test per case and adapter.
#[macro_export]
macro_rules! contract_cases {
    ($fixture:expr; $($module:ident { $($case:ident,)* })*) => {
        $(mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let mut fixture = $fixture;
                $crate::$module::$case(&mut fixture).await;
            })*
        })*
    };
}
