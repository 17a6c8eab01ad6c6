//! Schema manifests: the document is there, is a JSON Schema, and refers to nothing outside itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Check, CheckedSchema};
use crate::language::EventType;
use crate::manifest::digest::{self, Referred};
use crate::manifest::problem::{Code, Place, Problem, Source};
use crate::manifest::{Spec, schema::Schema};

/// Largest file a schema is read from, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Subschemas that one schema may come to when each reference is followed: what a validator may have to try on one value.
const BRANCHES_MAX: u64 = 10_000;

impl Check<'_> {
    pub(super) fn check_schemas(&mut self) {
        for at in 0..self.drafts.len() {
            let Some(manifest) = &self.drafts[at].manifest else { continue };
            let Spec::Schema(spec) = &manifest.spec else { continue };
            let name = manifest.name().to_owned();
            match self.schema(at, spec) {
                Ok((schema, referred)) => {
                    self.drafts[at].referred.extend(referred);
                    self.schemas.insert(name, Arc::new(schema));
                }
                Err(problem) => self.report(at, *problem),
            }
        }
    }

    fn schema(&self, at: usize, spec: &Schema) -> Result<(CheckedSchema, Option<Referred>), Box<Problem>> {
        let draft = &self.drafts[at];
        match (&spec.json_schema, &spec.file) {
            (Some(json), None) => {
                let compiled = compile(json).map_err(|(path, message)| {
                    let place = draft.at(&format!("spec.jsonSchema{}", path.replace('/', ".")));
                    Box::new(invalid(place, &message))
                })?;
                Ok((compiled, None))
            }
            (None, Some(path)) => {
                let bytes = (self.world.read_beside)(&draft.source.path, path, FILE_BYTES_MAX)
                    .map_err(|fault| Box::new(super::settings::missing_file(draft.at("spec.file"), path, &fault)))?;
                let referred = Referred { kind: "file", name: path.clone(), digest: digest::bytes(&bytes) };
                let json = serde_json::from_slice(&bytes).map_err(|error| {
                    let message = format!("{path}, line {}, column {}: {error}", error.line(), error.column());
                    Box::new(invalid(draft.at("spec.file"), &message))
                })?;
                let compiled = compile(&json).map_err(|(pointer, message)| {
                    let source = Arc::new(Source::new(path.as_str(), ""));
                    let place = draft.at("spec.file");
                    Box::new(invalid(place, &message).and(Place::whole(&source), format!("at `{pointer}`")))
                })?;
                Ok((compiled, Some(referred)))
            }
            (stated, _) => {
                let message = match stated {
                    Some(_) => "the schema has both `jsonSchema` and `file`, exactly one is allowed",
                    None => "the schema has neither `jsonSchema` nor `file`, exactly one is needed",
                };
                let place = draft.at_key(if stated.is_some() { "spec.file" } else { "spec" });
                Err(Box::new(Problem::error(Code::ExactlyOne, place, message)))
            }
        }
    }
}

fn invalid(place: Place, message: &str) -> Problem {
    Problem::error(Code::InvalidSchema, place, format!("invalid JSON Schema: {message}"))
}

/// `Err` is a JSON pointer into the schema and what is wrong there.
fn compile(json: &serde_json::Value) -> Result<CheckedSchema, (String, String)> {
    if !json.is_object() && !json.is_boolean() {
        return Err((String::new(), "a schema is a mapping, `true` or `false`".to_owned()));
    }
    if let Some(pointer) = too_wide(json) {
        let message = format!(
            "with its references followed it comes to more than {BRANCHES_MAX} subschemas, so checking one small value may take minutes"
        );
        return Err((pointer, message));
    }
    let validator = jsonschema::validator_for(json).map_err(|error| {
        let message = error.to_string();
        match outside_reference(json, &message, String::new()) {
            Some((pointer, target)) => (pointer, format!("`{target}` lies outside this document and is not fetched")),
            None => (error.instance_path().as_str().to_owned(), message),
        }
    })?;
    Ok(CheckedSchema {
        validator: Arc::new(validator),
        event_type: EventType::from_json_schema(json),
        digest: digest::value(json),
        json: json.clone(),
    })
}

