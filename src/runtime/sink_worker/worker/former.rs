//! Grants, and what becomes of the messages of former versions. See "Former versions" in the module head of the worker.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::super::{DEFERRED, hand::Held};
use super::{BACKOFF, Item, Landed, Worker};
use crate::flow::failure::Failure;
use crate::flow::moved::moved;
use crate::id::subject_matches;
use crate::ports::bus::{self, Delivery};
use crate::ports::sink::Delivered;
use crate::protocol::parts::Run;
use crate::runtime::parts::{self, Placed};

/// How long what may not be worked on here stays at the bus before it is handed out again.
const LEFT_WAIT: Duration = Duration::from_secs(5);

/// Messages that were pulled and wait for the grant.
pub(super) struct Granting {
    deliveries: Vec<Delivery>,
    pub answer: BoxFuture<'static, Result<Arc<Run>, parts::Error>>,
}

impl Worker {
    /// Takes what was pulled, once work on it is granted.
    pub(super) fn grant(&mut self, deliveries: Vec<Delivery>, now: Duration) {
        let Some(highest) = deliveries.iter().map(|delivery| delivery.message.sequence).max() else { return };
        if let Some(run) = self.spec.parts.current().filter(|run| run.granted >= highest) {
            return self.take_all(&run, deliveries, now);
        }
        // What is granted ahead belongs to this version for good. With keys that cannot be moved: not more than needed.
        let pending = deliveries.last().map_or(0, |delivery| delivery.pending);
        let ahead = if self.is_ordered() { 0 } else { pending.min(self.hand_max as u64) };
        let parts = Arc::clone(&self.spec.parts);
        let answer = Box::pin(async move { parts.cover(highest, ahead).await });
        self.granting = Some(Granting { deliveries, answer });
    }

    pub(super) fn granted(&mut self, answer: Result<Arc<Run>, parts::Error>) -> Result<(), bus::Error> {
        let Some(Granting { deliveries, .. }) = self.granting.take() else { return Ok(()) };
        let now = self.now();
        match answer {
            Ok(run) => {
                self.pull_failures = 0;
                self.pull_trouble = None;
                self.take_all(&run, deliveries, now);
                Ok(())
            }
            Err(parts::Error::Bus(error)) if error.is_retryable() => {
                self.pull_failures = self.pull_failures.saturating_add(1);
                let wait = BACKOFF.delay(self.pull_failures, (self.spec.jitter)());
                self.pull_at = now + wait;
                self.pull_trouble = Some(error);
                deliveries.iter().for_each(|delivery| self.put_off(delivery.message.sequence, wait));
                Ok(())
            }
            Err(parts::Error::Bus(error)) => Err(error),
            Err(error) => Err(bus::Error::Stopped(error.to_string())),
        }
    }

    fn take_all(&mut self, run: &Run, deliveries: Vec<Delivery>, now: Duration) {
        for delivery in deliveries {
            let sequence = delivery.message.sequence;
            match self.spec.parts.place(run, sequence, self.spec.number) {
                Placed::Under(digest) if digest == self.spec.digest => self.take(delivery, None, now),
                Placed::Under(digest) => self.take(delivery, Some(Arc::from(digest)), now),
                Placed::NotHere => self.acks.push(Item { sequence, stored: None }),
                Placed::Left => self.put_off(sequence, LEFT_WAIT),
            }
        }
    }

    /// Begins calls for messages of former versions, and moves what is not to be sent.
    pub(super) fn send_former(&mut self, now: Duration) {
        if self.returning.is_some() {
            return;
        }
        let calls_max = (self.delivering.concurrency / 2).max(1);
        let waiting: Vec<u64> =
            self.hand.former().filter(|(_, not_before)| *not_before <= now).map(|(sequence, _)| sequence).collect();
        for sequence in waiting {
            let Some(former) = self.hand.get(sequence).former.clone() else { continue };
            let connector = self.spec.former.get(&*former).and_then(Option::clone);
            let failing = self.former_failing.contains(&former) || connector.is_none();
            if failing && self.can_be_moved(sequence) {
                self.move_away(sequence);
            } else if let Some(connector) = connector {
                if self.former_calls >= calls_max || self.flights.len() >= self.delivering.concurrency {
                    return;
                }
                self.former_calls += 1;
                self.call(vec![sequence], connector, Some(former), false, now);
            } else {
                let reason = format!("the former version {former} of the sink cannot be opened any more");
                self.note(sequence, &Failure::new("former-version", &reason));
                self.hand.hold_back(sequence);
                self.wait_former(sequence, now);
            }
        }
    }

