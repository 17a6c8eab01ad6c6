//! What a version of a unit is made of, as immutable pieces that are stored by their digest.
//!
//! A piece is one manifest as written, or one file it names. The piece of a flow refers to those of its schemas and tables by
//! digest, and these to their files: what many units share is stored once. From the pieces the version is checked and
//! compiled again, long after the folder it came from has changed.
//!
//! A content belongs to a digest: what comes out must have the digest it was asked for, or it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::load::LoadedUnit;
use super::settings::Environment;
use super::versions::Versions;
use crate::language::Compiler;
use crate::manifest::check::{self, Checked, CheckedManifest, FileFault, ReadBeside, Tree, TreeFile};
use crate::manifest::problem::Severity;
use crate::manifest::{API_VERSION, digest};
use crate::ports::bus;

/// Largest file that is part of a version, in bytes.
pub const PIECE_BYTES_MAX: usize = 64 << 20;
/// Pieces one version may be made of.
const PIECES_MAX: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} changed while the manifests were read")]
    Changed(String),
    #[error("version {digest} is not stored any more")]
    Missing { digest: String },
    #[error("version {digest} cannot be used: {reason}")]
    Unusable { digest: String, reason: String },
    #[error(transparent)]
    Bus(#[from] bus::Error),
}

/// One piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Hex digits.
    pub digest: String,
    pub bytes: Bytes,
}

#[derive(Debug, Serialize, Deserialize)]
struct Document {
    /// The file it was read from.
    path: String,
    kind: String,
    name: String,
    spec: Json,
    refers: Vec<Reference>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reference {
    /// `Schema`, `Table` or `file`.
    kind: String,
    name: String,
    digest: String,
}

/// The pieces of one set of manifests.
pub struct Pieces<'a> {
    read_beside: &'a ReadBeside<'a>,
    manifests: BTreeMap<(&'static str, &'a str), &'a CheckedManifest>,
    made: BTreeMap<String, Arc<Piece>>,
}

impl std::fmt::Debug for Pieces<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pieces({})", self.made.len())
    }
}

impl<'a> Pieces<'a> {
    pub fn new(checked: &'a Checked, read_beside: &'a ReadBeside<'a>) -> Self {
        let manifests = checked.manifests.iter().map(|one| ((one.manifest.kind(), one.manifest.name()), one)).collect();
        Pieces { read_beside, manifests, made: BTreeMap::new() }
    }

    /// The pieces of one manifest, its own last.
    pub fn of(&mut self, manifest: &'a CheckedManifest) -> Result<Vec<Arc<Piece>>, Error> {
        let mut pieces = Vec::new();
        let path = manifest.file.display().to_string();
        let mut refers = Vec::new();
        for referred in &manifest.referred {
            let (kind, digest) = match referred.kind {
                "file" => {
                    let piece = self.file(&path, referred)?;
                    let digest = piece.digest.clone();
                    pieces.push(piece);
                    ("file", digest)
                }
                kind => {
                    let kind = if kind == "schema" { "Schema" } else { "Table" };
                    let found = self.manifests.get(&(kind, referred.name.as_str())).copied();
                    let other = found.ok_or_else(|| Error::Changed(referred.name.clone()))?;
                    pieces.extend(self.of(other)?);
                    (kind, hex(&other.digest))
                }
            };
            refers.push(Reference { kind: kind.to_owned(), name: referred.name.clone(), digest });
        }
        let own = hex(&manifest.digest);
        let piece = match self.made.get(&own) {
            Some(piece) => Arc::clone(piece),
            None => {
                let (kind, name) = (manifest.manifest.kind().to_owned(), manifest.manifest.name().to_owned());
                let document = Document { path, kind, name, spec: manifest.spec.clone(), refers };
                let text = serde_json::to_vec(&document).expect("a document is JSON");
                self.made(own, Bytes::from(text))
            }
        };
        pieces.push(piece);
        Ok(pieces)
    }

