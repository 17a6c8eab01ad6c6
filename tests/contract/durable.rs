//! Handing out: filters, starts, acknowledgement, repetition, limits.

use std::time::Duration;

use vejas::ports::bus::{DurableConfig, Error, Start};
use vejas::time::Timestamp;

use crate::*;

pub async fn each_durable_gets_what_its_filters_match_in_order<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let bus = fixture.bus();
    let mut durables = Vec::new();
    let wanted: [(&[&str], &[u64]); 4] =
        [(&["a.>"], &[1, 2, 4]), (&["a.*"], &[1, 4]), (&["b.x", "a.y.z"], &[2, 3]), (&["*.x"], &[1, 3])];
    for (n, (filters, _)) in wanted.iter().enumerate() {
        let config = DurableConfig { name: format!("d{n}"), ..durable_config::<F>(filters) };
        durables.push(bus.ensure_durable(STREAM, config).await.unwrap());
    }
    for subject in ["a.x", "a.y.z", "b.x", "a.w"] {
        publish(fixture, subject, subject).await;
    }
    for (durable, (filters, expected)) in durables.iter().zip(wanted) {
        let deliveries = pull_exactly(fixture, durable, expected.len()).await;
        assert_eq!(sequences(&deliveries), expected, "{filters:?}");
        assert!(deliveries.iter().all(|d| d.attempt == 1 && d.message.payload == d.message.subject.as_bytes()));
    }
}

pub async fn a_message_that_matches_two_filters_comes_once<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>", "a.x"]).await;
    publish(fixture, "a.x", "1").await;
    pull_exactly(fixture, &durable, 1).await;
}

pub async fn a_new_durable_begins_where_it_is_told<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    for n in 0..4 {
        publish(fixture, "a.x", &n.to_string()).await;
        fixture.advance(F::PACE).await;
    }
    let times: Vec<Timestamp> =
        fixture.bus().read(STREAM, 1, &[], 10).await.unwrap().iter().map(|stored| stored.time).collect();
    let starts: [(Start, &[u64]); 6] = [
        (Start::First, &[1, 2, 3, 4, 5]),
        (Start::End, &[5]),
        (Start::Sequence(3), &[3, 4, 5]),
        (Start::Sequence(6), &[]),
        (Start::Time(times[1]), &[2, 3, 4, 5]),
        (Start::Time(times[1].plus(Duration::from_millis(1))), &[3, 4, 5]),
    ];
    let mut durables = Vec::new();
    for (n, (start, _)) in starts.iter().enumerate() {
        let config = DurableConfig { name: format!("d{n}"), start: *start, ..durable_config::<F>(&["a.>"]) };
        durables.push(fixture.bus().ensure_durable(STREAM, config).await.unwrap());
    }
    publish(fixture, "a.x", "5").await;
    for (durable, (start, expected)) in durables.iter().zip(starts) {
        assert_eq!(sequences(&pull_exactly(fixture, durable, expected.len()).await), expected, "{start:?}");
    }
}

pub async fn a_pull_waits_for_the_next_message<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    let pulling = tokio::spawn(fixture.bus().pull(&durable, 10, usize::MAX, SOON));
    tokio::task::yield_now().await;
    publish(fixture, "b.x", "foreign").await;
    publish(fixture, "a.x", "1").await;
    assert_eq!(sequences(&pulling.await.unwrap().unwrap()), [2]);
}

pub async fn unanswered_messages_come_again_after_the_ack_wait<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    publish_many(fixture, "a.x", 3).await;
    pull_exactly(fixture, &durable, 3).await;
    acknowledge(fixture, &durable, &[2]).await;
    fixture.advance(F::ACK_WAIT - F::GRAIN).await;
    nothing_comes(fixture, &durable).await;
    let pulling = tokio::spawn(fixture.bus().pull(&durable, 10, usize::MAX, SOON));
    fixture.advance(F::GRAIN).await;
    let mut again = pulling.await.unwrap().unwrap();
    // They were handed out one after the other, and so they time out.
    again.extend(pull_exactly(fixture, &durable, 2 - again.len()).await);
    assert_eq!(attempts(&again), [(1, 2), (3, 2)]);
    acknowledge(fixture, &durable, &[1]).await;
    fixture.advance(F::ACK_WAIT).await;
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 1).await), [(3, 3)]);
}

