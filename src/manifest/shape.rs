//! A tree against the schema of its kind: unknown and missing keys, types, ranges, spellings, each at its place.
//!
//! It walks the schema that `generate` makes of the types, so that nothing is said twice. A general validator reports
//! places as paths and a failed choice as a whole; here the branch that was meant is known by its key, and the texts
//! with rules of their own (names, durations, …) say themselves what is wrong. It knows the keywords that those
//! schemas use and no others; a test holds it to that.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::problem::{Code, Place, Problem, Region, Source, did_you_mean};
use super::reader::tree::{Entry, Node, Value};
use super::value::{ByteSize, InvalidValue, Name, Pattern, Rate, Span, StartFrom, Subject, Time};
use super::{sink, source};

/// What the walk reads of a schema. Everything else in it is for editors.
pub const KEYWORDS: &[&str] = &[
    "$ref",
    "additionalProperties",
    "anyOf",
    "const",
    "enum",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minimum",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
];
/// What it leaves out: notes for people and tools, and the names of number formats.
pub const NOTES: &[&str] = &["$defs", "$schema", "default", "description", "format", "title"];

/// All problems of the part of a tree that `schema` describes. `root` is the schema with `$defs`.
pub fn problems(source: &Arc<Source>, kind: &str, root: &Json, node: &Node, at: Region) -> Vec<Problem> {
    let mut walk = Walk { source, kind, root, path: Vec::new(), problems: Vec::new() };
    walk.node(root, node, at);
    walk.problems
}

/// Follows `$ref` as long as there is one; the name of the last definition comes along.
pub fn resolve<'s>(root: &'s Json, schema: &'s Json) -> (&'s Json, Option<&'s str>) {
    let mut schema = schema;
    let mut name = None;
    while let Some(target) = schema.get("$ref").and_then(Json::as_str) {
        let definition = target.trim_start_matches("#/$defs/");
        let Some(found) = root.get("$defs").and_then(|defs| defs.get(definition)) else { break };
        (schema, name) = (found, Some(definition));
    }
    (schema, name)
}

struct Walk<'a> {
    source: &'a Arc<Source>,
    kind: &'a str,
    root: &'a Json,
    path: Vec<String>,
    problems: Vec<Problem>,
}

