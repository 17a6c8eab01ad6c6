//! How problems are shown: to people, as JSON, to GitHub, as SARIF. Strings in, strings out; printing is for the caller.

mod human;
mod machine;

use super::problem::{Problem, Severity};

pub use human::human;
pub use machine::{github, json, sarif};

/// How many problems of each severity, in how many manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub errors: usize,
    pub warnings: usize,
    pub manifests: usize,
}

impl Summary {
    pub fn of(problems: &[Problem], manifests: usize) -> Self {
        let errors = problems.iter().filter(|p| p.severity == Severity::Error).count();
        Summary { errors, warnings: problems.len() - errors, manifests }
    }
}

/// `3 errors, 1 warning in 12 manifests`.
impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counted = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let manifests = counted(self.manifests, "manifest");
        match (self.errors, self.warnings) {
            (0, 0) => write!(f, "no problems in {manifests}"),
            (0, w) => write!(f, "{} in {manifests}", counted(w, "warning")),
            (e, 0) => write!(f, "{} in {manifests}", counted(e, "error")),
            (e, w) => write!(f, "{}, {} in {manifests}", counted(e, "error"), counted(w, "warning")),
        }
    }
}
