//! Ending work: outputs, marks and acknowledgements together.

use vejas::ports::bus::{Batch, Error};
use vejas::ports::store::{Condition, Write};

use crate::*;

fn outputs(subject: &str, payloads: &[&str]) -> Batch {
    let messages = payloads.iter().map(|payload| message(subject, payload)).collect();
    Batch { stream: STREAM.into(), messages, expected: Vec::new() }
}

fn mark(key: &str, condition: Condition) -> Write {
    Write { bucket: "B".into(), key: key.into(), value: Some("v".into()), condition, ttl: None }
}

/// A durable with two messages handed out.
async fn two_out<F: Fixture>(fixture: &F) -> Durable {
    make_stream(fixture).await;
    fixture.store().ensure_bucket("B", None).await.unwrap();
    let durable = make_durable(fixture, &["a.x"]).await;
    publish_many(fixture, "a.x", 2).await;
    pull_exactly(fixture, &durable, 2).await;
    durable
}

fn both(durable: &Durable) -> Vec<(Durable, u64)> {
    vec![(durable.clone(), 1), (durable.clone(), 2)]
}

pub async fn outputs_and_acknowledgements_go_together<F: Fixture>(fixture: &mut F) {
    let durable = two_out(fixture).await;
    let batches = vec![outputs("a.out", &["1", "2", "3"]), outputs("b.out", &["4"])];
    let settlement = Settlement { batches, acknowledged: both(&durable), ..Settlement::default() };
    let acks = fixture.bus().settle(settlement).await.unwrap();
    assert_eq!(sequences_of(&acks), [3, 4, 5, 6]);
    fixture.reopen().await;
    fixture.advance(F::ACK_WAIT * 2).await;
    nothing_comes(fixture, &durable).await;
    assert_eq!(fixture.bus().read(STREAM, 3, &["b.*".into()], 10).await.unwrap()[0].payload, "4");
}

pub async fn the_last_acknowledgement_confirms_those_before_it<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.x"]).await;
    publish_many(fixture, "a.x", 50).await;
    pull_exactly(fixture, &durable, 50).await;
    let acknowledged = (1..=50).map(|sequence| (durable.clone(), sequence)).collect();
    let settlement = Settlement { acknowledged, confirm: Confirm::Last, ..Settlement::default() };
    fixture.bus().settle(settlement).await.unwrap();
    let info = fixture.bus().durable(&durable).await.unwrap();
    assert_eq!((info.in_flight, info.redelivering, info.ack_floor), (0, 0, 50));
    fixture.advance(F::ACK_WAIT * 2).await;
    nothing_comes(fixture, &durable).await;
}

pub async fn a_failing_condition_leaves_inputs_unacknowledged_and_outputs_absent<F: Fixture>(fixture: &mut F) {
    let durable = two_out(fixture).await;
    let mut second = outputs("b.out", &["4"]);
    second.expected.push(expected("b.out", 9));
    let batches = vec![outputs("a.out", &["3"]), second];
    let writes = vec![mark("k", Condition::Absent)];
    let settlement = Settlement { batches, writes, acknowledged: both(&durable), ..Settlement::default() };
    let error = refused(fixture.bus().settle(settlement).await);
    assert!(matches!(error, Error::WrongLast { actual: 0, expected: 9, .. }), "{error}");
    if fixture.bus().settles_atomically() {
        assert_eq!(fixture.bus().stream(STREAM).await.unwrap().last, 2);
        assert_eq!(fixture.store().get("B", "k").await.unwrap(), None);
    }
    fixture.advance(F::ACK_WAIT).await;
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 2).await), [(1, 2), (2, 2)]);
}

pub async fn a_failing_store_write_refuses_the_whole_settlement<F: Fixture>(fixture: &mut F) {
    let durable = two_out(fixture).await;
    let writes = vec![mark("new", Condition::Absent), mark("k", Condition::Revision(77))];
    let batches = vec![outputs("a.out", &["3"])];
    let settlement = Settlement { batches, writes, acknowledged: both(&durable), ..Settlement::default() };
    match refused(fixture.bus().settle(settlement).await) {
        Error::WrongRevision { bucket, key } => assert_eq!((bucket.as_str(), key.as_str()), ("B", "k")),
        other => panic!("{other}"),
    }
    if fixture.bus().settles_atomically() {
        assert_eq!(fixture.bus().stream(STREAM).await.unwrap().last, 2);
        assert_eq!(fixture.store().get("B", "new").await.unwrap(), None);
    }
    fixture.advance(F::ACK_WAIT).await;
    pull_exactly(fixture, &durable, 2).await;
}

pub async fn store_writes_go_with_the_settlement<F: Fixture>(fixture: &mut F) {
    let durable = two_out(fixture).await;
    let writes = vec![mark("one", Condition::Absent), mark("two", Condition::Absent)];
    let settlement = Settlement { writes, acknowledged: both(&durable), ..Settlement::default() };
    fixture.bus().settle(settlement).await.unwrap();
    fixture.reopen().await;
    let entries = fixture.store().list("B", "", None, 10).await.unwrap();
    assert_eq!(entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    nothing_comes(fixture, &durable).await;
}

pub async fn acknowledging_the_unknown_changes_nothing<F: Fixture>(fixture: &mut F) {
    let durable = two_out(fixture).await;
    acknowledge(fixture, &durable, &[1]).await;
    acknowledge(fixture, &durable, &[1, 99, 0]).await;
    publish(fixture, "a.x", "3").await;
    assert_eq!(sequences(&pull_exactly(fixture, &durable, 1).await), [3]);
    let info = fixture.bus().durable(&durable).await.unwrap();
    assert_eq!((info.ack_floor, info.in_flight), (1, 2));
}

pub async fn a_later_batch_sees_what_an_earlier_one_stores<F: Fixture>(fixture: &mut F) {
    two_out(fixture).await;
    let mut second = outputs("a.y", &["2"]);
    second.expected.push(expected("a.y", 3));
    let settlement = Settlement { batches: vec![outputs("a.y", &["1"]), second], ..Settlement::default() };
    assert_eq!(sequences_of(&fixture.bus().settle(settlement).await.unwrap()), [3, 4]);
}
