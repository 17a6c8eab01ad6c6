//! Delivers messages as HTTP requests.
//!
//! What an answer means: 2xx is delivered; 408, 425, 429, 5xx and anything that went wrong on the way may pass; every
//! other answer is final. Redirects are answers, not instructions. No error and no log line shows a credential: URLs
//! are shown without user, query and, when part of the URL came from a reference, without path.

mod request;

use std::time::Duration;

use futures_util::future::BoxFuture;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Body, Client, Method, Response, StatusCode, Url};

use crate::connectors::line;
use crate::connectors::secret::{Resolve, Unresolved};
use crate::flow::failure::Failure;
use crate::flow::message::Stored;
use crate::id::UnitId;
use crate::manifest::connector::http::{self, Batch, BatchFormat, Http};
use crate::manifest::value::Rate;
use crate::ports::clock::SharedClock;
use crate::ports::sink::{Delivered, Delivering, Sink};
use crate::time::Timestamp;

/// Of an answer's body, what a failure quotes, in bytes.
const QUOTED_BYTES_MAX: usize = 512;
/// An answer's body is read up to here, so that its connection can be used again; then the connection is dropped.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How long a connection may take to open.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long an unused connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Payload bytes in one call without `batch`; a single message may exceed it.
const BYTES_MAX: usize = 1 << 20;
/// Requests that a rate limit lets through at once are those of this time.
const BURST: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    #[error("the url is not an http or https address")]
    Url,
    #[error("{0:?} is not the name of a header")]
    HeaderName(String),
    #[error("the value of header {0} holds characters that a header cannot")]
    HeaderValue(String),
    #[error("the file of certificates cannot be used: {0}")]
    Certificates(String),
    #[error("the client cannot be made: {0}")]
    Client(String),
}

pub struct HttpSink {
    unit: UnitId,
    client: Client,
    url: Url,
    /// The URL as it may be shown.
    shown: String,
    method: Method,
    headers: HeaderMap,
    batch: Option<Batch>,
    concurrency: usize,
    limit: Option<DefaultDirectRateLimiter>,
    /// What must not be quoted from an answer.
    hidden: Vec<String>,
    clock: SharedClock,
}

impl std::fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpSink").field("unit", &self.unit).field("url", &self.shown).finish_non_exhaustive()
    }
}

impl HttpSink {
    /// Connects to nothing yet. `certificates` is the content of the file that `ca` names.
    pub fn open(
        unit: &UnitId,
        spec: &Http,
        resolve: Resolve<'_>,
        certificates: Option<&[u8]>,
        clock: SharedClock,
    ) -> Result<Self, Error> {
        let stated = resolve(&spec.url)?;
        let url = Url::parse(stated.expose()).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.filter(Url::has_host).ok_or(Error::Url)?;
        let path = if stated.is_referenced() { "/…" } else { url.path() };
        let shown = format!("{}{path}", url.origin().ascii_serialization());
        let request::Fixed { headers, mut hidden } = request::fixed(spec, resolve)?;
        let queried = url.query_pairs().map(|(_, value)| value.into_owned());
        hidden.extend(queried.chain(url.password().map(str::to_owned)).filter(|text| request::is_hidden(text)));
        Ok(HttpSink {
            unit: unit.clone(),
            client: request::client(spec.timeout.0, certificates)?,
            url,
            shown,
            method: match spec.method {
                http::Method::Post => Method::POST,
                http::Method::Put => Method::PUT,
                http::Method::Patch => Method::PATCH,
            },
            headers,
            batch: spec.batch.clone(),
            concurrency: spec.concurrency.clamp(1, http::CONCURRENCY_MAX),
            limit: spec.rate_limit.map(limiter),
            hidden,
            clock,
        })
    }

    async fn send(&self, messages: &[&Stored], body: impl Into<Body>) -> Delivered {
        if let Some(limit) = &self.limit {
            limit.until_ready().await;
        }
        let mut headers = self.headers.clone();
        request::describe(&mut headers, &self.unit, messages);
        let sent = self.client.request(self.method.clone(), self.url.clone()).headers(headers).body(body).send().await;
        match sent {
            Ok(response) => self.judge(response).await,
            Err(error) => Delivered::Transient { failure: self.unreachable(error), retry_after: None },
        }
    }

    async fn judge(&self, mut response: Response) -> Delivered {
        let status = response.status();
        let retry_after = retry_after(response.headers(), self.clock.now());
        let location = response.headers().contains_key(reqwest::header::LOCATION);
        let quote = self.quote(&mut response).await;
        if status.is_success() {
            return Delivered::Done;
        }
        let answered = if quote.is_empty() { String::new() } else { format!(": {quote}") };
        let mut text = format!("{} answered {status}{answered}", self.shown);
        if status.is_redirection() && location {
            text.push_str(" (redirects are not followed: state the final address as `url`)");
        }
        let failure = Failure::new(format!("http-{}", status.as_u16()), text);
        if is_transient(status) { Delivered::Transient { failure, retry_after } } else { Delivered::Permanent(failure) }
    }

