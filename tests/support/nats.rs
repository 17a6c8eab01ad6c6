//! A real nats-server of the test's own: started on free ports with a folder of its own, killed, started again.
//!
//! `tests/services/nats` brings the binary. Without it a test fails; it is never skipped.

#![allow(clippy::disallowed_methods, dead_code)]

#[allow(
    clippy::duplicate_mod,
    reason = "two helpers, each with a range of its own; a test may have one without the other"
)]
#[path = "ports.rs"]
mod ports;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vejas::bus::nats::{Nats, Options};

const VERSION: &str = "2.15.1";
/// How long a server may take to start or to end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("VEJAS_TEST_NATS_SERVER") {
        return named.into();
    }
    let Some(target) = option_env!("CARGO_TARGET_TMPDIR") else { panic!("programs that are no tests name a server") };
    let target = Path::new(target).parent().unwrap();
    let path = target.join(format!("services/nats-server-{VERSION}/bin/nats-server"));
    assert!(path.exists(), "{} is missing: run tests/services/nats first", path.display());
    path
}

fn free_port() -> u16 {
    ports::free_port(10_000..20_000)
}

pub struct Server {
    folder: tempfile::TempDir,
    pub port: u16,
    monitor: u16,
    /// Lines of configuration beside ports and store.
    extra: String,
    name: String,
    child: Option<Child>,
}

impl Server {
    /// Starts one with JetStream and waits until it is ready.
    pub fn start() -> Self {
        Server::with("")
    }

    pub fn with(extra: &str) -> Self {
        let mut server = Server::new("n1", extra);
        server.restart();
        server
    }

    fn new(name: &str, extra: &str) -> Self {
        Server {
            folder: tempfile::tempdir().unwrap(),
            port: free_port(),
            monitor: free_port(),
            extra: extra.to_owned(),
            name: name.to_owned(),
            child: None,
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    pub fn monitor_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitor)
    }

    fn launch(&mut self) {
        assert!(self.child.is_none(), "runs already");
        let store = if self.extra.contains("jetstream") {
            String::new()
        } else {
            format!("jetstream {{ store_dir: \"{}\" }}", self.folder.path().join("store").display())
        };
        let config = format!(
            "server_name: {}\nlisten: 127.0.0.1:{}\nhttp: 127.0.0.1:{}\n{store}\n{}\n",
            self.name, self.port, self.monitor, self.extra
        );
        let path = self.folder.path().join("nats.conf");
        fs::write(&path, config).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let child =
            Command::new(binary()).arg("-c").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.unwrap());
    }

    /// Starts it on what it has stored, and waits until it is ready.
    pub fn restart(&mut self) {
        self.launch();
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.monitored("/healthz").is_some_and(|health| health["status"] == "ok") {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "nats-server did not become ready:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGTERM, and waits for its end.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("runs");
        let status = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
        assert!(status.success());
        child.wait().unwrap();
    }

    /// What the monitoring says, as JSON.
    pub fn monitored(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.monitor)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Connections, subscriptions and consumers that clients hold.
    pub fn held(&self) -> (usize, usize, u64) {
        let connections = self.monitored("/connz?subs=1").unwrap();
        let all = connections["connections"].as_array().unwrap();
        let subscriptions = all.iter().map(|one| one["subscriptions_list"].as_array().map_or(0, Vec::len)).sum();
        (all.len(), subscriptions, self.monitored("/jsz").unwrap()["consumers"].as_u64().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("nats-server {}:\n{}", self.name, self.log());
        }
        self.kill();
    }
}

/// Three servers that form a cluster.
pub struct Cluster {
    pub servers: Vec<Server>,
}

impl Cluster {
    pub fn start() -> Self {
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let routes: Vec<String> = ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let server = |(n, port): (usize, &u16)| {
            let cluster = format!(
                "cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{}], no_advertise: true }}",
                routes.join(", ")
            );
            Server::new(&format!("n{n}"), &cluster)
        };
        let mut servers: Vec<Server> = ports.iter().enumerate().map(server).collect();
        servers.iter_mut().for_each(Server::launch);
        servers.iter_mut().for_each(Server::wait_until_ready);
        Cluster { servers }
    }

    pub fn url(&self) -> String {
        self.servers.iter().map(Server::url).collect::<Vec<_>>().join(",")
    }
}

pub fn options(url: &str) -> Options {
    use std::sync::atomic::{AtomicU64, Ordering};
    static CLIENTS: AtomicU64 = AtomicU64::new(1);
    let process = u128::from(std::process::id()) << 64;
    let seed = process | u128::from(CLIENTS.fetch_add(1, Ordering::Relaxed));
    Options::new(url, seed, Arc::new(vejas::runtime::clock::SystemClock))
}

pub async fn connect(server: &Server) -> Arc<Nats> {
    Nats::connect(options(&server.url())).await.unwrap()
}
