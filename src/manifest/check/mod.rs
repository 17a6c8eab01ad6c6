//! All problems of a whole tree at once, and what is left to run.
//!
//! Pure: the files come as bytes; other files, variables and addresses come from [`World`]. The order: what cannot be
//! read, what is no manifest, what has not the shape of its kind, names and references, each kind's own rules, subjects
//! across manifests, programs. A later part sees what an earlier one left whole, so that one mistake is one problem.
//!
//! What it upholds: a manifest with an error is left out of [`Checked::manifests`], and so is what refers to it by name;
//! a warning leaves nothing out; the same tree and world give the same answer in the same order.

mod draft;
pub mod flow_tests;
mod flows;
mod http_in;
mod names;
mod programs;
mod schemas;
mod settings;
mod sinks;
mod sources;
mod subjects;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::problem::{Position, Problem, Severity};
use super::reader::{self, origin::Origin};
use super::value::{OneOrMany, Pattern, StartFrom};
use super::{Manifest, digest};
use crate::id::UnitId;
use crate::language::{Compiler, EventType, Program, Tables};
use draft::Draft;

/// What is checked.
#[derive(Debug, Default)]
pub struct Tree {
    pub files: Vec<TreeFile>,
    /// What went wrong while the files were gathered.
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone)]
pub struct TreeFile {
    /// As shown to people; also what relative paths inside are relative to.
    pub path: String,
    pub bytes: Vec<u8>,
}

/// Reads the file at a path relative to a manifest, of at most so many bytes.
pub type ReadBeside<'a> = dyn Fn(&str, &str, u64) -> Result<Vec<u8>, FileFault> + Sync + 'a;

/// Why a file beside a manifest cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    #[error("there is no such file")]
    Missing,
    #[error("it lies outside the tree of manifests")]
    Outside,
    #[error("it has {bytes} bytes, more than {bytes_max}")]
    TooLarge { bytes: u64, bytes_max: u64 },
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

/// What a check may know beside the tree.
pub struct World<'a> {
    pub compiler: &'a Compiler,
    pub read_beside: &'a ReadBeside<'a>,
    /// Whether a variable is set. `None` asks about none.
    pub is_set: Option<&'a (dyn Fn(&str) -> bool + Sync + 'a)>,
    /// Where the API listens.
    pub api_address: Option<SocketAddr>,
    /// Where an entrance listens that does not say.
    pub listen_default: SocketAddr,
    /// Threads that compile programs.
    pub threads: usize,
}

impl fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("api_address", &self.api_address).finish_non_exhaustive()
    }
}

/// The answer.
#[derive(Debug)]
pub struct Checked {
    /// By file and place.
    pub problems: Vec<Problem>,
    /// Those without an error, by file and place.
    pub manifests: Vec<CheckedManifest>,
    /// Units that an error keeps from running, by file and place.
    pub left_out: Vec<LeftOut>,
    /// Documents that were looked at.
    pub documents: usize,
    pub tables: Tables,
    pub schemas: BTreeMap<String, Arc<CheckedSchema>>,
}

impl Checked {
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }
}

/// A unit that cannot run. What would have come to it has to wait for it, so its place as a reader is still known.
#[derive(Debug, Clone, PartialEq)]
pub struct LeftOut {
    pub id: UnitId,
    pub file: PathBuf,
    /// Where its manifest begins.
    pub line: usize,
    /// The first error.
    pub reason: String,
    /// Of a flow or sink, what it would read, as far as that can be told.
    pub reads: Option<(OneOrMany<Pattern>, StartFrom)>,
}

#[derive(Debug)]
pub struct CheckedManifest {
    pub manifest: Manifest,
    pub file: PathBuf,
    /// Which document of the file, counted from 0.
    pub document: usize,
    /// Where it begins.
    pub line: usize,
    pub digest: [u8; 32],
    /// The spec as written.
    pub spec: serde_json::Value,
    /// The schemas, tables and files that are part of the digest.
    pub referred: Vec<digest::Referred>,
    /// By the place of the text below `spec`: `steps.2.map`, `steps.3.lookup.key`, `steps.4.route.0.when`, `orderBy`.
    /// Of a Test those of its flow, compiled with the tables that the test gives.
    pub programs: BTreeMap<String, CheckedProgram>,
    /// Where the expectations of a Test stand, by their place below `spec`: `expect.output.0`. Empty for other kinds.
    pub places: BTreeMap<String, Position>,
}

