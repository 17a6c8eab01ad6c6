//! The life of one unit that reads, a flow or a sink, over all its versions.
//!
//! One task per unit. It takes the newest wish, brings the unit's record in line (`parts`), makes the durables, runs a worker per
//! durable, and when the wish changes stops them and begins again. So a unit that cannot change now holds up no other, and a
//! change never meets a worker of the version before. A unit that cannot run is shown as failed and waits for the next wish.
//!
//! What stopping means: workers get `STOP_MAX` to finish what is in hand; what they do not finish is handed out again.

mod crew;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use self::crew::Crew;
use super::config::Config;
use super::contents;
use super::holding::{self, Holding, Passing};
use super::load::LoadedUnit;
use super::ownership::Owned;
use super::parts::{self, Granting, UnitParts};
use super::settings::Settings;
use super::versions::Versions;
use super::{flow_worker, sink_units, sink_worker};
use crate::flow::backoff::Backoff;
use crate::id::UnitId;
use crate::manifest::Spec;
use crate::manifest::flow::Step;
use crate::manifest::value::StartFrom;
use crate::ports::bus::{self, DurableInfo};
use crate::protocol::parts::Wanted;
use crate::transforms;
use crate::unit::context::Context;
use crate::unit::status::{self, Registry, State};

/// Deliveries of a flow that may be unacknowledged at once.
pub(super) const IN_FLIGHT_MAX: usize = 4_096;
/// How long the workers of a version may take to stop when another version takes over.
const STOP_MAX: Duration = Duration::from_secs(5);
/// How often there is a look whether a former version is worked off.
const TIDY_PERIOD: Duration = Duration::from_millis(500);
/// How often a unit that one member runs says that it is alive.
const ALIVE_PERIOD: Duration = Duration::from_millis(500);
/// Before a unit whose durable was removed by another member, or by a person, is made ready again.
const GONE_WAIT: Duration = Duration::from_millis(200);
/// Waits while the bus refuses.
const BACKOFF: Backoff = Backoff { initial: Duration::from_millis(100), max: Duration::from_secs(5) };

/// What all units share.
pub(super) struct Shared {
    pub context: Context,
    pub config: Arc<Config>,
    pub settings: Settings,
    pub registry: Arc<Registry>,
    pub versions: Arc<Versions>,
    pub backlogs: Backlogs,
}

/// Asks for the purge of one unit: how many messages were given up, or why not.
type Purge = oneshot::Sender<Result<u64, String>>;

/// Gives up what waits for a unit. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Backlogs(Arc<Mutex<BTreeMap<UnitId, mpsc::Sender<Purge>>>>);

impl Backlogs {
    /// Gives up everything stored so far that the unit has not acknowledged. `None` when no such unit reads.
    pub async fn purge(&self, id: &UnitId) -> Option<Result<u64, String>> {
        let purges = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()?;
        let (answer, answered) = oneshot::channel();
        let ended = || Err("the unit has ended".to_owned());
        if purges.send(answer).await.is_err() {
            return Some(ended());
        }
        Some(answered.await.unwrap_or_else(|_| ended()))
    }
}

/// What a unit is to be.
#[derive(Clone)]
pub(super) struct Wish {
    /// The publication it comes from.
    pub no: u64,
    pub version: Version,
}

#[derive(Clone)]
pub(super) enum Version {
    Running(Arc<LoadedUnit>),
    /// Its record follows and nothing works; why, for people.
    Suspended {
        version: Arc<LoadedUnit>,
        why: String,
    },
    /// Its manifest has an error and no version ran before: what would come to it waits.
    Waiting {
        reads: Vec<String>,
        start: StartFrom,
    },
    Removed,
}

/// How far a unit is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    /// The newest publication that came into effect.
    pub no: u64,
    /// Why the unit cannot run.
    pub failed: Option<String>,
}

/// The handle of one unit that reads.
pub(super) struct Reader {
    wishes: watch::Sender<Wish>,
    progress: watch::Receiver<Progress>,
    passing: Passing,
}

