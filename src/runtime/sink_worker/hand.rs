//! The messages a sink worker has taken from the bus and not yet settled, and which of them may go next.
//!
//! No clock and no IO: times are arguments. With keys, `flow::ordering` says which message of a key may go.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::flow::message::Stored;
use crate::flow::ordering::{Lanes, Offered};
use crate::ports::sink::Delivering;

#[derive(Debug)]
pub(super) struct Held {
    pub message: Stored,
    /// The bus's count of deliveries; 1 with keys, where attempts are made in hand.
    pub base: u32,
    /// The digest of the former version it belongs to.
    pub former: Option<Arc<str>>,
    /// Failed attempts on this very delivery that count, see the module head of the worker.
    pub counted: u32,
    /// The number of the call that tried it last, on this delivery or an earlier one that failed; 0 for none.
    pub tried: u64,
    /// Not before this, unless as a probe.
    pub not_before: Duration,
    pub arrived: Duration,
}

impl Held {
    /// The number the next attempt has.
    pub fn attempt(&self) -> u32 {
        self.base.saturating_add(self.counted)
    }
}

/// What to do about the next call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Send(Vec<u64>),
    /// Not yet: the call fills up, or a message waits for its next attempt.
    At(Duration),
    Nothing,
}

#[derive(Debug)]
pub(super) struct Hand {
    held: HashMap<u64, Held>,
    /// Waiting messages, without keys.
    queue: BTreeSet<u64>,
    lanes: Option<Lanes>,
    /// Under way, and tried before.
    again: BTreeSet<u64>,
    bytes: usize,
}

impl Hand {
    pub fn new(lanes: Option<Lanes>) -> Self {
        Hand { held: HashMap::new(), queue: BTreeSet::new(), lanes, again: BTreeSet::new(), bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn holds(&self, sequence: u64) -> bool {
        self.held.contains_key(&sequence)
    }

    pub fn sequences(&self) -> Vec<u64> {
        self.held.keys().copied().collect()
    }

    pub fn get(&self, sequence: u64) -> &Held {
        &self.held[&sequence]
    }

    /// Takes a message that waits to be sent; with keys it may have to be put off instead.
    pub fn take(&mut self, key: Option<&str>, held: Held) -> Offered {
        let sequence = held.message.sequence;
        match (&mut self.lanes, key) {
            (Some(lanes), Some(key)) => {
                if lanes.offer(key, sequence) == Offered::Deferred {
                    return Offered::Deferred;
                }
            }
            _ => _ = self.queue.insert(sequence),
        }
        self.keep(held);
        Offered::Taken
    }

    /// Holds a message that is not to be sent.
    pub fn keep(&mut self, held: Held) {
        self.bytes += held.message.payload.len();
        self.held.insert(held.message.sequence, held);
    }

    /// The next call, oldest messages first. A message at its last attempt goes alone, so that it is judged alone.
    ///
    /// While messages wait that were never tried, those that failed before go one at a time, and none while `failing`:
    /// after a failed call. So however many bad ones are in hand, it is not they who open the breaker.
    pub fn choose(&self, now: Duration, delivering: &Delivering, attempts_max: u32, failing: bool) -> Choice {
        let untried = self.has_untried();
        let mut only_untried = untried && (failing || !self.again.is_empty());
        let (mut chosen, mut bytes, mut next) = (Vec::new(), 0, None::<Duration>);
        let mut full = false;
        for sequence in self.current() {
            let held = &self.held[&sequence];
            if held.not_before > now {
                next = Some(next.map_or(held.not_before, |next| next.min(held.not_before)));
                continue;
            }
            if held.tried > 0 && only_untried {
                continue;
            }
            let last = held.attempt() >= attempts_max;
            let size = held.message.payload.len();
            full = !chosen.is_empty() && (last || bytes + size > delivering.bytes_max);
            if !full {
                chosen.push(sequence);
                bytes += size;
                only_untried |= untried && held.tried > 0;
                full = last || chosen.len() >= delivering.messages_max;
            }
            if full {
                break;
            }
        }
        let Some(first) = chosen.first() else { return next.map_or(Choice::Nothing, Choice::At) };
        let fills_until = self.held[first].arrived + delivering.wait_max;
        if full || fills_until <= now { Choice::Send(chosen) } else { Choice::At(fills_until) }
    }

    /// The message to try a receiver with: one that was never tried, else the one tried longest ago.
    pub fn probe(&self) -> Option<u64> {
        self.current().min_by_key(|sequence| (self.held[sequence].tried, *sequence))
    }

    /// The messages of former versions that wait to be sent, with the time before which they are not.
    pub fn former(&self) -> impl Iterator<Item = (u64, Duration)> + '_ {
        let held = self.ready().map(|sequence| (sequence, &self.held[&sequence]));
        held.filter(|(_, held)| held.former.is_some()).map(|(sequence, held)| (sequence, held.not_before))
    }

    fn current(&self) -> impl Iterator<Item = u64> + '_ {
        self.ready().filter(|sequence| self.held[sequence].former.is_none())
    }

