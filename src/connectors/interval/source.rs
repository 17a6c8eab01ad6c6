//! The task of an interval source: waits for a slot, stores its message, remembers the slot.
//!
//! Message and position are stored in one batch that is conditional on the position before. So a slot is stored once,
//! whatever restarts, whoever else runs the same source, and whichever way the clock was set.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::slots::{self, Schedule};
use crate::flow::backoff::Backoff;
use crate::flow::message::{self, HeadersBuilder, Outgoing};
use crate::manifest::connector::interval::{Interval, MISSED_SLOTS_MAX, OnMissed};
use crate::ports::bus::{self, Batch, Expected};
use crate::time::Timestamp;
use crate::unit::context::Context;
use crate::unit::status::{State, Unit};

/// A slot that is stored later than this has been missed, in milliseconds. Below it a slow disk or a busy machine is
/// nothing to decide about.
const LATE_MS_MAX: i64 = 2_000;
/// The longest sleep before the wall clock is read again.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Waits between attempts while the bus takes nothing. One source has nobody to get out of step with: no jitter.
const BACKOFF: Backoff = Backoff { initial: Duration::from_millis(200), max: Duration::from_secs(10) };
const JITTER: f64 = 1.0;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Schedule(#[from] slots::Error),
    #[error("cannot store slots: {0}")]
    Bus(#[from] bus::Error),
    #[error("the fence record at sequence {sequence} cannot be read: {reason}")]
    Fence { sequence: u64, reason: String },
}

/// The newest slot stored, as the fence subject holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceRecord {
    pub unit: String,
    pub instance: String,
    pub position: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub slot: i64,
}

/// An interval source, ready to run.
#[derive(Debug)]
pub struct Source {
    context: Context,
    unit: Arc<Unit>,
    schedule: Schedule,
    on_missed: OnMissed,
    payload: Option<Bytes>,
    stream: Arc<str>,
    subject: String,
    fence_subject: String,
    /// Sequence of the newest fence record; 0 before the first.
    fence: u64,
    /// The newest slot stored.
    position: Option<i64>,
    /// Slots up to here passed before this task ran.
    since: i64,
}

impl Source {
    /// `to` is the subject without the root.
    pub fn new(context: Context, unit: Arc<Unit>, stated: &Interval, to: &str) -> Result<Self, Error> {
        Ok(Source {
            schedule: Schedule::new(stated)?,
            on_missed: stated.on_missed,
            payload: stated.payload.as_ref().map(|payload| Bytes::from(payload.to_string())),
            stream: context.names.messages().into(),
            subject: context.names.stored(to),
            fence_subject: context.names.fence(&unit.id),
            fence: 0,
            position: None,
            since: 0,
            context,
            unit,
        })
    }

    /// Runs until the context's stop. An error is final: the unit cannot run.
    pub async fn run(mut self) -> Result<(), Error> {
        let ended = self.work().await;
        match &ended {
            Ok(()) => self.unit.set_state(State::Stopped, None),
            Err(error) => {
                self.unit.set_error("source-failed", &error.to_string(), self.context.clock.now());
                self.unit.set_state(State::Failed, Some(error.to_string()));
            }
        }
        ended
    }

