//! Reading by sequence, subject and time; removing.

use vejas::flow::message::Stored;

use crate::*;

async fn read<F: Fixture>(fixture: &F, from: u64, filters: &[&str], messages_max: usize) -> Vec<u64> {
    let filters: Vec<String> = filters.iter().map(|filter| (*filter).to_owned()).collect();
    let stored: Vec<Stored> = fixture.bus().read(STREAM, from, &filters, messages_max).await.unwrap();
    stored.iter().map(|stored| stored.sequence).collect()
}

pub async fn reading_filters_and_begins_where_it_is_told<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    assert_eq!(read(fixture, 1, &[], 10).await, [0; 0]);
    for subject in ["a.x", "b.x", "a.y", "a.x", "b.y", "a.x"] {
        publish(fixture, subject, subject).await;
    }
    for _ in 0..2 {
        assert_eq!(read(fixture, 0, &[], 10).await, [1, 2, 3, 4, 5, 6]);
        assert_eq!(read(fixture, 2, &["a.x"], 10).await, [4, 6]);
        assert_eq!(read(fixture, 1, &["a.*", "b.y"], 10).await, [1, 3, 4, 5, 6]);
        assert_eq!(read(fixture, 1, &["c.>"], 10).await, [0; 0]);
        assert_eq!(read(fixture, 7, &[], 10).await, [0; 0]);
        fixture.reopen().await;
    }
}

pub async fn a_read_is_bounded_in_messages<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    publish_many(fixture, "a.x", 2500).await;
    let mut all = Vec::new();
    loop {
        let page = read(fixture, all.last().map_or(1, |last| last + 1), &["a.x"], 999).await;
        assert!(page.len() <= 999);
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    assert_eq!(all, (1..=2500).collect::<Vec<_>>());
}

pub async fn the_last_message_of_a_subject_is_found<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let bus = fixture.bus();
    assert_eq!(bus.last(STREAM, "a.x").await.unwrap(), None);
    publish(fixture, "a.x", "1").await;
    publish(fixture, "a.y", "2").await;
    publish(fixture, "a.x", "3").await;
    publish(fixture, "b.x", "4").await;
    let last = bus.last(STREAM, "a.x").await.unwrap().unwrap();
    assert_eq!((last.sequence, last.subject.as_str(), &last.payload[..]), (3, "a.x", &b"3"[..]));
    assert_eq!(last.headers.get("Vejas-Id"), Some("3"));
    // A call made before is seen, even when its answer has not been awaited.
    let publishing = bus.publish(&STREAM.into(), message("a.x", "5"), None);
    assert_eq!(bus.last(STREAM, "a.x").await.unwrap().unwrap().sequence, 5);
    publishing.await.unwrap();
}

pub async fn times_are_found_by_sequence<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let bus = fixture.bus();
    for n in 0..20 {
        publish(fixture, "a.x", &n.to_string()).await;
        fixture.advance(F::PACE).await;
    }
    let stored = bus.read(STREAM, 1, &[], 100).await.unwrap();
    for stored in &stored {
        assert_eq!(bus.sequence_at(STREAM, stored.time).await.unwrap(), stored.sequence);
        let later = stored.time.plus(F::PACE / 2);
        assert_eq!(bus.sequence_at(STREAM, later).await.unwrap(), stored.sequence + 1);
    }
    assert_eq!(bus.sequence_at(STREAM, stored[0].time.minus(SOON)).await.unwrap(), 1);
}

pub async fn trimming_keeps_the_last_of_named_subjects<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let bus = fixture.bus();
    for subject in ["a.own.u", "a.x", "a.own.u", "a.own.v", "a.x", "b.x"] {
        publish(fixture, subject, subject).await;
    }
    assert_eq!(bus.trim(STREAM, 6, &["a.own.*".into()]).await.unwrap(), 3);
    assert_eq!(read(fixture, 1, &[], 10).await, [3, 4, 6]);
    let info = bus.stream(STREAM).await.unwrap();
    assert_eq!((info.first, info.last, info.messages), (3, 6, 3));
    assert_eq!(bus.last(STREAM, "a.own.u").await.unwrap().unwrap().sequence, 3);
    assert_eq!(bus.last(STREAM, "a.x").await.unwrap(), None);
    // The condition counts what is held.
    bus.publish(&STREAM.into(), message("a.own.u", "n"), Some(expected("a.own.u", 3))).await.unwrap();
    bus.publish(&STREAM.into(), message("a.x", "n"), Some(expected("a.x", 0))).await.unwrap();
    assert_eq!(bus.trim(STREAM, u64::MAX, &[]).await.unwrap(), 5);
    let info = bus.stream(STREAM).await.unwrap();
    assert_eq!((info.first, info.last, info.messages, info.bytes), (9, 8, 0, 0));
}

pub async fn removed_messages_are_gone_everywhere<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    let bus = fixture.bus();
    let durable = make_durable(fixture, &["a.>"]).await;
    let late = DurableConfig { name: "late".into(), ..durable_config::<F>(&["a.x"]) };
    publish_many(fixture, "a.x", 5).await;
    publish(fixture, "a.y", "6").await;
    assert_eq!(sequences(&pull(fixture, &durable, 1, SOON).await), [1]);
    assert_eq!(bus.remove(STREAM, &[1, 3, 5, 5, 99]).await.unwrap(), 3);
    assert_eq!(bus.remove(STREAM, &[3]).await.unwrap(), 0);
    for _ in 0..2 {
        assert_eq!(read(fixture, 1, &[], 10).await, [2, 4, 6]);
        assert_eq!(read(fixture, 1, &["a.x"], 10).await, [2, 4]);
        let bus = fixture.bus();
        let info = bus.stream(STREAM).await.unwrap();
        assert_eq!((info.first, info.last, info.messages), (2, 6, 3));
        assert_eq!(bus.last(STREAM, "a.x").await.unwrap().unwrap().sequence, 4);
        fixture.reopen().await;
    }
    fixture.advance(F::ACK_WAIT).await;
    assert_eq!(attempts(&pull_exactly(fixture, &durable, 3).await), [(2, 1), (4, 1), (6, 1)]);
    let late = fixture.bus().ensure_durable(STREAM, late).await.unwrap();
    assert_eq!(sequences(&pull_exactly(fixture, &late, 2).await), [2, 4]);
}

pub async fn trimmed_messages_stay_gone_after_a_restart<F: Fixture>(fixture: &mut F) {
    make_stream(fixture).await;
    for _ in 0..3 {
        publish_many(fixture, "a.x", 1500).await;
    }
    let bytes = fixture.bus().stream(STREAM).await.unwrap().bytes;
    assert_eq!(fixture.bus().trim(STREAM, 4001, &[]).await.unwrap(), 4000);
    fixture.reopen().await;
    let info = fixture.bus().stream(STREAM).await.unwrap();
    assert_eq!((info.first, info.last, info.messages), (4001, 4500, 500));
    assert!(info.bytes < bytes / 8);
    assert_eq!(read(fixture, 1, &[], 1).await, [4001]);
    let durable = make_durable(fixture, &["a.>"]).await;
    assert_eq!(sequences(&pull(fixture, &durable, 1, SOON).await), [4001]);
}
