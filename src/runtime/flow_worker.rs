//! The life of a message in a flow: pulled, taken through the steps, its outputs stored, then acknowledged.
//!
//! Batches are worked on by all cores at once and settled in the order they were pulled, several settlements in flight,
//! so that a flow keeps the order of its input as long as nothing is delivered twice. A flow with a `dedupe` step works on
//! one batch at a time: the first message of a key has to win.
//!
//! What upholds "nothing acknowledged is lost": an input is acknowledged only in the settlement that stores all its
//! outputs, or its dead letter. Whatever happens before, the input comes again. While the bus refuses (full, no space,
//! away) the settlement is held and repeated, its inputs are reported in progress, and nothing new is pulled.
//!
//! Bounds: [`BATCH_MESSAGES_MAX`] and [`BATCH_BYTES_MAX`] per batch, [`BATCHES_MAX`] batches in hand.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinHandle;

use super::flow_batch::{self, Processed, Task};
use crate::flow::backoff::Backoff;
use crate::id::UnitId;
use crate::ports::bus::{Delivery, Durable, Error};
use crate::transforms::Pipeline;
use crate::unit::context::Context;
use crate::unit::status::{self, State};

/// Messages of one batch.
pub const BATCH_MESSAGES_MAX: usize = 256;
/// Bytes of one batch.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Batches being worked on or being settled.
pub const BATCHES_MAX: usize = 8;
/// How long one pull waits for a message.
const PULL_WAIT: Duration = Duration::from_secs(30);
/// How long a delivery may stay unacknowledged before it is handed out again.
pub const ACK_WAIT: Duration = Duration::from_secs(3);
/// Inputs in hand are reported in progress this often.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// The wait before a refused settlement is tried again.
const REFUSED: Backoff = Backoff { initial: Duration::from_millis(50), max: Duration::from_secs(2) };

/// A flow, ready to run.
#[derive(Debug)]
pub struct FlowUnit {
    pub id: UnitId,
    /// Stamped into what the flow stores.
    pub digest: String,
    pub pipeline: Arc<Pipeline>,
    pub durable: Durable,
    /// Largest message the stream takes, in bytes.
    pub message_bytes_max: usize,
    pub unit: Arc<status::Unit>,
}

type Settling = Pin<Box<dyn Future<Output = Settled> + Send>>;

struct Settled {
    result: Result<(), Error>,
    processed: Box<Processed>,
    /// How often this settlement was refused before.
    refusals: u32,
}

/// Runs until `context.stopping`, then finishes what is in hand. Fails only when the bus has stopped for good.
pub async fn run(context: Context, flow: FlowUnit) -> Result<(), Error> {
    let mut worker = Worker {
        task: Arc::new(Task::new(&context, &flow)),
        batches_max: if flow.pipeline.has_dedupe() { 1 } else { BATCHES_MAX / 2 },
        context,
        flow,
        processing: VecDeque::new(),
        settling: FuturesUnordered::new(),
        in_hand: BTreeSet::new(),
        refused: 0,
    };
    worker.flow.unit.set_state(State::Running, None);
    let result = worker.work().await;
    let state = if result.is_ok() { State::Stopped } else { State::Failed };
    worker.flow.unit.set_state(state, result.as_ref().err().map(ToString::to_string));
    result
}

struct Worker {
    context: Context,
    flow: FlowUnit,
    task: Arc<Task>,
    batches_max: usize,
    /// In the order they were pulled.
    processing: VecDeque<JoinHandle<Processed>>,
    settling: FuturesUnordered<Settling>,
    /// Input sequences that are neither acknowledged nor given back.
    in_hand: BTreeSet<u64>,
    /// Settlements that were refused and wait to be tried again.
    refused: usize,
}

impl Worker {
    async fn work(&mut self) -> Result<(), Error> {
        let mut progress = tokio::time::interval(PROGRESS_PERIOD);
        progress.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let stopping = self.context.stopping.clone();
        let mut pull = None;
        let mut pull_failures = 0;
        loop {
            let stop = stopping.is_cancelled();
            if stop && self.processing.is_empty() && self.settling.is_empty() {
                return Ok(());
            }
            let room = self.processing.len() < self.batches_max
                && self.processing.len() + self.settling.len() < BATCHES_MAX
                && self.refused == 0;
            if room && !stop && pull.is_none() {
                pull = Some(self.context.bus.pull(&self.flow.durable, BATCH_MESSAGES_MAX, BATCH_BYTES_MAX, PULL_WAIT));
            }
            tokio::select! {
                biased;
                Some(settled) = self.settling.next() => self.settled(settled)?,
                processed = front(&mut self.processing) => {
                    self.processing.pop_front();
                    self.settle(Box::new(processed), 0);
                }
                pulled = pending(&mut pull), if room => {
                    pull = None;
                    match pulled {
                        Ok(deliveries) => {
                            pull_failures = 0;
                            self.process(deliveries);
                        }
                        Err(error) if error.is_retryable() => {
                            pull_failures += 1;
                            self.pause(&error);
                            pull = Some(later(REFUSED.delay(pull_failures, 1.0)));
                        }
                        Err(error) => return Err(error),
                    }
                }
                _ = progress.tick() => self.report_progress().await?,
                () = stopping.cancelled(), if !stop => pull = None,
            }
        }
    }

