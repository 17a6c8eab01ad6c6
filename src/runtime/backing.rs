//! The bus a process runs on: its own, or that of a cluster.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::config::{BusConfig, Config, DEAD_LETTER_HEADROOM_BYTES};
use super::start::Error;
use crate::bus::embedded::{self, Embedded};
use crate::bus::nats::{self, ConnectError, Nats};
use crate::ports::bus::Bus;
use crate::ports::clock::SharedClock;
use crate::ports::peers::Peers;
use crate::ports::store::Store;

/// Between tries to reach the server at the start.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Room below a server's limit for the headers that the adapter adds.
const TRANSPORT_HEADROOM_BYTES: usize = 16 << 10;
/// For a server that was lost before it was asked: every server takes this by default.
const MESSAGE_BYTES_UNKNOWN: usize = 900 << 10;

#[derive(Debug)]
enum Kind {
    Embedded(Arc<Embedded>),
    Nats(Arc<Nats>),
}

/// An open bus and store, and the other processes on it.
pub(super) struct Backing {
    kind: Kind,
    pub bus: Arc<dyn Bus>,
    pub store: Arc<dyn Store>,
    pub peers: Arc<dyn Peers>,
}

impl Backing {
    pub async fn open(config: &Config, clock: &SharedClock) -> Result<Self, Error> {
        match &config.bus {
            BusConfig::Embedded => {
                let opening = embedded::Options::new(&config.data_dir, Arc::clone(clock));
                let open = tokio::task::spawn_blocking(move || Embedded::open(opening)).await;
                let bus = open.map_err(|error| Error::Failed(error.to_string()))??;
                let (store, peers) = (Arc::clone(&bus), Arc::clone(&bus));
                Ok(Backing { kind: Kind::Embedded(Arc::clone(&bus)), bus, store, peers })
            }
            BusConfig::Nats(server) => {
                let options = nats::Options {
                    credentials: server.credentials.clone(),
                    tls: server.tls.clone(),
                    replicas: server.replicas,
                    name: config.instance.clone(),
                    ..nats::Options::new(&server.url, config.seed, Arc::clone(clock))
                };
                let bus = connect(options, server.connect_wait, clock).await?;
                let (store, peers) = (Arc::clone(&bus), Arc::clone(&bus));
                Ok(Backing { kind: Kind::Nats(Arc::clone(&bus)), bus, store, peers })
            }
        }
    }

    /// Resolves with the reason when the bus has failed for good.
    pub async fn stopped(&self) -> String {
        match &self.kind {
            Kind::Embedded(bus) => bus.stopped().await,
            // A server may come back; whoever coordinates decides how long that is waited for.
            Kind::Nats(_) => std::future::pending().await,
        }
    }

    /// The server behind it, as it changes; none on the embedded bus.
    pub fn server(&self) -> Option<watch::Receiver<nats::State>> {
        match &self.kind {
            Kind::Embedded(_) => None,
            Kind::Nats(bus) => Some(bus.state()),
        }
    }

    /// Largest message that may be stored, in bytes; what the bus takes beyond it is for headers that are added on the way.
    pub fn message_bytes_max(&self) -> usize {
        match &self.kind {
            Kind::Embedded(_) => usize::MAX,
            Kind::Nats(bus) => match &*bus.state().borrow() {
                nats::State::Connected { server, .. } => {
                    server.payload_bytes_max.saturating_sub(DEAD_LETTER_HEADROOM_BYTES + TRANSPORT_HEADROOM_BYTES)
                }
                nats::State::Lost { .. } => MESSAGE_BYTES_UNKNOWN,
            },
        }
    }

    pub async fn close(self) {
        match self.kind {
            Kind::Embedded(bus) => _ = tokio::task::spawn_blocking(move || bus.close()).await,
            Kind::Nats(bus) => bus.close(),
        }
    }
}

/// Tries for a while: processes and their server are often started together.
async fn connect(options: nats::Options, wait: Duration, clock: &SharedClock) -> Result<Arc<Nats>, Error> {
    let until = clock.monotonic() + wait;
    let mut said = String::new();
    loop {
        match Nats::connect(options.clone()).await {
            Ok(bus) => return Ok(bus),
            // A server that has just started answers before its JetStream does.
            Err(error) if error.is_retryable() || matches!(error, ConnectError::NoJetStream { .. }) => {
                let reason = error.to_string();
                if clock.monotonic() >= until {
                    return Err(Error::BusAway(format!("{reason} (VEJAS_NATS_URL says where it is)")));
                }
                if reason != said {
                    tracing::warn!("waiting for the bus: {reason}");
                    said = reason;
                }
                tokio::time::sleep(CONNECT_AGAIN_AFTER).await;
            }
            Err(error) => return Err(Error::Settings(error.to_string())),
        }
    }
}
