//! A message that is stored again for its own unit, so that a newer version of the unit works on it.
//!
//! Moved is what a former version could not deliver. Under that version the move is its only effect; the copy has a sequence of its
//! own and belongs to the newest version. Business identity, origin and first subject stay, so that a `dedupe` lets it pass and a receiver
//! recognises it.

use super::dead_letter::business_id;
use super::message::{self, Outgoing, Stored};
use crate::id::{Names, UnitId};

/// The copy, with the transport id `m/<unit>/<sequence>`: moved twice inside the window it is stored once.
pub fn moved(names: &Names, unit: &UnitId, message: &Stored) -> Outgoing {
    let mut headers = message.headers.to_builder();
    if message.headers.get(message::ID).is_none() {
        headers.set(message::ID, &business_id(message));
    }
    if message.headers.get(message::ORIGIN).is_none() {
        headers.set(message::ORIGIN, &format!("{}/{}", names.messages(), message.sequence));
    }
    headers.set(message::SUBJECT, message.first_subject());
    Outgoing {
        subject: names.replay(unit),
        headers: headers.build(),
        payload: message.payload.clone(),
        transport_id: Some(format!("m/{unit}/{}", message.sequence)),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::flow::message::Headers;
    use crate::id::UnitKind;
    use crate::time::Timestamp;

    #[test]
    fn identity_and_origin_stay_over_several_moves_and_the_transport_id_names_the_sequence_in_hand() {
        let (names, unit) = (Names::default(), UnitId::new(UnitKind::Sink, "erp"));
        let mut message = Stored {
            sequence: 7,
            subject: "vx.orders".to_owned(),
            headers: Headers::from_iter([(message::ID, "a-1")]),
            payload: Bytes::from_static(b"x"),
            time: Timestamp(0),
        };
        for (sequence, transport_id) in [(7, "m/sink/erp/7"), (19, "m/sink/erp/19")] {
            message.sequence = sequence;
            let copy = moved(&names, &unit, &message);
            assert_eq!(copy.transport_id.as_deref(), Some(transport_id));
            assert_eq!(copy.subject, "vxreplay.sink.erp");
            assert_eq!(
                (copy.headers.get(message::ID), copy.headers.get(message::ORIGIN)),
                (Some("a-1"), Some("VEJAS/7"))
            );
            assert_eq!(copy.headers.get(message::SUBJECT), Some("vx.orders"));
            message = Stored { subject: copy.subject, headers: copy.headers, payload: copy.payload, ..message };
        }
    }
}
