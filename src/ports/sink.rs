//! Where messages leave. A connector delivers; when to try again, when to give up and what to acknowledge is
//! decided above it.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::flow::failure::Failure;
use crate::flow::message::Stored;

/// How a sink wants its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivering {
    /// Calls of [`Sink::deliver`] that may run at once.
    pub concurrency: usize,
    /// Messages per call, at most.
    pub messages_max: usize,
    /// Payload bytes per call, at most; a single message may exceed it.
    pub bytes_max: usize,
    /// The longest wait for a call to fill up.
    pub wait_max: Duration,
}

/// What became of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivered {
    Done,
    /// May succeed later: network, 5xx, 429, no space.
    Transient {
        failure: Failure,
        retry_after: Option<Duration>,
    },
    /// Will never succeed as it is.
    Permanent(Failure),
}

pub trait Sink: Send + Sync + 'static {
    fn delivering(&self) -> Delivering;

    /// Delivers in order; the answer has one entry per message.
    fn deliver<'a>(&'a self, messages: &'a [Stored]) -> BoxFuture<'a, Vec<Delivered>>;

    /// Called once, after the last delivery.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
