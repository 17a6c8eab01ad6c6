//! How a run of tests is shown: to people, to build servers (JUnit), to programs (JSON). Strings in, strings out.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;

use super::Difference;
use crate::manifest::problem::{Problem, Severity};

/// One test that ran.
#[derive(Debug)]
pub struct Ran {
    pub name: String,
    pub flow: String,
    pub file: String,
    /// Where the manifest begins.
    pub line: usize,
    pub inputs: usize,
    pub took: Duration,
    pub differences: Vec<Difference>,
    /// Its golden file was written anew.
    pub updated: bool,
}

/// Everything that ran, and the errors of manifests that kept others from running.
#[derive(Debug, Default)]
pub struct Report {
    pub ran: Vec<Ran>,
    pub errors: Vec<Problem>,
}

impl Ran {
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }

    /// Its lines for people, without a last newline.
    pub fn human(&self) -> String {
        let inputs = counted(self.inputs, "message");
        let took = milliseconds(self.took);
        if self.passed() {
            let updated = if self.updated { ", golden file written" } else { "" };
            return format!("ok    {} ({inputs}, {took}{updated})", self.name);
        }
        let mut text = format!("FAIL  {} ({inputs}, {took})", self.name);
        for difference in &self.differences {
            // Writing into a string cannot fail.
            let _ = write!(text, "\n  {}: {}", self.place(difference), difference.message);
            for line in difference.diff.lines() {
                let _ = write!(text, "\n      {line}");
            }
        }
        text
    }

    fn place(&self, difference: &Difference) -> String {
        format!("{}:{}:{}", self.file, difference.at.line, difference.at.column)
    }
}

impl Report {
    pub fn new(problems: &[Problem]) -> Self {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).cloned().collect();
        Report { ran: Vec::new(), errors }
    }

    fn failed(&self) -> usize {
        self.ran.iter().filter(|ran| !ran.passed()).count()
    }

    /// Something ran, nothing failed, and nothing was left out because of an error.
    pub fn is_success(&self) -> bool {
        !self.ran.is_empty() && self.failed() == 0 && self.errors.is_empty()
    }

    /// The last line for people.
    pub fn summary(&self) -> String {
        let took = milliseconds(self.ran.iter().map(|ran| ran.took).sum());
        let errors = match self.errors.len() {
            0 => String::new(),
            errors => format!("; {} in the manifests, what has one was left out", counted(errors, "error")),
        };
        match (self.ran.len(), self.failed()) {
            (0, _) => format!("no tests{errors}"),
            (all, 0) => format!("{} passed in {took}{errors}", counted(all, "test")),
            (all, failed) => format!("{failed} of {} failed in {took}{errors}", counted(all, "test")),
        }
    }

    pub fn json(&self) -> String {
        let difference = |ran: &Ran, one: &Difference| {
            json!({
                "file": ran.file, "line": one.at.line, "column": one.at.column,
                "message": one.message, "diff": one.diff,
            })
        };
        let tests: Vec<_> = self
            .ran
            .iter()
            .map(|ran| {
                json!({
                    "name": ran.name, "flow": ran.flow, "file": ran.file, "line": ran.line, "messages": ran.inputs,
                    "passed": ran.passed(), "updated": ran.updated, "seconds": ran.took.as_secs_f64(),
                    "differences": ran.differences.iter().map(|one| difference(ran, one)).collect::<Vec<_>>(),
                })
            })
            .collect();
        let errors: Vec<_> = self
            .errors
            .iter()
            .map(|error| {
                json!({ "code": error.code.as_str(), "place": error.place.to_string(), "message": error.message })
            })
            .collect();
        let report = json!({
            "tests": tests, "errors": errors,
            "summary": { "tests": self.ran.len(), "failed": self.failed(), "errors": self.errors.len() },
        });
        format!("{report:#}")
    }

    /// JUnit as build servers read it: a manifest is a class, an error of a manifest a test case that broke off.
    pub fn junit(&self) -> String {
        let seconds = |took: Duration| format!("{:.6}", took.as_secs_f64());
        let total = seconds(self.ran.iter().map(|ran| ran.took).sum());
        let counts = format!(
            "tests=\"{}\" failures=\"{}\" errors=\"{}\" time=\"{total}\"",
            self.ran.len() + self.errors.len(),
            self.failed(),
            self.errors.len()
        );
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  <testsuite name=\"vejas\" {counts}>\n"
        );
        for ran in &self.ran {
            let (name, file) = (escaped(&ran.name), escaped(&ran.file));
            let head = format!("    <testcase name=\"{name}\" classname=\"{file}\" time=\"{}\"", seconds(ran.took));
            if ran.passed() {
                let _ = writeln!(text, "{head}/>");
                continue;
            }
            let message = ran.differences.first().map_or("", |difference| difference.message.as_str());
            let (message, body) = (escaped(message), escaped(&ran.human()));
            let _ = writeln!(text, "{head}>\n      <failure message=\"{message}\">{body}</failure>\n    </testcase>");
        }
        for error in &self.errors {
            let (place, message) = (escaped(&error.place.to_string()), escaped(&error.message));
            let _ = writeln!(
                text,
                "    <testcase name=\"check {}\" classname=\"{place}\" time=\"0\">\n      <error message=\"{message}\">{place}: {message}</error>\n    </testcase>",
                error.code
            );
        }
        text.push_str("  </testsuite>\n</testsuites>");
        text
    }
}

/// For XML: what has a meaning is escaped, what may not be there at all is replaced.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn milliseconds(took: Duration) -> String {
    format!("{:.1} ms", took.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::problem::Position;

    fn ran(differences: Vec<Difference>) -> Ran {
        Ran {
            name: "t".to_owned(),
            flow: "f".to_owned(),
            file: "a.yaml".to_owned(),
            line: 3,
            inputs: 1,
            took: Duration::from_micros(1_500),
            differences,
            updated: false,
        }
    }

    #[test]
    fn a_failure_names_the_place_of_the_expectation() {
        let at = Position { line: 7, column: 5 };
        let failed = ran(vec![Difference { at, message: "differs".to_owned(), diff: "- a\n+ <b>\u{1}".to_owned() }]);
        assert_eq!(failed.human(), "FAIL  t (1 message, 1.5 ms)\n  a.yaml:7:5: differs\n      - a\n      + <b>\u{1}");
        let report = Report { ran: vec![failed, ran(Vec::new())], errors: Vec::new() };
        assert_eq!(report.summary(), "1 of 2 tests failed in 3.0 ms");
        assert!(!report.is_success());
        let junit = report.junit();
        assert!(
            junit.contains("tests=\"2\" failures=\"1\" errors=\"0\"") && junit.contains("+ &lt;b&gt;\u{fffd}"),
            "{junit}"
        );
    }

    #[test]
    fn a_run_without_a_test_is_no_success() {
        assert!(!Report::default().is_success());
        assert!(Report { ran: vec![ran(Vec::new())], errors: Vec::new() }.is_success());
    }
}
