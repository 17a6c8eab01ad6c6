//! Manifests that change while the process runs: what follows takes effect by itself, what cannot keeps what was, and no message
//! is lost or worked on under two versions.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::programs::ledger::{Deliveries, compare, stored_in};
use crate::programs::producers::Producers;
use crate::programs::random::{self, Random};
use crate::programs::receiver::Receiver;
use crate::support::{PATIENCE, Vejas, free_address, get, post, request};

const ENTRANCE: &str = "
apiVersion: vejas/v1
kind: HttpIn
metadata: { name: in }
spec: { path: /in, to: raw }
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

const FILE_SINK: &str = "
apiVersion: vejas/v1
kind: Sink
metadata: { name: out }
spec: { from: done, file: { path: out/done.ndjson } }
";

fn http_sink(url: &str, more: &str) -> String {
    format!(
        "
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: out }}
spec:
  from: done
  retry: {{ backoff: {{ initial: 20ms, max: 200ms }} }}
  http: {{ url: '{url}', concurrency: 8, timeout: 5s, breaker: {{ pause: 100ms, maxPause: 400ms }} {more} }}
"
    )
}

/// Like an editor: whole or not at all.
fn write(vejas: &Vejas, name: &str, text: &str) {
    let hidden = vejas.manifests().join(format!(".{name}"));
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, vejas.manifests().join(name)).unwrap();
}

fn until(vejas: &Vejas, what: &str, done: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = vejas.status();
        if done(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}: {status:#}\n{}", vejas.log());
        thread::sleep(Duration::from_millis(20));
    }
}

fn unit<'s>(status: &'s serde_json::Value, name: &str) -> Option<&'s serde_json::Value> {
    status["units"].as_array().unwrap().iter().find(|unit| unit["unit"] == name)
}

fn set(status: &serde_json::Value) -> u64 {
    status["manifests"]["no"].as_u64().unwrap()
}

fn next_set(vejas: &Vejas, before: u64) -> serde_json::Value {
    until(vejas, "the next set", |status| set(status) > before)
}

fn send(vejas: &Vejas, path: &str, ids: impl IntoIterator<Item = u32>) {
    for id in ids {
        let (key, kind) = (id.to_string(), ("Content-Type", "application/json"));
        let body = format!("{{\"id\":{id}}}");
        let (status, body) =
            request(vejas.ingress, "POST", path, &[("Idempotency-Key", &key), kind], body.as_bytes()).unwrap();
        assert_eq!(status, 200, "{body}");
    }
}

fn lines(vejas: &Vejas, count: usize) -> Vec<String> {
    vejas.wait_for_lines(Path::new("out/done.ndjson"), count)
}