/// The reference that a message of the compiler is about: pointer and target.
fn outside_reference(json: &serde_json::Value, message: &str, pointer: String) -> Option<(String, String)> {
    match json {
        serde_json::Value::Object(map) => map.iter().find_map(|(key, value)| {
            let here = format!("{pointer}/{key}");
            match value.as_str() {
                Some(target) if key == "$ref" && !target.starts_with('#') && message.contains(target) => {
                    Some((here, target.to_owned()))
                }
                _ => outside_reference(value, message, here),
            }
        }),
        serde_json::Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, item)| outside_reference(item, message, format!("{pointer}/{at}")))
        }
        _ => None,
    }
}

/// Where a schema comes to more than [`BRANCHES_MAX`] subschemas, as a JSON pointer.
///
/// A reference inside itself counts as one: how often it is followed depends on how deep the value is.
fn too_wide(root: &serde_json::Value) -> Option<String> {
    let mut widths = BTreeMap::new();
    let width = width(root, root, &mut widths, &mut BTreeSet::new());
    if width <= BRANCHES_MAX {
        return None;
    }
    let narrowest = widths.into_iter().filter(|(_, width)| *width > BRANCHES_MAX).min_by_key(|(_, width)| *width);
    Some(narrowest.map(|(pointer, _)| pointer).unwrap_or_default())
}

fn width<'s>(
    root: &'s serde_json::Value,
    schema: &'s serde_json::Value,
    widths: &mut BTreeMap<String, u64>,
    following: &mut BTreeSet<&'s str>,
) -> u64 {
    match schema {
        serde_json::Value::Object(fields) => {
            let mut sum = 1_u64;
            for (key, value) in fields {
                sum = match value.as_str().filter(|_| key == "$ref") {
                    Some(target) => sum.saturating_add(width_of_reference(root, target, widths, following)),
                    // Only what is referred to counts of the definitions.
                    None if key == "$defs" || key == "definitions" => sum,
                    None => sum.saturating_add(width(root, value, widths, following)),
                };
            }
            sum
        }
        serde_json::Value::Array(items) => {
            items.iter().map(|item| width(root, item, widths, following)).fold(0, u64::saturating_add)
        }
        _ => 0,
    }
}

fn width_of_reference<'s>(
    root: &'s serde_json::Value,
    target: &'s str,
    widths: &mut BTreeMap<String, u64>,
    following: &mut BTreeSet<&'s str>,
) -> u64 {
    let Some(pointer) = target.strip_prefix('#') else { return 1 };
    if let Some(known) = widths.get(pointer) {
        return *known;
    }
    let Some(referred) = root.pointer(pointer).filter(|_| following.insert(target)) else { return 1 };
    let found = width(root, referred, widths, following);
    following.remove(target);
    widths.insert(pointer.to_owned(), found);
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each definition refers to the one before it twice.
    fn doubling(depth: usize) -> serde_json::Value {
        let mut definitions = serde_json::Map::from_iter([("d0".to_owned(), json!({ "type": "string" }))]);
        for n in 1..=depth {
            let before = json!({ "$ref": format!("#/$defs/d{}", n - 1) });
            definitions.insert(format!("d{n}"), json!({ "anyOf": [before, before] }));
        }
        json!({ "$defs": definitions, "properties": { "id": { "$ref": format!("#/$defs/d{depth}") } } })
    }

    #[test]
    fn a_schema_that_doubles_with_each_reference_is_refused_where_it_gets_too_wide() {
        assert_eq!(too_wide(&doubling(8)), None);
        let pointer = too_wide(&doubling(60)).unwrap();
        assert!(pointer.starts_with("/$defs/d1"), "{pointer}");
        assert!(compile(&doubling(30)).is_err());
    }

    #[test]
    fn a_schema_of_a_tree_may_refer_to_itself() {
        let tree = json!({ "$defs": { "node": { "properties": { "left": { "$ref": "#/$defs/node" }, "right": { "$ref": "#/$defs/node" } } } }, "$ref": "#/$defs/node" });
        assert_eq!(too_wide(&tree), None);
        assert!(compile(&tree).is_ok());
    }
}
