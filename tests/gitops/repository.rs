//! A repository made by git itself, a server for it, and a binary that follows it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{PATIENCE, Vejas, free_address, get};

/// How often the binary looks; long enough that a test of the webhook cannot pass by it.
pub const NEVER: &str = "1h";
pub const OFTEN: &str = "500ms";

pub const ENTRANCE: &str = "apiVersion: vejas/v1
kind: HttpIn
metadata: { name: in }
spec: { path: /in, to: raw }
";

pub const SINK: &str = "apiVersion: vejas/v1
kind: Sink
metadata: { name: out }
spec: { from: done, file: { path: out/done.ndjson } }
";

pub fn flow(program: &str) -> String {
    format!(
        "apiVersion: vejas/v1
kind: Flow
metadata: {{ name: work }}
spec: {{ from: raw, steps: [ {{ map: '{program}' }} ], to: done }}
"
    )
}

/// A work tree with its repository.
pub struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    /// Empty, on branch `main`.
    pub fn empty() -> Self {
        let repository = Repository { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(repository.path()).unwrap();
        repository.git(&["init", "-q", "-b", "main"]);
        repository
    }

    /// With an entrance, a flow that sets `v`, and a sink, in the folder `m`.
    pub fn new() -> Self {
        let repository = Repository::empty();
        repository.write("m/in.yaml", ENTRANCE);
        repository.write("m/flow.yaml", &flow(".v = 1"));
        repository.write("m/sink.yaml", SINK);
        repository.commit("first");
        repository
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("repo")
    }

    pub fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false"])
            .args(["-c", "protocol.file.allow=always"])
            .args(arguments)
            .current_dir(self.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Commits all that is there; answers the commit.
    pub fn commit(&self, subject: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", subject]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Serves it with git's own server until dropped.
    pub fn serve(&self) -> Served {
        let address = free_address();
        // Not by way of `git`, whose child would outlive it.
        let folder = Command::new("git").arg("--exec-path").output().unwrap().stdout;
        let daemon = PathBuf::from(String::from_utf8(folder).unwrap().trim()).join("git-daemon");
        let child = Command::new(daemon)
            .args(["--reuseaddr", "--export-all", "--listen=127.0.0.1"])
            .arg(format!("--port={}", address.port()))
            .arg(format!("--base-path={}", self.folder.path().display()))
            .arg(self.folder.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let served = Served { child, url: format!("git://{address}/repo") };
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "git daemon does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        served
    }
}

pub struct Served {
    child: Child,
    pub url: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A binary without manifests of its own that follows `url`.
pub fn follower(url: &str, interval: &str) -> Vejas {
    let mut vejas = Vejas::new(&[]);
    fs::remove_dir(vejas.manifests()).unwrap();
    vejas
        .environment("VEJAS_GIT_URL", url)
        .environment("VEJAS_GIT_PATH", "m")
        .environment("VEJAS_GIT_INTERVAL", interval)
        .environment("VEJAS_GIT_TIMEOUT", "2s");
    vejas
}

pub fn of(repository: &Repository) -> Vejas {
    follower(&format!("file://{}", repository.path().display()), OFTEN)
}

pub fn ask(api: SocketAddr, path: &str) -> Value {
    let (status, body) = get(api, path).unwrap();
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

pub fn revisions(vejas: &Vejas) -> Value {
    ask(vejas.api, "/api/v1/revisions")
}

/// Waits until what is published, or how the repository stands, is so.
pub fn until(vejas: &Vejas, what: &str, done: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The API answers before the bus is all there.
        let (status, body) = get(vejas.api, "/api/v1/revisions").unwrap();
        let found: Value = serde_json::from_str(&body).unwrap();
        if status == 200 && done(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}: {found:#}\n{}", vejas.log());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the repository is refused or cannot be read, for this reason.
pub fn until_not_synced(vejas: &Vejas, state: &str, reason: &str) -> Value {
    until(vejas, reason, |found| {
        found["sync"]["state"] == state && found["sync"]["reason"].as_str().is_some_and(|text| text.contains(reason))
    })
}

pub fn is_at(found: &Value, commit: &str) -> bool {
    found["publication"]["commit"] == commit && found["converged"] == true && found["sync"]["state"] == "synced"
}

/// Runs the command line against the binary: what it printed, and its exit code.
pub fn command(vejas: &Vejas, arguments: &[&str]) -> (String, i32) {
    let output = vejas.command(arguments).env("USER", "ada").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.code().unwrap_or(-1))
}

pub fn lines(vejas: &Vejas, count: usize) -> Vec<String> {
    vejas.wait_for_lines(Path::new("out/done.ndjson"), count)
}
