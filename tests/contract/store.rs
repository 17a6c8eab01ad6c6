//! Buckets: conditions, expiry, lists, watches.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use vejas::ports::bus::Error;
use vejas::ports::store::{Change, Condition, Outcome, VALUE_BYTES_MAX, Write};

use crate::*;

fn put(key: &str, value: &str, condition: Condition) -> Write {
    Write { bucket: "B".into(), key: key.into(), value: Some(value.to_owned().into()), condition, ttl: None }
}

fn delete(key: &str, revision: u64) -> Write {
    Write { value: None, ..put(key, "", Condition::Revision(revision)) }
}

async fn write<F: Fixture>(fixture: &F, write: Write) -> Outcome {
    fixture.store().write(vec![write]).await.unwrap().remove(0)
}

async fn create<F: Fixture>(fixture: &F, key: &str, value: &str) -> u64 {
    won(write(fixture, put(key, value, Condition::Absent)).await)
}

#[track_caller]
fn won(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Won(revision) => revision,
        Outcome::Lost(entry) => panic!("lost to {entry:?}"),
    }
}

async fn bucket<F: Fixture>(fixture: &F) {
    fixture.store().ensure_bucket("B", None).await.unwrap();
}

async fn value<F: Fixture>(fixture: &F, key: &str) -> Option<Bytes> {
    fixture.store().get("B", key).await.unwrap().map(|entry| entry.value)
}

pub async fn an_absent_key_is_created_once<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    assert_eq!(value(fixture, "k").await, None);
    let revision = create(fixture, "k", "1").await;
    match write(fixture, put("k", "2", Condition::Absent)).await {
        Outcome::Lost(Some(entry)) => assert_eq!((entry.revision, &entry.value[..]), (revision, &b"1"[..])),
        other => panic!("{other:?}"),
    }
    assert_eq!(value(fixture, "k").await.unwrap(), "1");
}

pub async fn an_update_needs_the_current_revision<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    let first = create(fixture, "k", "1").await;
    let second = won(write(fixture, put("k", "2", Condition::Revision(first))).await);
    assert!(second > first);
    assert!(matches!(write(fixture, put("k", "3", Condition::Revision(first))).await, Outcome::Lost(Some(_))));
    assert!(matches!(write(fixture, put("none", "3", Condition::Revision(first))).await, Outcome::Lost(None)));
    let entry = fixture.store().get("B", "k").await.unwrap().unwrap();
    assert_eq!((entry.revision, &entry.value[..]), (second, &b"2"[..]));
}

pub async fn a_delete_needs_the_current_revision_and_the_key_reads_as_absent<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    let revision = create(fixture, "k", "1").await;
    assert!(matches!(write(fixture, delete("k", revision + 1)).await, Outcome::Lost(Some(_))));
    won(write(fixture, delete("k", revision)).await);
    assert_eq!(value(fixture, "k").await, None);
    assert!(create(fixture, "k", "2").await > revision);
}

pub async fn concurrent_creators_have_one_winner<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    let store = fixture.store();
    let calls = (0..16).map(|n| store.write(vec![put("k", &n.to_string(), Condition::Absent)]));
    let outcomes: Vec<Outcome> = join_all(calls).await.into_iter().map(|o| o.unwrap().remove(0)).collect();
    assert_eq!(outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Won(_))).count(), 1);
    assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Lost(None))));
}

pub async fn entries_expire_by_the_bucket_or_by_themselves<F: Fixture>(fixture: &mut F) {
    let store = fixture.store();
    store.ensure_bucket("B", Some(F::BUCKET_TTL)).await.unwrap();
    create(fixture, "bucket", "1").await;
    let own = Write { ttl: Some(F::ENTRY_TTL), ..put("own", "1", Condition::Absent) };
    let revision = won(write(fixture, own).await);
    fixture.advance(F::ENTRY_TTL + F::EXPIRY_LAG).await;
    assert_eq!(value(fixture, "own").await, None);
    assert!(matches!(write(fixture, put("own", "2", Condition::Revision(revision))).await, Outcome::Lost(None)));
    create(fixture, "own", "3").await;
    fixture.reopen().await;
    fixture.advance(F::BUCKET_TTL - F::ENTRY_TTL).await;
    assert_eq!(value(fixture, "bucket").await, None);
    assert_eq!(value(fixture, "own").await.unwrap(), "3");
    let left = fixture.store().list("B", "", None, 10).await.unwrap();
    assert_eq!(left.len(), 1);
}

pub async fn entries_survive_a_restart<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    let first = create(fixture, "k", "1").await;
    let before = fixture.store().get("B", "k").await.unwrap();
    fixture.reopen().await;
    assert_eq!(fixture.store().get("B", "k").await.unwrap(), before);
    assert!(won(write(fixture, put("k", "2", Condition::Revision(first))).await) > first);
}

pub async fn a_list_is_by_prefix_in_order_and_in_pages<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    fixture.store().ensure_bucket("C", None).await.unwrap();
    for key in ["p/3", "p/1", "q", "p/2", "o"] {
        create(fixture, key, key).await;
    }
    let store = fixture.store();
    let keys = |prefix: &'static str, after: Option<&'static str>, max| {
        let store = store.clone();
        async move {
            let entries = store.list("B", prefix, after, max).await.unwrap();
            entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>()
        }
    };
    assert_eq!(keys("", None, 10).await, ["o", "p/1", "p/2", "p/3", "q"]);
    assert_eq!(keys("p/", None, 2).await, ["p/1", "p/2"]);
    assert_eq!(keys("p/", Some("p/2"), 2).await, ["p/3"]);
    assert!(store.list("C", "", None, 10).await.unwrap().is_empty());
}

