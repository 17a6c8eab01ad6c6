//! The API over real sockets, and `vejas status` against it.

#![allow(clippy::disallowed_methods)]

mod front;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use front::{Ground, certificate, client, json_of};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use vejas::api::{Error, Loaded, Options, Server, Tokens, Told, view};
use vejas::cli::api::Api;
use vejas::cli::status::{self, Args, Output};
use vejas::connectors::http::tls;
use vejas::flow::message::{Headers, Outgoing};
use vejas::id::{UnitId, UnitKind};
use vejas::ports::bus::{self, Bus, DurableConfig, Start, StreamConfig};
use vejas::runtime::config::MESSAGE_BYTES_MAX;
use vejas::runtime::dead_letters::DeadLetters;
use vejas::unit::status::{Registry, State};

/// Paths that need no token.
const OPEN: &[&str] = &["/healthz", "/readyz", "/api/v1/git/webhook"];

/// For a flow that is not there.
const CANDIDATE: &str = r#"{"candidate":{"manifest":{"path":"a.yaml","text":""}}}"#;

/// A POST that changes nothing.
fn only_reads(path: &str) -> bool {
    ["/api/v1/replay/", "/api/v1/shadow/"].iter().any(|below| path.starts_with(below))
}

/// A letter that is not there, so that every token meets the same.
const ABSENT: u64 = 999;

/// One request, and the answer to one who may ask.
#[derive(Debug)]
struct Endpoint {
    path: String,
    method: reqwest::Method,
    body: &'static str,
    found: u16,
}

impl Endpoint {
    fn new(path: &str, method: reqwest::Method, found: u16) -> Self {
        Endpoint { path: path.to_owned(), method, body: "", found }
    }
}

/// Answered by who publishes, and nobody does here.
fn publishes(path: &str) -> bool {
    path.starts_with("/api/v1/revisions") || path.ends_with("/suspend") || path.ends_with("/resume")
}

/// What the OpenAPI document names, each with an example, and what it does not name.
fn endpoints() -> Vec<Endpoint> {
    let document = vejas::api::document();
    let mut endpoints = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let example = match path.as_str() {
            "/api/v1/units/{kind}/{name}" => "/api/v1/units/flow/price",
            "/api/v1/units/{kind}/{name}/purge" => "/api/v1/units/flow/price/purge",
            "/api/v1/units/{kind}/{name}/suspend" => "/api/v1/units/flow/price/suspend",
            "/api/v1/units/{kind}/{name}/resume" => "/api/v1/units/flow/price/resume",
            "/api/v1/members/{instance}/drain" => "/api/v1/members/nobody/drain",
            "/api/v1/replay/{flow}" => "/api/v1/replay/price",
            "/api/v1/shadow/{flow}" => "/api/v1/shadow/price",
            "/api/v1/tap" => "/api/v1/tap?subject=orders.*",
            path => &path.replace("{sequence}", &ABSENT.to_string()),
        };
        assert!(!example.contains('{'), "{path} has no example here");
        for method in operations.as_object().unwrap().keys() {
            let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let body = match (method.as_str(), path.as_str()) {
                ("PATCH", "/api/v1/dlq/{sequence}") => r#"{"set":[{"path":"a","value":1}]}"#,
                ("PUT", "/api/v1/dlq/{sequence}/payload") => "{}",
                ("POST", "/api/v1/replay/{flow}" | "/api/v1/shadow/{flow}") => CANDIDATE,
                ("POST", "/api/v1/dlq/replay" | "/api/v1/dlq/purge") => r#"{"all":true}"#,
                ("POST", "/api/v1/revisions/plan") => r#"{"files":[]}"#,
                ("POST", "/api/v1/revisions/publish") => r#"{"upload":{"files":[]}}"#,
                ("POST", "/api/v1/revisions/confirm") => r#"{"plan":"0123456789ab"}"#,
                ("POST", "/api/v1/revisions/rollback" | "/api/v1/units/{kind}/{name}/suspend") => "{}",
                ("POST", "/api/v1/units/{kind}/{name}/resume" | "/api/v1/git/webhook") => "",
                ("GET", _) | ("POST", "/api/v1/units/{kind}/{name}/purge" | "/api/v1/members/{instance}/drain") => "",
                _ => panic!("{method} {path} has no example here"),
            };
            // Nothing reads in this test, and nothing publishes: `tests/gitops` has a process that does.
            let found = if publishes(path) {
                503
            } else if path.contains("{sequence}")
                || path.ends_with("/{name}/purge")
                || path.ends_with("/drain")
                || only_reads(path)
                || path.ends_with("/webhook")
            {
                404
            } else {
                200
            };
            endpoints.push(Endpoint { body, ..Endpoint::new(example, method, found) });
        }
        if operations.get("post").is_none() {
            endpoints.push(Endpoint::new(example, reqwest::Method::POST, 405));
        }
    }
    assert!(endpoints.len() >= 23, "{endpoints:?}");
    for path in ["/", "/api/v1/no-such-path", "/api/v1/units/flow/absent"] {
        endpoints.push(Endpoint::new(path, reqwest::Method::GET, 404));
    }
    endpoints.push(Endpoint::new("/api/v1/no-such-path", reqwest::Method::POST, 404));
    endpoints
}

