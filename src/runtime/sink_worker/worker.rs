//! The loop itself. What it decides and why is said in the module head above.

mod former;
mod intake;
mod outcome;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::task::JoinSet;

use super::failures::Failures;
use super::hand::{Choice, Hand};
use super::settler::{BACKOFF, Item, Settler};
use super::{DEFERRED, DEFERRED_MAX, LETTERS_MAX, SinkUnit, hand_messages_max};
use crate::flow::backoff::Backoff;
use crate::flow::breaker::{Breaker, Passing};
use crate::flow::failure::Failure;
use crate::flow::ordering::Lanes;
use crate::ports::bus::{self, Delivery, Durable};
use crate::ports::sink::{Delivered, Delivering, Sink};
use crate::protocol::parts::Run;
use crate::runtime::parts;
use crate::unit::context::Context;
use crate::unit::status::{self, State};
use crate::unit::tenancy::Gate;
use former::Granting;

/// A call of the sink that ended.
struct Landed {
    call: u64,
    /// The former version whose connector was called.
    former: Option<Arc<str>>,
    probe: bool,
    sequences: Vec<u64>,
    outcomes: Vec<Delivered>,
    began: Duration,
}

struct Pull {
    for_probe: bool,
    answer: BoxFuture<'static, Result<Vec<Delivery>, bus::Error>>,
}

/// With keys, after a start: nothing goes before what was delivered in an earlier life has come back.
struct Returning {
    delivered: u64,
    missing: usize,
    seen: BTreeSet<u64>,
    until: Duration,
}

pub(super) struct Worker {
    context: Context,
    spec: SinkUnit,
    durable: Durable,
    delivering: Delivering,
    hand_max: usize,
    backoff: Backoff,
    letters: Arc<str>,
    messages: Arc<str>,
    hand: Hand,
    breaker: Breaker,
    failures: Failures,
    flights: JoinSet<Landed>,
    acks: Settler,
    deaths: Settler,
    /// Messages of former versions that are stored again.
    moves: Settler,
    /// Former versions of which a call failed.
    former_failing: BTreeSet<Arc<str>>,
    former_calls: usize,
    granting: Option<Granting>,
    pull: Option<Pull>,
    pull_failures: u32,
    pull_trouble: Option<bus::Error>,
    pull_at: Duration,
    /// A fresh message for this probe was asked for already.
    probe_pulled: bool,
    put_offs: FuturesUnordered<BoxFuture<'static, Result<(), bus::Error>>>,
    progress: Option<BoxFuture<'static, Result<(), bus::Error>>>,
    progress_at: Duration,
    returning: Option<Returning>,
    /// When a stopping worker gives up waiting.
    stop_at: Option<Duration>,
    last_failure: Option<Failure>,
    shown: Option<(State, Option<String>)>,
    shown_breaker: Option<status::Breaker>,
}

impl Worker {
    pub fn new(context: Context, spec: SinkUnit) -> Self {
        let delivering = spec.sink.delivering();
        let ordered = spec.order_by.is_some();
        Worker {
            hand_max: hand_messages_max(&delivering, ordered),
            backoff: Backoff::from(&spec.retry.backoff),
            letters: Arc::from(context.names.dead_letters()),
            messages: Arc::from(context.names.messages()),
            durable: spec.parts.durable(spec.number),
            hand: Hand::new(ordered.then(|| Lanes::new(DEFERRED_MAX))),
            breaker: Breaker::new(spec.breaker),
            failures: Failures::default(),
            flights: JoinSet::new(),
            acks: Settler::new(usize::MAX),
            deaths: Settler::new(LETTERS_MAX),
            moves: Settler::new(LETTERS_MAX),
            former_failing: BTreeSet::new(),
            former_calls: 0,
            granting: None,
            pull: None,
            pull_failures: 0,
            pull_trouble: None,
            pull_at: Duration::ZERO,
            probe_pulled: false,
            put_offs: FuturesUnordered::new(),
            progress: None,
            progress_at: Duration::ZERO,
            returning: None,
            stop_at: None,
            last_failure: None,
            shown: None,
            shown_breaker: None,
            delivering,
            context,
            spec,
        }
    }

    pub async fn work(mut self) -> Result<(), bus::Error> {
        self.await_returning().await?;
        let stopping = self.context.stopping.clone();
        loop {
            let now = self.now();
            self.advance(now);
            self.show();
            if self.stop_at.is_some_and(|stop_at| now >= stop_at || self.is_drained(now)) {
                // Calls that go on now come to nothing: their messages are delivered again.
                self.flights.shutdown().await;
                return self.give_back().await;
            }
            let wake = self.wake(now).saturating_sub(now);
            tokio::select! {
                () = stopping.cancelled(), if self.stop_at.is_none() => {
                    self.stop_at = Some(self.now() + self.spec.drain_max);
                    self.pull = None;
                }
                Some(landed) = self.flights.join_next() => {
                    // A call never panics: what its sink does wrong is caught inside.
                    self.landed(landed.expect("a call ends by itself"));
                }
                answer = self.acks.answer() => self.acknowledged(answer)?,
                answer = self.deaths.answer() => self.buried(answer)?,
                answer = self.moves.answer() => self.moved(answer)?,
                answer = granted(&mut self.granting) => self.granted(answer)?,
                (for_probe, answer) = pulled(&mut self.pull) => self.pulled(for_probe, answer)?,
                Some(answer) = self.put_offs.next() => check(answer)?,
                answer = answered(&mut self.progress) => check(answer)?,
                () = permitted(&mut self.spec.gate) => {}
                () = tokio::time::sleep(wake) => {}
            }
        }
    }

