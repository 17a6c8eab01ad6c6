//! How messages come in: when to pull, what to probe with, what goes back to the bus to make room.

use std::sync::Arc;
use std::time::Duration;

use super::super::hand::Held;
use super::super::{DEFERRED, DEFERRED_MAX, HAND_BYTES_MAX, PROBE_PULL_WAIT, PULL_WAIT};
use super::former::held;
use super::{BACKOFF, Pull, Worker};
use crate::flow::breaker::PROBES_MAX;
use crate::flow::ordering::Offered;
use crate::ports::bus::{self, Delivery};

impl Worker {
    pub(super) fn may_pull(&self, now: Duration) -> bool {
        let settling = [&self.acks, &self.deaths, &self.moves].into_iter().all(|settler| settler.trouble.is_none());
        self.pull.is_none()
            && self.granting.is_none()
            && settling
            && now >= self.pull_at
            && self.put_offs.len() < DEFERRED_MAX
    }

    pub(super) fn pull_more(&mut self, now: Duration) {
        let mut room = self.hand_max.saturating_sub(self.hand.len());
        if room == 0 && self.returning.is_some() {
            self.shed();
            room = self.hand_max.saturating_sub(self.hand.len());
        }
        // Not one by one behind a full hand: each pull costs a turn.
        if room >= self.hand_max.div_ceil(4) && self.hand.bytes() < HAND_BYTES_MAX && self.may_pull(now) {
            self.pull(room, PULL_WAIT, false);
        }
    }

    pub(super) fn pull(&mut self, messages_max: usize, wait: Duration, for_probe: bool) {
        let bytes_max = HAND_BYTES_MAX.saturating_sub(self.hand.bytes()).max(1);
        let answer = self.context.bus.pull(&self.durable, messages_max, bytes_max, wait);
        self.pull = Some(Pull { for_probe, answer });
    }

    /// The receiver may be asked again: with a message it has not failed on, if there is one.
    pub(super) fn probe(&mut self, now: Duration) {
        if self.returning.is_some() {
            return self.pull_more(now);
        }
        let candidate = self.hand.probe();
        let fresh = candidate.is_some_and(|sequence| self.hand.get(sequence).tried == 0);
        if !fresh && !self.probe_pulled && self.may_pull(now) {
            if self.hand.len() >= self.hand_max {
                self.shed();
            }
            let room = self.hand_max.saturating_sub(self.hand.len());
            if room > 0 {
                // The first may have failed before, or belong to a stuck key; a few more may not.
                let messages_max = if self.is_ordered() { room } else { room.min(PROBES_MAX as usize) };
                let wait = if candidate.is_some() { PROBE_PULL_WAIT } else { PULL_WAIT };
                return self.pull(messages_max, wait, true);
            }
        }
        // A pull from before that still waits says that there is nothing fresh.
        let awaited = self.pull.as_ref().is_some_and(|pull| pull.for_probe);
        if let Some(sequence) = candidate
            && (fresh || !awaited)
        {
            self.breaker.probe(now);
            self.send(vec![sequence], true, now);
        }
    }

    /// Gives a quarter of the hand back to the bus, to come again after what is kept.
    pub(super) fn shed(&mut self) {
        for sequence in self.hand.shed(self.hand_max.div_ceil(4)) {
            self.put_off(sequence, DEFERRED);
        }
    }

    pub(super) fn put_off(&mut self, sequence: u64, delay: Duration) {
        self.put_offs.push(self.context.bus.put_off(&self.durable, sequence, delay));
    }

    pub(super) fn pulled(
        &mut self,
        for_probe: bool,
        answer: Result<Vec<Delivery>, bus::Error>,
    ) -> Result<(), bus::Error> {
        self.probe_pulled |= for_probe;
        let now = self.now();
        match answer {
            Ok(deliveries) => {
                self.pull_failures = 0;
                self.pull_trouble = None;
                self.grant(deliveries, now);
                Ok(())
            }
            Err(error) if error.is_retryable() => {
                self.pull_failures = self.pull_failures.saturating_add(1);
                self.pull_at = now + BACKOFF.delay(self.pull_failures, (self.spec.jitter)());
                self.pull_trouble = Some(error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn take(&mut self, delivery: Delivery, former: Option<Arc<str>>, now: Duration) {
        let (sequence, attempt) = (delivery.message.sequence, delivery.attempt);
        if let Some(returning) = &mut self.returning
            && sequence <= returning.delivered
        {
            returning.seen.insert(sequence);
        }
        // Its ack wait ran out while it was in hand: the work that goes on counts.
        if self.hand.holds(sequence) {
            return;
        }
        let key = self.spec.order_by.as_ref().map(|order_by| order_by(&delivery.message)).transpose();
        let base = if self.is_ordered() { 1 } else { attempt };
        let held = Held { tried: self.failures.tried(sequence), ..held(delivery, base, former, now) };
        match key {
            Ok(key) => {
                if self.hand.take(key.as_deref(), held) == Offered::Deferred {
                    self.put_off(sequence, DEFERRED);
                }
            }
            Err(failure) => {
                self.note(sequence, &failure);
                self.hand.keep(held);
                self.die(sequence, &failure);
            }
        }
    }
}
