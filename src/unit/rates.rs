//! How many messages a unit moves per second, from samples of its counters.
//!
//! Whoever shows units takes the samples, one timer for all of them. Time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

/// The time between two samples.
pub const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// Samples kept of a unit: with the count at the moment of asking, rates span the last ten seconds.
const SAMPLES_MAX: usize = 10;
/// Shortest time a rate is taken over: one message in the first millisecond is not a thousand a second.
const SPAN_MIN: Duration = Duration::from_secs(1);

/// Counters at one moment of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    pub at: Duration,
    pub received: u64,
    pub emitted: u64,
}

/// Messages per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    pub received: f64,
    pub emitted: f64,
}

#[derive(Debug, Default)]
pub struct Window(VecDeque<Sample>);

impl Window {
    pub fn add(&mut self, sample: Sample) {
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Over the time from the oldest sample kept until `now`; nothing before the first sample.
    pub fn rates(&self, now: Sample) -> Rates {
        let Some(oldest) = self.0.front() else { return Rates::default() };
        let seconds = now.at.saturating_sub(oldest.at).max(SPAN_MIN).as_secs_f64();
        let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Rates { received: per_second(now.received, oldest.received), emitted: per_second(now.emitted, oldest.emitted) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: u64, received: u64, emitted: u64) -> Sample {
        Sample { at: Duration::from_millis(ms), received, emitted }
    }

    #[test]
    fn rates_span_the_last_ten_seconds_and_forget_what_was_before() {
        let mut window = Window::default();
        assert_eq!(window.rates(sample(0, 5, 5)), Rates::default());
        window.add(sample(0, 0, 0));
        assert_eq!(window.rates(sample(10, 1, 1)), Rates { received: 1.0, emitted: 1.0 });
        assert_eq!(window.rates(sample(2_000, 100, 50)), Rates { received: 50.0, emitted: 25.0 });
        for second in 1..=60 {
            window.add(sample(second * 1_000, 1_000, 500));
        }
        assert_eq!(window.rates(sample(61_000, 1_000, 500)), Rates::default());
        assert_eq!(window.rates(sample(61_000, 1_100, 500)).received, 10.0);
    }
}
