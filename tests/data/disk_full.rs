//! A disk without room, a real one: a small tmpfs under the real binary. New input is refused, everything else goes on.
//!
//! Mounting needs root. Without it the test runs itself again in a user and mount namespace of its own.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Vejas, post, request};

/// The bus refuses messages below 64 MiB of free space; half of that is for settlements.
const MOUNT_MIB: u64 = 160;
const FREE_MIB: u64 = 48;

/// Takes it off again at the end, however the test ends.
struct Mount(PathBuf);

impl Mount {
    fn new(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).unwrap();
        let size = format!("size={MOUNT_MIB}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Mount(at))
    }

    /// Fills the disk but for so many MiB.
    fn fill_but(&self, free_mib: u64) {
        let mut ballast = fs::File::create(self.0.join("ballast")).unwrap();
        let mib = vec![7; 1 << 20];
        while free(&self.0) > free_mib << 20 {
            if ballast.write_all(&mib).is_err() {
                break;
            }
        }
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a process that still ends may hold it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn free(path: &Path) -> u64 {
    let output = Command::new("df").args(["-B1", "--output=avail"]).arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().nth(1).unwrap().trim().parse().unwrap()
}

/// Runs this test once more where mounting is allowed.
fn in_a_namespace(test: &str) {
    assert!(std::env::var("VEJAS_TEST_NAMESPACE").is_err(), "a mount is refused inside of a namespace, too");
    let again = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("VEJAS_TEST_NAMESPACE", "1")
        .status();
    let hint = "this test mounts a tmpfs: run it as root, or allow `unshare --user --mount`";
    assert!(again.is_ok_and(|status| status.success()), "{hint}");
}

/// Answers 503 until it is told to take messages; then keeps their ids.
struct Receiver {
    address: SocketAddr,
    takes: AtomicBool,
    got: Mutex<BTreeSet<String>>,
}

fn receiver() -> Arc<Receiver> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let receiver = Arc::new(Receiver { address, takes: AtomicBool::new(false), got: Mutex::default() });
    let told = Arc::clone(&receiver);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let told = Arc::clone(&told);
            std::thread::spawn(move || serve(&connection, &told));
        }
    });
    receiver
}

fn serve(connection: &TcpStream, receiver: &Receiver) -> Option<()> {
    let mut reader = BufReader::new(connection.try_clone().ok()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let takes = receiver.takes.load(Ordering::SeqCst);
        if takes {
            let body: serde_json::Value = serde_json::from_slice(&body).ok()?;
            receiver.got.lock().unwrap().insert(body["id"].as_str()?.to_owned());
        }
        let status = if takes { "200 OK" } else { "503 Service Unavailable" };
        let mut connection = connection;
        connection.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).ok()?;
    }
}

fn manifests(receiver: SocketAddr) -> String {
    format!(
        "
apiVersion: vejas/v1
kind: HttpIn
metadata: {{ name: in }}
spec: {{ path: /in, to: full.in }}
---
apiVersion: vejas/v1
kind: Flow
metadata: {{ name: mark }}
spec: {{ from: full.in, steps: [ {{ map: .seen = true }} ], to: full.out }}
---
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: out }}
spec: {{ from: full.out, http: {{ url: 'http://{receiver}/' }} }}
"
    )
}

fn until(vejas: &Vejas, what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}:\n{}", vejas.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_full_disk_refuses_input_lets_work_go_on_and_is_over_when_there_is_room() {
    let receiver = receiver();
    let mut vejas = Vejas::new(&[("m.yaml", &manifests(receiver.address))]);
    let Some(mount) = Mount::new(vejas.folder.path().join("disk")) else {
        return in_a_namespace("disk_full::a_full_disk_refuses_input_lets_work_go_on_and_is_over_when_there_is_room");
    };
    vejas.environment("VEJAS_DATA_DIR", &mount.0.join("data").display().to_string());
    vejas.start();
    let mut acknowledged = BTreeSet::new();
    let body = |id: &str| format!("{{\"id\":\"{id}\",\"pad\":\"{}\"}}", "x".repeat(2000));
    let mut send = |vejas: &Vejas, id: String| {
        let answer = post(vejas.ingress, "/in", &body(&id));
        if answer.0 == 200 {
            acknowledged.insert(id);
        }
        answer
    };
    for n in 0..200 {
        assert_eq!(send(&vejas, format!("before-{n}")).0, 200);
    }

    mount.fill_but(FREE_MIB);
    // What the bus knows of the disk may be a second old.
    std::thread::sleep(Duration::from_millis(1100));
    for n in 0..20 {
        let (status, body) = send(&vejas, format!("refused-{n}"));
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("disk"), "{body}");
    }
    let (status, reasons) = request(vejas.api, "GET", "/readyz", &[], b"").unwrap();
    assert!(status == 503 && reasons.contains("free"), "{status} {reasons}");
    // The receiver comes back, and everything that was taken is worked off although the disk is full.
    receiver.takes.store(true, Ordering::SeqCst);
    until(&vejas, "the backlog is not worked off", || receiver.got.lock().unwrap().len() == 200);
    assert_eq!(send(&vejas, "still-refused".to_owned()).0, 503);

    mount.empty();
    until(&vejas, "it does not recover", || post(vejas.ingress, "/in", &body("after")).0 == 200);
    acknowledged.insert("after".to_owned());
    until(&vejas, "lost", || receiver.got.lock().unwrap().is_superset(&acknowledged));

    // To the last byte: nothing can be written any more, and nothing that was answered is lost by it.
    receiver.takes.store(false, Ordering::SeqCst);
    let mut send = |vejas: &Vejas, id: String| {
        let sent = request(vejas.ingress, "POST", "/in", &[("Content-Type", "application/json")], body(&id).as_bytes());
        let taken = sent.is_ok_and(|(status, _)| status == 200);
        if taken {
            acknowledged.insert(id);
        }
    };
    for n in 0..50 {
        send(&vejas, format!("last-{n}"));
    }
    mount.fill_but(0);
    receiver.takes.store(true, Ordering::SeqCst);
    for n in 0..50 {
        send(&vejas, format!("none-{n}"));
    }
    // It goes on as long as what it has to write fits into what it has, and otherwise ends and says why.
    if !post_ready(&vejas) {
        vejas.wait();
        assert!(vejas.log().contains("writing to disk failed"), "{}", vejas.log());
        mount.empty();
        vejas.start();
    } else {
        mount.empty();
    }
    until(&vejas, "lost on a disk without a byte", || receiver.got.lock().unwrap().is_superset(&acknowledged));
    assert!(vejas.stop().success());
}

/// Whether the process still answers.
fn post_ready(vejas: &Vejas) -> bool {
    std::thread::sleep(Duration::from_secs(2));
    request(vejas.api, "GET", "/healthz", &[], b"").is_ok()
}
