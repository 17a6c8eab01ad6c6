//! The shell around the core: starts, drives and stops units.
//!
//! [`start`] is the place to begin; `flow_worker` and `sink_worker` are the two loops that move messages.

mod agreement;
mod audit;
mod backing;
mod candidates;
pub mod changes;
pub mod clock;
pub mod config;
pub mod contents;
pub mod dead_letters;
mod durables;
mod flow_batch;
pub mod flow_worker;
mod holding;
mod ingress;
pub mod load;
pub mod ownership;
pub mod parts;
pub mod planning;
pub mod publisher;
pub mod reading;
pub mod reload;
pub mod replay;
pub mod settings;
pub mod shutdown;
mod sink_units;
pub mod sink_worker;
pub mod sources;
pub mod start;
pub mod streams;
pub mod sync;
pub mod telemetry;
pub mod trim;
pub mod units;
pub mod versions;

use std::path::Path;
use std::sync::Arc;

use crate::bus::embedded::{Embedded, OpenError, Options};

/// The embedded bus of a data folder that no process runs on, for tools and benchmarks.
pub fn open_bus(data_dir: &Path) -> Result<Arc<Embedded>, OpenError> {
    Embedded::open(Options::new(data_dir, Arc::new(clock::SystemClock)))
}
