//! Storing messages: order, duplicates, conditions, limits.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use vejas::flow::message::Outgoing;
use vejas::ports::bus::{Batch, Error, SETTLEMENT_RESERVE_PERCENT, StreamConfig};

use crate::*;

pub async fn sequences_are_gapless_and_in_call_order<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let bus = fixture.bus();
    // Not polled until all calls are made: the calls count, not the polling.
    let calls: Vec<_> = (0..50).map(|n| bus.publish(&stream, message("a.x", &n.to_string()), None)).collect();
    let mut acks = join_all(calls.into_iter().rev()).await;
    acks.reverse();
    let sequences: Vec<u64> = acks.into_iter().map(|ack| ack.unwrap().sequence).collect();
    assert_eq!(sequences, (1..=50).collect::<Vec<_>>());
    let stored = bus.read(STREAM, 1, &[], 100).await.unwrap();
    assert_eq!(stored.len(), 50);
    for (n, stored) in stored.iter().enumerate() {
        assert_eq!((stored.sequence, &stored.payload[..]), (n as u64 + 1, n.to_string().as_bytes()));
    }
}

pub async fn concurrent_publishers_share_one_gapless_sequence<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let publisher = |p: usize| {
        let (bus, stream) = (fixture.bus(), stream.clone());
        tokio::spawn(async move {
            let mut sequences = Vec::new();
            for n in 0..20 {
                let ack = bus.publish(&stream, message(&format!("a.{p}"), &n.to_string()), None).await.unwrap();
                sequences.push(ack.sequence);
            }
            assert!(sequences.is_sorted());
            sequences
        })
    };
    let mut sequences = Vec::new();
    for publisher in (0..16).map(publisher).collect::<Vec<_>>() {
        sequences.extend(publisher.await.unwrap());
    }
    sequences.sort_unstable();
    assert_eq!(sequences, (1..=320).collect::<Vec<_>>());
}

pub async fn a_known_id_stores_nothing_and_answers_the_first_sequence<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let bus = fixture.bus();
    let first = bus.publish(&stream, with_id("a.x", "1", "id-1"), None).await.unwrap();
    publish(fixture, "a.x", "2").await;
    let again = bus.publish(&stream, with_id("a.x", "other", "id-1"), None).await.unwrap();
    assert_eq!((again.sequence, again.duplicate), (first.sequence, true));
    let messages = vec![with_id("a.x", "3", "id-3"), with_id("a.x", "1", "id-1"), with_id("a.x", "3", "id-3")];
    let acks = bus.publish_batch(Batch { stream, messages, expected: Vec::new() }).await.unwrap();
    assert_eq!(acks.iter().map(|a| (a.sequence, a.duplicate)).collect::<Vec<_>>(), [(3, false), (1, true), (3, true)]);
    assert_eq!(bus.stream(STREAM).await.unwrap().messages, 3);
}

pub async fn an_id_is_forgotten_after_the_window<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let bus = fixture.bus();
    bus.publish(&stream, with_id("a.x", "1", "id"), None).await.unwrap();
    fixture.advance(F::WINDOW - F::GRAIN).await;
    assert!(bus.publish(&stream, with_id("a.x", "1", "id"), None).await.unwrap().duplicate);
    fixture.advance(2 * F::GRAIN).await;
    let ack = bus.publish(&stream, with_id("a.x", "1", "id"), None).await.unwrap();
    assert_eq!((ack.sequence, ack.duplicate), (2, false));
    assert!(bus.publish(&stream, with_id("a.x", "1", "id"), None).await.unwrap().duplicate);
}

pub async fn ids_are_remembered_over_a_restart<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let long = "x".repeat(3000);
    for id in ["short", &long] {
        fixture.bus().publish(&stream, with_id("a.x", "1", id), None).await.unwrap();
    }
    fixture.reopen().await;
    for (id, sequence) in [("short", 1), (long.as_str(), 2)] {
        let ack = fixture.bus().publish(&stream, with_id("a.x", "1", id), None).await.unwrap();
        assert_eq!((ack.sequence, ack.duplicate), (sequence, true));
    }
}