    /// Whether a message waits that was never tried.
    pub fn has_untried(&self) -> bool {
        self.current().any(|sequence| self.held[&sequence].tried == 0)
    }

    pub fn start(&mut self, sequence: u64, call: u64) -> Stored {
        match &mut self.lanes {
            Some(lanes) => lanes.start(sequence),
            None => _ = self.queue.remove(&sequence),
        }
        let held = self.held.get_mut(&sequence).expect("a message that goes is held");
        if held.tried > 0 {
            self.again.insert(sequence);
        }
        held.tried = call;
        held.message.clone()
    }

    /// A message that waited is not to be sent: something else becomes of it.
    pub fn hold_back(&mut self, sequence: u64) {
        match &mut self.lanes {
            Some(lanes) => lanes.start(sequence),
            None => _ = self.queue.remove(&sequence),
        }
    }

    /// A failed attempt that counts.
    pub fn count(&mut self, sequence: u64) {
        self.held.get_mut(&sequence).expect("a message under way is held").counted += 1;
    }

    /// A message under way waits again.
    pub fn back(&mut self, sequence: u64, not_before: Duration) {
        self.again.remove(&sequence);
        self.held.get_mut(&sequence).expect("a message under way is held").not_before = not_before;
        match &mut self.lanes {
            Some(lanes) => lanes.failed(sequence),
            None => _ = self.queue.insert(sequence),
        }
    }

    /// The message is settled or given back to the bus; with keys the next of its key may go.
    pub fn drop(&mut self, sequence: u64) {
        if let Some(held) = self.held.remove(&sequence) {
            self.bytes -= held.message.payload.len();
            self.queue.remove(&sequence);
            self.again.remove(&sequence);
            self.lanes.iter_mut().for_each(|lanes| lanes.finished(sequence));
        }
    }

    /// Makes room by giving up messages of the key that holds most; the caller puts them off.
    pub fn shed(&mut self, count: usize) -> Vec<u64> {
        let shed = self.lanes.as_mut().map(|lanes| lanes.shed(count)).unwrap_or_default();
        for sequence in &shed {
            if let Some(held) = self.held.remove(sequence) {
                self.bytes -= held.message.payload.len();
            }
        }
        shed
    }

