//! `vejas data` on the real binary: what a person at the keyboard sees and gets.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use vejas::id::Names;

use crate::support::{Vejas, open_bus, post};

const MANIFESTS: &str = "
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: in }
spec: { path: /in, to: orders.in }
";

fn vejas_with(messages: usize) -> Vejas {
    let mut vejas = Vejas::new(&[("m.yaml", MANIFESTS)]);
    vejas.start();
    for n in 0..messages {
        assert_eq!(post(vejas.ingress, "/in", &format!("{{\"n\":{n}}}")).0, 200);
    }
    vejas
}

fn run(vejas: &Vejas, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = vejas.command(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Flips a bit in the payload that says so, in the newest journal.
fn damage(data: &Path, payload: &str) {
    let bus = fs::read_dir(data.join("bus")).unwrap().map(|entry| entry.unwrap().path());
    let journal = bus.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).max().unwrap();
    let bytes = fs::read(&journal).unwrap();
    let at = bytes.windows(payload.len()).position(|window| window == payload.as_bytes()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&journal).unwrap();
    file.write_all_at(&[bytes[at + 2] ^ 1], at as u64 + 2).unwrap();
}

#[test]
fn a_running_process_is_named_and_nothing_is_looked_at() {
    let vejas = vejas_with(1);
    for verb in ["check", "export"] {
        let (code, _, error) = run(&vejas, &["data", verb]);
        assert_eq!(code, Some(3), "{error}");
        assert!(error.contains(&vejas.pid().to_string()) && error.contains("stop it first"), "{error}");
    }
}

#[test]
fn a_sound_folder_is_called_so_and_exported_whole() {
    let mut vejas = vejas_with(5);
    vejas.stop();
    let (code, told, error) = run(&vejas, &["data", "check"]);
    assert_eq!(code, Some(0), "{told}{error}");
    assert!(told.contains("sound"), "{told}");
    let (code, told, error) =
        run(&vejas, &["data", "export", "--subject", &Names::default().stored("orders.in"), "--from", "2"]);
    assert_eq!(code, Some(0), "{error}");
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line["sequence"].as_u64() >= Some(2)), "{told}");
    let last = lines.last().unwrap();
    assert_eq!(last["text"], "{\"n\":4}");
    assert!(last["headers"]["Vejas-Id"].is_string() && last["time"].is_string(), "{last}");
    let (code, _, error) = run(&vejas, &["data", "export", "--stream", "nowhere"]);
    assert!(code == Some(3) && error.contains("nowhere"), "{error}");
}

#[test]
fn a_folder_that_is_not_there_is_not_made() {
    let vejas = Vejas::new(&[]);
    let (code, _, error) = run(&vejas, &["data", "check", "--data-dir", "nothing"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("nothing") && !vejas.folder.path().join("nothing").exists());
}

#[test]
fn a_damaged_folder_is_refused_until_it_is_repaired_and_then_runs() {
    let mut vejas = vejas_with(20);
    vejas.kill();
    damage(&vejas.data(), "{\"n\":7}");

    let (code, _, refused) = run(&vejas, &["run"]);
    assert_eq!(code, Some(3), "{refused}");
    assert!(refused.contains("0.jnl at ") && refused.contains("vejas data repair"), "{refused}");
    let (code, told, error) = run(&vejas, &["data", "check", "--output", "json"]);
    assert_eq!(code, Some(1), "{error}");
    let report: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(report["verdict"], "damaged", "{told}");
    assert!(report["faults"][0]["file"].as_str().unwrap().ends_with("0.jnl"), "{told}");
    let lost = &report["lost"]["messages"][0];
    assert_eq!(lost["count"], 1, "{told}");
    let sequence = lost["ranges"][0][0].as_u64().unwrap();

    let (code, exported, error) = run(&vejas, &["data", "export"]);
    assert_eq!(code, Some(1));
    assert!(error.contains(&format!("sequences {sequence}")), "{error}");
    assert!(!exported.contains("{\\\"n\\\":7}") && exported.contains("{\\\"n\\\":8}"), "{exported}");

    // Nobody is at the keyboard.
    let (code, told, error) = run(&vejas, &["data", "repair"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("Lost:") && error.contains("--yes"), "{told}{error}");
    assert_eq!(run(&vejas, &["run"]).0, Some(3), "declining changes nothing");

    let (code, told, error) = run(&vejas, &["data", "repair", "--yes"]);
    assert_eq!(code, Some(0), "{told}{error}");
    let names: Vec<String> =
        fs::read_dir(vejas.data()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.starts_with("bus.damaged-")), "{names:?}");
    let written = names.iter().find(|name| name.starts_with("repair-")).expect("a report file");
    let written: Value = serde_json::from_slice(&fs::read(vejas.data().join(written)).unwrap()).unwrap();
    assert_eq!(written["lost"], report["lost"]);

    vejas.start();
    assert_eq!(post(vejas.ingress, "/in", "{\"n\":20}").0, 200);
    vejas.stop();
    let bus = open_bus(&vejas.data());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stored = runtime.block_on(bus.read(&Names::default().messages(), 0, &[], 1000)).unwrap();
    let numbers: Vec<u64> = stored
        .iter()
        .filter_map(|message| serde_json::from_slice::<Value>(&message.payload).ok()?["n"].as_u64())
        .collect();
    assert_eq!(numbers, (0..=20).filter(|n| *n != 7).collect::<Vec<_>>());
    assert!(stored.iter().all(|message| message.sequence != sequence), "a sequence is not given out again");
}
