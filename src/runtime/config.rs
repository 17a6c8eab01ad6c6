//! The settings of one process, as values. Where they come from is the command line's business.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use crate::flow::message::MESSAGE_BYTES_MAX;

use super::settings::Environment;
use super::sink_worker::Jitter;
use super::{ownership, streams};
pub use crate::bus::nats::{Credentials, Tls};
use crate::id::Names;
use crate::origin::git;

/// Room kept free below the dead-letter stream's message limit, so that a dead letter of the largest message fits.
pub const DEAD_LETTER_HEADROOM_BYTES: usize = 64 << 10;
/// How long an `Idempotency-Key` and other transport ids are remembered.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// Which bus.
#[derive(Clone)]
pub enum BusConfig {
    /// In the data folder, for this process alone.
    Embedded,
    /// A server that all instances share.
    Nats(Box<ServerConfig>),
}

impl BusConfig {
    /// For people; without credentials.
    pub fn shown(&self, data_dir: &Path) -> String {
        match self {
            BusConfig::Embedded => data_dir.display().to_string(),
            BusConfig::Nats(server) => {
                let shown =
                    |url: &str| url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, host)| host.to_owned());
                server.url.split(',').map(|url| shown(url.trim())).collect::<Vec<_>>().join(",")
            }
        }
    }
}

#[derive(Clone)]
pub struct ServerConfig {
    /// `nats://host:port`; several separated by commas.
    pub url: String,
    pub credentials: Credentials,
    pub tls: Tls,
    pub replicas: usize,
    /// How long a start waits for the server.
    pub connect_wait: Duration,
    /// Where the server's monitoring answers, if anybody said.
    pub monitor: Option<String>,
}

/// A git repository that the manifests are taken from.
#[derive(Clone)]
pub struct Git {
    pub options: git::Options,
    /// How often it is looked at.
    pub period: Duration,
    pub webhook_secret: Option<String>,
}

#[derive(Clone)]
pub struct Config {
    pub bus: BusConfig,
    /// Who owns what only one instance may run.
    pub ownership: ownership::Settings,
    /// Where the manifests are, when they do not come from git.
    pub manifests: PathBuf,
    pub git: Option<Git>,
    pub data_dir: PathBuf,
    pub names: Names,
    pub instance: String,
    pub api_addr: String,
    pub api_tls: Option<(PathBuf, PathBuf)>,
    /// Where entrances listen that do not say.
    pub ingress_addr: String,
    /// Token for everything, and one for reading only.
    pub token: Option<String>,
    pub read_token: Option<String>,
    pub secrets_dir: Option<PathBuf>,
    /// Byte limit of the message stream.
    pub messages_bytes_max: u64,
    /// Largest message that the bus takes, known once it is open.
    pub bus_message_bytes_max: usize,
    /// Byte limit of the dead-letter stream.
    pub dead_letters_bytes_max: u64,
    /// How long acknowledged messages are kept, for replays.
    pub retention: Duration,
    /// How long a shutdown may take.
    pub drain: Duration,
    /// How often the folder of manifests is looked at, beside what the file system says. `None`: what is read at the start stays.
    pub look_period: Option<Duration>,
    /// Refuse to start when any manifest has an error.
    pub strict: bool,
    /// Looks up what `${env:NAME}` stands for.
    pub environment: Environment,
    /// Random numbers in `0.0..=1.0`.
    pub jitter: Jitter,
    /// Random; tells the ids made by this process from those of any other.
    pub seed: u128,
}

impl Config {
    /// Largest message, in bytes: what the stream and the bus take, with room for the headers of a dead letter.
    pub fn message_bytes_max(&self) -> usize {
        streams::message_bytes_max(self.messages_bytes_max).min(self.bus_message_bytes_max)
    }

    /// What relative paths in settings (`${file:…}`, `ca`) start from: the folder of the manifests, or with git where the process was started.
    pub fn settings_base(&self) -> PathBuf {
        if self.git.is_some() {
            return PathBuf::new();
        }
        if self.manifests.is_dir() {
            return self.manifests.clone();
        }
        self.manifests.parent().map(PathBuf::from).unwrap_or_default()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("manifests", &self.manifests)
            .field("data_dir", &self.data_dir)
            .finish_non_exhaustive()
    }
}
