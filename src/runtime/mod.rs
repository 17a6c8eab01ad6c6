//! The shell around the core: starts, drives and stops units.
//!
//! [`start`] is the place to begin; `flow_worker` and `sink_worker` are the two loops that move messages.

pub mod clock;
pub mod config;
mod flow_batch;
pub mod flow_worker;
pub mod settings;
pub mod streams;
pub mod telemetry;
pub mod trim;
