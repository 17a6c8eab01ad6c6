//! Which slots there are. A slot is a point of a fixed grid, in milliseconds since 1970-01-01T00:00:00Z; the grid depends
//! on the manifest alone, never on when a process started. Pure: the time is an argument.
//!
//! With `every` the slots are the whole multiples of the period. With `cron` they are the wall clock times that match,
//! in the time zone stated. Where a clock change meets a schedule:
//!
//! - A schedule of one fixed time a day that falls into a gap (the clock goes forward) has its slot at the first instant
//!   after the gap. In an overlap (the clock goes back) it has one slot, the earlier.
//! - Any other schedule has no slots in a gap, and slots in both passes of an overlap: every 15 minutes stays every
//!   15 minutes.

use std::collections::VecDeque;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use crate::manifest::connector::interval::{EVERY_MS_MIN, Interval, MISSED_SLOTS_MAX, OnMissed};

/// The first stretch of time that is searched for the newest slots, in milliseconds; it grows fourfold until enough
/// slots are found. Long enough for 1,000 slots of a schedule that matches every second.
const SEARCHED_MS_MIN: i64 = 20 * 60 * 1_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("exactly one of `every` and `cron` has to be stated")]
    NotOne,
    #[error("`every` has to be a whole number of milliseconds, at least {EVERY_MS_MIN}")]
    Every,
    #[error("`timeZone` applies to `cron` only")]
    ZoneWithoutCron,
    #[error("{0:?} is no time zone of the IANA database")]
    Zone(String),
    #[error("{pattern:?} is no cron schedule: {source}")]
    Cron { pattern: String, source: croner::errors::CronError },
    #[error("the cron schedule {0:?} never comes due")]
    Never(String),
}

/// A grid of slots.
#[derive(Debug, Clone)]
pub enum Schedule {
    Every { period_ms: i64 },
    Cron { cron: Box<Cron>, zone: Tz },
}

impl Schedule {
    pub fn new(stated: &Interval) -> Result<Self, Error> {
        match (&stated.every, &stated.cron) {
            (Some(_), None) if stated.time_zone.is_some() => Err(Error::ZoneWithoutCron),
            (Some(every), None) => {
                let millis = every.0.as_millis();
                let whole = every.0.subsec_nanos() % 1_000_000 == 0;
                match i64::try_from(millis) {
                    Ok(period_ms) if whole && millis >= EVERY_MS_MIN => Ok(Schedule::Every { period_ms }),
                    _ => Err(Error::Every),
                }
            }
            (None, Some(pattern)) => Self::cron(pattern, stated.time_zone.as_deref()),
            _ => Err(Error::NotOne),
        }
    }

    fn cron(pattern: &str, zone: Option<&str>) -> Result<Self, Error> {
        let zone = match zone {
            None => Tz::UTC,
            Some(name) => name.parse().map_err(|_| Error::Zone(name.to_owned()))?,
        };
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let cron = parser.parse(pattern).map_err(|source| Error::Cron { pattern: pattern.to_owned(), source })?;
        let schedule = Schedule::Cron { cron: Box::new(cron), zone };
        // Such as 30 February. Found here, or the source would wait in silence.
        schedule.next_slot(0).ok_or_else(|| Error::Never(pattern.to_owned()))?;
        Ok(schedule)
    }

    /// The first slot later than `after`; `None` beyond the end of the calendar.
    pub fn next_slot(&self, after: i64) -> Option<i64> {
        match self {
            Schedule::Every { period_ms } => after.div_euclid(*period_ms).checked_add(1)?.checked_mul(*period_ms),
            Schedule::Cron { cron, zone } => {
                let from: DateTime<Utc> = DateTime::from_timestamp_millis(after)?;
                let found = cron.find_next_occurrence(&from.with_timezone(zone), false).ok()?.timestamp_millis();
                // A slot that is not later would be stored over and over.
                (found > after).then_some(found)
            }
        }
    }

    /// The newest slots in `after < slot <= until`, oldest first, at most `slots_max`.
    pub fn newest(&self, after: i64, until: i64, slots_max: usize) -> Vec<i64> {
        if until <= after || slots_max == 0 {
            return Vec::new();
        }
        match self {
            Schedule::Every { period_ms } => {
                let last = until.div_euclid(*period_ms) * period_ms;
                let mut slots: Vec<i64> = std::iter::successors(Some(last), |slot| slot.checked_sub(*period_ms))
                    .take_while(|slot| *slot > after)
                    .take(slots_max)
                    .collect();
                slots.reverse();
                slots
            }
            Schedule::Cron { .. } => self.search_newest(after, until, slots_max),
        }
    }

