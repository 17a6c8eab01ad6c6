//! Many letters: filters, pages, rates, removal, the folder without a process.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, get};
use crate::world::{api, letters, page, refused, said, send, sequence, wait_for_letters, world};

#[test]
fn every_filter_leaves_out_what_does_not_match_and_pages_have_no_gap() {
    let mut vejas = world();
    vejas.start();
    for number in 0..5 {
        // Fails in `price` alone.
        send(&vejas, &format!("P-{number}"), format!(r#"{{"net":"{number}","grams":1000}}"#).as_bytes());
    }
    send(&vejas, "W-1", br#"{"net":1,"grams":"heavy"}"#);
    send(&vejas, "X-1", b"no json at all");
    let all = wait_for_letters(&vejas, &[], 8);
    let ids = |filter: &[&str]| -> Vec<String> {
        letters(&vejas, filter).iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&["--unit", "weigh"]), ["W-1", "X-1"]);
    assert_eq!(ids(&["--unit", "flow/price"]).len(), 6);
    assert_eq!(ids(&["--unit", "sink/price"]), [""; 0]);
    assert_eq!(ids(&["--code", "payload"]), ["X-1", "X-1"]);
    assert_eq!(ids(&["--text", "heavy"]), ["W-1"], "in the payload");
    assert_eq!(ids(&["--text", "P-3"]), ["P-3"], "in the id");
    assert_eq!(ids(&["--text", "all.yaml:14", "--since", "1h"]).len(), 5, "in the error");
    assert_eq!(ids(&["--since", "1h"]).len(), 8);
    assert_eq!(ids(&["--until", "1h"]), [""; 0]);
    let last = all.iter().map(|letter| letter["last"].as_str().unwrap()).max().unwrap();
    let before = all.iter().filter(|letter| letter["last"].as_str().unwrap() < last).count();
    assert_eq!(ids(&["--until", last]).len(), before, "until is exclusive");
    assert_eq!(ids(&["--since", last]).len(), 8 - before, "since is inclusive");

    let mut seen = Vec::new();
    let mut from = "1".to_owned();
    loop {
        let page = page(&vejas, &["--limit", "3", "--from", &from]);
        let found = page["letters"].as_array().unwrap();
        assert!(found.len() <= 3);
        seen.extend(found.iter().cloned());
        if page["next"].is_null() {
            break;
        }
        from = page["next"].to_string();
    }
    assert_eq!(seen, all);
    for (arguments, reason) in [
        (["list", "--since", "yesterday"], "`since`"),
        (["list", "--unit", "a.b/>"], "names no unit"),
        (["replay", "--limit", "1"], "or say --all"),
        (["replay", "--rate", "fast"], "not a rate"),
    ] {
        let (code, error) = refused(&vejas, &arguments);
        assert!(code == 64 && error.contains(reason), "{arguments:?}: {code} {error}");
    }
    for path in ["?limit=x", "?nonsense=1", "/x", "/1/payload?"] {
        let (status, _) = api(&vejas, "GET", &format!("/api/v1/dlq{path}"), None, "");
        assert!(matches!(status, 200 | 400), "{path}: {status}");
    }
    let (status, answer) = api(&vejas, "POST", "/api/v1/dlq/replay", None, "{}");
    assert_eq!((status, answer["code"].as_str()), (400, Some("everything")), "{answer}");
}

#[test]
fn a_replay_keeps_its_rate_its_limit_and_its_order_and_a_dry_run_changes_nothing() {
    let mut vejas = world();
    vejas.start();
    for number in 0..12 {
        send(&vejas, &format!("P-{number:02}"), format!(r#"{{"net":"{number}","grams":1000}}"#).as_bytes());
    }
    let all = wait_for_letters(&vejas, &[], 12);
    let dry = said(&vejas, &["replay", "--unit", "price", "--dry-run", "--limit", "2"]);
    assert!(dry.contains("P-00") && dry.contains("2 would be replayed"), "{dry}");
    assert_eq!(letters(&vejas, &[]), all);

    let began = Instant::now();
    assert_eq!(said(&vejas, &["replay", "--all", "--limit", "10", "--rate", "10/s"]), "10 replayed\n");
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?} for ten at 10/s", began.elapsed());
    // All fail again; the ones that were left out keep their place, the others follow in the order they were in.
    let deadline = Instant::now() + PATIENCE;
    let again = loop {
        let found = letters(&vejas, &[]);
        if found.len() == 12 {
            break found;
        }
        assert!(Instant::now() < deadline, "{found:#?}");
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(again[..2], all[10..]);
    let ids = |letters: &[serde_json::Value]| letters.iter().map(|l| l["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&again[2..]), ids(&all[..10]));
    // A replay of all ends although what it replays comes back.
    assert_eq!(said(&vejas, &["replay", "--all"]), "12 replayed\n");
}

#[test]
fn purge_removes_what_is_named_and_frees_its_space() {
    let mut vejas = world();
    vejas.start();
    for number in 0..6 {
        let body = format!(r#"{{"net":"{number}","grams":1000,"fill":"{}"}}"#, "x".repeat(10_000));
        send(&vejas, &format!("P-{number}"), body.as_bytes());
    }
    send(&vejas, "W-1", br#"{"net":1,"grams":"heavy"}"#);
    let all = wait_for_letters(&vejas, &[], 7);
    let bytes = || vejas.status()["streams"][1]["bytes"].as_u64().unwrap();
    assert!(bytes() > 60_000);
    assert_eq!(said(&vejas, &["purge", &sequence(&all[0])]), "1 removed\n");
    assert_eq!(said(&vejas, &["purge", "--unit", "weigh"]), "1 removed\n");
    assert_eq!(letters(&vejas, &[]).len(), 5);
    let (code, error) = refused(&vejas, &["purge"]);
    assert!(code == 64 && error.contains("--all"), "{code} {error}");
    let (code, error) = refused(&vejas, &["purge", "--all"]);
    assert!(code == 64 && error.contains("--yes"), "{code} {error}");
    let (status, _) = api(&vejas, "POST", "/api/v1/dlq/purge", None, "{}");
    assert_eq!(status, 400, "everything has to be said");
    assert_eq!(letters(&vejas, &[]).len(), 5);
    assert_eq!(said(&vejas, &["purge", "--all", "--yes"]), "5 removed\n");
    assert!(letters(&vejas, &[]).is_empty());
    assert_eq!(bytes(), 0);
}

#[test]
fn without_a_process_the_folder_is_opened_and_its_lock_is_respected() {
    let mut vejas = world();
    vejas.start();
    send(&vejas, "A-1", br#"{"net":"12","grams":1000}"#);
    send(&vejas, "A-2", br#"{"net":"13","grams":1000}"#);
    wait_for_letters(&vejas, &[], 2);
    let data = vejas.data().display().to_string();
    let (code, error) = refused(&vejas, &["list", "--data-dir", &data]);
    assert!(code == 3 && error.contains("in use by process") && error.contains("--server"), "{code} {error}");
    vejas.kill();

    let found = letters(&vejas, &[]);
    assert_eq!(letters(&vejas, &["--data-dir", &data]), found);
    let server = format!("http://{}", vejas.api);
    let (code, error) = refused(&vejas, &["list", "--server", &server]);
    assert!(code == 3 && error.contains("nothing answers"), "who names a server means it: {code} {error}");
    let (code, error) = refused(&vejas, &["list", "--data-dir", "nowhere"]);
    assert!(code == 3 && error.contains("no data folder"), "{code} {error}");
    assert!(!Path::new(vejas.folder.path()).join("nowhere").exists());
    said(&vejas, &["edit", &sequence(&found[0]), "--set", "net=12"]);
    let edited = letters(&vejas, &["--text", "\"net\":12"]).remove(0);
    said(&vejas, &["replay", &sequence(&edited)]);
    said(&vejas, &["purge", &sequence(&found[1])]);
    assert!(letters(&vejas, &[]).is_empty());

    vejas.start();
    let lines = vejas.wait_for_lines(Path::new("out/orders.ndjson"), 3);
    assert!(lines[2].contains("\"gross\":24"), "{lines:#?}");
}

#[test]
fn a_stream_of_dead_letters_that_is_nearly_full_is_told_everywhere_and_drops_nothing() {
    let mut vejas = world();
    vejas.environment("VEJAS_DLQ_MAX_BYTES", "100KiB");
    vejas.start();
    let warned = || vejas.status()["warnings"].to_string().contains("VEJAS_DLQ_MAX_BYTES");
    let metric = || {
        let (_, text) = get(vejas.api, "/metrics").unwrap();
        let line = text.lines().find(|line| line.starts_with("vejas_stream_nearly_full{stream=\"VEJAS_DLQ\"}"));
        line.and_then(|line| line.split(' ').next_back()).unwrap().to_owned()
    };
    assert!(!warned());
    assert_eq!(metric(), "0");
    let body = format!(r#"{{"net":"1","grams":1000,"fill":"{}"}}"#, "x".repeat(9_000));
    for number in 0..9 {
        send(&vejas, &format!("P-{number}"), body.as_bytes());
    }
    wait_for_letters(&vejas, &[], 9);
    assert!(warned(), "{}", vejas.status()["warnings"]);
    assert_eq!(metric(), "1");
    let deadline = Instant::now() + PATIENCE;
    while !vejas.log().contains("about to fill") {
        assert!(Instant::now() < deadline, "{}", vejas.log());
        thread::sleep(Duration::from_millis(20));
    }
    let status = vejas.command(&["status"]).output().unwrap();
    assert!(String::from_utf8_lossy(&status.stdout).contains("vejas dlq list"), "{status:?}");

    // Beyond the limit the unit waits; what is stored stays, and room made lets it go on.
    for number in 9..14 {
        send(&vejas, &format!("P-{number}"), body.as_bytes());
    }
    let deadline = Instant::now() + PATIENCE;
    while vejas.status()["units"][1]["state"] != "paused" {
        assert!(Instant::now() < deadline, "{}", vejas.status());
        thread::sleep(Duration::from_millis(20));
    }
    let held = letters(&vejas, &[]);
    assert!(held.len() >= 9 && held[0]["id"] == "P-0", "{held:#?}");
    said(&vejas, &["purge", "--all", "--yes"]);
    let left = wait_for_letters(&vejas, &[], 14 - held.len());
    assert_eq!(left.last().unwrap()["id"], "P-13");
}
