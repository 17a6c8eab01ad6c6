//! Where the server is and how to be let in.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Auth, AuthError, ConnectErrorKind, ConnectOptions, ServerAddr};

use crate::ports::clock::SharedClock;

/// The oldest server that has atomic batches.
pub const SERVER_VERSION_MIN: (u64, u64) = (2, 12);
/// A connection that gave no sign of life for three of these is lost.
const PING_PERIOD: Duration = Duration::from_secs(1);
/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Answers that may wait to be read; beyond it the client library drops them.
pub(super) const ANSWERS_QUEUED_MAX: usize = 1 << 17;
/// Commands the client library holds between us and the socket. Few: what waits there cannot be taken back.
const COMMANDS_QUEUED_MAX: usize = 256;

#[derive(Clone)]
pub struct Options {
    /// `nats://host:port`, `tls://…`; several separated by commas are tried in turn.
    pub url: String,
    pub credentials: Credentials,
    pub tls: Tls,
    /// Replicas of streams and buckets: 1, 3 or 5.
    pub replicas: usize,
    /// How long a request may go without an answer before it counts as unknown.
    pub request_timeout: Duration,
    /// Shown by the server's monitoring.
    pub name: String,
    /// The version of this binary, kept in a durable's metadata.
    pub version: String,
    /// Random; tells the inboxes and batches of this process from those of any other.
    pub seed: u128,
    pub clock: SharedClock,
}

impl Options {
    pub fn new(url: impl Into<String>, seed: u128, clock: SharedClock) -> Self {
        Options {
            url: url.into(),
            credentials: Credentials::None,
            tls: Tls::default(),
            replicas: 1,
            request_timeout: Duration::from_secs(5),
            name: "vejas".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed,
            clock,
        }
    }
}

/// Shows no secret.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("tls", &self.tls).field("replicas", &self.replicas).finish_non_exhaustive()
    }
}

#[derive(Clone, Default)]
pub enum Credentials {
    /// None, or those in the URL.
    #[default]
    None,
    User {
        user: String,
        password: String,
    },
    Token(String),
    /// A file that holds an NKey seed.
    Nkey(PathBuf),
    /// A `.creds` file: a JWT and its NKey seed.
    Creds(PathBuf),
}

/// Files in PEM.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// Who may have signed the server's certificate. The system's authorities when unset.
    pub ca: Option<PathBuf>,
    /// This process's certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "NATS server address {0:?} (VEJAS_NATS_URL) cannot be read; it is like nats://host:4222, several are separated by commas"
    )]
    Url(String),
    #[error("{what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{what} {}: {reason}", path.display())]
    Credentials { what: &'static str, path: PathBuf, reason: String },
    #[error("NATS server {server} refuses the credentials")]
    Refused { server: String },
    #[error("nats-server at {server} is {found}, wanted {wanted} or newer (atomic batches)")]
    Version { server: String, found: String, wanted: String },
    #[error("nats-server at {server} has no JetStream for this account: {reason}")]
    NoJetStream { server: String, reason: String },
    #[error("cannot reach NATS server {server}: {reason}")]
    Unreachable { server: String, reason: String },
}

impl ConnectError {
    /// Whether the same attempt may succeed later without anybody changing a setting.
    pub fn is_retryable(&self) -> bool {
        matches!(self, ConnectError::Unreachable { .. })
    }
}

/// What is presented when the server asks who we are. Read once, so that a file that changes does not surprise later.
#[derive(Clone)]
pub(super) enum Identity {
    Plain(Auth),
    Signing { jwt: Option<String>, seed: String },
}

impl Identity {
    pub fn load(options: &Options, server: &ServerAddr) -> Result<Self, ConnectError> {
        let mut auth = Auth::new();
        match &options.credentials {
            Credentials::None => {
                auth.username = server.username().map(str::to_owned);
                auth.password = server.password().map(str::to_owned);
            }
            Credentials::User { user, password } => {
                auth.username = Some(user.clone());
                auth.password = Some(password.clone());
            }
            Credentials::Token(token) => auth.token = Some(token.clone()),
            Credentials::Nkey(path) => {
                let text = read("NKey seed file", path)?;
                let seed = text.lines().map(str::trim).find(|line| line.starts_with('S'));
                return Self::signing("NKey seed file", path, None, seed);
            }
            Credentials::Creds(path) => {
                let text = read("credentials file", path)?;
                let jwt = section(&text, "USER JWT");
                if jwt.is_none() {
                    return Err(unusable("credentials file", path, "no user JWT in it"));
                }
                return Self::signing("credentials file", path, jwt, section(&text, "USER NKEY SEED"));
            }
        }
        Ok(Identity::Plain(auth))
    }

    fn signing(
        what: &'static str,
        path: &std::path::Path,
        jwt: Option<&str>,
        seed: Option<&str>,
    ) -> Result<Self, ConnectError> {
        let seed = seed.ok_or_else(|| unusable(what, path, "no seed in it"))?;
        nkeys::KeyPair::from_seed(seed).map_err(|error| unusable(what, path, &error.to_string()))?;
        Ok(Identity::Signing { jwt: jwt.map(str::to_owned), seed: seed.to_owned() })
    }

