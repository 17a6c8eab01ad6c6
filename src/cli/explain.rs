//! `vejas explain`: the page of a code, the functions of the language, the documentation of a kind or field, and what a
//! unit guarantees.

mod unit;

use std::path::PathBuf;

use serde_json::Value;

use super::exit::Exit;
use super::output;
use super::schema::{kind_named, unknown_kind};
use crate::language;
use crate::manifest::check::CheckedManifest;
use crate::manifest::codes::Code;
use crate::manifest::problem::did_you_mean;
use crate::manifest::{generate, shape};

/// Levels of fields listed at once. No kind has more; a type that holds itself would have no end.
const LEVELS_MAX: usize = 6;

/// Explain a code (VJ0007), a kind or field (Sink.http.url), or a unit (sink/erp); or list the language's functions.
///
/// Of a unit it tells, from the manifests alone, what it does and what holds when something goes wrong.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A code, `functions`, a kind with a path of fields behind it, or a unit; all codes and kinds when left out.
    #[arg(value_name = "CODE|functions|KIND[.FIELD…]|UNIT")]
    what: Option<String>,
    /// Folder or file of manifests that has the unit.
    #[arg(long, env = "VEJAS_MANIFESTS", default_value = "manifests")]
    manifests: PathBuf,
}

pub fn run(args: &Args) -> Exit {
    let Some(what) = &args.what else {
        overview();
        return Exit::Ok;
    };
    if let Some(code) = Code::parse(what) {
        output::line(code.page().trim_end());
        return Exit::Ok;
    }
    if what.to_ascii_uppercase().starts_with("VJ") {
        output::error(&format!("error: there is no code `{what}`; `vejas explain` lists them"));
        return Exit::Usage;
    }
    if what == "functions" {
        let functions = language::functions();
        let width = functions.iter().map(|function| function.name.len()).max().unwrap_or(0);
        functions.iter().for_each(|f| output::line(&format!("{:width$}  {}", f.name, f.summary)));
        return Exit::Ok;
    }
    if what.contains('/') {
        return explain_unit(what, args.manifests.clone());
    }
    let (kind, path) = what.split_once('.').unwrap_or((what, ""));
    match kind_named(kind) {
        Some(kind) => match field(kind, path) {
            Ok(text) => {
                output::line(text.trim_end());
                Exit::Ok
            }
            Err(message) => {
                output::error(&format!("error: {message}"));
                Exit::Usage
            }
        },
        None => unknown_kind(kind),
    }
}

fn explain_unit(wanted: &str, manifests: PathBuf) -> Exit {
    let checked = match super::check::of(vec![manifests.clone()]) {
        Ok(checked) => checked,
        Err(error) => {
            output::error(&format!("error: {error}"));
            return Exit::Failed;
        }
    };
    let id_of = |checked: &CheckedManifest| checked.manifest.unit().map(|id| id.to_string());
    let found = checked.manifests.iter().find(|one| id_of(one).as_deref() == Some(wanted));
    if let Some(text) = found.and_then(unit::text) {
        output::line(text.trim_end());
        return Exit::Ok;
    }
    let names: Vec<String> = checked.manifests.iter().filter_map(id_of).collect();
    let help = match did_you_mean(wanted, names.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if names.is_empty() => "there are none".to_owned(),
        None => format!("there are: {}", names.join(", ")),
    };
    let path = manifests.display();
    output::error(&format!("error: no sound manifest below {path} declares `{wanted}`; {help}"));
    if checked.has_errors() {
        output::error(&format!("some manifests have errors: see `vejas check {path}`"));
    }
    Exit::Usage
}

fn overview() {
    output::line("Codes:");
    Code::ALL.iter().for_each(|code| output::line(&format!("  {code}  {}", code.title())));
    output::line("\nKinds:");
    generate::KINDS.iter().for_each(|kind| output::line(&format!("  {kind}")));
    output::line("\n`vejas explain functions` lists the functions of expressions and programs.");
}

/// The documentation of a field, or of the whole kind when the path is empty.
fn field(kind: &str, path: &str) -> Result<String, String> {
    let root = generate::document(kind).ok_or("no such kind")?;
    let path = path.strip_prefix("spec.").unwrap_or(path);
    let mut walked = kind.to_owned();
    let mut held = root.get("properties").and_then(|properties| properties.get("spec")).ok_or("no spec")?;
    for key in path.split('.').filter(|key| !key.is_empty()) {
        let fields = fields(root, held);
        let Some((_, next, _)) = fields.iter().find(|(name, ..)| *name == key) else {
            let names: Vec<&str> = fields.iter().map(|(name, ..)| *name).collect();
            let help = match did_you_mean(key, names.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if names.is_empty() => "there is nothing below it".to_owned(),
                None => format!("there are: {}", names.join(", ")),
            };
            return Err(format!("`{walked}` has no field `{key}`; {help}"));
        };
        held = next;
        walked = format!("{walked}.{key}");
    }
    let mut text = format!("{walked}: {}\n", type_text(root, held));
    for description in descriptions(root, held) {
        text.push_str(&format!("\n{description}\n"));
    }
    let mut listed = String::new();
    list(root, held, 1, &mut listed);
    if !listed.is_empty() {
        text.push_str("\nFields:\n");
        text.push_str(&listed);
    }
    Ok(text)
}

