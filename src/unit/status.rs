//! What a process knows of its own units, kept up by the units and read by the front doors.
//!
//! Counters are per process life. Figures that survive (lag, oldest unread) are asked of the bus.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::rates::{Rates, Sample, Window};
use super::tap::Tap;
use crate::flow::failure::Failure;
use crate::id::UnitId;
use crate::ports::bus::Durable;
use crate::time::Timestamp;

/// Where a unit is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Starting,
    Running,
    /// Not pulling; the status text says why (breaker open, dead letters full, bus full).
    Paused,
    /// Another member runs it, or will in a moment.
    Standby,
    Stopping,
    Stopped,
    /// Stopped by a person; what comes to it waits.
    Suspended,
    /// Removed, while messages wait for its return.
    Parked,
    /// Cannot run; the last error says why.
    Failed,
}

/// The last thing that went wrong in a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastError {
    pub code: String,
    pub message: String,
    /// RFC 3339.
    pub at: String,
    /// `file:line:column` in the manifest, where a step failed.
    pub position: Option<String>,
    /// Sequence of the message that failed, where it was one.
    pub sequence: Option<u64>,
}

/// Whether a sink leaves its receiver alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Breaker {
    Closed,
    Open,
    /// One message tries whether the receiver is back.
    HalfOpen,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Changing {
    state: State,
    reason: Option<String>,
    breaker: Option<Breaker>,
}

/// A count for people and the same for the scraper. The metric is looked up once: a message costs two additions.
struct Counter {
    total: AtomicU64,
    metric: metrics::Counter,
}

impl Counter {
    fn new(metric: &'static str, unit: &UnitId) -> Self {
        Counter { total: AtomicU64::new(0), metric: metrics::counter!(metric, "unit" => unit.to_string()) }
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.total.load(Relaxed).fmt(f)
    }
}

/// A digest as people see it: its first 12 hex digits.
pub fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// One unit's line. Shared between the unit, which writes, and anybody, who reads.
#[derive(Debug)]
pub struct Unit {
    pub id: UnitId,
    /// First 12 hex digits of the unit's digest.
    pub digest: String,
    /// `file:line` of the manifest.
    pub declared: String,
    changing: Mutex<Changing>,
    durable: Mutex<Option<Durable>>,
    tap: Arc<Tap>,
    counts: Arc<Counts>,
    last_error: Arc<Mutex<Option<LastError>>>,
}

/// Counted on from version to version.
#[derive(Debug)]
struct Counts {
    window: Mutex<Window>,
    received: Counter,
    emitted: Counter,
    dropped: Counter,
    retried: Counter,
    dead: Counter,
    refused: Counter,
}

/// A readable copy of a [`Unit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnitView {
    pub unit: String,
    pub state: State,
    pub reason: Option<String>,
    pub digest: String,
    pub declared: String,
    pub received: u64,
    pub emitted: u64,
    pub dropped: u64,
    pub retried: u64,
    pub dead: u64,
    pub refused: u64,
    pub last_error: Option<LastError>,
    /// Of a sink.
    pub breaker: Option<Breaker>,
}

impl Counts {
    fn new(id: &UnitId) -> Self {
        Counts {
            window: Mutex::default(),
            received: Counter::new("vejas_unit_received_total", id),
            emitted: Counter::new("vejas_unit_emitted_total", id),
            dropped: Counter::new("vejas_unit_dropped_total", id),
            retried: Counter::new("vejas_unit_retries_total", id),
            dead: Counter::new("vejas_unit_dead_letters_total", id),
            refused: Counter::new("vejas_unit_refused_total", id),
        }
    }
}

macro_rules! counter {
    ($method:ident, $field:ident, $doc:literal) => {
        #[doc = $doc]
        pub fn $method(&self, count: u64) {
            if count > 0 {
                self.counts.$field.total.fetch_add(count, Relaxed);
                self.counts.$field.metric.increment(count);
            }
        }
    };
}

impl Unit {
    counter!(received, received, "Messages taken in: pulled and finished, or accepted by an entrance.");
    counter!(emitted, emitted, "Messages stored or delivered.");
    counter!(dropped, dropped, "Messages ended on purpose by a filter, a dedupe or a missing route.");
    counter!(retried, retried, "Attempts that failed and will be made again.");
    counter!(dead, dead, "Messages that became dead letters.");
    counter!(refused, refused, "Requests an entrance refused.");

