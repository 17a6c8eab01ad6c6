//! A folder of manifests as it is sent: the manifests, and the files they name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::api::view::revisions::{File, Upload};
use crate::language::Compiler;
use crate::manifest::check::{self, World};
use crate::manifest::http_in::LISTEN_DEFAULT;
use crate::manifest::tree;

/// Reads it. What has errors is sent as well: the process that takes it says what they are. The error is for people.
pub(super) fn gather(path: &Path) -> Result<Upload, String> {
    if !path.exists() {
        return Err(format!("there is nothing at {}: name a folder of manifests", path.display()));
    }
    let roots: Vec<PathBuf> = vec![path.to_owned()];
    let found = tree::read(&roots);
    if let Some(problem) = found.problems.first() {
        return Err(format!("{}: {}", problem.place, problem.message));
    }
    // The check knows what a manifest names; what it reads is what is sent.
    let beside = Mutex::new(BTreeMap::new());
    let read_beside = |manifest: &str, relative: &str, bytes_max: u64| {
        let bytes = tree::read_beside(&roots, manifest, relative, bytes_max)?;
        if let Some(path) = tree::path_beside(manifest, relative) {
            beside.lock().unwrap_or_else(PoisonError::into_inner).insert(path, bytes.clone());
        }
        Ok(bytes)
    };
    let world = World {
        compiler: &Compiler::new(),
        read_beside: &read_beside,
        is_set: None,
        api_address: None,
        listen_default: LISTEN_DEFAULT.parse().expect("a default is an address"),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    check::check(&found, &world);
    let manifests = found.files.into_iter().map(|file| (file.path, file.bytes));
    let files = manifests.chain(beside.into_inner().unwrap_or_else(PoisonError::into_inner));
    let root = path.display().to_string();
    Ok(Upload { root, files: files.map(|(path, bytes)| file(path, bytes)).collect() })
}

fn file(path: String, bytes: Vec<u8>) -> File {
    match String::from_utf8(bytes) {
        Ok(text) => File { path, text: Some(text), base64: None },
        Err(error) => File { path, text: None, base64: Some(STANDARD.encode(error.as_bytes())) },
    }
}
