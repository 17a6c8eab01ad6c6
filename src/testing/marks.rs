//! The marks of `dedupe` steps in memory, for as long as a run lasts.

use std::collections::{BTreeMap, VecDeque};

use crate::time::Timestamp;
use crate::transforms::Mark;

/// Marks kept at once. Beyond it the oldest goes: a long run takes a late duplicate for a new message, and no more memory.
pub const MARKS_MAX: usize = 100_000;

/// Key to owner and end.
#[derive(Debug, Default)]
pub struct Marks {
    set: BTreeMap<String, (String, Timestamp)>,
    /// Keys in the order they were set first.
    order: VecDeque<String>,
}

impl Marks {
    /// Sets the mark unless it is set and has not run out. Whether it is the owner's now.
    pub fn take(&mut self, mark: Mark, now: Timestamp) -> bool {
        if let Some((owner, end)) = self.set.get(&mark.key)
            && *end > now
        {
            return *owner == mark.owner;
        }
        if !self.set.contains_key(&mark.key) {
            self.order.push_back(mark.key.clone());
        }
        self.set.insert(mark.key, (mark.owner, now.plus(mark.within)));
        if self.order.len() > MARKS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn mark(key: &str, owner: &str) -> Mark {
        Mark { key: key.to_owned(), owner: owner.to_owned(), within: Duration::from_secs(10) }
    }

    #[test]
    fn a_mark_is_its_owners_until_it_runs_out() {
        let second = |seconds: i64| Timestamp(seconds * 1_000_000_000);
        let mut marks = Marks::default();
        assert!(marks.take(mark("k", "a"), second(0)));
        assert!(marks.take(mark("k", "a"), second(9)));
        assert!(!marks.take(mark("k", "b"), second(9)));
        assert!(marks.take(mark("k", "b"), second(10)));
    }

    #[test]
    fn there_are_never_more_than_the_bound() {
        let mut marks = Marks::default();
        for number in 0..=MARKS_MAX {
            assert!(marks.take(mark(&number.to_string(), "a"), Timestamp(0)));
        }
        assert_eq!((marks.set.len(), marks.order.len()), (MARKS_MAX, MARKS_MAX));
        assert!(marks.take(mark("0", "b"), Timestamp(0)), "the oldest went");
        assert!(!marks.take(mark("2", "b"), Timestamp(0)));
    }
}
