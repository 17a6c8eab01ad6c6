//! The coordination rules, as values and functions: no clock, no IO, no chance, no waiting.
//!
//! - [`parts`]: under which version a message of a unit is worked on. Whoever works on one asks here.

pub mod parts;
