//! Expected beside found.

use serde_json::Value as Json;

use super::diff;
use super::outcome::{DeadLetter, Outcome, Output};
use super::{Case, Difference};
use crate::manifest::check::FileFault;
use crate::manifest::test;

/// Longest text quoted in a message, in characters.
const QUOTED_CHARS_MAX: usize = 300;

impl Case<'_> {
    pub(super) fn compare(&self, found: &Outcome) -> Vec<Difference> {
        let expected = &self.test.expect;
        let mut differences = Vec::new();
        for (at, wanted) in expected.output.iter().enumerate() {
            let path = format!("expect.output.{at}");
            let (message, diff) = match found.outputs.get(at) {
                Some(output) => match differs(wanted, output) {
                    Some((what, diff)) => (format!("output {}: {what}", at + 1), diff),
                    None => continue,
                },
                None => (format!("output {} did not come out", at + 1), String::new()),
            };
            differences.push(Difference { at: self.place(&path), message, diff });
        }
        for (at, output) in found.outputs.iter().enumerate().skip(expected.output.len()) {
            let message = format!("output {} to `{}` was not expected", at + 1, output.subject);
            let diff = diff::all_new(&shown(output));
            differences.push(Difference { at: self.place("expect.output"), message, diff });
        }
        for (at, wanted) in expected.dead_letters.iter().enumerate() {
            let message = match found.dead_letters.get(at) {
                Some(letter) => match differs_letter(wanted, letter) {
                    Some(what) => format!("dead letter {}: {what}", at + 1),
                    None => continue,
                },
                None => format!("dead letter {} (`{}`) did not come about", at + 1, wanted.code),
            };
            let at = self.place(&format!("expect.deadLetters.{at}"));
            differences.push(Difference { at, message, diff: String::new() });
        }
        for letter in found.dead_letters.iter().skip(expected.dead_letters.len()) {
            let message =
                format!("message `{}` became a dead letter: {}: {}", letter.id, letter.code, cut(&letter.text));
            differences.push(Difference { at: self.place("expect.deadLetters"), message, diff: String::new() });
        }
        if let Some(ended) = expected.ended.filter(|ended| *ended != found.ended) {
            let message = format!("{} ended, expected {ended}", found.ended);
            differences.push(Difference { at: self.place("expect.ended"), message, diff: String::new() });
        }
        differences
    }

    pub(super) fn compare_golden(&self, path: &str, found: &str, read: Result<Vec<u8>, FileFault>) -> Vec<Difference> {
        let (message, diff) = match read {
            Ok(bytes) if same_document(&bytes, found) => return Vec::new(),
            Ok(bytes) => {
                let message = format!("differs from `{path}`; `vejas test --update` writes it anew");
                (message, diff::lines(&String::from_utf8_lossy(&bytes), found))
            }
            Err(FileFault::Missing) => {
                (format!("there is no `{path}` yet; `vejas test --update` writes it"), diff::all_new(found))
            }
            Err(fault) => (format!("`{path}`: {fault}"), String::new()),
        };
        vec![Difference { at: self.place("expect.golden"), message, diff }]
    }
}

/// A tool may have laid it out anew.
fn same_document(golden: &[u8], found: &str) -> bool {
    let read = |bytes: &[u8]| serde_json::from_slice::<Json>(bytes).ok();
    golden == found.as_bytes() || read(golden).zip(read(found.as_bytes())).is_some_and(|(a, b)| same(&a, &b))
}

