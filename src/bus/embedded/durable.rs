//! A named position in a stream: what was handed out, what comes again and when, what comes next.
//!
//! Messages are first handed out in sequence order, so the position is one number and the set of what was handed out
//! and not acknowledged. That set is bounded by the in-flight limit: a message that is put off or timed out counts.
//!
//! No clock and no disk here: times come as arguments, and what is `ready` is given by `commit` (new messages) and
//! `pull` (old ones). Upholds: a sequence is in at most one of `ready` and `outstanding`; every matching message up
//! to `reached` is in one of them or done with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::codec::{Damaged, Decoder, Encoder};
use super::stream::nanos;
use crate::ports::bus::{DurableConfig, Start};
use crate::time::Timestamp;

/// Sequences one durable keeps ready in memory. Beyond it, it reads them from the index when it gets there.
pub(super) const READY_MAX: usize = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Handed out; comes again when this time is reached (monotonic clock).
    InFlight { until: Duration },
    /// Comes again when this time is reached; `due` is the same by the wall clock, for the disk. `delay` bounds what is left
    /// of it after a restart, when the wall clock may have been set back.
    PutOff { until: Duration, due: Timestamp, delay: Duration },
    /// Comes again with the next pull.
    Again,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outstanding {
    attempt: u32,
    state: State,
}

#[derive(Debug)]
pub(super) struct Durable {
    pub id: u32,
    pub stream: u32,
    pub config: DurableConfig,
    outstanding: BTreeMap<u64, Outstanding>,
    /// Those of `outstanding` that are due.
    again: BTreeSet<u64>,
    ready: VecDeque<u64>,
    pub reached: u64,
    pub delivered: u64,
    /// Takes part in the dispatch that is going on, see `commit`.
    pub live: bool,
    /// Somebody reads old messages from the index for it.
    pub refilling: bool,
    /// No state changes by time alone before this.
    pub next_wake: Option<Duration>,
    pub notify: Arc<Notify>,
    pub dirty: bool,
}

impl Durable {
    /// Begins after `reached`.
    pub fn new(id: u32, stream: u32, config: DurableConfig, reached: u64) -> Self {
        Durable {
            id,
            stream,
            config,
            outstanding: BTreeMap::new(),
            again: BTreeSet::new(),
            ready: VecDeque::new(),
            reached,
            delivered: 0,
            live: false,
            refilling: false,
            next_wake: None,
            notify: Arc::new(Notify::new()),
            dirty: true,
        }
    }

    /// Offers a new message; refused when the queue is full, and then nothing behind it may be offered.
    pub fn offer(&mut self, sequence: u64) -> bool {
        if sequence <= self.reached {
            return true;
        }
        if self.ready.len() >= READY_MAX {
            return false;
        }
        self.ready.push_back(sequence);
        true
    }

    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The oldest matching message that is not acknowledged, if it is known without reading the index.
    pub fn oldest(&self) -> Option<u64> {
        self.outstanding.keys().next().into_iter().chain(self.ready.front()).min().copied()
    }

    /// Every matching message up to here is acknowledged.
    pub fn ack_floor(&self) -> u64 {
        self.oldest().map_or(self.reached, |oldest| oldest - 1)
    }

    pub fn in_flight(&self) -> usize {
        self.outstanding.values().filter(|o| matches!(o.state, State::InFlight { .. })).count()
    }

    pub fn redelivering(&self) -> usize {
        self.outstanding.len() - self.in_flight()
    }

    /// Whether a pull would get something now.
    pub fn has_due(&self) -> bool {
        !self.again.is_empty() || (!self.ready.is_empty() && self.has_room())
    }

    pub fn has_room(&self) -> bool {
        self.outstanding.len() < self.config.in_flight_max
    }

    /// Whether a pull would have to read the index, and could hand out what it finds.
    pub fn is_behind(&self, visible: u64) -> bool {
        self.ready.is_empty() && self.reached < visible && self.has_room()
    }

    /// The message a pull gets next.
    pub fn peek(&self) -> Option<u64> {
        match self.again.first() {
            Some(sequence) => Some(*sequence),
            None => self.ready.front().copied().filter(|_| self.has_room()),
        }
    }

    /// Hands out what [`Durable::peek`] named and answers which attempt this is.
    pub fn take(&mut self, sequence: u64, now: Duration) -> u32 {
        let until = now + self.config.ack_wait;
        self.wake_at(until);
        self.dirty = true;
        let state = State::InFlight { until };
        if self.again.remove(&sequence)
            && let Some(outstanding) = self.outstanding.get_mut(&sequence)
        {
            outstanding.attempt = outstanding.attempt.saturating_add(1);
            outstanding.state = state;
            return outstanding.attempt;
        }
        let front = self.ready.pop_front();
        debug_assert_eq!(front, Some(sequence));
        self.delivered = self.delivered.max(sequence);
        self.outstanding.insert(sequence, Outstanding { attempt: 1, state });
        1
    }

