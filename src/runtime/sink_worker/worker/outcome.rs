//! What becomes of messages when a call has ended: acknowledged, tried again or given up.

use std::time::Duration;

use super::{Item, Landed, Worker};
use crate::flow::breaker::RETRY_AFTER_MAX;
use crate::flow::dead_letter::{Death, dead_letter};
use crate::flow::failure::Failure;
use crate::ports::sink::Delivered;
use crate::transforms::{Became, Seen};
use crate::unit::status;
use crate::unit::tap::Record;

impl Worker {
    pub(super) fn landed(&mut self, landed: Landed) {
        if let Some(former) = landed.former.clone() {
            return self.former_landed(&former, landed);
        }
        let now = self.now();
        let unit = self.spec.id.to_string();
        metrics::histogram!("vejas_sink_delivery_seconds", "unit" => unit)
            .record(now.saturating_sub(landed.began).as_secs_f64());
        let asked = landed.outcomes.iter().filter_map(|outcome| match outcome {
            Delivered::Transient { retry_after, .. } => *retry_after,
            _ => None,
        });
        if landed.outcomes.iter().any(|outcome| !matches!(outcome, Delivered::Transient { .. })) {
            self.failures.answered(landed.call);
            self.breaker.succeeded(landed.probe);
        } else {
            let was_closed = self.breaker.is_closed();
            let asked = asked.max();
            // A receiver that asks for a pause spoke of itself. Otherwise it may be the message: others show it at once.
            let may_be_its_own = landed.probe && asked.is_none() && self.hand.has_untried();
            if !(may_be_its_own && self.breaker.probe_another(now)) {
                self.breaker.failed(now, landed.probe, asked);
            }
            self.probe_pulled = false;
            if was_closed && !self.breaker.is_closed() {
                self.failures.outage();
            }
        }
        let alone = landed.sequences.len() == 1;
        let tapped = self.spec.unit.tap().is_on();
        for (sequence, outcome) in landed.sequences.into_iter().zip(landed.outcomes) {
            if tapped {
                self.tell(sequence, &outcome);
            }
            match outcome {
                Delivered::Done => {
                    self.failures.forget(sequence);
                    self.acks.push(Item { sequence, stored: None });
                }
                Delivered::Permanent(failure) => {
                    self.note(sequence, &failure);
                    self.die(sequence, &failure);
                }
                Delivered::Transient { failure, retry_after } => {
                    self.note(sequence, &failure);
                    let outage = !self.breaker.is_closed();
                    let verdict = self.failures.failed(sequence, outage);
                    let used_up = self.hand.get(sequence).attempt() >= self.spec.retry.max_attempts;
                    if verdict.alone && used_up && alone && !landed.probe {
                        self.die(sequence, &failure);
                    } else {
                        let counts = !landed.probe && (!outage || verdict.own);
                        self.try_again(sequence, counts, retry_after, now);
                    }
                }
            }
        }
    }

    /// Tells those who look at the sink what became of one delivery.
    pub(super) fn tell(&self, sequence: u64, outcome: &Delivered) {
        let held = self.hand.get(sequence);
        let became = match outcome {
            Delivered::Done => Became::Delivered,
            Delivered::Permanent(failure) | Delivered::Transient { failure, .. } => Became::Failed(failure.clone()),
        };
        let seen = Seen { number: None, verb: "deliver", before: held.message.payload.clone(), became };
        self.spec.unit.tap().tell(Record::new(&held.message, held.attempt(), seen));
    }

    pub(super) fn try_again(&mut self, sequence: u64, counts: bool, retry_after: Option<Duration>, now: Duration) {
        self.spec.unit.retried(1);
        let attempt = self.hand.get(sequence).attempt();
        if counts {
            self.hand.count(sequence);
        }
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        let delay = self.backoff.delay(attempt, (self.spec.jitter)()).max(asked);
        if !self.breaker.is_closed() {
            self.hand.back(sequence, now);
        } else if self.is_ordered() || self.stop_at.is_some() {
            self.hand.back(sequence, now + delay);
        } else {
            self.hand.drop(sequence);
            self.put_off(sequence, delay);
        }
    }

    pub(super) fn note(&mut self, sequence: u64, failure: &Failure) {
        self.spec.unit.set_failure(failure, Some(sequence), self.context.clock.now());
        self.last_failure = Some(failure.clone());
    }

    /// The message becomes a dead letter. It stays in hand until that is stored.
    pub(super) fn die(&mut self, sequence: u64, failure: &Failure) {
        self.failures.forget(sequence);
        let held = self.hand.get(sequence);
        tracing::warn!(unit = %self.spec.id, code = failure.code, "dead letter: {}", failure.message);
        let death = Death {
            unit: &self.spec.id,
            digest: status::short(held.former.as_deref().unwrap_or(&self.spec.digest)),
            attempts: held.attempt(),
            failure,
            last: self.context.clock.now(),
        };
        let letter = dead_letter(&self.context.names, &held.message, &death);
        self.deaths.push(Item { sequence, stored: Some(letter) });
    }
}
