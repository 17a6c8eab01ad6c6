//! What is asked for and what is told, as the API and the command line write it. Fields are only ever added.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::manifest::value::Span;

/// A file, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// As shown to people; also what relative paths inside are relative to.
    pub path: String,
    pub text: String,
}

/// A flow as it might become.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Declares the flow, and perhaps schemas and tables. What else it declares is passed over.
    pub manifest: File,
    /// Other files of its folder: manifests of schemas and tables, and the files these name. What is not among them is taken
    /// from the versions that run.
    #[serde(default)]
    pub beside: Vec<File>,
}

/// Asks for a comparison on stored messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Replay {
    pub candidate: Candidate,
    /// Messages stored at or after this time: RFC 3339, or how long ago (`2h`, default 1h).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Messages from this sequence on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_sequence: Option<u64>,
    /// Messages compared at most: 1 to 100,000, default 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The dead letters of the flow in place of the messages it reads, all of them unless a beginning is given.
    #[serde(default)]
    pub dead_letters: bool,
    /// Tell also of messages that come out the same.
    #[serde(default)]
    pub unchanged: bool,
}

/// Asks for a comparison on live messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shadow {
    pub candidate: Candidate,
    /// How long: at most 24h, default 1m.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub lasts: Option<Span>,
    /// Messages compared at most: 1 to 100,000, default 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Tell also of messages that come out the same.
    #[serde(default)]
    pub unchanged: bool,
}

/// The data of any event; which one it is says the event's name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Event {
    Message(Box<Message>),
    End(End),
    Open(Open),
}

/// `open`: what is compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Open {
    pub instance: String,
    /// `flow/price-orders`.
    pub unit: String,
    /// First digits of the digest of the version that runs.
    pub active: String,
    /// The same of the candidate. Equal to `active` when nothing about the flow has changed.
    pub candidate: String,
    /// The stream that is read.
    pub stream: String,
    /// The first sequence that is read.
    pub from: u64,
    /// The last one; none when it goes on with what comes.
    pub through: Option<u64>,
}

/// What the candidate does with a message, beside what the active version does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The same outputs, or none, or a failure of the same code.
    Unchanged,
    /// Other outputs, or a failure of another code.
    Changed,
    /// The active version has outputs, the candidate none.
    Dropped,
    /// The candidate has outputs, the active version none.
    Added,
    /// The candidate fails, the active version does not.
    Failed,
    /// The active version fails, the candidate does not.
    Mended,
}

/// `message`: one that was compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Of the message, or of the dead letter.
    pub sequence: u64,
    /// As manifests write it.
    pub subject: String,
    /// `Vejas-Id`.
    pub id: String,
    /// When it was stored.
    pub time: String,
    pub outcome: Outcome,
    pub active: Side,
    pub candidate: Side,
    /// The outputs line by line: `-` is of the active version, `+` of the candidate. Cut when it is long.
    pub diff: Option<String>,
}

/// What one version makes of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Side {
    /// Whether its `from` takes the message.
    pub reads: bool,
    pub outputs: usize,
    pub failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    pub code: String,
    pub message: String,
}

/// Why there is nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// All there was is compared.
    Complete,
    /// As many as were asked for are compared.
    Limit,
    /// The time is over.
    Time,
    /// Another version of the flow runs now.
    VersionChanged,
    /// The process stops.
    Stopping,
    /// The bus does not answer any more.
    Bus,
}

/// `end`: the last event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct End {
    pub reason: Reason,
    /// The reason in words, where it needs them.
    pub detail: Option<String>,
    /// Where another comparison would go on.
    pub next: u64,
    pub summary: Summary,
}

/// How many messages came out how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub messages: u64,
    pub unchanged: u64,
    pub changed: u64,
    pub dropped: u64,
    pub added: u64,
    pub failed: u64,
    pub mended: u64,
    /// On how many the candidate fails, whatever the active version does.
    pub failing: u64,
}

impl Summary {
    pub(super) fn count(&mut self, outcome: Outcome, fails: bool) {
        self.messages += 1;
        self.failing += u64::from(fails);
        let counter = match outcome {
            Outcome::Unchanged => &mut self.unchanged,
            Outcome::Changed => &mut self.changed,
            Outcome::Dropped => &mut self.dropped,
            Outcome::Added => &mut self.added,
            Outcome::Failed => &mut self.failed,
            Outcome::Mended => &mut self.mended,
        };
        *counter += 1;
    }

    pub fn differs(&self) -> bool {
        self.unchanged < self.messages
    }
}