    fn file(&mut self, manifest: &str, referred: &digest::Referred) -> Result<Arc<Piece>, Error> {
        let wanted = hex(&referred.digest);
        if let Some(piece) = self.made.get(&wanted) {
            return Ok(Arc::clone(piece));
        }
        let bytes = (self.read_beside)(manifest, &referred.name, PIECE_BYTES_MAX as u64)
            .map_err(|fault| Error::Changed(format!("{}: {fault}", referred.name)))?;
        if digest::bytes(&bytes) != referred.digest {
            return Err(Error::Changed(referred.name.clone()));
        }
        Ok(self.made(wanted, Bytes::from(bytes)))
    }

    fn made(&mut self, digest: String, bytes: Bytes) -> Arc<Piece> {
        let piece = Arc::new(Piece { digest: digest.clone(), bytes });
        self.made.insert(digest, Arc::clone(&piece));
        piece
    }
}

/// The file that declared a version.
pub async fn file(versions: &Versions, digest: &str) -> Result<Option<String>, Error> {
    let Some(bytes) = versions.content(digest).await? else { return Ok(None) };
    Ok(serde_json::from_slice::<Document>(&bytes).ok().map(|document| document.path))
}

/// The manifest of a version as it is compared: its spec, and the digests of what it refers to. None when it is not stored any more.
pub async fn shown(versions: &Versions, digest: &str) -> Result<Option<Json>, Error> {
    let Some(bytes) = versions.content(digest).await? else { return Ok(None) };
    let document: Result<Document, _> = serde_json::from_slice(&bytes);
    Ok(document.ok().map(|document| {
        let refers =
            document.refers.into_iter().map(|one| (format!("{} {}", one.kind, one.name), Json::from(one.digest)));
        let refers: serde_json::Map<String, Json> = refers.collect();
        serde_json::json!({ "spec": document.spec, "refersTo": refers })
    }))
}

/// Reads a version from its pieces and compiles it.
pub async fn load(versions: &Versions, digest: &str) -> Result<LoadedUnit, Error> {
    load_checked(versions, digest, None).await
}

/// The same; a variable that a setting refers to and `environment` does not have is an error.
pub async fn load_checked(
    versions: &Versions,
    digest: &str,
    environment: Option<Environment>,
) -> Result<LoadedUnit, Error> {
    let mut gathered = Gathered::default();
    let mut wanted = vec![digest.to_owned()];
    while let Some(next) = wanted.pop() {
        if gathered.seen.len() >= PIECES_MAX {
            let reason = format!("it has more than {PIECES_MAX} pieces");
            return Err(Error::Unusable { digest: digest.to_owned(), reason });
        }
        if !gathered.seen.insert(next.clone()) {
            continue;
        }
        let missing = || Error::Missing { digest: digest.to_owned() };
        let bytes = versions.content(&next).await?.ok_or_else(missing)?;
        let document: Document = serde_json::from_slice(&bytes)
            .map_err(|error| Error::Unusable { digest: digest.to_owned(), reason: error.to_string() })?;
        for reference in &document.refers {
            if reference.kind == "file" {
                let bytes = versions.content(&reference.digest).await?.ok_or_else(missing)?;
                gathered.files.insert((document.path.clone(), reference.name.clone()), bytes);
            } else {
                wanted.push(reference.digest.clone());
            }
        }
        gathered.take(&document);
    }
    let digest = digest.to_owned();
    let broke_off = digest.clone();
    tokio::task::spawn_blocking(move || gathered.compile(&digest, environment.as_ref()))
        .await
        .map_err(|panic| Error::Unusable { digest: broke_off, reason: panic.to_string() })?
}

/// The pieces that a piece refers to; of a file none.
pub(super) fn references(bytes: &[u8]) -> Vec<String> {
    let document: Result<Document, _> = serde_json::from_slice(bytes);
    document.map(|document| document.refers.into_iter().map(|reference| reference.digest).collect()).unwrap_or_default()
}

