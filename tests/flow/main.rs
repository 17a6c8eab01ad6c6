//! Flows on the real embedded bus, inside this process: what they store, in which order, and what they do when the bus
//! refuses.

#![allow(clippy::disallowed_methods)]

mod stage;

use std::sync::Arc;
use std::time::Duration;

use vejas::flow::dead_letter;
use vejas::flow::message::{HOP, ID, REVISION, SOURCE};
use vejas::runtime::contents::Piece;
use vejas::runtime::trim;
use vejas::runtime::versions::Versions;
use vejas::time::Timestamp;
use vejas::unit::status::State;

use stage::{Limits, Stage};

const PASS: &str = "
apiVersion: vejas/v1
kind: Flow
metadata: { name: f }
spec: { from: in, startFrom: first, to: out }
";

fn flow(steps: &str) -> String {
    format!(
        "
apiVersion: vejas/v1
kind: Flow
metadata: {{ name: f }}
spec:
  from: in
  startFrom: first
  steps:
{steps}
  to: out
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_lie_in_the_order_of_their_inputs_over_many_batches() {
    let stage = Stage::start(&flow("    - map: .n = int!(.n) + 1"), Limits::default()).await;
    let payloads: Vec<String> = (0..3_000).map(|n| format!("{{\"n\":{n}}}")).collect();
    stage.publish_all("in", &payloads).await;
    let out = stage.wait_for("out", 3_000).await;
    let numbers: Vec<String> = out.iter().map(|m| String::from_utf8_lossy(&m.payload).into_owned()).collect();
    let expected: Vec<String> = (1..=3_000).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(numbers, expected);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_output_keeps_its_id_and_several_are_numbered() {
    let stage = Stage::start(&flow("    - split: .a"), Limits::default()).await;
    stage.publish("in", &[(ID, "one"), (HOP, "3"), (SOURCE, "http-in/x")], br#"{"a":[1]}"#).await;
    stage.publish("in", &[(ID, "two")], br#"{"a":[1,2]}"#).await;
    let out = stage.wait_for("out", 3).await;
    let ids: Vec<_> = out.iter().map(|m| m.headers.get(ID).unwrap()).collect();
    assert_eq!(ids, ["one", "two/0", "two/1"]);
    assert_eq!(out[0].headers.get(HOP), Some("4"));
    assert_eq!(out[0].headers.get(SOURCE), Some("http-in/x"));
    assert_eq!(out[0].headers.get(REVISION), Some(stage.unit("flow/f").digest.as_str()));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_message_becomes_a_dead_letter_with_its_bytes_and_the_others_go_on() {
    let stage = Stage::start(&flow("    - map: .n = int!(.n)"), Limits::default()).await;
    let bad: &[u8] = b"{\"n\": \"x\",  \"odd\": \"\\u0000\"}";
    stage.publish("in", &[(ID, "good")], br#"{"n":1}"#).await;
    let sequence = stage.publish("in", &[(ID, "bad"), ("X-Own", "kept")], bad).await;
    stage.publish("in", &[(ID, "garbage")], &[0xff, 0x00]).await;
    stage.publish("in", &[(ID, "good too")], br#"{"n":2}"#).await;
    assert_eq!(stage.wait_for("out", 2).await.len(), 2);
    let letters = stage.wait_for_dead_letters(2).await;
    let letter = letters.iter().find(|letter| letter.headers.get(ID) == Some("bad")).unwrap();
    assert_eq!(&letter.payload[..], bad);
    let header = |name| letter.headers.get(name).unwrap();
    assert_eq!(header("X-Own"), "kept");
    assert_eq!(header(dead_letter::UNIT), "flow/f");
    assert_eq!(header(dead_letter::SUBJECT), "vx.in");
    assert_eq!(header(dead_letter::SEQUENCE), sequence.to_string());
    assert_eq!(header(dead_letter::ATTEMPTS), "1");
    assert_eq!(header(dead_letter::CODE), "expression");
    assert!(header(dead_letter::ERROR).contains("step 1 (map)"), "{}", header(dead_letter::ERROR));
    let garbage = letters.iter().find(|letter| letter.headers.get(ID) == Some("garbage")).unwrap();
    assert_eq!(&garbage.payload[..], [0xff, 0x00]);
    assert_eq!(garbage.headers.get(dead_letter::CODE), Some("payload"));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_runs_in_a_circle_ends_as_a_dead_letter() {
    let stage = Stage::start(PASS, Limits::default()).await;
    stage.publish("in", &[(HOP, "31")], b"last").await;
    stage.publish("in", &[(HOP, "32")], b"too far").await;
    let letters = stage.wait_for_dead_letters(1).await;
    assert_eq!(letters[0].headers.get(dead_letter::CODE), Some("hops"));
    assert_eq!(&stage.wait_for("out", 1).await[0].payload[..], b"last");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_dead_letters_pause_the_flow_and_lose_nothing() {
    let limits = Limits { dead_letters_bytes_max: 2_000, ..Limits::default() };
    let stage = Stage::start(&flow("    - map: .n = int!(.n)"), limits).await;
    let bad: Vec<String> = (0..20).map(|n| format!("{{\"n\":\"{n}\"}}")).collect();
    for payload in &bad {
        stage.publish("in", &[], payload.as_bytes()).await;
    }
    stage.wait_for_state("flow/f", State::Paused).await;
    assert!(stage.unit("flow/f").reason.unwrap().contains("VEJAS_DLQ"), "says which stream is full");
    let mut seen = 0;
    while seen < bad.len() {
        let letters = stage.wait_for_dead_letters(1).await;
        seen += letters.len();
        stage.remove_dead_letters(&letters).await;
    }
    assert_eq!(seen, bad.len(), "every failure became a dead letter, once");
    stage.wait_for_state("flow/f", State::Running).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_is_worked_off_because_entering_stops_before_settling_does() {
    let limits = Limits { messages_bytes_max: 200_000, ..Limits::default() };
    let mut stage = Stage::prepare(PASS, limits).await;
    let payload = vec![b'x'; 1_000];
    let mut stored = 0;
    while stage.try_publish("in", &payload).await.is_ok() {
        stored += 1;
    }
    assert!(stored > 100, "{stored}");
    let info = stage.context.bus.stream("VEJAS").await.unwrap();
    assert!(info.refuses.is_some_and(|reason| reason.contains("VEJAS")), "a full stream says so");
    stage.run().await;
    let mut out = 0;
    while out < stored {
        trim::once(&stage.context, Duration::ZERO).await.unwrap();
        out = stage.unit("flow/f").emitted;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What was settled since the last look.
    trim::once(&stage.context, Duration::ZERO).await.unwrap();
    assert!(stage.try_publish("in", &payload).await.is_ok(), "there is room again");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_of_a_key_passes_and_the_window_survives_a_restart() {
    let manifest = flow("    - dedupe: { key: .k, within: 10m }");
    let stage = Stage::start(&manifest, Limits::default()).await;
    for n in 0..500 {
        stage.publish("in", &[], format!("{{\"k\":{},\"n\":{n}}}", n % 5).as_bytes()).await;
    }
    stage.wait_for_received("flow/f", 500).await;
    let first: Vec<_> = stage.wait_for("out", 5).await.iter().map(|m| m.payload.clone()).collect();
    assert_eq!(first, (0..5).map(|n| format!("{{\"k\":{n},\"n\":{n}}}")).collect::<Vec<_>>());
    assert_eq!(stage.unit("flow/f").dropped, 495);

    let stage = stage.restart().await;
    stage.publish("in", &[], br#"{"k":0,"n":"again"}"#).await;
    stage.publish("in", &[], br#"{"k":"0","n":"text is another key"}"#).await;
    stage.wait_for_received("flow/f", 2).await;
    assert_eq!(stage.wait_for("out", 6).await.len(), 6);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_killed_after_its_mark_passes_its_own_mark() {
    let manifest = flow("    - dedupe: { key: .k, within: 10m }");
    let mut stage = Stage::prepare(&manifest, Limits::default()).await;
    let sequence = stage.publish("in", &[], br#"{"k":"a"}"#).await;
    // What a process leaves behind that was killed between the mark and the output.
    stage.run().await;
    stage.wait_for("out", 1).await;
    let stage = stage.with_input_again(sequence).await;
    stage.wait_for_received("flow/f", 1).await;
    assert_eq!(stage.unit("flow/f").dropped, 0, "the redelivery is not its own duplicate");
    assert_eq!(stage.wait_for("out", 2).await.len(), 2);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_one_message_with_one_key_pass_once() {
    let stage = Stage::start(&flow("    - split: .a\n    - dedupe: { key: ., within: 10m }"), Limits::default()).await;
    stage.publish("in", &[], br#"{"a":[1,2,1,2,3]}"#).await;
    stage.wait_for_received("flow/f", 1).await;
    let out: Vec<_> = stage.wait_for("out", 3).await.iter().map(|m| m.payload.clone()).collect();
    assert_eq!(out, ["1", "2", "3"]);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_finishes_what_is_in_hand_and_the_next_start_repeats_nothing() {
    let stage = Stage::start(&flow("    - map: .n = int!(.n)"), Limits::default()).await;
    let payloads: Vec<String> = (0..5_000).map(|n| format!("{{\"n\":{n}}}")).collect();
    stage.publish_all("in", &payloads).await;
    let stage = stage.restart().await;
    let out = stage.wait_for("out", 5_000).await;
    let mut numbers: Vec<_> = out.iter().map(|m| m.payload.clone()).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!((out.len(), numbers.len()), (5_000, 5_000));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_that_no_record_names_are_removed_and_those_of_a_version_that_runs_stay() {
    let table = "
apiVersion: vejas/v1
kind: Table
metadata: { name: t }
spec: { rows: { a: { rate: 1 } } }
---";
    let manifest = flow("    - lookup: { table: t, key: to_string!(.k), into: found }");
    let stage = Stage::start(&format!("{table}{manifest}"), Limits::default()).await;
    let versions = Versions::new(stage.context.store.clone(), &stage.context.names);
    let orphan = Arc::new(Piece { digest: "00".to_owned(), bytes: vec![7; 1_200_000].into() });
    versions.store_contents(std::slice::from_ref(&orphan)).await.unwrap();
    assert_eq!(versions.content("00").await.unwrap().unwrap(), orphan.bytes);
    let (_, run) = versions.runs().await.unwrap().remove(0);
    let digest = run.last().digest.clone().unwrap();

    let (past, future) = (Timestamp(0), Timestamp(i64::MAX));
    assert_eq!(versions.collect(std::iter::empty(), past).await.unwrap(), 0, "too young");
    assert_eq!(versions.collect(["00".to_owned()].into_iter(), future).await.unwrap(), 0, "named");
    assert_eq!(versions.collect(std::iter::empty(), future).await.unwrap(), 1);
    assert_eq!(versions.content("00").await.unwrap(), None);
    // The flow and its table.
    let version = vejas::runtime::contents::load(&versions, &digest).await.unwrap();
    assert_eq!((version.digest, version.tables.len()), (digest, 1));
    stage.stop().await;
}
