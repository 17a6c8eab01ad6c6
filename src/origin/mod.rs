//! Where manifests come from, when that is not a folder.

pub mod git;
