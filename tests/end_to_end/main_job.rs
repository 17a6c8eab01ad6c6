//! What the README promises of `cargo run`: the manifests of the repository, untouched.

use std::fs;
use std::path::Path;

use crate::support::{Vejas, post, request};

const ORDER: &str = r#"{"id":"A-1","country":"DE","items":[{"sku":"x","qty":2,"price":9.5}]}"#;

/// The repository's own `manifests/` in a folder of its own.
fn main_job() -> Vejas {
    let vejas = Vejas::new(&[]);
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests"), &vejas.manifests());
    vejas
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}

#[test]
fn an_order_comes_out_priced_and_a_bad_one_is_refused_with_the_reason() {
    let mut vejas = main_job();
    vejas.start();
    let (status, answer) = post(vejas.ingress, "/ingest/orders", ORDER);
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["id"].as_str().is_some_and(|id| !id.is_empty()), "{answer}");
    assert!(answer["sequence"].as_u64().is_some_and(|sequence| sequence > 0), "{answer}");

    let lines = vejas.wait_for_lines(Path::new("out/orders.ndjson"), 1);
    let priced: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(priced["id"], "A-1");
    assert_eq!(priced["net"], 19.0);
    assert_eq!(priced["vat"]["amount"], 3.61);
    assert_eq!(priced["gross"], 22.61);

    let (status, answer) = post(vejas.ingress, "/ingest/orders", r#"{"id":"A-2","country":"DE"}"#);
    assert_eq!(status, 422);
    assert!(answer.contains("items"), "the reason names what is missing: {answer}");

    let exit = vejas.stop();
    assert!(exit.success(), "{exit}\n{}", vejas.log());
}

#[test]
fn what_was_acknowledged_before_a_kill_comes_out_after_the_restart() {
    let mut vejas = main_job();
    vejas.start();
    let mut sequences = Vec::new();
    for number in 0..20 {
        let order = ORDER.replace("A-1", &format!("K-{number}"));
        let (status, answer) = post(vejas.ingress, "/ingest/orders", &order);
        assert_eq!(status, 200, "{answer}");
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        sequences.push(answer["sequence"].as_u64().unwrap());
    }
    vejas.kill();
    assert!(sequences.is_sorted());

    vejas.start();
    // Not 20 lines: what the sink had written but not acknowledged is written again, so lines may come twice.
    vejas.wait_until_lines(Path::new("out/orders.ndjson"), |lines| {
        (0..20).all(|number| lines.iter().any(|line| line.contains(&format!("\"K-{number}\""))))
    });
}

#[test]
fn a_repeated_idempotency_key_gives_one_message_and_the_same_answer_also_after_a_kill() {
    let mut vejas = main_job();
    vejas.start();
    let headers = [("Idempotency-Key", "order-1"), ("Content-Type", "application/json")];
    let first = request(vejas.ingress, "POST", "/ingest/orders", &headers, ORDER.as_bytes()).unwrap();
    assert_eq!(first.0, 200);
    assert_eq!(request(vejas.ingress, "POST", "/ingest/orders", &headers, ORDER.as_bytes()).unwrap(), first);
    vejas.kill();
    vejas.start();
    assert_eq!(request(vejas.ingress, "POST", "/ingest/orders", &headers, ORDER.as_bytes()).unwrap(), first);
    let other = ORDER.replace("A-1", "A-9");
    let (status, answer) = request(vejas.ingress, "POST", "/ingest/orders", &headers, other.as_bytes()).unwrap();
    assert_eq!(status, 422, "{answer}");
}

#[test]
fn a_unit_whose_secret_is_missing_is_shown_as_failed_and_the_others_run() {
    let manifests = "
apiVersion: vejas/v1
kind: Source
metadata: { name: tick }
spec: { interval: { every: 50ms }, to: ticks }
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: good }
spec: { from: ticks, file: { path: out/ticks.ndjson } }
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: bad }
spec:
  from: ticks
  http: { url: 'http://127.0.0.1:9/', auth: { bearer: { token: '${secret:erp/token}' } } }
";
    let mut vejas = Vejas::new(&[("ticks.yaml", manifests)]);
    vejas.launch();
    vejas.wait_for_lines(Path::new("out/ticks.ndjson"), 3);
    let status = vejas.status();
    let bad = status["units"].as_array().unwrap().iter().find(|unit| unit["unit"] == "sink/bad").unwrap();
    assert_eq!(bad["state"], "failed");
    assert!(bad["reason"].as_str().unwrap().contains("${secret:erp/token}"), "{bad}");
    assert!(bad["lag"]["pending"].as_u64().unwrap() > 0, "what comes meanwhile waits for it: {bad}");
    assert_eq!(vejas.stop().code(), Some(0));

    let strict = vejas.command(&["run", "--strict"]).output().unwrap();
    assert_eq!(strict.status.code(), Some(3), "{}", String::from_utf8_lossy(&strict.stderr));
}
