//! Where a byte of a decoded scalar was written.
//!
//! A program stands in a block scalar more often than not; its compiler counts bytes in the decoded text. This walks
//! both texts side by side. It is done only when a fault has to be shown.

use std::sync::Arc;

use granit_parser::ScalarStyle;

use super::tree::{Node, Value};
use crate::manifest::problem::{Position, Region, Source};

/// The origin of one scalar's text.
#[derive(Debug, Clone)]
pub struct Origin {
    source: Arc<Source>,
    region: Region,
    text: Arc<str>,
    style: ScalarStyle,
}

impl Origin {
    /// `None` when the node is not text.
    pub fn of(source: &Arc<Source>, node: &Node) -> Option<Self> {
        match &node.value {
            Value::Text { text, style } => {
                Some(Origin { source: Arc::clone(source), region: node.region, text: Arc::clone(text), style: *style })
            }
            _ => None,
        }
    }

    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// The decoded text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where the scalar itself is written.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Line and column in the file of a byte of the decoded text.
    pub fn position(&self, offset: usize) -> Position {
        self.source.position(self.offset_in_file(offset))
    }

    /// The stretch of the file that a stretch of the decoded text was written as.
    pub fn region_in_file(&self, start: usize, end: usize) -> Region {
        let first = self.offset_in_file(start);
        let last = if end > start { self.offset_in_file(end - 1) + 1 } else { first };
        Region::new(first, last)
    }

    fn offset_in_file(&self, offset: usize) -> usize {
        let written = &self.source.text[self.region.range()];
        // Compilers point at bytes, and not always at the first of a character.
        let offset = self.text.floor_char_boundary(offset);
        let inside = match self.style {
            ScalarStyle::Literal => literal(written, &self.text, offset),
            ScalarStyle::Folded => folded(written, &self.text, offset, block_start(written)),
            ScalarStyle::DoubleQuoted => folded_quoted(written, &self.text, offset, true),
            ScalarStyle::SingleQuoted => folded_quoted(written, &self.text, offset, false),
            ScalarStyle::Plain => folded(written, &self.text, offset, 0),
        };
        self.region.start + inside.min(written.len())
    }
}

/// The first byte after the header line of a block scalar.
fn block_start(written: &str) -> usize {
    match written.starts_with(['|', '>']) {
        true => written.find('\n').map_or(written.len(), |at| at + 1),
        false => 0,
    }
}

/// Each line of the text is a line of the file, moved right by the indentation.
fn literal(written: &str, text: &str, offset: usize) -> usize {
    let line = text[..offset].bytes().filter(|b| *b == b'\n').count();
    let column = offset - text[..offset].rfind('\n').map_or(0, |at| at + 1);
    let mut at = block_start(written);
    for _ in 0..line {
        at = written[at..].find('\n').map_or(written.len(), |end| at + end + 1);
    }
    let line_text = text.split('\n').nth(line).unwrap_or("");
    let line_written = written[at..].split('\n').next().unwrap_or("").trim_end_matches('\r');
    let indent = line_written.len().saturating_sub(line_text.len());
    at + (indent + column).min(line_written.len())
}

/// Lines are joined: a line break in the text, or a space that was one, stands for a break and the indentation behind.
fn folded(written: &str, text: &str, offset: usize, start: usize) -> usize {
    let mut at = start + leading_space(&written[start..]);
    for (here, expected) in text.char_indices() {
        at = skip_break(written, at, expected);
        if here >= offset {
            return at;
        }
        if written[at..].starts_with(expected) {
            at += expected.len_utf8();
        }
    }
    at
}

fn leading_space(written: &str) -> usize {
    written.len() - written.trim_start_matches([' ', '\n', '\r', '\t']).len()
}

/// Over a break with its indentation, when the text goes on with something else.
fn skip_break(written: &str, at: usize, expected: char) -> usize {
    let blank = leading_space(&written[at..]);
    match expected.is_whitespace() || blank == 0 || !written[at..at + blank].contains('\n') {
        true => at,
        false => at + blank,
    }
}

fn folded_quoted(written: &str, text: &str, offset: usize, escapes: bool) -> usize {
    let mut at = 1;
    for (here, expected) in text.char_indices() {
        at = skip_break(written, at, expected);
        while escapes && (written[at..].starts_with("\\\n") || written[at..].starts_with("\\\r\n")) {
            at += 1 + leading_space(&written[at + 1..]);
        }
        if here >= offset {
            return at;
        }
        let rest = &written[at..];
        at += match rest.strip_prefix('\\').filter(|_| escapes).and_then(|rest| rest.chars().next()) {
            Some('x') => 4,
            Some('u') => 6,
            Some('U') => 10,
            Some(escaped) => 1 + escaped.len_utf8(),
            None if !escapes && rest.starts_with("''") => 2,
            None if rest.starts_with(expected) => expected.len_utf8(),
            None => 0,
        };
        if !written.is_char_boundary(at.min(written.len())) || at >= written.len() {
            return written.len();
        }
    }
    at
}
