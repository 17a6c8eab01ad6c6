//! The shell around the core: starts, drives and stops units.

pub mod context;
pub mod settings;
pub mod sink_worker;
pub mod status;
