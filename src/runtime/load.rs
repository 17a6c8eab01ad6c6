//! Reads and checks the manifests, and says what came of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::config::Config;
use crate::id::UnitId;
use crate::language::{Compiler, Program, Tables};
use crate::manifest::Manifest;
use crate::manifest::check::{self, Checked, CheckedManifest, LeftOut};
use crate::manifest::problem::{Problem, Severity};
use crate::manifest::tree;
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
}

/// A manifest that runs something.
pub struct LoadedUnit {
    pub id: UnitId,
    pub manifest: Manifest,
    pub digest: [u8; 32],
    /// `file:line`.
    pub declared: String,
    /// By where their text stands below `spec`.
    pub programs: BTreeMap<String, Arc<Program>>,
    pub locate: Locator,
}

/// Everything that can run.
pub struct Loaded {
    pub units: Vec<LoadedUnit>,
    pub tables: Tables,
    pub validators: BTreeMap<String, Arc<jsonschema::Validator>>,
    /// Units that an error keeps from running.
    pub left_out: Vec<LeftOut>,
}

/// Reads and checks. Problems are logged; sound manifests run without the others, unless `config.strict`.
pub async fn load(config: &Arc<Config>) -> Result<Loaded, Error> {
    let path = config.manifests.display().to_string();
    let strict = config.strict;
    let config = Arc::clone(config);
    let checked = tokio::task::spawn_blocking(move || check(&config))
        .await
        .map_err(|panic| Error::BrokeOff(panic.to_string()))??;
    let errors = checked.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    for problem in &checked.problems {
        log(problem);
    }
    if errors > 0 && strict {
        return Err(Error::Problems { errors, path });
    }
    let loaded = loaded(checked);
    // An empty folder is a start from nothing; one in which nothing is sound is a mistake.
    if loaded.units.is_empty() && errors > 0 {
        return Err(Error::Nothing { path });
    }
    if loaded.units.is_empty() {
        tracing::warn!(path, "no manifest declares anything that runs");
    }
    Ok(loaded)
}

fn check(config: &Config) -> Result<Checked, Error> {
    let roots = [config.manifests.clone()];
    let tree = tree::read(&roots);
    let compiler = Compiler::new();
    let world = check::World {
        compiler: &compiler,
        read_beside: &|manifest, relative, bytes_max| tree::read_beside(&roots, manifest, relative, bytes_max),
        is_set: Some(&|name| (config.environment)(name).is_some()),
        api_address: config.api_addr.parse().ok(),
        listen_default: address(&config.ingress_addr)?,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    Ok(check::check(&tree, &world))
}

fn address(text: &str) -> Result<SocketAddr, Error> {
    text.parse().map_err(|error: std::net::AddrParseError| Error::Address {
        address: text.to_owned(),
        reason: error.to_string(),
    })
}

fn log(problem: &Problem) {
    let place = problem.place.to_string();
    match problem.severity {
        Severity::Error => tracing::error!(code = %problem.code, place, help = problem.help, "{}", problem.message),
        Severity::Warning => tracing::warn!(code = %problem.code, place, help = problem.help, "{}", problem.message),
    }
}

fn loaded(checked: Checked) -> Loaded {
    let validators =
        checked.schemas.iter().map(|(name, schema)| (name.clone(), Arc::clone(&schema.validator))).collect();
    let units = checked.manifests.into_iter().filter_map(unit).collect();
    Loaded { units, tables: checked.tables, validators, left_out: checked.left_out }
}

fn unit(checked: CheckedManifest) -> Option<LoadedUnit> {
    let id = checked.manifest.unit()?;
    let declared = format!("{}:{}", checked.file.display(), checked.line);
    let programs = checked.programs.iter().map(|(at, one)| (at.clone(), Arc::clone(&one.program))).collect();
    let locate = transforms::locator(declared.clone(), checked.programs);
    Some(LoadedUnit { id, manifest: checked.manifest, digest: checked.digest, declared, programs, locate })
}
