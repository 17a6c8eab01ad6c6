//! One batch of a flow: deliveries in, a settlement out. Runs on any core; asks the store only for `dedupe` marks.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::flow_worker::FlowUnit;
use crate::flow::dead_letter::{self, Death, dead_letter};
use crate::flow::failure::Failure;
use crate::flow::message::{self, HOPS_MAX, Headers, Outgoing, Stored};
use crate::id::{Names, UnitId};
use crate::ports::bus::{Batch, Delivery, Durable, Settlement};
use crate::ports::clock::SharedClock;
use crate::ports::store::{Condition, Outcome, Store, Write};
use crate::transforms::{Emission, Pipeline, Progress};
use crate::unit::context::Context;
use crate::unit::status;

/// Messages between two points where the task lets others run.
const MESSAGES_UNTIL_YIELD: usize = 64;
/// The wait before marks are asked for again when the store refuses.
const MARKS_REFUSED_WAIT: Duration = Duration::from_millis(200);

/// What a batch needs of its flow.
pub(super) struct Task {
    pipeline: Arc<Pipeline>,
    id: UnitId,
    digest: String,
    names: Names,
    store: Arc<dyn Store>,
    clock: SharedClock,
    durable: Durable,
    messages: Arc<str>,
    dead_letters: Arc<str>,
    dedupe_bucket: String,
    message_bytes_max: usize,
    /// Ids in outputs are needed only where output and acknowledgement are two steps.
    transport_ids: bool,
}

/// What has to be settled for one batch, and what is to be counted once it is.
#[derive(Debug, Default)]
pub(super) struct Processed {
    parts: Vec<Part>,
}

/// One input and all that came of it: settled together or not at all.
#[derive(Debug)]
struct Part {
    input: u64,
    outputs: Vec<Outgoing>,
    letter: Option<(Outgoing, Failure)>,
    ended: u64,
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
        let failures = || self.parts.iter().filter_map(|part| part.letter.as_ref().map(|(_, failure)| failure));
        unit.dead(failures().count() as u64);
        if let Some(failure) = failures().last() {
            let dead = failures().count();
            tracing::warn!(unit = %unit.id, code = failure.code, dead, "dead letter: {}", failure.message);
            unit.set_error(&failure.code, &failure.message, context.clock.now());
        }
    }
}

impl Task {
    pub fn new(context: &Context, flow: &FlowUnit) -> Self {
        Task {
            pipeline: Arc::clone(&flow.pipeline),
            id: flow.id.clone(),
            digest: flow.digest.clone(),
            names: context.names.clone(),
            store: Arc::clone(&context.store),
            clock: Arc::clone(&context.clock),
            durable: flow.durable.clone(),
            messages: Arc::from(context.names.messages()),
            dead_letters: Arc::from(context.names.dead_letters()),
            dedupe_bucket: context.names.dedupe_bucket(),
            message_bytes_max: flow.message_bytes_max,
            transport_ids: !context.bus.settles_atomically(),
        }
    }
}

/// A message and how far it has come.
struct Passing {
    delivery: Delivery,
    result: Result<Progress, Failure>,
}

pub(super) async fn process(task: Arc<Task>, deliveries: Vec<Delivery>) -> Processed {
    let mut passing = Vec::with_capacity(deliveries.len());
    for (nth, delivery) in deliveries.into_iter().enumerate() {
        if nth % MESSAGES_UNTIL_YIELD == MESSAGES_UNTIL_YIELD - 1 {
            tokio::task::yield_now().await;
        }
        let result = guarded(&task.id, || {
            check_hops(&delivery.message)?;
            task.pipeline.start(&delivery.message)
        });
        passing.push(Passing { delivery, result });
    }
    while passing.iter().any(Passing::waits) {
        pass_marks(&task, &mut passing).await;
    }
    collect(&task, passing)
}

impl Passing {
    fn waits(&self) -> bool {
        self.result.as_ref().is_ok_and(|progress| !progress.waiting.is_empty())
    }
}

/// Runs steps; a panic in them is a failure of the message, not of the process.
fn guarded<T>(unit: &UnitId, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new("panic", format!("{unit} broke off while it worked on the message: {text}")))
    })
}

fn hops(headers: &Headers) -> u32 {
    headers.get(message::HOP).and_then(|hop| hop.parse().ok()).unwrap_or(0)
}

fn check_hops(message: &Stored) -> Result<(), Failure> {
    if hops(&message.headers) >= HOPS_MAX {
        let text = format!("the message has passed {HOPS_MAX} flows: it runs in a circle");
        return Err(Failure::new("hops", text));
    }
    Ok(())
}

/// Identity of a message across redelivery, moves and replays.
fn origin(stream: &str, message: &Stored) -> String {
    match message.headers.get(message::ORIGIN) {
        Some(origin) => origin.to_owned(),
        None => format!("{stream}/{}", message.sequence),
    }
}

