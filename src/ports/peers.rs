//! Other processes on the same bus, spoken to past the store: nothing said here is kept, and nothing said here is proof.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use super::bus::Error;

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    Answered,
    /// The bus says that nobody listens on that subject.
    NoResponders,
    /// No answer in time.
    Silent,
    /// The bus is away: nothing was asked.
    Away,
}

/// Object-safe on purpose.
pub trait Peers: Send + Sync + 'static {
    /// Calls whoever listens on `subject`.
    fn call(&self, subject: &str, wait: Duration) -> BoxFuture<'static, Heard>;

    /// Sends without asking for an answer. May be lost.
    fn tell(&self, subject: &str, payload: Bytes);

    /// What others tell, and an answer for each who calls, without being asked. Ends with an error when the bus goes away.
    fn listen(&self, subject: &str) -> BoxStream<'static, Result<Bytes, Error>>;
}
