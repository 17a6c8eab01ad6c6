//! `kind: Schema`: a JSON Schema under a name.

use schemars::JsonSchema;
use serde::Deserialize;

/// A JSON Schema (draft 2020-12 unless it says otherwise) for entrances and `validate` steps. References may point
/// into the document itself, never elsewhere.
///
/// Exactly one of `jsonSchema` and `file`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schema {
    /// The schema itself.
    #[serde(default)]
    pub json_schema: Option<serde_json::Value>,
    /// A JSON file, relative to the manifest. Must stay inside the tree of manifests.
    #[serde(default)]
    pub file: Option<String>,
}
