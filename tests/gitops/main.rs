//! The real binary, following real git repositories, and publishing through its command line.

#![allow(clippy::disallowed_methods)]

mod following;
mod http;
mod publishing;
mod refusing;
mod repository;
mod ssh;
#[path = "../support/mod.rs"]
mod support;
mod webhook;