impl Reader {
    /// The handle, and the task to run. `before` is a durable from when units had no records.
    pub fn new(
        shared: Arc<Shared>,
        id: UnitId,
        wish: Wish,
        before: Option<(u32, DurableInfo)>,
    ) -> (Self, impl Future<Output = Result<(), String>> + Send + 'static) {
        let (wishes, wanted) = watch::channel(wish);
        let (told, progress) = watch::channel(Progress { no: 0, failed: None });
        let (ask, purges) = mpsc::channel(1);
        shared.backlogs.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), ask);
        let (passing, holding) = holding::pair();
        let keeper = Keeper { shared, id, wanted, told, purges, before, holding };
        (Reader { wishes, progress, passing }, keeper.run())
    }

    /// For a unit of which one member runs the workers.
    pub fn owned(&self, line: Arc<status::Unit>) -> Owned {
        self.passing.owned(line)
    }

    pub fn wish(&self, wish: Wish) {
        // Nobody takes it any more only when the process ends.
        let _ = self.wishes.send(wish);
    }

    /// Waits until publication `no` is in effect.
    pub async fn reached(&self, no: u64) -> Progress {
        let mut progress = self.progress.clone();
        let reached = progress.wait_for(|progress| progress.no >= no).await;
        reached.map_or(Progress { no, failed: Some("it has ended".to_owned()) }, |progress| progress.clone())
    }
}

