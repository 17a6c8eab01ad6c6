//! Names: how units, streams, buckets and subjects are called, on every bus.
//!
//! Only spelling lives here. What a stream or a bucket is for is said in `ports`.

use std::fmt;

/// The subject prefix of an installation that sets none.
pub const SUBJECT_ROOT_DEFAULT: &str = "vx";

/// Longest subject, in bytes, that a manifest may name.
pub const SUBJECT_BYTES_MAX: usize = 200;

/// What a unit is made from. The order is the order of listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnitKind {
    HttpIn,
    Source,
    Flow,
    Sink,
}

impl UnitKind {
    pub fn as_str(self) -> &'static str {
        match self {
            UnitKind::HttpIn => "http-in",
            UnitKind::Source => "source",
            UnitKind::Flow => "flow",
            UnitKind::Sink => "sink",
        }
    }
}

/// A running thing made from a manifest, written `flow/price-orders`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId {
    pub kind: UnitKind,
    pub name: String,
}

impl UnitId {
    pub fn new(kind: UnitKind, name: impl Into<String>) -> Self {
        UnitId { kind, name: name.into() }
    }

    /// Reads what [`fmt::Display`] wrote. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once('/')?;
        let kinds = [UnitKind::HttpIn, UnitKind::Source, UnitKind::Flow, UnitKind::Sink];
        let kind = kinds.into_iter().find(|known| known.as_str() == kind)?;
        (!name.is_empty()).then(|| UnitId::new(kind, name))
    }

    /// The name of the unit's `number`-th durable. Consumer names may hold neither `/` nor `.`.
    pub fn durable(&self, number: u32) -> String {
        format!("{}_{}_{number}", self.kind.as_str(), self.name)
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.as_str(), self.name)
    }
}

/// Spells the names that depend on the installation's subject root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    root: String,
}

impl Default for Names {
    fn default() -> Self {
        Names { root: SUBJECT_ROOT_DEFAULT.to_owned() }
    }
}

impl Names {
    /// Takes a root of `[a-z0-9]+`.
    pub fn new(root: &str) -> Result<Self, InvalidRoot> {
        let fits =
            !root.is_empty() && root.len() <= 32 && root.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if fits { Ok(Names { root: root.to_owned() }) } else { Err(InvalidRoot(root.to_owned())) }
    }

    fn stream(&self, suffix: &str) -> String {
        let infix =
            if self.root == SUBJECT_ROOT_DEFAULT { String::new() } else { format!("_{}", self.root.to_uppercase()) };
        format!("VEJAS{infix}{suffix}")
    }

    /// The stream of messages on their way: `vx.>`, `vxreplay.>`, `vxown.>`, `vxcut.>`.
    pub fn messages(&self) -> String {
        self.stream("")
    }

    /// The stream of dead letters: `vxdlq.>`.
    pub fn dead_letters(&self) -> String {
        self.stream("_DLQ")
    }

    /// The stream of what was published: `vxaudit.>`.
    pub fn audit(&self) -> String {
        self.stream("_AUDIT")
    }

    /// The subject filter of the audit stream.
    pub fn audit_subjects(&self) -> Vec<String> {
        vec![format!("{}audit.>", self.root)]
    }

    /// Where the record of one publication is stored.
    pub fn audit_record(&self, no: u64) -> String {
        format!("{}audit.{no}", self.root)
    }

    /// The bucket of `dedupe` marks.
    pub fn dedupe_bucket(&self) -> String {
        self.stream("_DEDUPE")
    }

    /// The bucket of marks on dead letters whose successor is stored: a replay, or the edited letter.
    pub fn dead_letter_marks_bucket(&self) -> String {
        self.stream("_DLQ_MARKS")
    }

    /// The bucket of versions: what was published, and which unit works on what under which of them.
    pub fn versions_bucket(&self) -> String {
        self.stream("_VERSIONS")
    }

    /// The bucket of sessions and leases.
    pub fn leases_bucket(&self) -> String {
        self.stream("_LEASES")
    }

    /// The bucket in which members announce themselves.
    pub fn members_bucket(&self) -> String {
        self.stream("_MEMBERS")
    }

    /// The bucket that shows people and tools where a source stands. Never read for decisions.
    pub fn offsets_bucket(&self) -> String {
        self.stream("_OFFSETS")
    }

    /// Every subject filter of the message stream.
    pub fn message_subjects(&self) -> Vec<String> {
        ["", "replay", "own", "cut"].iter().map(|s| format!("{}{s}.>", self.root)).collect()
    }

