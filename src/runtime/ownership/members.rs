//! Who there is: this process's announcement in the bucket of members, kept alive, and the announcements of the others.
//!
//! An announcement exists only after its session was won. It is taken back when the incarnation ends and expires when its process
//! does not refresh it. The list is read whole after every change and on a period: it is short, and a watch may miss what it likes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use super::{Said, records};
use crate::ports::bus::Error;
use crate::ports::store::{Condition, Outcome, Write};
use crate::protocol::Role;
use crate::protocol::membership::MEMBERS_MAX;
use crate::protocol::record::{Incarnation, Instance};
use crate::unit::context::Context;

/// Between tries while the bus is away.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Changes that follow each other this closely are read together.
const QUIET: Duration = Duration::from_millis(10);

/// The prefix of a role's announcements.
pub fn prefix(role: Role) -> &'static str {
    match role {
        Role::Worker => "worker/membership/",
        Role::Sink => "sink/membership/",
        Role::Engine => "membership/",
        Role::Notifier => "notifier/membership/",
    }
}

const ROLES: [Role; 4] = [Role::Worker, Role::Sink, Role::Engine, Role::Notifier];

/// What a member says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Describes {
    pub instance: String,
    /// Where its API is.
    pub address: String,
    /// The version of its binary.
    pub version: String,
    /// The digest of the set of manifests it was given.
    pub revision: String,
    /// The publication it runs.
    pub no: u64,
    /// Why it does not run what it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded: Option<String>,
    /// When the process started, RFC 3339.
    pub started: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub inc: Incarnation,
    pub instance: Instance,
    pub roles: Vec<Role>,
    pub describes: Describes,
}

/// The members of one role, for the protocol.
pub fn of_role(members: &[Member], role: Role) -> BTreeMap<Incarnation, Instance> {
    let of_role = members.iter().filter(|member| member.roles.contains(&role));
    of_role.map(|member| (member.inc, Arc::clone(&member.instance))).collect()
}

/// Whom to announce, if anybody.
pub(super) type Announced = Option<(Incarnation, Vec<Role>)>;

pub(super) struct Announcer {
    pub context: Context,
    pub bucket: String,
    pub ttl: Duration,
    pub whom: watch::Receiver<Announced>,
    pub describes: watch::Receiver<Describes>,
}

impl Announcer {
    /// Keeps the announcement as `whom` and `describes` say. Ends when `whom` has no sender any more.
    pub async fn run(mut self) {
        let mut standing: BTreeMap<String, u64> = BTreeMap::new();
        loop {
            let whom = self.whom.borrow_and_update().clone();
            let described = self.describes.borrow_and_update().clone();
            let value = Bytes::from(serde_json::to_vec(&described).expect("strings and numbers are JSON"));
            let wanted: Vec<String> = whom
                .iter()
                .flat_map(|(inc, roles)| roles.iter().map(move |role| format!("{}{inc}", prefix(*role))))
                .collect();
            let mut done = true;
            let gone: Vec<String> = standing.keys().filter(|key| !wanted.contains(key)).cloned().collect();
            for key in gone {
                let revision = standing.remove(&key).unwrap_or(0);
                // One that stays behind expires.
                match self.put(&key, None, Condition::Revision(revision)).await {
                    Ok(Outcome::Won(_)) => {}
                    other => tracing::debug!(key, revision, "not withdrawn: {other:?}"),
                }
            }
            for key in wanted {
                match self.refresh(&key, &value, standing.get(&key).copied()).await {
                    Ok(revision) => _ = standing.insert(key, revision),
                    Err(error) => {
                        tracing::debug!(key, "not announced: {error}");
                        done = false;
                        if matches!(error, Error::NoStream(_)) {
                            tracing::error!("the bucket of members is gone; it is made again");
                            // What cannot be made now is tried again with the next round.
                            let _ = self.context.store.ensure_bucket(&self.bucket, Some(self.ttl)).await;
                        }
                    }
                }
            }
            let wait = if done { self.ttl / 3 } else { AGAIN_AFTER };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                changed = self.whom.changed() => if changed.is_err() { return },
                changed = self.describes.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn refresh(&self, key: &str, value: &Bytes, standing: Option<u64>) -> Result<u64, Error> {
        let condition = standing.map_or(Condition::Absent, Condition::Revision);
        match self.put(key, Some(value.clone()), condition).await? {
            Outcome::Won(revision) => Ok(revision),
            // Expired, or an answer was lost: nobody else writes this key.
            Outcome::Lost(found) => {
                let condition = found.map_or(Condition::Absent, |entry| Condition::Revision(entry.revision));
                match self.put(key, Some(value.clone()), condition).await? {
                    Outcome::Won(revision) => Ok(revision),
                    Outcome::Lost(_) => Err(Error::Unavailable("written by somebody else".to_owned())),
                }
            }
        }
    }

    async fn put(&self, key: &str, value: Option<Bytes>, condition: Condition) -> Result<Outcome, Error> {
        let write = Write { bucket: self.bucket.clone(), key: key.to_owned(), value, condition, ttl: None };
        let outcomes = self.context.store.write(vec![write]).await?;
        outcomes.into_iter().next().ok_or_else(|| Error::Unavailable("no answer".to_owned()))
    }
}

/// Tells the driver of the members, whenever they change. Ends when the driver is gone.
pub(super) async fn follow(context: Context, bucket: String, period: Duration, inbox: mpsc::Sender<Said>) {
    let mut told: Option<Vec<Member>> = None;
    loop {
        let mut changes = context.store.watch(&bucket, "");
        loop {
            let next = tokio::time::timeout(period, changes.next()).await;
            if let Ok(Some(Ok(_))) = next {
                while let Ok(Some(Ok(_))) = tokio::time::timeout(QUIET, changes.next()).await {}
            }
            match list(&context, &bucket).await {
                Ok(members) if told.as_ref() != Some(&members) => {
                    if inbox.send(Said::Members(members.clone())).await.is_err() {
                        return;
                    }
                    told = Some(members);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!("members cannot be listed: {error}"),
            }
            if matches!(next, Ok(None | Some(Err(_)))) {
                break;
            }
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// The announced members, by instance name and incarnation.
pub(super) async fn list(context: &Context, bucket: &str) -> Result<Vec<Member>, Error> {
    let mut members: BTreeMap<Incarnation, Member> = BTreeMap::new();
    for entry in context.store.list(bucket, "", None, MEMBERS_MAX * ROLES.len()).await? {
        let role = ROLES.into_iter().find_map(|role| Some((role, entry.key.strip_prefix(prefix(role))?)));
        let Some((role, inc)) = role else { continue };
        let described: Result<Describes, _> = serde_json::from_slice(&entry.value);
        let (Some(inc), Ok(describes)) = (records::parse_incarnation(inc), described) else {
            tracing::warn!(key = entry.key, "an announcement cannot be read");
            continue;
        };
        let instance: Instance = describes.instance.as_str().into();
        let member = members.entry(inc).or_insert_with(|| Member { inc, instance, roles: Vec::new(), describes });
        member.roles.push(role);
    }
    let mut members: Vec<Member> = members.into_values().collect();
    members.iter_mut().for_each(|member| member.roles.sort());
    members.sort_by(|a, b| (&a.instance, a.inc).cmp(&(&b.instance, b.inc)));
    Ok(members)
}
