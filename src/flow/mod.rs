//! Parts of the flow engine that need no world: the message, its dead form, how long to wait, in which order, and when
//! to stop trying.

pub mod backoff;
pub mod breaker;
pub mod dead_letter;
pub mod failure;
pub mod message;
pub mod moved;
pub mod ordering;
pub mod retention;
