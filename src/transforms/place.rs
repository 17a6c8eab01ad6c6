//! Where a step stands, so that a failure at run time names the unit, the step, the line and the expression.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::flow::failure::Failure;
use crate::id::UnitId;
use crate::language::RunFault;

/// Longest piece of source quoted in a failure, in characters.
const EXCERPT_CHARS_MAX: usize = 160;

/// Turns a place below `spec`, such as `steps.2.map`, and a byte offset in the text there, into `file:line:column`.
pub type Locator = Arc<dyn Fn(&str, usize) -> String + Send + Sync>;

/// One program of one step.
#[derive(Clone)]
pub struct Place {
    unit: UnitId,
    step: String,
    pointer: String,
    source: String,
    locate: Locator,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.unit, self.step)
    }
}

impl Place {
    /// `step` is for people, such as `step 3 (map)`.
    pub fn new(unit: UnitId, step: String, pointer: String, source: String, locate: Locator) -> Self {
        Place { unit, step, pointer, source, locate }
    }

    /// The failure of a program at this place.
    pub fn fault(&self, fault: &RunFault) -> Failure {
        let code = if fault.aborted { "aborted" } else { "expression" };
        self.failure(code, &fault.message, fault.span.clone())
    }

    /// A failure of the step itself.
    pub fn failure(&self, code: &str, message: &str, span: Option<Range<usize>>) -> Failure {
        let offset = span.as_ref().map_or(0, |span| span.start);
        let position = (self.locate)(&self.pointer, offset);
        let excerpt = self.excerpt(span);
        let quoted = if excerpt.is_empty() { String::new() } else { format!(": `{excerpt}`") };
        let message = format!("{} {} at {position}: {message}{quoted}", self.unit, self.step);
        Failure { position: Some(position), ..Failure::new(code, message) }
    }

    /// The line of the source that the span begins on.
    fn excerpt(&self, span: Option<Range<usize>>) -> String {
        let start = span.map_or(0, |span| span.start.min(self.source.len()));
        let begin = self.source.as_bytes()[..start].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let line = self.source.get(begin..).unwrap_or("").lines().next().unwrap_or("").trim();
        line.chars().take(EXCERPT_CHARS_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::UnitKind;

    #[test]
    fn a_failure_names_unit_step_position_and_line() {
        let locate: Locator = Arc::new(|pointer, offset| format!("a.yaml {pointer}+{offset}"));
        let source = ".a = 1\n.b = to_int!(.c)\n".to_owned();
        let unit = UnitId::new(UnitKind::Flow, "f");
        let place = Place::new(unit, "step 1 (map)".to_owned(), "steps.0.map".to_owned(), source, locate);
        let fault = RunFault { message: "no number".to_owned(), span: Some(12..24), aborted: false };
        let failure = place.fault(&fault);
        assert_eq!(failure.code, "expression");
        assert_eq!(failure.position.as_deref(), Some("a.yaml steps.0.map+12"));
        assert_eq!(failure.message, "flow/f step 1 (map) at a.yaml steps.0.map+12: no number: `.b = to_int!(.c)`");
    }
}
