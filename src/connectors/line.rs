//! A message as exactly one line of text, for files, the standard output and NDJSON requests.
//!
//! The rules of format `payload`, in this order:
//! 1. One line end at the end of the payload is dropped; the line brings its own.
//! 2. A payload without a line break is the line.
//! 3. JSON loses its line breaks: in JSON they stand between tokens only, so nothing changes its meaning.
//! 4. Other text is written as one JSON string, other bytes as `{"payloadBase64": "…"}`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::flow::message::Stored;
use crate::id::Names;
use crate::manifest::connector::file::Format;

/// Appends the line of `message`, with its newline.
pub fn append(out: &mut Vec<u8>, message: &Stored, format: Format, names: &Names) {
    match format {
        Format::Payload => payload(out, &message.payload),
        Format::Envelope => envelope(out, message, names),
    }
    out.push(b'\n');
}

/// Appends a payload without any line break.
pub fn payload(out: &mut Vec<u8>, payload: &[u8]) {
    let payload = payload.strip_suffix(b"\n").unwrap_or(payload);
    let payload = payload.strip_suffix(b"\r").unwrap_or(payload);
    if !payload.iter().any(is_break) {
        out.extend_from_slice(payload);
    } else if is_json(payload) {
        out.extend(payload.iter().filter(|byte| !is_break(byte)));
    } else {
        let json = match std::str::from_utf8(payload) {
            Ok(text) => serde_json::to_vec(text),
            Err(_) => serde_json::to_vec(&BTreeMap::from([("payloadBase64", STANDARD.encode(payload))])),
        };
        out.extend(json.expect("text is JSON"));
    }
}

pub fn is_json(payload: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(payload).is_ok()
}

fn is_break(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    subject: &'a str,
    sequence: u64,
    time: String,
    headers: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

fn envelope(out: &mut Vec<u8>, message: &Stored, names: &Names) {
    let json = serde_json::from_slice::<&RawValue>(&message.payload).ok();
    let envelope = Envelope {
        subject: names.written(message.first_subject()),
        sequence: message.sequence,
        time: message.time.to_string(),
        headers: message.headers.iter().collect(),
        payload: json,
        payload_base64: json.is_none().then(|| STANDARD.encode(&message.payload)),
    };
    let start = out.len();
    serde_json::to_writer(&mut *out, &envelope).expect("an envelope is JSON");
    // The payload stands in the envelope as it was sent; its line breaks are between tokens.
    let mut at = 0;
    out.retain(|byte| {
        at += 1;
        at <= start || !is_break(byte)
    });
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::flow::message::Headers;
    use crate::time::Timestamp;

    fn line(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        payload(&mut out, bytes);
        String::from_utf8(out).unwrap()
    }

    fn message(payload: &'static [u8]) -> Stored {
        Stored {
            sequence: 3,
            subject: "vx.orders.raw".to_owned(),
            headers: Headers::from_iter([("Vejas-Id", "A")]),
            payload: Bytes::from_static(payload),
            time: Timestamp(0),
        }
    }

    #[test]
    fn payloads_become_one_line_and_keep_their_meaning() {
        assert_eq!(line(b"{\"a\": 1.50}"), "{\"a\": 1.50}");
        assert_eq!(line(b"{\r\n \"a\": \"x\\ny\",\n \"b\": 1.50\n}\n"), "{ \"a\": \"x\\ny\", \"b\": 1.50}");
        assert_eq!(line(b"plain\n"), "plain");
        assert_eq!(line(b"two\nlines"), "\"two\\nlines\"");
        assert_eq!(line(b"\xff\n\xfe"), "{\"payloadBase64\":\"/wr+\"}");
    }

    #[test]
    fn an_envelope_carries_json_as_json_and_other_bytes_in_base64() {
        let mut out = b"before\n".to_vec();
        append(&mut out, &message(b"{\n\"n\":1}"), Format::Envelope, &Names::default());
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "before\n{\"subject\":\"orders.raw\",\"sequence\":3,\"time\":\"1970-01-01T00:00:00.000Z\",\
             \"headers\":{\"Vejas-Id\":\"A\"},\"payload\":{\"n\":1}}\n"
        );
        let mut out = Vec::new();
        append(&mut out, &message(b"\xff"), Format::Envelope, &Names::default());
        assert!(String::from_utf8(out).unwrap().ends_with("\"payloadBase64\":\"/w==\"}\n"));
    }

    proptest! {
        #[test]
        fn no_payload_breaks_the_framing(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut out = Vec::new();
            payload(&mut out, &bytes);
            prop_assert!(!out.iter().any(is_break));
        }
    }
}
