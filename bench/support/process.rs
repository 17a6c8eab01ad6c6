//! The real binary in a folder of its own that is removed afterwards: started, watched, stopped, killed.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Failure;

const PATIENCE: Duration = Duration::from_secs(300);

pub struct Process {
    pub folder: tempfile::TempDir,
    pub api: SocketAddr,
    pub ingress: SocketAddr,
    child: Option<Child>,
    environment: Vec<(&'static str, String)>,
}

impl Process {
    pub fn new(manifests: &str) -> Result<Self, Failure> {
        let process = Process::without_manifests()?;
        fs::create_dir(process.folder.path().join("manifests"))?;
        fs::write(process.folder.path().join("manifests/bench.yaml"), manifests)?;
        Ok(process)
    }

    /// For one that has its manifests from elsewhere.
    pub fn without_manifests() -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let free = || TcpListener::bind("127.0.0.1:0")?.local_addr();
        Ok(Process { api: free()?, ingress: free()?, folder, child: None, environment: Vec::new() })
    }

    pub fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    /// A setting for every later start.
    pub fn environment(&mut self, name: &'static str, value: impl Into<String>) {
        self.environment.push((name, value.into()));
    }

    /// Starts it and answers how long it took to become ready.
    pub fn start(&mut self, binary: &Path) -> Result<Duration, Failure> {
        let began = Instant::now();
        self.launch(binary)?;
        self.wait_ready()?;
        Ok(began.elapsed())
    }

    /// Starts it and waits for nothing.
    pub fn launch(&mut self, binary: &Path) -> Result<(), Failure> {
        let binary = binary.canonicalize()?;
        let log = fs::File::options().create(true).append(true).open(self.folder.path().join("log"))?;
        let child = Command::new(binary)
            .arg("run")
            .current_dir(self.folder.path())
            .env("VEJAS_DATA_DIR", self.data())
            .env("VEJAS_HTTP_ADDR", self.api.to_string())
            .env("VEJAS_INGRESS_ADDR", self.ingress.to_string())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        self.child = Some(child);
        Ok(())
    }

    pub fn wait_ready(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        while !get(self.api, "/readyz").is_ok_and(|(status, _)| status == 200) {
            if let Some(status) = self.child.as_mut().ok_or("not running")?.try_wait()? {
                return Err(format!("vejas ended with {status}: {}", self.log()).into());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("vejas did not become ready: {}", self.log()).into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// SIGKILL: no warning, no clean-up. Answers when the process is gone.
    pub fn kill(&mut self) -> Result<(), Failure> {
        let mut child = self.child.take().ok_or("not running")?;
        if let Some(status) = child.try_wait()? {
            return Err(format!("vejas had ended by itself with {status}: {}", self.log()).into());
        }
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    pub fn signal(&self, name: &str) -> Result<(), Failure> {
        let pid = self.child.as_ref().ok_or("not running")?.id().to_string();
        let status = Command::new("kill").arg(format!("-{name}")).arg(pid).status()?;
        if status.success() { Ok(()) } else { Err(format!("kill -{name}: {status}").into()) }
    }

    /// Whether it has ended by itself; then it can be launched again.
    pub fn has_ended(&mut self) -> Result<bool, Failure> {
        let ended = match &mut self.child {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        };
        if ended {
            self.child = None;
        }
        Ok(ended)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// One number of one unit's status.
    pub fn unit(&self, unit: &str, field: &str) -> Result<u64, Failure> {
        let (_, body) = get(self.api, "/api/v1/status")?;
        let status: serde_json::Value = serde_json::from_str(&body)?;
        let units = status["units"].as_array().ok_or("status without units")?;
        let found = units.iter().find(|entry| entry["unit"] == unit).ok_or_else(|| format!("no unit {unit}"))?;
        found[field].as_u64().ok_or_else(|| format!("{unit} has no {field}").into())
    }

    /// Waits until the unit has finished this many messages.
    pub fn wait_for(&self, unit: &str, field: &str, count: u64) -> Result<(), Failure> {
        let began = Instant::now();
        while self.unit(unit, field)? < count {
            if began.elapsed() > PATIENCE {
                return Err(format!("{unit} did not reach {count} {field}: {}", self.log()).into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Whether a unit has something left to do.
    pub fn is_busy(&self) -> Result<bool, Failure> {
        let (_, body) = get(self.api, "/api/v1/status")?;
        let status: serde_json::Value = serde_json::from_str(&body)?;
        let units = status["units"].as_array().ok_or("status without units")?;
        let is_busy = |unit: &serde_json::Value| {
            let left = |field: &&str| unit["lag"][*field].as_u64().unwrap_or(0) > 0;
            ["pending", "inFlight", "redelivering"].iter().any(left)
        };
        Ok(units.iter().any(is_busy))
    }

    /// Waits until no unit has anything left to do, and answers how long that took.
    pub fn drain(&self, patience: Duration) -> Result<Duration, Failure> {
        let began = Instant::now();
        while self.is_busy()? {
            if began.elapsed() > patience {
                let (_, status) = get(self.api, "/api/v1/status")?;
                return Err(format!("did not drain within {patience:?}: {status}\n{}", self.log()).into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(began.elapsed())
    }

    /// A line of `/proc/<pid>/status` in MB: `VmRSS` now, `VmHWM` at most so far.
    pub fn memory_mb(&self, line: &str) -> Result<f64, Failure> {
        let pid = self.child.as_ref().ok_or("not running")?.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let value = status.lines().find_map(|l| l.strip_prefix(line)).ok_or("no such line")?;
        let kilobytes: f64 = value.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").trim().parse()?;
        Ok(kilobytes / 1024.0)
    }

    pub fn stop(&mut self) -> Result<(), Failure> {
        let child = self.child.take().ok_or("not running")?;
        Command::new("kill").arg(child.id().to_string()).status()?;
        self.child = Some(child);
        self.wait_end()
    }

    /// Waits for the end of a process that was told to stop.
    pub fn wait_end(&mut self) -> Result<(), Failure> {
        let status = self.child.take().ok_or("not running")?.wait()?;
        if status.success() { Ok(()) } else { Err(format!("vejas ended with {status}: {}", self.log()).into()) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String), Failure> {
    request(address, "GET", path, &[], b"")
}

/// One request on a connection of its own: the answer's status and body.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<(u16, String), Failure> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n");
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    if !body.is_empty() {
        head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    let mut bytes = (head + "\r\n").into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("incomplete answer")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("no status")?;
    Ok((status, body.to_owned()))
}
