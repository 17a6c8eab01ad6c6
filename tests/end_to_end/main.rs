//! The real binary, real HTTP, a real data folder.

#![allow(clippy::disallowed_methods)]

mod changes;
mod crash;
mod main_job;
#[path = "../../bench/support/mod.rs"]
mod programs;
mod reload;
mod seeing;
mod shutdown;
#[path = "../support/mod.rs"]
mod support;
mod tap;
