//! The task that owns the node.
//!
//! One loop: an answer, something said, the end of a unit's task or the time makes one step; its effects are performed in order. The
//! moment of a step is taken directly before it, so no request leaves before the moment its gates count from.

mod units;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::members::{self, Announced, Describes, Member};
use super::requests::{Answered, Requests};
use super::{Error, Handle, Owned, Said, Settings, neighbours, records};
use crate::flow::message::Outgoing;
use crate::ports::bus;
use crate::ports::peers::Peers;
use crate::ports::store::{BucketInfo, Change};
use crate::protocol::effect::Ending;
use crate::protocol::record::{Generation, Incarnation, TenureNumber, Unit};
use crate::protocol::{Action, Effect, Event, Moment, Node, Outcome, Role};
use crate::unit::context::Context;
use crate::unit::tenancy::{Asked, Stored, moment};

/// Writes of units that may wait.
const WRITES_MAX: usize = 1024;
/// Before a life is begun that could not be.
const BEGIN_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Tries of a start to make the buckets while nobody answers.
const ENSURE_TRIES_MAX: u32 = 4;
/// A bucket that seems to have lost its end is asked this often before it is believed: an old leader may answer once.
const REGRESSED_MIN: u32 = 2;

/// How long taking back the announcement may take; it expires anyway.
const WITHDRAW_WAIT: Duration = Duration::from_secs(1);

/// The roles a process announces.
const ROLES: [Role; 2] = [Role::Worker, Role::Sink];

type Awaited = (BTreeSet<(Unit, u64)>, oneshot::Sender<()>);
type Ended = (Unit, u64, Result<(), String>);
type Looked = (u64, Result<BucketInfo, bus::Error>);

struct Running {
    life: u64,
    stopping: CancellationToken,
    permit: watch::Sender<Moment>,
    progressed: Arc<AtomicBool>,
    task: AbortHandle,
}

/// A write under way.
struct Held {
    unit: Unit,
    /// Until they are sent.
    messages: Option<Vec<Outgoing>>,
    answer: oneshot::Sender<Stored>,
    refused: Option<bus::Error>,
}

pub(super) struct Driver {
    context: Context,
    peers: Arc<dyn Peers>,
    settings: Settings,
    handle: Handle,
    node: Node,
    requests: Requests,
    units: BTreeMap<Unit, Owned>,
    running: BTreeMap<Unit, Running>,
    tasks: JoinSet<Ended>,
    lives: u64,
    asks: FuturesUnordered<BoxFuture<'static, Answered>>,
    batches: BTreeMap<u64, Held>,
    batch: u64,
    runs: Arc<AtomicU64>,
    /// What a step brought up, to be told after its effects.
    follows: VecDeque<Event>,
    writes: mpsc::Sender<Asked>,
    /// Units whose tasks somebody waits for.
    awaited: Vec<Awaited>,
    /// What is read before a life begins.
    begin: Option<BoxFuture<'static, Looked>>,
    /// The look at the bucket that goes on all the time.
    look: Option<BoxFuture<'static, Looked>>,
    regressed: u32,
    /// The newest revision seen.
    newest: u64,
    /// When the stores last answered, by the monotonic clock.
    answered: Duration,
    silent_because: String,
    /// Publications up to this one are in effect here.
    applied: u64,
    whom: watch::Sender<Announced>,
    own: watch::Sender<Option<Incarnation>>,
    announced: watch::Sender<Arc<Vec<Member>>>,
    inbox: mpsc::Sender<Said>,
    /// Answers pings; replaced with every life.
    listener: Option<AbortHandle>,
    watcher: Option<AbortHandle>,
    sides: JoinSet<()>,
    leaving: bool,
    over: bool,
}

