//! Several instances of the real binary on a real nats-server: who owns what, and what faults do to it.

#![allow(clippy::disallowed_methods)]

mod agreement;
mod exclusive;
mod load;
#[path = "../support/nats.rs"]
mod nats;
mod network;
mod operators;
mod owners;
mod processes;
mod proxy;
mod publish;
mod servers;
#[path = "../support/mod.rs"]
mod support;
mod world;
