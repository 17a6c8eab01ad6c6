//! Who owns a unit that only one member may run: ranking says who should, the lease says who may, the epoch says who did.
//!
//! Pure state machines: no clock, no store, no chance, no task. [`Node`] is one member; [`Node::step`] takes a moment and an [`Event`] and
//! returns [`Effects`]. How to drive it is told in [`event`] (what goes in) and [`effect`] (what comes out); the protocol, its
//! assumptions, its invariants and what is not shown yet are in this folder's `README.md`. `tests/model/` explores this very type;
//! `runtime::ownership` drives it in a process.
//!
//! [`parts`] and [`publish`] stand by themselves: under which version of a unit a message is worked on, and which versions are published.
//!
//! Not here: how records are spelt on a bus, pings, watches, and everything that waits.

mod deadlines;
pub mod effect;
pub mod event;
pub mod fence;
mod handover;
pub mod hrw;
mod lease;
pub mod membership;
pub mod mutant;
pub mod node;
pub mod parts;
pub mod predicates;
pub mod publish;
pub mod record;
mod session;
pub mod timers;

pub use effect::{Action, Batch, Effect, Effects, Ending, Request, Subject, Ticket};
pub use event::{Class, Event, Evidence, Outcome, Role, UnitSpec};
pub use node::{Node, Phase, Settings};
pub use timers::{Checked, Moment, Timers};