    async fn work(&mut self) -> Result<(), Error> {
        self.since = self.now();
        let mut failures = 0;
        let mut positioned = false;
        while !self.context.stopping.is_cancelled() {
            let progress = if positioned { self.store_due().await } else { self.read_position().await };
            match progress {
                Ok(()) => {
                    (positioned, failures) = (true, 0);
                    self.show_running();
                    self.wait_for_next().await;
                }
                Err(Error::Bus(error)) if error.is_retryable() => {
                    failures += 1;
                    self.unit.retried(1);
                    self.unit.set_error("bus", &error.to_string(), self.context.clock.now());
                    self.unit.set_state(State::Paused, Some(error.to_string()));
                    self.pause(BACKOFF.delay(failures, JITTER)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn now(&self) -> i64 {
        self.context.clock.now().unix_millis()
    }

    /// No slot up to here is due any more.
    fn floor(&self) -> i64 {
        match self.position {
            // Without a position the source is new: its first slot is the next one.
            None => self.since,
            Some(position) if self.on_missed == OnMissed::Skip => position.max(self.since),
            Some(position) => position,
        }
    }

    /// What has to be stored now, oldest first: slots that are on time, before them those that are made up for.
    fn due(&mut self) -> Vec<i64> {
        let now = self.now();
        // The clock was set back: what it shows now was not passed while nothing ran.
        self.since = self.since.min(now);
        let floor = self.floor();
        let missed_until = (now - LATE_MS_MAX).max(self.since);
        let mut due = self.schedule.missed(floor, missed_until, self.on_missed);
        due.extend(self.schedule.newest(floor.max(missed_until), now, MISSED_SLOTS_MAX));
        due
    }

    async fn store_due(&mut self) -> Result<(), Error> {
        for slot in self.due() {
            if self.context.stopping.is_cancelled() {
                break;
            }
            self.store(slot).await?;
        }
        Ok(())
    }

    /// Stores the slot unless somebody has: another process, or this one in an attempt whose answer was lost.
    async fn store(&mut self, slot: i64) -> Result<(), Error> {
        while self.position.is_none_or(|position| position < slot) {
            match self.context.bus.publish_batch(self.batch(slot)).await {
                Ok(stored) => {
                    self.fence = stored.last().map_or(self.fence, |fence| fence.sequence);
                    self.position = Some(slot);
                    self.unit.received(1);
                    self.unit.emitted(1);
                }
                Err(bus::Error::WrongLast { .. }) => {
                    let before = self.fence;
                    self.read_position().await?;
                    if self.fence == before {
                        // The bus says two things about one subject. Trying on would spin.
                        let reason = "its sequence was refused but is still the last".to_owned();
                        return Err(Error::Fence { sequence: before, reason });
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn batch(&self, slot: i64) -> Batch {
        let now = self.context.clock.now();
        let unit = self.unit.id.to_string();
        let mut headers = HeadersBuilder::default();
        headers
            .set(message::ID, &format!("i/{}/{slot}", self.unit.id.name))
            .set(message::TIME, &now.to_string())
            .set(message::SOURCE, &unit)
            .set(message::REVISION, &self.unit.digest)
            .set(message::HOP, "0")
            .set("Content-Type", "application/json");
        let payload = self.payload.clone().unwrap_or_else(|| {
            Bytes::from(serde_json::json!({ "slot": Timestamp::from_unix_millis(slot).to_string() }).to_string())
        });
        let record = FenceRecord { unit, instance: self.context.instance.to_string(), position: Position { slot } };
        let record = serde_json::to_vec(&record).expect("strings and numbers are JSON");
        let message = |subject: &str, headers: HeadersBuilder, payload| Outgoing {
            subject: subject.to_owned(),
            headers: headers.build(),
            payload,
            // The fence keeps a slot from being stored twice; a window would only forget.
            transport_id: None,
        };
        Batch {
            stream: Arc::clone(&self.stream),
            messages: vec![
                message(&self.subject, headers, payload),
                message(&self.fence_subject, HeadersBuilder::default(), record.into()),
            ],
            expected: vec![Expected { subject: self.fence_subject.clone(), last: self.fence }],
        }
    }

    async fn read_position(&mut self) -> Result<(), Error> {
        let Some(last) = self.context.bus.last(&self.stream, &self.fence_subject).await? else { return Ok(()) };
        let record: FenceRecord = serde_json::from_slice(&last.payload)
            .map_err(|error| Error::Fence { sequence: last.sequence, reason: error.to_string() })?;
        self.fence = last.sequence;
        self.position = Some(record.position.slot);
        Ok(())
    }

    fn show_running(&self) {
        match self.position {
            Some(position) if position > self.now() + LATE_MS_MAX => {
                let slot = Timestamp::from_unix_millis(position);
                let reason = format!("the clock was set back: the slot {slot} is stored already");
                self.unit.set_state(State::Paused, Some(reason));
            }
            _ => self.unit.set_state(State::Running, None),
        }
    }

    /// Sleeps towards the next slot, for a second at most. A sleep runs by the monotonic clock while slots lie on the
    /// wall clock: only reading that again notices that it was set, or that the machine was suspended.
    async fn wait_for_next(&self) {
        let now = self.now();
        let wait = match self.schedule.next_slot(self.floor()) {
            None => SLEEP_MAX,
            Some(next) => Duration::from_millis(next.saturating_sub(now).max(0).unsigned_abs()).min(SLEEP_MAX),
        };
        if !wait.is_zero() {
            self.pause(wait).await;
        }
    }

    async fn pause(&self, wait: Duration) {
        self.context.stopping.run_until_cancelled(sleep(wait)).await;
    }
}
