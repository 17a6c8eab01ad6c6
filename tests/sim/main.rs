//! The protocol, simulated: some members with the production `Node` and a small shell each, several units, an in-memory bus, and faults.
//!
//! One thread, virtual time, and a seed that decides everything: the same seed is the same run. While faults go on, the safety
//! invariants of `src/protocol/README.md` are checked with the production predicates; then everything heals, and each unit must find its
//! owner within a bound. Where `tests/model` explores small worlds to the end, this looks at long runs of large ones.
//!
//!     cargo sim                                                         the seeds of the suite, optimised
//!     VEJAS_TEST_FULL=1 cargo sim                                       twenty thousand
//!     VEJAS_SIM_SEED=<n> cargo sim every_seed -- --nocapture            one seed, its events printed
//!
//! `cargo test --no-default-features --test sim` does the same, some times slower.
//!
//! The sources of `src/protocol/` are compiled into this test a second time, as tests: only so do the wrong rules of
//! `protocol/mutant.rs` exist.

#![allow(clippy::disallowed_methods)]

#[path = "../../src/id.rs"]
#[allow(dead_code)]
mod id;
#[path = "../../src/protocol/mod.rs"]
#[allow(dead_code, unused_imports)]
mod protocol;

mod chance;
mod check;
mod faults;
mod network;
mod process;
mod shell;
mod store;
mod suite;
mod worker;
mod world;
