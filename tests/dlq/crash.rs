//! A process that dies in the middle of a replay or an edit.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use vejas::bus::embedded::Embedded;
use vejas::flow::dead_letter;
use vejas::flow::message::{ID, Outgoing, Stored};
use vejas::id::Names;
use vejas::ports::bus::{Batch, Bus, Settlement};
use vejas::ports::store::{Condition, Write};
use vejas::runtime::dead_letters::view::Replay;
use vejas::runtime::dead_letters::{DeadLetters, Error, Selection};
use vejas::runtime::open_bus;
use vejas::time::Timestamp;

use crate::ground::{failed, ground};
use crate::world::{MANIFESTS, letters, said, send, wait_for_letters, world};

/// A folder with one dead letter, 1.
async fn folder() -> (TempDir, Arc<Embedded>, Stored) {
    let (folder, bus) = ground(1 << 30).await;
    let names = Names::default();
    bus.publish(&Arc::from(names.dead_letters()), failed(7, b"\x00\xff"), None).await.unwrap();
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
    let settlement = Settlement { batches: vec![batch], writes: vec![mark], ..Settlement::default() };
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
    let late = Settlement { batches: vec![batch], writes: vec![mark], ..Settlement::default() };
    assert!(bus.settle(late).await.is_err());
    assert_eq!(bus.stream(&names.messages()).await.unwrap().last, 1);
}

#[test]
fn a_process_killed_again_and_again_while_it_replays_gives_every_letter_one_message() {
    const LETTERS: usize = 300;
    let mut vejas = world();
    vejas.start();
    for number in 0..LETTERS {
        let order = format!(r#"{{"net":"{number}","grams":1000}}"#);
        send(&vejas, &format!("P-{number}"), order.as_bytes());
    }
    wait_for_letters(&vejas, &["--limit", "1000"], LETTERS);
    vejas.kill();
    // From here on the flow takes what failed, so that a letter has no reason to come back.
    let mended = MANIFESTS.replace("int!(.net)", "to_int!(.net)");
    std::fs::write(vejas.manifests().join("all.yaml"), mended).unwrap();
    let mut killed_in_between = 0;
    for round in 0..6 {
        vejas.start();
        let replaying = vejas.command(&["dlq", "replay", "--all"]).stderr(std::process::Stdio::null()).spawn();
        let mut replaying = replaying.unwrap();
        // Later in every round: some kills meet the first settlements, some the removals behind them.
        std::thread::sleep(std::time::Duration::from_millis(15 + 15 * round));
        vejas.kill();
        replaying.wait().unwrap();
        let left = letters(&vejas, &["--limit", "1000"]).len();
        killed_in_between += usize::from(left > 0 && left < LETTERS);
    }
    println!("killed {killed_in_between} times in the middle");
    vejas.start();
    said(&vejas, &["replay", "--all"]);
    assert!(letters(&vejas, &[]).is_empty());
    vejas.wait_for_lines(std::path::Path::new("out/orders.ndjson"), 2 * LETTERS);
    vejas.kill();
    let bus = open_bus(&vejas.data()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let filter = ["vxreplay.flow.price".to_owned()];
    let replayed = runtime.block_on(bus.read("VEJAS", 1, &filter, 10 * LETTERS)).unwrap();
    let ids: BTreeSet<&str> = replayed.iter().filter_map(|message| message.headers.get(ID)).collect();
    assert_eq!((ids.len(), replayed.len()), (LETTERS, LETTERS), "none lost, none twice");
}
