//! Taste, enforced: layers, file lengths, and that documents name only what is there.

#![allow(clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// From the top of the map in `src/lib.rs` down. A module uses its own layer and those before it.
const LAYERS: &[&[&str]] = &[
    &["id", "time"],
    &["language"],
    &["manifest"],
    &["flow"],
    &["transforms"],
    &["protocol"],
    &["testing"],
    &["ports"],
    &["unit"],
    &["bus", "connectors", "origin"],
    &["runtime"],
    &["api"],
    &["cli"],
];

/// Modules that may not even use a sibling of their own layer.
const ADAPTERS: &[&str] = &["bus", "connectors", "origin"];

const LINES_MAX: usize = 600;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || name == "out" {
            continue;
        }
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root().join(folder), "rs", &mut found);
    found.sort();
    assert!(!found.is_empty(), "no Rust files below {folder}");
    found
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The part of a file that is compiled into the product.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn a_module_uses_only_what_stands_above_it() {
    let mut wrong = Vec::new();
    for path in rust_files("src") {
        let inside = path.strip_prefix(root().join("src")).unwrap();
        let module = inside.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
        let Some(own) = layer(&module) else { continue };
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in without_tests(&text).lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for used in line.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                let Some(other) = layer(&used) else { continue };
                let sibling = other == own && used != module && ADAPTERS.contains(&used.as_str());
                if other > own || sibling {
                    wrong.push(format!("{}:{}: {module} uses {used}", inside.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "layers (see src/lib.rs):\n{}", wrong.join("\n"));
}

#[test]
fn every_module_of_the_library_has_a_layer() {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for line in text.lines().filter(|line| line.starts_with("pub mod ")) {
        let module = line.trim_start_matches("pub mod ").trim_end_matches(';');
        assert!(layer(module).is_some(), "{module} has no layer in tests/tidy.rs");
    }
}

#[test]
fn files_stay_readable_in_one_sitting() {
    let mut long = Vec::new();
    for path in rust_files("src").into_iter().chain(rust_files("tests")) {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        if lines > LINES_MAX {
            long.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert!(long.is_empty(), "longer than {LINES_MAX} lines:\n{}", long.join("\n"));
}

/// Words in backticks or link targets that look like paths of this repository.
fn paths_in(text: &str) -> BTreeSet<String> {
    let folders = ["src/", "tests/", "bench/", "manifests/", "examples/", "schemas/", ".ci/"];
    text.split(|c: char| c.is_whitespace() || "`()[]<>\"',;".contains(c))
        .map(|word| word.trim_end_matches(['.', ':']).trim_start_matches("./").trim_start_matches("../"))
        .filter(|word| folders.iter().any(|folder| word.starts_with(folder)))
        .filter(|word| !word.contains(['*', '{', '$', '…', '#', '|']))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_path_named_in_a_document_exists() {
    let mut documents = Vec::new();
    files(&root(), "md", &mut documents);
    assert!(documents.iter().any(|d| d.ends_with("README.md")));
    let mut missing = Vec::new();
    for document in documents {
        for path in paths_in(&fs::read_to_string(&document).unwrap()) {
            if !root().join(&path).exists() && !document.parent().unwrap().join(&path).exists() {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "named but not there:\n{}", missing.join("\n"));
}

#[test]
fn nothing_is_left_half_done() {
    let marks = ["todo!(", "unimplemented!(", "FIXME", "#[ignore"];
    let mut found = Vec::new();
    for path in rust_files("src").into_iter().chain(rust_files("tests")) {
        if path.ends_with("tests/tidy.rs") {
            continue;
        }
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) {
                found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The invariant table of the protocol, the predicates and the model name the same ids.
#[test]
fn every_invariant_of_the_protocol_is_used_by_the_model() {
    let table = fs::read_to_string(root().join("src/protocol/README.md")).unwrap();
    let model = fs::read_to_string(root().join("tests/model/explore.rs")).unwrap();
    let ids: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("| own-")?.split(' ').next()).collect();
    assert!(ids.len() > 10, "no invariant table");
    for id in ids.iter().filter(|id| !["M1", "M2"].contains(id)) {
        assert!(model.contains(&format!("\"own-{id}\"")), "own-{id} is not checked by tests/model");
    }
}
