//! The dead letter: a message that failed for good, stored whole with what is known about the failure.
//!
//! Payload and headers stay as they were, byte for byte; what is added stands in headers of its own.

use bytes::Bytes;

use super::failure::Failure;
use super::message::{self, Headers, HeadersBuilder, Outgoing, Stored};
use crate::id::{Names, UnitId};
use crate::time::Timestamp;

/// The unit that failed.
pub const UNIT: &str = "Vejas-Dead-Unit";
/// The subject the message was stored under, with the root prefix.
pub const SUBJECT: &str = "Vejas-Dead-Subject";
/// The sequence it had there.
pub const SEQUENCE: &str = "Vejas-Dead-Sequence";
/// How often it was tried, over all replays.
pub const ATTEMPTS: &str = "Vejas-Dead-Attempts";
/// A stable code of the failure.
pub const CODE: &str = "Vejas-Dead-Code";
/// The failure in words.
pub const ERROR: &str = "Vejas-Dead-Error";
/// The digest of the unit that failed.
pub const DIGEST: &str = "Vejas-Dead-Digest";
/// When the message was stored first, RFC 3339.
pub const FIRST: &str = "Vejas-Dead-First";
/// When it failed for the last time, RFC 3339.
pub const LAST: &str = "Vejas-Dead-Last";
/// How often it was replayed.
pub const REPLAYS: &str = "Vejas-Dead-Replays";
/// When its payload was edited last, RFC 3339.
pub const EDITED: &str = "Vejas-Dead-Edited";

const ALL: [&str; 11] = [UNIT, SUBJECT, SEQUENCE, ATTEMPTS, CODE, ERROR, DIGEST, FIRST, LAST, REPLAYS, EDITED];

/// Longest error text kept, in bytes. Together with the headers above it stays below the 64 KiB that the entrance keeps
/// free for a dead letter.
pub const ERROR_BYTES_MAX: usize = 8 * 1024;

/// Everything about a failure that the message itself does not say.
#[derive(Debug, Clone, Copy)]
pub struct Death<'a> {
    pub unit: &'a UnitId,
    pub digest: &'a str,
    pub attempts: u32,
    pub failure: &'a Failure,
    /// Now.
    pub last: Timestamp,
}

/// The dead letter of `message`, with the transport id `d/<unit>/<sequence>`.
///
/// A replay that fails again keeps where it came from and when it was stored first; attempts add up.
pub fn dead_letter(names: &Names, message: &Stored, death: &Death<'_>) -> Outgoing {
    let mut headers = message.headers.to_builder();
    let replayed = was_dead(&message.headers) && message.subject == names.replay(death.unit);
    let before = |name| if replayed { message.headers.get(name) } else { None };
    let attempts_before: u32 = before(ATTEMPTS).and_then(|attempts| attempts.parse().ok()).unwrap_or(0);
    let (sequence, stored) = (message.sequence.to_string(), message.time.to_string());
    let error = &death.failure.message;
    let mut cut = error.len().min(ERROR_BYTES_MAX);
    while !error.is_char_boundary(cut) {
        cut -= 1;
    }
    headers
        .set(UNIT, &death.unit.to_string())
        .set(SUBJECT, before(SUBJECT).unwrap_or(message.first_subject()))
        .set(SEQUENCE, before(SEQUENCE).unwrap_or(&sequence))
        .set(ATTEMPTS, &attempts_before.saturating_add(death.attempts).to_string())
        .set(CODE, &death.failure.code)
        .set(ERROR, &error[..cut])
        .set(DIGEST, death.digest)
        .set(FIRST, before(FIRST).unwrap_or(&stored))
        .set(LAST, &death.last.to_string());
    Outgoing {
        subject: names.dead_letter(death.unit),
        headers: headers.build(),
        payload: message.payload.clone(),
        transport_id: Some(format!("d/{}/{}", death.unit, message.sequence)),
    }
}

/// The unit a dead letter belongs to; `None` when the message is no dead letter.
pub fn unit(headers: &Headers) -> Option<UnitId> {
    headers.get(UNIT).and_then(UnitId::parse)
}

/// How often a dead letter was replayed.
pub fn replays(headers: &Headers) -> u64 {
    headers.get(REPLAYS).and_then(|replays| replays.parse().ok()).unwrap_or(0)
}

/// A dead letter on its way back to the unit that failed, and to no other, with the transport id
/// `r/<sequence of the letter>/<number of the replay>`. `None` when the message is no dead letter.
///
/// Business identity and origin are those of the message that failed first, so that a `dedupe` lets it pass and a
/// receiver recognises it. What the letter says about its failure stays in its headers: see [`dead_letter`].
pub fn replay(names: &Names, letter: &Stored) -> Option<Outgoing> {
    let unit = unit(&letter.headers)?;
    let number = replays(&letter.headers).saturating_add(1);
    let mut headers = letter.headers.to_builder();
    let (subject, sequence) = (letter.headers.get(SUBJECT)?, letter.headers.get(SEQUENCE)?);
    if letter.headers.get(message::ID).is_none() {
        headers.set(message::ID, &format!("{subject}/{sequence}"));
    }
    if letter.headers.get(message::ORIGIN).is_none() {
        headers.set(message::ORIGIN, &format!("{}/{sequence}", names.messages()));
    }
    headers.set(message::SUBJECT, letter.headers.get(message::SUBJECT).unwrap_or(subject));
    headers.set(REPLAYS, &number.to_string());
    Some(Outgoing {
        subject: names.replay(&unit),
        headers: headers.build(),
        payload: letter.payload.clone(),
        transport_id: Some(format!("r/{}/{number}", letter.sequence)),
    })
}

