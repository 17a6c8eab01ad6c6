//! Headers on the wire: those of the message, and the server's own, which all begin with `Nats-` and never pass from one to
//! the other. A sender that could set them could roll up a stream.

use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::flow::message::{Headers, HeadersBuilder};
use crate::ports::bus::Error;

pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";
pub(super) const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
pub(super) const EXPECTED_LAST: &str = "Nats-Expected-Last-Subject-Sequence";
pub(super) const EXPECTED_LAST_OF: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
pub(super) const BATCH_ID: &str = "Nats-Batch-Id";
pub(super) const BATCH_SEQUENCE: &str = "Nats-Batch-Sequence";
pub(super) const BATCH_COMMIT: &str = "Nats-Batch-Commit";
pub(super) const TTL: &str = "Nats-TTL";
pub(super) const OPERATION: &str = "KV-Operation";
const MARKER: &str = "Nats-Marker-Reason";

/// What the server keeps beside a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Own {
    /// A key that was deleted, not one that holds something.
    pub deleted: bool,
    /// Seconds until it expires, as it was written.
    pub ttl_secs: Option<u64>,
}

fn is_own(name: &str) -> bool {
    name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) || name == OPERATION
}

/// The message's headers as the client library wants them.
pub(super) fn encode(headers: &Headers) -> Result<HeaderMap, Error> {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| !is_own(name)) {
        let unfit = || Error::Mismatch {
            what: format!("header {name:?}"),
            found: "characters that cannot be sent".to_owned(),
            wanted: "a name of printable ASCII and a value of one line".to_owned(),
        };
        let name = name.parse::<HeaderName>().map_err(|_| unfit())?;
        let value = value.parse::<HeaderValue>().map_err(|_| unfit())?;
        map.insert(name, value);
    }
    Ok(map)
}

fn note(own: &mut Own, name: &str, value: &str) {
    match name {
        OPERATION => own.deleted |= matches!(value, "DEL" | "PURGE"),
        MARKER => own.deleted = true,
        TTL => own.ttl_secs = value.trim_end_matches('s').parse().ok(),
        _ => {}
    }
}

/// By name: the client library keeps no order.
pub(super) fn decode(map: Option<&HeaderMap>) -> (Headers, Own) {
    let (mut builder, mut own) = (HeadersBuilder::default(), Own::default());
    let Some(map) = map else { return (builder.build(), own) };
    let mut all: Vec<(&str, &str)> = map
        .iter()
        .filter_map(|(name, values)| values.first().map(|value| (AsRef::<str>::as_ref(name), value.as_str())))
        .collect();
    all.sort_unstable();
    for (name, value) in all {
        if is_own(name) {
            note(&mut own, name, value);
        } else {
            builder.set(name, value);
        }
    }
    (builder.build(), own)
}

/// Reads the block that `STREAM.MSG.GET` gives.
pub(super) fn parse(block: &[u8]) -> (Headers, Own) {
    let text = String::from_utf8_lossy(block);
    let mut own = Own::default();
    let mut all: Vec<(&str, &str)> = Vec::new();
    for line in text.split("\r\n").skip(1) {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        if is_own(name) {
            note(&mut own, name, value);
        } else {
            all.push((name, value));
        }
    }
    all.sort_unstable();
    (all.into_iter().collect(), own)
}

/// Bytes the headers take on the wire.
pub(super) fn size_bytes(map: &HeaderMap) -> usize {
    let one = |name: &HeaderName, value: &HeaderValue| AsRef::<str>::as_ref(name).len() + value.as_str().len() + 4;
    map.iter().flat_map(|(name, values)| values.iter().map(move |value| one(name, value))).sum::<usize>() + 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_headers_pass_in_neither_direction() {
        let headers: Headers = [("Vejas-Id", "1"), ("Nats-Rollup", "all"), ("nats-ttl", "1s")].into_iter().collect();
        let map = encode(&headers).unwrap();
        assert_eq!(map.len(), 1);
        let (headers, own) = parse(b"NATS/1.0\r\nVejas-Id: 1\r\nNats-TTL: 3s\r\nKV-Operation: DEL\r\n\r\n");
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("Vejas-Id", "1")]);
        assert_eq!(own, Own { deleted: true, ttl_secs: Some(3) });
    }

    #[test]
    fn a_value_with_a_line_break_is_refused() {
        let headers: Headers = [("a", "1\r\nNats-Rollup: all")].into_iter().collect();
        assert!(matches!(encode(&headers), Err(Error::Mismatch { .. })));
    }
}
