//! Signals that ask the process to end.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that follows another this closely is the same wish: a terminal and a supervisor often both pass it on.
const SAME_WISH: Duration = Duration::from_millis(50);

/// SIGTERM and SIGINT, from the moment this exists on.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn listen() -> io::Result<Self> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name of the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// The next one that is not an echo of the one before.
    pub async fn another(&mut self) -> &'static str {
        let _ = tokio::time::timeout(SAME_WISH, async {
            loop {
                self.next().await;
            }
        })
        .await;
        self.next().await
    }
}
