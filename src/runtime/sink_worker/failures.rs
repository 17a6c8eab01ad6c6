//! Tells a message that fails alone from an outage. See rule 3 in the module head of the worker.

use std::collections::BTreeMap;

use super::FAILURES_MAX;

#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Calls begun so far; a call is known by its number.
    calls: u64,
    /// The latest call that the receiver answered.
    answered: u64,
    /// Of failing messages: how many calls had begun when it failed last, and whether it failed alone once.
    failing: BTreeMap<u64, (u64, bool)>,
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

    /// The message failed; the answer says whether it fails alone.
    pub fn failed(&mut self, sequence: u64) -> bool {
        let before = self.failing.get(&sequence).copied();
        let alone = before.is_some_and(|(began, alone)| alone || self.answered > began);
        self.failing.insert(sequence, (self.calls, alone));
        if self.failing.len() > FAILURES_MAX {
            self.failing.pop_first();
        }
        alone
    }

    pub fn forget(&mut self, sequence: u64) {
        self.failing.remove(&sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_to_a_call_begun_after_the_failure_shows_that_a_message_fails_alone() {
        let mut failures = Failures::default();
        let (_, other) = (failures.call(), failures.call());
        assert!(!failures.failed(7));
        failures.answered(other);
        assert!(!failures.failed(7), "that call began before the failure");
        let later = failures.call();
        failures.answered(later);
        assert!(failures.failed(7));
        assert!(!failures.failed(8), "the first failure of another");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut failures = Failures::default();
        for sequence in 0..FAILURES_MAX as u64 * 2 {
            failures.failed(sequence);
        }
        assert_eq!(failures.failing.len(), FAILURES_MAX);
    }
}