pub async fn in_progress_keeps_a_message_from_coming_again<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    publish_many(fixture, "a.x", 2).await;
    pull_exactly(fixture, &durable, 2).await;
    for _ in 0..3 {
        fixture.advance(F::ACK_WAIT * 2 / 3).await;
        fixture.bus().in_progress(&durable, &[1]).await.unwrap();
    }
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 1).await), [(2, 2)]);
    fixture.advance(F::ACK_WAIT * 2 / 3).await;
    nothing_comes(fixture, &durable).await;
}

pub async fn a_put_off_message_comes_again_after_its_delay<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    publish_many(fixture, "a.x", 3).await;
    pull_exactly(fixture, &durable, 3).await;
    acknowledge(fixture, &durable, &[3]).await;
    fixture.bus().put_off(&durable, 1, F::PUT_OFF).await.unwrap();
    fixture.bus().put_off(&durable, 2, Duration::ZERO).await.unwrap();
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 1).await), [(2, 2)]);
    acknowledge(fixture, &durable, &[2]).await;
    fixture.advance(F::PUT_OFF - F::GRAIN).await;
    nothing_comes(fixture, &durable).await;
    fixture.advance(F::GRAIN).await;
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 1).await), [(1, 2)]);
}

pub async fn attempts_count_on_over_restarts<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    publish(fixture, "a.x", "poison").await;
    for attempt in 1..=4 {
        assert_eq!(attempts(&pull_exactly(fixture, &durable, 1).await), [(1, attempt)]);
        fixture.reopen().await;
    }
}

pub async fn all_and_only_unacknowledged_messages_come_again_after_a_restart<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    for n in 0..40 {
        publish(fixture, if n % 4 == 3 { "b.x" } else { "a.x" }, &n.to_string()).await;
    }
    let pulled = pull(fixture, &durable, 20, SOON).await;
    let mut pulled = sequences(&pulled);
    while pulled.len() < 20 {
        pulled.extend(sequences(&pull(fixture, &durable, 20 - pulled.len(), SOON).await));
    }
    let (acked, open): (Vec<u64>, Vec<u64>) = pulled.iter().partition(|sequence| *sequence % 3 == 0);
    acknowledge(fixture, &durable, &acked).await;
    fixture.reopen().await;
    let after = pull_exactly(fixture, &durable, 30 - acked.len()).await;
    let (again, fresh): (Vec<_>, Vec<_>) = attempts(&after).into_iter().partition(|(_, attempt)| *attempt == 2);
    assert_eq!(again.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), open);
    assert_eq!(fresh.len(), 10);
    assert!(fresh.iter().all(|(sequence, attempt)| *attempt == 1 && *sequence > pulled[19]));
}

pub async fn put_off_messages_keep_their_time_over_a_restart<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    publish(fixture, "a.x", "1").await;
    pull_exactly(fixture, &durable, 1).await;
    fixture.bus().put_off(&durable, 1, F::PUT_OFF).await.unwrap();
    fixture.advance(F::PUT_OFF / 2).await;
    fixture.reopen().await;
    nothing_comes(fixture, &durable).await;
    let info = fixture.bus().durable(&durable).await.unwrap();
    assert_eq!((info.in_flight + info.redelivering, info.pending), (1, 0));
    fixture.advance(F::PUT_OFF / 2).await;
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 1).await), [(1, 2)]);
}

