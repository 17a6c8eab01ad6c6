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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinHandle;

use super::flow_batch::{self, Processed, Task};
use super::parts::UnitParts;
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
/// How long what cannot be worked on here stays at the bus before it is handed out again.
const LEFT_WAIT: Duration = Duration::from_secs(5);
/// Inputs in hand are reported in progress this often.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// The wait before a refused settlement is tried again.
const REFUSED: Backoff = Backoff { initial: Duration::from_millis(50), max: Duration::from_secs(2) };

/// A flow, ready to run.
#[derive(Debug)]
pub struct FlowUnit {
    pub id: UnitId,
    pub parts: Arc<UnitParts>,
    /// Which durable of the unit is read.
    pub number: u32,
    /// By digest: the version that runs, and former ones that are not worked off.
    pub versions: BTreeMap<String, Arc<Pipeline>>,
    /// Largest message the stream takes, in bytes.
    pub message_bytes_max: usize,
    pub unit: Arc<status::Unit>,
}

type Settling = Pin<Box<dyn Future<Output = Settled> + Send>>;

struct Settled {
    result: Result<(), Error>,
    processed: Box<Processed>,
    /// It was refused before.
    retry: bool,
}

/// Runs until `context.stopping`, then finishes what is in hand. Fails only when the bus has stopped for good.
pub async fn run(context: Context, flow: FlowUnit) -> Result<(), Error> {
    let mut worker = Worker {
        task: Arc::new(Task::new(&context, &flow)),
        batches_max: if flow.versions.values().any(|pipeline| pipeline.has_dedupe()) { 1 } else { BATCHES_MAX / 2 },
        durable: flow.parts.durable(flow.number),
        context,
        flow,
        processing: VecDeque::new(),
        settling: FuturesUnordered::new(),
        in_hand: BTreeSet::new(),
        refused: BTreeMap::new(),
        retrying: false,
        refusals: 0,
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
    durable: Durable,
    task: Arc<Task>,
    batches_max: usize,
    /// In the order they were pulled.
    processing: VecDeque<JoinHandle<Processed>>,
    settling: FuturesUnordered<Settling>,
    /// Input sequences that are neither acknowledged nor given back.
    in_hand: BTreeSet<u64>,
    /// Settlements that were refused and wait to be tried again, by their first input.
    refused: BTreeMap<u64, Box<Processed>>,
    /// One of them is being tried.
    retrying: bool,
    /// Refusals in a row.
    refusals: u32,
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
            if stop && self.processing.is_empty() && self.settling.is_empty() && self.refused.is_empty() {
                return Ok(());
            }
            let room = self.processing.len() < self.batches_max
                && self.processing.len() + self.settling.len() < BATCHES_MAX
                && self.refused.is_empty()
                && !self.retrying;
            if room && !stop && pull.is_none() {
                pull = Some(self.context.bus.pull(&self.durable, BATCH_MESSAGES_MAX, BATCH_BYTES_MAX, PULL_WAIT));
            }
            tokio::select! {
                biased;
                Some(settled) = self.settling.next() => self.settled(settled).await?,
                processed = front(&mut self.processing) => {
                    self.processing.pop_front();
                    self.give_back(processed.left(), LEFT_WAIT).await?;
                    self.settle(Box::new(processed));
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
        if self.flow.unit.state() == State::Paused && self.refused.is_empty() {
            self.flow.unit.set_state(State::Running, None);
        }
        self.in_hand.extend(deliveries.iter().map(|delivery| delivery.message.sequence));
        self.processing.push_back(tokio::spawn(flow_batch::process(Arc::clone(&self.task), deliveries)));
    }

    /// They are handed out again after `wait`.
    async fn give_back(&mut self, sequences: &[u64], wait: Duration) -> Result<(), Error> {
        for sequence in sequences {
            self.in_hand.remove(sequence);
            match self.context.bus.put_off(&self.durable, *sequence, wait).await {
                Err(error) if !error.is_retryable() => return Err(error),
                // They come again when their ack wait is over.
                _ => {}
            }
        }
        Ok(())
    }

    fn settle(&mut self, processed: Box<Processed>) {
        // Called here, not in the future below: settlements take effect in the order of the calls.
        let answer = self.context.bus.settle(processed.settlement(&self.task));
        self.settling.push(Box::pin(async move {
            let result = answer.await.map(|_| ());
            Settled { result, processed, retry: false }
        }));
    }

    async fn settled(&mut self, settled: Settled) -> Result<(), Error> {
        let Settled { result, processed, retry } = settled;
        if retry {
            self.retrying = false;
        }
        match result {
            Ok(()) => {
                self.refusals = 0;
                for sequence in processed.inputs() {
                    self.in_hand.remove(&sequence);
                }
                processed.count(&self.flow.unit, &self.context);
                if self.refused.is_empty() && self.flow.unit.state() == State::Paused {
                    self.flow.unit.set_state(State::Running, None);
                }
            }
            // Nothing is acknowledged, so it comes again: to the next worker, or after the restart.
            Err(error) if error.is_retryable() && self.context.stopping.is_cancelled() => {
                let inputs: Vec<u64> = processed.inputs().collect();
                self.give_back(&inputs, Duration::ZERO).await?;
            }
            Err(error) if error.is_retryable() => {
                self.refusals += 1;
                self.pause(&error);
                self.keep_refused(processed, matches!(error, Error::Full { .. }));
            }
            Err(error) => return Err(error),
        }
        self.retry_first();
        Ok(())
    }

    /// What does not fit as a whole may fit in parts.
    fn keep_refused(&mut self, mut processed: Box<Processed>, split: bool) {
        let first = if split { processed.split_off() } else { None };
        for part in first.map(Box::new).into_iter().chain([processed]) {
            let input = part.inputs().next().unwrap_or(0);
            self.refused.insert(input, part);
        }
    }

    /// Repeats the refused settlement with the lowest input after a wait, one at a time: room that was made must go to the
    /// input that holds back the trimming. Transport ids make a repeat of one that was stored after all harmless.
    fn retry_first(&mut self) {
        if self.retrying {
            return;
        }
        let Some((_, processed)) = self.refused.pop_first() else { return };
        self.retrying = true;
        let bus = Arc::clone(&self.context.bus);
        let settlement = processed.settlement(&self.task);
        let wait = if self.refusals == 0 { Duration::ZERO } else { REFUSED.delay(self.refusals, 1.0) };
        let stopping = self.context.stopping.clone();
        self.settling.push(Box::pin(async move {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // One last try, without the wait.
                () = stopping.cancelled() => {}
            }
            let result = bus.settle(settlement).await.map(|_| ());
            Settled { result, processed, retry: true }
        }));
    }

    async fn report_progress(&mut self) -> Result<(), Error> {
        if self.in_hand.is_empty() {
            return Ok(());
        }
        let sequences: Vec<u64> = self.in_hand.iter().copied().collect();
        match self.context.bus.in_progress(&self.durable, &sequences).await {
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
