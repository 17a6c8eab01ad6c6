//! The one diagnostic: what is wrong, where exactly, and how to mend it.
//!
//! A problem carries its own source text, so that it can be shown without a file being read again. How it is shown is
//! said in `report`; what a code means, in `codes`.

use std::ops::Range;
use std::sync::Arc;

pub use super::codes::Code;

/// The text of one file and where its lines begin.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// As shown to people, with `/` between its parts.
    pub path: String,
    /// Without a byte-order mark; empty when the file could not be read.
    pub text: String,
    line_starts: Vec<usize>,
}

/// A place for people: line and column count from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// A stretch of a source, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Region {
    pub start: usize,
    pub end: usize,
}

impl Region {
    pub fn new(start: usize, end: usize) -> Self {
        Region { start, end: end.max(start) }
    }

    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

impl Source {
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let line_starts =
            std::iter::once(0).chain(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1));
        let line_starts = line_starts.collect();
        Source { path: path.into(), text, line_starts }
    }

    /// The line that holds the byte at `offset`, counted from 0.
    pub fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset) - 1
    }

    pub fn position(&self, offset: usize) -> Position {
        let offset = floor_char_boundary(&self.text, offset);
        let line = self.line_of(offset);
        Position { line: line + 1, column: self.text[self.line_starts[line]..offset].chars().count() + 1 }
    }

    /// The bytes of a line (counted from 0) without its line break.
    pub fn line_range(&self, line: usize) -> Range<usize> {
        let start = self.line_starts.get(line).copied().unwrap_or(self.text.len());
        let end = self.line_starts.get(line + 1).copied().unwrap_or(self.text.len());
        let text = self.text[start..end].trim_end_matches(['\n', '\r']);
        start..start + text.len()
    }

    /// `region` cut at the end of its first line and moved to character boundaries.
    pub fn first_line(&self, region: Region) -> Region {
        let start = floor_char_boundary(&self.text, region.start);
        let end = floor_char_boundary(&self.text, region.end);
        let line_end = self.line_range(self.line_of(start)).end;
        Region::new(start, end.min(line_end))
    }
}

fn floor_char_boundary(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// A stretch of a file, or the whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub source: Arc<Source>,
    pub region: Option<Region>,
}

impl Place {
    pub fn new(source: &Arc<Source>, region: Region) -> Self {
        Place { source: Arc::clone(source), region: Some(source.first_line(region)) }
    }

    pub fn whole(source: &Arc<Source>) -> Self {
        Place { source: Arc::clone(source), region: None }
    }

    pub fn start(&self) -> Option<Position> {
        self.region.map(|region| self.source.position(region.start))
    }

    pub fn end(&self) -> Option<Position> {
        self.region.map(|region| self.source.position(region.end))
    }
}

/// `path:line:column`.
impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.start() {
            Some(at) => write!(f, "{}:{}:{}", self.source.path, at.line, at.column),
            None => f.write_str(&self.source.path),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The manifest is left out.
    Error,
    /// The manifest runs.
    Warning,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// Another place that belongs to the problem, in the same file or another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub place: Place,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub code: Code,
    pub severity: Severity,
    pub message: String,
    pub place: Place,
    /// What is said at the place itself, beside the caret.
    pub label: Option<String>,
    pub labels: Vec<Label>,
    /// The mend.
    pub help: Option<String>,
}

impl Problem {
    pub fn error(code: Code, place: Place, message: impl Into<String>) -> Self {
        Problem {
            code,
            severity: Severity::Error,
            message: message.into(),
            place,
            label: None,
            labels: Vec::new(),
            help: None,
        }
    }

    pub fn warning(code: Code, place: Place, message: impl Into<String>) -> Self {
        Problem { severity: Severity::Warning, ..Problem::error(code, place, message) }
    }

    #[must_use]
    pub fn label(mut self, text: impl Into<String>) -> Self {
        self.label = Some(text.into());
        self
    }

    #[must_use]
    pub fn and(mut self, place: Place, text: impl Into<String>) -> Self {
        self.labels.push(Label { place, text: text.into() });
        self
    }

    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }

    /// The order of reports: by file, place and code.
    pub fn sort(problems: &mut [Problem]) {
        problems.sort_by(|a, b| {
            let key = |p: &Problem| (p.place.region.map_or(0, |r| r.start), p.code);
            a.place.source.path.cmp(&b.place.source.path).then_with(|| key(a).cmp(&key(b)))
        });
    }
}

/// The candidate most like `wanted`, when one is like enough to be meant: one slip of the hand, or alike on the whole.
pub fn did_you_mean<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LIKENESS_MIN: f64 = 0.75;
    const ONE_SLIP: f64 = 0.95;
    let wanted = wanted.to_lowercase();
    let likeness = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        let alike = strsim::jaro_winkler(&wanted, &candidate);
        let slips = if wanted.len() > 2 { strsim::osa_distance(&wanted, &candidate) } else { usize::MAX };
        if slips <= 1 { alike.max(ONE_SLIP) } else { alike }
    };
    let scored = candidates.into_iter().map(|candidate| (likeness(candidate), candidate));
    scored
        .filter(|(score, _)| *score >= LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_and_lines_survive_crlf() {
        let source = Source::new("a.yaml", "é: 1\r\nb: 2");
        assert_eq!(source.position(2), Position { line: 1, column: 2 });
        assert_eq!(source.position(7), Position { line: 2, column: 1 });
        assert_eq!(&source.text[source.line_range(0)], "é: 1");
        assert_eq!(source.position(999), Position { line: 2, column: 5 });
    }

    #[test]
    fn only_a_like_name_is_suggested() {
        assert_eq!(did_you_mean("shema", ["schema", "table"]), Some("schema"));
        assert_eq!(did_you_mean("ulr", ["url", "auth"]), Some("url"));
        assert_eq!(did_you_mean("zzz", ["schema", "table"]), None);
    }
}
