//! What a process knows of its own units, kept up by the units and read by the front doors.
//!
//! Counters are per process life. Figures that survive (lag, oldest unread) are asked of the bus.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

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
    Stopping,
    Stopped,
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
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Changing {
    state: State,
    reason: Option<String>,
    last_error: Option<LastError>,
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
    received: AtomicU64,
    emitted: AtomicU64,
    dropped: AtomicU64,
    retried: AtomicU64,
    dead: AtomicU64,
    refused: AtomicU64,
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
}

macro_rules! counter {
    ($method:ident, $field:ident, $metric:literal, $doc:literal) => {
        #[doc = $doc]
        pub fn $method(&self, count: u64) {
            if count > 0 {
                self.$field.fetch_add(count, Relaxed);
                metrics::counter!($metric, "unit" => self.id.to_string()).increment(count);
            }
        }
    };
}

impl Unit {
    counter!(
        received,
        received,
        "vejas_unit_received_total",
        "Messages taken in: pulled and finished, or accepted by an entrance."
    );
    counter!(emitted, emitted, "vejas_unit_emitted_total", "Messages stored or delivered.");
    counter!(
        dropped,
        dropped,
        "vejas_unit_dropped_total",
        "Messages ended on purpose by a filter, a dedupe or a missing route."
    );
    counter!(retried, retried, "vejas_unit_retries_total", "Attempts that failed and will be made again.");
    counter!(dead, dead, "vejas_unit_dead_letters_total", "Messages that became dead letters.");
    counter!(refused, refused, "vejas_unit_refused_total", "Requests an entrance refused.");

    pub fn set_state(&self, state: State, reason: Option<String>) {
        let mut changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        changing.state = state;
        changing.reason = reason;
    }

    pub fn state(&self) -> State {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner).state
    }

    pub fn set_error(&self, code: &str, message: &str, at: Timestamp) {
        let error = LastError { code: code.to_owned(), message: message.to_owned(), at: at.to_string() };
        self.changing.lock().unwrap_or_else(PoisonError::into_inner).last_error = Some(error);
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
            received: self.received.load(Relaxed),
            emitted: self.emitted.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            retried: self.retried.load(Relaxed),
            dead: self.dead.load(Relaxed),
            refused: self.refused.load(Relaxed),
            last_error: changing.last_error,
        }
    }
}

/// All units of this process.
#[derive(Debug, Default)]
pub struct Registry {
    units: Mutex<BTreeMap<UnitId, Arc<Unit>>>,
}

impl Registry {
    /// Adds a unit, or replaces one of the same name.
    pub fn add(&self, id: UnitId, digest: &[u8; 32], declared: String) -> Arc<Unit> {
        let digest = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let unit = Arc::new(Unit {
            id: id.clone(),
            digest,
            declared,
            changing: Mutex::new(Changing { state: State::Starting, reason: None, last_error: None }),
            durable: Mutex::new(None),
            received: AtomicU64::new(0),
            emitted: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        self.units.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&unit));
        unit
    }

    /// In the order of their ids.
    pub fn all(&self) -> Vec<Arc<Unit>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub fn get(&self, id: &UnitId) -> Option<Arc<Unit>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}