pub(super) async fn run(
    context: Context,
    peers: Arc<dyn Peers>,
    settings: Settings,
    handle: Handle,
    said: mpsc::Receiver<Said>,
    announced: watch::Sender<Arc<Vec<Member>>>,
    described: watch::Receiver<Describes>,
) -> Result<(), Error> {
    let (whom, who) = watch::channel(None);
    let (own, _) = watch::channel(None);
    let (writes, asked) = mpsc::channel(WRITES_MAX);
    let timers = &settings.timers;
    let requests = Requests {
        bucket: context.names.leases_bucket(),
        stream: Arc::from(context.names.messages()),
        timeout: Duration::from_millis(timers.request_timeout_ms),
        context: context.clone(),
    };
    let announcer = members::Announcer {
        context: context.clone(),
        bucket: context.names.members_bucket(),
        ttl: settings.heartbeat_ttl,
        whom: who,
        describes: described,
    };
    let node = Node::new(crate::protocol::Settings::new(&context.instance, timers.clone()));
    let inbox = handle.inbox.clone();
    let mut driver = Driver {
        node,
        requests,
        units: BTreeMap::new(),
        running: BTreeMap::new(),
        tasks: JoinSet::new(),
        lives: 0,
        asks: FuturesUnordered::new(),
        batches: BTreeMap::new(),
        batch: 0,
        runs: Arc::default(),
        follows: VecDeque::new(),
        writes,
        awaited: Vec::new(),
        begin: None,
        look: None,
        regressed: 0,
        newest: 0,
        answered: context.clock.monotonic(),
        silent_because: String::new(),
        applied: 0,
        whom,
        own,
        announced,
        inbox,
        listener: None,
        watcher: None,
        sides: JoinSet::new(),
        leaving: false,
        over: false,
        context,
        peers,
        settings,
        handle,
    };
    driver.ensure_first().await?;
    let mut essential = JoinSet::new();
    let announcing = tokio::spawn(announcer.run());
    let period = driver.settings.heartbeat_ttl / 3;
    let bucket = driver.context.names.members_bucket();
    essential.spawn(members::follow(driver.context.clone(), bucket, period, driver.inbox.clone()));
    if let Some(probe) = driver.settings.probe {
        let (members, own) = (driver.handle.watch_members(), driver.own.subscribe());
        let (peers, inbox, clock) =
            (Arc::clone(&driver.peers), driver.inbox.clone(), Arc::clone(&driver.context.clock));
        essential.spawn(neighbours::probe(peers, probe, members, own, inbox, clock));
    }
    let result = driver.work(said, asked, essential).await;
    // Lets the announcer take back what it announced.
    drop(driver);
    if tokio::time::timeout(WITHDRAW_WAIT, announcing).await.is_err() {
        tracing::debug!("not withdrawn in time: the announcement expires");
    }
    result
}

impl Driver {
    /// Of several servers, those that hold a bucket which was made a moment ago choose its leader first.
    async fn ensure_first(&mut self) -> Result<(), Error> {
        for _ in 1..ENSURE_TRIES_MAX {
            match self.ensure_buckets().await {
                Err(Error::Bus(error)) if error.is_retryable() => tracing::warn!("no lease bucket yet: {error}"),
                ensured => return ensured,
            }
            tokio::time::sleep(BEGIN_AGAIN_AFTER).await;
        }
        self.ensure_buckets().await
    }

    async fn ensure_buckets(&mut self) -> Result<(), Error> {
        let store = &self.context.store;
        let wanted = Duration::from_millis(self.settings.timers.ttl_ms);
        // A changed time to live would open the gates of whoever counts by the old one.
        match store.bucket(&self.requests.bucket).await {
            Ok(info) => self.check_ttl(&info)?,
            Err(bus::Error::NoStream(_)) => store.ensure_bucket(&self.requests.bucket, Some(wanted)).await?,
            Err(error) => return Err(error.into()),
        }
        store.ensure_bucket(&self.context.names.members_bucket(), Some(self.settings.heartbeat_ttl)).await?;
        Ok(())
    }

    fn check_ttl(&self, info: &BucketInfo) -> Result<(), Error> {
        let wanted = Duration::from_millis(self.settings.timers.ttl_ms);
        let found = info.ttl.unwrap_or(Duration::MAX);
        if found == wanted {
            return Ok(());
        }
        Err(Error::Ttl { bucket: self.requests.bucket.clone(), found, wanted })
    }

