//! The form on disk: directories of every version that can still be read open whole, others are refused by their number.
//!
//! `tests/fixtures/data-v<n>` was written by the program of that version and is never changed. When `FORMAT` is raised, run
//! `VEJAS_TEST_WRITE_FIXTURE=1 cargo test --test data format` once and commit the new folder; what is to be done with the older
//! one is then decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Value, json};
use vejas::bus::embedded::salvage::{Verdict, check};
use vejas::bus::embedded::{Embedded, FORMAT, OpenError};

use super::ground::{self, Acknowledged, Shape, contents, copy, differences, files, options, used};

/// Small, and with tables besides the journal.
const FIXTURE: Shape = Shape { rounds: 14, payload_bytes: 60, memtable_bytes: 5 << 10 };

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/data-v{version}"))
}

fn to_json(told: &Acknowledged) -> Value {
    let messages: Vec<Value> = told
        .messages
        .iter()
        .map(|((stream, sequence), (subject, payload))| {
            json!([stream, sequence, subject, std::str::from_utf8(payload).unwrap()])
        })
        .collect();
    let entries: BTreeMap<&String, &str> =
        told.entries.iter().map(|(key, value)| (key, std::str::from_utf8(value).unwrap())).collect();
    let unsettled: Vec<Value> =
        told.unsettled.iter().map(|((stream, durable), left)| json!([stream, durable, left])).collect();
    json!({ "messages": messages, "entries": entries, "unsettled": unsettled })
}

fn from_json(value: &Value) -> Acknowledged {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut told = Acknowledged::default();
    for message in value["messages"].as_array().unwrap() {
        let key = (text(&message[0]), message[1].as_u64().unwrap());
        told.messages.insert(key, (text(&message[2]), Bytes::from(text(&message[3]))));
    }
    for (key, value) in value["entries"].as_object().unwrap() {
        told.entries.insert(key.clone(), Bytes::from(text(value)));
    }
    for durable in value["unsettled"].as_array().unwrap() {
        let left: BTreeSet<u64> = durable[2].as_array().unwrap().iter().map(|s| s.as_u64().unwrap()).collect();
        told.unsettled.insert((text(&durable[0]), text(&durable[1])), left);
    }
    told
}

async fn write_fixture() {
    let ground = ground::make(FIXTURE).await;
    let target = fixture(FORMAT);
    for file in files(ground.dir.path()) {
        let to = target.join("data").join(file.strip_prefix(ground.dir.path()).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        // Without the zeros that a journal is made with.
        let mut bytes = fs::read(&file).unwrap();
        if file.extension().is_some_and(|extension| extension == "jnl") {
            bytes.truncate(used(&file) as usize);
        }
        fs::write(to, bytes).unwrap();
    }
    let told = serde_json::to_string_pretty(&to_json(&ground.acknowledged)).unwrap();
    fs::write(target.join("acknowledged.json"), told).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_this_format_opens_whole() {
    if std::env::var("VEJAS_TEST_WRITE_FIXTURE").is_ok() {
        write_fixture().await;
    }
    let fixture = fixture(FORMAT);
    let told =
        fs::read(fixture.join("acknowledged.json")).expect("a fixture of this format; see the head of this file");
    let told = from_json(&serde_json::from_slice(&told).unwrap());
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture.join("data"), dir.path());
    let report = check(dir.path(), &mut |_, _, _| {}).unwrap();
    assert_eq!((report.verdict, report.format), (Verdict::Sound, Some(FORMAT)), "{report}");
    let bus = Embedded::open(options(dir.path())).unwrap();
    assert_eq!(differences(&told, &contents(&bus).await), [""; 0]);
    bus.close();
}

fn refused(dir: &Path) -> (u32, u32) {
    let before: Vec<_> = files(dir).into_iter().filter(|path| !path.ends_with("lock")).collect();
    let read = |path: &PathBuf| fs::read(path).unwrap();
    let bytes: Vec<_> = before.iter().map(read).collect();
    let error = Embedded::open(options(dir)).expect_err("another format is refused");
    let OpenError::Format { found, wanted, .. } = &error else { panic!("{error}") };
    let words = error.to_string();
    assert!(words.contains(&format!("format {found}")) && words.contains(&format!("format {wanted}")), "{words}");
    assert!(check(dir, &mut |_, _, _| {}).is_err(), "nor is it called damaged");
    assert_eq!(before.iter().map(read).collect::<Vec<_>>(), bytes, "nothing is changed in it");
    (*found, *wanted)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_format_is_refused_with_both_numbers() {
    let ground = ground::make(FIXTURE).await;
    let content = format!("vejas-data {}", FORMAT + 1);
    let line = format!("{content} {:08x}\n", crc32(content.as_bytes()));
    fs::write(ground.dir.path().join("format"), line).unwrap();
    assert_eq!(refused(ground.dir.path()), (FORMAT + 1, FORMAT));
}

/// The first format had no file that named it.
#[test]
fn the_first_format_is_refused_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture(1), dir.path());
    assert_eq!(refused(dir.path()), (1, FORMAT));
}

/// CRC-32 as in zip files, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 })
    })
}
