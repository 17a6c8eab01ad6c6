//! Several instances of the real binary on a real nats-server: who owns what, and what faults do to it.

#![allow(clippy::disallowed_methods)]

mod load;
#[path = "../support/nats.rs"]
mod nats;
mod owners;
mod processes;
mod proxy;
#[path = "../support/mod.rs"]
mod support;
mod world;
