//! The loop of one sink: from its durable to its connector, and what becomes of each message.
//!
//! # When a message that keeps failing is given up
//!
//! An outage must not turn traffic into dead letters, not while it lasts and not after it by the attempts it used up;
//! and one message that the receiver cannot take must not be tried for ever. The bus's count of deliveries alone cannot
//! tell the two apart: it also grows with every restart during an outage. So a message that fails transiently becomes
//! a dead letter only when all of this holds:
//!
//! 1. *This very delivery failed*, in a call that began while the breaker was closed and carried nothing else. (A
//!    message at its last attempt goes alone, hence a batch never condemns its members.)
//! 2. *Its attempts are used up*: the bus's count, plus attempts made on this delivery while it stayed in hand. Probes
//!    and failures that opened the breaker do not count, unless rule 3 shows them to be the message's own; what waits
//!    for the breaker is held with in-progress, so that waiting does not count either.
//! 3. *It fails alone*: since an earlier failure of it that this process saw, the receiver answered a later call; and
//!    once more, when that earlier failure may have been an outage's. A first failure cannot be told from the first
//!    moment of an outage, so a message is never given up at once. (`failures.rs`)
//!
//! It follows that a message is tried at least twice by a process, and that one which fails while nothing else is
//! there to deliver counts as an outage: it is held, and tried again at the pace of the breaker.
//!
//! # Bad messages in a row
//!
//! Enough of them open the breaker. A failed probe brings forward the next message that was never tried, at once and up to
//! `breaker::PROBES_MAX` in a turn, unless the receiver asked for a pause; it is pulled afresh when all in hand have
//! failed. Once the breaker is closed, what failed before goes one at a time beside what was never tried, and not right
//! after a failure (`hand.rs`): good messages pass in between, which by rule 3 is what the bad ones end by. Probes are as
//! before no evidence against a message, however many a turn has. As many bad messages in a row as the hand has room for
//! cannot be told from an outage, and are not.
//!
//! # Order
//!
//! With `order_by`, retries are made in hand and attempts are counted in hand: a restart begins them anew. A stuck key
//! may fill the hand. Then no other key can show that the receiver works, the breaker opens, and at the next probe a
//! quarter of the hand is *deferred* to the bus from the key that holds most; nothing newer of that key passes what is
//! deferred (`flow::ordering`). The other keys flow through the room that makes, and by rule 3 the stuck message
//! is given up in the end. Only when [`DEFERRED_MAX`] messages of stuck keys are deferred does the sink wait for them.
//! After a start nothing is sent before everything delivered earlier and not acknowledged has come back.
//!
//! # Former versions
//!
//! A message belongs to the version of the sink under which its sequence was granted (`runtime::parts`); a grant is stored before
//! the first call. What a former version has not delivered goes through the former connector, one call per message, past the breaker:
//! that one speaks of the receiver of today. When such a call fails transiently, the message and all others of that version are
//! *moved*: stored again for this sink and acknowledged, so that the newest version delivers them. Where that is not possible (the
//! order of keys would be lost, or the newest version does not read the subject) the former version goes on trying.
//!
//! # Bounds
//!
//! Messages in hand: [`hand_messages_max`] and [`HAND_BYTES_MAX`]; deferred: [`DEFERRED_MAX`]; failures remembered:
//! [`FAILURES_MAX`]; dead letters per settlement: [`LETTERS_MAX`]. While dead letters cannot be stored, nothing is pulled.
//!
//! Not here: what an answer means (connectors), the pauses (`flow::breaker`), when a sink runs (its starter).

mod failures;
mod hand;
mod settler;
mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::parts::UnitParts;
use crate::flow::breaker;
use crate::flow::failure::Failure;
use crate::flow::message::Stored;
use crate::id::UnitId;
use crate::manifest::flow::Retry;
use crate::ports::bus::{self, PULL_MESSAGES_MAX};
use crate::ports::sink::{Delivering, Sink};
use crate::unit::context::Context;
use crate::unit::status;
use crate::unit::tenancy::Gate;

