//! The answers of the API as types: written here, read back by the command line and by tests.
//!
//! Fields are only ever added. Durations are seconds, times RFC 3339.

pub mod revisions;
mod tap;

pub use crate::runtime::load::Shown as ManifestProblem;
pub use crate::runtime::ownership::overview::{ShownLease as Lease, ShownMember as Member};
pub use crate::runtime::reload::Manifests;
pub use crate::runtime::replay::view as replay;
pub use crate::runtime::sync::Sync;
pub use tap::{Payload, TapEnd, TapEvent, TapGap, TapMessage, TapOpen, TapStep};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::runtime::dead_letters::USED_WARNED_PERCENT;
use crate::unit::{rates, status};

/// `GET /api/v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub instance: String,
    pub version: String,
    pub uptime_seconds: f64,
    pub ready: bool,
    /// Why not ready.
    pub not_ready: Vec<String>,
    /// `embedded` or `nats`.
    pub bus: String,
    pub data_dir: Option<String>,
    /// The server behind the bus; none on the embedded one.
    #[serde(default)]
    pub server: Option<Server>,
    pub manifests: Manifests,
    /// How the git repository stands, if one is followed.
    #[serde(default)]
    pub sync: Option<Sync>,
    pub streams: Vec<Stream>,
    pub units: Vec<Unit>,
    /// What a person should look at.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stream {
    pub name: String,
    pub bytes: u64,
    pub bytes_max: u64,
    pub messages: u64,
    /// Sequence of the oldest message held.
    pub first: u64,
    /// Sequence of the newest message ever stored.
    pub last: u64,
}

impl Stream {
    /// Share of the byte limit that is used, 0 to 1.
    pub fn used(&self) -> f64 {
        if self.bytes_max == 0 { 0.0 } else { self.bytes as f64 / self.bytes_max as f64 }
    }

    /// So full that somebody should look.
    pub fn is_nearly_full(&self) -> bool {
        self.used() * 100.0 >= USED_WARNED_PERCENT as f64
    }
}

/// The server behind the bus.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Server {
    pub connected: bool,
    /// Since when, RFC 3339.
    pub since: String,
    /// Why not connected.
    pub reason: Option<String>,
    pub address: Option<String>,
    pub version: Option<String>,
    /// Copies of every stream and bucket.
    pub replicas: usize,
    /// When the server writes through to its disk: `always`, or a period such as `2m0s`. Known only with VEJAS_NATS_MONITOR.
    pub sync: Option<String>,
}

/// `GET /api/v1/members`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Members {
    pub members: Vec<Member>,
}

/// `GET /api/v1/leases`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Leases {
    pub leases: Vec<Lease>,
}

/// `POST /api/v1/members/{instance}/drain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drained {
    pub instance: String,
    /// How many processes of that name were told.
    pub processes: usize,
}

/// `GET /api/v1/units`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Units {
    pub units: Vec<Unit>,
}

/// `GET /api/v1/units/{kind}/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unit {
    /// `flow/price-orders`.
    pub unit: String,
    /// `starting`, `running`, `paused`, `standby` (another member runs it), `stopping`, `stopped`, `parked` (removed, while messages wait for its return) or `failed`.
    pub state: String,
    pub reason: Option<String>,
    pub digest: String,
    /// `file:line` of the manifest.
    pub declared: String,
    pub received: u64,
    pub emitted: u64,
    pub dropped: u64,
    pub retried: u64,
    pub dead: u64,
    pub refused: u64,
    pub rates: Rates,
    pub last_error: Option<LastError>,
    /// Of a sink: `closed`, `open` (the receiver is left alone) or `half-open` (one message tries it).
    pub breaker: Option<String>,
    /// Of a unit that reads a durable, when the bus could tell.
    pub lag: Option<Lag>,
}

/// `POST /api/v1/units/{kind}/{name}/purge`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Purged {
    pub unit: String,
    /// How many messages were given up.
    pub messages: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    pub code: String,
    pub message: String,
    pub at: String,
    /// `file:line:column` in the manifest, where a step failed.
    pub position: Option<String>,
    /// Sequence of the message that failed, where it was one.
    pub sequence: Option<u64>,
}

/// Messages per second over the last ten seconds, or since the start when that is less.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    pub received_per_second: f64,
    pub emitted_per_second: f64,
}

/// How far a unit is behind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lag {
    /// Messages not handed out yet.
    pub pending: u64,
    /// Messages handed out and not acknowledged.
    pub in_flight: u64,
    /// Messages that wait for another delivery.
    pub redelivering: u64,
    /// Age of the oldest message not acknowledged.
    pub oldest_seconds: Option<f64>,
}

impl Unit {
    pub(in crate::api) fn new(view: status::UnitView, rates: rates::Rates, lag: Option<Lag>) -> Self {
        Unit {
            unit: view.unit,
            state: state_text(view.state).to_owned(),
            reason: view.reason,
            digest: view.digest,
            declared: view.declared,
            received: view.received,
            emitted: view.emitted,
            dropped: view.dropped,
            retried: view.retried,
            dead: view.dead,
            refused: view.refused,
            rates: Rates { received_per_second: rates.received, emitted_per_second: rates.emitted },
            last_error: view.last_error.map(|error| LastError {
                code: error.code,
                message: error.message,
                at: error.at,
                position: error.position,
                sequence: error.sequence,
            }),
            breaker: view.breaker.map(|breaker| breaker_text(breaker).to_owned()),
            lag,
        }
    }
}

pub(in crate::api) fn state_text(state: status::State) -> &'static str {
    match state {
        status::State::Starting => "starting",
        status::State::Running => "running",
        status::State::Paused => "paused",
        status::State::Standby => "standby",
        status::State::Stopping => "stopping",
        status::State::Stopped => "stopped",
        status::State::Suspended => "suspended",
        status::State::Parked => "parked",
        status::State::Failed => "failed",
    }
}

fn breaker_text(breaker: status::Breaker) -> &'static str {
    match breaker {
        status::Breaker::Closed => "closed",
        status::Breaker::Open => "open",
        status::Breaker::HalfOpen => "half-open",
    }
}

/// An error of the API (RFC 9457).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    pub r#type: String,
    pub title: String,
    pub status: u16,
    /// Stable; for programs.
    pub code: String,
    pub detail: String,
    /// `/readyz` lists here what is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}
