#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::http::Response as Answer;
use axum::response::IntoResponse;
use reqwest::header::HeaderValue;

use super::*;
use crate::connectors::secret::Secret;
use crate::flow::message::Headers;
use crate::id::UnitKind;
use crate::manifest::value::{ByteSize, Setting, Span};
use crate::ports::clock::Clock;

struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::parse("2026-11-30T21:00:00Z").unwrap()
    }
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

type Seen = Arc<Mutex<Vec<(HeaderMap, String)>>>;

/// A receiver that answers by body, and what it saw.
async fn receiver(answer: impl Fn(&str) -> Answer<String> + Clone + Send + Sync + 'static) -> (String, Seen) {
    let seen = Seen::default();
    let kept = Arc::clone(&seen);
    let app = Router::new().fallback(move |headers: HeaderMap, body: Bytes| {
        let body = String::from_utf8_lossy(&body).into_owned();
        let response = answer(&body).into_response();
        kept.lock().unwrap().push((headers, body));
        std::future::ready(response)
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/in", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, seen)
}

fn answer(status: u16, text: &str) -> Answer<String> {
    Answer::builder().status(status).body(text.to_owned()).unwrap()
}

fn spec(url: &str) -> Http {
    serde_json::from_value(serde_json::json!({ "url": url, "timeout": "2s" })).unwrap()
}

fn open(spec: &Http) -> HttpSink {
    let resolve = |setting: &Setting| match setting.0.strip_prefix("ref:") {
        Some(secret) => Ok(Secret::new(secret)),
        None => Ok(Secret::open(setting.0.clone())),
    };
    HttpSink::open(&UnitId::new(UnitKind::Sink, "erp"), spec, &resolve, None, Arc::new(Still)).unwrap()
}

fn message(id: &str, payload: &str) -> Stored {
    Stored {
        sequence: 1,
        subject: "vx.a".to_owned(),
        headers: Headers::from_iter([("Vejas-Id", id), ("traceparent", "00-abc-def-01")]),
        payload: bytes::Bytes::copy_from_slice(payload.as_bytes()),
        time: Timestamp(0),
    }
}

fn batch(format: BatchFormat) -> Option<Batch> {
    Some(Batch { max_messages: 10, max_bytes: ByteSize(1 << 20), max_wait: Span(Duration::ZERO), format })
}

#[tokio::test]
async fn a_request_names_its_message_and_carries_credentials() {
    let (url, seen) = receiver(|_| answer(202, "")).await;
    let mut spec = spec(&url);
    spec.headers = BTreeMap::from([("X-Team".to_owned(), Setting("ops".to_owned()))]);
    spec.auth = Some(http::Auth::Bearer { token: Setting("ref:t0ken".to_owned()) });
    let sink = open(&spec);
    assert_eq!(sink.deliver(&[message("A-1", "{}")]).await, [Delivered::Done]);
    let (headers, body) = &seen.lock().unwrap()[0];
    assert_eq!(body, "{}");
    for (name, value) in [
        ("idempotency-key", "sink/erp/A-1"),
        ("traceparent", "00-abc-def-01"),
        ("content-type", "application/json"),
        ("x-team", "ops"),
        ("authorization", "Bearer t0ken"),
    ] {
        assert_eq!(headers[name], value);
    }
}

#[tokio::test]
async fn answers_are_sorted_into_delivered_passing_and_final() {
    let (url, _) = receiver(|body| answer(body.parse().unwrap(), "why not")).await;
    let sink = open(&spec(&url));
    for (status, expected) in
        [(200, 'd'), (204, 'd'), (408, 't'), (425, 't'), (429, 't'), (500, 't'), (503, 't'), (400, 'p'), (404, 'p')]
    {
        let delivered = sink.deliver(&[message("A", &status.to_string())]).await.remove(0);
        let (got, code) = match delivered {
            Delivered::Done => ('d', None),
            Delivered::Transient { failure, .. } => ('t', Some(failure)),
            Delivered::Permanent(failure) => ('p', Some(failure)),
        };
        assert_eq!(got, expected, "{status}");
        if let Some(failure) = code {
            assert_eq!(failure.code, format!("http-{status}"));
            assert!(failure.message.contains("why not"), "{}", failure.message);
        }
    }
}

#[tokio::test]
async fn a_redirect_is_final_and_explained() {
    let (url, seen) =
        receiver(|_| Answer::builder().status(307).header("Location", "/elsewhere").body(String::new()).unwrap()).await;
    let delivered = open(&spec(&url)).deliver(&[message("A", "")]).await.remove(0);
    assert!(matches!(delivered, Delivered::Permanent(f) if f.message.contains("not followed")));
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[test]
fn retry_after_is_read_as_seconds_and_as_a_date() {
    let now = Still.now();
    for (value, expected) in [
        ("7", Some(7)),
        ("Mon, 30 Nov 2026 21:01:00 GMT", Some(60)),
        ("Mon, 30 Nov 2026 20:00:00 GMT", Some(0)),
        ("soon", None),
        ("-1", None),
    ] {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
        assert_eq!(retry_after(&headers, now), expected.map(Duration::from_secs), "{value}");
    }
}

#[tokio::test]
async fn errors_show_no_credential() {
    let (url, _) = receiver(|_| answer(400, &format!("bad token t0ken quer1 passw0rd{}", "x".repeat(100_000)))).await;
    let mut with_token = spec(&url.replace("http://", "http://user:passw0rd@"));
    with_token.url.0.push_str("?key=quer1");
    with_token.auth = Some(http::Auth::Bearer { token: Setting("ref:t0ken".to_owned()) });
    let mut unreachable = spec("ref:http://user:passw0rd@127.0.0.1:1/t0ken?key=quer1");
    unreachable.timeout = Span(Duration::from_millis(300));
    for spec in [with_token, unreachable] {
        let sink = open(&spec);
        let shown = format!("{sink:?} {:?}", sink.deliver(&[message("A", "")]).await);
        for secret in ["t0ken", "passw0rd", "quer1"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("127.0.0.1") && shown.len() < 2_000, "{shown}");
    }
}

#[tokio::test]
async fn a_receiver_that_is_away_or_silent_may_come_back() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut silence = spec(&format!("http://{}", silent.local_addr().unwrap()));
    silence.timeout = Span(Duration::from_millis(100));
    for (spec, code) in [(spec("http://127.0.0.1:1"), "connect"), (silence, "timeout")] {
        let delivered = open(&spec).deliver(&[message("A", "")]).await.remove(0);
        assert!(matches!(&delivered, Delivered::Transient { failure, .. } if failure.code == code), "{delivered:?}");
    }
}

#[tokio::test]
async fn a_refused_batch_is_sent_one_by_one_and_only_the_bad_one_is_refused() {
    let (url, seen) = receiver(|body| answer(if body.contains("bad") { 422 } else { 200 }, "")).await;
    let mut spec = spec(&url);
    spec.batch = batch(BatchFormat::JsonArray);
    let messages = [message("A", "1"), message("B", "\"bad\""), message("C", "3"), message("D", "no json")];
    let delivered = open(&spec).deliver(&messages).await;
    assert_eq!(delivered[0], Delivered::Done);
    assert!(matches!(&delivered[1], Delivered::Permanent(failure) if failure.code == "http-422"));
    assert_eq!(delivered[2], Delivered::Done);
    assert!(matches!(&delivered[3], Delivered::Permanent(failure) if failure.code == "batch-format"));
    let seen = seen.lock().unwrap();
    assert_eq!(
        seen.iter().map(|(_, body)| body.as_str()).collect::<Vec<_>>(),
        ["[1,\"bad\",3]", "[1]", "[\"bad\"]", "[3]"]
    );
    let key = seen[0].0["idempotency-key"].to_str().unwrap();
    assert_eq!(key.len(), "sink/erp/".len() + 64);
    assert_eq!(seen[1].0["idempotency-key"], "sink/erp/A");
}

#[tokio::test]
async fn a_batch_that_fails_for_now_fails_as_a_whole_without_more_requests() {
    let (url, seen) = receiver(|_| answer(503, "")).await;
    let mut spec = spec(&url);
    spec.batch = batch(BatchFormat::Ndjson);
    let delivered = open(&spec).deliver(&[message("A", "{\n}"), message("B", "x")]).await;
    assert!(delivered.iter().all(|delivered| matches!(delivered, Delivered::Transient { .. })));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].1, "{}\nx\n");
    assert_eq!(seen[0].0["content-type"], "application/x-ndjson");
}

