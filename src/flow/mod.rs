//! Parts of the flow engine that need no world: the message, its dead form, and how long to wait.

pub mod backoff;
pub mod dead_letter;
pub mod failure;
pub mod message;
