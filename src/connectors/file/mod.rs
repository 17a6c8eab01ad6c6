//! Files that grow line by line.

pub mod path;
pub mod sink;
mod writer;
