//! The command line.

pub mod status;
