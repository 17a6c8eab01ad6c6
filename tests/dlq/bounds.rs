//! What a single call may look at, store and fill.

use std::sync::Arc;
use std::time::Duration;

use vejas::bus::embedded::Embedded;
use vejas::id::Names;
use vejas::ports::bus::{self, Batch, Bus};
use vejas::ports::clock::Clock;
use vejas::runtime::clock::SystemClock;
use vejas::runtime::dead_letters::view::Replay;
use vejas::runtime::dead_letters::{DeadLetters, Error, PAGE_LETTERS_MAX, Selection};
use vejas::runtime::open_bus;
use vejas::time::Timestamp;

use crate::ground::{failed, failed_at, ground};

async fn fill(bus: &Embedded, letters: u64, payload: impl Fn(u64) -> Vec<u8>) {
    let stream: Arc<str> = Arc::from(Names::default().dead_letters());
    for begin in (0..letters).step_by(1_000) {
        let messages = (begin..letters.min(begin + 1_000)).map(|number| failed(number + 1, &payload(number))).collect();
        bus.publish_batch(Batch { stream: Arc::clone(&stream), messages, expected: Vec::new() }).await.unwrap();
    }
    bus.close();
}

fn everything() -> Replay {
    let select = Selection { limit: Some(PAGE_LETTERS_MAX), ..Selection::default() };
    Replay { select, all: true, ..Replay::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_matches_little_answers_early_and_says_where_to_go_on() {
    let (folder, bus) = ground(1 << 30).await;
    let count = 20_500;
    fill(&bus, count, |number| if number + 1 == count { b"needle".to_vec() } else { b"hay".to_vec() }).await;
    let letters = DeadLetters::open(folder.path(), &Names::default()).await.unwrap();
    let mut select = Selection { text: Some("needle".to_owned()), ..Selection::default() };
    let first = letters.page(&select).await.unwrap();
    assert!(first.letters.is_empty());
    select.from = first.next;
    assert!(select.from.is_some_and(|from| from > 1 && from <= count), "{:?}", select.from);
    let second = letters.page(&select).await.unwrap();
    assert_eq!((second.letters.len(), second.letters[0].sequence, second.next), (1, count, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_whose_failure_was_stamped_by_a_clock_ahead_of_the_bus_is_found_by_its_time() {
    let (folder, bus) = ground(1 << 30).await;
    let names = Names::default();
    let ahead = SystemClock.now().plus(Duration::from_secs(60));
    bus.publish(&Arc::from(names.dead_letters()), failed_at(ahead, 1, b"late"), None).await.unwrap();
    bus.close();
    let letters = DeadLetters::open(folder.path(), &names).await.unwrap();
    let since = |time: Timestamp| Selection { since: Some(time.to_string()), ..Selection::default() };
    assert_eq!(letters.page(&since(ahead)).await.unwrap().letters.len(), 1);
    assert!(letters.page(&since(ahead.plus(Duration::from_secs(1)))).await.unwrap().letters.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_replays_is_stored_in_the_order_of_failure() {
    let (folder, bus) = ground(1 << 30).await;
    fill(&bus, 300, |number| number.to_string().into_bytes()).await;
    let names = Names::default();
    let letters = DeadLetters::open(folder.path(), &names).await.unwrap();
    let done = letters.replay(&everything()).await.unwrap();
    assert_eq!((done.letters.len(), done.refused.len(), done.next), (300, 0, None));
    assert!(letters.page(&Selection::default()).await.unwrap().letters.is_empty());
    drop(letters);
    let bus = open_bus(folder.path()).unwrap();
    let stored = bus.read(&names.messages(), 1, &[], 1_000).await.unwrap();
    let order: Vec<String> = stored.iter().map(|one| String::from_utf8_lossy(&one.payload).into_owned()).collect();
    assert_eq!(order, (0..300).map(|number: u64| number.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_leaves_the_reserve_of_the_messages_alone_and_keeps_what_does_not_fit() {
    let (folder, bus) = ground(1 << 20).await;
    let count = 200;
    fill(&bus, count, |_| vec![b'x'; 10_000]).await;
    let names = Names::default();
    let letters = DeadLetters::open(folder.path(), &names).await.unwrap();
    let done = letters.replay(&everything()).await.unwrap();
    let mut rest = everything();
    (rest.select.from, rest.select.through) = (done.next, Some(done.through));
    assert!(matches!(letters.replay(&rest).await, Err(Error::Bus(bus::Error::Full { .. }))));
    let select = Selection { limit: Some(PAGE_LETTERS_MAX), ..Selection::default() };
    let left = letters.page(&select).await.unwrap().letters.len() as u64;
    drop(letters);
    let bus = open_bus(folder.path()).unwrap();
    let info = bus.stream(&names.messages()).await.unwrap();
    assert_eq!(info.messages, done.letters.len() as u64);
    assert!(info.messages > 0 && info.bytes <= (1 << 20) / 10 * 9, "{info:?}");
    assert_eq!(left + info.messages, count, "each is in one place");
}
