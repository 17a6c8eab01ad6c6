//! The message: a subject, headers and payload bytes, before and after it is stored.
//!
//! Headers are kept in their stored encoding and read by scanning, so that a message passes a hop without
//! an allocation per header.

use bytes::{BufMut, Bytes, BytesMut};

use crate::time::Timestamp;

/// Business identity; stable across redelivery, moves and replays.
pub const ID: &str = "Vejas-Id";
/// `<stream identity>/<first sequence>`; set when a message is moved or replayed, kept afterwards.
pub const ORIGIN: &str = "Vejas-Origin";
/// When the message entered, RFC 3339 with milliseconds.
pub const TIME: &str = "Vejas-Time";
/// On a copy that is stored for one unit only, a replay or a move: the subject of the message it is a copy of, with the root prefix.
pub const SUBJECT: &str = "Vejas-Subject";
/// The unit the message entered through.
pub const SOURCE: &str = "Vejas-Source";
/// The revision or digest the message was made under.
pub const REVISION: &str = "Vejas-Revision";
/// How many flows the message has passed.
pub const HOP: &str = "Vejas-Hop";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";

/// A message that has passed this many flows is dead-lettered: it runs in a circle.
pub const HOPS_MAX: u32 = 32;
/// Largest message the embedded bus takes, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 66 << 20;
/// Longest header name, in bytes.
pub const HEADER_NAME_BYTES_MAX: usize = 128;
/// Longest header value, in bytes. Longer ones are refused by [`HeadersBuilder::set`].
pub const HEADER_VALUE_BYTES_MAX: usize = 16 * 1024;

/// Names and values in order. A name occurs at most once and is compared exactly.
///
/// Encoding: for each header, name length (u8), value length (u16, little endian), name, value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(Bytes);

impl Headers {
    /// Takes bytes that [`Headers::as_bytes`] gave. `None` when they are not such.
    pub fn from_bytes(bytes: Bytes) -> Option<Self> {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (_, _, tail) = split_first(rest)?;
            rest = tail;
        }
        Some(Headers(bytes))
    }

    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    pub fn iter(&self) -> HeadersIter<'_> {
        HeadersIter(&self.0)
    }

    /// A builder that starts with these headers.
    pub fn to_builder(&self) -> HeadersBuilder {
        HeadersBuilder(BytesMut::from(&self.0[..]))
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(headers: I) -> Self {
        let mut builder = HeadersBuilder::default();
        for (name, value) in headers {
            builder.set(name, value);
        }
        builder.build()
    }
}

#[derive(Debug)]
pub struct HeadersIter<'a>(&'a [u8]);

impl<'a> Iterator for HeadersIter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, value, rest) = split_first(self.0)?;
        self.0 = rest;
        Some((name, value))
    }
}

fn split_first(bytes: &[u8]) -> Option<(&str, &str, &[u8])> {
    let (head, rest) = bytes.split_at_checked(3)?;
    let (name, rest) = rest.split_at_checked(head[0] as usize)?;
    let (value, rest) = rest.split_at_checked(u16::from_le_bytes([head[1], head[2]]) as usize)?;
    Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?, rest))
}

#[derive(Debug, Clone, Default)]
pub struct HeadersBuilder(BytesMut);

impl HeadersBuilder {
    /// Sets a header, replacing one of the same name. A name or value beyond its bound is cut at a character
    /// boundary: the callers that take headers from outside refuse such input before.
    pub fn set(&mut self, name: &str, value: &str) -> &mut Self {
        let name = truncate(name, HEADER_NAME_BYTES_MAX);
        // After the cut: what is stored under the name is to be stored once.
        self.remove(name);
        let value = truncate(value, HEADER_VALUE_BYTES_MAX);
        self.0.put_u8(name.len() as u8);
        self.0.put_u16_le(value.len() as u16);
        self.0.put_slice(name.as_bytes());
        self.0.put_slice(value.as_bytes());
        self
    }

    pub fn remove(&mut self, name: &str) -> &mut Self {
        let mut at = 0;
        while let Some((found, _, rest)) = split_first(&self.0[at..]) {
            let end = self.0.len() - rest.len();
            if found == name {
                let tail = self.0.split_off(end);
                self.0.truncate(at);
                self.0.unsplit(tail);
                break;
            }
            at = end;
        }
        self
    }

    pub fn build(self) -> Headers {
        Headers(self.0.freeze())
    }
}

fn truncate(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A message to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// As stored, with the root prefix.
    pub subject: String,
    pub headers: Headers,
    pub payload: Bytes,
    /// Inside the stream's duplicate window a second message with this id is not stored.
    pub transport_id: Option<String>,
}

impl Outgoing {
    /// What counts against limits: subject, headers and payload, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.subject.len() + self.headers.as_bytes().len() + self.payload.len()
    }
}

/// A message as a stream holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub sequence: u64,
    pub subject: String,
    pub headers: Headers,
    pub payload: Bytes,
    /// When the bus took it.
    pub time: Timestamp,
}

impl Stored {
    /// The subject it was stored under first, with the root prefix: a copy for one unit has a subject that says nothing.
    pub fn first_subject(&self) -> &str {
        self.headers.get(SUBJECT).unwrap_or(&self.subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_replaces_and_keeps_the_others() {
        let mut builder = HeadersBuilder::default();
        builder.set("a", "1").set("b", "2").set("a", "3").set("c", "").remove("b");
        let headers = builder.build();
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("a", "3"), ("c", "")]);
        assert_eq!(Headers::from_bytes(headers.as_bytes().clone()), Some(headers));
    }

    #[test]
    fn a_name_that_is_cut_is_still_there_once() {
        let mut builder = HeadersBuilder::default();
        let long = "a".repeat(HEADER_NAME_BYTES_MAX + 1);
        builder.set(&long, "1").set(&long, "2");
        let headers = builder.build();
        assert_eq!(headers.iter().collect::<Vec<_>>(), [(&long[1..], "2")]);
    }

    #[test]
    fn bytes_that_are_no_headers_are_refused() {
        assert_eq!(Headers::from_bytes(Bytes::from_static(&[3, 0, 0, b'a'])), None);
        assert_eq!(Headers::from_bytes(Bytes::from_static(&[1, 0, 0, 0xff])), None);
    }

    #[test]
    fn a_long_value_is_cut_at_a_character() {
        let mut builder = HeadersBuilder::default();
        builder.set("a", &"é".repeat(HEADER_VALUE_BYTES_MAX));
        assert_eq!(builder.build().get("a").unwrap().len(), HEADER_VALUE_BYTES_MAX);
    }
}
