//! Two outcomes of the same message, held against each other: what a version of a flow makes of it and what another does.
//!
//! Outputs are compared in their order by subject, business id and payload; the payload as JSON where both are such. Of a dead
//! letter only the code counts: its text names places in a file.

use serde_json::Value as Json;

use super::compare::{aligned, pretty, same, sorted};
use super::diff;
use super::outcome::{Outcome, Output};

/// Longest payload that is shown in a difference, in bytes.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Outputs shown of one message.
const OUTPUTS_MAX: usize = 100;
/// Longest difference, in bytes.
pub const DIFFERENCE_BYTES_MAX: usize = 64 << 10;

/// The lines in which `after` differs from `before`, `-` and `+`; `None` when it does not.
pub fn between(before: &Outcome, after: &Outcome) -> Option<String> {
    let is_same = before.outputs.len() == after.outputs.len()
        && before.outputs.iter().zip(&after.outputs).all(|(before, after)| same_output(before, after))
        && codes(before).eq(codes(after));
    if is_same {
        return None;
    }
    let old: Vec<Option<Json>> = jsons(before);
    let new: Vec<Option<Json>> = jsons(after);
    let like = |at: usize| new.get(at).and_then(Option::as_ref);
    let old_text = text(before, &old, &|at, json| match like(at) {
        Some(other) => pretty(&aligned(json, other)),
        None => pretty(&sorted(json)),
    });
    let new_text = text(after, &new, &|_, json| pretty(&sorted(json)));
    let text = diff::lines(&old_text, &new_text);
    // Longer than what is shown, or bytes that are no text.
    Some(if text.is_empty() { "  (they differ beyond what can be shown)".to_owned() } else { cut(text) })
}

fn codes(outcome: &Outcome) -> impl Iterator<Item = &str> {
    outcome.dead_letters.iter().map(|letter| letter.code.as_str())
}

fn same_output(before: &Output, after: &Output) -> bool {
    before.subject == after.subject
        && before.id == after.id
        && (before.payload == after.payload
            || before.json().zip(after.json()).is_some_and(|(before, after)| same(&before, &after)))
}

/// Those that are shown.
fn jsons(outcome: &Outcome) -> Vec<Option<Json>> {
    let is_shown = |output: &&Output| output.payload.len() <= PAYLOAD_BYTES_MAX;
    outcome.outputs.iter().take(OUTPUTS_MAX).map(|output| Some(output).filter(is_shown)?.json()).collect()
}

fn text(outcome: &Outcome, jsons: &[Option<Json>], json_text: &dyn Fn(usize, &Json) -> String) -> String {
    let mut lines = Vec::new();
    for (at, (output, json)) in outcome.outputs.iter().zip(jsons).enumerate() {
        lines.push(format!("to {} as {}", output.subject, output.id));
        lines.push(match json {
            Some(json) => json_text(at, json),
            None if output.payload.len() > PAYLOAD_BYTES_MAX => {
                format!("({} bytes, too long to be shown)", output.payload.len())
            }
            None => output.text(),
        });
    }
    if outcome.outputs.len() > jsons.len() {
        lines.push(format!("and {} outputs more", outcome.outputs.len() - jsons.len()));
    }
    lines.extend(outcome.dead_letters.iter().map(|letter| format!("dead letter: {}", letter.code)));
    lines.join("\n")
}

fn cut(mut text: String) -> String {
    if text.len() > DIFFERENCE_BYTES_MAX {
        let mut end = DIFFERENCE_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str("\n  … and more");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::outcome::DeadLetter;
    use super::*;

    fn output(subject: &str, id: &str, payload: &str) -> Output {
        Output { subject: subject.into(), id: id.into(), headers: BTreeMap::new(), payload: payload.into() }
    }

    fn outputs(outputs: Vec<Output>) -> Outcome {
        Outcome { outputs, ..Outcome::default() }
    }

    fn dead(code: &str, text: &str) -> Outcome {
        let letter = DeadLetter { id: "a".into(), code: code.into(), text: text.into() };
        Outcome { dead_letters: vec![letter], ..Outcome::default() }
    }

    #[test]
    fn order_of_keys_and_the_writing_of_numbers_are_no_difference_subject_id_and_values_are() {
        let before = outputs(vec![output("o", "1", r#"{"a":1,"b":2}"#)]);
        assert_eq!(between(&before, &outputs(vec![output("o", "1", r#"{"b":2.0,"a":1}"#)])), None);
        let other = outputs(vec![output("o", "1", r#"{"b":3,"a":1.0}"#)]);
        let expected = "  to o as 1\n  {\n    \"a\": 1.0,\n-   \"b\": 2\n+   \"b\": 3\n  }";
        assert_eq!(between(&before, &other).unwrap(), expected);
        let moved = between(&before, &outputs(vec![output("p", "1", r#"{"a":1,"b":2}"#)])).unwrap();
        assert!(moved.starts_with("- to o as 1\n+ to p as 1\n"), "{moved}");
        assert!(between(&before, &outputs(vec![output("o", "1/0", r#"{"a":1,"b":2}"#)])).is_some());
    }

    #[test]
    fn an_output_that_came_in_between_is_the_only_difference() {
        let before = outputs(vec![output("o", "1", "1"), output("o", "3", "3")]);
        let after = outputs(vec![output("o", "1", "1"), output("o", "2", "2"), output("o", "3", "3")]);
        let text = between(&before, &after).unwrap();
        let changed: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(changed, ["+ to o as 2", "+ 2"]);
    }

    #[test]
    fn of_a_dead_letter_the_code_counts() {
        assert_eq!(between(&dead("schema", "a.yaml:1"), &dead("schema", "b.yaml:9")), None);
        let text = between(&dead("schema", "x"), &dead("expression", "x")).unwrap();
        assert_eq!(text, "- dead letter: schema\n+ dead letter: expression");
    }

    #[test]
    fn what_is_shown_is_bounded_and_what_is_not_shown_is_compared_still() {
        let long = |end: &str| format!("\"{}{end}\"", "x".repeat(PAYLOAD_BYTES_MAX));
        let before = outputs(vec![output("o", "1", &long("a"))]);
        assert_eq!(between(&before, &outputs(vec![output("o", "1", &long("a"))])), None);
        let text = between(&before, &outputs(vec![output("o", "1", &long("b"))])).unwrap();
        assert_eq!(text, "  (they differ beyond what can be shown)");
        let many = |end: &str| {
            outputs((0..200).map(|n| output("o", &n.to_string(), &format!("{}{end}", "y".repeat(2_000)))).collect())
        };
        let text = between(&many("a"), &many("b")).unwrap();
        assert!(text.len() <= DIFFERENCE_BYTES_MAX + 20, "{}", text.len());
    }
}
