//! Compiles a candidate: a manifest with the schemas and tables it refers to, from its own folder first.
//!
//! The check is the one every manifest passes. What else the files declare is passed over; a name that is declared twice counts
//! where it stands nearest: in the manifest, in its folder, in the active version of the flow, in what else runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::Error;
use super::view::{Candidate, File};
use crate::id::UnitId;
use crate::language::Compiler;
use crate::manifest::Spec;
use crate::manifest::check::{self, FileFault, Tree, TreeFile};
use crate::manifest::problem::Severity;
use crate::manifest::reader::{self, Document};
use crate::runtime::contents::{self, Shared};
use crate::runtime::load::{self, LoadedUnit};
use crate::runtime::versions::Versions;

/// Files that may be given beside the manifest.
pub const BESIDE_FILES_MAX: usize = 1_000;
/// Problems told of a candidate.
const PROBLEMS_MAX: usize = 20;

/// Compiles the flow of that name. `active` is the digest of the version that runs.
pub(super) async fn compile(
    versions: &Versions,
    unit: &UnitId,
    active: &str,
    candidate: Candidate,
) -> Result<LoadedUnit, Error> {
    if candidate.beside.len() > BESIDE_FILES_MAX {
        let detail = format!("{} files beside the candidate, more than {BESIDE_FILES_MAX}", candidate.beside.len());
        return Err(Error::Wanted(detail));
    }
    let mut set = Set::new(candidate);
    set.add(contents::shared(versions, &[active.to_owned()]).await?);
    let (set, first) = check(set, unit.clone()).await?;
    let Err(_) = first else { return first };
    // What it refers to may be what another unit refers to.
    let (head, _) = versions.head().await?;
    if head.no == 0 {
        return first;
    }
    let others: Vec<String> = versions.set(&head.revision).await?.into_values().collect();
    let mut wider = set;
    if !wider.add(contents::shared(versions, &others).await?) {
        return first;
    }
    check(wider, unit.clone()).await?.1
}

async fn check(set: Set, unit: UnitId) -> Result<(Set, Result<LoadedUnit, Error>), Error> {
    let checked = tokio::task::spawn_blocking(move || {
        let checked = set.check(&unit);
        (set, checked)
    });
    checked.await.map_err(|panic| Error::Wanted(format!("the check of the candidate broke off: {panic}")))
}

/// All that a candidate may refer to.
struct Set {
    manifest: String,
    tree: Tree,
    /// By path.
    beside: BTreeMap<String, String>,
    /// Of what runs, by manifest and name in it.
    files: BTreeMap<(String, String), Bytes>,
    /// Schemas and tables, by kind and name.
    declared: BTreeSet<(String, String)>,
}

impl Set {
    fn new(candidate: Candidate) -> Self {
        let Candidate { manifest, beside } = candidate;
        let mut set = Set {
            manifest: manifest.path.clone(),
            tree: Tree::default(),
            beside: BTreeMap::new(),
            files: BTreeMap::new(),
            declared: BTreeSet::new(),
        };
        for document in reader::read(&manifest.path, manifest.text.as_bytes()).documents {
            set.declared.extend(shared_name(&document));
        }
        set.tree.files.push(TreeFile { path: manifest.path, bytes: manifest.text.into_bytes() });
        for file in &beside {
            set.take_shared(file);
        }
        set.beside = beside.into_iter().map(|file| (file.path, file.text)).collect();
        set
    }

    /// The schemas and tables of a file, without what else is in it.
    fn take_shared(&mut self, file: &File) {
        if !(file.path.ends_with(".yaml") || file.path.ends_with(".yml")) {
            return;
        }
        for document in reader::read(&file.path, file.text.as_bytes()).documents {
            let Some((kind, name)) = shared_name(&document) else { continue };
            let Some(spec) = document.root.get("spec") else { continue };
            let bytes = contents::manifest_text(&kind, &name, &spec.to_json());
            if self.declared.insert((kind, name)) {
                self.tree.files.push(TreeFile { path: file.path.clone(), bytes });
            }
        }
    }

