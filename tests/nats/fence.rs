//! Conditions and batches, as the server checks them.

use vejas::ports::bus::{Batch, Bus, Error};

use crate::server::{self, Cluster, Server};
use crate::*;

fn batch(payloads: &[&str], fence: u64) -> Batch {
    let mut messages: Vec<_> = payloads.iter().map(|payload| message("a.data", payload)).collect();
    messages.push(message("a.own", "fence"));
    Batch { stream: "S".into(), messages, expected: vec![expected("a.own", fence)] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_fence_refuses_the_whole_batch() {
    let server = Server::start();
    let bus: Arc<dyn Bus> = server::connect(&server).await;
    bus.ensure_stream(stream_config()).await.unwrap();
    let acks = bus.publish_batch(batch(&["1", "2"], 0)).await.unwrap();
    assert_eq!(acks.iter().map(|ack| ack.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    let error = bus.publish_batch(batch(&["3"], 0)).await.unwrap_err();
    assert!(matches!(error, Error::WrongLast { actual: 3, expected: 0, .. }), "{error:?}");
    bus.publish_batch(batch(&["3"], 3)).await.unwrap();
    assert_eq!(payloads(&bus).await, ["1", "2", "fence", "3", "fence"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_id_in_a_batch_stores_the_others() {
    let server = Server::start();
    let bus: Arc<dyn Bus> = server::connect(&server).await;
    bus.ensure_stream(stream_config()).await.unwrap();
    let with_id = |id: &str| Outgoing { transport_id: Some(id.into()), ..message("a.x", id) };
    bus.publish(&"S".into(), with_id("1"), None).await.unwrap();
    let messages = vec![with_id("1"), with_id("2")];
    let acks = bus.publish_batch(Batch { stream: "S".into(), messages, expected: vec![] }).await.unwrap();
    assert_eq!(acks.iter().map(|ack| (ack.sequence, ack.duplicate)).collect::<Vec<_>>(), [(1, true), (2, false)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_three_replicas_a_busy_subject_is_tried_again_and_one_writer_wins() {
    let cluster = Cluster::start();
    let mut options = server::options(&cluster.url());
    options.replicas = 3;
    let bus: Arc<dyn Bus> = vejas::bus::nats::Nats::connect(options).await.unwrap();
    bus.ensure_stream(stream_config()).await.unwrap();
    let calls = (0..20).map(|n| bus.publish_batch(batch(&[&n.to_string()], 0)));
    let results = futures_util::future::join_all(calls).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    let lost = |error: &Error| matches!(error, Error::WrongLast { .. } | Error::Unavailable(_));
    assert!(results.iter().flat_map(|result| result.as_ref().err()).all(lost), "{results:?}");
    assert_eq!(bus.stream("S").await.unwrap().last, 2);
}