impl Walk<'_> {
    fn error(&mut self, code: Code, region: Region, message: String) -> &mut Problem {
        self.problems.push(Problem::error(code, Place::new(self.source, region), message));
        let last = self.problems.len() - 1;
        &mut self.problems[last]
    }

    /// The field in the words of the manifest: `spec.steps[2].lookup`.
    fn field(&self) -> String {
        let mut text = String::new();
        for step in &self.path {
            if !text.is_empty() && !step.starts_with('[') {
                text.push('.');
            }
            text.push_str(step);
        }
        if text.is_empty() { "the manifest".to_owned() } else { format!("`{text}`") }
    }

    /// `at` is the key that holds the node: where something is missing there is nothing else to point at.
    fn node(&mut self, schema: &Json, node: &Node, at: Region) {
        let (schema, name) = resolve(self.root, schema);
        let Some(rules) = schema.as_object() else { return };
        if let Some(name) = name
            && let Some(result) = parse_named(name, node)
        {
            return self.named(result, node);
        }
        if let Some(branches) = rules.get("anyOf").and_then(Json::as_array) {
            return self.any_of(branches, node, at);
        }
        if let Some(branches) = rules.get("oneOf").and_then(Json::as_array) {
            return self.one_of(branches, node, at);
        }
        if let Some(allowed) = rules.get("enum").and_then(Json::as_array) {
            let allowed: Vec<&Json> = allowed.iter().collect();
            return self.allowed(&allowed, node);
        }
        if let Some(value) = rules.get("const") {
            return self.allowed(&[value], node);
        }
        if !self.fits_type(rules, node) {
            return;
        }
        match &node.value {
            Value::Map(entries) => self.map(rules, entries, at),
            Value::List(items) => self.list(rules, items, node.region),
            Value::Number(number) => self.range(rules, number, node.region),
            _ => {}
        }
    }

    fn named(&mut self, result: Result<(), InvalidValue>, node: &Node) {
        let Err(InvalidValue(why)) = result else { return };
        let field = self.field();
        self.error(Code::InvalidValue, node.region, format!("{field}: {why}"));
    }

    fn fits_type(&mut self, rules: &Map<String, Json>, node: &Node) -> bool {
        let wanted: Vec<&str> = match rules.get("type") {
            Some(Json::String(one)) => vec![one],
            Some(Json::Array(several)) => several.iter().filter_map(Json::as_str).collect(),
            _ => return true,
        };
        if wanted.iter().any(|wanted| is_type(wanted, node)) {
            return true;
        }
        let names: Vec<&str> = wanted.iter().filter(|w| **w != "null").map(|w| type_name(w)).collect();
        let message = format!("{} is {}, wanted {}", self.field(), node.type_name(), names.join(" or "));
        let text = match &node.value {
            // A plain number where a type of its own is wanted, such as `every: 10`: that type says how it is written.
            Value::Number(_)
                if wanted == ["string"] && rules.contains_key("pattern") && rules.contains_key("description") =>
            {
                rules.get("description").and_then(Json::as_str).map(str::to_owned)
            }
            Value::Number(_) | Value::Bool(_) if wanted.contains(&"string") => {
                self.source.text.get(node.region.range()).map(|text| format!("quote it to have it as text: \"{text}\""))
            }
            Value::Text { .. } if wanted.contains(&"integer") || wanted.contains(&"boolean") => {
                Some("leave the quotes out if there are any, and write the value alone".to_owned())
            }
            _ => None,
        };
        self.error(Code::WrongType, node.region, message).help = text;
        false
    }

    fn range(&mut self, rules: &Map<String, Json>, number: &serde_json::Number, region: Region) {
        let Some(value) = number.as_f64() else { return };
        let bound = |key: &str| rules.get(key).and_then(Json::as_f64);
        let (low, high) = (bound("minimum"), bound("maximum"));
        let below = low.is_some_and(|low| value < low);
        let above = high.is_some_and(|high| value > high);
        if !below && !above {
            return;
        }
        let wanted = match (low, high) {
            (Some(low), Some(high)) => format!("{low} to {high}"),
            (Some(low), None) => format!("at least {low}"),
            (_, Some(high)) => format!("at most {high}"),
            (None, None) => return,
        };
        let message = format!("{} is {number}, allowed is {wanted}", self.field());
        self.error(Code::InvalidValue, region, message);
    }

    fn list(&mut self, rules: &Map<String, Json>, items: &[Node], region: Region) {
        let bound = |key: &str| rules.get(key).and_then(Json::as_u64);
        if let Some(min) = bound("minItems").filter(|min| (items.len() as u64) < *min) {
            let message = format!("{} has {} entries, at least {min} are needed", self.field(), items.len());
            self.error(Code::InvalidValue, region, message);
        }
        if let Some(max) = bound("maxItems").filter(|max| items.len() as u64 > *max) {
            let message = format!("{} has {} entries, at most {max} are allowed", self.field(), items.len());
            self.error(Code::InvalidValue, region, message);
        }
        let Some(schema) = rules.get("items") else { return };
        for (at, item) in items.iter().enumerate() {
            self.path.push(format!("[{at}]"));
            self.node(schema, item, item.region);
            self.path.pop();
        }
    }

    fn map(&mut self, rules: &Map<String, Json>, entries: &[Entry], at: Region) {
        let empty = Map::new();
        let properties = rules.get("properties").and_then(Json::as_object).unwrap_or(&empty);
        let more = rules.get("additionalProperties");
        for entry in entries {
            let schema = match (properties.get(&*entry.key), more) {
                (Some(schema), _) => schema,
                (None, Some(Json::Bool(false))) => {
                    self.unknown_key(entry, properties.keys().map(String::as_str));
                    continue;
                }
                (None, Some(schema)) => schema,
                (None, None) => continue,
            };
            self.path.push(entry.key.to_string());
            self.node(schema, &entry.value, entry.key_region);
            self.path.pop();
        }
        let required = rules.get("required").and_then(Json::as_array);
        for key in required.into_iter().flatten().filter_map(Json::as_str) {
            if !entries.iter().any(|entry| &*entry.key == key) {
                let message = format!("{} lacks the key `{key}`", self.field());
                self.error(Code::MissingKey, at, message);
            }
        }
    }

    fn unknown_key<'k>(&mut self, entry: &Entry, known: impl Iterator<Item = &'k str>) {
        let key = &*entry.key;
        let later = match (self.kind, self.path.as_slice()) {
            ("Source", [spec]) if spec == "spec" => source::NOT_IN_THIS_VERSION,
            ("Sink", [spec]) if spec == "spec" => sink::NOT_IN_THIS_VERSION,
            _ => &[],
        };
        if later.contains(&key) {
            let message = format!("the connector `{key}` is not in this version");
            let kind = self.kind;
            self.error(Code::NotInThisVersion, entry.key_region, message).help =
                Some(format!("`vejas explain {kind}` lists the connectors there are"));
            return;
        }
        let mut known: Vec<&str> = known.collect();
        let suggestion = did_you_mean(key, known.iter().copied());
        known.sort_unstable();
        let help = match suggestion {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("keys there are: {}", known.join(", ")),
        };
        let message = format!("{} has no key `{key}`", self.field());
        self.error(Code::UnknownKey, entry.key_region, message).help = Some(help);
    }

    fn allowed(&mut self, allowed: &[&Json], node: &Node) {
        if allowed.iter().any(|value| **value == node.to_json()) {
            return;
        }
        let written = self.source.text.get(node.region.range()).unwrap_or("").lines().next().unwrap_or("").to_owned();
        let names: Vec<String> = allowed.iter().map(|v| v.as_str().map_or(v.to_string(), str::to_owned)).collect();
        let message = format!("{} cannot be `{written}`", self.field());
        let meant = node.text().and_then(|text| did_you_mean(text, names.iter().map(String::as_str)));
        let help = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("allowed is: {}", names.join(", ")),
        };
        self.error(Code::InvalidValue, node.region, message).help = Some(help);
    }

    /// A value or null, or one or several of the same: the type of the node says which branch was meant.
    fn any_of(&mut self, branches: &[Json], node: &Node, at: Region) {
        if matches!(node.value, Value::Null) && branches.iter().any(|b| b.get("type") == Some(&Json::from("null"))) {
            return;
        }
        let takes = |branch: &&Json| match resolve(self.root, branch).0.get("type") {
            Some(Json::String(wanted)) => is_type(wanted, node),
            Some(Json::Array(several)) => several.iter().filter_map(Json::as_str).any(|wanted| is_type(wanted, node)),
            _ => resolve(self.root, branch).0.get("oneOf").is_some(),
        };
        let mut meant = branches.iter().filter(takes);
        match (meant.next(), branches.first()) {
            (Some(branch), _) | (None, Some(branch)) => self.node(branch, node, at),
            (None, None) => {}
        }
    }

    /// One of several words, or a mapping whose one key says which branch it is.
    fn one_of(&mut self, branches: &[Json], node: &Node, at: Region) {
        let words: Vec<&Json> = branches.iter().flat_map(words).collect();
        let keyed: Vec<(&str, &Json)> = branches.iter().filter_map(keyed).collect();
        if keyed.is_empty() {
            return self.allowed(&words, node);
        }
        let names = keyed.iter().map(|(key, _)| *key).collect::<Vec<_>>();
        let Value::Map(entries) = &node.value else {
            let message =
                format!("{} is {}, wanted a mapping with one of: {}", self.field(), node.type_name(), names.join(", "));
            self.error(Code::WrongType, node.region, message);
            return;
        };
        let mut stated = Vec::new();
        for entry in entries.iter() {
            match keyed.iter().find(|(key, _)| *key == &*entry.key) {
                Some((_, schema)) => {
                    stated.push(entry);
                    self.path.push(entry.key.to_string());
                    self.node(schema, &entry.value, entry.key_region);
                    self.path.pop();
                }
                None => self.unknown_key(entry, names.iter().copied()),
            }
        }
        match stated.as_slice() {
            [_] => {}
            [] if entries.is_empty() => {
                let message = format!("{} is empty, exactly one key is needed", self.field());
                self.error(Code::ExactlyOne, at, message).help = Some(format!("one of: {}", names.join(", ")));
            }
            [] => {}
            [first, rest @ ..] => {
                let all: Vec<String> = stated.iter().map(|entry| format!("`{}`", entry.key)).collect();
                let message = format!("{} has {}, exactly one is allowed", self.field(), all.join(" and "));
                let (first, second) = (first.key_region, rest[0].key_region);
                let place = Place::new(self.source, first);
                self.error(Code::ExactlyOne, second, message).labels =
                    vec![super::problem::Label { place, text: "the other".to_owned() }];
            }
        }
    }
}