    pub fn set_state(&self, state: State, reason: Option<String>) {
        let mut changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        changing.state = state;
        changing.reason = reason;
    }

    pub fn state(&self) -> State {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner).state
    }

    pub fn set_error(&self, code: &str, message: &str, at: Timestamp) {
        self.set_failure(&Failure::new(code, message), None, at);
    }

    /// A failure of one message, by its sequence, or of the unit.
    pub fn set_failure(&self, failure: &Failure, sequence: Option<u64>, at: Timestamp) {
        let error = LastError {
            code: failure.code.clone(),
            message: failure.message.clone(),
            at: at.to_string(),
            position: failure.position.clone(),
            sequence,
        };
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// What was wrong is mended.
    pub fn clear_error(&self, code: &str) {
        let mut last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        if last_error.as_ref().is_some_and(|error| error.code == code) {
            *last_error = None;
        }
    }

    pub fn set_breaker(&self, breaker: Breaker) {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner).breaker = Some(breaker);
    }

    /// For a second worker of the unit: counts, errors and listeners are the same, where it is in its life is its own business.
    pub fn beside(&self) -> Arc<Unit> {
        Arc::new(Unit {
            id: self.id.clone(),
            digest: self.digest.clone(),
            declared: self.declared.clone(),
            changing: Mutex::new(Changing { state: State::Starting, reason: None, breaker: None }),
            durable: Mutex::new(None),
            tap: Arc::clone(&self.tap),
            counts: Arc::clone(&self.counts),
            last_error: Arc::clone(&self.last_error),
        })
    }

    /// Where it tells what becomes of each message, to those who listen.
    pub fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }

    fn sample(&self, at: Duration) -> Sample {
        Sample {
            at,
            received: self.counts.received.total.load(Relaxed),
            emitted: self.counts.emitted.total.load(Relaxed),
        }
    }

    /// Messages per second over the last seconds, as far as they were sampled. `at` is of the monotonic clock.
    pub fn rates(&self, at: Duration) -> Rates {
        self.counts.window.lock().unwrap_or_else(PoisonError::into_inner).rates(self.sample(at))
    }

    /// The durable the unit reads, once it exists.
    pub fn set_durable(&self, durable: Durable) {
        *self.durable.lock().unwrap_or_else(PoisonError::into_inner) = Some(durable);
    }

    pub fn durable(&self) -> Option<Durable> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn view(&self) -> UnitView {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        UnitView {
            unit: self.id.to_string(),
            state: changing.state,
            reason: changing.reason,
            digest: self.digest.clone(),
            declared: self.declared.clone(),
            received: self.counts.received.total.load(Relaxed),
            emitted: self.counts.emitted.total.load(Relaxed),
            dropped: self.counts.dropped.total.load(Relaxed),
            retried: self.counts.retried.total.load(Relaxed),
            dead: self.counts.dead.total.load(Relaxed),
            refused: self.counts.refused.total.load(Relaxed),
            last_error: self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            breaker: changing.breaker,
        }
    }
}

/// All units of this process.
#[derive(Debug, Default)]
pub struct Registry {
    units: Mutex<BTreeMap<UnitId, Arc<Unit>>>,
}

impl Registry {
    /// Adds a unit, or replaces its former version: who listens to that goes on with the new one, and its counts go on.
    pub fn add(&self, id: UnitId, digest: &str, declared: String) -> Arc<Unit> {
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        let former = units.get(&id);
        let tap = former.map(|former| Arc::clone(&former.tap)).unwrap_or_default();
        let counts = former.map_or_else(|| Arc::new(Counts::new(&id)), |former| Arc::clone(&former.counts));
        let unit = Arc::new(Unit {
            digest: short(digest).to_owned(),
            declared,
            changing: Mutex::new(Changing { state: State::Starting, reason: None, breaker: None }),
            last_error: Arc::default(),
            durable: Mutex::new(None),
            tap,
            counts,
            id: id.clone(),
        });
        units.insert(id, Arc::clone(&unit));
        unit
    }

    /// The unit is removed.
    pub fn remove(&self, id: &UnitId) {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Takes one sample of every unit; see [`super::rates`].
    pub fn sample(&self, at: Duration) {
        for unit in self.all() {
            unit.counts.window.lock().unwrap_or_else(PoisonError::into_inner).add(unit.sample(at));
        }
    }

    /// In the order of their ids.
    pub fn all(&self) -> Vec<Arc<Unit>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub fn get(&self, id: &UnitId) -> Option<Arc<Unit>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}
