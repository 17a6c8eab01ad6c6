//! All units of a process: what runs, and how one set of manifests follows another.
//!
//! A change goes in this order: what reads is in place before anything new can bring it messages, and what brings messages is gone
//! before its readers are. A unit that cannot follow is shown and holds up no other, except that sources and entrances are not
//! changed before every reader has its place (`READERS_WAIT`).
//!
//! What a manifest with an error declared before goes on running in its last good version. What is gone from the tree is removed,
//! but only if the tree could be read: nothing follows from an empty one.

mod bringing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::agreement::{Agreement, Decision};
use super::audit;
use super::load::{Loaded, LoadedUnit};
use super::ownership::{self, Owned};
use super::planning::{Current, Given};
use super::publisher::{self, Publisher};
use super::reading::{Backlogs, Reader, Shared, Version, Wish};
use super::settings::Settings;
use super::{contents, durables, parts};
use crate::connectors::http::source::Changer;
use crate::id::{UnitId, UnitKind};
use crate::manifest::check::LeftOut;
use crate::ports::bus;
use crate::protocol::publish::{Head, Suspension};
use crate::protocol::record::Unit;
use crate::time::Timestamp;
use crate::transforms;
use crate::unit::status::{self, Registry, State};

/// How long a change waits for its readers before sources and entrances stay as they are.
const READERS_WAIT: Duration = Duration::from_secs(30);
/// What a version is made of is kept this long, also when nothing names it any more.
const CONTENT_AGE_MIN: Duration = Duration::from_secs(3_600);
/// How long a source may take to stop.
const SOURCE_STOP_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the versions cannot be published: {0}")]
    Bus(#[from] bus::Error),
    #[error(transparent)]
    Build(#[from] transforms::BuildError),
    #[error("{unit}: {reason}")]
    Unit { unit: UnitId, reason: String },
    #[error("{units} have no place to read from after {} s", READERS_WAIT.as_secs())]
    Readers { units: String },
    #[error("what is published cannot be read: {0}")]
    Published(String),
    #[error("the manifests have {errors} errors; with --strict nothing of them takes effect")]
    Strict { errors: usize },
    #[error("{0} (`listen` of an HttpIn, or VEJAS_INGRESS_ADDR, says where entrances listen)")]
    Entrance(#[from] crate::connectors::http::source::Error),
}

impl From<publisher::Error> for Error {
    fn from(error: publisher::Error) -> Self {
        match error {
            publisher::Error::Bus(error) => Error::Bus(error),
            other => Error::Published(other.to_string()),
        }
    }
}

/// What a change came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    pub no: u64,
    /// The digest over all units.
    pub revision: String,
    pub added: Vec<UnitId>,
    pub changed: Vec<UnitId>,
    pub removed: Vec<UnitId>,
    /// Those that run on in an earlier version, because what they are now cannot be told.
    pub kept: Vec<UnitId>,
    /// Why this is not the set that this instance was given.
    pub degraded: Option<String>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

type Ended = (UnitId, Result<(), String>);

/// Everything that runs.
pub struct Units {
    shared: Arc<Shared>,
    entrances: CancellationToken,
    current: BTreeMap<UnitId, Current>,
    readers: BTreeMap<UnitId, Reader>,
    reading: JoinSet<Ended>,
    ownership: ownership::Handle,
    publisher: Publisher,
    agreement: Agreement,
    /// What this instance was given; none when it runs what others publish.
    given: Option<Arc<Given>>,
    /// Those that do not run for now.
    suspended: BTreeSet<UnitId>,
    /// Publications up to this one are in the audit.
    audited: u64,
    /// What only one member runs, as this process would.
    owned: BTreeMap<Unit, Owned>,
    routes: BTreeMap<UnitId, Arc<LoadedUnit>>,
    changer: Option<Changer>,
    bringing: JoinSet<Ended>,
}

impl Units {
    /// Starts everything. `entrances` is cancelled when nothing new may come in.
    pub async fn start(
        loaded: Option<Loaded>,
        publisher: &Publisher,
        registry: &Arc<Registry>,
        entrances: &CancellationToken,
        backlogs: Backlogs,
    ) -> Result<(Self, Change), Error> {
        let (context, config, ownership) = (&publisher.context, &publisher.config, publisher.ownership.clone());
        let settings =
            Settings::new(Arc::clone(&config.environment), config.settings_base(), config.secrets_dir.clone());
        let versions = Arc::clone(publisher.versions());
        let known = versions.runs().await?;
        let current = known.into_iter().filter_map(|(id, run)| match run.last().digest.clone() {
            Some(digest) => Some((id, Current { digest, file: None })),
            None => {
                let unit = registry.add(id, "", "no manifest".to_owned());
                unit.set_state(State::Parked, None);
                None
            }
        });
        let mut units = Units {
            current: current.collect(),
            shared: Arc::new(Shared {
                context: context.clone(),
                config: Arc::clone(config),
                settings,
                registry: Arc::clone(registry),
                versions,
                backlogs,
            }),
            entrances: entrances.clone(),
            readers: BTreeMap::new(),
            reading: JoinSet::new(),
            publisher: publisher.clone(),
            agreement: Agreement::new(publisher),
            given: None,
            suspended: BTreeSet::new(),
            audited: 0,
            ownership,
            owned: BTreeMap::new(),
            routes: BTreeMap::new(),
            changer: None,
            bringing: JoinSet::new(),
        };
        let change = match loaded {
            Some(loaded) => units.apply(loaded).await?,
            None => units.follow().await?,
        };
        if config.strict
            && let Some(unit) = registry.all().into_iter().find(|unit| unit.state() == State::Failed)
        {
            let reason = unit.view().reason.unwrap_or_default();
            return Err(Error::Unit { unit: unit.id.clone(), reason });
        }
        Ok((units, change))
    }

    /// Follows another set of manifests. Dropped before it is done, the next one does the rest.
    pub async fn apply(&mut self, loaded: Loaded) -> Result<Change, Error> {
        if self.shared.config.strict && loaded.errors() > 0 {
            return Err(Error::Strict { errors: loaded.errors() });
        }
        let given = Given::of(loaded, self.shared.config.manifests.display().to_string());
        given.wanted.values().for_each(|unit| self.publisher.compiled.put(unit));
        self.given = Some(Arc::new(given));
        self.follow().await
    }

    /// The set that was given, or the one that is published while that is another.
    async fn follow(&mut self) -> Result<Change, Error> {
        let followed = self.follow_now().await;
        if let Err(error) = &followed {
            self.agreement.failed(&error.to_string());
        }
        followed
    }

    async fn follow_now(&mut self) -> Result<Change, Error> {
        let head = self.agreement.head().await?;
        let (head, degraded) = match self.given.clone() {
            None => (head, None),
            Some(given) => {
                let mut plan = given.plan(&self.current);
                let held_back = plan.guard().filter(|_| !head.is_confirmed(&plan.hash(head.no)));
                let held_back = held_back.map(|reason| {
                    let hash = plan.hash(head.no);
                    format!("{reason}: these run on until `vejas apply --plan {}` confirms it", status::short(&hash))
                });
                if held_back.is_some() {
                    self.publisher.hold(head.no, &plan.hash(head.no)).await?;
                    plan = plan.without_removals(&self.current);
                }
                match self.agreement.decide(&plan).await? {
                    Decision::Run(head) => {
                        let change = Change {
                            no: head.no,
                            revision: plan.revision,
                            removed: plan.removed,
                            kept: plan.kept,
                            degraded: held_back,
                            ..Change::default()
                        };
                        return self.take(&given, change, &head).await;
                    }
                    Decision::Differs(head, reason) => (head, Some(reason)),
                }
            }
        };
        if !head.is_published() {
            return Ok(Change::default());
        }
        let of_head = Given::published(self.publisher.units_of(&head).await?);
        let plan = of_head.plan(&self.current);
        let change = Change {
            no: head.no,
            revision: plan.revision,
            removed: plan.removed,
            kept: plan.kept,
            degraded,
            ..Change::default()
        };
        self.take(&of_head, change, &head).await
    }

    /// Looks again whether the given set or another one is to be run; `None` when all is as it was.
    pub async fn reconsider(&mut self) -> Result<Option<Change>, Error> {
        let head = self.publisher.head().await?;
        let revision = self.given.as_ref().map(|given| given.plan(&self.current).revision);
        if self.agreement.is_due(&head, revision.as_deref()) {
            return self.follow().await.map(Some);
        }
        self.audit(&head).await;
        Ok(None)
    }

    /// One record per publication, by whoever rolls it out; tried again at the next look.
    async fn audit(&mut self, head: &Head) {
        if self.audited >= head.no {
            return;
        }
        match audit::record(&self.shared.context, head).await {
            Ok(()) => self.audited = head.no,
            Err(error) => tracing::warn!("the audit is written later: {error}"),
        }
    }

    async fn take(&mut self, given: &Given, mut change: Change, head: &Head) -> Result<Change, Error> {
        let Given { wanted, left_out, first_error, .. } = given;
        let mut before = self.durables_before().await?;
        let mut moving = Vec::new();
        for (id, unit) in wanted {
            self.forget_manifest_error(id);
            let same = self.current.get(id).is_some_and(|current| current.digest == unit.digest);
            let suspension = head.suspension(&id.to_string());
            if same && self.runs(id) && suspension.is_some() == self.suspended.contains(id) {
                continue;
            }
            let known = self.runs(id);
            if known { &mut change.changed } else { &mut change.added }.push(id.clone());
            match suspension {
                Some(_) => _ = self.suspended.insert(id.clone()),
                None => _ = self.suspended.remove(id),
            }
            if is_reader(id) {
                let version = Version::Running(Arc::clone(unit));
                let version = match suspension {
                    Some(suspension) => Version::Suspended { version: Arc::clone(unit), why: why(suspension) },
                    None => version,
                };
                self.wish(id, Wish { no: change.no, version }, before.remove(id));
                moving.push(id.clone());
            } else {
                self.shared.registry.add(id.clone(), &unit.digest, unit.declared.clone());
            }
        }
        for id in change.kept.clone() {
            if self.keep(&id, change.no).await? {
                moving.push(id);
            }
        }
        for (id, one) in left_out {
            if self.current.contains_key(id) {
                continue;
            }
            self.leave_out(id, one, change.no, before.remove(id));
            moving.extend(is_reader(id).then(|| id.clone()));
        }
        let late = self.late(&moving, change.no).await;
        self.note(wanted, |id| is_reader(id) && !late.contains(id));
        for id in &change.kept {
            let reason = left_out.get(id).map_or(first_error.as_str(), |one| one.reason.as_str());
            if let Some(unit) = self.shared.registry.get(id) {
                tracing::error!(unit = %id, "its last good version goes on: {reason}");
                unit.set_error(MANIFEST_ERROR, reason, self.shared.context.clock.now());
            }
        }
        if !late.is_empty() {
            let units = late.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::Readers { units });
        }
        self.change_sources(wanted, &change, head).await?;
        self.note(wanted, |id| id.kind == UnitKind::Source);
        if let Err(error) = self.change_entrance(wanted, &change, head).await {
            for id in change.added.iter().chain(&change.changed).filter(|id| id.kind == UnitKind::HttpIn) {
                self.show_failed(id, &error.to_string());
            }
            return Err(error);
        }
        self.note(wanted, |id| id.kind == UnitKind::HttpIn);
        let shown = self.shared.registry.all().into_iter().map(|unit| unit.id.clone());
        let declared = |id: &UnitId| wanted.contains_key(id) || left_out.contains_key(id) || change.kept.contains(id);
        let gone: BTreeSet<UnitId> = shown.chain(change.removed.iter().cloned()).filter(|id| !declared(id)).collect();
        for id in &gone {
            self.current.remove(id);
            if is_reader(id) {
                self.wish(id, Wish { no: change.no, version: Version::Removed }, None);
            } else {
                self.routes.remove(id);
                self.shared.registry.remove(id);
            }
        }
        // One that does not stop in time is no reason to wait: it goes on by itself.
        let gone: Vec<UnitId> = gone.into_iter().filter(is_reader).collect();
        let late = self.late(&gone, change.no).await;
        if !late.is_empty() {
            tracing::warn!(?late, "removed units have not stopped yet");
        }
        self.suspended.retain(|id| wanted.contains_key(id));
        if head.candidate.is_none() {
            let digests = self.current.values().map(|current| current.digest.as_str()).collect();
            self.publisher.compiled.keep(&digests);
        }
        self.agreement.runs(&change, head);
        self.audit(head).await;
        Ok(change)
    }

    /// These are in effect.
    fn note(&mut self, wanted: &BTreeMap<UnitId, Arc<LoadedUnit>>, which: impl Fn(&UnitId) -> bool) {
        for (id, unit) in wanted.iter().filter(|(id, _)| which(id)) {
            let file = unit.declared.rsplit_once(':').map(|(file, _)| file.to_owned());
            self.current.insert(id.clone(), Current { digest: unit.digest.clone(), file });
        }
    }

    fn runs(&self, id: &UnitId) -> bool {
        self.readers.contains_key(id)
            || self.owned.contains_key(&ownership::unit_of(id))
            || self.routes.contains_key(id)
            || self.suspended.contains(id)
    }

    fn wish(&mut self, id: &UnitId, wish: Wish, before: Option<(u32, bus::DurableInfo)>) {
        match self.readers.get(id) {
            Some(reader) => reader.wish(wish),
            None => {
                let (reader, task) = Reader::new(Arc::clone(&self.shared), id.clone(), wish, before);
                self.readers.insert(id.clone(), reader);
                let id = id.clone();
                self.reading.spawn(async move { (id, task.await) });
            }
        }
    }

    /// Waits until all of these are where publication `no` has them; answers which are not after [`READERS_WAIT`].
    async fn late(&self, ids: &[UnitId], no: u64) -> Vec<UnitId> {
        let readers = ids.iter().filter_map(|id| Some((id, self.readers.get(id)?)));
        let waiting =
            readers.map(|(id, reader)| async move { (id, timeout(READERS_WAIT, reader.reached(no)).await.is_ok()) });
        join_all(waiting).await.into_iter().filter(|(_, there)| !there).map(|(id, _)| id.clone()).collect()
    }

    fn show_failed(&self, id: &UnitId, reason: &str) {
        let Some(unit) = self.shared.registry.get(id) else { return };
        unit.set_error("settings", reason, self.shared.context.clock.now());
        unit.set_state(State::Failed, Some(reason.to_owned()));
    }

    /// The durables of units that have no record yet. Asked only when nothing runs.
    async fn durables_before(&self) -> Result<BTreeMap<UnitId, (u32, bus::DurableInfo)>, Error> {
        if !self.readers.is_empty() {
            return Ok(BTreeMap::new());
        }
        Ok(durables::newest(&self.shared.context).await?)
    }

    /// The last good version of a unit goes on. Answers whether that has yet to begin.
    async fn keep(&mut self, id: &UnitId, no: u64) -> Result<bool, Error> {
        if self.runs(id) {
            return Ok(false);
        }
        let Some(digest) = self.current.get(id).map(|current| current.digest.clone()) else { return Ok(false) };
        match contents::load(&self.shared.versions, &digest).await {
            Ok(version) => {
                let version = Version::Running(Arc::new(version));
                self.wish(id, Wish { no, version }, None);
                Ok(true)
            }
            Err(contents::Error::Bus(error)) => Err(error.into()),
            Err(error) => {
                let unit = self.shared.registry.add(id.clone(), &digest, "the last good version".to_owned());
                unit.set_state(State::Failed, Some(error.to_string()));
                Ok(false)
            }
        }
    }

    fn forget_manifest_error(&self, id: &UnitId) {
        if let Some(unit) = self.shared.registry.get(id) {
            unit.clear_error(MANIFEST_ERROR);
        }
    }

    /// Shows a unit that an error keeps from running and that never ran. What it would read waits for it.
    fn leave_out(&mut self, id: &UnitId, one: &LeftOut, no: u64, before: Option<(u32, bus::DurableInfo)>) {
        let unit = self.shared.registry.add(id.clone(), "", format!("{}:{}", one.file.display(), one.line));
        tracing::error!(unit = %id, declared = unit.declared, "left out: {}", one.reason);
        unit.set_error(MANIFEST_ERROR, &one.reason, self.shared.context.clock.now());
        unit.set_state(State::Failed, Some(one.reason.clone()));
        if let Some((from, start)) = &one.reads {
            let names = &self.shared.context.names;
            let reads = parts::reads(names, id, from.as_slice().iter().map(|pattern| pattern.as_str()));
            self.wish(id, Wish { no, version: Version::Waiting { reads, start: *start } }, before);
        }
    }

    pub fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// Something that one instance does for all.
    pub async fn own_chore(&mut self, name: &str, chore: Owned) {
        self.owned.insert(Unit::new(name), chore);
        self.ownership.units(self.owned.clone()).await;
    }

    /// Removes what former versions were made of, once nothing needs it.
    pub async fn collect(&self) {
        let current = self.current.values().map(|current| current.digest.clone());
        let stored_before = self.shared.context.clock.now().minus(CONTENT_AGE_MIN);
        match self.shared.versions.collect(current, stored_before).await {
            Ok(0) => {}
            Ok(contents) => tracing::debug!(contents, "contents of former versions removed"),
            Err(error) => tracing::warn!("contents of former versions are removed later: {error}"),
        }
    }

    /// Completes when a unit ends that nobody told to end.
    pub async fn failed(&mut self) -> String {
        loop {
            let ended = tokio::select! {
                Some(ended) = self.bringing.join_next() => ended,
                Some(ended) = self.reading.join_next() => match ended {
                    Ok((unit, Ok(()))) => Ok((unit, Err("it ended by itself".to_owned()))),
                    other => other,
                },
                // Nothing runs at all, such as an empty folder: then nothing can fail.
                else => std::future::pending().await,
            };
            match ended {
                Ok((_, Ok(()))) => {}
                Ok((unit, Err(error))) => return format!("{unit}: {error}"),
                Err(panic) => return format!("a unit broke off: {panic}"),
            }
        }
    }

    pub async fn entrances_ended(&mut self) {
        all_ended(&mut self.bringing).await;
    }

    pub async fn workers_ended(&mut self) {
        all_ended(&mut self.reading).await;
    }
}

/// The code of the error of a unit whose manifest cannot be used.
const MANIFEST_ERROR: &str = "manifest";

fn is_reader(id: &UnitId) -> bool {
    matches!(id.kind, UnitKind::Flow | UnitKind::Sink)
}

/// For people.
fn why(suspension: &Suspension) -> String {
    let reason = suspension.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let (by, at) = (&suspension.by, Timestamp(suspension.at));
    format!("suspended by {by} at {at}{reason}; `vejas resume {}` lets it go on", suspension.unit)
}

async fn all_ended(tasks: &mut JoinSet<Ended>) {
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok((unit, Err(error))) => tracing::warn!(%unit, "{error}"),
            Ok((_, Ok(()))) => {}
            Err(panic) => tracing::error!("a unit broke off: {panic}"),
        }
    }
}
