//! Publishes: from a set of manifests to a head that every member runs, by the rules cut-8 to cut-13.
//!
//! Whoever publishes announces a candidate, waits for the answers of the members (`candidates` gives this member's), and commits or
//! aborts. It may die at any point: what it announced is aborted by anybody once its time is over, and what it committed is rolled out by
//! the members themselves. On a bus that this process has to itself nobody else is asked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::config::{BusConfig, Config};
use super::contents::{self, Piece};
use super::load::{self, LoadedUnit};
use super::ownership;
use super::planning::{self, Current, Given, Plan, Units};
use super::versions::{Versions, Waiting, Written};
use crate::id::UnitId;
use crate::ports::bus;
use crate::protocol::publish::{self, DEADLINE, Head, Made, Outcome, Refused, Suspension};
use crate::protocol::record::Incarnation;
use crate::unit::context::Context;
use crate::unit::status::short;

/// Between looks at the answers.
const ANSWERS_LOOK: Duration = Duration::from_millis(5);
/// Between tries of a write whose answer was lost.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const TRIES_MAX: u32 = 20;
/// How long who asked is kept waiting until what was committed is in effect everywhere.
const IN_EFFECT_MAX: Duration = Duration::from_secs(5);
/// Reasons told of one member.
const REASONS_SHOWN: usize = 10;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Bus(#[from] bus::Error),
    #[error(transparent)]
    Contents(#[from] contents::Error),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("not every member can run it, so nothing changed: {}", .0.join("; "))]
    Rejected(Vec<String>),
    #[error("no plan waits for a yes")]
    NothingWaits,
    #[error("the plan {} does not wait for a yes; {} does", short(.wanted), short(.found))]
    OtherWaits { wanted: String, found: String },
    #[error("{reason}; `vejas apply --plan {}` confirms it", short(.hash))]
    Guard { hash: String, reason: String },
    #[error("the plan {} is not what would be applied now, which is {}: plan again", short(.wanted), short(.found))]
    OtherPlan { wanted: String, found: String },
    #[error("publication {no} of {by} set it aside; publish it by hand, or change it")]
    Pinned { no: u64, by: String },
    #[error("the manifests have {}, the first: {first}", load::errors_text(*.errors))]
    Problems { errors: usize, first: String },
    #[error("nothing was published before publication {0}")]
    NothingBefore(u64),
    #[error("no unit is called {0}; `vejas status` lists them")]
    NoUnit(String),
    #[error("what waits for a unit cannot be read: {0}")]
    Unreadable(String),
    #[error("what became of candidate {0} cannot be read; `vejas history` shows it once the bus answers")]
    Undecided(u64),
}

/// How a set is published.
#[derive(Debug, Clone, Default)]
pub struct How {
    /// Only if it is this plan, of which at least eight hex digits are given.
    pub plan: Option<String>,
    /// A person asks for it: it is published although it was set aside, and what it replaces is set aside.
    pub person: bool,
    /// Whatever it removes.
    pub prune: bool,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub head: Head,
    /// Nothing had to change.
    pub unchanged: bool,
    /// Members that left while they were waited for.
    pub uncounted: Vec<String>,
}

/// Compiled versions, by digest.
#[derive(Debug, Default)]
pub struct Compiled(Mutex<HashMap<String, Arc<LoadedUnit>>>);

impl Compiled {
    pub fn get(&self, digest: &str) -> Option<Arc<LoadedUnit>> {
        self.lock().get(digest).cloned()
    }

    pub fn put(&self, unit: &Arc<LoadedUnit>) {
        self.lock().insert(unit.digest.clone(), Arc::clone(unit));
    }

    /// Forgets all others.
    pub fn keep(&self, digests: &BTreeSet<&str>) {
        self.lock().retain(|digest, _| digests.contains(digest.as_str()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<LoadedUnit>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    pub(super) context: Context,
    pub(super) config: Arc<Config>,
    pub(super) versions: Arc<Versions>,
    pub(super) ownership: ownership::Handle,
    pub(super) compiled: Arc<Compiled>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Publisher")
    }
}

impl Publisher {
    pub fn new(context: &Context, config: &Arc<Config>, ownership: &ownership::Handle) -> Self {
        Publisher {
            context: context.clone(),
            config: Arc::clone(config),
            versions: Arc::new(Versions::new(Arc::clone(&context.store), &context.names)),
            ownership: ownership.clone(),
            compiled: Arc::default(),
        }
    }

    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub fn versions(&self) -> &Arc<Versions> {
        &self.versions
    }

    /// Nobody else is on this bus.
    pub fn is_alone(&self) -> bool {
        matches!(self.config.bus, BusConfig::Embedded)
    }

    pub async fn head(&self) -> Result<Head, bus::Error> {
        Ok(self.versions.head().await?.0)
    }

    /// The units in effect. Which file declared a unit is looked up for those that `given` does not have.
    pub async fn current(&self, head: &Head, given: &Given) -> Result<Units, Error> {
        let mut units = Units::new();
        if !head.is_published() {
            return Ok(units);
        }
        for (id, digest) in self.versions.set(&head.revision).await? {
            let file = match given.wanted.contains_key(&id) {
                true => None,
                false => contents::file(&self.versions, &digest).await?,
            };
            units.insert(id, Current { digest, file });
        }
        Ok(units)
    }

    /// What the set would change, and what is in effect now.
    pub async fn plan(&self, given: &Given) -> Result<(Plan, Units, Head), Error> {
        let head = self.head().await?;
        let current = self.current(&head, given).await?;
        Ok((given.plan(&current), current, head))
    }

    /// Puts a set into effect.
    pub async fn publish(&self, given: &Given, made: Made, how: &How) -> Result<Published, Error> {
        let (plan, _, head) = self.plan(given).await?;
        let hash = plan.hash(head.no);
        if let Some(wanted) = how.plan.as_ref().filter(|wanted| !hash.starts_with(wanted.as_str())) {
            return Err(Error::OtherPlan { wanted: wanted.clone(), found: hash });
        }
        if head.revision == plan.revision && head.is_published() {
            return Ok(Published { head, unchanged: true, uncounted: Vec::new() });
        }
        if !how.person
            && let Some(pin) = head.pin_of(&plan.revision, made.commit.as_deref())
        {
            return Err(Error::Pinned { no: head.no, by: pin.by.clone() });
        }
        let confirmed = how.prune || how.plan.is_some() || head.is_confirmed(&hash);
        if let Some(reason) = plan.guard().filter(|_| !confirmed) {
            self.hold(head.no, &hash).await?;
            return Err(Error::Guard { hash, reason });
        }
        self.store(&plan).await?;
        for unit in given.wanted.values() {
            self.compiled.put(unit);
        }
        self.put(&plan.revision, made, head.no, how.person).await
    }

    /// Stores what a set is made of.
    pub async fn store(&self, plan: &Plan) -> Result<(), bus::Error> {
        for unit in &plan.set {
            self.versions.store_contents(&unit.pieces).await?;
        }
        let piece = Piece { digest: plan.revision.clone(), bytes: planning::lines(&plan.set).into() };
        self.versions.store_contents(&[Arc::new(piece)]).await
    }

    /// Brings back an earlier publication, or the one before.
    pub async fn rollback(&self, to: Option<u64>, made: Made) -> Result<Published, Error> {
        let head = self.head().await?;
        let before = head.history.iter().rev().find(|past| past.revision != head.revision);
        let no = to.or(before.map(|past| past.no)).ok_or(Error::NothingBefore(head.no))?;
        let past = head.publication(no)?;
        if past.revision == head.revision {
            return Ok(Published { head, unchanged: true, uncounted: Vec::new() });
        }
        self.put(&past.revision, made, head.no, true).await
    }

    /// Stops a unit everywhere; what comes to it waits. Answers whether it ran.
    pub async fn suspend(&self, unit: &UnitId, by: &str, reason: Option<String>) -> Result<bool, Error> {
        self.check_unit(unit).await?;
        let at = self.context.clock.now().0;
        let suspension = Suspension { unit: unit.to_string(), by: by.to_owned(), at, reason };
        Ok(self.versions.change_head(|head| head.suspended(suspension.clone())).await?.is_some())
    }

    async fn check_unit(&self, unit: &UnitId) -> Result<(), Error> {
        let head = self.head().await?;
        let is_there = head.is_published() && self.versions.set(&head.revision).await?.contains_key(unit);
        // One that was removed while it was suspended can still be resumed.
        if is_there || head.suspension(&unit.to_string()).is_some() {
            return Ok(());
        }
        Err(Error::NoUnit(unit.to_string()))
    }

    /// Answers whether it was suspended.
    pub async fn resume(&self, unit: &UnitId) -> Result<bool, Error> {
        self.check_unit(unit).await?;
        Ok(self.versions.change_head(|head| head.resumed(&unit.to_string())).await?.is_some())
    }

    /// Lets a plan be confirmed.
    pub(super) async fn hold(&self, no: u64, hash: &str) -> Result<(), bus::Error> {
        self.versions.write_waiting(&Waiting { no, hash: hash.to_owned() }).await
    }

    /// A person says yes to a plan of an origin that removes much.
    pub async fn confirm(&self, hash: &str) -> Result<(), Error> {
        let (head, waiting) = (self.head().await?, self.versions.waiting().await?);
        let found = waiting.filter(|waiting| waiting.no == head.no).ok_or(Error::NothingWaits)?.hash;
        if !found.starts_with(hash) {
            return Err(Error::OtherWaits { wanted: hash.to_owned(), found });
        }
        let confirmed = |head: &Head| Some(Head { confirmed: Some(hash.to_owned()), ..head.clone() });
        self.versions.change_head(confirmed).await?;
        Ok(())
    }

    /// From stored contents to the head.
    async fn put(&self, revision: &str, made: Made, planned: u64, pins: bool) -> Result<Published, Error> {
        if self.is_alone() {
            let (head, at) = self.versions.head().await?;
            if head.no != planned {
                return Err(Refused::Moved { planned, no: head.no }.into());
            }
            let next = head.overtaken(revision, made, pins);
            return match self.versions.write_head(&next, at).await? {
                Written::Won(_) => Ok(Published { head: next, unchanged: false, uncounted: Vec::new() }),
                Written::Lost => Err(Refused::Moved { planned, no: planned + 1 }.into()),
            };
        }
        let candidate = self.announce(revision, made, planned, pins).await?;
        let uncounted = match self.answered(candidate).await {
            Ok(uncounted) => uncounted,
            Err(error) => {
                self.decide(candidate, &|head| head.aborted(candidate, &error.to_string())).await?;
                return Err(error);
            }
        };
        match self.decide(candidate, &|head| head.committed(candidate)).await? {
            (head, Outcome::Committed(_)) => Ok(Published { head, unchanged: false, uncounted }),
            (_, Outcome::Aborted(reason)) => Err(Error::Rejected(vec![reason])),
            _ => Err(Error::Undecided(candidate)),
        }
    }

    /// Rule cut-8. Answers the candidate's id.
    async fn announce(&self, revision: &str, made: Made, planned: u64, pins: bool) -> Result<u64, Error> {
        loop {
            let (head, at) = self.versions.head().await?;
            let id = at.unwrap_or(0);
            let next = head.announced(id, planned, revision, made.clone(), pins)?;
            if let Written::Won(_) = self.versions.write_head(&next, at).await? {
                return Ok(id);
            }
        }
    }

    /// Rule cut-10: waits until every listed member has answered that it can run it.
    async fn answered(&self, candidate: u64) -> Result<Vec<String>, Error> {
        let deadline = self.context.clock.monotonic() + DEADLINE;
        let mut seen: BTreeMap<Incarnation, String> = BTreeMap::new();
        loop {
            let listed = self.listed();
            seen.extend(listed.clone());
            let incs: Vec<Incarnation> = listed.keys().copied().collect();
            let answers = self.versions.answers(candidate, &incs).await?;
            let rejected = answers.values().filter(|answer| !answer.reasons.is_empty());
            let rejected: Vec<String> = rejected
                .map(|answer| {
                    let reasons = answer.reasons.iter().take(REASONS_SHOWN).cloned().collect::<Vec<_>>().join(", ");
                    format!("{}: {reasons}", answer.instance)
                })
                .collect();
            if !rejected.is_empty() {
                return Err(Error::Rejected(rejected));
            }
            let silent: Vec<String> =
                listed.iter().filter(|(inc, _)| !answers.contains_key(inc)).map(|(_, name)| name.clone()).collect();
            if silent.is_empty() {
                let gone = seen.into_iter().filter(|(inc, _)| !listed.contains_key(inc));
                return Ok(gone.map(|(_, name)| name).collect());
            }
            if self.context.clock.monotonic() >= deadline {
                let (names, secs) = (silent.join(", "), DEADLINE.as_secs());
                return Err(Error::Rejected(vec![format!("{names} did not answer within {secs} s")]));
            }
            // Looked at key by key: a watch over a prefix hears every grant of every flow.
            tokio::time::sleep(ANSWERS_LOOK).await;
        }
    }

    /// The members that are listed now, this one among them.
    fn listed(&self) -> BTreeMap<Incarnation, String> {
        let members = self.ownership.members();
        let listed = members.iter().map(|member| (member.inc, member.instance.to_string()));
        let own = self.ownership.shown().inc.map(|inc| (inc, self.context.instance.to_string()));
        listed.chain(own).collect()
    }

    /// Waits a little until this publication is in effect on all listed members; answers on which it is not yet.
    pub async fn in_effect(&self, no: u64) -> Vec<String> {
        let mut changes = self.ownership.watch_members();
        let own = self.ownership.shown().inc;
        let pending = |members: &[ownership::Member]| -> Vec<String> {
            // An announcement outlives its process for a while; alone on a bus there is nobody else.
            let counts = |member: &&ownership::Member| !self.is_alone() || Some(member.inc) == own;
            let behind = members.iter().filter(counts).filter(|member| member.describes.no < no);
            behind.map(|member| member.instance.to_string()).collect()
        };
        let all = changes.wait_for(|members| pending(members).is_empty());
        match tokio::time::timeout(IN_EFFECT_MAX, all).await {
            Ok(_) => Vec::new(),
            Err(_) => pending(&self.ownership.members()),
        }
    }

    /// The incarnations that a publication waits for.
    pub fn members(&self) -> Vec<Incarnation> {
        self.listed().into_keys().collect()
    }

    /// Commits or aborts, whoever else does, and says what it came to. A lost answer is no answer: the head is read again.
    pub(super) async fn decide(
        &self,
        candidate: u64,
        change: &(dyn Fn(&Head) -> Option<Head> + Sync),
    ) -> Result<(Head, Outcome), Error> {
        for _ in 0..TRIES_MAX {
            let decided = async {
                let (head, at) = self.versions.head().await?;
                let Some(next) = change(&head) else { return Ok(Some(head)) };
                Ok(match self.versions.write_head(&next, at).await? {
                    Written::Won(_) => Some(next),
                    Written::Lost => None,
                })
            };
            match decided.await {
                Ok(Some(head)) => {
                    let outcome = head.outcome(candidate);
                    return Ok((head, outcome));
                }
                Ok(None) => {}
                Err(bus::Error::Unavailable(_)) => tokio::time::sleep(AGAIN_AFTER).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Undecided(candidate))
    }

    /// The units of the head, compiled. Those that this binary cannot run are told and left out: other members may.
    pub async fn units_of(&self, head: &Head) -> Result<BTreeMap<UnitId, Arc<LoadedUnit>>, Error> {
        let (units, failures) = self.compile(&head.revision, false).await?;
        for failure in failures {
            tracing::error!("not run here: {failure}");
        }
        Ok(units)
    }

    /// Compiles a set; answers the units and what is wrong with the others.
    pub(super) async fn compile(
        &self,
        revision: &str,
        check_settings: bool,
    ) -> Result<(BTreeMap<UnitId, Arc<LoadedUnit>>, Vec<String>), Error> {
        let set = self.versions.set(revision).await?;
        let (mut units, mut failures) = (BTreeMap::new(), Vec::new());
        let mut missing = Vec::new();
        for (id, digest) in set {
            match self.compiled.get(&digest) {
                Some(unit) => _ = units.insert(id, unit),
                None => missing.push((id, digest)),
            }
        }
        let load = |(id, digest): (UnitId, String)| async move {
            let environment = check_settings.then(|| Arc::clone(&self.config.environment));
            (id, contents::load_checked(&self.versions, &digest, environment).await)
        };
        for chunk in missing.chunks(COMPILED_AT_ONCE) {
            for (id, loaded) in futures_util::future::join_all(chunk.iter().cloned().map(load)).await {
                match loaded {
                    Ok(unit) => {
                        let unit = Arc::new(unit);
                        self.compiled.put(&unit);
                        units.insert(id, unit);
                    }
                    Err(contents::Error::Bus(error)) => return Err(error.into()),
                    Err(error) => failures.push(format!("{id}: {error}")),
                }
            }
        }
        Ok((units, failures))
    }

    /// Who published, for a call that comes now.
    pub fn made(&self, by: &str) -> Made {
        Made { by: by.to_owned(), at: self.context.clock.now().0, ..Made::default() }
    }
}

/// Versions compiled side by side.
const COMPILED_AT_ONCE: usize = 16;

/// For messages: which publication, of whom.
pub fn shown(publication: &publish::Publication) -> String {
    let commit = publication.made.commit.as_deref().map(|commit| format!(", commit {}", short(commit)));
    format!("no {} of {}{}", publication.no, publication.made.by, commit.unwrap_or_default())
}
