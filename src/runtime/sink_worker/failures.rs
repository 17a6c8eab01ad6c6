//! Tells a message that fails alone from an outage. See rule 3 in the module head of the worker.

use std::collections::BTreeMap;

use super::FAILURES_MAX;

/// What is known of a failing message.
#[derive(Debug, Clone, Copy)]
struct Failing {
    /// Calls begun when it failed last.
    calls: u64,
    /// How often it failed although the receiver had answered a later call since the failure before.
    own: u32,
    /// How many of those show that it fails alone.
    needed: u32,
}

/// One failure of its own is enough, unless the first failure may have been an outage's.
const NEEDED: u32 = 1;
const NEEDED_AFTER_OUTAGE: u32 = 2;

/// The verdict on one failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// It is the message's own: the receiver answered others since the failure before.
    pub own: bool,
    /// The message fails alone.
    pub alone: bool,
}

#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Calls begun so far; a call is known by its number.
    calls: u64,
    /// The latest call that the receiver answered.
    answered: u64,
    failing: BTreeMap<u64, Failing>,
}

impl Failures {
    /// The number of a call that begins.
    pub fn call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    pub fn answered(&mut self, call: u64) {
        self.answered = self.answered.max(call);
    }

    /// The breaker opened: failures without later answers may be the outage's. Those of a message's own stay: enough
    /// bad messages in a row open the breaker too, and must not absolve each other.
    pub fn outage(&mut self) {
        for failing in self.failing.values_mut().filter(|failing| failing.own == 0) {
            failing.needed = NEEDED_AFTER_OUTAGE;
        }
    }

    /// The message failed, perhaps as part of an outage: with the breaker open now.
    pub fn failed(&mut self, sequence: u64, outage: bool) -> Verdict {
        let needed = if outage { NEEDED_AFTER_OUTAGE } else { NEEDED };
        let known = self.failing.get(&sequence).copied();
        let own = known.is_some_and(|known| self.answered > known.calls);
        let mut failing = known.unwrap_or(Failing { calls: 0, own: 0, needed });
        failing.calls = self.calls;
        failing.own += u32::from(own);
        self.failing.insert(sequence, failing);
        if self.failing.len() > FAILURES_MAX {
            self.failing.pop_first();
        }
        Verdict { own, alone: failing.own >= failing.needed }
    }

    /// Calls begun when the message failed last; 0 when it is not known to fail.
    pub fn tried(&self, sequence: u64) -> u64 {
        self.failing.get(&sequence).map_or(0, |failing| failing.calls)
    }

    pub fn forget(&mut self, sequence: u64) {
        self.failing.remove(&sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(failures: &mut Failures) {
        let call = failures.call();
        failures.answered(call);
    }

    #[test]
    fn only_an_answer_to_a_call_begun_after_the_failure_shows_that_a_message_fails_alone() {
        let mut failures = Failures::default();
        let (_, other) = (failures.call(), failures.call());
        assert!(!failures.failed(7, false).alone);
        failures.answered(other);
        assert!(!failures.failed(7, false).alone, "that call began before the failure");
        answered(&mut failures);
        assert_eq!(failures.failed(7, false), Verdict { own: true, alone: true });
        assert!(!failures.failed(8, false).alone, "the first failure of another");
    }

    #[test]
    fn a_failure_in_an_outage_needs_two_more_after_it() {
        let mut failures = Failures::default();
        failures.failed(1, false);
        failures.outage();
        failures.failed(2, true);
        answered(&mut failures);
        for sequence in [1, 2] {
            assert_eq!(failures.failed(sequence, false), Verdict { own: true, alone: false });
        }
        answered(&mut failures);
        assert!(failures.failed(1, false).alone);
    }

    #[test]
    fn bad_messages_that_open_the_breaker_together_do_not_absolve_each_other() {
        let mut failures = Failures::default();
        for round in 0..3 {
            for sequence in 1..=5 {
                let verdict = failures.failed(sequence, sequence == 5);
                assert_eq!(verdict.alone, round == 2, "{sequence} in round {round}");
            }
            failures.outage();
            answered(&mut failures);
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut failures = Failures::default();
        for sequence in 0..FAILURES_MAX as u64 * 2 {
            failures.failed(sequence, false);
        }
        assert_eq!(failures.failing.len(), FAILURES_MAX);
    }
}