fn words(branch: &Json) -> Vec<&Json> {
    match (branch.get("const"), branch.get("enum").and_then(Json::as_array)) {
        (Some(value), _) => vec![value],
        (None, Some(values)) => values.iter().collect(),
        (None, None) => Vec::new(),
    }
}

fn keyed(branch: &Json) -> Option<(&str, &Json)> {
    let properties = branch.get("properties")?.as_object()?;
    properties.iter().next().map(|(key, schema)| (key.as_str(), schema))
}

/// The scalar types that can say themselves what is wrong with a text. `None` leaves the node to the schema.
fn parse_named(name: &str, node: &Node) -> Option<Result<(), InvalidValue>> {
    let text = node.text()?;
    let result = match name {
        "Name" => Name::parse(text).map(drop),
        "Subject" => Subject::parse(text).map(drop),
        "Pattern" => Pattern::parse(text).map(drop),
        "Duration" => Span::parse(text).map(drop),
        "ByteSize" => ByteSize::parse(text).map(drop),
        "Rate" => Rate::parse(text).map(drop),
        "StartFrom" => StartFrom::parse(text).map(drop),
        "Time" => Time::parse(text).map(drop),
        _ => return None,
    };
    Some(result)
}

fn is_type(wanted: &str, node: &Node) -> bool {
    match (wanted, &node.value) {
        ("null", Value::Null)
        | ("boolean", Value::Bool(_))
        | ("number", Value::Number(_))
        | ("string", Value::Text { .. })
        | ("array", Value::List(_))
        | ("object", Value::Map(_)) => true,
        ("integer", Value::Number(number)) => !number.is_f64(),
        _ => false,
    }
}

fn type_name(wanted: &str) -> &str {
    match wanted {
        "string" => "text",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "a list",
        "object" => "a mapping",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::generate;

    /// Walks every schema node and collects the keywords used.
    fn keywords(schema: &Json, found: &mut std::collections::BTreeSet<String>) {
        let Some(rules) = schema.as_object() else { return };
        found.extend(rules.keys().cloned());
        for key in ["properties", "$defs"] {
            rules
                .get(key)
                .and_then(Json::as_object)
                .into_iter()
                .flat_map(|m| m.values())
                .for_each(|s| keywords(s, found));
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            rules.get(key).and_then(Json::as_array).into_iter().flatten().for_each(|s| keywords(s, found));
        }
        for key in ["items", "additionalProperties"] {
            rules.get(key).into_iter().for_each(|s| keywords(s, found));
        }
    }

    #[test]
    fn every_keyword_of_the_generated_schemas_is_known() {
        let mut found = std::collections::BTreeSet::new();
        for kind in generate::KINDS {
            keywords(generate::document(kind).unwrap(), &mut found);
        }
        let unknown: Vec<_> =
            found.iter().filter(|k| !KEYWORDS.contains(&k.as_str()) && !NOTES.contains(&k.as_str())).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