#[test]
fn changed_added_and_removed_manifests_take_effect_without_a_restart() {
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", FILE_SINK)]);
    vejas.start();
    let pid = vejas.pid();
    send(&vejas, "/in", [1]);
    assert_eq!(lines(&vejas, 1), [r#"{"id":1,"v":1}"#]);

    let before = set(&vejas.status());
    write(&vejas, "flow.yaml", &flow("[raw, more]", ".v = 2"));
    write(
        &vejas,
        "more.yaml",
        &ENTRANCE.replace("name: in", "name: more").replace("/in", "/more").replace("raw", "more"),
    );
    let status = next_set(&vejas, before);
    until(&vejas, "the new entrance", |status| {
        unit(status, "http-in/more").is_some_and(|unit| unit["state"] == "running")
    });
    assert!(status["manifests"]["revision"].as_str().unwrap().len() == 64);
    send(&vejas, "/in", [2]);
    send(&vejas, "/more", [3]);
    let mut found = lines(&vejas, 3);
    found.sort();
    assert_eq!(found, [r#"{"id":1,"v":1}"#, r#"{"id":2,"v":2}"#, r#"{"id":3,"v":2}"#]);

    let before = set(&vejas.status());
    fs::remove_file(vejas.manifests().join("more.yaml")).unwrap();
    let status = next_set(&vejas, before);
    assert!(unit(&status, "http-in/more").is_none());
    assert_eq!(post(vejas.ingress, "/more", "{}").0, 404);
    send(&vejas, "/in", [4]);
    assert_eq!(lines(&vejas, 4)[3], r#"{"id":4,"v":2}"#);
    assert_eq!(vejas.pid(), pid);
    assert!(vejas.stop().success());
}

#[test]
fn a_table_beside_a_manifest_changes_the_flows_that_look_into_it() {
    let table = "
apiVersion: vejas/v1
kind: Table
metadata: { name: names }
spec: { file: { path: names.csv, key: id } }
";
    let looking = flow("raw", "unused")
        .replace("{ map: 'unused' }", "{ lookup: { table: names, key: 'to_string!(.id)', into: found } }");
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &looking), ("sink.yaml", FILE_SINK), ("t.yaml", table)]);
    write(&vejas, "names.csv", "id,name\n1,one\n2,two\n");
    vejas.start();
    send(&vejas, "/in", [1]);
    assert!(lines(&vejas, 1)[0].contains("one"));
    let before = set(&vejas.status());
    write(&vejas, "names.csv", "id,name\n1,uno\n2,due\n");
    next_set(&vejas, before);
    send(&vejas, "/in", [2]);
    assert!(lines(&vejas, 2)[1].contains("due"));
}

#[test]
fn a_bad_manifest_keeps_its_last_good_version_and_is_shown_with_its_position() {
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", FILE_SINK)]);
    vejas.start();
    // One that cannot compile, one that cannot be read at all, one whose kind cannot be told: the unit runs on.
    let broken = [
        (flow("raw", ".v = uppercase(.id)"), "flow.yaml:5:"),
        ("{ this is: [no yaml".to_owned(), "flow.yaml:1:"),
        (flow("raw", ".v = 1").replace("kind: Flow", "kind: Flwo"), "flow.yaml:3:"),
    ];
    for (id, (text, place)) in (1..).zip(broken) {
        write(&vejas, "flow.yaml", &text);
        let status = until(&vejas, place, |status| {
            let error = unit(status, "flow/work").unwrap()["lastError"]["message"].as_str().unwrap_or_default();
            let kept = status["manifests"]["kept"].as_array().unwrap().iter().any(|kept| kept == "flow/work");
            kept && error.contains(place) && status["manifests"]["problems"].to_string().contains(place)
        });
        let work = unit(&status, "flow/work").unwrap();
        assert_eq!(work["state"], "running", "{work}");
        assert!(status["warnings"].to_string().contains(place), "{}", status["warnings"]);
        assert_eq!(get(vejas.api, "/readyz").unwrap().0, 200);
        send(&vejas, "/in", [id]);
        lines(&vejas, id as usize);
    }
    // Also after a restart: what is broken runs on in the version that the store has.
    assert!(vejas.stop().success());
    vejas.start();
    let status = vejas.status();
    assert_eq!(unit(&status, "flow/work").unwrap()["state"], "running");
    send(&vejas, "/in", [4]);
    lines(&vejas, 4);

    write(&vejas, "flow.yaml", &flow("raw", ".v = 2"));
    let status = until(&vejas, "the mended flow", |status| status["manifests"]["errors"] == 0 && set(status) > 1);
    assert!(unit(&status, "flow/work").unwrap()["lastError"].is_null());
    send(&vejas, "/in", [5]);
    let found = lines(&vejas, 5);
    let versions: Vec<_> = found.iter().map(|line| line.contains("\"v\":1")).collect();
    assert_eq!(versions, [true, true, true, true, false]);
}

#[test]
fn an_empty_or_missing_folder_removes_nothing() {
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", FILE_SINK)]);
    vejas.environment("VEJAS_CHECK_INTERVAL", "300ms").start();
    let away = vejas.folder.path().join("away");
    fs::rename(vejas.manifests(), &away).unwrap();
    until(&vejas, "the missing folder", |status| status["manifests"]["errors"] == 1);
    send(&vejas, "/in", [1]);
    lines(&vejas, 1);
    fs::create_dir(vejas.manifests()).unwrap();
    let status = until(&vejas, "the empty folder", |status| status["manifests"]["errors"] == 0);
    assert_eq!(status["manifests"]["kept"].as_array().unwrap().len(), 3, "{status:#}");
    send(&vejas, "/in", [2]);
    lines(&vejas, 2);
    assert!(vejas.stop().success());
    vejas.start();
    assert_eq!(unit(&vejas.status(), "flow/work").unwrap()["state"], "running", "from the store");

    fs::remove_dir(vejas.manifests()).unwrap();
    fs::rename(&away, vejas.manifests()).unwrap();
    // What was read is shown a moment before what came of it.
    let status = until(&vejas, "the folder that is back", |status| {
        status["manifests"]["documents"] == 3 && status["manifests"]["kept"] == serde_json::json!([])
    });
    assert_eq!(status["manifests"]["kept"].as_array().unwrap().len(), 0);
    send(&vejas, "/in", [3]);
    lines(&vejas, 3);
}

#[test]
fn a_folder_of_links_that_is_swapped_as_a_whole_is_followed() {
    // As a ConfigMap is mounted: the files are links through `..data`, which is exchanged.
    let mut vejas = Vejas::new(&[]);
    for (version, folder) in [(1, "..one"), (2, "..two")] {
        let folder = vejas.manifests().join(folder);
        fs::create_dir(&folder).unwrap();
        fs::write(
            folder.join("all.yaml"),
            format!("{ENTRANCE}---{}---{FILE_SINK}", flow("raw", &format!(".v = {version}"))),
        )
        .unwrap();
    }
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, vejas.manifests().join(name)).unwrap();
    link("..one", "..data");
    link("..data/all.yaml", "all.yaml");
    link("..two", "..next");
    vejas.start();
    let before = set(&vejas.status());
    fs::rename(vejas.manifests().join("..next"), vejas.manifests().join("..data")).unwrap();
    next_set(&vejas, before);
    send(&vejas, "/in", [1]);
    assert_eq!(lines(&vejas, 1), [r#"{"id":1,"v":2}"#]);
}

#[test]
fn a_removed_unit_says_how_many_messages_wait_and_works_on_them_when_it_is_back() {
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", FILE_SINK)]);
    vejas.start();
    send(&vejas, "/in", [1]);
    lines(&vejas, 1);
    fs::remove_file(vejas.manifests().join("flow.yaml")).unwrap();
    until(&vejas, "the removal", |status| unit(status, "flow/work").unwrap()["state"] == "parked");
    send(&vejas, "/in", [2, 3]);
    assert!(vejas.stop().success());
    vejas.start();
    let status = until(&vejas, "the parked unit", |status| unit(status, "flow/work").is_some());
    let work = unit(&status, "flow/work").unwrap();
    assert_eq!(work["state"], "parked");
    assert!(work["reason"].as_str().unwrap().contains("2 messages"), "{work}");
    assert_eq!(get(vejas.api, "/readyz").unwrap().0, 200);

    write(&vejas, "flow.yaml", &flow("raw", ".v = 2"));
    let mut found = lines(&vejas, 3);
    found.sort();
    assert_eq!(found, [r#"{"id":1,"v":1}"#, r#"{"id":2,"v":2}"#, r#"{"id":3,"v":2}"#]);
}

#[test]
fn purge_gives_up_what_waits_for_a_unit_and_nothing_else() {
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", FILE_SINK)]);
    vejas.start();
    send(&vejas, "/in", [1]);
    lines(&vejas, 1);
    let purge = |unit: &str| {
        let output = vejas.command(&["purge", unit, "--yes"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    };
    // Of a unit that runs: it goes on behind what was given up.
    assert_eq!(purge("sink/out"), (Some(0), "sink/out: 0 messages given up\n".to_owned()));
    send(&vejas, "/in", [2]);
    lines(&vejas, 2);
    fs::remove_file(vejas.manifests().join("flow.yaml")).unwrap();
    until(&vejas, "the removal", |status| unit(status, "flow/work").unwrap()["state"] == "parked");
    send(&vejas, "/in", [3, 4]);
    assert_eq!(purge("flow/work"), (Some(0), "flow/work: 2 messages given up\n".to_owned()));
    until(&vejas, "the end of the unit", |status| unit(status, "flow/work").is_none());
    let (code, text) = purge("flow/none");
    assert!(code != Some(0) && text.contains("flow/none"), "{text}");

    write(&vejas, "flow.yaml", &flow("raw", ".v = 2"));
    until(&vejas, "its return", |status| unit(status, "flow/work").is_some());
    send(&vejas, "/in", [5]);
    assert_eq!(lines(&vejas, 3)[2], r#"{"id":5,"v":2}"#);
}

/// A receiver whose deliveries are kept with their order.
struct Noted {
    receiver: Receiver,
    keys: Arc<Mutex<Vec<String>>>,
}

impl Noted {
    fn start(wait: Duration) -> Self {
        let keys: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&keys);
        let receiver = Receiver::start(None, move |delivery| {
            noted.lock().unwrap().push(delivery.key.unwrap_or_default());
            thread::sleep(wait);
        });
        Noted { receiver: receiver.unwrap(), keys }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.receiver.address)
    }

    fn count(&self) -> usize {
        let keys = self.keys.lock().unwrap();
        keys.iter().collect::<std::collections::BTreeSet<_>>().len()
    }

    fn wait_for(&self, vejas: &Vejas, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.count() < count {
            assert!(Instant::now() < deadline, "{} of {count}: {:#}\n{}", self.count(), vejas.status(), vejas.log());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_corrected_address_reaches_the_whole_backlog_at_once() {
    let noted = Noted::start(Duration::ZERO);
    let dead = format!("http://{}/", free_address());
    let mut vejas = Vejas::new(&[
        ("in.yaml", ENTRANCE),
        ("flow.yaml", &flow("raw", ".v = 1")),
        ("sink.yaml", &http_sink(&dead, "")),
    ]);
    vejas.start();
    send(&vejas, "/in", 0..3_000);
    until(&vejas, "the open breaker", |status| unit(status, "sink/out").unwrap()["state"] == "paused");
    write(&vejas, "sink.yaml", &http_sink(&noted.url(), ""));
    let began = Instant::now();
    noted.wait_for(&vejas, 3_000);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let sink = until(&vejas, "the end of the backlog", |status| {
        let lag = &unit(status, "sink/out").unwrap()["lag"];
        lag["pending"] == 0 && lag["inFlight"] == 0 && lag["redelivering"] == 0
    });
    assert_eq!(unit(&sink, "sink/out").unwrap()["dead"], 0);
}

#[test]
fn what_is_moved_keeps_the_subject_it_came_under() {
    let sink = |folder: &str| FILE_SINK.replace("out/done.ndjson", &format!("'{folder}/{{subject}}.ndjson'"));
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", &sink("blocked"))]);
    // The sink's folder is a file: nothing can be delivered.
    fs::write(vejas.folder.path().join("blocked"), "").unwrap();
    vejas.start();
    send(&vejas, "/in", [1]);
    until(&vejas, "the failure", |status| !unit(status, "sink/out").unwrap()["lastError"].is_null());
    write(&vejas, "sink.yaml", &sink("out"));
    assert_eq!(lines(&vejas, 1), [r#"{"id":1,"v":1}"#]);
}

#[test]
fn a_taken_port_is_said_and_tried_again_and_changes_nothing_else() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", FILE_SINK)]);
    vejas.environment("VEJAS_CHECK_INTERVAL", "300ms").start();
    let other = ENTRANCE.replace("name: in", "name: other").replace("path:", &format!("listen: '{address}', path:"));
    write(&vejas, "other.yaml", &other);
    write(&vejas, "flow.yaml", &flow("raw", ".v = 2"));
    let status = until(&vejas, "the failure", |status| !status["manifests"]["failure"].is_null());
    assert!(status["manifests"]["failure"].as_str().unwrap().contains(&address.to_string()), "{status:#}");
    assert_eq!(unit(&status, "http-in/other").unwrap()["state"], "failed");
    send(&vejas, "/in", [1]);
    assert_eq!(lines(&vejas, 1), [r#"{"id":1,"v":2}"#], "what reads follows all the same");
    drop(taken);
    until(&vejas, "the port", |status| status["manifests"]["failure"].is_null());
    assert_eq!(post(address, "/in", r#"{"id":2}"#).0, 200);
    lines(&vejas, 2);
}

#[test]
fn a_strict_process_takes_nothing_of_a_set_with_an_error() {
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", FILE_SINK)]);
    vejas.environment("VEJAS_STRICT", "1").start();
    write(&vejas, "sink.yaml", "kind: [");
    write(&vejas, "flow.yaml", &flow("raw", ".v = 2"));
    until(&vejas, "the refusal", |status| status["manifests"]["failure"].to_string().contains("strict"));
    send(&vejas, "/in", [1]);
    assert_eq!(lines(&vejas, 1), [r#"{"id":1,"v":1}"#]);
}

#[test]
fn what_a_version_had_begun_before_a_kill_stays_its_own_after_it() {
    // It takes the message, and the process dies before it answers.
    let old = Noted::start(Duration::from_millis(1_500));
    let new = Noted::start(Duration::ZERO);
    let mut vejas = Vejas::new(&[
        ("in.yaml", ENTRANCE),
        ("flow.yaml", &flow("raw", ".v = 1")),
        ("sink.yaml", &http_sink(&old.url(), "")),
    ]);
    vejas.start();
    send(&vejas, "/in", 0..4);
    old.wait_for(&vejas, 4);
    vejas.kill();
    write(&vejas, "sink.yaml", &http_sink(&new.url(), ""));
    vejas.start();
    send(&vejas, "/in", 4..8);
    new.wait_for(&vejas, 4);
    until(&vejas, "all that was begun", |status| {
        let sink = unit(status, "sink/out").unwrap();
        old.keys.lock().unwrap().len() >= 8 && sink["lag"]["inFlight"] == 0 && sink["lag"]["redelivering"] == 0
    });
    let (old, new) = (old.keys.lock().unwrap(), new.keys.lock().unwrap());
    assert!(new.iter().all(|key| !old.contains(key)), "one message, two versions: {old:?} {new:?}");
    assert_eq!((old.len(), new.len()), (8, 4));
}

#[test]
fn a_sink_that_keeps_order_changes_without_mixing_the_messages_of_a_key() {
    let noted = Noted::start(Duration::from_millis(2));
    let sink = |turn: u32| {
        let ordered = http_sink(&noted.url(), &format!(", rateLimit: {}/s", 4_000 + turn));
        format!("{ordered}  orderBy: to_string(mod!(to_int!(.id), 5))\n")
    };
    let mut vejas =
        Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow("raw", ".v = 1")), ("sink.yaml", &sink(0))]);
    vejas.start();
    for round in 0..6_u32 {
        send(&vejas, "/in", round * 50..round * 50 + 50);
        write(&vejas, "sink.yaml", &sink(round + 1));
    }
    noted.wait_for(&vejas, 300);
    // A repeat may come any time; the first deliveries of a key are in order.
    let mut last: std::collections::BTreeMap<u32, u32> = std::collections::BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for key in noted.keys.lock().unwrap().iter().filter(|key| seen.insert((*key).clone())) {
        let id: u32 = key.strip_prefix("sink/out/").unwrap().parse().unwrap();
        assert!(last.insert(id % 5, id).is_none_or(|before| before < id), "{id} came late");
    }
}

/// One random change of the files.
fn change(vejas: &Vejas, random: &mut Random, receivers: &[String], dead: &str, turn: u64) {
    match random.below(10) {
        0 => write(vejas, "flow.yaml", "kind: [broken"),
        1 => _ = fs::remove_file(vejas.manifests().join("flow.yaml")),
        2 => _ = fs::remove_file(vejas.manifests().join("sink.yaml")),
        3 => write(vejas, "sink.yaml", &http_sink(dead, "")),
        4 => write(vejas, "flow.yaml", &flow("[raw, more]", &format!(".v = {turn}"))),
        5 | 6 => write(vejas, "flow.yaml", &flow("raw", &format!(".v = {turn}"))),
        7 => {
            write(vejas, "extra.yaml", &FILE_SINK.replace("name: out", "name: extra"));
        }
        8 => _ = fs::remove_file(vejas.manifests().join("extra.yaml")),
        _ => {
            let url = &receivers[random.below(receivers.len() as u64) as usize];
            write(vejas, "sink.yaml", &http_sink(url, &format!(", rateLimit: {}/s", 100_000 + turn)));
        }
    }
}

#[test]
fn reloads_under_load_with_random_changes_lose_nothing() {
    let full = std::env::var_os("VEJAS_TEST_FULL").is_some();
    let (reloads, per_reload) = if full { (100, 300) } else { (25, 100) };
    let seed = random::seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let deliveries = Arc::new(Deliveries::default());
    let receivers: Vec<Receiver> = (0..2)
        .map(|_| {
            let noted = Arc::clone(&deliveries);
            Receiver::start(None, move |delivery| noted.took(delivery)).unwrap()
        })
        .collect();
    let urls: Vec<String> = receivers.iter().map(|receiver| format!("http://{}/", receiver.address)).collect();
    // Bound and never read: calls to it fail by time alone. Kept to the end.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead: SocketAddr = silent.local_addr().unwrap();
    let dead = format!("http://{dead}/");
    let mut vejas = Vejas::new(&[
        ("in.yaml", ENTRANCE),
        ("flow.yaml", &flow("raw", ".v = 0")),
        ("sink.yaml", &http_sink(&urls[0], "")),
    ]);
    vejas.start();
    let body = |_: u64, id: &str| format!("{{\"id\":\"{id}\"}}").into_bytes();
    let producers = Producers::start(&[vejas.ingress], "/in", 4, "r", body).unwrap();
    for turn in 1..=reloads {
        producers.allow(per_reload);
        change(&vejas, &mut random, &urls, &dead, turn);
        thread::sleep(Duration::from_millis(random.below(700)));
    }
    let deadline = Instant::now() + PATIENCE;
    while !producers.is_idle() {
        assert!(Instant::now() < deadline, "the producers are stuck: {:#}", vejas.status());
        thread::sleep(Duration::from_millis(20));
    }
    let sent = producers.end().unwrap();
    write(&vejas, "flow.yaml", &flow("raw", ".v = 1"));
    write(&vejas, "sink.yaml", &http_sink(&urls[1], ""));
    let began = Instant::now();
    while deliveries.distinct() < sent.acknowledged.len() {
        let waited = began.elapsed();
        assert!(
            waited < PATIENCE,
            "{} of {}: {:#}\n{}",
            deliveries.distinct(),
            sent.acknowledged.len(),
            vejas.status(),
            vejas.log()
        );
        thread::sleep(Duration::from_millis(20));
    }
    println!("{reloads} reloads, {} messages, drained in {:?}", sent.acknowledged.len(), began.elapsed());
    // Changes that follow each other closely are one, and some change nothing.
    assert!(set(&vejas.status()) > reloads / 10, "the changes took effect");
    assert!(vejas.stop().success());
    let stored = stored_in(&vejas.data()).unwrap();
    let found = compare(&sent, &stored, &["raw", "done"], &deliveries);
    assert_eq!((found.lost, found.duplicated_bus, found.foreign), (0, 0, 0), "{:?}", found.examples);
    println!("duplicated at the sink: {}", found.duplicated_sink);
    drop(silent);
}
