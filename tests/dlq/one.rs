//! One message that failed: found, shown, mended, replayed.

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::Value;
use vejas::flow::message::{ID, ORIGIN};

use crate::support::{Vejas, open_bus, request};
use crate::world::{MANIFESTS, api, dlq, letters, refused, said, send, sequence, wait_for_letters, world};

const OUT: &str = "out/orders.ndjson";

fn lines(vejas: &Vejas, count: usize) -> Vec<Value> {
    let lines = vejas.wait_for_lines(Path::new(OUT), count);
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_failed_message_is_found_mended_and_replayed_in_three_commands() {
    let mut vejas = world();
    vejas.start();
    send(&vejas, "A-1", br#"{"net":"12","grams":5000,"weight":1.10}"#);
    lines(&vejas, 1);
    let letter = &wait_for_letters(&vejas, &[], 1)[0];
    assert_eq!(letter["unit"], "flow/price");
    assert_eq!(letter["code"], "expression");
    assert_eq!(letter["id"], "A-1");
    assert_eq!((&letter["attempts"], &letter["replays"]), (&1.into(), &0.into()));

    let table = said(&vejas, &["list", "--unit", "price"]);
    assert!(table.contains("flow/price") && table.contains("A-1"), "{table}");
    let shown = said(&vejas, &["show", &sequence(letter)]);
    assert!(shown.contains("all.yaml:14:"), "the error names its position: {shown}");
    assert!(shown.contains("\n  \"net\": \"12\",\n") && shown.contains("Vejas-Id: A-1"), "{shown}");

    let edited = said(&vejas, &["edit", &sequence(letter), "--set", "net=12", "--set", "by.who=\"op\""]);
    let new = letters(&vejas, &[]);
    assert_eq!(new.len(), 1, "the edited letter took the place of the other: {new:#?}");
    assert!(edited.contains(&format!("vejas dlq replay {}", sequence(&new[0]))), "{edited}");
    assert!(new[0]["edited"].is_string());
    assert_eq!((&new[0]["error"], &new[0]["first"]), (&letter["error"], &letter["first"]), "history is kept");
    assert_eq!(
        said(&vejas, &["show", "--raw", &sequence(&new[0])]),
        r#"{"net":12,"grams":5000,"weight":1.10,"by":{"who":"op"}}"#
    );

    assert_eq!(said(&vejas, &["replay", &sequence(&new[0])]), "1 replayed\n");
    // The other flow, which had taken the message, does not see it again.
    let lines = lines(&vejas, 2);
    assert_eq!((&lines[0]["kilos"], &lines[1]["gross"]), (&5.0.into(), &24.into()));
    assert_eq!(said(&vejas, &["list"]), "no dead letters\n");

    vejas.kill();
    let out = read(&vejas, "VEJAS", "vx.orders.priced");
    assert_eq!(out[0].headers.get(ID), Some("A-1"), "the old business id");
    assert!(out[0].headers.iter().all(|(name, _)| !name.starts_with("Vejas-Dead")), "an output is not dead");
    let replayed = read(&vejas, "VEJAS", "vxreplay.flow.price");
    assert_eq!(replayed[0].headers.get(ORIGIN), Some("VEJAS/1"), "the first identity");
}

fn read(vejas: &Vejas, stream: &str, subject: &str) -> Vec<vejas::flow::message::Stored> {
    let bus = open_bus(&vejas.data());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(bus.read(stream, 1, &[subject.to_owned()], 100)).unwrap()
}

#[test]
fn a_replay_that_fails_again_keeps_its_history_and_passes_once_the_manifest_is_mended() {
    let mut vejas = world();
    vejas.start();
    send(&vejas, "A-1", br#"{"net":"12","grams":1000}"#);
    let first = wait_for_letters(&vejas, &[], 1).remove(0);
    let mut last = first.clone();
    for replays in 1..=2 {
        said(&vejas, &["replay", "--unit", "flow/price"]);
        let code = ["--code", "expression"];
        let again = loop {
            let found = wait_for_letters(&vejas, &code, 1).remove(0);
            if found["sequence"] != last["sequence"] {
                break found;
            }
        };
        assert_eq!(again["attempts"], 1 + replays, "attempts add up");
        assert_eq!(again["replays"], replays);
        for kept in ["first", "subject", "subjectSequence", "id"] {
            assert_eq!(again[kept], first[kept], "{kept}");
        }
        last = again;
    }
    assert!(vejas.stop().success());
    let mended = MANIFESTS.replace("int!(.net)", "to_int!(.net)");
    fs::write(vejas.manifests().join("all.yaml"), mended).unwrap();
    vejas.start();
    said(&vejas, &["replay", &sequence(&last)]);
    assert_eq!(lines(&vejas, 2)[1]["gross"], 24);
    assert!(letters(&vejas, &[]).is_empty());
}

#[test]
fn payload_bytes_survive_whatever_they_are() {
    let every: Vec<u8> = (0..=255).chain((0..=255).rev()).chain(*b"\r\n\0").collect();
    let mut vejas = world();
    vejas.start();
    send(&vejas, "A-1", &every);
    wait_for_letters(&vejas, &[], 2);
    let letter = letters(&vejas, &["--unit", "price"]).remove(0);
    assert_eq!(letter["code"], "payload");
    assert_eq!(letter["payloadBytes"], every.len());
    assert_eq!(dlq(&vejas, &["show", "--raw", &sequence(&letter)]).stdout, every);
    let shown = said(&vejas, &["show", &sequence(&letter)]);
    assert!(shown.contains("00000040  40 41 42") && shown.contains("@ABC"), "{shown}");

    said(&vejas, &["replay", &sequence(&letter)]);
    let again = loop {
        let found = wait_for_letters(&vejas, &["--unit", "price"], 1).remove(0);
        if found["replays"] == 1 {
            break found;
        }
    };
    assert_eq!(dlq(&vejas, &["show", "--raw", &sequence(&again)]).stdout, every, "also over a replay");

    // An editor that turns every byte around.
    let other: Vec<u8> = every.iter().rev().copied().collect();
    fs::write(vejas.folder.path().join("other"), &other).unwrap();
    vejas.environment("EDITOR", "cp other");
    said(&vejas, &["edit", &sequence(&again)]);
    let edited = letters(&vejas, &["--unit", "price"]).remove(0);
    assert_eq!(dlq(&vejas, &["show", "--raw", &sequence(&edited)]).stdout, other);
    vejas.environment("EDITOR", "true");
    assert_eq!(said(&vejas, &["edit", &sequence(&edited)]), "nothing was changed\n");
    vejas.environment("EDITOR", "false");
    let (code, error) = refused(&vejas, &["edit", &sequence(&edited)]);
    assert!(code == 3 && error.contains("nothing was changed"), "{code} {error}");
    assert_eq!(letters(&vejas, &["--unit", "price"]), [edited]);
}

#[test]
fn however_many_ask_at_once_one_letter_becomes_one_message() {
    let mut vejas = world();
    vejas.start();
    send(&vejas, "A-1", br#"{"net":"12","grams":1000}"#);
    let letter = wait_for_letters(&vejas, &[], 1).remove(0);
    let body = format!(r#"{{"select":{{"sequence":{}}}}}"#, sequence(&letter));
    let answers: Vec<(u16, Value)> = thread::scope(|scope| {
        let ask = || scope.spawn(|| api(&vejas, "POST", "/api/v1/dlq/replay", None, &body));
        let asked: Vec<_> = (0..8).map(|_| ask()).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let won = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(won, 1, "{answers:#?}");
    assert!(answers.iter().all(|(status, _)| matches!(status, 200 | 404 | 409)), "{answers:#?}");
    let path = format!("/api/v1/dlq/{}/payload", sequence(&letter));
    let (status, _) = api(&vejas, "PUT", &path, None, "{}");
    assert!(matches!(status, 404 | 409), "what was replayed cannot be edited: {status}");
    let (code, error) = refused(&vejas, &["replay", &sequence(&letter)]);
    assert!(code == 1 && error.contains("no dead letter"), "{code} {error}");
    wait_for_letters(&vejas, &[], 1);
    vejas.kill();
    assert_eq!(read(&vejas, "VEJAS", "vxreplay.flow.price").len(), 1);
}

#[test]
fn a_letter_of_a_unit_that_is_gone_is_refused_and_stays() {
    let mut vejas = world();
    vejas.start();
    send(&vejas, "A-1", br#"{"net":"12","grams":1000}"#);
    let letter = wait_for_letters(&vejas, &[], 1).remove(0);
    vejas.stop();
    let without: Vec<&str> = MANIFESTS.split("---").filter(|part| !part.contains("name: price")).collect();
    fs::write(vejas.manifests().join("all.yaml"), without.join("---")).unwrap();
    vejas.start();
    for arguments in [["replay", &sequence(&letter)], ["replay", "--all"]] {
        let (code, error) = refused(&vejas, &arguments);
        assert!(code == 1 && error.contains("no unit flow/price any more"), "{code} {error}");
    }
    assert_eq!(letters(&vejas, &[]), [letter]);
}

#[test]
fn the_read_token_looks_and_only_the_write_token_changes() {
    let mut vejas = world();
    vejas.environment("VEJAS_TOKEN", "w").environment("VEJAS_READ_TOKEN", "r");
    vejas.start();
    send(&vejas, "A-1", br#"{"net":"12","grams":1000}"#);
    let letter = sequence(&wait_for_letters(&vejas, &[], 1)[0]);
    let (one, payload) = (format!("/api/v1/dlq/{letter}"), format!("/api/v1/dlq/{letter}/payload"));
    for path in ["/api/v1/dlq", &one, &payload] {
        for (token, expected) in [(None, 401), (Some("x"), 401), (Some("r"), 200), (Some("w"), 200)] {
            assert_eq!(api(&vejas, "GET", path, token, "").0, expected, "GET {path} {token:?}");
        }
    }
    let changes = [
        ("PUT", payload.as_str(), "{}"),
        ("PATCH", &one, r#"{"set":[{"path":"net","value":12}]}"#),
        ("POST", "/api/v1/dlq/replay", r#"{"all":true}"#),
        ("POST", "/api/v1/dlq/purge", r#"{"all":true}"#),
    ];
    for (method, path, body) in changes {
        for (token, expected) in [(None, 401), (Some("x"), 401), (Some("r"), 403)] {
            assert_eq!(api(&vejas, method, path, token, body).0, expected, "{method} {path} {token:?}");
        }
    }
    assert_eq!(letters(&vejas, &[]).len(), 1, "nothing was changed");
    let (status, patched) = api(&vejas, "PATCH", &one, Some("w"), changes[1].2);
    assert_eq!(status, 200, "{patched}");
    let payload = format!("/api/v1/dlq/{}/payload", patched["sequence"]);
    let headers = [("Authorization", "Bearer r")];
    let (_, body) = request(vejas.api, "GET", &payload, &headers, b"").unwrap();
    assert_eq!(body, r#"{"net":12,"grams":1000}"#);
    assert_eq!(api(&vejas, "POST", "/api/v1/dlq/replay", Some("w"), changes[2].2).0, 200);
    assert_eq!(lines(&vejas, 2)[1]["gross"], 24);
}

#[test]
fn a_replay_passes_the_dedupe_mark_that_its_own_message_set_and_a_true_duplicate_does_not() {
    let dedupe = "    - dedupe: { key: .id, within: 1h }\n    - map: |\n        .gross";
    let manifests = MANIFESTS.replace("    - map: |\n        .gross", dedupe);
    assert_ne!(manifests, MANIFESTS);
    let mut vejas = Vejas::new(&[("all.yaml", &manifests)]);
    vejas.start();
    send(&vejas, "A-1", br#"{"id":1,"net":"12","grams":1000}"#);
    let letter = wait_for_letters(&vejas, &[], 1).remove(0);
    send(&vejas, "A-2", br#"{"id":1,"net":7,"grams":1000}"#);
    lines(&vejas, 2);
    said(&vejas, &["edit", &sequence(&letter), "--set", "net=12"]);
    said(&vejas, &["replay", "--all"]);
    let lines = lines(&vejas, 3);
    assert_eq!(lines[2]["gross"], 24);
    assert!(letters(&vejas, &[]).is_empty());
}
