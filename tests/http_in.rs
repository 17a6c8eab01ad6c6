//! The entrance over real sockets on the real embedded bus.

mod front;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use front::{Ground, certificate, client, eventually, json_of};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use vejas::connectors::http::auth::Auth;
use vejas::connectors::http::source::{Entrance, Error, Route, Waits};
use vejas::connectors::http::tls;
use vejas::flow::message;
use vejas::id::{UnitId, UnitKind};
use vejas::manifest::http_in::Method;
use vejas::ports::bus::{self, Bus};
use vejas::unit::context::Context;
use vejas::unit::status::{Registry, State, Unit};

const SEED: u128 = 0x1234_5678_9abc_def0_1122_3344_5566_7788;

fn route(registry: &Registry, name: &str) -> Route {
    let unit = registry.add(UnitId::new(UnitKind::HttpIn, name), "abababababababab", "m.yaml:1".to_owned());
    Route {
        suspended: None,
        unit,
        listen: "127.0.0.1:0".to_owned(),
        tls: None,
        path: format!("/ingest/{name}"),
        methods: vec![Method::Post],
        to: "orders.raw".to_owned(),
        schema: None,
        auth: None,
        body_bytes_max: 1_000,
    }
}

struct Open {
    address: SocketAddr,
    stopping: CancellationToken,
    running: JoinHandle<()>,
    unit: Arc<Unit>,
}

