//! The interval source on the real embedded bus: slots over restarts, clocks that are set, two processes.

mod front;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use front::{Ground, eventually};
use tokio::task::JoinHandle;
use vejas::flow::message;
use vejas::id::{UnitId, UnitKind};
use vejas::manifest::connector::interval::{Interval, OnMissed};
use vejas::manifest::value::Span;
use vejas::ports::bus::{self, Bus};
use vejas::protocol::record::Sequence;
use vejas::runtime::ownership::members::Describes;
use vejas::runtime::ownership::records::decode_fence;
use vejas::runtime::ownership::{self, Settings};
use vejas::runtime::sources;
use vejas::unit::status::{Registry, State, Unit};

const HOUR_MS: i64 = 3_600_000;

fn every(period_ms: u64, on_missed: OnMissed) -> Interval {
    Interval {
        every: Some(Span(Duration::from_millis(period_ms))),
        cron: None,
        time_zone: None,
        payload: None,
        on_missed,
    }
}

struct Running {
    unit: Arc<Unit>,
    owner: ownership::Handle,
    driver: JoinHandle<Result<(), ownership::Error>>,
}

impl Running {
    async fn stop(self) {
        self.owner.leave(Duration::from_secs(10)).await;
        self.driver.await.unwrap().unwrap();
        assert_eq!(self.unit.state(), State::Stopped);
    }
}

async fn start(ground: &Ground, instance: &str, stated: &Interval) -> Running {
    let unit =
        Registry::default().add(UnitId::new(UnitKind::Source, "beat"), "0101010101010101", "m.yaml:1".to_owned());
    let context = ground.context(instance);
    let owned = sources::interval(&context, &unit, "0101010101010101", stated, "ops.beat", 1).unwrap();
    let describes = Describes { instance: instance.to_owned(), ..Describes::default() };
    let (owner, driver) = ownership::start(context, ground.embedded.clone(), Settings::alone(), describes);
    let driver = tokio::spawn(driver);
    owner.units(BTreeMap::from([(ownership::unit_of(&unit.id), owned)])).await;
    Running { unit, owner, driver }
}

/// The slots stored so far, in the order of the stream.
async fn slots(ground: &Ground) -> Vec<i64> {
    let stored = ground.stored("ops.beat").await;
    let id = |stored: &vejas::flow::message::Stored| stored.headers.get(message::ID).unwrap().to_owned();
    stored.iter().map(|stored| id(stored).strip_prefix("i/beat/").unwrap().parse().unwrap()).collect()
}

async fn until_stored(ground: &Ground, count: usize) -> Vec<i64> {
    eventually("slots are stored", || Box::pin(async move { slots(ground).await.len() >= count })).await;
    slots(ground).await
}

fn assert_no_slot_twice(slots: &[i64]) {
    let distinct: BTreeSet<_> = slots.iter().collect();
    assert_eq!(distinct.len(), slots.len(), "a slot is stored twice: {slots:?}");
}

