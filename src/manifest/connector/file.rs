//! Lines in files.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::manifest::value::{ByteSize, Setting, Span};

/// Files one sink keeps open at once.
pub const OPEN_FILES_MAX: usize = 64;

/// Appends each payload as one line (NDJSON when payloads are JSON). A message is acknowledged after its line is written,
/// with `fsync: always` after it is on disk. A line cut short by a crash is completed by a newline before the next.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct File {
    /// The path. May hold `{subject}`, `{unit}`, and of the message's time in UTC `{year}`, `{month}`, `{day}`, `{hour}`.
    /// Folders are made as needed.
    pub path: Setting,
    #[serde(default)]
    pub format: Format,
    /// When written lines are forced to disk.
    #[serde(default)]
    pub fsync: Fsync,
    /// When a file is closed and renamed to `<path>.<n>`, counting up.
    #[serde(default)]
    pub rotate: Option<Rotate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Format {
    /// The payload; JSON is put on one line.
    #[default]
    Payload,
    /// `{"subject", "sequence", "time", "headers", "payload"}`; a payload that is not JSON becomes `payloadBase64`.
    Envelope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Fsync {
    /// Before the message is acknowledged; lines that arrive together share one.
    #[default]
    Always,
    /// The operating system decides. A crash of the machine may lose acknowledged lines.
    Never,
}

/// At least one of the two.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rotate {
    /// When the file would grow beyond this.
    #[serde(default)]
    pub max_bytes: Option<ByteSize>,
    /// When the file is this old.
    #[serde(default)]
    pub max_age: Option<Span>,
    /// How many rotated files are kept; the oldest are deleted. Default: all.
    #[serde(default)]
    pub keep: Option<u32>,
}
