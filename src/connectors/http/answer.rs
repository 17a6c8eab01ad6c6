//! What an entrance answers: the receipt of a stored message, or a problem (RFC 9457) with a stable code.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::ports::bus;

/// Schema errors one answer lists.
pub(super) const REASONS_MAX: usize = 20;
/// Longest message of one of them, in bytes: it may quote the body.
pub(super) const REASON_BYTES_MAX: usize = 500;

/// When a sender should try again: a full bus is emptied by work, a draining process is replaced.
const RETRY_FULL: Duration = Duration::from_secs(5);
const RETRY_DRAINING: Duration = Duration::from_secs(2);
const RETRY_SUSPENDED: Duration = Duration::from_secs(30);
const RETRY_BUSY: Duration = Duration::from_secs(1);

pub(super) type Answer = Response<Full<Bytes>>;

/// One way in which a body does not match its schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Reason {
    /// JSON pointer into the body; empty is the whole.
    pub pointer: String,
    pub message: String,
}

/// Why a request was refused.
#[derive(Debug, Clone)]
pub(super) enum Problem {
    NoSuchPath,
    Method { allow: String },
    Unauthorized { challenge: &'static str },
    BodyTooLarge { bytes_max: usize },
    BodyTimeout,
    BodyBroken(String),
    Encoding,
    Header(&'static str),
    InvalidJson { line: usize, column: usize, message: String },
    Schema { reasons: Vec<Reason>, more: bool },
    KeyReused,
    Draining,
    Suspended,
    Busy,
    Bus(bus::Error),
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    code: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    #[serde(skip_serializing_if = "<[Reason]>::is_empty")]
    errors: &'a [Reason],
}

impl Problem {
    pub fn status(&self) -> StatusCode {
        match self {
            Problem::NoSuchPath => StatusCode::NOT_FOUND,
            Problem::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Problem::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            Problem::BodyTooLarge { .. } | Problem::Bus(bus::Error::TooLarge { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            Problem::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Problem::BodyBroken(_) | Problem::Header(_) => StatusCode::BAD_REQUEST,
            Problem::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Problem::InvalidJson { .. } | Problem::Schema { .. } | Problem::KeyReused => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Problem::Draining | Problem::Suspended | Problem::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Bus(error) if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Bus(bus::Error::Stopped(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Bus(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub fn code(&self) -> &'static str {
        match self {
            Problem::NoSuchPath => "no-such-path",
            Problem::Method { .. } => "method-not-allowed",
            Problem::Unauthorized { .. } => "unauthorized",
            Problem::BodyTooLarge { .. } | Problem::Bus(bus::Error::TooLarge { .. }) => "body-too-large",
            Problem::BodyTimeout => "body-timeout",
            Problem::BodyBroken(_) => "body-broken",
            Problem::Encoding => "content-encoding-unsupported",
            Problem::Header(_) => "invalid-header",
            Problem::InvalidJson { .. } => "invalid-json",
            Problem::Schema { .. } => "schema-mismatch",
            Problem::KeyReused => "idempotency-key-reused",
            Problem::Draining => "draining",
            Problem::Suspended => "suspended",
            Problem::Busy => "too-many-requests-in-flight",
            Problem::Bus(bus::Error::Full { .. }) => "bus-full",
            Problem::Bus(bus::Error::NoSpace(_)) => "bus-no-space",
            Problem::Bus(bus::Error::Unavailable(_)) => "bus-unavailable",
            Problem::Bus(bus::Error::Stopped(_)) => "bus-stopped",
            Problem::Bus(_) => "internal",
        }
    }

    fn detail(&self) -> String {
        match self {
            Problem::NoSuchPath => "no entrance has this path".to_owned(),
            Problem::Method { allow } => format!("this path takes {allow}"),
            Problem::Unauthorized { .. } => "credentials are missing or wrong".to_owned(),
            Problem::BodyTooLarge { bytes_max } => format!("the body is larger than {bytes_max} bytes"),
            Problem::BodyTimeout => "the body did not arrive in time".to_owned(),
            Problem::BodyBroken(error) => format!("the body could not be read: {error}"),
            Problem::Encoding => "a body is taken as it is: send it without Content-Encoding".to_owned(),
            Problem::Header(what) => (*what).to_owned(),
            Problem::InvalidJson { message, .. } => format!("the body is not JSON: {message}"),
            Problem::Schema { reasons, more: false } => {
                format!("the body does not match the schema ({})", reasons.len())
            }
            Problem::Schema { reasons, more: true } => {
                format!("the body does not match the schema (the first {})", reasons.len())
            }
            Problem::KeyReused => "this Idempotency-Key was used with another body".to_owned(),
            Problem::Draining => "this process is stopping".to_owned(),
            Problem::Suspended => "this entrance is suspended: nothing is taken until somebody resumes it".to_owned(),
            Problem::Busy => "too many requests are in flight".to_owned(),
            // Names of streams and disks are no business of a sender's; the log and the status have them.
            Problem::Bus(bus::Error::TooLarge { bytes_max, .. }) => {
                format!("body and headers together are above the bus's limit of {bytes_max} bytes")
            }
            Problem::Bus(bus::Error::Full { .. }) => "the bus is full: what is stored has to be worked off".to_owned(),
            Problem::Bus(bus::Error::NoSpace(_)) => "the bus has no disk space left".to_owned(),
            Problem::Bus(bus::Error::Unavailable(_)) => {
                "the bus cannot be reached; the message may have been stored".to_owned()
            }
            Problem::Bus(bus::Error::Stopped(_)) => "the bus has stopped".to_owned(),
            Problem::Bus(_) => "the message could not be stored".to_owned(),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Problem::Draining => Some(RETRY_DRAINING),
            Problem::Suspended => Some(RETRY_SUSPENDED),
            Problem::Busy => Some(RETRY_BUSY),
            Problem::Bus(bus::Error::Full { .. } | bus::Error::NoSpace(_)) => Some(RETRY_FULL),
            Problem::Bus(bus::Error::Unavailable(_) | bus::Error::Stopped(_)) => Some(RETRY_DRAINING),
            _ => None,
        }
    }

    pub fn into_answer(self) -> Answer {
        let status = self.status();
        let (line, column) = match self {
            Problem::InvalidJson { line, column, .. } => (Some(line), Some(column)),
            _ => (None, None),
        };
        let errors: &[Reason] = if let Problem::Schema { reasons, .. } = &self { reasons } else { &[] };
        let document = Document {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            code: self.code(),
            detail: self.detail(),
            line,
            column,
            errors,
        };
        let body = serde_json::to_vec(&document).expect("strings and numbers are JSON");
        let mut answer = Response::new(Full::new(Bytes::from(body)));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs()));
        }
        match self {
            Problem::Method { allow } => {
                headers.insert(ALLOW, HeaderValue::from_str(&allow).expect("method names are visible ASCII"));
            }
            Problem::Unauthorized { challenge } => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
            // What is left of these bodies is not read.
            Problem::Draining | Problem::BodyTimeout => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        answer
    }
}

/// `200 {"id", "sequence"}`.
pub(super) fn receipt(id: &str, sequence: u64) -> Answer {
    let mut body = Vec::with_capacity(id.len() + 48);
    body.extend_from_slice(b"{\"id\":");
    serde_json::to_writer(&mut body, id).expect("a string is JSON");
    body.extend_from_slice(b",\"sequence\":");
    serde_json::to_writer(&mut body, &sequence).expect("a number is JSON");
    body.push(b'}');
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn json(answer: Answer) -> serde_json::Value {
        serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }

    #[tokio::test]
    async fn a_receipt_escapes_the_id_of_the_sender() {
        let body = json(receipt("a\"b\\c", u64::MAX)).await;
        assert_eq!(body, serde_json::json!({"id": "a\"b\\c", "sequence": u64::MAX}));
    }

    #[tokio::test]
    async fn a_problem_of_the_bus_names_no_stream_and_no_path() {
        let error = bus::Error::Full { stream: "VEJAS_SECRET".to_owned(), bytes_max: 1 };
        let answer = Problem::Bus(error).into_answer();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()[RETRY_AFTER], "5");
        let body = json(answer).await;
        assert_eq!(body["code"], "bus-full");
        assert!(!body.to_string().contains("VEJAS_SECRET"));
    }

    #[test]
    fn a_draining_process_says_when_to_come_back_and_closes_the_connection() {
        let answer = Problem::Draining.into_answer();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            (&answer.headers()[RETRY_AFTER], &answer.headers()[CONNECTION]),
            (&"2".parse().unwrap(), &"close".parse().unwrap())
        );
    }
}
