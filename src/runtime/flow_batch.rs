//! One batch of a flow: deliveries in, a settlement out. Runs on any core; asks the store only for `dedupe` marks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::flow_worker::FlowUnit;
use crate::flow::message::Outgoing;
use crate::ports::bus::{Batch, Delivery, Durable, Settlement};
use crate::ports::clock::SharedClock;
use crate::ports::store::{Condition, Outcome, Store, Write};
use crate::transforms::{Passage, Passed, Pipeline, Stamp, Watch};
use crate::unit::context::Context;
use crate::unit::status;
use crate::unit::tap::Tap;

/// Messages between two points where the task lets others run.
const MESSAGES_UNTIL_YIELD: usize = 64;
/// The wait before marks are asked for again when the store refuses.
const MARKS_REFUSED_WAIT: Duration = Duration::from_millis(200);

/// What a batch needs of its flow.
pub(super) struct Task {
    pipeline: Arc<Pipeline>,
    stamp: Stamp,
    store: Arc<dyn Store>,
    clock: SharedClock,
    durable: Durable,
    messages: Arc<str>,
    dead_letters: Arc<str>,
    dedupe_bucket: String,
    tap: Arc<Tap>,
}

/// What has to be settled for one batch, and what is to be counted once it is.
#[derive(Debug, Default)]
pub(super) struct Processed {
    parts: Vec<Passed>,
}

impl Processed {
    pub fn inputs(&self) -> impl Iterator<Item = u64> + '_ {
        self.parts.iter().map(|part| part.input)
    }

    /// The first half of the inputs, the second stays. A settlement that does not fit as a whole may fit in parts.
    /// `None` when there is only one.
    pub fn split_off(&mut self) -> Option<Processed> {
        if self.parts.len() < 2 {
            return None;
        }
        let second = self.parts.split_off(self.parts.len() / 2);
        Some(Processed { parts: std::mem::replace(&mut self.parts, second) })
    }

    pub fn settlement(&self, task: &Task) -> Settlement {
        let outputs: Vec<Outgoing> = self.parts.iter().flat_map(|part| &part.outputs).cloned().collect();
        let letters: Vec<Outgoing> =
            self.parts.iter().filter_map(|part| part.letter.as_ref().map(|(letter, _)| letter.clone())).collect();
        let batches = [(&task.messages, outputs), (&task.dead_letters, letters)]
            .into_iter()
            .filter(|(_, messages)| !messages.is_empty())
            .map(|(stream, messages)| Batch { stream: Arc::clone(stream), messages, expected: Vec::new() })
            .collect();
        let acknowledged = self.inputs().map(|input| (task.durable.clone(), input)).collect();
        Settlement { batches, writes: Vec::new(), acknowledged }
    }

    pub fn count(&self, unit: &status::Unit, context: &Context) {
        unit.received(self.parts.len() as u64);
        unit.emitted(self.parts.iter().map(|part| part.outputs.len() as u64).sum());
        unit.dropped(self.parts.iter().map(|part| part.ended).sum());
        let failures =
            || self.parts.iter().filter_map(|part| part.letter.as_ref().map(|(_, failure)| (part.input, failure)));
        unit.dead(failures().count() as u64);
        if let Some((input, failure)) = failures().last() {
            let dead = failures().count();
            tracing::warn!(unit = %unit.id, code = failure.code, dead, "dead letter: {}", failure.message);
            unit.set_failure(failure, Some(input), context.clock.now());
        }
    }
}

impl Task {
    pub fn new(context: &Context, flow: &FlowUnit) -> Self {
        Task {
            pipeline: Arc::clone(&flow.pipeline),
            stamp: Stamp {
                unit: flow.id.clone(),
                digest: flow.digest.clone(),
                names: context.names.clone(),
                message_bytes_max: flow.message_bytes_max,
                transport_ids: !context.bus.settles_atomically(),
            },
            store: Arc::clone(&context.store),
            clock: Arc::clone(&context.clock),
            durable: flow.durable.clone(),
            messages: Arc::from(context.names.messages()),
            dead_letters: Arc::from(context.names.dead_letters()),
            dedupe_bucket: context.names.dedupe_bucket(),
            tap: Arc::clone(flow.unit.tap()),
        }
    }

    /// Whoever listens to the flow, if anybody does. Asked once for a batch, which is then told of as a whole or not.
    fn watch(&self) -> Option<&dyn Watch> {
        self.tap.is_on().then_some(&*self.tap)
    }
}

pub(super) async fn process(task: Arc<Task>, deliveries: Vec<Delivery>) -> Processed {
    let watch = task.watch();
    let mut passing = Vec::with_capacity(deliveries.len());
    for (nth, delivery) in deliveries.into_iter().enumerate() {
        if nth % MESSAGES_UNTIL_YIELD == MESSAGES_UNTIL_YIELD - 1 {
            tokio::task::yield_now().await;
        }
        passing.push(Passage::start(&task.pipeline, delivery.message, delivery.attempt, watch));
    }
    while passing.iter().any(Passage::waits) {
        pass_marks(&task, &mut passing, watch).await;
    }
    let now = task.clock.now();
    let passed = passing.into_iter().map(|passage| passage.finish(&task.stamp, now, watch));
    Processed { parts: passed.collect() }
}

/// Asks for the marks of everything that waits and goes on with what passes: one round trip for the batch.
async fn pass_marks(task: &Task, passing: &mut [Passage], watch: Option<&dyn Watch>) {
    let mut writes = Vec::new();
    let mut waiting = Vec::new();
    for (at, passage) in passing.iter().enumerate() {
        for mark in passage.marks(&task.pipeline, &task.messages) {
            writes.push(Write {
                bucket: task.dedupe_bucket.clone(),
                key: mark.key,
                value: Some(Bytes::from(mark.owner.clone())),
                condition: Condition::Absent,
                ttl: Some(mark.within),
            });
            waiting.push((at, mark.owner));
        }
    }
    let outcomes = loop {
        match task.store.write(writes.clone()).await {
            Ok(outcomes) => break outcomes,
            Err(error) if error.is_retryable() => tokio::time::sleep(MARKS_REFUSED_WAIT).await,
            Err(error) => {
                // The bus has stopped: the worker meets the same error when it settles, and nothing is acknowledged.
                tracing::error!(unit = %task.stamp.unit, "dedupe marks cannot be written: {error}");
                return std::future::pending().await;
            }
        }
    };
    let mut own = vec![Vec::new(); passing.len()];
    for ((at, owner), outcome) in waiting.into_iter().zip(outcomes) {
        own[at].push(match outcome {
            Outcome::Won(_) => true,
            Outcome::Lost(Some(entry)) => entry.value == owner.as_bytes(),
            // It expired between the two looks: the key is free again, and the next message of it will set the mark.
            Outcome::Lost(None) => true,
        });
    }
    for (passage, own) in passing.iter_mut().zip(&own) {
        passage.resume(&task.pipeline, own, watch);
    }
}