/// The dead letter with another payload. All it says about its failure stays.
pub fn edited(letter: &Stored, payload: Bytes, now: Timestamp) -> Outgoing {
    let mut headers = letter.headers.to_builder();
    headers.set(EDITED, &now.to_string());
    let transport_id = Some(format!("e/{}", letter.sequence));
    Outgoing { subject: letter.subject.clone(), headers: headers.build(), payload, transport_id }
}

/// The business identity of a message: its `Vejas-Id`, or its place in the stream when it has none.
pub fn business_id(message: &Stored) -> String {
    match message.headers.get(message::ID) {
        Some(id) => id.to_owned(),
        None => format!("{}/{}", message.subject, message.sequence),
    }
}

/// Whether the message was dead before.
pub fn was_dead(headers: &Headers) -> bool {
    headers.get(UNIT).is_some()
}

/// Takes away what [`dead_letter`] added: outputs of a replayed message are not dead.
pub fn forget(headers: &mut HeadersBuilder) {
    for name in ALL {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::UnitKind;

    #[test]
    fn payload_and_headers_survive_and_the_failure_is_named() {
        let message = Stored {
            sequence: 7,
            subject: "vx.orders.raw".to_owned(),
            headers: Headers::from_iter([(message::ID, "A-1")]),
            payload: Bytes::from_static(&[0, 159, 146, 150]),
            time: Timestamp(0),
        };
        let unit = UnitId::new(UnitKind::Flow, "price");
        let failure = Failure::new("schema", "é".repeat(ERROR_BYTES_MAX));
        let death =
            Death { unit: &unit, digest: "abc", attempts: 3, failure: &failure, last: Timestamp(1_000_000_000) };
        let letter = dead_letter(&Names::default(), &message, &death);
        assert_eq!(letter.payload, message.payload);
        assert_eq!(letter.subject, "vxdlq.flow.price");
        assert_eq!(letter.transport_id.as_deref(), Some("d/flow/price/7"));
        assert_eq!(letter.headers.get(message::ID), Some("A-1"));
        assert_eq!(letter.headers.get(SUBJECT), Some("vx.orders.raw"));
        assert_eq!(letter.headers.get(ERROR).unwrap().len(), ERROR_BYTES_MAX);
        assert_eq!(letter.headers.get(LAST), Some("1970-01-01T00:00:01.000Z"));
    }

    #[test]
    fn a_replay_that_fails_again_keeps_origin_and_first_time_and_adds_up_attempts() {
        let names = Names::default();
        let unit = UnitId::new(UnitKind::Sink, "erp");
        let failure = Failure::new("http-400", "no");
        let death = |attempts| Death { unit: &unit, digest: "abc", attempts, failure: &failure, last: Timestamp(5) };
        let stored = |sequence, from: Outgoing| Stored {
            sequence,
            subject: from.subject,
            headers: from.headers,
            payload: from.payload,
            time: Timestamp(sequence as i64 * 1_000_000_000),
        };
        let message = Stored {
            sequence: 7,
            subject: "vx.orders".to_owned(),
            headers: Headers::default(),
            payload: Bytes::from_static(b"x"),
            time: Timestamp(0),
        };
        let letter = stored(1, dead_letter(&names, &message, &death(3)));
        let replay = replay(&names, &letter).unwrap();
        assert_eq!(replay.subject, "vxreplay.sink.erp");
        assert_eq!(replay.transport_id.as_deref(), Some("r/1/1"));
        assert_eq!(replay.headers.get(message::ID), Some("vx.orders/7"));
        assert_eq!(replay.headers.get(message::ORIGIN), Some("VEJAS/7"));
        assert_eq!(replay.headers.get(message::SUBJECT), Some("vx.orders.raw"));
        let again = dead_letter(&names, &stored(20, replay), &death(2));
        assert_eq!(again.transport_id.as_deref(), Some("d/sink/erp/20"));
        for (name, expected) in [
            (SUBJECT, "vx.orders"),
            (SEQUENCE, "7"),
            (ATTEMPTS, "5"),
            (REPLAYS, "1"),
            (FIRST, "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(again.headers.get(name), Some(expected), "{name}");
        }
        let mut left = again.headers.to_builder();
        forget(&mut left);
        assert!(left.build().iter().all(|(name, _)| !name.starts_with("Vejas-Dead")));
    }

    #[test]
    fn what_is_no_dead_letter_is_not_replayed() {
        let message = Stored {
            sequence: 1,
            subject: "vxdlq.flow.a".to_owned(),
            headers: Headers::default(),
            payload: Bytes::new(),
            time: Timestamp(0),
        };
        assert_eq!(replay(&Names::default(), &message), None);
    }
}
