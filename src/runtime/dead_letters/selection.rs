//! Which dead letters: the filter as people write it, checked once, and then asked per letter.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::flow::dead_letter;
use crate::flow::message::{self, Stored};
use crate::id::{Names, UnitId, UnitKind};
use crate::manifest::value::Span;
use crate::time::Timestamp;

/// Letters of one page when nothing is said.
pub const PAGE_LETTERS_DEFAULT: usize = 100;
/// Letters of one page at most.
pub const PAGE_LETTERS_MAX: usize = 1_000;
/// Longest filter text, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;

/// A filter and a place in the stream. Nothing said is everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Selection {
    /// This letter only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// The unit that failed, `flow/price`, or only its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The code of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Failed last at or after this time: RFC 3339, or how long ago (`2h`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Failed last before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Occurs, as it is written, in the payload, the error or the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The first sequence looked at: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The last sequence looked at: `through` of the page before. Without it a replay of letters that fail again would meet
    /// them again, for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through: Option<u64>,
    /// Letters of one page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl Selection {
    /// Whether every letter there is matches, wherever the page begins.
    pub fn is_everything(&self) -> bool {
        let Selection { sequence, unit, code, since, until, text, from: _, through: _, limit: _ } = self;
        sequence.is_none() && [unit, code, since, until, text].into_iter().all(Option::is_none)
    }

    pub fn page_letters(&self) -> usize {
        self.limit.unwrap_or(PAGE_LETTERS_DEFAULT).clamp(1, PAGE_LETTERS_MAX)
    }
}

/// A [`Selection`] that was found to make sense.
pub(super) struct Matcher {
    /// Subjects to read; none is all.
    pub subjects: Vec<String>,
    pub since: Option<Timestamp>,
    until: Option<Timestamp>,
    code: Option<String>,
    text: Option<Vec<u8>>,
}

impl Matcher {
    pub fn new(selection: &Selection, names: &Names, now: Timestamp) -> Result<Self, Error> {
        let subjects = match selection.unit.as_deref() {
            None => Vec::new(),
            Some(unit) => units(unit)?.iter().map(|unit| names.dead_letter(unit)).collect(),
        };
        let moment = |name, text: &Option<String>| text.as_deref().map(|text| moment(name, text, now)).transpose();
        let text = selection.text.clone().map(String::into_bytes).filter(|text| !text.is_empty());
        if text.as_ref().is_some_and(|text| text.len() > TEXT_BYTES_MAX) {
            return Err(Error::Selection(format!("`text` is longer than {TEXT_BYTES_MAX} bytes")));
        }
        Ok(Matcher {
            subjects,
            since: moment("since", &selection.since)?,
            until: moment("until", &selection.until)?,
            code: selection.code.clone(),
            text,
        })
    }

    pub fn matches(&self, letter: &Stored) -> bool {
        let headers = &letter.headers;
        if self.code.as_deref().is_some_and(|code| headers.get(dead_letter::CODE) != Some(code)) {
            return false;
        }
        if self.since.is_some() || self.until.is_some() {
            let failed = headers.get(dead_letter::LAST).and_then(Timestamp::parse).unwrap_or(letter.time);
            if self.since.is_some_and(|since| failed < since) || self.until.is_some_and(|until| failed >= until) {
                return false;
            }
        }
        let Some(text) = &self.text else { return true };
        let said = [dead_letter::ERROR, message::ID].into_iter().filter_map(|name| headers.get(name));
        said.map(str::as_bytes).chain([&letter.payload[..]]).any(|bytes| contains(bytes, text))
    }
}

/// A name alone may be that of a flow and of a sink.
fn units(text: &str) -> Result<Vec<UnitId>, Error> {
    let plain =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    let found = match UnitId::parse(text) {
        Some(unit) => vec![unit],
        None => {
            let kinds = [UnitKind::HttpIn, UnitKind::Source, UnitKind::Flow, UnitKind::Sink];
            kinds.into_iter().map(|kind| UnitId::new(kind, text)).collect()
        }
    };
    if found.iter().all(|unit| plain(&unit.name)) {
        return Ok(found);
    }
    Err(Error::Selection(format!("{text:?} names no unit: write `flow/price`, or only the name")))
}

fn moment(name: &str, text: &str, now: Timestamp) -> Result<Timestamp, Error> {
    let ago = |span: Span| now.minus(span.0);
    Timestamp::parse(text).or_else(|| Span::parse(text).ok().map(ago)).ok_or_else(|| {
        Error::Selection(format!(
            "`{name}` is {text:?}: write a time as in 2026-03-01T08:00:00Z, or how long ago as in `2h`"
        ))
    })
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// How fast: so many letters of one page, and how long to wait after them.
pub(super) fn pace(rate: Option<&crate::manifest::value::Rate>, letters: usize) -> (usize, Duration) {
    /// Shorter bursts would cost a request each.
    const BURST: Duration = Duration::from_millis(200);
    let Some(rate) = rate else { return (letters, Duration::ZERO) };
    let each = rate.per.as_secs_f64() / f64::from(rate.count.max(1));
    let burst = ((BURST.as_secs_f64() / each) as usize).clamp(1, letters.max(1));
    (burst, Duration::from_secs_f64(each))
}
