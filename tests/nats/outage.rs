//! The server goes away and comes back.

use std::time::Instant;

use futures_util::StreamExt;
use vejas::bus::nats::{Nats, State};
use vejas::ports::bus::{Bus, Error, Settlement};
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
