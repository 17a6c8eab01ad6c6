//! Messages at the slots of a fixed grid of times.

pub mod slots;
pub mod source;
