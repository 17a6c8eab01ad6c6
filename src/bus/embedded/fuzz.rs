//! Records that nobody wrote: whatever the bytes, reading gives a record or [`Damaged`](super::codec::Damaged), never a
//! panic, and what is read is written again as it was. Checksums keep such bytes away from these functions in general; a reader
//! must not depend on it.

use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::chunk::{Builder, Chunk, Span};
use super::codec::{Decoder, read_expiry_key};
use super::durable::Durable;
use super::kv::Bucket;
use super::stream::Stream;
use crate::flow::message::{Headers, Outgoing};
use crate::ports::bus::{DurableConfig, Start};
use crate::time::Timestamp;

fn outgoing() -> impl Strategy<Value = Outgoing> {
    let headers = vec((".{0,10}", ".{0,20}"), 0..4)
        .prop_map(|pairs| Headers::from_iter(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))));
    (".{0,12}", headers, vec(any::<u8>(), 0..50)).prop_map(|(subject, headers, payload)| Outgoing {
        subject,
        headers,
        payload: payload.into(),
        transport_id: None,
    })
}

/// Bytes of a chunk as it is written.
fn chunk() -> impl Strategy<Value = Vec<u8>> {
    let messages = vec((outgoing(), 1..5_u64), 1..6);
    (messages, 0..1_000_000_u64).prop_map(|(messages, first)| {
        let mut builder = Builder::new(1, first, Timestamp(5));
        let mut sequence = first;
        for (number, (message, gap)) in messages.into_iter().enumerate() {
            builder.push(sequence, number as u32 % 2, &message);
            sequence += gap;
        }
        builder.finish().bytes
    })
}

/// A chunk with some bytes changed, and a checksum that says nothing of it.
fn forged() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0xff), Just(0)]), 1..6);
    (chunk(), changes, any::<bool>()).prop_map(|(mut bytes, changes, cut)| {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut && at > 8 {
                bytes.truncate(at);
            }
        }
        bytes[0] = 1;
        if bytes.len() >= 8 {
            let checksum = crc32fast::hash(&bytes[8..]).to_le_bytes();
            bytes[4..8].copy_from_slice(&checksum);
        }
        bytes
    })
}

/// Everything a reader may do with a chunk.
fn read_all(bytes: Vec<u8>) {
    let Ok(chunk) = Chunk::read(Bytes::from(bytes)) else { return };
    for sequence in [0, chunk.first, chunk.first / 2 + chunk.last / 2, chunk.last, u64::MAX] {
        let _ = chunk.find(sequence);
        let at = chunk.position(sequence);
        if chunk.find(chunk.last).is_some_and(|last| at <= last) {
            chunk.message_bytes(at);
            let _ = chunk.message(at);
        }
    }
}

fn durable() -> Durable {
    let config = DurableConfig {
        name: "d".to_owned(),
        filters: Vec::new(),
        start: Start::First,
        ack_wait: Duration::from_secs(1),
        in_flight_max: 10,
    };
    Durable::new(1, 0, config, 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_forged_chunk_is_read_or_refused(bytes in prop_oneof![forged(), vec(any::<u8>(), 0..80)]) {
        read_all(bytes);
    }

    #[test]
    fn a_chunk_gives_back_what_was_put_in(messages in vec(outgoing(), 1..8), first in 0..u64::MAX / 2) {
        let mut builder = Builder::new(1, first, Timestamp(5));
        for (sequence, message) in (first..).zip(&messages) {
            builder.push(sequence, 0, message);
        }
        let chunk = Chunk::read(Bytes::from(builder.finish().bytes)).unwrap();
        for (sequence, message) in (first..).zip(&messages) {
            let stored = chunk.message(chunk.find(sequence).unwrap()).unwrap();
            prop_assert_eq!((stored.sequence, &stored.subject), (sequence, &message.subject));
            prop_assert_eq!((&stored.headers, &stored.payload), (&message.headers, &message.payload));
        }
    }

    #[test]
    fn any_bytes_are_a_record_or_damaged(bytes in vec(prop_oneof![any::<u8>(), Just(0xff), Just(0x80), Just(1)], 0..60)) {
        let mut decoder = Decoder(&bytes);
        let _ = (decoder.varint(), decoder.text(), decoder.u32(), decoder.u64(), decoder.time());
        let _ = (Decoder(&bytes).texts(), read_expiry_key(&bytes), Bucket::decode(&bytes));
        if let Ok(span) = Span::decode(7, &bytes) {
            prop_assert_eq!(Span::decode(7, &span.encode()), Ok(span));
        }
        if let Ok(stream) = Stream::decode(1, &bytes) {
            let again = Stream::decode(1, &stream.encode()).unwrap();
            prop_assert_eq!(&again.config, &stream.config);
        }
        if let Ok(read) = Durable::decode_config(1, &bytes) {
            let again = Durable::decode_config(1, &read.encode_config()).unwrap();
            prop_assert_eq!(&again.config, &read.config);
        }
        for now in [Timestamp(0), Timestamp(1_800_000_000_000_000_000)] {
            let _ = durable().restore_position(&bytes, Duration::from_secs(5), now);
        }
        let _ = Stream::decode(1, &[]).map(|mut stream| stream.restore_subject(1, &bytes));
    }
}
