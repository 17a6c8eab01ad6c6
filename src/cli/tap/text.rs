//! A message and a step as people read them.

use std::fmt::Write;

use crate::api::view::{Payload, TapMessage, TapStep};

pub(super) fn message(message: &TapMessage) -> String {
    let mut text = format!("{}  {}  #{}\n", message.time, message.subject, message.sequence);
    for (name, value) in &message.headers {
        let _ = writeln!(text, "  {}: {}", harmless(name), harmless(value));
    }
    let _ = writeln!(text, "  {}", payload(&message.payload));
    text
}

pub(super) fn step(step: &TapStep) -> String {
    let number = step.step.map_or_else(String::new, |number| format!("step {number} "));
    let attempt = if step.attempt > 1 { format!(" (attempt {})", step.attempt) } else { String::new() };
    let mut text =
        format!("#{} {} {number}{}: {}{attempt}", step.sequence, harmless(&step.id), step.verb, step.outcome);
    if let Some(to) = &step.to {
        let _ = write!(text, " to {to}");
    }
    if let Some(parts) = step.parts {
        let _ = write!(text, " into {parts}");
    }
    if let Some(code) = &step.code {
        let _ = write!(text, " [{code}] {}", harmless(step.message.as_deref().unwrap_or("")));
    }
    let before = payload(&step.before);
    match step.after.as_ref().map(payload) {
        Some(after) if after != before => {
            let _ = write!(text, "\n  - {before}\n  + {after}");
        }
        _ => {
            let _ = write!(text, "\n    {before}");
        }
    }
    text.push('\n');
    text
}

fn payload(payload: &Payload) -> String {
    match (&payload.json, &payload.text) {
        (Some(json), _) => json.to_string(),
        (None, Some(text)) if text.is_empty() => "(empty)".to_owned(),
        (None, Some(text)) if text.len() < payload.bytes => format!("{}… ({} bytes)", harmless(text), payload.bytes),
        (None, text) => harmless(text.as_deref().unwrap_or("null")),
    }
}

/// What comes from outside must not steer a terminal.
pub(in crate::cli) fn harmless(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        match c.is_control() && c != '\t' {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
        shown
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cannot_steer_the_terminal_that_shows_it() {
        let shown = message(&TapMessage {
            sequence: 7,
            subject: "orders.raw".to_owned(),
            time: "2026-01-02T03:04:05.000Z".to_owned(),
            headers: [("Vejas-Id".to_owned(), "a\x1b[2J".to_owned())].into(),
            payload: Payload { json: None, text: Some("x\x1b]0;y\x07".to_owned()), bytes: 6 },
        });
        let expected = "2026-01-02T03:04:05.000Z  orders.raw  #7\n  Vejas-Id: a\\u{1b}[2J\n  x\\u{1b}]0;y\\u{7}\n";
        assert_eq!(shown, expected);
    }
}
