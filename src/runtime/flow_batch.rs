//! One batch of a flow: deliveries in, a settlement out. Runs on any core; asks the store for grants and `dedupe` marks only.
//!
//! Each message goes through the version of the flow that its sequence belongs to (`runtime::parts`). Several versions meet in a
//! batch only while a former one is worked off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::flow_worker::FlowUnit;
use super::parts::{Placed, UnitParts};
use crate::flow::message::Outgoing;
use crate::ports::bus::{Batch, Confirm, Delivery, Durable, Settlement};
use crate::ports::clock::SharedClock;
use crate::ports::store::{Condition, Outcome, Store, Write};
use crate::protocol::parts::Run;
use crate::transforms::{Passage, Passed, Pipeline, Stamp, Watch};
use crate::unit::context::Context;
use crate::unit::status;
use crate::unit::tap::Tap;

/// Messages between two points where the task lets others run.
const MESSAGES_UNTIL_YIELD: usize = 64;
/// The wait before grants or marks are asked for again when the store refuses.
const REFUSED_WAIT: Duration = Duration::from_millis(200);

/// What a batch needs of its flow.
pub(super) struct Task {
    parts: Arc<UnitParts>,
    number: u32,
    /// By digest.
    versions: BTreeMap<String, Version>,
    store: Arc<dyn Store>,
    clock: SharedClock,
    durable: Durable,
    messages: Arc<str>,
    dead_letters: Arc<str>,
    dedupe_bucket: String,
    tap: Arc<Tap>,
}

struct Version {
    pipeline: Arc<Pipeline>,
    stamp: Stamp,
}

/// What has to be settled for one batch, and what is to be counted once it is.
#[derive(Debug, Default)]
pub(super) struct Processed {
    parts: Vec<Passed>,
    /// Inputs that another durable hands out, or that were finished before.
    not_here: Vec<u64>,
    /// Inputs that are given back: their unit is removed, or their version is not here.
    left: Vec<u64>,
}

impl Processed {
    pub fn inputs(&self) -> impl Iterator<Item = u64> + '_ {
        self.parts.iter().map(|part| part.input).chain(self.not_here.iter().copied())
    }

    pub fn left(&self) -> &[u64] {
        &self.left
    }

    /// The first half of the inputs, the second stays. A settlement that does not fit as a whole may fit in parts.
    /// `None` when there is only one.
    pub fn split_off(&mut self) -> Option<Processed> {
        if self.parts.len() < 2 {
            return None;
        }
        let second = self.parts.split_off(self.parts.len() / 2);
        let first = std::mem::replace(&mut self.parts, second);
        Some(Processed { parts: first, ..Processed::default() })
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
        Settlement { batches, writes: Vec::new(), acknowledged, confirm: Confirm::Last }
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
        let version = |(digest, pipeline): (&String, &Arc<Pipeline>)| {
            let stamp = Stamp {
                unit: flow.id.clone(),
                digest: status::short(digest).to_owned(),
                names: context.names.clone(),
                message_bytes_max: flow.message_bytes_max,
                transport_ids: !context.bus.settles_atomically(),
            };
            (digest.clone(), Version { pipeline: Arc::clone(pipeline), stamp })
        };
        Task {
            parts: Arc::clone(&flow.parts),
            number: flow.number,
            versions: flow.versions.iter().map(version).collect(),
            store: Arc::clone(&context.store),
            clock: Arc::clone(&context.clock),
            durable: flow.parts.durable(flow.number),
            messages: Arc::from(context.names.messages()),
            dead_letters: Arc::from(context.names.dead_letters()),
            dedupe_bucket: context.names.dedupe_bucket(),
            tap: Arc::clone(flow.unit.tap()),
        }
    }

    /// The record under which all of these may be worked on. Waits as long as the store refuses; for ever when it has stopped:
    /// the worker meets the same error when it settles, and nothing is acknowledged.
    async fn cover(&self, deliveries: &[Delivery]) -> Arc<Run> {
        let highest = deliveries.iter().map(|delivery| delivery.message.sequence).max().unwrap_or(0);
        let ahead = deliveries.last().map_or(0, |delivery| delivery.pending);
        loop {
            match self.parts.cover(highest, ahead).await {
                Ok(run) => {
                    self.parts.cover_early(highest, ahead);
                    return run;
                }
                Err(error) if error.is_retryable() => tokio::time::sleep(REFUSED_WAIT).await,
                Err(error) => {
                    tracing::error!(durable = %self.durable.name, "no work is granted: {error}");
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Whoever listens to the flow, if anybody does. Asked once for a batch, which is then told of as a whole or not.
    fn watch(&self) -> Option<&dyn Watch> {
        self.tap.is_on().then_some(&*self.tap)
    }
}

pub(super) async fn process(task: Arc<Task>, deliveries: Vec<Delivery>) -> Processed {
    let run = task.cover(&deliveries).await;
    let watch = task.watch();
    let mut processed = Processed::default();
    let mut passing = Vec::with_capacity(deliveries.len());
    for (nth, delivery) in deliveries.into_iter().enumerate() {
        if nth % MESSAGES_UNTIL_YIELD == MESSAGES_UNTIL_YIELD - 1 {
            tokio::task::yield_now().await;
        }
        let sequence = delivery.message.sequence;
        match task.parts.place(&run, sequence, task.number) {
            Placed::Under(digest) => match task.versions.get(digest) {
                Some(version) => {
                    passing
                        .push((version, Passage::start(&version.pipeline, delivery.message, delivery.attempt, watch)));
                }
                None => processed.left.push(sequence),
            },
            Placed::NotHere => processed.not_here.push(sequence),
            Placed::Left => processed.left.push(sequence),
        }
    }
    while passing.iter().any(|(_, passage)| passage.waits()) {
        pass_marks(&task, &mut passing, watch).await;
    }
    let now = task.clock.now();
    processed.parts =
        passing.into_iter().map(|(version, passage)| passage.finish(&version.stamp, now, watch)).collect();
    processed
}

/// Asks for the marks of everything that waits and goes on with what passes: one round trip for the batch.
async fn pass_marks(task: &Task, passing: &mut [(&Version, Passage)], watch: Option<&dyn Watch>) {
    let mut writes = Vec::new();
    let mut waiting = Vec::new();
    for (at, (version, passage)) in passing.iter().enumerate() {
        for mark in passage.marks(&version.pipeline, &task.messages) {
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
            Err(error) if error.is_retryable() => tokio::time::sleep(REFUSED_WAIT).await,
            Err(error) => {
                // The bus has stopped: the worker meets the same error when it settles, and nothing is acknowledged.
                tracing::error!(durable = %task.durable.name, "dedupe marks cannot be written: {error}");
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
    for ((version, passage), own) in passing.iter_mut().zip(&own) {
        passage.resume(&version.pipeline, own, watch);
    }
}
