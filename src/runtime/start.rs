//! What happens at start, in order, and at the end.
//!
//! 1. The manifests are read and checked; what has an error is left out, or nothing starts (`strict`).
//! 2. The bus is opened, streams and buckets are made, the API answers (not ready).
//! 3. Sinks and flows get *all their durables*: no message may enter before every reader that starts at the end has its place.
//! 4. Sources run, the entrances open, then the process is ready.
//!
//! From then on it follows the manifests (`reload`, `units`) until it is told to stop.
//!
//! The end is the reverse: not ready, entrances and sources stop, flows and sinks finish what is in hand, the bus closes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::backing::Backing;
use super::clock::SystemClock;
use super::config::Config;
use super::dead_letters::{self, DeadLetters};
use super::ownership::members::Describes;
use super::publisher::Publisher;
use super::reading::Backlogs;
use super::reload::{self, Reloads};
use super::units::{self, Units};
use super::{candidates, load, ownership, shutdown, streams, sync, telemetry, trim};
use crate::bus::embedded::OpenError;
use crate::bus::nats;
use crate::origin::git::Mirror;
use crate::ports::clock::SharedClock;
use crate::ports::peers::Peers;
use crate::protocol::publish::Head;
use crate::unit::context::Context;
use crate::unit::status::Registry;

/// How long a front door may take to close.
const DOOR_CLOSES_MAX: Duration = Duration::from_secs(3);
/// How often what former versions were made of is looked through.
const COLLECT_PERIOD: Duration = Duration::from_secs(1_800);
/// How often there is a look at what the cluster runs.
const HEAD_PERIOD: Duration = Duration::from_secs(1);
/// How often histograms are folded, so that they stay small.
const UPKEEP_PERIOD: Duration = Duration::from_secs(5);