/// A Schema or a Table that a version refers to, as it is stored.
#[derive(Debug)]
pub(super) struct Shared {
    pub kind: String,
    pub name: String,
    pub spec: Json,
    /// By the name in the spec.
    pub files: BTreeMap<String, Bytes>,
}

/// The schemas and tables that these versions refer to, those of the first ones first. Of what has the same kind and name only
/// the first; what is not stored any more is left out.
pub(super) async fn shared(versions: &Versions, digests: &[String]) -> Result<Vec<Shared>, bus::Error> {
    let mut named = BTreeSet::new();
    let mut found = Vec::new();
    for digest in digests {
        let Some(document) = document(versions, digest).await? else { continue };
        for reference in document.refers.into_iter().filter(|reference| reference.kind != "file") {
            if found.len() >= PIECES_MAX || !named.insert((reference.kind.clone(), reference.name.clone())) {
                continue;
            }
            let Some(one) = self::document(versions, &reference.digest).await? else { continue };
            let mut files = BTreeMap::new();
            for file in one.refers.iter().filter(|reference| reference.kind == "file") {
                if let Some(bytes) = versions.content(&file.digest).await? {
                    files.insert(file.name.clone(), bytes);
                }
            }
            found.push(Shared { kind: one.kind, name: one.name, spec: one.spec, files });
        }
    }
    Ok(found)
}

async fn document(versions: &Versions, digest: &str) -> Result<Option<Document>, bus::Error> {
    let bytes = versions.content(digest).await?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// A manifest written from its parts.
pub(super) fn manifest_text(kind: &str, name: &str, spec: &Json) -> Vec<u8> {
    let manifest =
        serde_json::json!({ "apiVersion": API_VERSION, "kind": kind, "metadata": { "name": name }, "spec": spec });
    serde_json::to_vec_pretty(&manifest).expect("a document is JSON")
}

#[derive(Default)]
struct Gathered {
    seen: BTreeSet<String>,
    tree: Tree,
    /// By manifest and name in it.
    files: BTreeMap<(String, String), Bytes>,
}

impl Gathered {
    fn take(&mut self, document: &Document) {
        let Document { path, kind, name, spec, .. } = document;
        self.tree.files.push(TreeFile { path: path.clone(), bytes: manifest_text(kind, name, spec) });
    }

    fn compile(self, digest: &str, environment: Option<&Environment>) -> Result<LoadedUnit, Error> {
        let compiler = Compiler::new();
        let read_beside = |manifest: &str, name: &str, bytes_max: u64| {
            let bytes = self.files.get(&(manifest.to_owned(), name.to_owned())).ok_or(FileFault::Missing)?;
            let bytes_found = bytes.len() as u64;
            if bytes_found > bytes_max {
                return Err(FileFault::TooLarge { bytes: bytes_found, bytes_max });
            }
            Ok(bytes.to_vec())
        };
        let is_set = environment.map(|environment| |name: &str| environment(name).is_some());
        let world = check::World {
            compiler: &compiler,
            read_beside: &read_beside,
            is_set: is_set.as_ref().map(|is_set| is_set as &(dyn Fn(&str) -> bool + Sync)),
            api_address: None,
            listen_default: ([127, 0, 0, 1], 0).into(),
            threads: 1,
        };
        let checked = check::check(&self.tree, &world);
        let unusable = |reason: String| Error::Unusable { digest: digest.to_owned(), reason };
        if let Some(problem) = checked.problems.iter().find(|problem| problem.severity == Severity::Error) {
            return Err(unusable(format!("{} {}", problem.code, problem.message)));
        }
        let loaded = super::load::units(checked, &|_| Vec::new());
        let found = loaded.into_iter().find(|unit| unit.digest == digest);
        found.ok_or_else(|| unusable("this release reads it as another version".to_owned()))
    }
}

pub fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
