//! `vejas tap` and `/api/v1/tap` on a running process.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{PATIENCE, Vejas, get, open_bus, post};

const MANIFESTS: &str = r#"
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: orders }
spec: { path: /in, to: orders.raw }
---
apiVersion: vejas/v1
kind: Flow
metadata: { name: lines }
spec:
  from: orders.raw
  steps:
    - filter: .test != true
    - map: .n = to_int!(.n)
    - split: .items
    - dedupe: { key: .sku, within: 1h }
    - route:
        - when: .sku == "big"
          to: orders.big
  to: orders.small
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: out }
spec:
  from: orders.raw
  file: { path: out/raw.ndjson }
"#;

const TICKS: &str = "
apiVersion: vejas/v1
kind: Source
metadata: { name: tick }
spec:
  interval: { every: 50ms }
  to: ticks
";

/// `vejas tap`, watching.
struct Tap {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    said: Lines<BufReader<ChildStderr>>,
}

impl Tap {
    fn start(vejas: &Vejas, arguments: &[&str]) -> Self {
        let arguments = [&["tap"], arguments].concat();
        let mut child = vejas.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut tap = Tap { child, output, said };
        let first = tap.hears();
        assert!(first.contains("watching"), "{first}");
        tap
    }

    /// The next line on the standard error.
    fn hears(&mut self) -> String {
        self.said.next().expect("it still runs").unwrap()
    }

    fn line(&mut self) -> String {
        self.output.next().expect("it still runs").unwrap()
    }

    fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// All that is left, once it has ended by itself.
    fn rest(mut self) -> Vec<String> {
        let lines: Vec<String> = self.output.by_ref().map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success());
        lines
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_subject_is_shown_live_with_headers_and_only_what_is_asked_for() {
    let mut vejas = Vejas::new(&[("orders.yaml", MANIFESTS)]);
    vejas.start();
    post(vejas.ingress, "/in", r#"{"before":"nobody looked"}"#);
    let mut all = Tap::start(&vejas, &["orders.*", "--limit", "2"]);
    let mut some = Tap::start(&vejas, &["orders.raw", "--json", "--grep", "needle", "--limit", "1"]);
    post(vejas.ingress, "/in", r#"{"n":1,"test":true}"#);
    post(vejas.ingress, "/in", r#"{"n":2,"test":true,"text":"needle"}"#);

    let head = all.line();
    assert!(head.contains("  orders.raw  #"), "{head}");
    let rest = take_rest(&mut all);
    assert!(rest.iter().any(|line| line.starts_with("  Vejas-Id: ")), "{rest:?}");
    assert!(rest.iter().any(|line| line == r#"  {"n":1,"test":true}"#), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("nobody")), "{rest:?}");

    let found = some.json();
    assert_eq!(found["payload"]["json"]["text"], "needle");
    assert_eq!(found["headers"]["Vejas-Source"], "http-in/orders");
    assert!(take_rest(&mut some).is_empty());
}

fn take_rest(tap: &mut Tap) -> Vec<String> {
    tap.output.by_ref().map(Result::unwrap).collect()
}

#[test]
fn a_unit_shows_each_message_before_and_after_each_step() {
    let mut vejas = Vejas::new(&[("orders.yaml", MANIFESTS)]);
    vejas.start();
    let mut tap = Tap::start(&vejas, &["flow/lines", "--json", "--limit", "12"]);
    post(vejas.ingress, "/in", r#"{"n":"7","items":[{"sku":"a"},{"sku":"big"},{"sku":"a"}]}"#);
    let mut steps: Vec<Value> = (0..9).map(|_| tap.json()).collect();
    post(vejas.ingress, "/in", r#"{"test":true}"#);
    steps.push(tap.json());
    post(vejas.ingress, "/in", r#"{"n":"seven"}"#);
    steps.extend(tap.rest().iter().map(|line| serde_json::from_str::<Value>(line).unwrap()));

    let seen: Vec<(Option<u64>, &str, &str)> = steps
        .iter()
        .map(|step| (step["step"].as_u64(), step["verb"].as_str().unwrap(), step["outcome"].as_str().unwrap()))
        .collect();
    let expected = [
        (Some(1), "filter", "passed"),
        (Some(2), "map", "passed"),
        (Some(3), "split", "split"),
        (Some(4), "dedupe", "passed"),
        (Some(5), "route", "passed"),
        (Some(6), "to", "emitted"),
        (Some(4), "dedupe", "passed"),
        (Some(5), "route", "emitted"),
        (Some(4), "dedupe", "ended"),
        (Some(1), "filter", "ended"),
        (Some(1), "filter", "passed"),
        (Some(2), "map", "failed"),
    ];
    assert_eq!(seen, expected);
    assert_eq!((&steps[1]["before"]["json"]["n"], &steps[1]["after"]["json"]["n"]), (&json!("7"), &json!(7)));
    assert_eq!((&steps[2]["parts"], &steps[2]["after"]["json"][1]), (&json!(3), &json!({"sku": "big"})));
    assert_eq!((&steps[5]["to"], &steps[7]["to"]), (&json!("orders.small"), &json!("orders.big")));
    let failed = &steps[11];
    assert_eq!((&failed["code"], &failed["before"]["json"]), (&json!("expression"), &json!({"n": "seven"})));
    assert!(failed["message"].as_str().unwrap().contains("manifests/orders.yaml:14:"), "{failed:#}");
}

#[test]
fn a_sink_shows_what_it_delivers() {
    let mut vejas = Vejas::new(&[("orders.yaml", MANIFESTS)]);
    vejas.start();
    let mut tap = Tap::start(&vejas, &["sink/out", "--json", "--limit", "1"]);
    post(vejas.ingress, "/in", r#"{"test":true}"#);
    let step = tap.json();
    assert_eq!((&step["verb"], &step["outcome"]), (&json!("deliver"), &json!("delivered")), "{step:#}");
    assert_eq!(step["before"]["json"], json!({"test": true}));
    assert!(tap.rest().is_empty());
}

#[test]
fn a_tap_survives_a_kill_misses_nothing_of_its_subject_and_says_so() {
    let mut vejas = Vejas::new(&[("ticks.yaml", TICKS)]);
    vejas.start();
    let mut tap = Tap::start(&vejas, &["ticks", "--json"]);
    let mut sequences: Vec<u64> = (0..5).map(|_| tap.json()["sequence"].as_u64().unwrap()).collect();
    vejas.kill();
    let lost = tap.hears();
    assert!(lost.contains("the connection is lost"), "{lost}");
    vejas.start();
    let again = tap.hears();
    assert!(again.contains("connected again; goes on behind sequence"), "{again}");
    sequences.extend((0..30).map(|_| tap.json()["sequence"].as_u64().unwrap()));
    drop(tap);
    assert!(vejas.stop().success());
    let bus = open_bus(&vejas.data());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let stored = runtime.block_on(bus.read("VEJAS", sequences[0], &["vx.ticks".to_owned()], 35)).unwrap();
    let stored: Vec<u64> = stored.iter().map(|message| message.sequence).collect();
    assert_eq!(sequences, stored);
}

#[test]
fn what_cannot_be_tapped_is_refused_with_the_reason() {
    let mut vejas = Vejas::new(&[("orders.yaml", MANIFESTS)]);
    vejas.start();
    for (what, reason) in [
        ("flow/absent", "no unit flow/absent runs here"),
        ("http-in/orders", "tap the subject that it stores messages under"),
        ("orders..raw", "is not a subject"),
    ] {
        let output = vejas.command(&["tap", what]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(reason), "{what}: {text}");
    }
    let (status, body) = get(vejas.api, "/api/v1/tap?subject=a&unit=flow/lines").unwrap();
    assert_eq!(status, 400, "{body}");
}

/// A tap over a bare connection, which is read only when asked to.
fn bare_tap(vejas: &Vejas, query: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // Else the kernel may take so much for the client that nothing is ever left out.
        socket.set_recv_buffer_size(64 << 10).unwrap();
        socket.connect(vejas.api).await.unwrap()
    });
    let mut stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /api/v1/tap?{query} HTTP/1.1\r\nHost: vejas\r\n\r\n").unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

#[test]
fn taps_that_are_not_read_hold_nothing_back_miss_a_counted_number_and_are_64_at_most() {
    const MESSAGES: usize = 30;
    let mut vejas = Vejas::new(&[("orders.yaml", MANIFESTS)]);
    vejas.start();
    let mut taps: Vec<TcpStream> = (0..64)
        .map(|nth| bare_tap(&vejas, if nth % 2 == 0 { "unit=flow/lines" } else { "subject=orders.raw" }))
        .collect();
    let (status, body) = get(vejas.api, "/api/v1/tap?subject=orders.raw").unwrap();
    assert_eq!(status, 429, "{body}");
    assert!(body.contains("too-many-taps"), "{body}");

    let order = format!(r#"{{"n":1,"items":[],"text":"{}"}}"#, "x".repeat(100_000));
    for _ in 0..MESSAGES {
        let (status, answer) = post(vejas.ingress, "/in", &order);
        assert_eq!(status, 200, "{answer}");
    }
    vejas.wait_for_lines("out/raw.ndjson".as_ref(), MESSAGES);
    let deadline = Instant::now() + PATIENCE;
    while vejas.status()["units"].as_array().unwrap().iter().any(|unit| unit["received"] != MESSAGES) {
        assert!(Instant::now() < deadline, "the flow is held back: {:#}", vejas.status());
        thread::sleep(Duration::from_millis(50));
    }

    // One of them begins to read: it finds what fitted, and how much it missed. Three steps a message, the last one
    // makes nothing of it.
    let mut tap = BufReader::new(taps.swap_remove(0));
    let (mut shown, mut skipped) = (0, 0);
    let mut name = String::new();
    while shown + skipped < 3 * MESSAGES as u64 {
        let mut line = String::new();
        assert!(tap.read_line(&mut line).unwrap() > 0, "the tap ended after {shown} and {skipped} left out");
        if let Some(event) = line.strip_prefix("event: ") {
            event.trim().clone_into(&mut name);
        } else if let Some(data) = line.strip_prefix("data: ") {
            match name.as_str() {
                "step" => shown += 1,
                "gap" => skipped += serde_json::from_str::<Value>(data).unwrap()["skipped"].as_u64().unwrap(),
                _ => {}
            }
        }
    }
    assert_eq!(shown + skipped, 3 * MESSAGES as u64, "each step is shown or counted");
    assert!(skipped > 0);

    // Places are free again when their clients are gone.
    drop(tap);
    drop(taps);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut stream = TcpStream::connect(vejas.api).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET /api/v1/tap?subject=a HTTP/1.1\r\nHost: vejas\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        if &status == b"HTTP/1.1 200" {
            break;
        }
        assert!(Instant::now() < deadline, "no place became free");
        thread::sleep(Duration::from_millis(100));
    }
}