    /// Takes back a hand-out that did not happen after all. Called in falling order.
    pub fn give_back(&mut self, sequence: u64, attempt: u32) {
        if self.outstanding.remove(&sequence).is_none() {
            return;
        }
        if attempt > 1 {
            self.outstanding.insert(sequence, Outstanding { attempt: attempt - 1, state: State::Again });
            self.again.insert(sequence);
        } else {
            let at = self.ready.partition_point(|ready| *ready < sequence);
            self.ready.insert(at, sequence);
        }
    }

    /// Whether anything changed.
    pub fn acknowledge(&mut self, sequence: u64) -> bool {
        self.again.remove(&sequence);
        let known = self.outstanding.remove(&sequence).is_some();
        self.dirty |= known;
        known
    }

    pub fn put_off(&mut self, sequence: u64, delay: Duration, now: Duration, now_wall: Timestamp) {
        let Some(outstanding) = self.outstanding.get_mut(&sequence) else { return };
        self.again.remove(&sequence);
        let until = now + delay;
        outstanding.state = State::PutOff { until, due: now_wall.plus(delay), delay };
        self.dirty = true;
        self.wake_at(until);
    }

    pub fn in_progress(&mut self, sequences: &[u64], now: Duration) {
        let until = now + self.config.ack_wait;
        for sequence in sequences {
            if let Some(outstanding) = self.outstanding.get_mut(sequence)
                && !matches!(outstanding.state, State::PutOff { .. })
            {
                self.again.remove(sequence);
                outstanding.state = State::InFlight { until };
            }
        }
        self.wake_at(until);
    }

    fn wake_at(&mut self, at: Duration) {
        self.next_wake = Some(self.next_wake.map_or(at, |wake| wake.min(at)));
    }

    /// Makes due what has timed out. Answers whether there was any.
    ///
    /// Looks at everything outstanding, but at most once per ack wait and put-off time, and that is a bounded set.
    pub fn expire(&mut self, now: Duration) -> bool {
        if self.next_wake.is_none_or(|wake| wake > now) {
            return false;
        }
        self.next_wake = None;
        let due_before = self.again.len();
        let mut next: Option<Duration> = None;
        for (sequence, outstanding) in &mut self.outstanding {
            let until = match outstanding.state {
                State::InFlight { until } | State::PutOff { until, .. } => until,
                State::Again => continue,
            };
            if until <= now {
                outstanding.state = State::Again;
                self.again.insert(*sequence);
            } else {
                next = Some(next.map_or(until, |wake| wake.min(until)));
            }
        }
        self.next_wake = next;
        self.again.len() > due_before
    }

    /// Takes over what the index holds in `reached + 1 ..= until`.
    pub fn refill(&mut self, sequences: impl IntoIterator<Item = u64>, until: u64) {
        self.ready.extend(sequences);
        self.reached = self.reached.max(until);
    }

    /// Forgets messages that are no longer in the stream.
    pub fn forget(&mut self, removed: impl Fn(u64) -> bool) {
        self.ready.retain(|sequence| !removed(*sequence));
        self.again.retain(|sequence| !removed(*sequence));
        let before = self.outstanding.len();
        self.outstanding.retain(|sequence, _| !removed(*sequence));
        self.dirty |= self.outstanding.len() < before;
    }

