//! What the calls about revisions take and answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::runtime::changes::{UnitChange, UnitDifference};
use crate::runtime::load::Shown;
use crate::runtime::sync::Sync;

/// A set of manifests with the files they name.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Upload {
    /// What all paths begin with.
    #[serde(default)]
    pub root: String,
    pub files: Vec<File>,
}

/// Exactly one of `text` and `base64`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "UploadedFile")]
pub struct File {
    /// With `/`.
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Publish {
    pub upload: Upload,
    /// Only if it is this plan; its hash, or at least the first eight digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Also if it removes much.
    #[serde(default)]
    pub prune: bool,
    /// Also with errors: what has one keeps its last good version.
    #[serde(default)]
    pub keep_going: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollback {
    /// The number of the publication to bring back; the one before the present unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Confirm {
    /// The hash of the plan.
    pub plan: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Confirmed {
    pub plan: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Suspend {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suspended {
    pub unit: String,
    pub suspended: bool,
    pub by: Option<String>,
    pub reason: Option<String>,
    /// RFC 3339.
    pub since: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Between {
    /// The number of a publication, 0 for nothing; the one before `to` unless given.
    pub from: Option<u64>,
    /// The present one unless given.
    pub to: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    pub from: u64,
    pub to: u64,
    pub units: Vec<UnitDifference>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The publication it was made against.
    pub no: u64,
    /// Names the plan: the same set against the same publication.
    pub hash: String,
    /// The digest over all units.
    pub revision: String,
    /// Units that are touched or kept back, by name.
    pub changes: Vec<UnitChange>,
    pub unchanged: usize,
    /// Why it has to be confirmed with its hash.
    pub guard: Option<String>,
    pub errors: usize,
    pub problems: Vec<Shown>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Publication {
    pub no: u64,
    pub revision: String,
    /// `git`, `directory`, or who asked for it.
    pub by: String,
    /// RFC 3339.
    pub at: String,
    pub commit: Option<String>,
    pub author: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    #[serde(flatten)]
    pub publication: Publication,
    /// Nothing had to change.
    pub unchanged: bool,
    /// Members that left while they were waited for.
    pub uncounted: Vec<String>,
    /// Members on which it is not in effect yet, five seconds after it was decided.
    pub pending: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Past {
    #[serde(flatten)]
    pub publication: Publication,
    /// Git and the folder do not bring it back.
    pub set_aside: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct History {
    pub publications: Vec<Past>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "CandidateAnswer")]
pub struct Answer {
    pub instance: String,
    /// Why it cannot run the candidate; empty when it can.
    pub reasons: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    pub id: u64,
    pub revision: String,
    pub by: String,
    pub answers: Vec<Answer>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    pub instance: String,
    /// The publication in effect there.
    pub no: u64,
    /// Why it is not the one it should be.
    pub degraded: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revisions {
    /// None before the first.
    pub publication: Option<Publication>,
    /// What is being decided.
    pub candidate: Option<Candidate>,
    /// Why the last candidate did not take effect, if it did not.
    pub last_aborted: Option<String>,
    /// The publication is in effect on every member.
    pub converged: bool,
    pub members: Vec<Applied>,
    pub suspended: Vec<Suspended>,
    /// How the git repository stands, if one is followed.
    pub sync: Option<Sync>,
}
