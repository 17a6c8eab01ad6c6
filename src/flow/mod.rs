//! Parts of the flow engine that need no world: see each file.

pub mod message;