/// Payload bytes in hand; the last message taken may exceed it.
pub const HAND_BYTES_MAX: usize = 32 << 20;
/// Messages the hand has room for at least: deliveries go on while acknowledgements are being stored.
const HAND_MIN: usize = 64;
/// The same with `order_by`: room for many keys.
const HAND_ORDERED_MIN: usize = 1_024;
/// Messages of stuck keys that wait at the bus; without `order_by`, messages that wait there for their next attempt.
pub const DEFERRED_MAX: usize = 4_096;
/// Failing messages remembered for rule 3; one that is forgotten gets an attempt more.
pub const FAILURES_MAX: usize = 8_192;
/// Dead letters stored together.
pub const LETTERS_MAX: usize = 64;
/// How long one pull waits for messages.
const PULL_WAIT: Duration = Duration::from_secs(5);
/// How long a pull waits for something better to probe with.
const PROBE_PULL_WAIT: Duration = Duration::from_millis(50);
/// How long a deferred message stays at the bus.
const DEFERRED: Duration = Duration::from_secs(2);
/// How long a sink may take to close.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// The key of a message.
pub type OrderBy = Arc<dyn Fn(&Stored) -> Result<String, Failure> + Send + Sync>;
/// A random number in `0.0..=1.0`.
pub type Jitter = Arc<dyn Fn() -> f64 + Send + Sync>;

/// Everything one sink needs.
#[derive(Clone)]
pub struct SinkUnit {
    pub id: UnitId,
    /// Of the version that runs.
    pub digest: String,
    pub sink: Arc<dyn Sink>,
    pub parts: Arc<UnitParts>,
    /// Which durable of the unit is read.
    pub number: u32,
    /// The connectors of former versions that are not worked off, by digest; `None` for one that cannot be opened any more.
    pub former: BTreeMap<String, Option<Arc<dyn Sink>>>,
    /// As the durable has it.
    pub ack_wait: Duration,
    pub retry: Retry,
    pub order_by: Option<OrderBy>,
    pub breaker: breaker::Settings,
    pub unit: Arc<status::Unit>,
    pub jitter: Jitter,
    /// How long deliveries under way may take to end when the unit stops.
    pub drain_max: Duration,
    /// Of a sink that one member runs: whether a call may be begun now.
    pub gate: Option<Gate>,
}

impl fmt::Debug for SinkUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkUnit").field("id", &self.id).field("number", &self.number).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bus refuses for good.
    #[error("{unit}: {error}")]
    Bus { unit: UnitId, error: bus::Error },
}

/// Messages a sink holds in memory at most.
pub fn hand_messages_max(delivering: &Delivering, ordered: bool) -> usize {
    let twice = delivering.concurrency.saturating_mul(delivering.messages_max).saturating_mul(2);
    twice.max(if ordered { HAND_ORDERED_MIN } else { HAND_MIN }).min(PULL_MESSAGES_MAX)
}

/// The in-flight limit that the durable of a sink needs: what is in hand and what was put off.
pub fn in_flight_max(delivering: &Delivering, ordered: bool) -> usize {
    hand_messages_max(delivering, ordered) + DEFERRED_MAX
}

/// Runs until `context.stopping`, or until the bus refuses for good.
pub async fn run(context: Context, spec: SinkUnit) -> Result<(), Error> {
    let (unit, id) = (Arc::clone(&spec.unit), spec.id.clone());
    let sinks: Vec<_> = spec.former.values().flatten().chain([&spec.sink]).map(Arc::clone).collect();
    let clock = Arc::clone(&context.clock);
    let outcome = worker::Worker::new(context, spec).work().await;
    if tokio::time::timeout(CLOSE_MAX, join_all(sinks.iter().map(|sink| sink.close()))).await.is_err() {
        tracing::warn!(unit = %id, "the sink did not close in time");
    }
    match &outcome {
        Ok(()) => unit.set_state(status::State::Stopped, None),
        Err(error) => {
            unit.set_error("bus", &error.to_string(), clock.now());
            unit.set_state(status::State::Failed, Some(error.to_string()));
        }
    }
    outcome.map_err(|error| Error::Bus { unit: id, error })
}
