//! What only a bus behind a server has: outages, credentials, versions, drift, and conditions that the server checks.

#![allow(clippy::disallowed_methods)]

#[path = "../support/nats.rs"]
mod server;

mod access;
mod drift;
mod fence;
mod outage;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vejas::flow::message::{Headers, Outgoing};
use vejas::ports::bus::{Bus, DurableConfig, Expected, Start, StreamConfig};

pub const SOON: Duration = Duration::from_secs(10);

pub fn stream_config() -> StreamConfig {
    StreamConfig {
        name: "S".into(),
        subjects: vec!["a.>".into()],
        bytes_max: 1 << 30,
        message_bytes_max: 64 * 1024,
        duplicate_window: Duration::from_secs(120),
    }
}

pub fn durable_config() -> DurableConfig {
    DurableConfig {
        name: "flow_f_1".into(),
        filters: vec!["a.>".into()],
        start: Start::First,
        ack_wait: Duration::from_secs(1),
        in_flight_max: 100,
    }
}

pub fn message(subject: &str, payload: &str) -> Outgoing {
    let payload = Bytes::from(payload.to_owned());
    Outgoing { subject: subject.into(), headers: Headers::default(), payload, transport_id: None }
}

pub fn expected(subject: &str, last: u64) -> Expected {
    Expected { subject: subject.into(), last }
}

pub async fn payloads(bus: &Arc<dyn Bus>) -> Vec<String> {
    let stored = bus.read("S", 1, &[], 1000).await.unwrap();
    stored.iter().map(|stored| String::from_utf8(stored.payload.to_vec()).unwrap()).collect()
}