    fn now(&self) -> Duration {
        self.context.clock.monotonic()
    }

    fn is_ordered(&self) -> bool {
        self.spec.order_by.is_some()
    }

    async fn await_returning(&mut self) -> Result<(), bus::Error> {
        let mut failures = 0;
        while self.is_ordered() && !self.context.stopping.is_cancelled() {
            match self.context.bus.durable(&self.durable).await {
                Ok(info) => {
                    let missing = info.in_flight + info.redelivering;
                    let until = self.now() + self.spec.ack_wait * 3 + DEFERRED * 2;
                    let seen = BTreeSet::new();
                    self.returning = Some(Returning { delivered: info.delivered, missing, seen, until });
                    break;
                }
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    tokio::time::sleep(BACKOFF.delay(failures, (self.spec.jitter)())).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Begins everything that may begin now.
    fn advance(&mut self, now: Duration) {
        let bus = Arc::clone(&self.context.bus);
        self.acks.start(&*bus, &self.durable, &self.letters, now);
        self.deaths.start(&*bus, &self.durable, &self.letters, now);
        if now >= self.progress_at && self.progress.is_none() {
            self.progress_at = now + self.spec.ack_wait / 3;
            let sequences = self.hand.sequences();
            if !sequences.is_empty() {
                self.progress = Some(bus.in_progress(&self.durable, &sequences));
            }
        }
        if self.stop_at.is_some() {
            self.moves.start(&*bus, &self.durable, &self.messages, now);
            return;
        }
        if self.returning.as_ref().is_some_and(|r| r.seen.len() >= r.missing || now >= r.until) {
            self.returning = None;
        }
        if self.spec.gate.as_ref().is_some_and(|gate| !gate.is_open()) {
            return;
        }
        self.send_former(now);
        // What it moves is to be stored now, not with the next event.
        self.moves.start(&*bus, &self.durable, &self.messages, now);
        match self.breaker.passing(now) {
            Passing::All => {
                while self.flights.len() < self.delivering.concurrency
                    && let Choice::Send(sequences) = self.choose(now)
                {
                    self.send(sequences, false, now);
                }
                self.pull_more(now);
            }
            Passing::OneProbe => self.probe(now),
            Passing::NothingUntil(_) | Passing::Probing => {}
        }
    }

    fn choose(&self, now: Duration) -> Choice {
        match self.returning {
            Some(_) => Choice::Nothing,
            None => {
                let failing = self.breaker.is_failing();
                self.hand.choose(now, &self.delivering, self.spec.retry.max_attempts, failing)
            }
        }
    }

    fn send(&mut self, sequences: Vec<u64>, probe: bool, now: Duration) {
        self.call(sequences, Arc::clone(&self.spec.sink), None, probe, now);
    }

    fn call(&mut self, sequences: Vec<u64>, sink: Arc<dyn Sink>, former: Option<Arc<str>>, probe: bool, now: Duration) {
        let call = self.failures.call();
        let messages: Vec<_> = sequences.iter().map(|sequence| self.hand.start(*sequence, call)).collect();
        self.flights.spawn(async move {
            let delivered = AssertUnwindSafe(sink.deliver(&messages)).catch_unwind().await;
            let outcomes = delivered.ok().filter(|outcomes| outcomes.len() == messages.len()).unwrap_or_else(|| {
                let failure = Failure::new("sink-fault", "the sink broke off or did not account for every message");
                vec![Delivered::Transient { failure, retry_after: None }; messages.len()]
            });
            Landed { call, former, probe, sequences, outcomes, began: now }
        });
    }

    fn acknowledged(&mut self, answer: Result<Vec<bus::PubAck>, bus::Error>) -> Result<(), bus::Error> {
        if let Err(error) = &answer
            && !error.is_retryable()
        {
            return Err(error.clone());
        }
        let (now, jitter) = (self.now(), (self.spec.jitter)());
        let settled = self.acks.answered(answer, now, jitter);
        let delivered = settled.iter().filter(|item| self.hand.holds(item.sequence)).count() as u64;
        self.spec.unit.received(delivered);
        self.spec.unit.emitted(delivered);
        settled.iter().for_each(|item| self.hand.drop(item.sequence));
        Ok(())
    }

    fn buried(&mut self, answer: Result<Vec<bus::PubAck>, bus::Error>) -> Result<(), bus::Error> {
        match &answer {
            // Waits, visibly, for a person to make room.
            Err(error) if error.is_retryable() || matches!(error, bus::Error::TooLarge { .. }) => {}
            Err(error) => return Err(error.clone()),
            Ok(_) => {}
        }
        let (now, jitter) = (self.now(), (self.spec.jitter)());
        let settled = self.deaths.answered(answer, now, jitter);
        self.spec.unit.received(settled.len() as u64);
        self.spec.unit.dead(settled.len() as u64);
        settled.iter().for_each(|item| self.hand.drop(item.sequence));
        Ok(())
    }

    /// Whether all is done that a stopping worker waits for.
    fn is_drained(&self, now: Duration) -> bool {
        let stuck = |settler: &Settler| settler.is_waiting(now) || settler.is_idle();
        let storing = [&self.deaths, &self.moves].into_iter().all(stuck);
        self.flights.is_empty() && self.acks.is_idle() && storing && self.put_offs.is_empty()
    }

    /// The next moment at which something may begin by time alone.
    fn wake(&self, now: Duration) -> Duration {
        let mut wake = if self.progress.is_none() { self.progress_at } else { now + self.spec.ack_wait };
        wake = self.stop_at.map_or(wake, |at| wake.min(at));
        for at in [self.acks.retry_at, self.deaths.retry_at, self.moves.retry_at, self.pull_at] {
            wake = if at > now { wake.min(at) } else { wake };
        }
        if let Some(returning) = &self.returning {
            wake = wake.min(returning.until);
        }
        if let Some(at) = self.hand.former().map(|(_, at)| at).filter(|at| *at > now).min() {
            wake = wake.min(at);
        }
        match self.breaker.passing(now) {
            Passing::NothingUntil(until) => wake = wake.min(until),
            Passing::All if self.flights.len() < self.delivering.concurrency && self.stop_at.is_none() => {
                if let Choice::At(at) = self.choose(now) {
                    wake = wake.min(at);
                }
            }
            _ => {}
        }
        wake
    }

    fn show(&mut self) {
        let broken = !self.breaker.is_closed();
        let breaker = match (broken, self.breaker.is_half_open()) {
            (false, _) => status::Breaker::Closed,
            (true, false) => status::Breaker::Open,
            (true, true) => status::Breaker::HalfOpen,
        };
        if self.shown_breaker != Some(breaker) {
            self.spec.unit.set_breaker(breaker);
            self.shown_breaker = Some(breaker);
        }
        let (state, reason) = if self.stop_at.is_some() {
            (State::Stopping, None)
        } else if let Some(error) = &self.deaths.trouble {
            let full = matches!(error, bus::Error::Full { .. });
            let what = if full { "dead letters full" } else { "dead letters cannot be stored" };
            (State::Paused, Some(format!("{what}: {error}")))
        } else if let Some(error) =
            [&self.acks.trouble, &self.moves.trouble, &self.pull_trouble].into_iter().flatten().next()
        {
            (State::Paused, Some(format!("bus: {error}")))
        } else if broken {
            let last = self.last_failure.as_ref().map_or("", |failure| failure.message.as_str());
            (State::Paused, Some(format!("breaker open: {last}")))
        } else {
            (State::Running, None)
        };
        let shown = Some((state, reason));
        if self.shown != shown {
            let gauge = metrics::gauge!("vejas_sink_breaker_open", "unit" => self.spec.id.to_string());
            gauge.set(if broken { 1.0 } else { 0.0 });
            if let Some((state, reason)) = &shown {
                tracing::info!(unit = %self.spec.id, ?state, reason = reason.as_deref(), "sink state");
                self.spec.unit.set_state(*state, reason.clone());
            }
            self.shown = shown;
        }
    }
}

/// A call whose failure heals itself: what was not put off or prolonged comes again when its ack wait is over.
fn check(answer: Result<(), bus::Error>) -> Result<(), bus::Error> {
    match answer {
        Err(error) if !error.is_retryable() => Err(error),
        _ => Ok(()),
    }
}

async fn permitted(gate: &mut Option<Gate>) {
    match gate {
        Some(gate) => gate.changed().await,
        None => std::future::pending().await,
    }
}

async fn answered<T>(call: &mut Option<BoxFuture<'static, T>>) -> T {
    let Some(waiting) = call else { return std::future::pending().await };
    let answer = waiting.await;
    *call = None;
    answer
}

async fn granted(granting: &mut Option<Granting>) -> Result<Arc<Run>, parts::Error> {
    match granting {
        Some(granting) => (&mut granting.answer).await,
        None => std::future::pending().await,
    }
}

async fn pulled(pull: &mut Option<Pull>) -> (bool, Result<Vec<Delivery>, bus::Error>) {
    let Some(waiting) = pull else { return std::future::pending().await };
    let answer = (&mut waiting.answer).await;
    let for_probe = waiting.for_probe;
    *pull = None;
    (for_probe, answer)
}