    fn process(&mut self, deliveries: Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        if self.flow.unit.state() == State::Paused && self.refused == 0 {
            self.flow.unit.set_state(State::Running, None);
        }
        self.in_hand.extend(deliveries.iter().map(|delivery| delivery.message.sequence));
        self.processing.push_back(tokio::spawn(flow_batch::process(Arc::clone(&self.task), deliveries)));
    }

    fn settle(&mut self, processed: Box<Processed>, refusals: u32) {
        // Called here, not in the future below: settlements take effect in the order of the calls.
        let answer = self.context.bus.settle(processed.settlement(&self.task));
        self.settling.push(Box::pin(async move {
            let result = answer.await.map(|_| ());
            Settled { result, processed, refusals }
        }));
    }

    fn settled(&mut self, settled: Settled) -> Result<(), Error> {
        let Settled { result, mut processed, refusals } = settled;
        match result {
            Ok(()) => {
                if refusals > 0 {
                    self.refused -= 1;
                    if self.refused == 0 {
                        self.flow.unit.set_state(State::Running, None);
                    }
                }
                for sequence in processed.inputs() {
                    self.in_hand.remove(&sequence);
                }
                processed.count(&self.flow.unit, &self.context);
                Ok(())
            }
            Err(error) if error.is_retryable() => {
                if refusals == 0 {
                    self.refused += 1;
                }
                self.pause(&error);
                if matches!(error, Error::Full { .. }) {
                    // What does not fit as a whole may fit in parts.
                    if let Some(first) = processed.split_off() {
                        self.refused += 1;
                        self.settle_later(Box::new(first), refusals + 1);
                    }
                }
                self.settle_later(processed, refusals + 1);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Repeats a settlement after a wait. The transport ids in it make a repeat of one that was stored harmless.
    fn settle_later(&mut self, processed: Box<Processed>, refusals: u32) {
        let bus = Arc::clone(&self.context.bus);
        let settlement = processed.settlement(&self.task);
        let wait = REFUSED.delay(refusals, 1.0);
        let stopping = self.context.stopping.clone();
        self.settling.push(Box::pin(async move {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // One last try, without the wait.
                () = stopping.cancelled() => {}
            }
            let result = bus.settle(settlement).await.map(|_| ());
            let result = match result {
                // Nothing is acknowledged, so everything comes again after the restart.
                Err(error) if stopping.is_cancelled() && error.is_retryable() => Err(Error::Stopped(error.to_string())),
                other => other,
            };
            Settled { result, processed, refusals }
        }));
    }

    async fn report_progress(&mut self) -> Result<(), Error> {
        if self.in_hand.is_empty() {
            return Ok(());
        }
        let sequences: Vec<u64> = self.in_hand.iter().copied().collect();
        match self.context.bus.in_progress(&self.flow.durable, &sequences).await {
            Err(error) if !error.is_retryable() => Err(error),
            _ => Ok(()),
        }
    }

    fn pause(&self, error: &Error) {
        self.flow.unit.set_state(State::Paused, Some(error.to_string()));
        self.flow.unit.set_error("bus", &error.to_string(), self.context.clock.now());
    }
}

/// The oldest batch, once it is processed. Never completes while there is none.
async fn front(processing: &mut VecDeque<JoinHandle<Processed>>) -> Processed {
    match processing.front_mut() {
        Some(task) => match task.await {
            Ok(processed) => processed,
            // Steps run behind `catch_unwind`; what is left is a bug of ours, and it must not be passed over.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        },
        None => std::future::pending().await,
    }
}

type Pull = crate::ports::bus::Answer<Vec<Delivery>>;

async fn pending(pull: &mut Option<Pull>) -> Result<Vec<Delivery>, Error> {
    match pull {
        Some(pull) => pull.await,
        None => std::future::pending().await,
    }
}

/// A pull that gives nothing after `wait`: the pause after a failed one.
fn later(wait: Duration) -> Pull {
    Box::pin(async move {
        tokio::time::sleep(wait).await;
        Ok(Vec::new())
    })
}
