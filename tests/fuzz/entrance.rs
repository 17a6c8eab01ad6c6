//! The HTTP entrance over real sockets on a real bus: raw bytes, mutated requests, several at once on a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use vejas::connectors::http::source::{Entrance, Route, Waits};
use vejas::flow::message;
use vejas::id::{UnitId, UnitKind};
use vejas::manifest::http_in::Method;
use vejas::unit::status::Registry;

use crate::front::Ground;
use crate::fuzz;
use crate::mutate::{Text, apply, mutations};

/// Connections of one case, all at once.
const CONNECTIONS: usize = 12;
/// A peer that is silent for so long has nothing more to say for now.
const SILENCE: Duration = Duration::from_millis(100);
/// After the last byte and the end of sending, an answer or the end has to come within this.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

const DICTIONARY: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    " ",
    "\t",
    "\0",
    ":",
    "POST ",
    "PUT ",
    "GET ",
    "HEAD ",
    "CONNECT ",
    "OPTIONS * ",
    "/ingest/a",
    "/ingest/a?x=1",
    "//",
    "%2e%2e",
    "http://x/ingest/a",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    " HTTP/2.0\r\n",
    " HTTP/9.9\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "Host: x\r\n",
    "Connection: close\r\n",
    "Connection: upgrade\r\nUpgrade: h2c\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 1001\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "ffffffffffffffff\r\n",
    "Expect: 100-continue\r\n",
    "Content-Encoding: gzip\r\n",
    "Idempotency-Key: k1\r\n",
    "Idempotency-Key: k2\r\n",
    "Idempotency-Key: \r\n",
    "Content-Type: \u{e9}\r\n",
    "traceparent: 00-0\r\n",
    "X: y\r\n",
    "{}",
    "[1",
];

fn request(key: &str, body: &str) -> Vec<u8> {
    let key = if key.is_empty() { String::new() } else { format!("Idempotency-Key: {key}\r\n") };
    let length = body.len();
    format!("POST /ingest/a HTTP/1.1\r\nHost: x\r\n{key}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn connection() -> impl Strategy<Value = Vec<u8>> {
    let good = || (select(vec!["", "k1", "k2", "k3"]), select(vec!["{}", "[1,2]", "", "not JSON"]));
    let plain = || good().prop_map(|(key, body)| request(key, body));
    let chunked = Just(
        b"POST /ingest/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\n"
            .to_vec(),
    );
    let tokens = vec(select(DICTIONARY), 0..30).prop_map(|tokens| tokens.concat().into_bytes());
    prop_oneof![
        1 => vec(any::<u8>(), 0..200),
        2 => tokens,
        2 => vec(plain(), 1..4).prop_map(|requests| requests.concat()),
        6 => (prop_oneof![3 => plain(), 1 => chunked], mutations(DICTIONARY)).prop_map(|(bytes, changes)| apply(bytes, &changes)),
        2 => (plain(), mutations(DICTIONARY), plain())
            .prop_map(|(one, changes, other)| [apply(one, &changes), other].concat()),
    ]
}

/// What a connection was answered, to its end.
async fn converse(address: SocketAddr, bytes: &[u8], silence: Duration) -> Result<Vec<u8>, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| format!("connect: {error}"))?;
    let mut answer = Vec::new();
    // A refused request may be cut off while it is still being sent.
    let sent = stream.write_all(bytes).await.is_ok();
    while sent && matches!(timeout(silence, stream.read_buf(&mut answer)).await, Ok(Ok(read)) if read > 0) {}
    let _ = stream.shutdown().await;
    match timeout(END_WAIT_MAX, stream.read_to_end(&mut answer)).await {
        Ok(_) => Ok(answer),
        Err(_) => Err("neither an answer nor the end came".to_owned()),
    }
}

