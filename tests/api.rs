//! The API over real sockets, and `vejas status` against it.

mod front;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use front::{Ground, certificate, client, json_of};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use vejas::api::{Error, Loaded, Options, Server, Tokens, Told, view};
use vejas::cli::status::{self, Args, Output};
use vejas::connectors::http::tls;
use vejas::flow::message::{Headers, Outgoing};
use vejas::id::{UnitId, UnitKind};
use vejas::ports::bus::{self, Bus, DurableConfig, Start, StreamConfig};
use vejas::runtime::dead_letters::DeadLetters;
use vejas::unit::status::{Registry, State};

const GUARDED: &[&str] = &[
    "/metrics",
    "/api/v1/status",
    "/api/v1/units",
    "/api/v1/units/flow/price",
    "/api/v1/units/flow/absent",
    "/api/v1/dlq",
    "/api/v1/no-such-path",
    "/",
];
const OPEN: &[&str] = &["/healthz", "/readyz"];

fn told(ground: &Ground, registry: &Arc<Registry>) -> Told {
    let context = ground.context("alpha");
    let loaded = Loaded::default();
    loaded.set();
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
    let unit = registry.add(UnitId::new(UnitKind::Flow, "price"), &[7; 32], "flows.yaml:3".to_owned());
    unit.set_state(State::Running, None);
    unit
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_but_health_wants_a_token_when_one_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::open(folder.path()).await;
    let registry = Arc::new(Registry::default());
    running_flow(&registry);
    let dead_letters = StreamConfig {
        name: ground.names.dead_letters(),
        subjects: ground.names.dead_letter_subjects(),
        ..ground.bus.stream(&ground.names.messages()).await.unwrap().config
    };
    ground.bus.ensure_stream(dead_letters).await.unwrap();
    let client = client(None);
    for (write, read) in [(None, None), (Some("w"), None), (None, Some("r")), (Some("w"), Some("r"))] {
        let serving = serve(told(&ground, &registry), Tokens::new(write, read).unwrap(), None).await;
        for token in [None, Some("w"), Some("r"), Some("x")] {
            let is_open = write.is_none() && read.is_none();
            let reads = is_open || (token.is_some() && (token == write || token == read));
            let writes = is_open || (token.is_some() && token == write);
            for path in OPEN.iter().chain(GUARDED) {
                let ask = async |method: reqwest::Method| {
                    let mut request = client.request(method, serving.url(path));
                    if let Some(token) = token {
                        request = request.bearer_auth(token);
                    }
                    request.send().await.unwrap().status().as_u16()
                };
                let case = format!("write {write:?}, read {read:?}, given {token:?}: {path}");
                let found = match *path {
                    "/" | "/api/v1/no-such-path" | "/api/v1/units/flow/absent" => 404,
                    _ => 200,
                };
                let guarded = GUARDED.contains(path);
                let expected = if guarded && !reads { 401 } else { found };
                assert_eq!(ask(reqwest::Method::GET).await, expected, "GET {case}");
                let not_allowed = if matches!(*path, "/" | "/api/v1/no-such-path") { 404 } else { 405 };
                let expected = match (guarded, reads, writes) {
                    (true, false, _) => 401,
                    (true, true, false) => 403,
                    _ => not_allowed,
                };
                assert_eq!(ask(reqwest::Method::POST).await, expected, "POST {case}");
            }
        }
        serving.ended.cancel();
        serving.task.await.unwrap();
    }
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
    let unit = registry.add(UnitId::new(UnitKind::Sink, "erp"), &[7; 32], "m.yaml:1".to_owned());
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
    let sink = registry.add(UnitId::new(UnitKind::Sink, "erp"), &[7; 32], "m.yaml:1".to_owned());
    sink.set_state(State::Paused, Some("breaker open".to_owned()));
    let serving = serve(told(&ground, &registry), Tokens::new(None, Some("r")).unwrap(), None).await;

    let args = |token: Option<&str>| Args {
        server: serving.url("/"),
        token: token.map(str::to_owned),
        ca: None,
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
    let args = Args { server, token: None, ca: Some(files.cert), output: Output::Json, watch: false };
    assert_eq!(status::fetch(&args).await.unwrap().instance, "alpha");
    let untrusting = Args { ca: None, ..args };
    assert!(matches!(status::fetch(&untrusting).await, Err(status::Error::Unreachable { .. })));
}
