//! Which set of units the instances run, until a publisher decides that for them.
//!
//! Each instance is given a set of manifests; `head` in the versions bucket says which set the cluster runs. The first instance of all
//! publishes its own. From then on the head moves to another set only when every member reports that it was given that set, for a while:
//! so a roll-out that goes through the instances one by one takes effect when the last of them has it, and at no moment do two run
//! different sets. An instance that was given another set runs the cluster's, from the contents of the versions bucket, and says so.
//!
//! A process that has its bus to itself publishes what it is given.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::config::{BusConfig, Config};
use super::contents::{self, Piece};
use super::load::LoadedUnit;
use super::ownership;
use super::units::{Change, Error};
use super::versions::{Head, Versions};
use crate::id::UnitId;
use crate::ports::clock::SharedClock;
use crate::unit::context::Context;

/// How long all members must have reported the same set before it is published.
const SETTLE: Duration = Duration::from_secs(3);

/// Tries of a start while nobody answers: servers that have just made a bucket may lose the first write to it.
const FIRST_TRIES_MAX: u32 = 4;
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// One unit of a set.
pub(super) struct Listed {
    pub id: UnitId,
    pub digest: String,
    pub pieces: Vec<Arc<Piece>>,
}

pub(super) enum Decision {
    /// The given set is the one that the cluster runs, under this head.
    Run(Head),
    /// The cluster runs another one; why, for people.
    Differs(Head, String),
}

pub(super) struct Agreement {
    alone: bool,
    versions: Arc<Versions>,
    ownership: ownership::Handle,
    clock: SharedClock,
    /// The set that runs here, and why it is not the given one if it is not.
    running: Option<(String, Option<String>)>,
    /// Since when all members have reported this set, by the monotonic clock.
    agreed: Option<(String, Duration)>,
}

impl Agreement {
    pub fn new(config: &Config, context: &Context, versions: &Arc<Versions>, ownership: &ownership::Handle) -> Self {
        Agreement {
            alone: matches!(config.bus, BusConfig::Embedded),
            versions: Arc::clone(versions),
            ownership: ownership.clone(),
            clock: Arc::clone(&context.clock),
            running: None,
            agreed: None,
        }
    }

