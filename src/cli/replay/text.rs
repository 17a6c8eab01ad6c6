//! A comparison as people read it.

use std::fmt::Write;

use crate::cli::tap::text::harmless;
use crate::runtime::replay::view::{End, Message, Open, Outcome, Reason, Side};

pub(super) fn open(open: &Open) -> String {
    let Open { instance, unit, active, candidate, stream, from, through } = open;
    let range = match through {
        Some(through) if through < from => "nothing is stored".to_owned(),
        Some(through) => format!("sequences {from} to {through}"),
        None => format!("what comes from sequence {from} on"),
    };
    let same = if active == candidate { ", which is the same" } else { "" };
    format!("vejas: {unit} {active} that runs beside the candidate {candidate}{same}, on {instance}: {stream}, {range}")
}

pub(super) fn message(message: &Message) -> String {
    let mut text =
        format!("#{} {}  {}  {}\n", message.sequence, name(message.outcome), message.subject, harmless(&message.id));
    for (who, side) in [("active", &message.active), ("candidate", &message.candidate)] {
        if let Some(said) = said(side).filter(|_| message.outcome != Outcome::Unchanged) {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "  {who}: {said}");
        }
    }
    if let Some(diff) = &message.diff {
        for line in diff.lines() {
            let _ = writeln!(text, "    {}", harmless(line));
        }
    }
    text
}

pub(super) fn end(end: &End) -> String {
    let summary = end.summary;
    let counted = [
        (summary.unchanged, "unchanged"),
        (summary.changed, "changed"),
        (summary.dropped, "dropped"),
        (summary.added, "added"),
        (summary.failed, "failed"),
        (summary.mended, "mended"),
    ];
    let counted: Vec<String> =
        counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let counted = if counted.is_empty() { "nothing was compared".to_owned() } else { counted.join(", ") };
    let messages =
        if summary.messages == 1 { "1 message".to_owned() } else { format!("{} messages", summary.messages) };
    let why = match (end.reason, &end.detail) {
        (Reason::Complete | Reason::Time, _) => String::new(),
        (Reason::Limit, _) => format!("; the limit is reached, sequence {} would be next", end.next),
        (Reason::VersionChanged, detail) => {
            format!("; ended: {}", detail.as_deref().unwrap_or("another version runs"))
        }
        (Reason::Stopping, _) => "; ended: the process stops".to_owned(),
        (Reason::Bus, detail) => format!("; ended: {}", detail.as_deref().unwrap_or("the bus does not answer")),
    };
    let failing = match summary.failing {
        0 => String::new(),
        failing => format!("; the candidate fails on {failing}"),
    };
    format!("{messages}: {counted}{failing}{why}")
}

/// What comes from outside must not steer a terminal; lines stay lines.
pub(super) fn harmless_lines(text: &str) -> String {
    text.lines().map(harmless).collect::<Vec<_>>().join("\n")
}

fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Unchanged => "unchanged",
        Outcome::Changed => "changed",
        Outcome::Dropped => "dropped",
        Outcome::Added => "added",
        Outcome::Failed => "failed",
        Outcome::Mended => "mended",
    }
}

/// What the difference does not show.
fn said(side: &Side) -> Option<String> {
    match (&side.failure, side.reads) {
        (Some(failure), _) => Some(format!("[{}] {}", failure.code, harmless_lines(&failure.message))),
        (None, false) => Some("does not read this subject".to_owned()),
        (None, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::replay::view::{Failure, Summary};

    #[test]
    fn a_message_shows_why_it_failed_and_cannot_steer_the_terminal() {
        let side = |failure: Option<&str>| Side {
            reads: true,
            outputs: 0,
            failure: failure.map(|text| Failure { code: "expression".to_owned(), message: text.to_owned() }),
        };
        let shown = message(&Message {
            sequence: 7,
            subject: "orders.raw".to_owned(),
            id: "a\x1b[2J".to_owned(),
            time: String::new(),
            outcome: Outcome::Failed,
            active: side(None),
            candidate: side(Some("a.yaml:3\n  no\x07")),
            diff: Some("- \x1bx\n+ dead letter: expression".to_owned()),
        });
        let expected = "#7 failed  orders.raw  a\\u{1b}[2J\n  candidate: [expression] a.yaml:3\n  no\\u{7}\n    - \\u{1b}x\n    + dead letter: expression\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_summary_says_what_came_out_and_why_it_ended() {
        let summary = Summary { messages: 3, unchanged: 1, failed: 2, failing: 2, ..Summary::default() };
        let shown = |reason| end(&End { reason, detail: None, next: 9, summary });
        assert_eq!(shown(Reason::Complete), "3 messages: 1 unchanged, 2 failed; the candidate fails on 2");
        assert!(shown(Reason::Limit).ends_with("; the limit is reached, sequence 9 would be next"));
        let none = End { reason: Reason::Complete, detail: None, next: 1, summary: Summary::default() };
        assert_eq!(end(&none), "0 messages: nothing was compared");
    }
}