#[tokio::test]
async fn a_rate_limit_spreads_requests() {
    let (url, seen) = receiver(|_| answer(200, "")).await;
    let mut spec = spec(&url);
    spec.rate_limit = Some(Rate { count: 20, per: Duration::from_secs(1) });
    let sink = open(&spec);
    let start = Instant::now();
    for _ in 0..6 {
        sink.deliver(&[message("A", "")]).await;
    }
    assert!(start.elapsed() >= Duration::from_millis(240), "{:?}", start.elapsed());
    assert_eq!(seen.lock().unwrap().len(), 6);
}

#[test]
fn what_cannot_work_is_refused_at_start_without_showing_it() {
    let resolve = |setting: &Setting| Ok(Secret::new(setting.0.clone()));
    let unit = UnitId::new(UnitKind::Sink, "erp");
    let open = |spec: &Http, pem: Option<&[u8]>| HttpSink::open(&unit, spec, &resolve, pem, Arc::new(Still));
    for url in ["ftp://x", "no url s3cret", "http://"] {
        assert_eq!(open(&spec(url), None).unwrap_err().to_string(), "the url is not an http or https address");
    }
    assert!(matches!(open(&spec("https://a.example"), Some(b"no pem")), Err(Error::Certificates(_))));
    let mut bad = spec("http://a.example");
    bad.headers = BTreeMap::from([("a".to_owned(), Setting("s3cret\n".to_owned()))]);
    assert_eq!(
        open(&bad, None).unwrap_err().to_string(),
        "the value of header a holds characters that a header cannot"
    );
}