/// A program that compiled, and where its text stands.
#[derive(Debug, Clone)]
pub struct CheckedProgram {
    pub program: Arc<Program>,
    /// The event type it was compiled with.
    pub event: EventType,
    pub origin: Origin,
}

impl CheckedProgram {
    /// Line and column in the manifest's file of a byte of the program's text.
    pub fn position(&self, offset: usize) -> Position {
        self.origin.position(offset)
    }
}

pub struct CheckedSchema {
    pub json: serde_json::Value,
    pub validator: Arc<jsonschema::Validator>,
    pub event_type: EventType,
    pub digest: [u8; 32],
}

impl fmt::Debug for CheckedSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedSchema").field("event_type", &self.event_type).finish_non_exhaustive()
    }
}

/// Checks a tree.
pub fn check(tree: &Tree, world: &World<'_>) -> Checked {
    let mut check = Check {
        world,
        drafts: Vec::new(),
        problems: tree.problems.clone(),
        names: names::Names::default(),
        schemas: BTreeMap::new(),
        tables: Tables::new(),
    };
    check.read(tree);
    check.collect_names();
    check.check_schemas();
    check.check_tables();
    check.check_settings();
    check.check_entrances();
    check.check_sources();
    check.check_sinks();
    check.check_flows();
    check.check_names_referred();
    check.check_subjects();
    check.check_programs();
    check.check_tests();
    check.finish()
}

/// The work in progress. Each part of the check is an `impl` in a file of its own.
struct Check<'a> {
    world: &'a World<'a>,
    drafts: Vec<Draft>,
    problems: Vec<Problem>,
    names: names::Names,
    schemas: BTreeMap<String, Arc<CheckedSchema>>,
    tables: Tables,
}

impl Check<'_> {
    fn read(&mut self, tree: &Tree) {
        for file in &tree.files {
            let read = reader::read(&file.path, &file.bytes);
            self.problems.extend(read.problems);
            for document in read.documents {
                let (draft, problems) = Draft::new(&read.source, document);
                self.drafts.push(draft);
                self.problems.extend(problems);
            }
        }
    }

    /// Reports a problem of one manifest; an error leaves it out.
    fn report(&mut self, draft: usize, problem: Problem) {
        if problem.severity == Severity::Error {
            self.drafts[draft].fail(&problem);
        }
        self.problems.push(problem);
    }

    fn report_all(&mut self, problems: Vec<(usize, Problem)>) {
        for (draft, problem) in problems {
            self.report(draft, problem);
        }
    }

    fn finish(mut self) -> Checked {
        Problem::sort(&mut self.problems);
        let documents = self.drafts.len();
        let mut manifests = Vec::new();
        let mut tables = Tables::new();
        let mut schemas = BTreeMap::new();
        let mut left_out = Vec::new();
        for draft in self.drafts {
            if draft.bad {
                left_out.extend(draft.left_out());
                continue;
            }
            let line = draft.line();
            let Some(manifest) = draft.manifest else { continue };
            let name = manifest.name().to_owned();
            match manifest.kind() {
                "Table" => tables.extend(self.tables.remove_entry(&name)),
                "Schema" => schemas.extend(self.schemas.remove_entry(&name)),
                _ => {}
            }
            manifests.push(CheckedManifest {
                file: PathBuf::from(&draft.source.path),
                document: draft.document,
                line,
                digest: digest::manifest(manifest.kind(), &name, &draft.spec, &draft.referred),
                spec: draft.spec,
                referred: draft.referred,
                programs: draft.programs,
                places: draft.places,
                manifest,
            });
        }
        Checked { problems: self.problems, manifests, left_out, documents, tables, schemas }
    }
}
