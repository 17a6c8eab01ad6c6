//! HTTP, in both directions.

pub mod sink;
