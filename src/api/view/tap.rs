//! What `/api/v1/tap` sends: the data of each kind of event.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::flow::message::Stored;
use crate::id::Names;
use crate::transforms::Became;
use crate::unit::tap::{Record, Shown};

/// The data of any event; which one it is says the event's name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TapEvent {
    Message(TapMessage),
    Step(Box<TapStep>),
    Open(TapOpen),
    Gap(TapGap),
    End(TapEnd),
}

/// `open`: from here on everything is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TapOpen {
    pub instance: String,
    /// The sequence that is read from; of a tap by subject.
    pub next: Option<u64>,
}

/// `message`: one that was stored. The event's id is its sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TapMessage {
    pub sequence: u64,
    /// As manifests write it.
    pub subject: String,
    /// When it was stored.
    pub time: String,
    pub headers: BTreeMap<String, String>,
    pub payload: Payload,
}

/// `step`: one that a message took in a unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TapStep {
    /// Of the message that the unit read.
    pub sequence: u64,
    pub attempt: u32,
    /// Of the message that the unit read, as manifests write it.
    pub subject: String,
    pub id: String,
    /// Counted from 1; `to` comes after the last one. Absent when it is the unit as a whole, or a delivery.
    pub step: Option<usize>,
    /// `map`, `filter` and the others; `to`; `deliver` in a sink; `unit` for a failure beside the steps.
    pub verb: String,
    /// `passed`, `ended`, `emitted`, `split`, `failed` or `delivered`.
    pub outcome: String,
    pub before: Payload,
    /// Of what goes on; after a split the array of its parts.
    pub after: Option<Payload>,
    /// The subject it is to be stored under.
    pub to: Option<String>,
    /// Into how many it was split.
    pub parts: Option<usize>,
    /// Why it failed.
    pub code: Option<String>,
    pub message: Option<String>,
}

/// `gap`: the reader was too slow, or away.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TapGap {
    /// Steps left out; of a tap by subject, sequences passed over, whatever their subject.
    pub skipped: u64,
}

/// `end`: the process stops.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TapEnd {}

/// A payload: `json` when it is such, else `text`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Payload {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// With replacement characters for what is no UTF-8, and cut when it is long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Of the whole payload.
    pub bytes: usize,
}

impl From<&Shown> for Payload {
    fn from(shown: &Shown) -> Self {
        let whole = shown.bytes.len() == shown.bytes_total;
        let json = if whole { serde_json::from_slice(&shown.bytes).ok() } else { None };
        let text = json.is_none().then(|| String::from_utf8_lossy(&shown.bytes).into_owned());
        Payload { json, text, bytes: shown.bytes_total }
    }
}

impl TapMessage {
    pub(in crate::api) fn new(message: &Stored, names: &Names) -> Self {
        TapMessage {
            sequence: message.sequence,
            subject: names.written(&message.subject).to_owned(),
            time: message.time.to_string(),
            headers: message.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            payload: Payload::from(&Shown::new(&message.payload)),
        }
    }
}

impl TapStep {
    pub(in crate::api) fn new(record: &Record, names: &Names) -> Self {
        let mut step = TapStep {
            sequence: record.sequence,
            attempt: record.attempt,
            subject: names.written(&record.subject).to_owned(),
            id: record.id.clone(),
            step: record.step,
            verb: record.verb.to_owned(),
            outcome: String::new(),
            before: Payload::from(&record.before),
            after: record.after.as_ref().map(Payload::from),
            to: None,
            parts: None,
            code: None,
            message: None,
        };
        let outcome = match &record.became {
            Became::Passed(_) => "passed",
            Became::Ended => "ended",
            Became::Emitted(subject) => {
                step.to = Some(names.written(subject).to_owned());
                "emitted"
            }
            Became::Split { parts, .. } => {
                step.parts = Some(*parts);
                "split"
            }
            Became::Failed(failure) => {
                (step.code, step.message) = (Some(failure.code.clone()), Some(failure.message.clone()));
                "failed"
            }
            Became::Delivered => "delivered",
        };
        step.outcome = outcome.to_owned();
        step
    }
}