/// Identities and sequences of the receipts in an answer. A body may hold anything, so its length says where it ends.
fn receipts(answer: &[u8]) -> Vec<(String, u64)> {
    let mut rest = answer;
    let mut receipts = Vec::new();
    while let Some(end) = rest.windows(4).position(|four| four == b"\r\n\r\n") {
        let (head, body) = rest.split_at(end + 4);
        let head = String::from_utf8_lossy(head).to_lowercase();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok()).unwrap_or(0);
        let body = &body[..body.len().min(length)];
        if head.starts_with("http/1.") && head.get(8..12) == Some(" 200") {
            let receipt = || {
                let value: serde_json::Value = serde_json::from_slice(body).ok()?;
                Some((value["id"].as_str()?.to_owned(), value["sequence"].as_u64()?))
            };
            receipts.push(receipt().unwrap_or_else(|| panic!("a 200 without a receipt: {head}")));
        }
        rest = &rest[end + 4 + body.len()..];
    }
    receipts
}

fn is_http(answer: &[u8], sent: &[u8]) -> bool {
    // Who begins with the preface of HTTP/2 is answered in its frames.
    answer.is_empty() || answer.starts_with(b"HTTP/1.") || sent.starts_with(b"PRI * HTTP/2.0")
}

#[test]
fn whatever_comes_is_answered_or_closed_and_what_got_a_2xx_is_stored_once() {
    let panics = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&panics);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Other tests of this process panic on threads of their own.
        if std::thread::current().name().is_some_and(|name| name.starts_with("tokio")) {
            counted.fetch_add(1, SeqCst);
        }
        usual(info);
    }));
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (ground, address, running) = runtime.block_on(async {
        let ground = Ground::open(folder.path()).await;
        let entrance = Entrance::bind(ground.context("fuzz"), vec![route()], Waits::default(), 7).await.unwrap();
        let address = entrance.addresses()[0];
        (ground, address, tokio::spawn(entrance.run()))
    });
    let taken = Mutex::new(BTreeSet::new());
    fuzz(vec(connection().prop_map(Text), 1..CONNECTIONS), |connections| {
        let before = panics.load(SeqCst);
        runtime.block_on(async {
            let answers = connections.iter().map(|Text(bytes)| converse(address, bytes, SILENCE));
            for (answer, Text(sent)) in futures_util::future::join_all(answers).await.into_iter().zip(&connections) {
                let answer = answer.map_err(TestCaseError::fail)?;
                prop_assert!(is_http(&answer, sent), "no HTTP: {}", String::from_utf8_lossy(&answer));
                taken.lock().unwrap().extend(receipts(&answer));
            }
            // Ends by itself, so that no fsync takes longer than the patience of this test.
            let good = b"POST /ingest/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
            let good = converse(address, good, END_WAIT_MAX).await.map_err(TestCaseError::fail)?;
            let receipt = receipts(&good);
            prop_assert_eq!(receipt.len(), 1, "a good request afterwards: {}", String::from_utf8_lossy(&good));
            taken.lock().unwrap().extend(receipt);
            Ok(())
        })?;
        prop_assert_eq!(panics.load(SeqCst), before, "a task panicked");
        Ok(())
    });
    assert!(!running.is_finished(), "the entrance ended");

    let stored = runtime.block_on(ground.stored("orders.raw"));
    let by_sequence: BTreeMap<u64, &str> =
        stored.iter().map(|message| (message.sequence, message.headers.get(message::ID).unwrap())).collect();
    let ids: BTreeSet<&str> = by_sequence.values().copied().collect();
    assert_eq!(ids.len(), stored.len(), "an identity is stored twice");
    let taken = taken.into_inner().unwrap();
    for (id, sequence) in &taken {
        assert_eq!(by_sequence.get(sequence), Some(&id.as_str()), "what was acknowledged is not there");
    }
    println!("{} stored, {} acknowledged", stored.len(), taken.len());
}

fn route() -> Route {
    Route {
        suspended: None,
        unit: Registry::default().add(UnitId::new(UnitKind::HttpIn, "a"), "abababababababab", "m.yaml:1".to_owned()),
        listen: "127.0.0.1:0".to_owned(),
        tls: None,
        path: "/ingest/a".to_owned(),
        methods: vec![Method::Post, Method::Put],
        to: "orders.raw".to_owned(),
        schema: None,
        auth: None,
        body_bytes_max: 1_000,
    }
}
