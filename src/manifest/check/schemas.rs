//! Schema manifests: the document is there, is a JSON Schema, and refers to nothing outside itself.

use std::sync::Arc;

use super::{Check, CheckedSchema};
use crate::language::EventType;
use crate::manifest::digest::{self, Referred};
use crate::manifest::problem::{Code, Place, Problem, Source};
use crate::manifest::{Spec, schema::Schema};

/// Largest file a schema is read from, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

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
