//! What a running process tells about its units, through its API and `vejas status --watch`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{PATIENCE, Vejas, free_address, get};

/// A tick every 50 ms; every message of the second flow fails, and the receiver of the sink is not there.
fn manifests() -> String {
    format!(
        "
apiVersion: vejas/v1
kind: Source
metadata: {{ name: tick }}
spec:
  interval: {{ every: 50ms }}
  to: ticks
---
apiVersion: vejas/v1
kind: Flow
metadata: {{ name: bad }}
spec:
  from: ticks
  steps:
    - map: |
        .n = 1
        .m = to_int!(.slot)
  to: never
---
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: away }}
spec:
  from: ticks
  http:
    url: http://{}/
    breaker: {{ failures: 2, pause: 20s }}
",
        free_address()
    )
}

fn unit(vejas: &Vejas, path: &str) -> Value {
    let (status, body) = get(vejas.api, &format!("/api/v1/units/{path}")).unwrap();
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Asks until the unit is as wanted.
fn unit_when(vejas: &Vejas, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = unit(vejas, path);
        if wanted(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{path} stays {found:#}\n{}", vejas.log());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_unit_tells_rates_lag_breaker_and_where_its_last_error_stands() {
    let mut vejas = Vejas::new(&[("ticks.yaml", &manifests())]);
    vejas.start();

    let source = unit_when(&vejas, "source/tick", |unit| unit["emitted"].as_u64() > Some(60));
    let rate = source["rates"]["emittedPerSecond"].as_f64().unwrap();
    assert!((5.0..60.0).contains(&rate), "a message every 50 ms is about 20 a second, not {rate}");

    let flow = unit_when(&vejas, "flow/bad", |unit| unit["dead"].as_u64() > Some(0));
    assert_eq!(flow["lastError"]["position"], "manifests/ticks.yaml:17:14", "{flow:#}");
    assert!(flow["lastError"]["sequence"].as_u64() > Some(0), "{flow:#}");
    assert!(flow["rates"]["receivedPerSecond"].as_f64() > Some(0.0), "{flow:#}");
    assert_eq!(flow["rates"]["emittedPerSecond"], 0.0);
    assert_eq!(flow["digest"].as_str().map(str::len), Some(12));

    let sink = unit_when(&vejas, "sink/away", |unit| unit["breaker"] == "open");
    assert_eq!(sink["state"], "paused");
    assert!(sink["lag"]["oldestSeconds"].as_f64() > Some(0.0), "{sink:#}");
    assert!(source["breaker"].is_null() && flow["breaker"].is_null());
}

#[test]
fn watching_the_status_survives_a_restart_and_is_plain_when_no_terminal_reads_it() {
    let mut vejas = Vejas::new(&[("ticks.yaml", &manifests())]);
    vejas.start();
    let mut watching = vejas.command(&["status", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |wanted: &str| {
        let mut looks = 0;
        for line in lines.by_ref() {
            assert!(!line.contains('\x1b'), "{line:?}");
            looks += usize::from(line.starts_with("UNIT "));
            if line.contains(wanted) {
                return looks;
            }
            assert!(looks < 30, "{wanted} does not come");
        }
        panic!("the watch ended before {wanted}");
    };
    until("sink/away");
    vejas.kill();
    until("nothing answers at");
    vejas.start();
    until("source/tick");
    until("source/tick");
    watching.kill().unwrap();
    watching.wait().unwrap();
}
