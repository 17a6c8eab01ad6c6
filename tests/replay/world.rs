//! A flow that runs, messages that went through it, and candidates beside it.

use std::fs;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{PATIENCE, Vejas, post};

pub const MANIFESTS: &str = r#"
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: orders }
spec: { path: /in, to: orders.raw }
---
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: extra }
spec: { path: /extra, to: orders.extra }
---
apiVersion: vejas/v1
kind: Table
metadata: { name: vat }
spec: { rows: { DE: { rate: 19 }, FR: { rate: 20 } } }
---
apiVersion: vejas/v1
kind: Table
metadata: { name: countries }
spec: { rows: { DE: { name: Germany } } }
---
apiVersion: vejas/v1
kind: Flow
metadata: { name: price }
spec:
  from: orders.raw
  steps:
    - filter: .test != true
    - dedupe: { key: .id, within: 1h }
    - lookup: { table: vat, key: .country, into: vat }
    - map: |
        .gross = to_int!(.net) + to_int!(.vat.rate)
        del(.vat)
  to: orders.priced
---
apiVersion: vejas/v1
kind: Flow
metadata: { name: names }
spec:
  from: orders.priced
  steps:
    - lookup: { table: countries, key: .country, into: place }
  to: orders.named
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: out }
spec: { from: orders.priced, file: { path: out/priced.ndjson } }
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: named }
spec: { from: orders.named, file: { path: out/named.ndjson } }
"#;

/// The flow that runs, as a candidate: nothing about it differs.
pub fn same() -> String {
    let flow = MANIFESTS.split("---\n").find(|document| document.contains("name: price }")).unwrap();
    flow.to_owned()
}

/// Another version of it: `net` of 0 goes nowhere, tests come through, what is no number counts as 1, and order F lacks a field.
pub fn other() -> String {
    same()
        .replace(".test != true", r#".net != "0""#)
        .replace("to_int!(.net) +", "(to_int(.net) ?? 1) +")
        .replace("del(.vat)", "del(.vat)\n        if .id == \"F\" { .ref = string!(.ref) }")
}

pub fn order(id: &str, net: &str, country: &str) -> String {
    format!(r#"{{"id":"{id}","net":"{net}","country":"{country}"}}"#)
}

pub fn send(vejas: &Vejas, path: &str, body: &str) {
    let (status, answer) = post(vejas.ingress, path, body);
    assert_eq!(status, 200, "{answer}");
}

/// Seven orders; the first is number 1 of its subject.
pub fn send_orders(vejas: &Vejas) {
    for body in [
        order("A", "10", "DE"),
        order("B", "10", "FR"),
        order("C", "0", "FR"),
        r#"{"id":"D","net":"5","country":"FR","test":true}"#.to_owned(),
        order("E", "seven", "FR"),
        order("F", "10", "FR"),
        order("B", "10", "FR"),
    ] {
        send(vejas, "/in", &body);
    }
    until(vejas, "the flow has worked on all", |status| unit(status, "flow/price")["received"] == 7);
    until(vejas, "all of it is delivered", |status| unit(status, "sink/named")["emitted"] == 4);
}

pub fn unit<'s>(status: &'s Value, name: &str) -> &'s Value {
    status["units"].as_array().unwrap().iter().find(|unit| unit["unit"] == name).unwrap_or(&Value::Null)
}

pub fn until(vejas: &Vejas, what: &str, done: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = vejas.status();
        if done(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}: {status:#}\n{}", vejas.log());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Puts files into the folder of candidates, and answers the path of the first.
pub fn candidate(vejas: &Vejas, files: &[(&str, &str)]) -> String {
    let folder = vejas.folder.path().join("new");
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
    format!("new/{}", files[0].0)
}

/// What a command said, read as JSON lines, with its end taken off.
pub struct Said {
    pub messages: Vec<Value>,
    pub end: Value,
    pub code: i32,
    pub errors: String,
}

impl Said {
    pub fn of(output: &Output) -> Self {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let mut messages: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let end = messages.pop_if(|last| last.get("summary").is_some()).unwrap_or(Value::Null);
        let errors = String::from_utf8(output.stderr.clone()).unwrap();
        Said { messages, end, code: output.status.code().unwrap(), errors }
    }

    /// The outcome of each message, in order.
    pub fn outcomes(&self) -> Vec<&str> {
        self.messages.iter().map(|message| message["outcome"].as_str().unwrap()).collect()
    }
}

pub fn compare(vejas: &Vejas, arguments: &[&str]) -> Said {
    let output = vejas.command(&[arguments, &["--output", "json"]].concat()).output().unwrap();
    Said::of(&output)
}