async fn next(watch: &mut BoxStream<'static, Result<Change, Error>>) -> Change {
    tokio::time::timeout(SOON, watch.next()).await.expect("a change in time").expect("an open watch").unwrap()
}

fn shown(change: Change) -> (String, Option<String>) {
    match change {
        Change::Put(entry) => (entry.key, Some(String::from_utf8(entry.value.to_vec()).unwrap())),
        Change::Gone { key, .. } => (key, None),
        Change::CaughtUp => ("caught up".into(), None),
    }
}

pub async fn a_watch_shows_what_is_there_then_every_change<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    create(fixture, "p/1", "1").await;
    create(fixture, "q/1", "1").await;
    let mut watch = fixture.store().watch("B", "p/");
    assert_eq!(shown(next(&mut watch).await), ("p/1".into(), Some("1".into())));
    assert_eq!(next(&mut watch).await, Change::CaughtUp);
    create(fixture, "q/2", "2").await;
    let revision = create(fixture, "p/2", "2").await;
    assert_eq!(shown(next(&mut watch).await), ("p/2".into(), Some("2".into())));
    won(write(fixture, delete("p/2", revision)).await);
    match next(&mut watch).await {
        Change::Gone { key, revision: gone } => assert!(key == "p/2" && gone > revision),
        other => panic!("{other:?}"),
    }
}

pub async fn a_watch_of_one_key_tells_of_no_other<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    create(fixture, "head", "1").await;
    create(fixture, "header", "x").await;
    let mut watch = fixture.store().watch_key("B", "head");
    assert_eq!(shown(next(&mut watch).await), ("head".into(), Some("1".into())));
    assert_eq!(next(&mut watch).await, Change::CaughtUp);
    create(fixture, "head/2", "y").await;
    let held = fixture.store().get("B", "head").await.unwrap().unwrap();
    won(write(fixture, put("head", "2", Condition::Revision(held.revision))).await);
    assert_eq!(shown(next(&mut watch).await), ("head".into(), Some("2".into())));
}

pub async fn a_watcher_hears_of_expiry<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    let mut watch = fixture.store().watch("B", "");
    assert_eq!(next(&mut watch).await, Change::CaughtUp);
    let ttl = Some(F::ENTRY_TTL);
    let revision = won(write(fixture, Write { ttl, ..put("k", "1", Condition::Absent) }).await);
    next(&mut watch).await;
    fixture.advance(F::ENTRY_TTL * 3 / 5).await;
    won(write(fixture, Write { ttl, ..put("k", "2", Condition::Revision(revision)) }).await);
    assert_eq!(shown(next(&mut watch).await), ("k".into(), Some("2".into())));
    fixture.advance(F::ENTRY_TTL * 3 / 5).await;
    assert_eq!(value(fixture, "k").await.unwrap(), "2");
    fixture.advance(F::ENTRY_TTL * 2 / 5).await;
    assert_eq!(shown(next(&mut watch).await), ("k".into(), None));
}

pub async fn a_slow_watcher_gets_the_last_value_of_every_key<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    let mut watch = fixture.store().watch("B", "");
    assert_eq!(next(&mut watch).await, Change::CaughtUp);
    let mut revisions = [0_u64; 3];
    for round in 0..30 {
        for (n, revision) in revisions.iter_mut().enumerate() {
            let condition = if round == 0 { Condition::Absent } else { Condition::Revision(*revision) };
            *revision = won(write(fixture, put(&n.to_string(), &round.to_string(), condition)).await);
        }
    }
    let mut seen = [0_u64; 3];
    while seen != revisions {
        match next(&mut watch).await {
            Change::Put(entry) => {
                let seen = &mut seen[entry.key.parse::<usize>().unwrap()];
                assert!(entry.revision > *seen);
                *seen = entry.revision;
            }
            other => panic!("{other:?}"),
        }
    }
}

pub async fn a_value_above_the_limit_is_refused<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    let big = Write { value: Some(Bytes::from(vec![0; VALUE_BYTES_MAX + 1])), ..put("k", "", Condition::Absent) };
    let writes = vec![put("first", "1", Condition::Absent), big];
    assert!(matches!(refused(fixture.store().write(writes).await), Error::TooLarge { .. }));
    assert_eq!(value(fixture, "first").await, None);
}

pub async fn each_write_wins_or_loses_for_itself<F: Fixture>(fixture: &mut F) {
    bucket(fixture).await;
    let first = create(fixture, "a", "1").await;
    let writes = vec![
        put("a", "2", Condition::Absent),
        put("b", "2", Condition::Absent),
        put("b", "3", Condition::Absent),
        put("a", "3", Condition::Revision(first)),
    ];
    let outcomes = fixture.store().write(writes).await.unwrap();
    let winners: Vec<bool> = outcomes.iter().map(|outcome| matches!(outcome, Outcome::Won(_))).collect();
    assert_eq!(winners, [false, true, false, true]);
    assert_eq!((value(fixture, "a").await.unwrap(), value(fixture, "b").await.unwrap()), ("3".into(), "2".into()));
}
