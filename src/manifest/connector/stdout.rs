//! Lines on the standard output.

use schemars::JsonSchema;
use serde::Deserialize;

use super::file::Format;

/// Writes each payload as one line. Logs go to the standard error, so the output stays clean.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Stdout {
    pub format: Format,
}
