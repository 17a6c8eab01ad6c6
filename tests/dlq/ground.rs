//! A data folder made by hand: the streams, one reader, letters as they are wanted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use vejas::bus::embedded::Embedded;
use vejas::flow::dead_letter::{Death, dead_letter};
use vejas::flow::failure::Failure;
use vejas::flow::message::{Headers, Outgoing, Stored};
use vejas::id::{Names, UnitId, UnitKind};
use vejas::ports::bus::{Bus, DurableConfig, Start, StreamConfig};
use vejas::ports::store::Store;
use vejas::runtime::{open_bus, streams};
use vejas::time::Timestamp;

fn unit() -> UnitId {
    UnitId::new(UnitKind::Flow, "price")
}

/// The streams, and a reader of what is replayed to `flow/price`.
pub async fn ground(messages_bytes_max: u64) -> (TempDir, Arc<Embedded>) {
    let folder = tempfile::tempdir().unwrap();
    let bus = open_bus(folder.path()).unwrap();
    let names = Names::default();
    streams::ensure_messages(&*bus, &names, messages_bytes_max).await.unwrap();
    let config = StreamConfig {
        name: names.dead_letters(),
        subjects: names.dead_letter_subjects(),
        bytes_max: 1 << 30,
        message_bytes_max: 1 << 20,
        duplicate_window: Duration::from_secs(120),
    };
    bus.ensure_stream(config).await.unwrap();
    bus.ensure_bucket(&names.dead_letter_marks_bucket(), None).await.unwrap();
    let durable = DurableConfig {
        name: unit().durable(1),
        filters: vec![names.replay(&unit())],
        start: Start::First,
        ack_wait: Duration::from_secs(30),
        in_flight_max: 10,
    };
    bus.ensure_durable(&names.messages(), durable).await.unwrap();
    (folder, bus)
}

/// The dead letter of a message that `flow/price` could not take.
pub fn failed(sequence: u64, payload: &[u8]) -> Outgoing {
    failed_at(Timestamp(0), sequence, payload)
}

/// The same, with the time of the failure.
pub fn failed_at(last: Timestamp, sequence: u64, payload: &[u8]) -> Outgoing {
    let failed = Stored {
        sequence,
        subject: "vx.orders".to_owned(),
        headers: Headers::default(),
        payload: Bytes::copy_from_slice(payload),
        time: Timestamp(0),
    };
    let failure = Failure::new("payload", "no");
    let death = Death { unit: &unit(), digest: "abc", attempts: 1, failure: &failure, last };
    dead_letter(&Names::default(), &failed, &death)
}