    async fn work(
        &mut self,
        mut said: mpsc::Receiver<Said>,
        mut asked: mpsc::Receiver<Asked>,
        mut essential: JoinSet<()>,
    ) -> Result<(), Error> {
        let retry = Duration::from_millis(self.settings.timers.retry_ms);
        let look_period = Duration::from_millis(self.settings.timers.ttl_ms / 3);
        let mut ticks = tokio::time::interval(retry);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looks = tokio::time::interval(look_period);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.begin_after(Duration::ZERO);
        while !self.over {
            let wake = self.wake();
            tokio::select! {
                Some(answered) = self.asks.next() => self.answer(answered),
                Some(asked) = asked.recv() => self.write(asked),
                Some(said) = said.recv() => self.hear(said),
                Some(ended) = self.tasks.join_next() => self.task_ended(ended)?,
                looked = pending(&mut self.begin) => {
                    self.begin = None;
                    self.begin_life(looked).await?;
                }
                looked = pending(&mut self.look) => {
                    self.look = None;
                    self.looked(looked).await?;
                }
                _ = looks.tick() => self.look_again(),
                _ = ticks.tick() => {
                    self.check_answered()?;
                    self.step(Event::Tick);
                }
                () = tokio::time::sleep(wake) => self.step(Event::Tick),
                Some(_) = essential.join_next() => return Err(Error::Ended("a task that follows the members")),
                Some(ended) = self.sides.join_next() => {
                    // One that was replaced was cancelled.
                    if !ended.is_err_and(|error| error.is_cancelled()) {
                        return Err(Error::Ended("a task that listens to the members"));
                    }
                }
            }
        }
        Ok(())
    }

    fn now(&self) -> Moment {
        moment(&*self.context.clock)
    }

    fn wake(&self) -> Duration {
        let now = self.now();
        self.node.wakes_at(now).map_or(Duration::from_secs(60), |at| Duration::from_millis(at.0.saturating_sub(now.0)))
    }

    /// Whatever the stores said, they said something.
    fn heard_from_store(&mut self) {
        self.answered = self.context.clock.monotonic();
    }

    fn check_answered(&self) -> Result<(), Error> {
        let silent = self.context.clock.monotonic().saturating_sub(self.answered);
        if silent <= Duration::from_millis(self.settings.timers.ttl_ms) + self.requests.timeout {
            return Ok(());
        }
        Err(Error::Lost { silent, reason: self.silent_because.clone() })
    }

