//! `kind: Test`: messages for one flow, and what has to come out.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::value::{Name, Subject, Time};

/// Messages one test may put in at most.
pub const INPUTS_MAX: usize = 1_000;
/// Largest golden file, in bytes.
pub const GOLDEN_BYTES_MAX: u64 = 64 << 20;

/// Puts messages through one flow and compares what comes out. `vejas test` runs it; `vejas run` does not.
///
/// Nothing is stored and nothing is sent. The steps are those of the runtime, with `dedupe` marks that last for the test.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Test {
    /// The name of a Flow manifest.
    pub flow: Name,
    /// The time at which messages were stored (RFC 3339): what programs read as their time and what `dedupe` counts from.
    /// Default: `2026-01-01T00:00:00Z`. The real clock is never read.
    #[serde(default)]
    pub clock: Option<Time>,
    /// Rows by the name of a Table: they take the place of all its rows for this test.
    #[serde(default)]
    pub tables: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
    /// The messages, put through the flow one after the other.
    #[schemars(length(min = 1, max = 1000))]
    pub input: Vec<Input>,
    /// What has to come out.
    pub expect: Expect,
}

/// One message. Exactly one of `payload` and `text`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// The payload as YAML; the flow gets it as JSON.
    #[serde(default, deserialize_with = "stated")]
    pub payload: Option<serde_json::Value>,
    /// The payload as text, byte for byte: for what is not JSON, or not yet.
    #[serde(default)]
    pub text: Option<String>,
    /// The subject it was stored under. Default: the `from` of the flow; needed when that is a list or a pattern.
    #[serde(default)]
    pub subject: Option<Subject>,
    /// Its `Vejas-Id`. Default: `input-1` for the first message, `input-2` for the second, and so on.
    #[serde(default)]
    pub id: Option<String>,
    /// More headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// When it was stored, if not at `clock`.
    #[serde(default)]
    pub time: Option<Time>,
}

/// What has to come out: `golden`, or the other fields. Whatever comes out and is not expected is a failure.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// The messages that come out, all of them and in order. Left out: none.
    #[serde(default)]
    pub output: Vec<Output>,
    /// The messages that become dead letters, all of them and in order. Left out: none.
    #[serde(default)]
    pub dead_letters: Vec<DeadLetter>,
    /// How many messages, or parts of one, end on purpose: by `filter`, `dedupe`, an empty `split`, or no `to`. Left out: any
    /// number.
    #[serde(default)]
    pub ended: Option<u64>,
    /// A file beside or below the manifest that holds all of it; `vejas test --update` writes it.
    #[serde(default)]
    pub golden: Option<String>,
}

/// A message that comes out. Exactly one of `payload` and `text`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Output {
    /// Where it is stored.
    pub subject: Subject,
    /// The payload as YAML. The order of keys does not matter, and `1` is `1.0`.
    #[serde(default, deserialize_with = "stated")]
    pub payload: Option<serde_json::Value>,
    /// The payload as text, byte for byte.
    #[serde(default)]
    pub text: Option<String>,
    /// Its `Vejas-Id`. Left out: any.
    #[serde(default)]
    pub id: Option<String>,
    /// Headers it has. It may have others.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeadLetter {
    /// The code of the failure, such as `schema`, `expression`, `lookup`, `payload`.
    pub code: String,
    /// A piece of the failure's text. Left out: any text.
    #[serde(default)]
    pub text: Option<String>,
    /// The `Vejas-Id` of the message. Left out: any.
    #[serde(default)]
    pub id: Option<String>,
}

/// A payload of null is a payload.
fn stated<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(deserializer).map(Some)
}
