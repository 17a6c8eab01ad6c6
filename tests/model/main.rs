//! The protocol, explored to the end in small worlds: the production `Node` and the production fence rules among stores, clocks and
//! processes that fail.
//!
//! The sources of `src/protocol/` are compiled into this test a second time, as tests: only so do the wrong rules of
//! `protocol/mutant.rs` exist, and no feature could ever bring them into a binary.

#[path = "../../src/id.rs"]
#[allow(dead_code)]
mod id;
#[path = "../../src/protocol/mod.rs"]
#[allow(dead_code, unused_imports)]
mod protocol;

mod explore;
mod heal;
mod kept;
mod source;
mod step;
mod store;
mod suite;
mod world;
mod worlds;
mod wrong;
