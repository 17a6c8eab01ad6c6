//! What is stored around a payload: headers from any bytes, dead letters of any message, and the way through the bus.

use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use vejas::flow::dead_letter::{self, Death, dead_letter};
use vejas::flow::failure::Failure;
use vejas::flow::message::{self, HEADER_NAME_BYTES_MAX, HEADER_VALUE_BYTES_MAX, Headers, Outgoing, Stored};
use vejas::id::{Names, UnitId, UnitKind};
use vejas::ports::bus::{Batch, Bus};
use vejas::runtime::config::DEAD_LETTER_HEADROOM_BYTES;
use vejas::time::Timestamp;

use crate::fuzz;

/// Names that mean something, and others.
fn name() -> impl Strategy<Value = String> {
    let known = vec![
        message::ID,
        message::ORIGIN,
        message::TIME,
        message::HOP,
        dead_letter::UNIT,
        dead_letter::SUBJECT,
        dead_letter::SEQUENCE,
        dead_letter::ATTEMPTS,
        dead_letter::ERROR,
        dead_letter::FIRST,
        dead_letter::REPLAYS,
    ];
    prop_oneof![3 => select(known).prop_map(str::to_owned), 1 => ".{0,20}", 1 => "a{120,140}"]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => ".{0,30}",
        2 => select(vec!["flow/a", "sink/b", "18446744073709551615", "4294967295", "-1", "", "vxreplay.flow.a"])
            .prop_map(str::to_owned),
        1 => (0..40_000_usize).prop_map(|n| "é".repeat(n)),
    ]
}

fn headers() -> impl Strategy<Value = Headers> {
    vec((name(), value()), 0..8)
        .prop_map(|pairs| Headers::from_iter(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))))
}

#[test]
fn any_bytes_are_headers_or_are_refused() {
    // Lengths that nearly fit make most of it headers.
    let nearly = vec((0..6_u8, 0..6_u16, vec(32..127_u8, 0..12)), 0..6).prop_map(|records| {
        let record = |(name, value, text): (u8, u16, Vec<u8>)| [&[name], &value.to_le_bytes()[..], &text].concat();
        records.into_iter().flat_map(record).collect::<Vec<u8>>()
    });
    let exact = headers().prop_map(|headers| headers.as_bytes().to_vec());
    fuzz(prop_oneof![vec(any::<u8>(), 0..60), nearly, exact], |bytes| {
        let Some(headers) = Headers::from_bytes(Bytes::from(bytes.clone())) else { return Ok(()) };
        prop_assert_eq!(&headers.as_bytes()[..], &bytes[..]);
        prop_assert_eq!(headers.to_builder().build(), headers.clone());
        let read: usize = headers.iter().map(|(name, value)| 3 + name.len() + value.len()).sum();
        prop_assert_eq!(read, bytes.len(), "every byte belongs to a header");
        for (name, _) in headers.iter() {
            prop_assert!(headers.get(name).is_some());
        }
        Ok(())
    });
}

#[test]
fn a_header_that_is_set_is_found_and_changes_no_other() {
    fuzz((headers(), name(), value()), |(before, name, value)| {
        let mut builder = before.to_builder();
        builder.set(&name, &value);
        let after = builder.build();
        prop_assert_eq!(Headers::from_bytes(after.as_bytes().clone()), Some(after.clone()));
        if name.len() <= HEADER_NAME_BYTES_MAX {
            let set = after.get(&name).unwrap();
            prop_assert!(value.starts_with(set) && (set == value || set.len() + 4 > HEADER_VALUE_BYTES_MAX));
            for (other, kept) in before.iter().filter(|(other, _)| *other != name) {
                prop_assert_eq!(after.get(other), Some(kept));
            }
        }
        Ok(())
    });
}