/// What is wrong with an output, and the lines that show it.
fn differs(wanted: &test::Output, found: &Output) -> Option<(String, String)> {
    if wanted.subject.as_str() != found.subject {
        let what = format!("came out to `{}`, expected `{}`", found.subject, wanted.subject);
        return Some((what, diff::all_new(&shown(found))));
    }
    if let Some(id) = wanted.id.as_ref().filter(|id| **id != found.id) {
        return Some((format!("has the id `{}`, expected `{id}`", found.id), String::new()));
    }
    for (name, value) in &wanted.headers {
        let what = match found.headers.get(name) {
            Some(has) if has == value => continue,
            Some(has) => format!("has the header `{name}: {}`, expected `{value}`", cut(has)),
            None => format!("lacks the header `{name}`"),
        };
        return Some((what, String::new()));
    }
    match (&wanted.text, &wanted.payload) {
        (Some(text), _) if text.as_bytes() == found.payload => None,
        (Some(text), _) => Some(("the payload differs".to_owned(), diff::lines(text, &found.text()))),
        (None, Some(payload)) => {
            let Some(json) = found.json() else {
                return Some(("the payload is not JSON".to_owned(), diff::all_new(&found.text())));
            };
            let difference = || diff::lines(&pretty(&aligned(payload, &json)), &pretty(&sorted(&json)));
            (!same(payload, &json)).then(|| ("the payload differs".to_owned(), difference()))
        }
        (None, None) => None,
    }
}

fn differs_letter(wanted: &test::DeadLetter, found: &DeadLetter) -> Option<String> {
    if wanted.code != found.code {
        return Some(format!("has the code `{}`, expected `{}`: {}", found.code, wanted.code, cut(&found.text)));
    }
    if let Some(id) = wanted.id.as_ref().filter(|id| **id != found.id) {
        return Some(format!("is message `{}`, expected `{id}`", found.id));
    }
    let missing = wanted.text.as_ref().filter(|text| !found.text.contains(text.as_str()));
    missing.map(|text| format!("says nothing of {text:?}: {}", cut(&found.text)))
}

/// Equal as JSON: the order of keys does not matter, and a number is its value however it is written.
pub(super) fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => match (a.is_f64(), b.is_f64()) {
            (false, false) => a == b,
            _ => a.as_f64() == b.as_f64(),
        },
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

/// What is expected, with numbers of the same value written as they were found: only true differences are left to show.
pub(super) fn aligned(expected: &Json, found: &Json) -> Json {
    match (expected, found) {
        (Json::Array(items), Json::Array(others)) => {
            let other = |at: usize| others.get(at).unwrap_or(&Json::Null);
            items.iter().enumerate().map(|(at, item)| aligned(item, other(at))).collect()
        }
        (Json::Object(map), Json::Object(others)) => {
            let other = |key: &str| others.get(key).unwrap_or(&Json::Null);
            sorted(&Json::Object(map.iter().map(|(key, item)| (key.clone(), aligned(item, other(key)))).collect()))
        }
        _ if same(expected, found) => found.clone(),
        _ => sorted(expected),
    }
}

pub(super) fn sorted(value: &Json) -> Json {
    match value {
        Json::Array(items) => items.iter().map(sorted).collect(),
        Json::Object(map) => {
            let mut entries: Vec<(&String, &Json)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            Json::Object(entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        scalar => scalar.clone(),
    }
}

pub(super) fn pretty(value: &Json) -> String {
    format!("{value:#}")
}

fn shown(output: &Output) -> String {
    output.json().map_or_else(|| output.text(), |json| pretty(&sorted(&json)))
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_their_value_and_keys_have_no_order() {
        assert!(same(&json!({ "a": 1, "b": [2.0] }), &json!({ "b": [2], "a": 1.0 })));
        assert!(!same(&json!({ "a": 1 }), &json!({ "a": 1, "b": null })));
        assert!(!same(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
        assert!(!same(&json!("1"), &json!(1)));
    }

    #[test]
    fn only_true_differences_are_shown() {
        let (expected, found) = (json!({ "b": 1, "a": 2 }), json!({ "a": 2.0, "b": 1.5 }));
        let text = diff::lines(&pretty(&aligned(&expected, &found)), &pretty(&sorted(&found)));
        assert_eq!(text, "  {\n    \"a\": 2.0,\n-   \"b\": 1\n+   \"b\": 1.5\n  }");
    }
}