    /// One small record: where it is, and of each outstanding message the distance from the one before, the attempt
    /// and, when it is put off, the time in milliseconds at which it is due, and for how long it was put off.
    pub fn encode_position(&self) -> Vec<u8> {
        let mut encoder = Encoder(Vec::with_capacity(16 + self.outstanding.len() * 3));
        let cursor = self.ready.front().map_or(self.reached, |front| front - 1);
        encoder.varint(cursor).varint(self.delivered).varint(self.outstanding.len() as u64);
        let mut previous = 0;
        for (sequence, outstanding) in &self.outstanding {
            encoder.varint(sequence - previous).varint(u64::from(outstanding.attempt));
            match outstanding.state {
                State::PutOff { due, delay, .. } => {
                    let due_ms = u64::try_from(due.unix_millis()).unwrap_or(0).saturating_add(1);
                    encoder.varint(due_ms).varint(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
                }
                State::InFlight { .. } | State::Again => {
                    encoder.varint(0);
                }
            }
            previous = *sequence;
        }
        encoder.0
    }

    /// What was in flight when the position was written comes again at once: whoever had it is gone.
    pub fn restore_position(&mut self, value: &[u8], now: Duration, now_wall: Timestamp) -> Result<(), Damaged> {
        let mut decoder = Decoder(value);
        self.reached = decoder.varint()?;
        self.delivered = decoder.varint()?;
        let mut sequence = 0;
        for _ in 0..decoder.varint()? {
            sequence += decoder.varint()?;
            let attempt = u32::try_from(decoder.varint()?).unwrap_or(u32::MAX);
            let due = match decoder.varint()? {
                0 => None,
                due_ms => {
                    let due = Timestamp::from_unix_millis(i64::try_from(due_ms - 1).unwrap_or(i64::MAX));
                    Some((due, Duration::from_millis(decoder.varint()?)))
                }
            };
            let state = match due.filter(|(due, _)| *due > now_wall) {
                Some((due, delay)) => {
                    let left = due.since(now_wall).min(delay);
                    let until = now + left;
                    self.wake_at(until);
                    State::PutOff { until, due: now_wall.plus(left), delay }
                }
                None => {
                    self.again.insert(sequence);
                    State::Again
                }
            };
            self.outstanding.insert(sequence, Outstanding { attempt, state });
        }
        self.dirty = false;
        Ok(())
    }

    pub fn encode_config(&self) -> Vec<u8> {
        let config = &self.config;
        let mut encoder = Encoder::default();
        encoder.u32(self.stream).text(&config.name).texts(&config.filters);
        encoder.varint(nanos(config.ack_wait)).varint(config.in_flight_max as u64);
        match config.start {
            Start::First => encoder.varint(0),
            Start::End => encoder.varint(1),
            Start::Sequence(sequence) => encoder.varint(2).varint(sequence),
            Start::Time(time) => encoder.varint(3).time(time),
        };
        encoder.0
    }

    pub fn decode_config(id: u32, value: &[u8]) -> Result<Self, Damaged> {
        let mut decoder = Decoder(value);
        let stream = decoder.u32()?;
        let (name, filters) = (decoder.text()?.to_owned(), decoder.texts()?);
        let ack_wait = Duration::from_nanos(decoder.varint()?);
        let in_flight_max = usize::try_from(decoder.varint()?).unwrap_or(usize::MAX);
        let start = match decoder.varint()? {
            0 => Start::First,
            1 => Start::End,
            2 => Start::Sequence(decoder.varint()?),
            3 => Start::Time(decoder.time()?),
            _ => return Err(Damaged("start of a durable")),
        };
        Ok(Durable::new(id, stream, DurableConfig { name, filters, start, ack_wait, in_flight_max }, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn durable(in_flight_max: usize) -> Durable {
        let filters = vec!["a.>".to_owned()];
        let config = DurableConfig { name: "d".into(), filters, start: Start::First, ack_wait: SECOND, in_flight_max };
        let mut durable = Durable::new(1, 0, config, 0);
        for sequence in [2, 4, 6] {
            assert!(durable.offer(sequence));
        }
        durable.reached = 6;
        durable
    }

    #[test]
    fn the_floor_stays_below_what_is_not_acknowledged() {
        let mut durable = durable(10);
        assert_eq!(durable.ack_floor(), 1);
        durable.take(2, SECOND);
        durable.take(4, SECOND);
        assert!(durable.acknowledge(4));
        assert_eq!(durable.ack_floor(), 1);
        assert!(durable.acknowledge(2) && !durable.acknowledge(2));
        assert_eq!(durable.ack_floor(), 5);
    }

    #[test]
    fn first_deliveries_wait_at_the_limit_but_repeated_ones_do_not() {
        let mut durable = durable(1);
        durable.take(2, Duration::ZERO);
        assert_eq!(durable.peek(), None);
        assert!(durable.expire(SECOND));
        assert_eq!(durable.peek(), Some(2));
        assert_eq!(durable.take(2, SECOND), 2);
    }

    #[test]
    fn a_restart_keeps_attempts_and_due_times() {
        let mut before = durable(10);
        before.take(2, Duration::ZERO);
        before.take(4, Duration::ZERO);
        let wall = Timestamp::from_unix_millis(1_000_000);
        before.put_off(4, SECOND * 10, Duration::ZERO, wall);
        let mut after = Durable::decode_config(1, &before.encode_config()).unwrap();
        after.restore_position(&before.encode_position(), SECOND * 500, wall.plus(SECOND * 4)).unwrap();
        assert_eq!(after.config, before.config);
        assert_eq!((after.peek(), after.delivered, after.reached), (Some(2), 4, 5));
        assert_eq!(after.take(2, SECOND * 500), 2);
        assert_eq!(after.next_wake, Some(SECOND * 501));
        after.expire(SECOND * 505);
        after.acknowledge(2);
        assert_eq!(after.peek(), None);
        assert!(after.expire(SECOND * 506));
        assert_eq!(after.peek(), Some(4));
    }

    #[test]
    fn a_hand_out_that_did_not_happen_leaves_no_trace() {
        let mut durable = durable(10);
        for sequence in [2, 4] {
            durable.take(sequence, Duration::ZERO);
        }
        durable.give_back(4, 1);
        durable.give_back(2, 1);
        assert_eq!((durable.peek(), durable.in_flight(), durable.ready()), (Some(2), 0, 3));
    }
}
