//! All units of a process: what runs, and how one set of manifests follows another.
//!
//! A change goes in this order: what reads is in place before anything new can bring it messages, and what brings messages is gone
//! before its readers are. A unit that cannot follow is shown and holds up no other, except that sources and entrances are not
//! changed before every reader has its place (`READERS_WAIT`).
//!
//! What a manifest with an error declared before goes on running in its last good version. What is gone from the tree is removed,
//! but only if the tree could be read: nothing follows from an empty one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::agreement::{self, Agreement, Decision, Listed};
use super::config::Config;
use super::load::{Loaded, LoadedUnit};
use super::ownership::{self, Owned};
use super::reading::{Backlogs, Reader, Shared, Version, Wish};
use super::settings::Settings;
use super::versions::Versions;
use super::{contents, durables, ingress, parts, sources};
use crate::connectors::http::source::Changer;
use crate::id::{UnitId, UnitKind};
use crate::manifest::Spec;
use crate::manifest::check::LeftOut;
use crate::manifest::source::Source;
use crate::ports::bus;
use crate::protocol::record::Unit;
use crate::transforms;
use crate::unit::context::Context;
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
    #[error("the set {revision} that the cluster runs cannot be read: {reason}")]
    Set { revision: String, reason: String },
    #[error("the manifests have {errors} errors; with --strict nothing of them takes effect")]
    Strict { errors: usize },
    #[error("{0} (`listen` of an HttpIn, or VEJAS_INGRESS_ADDR, says where entrances listen)")]
    Entrance(#[from] crate::connectors::http::source::Error),
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

/// A set of manifests as it was read.
#[derive(Default)]
struct Given {
    wanted: BTreeMap<UnitId, Arc<LoadedUnit>>,
    left_out: BTreeMap<UnitId, LeftOut>,
    faulty: BTreeSet<String>,
    documents: usize,
    first_error: String,
}

impl Given {
    fn of(loaded: Loaded) -> Self {
        let first_error = loaded.first_error();
        let wanted: BTreeMap<UnitId, Arc<LoadedUnit>> =
            loaded.units.into_iter().map(|unit| (unit.id.clone(), Arc::new(unit))).collect();
        let left_out = loaded.left_out.into_iter().map(|one| (one.id.clone(), one));
        let left_out = left_out.filter(|(id, _)| !wanted.contains_key(id)).collect();
        Given { left_out, wanted, faulty: loaded.faulty, documents: loaded.documents, first_error }
    }

    /// The units with their digests and what they are made of.
    fn set(&self, kept: &[UnitId], current: &BTreeMap<UnitId, Current>) -> Vec<Listed> {
        let kept = kept.iter().filter_map(|id| Some((id, current.get(id)?)));
        let kept =
            kept.map(|(id, current)| Listed { id: id.clone(), digest: current.digest.clone(), pieces: Vec::new() });
        let wanted = self.wanted.iter().map(|(id, unit)| Listed {
            id: id.clone(),
            digest: unit.digest.clone(),
            pieces: unit.pieces.clone(),
        });
        wanted.chain(kept).collect()
    }
}

/// A unit as the newest set has it.
struct Current {
    /// Hex digits.
    digest: String,
    /// The file that declares it; none while only its record is known.
    file: Option<String>,
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
    agreement: Agreement,
    given: Arc<Given>,
    /// What only one member runs, as this process would.
    owned: BTreeMap<Unit, Owned>,
    routes: BTreeMap<UnitId, Arc<LoadedUnit>>,
    changer: Option<Changer>,
    bringing: JoinSet<Ended>,
}

impl Units {
    /// Starts everything. `entrances` is cancelled when nothing new may come in.
    pub async fn start(
        loaded: Loaded,
        context: &Context,
        config: &Arc<Config>,
        registry: &Arc<Registry>,
        entrances: &CancellationToken,
        backlogs: Backlogs,
        ownership: ownership::Handle,
    ) -> Result<(Self, Change), Error> {
        let settings =
            Settings::new(Arc::clone(&config.environment), config.settings_base(), config.secrets_dir.clone());
        let versions = Arc::new(Versions::new(Arc::clone(&context.store), &context.names));
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
                versions: Arc::clone(&versions),
                backlogs,
            }),
            entrances: entrances.clone(),
            readers: BTreeMap::new(),
            reading: JoinSet::new(),
            agreement: Agreement::new(config, context, &versions, &ownership),
            given: Arc::default(),
            ownership,
            owned: BTreeMap::new(),
            routes: BTreeMap::new(),
            changer: None,
            bringing: JoinSet::new(),
        };
        let change = units.apply(loaded).await?;
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
        self.given = Arc::new(Given::of(loaded));
        self.follow().await
    }

    /// The set that was given, or the one the cluster runs while the instances were given different ones.
    async fn follow(&mut self) -> Result<Change, Error> {
        let given = Arc::clone(&self.given);
        let mut change = self.compare(&given);
        match self.agreement.decide(&change.revision, &given.set(&change.kept, &self.current)).await? {
            Decision::Run(head) => {
                change.no = head.no;
                self.take(&given, change).await
            }
            Decision::Differs(head, reason) => {
                let of_head = self.agreement.units_of(&head, &given.wanted).await?;
                let of_head = Given { wanted: of_head, documents: 1, ..Given::default() };
                let change = Change { no: head.no, degraded: Some(reason), ..self.compare(&of_head) };
                self.take(&of_head, change).await
            }
        }
    }

    /// Looks again whether the given set or another one is to be run; `None` when all is as it was.
    pub async fn reconsider(&mut self) -> Result<Option<Change>, Error> {
        if self.agreement.is_alone() {
            return Ok(None);
        }
        let change = self.compare(&self.given);
        if !self.agreement.is_due(&change.revision).await? {
            return Ok(None);
        }
        self.follow().await.map(Some)
    }

    /// What a set would change.
    fn compare(&self, given: &Given) -> Change {
        let mut change = Change::default();
        for (id, current) in &self.current {
            if given.wanted.contains_key(id) {
                continue;
            }
            let stays = given.documents == 0
                || given.left_out.contains_key(id)
                || hides(&given.faulty, &self.shared.config, current.file.as_deref());
            if stays { &mut change.kept } else { &mut change.removed }.push(id.clone());
        }
        change.revision = agreement::revision(&given.set(&change.kept, &self.current));
        change
    }

    async fn take(&mut self, given: &Given, mut change: Change) -> Result<Change, Error> {
        let Given { wanted, left_out, first_error, .. } = given;
        let mut before = self.durables_before().await?;
        let mut moving = Vec::new();
        for (id, unit) in wanted {
            self.forget_manifest_error(id);
            let same = self.current.get(id).is_some_and(|current| current.digest == unit.digest);
            if same && self.runs(id) {
                continue;
            }
            let known = self.runs(id);
            if known { &mut change.changed } else { &mut change.added }.push(id.clone());
            if is_reader(id) {
                let version = Version::Running(Arc::clone(unit));
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
        self.change_sources(wanted, &change).await?;
        self.note(wanted, |id| id.kind == UnitKind::Source);
        if let Err(error) = self.change_entrance(wanted, &change).await {
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
        self.agreement.runs(&change);
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

    async fn change_sources(
        &mut self,
        wanted: &BTreeMap<UnitId, Arc<LoadedUnit>>,
        change: &Change,
    ) -> Result<(), Error> {
        for id in &change.removed {
            self.owned.remove(&ownership::unit_of(id));
        }
        for (id, unit) in wanted.iter().filter(|(id, _)| id.kind == UnitKind::Sink) {
            let ordered = matches!(&unit.manifest.spec, Spec::Sink(sink) if sink.order_by.is_some());
            match (self.readers.get(id), self.shared.registry.get(id)) {
                (Some(reader), Some(line)) if ordered => {
                    self.owned.insert(ownership::unit_of(id), reader.owned(line));
                }
                _ => _ = self.owned.remove(&ownership::unit_of(id)),
            }
        }
        for (id, unit) in change.added.iter().chain(&change.changed).filter_map(|id| Some((id, wanted.get(id)?))) {
            let Spec::Source(Source { interval: Some(stated), to }) = &unit.manifest.spec else { continue };
            let Some(line) = self.shared.registry.get(id) else { continue };
            match sources::interval(&self.shared.context, &line, &unit.digest, stated, to.as_str(), change.no) {
                Ok(owned) => _ = self.owned.insert(ownership::unit_of(id), owned),
                Err(error) => self.fail(&line, &error.to_string())?,
            }
        }
        if timeout(SOURCE_STOP_MAX, self.ownership.units(self.owned.clone())).await.is_err() {
            tracing::warn!("a source does not stop in time");
        }
        self.ownership.applied(change.no).await;
        Ok(())
    }

    /// Something that one instance does for all.
    pub async fn own_chore(&mut self, name: &str, chore: Owned) {
        self.owned.insert(Unit::new(name), chore);
        self.ownership.units(self.owned.clone()).await;
    }

    async fn change_entrance(
        &mut self,
        wanted: &BTreeMap<UnitId, Arc<LoadedUnit>>,
        change: &Change,
    ) -> Result<(), Error> {
        let touched = change.added.iter().chain(&change.changed).chain(&change.removed);
        if !touched.into_iter().any(|id| id.kind == UnitKind::HttpIn) {
            return Ok(());
        }
        let mut units = self.routes.clone();
        units.retain(|id, _| !change.removed.contains(id));
        units.extend(
            wanted
                .iter()
                .filter(|(id, _)| id.kind == UnitKind::HttpIn)
                .map(|(id, unit)| (id.clone(), Arc::clone(unit))),
        );
        let mut routes = Vec::new();
        for (id, unit) in &units {
            let (Spec::HttpIn(stated), Some(line)) = (&unit.manifest.spec, self.shared.registry.get(id)) else {
                continue;
            };
            let config = &self.shared.config;
            match ingress::route(unit, stated, config, &self.shared.settings, Arc::clone(&line)) {
                Ok(route) => routes.push(route),
                Err(Error::Unit { reason, .. }) => self.fail(&line, &reason)?,
                Err(error) => return Err(error),
            }
        }
        self.routes = units;
        if let Some(changer) = &self.changer {
            return Ok(changer.change(routes).await?);
        }
        if routes.is_empty() {
            return Ok(());
        }
        let context = Context { stopping: self.entrances.clone(), ..self.shared.context.clone() };
        let stopping = self.entrances.clone();
        let entrance = ingress::bind(context, routes, &self.shared.config).await?;
        self.changer = Some(entrance.changer());
        self.bringing.spawn(async move {
            entrance.run().await;
            let ended = if stopping.is_cancelled() { Ok(()) } else { Err("it ended by itself".to_owned()) };
            (UnitId::new(UnitKind::HttpIn, "*"), ended)
        });
        Ok(())
    }

    /// A unit that cannot run is shown as failed; the others run. `strict` stops the start.
    fn fail(&self, unit: &status::Unit, reason: &str) -> Result<(), Error> {
        if self.shared.config.strict {
            return Err(Error::Unit { unit: unit.id.clone(), reason: reason.to_owned() });
        }
        tracing::error!(unit = %unit.id, declared = unit.declared, "cannot run: {reason}");
        self.show_failed(&unit.id, reason);
        Ok(())
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

/// Whether something with an error in it may still declare what `file` declared.
fn hides(faulty: &BTreeSet<String>, config: &Config, file: Option<&str>) -> bool {
    let root = config.manifests.display().to_string();
    let holds = |place: &String| match file {
        Some(file) => place == file || file.strip_prefix(place.as_str()).is_some_and(|rest| rest.starts_with('/')),
        None => true,
    };
    faulty.contains(&root) || faulty.iter().any(holds)
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
