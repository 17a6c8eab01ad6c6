//! `kind: Flow`: messages from one or more subjects, through steps, to other subjects.

use schemars::JsonSchema;
use serde::Deserialize;

use super::value::{Expression, Name, OneOrMany, Pattern, Program, Span, StartFrom, Subject};

/// Attempts a retry may allow at most.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// Steps one flow may have at most.
pub const STEPS_MAX: usize = 100;

/// Reads messages, puts each through its steps in order, stores what comes out. Every instance runs it; the inputs
/// are shared between them.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Flow {
    /// The subject, list of subjects, or pattern to read.
    pub from: OneOrMany<Pattern>,
    /// Where a new flow begins to read: `end` (default), `first`, a sequence or a time. Without effect once it has
    /// run.
    #[serde(default)]
    pub start_from: StartFrom,
    /// What is done with each message, in order. None at all passes messages on unchanged.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub steps: Vec<Step>,
    /// The subject that messages are stored under after the last step. Without it, what no `route` took ends here.
    #[serde(default)]
    pub to: Option<Subject>,
    /// When a message that failed is tried again, and when it becomes a dead letter.
    #[serde(default)]
    pub retry: Retry,
}

/// One step. Exactly one verb.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Step {
    /// Checks the event against a Schema. A mismatch is permanent: the message becomes a dead letter.
    Validate(Validate),
    /// Goes on only with messages for which the expression is true. The others end here, and are counted.
    Filter(Expression),
    /// Runs a program that changes the event.
    Map(Program),
    /// Makes one message of each element of the array that the expression gives.
    Split(Expression),
    /// Puts a row of a Table into the event.
    Lookup(Lookup),
    /// Lets the first message of a key pass and drops the others for a time.
    Dedupe(Dedupe),
    /// Sends a message to the subject of the first arm that matches; what no arm matches goes on.
    Route(#[schemars(length(min = 1))] Vec<Arm>),
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Validate {
    /// The name of a Schema manifest.
    pub schema: Name,
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lookup {
    /// The name of a Table manifest.
    pub table: Name,
    /// Gives the key: text, a number or a boolean.
    pub key: Expression,
    /// The field that takes the row, such as `vat` or `order.vat`.
    pub into: String,
    /// What happens when the table has no such key.
    #[serde(default)]
    pub on_missing: OnMissing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnMissing {
    /// The field becomes null.
    #[default]
    Null,
    /// The message becomes a dead letter.
    Fail,
    /// The message ends here, and is counted.
    Drop,
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dedupe {
    /// Gives the key: text, a number or a boolean.
    pub key: Expression,
    /// How long a key is remembered, from the first message on.
    pub within: Span,
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Arm {
    /// The condition. Without it the arm takes everything that reaches it; only the last arm may be so.
    #[serde(default)]
    pub when: Option<Expression>,
    /// Where the message is stored.
    pub to: Subject,
}

/// Transient failures (network, 5xx, 429) are tried again; permanent ones (schema, 4xx, expression) never.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retry {
    /// Attempts, the first included, after which a message that fails alone becomes a dead letter. Alone means that the
    /// receiver took another message since: while nothing arrives at all, it counts as away, which condemns no message.
    #[schemars(range(min = 1, max = 1000))]
    pub max_attempts: u32,
    pub backoff: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { max_attempts: 5, backoff: Backoff::default() }
    }
}

/// The wait doubles from attempt to attempt and is spread by up to half.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Backoff {
    /// The wait before the second attempt.
    pub initial: Span,
    /// The longest wait.
    pub max: Span,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { initial: Span(std::time::Duration::from_millis(200)), max: Span(std::time::Duration::from_secs(30)) }
    }
}
