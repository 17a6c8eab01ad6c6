//! The shell around the core: starts, drives and stops units.

pub mod clock;
pub mod config;
mod flow_batch;
pub mod flow_worker;
pub mod streams;
pub mod telemetry;
pub mod trim;