    /// Nobody else is on this bus.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Decides for a set that this instance was given, and publishes it when it is time.
    pub async fn decide(&mut self, revision: &str, set: &[Listed]) -> Result<Decision, Error> {
        // Later there is a set that runs, and another look in a moment.
        let tries_max = if self.running.is_none() { FIRST_TRIES_MAX } else { 1 };
        let mut tries = 1;
        loop {
            match self.decide_now(revision, set).await {
                Err(Error::Bus(error)) if error.is_retryable() && tries < tries_max => {
                    tracing::warn!("what the cluster runs is not known yet: {error}");
                    tries += 1;
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                decided => return decided,
            }
        }
    }

    async fn decide_now(&mut self, revision: &str, set: &[Listed]) -> Result<Decision, Error> {
        self.ownership.describe(|describes| revision.clone_into(&mut describes.revision));
        let head = self.versions.head().await?;
        let may_publish = self.alone || head.is_none() || self.is_agreed(revision);
        match head {
            Some((head, _)) if head.revision == revision => Ok(Decision::Run(head)),
            Some((head, _)) if !may_publish => {
                let reason = self.reason(revision, &head);
                Ok(Decision::Differs(head, reason))
            }
            held => {
                for unit in set {
                    self.versions.store_contents(&unit.pieces).await?;
                }
                let piece = Piece { digest: revision.to_owned(), bytes: lines(set).into() };
                self.versions.store_contents(&[Arc::new(piece)]).await?;
                let at = held.map(|(_, at)| at);
                match self.versions.publish(revision, at).await? {
                    Some(head) => Ok(Decision::Run(head)),
                    // Somebody else published: what that was decides.
                    None => Box::pin(self.decide_now(revision, set)).await,
                }
            }
        }
    }

    /// Every member reports this set, and has for a while.
    fn is_agreed(&mut self, revision: &str) -> bool {
        let members = self.ownership.members();
        let own = self.ownership.shown().inc;
        let here = members.iter().any(|member| Some(member.inc) == own);
        let all = members.iter().all(|member| member.describes.revision == revision);
        if !here || !all {
            self.agreed = None;
            return false;
        }
        let now = self.clock.monotonic();
        match &self.agreed {
            Some((agreed, since)) if agreed == revision => now.saturating_sub(*since) >= SETTLE,
            _ => {
                self.agreed = Some((revision.to_owned(), now));
                false
            }
        }
    }

    fn reason(&self, revision: &str, head: &Head) -> String {
        let members = self.ownership.members();
        let others = members.iter().filter(|member| member.describes.revision != revision);
        let others: Vec<&str> = others.map(|member| member.instance.as_ref()).collect();
        let (given, runs) = (crate::unit::status::short(revision), crate::unit::status::short(&head.revision));
        // Whom it does not see itself among, it does not see whole.
        let own = self.ownership.shown().inc;
        let until = if !members.iter().any(|member| Some(member.inc) == own) {
            "once all instances have them".to_owned()
        } else if others.is_empty() {
            "in a moment".to_owned()
        } else {
            format!("once {} has them too", others.join(", "))
        };
        format!(
            "the cluster runs {runs} (no {}), this instance was given {given}: its manifests take effect {until}",
            head.no
        )
    }

    /// Whether something is to be done: the head has moved, the given set is agreed on, or it waits for other instances than it said.
    pub async fn is_due(&mut self, revision: &str) -> Result<bool, Error> {
        let Some((head, _)) = self.versions.head().await? else { return Ok(true) };
        let differs = (head.revision != revision).then(|| self.reason(revision, &head));
        let agreed = differs.is_some() && self.is_agreed(revision);
        let told = self.running.as_ref() == Some(&(head.revision, differs));
        Ok(!told || agreed)
    }

    /// This runs here now.
    pub fn runs(&mut self, change: &Change) {
        self.running = Some((change.revision.clone(), change.degraded.clone()));
        metrics::gauge!("vejas_publication").set(change.no as f64);
        metrics::gauge!("vejas_degraded").set(if change.degraded.is_some() { 1.0 } else { 0.0 });
        self.ownership.describe(|describes| {
            describes.no = change.no;
            describes.degraded.clone_from(&change.degraded);
        });
    }

    /// The units of the set that the cluster runs: what was given where it is the same, the others from their contents.
    pub async fn units_of(
        &self,
        head: &Head,
        given: &BTreeMap<UnitId, Arc<LoadedUnit>>,
    ) -> Result<BTreeMap<UnitId, Arc<LoadedUnit>>, Error> {
        let missing = |reason: &str| Error::Set { revision: head.revision.clone(), reason: reason.to_owned() };
        let text = self.versions.content(&head.revision).await?.ok_or_else(|| missing("it is not stored any more"))?;
        let text = std::str::from_utf8(&text).map_err(|error| missing(&error.to_string()))?;
        let mut units = BTreeMap::new();
        for line in text.lines() {
            let (id, digest) = line.split_once(' ').ok_or_else(|| missing("a line is not `unit digest`"))?;
            let id = UnitId::parse(id).ok_or_else(|| missing("a line names no unit"))?;
            let unit = match given.get(&id) {
                Some(unit) if unit.digest == digest => Arc::clone(unit),
                _ => match contents::load(&self.versions, digest).await {
                    Ok(unit) => Arc::new(unit),
                    Err(contents::Error::Bus(error)) => return Err(error.into()),
                    // The others run, and this one is run by the members that can.
                    Err(error) => {
                        tracing::error!(unit = %id, "not run here: {error}");
                        continue;
                    }
                },
            };
            units.insert(id, unit);
        }
        Ok(units)
    }
}

/// The set as it is stored and digested: sorted lines `<unit> <digest>`.
fn lines(set: &[Listed]) -> String {
    let sorted: BTreeMap<&UnitId, &str> = set.iter().map(|unit| (&unit.id, unit.digest.as_str())).collect();
    sorted.into_iter().map(|(id, digest)| format!("{id} {digest}\n")).collect()
}

/// SHA-256 over the lines of a set.
pub(super) fn revision(set: &[Listed]) -> String {
    contents::hex(&Sha256::digest(lines(set).as_bytes()).into())
}
