//! Members and leases as people see them.

use std::sync::Arc;

use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::members::{self, Member};
use super::{Handle, records};
use crate::ports::bus::Error;
use crate::ports::peers::Peers;
use crate::protocol::Role;
use crate::protocol::record::{Generation, Hold, Incarnation, SessionState};
use crate::unit::context::Context;

/// Leases listed together.
const PAGE_LEASES: usize = 512;

/// A process of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Member")]
pub struct ShownMember {
    pub instance: String,
    /// One life of the process; 32 hex digits.
    pub incarnation: String,
    /// Where its API is.
    pub address: String,
    /// The version of its binary.
    pub version: String,
    /// `worker`, `sink`, `engine`, `notifier`.
    pub roles: Vec<String>,
    /// `alive`, `suspect` (somebody has reason to think that it died) or `gone`.
    pub session: String,
    /// It is the process that answers.
    pub own: bool,
    /// The digest of the set of manifests it was given.
    pub revision: String,
    /// The publication it runs.
    pub no: u64,
    /// Why it does not run what it was given.
    pub degraded: Option<String>,
    /// When it started, RFC 3339.
    pub started: String,
    /// How many units it owns.
    pub owns: usize,
}

/// The right to run a unit that only one member may run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Lease")]
pub struct ShownLease {
    pub unit: String,
    /// `held`, `offered` (stopped, and meant for the heir) or `free`.
    pub state: String,
    /// Who holds it, or held it last.
    pub instance: String,
    pub incarnation: String,
    /// The number of the holding; only grows.
    pub tenure: u64,
    /// Whom it is offered to.
    pub heir: Option<String>,
    /// When it was renewed, RFC 3339.
    pub renewed: String,
}

/// Asks the stores. Cheap to clone.
#[derive(Clone)]
pub struct Overview {
    pub context: Context,
    pub handle: Handle,
    pub peers: Arc<dyn Peers>,
}

impl Overview {
    pub async fn members(&self) -> Result<Vec<ShownMember>, Error> {
        let members = members::list(&self.context, &self.context.names.members_bucket()).await?;
        let (own, generation) = (self.handle.shown().inc, self.generation().await?);
        let sessions = join_all(members.iter().map(|member| self.session(generation, member.inc))).await;
        let leases = self.leases().await?;
        let shown = |(member, session): (Member, Result<&'static str, Error>)| {
            let incarnation = member.inc.to_string();
            let owns = leases.iter().filter(|lease| lease.state == "held" && lease.incarnation == incarnation).count();
            Ok(ShownMember {
                instance: member.instance.to_string(),
                own: Some(member.inc) == own,
                session: session?.to_owned(),
                roles: member.roles.iter().map(|role| role_text(*role).to_owned()).collect(),
                address: member.describes.address,
                version: member.describes.version,
                revision: member.describes.revision,
                no: member.describes.no,
                degraded: member.describes.degraded,
                started: member.describes.started,
                incarnation,
                owns,
            })
        };
        members.into_iter().zip(sessions).map(shown).collect()
    }

    /// Of the bucket that is in use now, by unit.
    pub async fn leases(&self) -> Result<Vec<ShownLease>, Error> {
        let (bucket, prefix) = (self.context.names.leases_bucket(), records::lease_prefix(self.generation().await?));
        let members = self.handle.members();
        let name = |inc: Incarnation| members.iter().find(|member| member.inc == inc).map(|m| m.instance.to_string());
        let mut leases = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.context.store.list(&bucket, &prefix, after.as_deref(), PAGE_LEASES).await?;
            let Some(last) = page.last() else { return Ok(leases) };
            after = Some(last.key.clone());
            for entry in page {
                let Ok(lease) = records::decode_lease(&entry.value) else { continue };
                let (state, heir) = match lease.hold {
                    Hold::Held => ("held", None),
                    Hold::Offered { heir } => ("offered", Some(name(heir).unwrap_or_else(|| heir.to_string()))),
                    Hold::Free => ("free", None),
                };
                leases.push(ShownLease {
                    unit: lease.unit.to_string(),
                    state: state.to_owned(),
                    instance: lease.instance.to_string(),
                    incarnation: lease.inc.to_string(),
                    tenure: lease.tenure_at(crate::protocol::record::KvRevision(entry.revision)).0,
                    heir,
                    renewed: entry.written.to_string(),
                });
            }
        }
    }

    /// Asks the members of this name to leave as on SIGTERM; answers how many that are.
    pub fn drain(&self, instance: &str) -> usize {
        self.handle.drain(instance, &*self.peers).unwrap_or(0)
    }

    async fn generation(&self) -> Result<Generation, Error> {
        match self.handle.shown().generation {
            Some(generation) => Ok(generation),
            None => Ok(Generation(self.context.store.bucket(&self.context.names.leases_bucket()).await?.identity)),
        }
    }

    async fn session(&self, generation: Generation, inc: Incarnation) -> Result<&'static str, Error> {
        let key = records::session_key(generation, inc);
        let entry = self.context.store.get(&self.context.names.leases_bucket(), &key).await?;
        let session = entry.and_then(|entry| records::decode_session(&entry.value).ok());
        Ok(match session.map(|session| session.state) {
            Some(SessionState::Alive) => "alive",
            Some(SessionState::Suspect) => "suspect",
            Some(SessionState::Dead) | None => "gone",
        })
    }
}

fn role_text(role: Role) -> &'static str {
    match role {
        Role::Worker => "worker",
        Role::Sink => "sink",
        Role::Engine => "engine",
        Role::Notifier => "notifier",
    }
}