/// The fields of a place and below each of them its own, with type, default and the first paragraph on it.
fn list(root: &Value, held: &Value, level: usize, text: &mut String) {
    let indent = "  ".repeat(level);
    for (name, schema, required) in fields(root, held) {
        let summary = descriptions(root, schema).into_iter().next().unwrap_or_default();
        let summary = summary.split("\n\n").next().unwrap_or("").replace('\n', " ");
        let needed = if required { ", required" } else { "" };
        // Of an object the fields tell their defaults; no value is what leaving out means anyway.
        let default = schema.get("default").filter(|value| !value.is_object() && !value.is_null());
        let default = default.map_or_else(String::new, |value| format!(", default {value}"));
        text.push_str(&format!("{indent}{name} ({}{needed}{default})\n", type_text(root, schema)));
        if !summary.is_empty() {
            text.push_str(&format!("{indent}    {summary}\n"));
        }
        if level < LEVELS_MAX {
            list(root, schema, level + 1, text);
        }
    }
}

/// What is said at the place itself and of the type there.
fn descriptions(root: &Value, schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for held in [Some(schema), Some(shape::resolve(root, schema).0), not_null(root, schema)].into_iter().flatten() {
        if let Some(text) = held.get("description").and_then(Value::as_str) {
            let text = text.to_owned();
            if !found.contains(&text) {
                found.push(text);
            }
        }
    }
    found
}

/// Of a value or null, or of one or several, the value.
fn not_null<'s>(root: &'s Value, schema: &'s Value) -> Option<&'s Value> {
    let branches = shape::resolve(root, schema).0.get("anyOf")?.as_array()?;
    branches.first().map(|branch| shape::resolve(root, branch).0)
}

/// The fields below, through references, lists and choices: name, schema, required.
fn fields<'s>(root: &'s Value, schema: &'s Value) -> Vec<(&'s str, &'s Value, bool)> {
    let held = shape::resolve(root, schema).0;
    let required: Vec<&str> =
        held.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let choice = held.get("oneOf").is_some();
    let mut found: Vec<(&str, &Value, bool)> = Vec::new();
    if let Some(properties) = held.get("properties").and_then(Value::as_object) {
        found
            .extend(properties.iter().map(|(name, schema)| (name.as_str(), schema, required.contains(&name.as_str()))));
    }
    for key in ["anyOf", "oneOf"] {
        for branch in held.get(key).and_then(Value::as_array).into_iter().flatten() {
            found.extend(
                fields(root, branch).into_iter().map(|(name, schema, needed)| (name, schema, needed && !choice)),
            );
        }
    }
    if let Some(items) = held.get("items") {
        found.extend(fields(root, items));
    }
    found
}

fn type_text(root: &Value, schema: &Value) -> String {
    let (held, name) = shape::resolve(root, schema);
    if let Some(name) = name.filter(|_| !is_object(held) && held.get("oneOf").is_none()) {
        return name.to_owned();
    }
    if let Some(branches) = held.get("anyOf").and_then(Value::as_array) {
        let kinds: Vec<String> = branches.iter().map(|b| type_text(root, b)).filter(|t| t != "null").collect();
        return kinds.join(" or ");
    }
    if let Some(branches) = held.get("oneOf").and_then(Value::as_array) {
        let words = branches.iter().flat_map(|branch| match (branch.get("const"), branch.get("enum")) {
            (Some(word), _) => vec![word],
            (None, Some(words)) => words.as_array().into_iter().flatten().collect(),
            (None, None) => Vec::new(),
        });
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        return if words.is_empty() { "exactly one of the fields".to_owned() } else { words.join(" | ") };
    }
    if let Some(words) = held.get("enum").and_then(Value::as_array) {
        return words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" | ");
    }
    match held.get("type") {
        Some(Value::String(one)) if one == "array" => {
            format!("list of {}", held.get("items").map_or("anything".to_owned(), |items| type_text(root, items)))
        }
        Some(Value::String(one)) => one.clone(),
        Some(Value::Array(several)) => {
            several.iter().filter_map(Value::as_str).filter(|t| *t != "null").collect::<Vec<_>>().join(" or ")
        }
        _ => "anything".to_owned(),
    }
}

fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_lists_its_fields_down_to_the_last_with_their_defaults() {
        let text = field("Flow", "").unwrap();
        for expected in [
            "    lookup (",
            "      onMissing (",
            "      when (",
            "    maxAttempts (integer, default 5)",
            "      initial (",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(!text.contains("default null"), "{text}");
    }

    #[test]
    fn fields_are_found_through_lists_choices_and_null() {
        for (kind, path, expected) in [
            ("Sink", "http.url", "Where to send."),
            ("Flow", "steps.lookup.onMissing", "null | fail | drop"),
            ("HttpIn", "auth.hmac.header", "The request header"),
            ("Source", "spec.interval.every", "at least 10 ms"),
            ("Flow", "", "Fields:"),
        ] {
            let text = field(kind, path).unwrap();
            assert!(text.contains(expected), "{kind}.{path}: {text}");
        }
        assert!(field("Sink", "http.ulr").unwrap_err().contains("did you mean `url`?"));
    }
}
