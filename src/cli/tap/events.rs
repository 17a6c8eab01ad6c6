//! Server-sent events, read from pieces as they arrive.

use std::collections::VecDeque;

/// Longest event that is read, in bytes: two payloads as they are cut by the server, each byte escaped.
const EVENT_BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::cli) struct Event {
    pub name: String,
    pub data: String,
    pub id: Option<String>,
}

#[derive(Debug, Default)]
pub(in crate::cli) struct Events {
    /// A line that is not at its end yet.
    rest: Vec<u8>,
    /// An event that is not at its end yet.
    open: Event,
    ready: VecDeque<Event>,
}

impl Events {
    /// Answers whether the stream keeps to its bound.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            if self.rest.len() + self.open.data.len() > EVENT_BYTES_MAX {
                return false;
            }
            if piece.ends_with(b"\n") {
                let line = String::from_utf8_lossy(&self.rest).trim_end_matches(['\r', '\n']).to_owned();
                self.rest.clear();
                self.line(&line);
            }
        }
        true
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            let event = std::mem::take(&mut self.open);
            if !event.name.is_empty() {
                self.ready.push_back(event);
            }
            return;
        }
        // What begins with a colon is a comment.
        let Some((field, value)) = line.split_once(':') else { return };
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.open.name),
            "id" => self.open.id = Some(value.to_owned()),
            "data" => {
                if !self.open.data.is_empty() {
                    self.open.data.push('\n');
                }
                self.open.data.push_str(value);
            }
            _ => {}
        }
    }

    pub fn next(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_whole_however_they_were_cut() {
        let stream =
            ": silence\n\nevent: message\ndata: {\"a\":\"é\"}\nid: 7\n\nevent: gap\r\ndata: {}\r\n\r\n".as_bytes();
        for size in 1..=stream.len() {
            let mut events = Events::default();
            assert!(stream.chunks(size).all(|chunk| events.take(chunk)));
            let first = Event { name: "message".into(), data: "{\"a\":\"é\"}".into(), id: Some("7".into()) };
            assert_eq!(events.next(), Some(first), "in pieces of {size}");
            assert_eq!(events.next().unwrap().name, "gap");
            assert_eq!(events.next(), None);
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut events = Events::default();
        assert!(events.take(b"data: "));
        assert!(!events.take(&vec![b'x'; EVENT_BYTES_MAX + 1]));
    }
}
