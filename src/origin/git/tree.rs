//! Reads the manifests of a commit, without a work tree.
//!
//! Like a folder: `.yaml` and `.yml`, what begins with a dot is left out, and what cannot be read is a problem and no end.
//! Links and submodules are not followed: what they lead to is not part of the commit, or can be had by its own path.

use std::sync::Arc;

use git2::{ErrorCode, ObjectType, Oid, Repository, Tree as GitTree};

use super::{ENTRIES_MAX, Error};
use crate::manifest::check::{FileFault, Tree, TreeFile};
use crate::manifest::problem::{Code, Place, Problem, Source};
use crate::manifest::reader;
use crate::manifest::tree::{DEPTH_MAX, FILES_MAX, is_read};

/// The file mode of a symbolic link.
const MODE_LINK: i32 = 0o120_000;

fn root<'r>(repository: &'r Repository, commit: Oid, path: &str) -> Result<GitTree<'r>, Error> {
    let whole = repository.find_commit(commit)?.tree()?;
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(whole);
    }
    let none = || Error::NoPath { commit: commit.to_string(), path: path.to_owned() };
    let entry = match whole.get_path(std::path::Path::new(path)) {
        Ok(entry) => entry,
        Err(error) if error.code() == ErrorCode::NotFound => return Err(none()),
        Err(error) => return Err(error.into()),
    };
    repository.find_tree(entry.id()).map_err(|_| none())
}

pub(super) fn read(repository: &Repository, commit: Oid, path: &str) -> Result<Tree, Error> {
    let root = root(repository, commit, path)?;
    let mut walk = Walk { repository, commit, tree: Tree::default(), entries: 0 };
    walk.folder(&root, "", 0)?;
    Ok(walk.tree)
}

struct Walk<'r> {
    repository: &'r Repository,
    commit: Oid,
    tree: Tree,
    entries: usize,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &GitTree<'_>, path: &str, depth: usize) -> Result<(), Error> {
        for entry in folder {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(Error::TooLarge { commit: self.commit.to_string() });
            }
            let name = String::from_utf8_lossy(entry.name_bytes()).into_owned();
            if name.starts_with('.') {
                continue;
            }
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            match entry.kind() {
                Some(ObjectType::Tree) if depth >= DEPTH_MAX => {
                    let message = format!("folders are nested more than {DEPTH_MAX} levels deep");
                    self.tree.problems.push(problem(Code::TooMuch, &path, message));
                }
                Some(ObjectType::Tree) => {
                    let below = self.repository.find_tree(entry.id())?;
                    self.folder(&below, &path, depth + 1)?;
                }
                Some(ObjectType::Commit) => {
                    let message = "this is a submodule: what it holds is not part of the repository".to_owned();
                    let problem = problem(Code::LeavesTree, &path, message);
                    self.tree.problems.push(problem.help("copy its files into the repository"));
                }
                Some(ObjectType::Blob) if !is_read(&path) => {}
                Some(ObjectType::Blob) if entry.filemode() == MODE_LINK => {
                    let problem = problem(Code::LeavesTree, &path, "this is a symbolic link".to_owned());
                    self.tree.problems.push(problem.help("copy what it leads to"));
                }
                Some(ObjectType::Blob) => self.file(entry.id(), path)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, id: Oid, path: String) -> Result<(), Error> {
        if self.tree.files.len() >= FILES_MAX {
            if self.tree.files.len() == FILES_MAX {
                let message = format!("the tree has more than {FILES_MAX} manifests");
                self.tree.problems.push(problem(Code::TooMuch, &path, message));
            }
            return Ok(());
        }
        // One byte more than allowed is enough for the reader to refuse the file.
        let bytes_max = reader::FILE_BYTES_MAX + 1;
        let size = self.repository.odb()?.read_header(id)?.0;
        let bytes =
            if size > bytes_max { vec![b' '; bytes_max] } else { self.repository.find_blob(id)?.content().to_vec() };
        self.tree.files.push(TreeFile { path, bytes });
        Ok(())
    }
}

fn problem(code: Code, path: &str, message: String) -> Problem {
    Problem::error(code, Place::whole(&Arc::new(Source::new(path.to_owned(), ""))), message)
}

/// A file that a manifest names, by its path below the folder of manifests.
pub(super) fn file(
    repository: Option<&Repository>,
    commit: Oid,
    folder: &str,
    path: &str,
    bytes_max: u64,
) -> Result<Vec<u8>, FileFault> {
    let fault = |reason: String| FileFault::Unreadable(reason);
    let repository = repository.ok_or_else(|| fault("the mirror is closed".to_owned()))?;
    let root = root(repository, commit, folder).map_err(|error| fault(error.to_string()))?;
    let entry = root.get_path(std::path::Path::new(path)).map_err(|error| match error.code() {
        ErrorCode::NotFound => FileFault::Missing,
        _ => fault(error.message().to_owned()),
    })?;
    if entry.kind() != Some(ObjectType::Blob) || entry.filemode() == MODE_LINK {
        return Err(fault("it is no file: links and submodules are not followed".to_owned()));
    }
    let read = |error: git2::Error| fault(error.message().to_owned());
    let bytes = repository.odb().and_then(|odb| odb.read_header(entry.id())).map_err(read)?.0 as u64;
    if bytes > bytes_max {
        return Err(FileFault::TooLarge { bytes, bytes_max });
    }
    Ok(repository.find_blob(entry.id()).map_err(read)?.content().to_vec())
}