/// Why a process did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Settings(String),
    #[error("{0}")]
    FrontDoor(String),
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    #[error(transparent)]
    Load(#[from] load::Error),
    #[error("{0}{mend}", mend = mend(.0))]
    Open(#[from] OpenError),
    #[error("bus: {0}")]
    Bus(#[from] crate::ports::bus::Error),
    #[error(transparent)]
    Units(#[from] units::Error),
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
    /// A unit or the bus cannot go on; a restart is the way out.
    #[error("stopped: {0}")]
    Failed(String),
    /// A start when it is back is the way out.
    #[error("the bus is away: {0}")]
    BusAway(String),
    /// Told twice to stop.
    #[error("ended at once on a second signal; what was in hand comes again at the next start")]
    EndedAtOnce,
}

fn mend(error: &OpenError) -> &'static str {
    if matches!(error, OpenError::InUse { .. }) { "; end it, or name another with VEJAS_DATA_DIR" } else { "" }
}

/// What the front doors read.
#[derive(Clone)]
pub struct Handle {
    pub context: Context,
    pub ownership: ownership::Handle,
    pub peers: Arc<dyn Peers>,
    /// The server behind the bus; none on the embedded one.
    pub server: Option<watch::Receiver<nats::State>>,
    pub config: Arc<Config>,
    pub registry: Arc<Registry>,
    pub dead_letters: DeadLetters,
    pub metrics: PrometheusHandle,
    pub manifests: reload::Told,
    pub backlogs: Backlogs,
    pub publisher: Publisher,
    /// When the process started, by the monotonic clock.
    pub started: Duration,
    /// Cancelled when the process is told to stop.
    pub draining: CancellationToken,
    /// Cancelled when the doors have to close.
    pub ended: CancellationToken,
}

/// A front door that is open.
pub struct Door {
    pub task: JoinHandle<()>,
    /// Told once every unit is up.
    pub ready: Box<dyn FnOnce() + Send>,
}

/// Opens a front door. It is the first to open and the last to close. The error is for people.
pub type FrontDoor = Box<dyn FnOnce(Handle) -> BoxFuture<'static, Result<Door, String>> + Send>;

/// Runs until told to stop. Blocks the calling thread.
pub fn run(config: Config, metrics: PrometheusHandle, front_door: FrontDoor) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("vejas").build()?;
    let result = runtime.block_on(serve(config, metrics, front_door));
    // What still runs is past its deadline.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

async fn serve(config: Config, metrics: PrometheusHandle, front_door: FrontDoor) -> Result<(), Error> {
    let mut signals = shutdown::Signals::listen()?;
    let config = Arc::new(config);
    let clock: SharedClock = Arc::new(SystemClock);
    let started = clock.monotonic();
    let loaded = match &config.git {
        Some(_) => None,
        None => Some(load::load(&config).await?),
    };
    let told = reload::Told::default();
    if let Some(loaded) = &loaded {
        told.read(&config, loaded);
    }
    let reloads = config.look_period.zip(loaded.as_ref());
    let mut reloads = reloads.map(|(period, loaded)| Reloads::new(&config, period, loaded));
    let backing = Backing::open(&config, &clock).await?;
    let (bus, store, peers) = (Arc::clone(&backing.bus), Arc::clone(&backing.store), Arc::clone(&backing.peers));
    // From here on everybody reads what this bus takes.
    let config = Arc::new(Config { bus_message_bytes_max: backing.message_bytes_max(), ..(*config).clone() });
    streams::ensure(&*bus, &*store, &config).await?;

    let (entrances, workers, ended) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let context = Context {
        bus,
        store,
        names: config.names.clone(),
        clock,
        instance: Arc::from(config.instance.as_str()),
        stopping: workers.clone(),
    };
    let registry = Arc::new(Registry::default());
    let dead_letters = DeadLetters::new(&context, Arc::clone(&registry));
    // Before anybody can ask for a letter that was replayed as the last process died.
    dead_letters.sweep().await?;
    let describes = Describes {
        instance: config.instance.clone(),
        address: config.api_addr.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        revision: String::new(),
        no: 0,
        degraded: None,
        started: context.clock.now().to_string(),
    };
    let (ownership, owning) = ownership::start(context.clone(), peers, config.ownership.clone(), describes);
    let mut owning = tokio::spawn(owning);
    let backlogs = Backlogs::default();
    let publisher = Publisher::new(&context, &config, &ownership);
    let handle = Handle {
        ownership: ownership.clone(),
        peers: Arc::clone(&backing.peers),
        server: backing.server(),
        context: context.clone(),
        config: Arc::clone(&config),
        registry: Arc::clone(&registry),
        dead_letters: dead_letters.clone(),
        metrics: metrics.clone(),
        manifests: told.clone(),
        backlogs: backlogs.clone(),
        publisher: publisher.clone(),
        started,
        draining: entrances.clone(),
        ended: ended.clone(),
    };
    let door = front_door(handle).await.map_err(Error::FrontDoor)?;
    let mut side = JoinSet::new();
    side.spawn(dead_letters::watch(dead_letters, workers.clone()));
    side.spawn(upkeep(metrics, workers.clone()));
    let (tell_head, mut heads) = watch::channel(Head::default());
    side.spawn(candidates::follow(publisher.clone(), tell_head, workers.clone()));

    let (mut units, change) = Units::start(loaded, &publisher, &registry, &entrances, backlogs).await?;
    // From git, and nothing published yet: there is nothing to be ready with.
    let mut ready = Some(door.ready);
    if config.git.is_none() || change.no > 0 {
        open(&mut ready, &registry, &config);
    }
    told.applied(&Ok(change), context.clock.now());
    // Only now: a unit without a durable holds nothing.
    units.own_chore("chore/trim", trim::chore(context.clone(), config.retention)).await;
    if let Some(git) = &config.git {
        let mirror = Mirror::new(git.options.clone());
        units.own_chore("chore/sync", sync::chore(publisher, mirror, git.period)).await;
    }

    let following = Following { told, context: context.clone(), config: Arc::clone(&config) };
    let failed = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            None
        }
        () = ownership.asked_to_drain() => {
            tracing::info!("asked to drain: stopping");
            None
        }
        reason = backing.stopped() => Some(Error::Failed(reason)),
        ended = &mut owning => Some(not_owning(ended)),
        reason = follow(&mut units, reloads.as_mut(), &mut heads, &following, &mut ready) => Some(Error::Failed(reason)),
    };
    if let Some(error) = &failed {
        tracing::error!("cannot go on: {error}");
    }
    let leave = failed.is_none().then_some((&ownership, owning));
    let drained = tokio::select! {
        drained = drain(&mut units, &entrances, &workers, config.drain, leave) => drained,
        _ = signals.another() => return Err(Error::EndedAtOnce),
    };
    if !drained {
        tracing::warn!("the deadline passed before everything in hand was finished; it comes again at the next start");
    }
    ended.cancel();
    // A client that holds a connection open does not hold up the end.
    let _ = tokio::time::timeout(DOOR_CLOSES_MAX, door.task).await;
    side.shutdown().await;
    backing.close().await;
    failed.map_or(Ok(()), Err)
}

