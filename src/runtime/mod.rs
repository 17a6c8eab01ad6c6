//! The shell around the core: starts, drives and stops units.

pub mod context;
pub mod status;