    /// Walks forward only, from ever earlier starts: the walk back of a cron library disagrees with its walk forward at
    /// clock changes, and a walk from `after` may be millions of slots long.
    fn search_newest(&self, after: i64, until: i64, slots_max: usize) -> Vec<i64> {
        let mut searched_ms = SEARCHED_MS_MIN;
        loop {
            let start = until.saturating_sub(searched_ms).max(after);
            let mut slots = VecDeque::new();
            let mut at = start;
            while let Some(slot) = self.next_slot(at).filter(|slot| *slot <= until) {
                if slots.len() == slots_max {
                    slots.pop_front();
                }
                slots.push_back(slot);
                at = slot;
            }
            if slots.len() == slots_max || start == after {
                return slots.into();
            }
            searched_ms = searched_ms.saturating_mul(4);
        }
    }

    /// The slots in `last < slot <= now` that are made up for, oldest first.
    pub fn missed(&self, last: i64, now: i64, on_missed: OnMissed) -> Vec<i64> {
        match on_missed {
            OnMissed::Skip => Vec::new(),
            OnMissed::FireOnce => self.newest(last, now, 1),
            OnMissed::FireAll => self.newest(last, now, MISSED_SLOTS_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::manifest::value::Span;
    use crate::time::Timestamp;

    fn every(period: Duration) -> Interval {
        Interval {
            every: Some(Span(period)),
            cron: None,
            time_zone: None,
            payload: None,
            on_missed: OnMissed::default(),
        }
    }

    fn cron(pattern: &str, zone: Option<&str>) -> Interval {
        let zone = zone.map(str::to_owned);
        Interval { every: None, cron: Some(pattern.to_owned()), time_zone: zone, ..every(Duration::ZERO) }
    }

    fn vilnius(pattern: &str) -> Schedule {
        Schedule::new(&cron(pattern, Some("Europe/Vilnius"))).unwrap()
    }

    fn at(text: &str) -> i64 {
        Timestamp::parse(text).unwrap().unix_millis()
    }

    fn texts(slots: &[i64]) -> Vec<String> {
        slots.iter().map(|slot| Timestamp::from_unix_millis(*slot).to_string()).collect()
    }

    fn walk(schedule: &Schedule, after: &str, count: usize) -> Vec<String> {
        let slots = std::iter::successors(schedule.next_slot(at(after)), |slot| schedule.next_slot(*slot));
        texts(&slots.take(count).collect::<Vec<_>>())
    }

    #[test]
    fn slots_of_a_period_are_its_multiples_since_the_epoch_also_before_it() {
        let schedule = Schedule::new(&every(Duration::from_secs(10))).unwrap();
        assert_eq!(schedule.next_slot(12_345), Some(20_000));
        assert_eq!(schedule.next_slot(20_000), Some(30_000));
        assert_eq!(schedule.next_slot(19_999), Some(20_000));
        assert_eq!(schedule.next_slot(-1), Some(0));
        assert_eq!(schedule.next_slot(-10_000), Some(0));
    }

    #[test]
    fn cron_takes_five_fields_and_six_with_seconds_first() {
        let minutely = Schedule::new(&cron("*/5 * * * *", None)).unwrap();
        assert_eq!(
            walk(&minutely, "2026-01-01T00:01:30Z", 2),
            ["2026-01-01T00:05:00.000Z", "2026-01-01T00:10:00.000Z"]
        );
        let secondly = Schedule::new(&cron("*/30 * * * * *", None)).unwrap();
        assert_eq!(
            walk(&secondly, "2026-01-01T00:00:00.5Z", 2),
            ["2026-01-01T00:00:30.000Z", "2026-01-01T00:01:00.000Z"]
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for stated in [
            cron("* * * *", None),
            cron("0 0 0 * * * 2030", None),
            cron("61 * * * *", None),
            cron("nonsense", None),
            cron("0 0 30 2 *", None),
            cron("0 0 * * *", Some("Europe/Vilna")),
            every(Duration::from_millis(9)),
            every(Duration::from_micros(10_500)),
            Interval { time_zone: Some("UTC".to_owned()), ..every(Duration::from_secs(1)) },
            Interval { cron: None, ..cron("", None) },
            Interval { every: Some(Span(Duration::from_secs(1))), ..cron("* * * * *", None) },
        ] {
            assert!(Schedule::new(&stated).is_err(), "{stated:?}");
        }
    }

    // Europe/Vilnius 2026: on 29 March 03:00 becomes 04:00 (01:00Z), on 25 October 04:00 becomes 03:00 (01:00Z).

    #[test]
    fn a_daily_time_inside_the_gap_comes_at_the_first_instant_after_it() {
        let schedule = vilnius("30 3 * * *");
        assert_eq!(
            walk(&schedule, "2026-03-28T00:00:00Z", 3),
            ["2026-03-28T01:30:00.000Z", "2026-03-29T01:00:00.000Z", "2026-03-30T00:30:00.000Z"]
        );
    }

    #[test]
    fn a_daily_time_inside_the_overlap_comes_once_in_the_earlier_pass() {
        let schedule = vilnius("30 3 * * *");
        assert_eq!(
            walk(&schedule, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00.000Z", "2026-10-26T01:30:00.000Z"]
        );
        // Asked between the passes and inside the later one, as after a restart.
        for after in ["2026-10-25T00:45:00Z", "2026-10-25T01:10:00Z", "2026-10-25T01:30:00Z"] {
            assert_eq!(walk(&schedule, after, 1), ["2026-10-26T01:30:00.000Z"], "{after}");
        }
    }

    #[test]
    fn every_quarter_of_an_hour_stays_so_over_both_clock_changes() {
        let schedule = vilnius("*/15 * * * *");
        for day in ["2026-03-29T00:00:00Z", "2026-10-25T00:00:00Z"] {
            let mut slot = at(day);
            for _ in 0..12 {
                let next = schedule.next_slot(slot).unwrap();
                assert_eq!(next - slot, 15 * 60_000, "after {}", Timestamp::from_unix_millis(slot));
                slot = next;
            }
        }
    }

    #[test]
    fn a_slot_does_not_depend_on_where_the_search_began() {
        for (pattern, from) in [
            ("30 3 * * *", "2026-03-28T22:00:00Z"),
            ("30 3 * * *", "2026-10-24T22:00:00Z"),
            ("*/7 3 * * *", "2026-03-28T22:00:00Z"),
            ("*/7 3 * * *", "2026-10-24T22:00:00Z"),
            ("0 */2 * * *", "2026-10-24T22:00:00Z"),
        ] {
            let schedule = vilnius(pattern);
            let start = at(from);
            let mut slots = Vec::new();
            let mut after = start;
            while after < start + 30 * 3_600_000 {
                after = schedule.next_slot(after).unwrap();
                slots.push(after);
            }
            for minute in 0..(30 * 60) {
                let asked = start + minute * 60_000 + 1;
                let expected = slots.iter().copied().find(|slot| *slot > asked);
                assert_eq!(schedule.next_slot(asked), expected, "{pattern} after {}", texts(&[asked])[0]);
            }
        }
    }

    #[test]
    fn missed_slots_are_skipped_made_up_for_once_or_all() {
        let schedule = Schedule::new(&every(Duration::from_secs(1))).unwrap();
        assert!(schedule.missed(1_000, 5_500, OnMissed::Skip).is_empty());
        assert_eq!(schedule.missed(1_000, 5_500, OnMissed::FireOnce), [5_000]);
        assert_eq!(schedule.missed(1_000, 5_500, OnMissed::FireAll), [2_000, 3_000, 4_000, 5_000]);
        assert_eq!(schedule.missed(5_000, 5_999, OnMissed::FireAll), [0_i64; 0]);
        assert_eq!(schedule.missed(9_000, 5_000, OnMissed::FireAll), [0_i64; 0]);
    }

    #[test]
    fn of_very_many_missed_slots_the_newest_thousand_are_made_up_for() {
        let now = at("2026-06-01T00:00:00Z");
        for stated in [every(Duration::from_secs(1)), cron("* * * * * *", Some("Europe/Vilnius"))] {
            let slots = Schedule::new(&stated).unwrap().missed(0, now, OnMissed::FireAll);
            assert_eq!(slots.len(), MISSED_SLOTS_MAX);
            assert_eq!(slots.first(), Some(&(now - 999_000)));
            assert_eq!(slots.last(), Some(&now));
        }
    }

    #[test]
    fn rare_slots_of_long_ago_are_found() {
        let schedule = vilnius("0 12 29 2 *");
        let slots = schedule.missed(at("2015-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"), OnMissed::FireAll);
        assert_eq!(texts(&slots), ["2016-02-29T10:00:00.000Z", "2020-02-29T10:00:00.000Z", "2024-02-29T10:00:00.000Z"]);
    }
}
