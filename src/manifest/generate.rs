//! JSON Schemas of the manifests, generated from the types: what `schemas/` holds, what `shape` checks against and
//! what `vejas explain` reads from.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{API_VERSION, Metadata, flow, http_in, schema, sink, source, table, test};

/// The kinds of this version, in the order of listings.
pub const KINDS: &[&str] = &["HttpIn", "Source", "Flow", "Sink", "Table", "Schema", "Test"];
/// Kinds of the design that this version does not have. They are refused by name.
pub const KINDS_NOT_IN_THIS_VERSION: &[&str] = &["Entity", "Notifier"];

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The schema of one kind's whole document; `None` for a kind that there is not.
pub fn document(kind: &str) -> Option<&'static Value> {
    static DOCUMENTS: LazyLock<Vec<(&'static str, Value)>> =
        LazyLock::new(|| KINDS.iter().map(|kind| (*kind, generate(kind))).collect());
    DOCUMENTS.iter().find(|(name, _)| *name == kind).map(|(_, schema)| schema)
}

/// The name of the file in `schemas/`: `HttpIn` is `http-in.json`.
pub fn file_name(kind: &str) -> String {
    let mut name = String::new();
    for (at, c) in kind.chars().enumerate() {
        if c.is_ascii_uppercase() && at > 0 {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
    }
    name + ".json"
}

/// The schema of any manifest: by `kind` the schema of that kind.
pub fn any_kind() -> Value {
    let mut definitions = Map::new();
    let mut branches = Vec::new();
    for kind in KINDS {
        let Some(Value::Object(mut schema)) = document(kind).cloned() else { continue };
        schema.remove("$schema");
        if let Some(Value::Object(own)) = schema.remove("$defs") {
            definitions.extend(own);
        }
        let name = format!("{kind}Manifest");
        branches.push(json!({
            "if": { "properties": { "kind": { "const": kind } }, "required": ["kind"] },
            "then": { "$ref": format!("#/$defs/{name}") },
        }));
        definitions.insert(name, Value::Object(schema));
    }
    json!({
        "$schema": DIALECT,
        "title": "Vejas manifest",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": { "const": API_VERSION },
            "kind": { "enum": KINDS, "description": "What the manifest declares." },
        },
        "allOf": branches,
        "$defs": definitions,
    })
}

/// Every file of `schemas/`: name and contents.
pub fn files() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = KINDS
        .iter()
        .filter_map(|kind| document(kind).map(|schema| (file_name(kind), format!("{schema:#}\n"))))
        .collect();
    files.push(("vejas.json".to_owned(), format!("{:#}\n", any_kind())));
    files
}

fn generate(kind: &str) -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let spec = spec(kind, &mut generator);
    let metadata = generator.subschema_for::<Metadata>();
    let definitions = generator.take_definitions(true);
    json!({
        "$schema": DIALECT,
        "title": kind,
        "type": "object",
        "properties": {
            "apiVersion": { "const": API_VERSION, "description": "The version of the manifest format." },
            "kind": { "const": kind, "description": "What the manifest declares." },
            "metadata": metadata,
            "spec": spec,
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": false,
        "$defs": definitions,
    })
}

fn spec(kind: &str, generator: &mut SchemaGenerator) -> schemars::Schema {
    fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> schemars::Schema {
        generator.subschema_for::<T>()
    }
    match kind {
        "HttpIn" => of::<http_in::HttpIn>(generator),
        "Source" => of::<source::Source>(generator),
        "Flow" => of::<flow::Flow>(generator),
        "Sink" => of::<sink::Sink>(generator),
        "Table" => of::<table::Table>(generator),
        "Schema" => of::<schema::Schema>(generator),
        _ => of::<test::Test>(generator),
    }
}
