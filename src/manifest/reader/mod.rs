//! Bytes of one file in, documents out: each a tree whose every key and value knows its place.
//!
//! This is the only parser of manifests. It works on the events of `granit-parser` because positions, duplicate keys,
//! merge keys and budgets are wanted for every node and not only for those a type asks about
//! (`src/docs/decisions/yaml.md`). It knows nothing of kinds. Whatever is wrong becomes a problem; a document that
//! has one is marked, the others are read on.

mod compose;
pub mod origin;
mod scalar;
pub mod tree;

use std::sync::Arc;

use super::problem::{Code, Place, Problem, Region, Source};
use tree::Node;

/// Largest manifest file, in bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Deepest nesting of a document, aliases written out.
pub const DEPTH_MAX: u32 = 100;
/// Nodes that aliases may add to a file.
pub const ALIAS_NODES_MAX: u64 = 100_000;
/// Bytes of text that aliases may add to a file.
pub const ALIAS_BYTES_MAX: u64 = 4 << 20;
/// Problems reported of one file; a file with more has been understood wrongly as a whole.
pub const PROBLEMS_MAX: usize = 100;

/// One document that is not empty.
#[derive(Debug, Clone)]
pub struct Document {
    /// Which document of the file it is, counted from 0; empty ones count.
    pub index: usize,
    pub root: Node,
    /// A problem of severity error lies inside.
    pub damaged: bool,
}

#[derive(Debug)]
pub struct Read {
    pub source: Arc<Source>,
    pub documents: Vec<Document>,
    pub problems: Vec<Problem>,
}

/// Reads one file.
pub fn read(path: &str, bytes: &[u8]) -> Read {
    let refuse = |source: Source, problem: &dyn Fn(&Arc<Source>) -> Problem| {
        let source = Arc::new(source);
        Read { problems: vec![problem(&source)], documents: Vec::new(), source }
    };
    if bytes.len() > FILE_BYTES_MAX {
        return refuse(Source::new(path, ""), &|source| {
            let message = format!("the file has {} bytes, more than {FILE_BYTES_MAX}", bytes.len());
            Problem::error(Code::TooMuch, Place::whole(source), message)
                .help("split the file, or put large tables into a file of their own (`spec.file`)")
        });
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.valid_up_to();
            return refuse(Source::new(path, String::from_utf8_lossy(bytes)), &|source| {
                let bad = bytes[at];
                let message = format!("byte {at} of the file (0x{bad:02x}) is not UTF-8");
                Problem::error(Code::NotUtf8, Place::new(source, Region::new(at, at + 3)), message)
                    .help("save the file as UTF-8")
            });
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let source = Arc::new(Source::new(path, text));
    let (documents, problems) = compose::documents(&source);
    Read { source, documents, problems }
}

#[cfg(test)]
mod tests;
