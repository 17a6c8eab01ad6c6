//! `kind: Sink`: messages that leave.

use schemars::JsonSchema;
use serde::Deserialize;

use super::connector::{file::File, http::Http, stdout::Stdout};
use super::flow::Retry;
use super::value::{Expression, OneOrMany, Pattern, StartFrom};

/// Reads messages and delivers each at least once. Every instance runs it; the messages are shared between them.
///
/// Exactly one connector: `http`, `file` or `stdout`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sink {
    /// The subject, list of subjects, or pattern to read.
    pub from: OneOrMany<Pattern>,
    /// Where a new sink begins to read: `end` (default), `first`, a sequence or a time. Without effect once it has
    /// run.
    #[serde(default)]
    pub start_from: StartFrom,
    /// Keeps the order of messages with the same key: the next is sent only after the one before it arrived. A key
    /// that fails holds back that key only.
    #[serde(default)]
    pub order_by: Option<Expression>,
    /// When a message that failed is tried again, and when it becomes a dead letter.
    #[serde(default)]
    pub retry: Retry,
    /// Sends each message, or a batch, as an HTTP request.
    #[serde(default)]
    pub http: Option<Http>,
    /// Appends each message as a line to a file.
    #[serde(default)]
    pub file: Option<File>,
    /// Writes each message as a line to the standard output.
    #[serde(default)]
    pub stdout: Option<Stdout>,
}

/// Connectors of the design that this version does not have. They are refused by name.
pub const NOT_IN_THIS_VERSION: &[&str] = &["kafka", "mqtt", "nats", "exec"];

impl Sink {
    /// The names of the connectors stated. A checked manifest has exactly one.
    pub fn connectors(&self) -> Vec<&'static str> {
        let stated = [("http", self.http.is_some()), ("file", self.file.is_some()), ("stdout", self.stdout.is_some())];
        stated.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect()
    }
}
