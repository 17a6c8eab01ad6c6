//! `kind: Source`: messages that Vejas makes or fetches itself.

use schemars::JsonSchema;
use serde::Deserialize;

use super::connector::interval::Interval;
use super::value::Subject;

/// Makes or fetches messages and stores them. Exactly one instance runs it.
///
/// Exactly one connector: `interval`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Source {
    /// One message per slot of a fixed grid of times.
    #[serde(default)]
    pub interval: Option<Interval>,
    /// The subject that messages are stored under.
    pub to: Subject,
}

/// Connectors of the design that this version does not have. They are refused by name.
pub const NOT_IN_THIS_VERSION: &[&str] = &["poll", "exec", "stream", "mqtt", "kafka"];

impl Source {
    /// The names of the connectors stated. A checked manifest has exactly one.
    pub fn connectors(&self) -> Vec<&'static str> {
        self.interval.iter().map(|_| "interval").collect()
    }
}
