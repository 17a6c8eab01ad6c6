//! HTTP requests that deliver messages.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::manifest::value::{ByteSize, Rate, Setting, Span};

/// Requests in flight a sink may allow at most.
pub const CONCURRENCY_MAX: usize = 1_024;
/// Messages one batch may hold at most.
pub const BATCH_MESSAGES_MAX: usize = 1_000;

/// Sends the payload of each message as the body of a request. 2xx is delivered; network errors, 408, 425, 429 and 5xx are
/// tried again (honouring `Retry-After`), other answers are permanent. Redirects are not followed.
///
/// Each request carries `Idempotency-Key: <unit>/<Vejas-Id>`, so that a receiver can drop a repeated delivery.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Http {
    /// Where to send.
    pub url: Setting,
    #[serde(default)]
    pub method: Method,
    /// More request headers. `Content-Type` defaults to `application/json`.
    #[serde(default)]
    pub headers: BTreeMap<String, Setting>,
    #[serde(default)]
    pub auth: Option<Auth>,
    /// Requests in flight at once, 1 to 1,024.
    #[serde(default = "concurrency_default")]
    #[schemars(range(min = 1, max = 1024))]
    pub concurrency: usize,
    /// How long one request may take in all.
    #[serde(default = "timeout_default")]
    pub timeout: Span,
    /// Sends several messages in one request.
    #[serde(default)]
    pub batch: Option<Batch>,
    /// Requests per time, such as `100/s`.
    #[serde(default)]
    pub rate_limit: Option<Rate>,
    #[serde(default)]
    pub breaker: Breaker,
    /// A PEM file of certificate authorities to trust instead of the public ones.
    #[serde(default)]
    pub ca: Option<String>,
}

fn concurrency_default() -> usize {
    16
}

fn timeout_default() -> Span {
    Span(Duration::from_secs(30))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    #[default]
    Post,
    Put,
    Patch,
}

/// Exactly one way.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Auth {
    /// `Authorization: Bearer <token>`.
    Bearer { token: Setting },
    /// HTTP Basic.
    Basic { username: Setting, password: Setting },
}

/// Several messages in one request. Its `Idempotency-Key` is a hash of the ids of its messages; a batch that is tried
/// again may be put together anew, so a receiver that drops repeats has to look at the messages themselves.
///
/// A batch is sent when it is full or its first message has waited long enough. It succeeds or fails as a whole; one
/// that fails permanently is sent again message by message, so that only the bad ones become dead letters.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Batch {
    /// Messages, 2 to 1,000.
    #[schemars(range(min = 2, max = 1000))]
    pub max_messages: usize,
    /// Payload bytes.
    #[serde(default = "batch_bytes_default")]
    pub max_bytes: ByteSize,
    /// The longest wait for more messages.
    #[serde(default = "batch_wait_default")]
    pub max_wait: Span,
    #[serde(default)]
    pub format: BatchFormat,
}

fn batch_bytes_default() -> ByteSize {
    ByteSize(1 << 20)
}

fn batch_wait_default() -> Span {
    Span(Duration::from_millis(50))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum BatchFormat {
    /// A JSON array of the payloads.
    #[default]
    JsonArray,
    /// One payload a line.
    Ndjson,
}

/// After several transient failures in a row nothing is pulled for a while; then one request tries whether the receiver
/// is back. What waits meanwhile uses up no attempts.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Breaker {
    /// Failures in a row that open it, 1 to 1,000.
    #[schemars(range(min = 1, max = 1000))]
    pub failures: u32,
    /// The first pause; it doubles up to `maxPause` while the receiver stays away.
    pub pause: Span,
    /// The longest pause.
    pub max_pause: Span,
}

impl Default for Breaker {
    fn default() -> Self {
        Breaker { failures: 5, pause: Span(Duration::from_secs(1)), max_pause: Span(Duration::from_secs(30)) }
    }
}