    fn ready(&self) -> impl Iterator<Item = u64> + '_ {
        self.lanes.iter().flat_map(Lanes::ready).chain(self.queue.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::flow::message::Headers;
    use crate::time::Timestamp;

    const NOW: Duration = Duration::from_secs(10);

    fn held(sequence: u64, attempt: u32) -> Held {
        let message = Stored {
            sequence,
            subject: "vx.a".to_owned(),
            headers: Headers::default(),
            payload: Bytes::from_static(b"12345"),
            time: Timestamp(0),
        };
        Held { message, base: attempt, former: None, counted: 0, tried: 0, not_before: Duration::ZERO, arrived: NOW }
    }

    fn delivering(messages_max: usize, bytes_max: usize, wait: u64) -> Delivering {
        Delivering { concurrency: 1, messages_max, bytes_max, wait_max: Duration::from_secs(wait) }
    }

    #[test]
    fn a_call_waits_to_fill_up_but_not_for_ever() {
        let mut hand = Hand::new(None);
        hand.take(None, held(1, 1));
        hand.take(None, held(2, 1));
        assert_eq!(hand.choose(NOW, &delivering(3, 100, 5), 3, false), Choice::At(NOW + Duration::from_secs(5)));
        assert_eq!(hand.choose(NOW, &delivering(2, 100, 5), 3, false), Choice::Send(vec![1, 2]));
        assert_eq!(hand.choose(NOW, &delivering(3, 7, 5), 3, false), Choice::Send(vec![1]), "full by bytes");
        assert_eq!(hand.choose(NOW, &delivering(3, 100, 0), 3, false), Choice::Send(vec![1, 2]));
    }

    #[test]
    fn a_message_at_its_last_attempt_goes_alone() {
        let mut hand = Hand::new(None);
        for (sequence, attempt) in [(1, 1), (2, 3), (3, 1)] {
            hand.take(None, held(sequence, attempt));
        }
        let delivering = delivering(10, 100, 5);
        for expected in [vec![1], vec![2]] {
            assert_eq!(hand.choose(NOW, &delivering, 3, false), Choice::Send(expected.clone()));
            expected.into_iter().for_each(|sequence| _ = hand.start(sequence, 1));
        }
    }

    #[test]
    fn what_failed_before_goes_one_at_a_time_beside_what_was_never_tried() {
        let mut hand = Hand::new(None);
        let delivering = delivering(1, 100, 0);
        for sequence in 1..=2 {
            hand.take(None, held(sequence, 1));
            hand.start(sequence, sequence);
            hand.back(sequence, NOW);
        }
        assert_eq!(hand.choose(NOW, &delivering, 3, true), Choice::Send(vec![1]), "nothing else is there");
        (3..=4).for_each(|sequence| _ = hand.take(None, held(sequence, 1)));
        assert_eq!(hand.choose(NOW, &delivering, 3, true), Choice::Send(vec![3]), "a call failed just now");
        assert_eq!(hand.choose(NOW, &delivering, 3, false), Choice::Send(vec![1]));
        hand.start(1, 3);
        assert_eq!(hand.choose(NOW, &delivering, 3, false), Choice::Send(vec![3]), "another is being tried again");
        hand.drop(1);
        assert_eq!(hand.choose(NOW, &delivering, 3, false), Choice::Send(vec![2]));
    }

    #[test]
    fn the_probe_is_a_message_not_tried_yet_else_the_one_tried_longest_ago() {
        let mut hand = Hand::new(None);
        hand.take(None, held(1, 1));
        hand.start(1, 1);
        hand.back(1, NOW);
        hand.take(None, held(2, 1));
        assert_eq!(hand.probe(), Some(2));
        hand.start(2, 2);
        hand.back(2, NOW);
        assert_eq!(hand.probe(), Some(1));
    }

    #[test]
    fn bytes_and_messages_are_given_back() {
        let mut hand = Hand::new(Some(Lanes::new(8)));
        for sequence in 1..=4 {
            hand.take(Some("a"), held(sequence, 1));
        }
        assert_eq!((hand.len(), hand.bytes()), (4, 20));
        assert_eq!(hand.shed(1), [4]);
        for sequence in 1..=3 {
            hand.start(sequence, 1);
            hand.drop(sequence);
        }
        assert_eq!((hand.len(), hand.bytes()), (0, 0));
    }
}
