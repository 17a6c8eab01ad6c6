//! `vejas run`: the main job.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args as ClapArgs;

use super::cluster;
use super::exit::Exit;
use super::git;
use crate::api;
use crate::connectors::http::tls;
use crate::id::{Names, SUBJECT_ROOT_DEFAULT};
use crate::manifest::http_in::LISTEN_DEFAULT;
use crate::manifest::value::{ByteSize, Span};
use crate::runtime::config::{BusConfig, Config};
use crate::runtime::load;
use crate::runtime::ownership::overview::Overview;
use crate::runtime::replay::Replays;
use crate::runtime::start::{self, Door, Handle};
use crate::runtime::telemetry::{self, LogFormat};
use crate::runtime::units;

/// The manifests are not looked at more often than this.
const LOOK_PERIOD_MIN: Duration = Duration::from_millis(100);
/// Where the manifests are when nobody says.
const MANIFESTS_DEFAULT: &str = "manifests";
/// Smallest byte limit of the message stream.
const MESSAGES_BYTES_MIN: u64 = 4 << 20;

/// Run the units that the manifests declare, until told to stop.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Folder or file of manifests. Default: manifests. With a git repository there is none.
    #[arg(env = "VEJAS_MANIFESTS")]
    manifests: Option<PathBuf>,
    /// Where the embedded bus keeps messages and state.
    #[arg(long, env = "VEJAS_DATA_DIR", default_value = ".vejas")]
    data_dir: PathBuf,
    /// Name of this process. Default: the host's name.
    #[arg(long, env = "VEJAS_INSTANCE")]
    instance: Option<String>,
    /// Prefix of all subjects.
    #[arg(long, env = "VEJAS_SUBJECT_ROOT", default_value = SUBJECT_ROOT_DEFAULT)]
    subject_root: String,
    /// Address of the API. Beyond loopback it needs a token.
    #[arg(long, env = "VEJAS_HTTP_ADDR", default_value = "127.0.0.1:8686")]
    http_addr: String,
    /// PEM certificate chain: serves the API over HTTPS.
    #[arg(long, env = "VEJAS_HTTP_TLS_CERT", requires = "http_tls_key")]
    http_tls_cert: Option<PathBuf>,
    /// PEM private key for the API.
    #[arg(long, env = "VEJAS_HTTP_TLS_KEY", requires = "http_tls_cert")]
    http_tls_key: Option<PathBuf>,
    /// Address of HttpIn units that name none.
    #[arg(long, env = "VEJAS_INGRESS_ADDR", default_value = LISTEN_DEFAULT)]
    ingress_addr: String,
    /// Token that the API asks for.
    #[arg(long, env = "VEJAS_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Token that may only read.
    #[arg(long, env = "VEJAS_READ_TOKEN", hide_env_values = true)]
    read_token: Option<String>,
    /// Folder of secrets: `${secret:path/key}` is the file `path/key` in it.
    #[arg(long, env = "VEJAS_SECRETS_DIR")]
    secrets_dir: Option<PathBuf>,
    /// Bytes of messages kept at most; when full, entrances answer 503.
    #[arg(long, env = "VEJAS_MAX_BYTES", default_value = "8GiB", value_parser = bytes)]
    max_bytes: u64,
    /// Bytes of dead letters kept at most; when full, the failing units pause.
    #[arg(long, env = "VEJAS_DLQ_MAX_BYTES", default_value = "1GiB", value_parser = bytes)]
    dlq_max_bytes: u64,
    /// How long acknowledged messages are kept.
    #[arg(long, env = "VEJAS_RETENTION", default_value = "24h", value_parser = duration)]
    retention: Duration,
    /// How long a shutdown may take before the process ends anyway.
    #[arg(long, env = "VEJAS_DRAIN", default_value = "25s", value_parser = duration)]
    drain: Duration,
    /// How often the manifests are looked at, beside what the file system says. A change takes effect without a restart.
    #[arg(long, env = "VEJAS_CHECK_INTERVAL", default_value = "30s", value_parser = duration)]
    check_interval: Duration,
    /// Run what the manifests say at the start until the end, whatever becomes of them.
    #[arg(long, env = "VEJAS_NO_WATCH", value_parser = clap::builder::BoolishValueParser::new())]
    no_watch: bool,
    /// Refuse to start when any manifest has an error. Otherwise the sound ones run.
    #[arg(long, env = "VEJAS_STRICT", value_parser = clap::builder::BoolishValueParser::new())]
    strict: bool,
    /// Log level, or a list such as `info,vejas=debug`.
    #[arg(long = "log", env = "VEJAS_LOG", default_value = "info")]
    log: String,
    /// How log lines look: human on a terminal and JSON otherwise, unless told.
    #[arg(long, env = "VEJAS_LOG_FORMAT", default_value = "auto", value_enum)]
    log_format: Format,
    #[command(flatten)]
    git: git::Args,
    #[command(flatten)]
    cluster: cluster::Args,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    Auto,
    Human,
    Json,
}

fn bytes(text: &str) -> Result<u64, String> {
    ByteSize::parse(text).map(|size| size.0).map_err(|error| error.to_string())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    Span::parse(text).map(|span| span.0).map_err(|error| error.to_string())
}

pub(super) fn run(args: Args) -> Exit {
    match start(args) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!("vejas: {}", with_causes(&error));
            match error {
                start::Error::Settings(_) | start::Error::Telemetry(_) => Exit::Usage,
                start::Error::Load(load::Error::Address { .. }) => Exit::Usage,
                start::Error::Load(_) => Exit::Problems,
                start::Error::BusAway(_) => Exit::BusAway,
                start::Error::Bus(error) | start::Error::Units(units::Error::Bus(error)) if error.is_retryable() => {
                    Exit::BusAway
                }
                _ => Exit::Failed,
            }
        }
    }
}

