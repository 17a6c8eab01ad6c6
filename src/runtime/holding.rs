//! A unit that reads and that one member runs: its task waits until this process holds it.
//!
//! The unit's own task outlives many holdings. Each is passed to it with what tells, by being dropped, that nothing of it runs any more.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::ownership::{Owned, Task};
use crate::protocol::Role;
use crate::unit::status;
use crate::unit::tenancy::{Gate, Tenancy};

pub(super) struct Held {
    tenancy: Tenancy,
    /// Dropped when nothing of it runs any more.
    _over: oneshot::Sender<()>,
}

/// Passes holdings on.
#[derive(Clone)]
pub(super) struct Passing(mpsc::Sender<Held>);

/// Where they arrive.
pub(super) struct Holding {
    passed: mpsc::Receiver<Held>,
    held: Option<Held>,
}

pub(super) fn pair() -> (Passing, Holding) {
    let (pass, passed) = mpsc::channel(1);
    (Passing(pass), Holding { passed, held: None })
}

impl Passing {
    /// The unit as one that only one member runs. `line` shows what becomes of it.
    pub fn owned(&self, line: Arc<status::Unit>) -> Owned {
        let pass = self.0.clone();
        let run = move |tenancy: Tenancy| -> Task {
            let pass = pass.clone();
            Box::pin(async move {
                let (over, is_over) = oneshot::channel();
                if pass.send(Held { tenancy, _over: over }).await.is_ok() {
                    let _ = is_over.await;
                }
                Ok(())
            })
        };
        Owned { line: Some(line), ..Owned::exclusive(Role::Sink, Arc::new(run)) }
    }
}

impl Holding {
    /// Waits until this process holds the unit.
    pub async fn hold(&mut self) {
        self.let_go_if_over();
        while self.held.is_none() {
            match self.passed.recv().await {
                Some(held) => self.held = Some(held),
                None => std::future::pending().await,
            }
            self.let_go_if_over();
        }
    }

    /// Whether a call may be begun; none while it is not held.
    pub fn gate(&self) -> Option<Gate> {
        self.held.as_ref().map(|held| held.tenancy.gate())
    }

    pub fn progress(&self) {
        if let Some(held) = &self.held {
            held.tenancy.progress();
        }
    }

    /// Completes when a holding has to end; never while there is none.
    pub async fn is_over(&self) {
        match &self.held {
            Some(held) => held.tenancy.stopping.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Nothing of a holding that has to end runs any more.
    pub fn let_go_if_over(&mut self) {
        if self.held.as_ref().is_some_and(|held| held.tenancy.stopping.is_cancelled()) {
            self.held = None;
        }
    }
}