struct Keeper {
    shared: Arc<Shared>,
    id: UnitId,
    wanted: watch::Receiver<Wish>,
    told: watch::Sender<Progress>,
    purges: mpsc::Receiver<Purge>,
    before: Option<(u32, DurableInfo)>,
    holding: Holding,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Parts(#[from] parts::Error),
    #[error(transparent)]
    Contents(#[from] contents::Error),
    #[error(transparent)]
    Build(#[from] transforms::BuildError),
    #[error("{0}")]
    Unit(String),
}

impl Error {
    fn is_retryable(&self) -> bool {
        match self {
            Error::Parts(error) => error.is_retryable(),
            Error::Contents(contents::Error::Bus(error)) => error.is_retryable(),
            _ => false,
        }
    }
}

/// A worker that may start, and the durable it reads.
enum Ready {
    Flow(Box<flow_worker::FlowUnit>),
    Sink(Box<sink_worker::SinkUnit>),
}

impl Ready {
    fn has_order(&self) -> bool {
        matches!(self, Ready::Sink(sink) if sink.order_by.is_some())
    }
}

/// Why the workers ended.
enum After {
    /// There is another wish.
    Change,
    /// Nothing is at work, and all that waits is to be given up.
    Purge(Purge),
    Stopped,
    Broken(String),
}

impl Keeper {
    async fn run(mut self) -> Result<(), String> {
        let stopping = self.shared.context.stopping.clone();
        let mut failures = 0;
        loop {
            let wish = self.wanted.borrow_and_update().clone();
            let mut wait = None;
            match self.prepare(&wish).await {
                Ok(workers) => {
                    failures = 0;
                    self.tell(wish.no, None);
                    if let Some((parts, workers)) = workers {
                        let after = match self.hold(&workers).await {
                            Some(after) => after,
                            None => self.work(&parts, workers).await,
                        };
                        self.holding.let_go_if_over();
                        match after {
                            After::Change => {}
                            After::Purge(answer) => self.purge(answer).await,
                            After::Stopped => return Ok(()),
                            After::Broken(reason) => return Err(reason),
                        }
                        continue;
                    }
                }
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    self.show(State::Paused, "bus", &error.to_string());
                    wait = Some(BACKOFF.delay(failures, (self.shared.config.jitter)()));
                }
                // The bus is gone for good, and the process ends by that.
                Err(Error::Parts(parts::Error::Bus(error @ bus::Error::Stopped(_)))) => return Err(error.to_string()),
                Err(error) => {
                    tracing::error!(unit = %self.id, "cannot run: {error}");
                    self.show(State::Failed, "settings", &error.to_string());
                    self.tell(wish.no, Some(error.to_string()));
                }
            }
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                changed = self.wanted.changed() => if changed.is_err() { return Ok(()) },
                Some(answer) = self.purges.recv() => self.purge(answer).await,
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                () = self.holding.is_over() => self.holding.let_go_if_over(),
            }
        }
    }

    /// Waits until this process may run the workers, if only one may. Answers what is to be done instead.
    async fn hold(&mut self, workers: &VecDeque<Ready>) -> Option<After> {
        if !workers.iter().any(Ready::has_order) {
            return None;
        }
        let stopping = self.shared.context.stopping.clone();
        tokio::select! {
            () = self.holding.hold() => None,
            () = stopping.cancelled() => Some(After::Stopped),
            changed = self.wanted.changed() => changed.is_ok().then_some(After::Change),
            Some(answer) = self.purges.recv() => Some(After::Purge(answer)),
        }
    }

    /// Nothing of the unit is at work.
    async fn purge(&self, answer: Purge) {
        let shared = &self.shared;
        let (context, versions) = (shared.context.clone(), Arc::clone(&shared.versions));
        let parts = UnitParts::new(context, versions, self.id.clone(), Granting::ByRecord);
        let purged = parts.purge().await.map_err(|error| error.to_string());
        if let Ok(messages) = &purged {
            tracing::warn!(unit = %self.id, messages, "purged: what waited for the unit is given up");
        }
        // Who asked may be gone.
        let _ = answer.send(purged);
    }

    fn tell(&self, no: u64, failed: Option<String>) {
        self.told.send_replace(Progress { no, failed });
    }

    fn unit(&self) -> Option<Arc<status::Unit>> {
        self.shared.registry.get(&self.id)
    }

    fn show(&self, state: State, code: &str, reason: &str) {
        if let Some(unit) = self.unit() {
            unit.set_error(code, reason, self.shared.context.clock.now());
            unit.set_state(state, Some(reason.to_owned()));
        }
    }

    /// Record and durables first: they have to be there also for a unit that cannot run.
    async fn prepare(&mut self, wish: &Wish) -> Result<Option<(Arc<UnitParts>, VecDeque<Ready>)>, Error> {
        let shared = &self.shared;
        let granting = match &wish.version {
            Version::Running(version) | Version::Suspended { version, .. } => {
                granting(version, shared.context.bus.settles_atomically())
            }
            _ => Granting::ByAcknowledgement,
        };
        let parts =
            Arc::new(UnitParts::new(shared.context.clone(), Arc::clone(&shared.versions), self.id.clone(), granting));
        let before = self.before.as_ref().map(|(number, info)| (*number, info));
        match &wish.version {
            Version::Running(version) | Version::Suspended { version, .. } => {
                shared.registry.add(self.id.clone(), &version.digest, version.declared.clone());
                let (from, start) = reads(version).ok_or_else(|| Error::Unit("it does not read".to_owned()))?;
                let wanted = Wanted {
                    digest: version.digest.clone(),
                    reads: parts::reads(&shared.context.names, &self.id, from),
                };
                parts.roll(Some((&wanted, start, &version.pieces)), wish.no, before).await?;
                if let Version::Suspended { why, .. } = &wish.version {
                    parts.ensure_durables(IN_FLIGHT_MAX).await?;
                    self.show_durable(&parts);
                    if let Some(unit) = self.unit() {
                        unit.set_state(State::Suspended, Some(why.clone()));
                    }
                    return Ok(None);
                }
                self.start(version, &parts).await.map(|workers| Some((parts, workers)))
            }
            Version::Waiting { reads, start } => {
                parts.wait(reads, *start, wish.no, before).await?;
                parts.ensure_durables(IN_FLIGHT_MAX).await?;
                self.show_durable(&parts);
                Ok(None)
            }
            Version::Removed => {
                parts.roll(None, wish.no, before).await?;
                self.park(&parts).await?;
                Ok(None)
            }
        }
    }

    fn show_durable(&self, parts: &UnitParts) {
        if let (Some(unit), Some(run)) = (self.unit(), parts.current()) {
            unit.set_durable(parts.durable(run.last().durable));
        }
    }

    /// Says what a removed unit left behind.
    async fn park(&self, parts: &UnitParts) -> Result<(), Error> {
        let Some(waiting) = parts.waiting().await? else {
            self.shared.registry.remove(&self.id);
            return Ok(());
        };
        tracing::warn!(unit = %self.id, waiting, "removed; its messages wait until the unit comes back, and keep their room");
        let unit = match self.unit() {
            Some(unit) => unit,
            None => self.shared.registry.add(self.id.clone(), "", "no manifest".to_owned()),
        };
        self.show_durable(parts);
        let reason = format!(
            "its manifest is gone; {waiting} messages and all that follow wait for its return, or for `vejas purge {}`",
            self.id
        );
        unit.set_state(State::Parked, Some(reason));
        Ok(())
    }

    async fn start(&self, version: &Arc<LoadedUnit>, parts: &Arc<UnitParts>) -> Result<VecDeque<Ready>, Error> {
        let unit = self.unit().ok_or_else(|| Error::Unit("it is not registered".to_owned()))?;
        let config = &self.shared.config;
        let ready = match &version.manifest.spec {
            Spec::Sink(sink) => {
                let connector = sink_units::connect(version, sink, &self.shared.context, &self.shared.settings);
                let in_flight = connector.as_ref().map_or(IN_FLIGHT_MAX, |connector| {
                    sink_worker::in_flight_max(&connector.delivering(), sink.order_by.is_some())
                });
                parts.ensure_durables(in_flight).await?;
                self.show_durable(parts);
                let connector = connector.map_err(|error| Error::Unit(error.to_string()))?;
                let mut ready =
                    sink_units::build(version, sink, connector, Arc::clone(parts), config, Arc::clone(&unit))
                        .map_err(|error| Error::Unit(error.to_string()))?;
                ready.former = self.former_sinks(version, parts).await?;
                let sink = |(number, unit)| sink_worker::SinkUnit { number, unit, ..ready.clone() };
                numbers(parts, &unit).map(|one| Ready::Sink(Box::new(sink(one)))).collect()
            }
            _ => {
                parts.ensure_durables(IN_FLIGHT_MAX).await?;
                self.show_durable(parts);
                let versions = self.pipelines(version, parts, &unit).await?;
                let flow = |(number, unit)| flow_worker::FlowUnit {
                    id: self.id.clone(),
                    parts: Arc::clone(parts),
                    number,
                    versions: versions.clone(),
                    message_bytes_max: config.message_bytes_max(),
                    unit,
                };
                numbers(parts, &unit).map(|one| Ready::Flow(Box::new(flow(one)))).collect()
            }
        };
        Ok(ready)
    }

    /// The pipelines of all parts, by digest. One that cannot be had is left out: its messages wait, and the unit says so.
    async fn pipelines(
        &self,
        version: &Arc<LoadedUnit>,
        parts: &UnitParts,
        unit: &status::Unit,
    ) -> Result<BTreeMap<String, Arc<transforms::Pipeline>>, Error> {
        let mut pipelines = BTreeMap::from([(version.digest.clone(), self.pipeline(version)?)]);
        for digest in former(version, parts) {
            match contents::load(&self.shared.versions, &digest).await {
                Ok(former) => _ = pipelines.insert(digest, self.pipeline(&former)?),
                Err(contents::Error::Bus(error)) => return Err(contents::Error::Bus(error).into()),
                Err(error) => {
                    tracing::error!(unit = %self.id, "messages of a former version wait: {error}");
                    unit.set_error("former-version", &error.to_string(), self.shared.context.clock.now());
                }
            }
        }
        Ok(pipelines)
    }

    fn pipeline(&self, version: &LoadedUnit) -> Result<Arc<transforms::Pipeline>, Error> {
        let Spec::Flow(flow) = &version.manifest.spec else { return Err(Error::Unit("it is no flow".to_owned())) };
        let parts = transforms::Parts {
            unit: version.id.clone(),
            names: &self.shared.context.names,
            programs: &version.programs,
            tables: &version.tables,
            validators: &version.validators,
            locate: Arc::clone(&version.locate),
        };
        Ok(Arc::new(transforms::build(flow, &parts)?))
    }

    async fn former_sinks(
        &self,
        version: &Arc<LoadedUnit>,
        parts: &UnitParts,
    ) -> Result<BTreeMap<String, Option<Arc<dyn crate::ports::sink::Sink>>>, Error> {
        let mut sinks = BTreeMap::new();
        for digest in former(version, parts) {
            let opened = match contents::load(&self.shared.versions, &digest).await {
                Ok(former) => match &former.manifest.spec {
                    Spec::Sink(sink) => sink_units::connect(&former, sink, &self.shared.context, &self.shared.settings)
                        .map_err(|error| error.to_string()),
                    _ => Err("it is no sink".to_owned()),
                },
                Err(contents::Error::Bus(error)) => return Err(contents::Error::Bus(error).into()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) = &opened {
                tracing::warn!(unit = %self.id, "a former version cannot deliver any more: {reason}");
            }
            sinks.insert(digest, opened.ok());
        }
        Ok(sinks)
    }

    /// Runs the workers until something else is to be done.
    async fn work(&mut self, parts: &Arc<UnitParts>, mut waiting: VecDeque<Ready>) -> After {
        let stopping = self.shared.context.stopping.clone();
        let mut crew = Crew::new(self.shared.context.clone());
        // With keys, what the former durable holds goes first.
        let one_by_one = waiting.iter().any(Ready::has_order);
        for ready in &mut waiting {
            if let Ready::Sink(sink) = ready {
                sink.gate = self.holding.gate();
            }
        }
        while let Some(ready) = waiting.pop_front() {
            crew.start(ready);
            if one_by_one {
                break;
            }
        }
        if let (false, Some(unit)) = (waiting.is_empty(), self.unit()) {
            let reason = "messages that a former version of `from` read go first, because of `orderBy`";
            unit.set_state(State::Paused, Some(reason.to_owned()));
        }
        let mut looks = tokio::time::interval(TIDY_PERIOD);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut alive = tokio::time::interval(ALIVE_PERIOD);
        loop {
            let has_former = parts.current().is_some_and(|run| run.parts.len() > 1);
            tokio::select! {
                changed = self.wanted.changed() => {
                    if changed.is_err() { continue }
                    return match crew.stop(STOP_MAX).await {
                        Ok(()) => After::Change,
                        Err(broken) => broken.after(),
                    };
                }
                Some(answer) = self.purges.recv() => {
                    return match crew.stop(STOP_MAX).await {
                        Ok(()) => After::Purge(answer),
                        Err(broken) => broken.after(),
                    };
                }
                Some(ended) = crew.tasks.join_next() => match ended {
                    Ok((_, Ok(()))) if stopping.is_cancelled() => if crew.tasks.is_empty() { return After::Stopped },
                    Ok((number, Ok(()))) if !crew.tokens.contains_key(&number) => {}
                    Ok((_, Ok(()))) => return After::Broken("it ended by itself".to_owned()),
                    Ok((_, Err(broken))) if broken.gone => {
                        tracing::warn!(unit = %self.id, "{}: it is made ready again", broken.reason);
                        let _ = crew.stop(STOP_MAX).await;
                        tokio::time::sleep(GONE_WAIT).await;
                        return After::Change;
                    }
                    Ok((_, Err(broken))) => return broken.after(),
                    Err(error) if error.is_cancelled() => {}
                    Err(panic) => return After::Broken(format!("it broke off: {panic}")),
                },
                _ = alive.tick() => self.holding.progress(),
                () = self.holding.is_over() => {
                    return match crew.stop(STOP_MAX).await {
                        Ok(()) => After::Change,
                        Err(broken) => broken.after(),
                    };
                }
                _ = looks.tick(), if has_former => match self.tidy(parts, &mut crew).await {
                    Ok(true) if one_by_one => if let Some(ready) = waiting.pop_front() { crew.start(ready) },
                    Ok(_) => {}
                    Err(error) => tracing::warn!(unit = %self.id, "former versions are put away later: {error}"),
                }
            }
        }
    }

    /// Puts away the oldest part if it is worked off. Answers whether a durable went.
    async fn tidy(&self, parts: &UnitParts, crew: &mut Crew) -> Result<bool, parts::Error> {
        let Some(done) = parts.worked_off().await? else { return Ok(false) };
        if let Some(number) = done.durable {
            crew.stop_one(number).await;
        }
        parts.drop_first(&done).await?;
        Ok(done.durable.is_some())
    }
}

/// What a flow or a sink reads, and from where it starts.
pub(super) fn reads(version: &LoadedUnit) -> Option<(Vec<&str>, StartFrom)> {
    let (from, start) = match &version.manifest.spec {
        Spec::Flow(flow) => (&flow.from, flow.start_from),
        Spec::Sink(sink) => (&sink.from, sink.start_from),
        _ => return None,
    };
    Some((from.as_slice().iter().map(|pattern| pattern.as_str()).collect(), start))
}

/// A flow without `dedupe` has no effect before its input is acknowledged, where that is one with storing its outputs.
fn granting(version: &LoadedUnit, settles_atomically: bool) -> Granting {
    match &version.manifest.spec {
        Spec::Flow(flow) if settles_atomically && !flow.steps.iter().any(|step| matches!(step, Step::Dedupe(_))) => {
            Granting::ByAcknowledgement
        }
        _ => Granting::ByRecord,
    }
}

/// The durables of the record, the oldest first, each with the line its worker keeps. The unit's own is that of the newest.
fn numbers(parts: &UnitParts, unit: &Arc<status::Unit>) -> impl Iterator<Item = (u32, Arc<status::Unit>)> + use<> {
    let run = parts.current();
    let numbers: Vec<u32> =
        run.map(|run| run.durables().into_iter().map(|(number, ..)| number).collect()).unwrap_or_default();
    let newest = numbers.last().copied();
    let line = |number| if Some(number) == newest { Arc::clone(unit) } else { unit.beside() };
    numbers.into_iter().map(|number| (number, line(number))).collect::<Vec<_>>().into_iter()
}

/// The digests of former versions that the record still names.
fn former(version: &LoadedUnit, parts: &UnitParts) -> Vec<String> {
    let Some(run) = parts.current() else { return Vec::new() };
    let mut digests: Vec<String> = run.parts.iter().filter_map(|part| part.digest.clone()).collect();
    digests.sort();
    digests.dedup();
    digests.retain(|digest| *digest != version.digest);
    digests
}
