//! A process whose two flows fail on what they are sent, and the command line in front of it.

use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{PATIENCE, Vejas, request};

/// `price` wants a number `net`, `weigh` a number `grams`; both read every order.
pub const MANIFESTS: &str = "
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: in }
spec: { path: /in, to: orders.raw }
---
apiVersion: vejas/v1
kind: Flow
metadata: { name: price }
spec:
  from: orders.raw
  steps:
    - map: |
        .gross = int!(.net) * 2
  to: orders.priced
---
apiVersion: vejas/v1
kind: Flow
metadata: { name: weigh }
spec:
  from: orders.raw
  steps:
    - map: .kilos = int!(.grams) / 1000
  to: orders.weighed
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: out }
spec:
  from: [orders.priced, orders.weighed]
  file: { path: out/orders.ndjson }
";

pub fn world() -> Vejas {
    Vejas::new(&[("all.yaml", MANIFESTS)])
}

/// Sends an order with a business id of its own.
pub fn send(vejas: &Vejas, id: &str, body: &[u8]) {
    let headers = [("Idempotency-Key", id), ("Content-Type", "application/json")];
    let (status, answer) = request(vejas.ingress, "POST", "/in", &headers, body).unwrap();
    assert_eq!(status, 200, "{answer}");
}

pub fn dlq(vejas: &Vejas, arguments: &[&str]) -> Output {
    let all: Vec<&str> = std::iter::once("dlq").chain(arguments.iter().copied()).collect();
    vejas.command(&all).output().unwrap()
}

/// What a command that succeeds prints.
pub fn said(vejas: &Vejas, arguments: &[&str]) -> String {
    let output = dlq(vejas, arguments);
    let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?} ended with {}: {out}{error}\n{}", output.status, vejas.log());
    out
}

/// Exit code and error text of a command that does not.
pub fn refused(vejas: &Vejas, arguments: &[&str]) -> (i32, String) {
    let output = dlq(vejas, arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn letters(vejas: &Vejas, filter: &[&str]) -> Vec<Value> {
    page(vejas, filter)["letters"].as_array().unwrap().clone()
}

pub fn page(vejas: &Vejas, filter: &[&str]) -> Value {
    let arguments: Vec<&str> = ["list", "--output", "json"].iter().chain(filter).copied().collect();
    serde_json::from_str(&said(vejas, &arguments)).unwrap()
}

/// Waits until so many letters match.
pub fn wait_for_letters(vejas: &Vejas, filter: &[&str], count: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = letters(vejas, filter);
        if found.len() == count {
            return found;
        }
        assert!(Instant::now() < deadline, "{} letters instead of {count}: {found:#?}\n{}", found.len(), vejas.log());
        thread::sleep(Duration::from_millis(20));
    }
}

pub fn sequence(letter: &Value) -> String {
    letter["sequence"].to_string()
}

pub fn api(vejas: &Vejas, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, Value) {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
    let (status, body) = request(vejas.api, method, path, &headers, body.as_bytes()).unwrap();
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}
