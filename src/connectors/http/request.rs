//! The life of one request: found, admitted, read, checked, stored, answered. In that order, so that a stranger costs
//! no memory and a sender learns the first thing to mend.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName};
use hyper::{Method, Request, StatusCode};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::answer::{self, Answer, Problem, REASON_BYTES_MAX, REASONS_MAX, Reason};
use super::auth::{Auth, Verdict};
use super::body::{self, Budget};
use super::message_id;
use crate::flow::message::{self, Headers, Outgoing};
use crate::ports::bus::PubAck;
use crate::unit::context::Context;
use crate::unit::status::{State, Unit};

/// Longest `Idempotency-Key`, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// Longest `Content-Type`, in bytes.
const CONTENT_TYPE_BYTES_MAX: usize = 255;
/// A body larger than this is parsed on a thread that may block: it would hold up other connections.
const PARSED_IN_PLACE_BYTES_MAX: usize = 128 * 1024;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static(message::TRACEPARENT);

/// What one listener serves, shared by its connections.
#[derive(Debug)]
pub(super) struct Door {
    pub context: Context,
    pub stream: Arc<str>,
    pub ids: Arc<message_id::Maker>,
    /// By path. Several ways of one path differ in their methods.
    pub ways: RwLock<Arc<HashMap<String, Vec<Way>>>>,
    pub slots: Semaphore,
    pub bodies: Arc<Budget>,
    pub body_wait_max: Duration,
}

impl Door {
    /// What is served now. A request keeps what it began with.
    fn ways(&self) -> Arc<HashMap<String, Vec<Way>>> {
        Arc::clone(&self.ways.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves these from the next request on.
    pub fn serve(&self, ways: HashMap<String, Vec<Way>>) {
        *self.ways.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ways);
    }

    pub fn set_states(&self, state: State) {
        for way in self.ways().values().flatten() {
            match &way.suspended {
                Some(why) if state == State::Running => way.unit.set_state(State::Suspended, Some(why.clone())),
                _ => way.unit.set_state(state, None),
            }
        }
    }
}

/// One route, ready to use.
pub(super) struct Way {
    pub unit: Arc<Unit>,
    pub suspended: Option<String>,
    pub methods: Vec<Method>,
    pub subject: String,
    /// The headers that are the same in every message.
    pub constant: Headers,
    pub schema: Option<Arc<jsonschema::Validator>>,
    pub auth: Auth,
    pub body_bytes_max: usize,
    pub seconds: metrics::Histogram,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way").field("unit", &self.unit.id).finish_non_exhaustive()
    }
}

pub(super) async fn answer(door: &Door, request: Request<Incoming>) -> Answer {
    let began = door.context.clock.monotonic();
    let (head, mut body) = request.into_parts();
    let ways = door.ways();
    let way = match find(&ways, head.uri.path(), &head.method) {
        Ok(way) => way,
        Err(problem) => {
            discard(&head.headers, &mut body).await;
            return problem.into_answer();
        }
    };
    let answer = match take(door, way, &head.headers, &mut body).await {
        Ok(answer) => answer,
        Err(problem) => {
            refuse(door, way, &problem);
            if !matches!(problem, Problem::BodyTimeout | Problem::Draining) {
                discard(&head.headers, &mut body).await;
            }
            problem.into_answer()
        }
    };
    way.seconds.record(door.context.clock.monotonic().saturating_sub(began).as_secs_f64());
    answer
}

/// A sender that waits for "100 Continue" sends nothing when it is refused at once: there is nothing to discard.
async fn discard(headers: &HeaderMap, body: &mut Incoming) {
    if !headers.contains_key(EXPECT) {
        body::discard(body).await;
    }
}

fn refuse(door: &Door, way: &Way, problem: &Problem) {
    way.unit.refused(1);
    if let Problem::Bus(error) = problem {
        way.unit.set_error(problem.code(), &error.to_string(), door.context.clock.now());
        if problem.status() == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(unit = %way.unit.id, %error, "a message could not be stored");
        }
    }
}

fn find<'a>(ways: &'a HashMap<String, Vec<Way>>, path: &str, method: &Method) -> Result<&'a Way, Problem> {
    let ways = ways.get(path).ok_or(Problem::NoSuchPath)?;
    ways.iter().find(|way| way.methods.contains(method)).ok_or_else(|| {
        let allowed: Vec<&str> = ways.iter().flat_map(|way| &way.methods).map(Method::as_str).collect();
        Problem::Method { allow: allowed.join(", ") }
    })
}

