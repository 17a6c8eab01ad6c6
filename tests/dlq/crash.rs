//! A process that dies in the middle of a replay or an edit.

use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use vejas::bus::embedded::Embedded;
use vejas::flow::dead_letter::{self, Death, dead_letter};
use vejas::flow::failure::Failure;
use vejas::flow::message::{Headers, Outgoing, Stored};
use vejas::id::{Names, UnitId, UnitKind};
use vejas::ports::bus::{Batch, Bus, DurableConfig, Settlement, Start};
use vejas::ports::store::{Condition, Store, Write};
use vejas::runtime::dead_letters::view::Replay;
use vejas::runtime::dead_letters::{DeadLetters, Error, Selection};
use vejas::runtime::{open_bus, streams};
use vejas::time::Timestamp;

/// A folder with one dead letter, 1, of a flow that the bus knows a reader of.
async fn folder() -> (TempDir, Arc<Embedded>, Stored) {
    let folder = tempfile::tempdir().unwrap();
    let bus = open_bus(folder.path()).unwrap();
    let names = Names::default();
    let unit = UnitId::new(UnitKind::Flow, "price");
    streams::ensure_messages(&*bus, &names, 1 << 30).await.unwrap();
    let config = vejas::ports::bus::StreamConfig {
        name: names.dead_letters(),
        subjects: names.dead_letter_subjects(),
        bytes_max: 1 << 30,
        message_bytes_max: 1 << 20,
        duplicate_window: std::time::Duration::from_secs(120),
    };
    bus.ensure_stream(config).await.unwrap();
    bus.ensure_bucket(&names.dead_letter_marks_bucket(), None).await.unwrap();
    let durable = DurableConfig {
        name: unit.durable(1),
        filters: vec![names.replay(&unit)],
        start: Start::First,
        ack_wait: std::time::Duration::from_secs(30),
        in_flight_max: 10,
    };
    bus.ensure_durable(&names.messages(), durable).await.unwrap();
    let failed = Stored {
        sequence: 7,
        subject: "vx.orders".to_owned(),
        headers: Headers::default(),
        payload: Bytes::from_static(b"\x00\xff"),
        time: Timestamp(0),
    };
    let failure = Failure::new("payload", "no");
    let death = Death { unit: &unit, digest: "abc", attempts: 1, failure: &failure, last: Timestamp(0) };
    let letter = dead_letter(&names, &failed, &death);
    bus.publish(&Arc::from(names.dead_letters()), letter, None).await.unwrap();
    let stored = bus.read(&names.dead_letters(), 1, &[], 1).await.unwrap().remove(0);
    (folder, bus, stored)
}

/// What is on disk when a process dies right after the first step.
async fn die_after_storing(bus: Arc<Embedded>, stream: String, successor: Outgoing) {
    let mark = Write {
        bucket: Names::default().dead_letter_marks_bucket(),
        key: "1".to_owned(),
        value: Some(Bytes::from_static(b"open")),
        condition: Condition::Absent,
        ttl: None,
    };
    let batch = Batch { stream: stream.into(), messages: vec![successor], expected: Vec::new() };
    let settlement = Settlement { batches: vec![batch], writes: vec![mark], acknowledged: Vec::new() };
    bus.settle(settlement).await.unwrap();
    bus.close();
}

fn of(sequence: u64) -> Replay {
    let select = Selection { sequence: Some(sequence), ..Selection::default() };
    Replay { select, ..Replay::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_whose_replay_was_stored_before_the_crash_is_not_replayed_again() {
    let (folder, bus, letter) = folder().await;
    let names = Names::default();
    let replay = dead_letter::replay(&names, &letter).unwrap();
    die_after_storing(bus, names.messages(), replay).await;
    let letters = DeadLetters::open(folder.path(), &names).await.unwrap();
    assert!(matches!(letters.replay(&of(1)).await, Err(Error::NotFound { sequence: 1 })));
    assert!(letters.page(&Selection::default()).await.unwrap().letters.is_empty());
    drop(letters);
    let bus = open_bus(folder.path()).unwrap();
    assert_eq!(bus.stream(&names.messages()).await.unwrap().last, 1, "one message");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_in_an_edit_there_is_the_edited_letter_and_not_the_old_one() {
    let (folder, bus, letter) = folder().await;
    let names = Names::default();
    let edited = dead_letter::edited(&letter, Bytes::from_static(b"new"), Timestamp(1));
    die_after_storing(bus, names.dead_letters(), edited).await;
    let letters = DeadLetters::open(folder.path(), &names).await.unwrap();
    let page = letters.page(&Selection::default()).await.unwrap();
    assert_eq!(page.letters.iter().map(|letter| letter.sequence).collect::<Vec<_>>(), [2]);
    assert_eq!(&letters.payload(2).await.unwrap()[..], b"new");
}

/// Somebody reads a letter, is held up, and goes on when another client has replayed it and the letter is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_client_cannot_replay_what_is_gone_even_when_the_bus_forgot_the_transport_id() {
    let (folder, bus, letter) = folder().await;
    bus.close();
    drop(bus);
    let names = Names::default();
    let letters = DeadLetters::open(folder.path(), &names).await.unwrap();
    assert_eq!(letters.replay(&of(1)).await.unwrap().letters.len(), 1);
    drop(letters);
    let bus = open_bus(folder.path()).unwrap();
    let replay = Outgoing { transport_id: None, ..dead_letter::replay(&names, &letter).unwrap() };
    let mark = Write {
        bucket: names.dead_letter_marks_bucket(),
        key: "1".to_owned(),
        value: Some(Bytes::from_static(b"open")),
        condition: Condition::Absent,
        ttl: None,
    };
    let batch = Batch { stream: names.messages().into(), messages: vec![replay], expected: Vec::new() };
    let late = Settlement { batches: vec![batch], writes: vec![mark], acknowledged: Vec::new() };
    assert!(bus.settle(late).await.is_err());
    assert_eq!(bus.stream(&names.messages()).await.unwrap().last, 1);
}