fn told(ground: &Ground, registry: &Arc<Registry>) -> Told {
    let context = ground.context("alpha");
    let loaded = Loaded::default();
    loaded.set();
    let replays = vejas::runtime::replay::Replays::new(&context, MESSAGE_BYTES_MAX);
    Told {
        registry: Arc::clone(registry),
        dead_letters: DeadLetters::new(&context, Arc::clone(registry)),
        bus: context.bus,
        names: context.names,
        started: context.clock.monotonic(),
        clock: context.clock,
        instance: context.instance,
        bus_kind: "embedded",
        data_dir: Some("data".into()),
        metrics: None,
        stopping: context.stopping,
        loaded,
        manifests: vejas::runtime::reload::Told::default(),
        backlogs: vejas::runtime::reading::Backlogs::default(),
        overview: None,
        server: None,
        replicas: 1,
        monitor: None,
        publisher: None,
        follows_git: false,
        webhook_secret: None,
        webhooks: Arc::default(),
        taps: vejas::api::Taps::default(),
        replays,
    }
}

struct Serving {
    address: SocketAddr,
    ended: CancellationToken,
    task: JoinHandle<()>,
}

impl Serving {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

async fn serve(told: Told, tokens: Tokens, tls: Option<tls::Files>) -> Serving {
    let options = Options { address: "127.0.0.1:0".to_owned(), tls, tokens };
    let server = Server::bind(told, options).await.unwrap();
    let (address, ended) = (server.address(), CancellationToken::new());
    Serving { address, ended: ended.clone(), task: tokio::spawn(server.run(ended)) }
}

fn running_flow(registry: &Registry) -> Arc<vejas::unit::status::Unit> {
    let unit = registry.add(UnitId::new(UnitKind::Flow, "price"), "0707070707070707", "flows.yaml:3".to_owned());
    unit.set_state(State::Running, None);
    unit
}

/// What a process sets up for its dead letters before it serves.
async fn dead_letter_stream(ground: &Ground) {
    let config = StreamConfig {
        name: ground.names.dead_letters(),
        subjects: ground.names.dead_letter_subjects(),
        ..ground.bus.stream(&ground.names.messages()).await.unwrap().config
    };
    ground.bus.ensure_stream(config).await.unwrap();
    let store = ground.context("alpha").store;
    store.ensure_bucket(&ground.names.dead_letter_marks_bucket(), None).await.unwrap();
    store.ensure_bucket(&ground.names.versions_bucket(), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_but_health_wants_a_token_when_one_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Arc::new(Registry::default());
    running_flow(&registry);
    dead_letter_stream(&ground).await;
    let client = client(None);
    for (write, read) in [(None, None), (Some("w"), None), (None, Some("r")), (Some("w"), Some("r"))] {
        let serving = serve(told(&ground, &registry), Tokens::new(write, read).unwrap(), None).await;
        for token in [None, Some("w"), Some("r"), Some("x")] {
            let is_open = write.is_none() && read.is_none();
            let reads = is_open || (token.is_some() && (token == write || token == read));
            let writes = is_open || (token.is_some() && token == write);
            for Endpoint { path, method, body, found } in endpoints() {
                let request = client.request(method.clone(), serving.url(&path));
                let mut request = request.header("content-type", "application/json").body(body);
                if let Some(token) = token {
                    request = request.bearer_auth(token);
                }
                // Only the head: a tap never ends.
                let status = request.send().await.unwrap().status().as_u16();
                let expected = match (
                    OPEN.contains(&path.as_str()),
                    reads,
                    writes || method == reqwest::Method::GET || only_reads(&path),
                ) {
                    (true, ..) | (false, true, true) => found,
                    (false, false, _) => 401,
                    (false, true, false) => 403,
                };
                assert_eq!(status, expected, "write {write:?}, read {read:?}, given {token:?}: {method} {path}");
            }
        }
        serving.ended.cancel();
        serving.task.await.unwrap();
    }
}

/// `UPDATE_GOLDEN=1` writes it anew; the difference is then for a person to read.
#[test]
fn the_openapi_document_is_the_one_in_the_repository_and_all_it_refers_to_is_there() {
    let document = vejas::api::document();
    let text = format!("{document:#}\n");
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/openapi.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(golden.parent().unwrap()).unwrap();
        std::fs::write(&golden, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    assert!(text == expected, "tests/golden/openapi.json is out of date: run this test with UPDATE_GOLDEN=1");
    for reference in text.split("\"$ref\": \"").skip(1) {
        let pointer = reference.split('"').next().unwrap().trim_start_matches('#');
        assert!(document.pointer(pointer).is_some(), "{pointer} is not there");
    }
}

/// What the API really answers, held against what its document says of it.
#[tokio::test(flavor = "multi_thread")]
async fn every_json_answer_is_of_the_schema_that_the_document_gives() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Arc::new(Registry::default());
    let flow = running_flow(&registry);
    flow.set_error("http", "it broke", ground.context("x").clock.now());
    dead_letter_stream(&ground).await;
    let letter = Outgoing {
        subject: ground.names.dead_letter(&flow.id),
        headers: Headers::default(),
        payload: r#"{"a":1}"#.into(),
        transport_id: None,
    };
    ground.bus.publish(&ground.names.dead_letters().into(), letter, None).await.unwrap();
    let serving = serve(told(&ground, &registry), Tokens::default(), None).await;
    let served: Value = json_of(client(None).get(serving.url("/api/v1/openapi.json")).send().await.unwrap()).await;
    assert_eq!(served, vejas::api::document());
    let check = |schema: &Value, value: &Value, what: &str| {
        let mut schema = schema.clone();
        schema["components"] = served["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{what}: {errors:?}");
    };
    let json_answer = "/responses/200/content/application~1json/schema";
    let mut checked = 0;
    for (path, operations) in served["paths"].as_object().unwrap() {
        // Answered and checked in `tests/gitops`.
        if publishes(path.as_str()) {
            continue;
        }
        let Some(schema) = operations.pointer(&format!("/get{json_answer}")) else { continue };
        let path = path.replace("{kind}", "flow").replace("{name}", "price").replace("{sequence}", "1");
        let answer: Value = json_of(client(None).get(serving.url(&path)).send().await.unwrap()).await;
        check(schema, &answer, &path);
        checked += 1;
    }
    assert!(checked >= 6, "{checked}");
    // Each with the letter that the one before left.
    for (method, path, body) in [
        ("patch", "/api/v1/dlq/{sequence}", r#"{"set":[{"path":"a","value":2}]}"#),
        ("post", "/api/v1/dlq/replay", r#"{"all":true,"dryRun":true,"select":{"limit":5}}"#),
        ("post", "/api/v1/dlq/purge", r#"{"select":{"unit":"price"}}"#),
    ] {
        let operation = &served["paths"][path][method];
        let taken = operation.pointer("/requestBody/content/application~1json/schema").unwrap();
        check(taken, &serde_json::from_str(body).unwrap(), path);
        let url = serving.url(&path.replace("{sequence}", "1"));
        let request = client(None).request(method.to_uppercase().parse().unwrap(), url);
        let answer = request.header("content-type", "application/json").body(body).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{method} {path}");
        check(operation.pointer(json_answer).unwrap(), &json_of(answer).await, path);
    }
}

#[test]
fn who_taps_a_unit_goes_on_with_the_one_that_replaces_it() {
    let registry = Registry::default();
    let listener = running_flow(&registry).tap().listen();
    let replacement = running_flow(&registry);
    assert!(replacement.tap().is_on());
    drop(listener);
    assert!(!replacement.tap().is_on());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_may_be_as_large_as_a_message_and_any_other_request_1_mib() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    dead_letter_stream(&ground).await;
    let serving = serve(told(&ground, &Arc::default()), Tokens::default(), None).await;
    let send = async |method: &str, path: &str, body: String| {
        let request = client(None).request(method.parse().unwrap(), serving.url(path)).body(body);
        request.header("content-type", "application/json").send().await.unwrap().status().as_u16()
    };
    let selecting = |bytes: usize| format!(r#"{{"all":true}}{}"#, " ".repeat(bytes - 12));
    for path in ["/api/v1/dlq/replay", "/api/v1/dlq/purge"] {
        assert_eq!(send("POST", path, selecting(1 << 20)).await, 200, "{path}");
        assert_eq!(send("POST", path, selecting((1 << 20) + 1)).await, 413, "{path}");
    }
    assert_eq!(send("PATCH", "/api/v1/dlq/999", " ".repeat((1 << 20) + 1)).await, 413);
    // Read whole, so that what is refused is the letter.
    let payload = |bytes: usize| "x".repeat(bytes);
    assert_eq!(send("PUT", "/api/v1/dlq/999/payload", payload(MESSAGE_BYTES_MAX)).await, 404);
    assert_eq!(send("PUT", "/api/v1/dlq/999/payload", payload(MESSAGE_BYTES_MAX + 1)).await, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_that_is_too_far_behind_is_told_how_much_it_misses_and_goes_on() {
    const BEHIND_MAX: u64 = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let stream: Arc<str> = ground.names.messages().into();
    let message = |number: u64| Outgoing {
        subject: format!("vx.orders.{}", if number.is_multiple_of(2) { "even" } else { "odd" }),
        headers: Headers::default(),
        payload: number.to_string().into(),
        transport_id: None,
    };
    let batch = bus::Batch {
        stream: Arc::clone(&stream),
        messages: (1..=BEHIND_MAX + 500).map(message).collect(),
        expected: Vec::new(),
    };
    ground.bus.publish_batch(batch).await.unwrap();
    let told = told(&ground, &Arc::default());
    let stopping = told.stopping.clone();
    let serving = serve(told, Tokens::default(), None).await;
    let request = client(None).get(serving.url("/api/v1/tap?subject=orders.even")).header("Last-Event-ID", "100");
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    while !text.contains("id: 10500") {
        text.push_str(std::str::from_utf8(&answer.chunk().await.unwrap().unwrap()).unwrap());
    }
    // 101 to 500 are out of reach.
    assert!(text.contains("event: gap\ndata: {\"skipped\":400}"), "{}", &text[..500]);
    assert!(!text.contains("id: 500\n") && text.contains("id: 502\n") && !text.contains("id: 503\n"));
    stopping.cancel();
    let mut end = text.split_off(text.len());
    while let Some(chunk) = answer.chunk().await.unwrap() {
        end.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(end.contains("event: end"), "{end}");
    let refused = client(None).get(serving.url("/api/v1/tap?subject=a")).send().await.unwrap();
    assert_eq!(refused.status(), 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_loopback_the_api_does_not_start_without_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Arc::new(Registry::default());
    let bind = async |tokens| {
        let options = Options { address: "0.0.0.0:0".to_owned(), tls: None, tokens };
        Server::bind(told(&ground, &registry), options).await
    };
    let refused = bind(Tokens::default()).await.unwrap_err();
    assert!(matches!(refused, Error::Unguarded(_)));
    assert!(refused.to_string().contains("VEJAS_TOKEN"), "{refused}");
    assert!(bind(Tokens::new(Some("w"), None).unwrap()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_means_loaded_all_units_up_bus_alive_and_not_draining() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Arc::new(Registry::default());
    let told = Told { loaded: Loaded::default(), ..told(&ground, &registry) };
    let (loaded, stopping) = (told.loaded.clone(), told.stopping.clone());
    let serving = serve(told, Tokens::default(), None).await;
    let client = client(None);
    let reasons = async || {
        let answer = client.get(serving.url("/readyz")).send().await.unwrap();
        match answer.status().as_u16() {
            200 => Vec::new(),
            503 => json_of::<view::Problem>(answer).await.reasons,
            other => panic!("{other}"),
        }
    };
    assert_eq!(reasons().await, ["the manifests are not loaded yet"]);
    let unit = registry.add(UnitId::new(UnitKind::Sink, "erp"), "0707070707070707", "m.yaml:1".to_owned());
    loaded.set();
    assert_eq!(reasons().await, ["sink/erp is starting"]);
    unit.set_state(State::Running, None);
    assert!(reasons().await.is_empty());
    unit.set_state(State::Paused, Some("breaker open".to_owned()));
    assert!(reasons().await.is_empty(), "a paused unit is up");
    unit.set_state(State::Failed, Some("no".to_owned()));
    assert!(reasons().await.is_empty(), "the others serve without a unit that was left out");
    unit.set_state(State::Stopping, None);
    assert_eq!(reasons().await, ["sink/erp is stopping"]);
    unit.set_state(State::Running, None);
    ground.bus.set(Some(bus::Error::Stopped("fsync failed".to_owned())));
    assert_eq!(reasons().await, ["bus stopped: fsync failed"]);
    assert_eq!(client.get(serving.url("/healthz")).send().await.unwrap().status(), 200);
    ground.bus.set(None);
    stopping.cancel();
    assert_eq!(reasons().await, ["the process is draining"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_lag_streams_and_warnings_and_the_command_line_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Arc::new(Registry::default());
    let flow = running_flow(&registry);
    let stream: Arc<str> = ground.names.messages().into();
    let config = DurableConfig {
        name: flow.id.durable(1),
        filters: vec!["vx.orders.raw".to_owned()],
        start: Start::First,
        ack_wait: Duration::from_secs(30),
        in_flight_max: 10,
    };
    let durable = ground.bus.ensure_durable(&stream, config).await.unwrap();
    for _ in 0..3 {
        let message = Outgoing {
            subject: "vx.orders.raw".to_owned(),
            headers: Headers::default(),
            payload: "x".into(),
            transport_id: None,
        };
        ground.bus.publish(&stream, message, None).await.unwrap();
    }
    assert_eq!(ground.bus.pull(&durable, 1, 1_000, Duration::from_secs(5)).await.unwrap().len(), 1);
    flow.set_durable(durable);
    flow.emitted(5);
    flow.set_error("http", "it broke", ground.context("x").clock.now());
    let sink = registry.add(UnitId::new(UnitKind::Sink, "erp"), "0707070707070707", "m.yaml:1".to_owned());
    sink.set_state(State::Paused, Some("breaker open".to_owned()));
    let serving = serve(told(&ground, &registry), Tokens::new(None, Some("r")).unwrap(), None).await;

    let args = |token: Option<&str>| Args {
        api: Api { server: serving.url("/"), token: token.map(str::to_owned), ca: None },
        output: Output::Table,
        watch: false,
    };
    let status = status::fetch(&args(Some("r"))).await.unwrap();
    assert_eq!((status.instance.as_str(), status.ready, status.bus.as_str()), ("alpha", true, "embedded"));
    let [flow_view, sink_view] = &status.units[..] else { panic!("{:?}", status.units) };
    assert_eq!(
        (flow_view.unit.as_str(), flow_view.emitted, flow_view.digest.as_str()),
        ("flow/price", 5, "070707070707")
    );
    let lag = flow_view.lag.unwrap();
    assert_eq!((lag.pending, lag.in_flight, sink_view.lag), (2, 1, None));
    assert!(lag.oldest_seconds.is_some());
    assert_eq!(flow_view.last_error.as_ref().unwrap().message, "it broke");
    assert_eq!((status.streams.len(), status.streams[0].last, status.streams[0].messages), (1, 3, 3));
    assert_eq!(status.warnings, ["sink/erp is paused: breaker open"]);
    let text = status::table(&status);
    assert!(text.contains("flow/price") && text.contains("warning: sink/erp is paused"), "{text}");

    let unit = client(None).get(serving.url("/api/v1/units/flow/price")).bearer_auth("r").send().await.unwrap();
    assert_eq!(json_of::<view::Unit>(unit).await.lag.unwrap().pending, 2);
    let units = client(None).get(serving.url("/api/v1/units")).bearer_auth("r").send().await.unwrap();
    assert_eq!(json_of::<view::Units>(units).await.units.len(), 2);
    let metrics = client(None).get(serving.url("/metrics")).bearer_auth("r").send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    for line in [
        "vejas_unit_pending{unit=\"flow/price\"} 2",
        "vejas_unit_in_flight{unit=\"flow/price\"} 1",
        "vejas_unit_state{unit=\"sink/erp\",state=\"paused\"} 1",
        "vejas_stream_last_sequence{stream=\"VEJAS\"} 3",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }

    assert!(matches!(status::fetch(&args(None)).await, Err(status::Error::TokenMissing { .. })));
    assert!(matches!(status::fetch(&args(Some("x"))).await, Err(status::Error::TokenWrong { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_problems_with_a_stable_code() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let serving = serve(told(&ground, &Arc::default()), Tokens::default(), None).await;
    for (path, code) in [("/api/v1/units/flow/absent", "no-such-unit"), ("/api/v2", "no-such-path")] {
        let answer = client(None).get(serving.url(path)).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["content-type"]),
            (404, &"application/problem+json".parse().unwrap())
        );
        assert_eq!(json_of::<Value>(answer).await["code"], code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_served_over_tls_and_the_command_line_trusts_the_ca_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let (files, _) = certificate(folder.path());
    let serving = serve(told(&ground, &Arc::default()), Tokens::default(), Some(files.clone())).await;
    let server = format!("https://localhost:{}", serving.address.port());
    let api = Api { server, token: None, ca: Some(files.cert) };
    let args = Args { api, output: Output::Json, watch: false };
    assert_eq!(status::fetch(&args).await.unwrap().instance, "alpha");
    let untrusting = Args { api: Api { ca: None, ..args.api }, ..args };
    assert!(matches!(status::fetch(&untrusting).await, Err(status::Error::Unreachable { .. })));
}
