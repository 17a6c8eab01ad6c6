//! Where messages come from and go to: one folder per outside system, with `source.rs`, `sink.rs` or both.
//!
//! A connector speaks to one system and to no sibling. Retry, order and acknowledgement are decided above it.

pub mod file;
pub mod http;
pub mod interval;
pub mod line;
pub mod secret;
pub mod stdout;