async fn take(door: &Door, way: &Way, headers: &HeaderMap, body: &mut Incoming) -> Result<Answer, Problem> {
    let verdict = way.auth.judge(headers);
    let unauthorized = || Problem::Unauthorized { challenge: way.auth.challenge() };
    if verdict == Verdict::Refused {
        return Err(unauthorized());
    }
    if way.suspended.is_some() {
        return Err(Problem::Suspended);
    }
    if body.size_hint().lower() > way.body_bytes_max as u64 {
        return Err(Problem::BodyTooLarge { bytes_max: way.body_bytes_max });
    }
    if door.context.stopping.is_cancelled() {
        return Err(Problem::Draining);
    }
    let _slot = door.slots.try_acquire().map_err(|_| Problem::Busy)?;
    let mut share = door.bodies.share();
    let body = body::read(body, way.body_bytes_max, door.body_wait_max, &mut share).await?;
    if let Verdict::Signed(signature) = verdict
        && !way.auth.verifies(&signature, &body)
    {
        return Err(unauthorized());
    }
    let key = idempotency_key(headers)?;
    let content_type = content_type(headers)?;
    refuse_encoding(headers)?;
    if let Some(schema) = &way.schema {
        check_schema(schema, &body).await?;
    }
    store(door, way, key, content_type, traceparent(headers), body).await
}

async fn store(
    door: &Door,
    way: &Way,
    key: Option<&str>,
    content_type: Option<&str>,
    traceparent: Option<&str>,
    payload: Bytes,
) -> Result<Answer, Problem> {
    let now = door.context.clock.now();
    let mut made = uuid::Uuid::encode_buffer();
    let id = match key {
        Some(key) => key,
        None => door.ids.next(now).hyphenated().encode_lower(&mut made),
    };
    let mut headers = way.constant.to_builder();
    headers.set(message::ID, id).set(message::TIME, &now.to_string());
    if let Some(value) = content_type {
        headers.set("Content-Type", value);
    }
    if let Some(value) = traceparent {
        headers.set(message::TRACEPARENT, value);
    }
    let message = Outgoing {
        subject: way.subject.clone(),
        headers: headers.build(),
        payload: payload.clone(),
        // Without a key the id is new: it can have no duplicate and needs no place in the window.
        transport_id: key.map(|key| transport_id(&way.unit.id.name, key)),
    };
    let stored = door.context.bus.publish(&door.stream, message, None).await.map_err(Problem::Bus)?;
    if stored.duplicate {
        check_same_body(door, stored, &payload).await?;
    } else {
        way.unit.received(1);
        way.unit.emitted(1);
    }
    Ok(answer::receipt(id, stored.sequence))
}

/// The same key stands for the same body. When the first message is worked off and gone, the key alone decides.
async fn check_same_body(door: &Door, stored: PubAck, payload: &Bytes) -> Result<(), Problem> {
    let found = door.context.bus.read(&door.stream, stored.sequence, &[], 1).await.map_err(Problem::Bus)?;
    match found.first() {
        Some(first) if first.sequence == stored.sequence && first.payload != *payload => Err(Problem::KeyReused),
        _ => Ok(()),
    }
}

fn transport_id(route: &str, key: &str) -> String {
    use std::fmt::Write;
    let digest = Sha256::digest(key);
    let mut id = String::with_capacity(3 + route.len() + 2 * digest.len());
    id.push_str("h/");
    id.push_str(route);
    id.push('/');
    for byte in digest {
        write!(id, "{byte:02x}").expect("writing to a string does not fail");
    }
    id
}

/// The only value of a header; `None` when it is absent.
fn single<'a>(headers: &'a HeaderMap, name: HeaderName, repeated: &'static str) -> Result<Option<&'a [u8]>, Problem> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| value.as_bytes());
    if values.next().is_some() { Err(Problem::Header(repeated)) } else { Ok(first) }
}

fn printable(value: &[u8], bytes_max: usize) -> Option<&str> {
    let fits = !value.is_empty() && value.len() <= bytes_max && value.iter().all(|b| matches!(b, b' '..=b'~'));
    if fits { std::str::from_utf8(value).ok() } else { None }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    match single(headers, IDEMPOTENCY_KEY, "Idempotency-Key is given more than once")? {
        None => Ok(None),
        Some(value) => printable(value, KEY_BYTES_MAX)
            .map(Some)
            .ok_or(Problem::Header("Idempotency-Key is not 1 to 255 printable ASCII characters")),
    }
}

