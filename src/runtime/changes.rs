//! A plan, unit by unit, and the difference between two publications, for people.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::contents;
use super::parts::{self, Granting, UnitParts};
use super::planning::{Action, Given, Plan, Units};
use super::publisher::{Error, Publisher};
use super::reading;
use crate::id::{UnitId, UnitKind};

/// What becomes of one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnitChange {
    pub unit: String,
    pub action: Action,
    /// The digest in effect.
    pub from: Option<String>,
    /// The digest that would be.
    pub to: Option<String>,
    /// Messages that wait for a unit that is removed or reads something else.
    pub waiting: Option<u64>,
    /// What a person should know of it.
    pub note: Option<String>,
}

/// How one unit differs between two publications.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnitDifference {
    pub unit: String,
    pub from: Option<String>,
    pub to: Option<String>,
    /// The manifest as it was, and the digests of the files and manifests it refers to; absent when it is not stored any more.
    pub before: Option<Json>,
    pub after: Option<Json>,
}

impl Publisher {
    /// What a plan does to each unit that it touches, by name.
    pub async fn changes(&self, given: &Given, plan: &Plan, current: &Units) -> Result<Vec<UnitChange>, Error> {
        let mut changes = Vec::new();
        for unit in &plan.set {
            let before = current.get(&unit.id).map(|current| current.digest.clone());
            if plan.kept.contains(&unit.id) {
                let reason = given.left_out.get(&unit.id).map_or(given.first_error.as_str(), |one| one.reason.as_str());
                let note = format!("its last good version goes on: {reason}");
                changes.push(change(&unit.id, Action::Keep, before.clone(), before, None, Some(note)));
                continue;
            }
            let Some(from) = before.filter(|from| *from != unit.digest) else {
                if !current.contains_key(&unit.id) {
                    changes.push(change(&unit.id, Action::Create, None, Some(unit.digest.clone()), None, None));
                }
                continue;
            };
            let (action, waiting, note) = self.follows(given, &unit.id).await?;
            changes.push(change(&unit.id, action, Some(from), Some(unit.digest.clone()), waiting, note));
        }
        for id in &plan.removed {
            let waiting = self.waiting(id).await?;
            let note = waiting
                .filter(|waiting| *waiting > 0)
                .map(|waiting| format!("{waiting} messages wait for its return, or for `vejas purge {id}`"));
            let from = current.get(id).map(|current| current.digest.clone());
            changes.push(change(id, Action::Remove, from, None, waiting, note));
        }
        changes.sort_by(|a, b| a.unit.cmp(&b.unit));
        Ok(changes)
    }

    /// How a changed unit follows.
    async fn follows(&self, given: &Given, id: &UnitId) -> Result<(Action, Option<u64>, Option<String>), Error> {
        if id.kind == UnitKind::Source {
            return Ok((Action::Restart, None, None));
        }
        let reads = given.wanted.get(id).and_then(|unit| {
            let (from, _) = reading::reads(unit)?;
            Some(parts::reads(&self.context.names, id, from))
        });
        let Some(reads) = reads else { return Ok((Action::InPlace, None, None)) };
        match self.versions.run(id).await? {
            Some((run, _)) if run.last().reads != reads => {
                let waiting = self.waiting(id).await?;
                let note = "it reads something else: what is stored already stays with the version before; \
                            to mend that backlog, publish the mend first and change `from` afterwards";
                Ok((Action::Recreate, waiting, Some(note.to_owned())))
            }
            _ => Ok((Action::InPlace, None, None)),
        }
    }

    async fn waiting(&self, id: &UnitId) -> Result<Option<u64>, Error> {
        if !matches!(id.kind, UnitKind::Flow | UnitKind::Sink) {
            return Ok(None);
        }
        let (context, versions) = (self.context.clone(), std::sync::Arc::clone(&self.versions));
        let unit = UnitParts::new(context, versions, id.clone(), Granting::ByRecord);
        unit.look().await.map_err(|error| Error::Unreadable(error.to_string()))?;
        unit.waiting().await.map_err(|error| Error::Unreadable(error.to_string()))
    }

    /// What differs between two publications.
    pub async fn diff(&self, from: u64, to: u64) -> Result<Vec<UnitDifference>, Error> {
        let head = self.head().await?;
        let set = async |no: u64| -> Result<BTreeMap<UnitId, String>, Error> {
            if no == 0 {
                return Ok(BTreeMap::new());
            }
            Ok(self.versions.set(&head.publication(no)?.revision).await?)
        };
        let (before, after) = (set(from).await?, set(to).await?);
        let mut ids: Vec<&UnitId> = before.keys().chain(after.keys()).collect();
        ids.sort();
        ids.dedup();
        let mut differences = Vec::new();
        for id in ids {
            let (from, to) = (before.get(id).cloned(), after.get(id).cloned());
            if from == to {
                continue;
            }
            let shown = async |digest: &Option<String>| match digest {
                Some(digest) => contents::shown(&self.versions, digest).await,
                None => Ok(None),
            };
            let (before, after) = (shown(&from).await?, shown(&to).await?);
            differences.push(UnitDifference { unit: id.to_string(), from, to, before, after });
        }
        Ok(differences)
    }
}

fn change(
    id: &UnitId,
    action: Action,
    from: Option<String>,
    to: Option<String>,
    waiting: Option<u64>,
    note: Option<String>,
) -> UnitChange {
    UnitChange { unit: id.to_string(), action, from, to, waiting, note }
}
