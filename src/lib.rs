//! Vejas: a flow runtime whose desired state is a tree of YAML manifests.
//!
//! This page is the map. A module uses only modules above it in this list.
//!
//! Pure, values in and values out (`cargo check --no-default-features --lib` builds just these, `language` and
//! what needs it aside):
//!
//! - [`id`], [`time`]: names and points in time
//! - [`language`]: expressions and programs (VRL): compiled, typed, bounded, run
//! - [`manifest`]: YAML in, validated desired state or all problems out
//! - [`flow`]: the message and the loop's arithmetic: acknowledgement, attempts, back-off
//! - [`transforms`]: what a flow does with a message, one verb per file
//! - [`protocol`]: who owns a unit that only one member may run, and which version of a unit works on which message
//! - [`testing`]: runs Test manifests: a flow on given messages, found beside expected
//!
//! Ports, traits and their errors only:
//!
//! - [`ports`]: bus, store, clock
//!
//! What a running unit is handed and what it tells:
//!
//! - [`mod@unit`]
//!
//! Adapters, each speaks to one outside system and never to a sibling:
//!
//! - [`bus`]: the embedded bus, and NATS JetStream
//! - [`connectors`]: where messages come from and go to
//! - [`origin`]: where manifests come from, when that is not a folder
//!
//! The shell and the front doors:
//!
//! - [`runtime`]: starts, drives and stops units
//! - [`api`], [`cli`]: know everything, decide nothing
//!
//! Where to start reading: `runtime::start` for what happens at start, `runtime::flow_worker` for the life of a
//! message, `manifest::check` for what happens to a manifest.

#![deny(unsafe_code)]

pub mod flow;
pub mod id;
#[cfg(feature = "language")]
pub mod language;
pub mod manifest;
pub mod ports;
pub mod protocol;
#[cfg(feature = "language")]
pub mod testing;
pub mod time;
#[cfg(feature = "language")]
pub mod transforms;

#[cfg(any(feature = "embedded", feature = "nats"))]
pub mod bus;
#[cfg(feature = "full")]
pub mod connectors;

#[cfg(feature = "full")]
pub mod api;
#[cfg(feature = "full")]
pub mod cli;
#[cfg(feature = "full")]
pub mod origin;
#[cfg(feature = "full")]
pub mod runtime;
#[cfg(feature = "full")]
pub mod unit;
