//! Requests to JetStream, and what its refusals mean.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, Subject};
use base64::Engine as _;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::header;
use super::link::{Lane, Link};
use crate::flow::message::Stored;
use crate::ports::bus::Error;
use crate::time::Timestamp;

/// Another conditional request on the subject is in flight: nothing happened, it may be tried again.
pub(super) const BUSY: u64 = 10164;
pub(super) const TOO_MANY_REQUESTS: u64 = 10167;
pub(super) const TOO_MANY_BATCHES: u64 = 10210;
pub(super) const WRONG_LAST: u64 = 10071;
pub(super) const KNOWN_ID_IN_BATCH: u64 = 10201;
pub(super) const NO_MESSAGE: u64 = 10037;
pub(super) const NO_STREAM: u64 = 10059;
pub(super) const NO_CONSUMER: u64 = 10014;
pub(super) const STREAM_EXISTS: u64 = 10058;
pub(super) const SUBJECTS_OVERLAP: u64 = 10065;
/// A configuration the server does not take.
pub(super) const CANNOT_MAKE: u64 = 10052;
pub(super) const CONSUMER_EXISTS: [u64; 3] = [10105, 10148, 10013];
const OTHER_STREAM: u64 = 10060;
const MESSAGE_TOO_LARGE: u64 = 10054;
const STORE_FAILED: u64 = 10077;
const NO_ROOM: [u64; 3] = [10023, 10047, 10028];

/// Why a request brought nothing.
#[derive(Debug, Clone)]
pub(super) enum Fail {
    /// Nobody listens there: it does not exist, or has no leader now. Nothing happened.
    NoResponders,
    /// Refused for good: nothing happened.
    Refused(Refusal),
    /// No answer. It may have taken effect, or may yet.
    Unknown(String),
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub code: u64,
    #[serde(default)]
    pub err_code: u64,
    #[serde(default)]
    pub description: String,
}

impl Fail {
    pub fn code(&self) -> u64 {
        if let Fail::Refused(refusal) = self { refusal.err_code } else { 0 }
    }

    /// What it means to a caller who asked something of a stream.
    pub fn error(self, stream: &str) -> Error {
        match self {
            Fail::NoResponders => Error::Unavailable(format!("nobody answers for stream {stream}")),
            Fail::Unknown(reason) => Error::Unavailable(reason),
            Fail::Refused(refusal) => refusal.error(stream),
        }
    }
}

impl Refusal {
    fn error(self, stream: &str) -> Error {
        match self.err_code {
            NO_STREAM => Error::NoStream(stream.to_owned()),
            NO_CONSUMER => Error::NoDurable { stream: stream.to_owned(), durable: String::new() },
            OTHER_STREAM => Error::ForeignSubject { stream: stream.to_owned(), subject: self.description },
            STORE_FAILED if self.description.contains("maximum") => {
                Error::Full { stream: stream.to_owned(), bytes_max: 0 }
            }
            MESSAGE_TOO_LARGE => Error::TooLarge { bytes: 0, bytes_max: 0 },
            code if code == STORE_FAILED || NO_ROOM.contains(&code) => Error::NoSpace(self.to_string()),
            _ if self.code >= 500 || self.code == 429 || self.err_code == BUSY => Error::Unavailable(self.to_string()),
            _ => Error::Mismatch {
                what: format!("a request to stream {stream}"),
                found: self.to_string(),
                wanted: "a server that takes it".to_owned(),
            },
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.description, self.err_code)
    }
}

/// Waits for the one answer of a request.
pub(super) async fn answer(link: &Link, answer: oneshot::Receiver<Message>) -> Result<Message, Fail> {
    match answer.await {
        Ok(message) if message.status.is_some_and(|status| status.as_u16() == 503) => Err(Fail::NoResponders),
        Ok(message) => Ok(message),
        Err(_) => Err(Fail::Unknown(link.lost_because().unwrap_or_else(|| "no answer in time".to_owned()))),
    }
}

/// Reads an answer of JetStream, which is an object with or without `error`.
pub(super) fn parse(message: &Message) -> Result<Value, Fail> {
    let value: Value = serde_json::from_slice(&message.payload)
        .map_err(|error| Fail::Unknown(format!("an answer that cannot be read: {error}")))?;
    match value.get("error") {
        None => Ok(value),
        Some(error) => Err(Fail::Refused(Refusal::deserialize(error).unwrap_or_default())),
    }
}

/// Asks JetStream's API. Goes past the stores.
pub(super) async fn ask(link: &Arc<Link>, call: &str, body: &Value, timeout: Duration) -> Result<Value, Fail> {
    let payload = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let subject = Subject::from(format!("$JS.API.{call}"));
    let sent = link.request(Lane::Direct, subject, None, payload, timeout).map_err(Fail::Unknown)?;
    parse(&answer(link, sent).await?)
}

#[derive(Deserialize)]
struct RawMessage {
    subject: String,
    seq: u64,
    #[serde(default)]
    data: String,
    #[serde(default)]
    hdrs: String,
    time: String,
}

/// A message as the stream's leader has it, with the headers that are the server's own.
pub(super) struct Held {
    pub stored: Stored,
    pub own: header::Own,
}

/// Reads one message at the stream's leader. `which` is what `STREAM.MSG.GET` takes.
pub(super) async fn get(
    link: &Arc<Link>,
    stream: &str,
    which: &Value,
    timeout: Duration,
) -> Result<Option<Held>, Fail> {
    let answer = match ask(link, &format!("STREAM.MSG.GET.{stream}"), which, timeout).await {
        Err(fail) if fail.code() == NO_MESSAGE => return Ok(None),
        other => other?,
    };
    let unreadable = |what: &str| Fail::Unknown(format!("a stored message whose {what} cannot be read"));
    let raw = RawMessage::deserialize(&answer["message"]).map_err(|error| unreadable(&error.to_string()))?;
    let decode = |text: &str| base64::engine::general_purpose::STANDARD.decode(text);
    let payload = decode(&raw.data).map_err(|_| unreadable("payload"))?;
    let (headers, own) = header::parse(&decode(&raw.hdrs).map_err(|_| unreadable("headers"))?);
    let time = Timestamp::parse(&raw.time).ok_or_else(|| unreadable("time"))?;
    let stored = Stored { sequence: raw.seq, subject: raw.subject, headers, payload: payload.into(), time };
    Ok(Some(Held { stored, own }))
}
