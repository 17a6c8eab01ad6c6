//! The scalar types of manifest fields: each is valid once it exists.

use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use crate::id;
use crate::time::Timestamp;

/// Longest manifest name, in characters.
pub const NAME_CHARS_MAX: usize = 63;
/// Longest duration a manifest may state.
pub const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Why a scalar is refused: what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);

macro_rules! text_value {
    ($name:ident) => {
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $name::parse(&text).map_err(de::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

/// The name of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);
text_value!(Name);

impl Name {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let fits = !text.is_empty()
            && text.len() <= NAME_CHARS_MAX
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if fits {
            Ok(Name(text.to_owned()))
        } else {
            Err(InvalidValue(format!("{text:?} is not a name: use 1 to {NAME_CHARS_MAX} of a-z, 0-9 and `-`")))
        }
    }
}

impl JsonSchema for Name {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Name".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[a-z0-9-]{1,63}$" })
    }
}

/// A dotted subject without wildcards, such as `orders.raw`, written without the root prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(String);
text_value!(Subject);

impl Subject {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let pattern = Pattern::parse(text)?;
        if pattern.has_wildcard() {
            return Err(InvalidValue(format!(
                "{text:?} has a wildcard: a message is stored under one subject, name it in full"
            )));
        }
        Ok(Subject(pattern.0))
    }
}

impl JsonSchema for Subject {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Subject".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$", "maxLength": 200 })
    }
}

/// A subject or a pattern: `*` stands for one token, a last `>` for one or more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(String);
text_value!(Pattern);

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        if text.len() > id::SUBJECT_BYTES_MAX {
            return Err(InvalidValue(format!("subject is longer than {} bytes", id::SUBJECT_BYTES_MAX)));
        }
        let tokens: Vec<&str> = text.split('.').collect();
        for (at, token) in tokens.iter().enumerate() {
            let plain = !token.is_empty() && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            let wildcard = *token == "*" || (*token == ">" && at + 1 == tokens.len());
            if !plain && !wildcard {
                return Err(InvalidValue(format!(
                    "{text:?} is not a subject: use tokens of letters, digits, `_` and `-` joined by dots; `*` stands for \
                     one token, `>` at the end for the rest"
                )));
            }
        }
        Ok(Pattern(text.to_owned()))
    }

    pub fn has_wildcard(&self) -> bool {
        self.0.split('.').any(|token| token == "*" || token == ">")
    }

    pub fn matches(&self, subject: &Subject) -> bool {
        id::subject_matches(&self.0, subject.as_str())
    }
}

impl JsonSchema for Pattern {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Pattern".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^(>|([A-Za-z0-9_-]+|\\*)(\\.([A-Za-z0-9_-]+|\\*))*(\\.>)?)$",
            "maxLength": 200
        })
    }
}

/// One value or a list of at least one.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    One(T),
    Many(#[schemars(length(min = 1))] Vec<T>),
}

impl<T> OneOrMany<T> {
    pub fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(value) => std::slice::from_ref(value),
            OneOrMany::Many(values) => values,
        }
    }
}

/// A length of time such as `200ms`, `10s`, `5m`, `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let mend = "write a number and a unit: ms, s, m, h or d, as in `200ms` or `1h 30m`";
        let duration = humantime::parse_duration(text)
            .map_err(|error| InvalidValue(format!("{text:?} is not a duration ({error}): {mend}")))?;
        if duration > DURATION_MAX {
            return Err(InvalidValue(format!("{text:?} is longer than a year")));
        }
        Ok(Span(duration))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Span::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A length of time: a number and a unit (ms, s, m, h, d), as in `200ms` or `1h 30m`.",
            "pattern": "^\\s*([0-9]+\\s*[a-zA-Z]+\\s*)+$"
        })
    }
}

/// A number of bytes such as `64KiB`, `1MiB` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        text.parse::<bytesize::ByteSize>().map(|size| ByteSize(size.as_u64())).map_err(|_| {
            InvalidValue(format!("{text:?} is not a size: write a number and a unit, as in `64KiB` or `1MiB`"))
        })
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(u64),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Number(bytes) => Ok(ByteSize(bytes)),
            Raw::Text(text) => ByteSize::parse(&text).map_err(de::Error::custom),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ByteSize".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes: `65536`, `64KiB`, `1MiB`.",
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?\\s*[kKMGT]?i?B?$" }
            ]
        })
    }
}