    /// Reads the body up to its bound and gives its beginning. The status has decided already: a body that breaks off
    /// changes nothing.
    async fn quote(&self, response: &mut Response) -> String {
        let mut kept = Vec::new();
        let mut read = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = QUOTED_BYTES_MAX - kept.len();
            kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
            read += chunk.len();
            if read > ANSWER_BYTES_MAX {
                break;
            }
        }
        let mut text = String::from_utf8_lossy(&kept).trim().replace(['\n', '\r'], " ");
        for hidden in &self.hidden {
            text = text.replace(hidden, "***");
        }
        text
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        let code = match () {
            () if error.is_timeout() => "timeout",
            () if error.is_connect() => "connect",
            () => "network",
        };
        let error = error.without_url();
        let mut text = format!("{}: {error}", self.shown);
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        Failure::new(code, text)
    }

    async fn send_batch(&self, format: BatchFormat, messages: &[&Stored]) -> Vec<Delivered> {
        let outcome = self.send(messages, body(format, messages)).await;
        if messages.len() == 1 || !matches!(outcome, Delivered::Permanent(_)) {
            return vec![outcome; messages.len()];
        }
        // One by one, so that only those the receiver refuses are lost to it. Once it is away, the rest waits.
        let mut delivered = Vec::with_capacity(messages.len());
        for message in messages {
            match delivered.last() {
                Some(away @ Delivered::Transient { .. }) => delivered.push(Delivered::clone(away)),
                _ => delivered.push(self.send(&[message], body(format, &[message])).await),
            }
        }
        delivered
    }
}

impl Sink for HttpSink {
    fn delivering(&self) -> Delivering {
        match &self.batch {
            None => Delivering {
                concurrency: self.concurrency,
                messages_max: 1,
                bytes_max: BYTES_MAX,
                wait_max: Duration::ZERO,
            },
            Some(batch) => Delivering {
                concurrency: self.concurrency,
                messages_max: batch.max_messages.clamp(1, http::BATCH_MESSAGES_MAX),
                bytes_max: usize::try_from(batch.max_bytes.0).unwrap_or(usize::MAX),
                wait_max: batch.max_wait.0,
            },
        }
    }

    fn deliver<'a>(&'a self, messages: &'a [Stored]) -> BoxFuture<'a, Vec<Delivered>> {
        Box::pin(async move {
            let Some(batch) = &self.batch else {
                let mut delivered = Vec::with_capacity(messages.len());
                for message in messages {
                    delivered.push(self.send(&[message], message.payload.clone()).await);
                }
                return delivered;
            };
            // A payload that is not JSON would make the array unreadable for all.
            let fits = |message: &Stored| batch.format == BatchFormat::Ndjson || line::is_json(&message.payload);
            let fitting: Vec<&Stored> = messages.iter().filter(|message| fits(message)).collect();
            let mut sent = match fitting.is_empty() {
                true => Vec::new(),
                false => self.send_batch(batch.format, &fitting).await,
            }
            .into_iter();
            let unfit = || {
                let text = "the payload is not JSON and cannot stand in a JSON array; `format: ndjson` takes any line";
                Delivered::Permanent(Failure::new("batch-format", text))
            };
            messages
                .iter()
                .map(|message| if fits(message) { sent.next().unwrap_or_else(unfit) } else { unfit() })
                .collect()
        })
    }
}

fn body(format: BatchFormat, messages: &[&Stored]) -> Vec<u8> {
    let bytes: usize = messages.iter().map(|message| message.payload.len() + 1).sum();
    let mut body = Vec::with_capacity(bytes + 1);
    match format {
        BatchFormat::JsonArray => {
            for (at, message) in messages.iter().enumerate() {
                body.push(if at == 0 { b'[' } else { b',' });
                body.extend_from_slice(&message.payload);
            }
            body.push(b']');
        }
        BatchFormat::Ndjson => {
            for message in messages {
                line::payload(&mut body, &message.payload);
                body.push(b'\n');
            }
        }
    }
    body
}

fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
}

/// Seconds, or an HTTP date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = chrono::DateTime::parse_from_rfc2822(value).ok()?;
    Some(Timestamp(date.timestamp_nanos_opt()?).since(now))
}

/// Evenly spread, with a small burst so that a coarse timer does not slow it down.
fn limiter(rate: Rate) -> DefaultDirectRateLimiter {
    let period = (rate.per / rate.count).max(Duration::from_nanos(1));
    let burst = BURST.as_nanos() / period.as_nanos();
    let burst = u32::try_from(burst).unwrap_or(u32::MAX).max(1);
    let quota = Quota::with_period(period).expect("a period is longer than nothing");
    RateLimiter::direct(quota.allow_burst(burst.try_into().expect("a burst is at least 1")))
}

#[cfg(test)]
mod tests;
