//! Expressions and programs of the flow steps: compiled, typed, bounded, run. The language is VRL.
//!
//! Here: what may be written ([`functions`]), how a text becomes a [`Program`] ([`Compiler`]), what type it takes and
//! gives ([`EventType`]), tables it may look into ([`Table`]), and JSON in and out ([`json`]). Not here: which step
//! runs which program (`transforms`), where in a YAML file a text stands (`manifest`).
//!
//! What it upholds:
//!
//! - The same program on the same message gives the same result, everywhere and always: nothing that is offered
//!   reads a clock, random numbers, the environment, a file or the network.
//! - No program, however hostile, ends the process: texts are bounded before they are compiled (`guard`), work and
//!   memory are bounded while they run (`meter`), and a panic of the compiler or a program is an error.
//! - Nobody outside names the `vrl` crate.

mod catalogue;
mod compile;
mod fault;
mod functions;
mod guard;
pub mod json;
mod meter;
mod metered;
mod own;
mod path;
mod program;
mod rewrite;
mod schema;
mod table;
#[cfg(test)]
mod tests;
mod types;

pub use vrl::value::{KeyString, ObjectMap, Value};

pub use compile::{Compiler, Environment, PROGRAMS_CACHED_MAX, Purpose};
pub use fault::{Fault, RunFault};
pub use functions::{FunctionDoc, functions};
pub use guard::{NESTING_MAX, SOURCE_BYTES_MAX};
pub use meter::{MEMORY_BYTES_MAX, OPERATIONS_MAX, OUTPUT_BYTES_MAX};
pub use path::FieldPath;
pub use program::{Input, Meta, Outcome, Program};
pub use table::{Table, Tables};
pub use types::{Conflict, EventType};