/// What is told once, when every unit is up.
type Ready = Option<Box<dyn FnOnce() + Send>>;

/// What following needs beside the units.
struct Following {
    told: reload::Told,
    context: Context,
    config: Arc<Config>,
}

/// Every unit is up.
fn open(ready: &mut Ready, registry: &Registry, config: &Config) {
    if let Some(ready) = ready.take() {
        ready();
        tracing::info!(units = registry.all().len(), bus = %config.bus.shown(&config.data_dir), "ready");
    }
}

/// Why nobody drives the ownership of units any more.
fn not_owning(ended: Result<Result<(), ownership::Error>, JoinError>) -> Error {
    match ended {
        Ok(Ok(())) => Error::Failed("ownership ended by itself".to_owned()),
        Ok(Err(error @ ownership::Error::Lost { .. })) => Error::BusAway(error.to_string()),
        Ok(Err(ownership::Error::Bus(error))) if error.is_retryable() => Error::BusAway(error.to_string()),
        Ok(Err(error)) => Error::Failed(error.to_string()),
        Err(panic) => Error::Failed(format!("ownership broke off: {panic}")),
    }
}

/// Follows the manifests until a unit fails for good; answers why. Dropped at any point, it leaves units that can be drained.
async fn follow(
    units: &mut Units,
    mut reloads: Option<&mut Reloads>,
    heads: &mut watch::Receiver<Head>,
    following: &Following,
    ready: &mut Ready,
) -> String {
    let Following { told, context, config } = following;
    let mut collections = tokio::time::interval(COLLECT_PERIOD);
    let mut looks = tokio::time::interval(HEAD_PERIOD);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let loaded = {
            // Kept while other things are looked at: dropped, it would forget that something has changed.
            let next = async {
                match &mut reloads {
                    Some(reloads) => reloads.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::pin!(next);
            loop {
                tokio::select! {
                    reason = units.failed() => return reason,
                    loaded = &mut next => break loaded,
                    _ = collections.tick() => units.collect().await,
                    _ = looks.tick() => look_at_head(units, following, ready).await,
                    Ok(()) = heads.changed() => look_at_head(units, following, ready).await,
                }
            }
        };
        told.read(config, &loaded);
        let (fingerprint, beside) = (loaded.fingerprint.clone(), loaded.beside.clone());
        let applied = units.apply(loaded).await;
        told.applied(&applied, context.clock.now());
        match applied {
            Ok(change) => {
                reload::log(&change);
                if let Some(reloads) = &mut reloads {
                    reloads.applied(fingerprint, beside);
                }
            }
            // Tried again at the next look.
            Err(error) => {
                metrics::counter!("vejas_reloads_total", "result" => "failed").increment(1);
                tracing::error!("the new manifests are not in effect: {error}");
            }
        }
    }
}

/// Follows what is published, if that is another set than before.
async fn look_at_head(units: &mut Units, following: &Following, ready: &mut Ready) {
    let Following { told, context, config } = following;
    match units.reconsider().await {
        Ok(None) => {}
        Ok(Some(change)) => {
            reload::log(&change);
            if change.no > 0 {
                open(ready, units.registry(), config);
            }
            told.applied(&Ok(change), context.clock.now());
        }
        Err(error) => tracing::warn!("what is published is not in effect here: {error}"),
    }
}

/// Entrances and sources first, then flows and sinks. Answers whether all of them ended before the deadline.
async fn drain(
    units: &mut Units,
    entrances: &CancellationToken,
    workers: &CancellationToken,
    deadline: Duration,
    leave: Option<(&ownership::Handle, JoinHandle<Result<(), ownership::Error>>)>,
) -> bool {
    let orderly = leave.is_some();
    let all = async {
        entrances.cancel();
        let left = async {
            let Some((ownership, owning)) = leave else { return };
            ownership.leave(deadline).await;
            match owning.await {
                Ok(Ok(())) => {}
                ended => tracing::warn!("units are not handed over: {}", not_owning(ended)),
            }
        };
        tokio::join!(units.entrances_ended(), left);
        workers.cancel();
        units.workers_ended().await;
    };
    // When something failed there is nothing to wait for: the bus takes no more.
    let deadline = if orderly { deadline } else { Duration::from_secs(1) };
    tokio::time::timeout(deadline, all).await.is_ok()
}

async fn upkeep(metrics: PrometheusHandle, stopping: CancellationToken) {
    let mut turns = tokio::time::interval(UPKEEP_PERIOD);
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = turns.tick() => metrics.run_upkeep(),
        }
    }
}