    /// Answers whether any of them was wanting.
    fn add(&mut self, shared: Vec<Shared>) -> bool {
        let before = self.tree.files.len();
        for one in shared {
            if !self.declared.insert((one.kind.clone(), one.name.clone())) {
                continue;
            }
            let path = format!("(active) {} {}", one.kind, one.name);
            let bytes = contents::manifest_text(&one.kind, &one.name, &one.spec);
            self.files.extend(one.files.into_iter().map(|(name, bytes)| ((path.clone(), name), bytes)));
            self.tree.files.push(TreeFile { path, bytes });
        }
        self.tree.files.len() > before
    }

    fn check(&self, unit: &UnitId) -> Result<LoadedUnit, Error> {
        let compiler = Compiler::new();
        let read_beside = |manifest: &str, relative: &str, bytes_max: u64| {
            let bytes = match self.files.get(&(manifest.to_owned(), relative.to_owned())) {
                Some(bytes) => &bytes[..],
                None => {
                    let path = beside(manifest, relative).ok_or(FileFault::Outside)?;
                    self.beside.get(&path).ok_or(FileFault::Missing)?.as_bytes()
                }
            };
            if bytes.len() as u64 > bytes_max {
                return Err(FileFault::TooLarge { bytes: bytes.len() as u64, bytes_max });
            }
            Ok(bytes.to_vec())
        };
        let world = check::World {
            compiler: &compiler,
            read_beside: &read_beside,
            is_set: None,
            api_address: None,
            listen_default: ([127, 0, 0, 1], 0).into(),
            threads: 1,
        };
        let checked = check::check(&self.tree, &world);
        let errors = checked.problems.iter().filter(|problem| problem.severity == Severity::Error);
        let problems: Vec<String> = errors
            .take(PROBLEMS_MAX)
            .map(|problem| {
                let help = problem.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
                format!("{} {}: {}{help}", problem.place, problem.code, problem.message)
            })
            .collect();
        let found = load::units(checked, &|_| Vec::new()).into_iter().find(|loaded| loaded.id == *unit);
        match found {
            Some(loaded) if matches!(loaded.manifest.spec, Spec::Flow(_)) => Ok(loaded),
            _ => {
                Err(Error::Candidate { unit: unit.clone(), path: self.manifest.clone(), problems: Arc::from(problems) })
            }
        }
    }
}

/// Kind and name of a document that others may refer to.
fn shared_name(document: &Document) -> Option<(String, String)> {
    let kind = document.root.get("kind")?.text()?;
    let name = document.root.get("metadata")?.get("name")?.text()?;
    matches!(kind, "Schema" | "Table").then(|| (kind.to_owned(), name.to_owned()))
}

/// The path of a file that a manifest names; `None` when it leads out of where the manifest's path begins.
fn beside(manifest: &str, relative: &str) -> Option<String> {
    if relative.starts_with('/') {
        return None;
    }
    let folder = manifest.rsplit_once('/').map_or("", |(folder, _)| folder);
    let is_absolute = manifest.starts_with('/');
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    for part in relative.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match part {
            ".." => _ = parts.pop()?,
            part => parts.push(part),
        }
    }
    Some(format!("{}{}", if is_absolute { "/" } else { "" }, parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beside_is_found_from_where_its_manifest_stands() {
        for (manifest, relative, expected) in [
            ("a.yaml", "vat.csv", Some("vat.csv")),
            ("new/a.yaml", "vat.csv", Some("new/vat.csv")),
            ("new/a.yaml", "../t/./vat.csv", Some("t/vat.csv")),
            ("/x/a.yaml", "t/vat.csv", Some("/x/t/vat.csv")),
            ("a.yaml", "../vat.csv", None),
            ("a.yaml", "/etc/hostname", None),
        ] {
            assert_eq!(beside(manifest, relative).as_deref(), expected, "{manifest} {relative}");
        }
    }
}
