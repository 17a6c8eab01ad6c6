//! Lanes: of the messages with one key only the oldest may be under way.
//!
//! Pure; messages are known by their sequence. A key whose message is under way or failing holds back its own later
//! messages and nobody else's.
//!
//! A lane may have to give up its place in memory, or one key that is stuck would fill it and stop the others. Its
//! newest messages are then *deferred*: the bus keeps them and brings them back later, and only their sequences stay
//! here, so that nothing newer of that key passes them. Bounds: `deferred_max` deferred sequences; what is held is
//! bounded by the caller, who offers no more than it has room for.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// A longer key is kept as its digest, in bytes.
const KEY_BYTES_MAX: usize = 128;

/// What becomes of an offered message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// It waits in its lane.
    Taken,
    /// An older message of its key is with the bus: put it off.
    Deferred,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: BTreeSet<u64>,
    under_way: Option<u64>,
    deferred: BTreeSet<u64>,
}

impl Lane {
    fn head(&self) -> Option<u64> {
        let first = *self.waiting.first()?;
        let behind_deferred = self.deferred.first().is_some_and(|deferred| *deferred < first);
        (self.under_way.is_none() && !behind_deferred).then_some(first)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_none() && self.deferred.is_empty()
    }
}

#[derive(Debug)]
pub struct Lanes {
    lanes: HashMap<Arc<str>, Lane>,
    /// The lane of every message held.
    keys: HashMap<u64, Arc<str>>,
    /// The heads that may go.
    ready: BTreeSet<u64>,
    deferred: usize,
    deferred_max: usize,
}

impl Lanes {
    pub fn new(deferred_max: usize) -> Self {
        Lanes {
            lanes: HashMap::new(),
            keys: HashMap::new(),
            ready: BTreeSet::new(),
            deferred: 0,
            deferred_max: deferred_max.max(1),
        }
    }

    /// A message that is not held came from the bus. A deferred one is recognised by its sequence.
    pub fn offer(&mut self, key: &str, sequence: u64) -> Offered {
        let key = self.intern(key);
        assert!(!self.keys.contains_key(&sequence), "message {sequence} is held already");
        let lane = self.lanes.entry(Arc::clone(&key)).or_default();
        let returned = lane.deferred.remove(&sequence);
        let behind = lane.deferred.first().is_some_and(|oldest| *oldest < sequence);
        // A full set of deferred sequences can take no other: such a message is held, behind the deferred ones.
        if behind && (returned || self.deferred < self.deferred_max) {
            lane.deferred.insert(sequence);
            self.deferred += usize::from(!returned);
            return Offered::Deferred;
        }
        self.deferred -= usize::from(returned);
        let before = lane.head();
        lane.waiting.insert(sequence);
        self.keys.insert(sequence, Arc::clone(&key));
        self.renew_head(&key, before);
        Offered::Taken
    }