pub async fn concurrent_messages_with_one_id_are_stored_once<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let bus = fixture.bus();
    let calls = (0..32).map(|_| bus.publish(&stream, with_id("a.x", "1", "same"), None));
    let acks: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(acks.iter().filter(|ack| !ack.duplicate).count(), 1);
    assert!(acks.iter().all(|ack| ack.sequence == 1));
}

pub async fn a_condition_on_the_last_sequence_wins_or_loses<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let bus = fixture.bus();
    let put = |last| bus.publish(&stream, message("a.x", "m"), Some(expected("a.x", last)));
    assert_eq!(put(0).await.unwrap().sequence, 1);
    publish(fixture, "a.y", "other").await;
    match refused(put(0).await) {
        Error::WrongLast { subject, expected: 0, actual: 1 } => assert_eq!(subject, "a.x"),
        other => panic!("{other}"),
    }
    assert_eq!(put(1).await.unwrap().sequence, 3);
    fixture.reopen().await;
    let bus = fixture.bus();
    let late = bus.publish(&stream, message("a.x", "m"), Some(expected("a.x", 1))).await;
    assert!(matches!(refused(late), Error::WrongLast { actual: 3, .. }));
}

pub async fn one_of_many_conditional_publishers_wins<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let bus = fixture.bus();
    let calls = (0..16).map(|n| bus.publish(&stream, message("a.x", &n.to_string()), Some(expected("a.x", 0))));
    let results = join_all(calls).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(results.iter().flat_map(|r| r.as_ref().err()).all(|e| matches!(e, Error::WrongLast { .. })));
    assert_eq!(bus.stream(STREAM).await.unwrap().last, 1);
}

pub async fn a_batch_is_stored_whole_or_not_at_all<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let bus = fixture.bus();
    let big = Outgoing { payload: Bytes::from(vec![0; 65 * 1024]), ..message("a.x", "big") };
    let cases = [
        (vec![message("a.x", "1"), big], vec![]),
        (vec![message("a.x", "1"), message("foreign", "2")], vec![]),
        (vec![message("a.x", "1"), message("a.y", "2")], vec![expected("a.x", 0), expected("a.y", 7)]),
    ];
    for (messages, expected) in cases {
        refused(bus.publish_batch(Batch { stream: stream.clone(), messages, expected }).await);
        let info = bus.stream(STREAM).await.unwrap();
        assert_eq!((info.last, info.messages, info.bytes), (0, 0, 0));
    }
    let messages = vec![message("a.x", "1"), message("a.y", "2")];
    let expected = vec![expected("a.x", 0), expected("a.y", 0)];
    let acks = bus.publish_batch(Batch { stream, messages, expected }).await.unwrap();
    assert_eq!(sequences_of(&acks), [1, 2]);
}

pub async fn a_full_stream_refuses_until_it_is_trimmed<F: Fixture>(fixture: &mut F) {
    let bus = fixture.bus();
    let stream: Arc<str> = STREAM.into();
    // Large, because an adapter may count what it adds to a message.
    let big = || message("a.x", &"x".repeat(8000));
    let bytes_max = 100 * big().size_bytes() as u64;
    bus.ensure_stream(StreamConfig { bytes_max, ..stream_config::<F>() }).await.unwrap();
    let mut stored = 0;
    let error = loop {
        match bus.publish(&stream, big(), None).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }) && error.is_retryable(), "{error}");
    let open = 100 - SETTLEMENT_RESERVE_PERCENT;
    assert!((open * 9 / 10..=open).contains(&stored), "{stored} of {open}");
    // The rest is for settlements, so that a full stream can be worked off.
    let settle = |count| {
        let batch = Batch { stream: stream.clone(), messages: vec![big(); count], expected: Vec::new() };
        bus.settle(Settlement { batches: vec![batch], ..Settlement::default() })
    };
    let whole_reserve = SETTLEMENT_RESERVE_PERCENT as usize;
    settle(whole_reserve * 7 / 10).await.unwrap();
    assert!(matches!(refused(settle(whole_reserve).await), Error::Full { .. }));
    assert!(bus.stream(STREAM).await.unwrap().bytes <= bytes_max);
    let last = bus.stream(STREAM).await.unwrap().last;
    assert_eq!(bus.trim(STREAM, last, &[]).await.unwrap(), last - 1);
    assert!(bus.stream(STREAM).await.unwrap().bytes < bytes_max / 50);
    assert_eq!(bus.publish(&stream, message("a.x", "1"), None).await.unwrap().sequence, last + 1);
}

