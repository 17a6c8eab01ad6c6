//! Data directories that lose something: damaged files, a full disk, an older or newer form, a clock that is turned.
//!
//! Everything here works on directories that the real bus, or the real binary, has written.

#![allow(clippy::disallowed_methods)]

mod campaign;
mod clock;
mod commands;
mod disk_full;
mod format;
mod ground;
mod killed;
#[path = "../support/mod.rs"]
mod support;
