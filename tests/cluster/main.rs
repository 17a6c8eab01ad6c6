//! Several instances of the real binary on a real nats-server: who owns what, and what faults do to it.

#![allow(clippy::disallowed_methods)]

#[path = "../support/nats.rs"]
mod nats;
mod owners;
#[path = "../support/mod.rs"]
mod support;
mod world;