    fn answer(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        match self {
            Identity::Plain(auth) => Ok(auth.clone()),
            Identity::Signing { jwt, seed } => {
                let pair = nkeys::KeyPair::from_seed(seed).map_err(AuthError::new)?;
                let mut auth = Auth::new();
                auth.signature = Some(pair.sign(nonce).map_err(AuthError::new)?);
                match jwt {
                    Some(jwt) => auth.jwt = Some(jwt.clone()),
                    None => auth.nkey = Some(pair.public_key()),
                }
                Ok(auth)
            }
        }
    }
}

fn read(what: &'static str, path: &std::path::Path) -> Result<String, ConnectError> {
    std::fs::read_to_string(path).map_err(|source| ConnectError::File { what, path: path.to_owned(), source })
}

fn unusable(what: &'static str, path: &std::path::Path, reason: &str) -> ConnectError {
    ConnectError::Credentials { what, path: path.to_owned(), reason: reason.to_owned() }
}

/// The line below `-----BEGIN NATS <name>-----` or `-----BEGIN <name>-----`.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("---") && line.contains("BEGIN") && line.contains(name))?;
    lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with('-'))
}

/// The addresses, in the order they are tried.
pub(super) fn servers(url: &str) -> Result<Vec<ServerAddr>, ConnectError> {
    let parts = url.split(',').map(str::trim).filter(|part| !part.is_empty());
    let servers: Result<Vec<ServerAddr>, _> =
        parts.map(|part| server(part).ok_or_else(|| ConnectError::Url(without_secret(part)))).collect();
    servers.and_then(|servers| if servers.is_empty() { Err(ConnectError::Url(String::new())) } else { Ok(servers) })
}

/// The client library reads `nats:/host` as the host `nats` with a path, which it then ignores. Only a websocket has a path.
fn server(text: &str) -> Option<ServerAddr> {
    let server: ServerAddr = text.parse().ok()?;
    let path = server.clone().into_inner().path().to_owned();
    (server.is_websocket() || matches!(path.as_str(), "" | "/")).then_some(server)
}

/// An address without user and password, for messages.
fn without_secret(url: &str) -> String {
    url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, host)| host.to_owned())
}

pub(super) fn shown(server: &ServerAddr) -> String {
    format!("{}:{}", server.host(), server.port())
}

/// One connection that is never repaired by the library: a reconnect there would send what was queued during the outage
/// (own-P4). `max_reconnects` of 0 would mean for ever, so it is 1, and the one attempt is refused its credentials.
pub(super) fn connect_options(
    options: &Options,
    identity: Identity,
    lost: Arc<dyn Fn(String) + Send + Sync>,
) -> ConnectOptions {
    let granted = Arc::new(AtomicBool::new(false));
    let mut connect = ConnectOptions::with_auth_callback(move |nonce| {
        let again = granted.swap(true, Ordering::AcqRel);
        let auth =
            if again { Err(AuthError::new("a lost connection is not repaired")) } else { identity.answer(&nonce) };
        async move { auth }
    })
    .name(&options.name)
    .max_reconnects(1)
    .ignore_discovered_servers()
    .connection_timeout(CONNECT_TIMEOUT)
    .ping_interval(PING_PERIOD)
    .subscription_capacity(ANSWERS_QUEUED_MAX)
    .client_capacity(COMMANDS_QUEUED_MAX)
    .event_callback(move |event| {
        use async_nats::Event;
        match event {
            Event::Disconnected | Event::Closed => lost("connection lost".to_owned()),
            Event::SlowConsumer(_) => lost("answers came faster than they were read".to_owned()),
            Event::ServerError(error) => tracing::warn!("NATS server: {error}"),
            _ => {}
        }
        std::future::ready(())
    });
    if let Some(ca) = &options.tls.ca {
        connect = connect.add_root_certificates(ca.clone()).require_tls(true);
    }
    if let Some((certificate, key)) = &options.tls.certificate {
        connect = connect.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
    }
    connect
}

pub(super) fn refused(server: &ServerAddr, error: &async_nats::ConnectError) -> ConnectError {
    let server = shown(server);
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => ConnectError::Refused { server },
        _ => ConnectError::Unreachable { server, reason: error.to_string() },
    }
}

/// Whether a server of this version can be used.
pub(super) fn check_version(server: &str, version: &str) -> Result<(), ConnectError> {
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u64>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found >= SERVER_VERSION_MIN {
        return Ok(());
    }
    let (major, minor) = SERVER_VERSION_MIN;
    Err(ConnectError::Version {
        server: server.to_owned(),
        found: version.to_owned(),
        wanted: format!("{major}.{minor}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, fits) in
            [("2.12.0", true), ("2.15.1", true), ("2.9.25", false), ("2.12.0-RC.1", true), ("3.0.0", true)]
        {
            assert_eq!(check_version("s", version).is_ok(), fits, "{version}");
        }
    }

    #[test]
    fn a_refused_address_is_shown_without_its_password() {
        let error = servers("nats://user:secret@ho st").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn an_address_that_would_be_read_as_another_is_refused() {
        for url in ["nats:/host", "nats:/host:4222", "http://host:4222", "nats://host/path", "", ","] {
            assert!(matches!(servers(url), Err(ConnectError::Url(_))), "{url}");
        }
        for url in ["host", "host:4222", "nats://host:4222/", "tls://a,tls://b:1", "ws://host/path"] {
            assert!(servers(url).is_ok(), "{url}");
        }
    }
}