    /// The subject filter of the dead-letter stream.
    pub fn dead_letter_subjects(&self) -> Vec<String> {
        vec![format!("{}dlq.>", self.root)]
    }

    /// A manifest's subject or pattern as it is stored: `orders.raw` is `vx.orders.raw`.
    pub fn stored(&self, subject: &str) -> String {
        format!("{}.{subject}", self.root)
    }

    /// The inverse of [`Names::stored`]; a subject outside the root comes back whole.
    pub fn written<'a>(&self, stored: &'a str) -> &'a str {
        stored.strip_prefix(self.root.as_str()).and_then(|rest| rest.strip_prefix('.')).unwrap_or(stored)
    }

    /// Where replays for one unit are stored.
    pub fn replay(&self, unit: &UnitId) -> String {
        format!("{}replay.{}.{}", self.root, unit.kind.as_str(), unit.name)
    }

    /// Where the fence records of one unit are stored.
    pub fn fence(&self, unit: &UnitId) -> String {
        format!("{}own.{}.{}", self.root, unit.kind.as_str(), unit.name)
    }

    /// Where the dead letters of one unit are stored.
    pub fn dead_letter(&self, unit: &UnitId) -> String {
        format!("{}dlq.{}.{}", self.root, unit.kind.as_str(), unit.name)
    }
}

/// A subject root that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("subject root {0:?} is not 1 to 32 characters of a-z and 0-9")]
pub struct InvalidRoot(String);

/// Whether `subject` (no wildcards) is matched by `pattern` (`*` is one token, a last `>` one or more).
pub fn subject_matches(pattern: &str, subject: &str) -> bool {
    let mut wanted = pattern.split('.');
    let mut given = subject.split('.');
    loop {
        match (wanted.next(), given.next()) {
            (Some(">"), Some(_)) => return true,
            (Some("*"), Some(_)) => {}
            (Some(w), Some(g)) if w == g => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Whether every subject that `narrow` matches is matched by `wide`.
pub fn pattern_covers(wide: &str, narrow: &str) -> bool {
    let mut wide = wide.split('.');
    let mut narrow = narrow.split('.');
    loop {
        match (wide.next(), narrow.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (_, Some(">")) => return false,
            (Some("*"), Some(_)) => {}
            (Some(w), Some(n)) if w == n => {}
            _ => return false,
        }
    }
}

/// Whether some subject is matched by both patterns.
pub fn patterns_overlap(left: &str, right: &str) -> bool {
    let mut left = left.split('.');
    let mut right = right.split('.');
    loop {
        match (left.next(), right.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(l), Some(r)) if l == "*" || r == "*" || l == r => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_one_token_or_a_tail_of_at_least_one() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("*.b", "a.b", true),
            ("a", "a.b", false),
        ] {
            assert_eq!(subject_matches(pattern, subject), expected, "{pattern} {subject}");
        }
    }

    #[test]
    fn overlap_is_symmetric_and_finds_a_common_subject() {
        for (left, right, expected) in [
            ("a.*", "*.b", true),
            ("a.>", "a.b.c", true),
            ("a.*", "a.b.c", false),
            ("a.b", "a.c", false),
            (">", "x", true),
        ] {
            assert_eq!(patterns_overlap(left, right), expected, "{left} {right}");
            assert_eq!(patterns_overlap(right, left), expected, "{right} {left}");
        }
    }

    #[test]
    fn another_root_enters_stream_names_so_that_two_installations_share_a_server() {
        let names = Names::new("acme").unwrap();
        assert_eq!(names.dead_letters(), "VEJAS_ACME_DLQ");
        assert_eq!(names.stored("orders.raw"), "acme.orders.raw");
        assert_eq!(names.written("acme.orders.raw"), "orders.raw");
        assert_eq!(Names::default().messages(), "VEJAS");
        assert!(Names::new("a.b").is_err());
    }

    #[test]
    fn a_pattern_covers_what_it_matches_in_full() {
        let cases = [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.*", true),
            ("a.b", "a.*", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a.b.>", true),
            ("a.>", "a", false),
            ("a.*", "a.>", false),
            ("*.b", "a.b", true),
            ("a", "b", false),
            (">", "a.>", true),
        ];
        for (wide, narrow, expected) in cases {
            assert_eq!(pattern_covers(wide, narrow), expected, "{wide} {narrow}");
        }
    }
}
