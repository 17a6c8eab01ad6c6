//! The real binary in a folder of its own, for tests that start, watch and kill it.

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
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long the binary may take to become ready, or to end, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with manifests and data, and the process that runs on it, if one does.
pub struct Vejas {
    pub folder: tempfile::TempDir,
    pub api: SocketAddr,
    pub ingress: SocketAddr,
    child: Option<Child>,
    environment: Vec<(String, String)>,
}

/// An address nobody listens on now.
pub fn free_address() -> SocketAddr {
    ([127, 0, 0, 1], ports::free_port(20_000..32_000)).into()
}

impl Vejas {
    /// Writes the manifests, `name` and text each, into a new folder. Starts nothing.
    pub fn new(manifests: &[(&str, &str)]) -> Self {
        let vejas = Vejas {
            folder: tempfile::tempdir().unwrap(),
            api: free_address(),
            ingress: free_address(),
            child: None,
            environment: Vec::new(),
        };
        fs::create_dir(vejas.manifests()).unwrap();
        for (name, text) in manifests {
            fs::write(vejas.manifests().join(name), text).unwrap();
        }
        vejas
    }

    pub fn environment(&mut self, name: &str, value: &str) -> &mut Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vejas"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("VEJAS_DATA_DIR", self.data())
            .env("VEJAS_HTTP_ADDR", self.api.to_string())
            .env("VEJAS_INGRESS_ADDR", self.ingress.to_string())
            .env("VEJAS_SERVER", format!("http://{}", self.api))
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts `vejas run` and waits until it is ready.
    pub fn start(&mut self) -> &mut Self {
        self.launch();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                panic!("vejas ended with {status} instead of becoming ready:\n{}", self.log());
            }
            if get(self.api, "/readyz").is_ok_and(|(status, _)| status == 200) {
                return self;
            }
            assert!(Instant::now() < deadline, "vejas did not become ready:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts `vejas run` and waits for nothing.
    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "runs already");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let output = fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("stdout")).unwrap();
        let child = self.command(&["run"]).stdin(Stdio::null()).stdout(output).stderr(log).spawn().unwrap();
        self.child = Some(child);
    }

    /// Waits until the API answers, ready or not.
    pub fn wait_for_api(&self) {
        let deadline = Instant::now() + PATIENCE;
        while get(self.api, "/healthz").is_err() {
            assert!(Instant::now() < deadline, "the API does not answer:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// It was started and nobody has seen it end.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// SIGKILL: no warning, no clean-up.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// SIGTERM, and the exit status.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().unwrap();
        if status.is_some() {
            self.child = None;
        }
        status
    }

    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                self.child = None;
                return status;
            }
            assert!(Instant::now() < deadline, "vejas did not end:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn status(&self) -> serde_json::Value {
        let (status, body) = get(self.api, "/api/v1/status").unwrap();
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Waits until a file sink wrote this many lines below the folder. A line may be there twice after a kill.
    pub fn wait_for_lines(&self, file: &Path, count: usize) -> Vec<String> {
        self.wait_until_lines(file, |lines| lines.len() >= count)
    }

    /// Waits until the lines that a file sink wrote below the folder are as wanted.
    pub fn wait_until_lines(&self, file: &Path, wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        let path = self.folder.path().join(file);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            if text.ends_with('\n') && wanted(&lines) {
                return lines;
            }
            assert!(Instant::now() < deadline, "{} has {} lines:\n{}", path.display(), lines.len(), self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Vejas {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One request on a connection of its own: status and body.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let incomplete = || std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "incomplete answer");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(incomplete)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(incomplete)?;
    Ok((status, body.to_owned()))
}

pub fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    request(address, "GET", path, &[], b"")
}

pub fn post(address: SocketAddr, path: &str, body: &str) -> (u16, String) {
    request(address, "POST", path, &[("Content-Type", "application/json")], body.as_bytes()).unwrap()
}

/// The bus of a folder that no process runs on.
pub fn open_bus(data: &Path) -> std::sync::Arc<dyn vejas::ports::bus::Bus> {
    vejas::runtime::open_bus(data).unwrap()
}
