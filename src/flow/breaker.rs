//! The circuit breaker of one sink: when to leave a receiver alone, and when to ask it again.
//!
//! Pure: time is an argument, measured from any fixed start. What is held back meanwhile, and which message serves as
//! the probe, is decided by the caller.
//!
//! Closed, everything passes. After `failures` failed calls in a row it is open and nothing passes. When the pause is
//! over it is half-open: exactly one call at a time, the probe, may pass. If that succeeds the breaker closes, else the pause
//! doubles; before that, the caller may try the receiver with further messages in the same turn, [`PROBES_MAX`] in all,
//! because a failed probe may be its message's fault. Answers to calls that began before it opened change nothing: only the probe decides.

use std::time::Duration;

/// The longest pause a receiver may ask for; what it asks beyond that is cut.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Probes of one turn, one after the other. So many bad messages in a row cost one pause, not a pause each; a receiver that
/// is down gets so many requests per pause.
pub const PROBES_MAX: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Failed calls in a row that open it; at least 1.
    pub failures: u32,
    /// The first pause.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl From<&crate::manifest::connector::http::Breaker> for Settings {
    fn from(stated: &crate::manifest::connector::http::Breaker) -> Self {
        Settings {
            failures: stated.failures.max(1),
            pause: stated.pause.0,
            pause_max: stated.max_pause.0.max(stated.pause.0),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings::from(&crate::manifest::connector::http::Breaker::default())
    }
}

/// What may begin now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    /// Anything.
    All,
    /// Nothing before this moment.
    NothingUntil(Duration),
    /// One call, announced by [`Breaker::probe`].
    OneProbe,
    /// Nothing: the probe is on its way.
    Probing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Duration },
    HalfOpen,
}

#[derive(Debug, Clone)]
pub struct Breaker {
    settings: Settings,
    state: State,
    /// The pause that the next opening takes.
    pause: Duration,
    /// Probes of this turn that failed and were followed by another.
    probes: u32,
}

impl Breaker {
    pub fn new(settings: Settings) -> Self {
        Breaker { settings, state: State::Closed { failures: 0 }, pause: settings.pause, probes: 0 }
    }

