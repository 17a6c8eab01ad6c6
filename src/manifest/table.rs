//! `kind: Table`: rows looked up by key.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

/// Rows one table may have at most.
pub const ROWS_MAX: usize = 1_000_000;
/// Largest file a table is read from, in bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// Rows by key, for `lookup` steps and the function `table`. Held in memory.
///
/// Exactly one of `rows` and `file`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Table {
    /// The rows themselves: key to value.
    #[serde(default)]
    pub rows: Option<BTreeMap<String, serde_json::Value>>,
    /// A file beside the manifest.
    #[serde(default)]
    pub file: Option<TableFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TableFile {
    /// The path, relative to the manifest. Must stay inside the tree of manifests. `.csv` (with a header line, values are
    /// text), `.ndjson` (one object a line) or `.json` (an array of objects).
    pub path: String,
    /// The column or field that holds the key. Each key may occur once.
    pub key: String,
}