/// How often something may happen, such as `100/s`, `30/m` or `5/h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub count: u32,
    pub per: Duration,
}

impl Rate {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let refuse = || {
            InvalidValue(format!("{text:?} is not a rate: write a count and a unit, as in `100/s`, `30/m` or `5/h`"))
        };
        let (count, unit) = text.split_once('/').ok_or_else(refuse)?;
        let count: u32 = count.trim().parse().map_err(|_| refuse())?;
        let seconds = match unit.trim() {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(refuse()),
        };
        if count == 0 {
            return Err(InvalidValue("a rate of 0 would never let a message pass".to_owned()));
        }
        Ok(Rate { count, per: Duration::from_secs(seconds) })
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Rate::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Rate".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "How often: a count and a unit (s, m, h), as in `100/s`.",
            "pattern": "^\\s*[1-9][0-9]*\\s*/\\s*[smh]\\s*$"
        })
    }
}

/// Where a new unit begins to read: `end` (default), `first`, a sequence, or a time (RFC 3339).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartFrom {
    #[default]
    End,
    First,
    Sequence(u64),
    Time(Timestamp),
}

impl StartFrom {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "end" => return Ok(StartFrom::End),
            "first" => return Ok(StartFrom::First),
            _ => {}
        }
        if let Ok(sequence) = text.parse() {
            return Ok(StartFrom::Sequence(sequence));
        }
        Timestamp::parse(text).map(StartFrom::Time).ok_or_else(|| {
            InvalidValue(format!(
                "{text:?} is not a start: write `end`, `first`, a sequence or a time such as `2026-01-31T00:00:00Z`"
            ))
        })
    }
}

impl<'de> Deserialize<'de> for StartFrom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(u64),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Number(sequence) => Ok(StartFrom::Sequence(sequence)),
            Raw::Text(text) => StartFrom::parse(&text).map_err(de::Error::custom),
        }
    }
}

impl JsonSchema for StartFrom {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "StartFrom".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`end`, `first`, a sequence, or a time (RFC 3339).",
            "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string" }],
            "default": "end"
        })
    }
}

/// A point in time in RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Timestamp);

impl Time {
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        Timestamp::parse(text).map(Time).ok_or_else(|| {
            InvalidValue(format!("{text:?} is not a time: write it in RFC 3339, as in `2026-01-31T00:00:00Z`"))
        })
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Time::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "A point in time (RFC 3339), as in `2026-01-31T00:00:00Z`." })
    }
}

/// A connector setting: text that may hold `${env:NAME}`, `${env:NAME:-default}`, `${secret:path/key}` and
/// `${file:path}`. It is kept as written; the runtime resolves it when the connector starts.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Setting(pub String);

/// As written: references are not secrets, what they stand for is never in here.
impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A VRL expression, read only: it gives a value and changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Expression(pub String);

/// A VRL program: it changes the event `.`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Program(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_subjects_are_bounded_and_plain() {
        assert!(Name::parse("price-orders").is_ok());
        for bad in ["", "Price", "a_b", "a.b", &"a".repeat(64)] {
            assert!(Name::parse(bad).is_err(), "{bad}");
        }
        assert!(Subject::parse("orders.raw").is_ok());
        for bad in ["", "a..b", "a.*", "a.>", "a b", "é"] {
            assert!(Subject::parse(bad).is_err(), "{bad}");
        }
        for bad in ["a.>.b", "a*", ">a"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn scalars_read_what_people_write() {
        assert_eq!(Span::parse("1h 30m").unwrap().0, Duration::from_secs(5400));
        assert!(Span::parse("10").is_err());
        assert!(Span::parse("400 days").is_err());
        assert_eq!(ByteSize::parse("64KiB").unwrap().0, 65536);
        assert_eq!(Rate::parse("100/s").unwrap(), Rate { count: 100, per: Duration::from_secs(1) });
        assert!(Rate::parse("0/s").is_err());
        assert_eq!(StartFrom::parse("17").unwrap(), StartFrom::Sequence(17));
        assert!(StartFrom::parse("now").is_err());
    }
}
