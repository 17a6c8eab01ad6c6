//! Manifests: the types a user writes. One file per kind; `connector/` has one file per outside system.
//!
//! The doc comment of a field is its documentation: it ends up in `schemas/`, in editors and in `vejas explain`.
//! Beside the types stands what turns text into them: `reader` (YAML to trees with positions), `shape` (trees against the
//! schemas that `generate` makes of the types), `check` (everything that can be known before something runs), with
//! `problem`, `codes` and `report` for what is wrong. Only `tree` reads files; nothing reads the environment.

#[cfg(feature = "language")]
pub mod check;
pub mod codes;
pub mod connector;
pub mod digest;
pub mod flow;
pub mod generate;
pub mod http_in;
pub mod problem;
pub mod reader;
pub mod reference;
pub mod report;
pub mod schema;
pub mod shape;
pub mod sink;
pub mod source;
pub mod table;
pub mod test;
#[cfg(feature = "full")]
pub mod tree;
pub mod value;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::id::{UnitId, UnitKind};

/// The only `apiVersion` there is.
pub const API_VERSION: &str = "vejas/v1";

/// One YAML document.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub metadata: Metadata,
    pub spec: Spec,
}

/// What every manifest carries.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Unique among the manifests of this kind: 1 to 63 of `a-z`, `0-9` and `-`.
    pub name: value::Name,
    /// For people and tools; shown in status and metrics listings.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// For tools; carried, never read.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Spec {
    HttpIn(http_in::HttpIn),
    Source(source::Source),
    Flow(flow::Flow),
    Sink(sink::Sink),
    Table(table::Table),
    Schema(schema::Schema),
    Test(test::Test),
}

impl Manifest {
    pub fn name(&self) -> &str {
        self.metadata.name.as_str()
    }

    /// The `kind` as written.
    pub fn kind(&self) -> &'static str {
        match self.spec {
            Spec::HttpIn(_) => "HttpIn",
            Spec::Source(_) => "Source",
            Spec::Flow(_) => "Flow",
            Spec::Sink(_) => "Sink",
            Spec::Table(_) => "Table",
            Spec::Schema(_) => "Schema",
            Spec::Test(_) => "Test",
        }
    }

    /// The unit it declares; a table, schema or test runs nothing.
    pub fn unit(&self) -> Option<UnitId> {
        let kind = match self.spec {
            Spec::HttpIn(_) => UnitKind::HttpIn,
            Spec::Source(_) => UnitKind::Source,
            Spec::Flow(_) => UnitKind::Flow,
            Spec::Sink(_) => UnitKind::Sink,
            Spec::Table(_) | Spec::Schema(_) | Spec::Test(_) => return None,
        };
        Some(UnitId::new(kind, self.name()))
    }
}
