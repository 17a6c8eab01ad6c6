//! Sinks from end to end: the embedded bus, the worker, the HTTP connector and a real receiver that fails on demand.

#![allow(clippy::disallowed_methods)]

mod world;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vejas::flow::breaker;
use vejas::ports::bus::Bus;
use vejas::unit::status::State;

use world::*;

#[tokio::test(flavor = "multi_thread")]
async fn everything_arrives_once_and_is_acknowledged() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| reply(200)).await;
    let running = world.run(&receiver, Wanted::default());
    world.publish(named("m", 200)).await;
    receiver.until("200 messages", |log| log.taken().len() >= 200).await;
    let unit = Arc::clone(&running.unit);
    running.stop().await;
    assert!(world.is_settled().await);
    assert_eq!(receiver.got.lock().unwrap().0.len(), 200);
    assert_eq!((unit.view().received, unit.view().emitted, unit.view().dead), (200, 200, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_kills_nothing_and_is_met_with_few_requests() {
    let world = World::new().await;
    world.publish(named("m", 100)).await;
    let receiver = Receiver::start(|_, before| reply(if before < 12 { 503 } else { 200 })).await;
    let running = world.run(&receiver, Wanted { http: serde_json::json!({"concurrency": 4}), ..Wanted::default() });
    receiver.until("100 messages", |log| log.taken().len() >= 100).await;
    running.stop().await;
    assert_eq!(world.letters().await, []);
    assert!(world.is_settled().await);
    let got = receiver.got.lock().unwrap();
    assert_eq!(set(&got.taken()), set(&named("m", 100)));
    assert!(got.0[8].0 - got.0[0].0 >= Duration::from_millis(100), "the breaker paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_used_up_by_restarts_during_an_outage_kill_nothing_after_it() {
    let mut world = World::new().await;
    world.publish(named("m", 5)).await;
    let down = Receiver::start(|_, _| reply(500)).await;
    for round in 1..=4 {
        let running = world.run(&down, Wanted::default());
        let requests = round * 8;
        down.until("requests", |log| log.0.len() >= requests).await;
        world = world.restart(running).await;
    }
    // Each message is far beyond its attempts; a first hiccup must not be its end.
    let up = Receiver::start(|_, before| reply(if before < 2 { 500 } else { 200 })).await;
    let running = world.run(&up, Wanted::default());
    up.until("5 messages", |log| log.taken().len() >= 5).await;
    running.stop().await;
    assert_eq!(world.letters().await, []);
    assert!(world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hiccup_after_an_outage_does_not_finish_what_the_outage_began() {
    let mut world = World::new().await;
    world.publish(["m".to_owned()]).await;
    let down = Receiver::start(|_, _| reply(500)).await;
    for round in 1..=3 {
        let running = world.run(&down, Wanted::default());
        down.until("requests", |log| log.0.len() >= round * 6).await;
        world = world.restart(running).await;
    }
    // Down for seven more requests; then the others pass and `m` meets one more failure.
    let healed = Arc::new(Mutex::new(0));
    let receiver = Receiver::start(move |body, before| {
        let mut met = healed.lock().unwrap();
        if before < 7 {
            return reply(500);
        }
        *met += u32::from(body == "m");
        reply(if body == "m" && *met == 1 { 500 } else { 200 })
    })
    .await;
    let running = world.run(&receiver, Wanted::default());
    receiver.until("the outage", |log| log.0.len() >= 7).await;
    world.publish(named("x", 20)).await;
    receiver.until("all messages", |log| log.taken().len() >= 21).await;
    running.stop().await;
    assert_eq!(world.letters().await, []);
    assert!(world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_that_opens_at_once_still_lets_a_bad_message_die() {
    let world = World::new().await;
    let receiver = Receiver::start(|body, _| reply(if body == "poison" { 500 } else { 200 })).await;
    let pause = Duration::from_millis(20);
    let breaker = breaker::Settings { failures: 1, pause, pause_max: pause };
    let running = world.run(&receiver, Wanted { breaker, ..Wanted::default() });
    world.publish(["poison".to_owned()]).await;
    for name in named("m", 60) {
        world.publish([name]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.until_dead(1).await;
    receiver.until("60 messages", |log| log.taken().len() >= 60).await;
    running.stop().await;
    assert!(world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_that_always_fails_dies_after_its_attempts_while_the_others_flow() {
    let world = World::new().await;
    let receiver = Receiver::start(|body, _| reply(if body == "poison" { 500 } else { 200 })).await;
    let running = world.run(&receiver, Wanted::default());
    world.publish(["poison".to_owned()]).await;
    for name in named("m", 60) {
        world.publish([name]).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    receiver.until("60 messages", |log| log.taken().len() >= 60).await;
    world.until_dead(1).await;
    running.stop().await;
    let letters = world.letters().await;
    assert_eq!(
        (letters.len(), letters[0].0.as_str(), letters[0].1, letters[0].2.as_str()),
        (1, "poison", 3, "http-500")
    );
    assert!(letters[0].3.contains("no thanks"));
    assert_eq!(receiver.got.lock().unwrap().count("poison"), 3);
    assert!(world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_bad_messages_than_open_the_breaker_do_not_keep_the_good_ones_out() {
    let world = World::new().await;
    let receiver = Receiver::start(|body, _| reply(if body.starts_with('p') { 500 } else { 200 })).await;
    world.publish(named("p", 8)).await;
    world.publish(named("m", 30)).await;
    let breaker = breaker::Settings { pause: Duration::from_millis(20), ..Wanted::default().breaker };
    let http = serde_json::json!({"concurrency": 1});
    let running = world.run(&receiver, Wanted { http, breaker, attempts: 2, ..Wanted::default() });
    receiver.until("30 messages", |log| log.taken().len() >= 30).await;
    // The bad ones end as soon as others show that the receiver works.
    for name in named("z", 100) {
        world.publish([name]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        if world.letters().await.len() == 8 {
            break;
        }
    }
    world.until_dead(8).await;
    running.stop().await;
    assert!(world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_in_a_row_hold_the_good_ones_back_for_a_pause_or_two_only() {
    let world = World::new().await;
    let receiver = Receiver::start(|body, _| reply(if body.starts_with('p') { 500 } else { 200 })).await;
    world.publish(named("p", 25)).await;
    world.publish(named("m", 10)).await;
    // One probe per pause would take 1 + 2 + 4 + 17 * 8 seconds.
    let breaker = breaker::Settings { pause: Duration::from_secs(1), pause_max: Duration::from_secs(8), failures: 5 };
    let http = serde_json::json!({"concurrency": 1});
    let running = world.run(&receiver, Wanted { http, breaker, ..Wanted::default() });
    receiver.until("10 messages", |log| log.taken().len() >= 10).await;
    running.stop().await;
    let letters = world.letters().await;
    assert!(letters.iter().all(|letter| letter.0.starts_with('p')), "{letters:?}");
    let got = receiver.got.lock().unwrap();
    let probed = got.0.iter().filter(|(at, ..)| (1_000..2_900).contains(&(*at - got.0[0].0).as_millis())).count();
    assert_eq!(probed, breaker::PROBES_MAX as usize, "a turn has its bound");
    let took = |name| got.0.iter().find(|(_, body, _)| body == name).unwrap().0;
    assert!(took("m009") - took("m000") < Duration::from_millis(900), "the bad ones open the breaker no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_asks_for_a_pause_is_probed_once() {
    let world = World::new().await;
    world.publish(named("m", 30)).await;
    let receiver = Receiver::start(|_, before| match before {
        0..8 => Reply { retry_after: Some("1"), ..reply(503) },
        _ => reply(200),
    })
    .await;
    let breaker = breaker::Settings { pause: Duration::from_millis(50), ..Wanted::default().breaker };
    let http = serde_json::json!({"concurrency": 1});
    let running = world.run(&receiver, Wanted { http, breaker, ..Wanted::default() });
    receiver.until("30 messages", |log| log.taken().len() >= 30).await;
    running.stop().await;
    let got = receiver.got.lock().unwrap();
    for probe in 5..9 {
        let waited = got.0[probe].0 - got.0[probe - 1].0;
        assert!(waited >= Duration::from_millis(950), "probe {probe} came {waited:?} after the failure before");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_a_dead_letter_at_once() {
    let world = World::new().await;
    world.publish(["bad".to_owned(), "good".to_owned()]).await;
    let receiver = Receiver::start(|body, _| reply(if body == "bad" { 422 } else { 200 })).await;
    let running = world.run(&receiver, Wanted::default());
    world.until_dead(1).await;
    receiver.until("good", |log| log.count("good") == 1).await;
    running.stop().await;
    let letters = world.letters().await;
    assert_eq!((letters[0].0.as_str(), letters[0].1, letters[0].2.as_str()), ("bad", 1, "http-422"));
    assert!(letters[0].3.ends_with("no thanks"), "{}", letters[0].3);
    assert_eq!(receiver.got.lock().unwrap().count("bad"), 1);
    assert!(world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_honoured() {
    let world = World::new().await;
    world.publish(["m".to_owned()]).await;
    let receiver = Receiver::start(|_, before| match before {
        0 => Reply { retry_after: Some("1"), ..reply(429) },
        _ => reply(200),
    })
    .await;
    let running = world.run(&receiver, Wanted::default());
    receiver.until("the second try", |log| log.0.len() == 2).await;
    running.stop().await;
    let got = receiver.got.lock().unwrap();
    assert!(got.0[1].0 - got.0[0].0 >= Duration::from_millis(950));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_key_arrive_in_order_and_a_failing_key_holds_back_only_itself() {
    let world = World::new().await;
    let receiver = Receiver::start(|body, before| {
        let delay = Duration::from_millis((before * 7 % 13) as u64);
        let shaky = body.starts_with('b') && before % 3 == 0;
        Reply { delay, ..reply(if body == "a000" || shaky { 500 } else { 200 }) }
    })
    .await;
    for n in 0..20 {
        world.publish(["a", "b", "c", "d"].map(|key| format!("{key}{n:03}"))).await;
    }
    world.publish(["?".to_owned()]).await;
    let running = world.run(&receiver, Wanted { ordered: true, attempts: 8, ..Wanted::default() });
    receiver.until("79 messages", |log| log.taken().len() >= 79).await;
    world.until_dead(2).await;
    running.stop().await;
    let taken = receiver.got.lock().unwrap().taken();
    for key in ["a", "b", "c", "d"] {
        let of_key: Vec<_> = taken.iter().filter(|body| body.starts_with(key)).cloned().collect();
        let from = usize::from(key == "a");
        assert_eq!(of_key, named(key, 20)[from..], "{key}");
    }
    let last_of_c = taken.iter().position(|body| body == "c019").unwrap();
    let first_of_a = taken.iter().position(|body| body == "a001").unwrap();
    assert!(last_of_c < first_of_a, "c did not wait for a");
    let letters = world.letters().await;
    assert!(letters.iter().any(|letter| letter.0 == "a000" && letter.1 >= 8), "{letters:?}");
    assert!(letters.iter().any(|letter| letter.0 == "?" && letter.2 == "expression"));
    assert!(world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_key_that_fills_the_hand_does_not_shut_out_the_others() {
    let world = World::new().await;
    let receiver = Receiver::start(|body, _| reply(if body == "a0000" { 500 } else { 200 })).await;
    world.publish((0..1_300).map(|n| format!("a{n:04}"))).await;
    world.publish(named("b", 20)).await;
    let breaker = breaker::Settings { pause: Duration::from_millis(50), ..Wanted::default().breaker };
    let running = world.run(&receiver, Wanted { ordered: true, breaker, ..Wanted::default() });
    receiver.until("the other key", |log| log.taken().iter().filter(|body| body.starts_with('b')).count() == 20).await;
    world.publish(named("c", 50)).await;
    world.until_dead(1).await;
    receiver.until("the rest of the stuck key", |log| log.taken().len() >= 1_299 + 70).await;
    running.stop().await;
    let taken = receiver.got.lock().unwrap().taken();
    let of_a: Vec<_> = taken.iter().filter(|body| body.starts_with('a')).collect();
    assert!(of_a.is_sorted() && of_a.len() == 1_299);
    assert_eq!(world.letters().await[0].0, "a0000");
    assert!(world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_one_bad_message_loses_only_that() {
    let world = World::new().await;
    world.publish(["1".into(), "2".into(), "\"bad\"".into(), "3".into()]).await;
    let receiver = Receiver::start(|body, _| reply(if body.contains("bad") { 400 } else { 200 })).await;
    let http = serde_json::json!({"batch": {"maxMessages": 4, "maxWait": "100ms"}});
    let running = world.run(&receiver, Wanted { http, ..Wanted::default() });
    world.until_dead(1).await;
    running.stop().await;
    assert_eq!(world.letters().await[0].0, "\"bad\"");
    assert!(world.is_settled().await);
    assert_eq!(receiver.got.lock().unwrap().taken(), ["[1]", "[2]", "[3]"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_middle_loses_nothing() {
    let mut world = World::new().await;
    world.publish(named("m", 300)).await;
    let receiver = Receiver::start(|_, _| Reply { delay: Duration::from_millis(2), ..reply(200) }).await;
    for round in 1..=3 {
        let running = world.run(&receiver, Wanted::default());
        receiver.until("some messages", |log| log.0.len() >= 60 * round).await;
        world = world.restart(running).await;
    }
    let running = world.run(&receiver, Wanted::default());
    receiver.until("all messages", |log| set(&log.taken()).len() == 300).await;
    running.stop().await;
    assert!(world.is_settled().await);
    assert_eq!(world.letters().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_lets_deliveries_end_and_acknowledges_them() {
    let world = World::new().await;
    world.publish(named("m", 4)).await;
    let receiver = Receiver::start(|_, _| Reply { delay: Duration::from_millis(1_500), ..reply(200) }).await;
    let running = world.run(&receiver, Wanted::default());
    let got = Arc::clone(&receiver.got);
    tokio::time::timeout(PATIENCE, async {
        while got.lock().unwrap().0.len() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    running.stop().await;
    assert!(world.is_settled().await, "longer than the ack wait, and still each was delivered once");
    assert_eq!(receiver.got.lock().unwrap().0.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_does_not_wait_longer_than_the_drain_allows() {
    let world = World::new().await;
    world.publish(named("m", 1)).await;
    let receiver = Receiver::start(|_, _| Reply { delay: Duration::from_secs(60), ..reply(200) }).await;
    let running = world.run(&receiver, Wanted { drain: Duration::from_millis(200), ..Wanted::default() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    running.stop().await;
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(!world.is_settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_dead_letters_pause_the_sink_and_lose_nothing() {
    let world = World::open(tempfile::tempdir().unwrap(), 600).await;
    world.publish(named("bad", 6)).await;
    let receiver = Receiver::start(|_, _| reply(400)).await;
    let running = world.run(&receiver, Wanted::default());
    let unit = Arc::clone(&running.unit);
    tokio::time::timeout(PATIENCE, async {
        while !unit.view().reason.is_some_and(|reason| reason.starts_with("dead letters full")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("it says that dead letters are full");
    assert_eq!(unit.state(), State::Paused);
    let mut config = world.bus.stream(&world.names.dead_letters()).await.unwrap().config;
    config.bytes_max = 1 << 20;
    world.bus.ensure_stream(config).await.unwrap();
    world.until_dead(6).await;
    running.stop().await;
    assert!(world.is_settled().await);
    assert_eq!(receiver.got.lock().unwrap().0.len(), 6, "held, not delivered again");
}
