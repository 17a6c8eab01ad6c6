//! What a person is shown: lines for a list, one letter whole, bytes that are no text as hex.

use std::fmt::Write as _;

use super::super::status::{align, shorten};
use crate::runtime::dead_letters::view::{Detail, Letter, Page};

/// Payload bytes shown; `--raw` gives all.
const SHOWN_BYTES_MAX: usize = 64 << 10;
const HEX_BYTES_PER_LINE: usize = 16;

pub fn list(page: &Page) -> String {
    let mut text = letters(&page.letters);
    if page.letters.is_empty() && page.next.is_none() {
        text = "no dead letters\n".to_owned();
    }
    if let Some(next) = page.next {
        let _ = writeln!(text, "\nmore: --from {next}");
    }
    text
}

pub fn letters(letters: &[Letter]) -> String {
    let mut text = String::new();
    let head = ["SEQ", "UNIT", "CODE", "LAST", "TRIES", "REPLAYS", "BYTES", "ID", "ERROR"];
    let rows = letters.iter().map(|letter| {
        [
            letter.sequence.to_string(),
            letter.unit.clone(),
            letter.code.clone(),
            letter.last.clone(),
            letter.attempts.to_string(),
            letter.replays.to_string(),
            letter.payload_bytes.to_string(),
            shorten(&plain(&letter.id)),
            shorten(&plain(&letter.error)),
        ]
    });
    if !letters.is_empty() {
        align(&mut text, head, rows, "rlllrrrll");
    }
    text
}

/// Letters come from outside: what would steer a terminal is shown, not sent.
fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

pub fn letter(detail: &Detail, payload: &[u8]) -> String {
    let letter = &detail.letter;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<10}{}", plain(value).replace('\n', "\n          "));
    };
    line("unit", &format!("{} (digest {})", letter.unit, letter.digest));
    line("code", &letter.code);
    line("error", &letter.error);
    line("id", &letter.id);
    line("came as", &format!("{} #{}", letter.subject, letter.subject_sequence));
    line("tried", &format!("{} times, replayed {} times", letter.attempts, letter.replays));
    line("first", &letter.first);
    line("last", &letter.last);
    if let Some(edited) = &letter.edited {
        line("edited", edited);
    }
    text.push_str("\nheaders\n");
    for header in detail.headers.iter().filter(|header| !header.name.starts_with("Vejas-Dead-")) {
        let _ = writeln!(text, "  {}: {}", plain(&header.name), plain(&header.value));
    }
    let _ = writeln!(text, "\npayload, {} bytes", payload.len());
    text.push_str(&shown(payload));
    text
}

/// JSON laid out, other text as it is, anything else as hex.
fn shown(payload: &[u8]) -> String {
    let cut = payload.len().min(SHOWN_BYTES_MAX);
    let mut text = match std::str::from_utf8(payload) {
        Ok(whole) => {
            let whole = laid_out(whole).unwrap_or_else(|| plain(whole));
            let mut end = whole.len().min(SHOWN_BYTES_MAX);
            while !whole.is_char_boundary(end) {
                end -= 1;
            }
            whole[..end].to_owned()
        }
        Err(_) => hex(&payload[..cut]),
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if payload.len() > SHOWN_BYTES_MAX {
        text.push_str("… cut; --raw gives all of it\n");
    }
    text
}

/// JSON with line breaks and nothing else changed: a value parsed and printed again would lose digits.
fn laid_out(text: &str) -> Option<String> {
    serde_json::from_str::<&serde_json::value::RawValue>(text).ok()?;
    let mut out = String::with_capacity(text.len() * 2);
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    let mut tokens = text.chars().filter(|c| !c.is_control() || !c.is_ascii_whitespace()).peekable();
    let newline = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    while let Some(c) = tokens.next() {
        if in_text {
            out.push(c);
            in_text = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            ' ' => {}
            '"' => {
                in_text = true;
                out.push(c);
            }
            '{' | '[' => {
                out.push(c);
                while tokens.next_if_eq(&' ').is_some() {}
                if let Some(close) = tokens.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    newline(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                newline(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                newline(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c => out.push(c),
        }
    }
    Some(out)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (nth, line) in bytes.chunks(HEX_BYTES_PER_LINE).enumerate() {
        let _ = write!(text, "{:08x} ", nth * HEX_BYTES_PER_LINE);
        for at in 0..HEX_BYTES_PER_LINE {
            let _ = match line.get(at) {
                Some(byte) => write!(text, " {byte:02x}"),
                None => write!(text, "   "),
            };
        }
        let seen = line.iter().map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { *byte as char } else { '.' });
        let _ = writeln!(text, "  {}", seen.collect::<String>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_laid_out_and_keeps_its_digits() {
        let text = "{ \"a\" :[1.10,{\"b\":\"x, {\\\" y\"}],\n\"e\":{ },\"n\":12345678901234567890123}";
        let expected = "{\n  \"a\": [\n    1.10,\n    {\n      \"b\": \"x, {\\\" y\"\n    }\n  ],\n  \"e\": {},\n  \
                        \"n\": 12345678901234567890123\n}\n";
        assert_eq!(shown(text.as_bytes()), expected);
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_hex_and_nothing_steers_the_terminal() {
        assert_eq!(shown(&[0, 0xff, b'a']), format!("00000000  00 ff 61{}  ..a\n", "   ".repeat(13)));
        assert_eq!(shown(b"a\x1b[2J"), "a\\u{1b}[2J\n");
    }
}