pub async fn no_more_than_the_in_flight_limit_is_out<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let config = DurableConfig { in_flight_max: 3, ..durable_config::<F>(&["a.>"]) };
    let durable = fixture.bus().ensure_durable(STREAM, config).await.unwrap();
    publish_many(fixture, "a.x", 5).await;
    assert_eq!(sequences(&pull_exactly(fixture, &durable, 3).await), [1, 2, 3]);
    let pulling = tokio::spawn(fixture.bus().pull(&durable, 10, usize::MAX, SOON));
    tokio::task::yield_now().await;
    acknowledge(fixture, &durable, &[2]).await;
    assert_eq!(sequences(&pulling.await.unwrap().unwrap()), [4]);
    fixture.bus().ensure_durable(STREAM, durable_config::<F>(&["a.>"])).await.unwrap();
    assert_eq!(sequences(&pull_exactly(fixture, &durable, 1).await), [5]);
}

pub async fn a_pull_keeps_to_its_bytes_but_gives_at_least_one<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    // Large, because an adapter may count what it adds to a message.
    let payload = "x".repeat(4000);
    let messages = vec![message("a.x", &payload); 5];
    let two_and_a_half = 5 * messages[0].size_bytes() / 2;
    let bus = fixture.bus();
    bus.publish_batch(Batch { stream: STREAM.into(), messages, expected: Vec::new() }).await.unwrap();
    assert_eq!(sequences(&bus.pull(&durable, 10, two_and_a_half, SOON).await.unwrap()), [1, 2]);
    assert_eq!(sequences(&bus.pull(&durable, 10, 1, SOON).await.unwrap()), [3]);
    fixture.reopen().await;
    fixture.advance(F::ACK_WAIT).await;
    let bus = fixture.bus();
    assert_eq!(attempts(&bus.pull(&durable, 10, two_and_a_half, SOON).await.unwrap()), [(1, 2), (2, 2)]);
    assert_eq!(attempts(&bus.pull(&durable, 10, 1, SOON).await.unwrap()), [(3, 2)]);
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 2).await), [(4, 1), (5, 1)]);
}

pub async fn a_durable_far_behind_gets_everything_in_order<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let config = DurableConfig { in_flight_max: 100, ..durable_config::<F>(&["a.x", "a.y"]) };
    let durable = fixture.bus().ensure_durable(STREAM, config).await.unwrap();
    let mut wanted = Vec::new();
    for round in 0..12 {
        wanted.extend(publish_many(fixture, "a.x", 700).await);
        publish_many(fixture, "b.x", 300).await;
        wanted.extend(publish_many(fixture, "a.y", 200).await);
        if round == 8 {
            fixture.reopen().await;
        }
    }
    let mut got = Vec::new();
    while got.len() < wanted.len() {
        let pulled = sequences(&pull(fixture, &durable, 100, SOON).await);
        assert!(!pulled.is_empty(), "{} of {}", got.len(), wanted.len());
        acknowledge(fixture, &durable, &pulled).await;
        got.extend(pulled);
    }
    assert_eq!(got, wanted);
    nothing_comes(fixture, &durable).await;
    let info = fixture.bus().durable(&durable).await.unwrap();
    assert_eq!((info.pending, info.in_flight), (0, 0));
}

pub async fn two_pullers_share_the_messages<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    let puller = |_| {
        let (bus, durable) = (fixture.bus(), durable.clone());
        tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                let pulled = bus.pull(&durable, 7, usize::MAX, Duration::from_millis(300)).await.unwrap();
                if pulled.is_empty() {
                    return got;
                }
                got.extend(sequences(&pulled));
            }
        })
    };
    let pullers: Vec<_> = (0..2).map(puller).collect();
    let wanted = publish_many(fixture, "a.x", 100).await;
    let mut got = Vec::new();
    for puller in pullers {
        got.extend(puller.await.unwrap());
    }
    got.sort_unstable();
    assert_eq!(got, wanted);
}

