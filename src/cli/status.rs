//! `vejas status`: what a running process says about itself.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api::Api;
use super::exit::Exit;
use crate::api::view;

/// Where a process listens that was told nothing.
pub(super) const SERVER_DEFAULT: &str = "http://127.0.0.1:8686";
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(5);
/// The time between two looks of `--watch`.
const WATCH_PERIOD: Duration = Duration::from_secs(2);
pub(super) const ANSWER_WAIT_MAX: Duration = Duration::from_secs(15);
/// Longest reason shown in a table, in characters; JSON has all of it.
const REASON_CHARS_MAX: usize = 60;

/// Shows units, streams and warnings of a running process.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(flatten)]
    pub api: Api,
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Asks again every 2 seconds until interrupted; on a terminal the screen is drawn anew.
    #[arg(long)]
    pub watch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{server} is no address of an API: it has to begin with http:// or https://")]
    Server { server: String },
    #[error("cannot read certificates from {}: {reason}", path.display())]
    Certificates { path: PathBuf, reason: String },
    #[error(
        "nothing answers at {server}: {reason}\nIs `vejas run` running, and does VEJAS_SERVER (or --server) name its VEJAS_HTTP_ADDR?"
    )]
    Unreachable { server: String, reason: String },
    #[error("{server} wants a token: set VEJAS_TOKEN or give --token")]
    TokenMissing { server: String },
    #[error("{server} does not take this token")]
    TokenWrong { server: String },
    #[error("{server} answered {status}: {detail}")]
    Refused { server: String, status: u16, detail: String },
    #[error("{server} is no Vejas API of this version: {reason}")]
    Foreign { server: String, reason: String },
    #[error("{server} broke off: {reason}")]
    Broken { server: String, reason: String },
    #[error("cannot write the answer: {0}")]
    Output(#[from] std::io::Error),
}

pub(super) fn main(args: Args) -> Exit {
    block_on(run(args))
}

/// Runs a command that asks a process, and says how it went.
pub(super) fn block_on(command: impl Future<Output = Result<(), Error>>) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("vejas: {error}");
            return Exit::Failed;
        }
    };
    match runtime.block_on(command) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!("vejas: {error}");
            match error {
                Error::Server { .. } | Error::Certificates { .. } => Exit::Usage,
                _ => Exit::Failed,
            }
        }
    }
}

pub async fn run(args: Args) -> Result<(), Error> {
    if args.watch {
        return watch(&args).await;
    }
    write(&text(&args, &fetch(&args).await?)).map(|_| ())
}

fn text(args: &Args, status: &view::Status) -> String {
    match args.output {
        Output::Table => table(status),
        // A line each, so that a program can read the looks apart.
        Output::Json if args.watch => format!("{}\n", serde_json::json!(status)),
        Output::Json => format!("{:#}\n", serde_json::json!(status)),
    }
}

/// Answers whether anybody still reads: `vejas status | head` is no error.
fn write(text: &str) -> Result<bool, Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// Looks again and again, also while the process is away. Ends with an error only when asking again cannot help.
async fn watch(args: &Args) -> Result<(), Error> {
    let draws = std::io::stdout().is_terminal() && args.output == Output::Table;
    let mut looks = tokio::time::interval(WATCH_PERIOD);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut first = true;
    loop {
        looks.tick().await;
        let shown = match fetch(args).await {
            Ok(status) => text(args, &status),
            Err(error @ Error::Unreachable { .. }) if args.output == Output::Table => format!("{error}\n"),
            Err(Error::Unreachable { .. }) => continue,
            Err(error) => return Err(error),
        };
        let shown = match (draws, first || args.output == Output::Json) {
            // To the top, then the rest of the screen is cleared: what is redrawn in place does not flicker.
            (true, _) => format!("\x1b[H{}\x1b[J", shown.replace('\n', "\x1b[K\n")),
            (false, true) => shown,
            (false, false) => format!("\n{shown}"),
        };
        first = false;
        if !write(&shown)? {
            return Ok(());
        }
    }
}

/// Asks for the status of the process at `args.server`.
pub async fn fetch(args: &Args) -> Result<view::Status, Error> {
    ask(&args.api.at(), reqwest::Method::GET, "/api/v1/status").await
}

/// Which API to ask, and how.
pub(super) struct At<'a> {
    pub server: &'a str,
    pub token: Option<&'a str>,
    pub ca: Option<&'a Path>,
}

/// Asks, and reads the answer.
pub(super) async fn ask<T: DeserializeOwned>(at: &At<'_>, method: reqwest::Method, path: &str) -> Result<T, Error> {
    send(at, method, path, None::<&()>).await
}