pub async fn a_message_above_the_limit_is_refused<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    let bus = fixture.bus();
    let sized = |bytes: usize| {
        let rest = message("a.x", "").size_bytes();
        Outgoing { payload: Bytes::from(vec![7; bytes - rest]), ..message("a.x", "") }
    };
    match refused(bus.publish(&stream, sized(64 * 1024 + 1), None).await) {
        Error::TooLarge { bytes, bytes_max } => assert_eq!((bytes, bytes_max), (64 * 1024 + 1, 64 * 1024)),
        other => panic!("{other}"),
    }
    bus.publish(&stream, sized(64 * 1024), None).await.unwrap();
}

pub async fn a_foreign_subject_is_refused<F: Fixture>(fixture: &mut F) {
    let stream = make_stream(fixture).await;
    for subject in ["c.x", "a", "b.x.y", "a.*"] {
        let error = refused(fixture.bus().publish(&stream, message(subject, "1"), None).await);
        assert!(matches!(error, Error::ForeignSubject { .. }), "{subject}: {error}");
    }
}

pub async fn ensuring_a_stream_is_idempotent_and_adjusts_limits_only<F: Fixture>(fixture: &mut F) {
    let bus = fixture.bus();
    let first = bus.ensure_stream(stream_config::<F>()).await.unwrap();
    publish(fixture, "a.x", "1").await;
    fixture.advance(F::PACE).await;
    let changed = StreamConfig { bytes_max: 5000, duplicate_window: Duration::from_secs(1), ..stream_config::<F>() };
    let second = bus.ensure_stream(changed.clone()).await.unwrap();
    assert_eq!((second.created, second.last, &second.config), (first.created, 1, &changed));
    let other = StreamConfig { subjects: vec!["a.>".into()], ..stream_config::<F>() };
    assert!(matches!(refused(bus.ensure_stream(other).await), Error::Mismatch { .. }));
    fixture.reopen().await;
    assert_eq!(fixture.bus().stream(STREAM).await.unwrap().config, changed);
}

pub async fn no_two_streams_share_a_subject<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let other = StreamConfig { name: "T".into(), subjects: vec!["*.x".into()], ..stream_config::<F>() };
    let error = refused(fixture.bus().ensure_stream(other).await);
    assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
    let other = StreamConfig { name: "T".into(), subjects: vec!["c.>".into()], ..stream_config::<F>() };
    fixture.bus().ensure_stream(other).await.unwrap();
}

pub async fn a_missing_stream_is_named<F: Fixture>(fixture: &mut F) {
    let bus = fixture.bus();
    let error = refused(bus.publish(&"nope".into(), message("a.x", "1"), None).await);
    assert!(matches!(error, Error::NoStream(name) if name == "nope"));
    make_stream(fixture).await;
    let durable = Durable { stream: STREAM.into(), name: "nope".into() };
    let error = refused(bus.pull(&durable, 1, 1, BRIEF).await);
    assert!(matches!(error, Error::NoDurable { durable, .. } if durable == "nope"));
}
