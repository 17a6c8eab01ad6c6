//! What every unit is handed when it starts.

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::id::Names;
use crate::ports::bus::Bus;
use crate::ports::clock::SharedClock;
use crate::ports::store::Store;

/// Cheap to clone.
#[derive(Clone)]
pub struct Context {
    pub bus: Arc<dyn Bus>,
    pub store: Arc<dyn Store>,
    pub names: Names,
    pub clock: SharedClock,
    /// Name of this process.
    pub instance: Arc<str>,
    /// Cancelled when units have to stop taking new work and finish what they hold.
    pub stopping: CancellationToken,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("instance", &self.instance).finish_non_exhaustive()
    }
}