    /// The oldest message of every key that has none under way, oldest first.
    pub fn ready(&self) -> impl Iterator<Item = u64> + '_ {
        self.ready.iter().copied()
    }

    /// The message, which is ready, is sent.
    pub fn start(&mut self, sequence: u64) {
        assert!(self.ready.remove(&sequence), "message {sequence} is not ready");
        let lane = self.lane(sequence);
        lane.waiting.remove(&sequence);
        lane.under_way = Some(sequence);
    }

    /// The message under way failed; it is the head of its lane again.
    pub fn failed(&mut self, sequence: u64) {
        let lane = self.lane(sequence);
        assert_eq!(lane.under_way.take(), Some(sequence), "message {sequence} is not under way");
        lane.waiting.insert(sequence);
        self.ready.insert(sequence);
    }

    /// The message has ended, under way or waiting; the next of its key may go.
    pub fn finished(&mut self, sequence: u64) {
        let Some(key) = self.keys.remove(&sequence) else { return };
        let lane = self.lanes.get_mut(&key).expect("a held message has a lane");
        let before = lane.head();
        lane.waiting.remove(&sequence);
        lane.under_way.take_if(|under_way| *under_way == sequence);
        if lane.is_empty() {
            self.lanes.remove(&key);
            self.ready.remove(&sequence);
        } else {
            self.renew_head(&key, before);
        }
    }

    /// Takes up to `count` messages from the end of the longest lane, never its head, and counts them as deferred. The
    /// caller puts them off.
    pub fn shed(&mut self, count: usize) -> Vec<u64> {
        let Some((key, lane)) = self.lanes.iter_mut().max_by_key(|(_, lane)| lane.waiting.len()) else {
            return Vec::new();
        };
        let key = Arc::clone(key);
        let before = lane.head();
        let heads = usize::from(lane.under_way.is_none());
        let mut shed = Vec::new();
        while shed.len() < count && lane.waiting.len() > heads && self.deferred < self.deferred_max {
            let last = lane.waiting.pop_last().expect("it has more than its head");
            lane.deferred.insert(last);
            self.keys.remove(&last);
            self.deferred += 1;
            shed.push(last);
        }
        self.renew_head(&key, before);
        shed
    }

    /// A message that never was held is put off: nothing newer of its key passes it. Without effect when no more can
    /// be remembered; the answer says which.
    pub fn defer(&mut self, key: &str, sequence: u64) -> bool {
        let key = self.intern(key);
        let lane = self.lanes.entry(Arc::clone(&key)).or_default();
        let before = lane.head();
        let known = lane.deferred.contains(&sequence);
        let fits = known || self.deferred < self.deferred_max;
        if fits && lane.deferred.insert(sequence) {
            self.deferred += 1;
        }
        if lane.is_empty() {
            self.lanes.remove(&key);
        } else {
            self.renew_head(&key, before);
        }
        fits
    }

    /// Messages in lanes, waiting or under way.
    pub fn held(&self) -> usize {
        self.keys.len()
    }

    pub fn deferred(&self) -> usize {
        self.deferred
    }

    fn lane(&mut self, sequence: u64) -> &mut Lane {
        let key = &self.keys[&sequence];
        self.lanes.get_mut(key).expect("a held message has a lane")
    }

    fn renew_head(&mut self, key: &Arc<str>, before: Option<u64>) {
        let after = self.lanes.get(key).and_then(Lane::head);
        if before != after {
            before.inspect(|head| _ = self.ready.remove(head));
            after.inspect(|head| _ = self.ready.insert(*head));
        }
    }

    /// The key as it is kept: shared with its lane when there is one.
    fn intern(&self, key: &str) -> Arc<str> {
        let kept: std::borrow::Cow<'_, str> = match key.len() {
            0..=KEY_BYTES_MAX => key.into(),
            _ => {
                let digest = Sha256::digest(key.as_bytes());
                digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
            }
        };
        match self.lanes.get_key_value(&*kept) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(&*kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(lanes: &Lanes) -> Vec<u64> {
        lanes.ready().collect()
    }

    #[test]
    fn a_failing_key_holds_back_only_itself() {
        let mut lanes = Lanes::new(8);
        for (key, sequence) in [("a", 1), ("b", 2), ("a", 3), ("b", 4)] {
            assert_eq!(lanes.offer(key, sequence), Offered::Taken);
        }
        assert_eq!(ready(&lanes), [1, 2]);
        lanes.start(1);
        lanes.start(2);
        lanes.failed(1);
        lanes.finished(2);
        assert_eq!(ready(&lanes), [1, 4]);
        lanes.start(1);
        lanes.finished(1);
        assert_eq!(ready(&lanes), [3, 4]);
    }

    #[test]
    fn nothing_passes_a_deferred_message_of_its_key() {
        let mut lanes = Lanes::new(8);
        for sequence in 1..=4 {
            lanes.offer("a", sequence);
        }
        assert_eq!(lanes.shed(2), [4, 3]);
        assert_eq!(lanes.held(), 2);
        assert_eq!(lanes.offer("a", 5), Offered::Deferred);
        assert_eq!(lanes.offer("a", 4), Offered::Deferred, "3 is still out");
        assert_eq!(lanes.offer("b", 6), Offered::Taken);
        for sequence in [1, 2] {
            lanes.start(sequence);
            lanes.finished(sequence);
        }
        assert_eq!(ready(&lanes), [6]);
        assert_eq!(lanes.offer("a", 3), Offered::Taken);
        assert_eq!(ready(&lanes), [3, 6]);
        assert_eq!(lanes.deferred(), 2);
    }

    #[test]
    fn shedding_never_takes_a_head_and_stops_at_its_bound() {
        let mut lanes = Lanes::new(2);
        for sequence in 1..=5 {
            lanes.offer("a", sequence);
        }
        assert_eq!(lanes.shed(10), [5, 4]);
        assert_eq!(lanes.shed(10), [] as [u64; 0]);
        assert_eq!(lanes.offer("a", 6), Offered::Taken, "held, since no more can be deferred");
        for sequence in [1, 2, 3] {
            lanes.start(sequence);
            lanes.finished(sequence);
        }
        assert_eq!(ready(&lanes), [] as [u64; 0], "6 waits for 4 and 5");
    }

    #[test]
    fn long_keys_are_kept_apart_by_their_digest() {
        let mut lanes = Lanes::new(1);
        lanes.offer(&"x".repeat(500), 1);
        lanes.offer(&"x".repeat(501), 2);
        lanes.offer(&"x".repeat(500), 3);
        assert_eq!(ready(&lanes), [1, 2]);
    }

    proptest! {
        /// Whatever is shed, deferred and failed in between: every key's messages finish in order, at most one is under
        /// way, a key with work at hand is never without a head unless it waits for itself, and nothing leaks.
        #[test]
        fn messages_of_a_key_finish_in_order(steps in prop::collection::vec((0u8..5, any::<prop::sample::Index>()), 1..400)) {
            const KEYS: u64 = 4;
            let key = |sequence: u64| format!("k{}", sequence % KEYS);
            let mut lanes = Lanes::new(6);
            let (mut next, mut away, mut under_way) = (1u64, Vec::<u64>::new(), Vec::<u64>::new());
            let mut last = [0u64; KEYS as usize];
            let offered = |lanes: &mut Lanes, away: &mut Vec<u64>, sequence| {
                if lanes.offer(&key(sequence), sequence) == Offered::Deferred {
                    away.push(sequence);
                }
            };
            for (what, which) in steps {
                let heads = ready(&lanes);
                match what {
                    0 => {
                        offered(&mut lanes, &mut away, next);
                        next += 1;
                    }
                    1 if !away.is_empty() => {
                        let sequence = away.swap_remove(which.index(away.len()));
                        offered(&mut lanes, &mut away, sequence);
                    }
                    2 if !heads.is_empty() => {
                        let head = heads[which.index(heads.len())];
                        prop_assert!(under_way.iter().all(|other| other % KEYS != head % KEYS));
                        lanes.start(head);
                        under_way.push(head);
                    }
                    3 if !under_way.is_empty() => {
                        let sequence = under_way.swap_remove(which.index(under_way.len()));
                        if which.index(3) == 0 {
                            lanes.failed(sequence);
                        } else {
                            lanes.finished(sequence);
                            prop_assert!(last[(sequence % KEYS) as usize] < sequence);
                            last[(sequence % KEYS) as usize] = sequence;
                        }
                    }
                    4 => away.extend(lanes.shed(which.index(4))),
                    _ => {}
                }
                prop_assert!(lanes.deferred() <= 6);
                prop_assert_eq!(lanes.deferred(), away.len());
            }
            // Everything comes back and ends.
            while lanes.held() > 0 || !away.is_empty() {
                under_way.drain(..).for_each(|sequence| lanes.failed(sequence));
                for sequence in std::mem::take(&mut away) {
                    offered(&mut lanes, &mut away, sequence);
                }
                let heads = ready(&lanes);
                prop_assert!(!heads.is_empty() || !away.is_empty());
                for head in heads {
                    lanes.start(head);
                    lanes.finished(head);
                    prop_assert!(last[(head % KEYS) as usize] < head);
                    last[(head % KEYS) as usize] = head;
                }
            }
            prop_assert!(lanes.lanes.is_empty() && lanes.keys.is_empty() && lanes.ready.is_empty());
        }
    }
}
