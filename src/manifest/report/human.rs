//! For people: the source line, a caret, and the mend.

use std::sync::Arc;

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use crate::manifest::problem::{Place, Problem, Region, Severity, Source};

/// Lines between two places up to which they are shown in one piece.
const GAP_LINES_MAX: usize = 2_000;

/// Renders one problem. The text ends without a newline.
pub fn human(problem: &Problem, colour: bool) -> String {
    let level = match problem.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = Group::with_title(level.primary_title(problem.message.as_str()).id(problem.code.as_str()));
    // Places by file, the problem's own first.
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    let own = std::iter::once((AnnotationKind::Primary, &problem.place, problem.label.as_deref()));
    let others = problem.labels.iter().map(|l| (AnnotationKind::Context, &l.place, Some(l.text.as_str())));
    for (kind, place, text) in own.chain(others) {
        let Some(region) = place.region.filter(|_| !place.source.text.is_empty()) else {
            group = group.element(Origin::path(place.source.path.as_str()));
            if let (AnnotationKind::Context, Some(text)) = (kind, text) {
                group = group.element(Level::NOTE.message(text));
            }
            continue;
        };
        match pieces.iter_mut().find(|piece| piece.takes(place, region)) {
            Some(piece) => piece.marks.push((kind, region, text)),
            None => pieces.push(Piece { source: &place.source, marks: vec![(kind, region, text)] }),
        }
    }
    for piece in &pieces {
        group = group.element(piece.snippet());
    }
    if let Some(help) = &problem.help {
        group = group.element(Level::HELP.message(help.as_str()));
    }
    let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
    renderer.render(&[group])
}

struct Piece<'p> {
    source: &'p Arc<Source>,
    marks: Vec<(AnnotationKind, Region, Option<&'p str>)>,
}

impl<'p> Piece<'p> {
    fn takes(&self, place: &Place, region: Region) -> bool {
        let line = self.source.line_of(region.start);
        let near = |other: &Region| self.source.line_of(other.start).abs_diff(line) <= GAP_LINES_MAX;
        Arc::ptr_eq(self.source, &place.source) && self.marks.iter().all(|(_, other, _)| near(other))
    }

    /// Only the lines in question are handed to the renderer: it reads all of what it gets.
    fn snippet(&self) -> Snippet<'p, Annotation<'p>> {
        let lines = self.marks.iter().map(|(_, region, _)| self.source.line_of(region.start));
        let first = lines.clone().min().unwrap_or(0);
        let last = lines.max().unwrap_or(0);
        let start = self.source.line_range(first).start;
        let end = self.source.line_range(last).end;
        let marks = self.marks.iter().map(|(kind, region, text)| {
            let mark = kind.span(region.start - start..(region.end.min(end)).max(region.start) - start);
            mark.label(*text)
        });
        let text = &self.source.text[start..end];
        Snippet::source(text).line_start(first + 1).path(self.source.path.as_str()).annotations(marks)
    }
}
