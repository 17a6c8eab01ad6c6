//! A point in time as a value. Reading the clock is the business of `ports::clock`.

use std::fmt;
use std::time::Duration;

/// Nanoseconds since 1970-01-01T00:00:00Z; may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    pub fn from_unix_millis(millis: i64) -> Self {
        Timestamp(millis.saturating_mul(1_000_000))
    }

    pub fn unix_millis(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// The time from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    /// `self` moved forward; stops at the end of the range.
    pub fn plus(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// `self` moved back; stops at the start of the range.
    pub fn minus(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// Reads RFC 3339.
    pub fn parse(text: &str) -> Option<Timestamp> {
        let time = chrono::DateTime::parse_from_rfc3339(text).ok()?;
        time.timestamp_nanos_opt().map(Timestamp)
    }
}

/// RFC 3339 in UTC with milliseconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = chrono::DateTime::from_timestamp_nanos(self.0);
        f.write_str(&time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back_keeps_the_millisecond() {
        let text = "2026-11-30T20:52:00.123Z";
        let time = Timestamp::parse(text).unwrap();
        assert_eq!(time.to_string(), text);
        assert_eq!(Timestamp::from_unix_millis(time.unix_millis()), time);
    }
}
