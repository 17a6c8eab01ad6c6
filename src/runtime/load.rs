//! Reads and checks the manifests, and says what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::config::Config;
use super::contents::{self, Piece, Pieces};
use super::reload;
use crate::id::UnitId;
use crate::language::{Compiler, Program, Tables};
use crate::manifest::Manifest;
use crate::manifest::check::{self, Checked, CheckedManifest, FileFault, LeftOut, Tree};
use crate::manifest::problem::{Problem, Severity};
use crate::manifest::tree::{self, Snapshot};
use crate::transforms::{self, Locator};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("errors in {path}: {errors}; nothing was started, as --strict asks")]
    Problems { errors: usize, path: String },
    #[error("nothing in {path} can run, so nothing was started; `vejas check` shows what is wrong")]
    Nothing { path: String },
    #[error("VEJAS_INGRESS_ADDR {address:?} is not an address such as 127.0.0.1:8787: {reason}")]
    Address { address: String, reason: String },
    #[error("the check of the manifests broke off: {0}")]
    BrokeOff(String),
    #[error("the manifests cannot be read: {0}")]
    Pieces(#[from] contents::Error),
}

/// How often a folder is read again that changes while it is read.
const READS_MAX: u32 = 20;

/// A manifest that runs something, with all that it refers to.
pub struct LoadedUnit {
    pub id: UnitId,
    pub manifest: Manifest,
    /// Hex digits.
    pub digest: String,
    /// `file:line`.
    pub declared: String,
    /// By where their text stands below `spec`.
    pub programs: BTreeMap<String, Arc<Program>>,
    pub locate: Locator,
    pub tables: Arc<Tables>,
    pub validators: Arc<BTreeMap<String, Arc<jsonschema::Validator>>>,
    /// What it is made of, to be stored.
    pub pieces: Vec<Arc<Piece>>,
}

impl std::fmt::Debug for LoadedUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.id, self.digest)
    }
}

/// A problem as it is shown: what `vejas check` says of the same place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ManifestProblem")]
pub struct Shown {
    pub code: String,
    /// `error` or `warning`.
    pub severity: String,
    /// `file:line:column`.
    pub place: String,
    pub message: String,
    /// How to mend it.
    pub help: Option<String>,
}

/// Everything that can run.
#[derive(Debug)]
pub struct Loaded {
    pub units: Vec<LoadedUnit>,
    /// Units that an error keeps from running.
    pub left_out: Vec<LeftOut>,
    pub problems: Vec<Shown>,
    /// Files and folders with an error in them: what they declared before cannot be told from what they no longer declare.
    pub faulty: BTreeSet<String>,
    /// Documents that were looked at.
    pub documents: usize,
    /// The files that manifests name, whether they are there or not.
    pub beside: Vec<PathBuf>,
    /// Over the content all this comes from; none when that changed while it was read.
    pub fingerprint: Option<String>,
}

impl Loaded {
    pub fn first_error(&self) -> String {
        let error = self.problems.iter().find(|problem| problem.severity == Severity::Error.as_str());
        error.map_or_else(
            || "the folder holds no manifest".to_owned(),
            |error| format!("{} at {}: {}", error.code, error.place, error.message),
        )
    }

    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|problem| problem.severity == Severity::Error.as_str()).count()
    }
}

/// `1 error`, `2 errors`.
pub fn errors_text(errors: usize) -> String {
    if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") }
}

/// Reads and checks for a start. Problems are logged; sound manifests run without the others, unless `config.strict`.
pub async fn load(config: &Arc<Config>) -> Result<Loaded, Error> {
    let path = config.manifests.display().to_string();
    let loaded = read(config).await?;
    let errors = loaded.errors();
    if errors > 0 && config.strict {
        return Err(Error::Problems { errors, path });
    }
    // An empty folder is a start from nothing; one in which nothing is sound is a mistake.
    if loaded.units.is_empty() && errors > 0 {
        return Err(Error::Nothing { path });
    }
    if loaded.units.is_empty() {
        tracing::warn!(path, "no manifest declares anything that runs");
    }
    Ok(loaded)
}

/// Reads and checks, whatever comes of it. Problems are logged.
pub async fn read(config: &Arc<Config>) -> Result<Loaded, Error> {
    let mut tries = 0;
    loop {
        let config = Arc::clone(config);
        let read = tokio::task::spawn_blocking(move || read_blocking(&config));
        match read.await.map_err(|panic| Error::BrokeOff(panic.to_string()))? {
            // Somebody is writing: look again.
            Err(Error::Pieces(contents::Error::Changed(_))) if tries < READS_MAX => tries += 1,
            Err(error) => return Err(error),
            Ok(loaded) => {
                loaded.problems.iter().for_each(log);
                return Ok(loaded);
            }
        }
    }
}