/// Asks for the marks of everything that waits and goes on with what passes: one round trip for the batch.
async fn pass_marks(task: &Task, passing: &mut [Passing]) {
    let mut writes = Vec::new();
    let mut places = Vec::new();
    for (at, one) in passing.iter().enumerate() {
        let Ok(progress) = &one.result else { continue };
        let origin = origin(&task.messages, &one.delivery.message);
        for (nth, waiting) in progress.waiting.iter().enumerate() {
            writes.push(Write {
                bucket: task.dedupe_bucket.clone(),
                key: waiting.key.clone(),
                value: Some(Bytes::from(origin.clone())),
                condition: Condition::Absent,
                ttl: Some(task.pipeline.within(waiting)),
            });
            places.push((at, nth, origin.clone()));
        }
    }
    let outcomes = loop {
        match task.store.write(writes.clone()).await {
            Ok(outcomes) => break outcomes,
            Err(error) if error.is_retryable() => tokio::time::sleep(MARKS_REFUSED_WAIT).await,
            Err(error) => {
                // The bus has stopped: the worker meets the same error when it settles, and nothing is acknowledged.
                tracing::error!(unit = %task.id, "dedupe marks cannot be written: {error}");
                return std::future::pending().await;
            }
        }
    };
    let mut passes: BTreeMap<(usize, usize), bool> = BTreeMap::new();
    let mut of_this_message: BTreeSet<(usize, &str)> = BTreeSet::new();
    for (((at, nth, origin), outcome), write) in places.into_iter().zip(outcomes).zip(&writes) {
        let own = match outcome {
            Outcome::Won(_) => true,
            Outcome::Lost(Some(entry)) => entry.value == origin.as_bytes(),
            // It expired between the two looks: the key is free again, and the next message of it will set the mark.
            Outcome::Lost(None) => true,
        };
        // Parts of one message share its origin: among them only the first of a key passes.
        let first = of_this_message.insert((at, &write.key));
        passes.insert((at, nth), own && first);
    }
    for (at, one) in passing.iter_mut().enumerate() {
        let Ok(progress) = &mut one.result else { continue };
        let waiting = std::mem::take(&mut progress.waiting);
        let result = guarded(&task.id, || {
            for (nth, part) in waiting.into_iter().enumerate() {
                if passes.get(&(at, nth)).copied().unwrap_or(false) {
                    task.pipeline.resume(part, progress)?;
                } else {
                    progress.ended += 1;
                }
            }
            Ok(())
        });
        if let Err(failure) = result {
            one.result = Err(failure);
        }
    }
}

fn collect(task: &Task, passing: Vec<Passing>) -> Processed {
    let parts = passing.into_iter().map(|Passing { delivery, result }| {
        let message = &delivery.message;
        let settled = result.and_then(|progress| Ok((emit(task, message, progress.emissions)?, progress.ended)));
        match settled {
            Ok((outputs, ended)) => Part { input: message.sequence, outputs, letter: None, ended },
            Err(failure) => {
                let death = Death {
                    unit: &task.id,
                    digest: &task.digest,
                    attempts: delivery.attempt,
                    failure: &failure,
                    last: task.clock.now(),
                };
                let letter = dead_letter(&task.names, message, &death);
                Part { input: message.sequence, outputs: Vec::new(), letter: Some((letter, failure)), ended: 0 }
            }
        }
    });
    Processed { parts: parts.collect() }
}

/// Puts headers on what came out of one message.
fn emit(task: &Task, message: &Stored, emissions: Vec<Emission>) -> Result<Vec<Outgoing>, Failure> {
    let single = emissions.len() == 1;
    let mut outputs = Vec::with_capacity(emissions.len());
    let business_id = dead_letter::business_id(message);
    let hop = (hops(&message.headers) + 1).to_string();
    for (nth, emission) in emissions.into_iter().enumerate() {
        let mut headers = message.headers.to_builder();
        let id = if single { business_id.clone() } else { format!("{business_id}/{nth}") };
        headers.set(message::ID, &id).set(message::REVISION, &task.digest).set(message::HOP, &hop);
        headers.remove(message::ORIGIN);
        if dead_letter::was_dead(&message.headers) {
            dead_letter::forget(&mut headers);
        }
        let transport_id = task.transport_ids.then(|| format!("f/{}/{}/{nth}", task.id.name, message.sequence));
        let output = Outgoing {
            subject: emission.subject.to_string(),
            headers: headers.build(),
            payload: emission.payload,
            transport_id,
        };
        if output.size_bytes() > task.message_bytes_max {
            let text = format!(
                "{}: output {nth} has {} bytes, more than the limit of {}",
                task.id,
                output.size_bytes(),
                task.message_bytes_max
            );
            return Err(Failure::new("too-large", text));
        }
        outputs.push(output);
    }
    Ok(outputs)
}
