//! Names: unique per kind across all files, and every name that is referred to is there and whole.

use std::collections::HashMap;

use super::Check;
use crate::manifest::problem::{Code, Problem, did_you_mean};

/// Which drafts declare a name, by kind.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<&'static str, HashMap<String, Vec<usize>>>);

impl Names {
    fn declaring(&self, kind: &str, name: &str) -> &[usize] {
        self.0.get(kind).and_then(|names| names.get(name)).map_or(&[], Vec::as_slice)
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &str> {
        self.0.get(kind).into_iter().flat_map(|names| names.keys().map(String::as_str))
    }
}

impl Check<'_> {
    pub(super) fn collect_names(&mut self) {
        let mut taken = Vec::new();
        let mut bad = Vec::new();
        for (at, draft) in self.drafts.iter().enumerate() {
            let (Some(kind), Some((name, region))) = (draft.kind, draft.name()) else { continue };
            let declaring = self.names.0.entry(kind).or_default().entry(name.to_owned()).or_default();
            if let Some(first) = declaring.first().copied() {
                let other = &self.drafts[first];
                let first_region = other.name().map_or(other.root.region, |(_, region)| region);
                let problem = Problem::error(
                    Code::DuplicateName,
                    draft.place(region),
                    format!("{kind} `{name}` is declared twice"),
                )
                .label("again here")
                .and(other.place(first_region), "first here")
                .help("rename one of the two; until then neither runs");
                taken.push(problem);
                bad.extend([first, at]);
            }
            declaring.push(at);
        }
        self.problems.extend(taken);
        bad.into_iter().for_each(|at| self.drafts[at].leave_out("its name is declared twice"));
    }

    /// The draft that declares a name, or the problem with it. `path` is where the name is referred to.
    pub(super) fn referred(
        &self,
        from: usize,
        path: &str,
        kind: &'static str,
        name: &str,
    ) -> Result<usize, Box<Problem>> {
        let place = self.drafts[from].at(path);
        match self.names.declaring(kind, name) {
            [] => {
                let mut known: Vec<&str> = self.names.of_kind(kind).collect();
                known.sort_unstable();
                let help = match did_you_mean(name, known.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None if known.is_empty() => format!("add a manifest of `kind: {kind}` with this name"),
                    None => format!("there are: {}", known.join(", ")),
                };
                let problem = Problem::error(Code::UnresolvedName, place, format!("there is no {kind} `{name}`"));
                Err(Box::new(problem.help(help)))
            }
            [one] if !self.drafts[*one].bad => Ok(*one),
            [one, ..] => {
                let other = &self.drafts[*one];
                let region = other.name().map_or(other.root.region, |(_, region)| region);
                let problem =
                    Problem::error(Code::BrokenReference, place, format!("the {kind} `{name}` has errors of its own"));
                Err(Box::new(problem.and(other.place(region), "declared here").help("mend it first")))
            }
        }
    }
}
