//! The settings of a cluster, as the command line and the environment give them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::run::environment;
use crate::runtime::config::{BusConfig, Credentials, ServerConfig, Tls};
use crate::runtime::ownership::Settings;

/// Where a server is when nobody says.
const URL_DEFAULT: &str = "nats://127.0.0.1:4222";
/// Shorter leases would make every hiccup of the bus a move.
const TTL_SECS_MIN: u64 = 2;
const TTL_SECS_MAX: u64 = 600;

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Cluster")]
#[group(id = "cluster_settings")]
pub struct Args {
    /// Share a NATS JetStream server with other instances; without it the bus is embedded.
    #[arg(long, env = "VEJAS_CLUSTER", value_parser = clap::builder::BoolishValueParser::new())]
    cluster: bool,
    /// The server, or several separated by commas. Default: NATS_URL, else nats://127.0.0.1:4222.
    #[arg(long, env = "VEJAS_NATS_URL")]
    nats_url: Option<String>,
    #[arg(long, env = "VEJAS_NATS_USER", requires = "nats_password")]
    nats_user: Option<String>,
    #[arg(long, env = "VEJAS_NATS_PASSWORD", hide_env_values = true, requires = "nats_user")]
    nats_password: Option<String>,
    #[arg(long, env = "VEJAS_NATS_TOKEN", hide_env_values = true)]
    nats_token: Option<String>,
    /// File with an NKey seed.
    #[arg(long, env = "VEJAS_NATS_NKEY")]
    nats_nkey: Option<PathBuf>,
    /// File with a user JWT and its seed.
    #[arg(long, env = "VEJAS_NATS_CREDS")]
    nats_creds: Option<PathBuf>,
    /// PEM file of authorities that may have signed the server's certificate.
    #[arg(long, env = "VEJAS_NATS_CA")]
    nats_ca: Option<PathBuf>,
    /// PEM client certificate chain.
    #[arg(long, env = "VEJAS_NATS_CERT", requires = "nats_key")]
    nats_cert: Option<PathBuf>,
    /// PEM client key.
    #[arg(long, env = "VEJAS_NATS_KEY", requires = "nats_cert")]
    nats_key: Option<PathBuf>,
    /// Where the server's monitoring answers, such as http://127.0.0.1:8222: `vejas status` then shows when the server syncs.
    #[arg(long, env = "VEJAS_NATS_MONITOR")]
    nats_monitor: Option<String>,
    /// Copies of every stream and bucket: 1, 3 or 5.
    #[arg(long, env = "VEJAS_REPLICAS", default_value_t = 1)]
    replicas: usize,
    /// A unit whose owner is silent moves after this many seconds. The same on all instances.
    #[arg(long, env = "VEJAS_LEASE_TTL_SECS", default_value_t = 10)]
    lease_ttl_secs: u64,
    /// A member that is silent is forgotten after this many seconds.
    #[arg(long, env = "VEJAS_HEARTBEAT_TTL_SECS", default_value_t = 10)]
    heartbeat_ttl_secs: u64,
    /// How often a member that owns something refreshes its session, in milliseconds.
    #[arg(long, env = "VEJAS_BEAT_MS", hide_short_help = true)]
    beat_ms: Option<u64>,
    /// How long after its last refresh a member may act outside the bus, in milliseconds.
    #[arg(long, env = "VEJAS_SESSION_GATE_MS", hide_short_help = true)]
    session_gate_ms: Option<u64>,
    /// How long a suspected member may take to show that it lives, in milliseconds.
    #[arg(long, env = "VEJAS_GRACE_MS", hide_short_help = true)]
    grace_ms: Option<u64>,
    /// How often members ping each other, in milliseconds.
    #[arg(long, env = "VEJAS_PROBE_MS", hide_short_help = true, default_value_t = 100)]
    probe_ms: u64,
}

impl Args {
    /// Which bus, and who owns what on it.
    pub(super) fn config(self) -> Result<(BusConfig, Settings), String> {
        if !self.cluster {
            return Ok((BusConfig::Embedded, Settings::alone()));
        }
        if ![1, 3, 5].contains(&self.replicas) {
            return Err(format!("VEJAS_REPLICAS is {}; it can be 1, 3 or 5", self.replicas));
        }
        for (name, secs) in
            [("VEJAS_LEASE_TTL_SECS", self.lease_ttl_secs), ("VEJAS_HEARTBEAT_TTL_SECS", self.heartbeat_ttl_secs)]
        {
            if !(TTL_SECS_MIN..=TTL_SECS_MAX).contains(&secs) {
                return Err(format!("{name} is {secs}; it can be {TTL_SECS_MIN} to {TTL_SECS_MAX} seconds"));
            }
        }
        if self.probe_ms == 0 {
            return Err("VEJAS_PROBE_MS is 0; members have to be pinged".to_owned());
        }
        let (lease_ttl, heartbeat_ttl) =
            (Duration::from_secs(self.lease_ttl_secs), Duration::from_secs(self.heartbeat_ttl_secs));
        let (beat, gate, grace) = (self.beat_ms, self.session_gate_ms, self.grace_ms);
        let probe = Duration::from_millis(self.probe_ms);
        let ownership = Settings::cluster(lease_ttl, heartbeat_ttl, probe, |timers| {
            timers.beat_ms = beat.unwrap_or(timers.beat_ms);
            timers.session_gate_ms = gate.unwrap_or(timers.session_gate_ms);
            timers.grace_ms = grace.unwrap_or(timers.grace_ms);
        });
        let ownership = ownership.map_err(|error| error.to_string())?;
        let credentials = self.credentials()?;
        let url = self.nats_url.or_else(|| environment("NATS_URL")).filter(|url| !url.is_empty());
        let server = ServerConfig {
            url: url.unwrap_or_else(|| URL_DEFAULT.to_owned()),
            credentials,
            tls: Tls { ca: self.nats_ca, certificate: self.nats_cert.zip(self.nats_key) },
            replicas: self.replicas,
            connect_wait: lease_ttl,
            monitor: self.nats_monitor,
        };
        Ok((BusConfig::Nats(Box::new(server)), ownership))
    }

    fn credentials(&self) -> Result<Credentials, String> {
        let user = self.nats_user.clone().zip(self.nats_password.clone());
        let mut given: Vec<(&str, Credentials)> = Vec::new();
        given.extend(user.map(|(user, password)| ("VEJAS_NATS_USER", Credentials::User { user, password })));
        given.extend(self.nats_token.clone().map(|token| ("VEJAS_NATS_TOKEN", Credentials::Token(token))));
        given.extend(self.nats_nkey.clone().map(|path| ("VEJAS_NATS_NKEY", Credentials::Nkey(path))));
        given.extend(self.nats_creds.clone().map(|path| ("VEJAS_NATS_CREDS", Credentials::Creds(path))));
        if given.len() > 1 {
            let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
            return Err(format!("{} are set; a server is told one of them", names.join(" and ")));
        }
        Ok(given.pop().map_or(Credentials::None, |(_, credentials)| credentials))
    }
}
