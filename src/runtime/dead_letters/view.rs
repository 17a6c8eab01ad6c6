//! What is told about dead letters, as types that the API writes and the command line reads back.
//!
//! Fields are only ever added. Times are RFC 3339.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::selection::Selection;
use crate::flow::dead_letter;
use crate::flow::message::{self, Stored};

/// One dead letter without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeadLetter")]
pub struct Letter {
    /// Names the letter. An edit gives it a new one.
    pub sequence: u64,
    /// `flow/price`.
    pub unit: String,
    /// Stable code of the failure.
    pub code: String,
    /// The failure in words, with unit, step, file, line and column where there are such.
    pub error: String,
    /// Business identity.
    pub id: String,
    /// The subject that the message was stored under first.
    pub subject: String,
    /// Its sequence there.
    pub subject_sequence: u64,
    /// How often it was tried, over all replays.
    pub attempts: u32,
    pub replays: u64,
    /// When the message was stored first.
    pub first: String,
    /// When it failed last.
    pub last: String,
    /// Digest of the unit that failed.
    pub digest: String,
    /// When the payload was edited last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<String>,
    pub payload_bytes: usize,
}

impl Letter {
    pub(super) fn of(stored: &Stored) -> Self {
        let text = |name: &str| stored.headers.get(name).unwrap_or_default().to_owned();
        let number = |name: &str| stored.headers.get(name).and_then(|number| number.parse().ok()).unwrap_or(0);
        let (subject, subject_sequence) = (text(dead_letter::SUBJECT), number(dead_letter::SEQUENCE));
        let id = stored.headers.get(message::ID).map(str::to_owned);
        Letter {
            sequence: stored.sequence,
            unit: text(dead_letter::UNIT),
            code: text(dead_letter::CODE),
            error: text(dead_letter::ERROR),
            id: id.unwrap_or_else(|| format!("{subject}/{subject_sequence}")),
            subject,
            subject_sequence,
            attempts: u32::try_from(number(dead_letter::ATTEMPTS)).unwrap_or(u32::MAX),
            replays: dead_letter::replays(&stored.headers),
            first: text(dead_letter::FIRST),
            last: text(dead_letter::LAST),
            digest: text(dead_letter::DIGEST),
            edited: stored.headers.get(dead_letter::EDITED).map(str::to_owned),
            payload_bytes: stored.payload.len(),
        }
    }
}

/// A letter with its headers. The payload is asked for by itself: it is bytes, whatever they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeadLetterDetail")]
pub struct Detail {
    pub letter: Letter,
    /// In the order they are stored.
    pub headers: Vec<Header>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    pub name: String,
    pub value: String,
}

impl Detail {
    pub(super) fn of(stored: &Stored) -> Self {
        let header = |(name, value): (&str, &str)| Header { name: name.to_owned(), value: value.to_owned() };
        Detail { letter: Letter::of(stored), headers: stored.headers.iter().map(header).collect() }
    }
}

/// Some letters, by sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeadLetterPage")]
pub struct Page {
    pub letters: Vec<Letter>,
    /// Where the next page begins (`from`); none at the end. A page may be short, even empty, and have a next one.
    pub next: Option<u64>,
    /// The last sequence there was when the first page was asked for.
    pub through: u64,
}

/// What to replay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Replay {
    pub select: Selection,
    /// `100/s`, `30/m`, `5/h`. One request replays one burst; the answer says how long to wait before the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Tell what would be replayed, and change nothing.
    pub dry_run: bool,
    /// Has to be true when the selection is everything.
    pub all: bool,
}

/// What was replayed, or would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    pub letters: Vec<Letter>,
    /// These stay where they are.
    pub refused: Vec<Refused>,
    /// Where to go on (`select.from`); none at the end.
    pub next: Option<u64>,
    /// To be sent with every further request (`select.through`).
    pub through: u64,
    /// How long to wait before the next request, so that the rate is kept.
    pub pause_seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    pub sequence: u64,
    pub unit: String,
    pub reason: String,
}

/// What to remove.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Purge {
    pub select: Selection,
    /// Has to be true when the selection is everything.
    pub all: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Purged {
    pub removed: u64,
    pub next: Option<u64>,
    pub through: u64,
}

/// Some fields of a JSON payload, each with a new value.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Set {
    pub set: Vec<Field>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SetField")]
pub struct Field {
    /// `order.items[0].price`.
    pub path: String,
    #[schemars(with = "serde_json::Value")]
    pub value: Box<serde_json::value::RawValue>,
}

/// The letter that took the place of an edited one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Edited {
    pub sequence: u64,
}
