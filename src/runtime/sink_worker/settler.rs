//! Ends work on the bus: what piles up while one settlement is on its way goes with the next.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::flow::backoff::Backoff;
use crate::flow::message::Outgoing;
use crate::ports::bus::{self, Batch, Bus, Durable, PubAck, Settlement};

/// Waits between tries when the bus takes nothing.
pub(super) const BACKOFF: Backoff = Backoff { initial: Duration::from_millis(200), max: Duration::from_secs(10) };

#[derive(Debug)]
pub(super) struct Item {
    pub sequence: u64,
    /// What is stored before the message is acknowledged.
    pub stored: Option<Outgoing>,
}

pub(super) struct Settler {
    waiting: Vec<Item>,
    sent: Vec<Item>,
    call: Option<BoxFuture<'static, Result<Vec<PubAck>, bus::Error>>>,
    items_max: usize,
    failures: u32,
    /// Why nothing could be settled, while that is so.
    pub trouble: Option<bus::Error>,
    pub retry_at: Duration,
}

impl Settler {
    pub fn new(items_max: usize) -> Self {
        Settler {
            waiting: Vec::new(),
            sent: Vec::new(),
            call: None,
            items_max,
            failures: 0,
            trouble: None,
            retry_at: Duration::ZERO,
        }
    }

    pub fn push(&mut self, item: Item) {
        self.waiting.push(item);
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.call.is_none()
    }

    /// Whether it waits for its next try.
    pub fn is_waiting(&self, now: Duration) -> bool {
        self.call.is_none() && !self.waiting.is_empty() && now < self.retry_at
    }

    /// Begins the next settlement if there is something to settle and none on its way. What it stores goes to `stream`.
    pub fn start(&mut self, bus: &dyn Bus, durable: &Durable, stream: &Arc<str>, now: Duration) {
        if self.call.is_some() || self.waiting.is_empty() || now < self.retry_at {
            return;
        }
        // After a failure one at a time: a single message must not hold back the others for its size.
        let items_max = if self.failures > 0 { 1 } else { self.items_max };
        self.sent = self.waiting.drain(..self.waiting.len().min(items_max)).collect();
        let messages: Vec<Outgoing> = self.sent.iter().filter_map(|item| item.stored.clone()).collect();
        let batch = Batch { stream: Arc::clone(stream), messages, expected: Vec::new() };
        let batches = if batch.messages.is_empty() { Vec::new() } else { vec![batch] };
        let acknowledged = self.sent.iter().map(|item| (durable.clone(), item.sequence)).collect();
        self.call = Some(bus.settle(Settlement { batches, acknowledged, ..Settlement::default() }));
    }

    /// Waits for the settlement on its way; for ever when there is none. May be dropped and called again.
    pub async fn answer(&mut self) -> Result<Vec<PubAck>, bus::Error> {
        let Some(call) = &mut self.call else { return std::future::pending().await };
        let answer = call.await;
        self.call = None;
        answer
    }

    /// Takes the answer: what was settled, or nothing and a later try.
    pub fn answered(&mut self, answer: Result<Vec<PubAck>, bus::Error>, now: Duration, jitter: f64) -> Vec<Item> {
        let sent = std::mem::take(&mut self.sent);
        match answer {
            Ok(_) => {
                self.failures = 0;
                self.trouble = None;
                sent
            }
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                self.retry_at = now + BACKOFF.delay(self.failures, jitter);
                self.trouble = Some(error);
                // Behind the others: should it be this one that cannot be stored, they still can.
                self.waiting.extend(sent);
                Vec::new()
            }
        }
    }
}
