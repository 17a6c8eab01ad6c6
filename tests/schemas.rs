//! `schemas/` is what the types say, and every YAML that comes with Vejas keeps to it.

#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};

use vejas::manifest::{generate, reader};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `UPDATE_GOLDEN=1` writes them anew; so does `vejas schema --write schemas`.
#[test]
fn the_schemas_in_the_repository_are_those_of_the_types() {
    let folder = root().join("schemas");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut expected: Vec<String> = Vec::new();
    for (name, text) in generate::files() {
        if update {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(&name), &text).unwrap();
        }
        let found = fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(found == text, "schemas/{name} is out of date: run `vejas schema --write schemas`");
        expected.push(name);
    }
    let mut found: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

fn yaml_below(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            yaml_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

/// By a validator that is not ours: the schemas mean to others what they mean to us.
#[test]
fn every_manifest_of_the_repository_validates() {
    let validator = jsonschema::validator_for(&generate::any_kind()).unwrap();
    let mut files = Vec::new();
    for folder in ["manifests", "examples", "src/cli/new"] {
        yaml_below(&root().join(folder), &mut files);
    }
    assert!(files.len() >= 8, "{files:?}");
    for path in files {
        let read = reader::read(&path.to_string_lossy(), &fs::read(&path).unwrap());
        assert!(read.problems.is_empty(), "{}: {:?}", path.display(), read.problems);
        assert!(!read.documents.is_empty(), "{}", path.display());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# yaml-language-server: $schema="), "{}", path.display());
        for document in read.documents {
            let json = document.root.to_json();
            let errors: Vec<String> =
                validator.iter_errors(&json).map(|e| format!("{}: {e}", e.instance_path())).collect();
            assert!(errors.is_empty(), "{} document {}: {errors:?}", path.display(), document.index);
        }
    }
}