fn content_type(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    match single(headers, CONTENT_TYPE, "Content-Type is given more than once")? {
        None => Ok(None),
        Some(value) => printable(value, CONTENT_TYPE_BYTES_MAX)
            .map(Some)
            .ok_or(Problem::Header("Content-Type is not 1 to 255 printable ASCII characters")),
    }
}

/// Flows would see compressed bytes and nothing would tell them.
fn refuse_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get(CONTENT_ENCODING) {
        Some(value) if !value.as_bytes().eq_ignore_ascii_case(b"identity") => Err(Problem::Encoding),
        _ => Ok(()),
    }
}

/// W3C Trace Context, version 00 in form; anything else starts no trace and is left out.
fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let value = single(headers, TRACEPARENT, "").ok()??;
    let hex = |range: std::ops::Range<usize>| value[range].iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let zero = |range: std::ops::Range<usize>| value[range].iter().all(|b| *b == b'0');
    let fits = value.len() == 55
        && value.starts_with(b"00-")
        && (value[35], value[52]) == (b'-', b'-')
        && hex(3..35)
        && hex(36..52)
        && hex(53..55)
        && !zero(3..35)
        && !zero(36..52);
    if fits { std::str::from_utf8(value).ok() } else { None }
}

async fn check_schema(schema: &Arc<jsonschema::Validator>, body: &Bytes) -> Result<(), Problem> {
    if body.len() <= PARSED_IN_PLACE_BYTES_MAX {
        return matches_schema(schema, body);
    }
    let (schema, body) = (Arc::clone(schema), body.clone());
    match tokio::task::spawn_blocking(move || matches_schema(&schema, &body)).await {
        Ok(checked) => checked,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn matches_schema(schema: &jsonschema::Validator, body: &[u8]) -> Result<(), Problem> {
    let value: serde_json::Value = serde_json::from_slice(body).map_err(|error| Problem::InvalidJson {
        line: error.line(),
        column: error.column(),
        message: error.to_string(),
    })?;
    if schema.is_valid(&value) {
        return Ok(());
    }
    let mut errors = schema.iter_errors(&value);
    let reasons: Vec<Reason> = errors
        .by_ref()
        .take(REASONS_MAX)
        .map(|error| Reason { pointer: error.instance_path().to_string(), message: shorten(error.to_string()) })
        .collect();
    Err(Problem::Schema { reasons, more: errors.next().is_some() })
}

fn shorten(mut message: String) -> String {
    if message.len() > REASON_BYTES_MAX {
        message.truncate(message.floor_char_boundary(REASON_BYTES_MAX));
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(name: &'static str, value: &[u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.append(name, hyper::header::HeaderValue::from_bytes(value).unwrap());
        headers
    }

    #[test]
    fn a_key_is_one_to_255_printable_bytes() {
        let longest = "k".repeat(KEY_BYTES_MAX);
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
        assert_eq!(idempotency_key(&head("idempotency-key", longest.as_bytes())).unwrap(), Some(longest.as_str()));
        for bad in ["".as_bytes(), "k".repeat(256).as_bytes(), "é".as_bytes(), b"a\tb"] {
            assert!(matches!(idempotency_key(&head("idempotency-key", bad)), Err(Problem::Header(_))), "{bad:?}");
        }
        let mut twice = head("idempotency-key", b"a");
        twice.append("idempotency-key", "a".parse().unwrap());
        assert!(idempotency_key(&twice).is_err());
    }

    #[test]
    fn a_transport_id_has_the_route_and_the_digest_of_the_key() {
        assert_eq!(
            transport_id("orders", "abc"),
            "h/orders/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn only_a_well_formed_traceparent_is_passed_on() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(traceparent(&head("traceparent", good.as_bytes())), Some(good));
        for bad in [
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
        ] {
            assert_eq!(traceparent(&head("traceparent", bad.as_bytes())), None, "{bad}");
        }
    }

    #[test]
    fn at_most_twenty_reasons_are_listed_and_each_is_short() {
        let schema = serde_json::json!({"items": {"type": "integer"}});
        let schema = jsonschema::Validator::new(&schema).unwrap();
        let body = serde_json::to_vec(&vec!["x".repeat(2_000); 30]).unwrap();
        let Err(Problem::Schema { reasons, more }) = matches_schema(&schema, &body) else { panic!("must not match") };
        assert_eq!((reasons.len(), more), (REASONS_MAX, true));
        assert_eq!(reasons[7].pointer, "/7");
        assert!(reasons.iter().all(|reason| reason.message.len() <= REASON_BYTES_MAX + '…'.len_utf8()));
    }
}
