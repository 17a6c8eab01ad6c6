//! Time as an argument: the shell hands a clock down, tests hand down one they turn themselves.

use std::sync::Arc;
use std::time::Duration;

use crate::time::Timestamp;

/// Two clocks. Neither ever fails.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock. May be set back or forward at any time.
    fn now(&self) -> Timestamp;

    /// Time since an arbitrary start that never goes back and counts while the machine is suspended.
    fn monotonic(&self) -> Duration;
}

pub type SharedClock = Arc<dyn Clock>;
