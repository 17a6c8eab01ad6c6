//! The task of an interval source: waits for a slot, stores its message, remembers the slot.
//!
//! Message and position are stored in one batch under the fence of the holding ([`Tenancy::write`]). So a slot is stored once,
//! whatever restarts, whoever else runs the same source, and whichever way the clock was set.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::slots::{self, Schedule};
use crate::flow::backoff::Backoff;
use crate::flow::message::{self, HeadersBuilder, Outgoing};
use crate::manifest::connector::interval::{Interval, MISSED_SLOTS_MAX, OnMissed};
use crate::protocol::record::Position;
use crate::time::Timestamp;
use crate::unit::context::Context;
use crate::unit::status::{State, Unit};
use crate::unit::tenancy::{Stored, Tenancy};

/// A slot that is stored later than this has been missed, in milliseconds. Below it a slow disk or a busy machine is
/// nothing to decide about.
const LATE_MS_MAX: i64 = 2_000;
/// The longest sleep before the wall clock is read again.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Waits between attempts while the bus takes nothing. One source has nobody to get out of step with: no jitter.
const BACKOFF: Backoff = Backoff { initial: Duration::from_millis(200), max: Duration::from_secs(10) };
const JITTER: f64 = 1.0;

/// An interval source, ready to run.
#[derive(Debug)]
pub struct Source {
    context: Context,
    unit: Arc<Unit>,
    schedule: Schedule,
    on_missed: OnMissed,
    payload: Option<Bytes>,
    subject: String,
    tenancy: Tenancy,
    /// Slots up to here passed before this task ran.
    since: i64,
}

impl Source {
    /// `to` is the subject without the root.
    pub fn new(
        context: Context,
        unit: Arc<Unit>,
        stated: &Interval,
        to: &str,
        tenancy: Tenancy,
    ) -> Result<Self, slots::Error> {
        Ok(Source {
            schedule: Schedule::new(stated)?,
            on_missed: stated.on_missed,
            payload: stated.payload.as_ref().map(|payload| Bytes::from(payload.to_string())),
            subject: context.names.stored(to),
            tenancy,
            since: 0,
            context,
            unit,
        })
    }

    /// Runs until the holding is over.
    pub async fn run(mut self) {
        // Slots of the last moments are late, not missed: whoever ran the source before may have died with them. Otherwise they
        // are made up for anyway.
        let late = if self.tenancy.position.is_some() && self.on_missed == OnMissed::Skip { LATE_MS_MAX } else { 0 };
        self.since = self.now() - late;
        let mut failures = 0;
        while self.tenancy.permitted().await {
            self.tenancy.progress();
            match self.store_due().await {
                Ok(()) => {
                    failures = 0;
                    self.show_running();
                    self.wait_for_next().await;
                }
                Err(reason) => {
                    failures += 1;
                    self.unit.retried(1);
                    self.unit.set_error("bus", &reason, self.context.clock.now());
                    self.unit.set_state(State::Paused, Some(reason.to_string()));
                    self.pause(BACKOFF.delay(failures, JITTER)).await;
                }
            }
        }
    }

    /// The newest slot stored.
    fn position(&self) -> Option<i64> {
        self.tenancy.position.as_ref().map(|position| position.page.cast_signed())
    }

    fn now(&self) -> i64 {
        self.context.clock.now().unix_millis()
    }

    /// No slot up to here is due any more.
    fn floor(&self) -> i64 {
        match self.position() {
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

    /// The error is why the bus takes nothing now.
    async fn store_due(&mut self) -> Result<(), Arc<str>> {
        for slot in self.due() {
            // The position may have moved on: an attempt whose answer was lost.
            if self.position().is_some_and(|position| position >= slot) {
                continue;
            }
            if !self.tenancy.may_begin() {
                break;
            }
            let position = Position {
                run: self.tenancy.begin_run(),
                page: slot.cast_unsigned(),
                off: 1,
                done: true,
                state: [].into(),
            };
            match self.tenancy.write(vec![self.message(slot)], position).await {
                Stored::Done => {
                    self.unit.received(1);
                    self.unit.emitted(1);
                }
                Stored::Rewound { refused, .. } => {
                    if let Some(reason) = refused {
                        return Err(reason);
                    }
                }
                Stored::Over => break,
            }
        }
        Ok(())
    }

    fn message(&self, slot: i64) -> Outgoing {
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
        Outgoing {
            subject: self.subject.clone(),
            headers: headers.build(),
            payload,
            // The fence keeps a slot from being stored twice; a window would only forget.
            transport_id: None,
        }
    }

    fn show_running(&self) {
        match self.position() {
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
        self.tenancy.stopping.run_until_cancelled(sleep(wait)).await;
    }
}
