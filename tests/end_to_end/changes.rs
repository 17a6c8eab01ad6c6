//! Manifests that change between two starts, and manifests that are broken at one: nothing acknowledged is lost.

use std::fs;
use std::path::Path;

use crate::support::{Vejas, get, post};

const ENTRANCE: &str = "
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: in }
spec: { path: /in, to: raw }
---
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: other }
spec: { path: /other, to: other }
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: out }
spec: { from: done, file: { path: out/done.ndjson } }
";

fn flow(from: &str, program: &str) -> String {
    format!(
        "
apiVersion: vejas/v1
kind: Flow
metadata: {{ name: work }}
spec: {{ from: {from}, steps: [ {{ map: '{program}' }} ], to: done }}
"
    )
}

fn lines(vejas: &Vejas, count: usize) -> Vec<String> {
    let mut lines = vejas.wait_for_lines(Path::new("out/done.ndjson"), count);
    lines.sort();
    lines
}

#[test]
fn what_enters_while_a_new_flow_is_broken_waits_until_it_is_mended() {
    let mut vejas = Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".a = uppcase(.id)"))]);
    vejas.start();
    for id in ["1", "2"] {
        assert_eq!(post(vejas.ingress, "/in", &format!("{{\"id\":\"{id}\"}}")).0, 200);
    }
    let status = vejas.status();
    let unit = status["units"].as_array().unwrap().iter().find(|unit| unit["unit"] == "flow/work").unwrap();
    assert_eq!(unit["state"], "failed");
    assert!(unit["reason"].as_str().unwrap().contains("flow.yaml:5:"), "names the place: {unit}");
    assert_eq!(unit["lag"]["pending"], 2);
    assert!(status["warnings"].to_string().contains("flow/work"), "{}", status["warnings"]);
    assert_eq!(get(vejas.api, "/readyz").unwrap().0, 200, "the others serve");
    assert!(vejas.stop().success());

    fs::write(vejas.manifests().join("flow.yaml"), flow("raw", ".a = 1")).unwrap();
    vejas.start();
    assert_eq!(lines(&vejas, 2), [r#"{"a":1,"id":"1"}"#, r#"{"a":1,"id":"2"}"#]);
}

#[test]
fn a_flow_that_reads_another_subject_after_a_restart_goes_on_there() {
    let mut vejas = Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".a = 1"))]);
    vejas.start();
    assert_eq!(post(vejas.ingress, "/in", r#"{"id":"1"}"#).0, 200);
    lines(&vejas, 1);
    assert!(vejas.stop().success());

    fs::write(vejas.manifests().join("flow.yaml"), flow("[raw, other]", ".a = 2")).unwrap();
    vejas.start();
    assert_eq!(post(vejas.ingress, "/other", r#"{"id":"2"}"#).0, 200);
    assert_eq!(post(vejas.ingress, "/in", r#"{"id":"3"}"#).0, 200);
    assert_eq!(lines(&vejas, 3), [r#"{"a":1,"id":"1"}"#, r#"{"a":2,"id":"2"}"#, r#"{"a":2,"id":"3"}"#]);
    assert!(vejas.stop().success());
    // And once more: the newer durable is found again, nothing is repeated.
    vejas.start();
    assert_eq!(post(vejas.ingress, "/other", r#"{"id":"4"}"#).0, 200);
    assert_eq!(lines(&vejas, 4).len(), 4);
}

#[test]
fn a_backlog_is_not_lost_when_the_subject_list_grows() {
    // The sink's folder is a file: nothing can be delivered until it is gone.
    let mut vejas = Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".a = 1"))]);
    fs::write(vejas.folder.path().join("out"), "").unwrap();
    vejas.start();
    assert_eq!(post(vejas.ingress, "/in", r#"{"id":"1"}"#).0, 200);
    let sink = || {
        let status = vejas.status();
        let units = status["units"].as_array().unwrap().clone();
        units.into_iter().find(|unit| unit["unit"] == "sink/out").unwrap()
    };
    while sink()["lastError"].is_null() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    vejas.kill();

    let grown = ENTRANCE.replace("from: done", "from: [done, more]");
    fs::write(vejas.manifests().join("in.yaml"), grown).unwrap();
    fs::remove_file(vejas.folder.path().join("out")).unwrap();
    vejas.start();
    assert_eq!(lines(&vejas, 1), [r#"{"a":1,"id":"1"}"#]);
}
