//! The server goes away and comes back.

use std::time::Instant;

use futures_util::StreamExt;
use vejas::bus::nats::{Nats, State};
use vejas::ports::bus::{Batch, Bus, Confirm, DurableConfig, Error, Settlement};
use vejas::ports::store::{Change, Condition, Store, Write};

use crate::server::{self, Server};
use crate::*;

/// How long after the bus is back everything has to work again.
const BACK_WITHIN: Duration = Duration::from_secs(5);

fn entry(key: &str) -> Write {
    Write { bucket: "B".into(), key: key.into(), value: Some("v".into()), condition: Condition::Absent, ttl: None }
}

/// Kills or stops the server while everything is in use, and looks whether all works again by itself.
async fn everything_works_again(kill: bool) {
    let mut server = Server::start();
    let nats = server::connect(&server).await;
    let bus: Arc<dyn Bus> = nats.clone();
    bus.ensure_stream(stream_config()).await.unwrap();
    nats.ensure_bucket("B", None).await.unwrap();
    let durable = bus.ensure_durable("S", durable_config()).await.unwrap();
    let mut watch = nats.watch("B", "");
    assert_eq!(watch.next().await.unwrap().unwrap(), Change::CaughtUp);
    bus.publish(&"S".into(), message("a.x", "before"), None).await.unwrap();
    let baseline = server.held();
    let pulling = tokio::spawn(bus.pull(&durable, 1, usize::MAX, Duration::from_millis(100)));
    if kill {
        server.kill()
    } else {
        server.stop()
    }
    let mut state = nats.state();
    state.wait_for(|state| matches!(state, State::Lost { .. })).await.unwrap();
    let _ = pulling.await.unwrap();
    // Refused at once, and not kept for later.
    let error = bus.publish(&"S".into(), message("a.x", "during"), None).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)) && error.is_retryable(), "{error:?}");
    server.restart();
    let back = Instant::now();
    state.wait_for(|state| matches!(state, State::Connected { .. })).await.unwrap();
    bus.publish(&"S".into(), message("a.x", "after"), None).await.unwrap();
    let mut got = Vec::new();
    while got.len() < 2 {
        for delivery in bus.pull(&durable, 10, usize::MAX, SOON).await.unwrap() {
            let acknowledged = vec![(durable.clone(), delivery.message.sequence)];
            bus.settle(Settlement { acknowledged, ..Settlement::default() }).await.unwrap();
            got.push(String::from_utf8(delivery.message.payload.to_vec()).unwrap());
        }
    }
    got.sort();
    assert_eq!(got, ["after", "before"]);
    nats.write(vec![entry("k")]).await.unwrap();
    let change = tokio::time::timeout(SOON, watch.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(change, Change::Put(entry) if entry.key == "k"));
    assert!(back.elapsed() < BACK_WITHIN, "took {:?}", back.elapsed());
    assert_eq!(payloads(&bus).await, ["before", "after"]);
    // The server forgets what the lost connection held.
    let deadline = Instant::now() + SOON;
    while server.held() != baseline {
        assert!(Instant::now() < deadline, "{:?} instead of {baseline:?}", server.held());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_again_after_a_restart() {
    everything_works_again(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_again_after_a_kill() {
    everything_works_again(true).await;
}

/// A TCP relay that can stop passing anything on while its connections stay open, and cut them.
struct Relay {
    address: std::net::SocketAddr,
    passes: tokio::sync::watch::Sender<bool>,
    cut: Arc<tokio::sync::Notify>,
}

impl Relay {
    async fn to(server: std::net::SocketAddr) -> Relay {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (passes, passing) = tokio::sync::watch::channel(true);
        let cut = Arc::new(tokio::sync::Notify::new());
        let relay = Relay { address, passes, cut: cut.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (passing, cut) = (passing.clone(), cut.clone());
                tokio::spawn(async move {
                    let Ok(server) = tokio::net::TcpStream::connect(server).await else { return };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::select! {
                        () = pass(from_client, to_server, passing.clone()) => {}
                        () = pass(from_server, to_client, passing) => {}
                        () = cut.notified() => {}
                    }
                });
            }
        });
        relay
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut passing: tokio::sync::watch::Receiver<bool>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let open = passing.wait_for(|passes| *passes).await.is_ok();
        if !open || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_is_replaced() {
    let server = Server::start();
    let relay = Relay::to(server.address()).await;
    let nats = Nats::connect(server::options(&format!("nats://{}", relay.address))).await.unwrap();
    nats.ensure_stream(stream_config()).await.unwrap();
    let mut state = nats.state();
    relay.cut.notify_waiters();
    state.wait_for(|state| matches!(state, State::Lost { .. })).await.unwrap();
    state.wait_for(|state| matches!(state, State::Connected { .. })).await.unwrap();
    nats.publish(&"S".into(), message("a.x", "1"), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_black_hole_a_store_is_unknown_and_all_works_again_when_it_opens() {
    let server = Server::start();
    let relay = Relay::to(server.address()).await;
    let nats = Nats::connect(server::options(&format!("nats://{}", relay.address))).await.unwrap();
    nats.ensure_stream(stream_config()).await.unwrap();
    let mut state = nats.state();
    relay.passes.send_replace(false);
    let error = nats.publish(&"S".into(), message("a.x", "1"), None).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    tokio::time::timeout(SOON, state.wait_for(|state| matches!(state, State::Lost { .. }))).await.unwrap().unwrap();
    relay.passes.send_replace(true);
    let back = Instant::now();
    state.wait_for(|state| matches!(state, State::Connected { .. })).await.unwrap();
    nats.publish(&"S".into(), message("a.x", "2"), None).await.unwrap();
    assert!(back.elapsed() < BACK_WITHIN, "took {:?}", back.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_after_a_kill_in_the_middle() {
    let mut server = Server::start();
    let nats = server::connect(&server).await;
    let bus: Arc<dyn Bus> = nats.clone();
    bus.ensure_stream(stream_config()).await.unwrap();
    let stream = "S".into();
    let calls: Vec<_> = (0..3000).map(|n| bus.publish(&stream, message("a.x", &n.to_string()), None)).collect();
    let answers = tokio::spawn(futures_util::future::join_all(calls));
    let mut watched = nats.state();
    while bus.stream("S").await.unwrap().last < 100 {}
    server.kill();
    let answers = answers.await.unwrap();
    watched.wait_for(|state| matches!(state, State::Lost { .. })).await.unwrap();
    server.restart();
    watched.wait_for(|state| matches!(state, State::Connected { .. })).await.unwrap();
    let stored = bus.read("S", 1, &[], 4000).await.unwrap();
    let at = |sequence: u64| stored.iter().find(|stored| stored.sequence == sequence).map(|stored| &stored.payload[..]);
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(ack) => assert_eq!(at(ack.sequence), Some(n.to_string().as_bytes())),
            Err(error) => assert!(matches!(error, Error::Unavailable(_)), "{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_above_the_servers_limit_is_refused_and_the_connection_stays() {
    const SERVER_MAX: usize = 16 * 1024;
    let server = Server::with(&format!("max_payload: {SERVER_MAX}"));
    let nats = server::connect(&server).await;
    nats.ensure_stream(stream_config()).await.unwrap();
    nats.ensure_bucket("B", None).await.unwrap();
    let before = nats.state().borrow().clone();
    let large = "x".repeat(SERVER_MAX);
    let is_refused = |error: Error| {
        assert!(matches!(error, Error::TooLarge { bytes_max, .. } if bytes_max <= SERVER_MAX), "{error:?}");
    };
    is_refused(nats.publish(&"S".into(), message("a.x", &large), None).await.unwrap_err());
    let batch = |messages| Batch { stream: "S".into(), messages, expected: Vec::new() };
    let two = || vec![message("a.x", "1"), message("a.x", &large)];
    is_refused(nats.publish_batch(batch(two())).await.unwrap_err());
    is_refused(nats.settle(Settlement { batches: vec![batch(two())], ..Settlement::default() }).await.unwrap_err());
    let write = Write { value: Some(large.clone().into()), ..entry("k") };
    is_refused(nats.write(vec![write]).await.unwrap_err());
    assert_eq!(nats.stream("S").await.unwrap().last, 0, "nothing of it is stored");
    nats.publish(&"S".into(), message("a.x", &large[..SERVER_MAX / 2]), None).await.unwrap();
    assert_eq!(*nats.state().borrow(), before);
}

/// Reads ahead of a backlog, loses the server in the middle of it, and looks what is left on the server.
#[tokio::test(flavor = "multi_thread")]
async fn reading_ahead_leaves_nothing_behind_on_the_server() {
    let mut server = Server::start();
    let nats = server::connect(&server).await;
    let bus: Arc<dyn Bus> = nats.clone();
    bus.ensure_stream(stream_config()).await.unwrap();
    let config = DurableConfig { in_flight_max: 1000, ..durable_config() };
    let durable = bus.ensure_durable("S", config).await.unwrap();
    let baseline = server.held();
    for first in [0, 1000] {
        let messages = (first..first + 1000).map(|n| message("a.x", &n.to_string())).collect();
        bus.publish_batch(Batch { stream: "S".into(), messages, expected: Vec::new() }).await.unwrap();
    }
    let mut got = std::collections::BTreeSet::new();
    let mut broken = false;
    let deadline = Instant::now() + 3 * SOON;
    while got.len() < 2000 {
        assert!(Instant::now() < deadline, "{} of 2000", got.len());
        // Unavailable while the server is away.
        let Ok(deliveries) = bus.pull(&durable, 100, usize::MAX, SOON).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let acknowledged = deliveries.iter().map(|delivery| (durable.clone(), delivery.message.sequence)).collect();
        let settlement = Settlement { acknowledged, confirm: Confirm::Last, ..Settlement::default() };
        if bus.settle(settlement).await.is_ok() {
            got.extend(deliveries.iter().map(|delivery| delivery.message.sequence));
        }
        if got.len() >= 500 && !broken {
            broken = true;
            server.kill();
            server.restart();
        }
    }
    let deadline = Instant::now() + SOON;
    loop {
        // A server that is killed may forget acknowledgements; what comes again for that is not what this is about.
        for delivery in bus.pull(&durable, 100, usize::MAX, Duration::from_millis(100)).await.unwrap() {
            let acknowledged = vec![(durable.clone(), delivery.message.sequence)];
            bus.settle(Settlement { acknowledged, ..Settlement::default() }).await.unwrap();
        }
        let info = bus.durable(&durable).await.unwrap();
        if (info.in_flight, info.pending) == (0, 0) && server.held() == baseline {
            return;
        }
        assert!(Instant::now() < deadline, "{info:?}, {:?} instead of {baseline:?}", server.held());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Removes what the server had written down of how far its durables are: a kill loses the newest of it, and this all.
fn forget_durables(folder: &std::path::Path) -> usize {
    let mut forgotten = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            forgotten += forget_durables(&path);
        } else if path.file_name().is_some_and(|name| name == "o.dat") {
            std::fs::remove_file(path).unwrap();
            forgotten += 1;
        }
    }
    forgotten
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_delivery_that_a_killed_server_has_forgotten_holds_nothing_up() {
    let mut server = Server::start();
    let nats = server::connect(&server).await;
    let bus: Arc<dyn Bus> = nats.clone();
    bus.ensure_stream(stream_config()).await.unwrap();
    let durable = bus.ensure_durable("S", durable_config()).await.unwrap();
    for text in ["one", "two", "three"] {
        bus.publish(&"S".into(), message("a.x", text), None).await.unwrap();
    }
    let held = bus.pull(&durable, 10, usize::MAX, SOON).await.unwrap();
    assert_eq!(held.len(), 3);
    server.kill();
    let mut state = nats.state();
    state.wait_for(|state| matches!(state, State::Lost { .. })).await.unwrap();
    assert!(forget_durables(server.folder()) >= 1);
    server.restart();
    let back = Instant::now();
    state.wait_for(|state| matches!(state, State::Connected { .. })).await.unwrap();
    // One of each kind; what is not known any more is handed out again, and that is all.
    let last = held[2].message.sequence;
    bus.in_progress(&durable, &[last]).await.unwrap();
    for confirm in [Confirm::Last, Confirm::Each] {
        let acknowledged = held.iter().map(|delivery| (durable.clone(), delivery.message.sequence)).collect();
        bus.settle(Settlement { acknowledged, confirm, ..Settlement::default() }).await.unwrap();
    }
    bus.put_off(&durable, last, Duration::ZERO).await.unwrap();
    let mut again = Vec::new();
    while again.len() < 3 {
        again.extend(bus.pull(&durable, 10, usize::MAX, SOON).await.unwrap());
    }
    assert!(back.elapsed() < BACK_WITHIN, "took {:?}", back.elapsed());
    let acknowledged = again.iter().map(|delivery| (durable.clone(), delivery.message.sequence)).collect();
    bus.settle(Settlement { acknowledged, ..Settlement::default() }).await.unwrap();
    assert_eq!(bus.durable(&durable).await.unwrap().in_flight, 0);
}