pub async fn ensuring_a_durable_is_idempotent_and_keeps_filters<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let bus = fixture.bus();
    let durable = make_durable(fixture, &["a.>", "b.x"]).await;
    publish_many(fixture, "a.x", 2).await;
    acknowledge(fixture, &durable, &sequences(&pull_exactly(fixture, &durable, 2).await)).await;
    let changed = DurableConfig { in_flight_max: 7, ..durable_config::<F>(&["b.x", "a.>"]) };
    assert_eq!(bus.ensure_durable(STREAM, changed).await.unwrap(), durable);
    nothing_comes(fixture, &durable).await;
    let error = refused(bus.ensure_durable(STREAM, durable_config::<F>(&["a.>"])).await);
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    fixture.reopen().await;
    let info = fixture.bus().durable(&durable).await.unwrap();
    assert_eq!((info.config.in_flight_max, info.ack_floor), (7, 2));
}

pub async fn a_deleted_durable_is_gone_and_may_be_made_again<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let bus = fixture.bus();
    let durable = make_durable(fixture, &["a.>"]).await;
    publish(fixture, "a.x", "1").await;
    acknowledge(fixture, &durable, &sequences(&pull_exactly(fixture, &durable, 1).await)).await;
    bus.delete_durable(&durable).await.unwrap();
    bus.delete_durable(&durable).await.unwrap();
    assert!(matches!(refused(bus.durable(&durable).await), Error::NoDurable { .. }));
    assert_eq!(bus.durables(STREAM).await.unwrap(), []);
    fixture.reopen().await;
    assert!(matches!(refused(fixture.bus().durable(&durable).await), Error::NoDurable { .. }));
    let durable = make_durable(fixture, &["a.*"]).await;
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 1).await), [(1, 1)]);
}

pub async fn the_state_of_a_durable_is_told<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    publish(fixture, "b.x", "foreign").await;
    fixture.advance(F::PACE).await;
    for n in 0..5 {
        publish(fixture, "a.x", &n.to_string()).await;
        fixture.advance(F::PACE).await;
    }
    let times: Vec<Timestamp> =
        fixture.bus().read(STREAM, 1, &[], 10).await.unwrap().iter().map(|stored| stored.time).collect();
    let bus = fixture.bus();
    let info = bus.durable(&durable).await.unwrap();
    assert_eq!((info.ack_floor, info.delivered, info.pending), (1, 0, 5));
    assert_eq!(info.oldest_unacknowledged, Some(times[1]));
    pull(fixture, &durable, 3, SOON).await;
    acknowledge(fixture, &durable, &[2]).await;
    bus.put_off(&durable, 3, SOON).await.unwrap();
    let info = bus.durable(&durable).await.unwrap();
    assert_eq!((info.ack_floor, info.delivered, info.pending), (2, 4, 2));
    // One is out, one is put off; not every bus tells these apart.
    assert_eq!(info.in_flight + info.redelivering, 2);
    if bus.settles_atomically() {
        assert_eq!((info.in_flight, info.redelivering), (1, 1));
    }
    assert_eq!(info.oldest_unacknowledged, Some(times[2]));
    assert_eq!(bus.durables(STREAM).await.unwrap(), [info]);
    acknowledge(fixture, &durable, &[3, 4]).await;
    acknowledge(fixture, &durable, &sequences(&pull_exactly(fixture, &durable, 2).await)).await;
    publish(fixture, "b.x", "foreign").await;
    let info = bus.durable(&durable).await.unwrap();
    assert_eq!((info.ack_floor, info.pending, info.oldest_unacknowledged), (7, 0, None));
}

pub async fn a_late_acknowledgement_counts<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let durable = make_durable(fixture, &["a.>"]).await;
    publish(fixture, "a.x", "1").await;
    pull_exactly(fixture, &durable, 1).await;
    fixture.advance(F::ACK_WAIT * 2).await;
    acknowledge(fixture, &durable, &[1]).await;
    nothing_comes(fixture, &durable).await;
}
