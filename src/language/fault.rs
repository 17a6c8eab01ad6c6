//! What is wrong with a program: found while compiling ([`Fault`]) or while running ([`RunFault`]).
//!
//! Positions are bytes in the program's text. Where that text stands in a file is the manifest's business.

use std::ops::Range;

use vrl::compiler::ExpressionError;
use vrl::diagnostic::{Diagnostic, DiagnosticList, Note};

/// A problem that keeps a program from being compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub message: String,
    /// What to underline, in bytes of the source.
    pub span: Range<usize>,
    /// Further places and what is to be said about each.
    pub labels: Vec<(Range<usize>, String)>,
    /// How to mend it.
    pub help: Option<String>,
}

impl Fault {
    pub(super) fn new(message: impl Into<String>, span: Range<usize>) -> Self {
        Fault { message: message.into(), span, labels: Vec::new(), help: None }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Brings every position inside the source and onto character boundaries: the compiler's positions of
    /// generated expressions are not always right, and a renderer may slice with them.
    pub(super) fn within(mut self, source: &str) -> Self {
        self.span = clamp(&self.span, source);
        for (span, _) in &mut self.labels {
            *span = clamp(span, source);
        }
        self
    }
}

fn clamp(span: &Range<usize>, source: &str) -> Range<usize> {
    let start = source.floor_char_boundary(span.start);
    let end = source.ceil_char_boundary(span.end.min(source.len())).max(start);
    start..end
}

/// Turns the compiler's errors into faults; its warnings are left out.
pub(super) fn from_diagnostics(list: DiagnosticList, source: &str) -> Vec<Fault> {
    list.into_iter().filter(Diagnostic::is_problem).map(|d| from_diagnostic(d).within(source)).collect()
}

fn from_diagnostic(diagnostic: Diagnostic) -> Fault {
    let Diagnostic { message, labels, notes, .. } = diagnostic;
    let main = labels.iter().find(|label| label.primary).or(labels.first());
    let span = main.map_or(0..0, |label| label.span.range());
    let labels = labels.into_iter().filter(|l| !l.message.is_empty()).map(|l| (l.span.range(), l.message)).collect();
    Fault { message, span, labels, help: help_of(&notes) }
}

/// The notes that say how to mend it. Links are left out: they describe another product's edition of the language.
fn help_of(notes: &[Note]) -> Option<String> {
    let lines: Vec<String> = notes
        .iter()
        .filter_map(|note| match note {
            Note::Hint(text) | Note::Basic(text) | Note::UserErrorMessage(text) => Some(text.trim_end().to_owned()),
            Note::Example(text) => Some(format!("example: {text}")),
            Note::CoerceValue => {
                Some("coerce the value to the required type with a function such as to_int".to_owned())
            }
            _ => None,
        })
        .filter(|line| !line.is_empty())
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Why a run ended without a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RunFault {
    pub message: String,
    /// Where in the source, in bytes.
    pub span: Option<Range<usize>>,
    /// The program said `abort`; the message is what it gave.
    pub aborted: bool,
}

impl RunFault {
    pub(super) fn new(message: impl Into<String>) -> Self {
        RunFault { message: message.into(), span: None, aborted: false }
    }

    pub(super) fn from_expression(error: ExpressionError) -> Self {
        match error {
            ExpressionError::Abort { span, message } => {
                let message = message.unwrap_or_else(|| "aborted".to_owned());
                RunFault { message, span: Some(span.range()), aborted: true }
            }
            ExpressionError::Error { message, labels, .. } => {
                // Each call on the way out wraps the message in a sentence of its own; the innermost one says it.
                match labels.into_iter().find(|label| label.primary) {
                    Some(label) if !label.message.is_empty() => {
                        RunFault { message: label.message, span: Some(label.span.range()), aborted: false }
                    }
                    _ => RunFault::new(message),
                }
            }
            ExpressionError::Fallible { span } | ExpressionError::Break { span } => {
                RunFault { message: "unhandled error".to_owned(), span: Some(span.range()), aborted: false }
            }
            other => RunFault::new(other.to_string()),
        }
    }
}
