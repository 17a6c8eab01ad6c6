//! Dead letters as an operator meets them: the real binary, its command line and its API.

#![allow(clippy::disallowed_methods)]

mod bounds;
mod crash;
mod ground;
mod many;
mod one;
mod sinks;
#[path = "../support/mod.rs"]
mod support;
mod world;