async fn ground(folder: &Path) -> Ground {
    Ground::open(folder).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_and_its_position_are_stored_together() {
    let folder = tempfile::tempdir().unwrap();
    let ground = ground(folder.path()).await;
    let before = ground.context("x").clock.now().unix_millis();
    let running = start(&ground, "alpha", &every(100, OnMissed::Skip)).await;
    let found = until_stored(&ground, 3).await;
    running.stop().await;
    assert!(found[0] > before && found.iter().all(|slot| slot % 100 == 0), "{found:?}");
    assert!(found.windows(2).all(|pair| pair[1] == pair[0] + 100), "{found:?}");
    let stored = ground.stored("ops.beat").await;
    let slot_text = vejas::time::Timestamp::from_unix_millis(found[0]).to_string();
    assert_eq!(stored[0].payload, format!("{{\"slot\":\"{slot_text}\"}}"));
    assert_eq!(stored[0].headers.get(message::SOURCE), Some("source/beat"));
    assert_eq!(stored[0].headers.get(message::HOP), Some("0"));
    let fence = ground.names.fence(&UnitId::new(UnitKind::Source, "beat"));
    let last = ground.bus.last(&ground.names.messages(), &fence).await.unwrap().unwrap();
    let record = decode_fence(&last.payload, Sequence(last.sequence)).unwrap();
    let newest = stored.last().unwrap();
    assert_eq!((record.unit.as_str(), &*record.instance), ("source/beat", "alpha"));
    assert_eq!(record.position.unwrap().page.cast_signed(), *slots(&ground).await.last().unwrap());
    assert_eq!(last.sequence, newest.sequence + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_source_begins_with_the_next_slot_whatever_on_missed_says() {
    let folder = tempfile::tempdir().unwrap();
    let ground = ground(folder.path()).await;
    let before = ground.context("x").clock.now().unix_millis();
    let running = start(&ground, "alpha", &every(200, OnMissed::FireAll)).await;
    let found = until_stored(&ground, 1).await;
    running.stop().await;
    assert!(found[0] > before, "{found:?} {before}");
}

/// Runs, stops for an hour of the wall clock, runs again; answers the slots before and after.
async fn over_a_gap(on_missed: OnMissed) -> (Vec<i64>, Vec<i64>, i64) {
    let folder = tempfile::tempdir().unwrap();
    let before = {
        let ground = ground(folder.path()).await;
        let running = start(&ground, "alpha", &every(1_000, on_missed)).await;
        let found = until_stored(&ground, 1).await;
        running.stop().await;
        let found = if found.len() == slots(&ground).await.len() { found } else { slots(&ground).await };
        ground.close();
        found
    };
    let ground = ground(folder.path()).await;
    ground.clock.move_by(HOUR_MS);
    let began = ground.context("x").clock.now().unix_millis();
    let running = start(&ground, "alpha", &every(1_000, on_missed)).await;
    let wanted = if on_missed == OnMissed::FireAll { 1_001 } else { 2 };
    let all = until_stored(&ground, before.len() + wanted).await;
    running.stop().await;
    assert_no_slot_twice(&all);
    (before.clone(), all[before.len()..].to_vec(), began)
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_slots_are_left_out_by_skip() {
    let (_, after, began) = over_a_gap(OnMissed::Skip).await;
    // What is less than two seconds late was not missed.
    assert!(after[0] > began - 2_000 && after[1] == after[0] + 1_000, "{after:?} {began}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_missed_slot_is_made_up_for_by_fire_once() {
    let (_, after, began) = over_a_gap(OnMissed::FireOnce).await;
    assert_eq!(after[0], began.div_euclid(1_000) * 1_000);
    assert_eq!(after[1], after[0] + 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_thousand_missed_slots_are_made_up_for_by_fire_all() {
    let (_, after, began) = over_a_gap(OnMissed::FireAll).await;
    assert_eq!(after[999], began.div_euclid(1_000) * 1_000);
    assert!(after.windows(2).all(|pair| pair[1] == pair[0] + 1_000), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_store_each_slot_once_and_none_is_left_out_when_one_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let ground = ground(folder.path()).await;
    let one = start(&ground, "alpha", &every(20, OnMissed::Skip)).await;
    until_stored(&ground, 30).await;
    let two = start(&ground, "beta", &every(20, OnMissed::Skip)).await;
    let unit = Arc::clone(&two.unit);
    eventually("the other one stands by", || {
        let standby = unit.state() == State::Standby;
        Box::pin(async move { standby })
    })
    .await;
    one.stop().await;
    let before = slots(&ground).await.len();
    let found = until_stored(&ground, before + 30).await;
    two.stop().await;
    assert_no_slot_twice(&found);
    assert!(found.windows(2).all(|pair| pair[1] == pair[0] + 20), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_set_back_stores_no_slot_twice_and_says_why_it_waits() {
    let folder = tempfile::tempdir().unwrap();
    let ground = ground(folder.path()).await;
    let running = start(&ground, "alpha", &every(50, OnMissed::FireAll)).await;
    let before = until_stored(&ground, 3).await;
    ground.clock.move_by(-HOUR_MS);
    let unit = Arc::clone(&running.unit);
    eventually("it waits", || {
        let paused = unit.state() == State::Paused;
        Box::pin(async move { paused })
    })
    .await;
    assert!(running.unit.view().reason.unwrap().contains("clock was set back"));
    let waiting = slots(&ground).await;
    ground.clock.move_by(HOUR_MS);
    let after = until_stored(&ground, waiting.len() + 3).await;
    running.stop().await;
    assert_no_slot_twice(&after);
    assert!(after.is_sorted() && after.len() > before.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_set_forward_treats_what_it_passed_as_missed() {
    for (on_missed, expected) in [(OnMissed::Skip, 0..=0), (OnMissed::FireAll, 990..=1_000)] {
        let folder = tempfile::tempdir().unwrap();
        let ground = ground(folder.path()).await;
        let running = start(&ground, "alpha", &every(500, on_missed)).await;
        until_stored(&ground, 1).await;
        let moved = ground.context("x").clock.now().unix_millis();
        ground.clock.move_by(HOUR_MS);
        let beyond = moved + HOUR_MS;
        eventually("slots beyond the jump", || {
            let ground = &ground;
            Box::pin(async move { slots(ground).await.last().is_some_and(|slot| *slot > beyond + 500) })
        })
        .await;
        running.stop().await;
        let found = slots(&ground).await;
        assert_no_slot_twice(&found);
        // Slots that are less than two seconds late are on time, so five may follow at once.
        let passed = found.iter().filter(|slot| **slot > moved && **slot < beyond - 3_000).count();
        assert!(expected.contains(&passed), "{on_missed:?}: {passed} of {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_bus_is_full_it_is_paused_and_then_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let ground = ground(folder.path()).await;
    let running = start(&ground, "alpha", &every(100, OnMissed::FireAll)).await;
    let before = until_stored(&ground, 2).await;
    ground.bus.set(Some(bus::Error::Full { stream: "VEJAS".to_owned(), bytes_max: 1 }));
    let unit = Arc::clone(&running.unit);
    eventually("it pauses", || {
        let paused = unit.state() == State::Paused;
        Box::pin(async move { paused })
    })
    .await;
    assert!(running.unit.view().reason.unwrap().contains("is full"));
    tokio::time::sleep(Duration::from_millis(400)).await;
    ground.bus.set(None);
    let after = until_stored(&ground, before.len() + 8).await;
    assert!(after.windows(2).all(|pair| pair[1] == pair[0] + 100), "fireAll leaves nothing out: {after:?}");
    assert_eq!(running.unit.state(), State::Running);
    running.stop().await;
}