    pub(super) fn former_landed(&mut self, former: &Arc<str>, landed: Landed) {
        let now = self.now();
        self.former_calls -= 1;
        let tapped = self.spec.unit.tap().is_on();
        for (sequence, outcome) in landed.sequences.into_iter().zip(landed.outcomes) {
            if tapped {
                self.tell(sequence, &outcome);
            }
            match outcome {
                Delivered::Done => self.acks.push(Item { sequence, stored: None }),
                Delivered::Permanent(failure) => {
                    self.note(sequence, &failure);
                    self.die(sequence, &failure);
                }
                Delivered::Transient { failure, .. } => {
                    self.note(sequence, &failure);
                    self.spec.unit.retried(1);
                    self.former_failing.insert(Arc::clone(former));
                    if self.can_be_moved(sequence) {
                        self.move_away(sequence);
                    } else {
                        self.wait_former(sequence, now);
                    }
                }
            }
        }
    }

    /// Whether the newest version would get it, and in order.
    fn can_be_moved(&self, sequence: u64) -> bool {
        let Some(run) = self.spec.parts.current() else { return false };
        let subject = &self.hand.get(sequence).message.subject;
        !self.is_ordered() && run.last().reads.iter().any(|filter| subject_matches(filter, subject))
    }

    /// Stays in hand until the copy is stored.
    fn move_away(&mut self, sequence: u64) {
        self.hand.hold_back(sequence);
        let copy = moved(&self.context.names, &self.spec.id, &self.hand.get(sequence).message);
        self.moves.push(Item { sequence, stored: Some(copy) });
    }

    fn wait_former(&mut self, sequence: u64, now: Duration) {
        let attempt = self.hand.get(sequence).attempt();
        let delay = self.backoff.delay(attempt, (self.spec.jitter)()).max(DEFERRED);
        if self.is_ordered() {
            self.hand.count(sequence);
            self.hand.back(sequence, now + delay);
        } else {
            self.hand.drop(sequence);
            self.put_off(sequence, delay);
        }
    }

    pub(super) fn moved(&mut self, answer: Result<Vec<bus::PubAck>, bus::Error>) -> Result<(), bus::Error> {
        if let Err(error) = &answer
            && !error.is_retryable()
        {
            return Err(error.clone());
        }
        let (now, jitter) = (self.now(), (self.spec.jitter)());
        let settled = self.moves.answered(answer, now, jitter);
        if !settled.is_empty() {
            tracing::info!(unit = %self.spec.id, messages = settled.len(), "moved from a former version to the newest");
        }
        settled.iter().for_each(|item| self.hand.drop(item.sequence));
        Ok(())
    }

    /// Everything that is neither settled nor being settled goes back to the bus at once.
    pub(super) async fn give_back(&mut self) -> Result<(), bus::Error> {
        let granting = self.granting.take().map(|granting| granting.deliveries).unwrap_or_default();
        let pulled = granting.iter().map(|delivery| delivery.message.sequence);
        for sequence in self.hand.sequences().into_iter().chain(pulled) {
            super::check(self.context.bus.put_off(&self.durable, sequence, Duration::ZERO).await)?;
        }
        Ok(())
    }
}

/// A message that was handed out and may be worked on.
pub(super) fn held(delivery: Delivery, base: u32, former: Option<Arc<str>>, now: Duration) -> Held {
    let message = delivery.message;
    Held { message, base, former, counted: 0, tried: 0, not_before: Duration::ZERO, arrived: now }
}
