//! SIGTERM, twice; a second process; a port that is taken.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::{Vejas, get};

const SLOW_SINK: &str = "
apiVersion: vejas/v1
kind: Source
metadata: { name: tick }
spec:
  interval: { every: 50ms }
  to: ticks
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: out }
spec:
  from: ticks
  file: { path: out/ticks.ndjson }
";

#[test]
fn sigterm_drains_and_ends_with_0() {
    let mut vejas = Vejas::new(&[("ticks.yaml", SLOW_SINK)]);
    vejas.start();
    vejas.wait_for_lines("out/ticks.ndjson".as_ref(), 5);
    let exit = vejas.stop();
    assert_eq!(exit.code(), Some(0), "{}", vejas.log());
    // Ended in order: the next start finds nothing in doubt and goes on at the next slot.
    vejas.start();
    let lines = vejas.wait_for_lines("out/ticks.ndjson".as_ref(), 15);
    let mut unique = lines.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), lines.len(), "a slot was delivered twice over a clean restart");
}

#[test]
fn a_second_process_on_the_same_data_folder_is_refused_with_the_pid_of_the_first() {
    let mut vejas = Vejas::new(&[("ticks.yaml", SLOW_SINK)]);
    vejas.start();
    let output = vejas.command(&["run"]).env("VEJAS_HTTP_ADDR", "127.0.0.1:0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(text.contains(&vejas.pid().to_string()), "{text}");
    assert!(text.contains("VEJAS_DATA_DIR"), "{text}");
}

#[test]
fn a_port_that_is_taken_ends_the_start_and_names_the_address() {
    let mut vejas = Vejas::new(&[("ticks.yaml", SLOW_SINK)]);
    let taken = TcpListener::bind(vejas.api).unwrap();
    vejas.launch();
    let exit = vejas.wait();
    assert!(!exit.success());
    assert!(vejas.log().contains(&vejas.api.to_string()), "{}", vejas.log());
    drop(taken);
}

#[test]
fn a_stopping_process_is_not_ready_and_a_second_signal_ends_it_at_once() {
    // A receiver that never answers keeps the drain busy.
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let manifest = SLOW_SINK.replace(
        "file: { path: out/ticks.ndjson }",
        &format!("http: {{ url: 'http://{}', timeout: 300s }}", receiver.local_addr().unwrap()),
    );
    let mut vejas = Vejas::new(&[("ticks.yaml", &manifest)]);
    vejas.start();
    let (connection, _) = receiver.accept().unwrap();
    vejas.signal("TERM");
    let deadline = Instant::now() + Duration::from_secs(10);
    while get(vejas.api, "/readyz").is_ok_and(|(status, _)| status == 200) {
        assert!(Instant::now() < deadline, "still ready after SIGTERM");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Later than an echo of the first one could be.
    std::thread::sleep(Duration::from_millis(100));
    let before = Instant::now();
    vejas.signal("TERM");
    let exit = vejas.wait();
    assert!(before.elapsed() < Duration::from_secs(5), "the second signal did not end it at once");
    assert!(!exit.success());
    drop(connection);
}