    pub fn passing(&self, now: Duration) -> Passing {
        match self.state {
            State::Closed { .. } => Passing::All,
            State::Open { until } if now < until => Passing::NothingUntil(until),
            State::Open { .. } => Passing::OneProbe,
            State::HalfOpen => Passing::Probing,
        }
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// The last call failed.
    pub fn is_failing(&self) -> bool {
        self.state != State::Closed { failures: 0 }
    }

    /// The probe is on its way.
    pub fn is_half_open(&self) -> bool {
        matches!(self.state, State::HalfOpen)
    }

    /// A probe begins. Only after [`Passing::OneProbe`].
    pub fn probe(&mut self, now: Duration) {
        assert_eq!(self.passing(now), Passing::OneProbe, "a probe begins only in a half-open breaker");
        self.state = State::HalfOpen;
    }

    /// The probe failed: may another message be the next one at once? When not, it [`failed`](Breaker::failed).
    pub fn probe_another(&mut self, now: Duration) -> bool {
        let may = self.is_half_open() && self.probes + 1 < PROBES_MAX;
        if may {
            self.probes += 1;
            self.state = State::Open { until: now };
        }
        may
    }

    /// A call was answered. `probe` says whether it was the probe.
    pub fn succeeded(&mut self, probe: bool) {
        match self.state {
            State::Closed { .. } => self.state = State::Closed { failures: 0 },
            State::HalfOpen if probe => {
                self.state = State::Closed { failures: 0 };
                self.pause = self.settings.pause;
                self.probes = 0;
            }
            State::Open { .. } | State::HalfOpen => {}
        }
    }

    /// A call failed in a way that may pass. `retry_after` is what the receiver asked for.
    pub fn failed(&mut self, now: Duration, probe: bool, retry_after: Option<Duration>) {
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        match self.state {
            State::Closed { failures } if failures + 1 < self.settings.failures => {
                self.state = State::Closed { failures: failures + 1 };
            }
            State::Closed { .. } => self.open(now, asked),
            State::HalfOpen if probe => self.open(now, asked),
            State::Open { until } => self.state = State::Open { until: until.max(now + asked) },
            State::HalfOpen => {}
        }
    }

    fn open(&mut self, now: Duration, asked: Duration) {
        self.probes = 0;
        self.state = State::Open { until: now + self.pause.max(asked) };
        self.pause = self.pause.saturating_mul(2).min(self.settings.pause_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn breaker() -> Breaker {
        Breaker::new(Settings { failures: 3, pause: s(1), pause_max: s(4) })
    }

    fn opened_at(now: Duration) -> Breaker {
        let mut breaker = breaker();
        for _ in 0..3 {
            breaker.failed(now, false, None);
        }
        breaker
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = breaker();
        for _ in 0..10 {
            breaker.failed(s(0), false, None);
            breaker.failed(s(0), false, None);
            breaker.succeeded(false);
        }
        assert!(breaker.is_closed());
        assert_eq!(opened_at(s(5)).passing(s(5)), Passing::NothingUntil(s(6)));
    }

    #[test]
    fn exactly_one_probe_passes_and_its_success_closes() {
        let mut breaker = opened_at(s(0));
        assert_eq!(breaker.passing(s(1)), Passing::OneProbe);
        breaker.probe(s(1));
        assert_eq!(breaker.passing(s(100)), Passing::Probing);
        breaker.succeeded(true);
        assert_eq!(breaker.passing(s(2)), Passing::All);
        breaker.failed(s(2), false, None);
        assert!(breaker.is_closed(), "the count starts anew");
    }

    #[test]
    fn the_pause_doubles_to_its_bound_and_starts_anew_after_a_success() {
        let mut breaker = opened_at(s(0));
        let mut now = s(1);
        for pause in [2, 4, 4] {
            breaker.probe(now);
            breaker.failed(now, true, None);
            assert_eq!(breaker.passing(now), Passing::NothingUntil(now + s(pause)));
            now += s(pause);
        }
        breaker.probe(now);
        breaker.succeeded(true);
        for _ in 0..3 {
            breaker.failed(now, false, None);
        }
        assert_eq!(breaker.passing(now), Passing::NothingUntil(now + s(1)));
    }

    #[test]
    fn a_turn_has_several_probes_one_after_the_other_and_its_pause_grows_once() {
        let mut breaker = opened_at(s(0));
        for (turn, pause) in [(s(1), 2), (s(3), 4)] {
            for _ in 1..PROBES_MAX {
                breaker.probe(turn);
                assert_eq!(breaker.passing(turn), Passing::Probing);
                assert!(breaker.probe_another(turn));
            }
            breaker.probe(turn);
            assert!(!breaker.probe_another(turn), "the turn is over");
            breaker.failed(turn, true, None);
            assert_eq!(breaker.passing(turn), Passing::NothingUntil(turn + s(pause)));
        }
    }

    #[test]
    fn late_answers_to_calls_from_before_it_opened_change_nothing() {
        let mut breaker = opened_at(s(0));
        breaker.succeeded(false);
        breaker.failed(s(0), false, None);
        assert_eq!(breaker.passing(s(0)), Passing::NothingUntil(s(1)));
        breaker.probe(s(1));
        breaker.succeeded(false);
        breaker.failed(s(1), false, None);
        assert_eq!(breaker.passing(s(1)), Passing::Probing);
    }

    #[test]
    fn a_receiver_may_ask_for_a_longer_pause_up_to_the_bound() {
        let mut breaker = breaker();
        breaker.failed(s(0), false, Some(s(9)));
        breaker.failed(s(0), false, None);
        breaker.failed(s(0), false, Some(s(20)));
        assert_eq!(breaker.passing(s(0)), Passing::NothingUntil(s(20)));
        breaker.failed(s(0), false, Some(s(1_000_000)));
        assert_eq!(breaker.passing(s(0)), Passing::NothingUntil(RETRY_AFTER_MAX));
    }
}
