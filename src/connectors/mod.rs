//! Where messages come from and go to: one folder per outside system, with a `source.rs`, a `sink.rs` or both.

pub mod http;
#[cfg(feature = "full")]
pub mod interval;