    fn ask_bucket(&self, wait: Duration) -> BoxFuture<'static, Looked> {
        let (store, bucket) = (Arc::clone(&self.context.store), self.requests.bucket.clone());
        let (newest, timeout) = (self.newest, self.requests.timeout);
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            let silent = || Err(bus::Error::Unavailable("no answer in time".to_owned()));
            let info = tokio::time::timeout(timeout, store.bucket(&bucket)).await.unwrap_or_else(|_| silent());
            (newest, info)
        })
    }

    fn begin_after(&mut self, wait: Duration) {
        self.begin = Some(self.ask_bucket(wait));
    }

    fn look_again(&mut self) {
        if self.look.is_none() {
            self.look = Some(self.ask_bucket(Duration::ZERO));
        }
    }

    async fn looked(&mut self, (newest, info): Looked) -> Result<(), Error> {
        match info {
            Ok(info) => {
                self.heard_from_store();
                self.check_ttl(&info)?;
                self.regressed = if info.last < newest { self.regressed + 1 } else { 0 };
                self.newest = self.newest.max(info.last);
                let regressed = self.regressed >= REGRESSED_MIN;
                if regressed {
                    self.newest = info.last;
                } else if self.regressed > 0 {
                    self.look_again();
                }
                self.step(Event::Bucket { generation: Generation(info.identity), regressed });
            }
            Err(bus::Error::NoStream(_)) => {
                tracing::error!(
                    "the lease bucket is gone; it is made again, and nothing is owned for its time to live"
                );
                self.ensure_buckets().await?;
                self.look_again();
            }
            Err(error) => self.silent_because = error.to_string(),
        }
        Ok(())
    }

    async fn begin_life(&mut self, (_, info): Looked) -> Result<(), Error> {
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                self.silent_because = error.to_string();
                if matches!(error, bus::Error::NoStream(_)) {
                    self.ensure_buckets().await?;
                }
                self.begin_after(BEGIN_AGAIN_AFTER);
                return Ok(());
            }
        };
        self.heard_from_store();
        self.check_ttl(&info)?;
        self.newest = self.newest.max(info.last);
        let inc = incarnation();
        let generation = Generation(info.identity);
        self.own.send_replace(Some(inc));
        self.listen(inc);
        self.watch(generation);
        {
            let mut shown = self.handle.shown.lock().unwrap_or_else(PoisonError::into_inner);
            (shown.inc, shown.generation) = (Some(inc), Some(generation));
        }
        tracing::debug!(%inc, "a life begins");
        let age_ms = u64::try_from(info.age.as_millis()).unwrap_or(u64::MAX);
        self.step(Event::Begin { inc, generation, age_ms });
        Ok(())
    }

    fn listen(&mut self, inc: Incarnation) {
        if let Some(before) = self.listener.take() {
            before.abort();
        }
        let answering =
            neighbours::answer(Arc::clone(&self.peers), inc, self.inbox.clone(), Arc::clone(&self.handle.drain));
        self.listener = Some(self.sides.spawn(answering));
    }

    /// Follows the leases of a generation. A watch that breaks is begun anew; what it misses is read by the node in time.
    fn watch(&mut self, generation: Generation) {
        if let Some(before) = self.watcher.take() {
            before.abort();
        }
        let (store, bucket, inbox) =
            (Arc::clone(&self.context.store), self.requests.bucket.clone(), self.inbox.clone());
        let prefix = records::lease_prefix(generation);
        self.watcher = Some(self.sides.spawn(async move {
            loop {
                let mut changes = store.watch(&bucket, &prefix);
                while let Some(Ok(change)) = changes.next().await {
                    let Some(event) = lease_seen(&prefix, change) else { continue };
                    if inbox.send(Said::Event(event)).await.is_err() {
                        return;
                    }
                }
                // It ends when the bus is away. The next one shows first what is there, so nothing is missed.
                tokio::time::sleep(BEGIN_AGAIN_AFTER).await;
            }
        }));
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Units { units, stopped } => self.set_units(units, stopped),
            Said::Applied(no) => self.applied = self.applied.max(no),
            Said::Leave { within } => {
                self.leaving = true;
                // Before its first life it has nothing to leave.
                self.over = self.node.phase() == crate::protocol::Phase::Ended;
                let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
                self.step(Event::Leave { within_ms });
            }
            Said::Event(event) => {
                self.show_holder(&event);
                self.step(event);
            }
            Said::Members(members) => {
                let gone: Vec<Incarnation> = self
                    .announced
                    .borrow()
                    .iter()
                    .map(|member| member.inc)
                    .filter(|inc| !members.iter().any(|member| member.inc == *inc))
                    .collect();
                for role in ROLES {
                    self.step(Event::Members { role, members: members::of_role(&members, role) });
                }
                metrics::gauge!("vejas_members").set(members.len() as f64);
                self.announced.send_replace(Arc::new(members));
                for inc in gone {
                    self.step(Event::Suspicion { inc, evidence: crate::protocol::Evidence::Departed });
                }
            }
        }
    }

    fn answer(&mut self, answered: Answered) {
        let Answered { ticket, outcome, refused } = answered;
        match &outcome {
            Outcome::Unknown => {
                self.silent_because = refused.as_ref().map(ToString::to_string).unwrap_or_default();
            }
            _ => self.heard_from_store(),
        }
        if let (Outcome::Won(revision), crate::protocol::Subject::Session(_) | crate::protocol::Subject::Lease(_)) =
            (&outcome, &ticket.subject)
        {
            self.newest = self.newest.max(*revision);
        }
        if let (crate::protocol::Subject::Fence(unit), Some(error)) = (&ticket.subject, &refused) {
            self.note_refusal(unit, error);
        }
        self.step(Event::Answer { ticket, outcome });
    }

    /// One step of the node, and all that follows from it.
    fn step(&mut self, event: Event) {
        let now = self.now();
        let progressed: Vec<Unit> = self
            .running
            .iter()
            .filter(|(_, running)| running.progressed.swap(false, Ordering::Relaxed))
            .map(|(unit, _)| unit.clone())
            .collect();
        for unit in progressed {
            let effects = self.node.step(now, Event::Progress { unit });
            effects.into_iter().for_each(|effect| self.perform(effect));
        }
        self.follows.push_back(event);
        while let Some(event) = self.follows.pop_front() {
            let effects = self.node.step(now, event);
            effects.into_iter().for_each(|effect| self.perform(effect));
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Ask(request) => self.ask(request),
            Effect::Announce { inc } => _ = self.whom.send_replace(Some((inc, ROLES.to_vec()))),
            Effect::Withdraw { .. } => _ = self.whom.send_replace(None),
            Effect::Start { unit, tenure, epoch, position } => self.start(unit, tenure, epoch, position),
            Effect::Permit { unit, until } => {
                if let Some(running) = self.running.get(&unit) {
                    running.permit.send_replace(until);
                }
            }
            Effect::Stop { unit } => self.stop(&unit),
            Effect::Written { batch, .. } => {
                if let Some(held) = self.batches.remove(&batch.0) {
                    let _ = held.answer.send(Stored::Done);
                }
            }
            Effect::Rewind { unit, position } => self.rewind(&unit, &position),
            Effect::ReadHead { unit, no } => self.raise_no(&unit, no),
            Effect::Claim { to, unit, tenure } => self.letter(to, &unit, tenure).claim(&*self.peers),
            Effect::Refuse { to, unit, tenure } => self.letter(to, &unit, tenure).refuse(&*self.peers),
            Effect::Decline { to, unit, tenure } => self.letter(to, &unit, tenure).decline(&*self.peers),
            Effect::Ended { inc, why } => self.life_ended(inc, why),
        }
    }

    fn letter<'a>(&self, to: Incarnation, unit: &'a Unit, tenure: TenureNumber) -> neighbours::Letter<'a> {
        neighbours::Letter { from: self.node.incarnation(), to, unit, tenure }
    }

    fn ask(&mut self, request: crate::protocol::Request) {
        let (unit, batch) = match &request.action {
            Action::ReadFence(unit) => (Some(unit), None),
            Action::AppendFence { fence, batch, .. } => (Some(&fence.unit), *batch),
            _ => (None, None),
        };
        let subject = unit.and_then(|unit| self.units.get(unit)).and_then(|owned| owned.fence_subject.clone());
        let messages = batch.and_then(|batch| self.batches.get_mut(&batch.0)?.messages.take());
        self.asks.push(self.requests.perform(request, subject.as_deref(), messages.unwrap_or_default()));
    }

    fn life_ended(&mut self, inc: Incarnation, why: Ending) {
        self.own.send_replace(None);
        self.shown().inc = None;
        match why {
            Ending::Left => {
                self.over = true;
                return;
            }
            Ending::NotCreated => tracing::debug!(%inc, "its session could not be made"),
            Ending::SessionLost => tracing::warn!(%inc, "its session was lost: all units stop, and it joins anew"),
            Ending::BucketRecreated => {
                tracing::warn!(%inc, "the lease bucket was made anew or lost its end: all units stop for its time to live");
            }
        }
        metrics::counter!("vejas_rejoins_total").increment(1);
        if self.leaving {
            self.over = true;
        } else {
            self.begin_after(BEGIN_AGAIN_AFTER);
        }
    }
}

fn lease_seen(prefix: &str, change: Change) -> Option<Event> {
    match change {
        Change::Put(entry) => {
            let unit = Unit::new(entry.key.strip_prefix(prefix)?);
            match records::decode_lease(&entry.value) {
                Ok(lease) => {
                    let revision = crate::protocol::record::KvRevision(entry.revision);
                    Some(Event::Lease { unit, seen: Some((revision, lease)) })
                }
                Err(error) => {
                    tracing::warn!(key = entry.key, "{error}");
                    None
                }
            }
        }
        Change::Gone { key, .. } => Some(Event::Lease { unit: Unit::new(key.strip_prefix(prefix)?), seen: None }),
        Change::CaughtUp => None,
    }
}

/// Random: never the same twice.
#[allow(clippy::disallowed_methods)]
fn incarnation() -> Incarnation {
    Incarnation(uuid::Uuid::new_v4().as_u128())
}

async fn pending<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
