//! One holding of a unit by this process, as the task that runs the unit sees it.
//!
//! The task begins nothing after its permit has run out, stores only through [`Tenancy::write`], says that it is alive
//! ([`Tenancy::progress`]) at least every second or so, and ends soon after `stopping`. Who grants all this is the runtime's business.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::flow::message::Outgoing;
use crate::ports::bus;
use crate::ports::clock::{Clock, SharedClock};
use crate::protocol::Moment;
use crate::protocol::record::{Position, Run, Sequence, Unit};

/// The process's own clock as the protocol counts it.
pub fn moment(clock: &dyn Clock) -> Moment {
    Moment(u64::try_from(clock.monotonic().as_millis()).unwrap_or(u64::MAX))
}

/// Asked by a running unit: store these messages and this position together.
#[derive(Debug)]
pub struct Asked {
    pub unit: Unit,
    /// Which of the unit's tasks asks.
    pub life: u64,
    pub messages: Vec<Outgoing>,
    pub position: Position,
    pub answer: oneshot::Sender<Stored>,
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Stored {
    Done,
    /// It is not stored: the stored position is this one.
    Rewound {
        position: Option<Position>,
        refused: Option<Arc<str>>,
    },
    /// This holding is over.
    Over,
}

/// See the module head.
pub struct Tenancy {
    pub unit: Unit,
    pub life: u64,
    /// Sequence of the opening record; none for a unit that writes under no fence.
    pub epoch: Option<Sequence>,
    /// Where the unit stands, as it is stored.
    pub position: Option<Position>,
    /// Cancelled when the task has to end.
    pub stopping: CancellationToken,
    pub permit: watch::Receiver<Moment>,
    pub progressed: Arc<AtomicBool>,
    pub writes: mpsc::Sender<Asked>,
    pub clock: SharedClock,
    /// Numbers the runs of this process: one opening record may be adopted by several tasks.
    pub runs: Arc<AtomicU64>,
}

/// Says whether something may be begun now. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    permit: watch::Receiver<Moment>,
    clock: SharedClock,
}

impl Gate {
    pub fn is_open(&self) -> bool {
        !self.permit.borrow().passed(moment(&*self.clock))
    }

    /// Completes when the permit was changed; never, when the holding is over.
    pub async fn changed(&mut self) {
        if self.permit.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl std::fmt::Debug for Tenancy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenancy").field("unit", &self.unit).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Tenancy {
    pub fn gate(&self) -> Gate {
        Gate { permit: self.permit.clone(), clock: Arc::clone(&self.clock) }
    }

    /// Something may be begun now (own-S3).
    pub fn may_begin(&self) -> bool {
        !self.permit.borrow().passed(moment(&*self.clock))
    }

    /// Waits until something may be begun; `false` when the task has to end.
    pub async fn permitted(&mut self) -> bool {
        loop {
            if self.stopping.is_cancelled() {
                return false;
            }
            if self.may_begin() {
                return true;
            }
            self.progress();
            let stopping = self.stopping.clone();
            tokio::select! {
                () = stopping.cancelled() => return false,
                // The sender lives as long as the holding.
                changed = self.permit.changed() => if changed.is_err() { return false },
            }
        }
    }

    /// The unit's loop passed its watchdog point. Without it the holding is not renewed.
    pub fn progress(&self) {
        self.progressed.store(true, Ordering::Relaxed);
    }

    /// The name of a new execution or fetch.
    pub fn begin_run(&mut self) -> Run {
        let counter = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        Run { opening: self.epoch.unwrap_or(Sequence(0)), counter }
    }

    /// Stores the messages and the position together, under the fence, or nothing. At most one write at a time.
    pub async fn write(&mut self, messages: Vec<Outgoing>, position: Position) -> Stored {
        debug_assert!(messages.len() < bus::BATCH_MESSAGES_MAX);
        let (answer, answered) = oneshot::channel();
        let asked = Asked { unit: self.unit.clone(), life: self.life, messages, position: position.clone(), answer };
        if self.writes.send(asked).await.is_err() {
            return Stored::Over;
        }
        let stored = answered.await.unwrap_or(Stored::Over);
        match &stored {
            Stored::Done => self.position = Some(position),
            Stored::Rewound { position, .. } => self.position.clone_from(position),
            Stored::Over => {}
        }
        stored
    }
}