#[test]
fn a_dead_letter_of_any_message_keeps_it_whole_and_finds_its_way_back() {
    let names = Names::default();
    let subjects = vec!["vx.orders", "vxreplay.flow.a", "vxdlq.flow.a", "", "é"];
    let messages = (1..u64::MAX, select(subjects), headers(), vec(any::<u8>(), 0..40), any::<i64>());
    fuzz(
        (messages, ".{0,40}|x{9000}", any::<u32>()),
        |((sequence, subject, headers, payload, time), error, attempts)| {
            // Times of messages lie in the years that can be written.
            let time = Timestamp(time.rem_euclid(4_000_000_000_000_000_000));
            let payload = Bytes::from(payload);
            let message = Stored { sequence, subject: subject.to_owned(), headers, payload, time };
            let unit = UnitId::new(UnitKind::Flow, "a");
            let failure = Failure::new("code", error);
            let death = Death { unit: &unit, digest: "d", attempts, failure: &failure, last: time };
            let letter = dead_letter(&names, &message, &death);
            prop_assert_eq!(&letter.payload, &message.payload);
            prop_assert!(letter.size_bytes() <= message_size(&message) + DEAD_LETTER_HEADROOM_BYTES);
            for (name, value) in message.headers.iter().filter(|(name, _)| !name.starts_with("Vejas-Dead-")) {
                prop_assert_eq!(letter.headers.get(name), Some(value));
            }
            prop_assert_eq!(dead_letter::unit(&letter.headers), Some(unit.clone()));

            let stored = stored(7, letter);
            let replay = dead_letter::replay(&names, &stored).unwrap();
            prop_assert_eq!(&replay.payload, &message.payload);
            prop_assert_eq!(&replay.subject, &names.replay(&unit));
            let id = replay.headers.get(message::ID).unwrap().to_owned();
            prop_assert!(message.headers.get(message::ID).is_none_or(|own| own == id));

            // It fails again, and is replayed again: the same place and identity.
            let replayed = self::stored(9, replay);
            let again = self::stored(11, dead_letter(&names, &replayed, &death));
            prop_assert_eq!(again.headers.get(dead_letter::SUBJECT), stored.headers.get(dead_letter::SUBJECT));
            prop_assert_eq!(again.headers.get(dead_letter::SEQUENCE), stored.headers.get(dead_letter::SEQUENCE));
            let replay = dead_letter::replay(&names, &again).unwrap();
            prop_assert_eq!(replay.headers.get(message::ID), Some(id.as_str()));
            Ok(())
        },
    );
}

fn message_size(message: &Stored) -> usize {
    message.subject.len() + message.headers.as_bytes().len() + message.payload.len()
}

fn stored(sequence: u64, message: Outgoing) -> Stored {
    let Outgoing { subject, headers, payload, .. } = message;
    Stored { sequence, subject, headers, payload, time: Timestamp(0) }
}

#[test]
fn what_the_bus_takes_it_gives_back_byte_for_byte_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let names = Names::default();
    let stream: Arc<str> = names.messages().into();
    let payload = prop_oneof![vec(any::<u8>(), 0..300), (0..400_000_usize).prop_map(|n| vec![7; n])];
    let messages = vec((select(vec!["vx.a", "vx.a.b", "vx.c"]), headers(), payload), 1..12);
    fuzz((messages, any::<bool>()), |(messages, restart)| {
        runtime.block_on(async {
            let open = || async {
                let bus = vejas::runtime::open_bus(folder.path()).unwrap();
                vejas::runtime::streams::ensure_messages(&*bus, &names, 1 << 30).await.unwrap();
                bus
            };
            let outgoing: Vec<Outgoing> = messages
                .into_iter()
                .map(|(subject, headers, payload)| Outgoing {
                    subject: subject.to_owned(),
                    headers,
                    payload: payload.into(),
                    transport_id: None,
                })
                .collect();
            let mut bus = open().await;
            let batch = Batch { stream: Arc::clone(&stream), messages: outgoing.clone(), expected: Vec::new() };
            let acks = bus.publish_batch(batch).await.unwrap();
            if restart {
                bus.close();
                bus = open().await;
            }
            for (ack, message) in acks.iter().zip(outgoing) {
                let read = bus.read(&stream, ack.sequence, &[], 1).await.unwrap();
                let expected = Stored { time: read[0].time, ..stored(ack.sequence, message) };
                prop_assert_eq!(&read[0], &expected);
            }
            let (first, last) = (acks[0].sequence, acks[acks.len() - 1].sequence);
            bus.trim(&stream, last + 1, &[]).await.unwrap();
            prop_assert!(last >= first);
            bus.close();
            Ok(())
        })
    });
}
