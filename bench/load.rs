//! A load generator for the HTTP entrance: keep-alive connections in a closed loop, one thread, little work per request,
//! because it shares the machine with what it measures.
//!
//! Prints one line of JSON: `{"requests", "ok", "per_s", "p50_ms", "p99_ms", "errors": {…}}`. With `--ids FILE` every request carries
//! a new id as `Idempotency-Key` and in its body, each acknowledged id is appended to FILE, and a request that failed is sent
//! again with the same id until it is acknowledged: what the crash test compares with the bus.

#![allow(clippy::disallowed_methods, reason = "a program of its own that measures time")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{cell::RefCell, io};

use clap::{Parser, ValueEnum};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes of an answer's head and body together.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The longest wait for one answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);
/// The pause after a failed request: a server that restarts refuses connections at once.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Parser)]
struct Args {
    /// `http://host:port/path`.
    #[arg(long)]
    url: String,
    #[arg(long, default_value_t = 256)]
    connections: usize,
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// A file, or `@SIZE` for a JSON object of about so many bytes.
    #[arg(long, default_value = "@300")]
    body: String,
    #[arg(long, value_enum, default_value_t = Key::None)]
    key: Key,
    /// Send unique ids until acknowledged, and append each acknowledged one here.
    #[arg(long)]
    ids: Option<PathBuf>,
    /// After `--seconds`, go on retrying unacknowledged ids for so many seconds; then give up.
    #[arg(long, default_value_t = 30.0)]
    give_up: f64,
    /// `Authorization: Bearer <token>`.
    #[arg(long)]
    token: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Key {
    None,
    Unique,
}

/// What all connections share; one thread, so no locks.
struct Run {
    args: Args,
    host: String,
    path: String,
    body: Vec<u8>,
    prefix: String,
    next_id: AtomicU64,
    ends: Instant,
    gives_up: Instant,
    tally: RefCell<Tally>,
    ids: Option<RefCell<File>>,
}

#[derive(Default)]
struct Tally {
    ok: u64,
    micros: Vec<u32>,
    errors: BTreeMap<String, u64>,
}

#[derive(Debug)]
enum Failure {
    Connection(io::ErrorKind),
    Timeout,
    Status(u16),
    Malformed,
}

impl Failure {
    fn name(&self) -> String {
        match self {
            Failure::Connection(kind) => format!("{kind:?}"),
            Failure::Timeout => "timeout".to_owned(),
            Failure::Status(status) => status.to_string(),
            Failure::Malformed => "malformed".to_owned(),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Connection(error.kind())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let run = match prepare(args) {
        Ok(run) => Rc::new(run),
        Err(message) => {
            eprintln!("load: {message}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let began = Instant::now();
    let local = tokio::task::LocalSet::new();
    for _ in 0..run.args.connections {
        local.spawn_local(connection(Rc::clone(&run)));
    }
    runtime.block_on(local);
    report(&run, began.elapsed())
}

fn prepare(args: Args) -> Result<Run, String> {
    let rest = args.url.strip_prefix("http://").ok_or("--url has to begin with http://")?;
    let (host, path) = rest.split_once('/').ok_or("--url has no path")?;
    let body = match args.body.strip_prefix('@') {
        Some(size) => {
            let size: usize = size.parse().map_err(|error| format!("--body: {error}"))?;
            format!("{{\"text\":\"{}\"}}", "x".repeat(size.saturating_sub(11))).into_bytes()
        }
        None => std::fs::read(&args.body).map_err(|error| format!("{}: {error}", args.body))?,
    };
    let open = |path: &PathBuf| File::options().create(true).append(true).open(path);
    let ids = args.ids.as_ref().map(open).transpose().map_err(|error| format!("--ids: {error}"))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
    let ends = Instant::now() + Duration::from_secs_f64(args.seconds);
    Ok(Run {
        host: host.to_owned(),
        path: format!("/{path}"),
        body,
        prefix: format!("{}-{}", since.as_micros(), std::process::id()),
        next_id: AtomicU64::new(0),
        ends,
        gives_up: ends + Duration::from_secs_f64(if args.ids.is_some() { args.give_up } else { 0.0 }),
        tally: RefCell::default(),
        ids: ids.map(RefCell::new),
        args,
    })
}

/// One connection's requests, one after the other. Opened again whenever it broke.
async fn connection(run: Rc<Run>) {
    let mut stream: Option<TcpStream> = None;
    let mut buffer = Vec::with_capacity(4_096);
    let mut request = Vec::new();
    let mut pending: Option<String> = None;
    loop {
        let now = Instant::now();
        if now >= run.gives_up || (now >= run.ends && pending.is_none()) {
            if let Some(id) = pending {
                *run.tally.borrow_mut().errors.entry("given-up".to_owned()).or_default() += 1;
                eprintln!("load: gave up on {id}");
            }
            return;
        }
        let id = pending.take().unwrap_or_else(|| format!("{}-{}", run.prefix, run.next_id.fetch_add(1, Relaxed)));
        run.write_request(&mut request, &id);
        let began = Instant::now();
        let result = match timeout(ANSWER_WAIT_MAX, exchange(&run.host, &mut stream, &request, &mut buffer)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Timeout),
        };
        match result {
            Ok(()) => run.succeeded(began.elapsed(), &id),
            Err(failure) => {
                *run.tally.borrow_mut().errors.entry(failure.name()).or_default() += 1;
                if !matches!(failure, Failure::Status(_)) {
                    stream = None;
                }
                if run.ids.is_some() {
                    pending = Some(id);
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

impl Run {
    fn write_request(&self, request: &mut Vec<u8>, id: &str) {
        request.clear();
        let unique_body = self.ids.as_ref().map(|_| format!("{{\"id\":\"{id}\",\"text\":\"{}\"}}", "x".repeat(200)));
        let body = unique_body.as_deref().map_or(self.body.as_slice(), str::as_bytes);
        let _ = write!(
            request,
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
            self.path,
            self.host,
            body.len()
        );
        if let Some(token) = &self.args.token {
            let _ = write!(request, "Authorization: Bearer {token}\r\n");
        }
        if self.args.key == Key::Unique || self.ids.is_some() {
            let _ = write!(request, "Idempotency-Key: {id}\r\n");
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body);
    }

    fn succeeded(&self, took: Duration, id: &str) {
        let mut tally = self.tally.borrow_mut();
        tally.ok += 1;
        tally.micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        let Some(ids) = &self.ids else { return };
        if let Err(error) = ids.borrow_mut().write_all(format!("{id}\n").as_bytes()) {
            // With a hole in this list the crash test would miss losses.
            eprintln!("load: cannot write an id: {error}");
            std::process::exit(2);
        }
    }
}

async fn exchange(
    host: &str,
    stream: &mut Option<TcpStream>,
    request: &[u8],
    buffer: &mut Vec<u8>,
) -> Result<(), Failure> {
    let stream = match stream {
        Some(stream) => stream,
        None => {
            let opened = TcpStream::connect(host).await?;
            opened.set_nodelay(true)?;
            stream.insert(opened)
        }
    };
    stream.write_all(request).await?;
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(Failure::Connection(io::ErrorKind::UnexpectedEof));
        }
        if let Some((status, total_bytes)) = parse(buffer)?
            && buffer.len() >= total_bytes
        {
            return if status == 200 { Ok(()) } else { Err(Failure::Status(status)) };
        }
        if buffer.len() > ANSWER_BYTES_MAX {
            return Err(Failure::Malformed);
        }
    }
}

/// Status and length of the whole answer, once its head is complete.
fn parse(answer: &[u8]) -> Result<Option<(u16, usize)>, Failure> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| Failure::Malformed)?;
    let status = head.get(9..12).and_then(|digits| digits.parse().ok()).ok_or(Failure::Malformed)?;
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse::<usize>().ok())
        .ok_or(Failure::Malformed)?;
    Ok(Some((status, end + 4 + length)))
}

fn report(run: &Run, took: Duration) -> ExitCode {
    let mut tally = run.tally.borrow_mut();
    tally.micros.sort_unstable();
    let millis_at = |share: f64| {
        let last = tally.micros.len().checked_sub(1)?;
        let index = ((last as f64) * share).round() as usize;
        Some(f64::from(tally.micros[index]) / 1_000.0)
    };
    let failed: u64 = tally.errors.values().sum();
    let line = serde_json::json!({
        "requests": tally.ok + failed,
        "ok": tally.ok,
        "per_s": (tally.ok as f64 / took.as_secs_f64()).round(),
        "p50_ms": millis_at(0.5),
        "p99_ms": millis_at(0.99),
        "errors": tally.errors,
    });
    println!("{line}");
    if tally.ok == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
