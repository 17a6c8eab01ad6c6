//! `vejas replay` and `vejas shadow` on the real binary: what differs is shown per message, and nothing has an effect.

#![allow(clippy::disallowed_methods)]

mod live;
#[path = "../support/nats.rs"]
mod nats;
mod stored;
#[path = "../support/mod.rs"]
mod support;
mod world;