impl Open {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

async fn open(context: Context, routes: Vec<Route>, waits: Waits) -> Open {
    let unit = routes[0].unit.clone();
    let stopping = context.stopping.clone();
    let entrance = Entrance::bind(context, routes, waits, SEED).await.unwrap();
    let address = entrance.addresses()[0];
    Open { address, stopping, running: tokio::spawn(entrance.run()), unit }
}

async fn orders(ground: &Ground, change: impl FnOnce(&mut Route)) -> Open {
    let mut route = route(&Registry::default(), "orders");
    change(&mut route);
    open(ground.context("test"), vec![route], Waits::default()).await
}

async fn problem(answer: reqwest::Response) -> (u16, String, Value) {
    let status = answer.status().as_u16();
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let body: Value = json_of(answer).await;
    assert_eq!(body["status"], status);
    (status, body["code"].as_str().unwrap().to_owned(), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_body_is_stored_with_its_headers_before_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let open = orders(&ground, |_| {}).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = client(None).post(open.url("/ingest/orders?x=1")).header("content-type", "application/json");
    let answer = request.header("traceparent", trace).body("{\"id\":1}").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let receipt: Value = json_of(answer).await;
    let stored = ground.stored("orders.raw").await;
    assert_eq!(stored.len(), 1);
    let (stored, headers) = (&stored[0], &stored[0].headers);
    assert_eq!(receipt, json!({"id": headers.get(message::ID).unwrap(), "sequence": stored.sequence}));
    assert_eq!(&stored.payload[..], b"{\"id\":1}");
    assert_eq!(uuid::Uuid::parse_str(headers.get(message::ID).unwrap()).unwrap().get_version_num(), 7);
    assert!(vejas::time::Timestamp::parse(headers.get(message::TIME).unwrap()).is_some());
    assert_eq!(headers.get(message::SOURCE), Some("http-in/orders"));
    assert_eq!(headers.get(message::REVISION), Some("abababababab"));
    assert_eq!(headers.get(message::HOP), Some("0"));
    assert_eq!(headers.get(message::TRACEPARENT), Some(trace));
    assert_eq!(headers.get("Content-Type"), Some("application/json"));
    assert_eq!((open.unit.view().received, open.unit.state()), (1, State::Running));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_are_404_and_other_methods_405_with_those_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Registry::default();
    let mut put = route(&registry, "put");
    (put.path, put.methods) = ("/ingest/orders".to_owned(), vec![Method::Put]);
    let open = open(ground.context("test"), vec![route(&registry, "orders"), put], Waits::default()).await;
    let client = client(None);
    for path in ["/", "/ingest", "/ingest/orders/", "/ingest/Orders"] {
        let answer = client.post(open.url(path)).body("x").send().await.unwrap();
        assert_eq!(problem(answer).await.0, 404, "{path}");
    }
    let answer = client.get(open.url("/ingest/orders")).send().await.unwrap();
    assert_eq!(answer.headers()["allow"], "POST, PUT");
    assert_eq!(problem(answer).await.1, "method-not-allowed");
    assert_eq!(client.put(open.url("/ingest/orders")).body("x").send().await.unwrap().status(), 200);
    assert_eq!(ground.stored("orders.raw").await[0].headers.get(message::SOURCE), Some("http-in/put"));
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_401_and_nothing_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let bearer = orders(&ground, |route| route.auth = Some(Auth::bearer("t0ken").unwrap())).await;
    let basic = orders(&ground, |route| route.auth = Some(Auth::basic("ann", "pw").unwrap())).await;
    let signed = orders(&ground, |route| {
        let auth = Auth::signature("It's a Secret to Everybody", "X-Hub-Signature-256", "sha256=");
        route.auth = Some(auth.unwrap());
    })
    .await;
    let client = client(None);
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let post = |open: &Open, body: &'static str| client.post(open.url("/ingest/orders")).body(body);
    for (request, challenge) in [
        (post(&bearer, "x"), "Bearer"),
        (post(&bearer, "x").bearer_auth("t0keN"), "Bearer"),
        (post(&basic, "x").basic_auth("ann", Some("no")), "Basic realm=\"vejas\", charset=\"UTF-8\""),
        (post(&signed, "Hello, World!"), "HMAC-SHA256"),
        (post(&signed, "Hello, World?").header("x-hub-signature-256", signature), "HMAC-SHA256"),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.headers()["www-authenticate"], challenge);
        assert_eq!(problem(answer).await.1, "unauthorized");
    }
    assert!(ground.stored("orders.raw").await.is_empty());
    for request in [
        post(&bearer, "x").bearer_auth("t0ken"),
        post(&basic, "x").basic_auth("ann", Some("pw")),
        post(&signed, "Hello, World!").header("x-hub-signature-256", signature),
    ] {
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    assert_eq!((bearer.unit.view().refused, signed.unit.view().refused), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_at_the_limit_is_taken_and_one_byte_more_is_413_stated_or_streamed() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let open = orders(&ground, |route| route.body_bytes_max = 100_000).await;
    let client = client(None);
    let streamed = |bytes: usize| {
        let pieces =
            (0..bytes).step_by(1_000).map(move |at| Ok::<_, std::io::Error>(vec![b'x'; 1_000.min(bytes - at)]));
        reqwest::Body::wrap_stream(futures_util::stream::iter(pieces))
    };
    for (body, expected) in [
        (reqwest::Body::from(vec![b'x'; 100_000]), 200),
        (streamed(100_000), 200),
        (reqwest::Body::from(vec![b'x'; 100_001]), 413),
        (streamed(100_001), 413),
        (streamed(1_000_000), 413),
        (reqwest::Body::from(Vec::new()), 200),
    ] {
        let answer = client.post(open.url("/ingest/orders")).body(body).send().await.unwrap();
        assert_eq!(answer.status(), expected);
        if expected == 413 {
            assert_eq!(problem(answer).await.1, "body-too-large");
        }
    }
    let sizes: Vec<usize> = ground.stored("orders.raw").await.iter().map(|stored| stored.payload.len()).collect();
    assert_eq!(sizes, [100_000, 100_000, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_match_is_422_with_pointer_or_position() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let schema = json!({
        "type": "object", "required": ["id"],
        "properties": {"id": {"type": "string"}, "items": {"type": "array", "items": {"type": "integer"}}},
    });
    let schema = Arc::new(jsonschema::Validator::new(&schema).unwrap());
    let open = orders(&ground, |route| (route.schema, route.body_bytes_max) = (Some(schema), 1 << 20)).await;
    let client = client(None);
    let post = async |body: String| client.post(open.url("/ingest/orders")).body(body).send().await.unwrap();
    let (status, code, body) = problem(post("{\"items\": [1, \"two\"]}".to_owned()).await).await;
    assert_eq!((status, code.as_str()), (422, "schema-mismatch"));
    let pointers: BTreeSet<&str> =
        body["errors"].as_array().unwrap().iter().map(|error| error["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, BTreeSet::from(["", "/items/1"]));
    let (status, code, body) = problem(post("{\n  \"id\": }".to_owned()).await).await;
    assert_eq!((status, code.as_str(), &body["line"], &body["column"]), (422, "invalid-json", &json!(2), &json!(9)));
    // Large enough to be parsed on another thread.
    let large = format!("{{\"id\": \"a\", \"items\": [{}]}}", vec!["1"; 100_000].join(","));
    assert_eq!(post(large.clone()).await.status(), 200);
    assert_eq!(post(large.replace("\"a\"", "1")).await.status(), 422);
    assert_eq!(ground.stored("orders.raw").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_one_message_and_one_answer_however_many_send_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let open = orders(&ground, |_| {}).await;
    let client = client(None);
    let post = |body: &'static str| {
        client.post(open.url("/ingest/orders")).header("idempotency-key", "order \"7\"").body(body).send()
    };
    let answers = futures_util::future::join_all((0..50).map(|_| post("same"))).await;
    let mut receipts = Vec::new();
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        receipts.push(json_of::<Value>(answer).await);
    }
    let stored = ground.stored("orders.raw").await;
    assert_eq!(stored.len(), 1);
    let expected = json!({"id": "order \"7\"", "sequence": stored[0].sequence});
    assert!(receipts.iter().all(|receipt| *receipt == expected), "{receipts:?}");
    let (status, code, _) = problem(post("other").await.unwrap()).await;
    assert_eq!((status, code.as_str()), (422, "idempotency-key-reused"));
    // What was worked off is gone; the key still stands for the first message.
    ground.bus.trim(&ground.names.messages(), stored[0].sequence + 1, &[]).await.unwrap();
    assert_eq!(json_of::<Value>(post("other").await.unwrap()).await, expected);
    assert_eq!(open.unit.view().emitted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_on_two_routes_is_two_messages() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Registry::default();
    let routes = vec![route(&registry, "one"), route(&registry, "two")];
    let open = open(ground.context("test"), routes, Waits::default()).await;
    for path in ["/ingest/one", "/ingest/two", "/ingest/one"] {
        let request = client(None).post(open.url(path)).header("idempotency-key", "k").body(path);
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    assert_eq!(ground.stored("orders.raw").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_keys_are_400_and_compressed_bodies_415() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let open = orders(&ground, |_| {}).await;
    for (name, value, expected) in [
        ("idempotency-key", "k".repeat(255), 200),
        ("idempotency-key", "k".repeat(256), 400),
        ("idempotency-key", String::new(), 400),
        ("content-encoding", "gzip".to_owned(), 415),
        ("content-encoding", "identity".to_owned(), 200),
    ] {
        let request = client(None).post(open.url("/ingest/orders")).header(name, &value).body("x");
        assert_eq!(request.send().await.unwrap().status(), expected, "{name}: {value}");
    }
    assert_eq!(ground.stored("orders.raw").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_bus_cannot_take_is_503_with_the_reason_and_a_time_to_try_again() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let open = orders(&ground, |_| {}).await;
    for (mood, status, code) in [
        (bus::Error::Full { stream: "S".to_owned(), bytes_max: 1 }, 503, "bus-full"),
        (bus::Error::NoSpace("disk".to_owned()), 503, "bus-no-space"),
        (bus::Error::Unavailable("gone".to_owned()), 503, "bus-unavailable"),
        (bus::Error::Stopped("fsync".to_owned()), 503, "bus-stopped"),
        (bus::Error::TooLarge { bytes: 9, bytes_max: 8 }, 413, "body-too-large"),
        (bus::Error::NoStream("S".to_owned()), 500, "internal"),
    ] {
        ground.bus.set(Some(mood));
        let answer = client(None).post(open.url("/ingest/orders")).body("x").send().await.unwrap();
        assert_eq!(answer.headers().contains_key("retry-after"), status == 503, "{code}");
        let (found, found_code, _) = problem(answer).await;
        assert_eq!((found, found_code.as_str()), (status, code));
        assert_eq!(open.unit.view().last_error.unwrap().code, code);
    }
    ground.bus.set(None);
    assert_eq!(client(None).post(open.url("/ingest/orders")).body("x").send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_really_full_stream_is_503_and_what_was_accepted_is_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::with_limit(folder.path(), 20_000).await;
    let open = orders(&ground, |_| {}).await;
    let client = client(None);
    let mut accepted = 0;
    let refused = loop {
        let answer = client.post(open.url("/ingest/orders")).body(vec![b'x'; 900]).send().await.unwrap();
        match answer.status().as_u16() {
            200 => accepted += 1,
            _ => break answer,
        }
        assert!(accepted < 100, "the stream never became full");
    };
    assert_eq!(problem(refused).await.1, "bus-full");
    assert_eq!(ground.stored("orders.raw").await.len(), accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_408_and_holds_no_one_else_up() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let waits = Waits { body_max: Duration::from_millis(300), ..Waits::default() };
    let open = open(ground.context("test"), vec![route(&Registry::default(), "orders")], waits).await;
    let mut slow = TcpStream::connect(open.address).await.unwrap();
    slow.write_all(b"POST /ingest/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
    assert_eq!(client(None).post(open.url("/ingest/orders")).body("x").send().await.unwrap().status(), 200);
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("body-timeout") && answer.to_lowercase().contains("connection: close"), "{answer}");
    assert_eq!(ground.stored("orders.raw").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_the_request_in_flight_finish_and_closes_idle_connections() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let open = orders(&ground, |_| {}).await;
    let mut idle = TcpStream::connect(open.address).await.unwrap();
    let request = b"POST /ingest/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n";
    idle.write_all(&[&request[..], b"idle"].concat()).await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let mut busy = TcpStream::connect(open.address).await.unwrap();
    busy.write_all(&[&request[..], b"bu"].concat()).await.unwrap();
    // The head has to be taken before the stop: the entrance shows no sign of it, so a request behind it must answer.
    let mut witness = TcpStream::connect(open.address).await.unwrap();
    witness.write_all(&[&request[..], b"seen"].concat()).await.unwrap();
    witness.read_exact(&mut first).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    open.stopping.cancel();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    eventually("the unit stops", || Box::pin(async { open.unit.state() == State::Stopping })).await;
    busy.write_all(b"sy").await.unwrap();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    open.running.await.unwrap();
    assert_eq!(open.unit.state(), State::Stopped);
    assert!(TcpStream::connect(open.address).await.is_err());
    assert_eq!(ground.stored("orders.raw").await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_head_is_half_sent_at_the_stop_is_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let open = orders(&ground, |_| {}).await;
    let mut late = TcpStream::connect(open.address).await.unwrap();
    late.write_all(b"POST /ingest/orders HTTP/1.1\r\nHost: x\r\nContent-Le").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    open.stopping.cancel();
    let _ = late.write_all(b"ngth: 1\r\n\r\nx").await;
    let mut answer = String::new();
    let _ = late.read_to_string(&mut answer).await;
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    open.running.await.unwrap();
    assert!(ground.stored("orders.raw").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_never_ends_is_cut_at_the_drain_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let waits = Waits { drain_max: Duration::from_millis(200), ..Waits::default() };
    let open = open(ground.context("test"), vec![route(&Registry::default(), "orders")], waits).await;
    let mut hanging = TcpStream::connect(open.address).await.unwrap();
    hanging.write_all(b"POST /ingest/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    open.stopping.cancel();
    tokio::time::timeout(Duration::from_secs(5), open.running).await.expect("cut in time").unwrap();
    assert!(ground.stored("orders.raw").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn https_is_served_over_http_1_and_2_and_plain_text_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let (files, pem) = certificate(folder.path());
    let open = orders(&ground, |route| route.tls = Some(files)).await;
    let url = format!("https://localhost:{}/ingest/orders", open.address.port());
    let answer = client(Some(&pem)).post(&url).body("two").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, reqwest::Version::HTTP_2));
    assert!(client(None).post(open.url("/ingest/orders")).body("plain").send().await.is_err());
    let stored = ground.stored("orders.raw").await;
    assert_eq!(stored.iter().map(|stored| &stored.payload[..]).collect::<Vec<_>>(), [b"two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn entrances_that_cannot_share_an_address_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Registry::default();
    let bind = async |routes| Entrance::bind(ground.context("test"), routes, Waits::default(), SEED).await;
    let mut same = route(&registry, "two");
    same.path = "/ingest/one".to_owned();
    let refused = bind(vec![route(&registry, "one"), same]).await;
    assert!(matches!(refused, Err(Error::SameRoute { .. })));
    let mut secure = route(&registry, "two");
    secure.tls = Some(tls::Files { cert: "a".into(), key: "b".into() });
    assert!(matches!(bind(vec![route(&registry, "one"), secure]).await, Err(Error::MixedTls { .. })));
    let mut wide = route(&registry, "wide");
    wide.listen = "0.0.0.0:0".to_owned();
    assert!(matches!(bind(vec![wide.clone()]).await, Err(Error::Unguarded { .. })));
    wide.auth = Some(Auth::Anybody);
    assert!(bind(vec![wide]).await.is_ok());
    let taken = bind(vec![route(&registry, "first")]).await.unwrap();
    let mut again = route(&registry, "second");
    again.listen = taken.addresses()[0].to_string();
    assert!(bind(vec![again]).await.unwrap_err().to_string().contains("cannot listen on"));
}
