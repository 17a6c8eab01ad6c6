//! Flow manifests: steps that can be reached, lookups that have somewhere to put a row, and the names that flows and
//! entrances refer to.

use super::Check;
use super::draft::Draft;
use super::sinks::{check_retry, zero};
use crate::manifest::Spec;
use crate::manifest::digest::Referred;
use crate::manifest::flow::{Arm, Flow, Step};
use crate::manifest::problem::{Code, Problem};

impl Check<'_> {
    pub(super) fn check_flows(&mut self) {
        let mut found = Vec::new();
        for (at, draft) in self.drafts.iter().enumerate() {
            let Some(Spec::Flow(flow)) = draft.manifest.as_ref().map(|manifest| &manifest.spec) else { continue };
            let mut report = |problem| found.push((at, problem));
            check_retry(draft, &flow.retry, &mut report);
            check_reach(draft, flow, &mut report);
            for (number, step) in flow.steps.iter().enumerate() {
                match step {
                    Step::Lookup(lookup) if !is_path(&lookup.into) => {
                        let place = draft.at(&format!("spec.steps.{number}.lookup.into"));
                        let message = format!("{:?} is not a path into the event", lookup.into);
                        let help =
                            "write a field such as `vat` or `order.vat`; quote what is no word: `order.\"vat %\"`";
                        report(Problem::error(Code::InvalidValue, place, message).help(help));
                    }
                    Step::Dedupe(dedupe) if dedupe.within.0.is_zero() => {
                        report(zero(draft.at(&format!("spec.steps.{number}.dedupe.within")), "within"));
                    }
                    _ => {}
                }
            }
        }
        self.report_all(found);
    }

    /// Schemas and tables that are named: there, whole, and part of the digest.
    pub(super) fn check_names_referred(&mut self) {
        for at in 0..self.drafts.len() {
            let Some(manifest) = &self.drafts[at].manifest else { continue };
            let mut wanted: Vec<(String, &'static str, String)> = Vec::new();
            match &manifest.spec {
                Spec::HttpIn(spec) => {
                    let schema = spec.schema.iter().map(|name| ("spec.schema".to_owned(), "Schema", name.to_string()));
                    wanted.extend(schema);
                }
                Spec::Flow(flow) => {
                    for (number, step) in flow.steps.iter().enumerate() {
                        let path = format!("spec.steps.{number}");
                        match step {
                            Step::Validate(v) => {
                                wanted.push((format!("{path}.validate.schema"), "Schema", v.schema.to_string()));
                            }
                            Step::Lookup(l) => {
                                wanted.push((format!("{path}.lookup.table"), "Table", l.table.to_string()))
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
            for (path, kind, name) in wanted {
                match self.referred(at, &path, kind, &name) {
                    Ok(_) => self.refer(at, kind, &name),
                    Err(problem) => self.report(at, *problem),
                }
            }
        }
    }

    /// Makes a schema or table part of what the manifest's digest is over.
    pub(super) fn refer(&mut self, at: usize, kind: &str, name: &str) {
        let referred = match kind {
            "Schema" => self.schemas.get(name).map(|schema| ("schema", schema.digest)),
            _ => self.tables.get(name).map(|table| ("table", table.digest())),
        };
        let name = name.to_owned();
        self.drafts[at].referred.extend(referred.map(|(kind, digest)| Referred { kind, name, digest }));
    }
}

/// Nothing stands behind an arm that takes everything; a flow leads somewhere.
fn check_reach(draft: &Draft, flow: &Flow, report: &mut impl FnMut(Problem)) {
    let takes_all = |arms: &[Arm]| arms.iter().position(|arm| arm.when.is_none());
    let mut routes = false;
    for (number, step) in flow.steps.iter().enumerate() {
        let Step::Route(arms) = step else { continue };
        routes = true;
        let Some(all) = takes_all(arms) else { continue };
        let route = format!("spec.steps.{number}.route");
        let cause = draft.at(&format!("{route}.{all}"));
        let behind = [
            (all + 1 < arms.len()).then(|| (format!("{route}.{}", all + 1), "this arm")),
            (number + 1 < flow.steps.len()).then(|| (format!("spec.steps.{}", number + 1), "this step")),
            flow.to.is_some().then(|| ("spec.to".to_owned(), "`to`")),
        ];
        for (path, what) in behind.into_iter().flatten() {
            let place = if what == "`to`" { draft.at_key(&path) } else { draft.at(&path) };
            let problem = Problem::error(Code::Unreachable, place, format!("{what} is never reached"));
            let problem = problem.and(cause.clone(), "an arm without `when` takes everything");
            report(problem.help("give that arm a condition, or remove what stands behind it"));
        }
        return;
    }
    if flow.to.is_none() && !routes {
        let problem =
            Problem::warning(Code::EndsNowhere, draft.at_key("spec"), "what comes out of the flow is thrown away");
        report(problem.help("add `to: <subject>`, or a `route` step"));
    }
}

/// Fields joined by dots; a field is a word or quoted.
fn is_path(path: &str) -> bool {
    let mut rest = path.strip_prefix('.').unwrap_or(path);
    loop {
        let length = match rest.strip_prefix('"') {
            Some(quoted) => match quoted.find('"') {
                Some(end) if end > 0 && !quoted[..end].contains('\\') => end + 2,
                _ => return false,
            },
            None => {
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
                if end == 0 || rest.as_bytes()[0].is_ascii_digit() {
                    return false;
                }
                end
            }
        };
        match rest[length..].strip_prefix('.') {
            Some(next) => rest = next,
            None => return rest.len() == length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_words_and_quoted_fields() {
        for good in ["vat", ".vat", "order.vat", "order.\"vat %\"", "a_1.b"] {
            assert!(is_path(good), "{good}");
        }
        for bad in ["", ".", "a..b", "a b", "1a", "a.", "a = 1; .b", "\"a", "\"\"", "a[0]"] {
            assert!(!is_path(bad), "{bad}");
        }
    }
}
