//! The API: health, metrics and status over HTTP. It reads what units and the bus report, and decides nothing.
//!
//! `view` has the answers as types, which the command line reads back.

mod access;
mod dlq;
mod lag;
mod members;
mod metrics;
mod openapi;
mod refusal;
mod replay;
mod revisions;
mod routes;
mod server;
mod server_behind;
mod status;
mod tap;
pub mod view;
pub mod webhook;

pub use access::Tokens;
pub use openapi::document;
pub use replay::REQUEST_BYTES_MAX as REPLAY_BYTES_MAX;
pub use server::{Error, Options, Server};
pub use tap::{TAPS_MAX, Taps};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

use tokio::sync::watch;

use crate::bus::nats;
use crate::id::Names;
use crate::ports::bus::Bus;
use crate::ports::clock::SharedClock;
use crate::runtime::dead_letters::DeadLetters;
use crate::runtime::ownership::overview::Overview;
use crate::runtime::publisher::Publisher;
use crate::runtime::reading::Backlogs;
use crate::runtime::reload;
use crate::runtime::replay::Replays;
use crate::unit::status::Registry;

/// What the API tells about. Cheap to clone.
#[derive(Clone)]
pub struct Told {
    pub registry: Arc<Registry>,
    pub dead_letters: DeadLetters,
    pub bus: Arc<dyn Bus>,
    pub names: Names,
    pub clock: SharedClock,
    pub instance: Arc<str>,
    /// `embedded` or `nats`.
    pub bus_kind: &'static str,
    /// The folder of the embedded bus.
    pub data_dir: Option<Arc<str>>,
    /// The monotonic time of the start.
    pub started: Duration,
    /// Absent when nobody installed a recorder: `/metrics` then has the figures of the bus only.
    pub metrics: Option<PrometheusHandle>,
    /// Cancelled when the process drains.
    pub stopping: CancellationToken,
    pub loaded: Loaded,
    pub manifests: reload::Told,
    pub backlogs: Backlogs,
    pub publisher: Option<Publisher>,
    /// The manifests come from a git repository.
    pub follows_git: bool,
    /// Of the webhook; closed without one.
    pub webhook_secret: Option<Arc<str>>,
    /// Members and leases.
    pub overview: Option<Overview>,
    /// The server behind the bus.
    pub server: Option<watch::Receiver<nats::State>>,
    /// Copies of what is stored there.
    pub replicas: usize,
    /// Where the server's monitoring answers.
    pub monitor: Option<Arc<str>>,
    pub taps: Taps,
    pub webhooks: Arc<webhook::Seen>,
    pub replays: Replays,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Told").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// Whether all units are registered. Until then a process without units would pass for ready.
#[derive(Debug, Clone, Default)]
pub struct Loaded(Arc<AtomicBool>);

impl Loaded {
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}
