//! Streams and durables that somebody else made or changed.

use std::time::Duration;

use vejas::bus::nats::Nats;
use vejas::ports::bus::{Bus, DurableConfig, Error};
use vejas::ports::store::Store;

use crate::server::{self, Server};
use crate::*;

#[tokio::test(flavor = "multi_thread")]
async fn another_subject_is_refused_with_both_values_and_another_limit_is_brought_in_line() {
    let server = Server::start();
    let bus = server::connect(&server).await;
    bus.ensure_stream(stream_config()).await.unwrap();
    let other = StreamConfig { subjects: vec!["b.>".into()], ..stream_config() };
    let error = bus.ensure_stream(other).await.unwrap_err().to_string();
    assert!(error.contains("a.>") && error.contains("b.>"), "{error}");
    let wider = StreamConfig { bytes_max: 1 << 31, ..stream_config() };
    assert_eq!(bus.ensure_stream(wider.clone()).await.unwrap().config, wider);
    bus.ensure_bucket("B", None).await.unwrap();
    bus.ensure_bucket("B", Some(Duration::from_secs(60))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_binary_leaves_a_newer_ones_durable_alone() {
    let server = Server::start();
    let connect = |version: &'static str| {
        let mut options = server::options(&server.url());
        options.version = version.into();
        async move { Nats::connect(options).await.unwrap() }
    };
    let (old, new) = (connect("0.9.0").await, connect("0.10.0").await);
    old.ensure_stream(stream_config()).await.unwrap();
    let with = |in_flight_max| DurableConfig { in_flight_max, ..durable_config() };
    let durable = old.ensure_durable("S", with(10)).await.unwrap();
    new.ensure_durable("S", with(20)).await.unwrap();
    assert_eq!(new.durable(&durable).await.unwrap().config.in_flight_max, 20);
    old.ensure_durable("S", with(30)).await.unwrap();
    assert_eq!(new.durable(&durable).await.unwrap().config.in_flight_max, 20);
    let other = DurableConfig { filters: vec!["a.x".into()], ..with(20) };
    assert!(matches!(new.ensure_durable("S", other).await, Err(Error::Mismatch { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_is_named_and_not_made_again() {
    let server = Server::start();
    let (bus, other) = (server::connect(&server).await, server::connect(&server).await);
    bus.ensure_stream(stream_config()).await.unwrap();
    let durable = bus.ensure_durable("S", durable_config()).await.unwrap();
    let pulling = tokio::spawn(bus.pull(&durable, 1, usize::MAX, SOON));
    tokio::time::sleep(Duration::from_millis(200)).await;
    other.delete_durable(&durable).await.unwrap();
    assert!(matches!(pulling.await.unwrap(), Err(Error::NoDurable { .. })));
    let client = async_nats::connect(server.url()).await.unwrap();
    client.request("$JS.API.STREAM.DELETE.S", "".into()).await.unwrap();
    let error = bus.publish(&"S".into(), message("a.x", "1"), None).await.unwrap_err();
    assert!(matches!(error, Error::NoStream(_)), "{error:?}");
    bus.ensure_stream(stream_config()).await.unwrap();
    bus.publish(&"S".into(), message("a.x", "1"), None).await.unwrap();
}
