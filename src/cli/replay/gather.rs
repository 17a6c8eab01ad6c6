//! The candidate's file, and what lies beside it that it may refer to: manifests of schemas and tables in the same folder (not
//! in folders below), and the files that these name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::manifest::reader::{self, FILE_BYTES_MAX};
use crate::manifest::tree;
use crate::runtime::replay::BESIDE_FILES_MAX;
use crate::runtime::replay::view::{Candidate, File};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot read {path}: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("{0} is longer than {FILE_BYTES_MAX} bytes")]
    TooLong(String),
    #[error("{0} is not UTF-8")]
    NotText(String),
    #[error(
        "there are more than {BESIDE_FILES_MAX} schemas, tables and files of these beside {0}: put it into a folder of its own"
    )]
    TooMany(String),
}

pub(super) fn candidate(path: &Path) -> Result<Candidate, Error> {
    let manifest = text(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut named = BTreeSet::new();
    files_named(&manifest, &mut named);
    let mut beside = Vec::new();
    for other in manifests(folder, path) {
        // What cannot be read is missed by name, if it is wanted.
        let Ok(file) = text(&other) else { continue };
        if files_named(&file, &mut named) {
            beside.push(file);
        }
    }
    for (manifest, relative) in named {
        let path = Path::new(&manifest).with_file_name(&relative);
        let roots = [folder.to_path_buf()];
        let Ok(bytes) = tree::read_beside(&roots, &manifest, &relative, FILE_BYTES_MAX as u64) else { continue };
        let path = shown(&path);
        let text = String::from_utf8(bytes).map_err(|_| Error::NotText(path.clone()))?;
        beside.push(File { path, text });
    }
    if beside.len() > BESIDE_FILES_MAX {
        return Err(Error::TooMany(path.display().to_string()));
    }
    Ok(Candidate { manifest, beside })
}

/// Notes the files that schemas and tables of a manifest name. Answers whether it declares any schema or table.
fn files_named(file: &File, named: &mut BTreeSet<(String, String)>) -> bool {
    let mut declares = false;
    for document in reader::read(&file.path, file.text.as_bytes()).documents {
        if !matches!(document.root.get("kind").and_then(|kind| kind.text()), Some("Schema" | "Table")) {
            continue;
        }
        declares = true;
        let named_file = document.root.get("spec").and_then(|spec| spec.get("file"));
        // A schema names it, a table says also how to read it.
        let name = named_file.and_then(|named| named.text().or_else(|| named.get("path")?.text()));
        named.extend(name.map(|name| (file.path.clone(), name.to_owned())));
    }
    declares
}

/// The other manifests of the folder, in the order of their names.
fn manifests(folder: &Path, candidate: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_other = |path: &PathBuf| {
        let is_manifest = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        is_manifest && !hidden && path.file_name() != candidate.file_name() && path.is_file()
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let mut found: Vec<PathBuf> = names.map(|name| candidate.with_file_name(name)).filter(is_other).collect();
    found.sort_unstable();
    found
}

fn text(path: &Path) -> Result<File, Error> {
    let shown = shown(path);
    let unreadable = |reason: std::io::Error| Error::Unreadable { path: shown.clone(), reason: reason.to_string() };
    let bytes = tree::read_bounded(path, FILE_BYTES_MAX as u64 + 1).map_err(unreadable)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(Error::TooLong(shown));
    }
    let text = String::from_utf8(bytes).map_err(|_| Error::NotText(shown.clone()))?;
    Ok(File { path: shown, text })
}

/// With `/` on every system; `..` in the middle is resolved where the file is looked up, so it is resolved here as well.
fn shown(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut root = "";
    for part in path.components() {
        match part {
            std::path::Component::RootDir => root = "/",
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir if parts.last().is_some_and(|last| last != "..") => _ = parts.pop(),
            part => parts.push(part.as_os_str().to_string_lossy().into_owned()),
        }
    }
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_tables_and_their_files_are_gathered_from_the_folder_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("new");
        fs::create_dir_all(root.join("rows")).unwrap();
        fs::create_dir_all(root.join("deeper")).unwrap();
        let manifest = |kind: &str, spec: &str| {
            format!("apiVersion: vejas/v1\nkind: {kind}\nmetadata: {{ name: a }}\nspec: {spec}\n")
        };
        for (name, text) in [
            ("new/flow.yaml", manifest("Flow", "{ from: a, to: b }")),
            ("new/table.yaml", manifest("Table", "{ file: { path: rows/vat.csv, key: c } }")),
            ("new/sink.yaml", manifest("Sink", "{ from: b, stdout: {} }")),
            ("new/deeper/table.yaml", manifest("Table", "{ file: { path: other.csv, key: c } }")),
            ("new/rows/vat.csv", "c\nDE\n".to_owned()),
            ("new/secret.txt", "x".to_owned()),
            ("new/leads-out.yaml", manifest("Schema", "{ file: ../outside.csv }")),
            ("outside.csv", "c\n".to_owned()),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let gathered = candidate(&root.join("flow.yaml")).unwrap();
        let names: Vec<&str> =
            gathered.beside.iter().map(|file| file.path.rsplit_once("new/").map_or("?", |(_, name)| name)).collect();
        assert_eq!(names, ["leads-out.yaml", "table.yaml", "rows/vat.csv"]);
        assert!(gathered.manifest.path.ends_with("new/flow.yaml"));
    }

    #[test]
    fn a_path_is_shown_as_the_process_resolves_it() {
        for (path, expected) in [
            ("./a.yaml", "a.yaml"),
            ("/x/../y/a", "/y/a"),
            ("../a", "../a"),
            ("n/../../a", "../a"),
            ("n/r/v.csv", "n/r/v.csv"),
        ] {
            assert_eq!(shown(Path::new(path)), expected);
        }
    }
}
