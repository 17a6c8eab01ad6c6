//! The standard output.

pub mod sink;
