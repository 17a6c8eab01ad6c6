//! The dead letter: a message that failed for good, stored whole with what is known about the failure.
//!
//! Payload and headers stay as they were, byte for byte; what is added stands in headers of its own.

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
/// How often it was tried.
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
pub fn dead_letter(names: &Names, message: &Stored, death: &Death<'_>) -> Outgoing {
    let mut headers = message.headers.to_builder();
    let error = &death.failure.message;
    let mut cut = error.len().min(ERROR_BYTES_MAX);
    while !error.is_char_boundary(cut) {
        cut -= 1;
    }
    headers
        .set(UNIT, &death.unit.to_string())
        .set(SUBJECT, &message.subject)
        .set(SEQUENCE, &message.sequence.to_string())
        .set(ATTEMPTS, &death.attempts.to_string())
        .set(CODE, &death.failure.code)
        .set(ERROR, &error[..cut])
        .set(DIGEST, death.digest)
        .set(FIRST, &message.time.to_string())
        .set(LAST, &death.last.to_string());
    Outgoing {
        subject: names.dead_letter(death.unit),
        headers: headers.build(),
        payload: message.payload.clone(),
        transport_id: Some(format!("d/{}/{}", death.unit, message.sequence)),
    }
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
    for name in [UNIT, SUBJECT, SEQUENCE, ATTEMPTS, CODE, ERROR, DIGEST, FIRST, LAST] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

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
        let failure = Failure { code: "schema".to_owned(), message: "é".repeat(ERROR_BYTES_MAX) };
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
}