/// Checks and compiles a snapshot. Blocks.
pub fn compile(config: &Config, snapshot: &Snapshot) -> Result<Loaded, Error> {
    let read_beside = |manifest: &str, relative: &str, bytes_max: u64| {
        (snapshot.beside)(&tree::path_beside(manifest, relative).ok_or(FileFault::Outside)?, bytes_max)
    };
    compile_tree(config, &snapshot.tree, &read_beside).map(|(loaded, _)| loaded)
}

fn read_blocking(config: &Config) -> Result<Loaded, Error> {
    let roots = [config.manifests.clone()];
    let tree = tree::read(&roots);
    let beside = Mutex::new(BTreeSet::new());
    let read_beside = |manifest: &str, relative: &str, bytes_max: u64| {
        let folder = Path::new(manifest).parent().unwrap_or(Path::new(""));
        beside.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.join(relative));
        tree::read_beside(&roots, manifest, relative, bytes_max)
    };
    let (mut loaded, tree) = compile_tree(config, &tree, &read_beside)?;
    loaded.beside = beside.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
    // Before and after: what was read in between is one content.
    let before = reload::fingerprint_of(tree, &loaded.beside);
    loaded.fingerprint = Some(reload::fingerprint(&config.manifests, &loaded.beside)).filter(|after| *after == before);
    Ok(loaded)
}

fn compile_tree<'t>(
    config: &Config,
    tree: &'t Tree,
    read_beside: &check::ReadBeside<'_>,
) -> Result<(Loaded, &'t Tree), Error> {
    let compiler = Compiler::new();
    let world = check::World {
        compiler: &compiler,
        read_beside,
        is_set: Some(&|name| (config.environment)(name).is_some()),
        api_address: config.api_addr.parse().ok(),
        listen_default: address(&config.ingress_addr)?,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut checked = check::check(tree, &world);
    let mut pieces = BTreeMap::new();
    let mut making = Pieces::new(&checked, read_beside);
    for one in &checked.manifests {
        if one.manifest.unit().is_some() {
            pieces.insert(one.digest, making.of(one)?);
        }
    }
    let errors = checked.problems.iter().filter(|problem| problem.severity == Severity::Error);
    let loaded = Loaded {
        fingerprint: None,
        problems: checked.problems.iter().map(shown).collect(),
        faulty: errors.map(|problem| problem.place.source.path.clone()).collect(),
        documents: checked.documents,
        left_out: std::mem::take(&mut checked.left_out),
        beside: Vec::new(),
        units: units(checked, &|digest| pieces.get(digest).cloned().unwrap_or_default()),
    };
    Ok((loaded, tree))
}

fn address(text: &str) -> Result<SocketAddr, Error> {
    text.parse().map_err(|error: std::net::AddrParseError| Error::Address {
        address: text.to_owned(),
        reason: error.to_string(),
    })
}

fn shown(problem: &Problem) -> Shown {
    Shown {
        code: problem.code.to_string(),
        severity: problem.severity.as_str().to_owned(),
        place: problem.place.to_string(),
        message: problem.message.clone(),
        help: problem.help.clone(),
    }
}

fn log(problem: &Shown) {
    let Shown { code, place, help, message, .. } = problem;
    if problem.severity == Severity::Error.as_str() {
        tracing::error!(code, place, help, "{message}");
    } else {
        tracing::warn!(code, place, help, "{message}");
    }
}

/// What runs of a checked set; `pieces` gives those of a digest.
pub(super) fn units(checked: Checked, pieces: &dyn Fn(&[u8; 32]) -> Vec<Arc<Piece>>) -> Vec<LoadedUnit> {
    let validators: BTreeMap<_, _> =
        checked.schemas.iter().map(|(name, schema)| (name.clone(), Arc::clone(&schema.validator))).collect();
    let (tables, validators) = (Arc::new(checked.tables), Arc::new(validators));
    let unit = |one: CheckedManifest| {
        let declared = format!("{}:{}", one.file.display(), one.line);
        Some(LoadedUnit {
            id: one.manifest.unit()?,
            digest: contents::hex(&one.digest),
            programs: one.programs.iter().map(|(at, one)| (at.clone(), Arc::clone(&one.program))).collect(),
            locate: transforms::locator(declared.clone(), one.programs),
            declared,
            tables: Arc::clone(&tables),
            validators: Arc::clone(&validators),
            pieces: pieces(&one.digest),
            manifest: one.manifest,
        })
    };
    checked.manifests.into_iter().filter_map(unit).collect()
}