/// The same with a body.
pub(super) async fn send<T: DeserializeOwned>(
    at: &At<'_>,
    method: reqwest::Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<T, Error> {
    let server = at.server.trim_end_matches('/').to_owned();
    let client = client(&server, at.ca, Some(ANSWER_WAIT_MAX))?;
    let mut request = client.request(method, format!("{server}{path}"));
    if let Some(body) = body {
        let body = serde_json::to_vec(body).expect("texts and numbers are JSON");
        request = request.header("content-type", "application/json").body(body);
    }
    if let Some(token) = at.token {
        request = request.bearer_auth(token);
    }
    let unreachable = |error: reqwest::Error| Error::Unreachable { server: server.clone(), reason: cause(&error) };
    let answer = request.send().await.map_err(unreachable)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(unreachable)?;
    if !status.is_success() {
        return Err(refusal(server, status.as_u16(), &body, at.token.is_some()));
    }
    serde_json::from_slice(&body).map_err(|error| Error::Foreign { server, reason: error.to_string() })
}

/// What an answer that is none says.
pub(super) fn refusal(server: String, status: u16, body: &[u8], with_token: bool) -> Error {
    match (status, with_token) {
        (401, false) => Error::TokenMissing { server },
        (401, true) => Error::TokenWrong { server },
        _ => {
            let detail = serde_json::from_slice::<view::Problem>(body).map_or_else(|_| String::new(), |p| p.detail);
            Error::Refused { server, status, detail }
        }
    }
}

/// A client for the API of `server`. Without `answer_max` an answer may go on for ever.
pub(super) fn client(server: &str, ca: Option<&Path>, answer_max: Option<Duration>) -> Result<reqwest::Client, Error> {
    if !(server.starts_with("http://") || server.starts_with("https://")) {
        return Err(Error::Server { server: server.to_owned() });
    }
    // Fails when the process has a provider already, and then there is nothing to do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder =
        reqwest::Client::builder().connect_timeout(CONNECT_WAIT_MAX).redirect(reqwest::redirect::Policy::none());
    if let Some(answer_max) = answer_max {
        builder = builder.timeout(answer_max);
    }
    if let Some(path) = ca {
        let unreadable = |reason: String| Error::Certificates { path: path.to_owned(), reason };
        let pem = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| unreadable(cause(&error)))?;
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(|error| Error::Unreachable { server: server.to_owned(), reason: cause(&error) })
}

/// The innermost error: that is the one a person can act on.
pub(super) fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// The answer for people.
pub fn table(status: &view::Status) -> String {
    let mut text = format!(
        "{} · vejas {} · up {} · bus {}{} · {}\n",
        status.instance,
        status.version,
        duration(status.uptime_seconds),
        status.bus,
        status.data_dir.as_deref().map(|folder| format!(" in {folder}")).unwrap_or_default(),
        if status.ready { "ready".to_owned() } else { format!("not ready: {}", status.not_ready.join("; ")) },
    );
    if let Some(server) = &status.server {
        let named = server.address.as_deref().zip(server.version.as_deref());
        text.push_str(&format!(
            "server {} · {} of each stream · syncs {} · {} since {}\n",
            named.map_or_else(|| "away".to_owned(), |(address, version)| format!("{address} (nats-server {version})")),
            if server.replicas == 1 { "one copy".to_owned() } else { format!("{} copies", server.replicas) },
            server.sync.as_deref().unwrap_or("unknown"),
            if server.connected { "connected" } else { "lost" },
            server.since,
        ));
    }
    if let Some(sync) = &status.sync {
        let commit = sync.commit.as_deref().map_or("no commit", crate::unit::status::short);
        let (url, reference, state, since) = (&sync.url, &sync.reference, sync.state.as_str(), &sync.since);
        text.push_str(&format!("git {url} · {reference} at {commit} · {state} since {since}\n"));
    }
    let manifests = &status.manifests;
    if status.sync.is_some() {
        let revision = crate::unit::status::short(&manifests.revision);
        text.push_str(&format!("manifests from git · set {} ({revision}) since {}\n", manifests.no, manifests.applied));
    } else if manifests.no > 0 {
        let errors = match manifests.errors {
            0 => String::new(),
            1 => ", 1 error".to_owned(),
            errors => format!(", {errors} errors"),
        };
        text.push_str(&format!(
            "manifests {} · {} documents{errors} · set {} ({}) since {}\n",
            manifests.path,
            manifests.documents,
            manifests.no,
            crate::unit::status::short(&manifests.revision),
            manifests.applied,
        ));
    }
    let head = ["UNIT", "STATE", "RECEIVED", "EMITTED", "IN/S", "OUT/S", "DROPPED", "DEAD", "LAG", "OLDEST", "REASON"];
    let rows = status.units.iter().map(|unit| {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let lag = unit.lag.map(|lag| (lag.pending + lag.in_flight + lag.redelivering).to_string());
        [
            unit.unit.clone(),
            unit.state.clone(),
            unit.received.to_string(),
            unit.emitted.to_string(),
            format!("{:.1}", unit.rates.received_per_second),
            format!("{:.1}", unit.rates.emitted_per_second),
            unit.dropped.to_string(),
            unit.dead.to_string(),
            or_dash(lag),
            or_dash(unit.lag.and_then(|lag| lag.oldest_seconds).map(duration)),
            shorten(unit.reason.as_deref().unwrap_or("")),
        ]
    });
    text.push('\n');
    align(&mut text, head, rows, "llrrrrrrrrl");
    let head = ["STREAM", "MESSAGES", "FIRST", "LAST", "BYTES", "LIMIT", "USED"];
    let rows = status.streams.iter().map(|stream| {
        [
            stream.name.clone(),
            stream.messages.to_string(),
            stream.first.to_string(),
            stream.last.to_string(),
            bytesize::ByteSize(stream.bytes).to_string(),
            bytesize::ByteSize(stream.bytes_max).to_string(),
            format!("{:.0} %", stream.used() * 100.0),
        ]
    });
    text.push('\n');
    align(&mut text, head, rows, "lrrrrrr");
    if !status.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &status.warnings {
        text.push_str("warning: ");
        text.push_str(warning);
        text.push('\n');
    }
    text
}

/// Columns as wide as their widest cell, left or right as `sides` says.
pub(super) fn align<const COLUMNS: usize>(
    text: &mut String,
    head: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
    sides: &str,
) {
    let rows: Vec<[String; COLUMNS]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    for row in &rows {
        let mut line = String::new();
        for ((cell, width), side) in row.iter().zip(&widths).zip(sides.chars()) {
            let padding = " ".repeat(width - cell.chars().count());
            match side {
                'r' => line.extend([padding.as_str(), cell, "  "]),
                _ => line.extend([cell, padding.as_str(), "  "]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

pub(super) fn shorten(reason: &str) -> String {
    let line = reason.lines().next().unwrap_or("");
    if line.chars().count() <= REASON_CHARS_MAX {
        return line.to_owned();
    }
    let kept: String = line.chars().take(REASON_CHARS_MAX - 1).collect();
    format!("{kept}…")
}

fn duration(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.0}ms", seconds * 1_000.0);
    }
    humantime::format_duration(Duration::from_secs(seconds as u64)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> view::Status {
        let unit = view::Unit {
            unit: "flow/price-orders".to_owned(),
            state: "paused".to_owned(),
            reason: Some("x".repeat(100)),
            digest: "abc".to_owned(),
            declared: "orders.yaml:1".to_owned(),
            received: 12_345,
            emitted: 12_340,
            dropped: 1,
            retried: 2,
            dead: 4,
            refused: 0,
            rates: view::Rates { received_per_second: 12.34, emitted_per_second: 0.0 },
            last_error: None,
            breaker: None,
            lag: Some(view::Lag { pending: 5, in_flight: 2, redelivering: 0, oldest_seconds: Some(61.5) }),
        };
        let entrance = view::Unit {
            unit: "http-in/orders".to_owned(),
            state: "running".to_owned(),
            reason: None,
            lag: None,
            ..unit.clone()
        };
        let stream =
            view::Stream { name: "VEJAS".to_owned(), bytes: 512, bytes_max: 1_024, messages: 3, first: 7, last: 9 };
        view::Status {
            instance: "alpha".to_owned(),
            version: "0.1.0".to_owned(),
            uptime_seconds: 3_661.0,
            ready: false,
            not_ready: vec!["flow/x is starting".to_owned()],
            bus: "embedded".to_owned(),
            data_dir: Some(".vejas".to_owned()),
            server: None,
            manifests: view::Manifests::default(),
            sync: None,
            streams: vec![stream],
            units: vec![unit, entrance],
            warnings: vec!["look here".to_owned()],
        }
    }

    #[test]
    fn the_table_lines_up_and_names_lag_use_and_warnings() {
        let text = table(&status());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "alpha · vejas 0.1.0 · up 1h 1m 1s · bus embedded in .vejas · not ready: flow/x is starting"
        );
        assert_eq!(
            lines[2],
            "UNIT               STATE    RECEIVED  EMITTED  IN/S  OUT/S  DROPPED  DEAD  LAG  OLDEST  REASON"
        );
        assert_eq!(
            lines[3],
            format!(
                "flow/price-orders  paused      12345    12340  12.3    0.0        1     4    7   1m 1s  {}…",
                "x".repeat(59)
            )
        );
        assert_eq!(lines[4], "http-in/orders     running     12345    12340  12.3    0.0        1     4    -       -");
        assert!(lines[7].starts_with("VEJAS") && lines[7].ends_with("50 %"), "{}", lines[7]);
        assert_eq!(lines.last(), Some(&"warning: look here"));
    }

    #[tokio::test]
    async fn when_nothing_listens_the_error_says_what_to_look_at() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let args = Args {
            api: Api { server: format!("http://{free}"), token: None, ca: None },
            output: Output::Table,
            watch: false,
        };
        let text = fetch(&args).await.unwrap_err().to_string();
        assert!(text.contains("Is `vejas run` running") && text.contains("VEJAS_SERVER"), "{text}");
    }
}