/// The error and what caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

fn start(args: Args) -> Result<(), start::Error> {
    let format = match args.log_format {
        Format::Auto => LogFormat::Auto,
        Format::Human => LogFormat::Human,
        Format::Json => LogFormat::Json,
    };
    telemetry::logs(&args.log, format)?;
    let metrics = telemetry::metrics()?;
    let config = config(args).map_err(start::Error::Settings)?;
    start::run(config, metrics, Box::new(|handle| Box::pin(open_api(handle))))
}

fn config(args: Args) -> Result<Config, String> {
    let git = args.git.config(&args.data_dir)?;
    if let (Some(_), Some(manifests)) = (&git, &args.manifests) {
        return Err(format!(
            "the manifests come from git (VEJAS_GIT_URL) or from {} (VEJAS_MANIFESTS): name one of them",
            manifests.display()
        ));
    }
    let manifests = args.manifests.unwrap_or_else(|| MANIFESTS_DEFAULT.into());
    if git.is_none() && !manifests.exists() {
        return Err(format!(
            "there is nothing at {}: name a folder of manifests, or start one with `vejas new flow`",
            manifests.display()
        ));
    }
    if args.max_bytes < MESSAGES_BYTES_MIN {
        return Err(format!("VEJAS_MAX_BYTES is {} bytes; less than 4MiB leaves no room to work in", args.max_bytes));
    }
    let (bus, ownership) = args.cluster.config()?;
    let seed = random();
    let jitter = AtomicU64::new(seed as u64 | 1);
    Ok(Config {
        bus,
        ownership,
        manifests,
        git,
        data_dir: args.data_dir,
        names: Names::new(&args.subject_root).map_err(|error| error.to_string())?,
        instance: args.instance.unwrap_or_else(host_name),
        api_addr: args.http_addr,
        api_tls: args.http_tls_cert.zip(args.http_tls_key),
        ingress_addr: args.ingress_addr,
        token: args.token.filter(|token| !token.is_empty()),
        read_token: args.read_token.filter(|token| !token.is_empty()),
        secrets_dir: args.secrets_dir,
        messages_bytes_max: args.max_bytes,
        bus_message_bytes_max: usize::MAX,
        dead_letters_bytes_max: args.dlq_max_bytes,
        retention: args.retention,
        drain: args.drain,
        look_period: (!args.no_watch).then_some(args.check_interval.max(LOOK_PERIOD_MIN)),
        strict: args.strict,
        environment: Arc::new(environment),
        jitter: Arc::new(move || next_random(&jitter)),
        seed,
    })
}

/// The one place where a manifest's `${env:NAME}` meets the environment.
#[allow(clippy::disallowed_methods)]
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The one place where chance comes in: what it gives is handed down.
#[allow(clippy::disallowed_methods)]
fn random() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// SplitMix64 (Steele, Lea, Flood 2014), as a number in `0.0..=1.0`. Good enough to spread retries.
fn next_random(state: &AtomicU64) -> f64 {
    const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut mixed = state.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
}

async fn open_api(handle: Handle) -> Result<Door, String> {
    let tokens = api::Tokens::new(handle.config.token.as_deref(), handle.config.read_token.as_deref())
        .map_err(|error| format!("API token: {error}"))?;
    let loaded = api::Loaded::default();
    let told = api::Told {
        registry: Arc::clone(&handle.registry),
        dead_letters: handle.dead_letters.clone(),
        bus: Arc::clone(&handle.context.bus),
        names: handle.context.names.clone(),
        clock: Arc::clone(&handle.context.clock),
        instance: Arc::clone(&handle.context.instance),
        bus_kind: if handle.server.is_some() { "nats" } else { "embedded" },
        data_dir: handle.server.is_none().then(|| Arc::from(handle.config.data_dir.display().to_string())),
        started: handle.started,
        metrics: Some(handle.metrics.clone()),
        stopping: handle.draining.clone(),
        loaded: loaded.clone(),
        manifests: handle.manifests.clone(),
        backlogs: handle.backlogs.clone(),
        publisher: Some(handle.publisher.clone()),
        follows_git: handle.config.git.is_some(),
        webhook_secret: handle.config.git.as_ref().and_then(|git| git.webhook_secret.as_deref().map(Arc::from)),
        overview: Some(Overview {
            context: handle.context.clone(),
            handle: handle.ownership.clone(),
            peers: Arc::clone(&handle.peers),
        }),
        server: handle.server.clone(),
        replicas: match &handle.config.bus {
            BusConfig::Embedded => 1,
            BusConfig::Nats(server) => server.replicas,
        },
        monitor: match &handle.config.bus {
            BusConfig::Embedded => None,
            BusConfig::Nats(server) => server.monitor.as_deref().map(Arc::from),
        },
        taps: api::Taps::default(),
        webhooks: Arc::default(),
        replays: Replays::new(&handle.context, handle.config.message_bytes_max()),
    };
    let tls = handle.config.api_tls.clone().map(|(cert, key)| tls::Files { cert, key });
    let options = api::Options { address: handle.config.api_addr.clone(), tls, tokens };
    let server = api::Server::bind(told, options).await.map_err(|error| match error {
        api::Error::Unguarded(_) => error.to_string(),
        other => format!("{other} (VEJAS_HTTP_ADDR says where the API listens)"),
    })?;
    Ok(Door { task: tokio::spawn(server.run(handle.ended)), ready: Box::new(move || loaded.set()) })
}
