//! Walks a folder of manifests. This is the only part of `manifest` that touches files.
//!
//! Read are `.yaml` and `.yml`; what begins with a dot is left out. Whatever cannot be read is a problem and no end: the
//! rest of the tree is read on. A link is followed as long as it stays inside the tree.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::check::{FileFault, Tree, TreeFile};
use super::problem::{Code, Place, Problem, Source};
use super::reader;

/// Files one tree may have.
pub const FILES_MAX: usize = 100_000;
/// Levels of folders one tree may have.
pub const DEPTH_MAX: usize = 64;

/// A file by its path in the tree, of at most so many bytes.
pub type Beside = dyn Fn(&str, u64) -> Result<Vec<u8>, FileFault> + Send + Sync;

/// Manifests, and the files they name, from elsewhere than a folder.
pub struct Snapshot {
    pub tree: Tree,
    pub beside: Box<Beside>,
}

/// Reads all manifests below `roots`, each a folder or a file, in the order of their paths.
pub fn read(roots: &[PathBuf]) -> Tree {
    let mut tree = Tree::default();
    for root in roots {
        let limit = match fs::canonicalize(root) {
            Ok(limit) => limit,
            Err(error) => {
                tree.problems.push(unreadable(root, &error));
                continue;
            }
        };
        if limit.is_dir() {
            let mut walk = Walk { tree: &mut tree, limit: &limit, above: vec![limit.clone()] };
            walk.folder(root);
        } else {
            take(&mut tree, root);
        }
    }
    tree
}

struct Walk<'a> {
    tree: &'a mut Tree,
    /// Nothing outside of this is read.
    limit: &'a Path,
    /// The folders being read: a link to one of them is a circle.
    above: Vec<PathBuf>,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &Path) {
        let entries = match fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(error) => return self.tree.problems.push(unreadable(folder, &error)),
        };
        let mut names: Vec<_> = entries.into_iter().map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        for name in names.iter().filter(|name| !name.to_string_lossy().starts_with('.')) {
            self.entry(&folder.join(name));
        }
    }

    fn entry(&mut self, path: &Path) {
        let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        if is_link && !self.link_stays_inside(path) {
            return;
        }
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if is_manifest(path) => return self.tree.problems.push(unreadable(path, &error)),
            Err(_) => return,
        };
        if metadata.is_dir() {
            let Ok(real) = fs::canonicalize(path) else { return };
            if self.above.len() >= DEPTH_MAX {
                let message = format!("folders are nested more than {DEPTH_MAX} levels deep");
                return self.tree.problems.push(problem(Code::TooMuch, path, message));
            }
            self.above.push(real);
            self.folder(path);
            self.above.pop();
        } else if is_manifest(path) {
            if !metadata.is_file() {
                let problem = problem(Code::Unreadable, path, "this is neither a file nor a folder".to_owned());
                return self.tree.problems.push(problem);
            }
            take(self.tree, path);
        }
    }

    fn link_stays_inside(&mut self, path: &Path) -> bool {
        let message = match fs::canonicalize(path) {
            Err(error) if is_manifest(path) => {
                self.tree.problems.push(unreadable(path, &error));
                return false;
            }
            Err(_) => return false,
            Ok(real) if !real.starts_with(self.limit) => {
                // A link to something that is not read anyway is nobody's business.
                if !real.is_dir() && !is_manifest(path) {
                    return false;
                }
                "the link leads out of the tree"
            }
            Ok(real) if self.above.contains(&real) => "the link leads back to a folder that holds it",
            Ok(_) => return true,
        };
        self.tree.problems.push(problem(Code::LeavesTree, path, message.to_owned()).help("copy what it leads to"));
        false
    }
}

fn take(tree: &mut Tree, path: &Path) {
    if tree.files.len() >= FILES_MAX {
        if tree.files.len() == FILES_MAX {
            let message = format!("the tree has more than {FILES_MAX} manifests");
            tree.problems.push(problem(Code::TooMuch, path, message));
        }
        return;
    }
    // One byte more than allowed is enough for the reader to refuse the file.
    match read_bounded(path, reader::FILE_BYTES_MAX as u64 + 1) {
        Ok(bytes) => tree.files.push(TreeFile { path: shown(path), bytes }),
        Err(error) => tree.problems.push(unreadable(path, &error)),
    }
}

/// The first `bytes_max` bytes of a file.
pub fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Paths are shown with `/` on every system, and without a leading `./`.
fn shown(path: &Path) -> String {
    let path = path.strip_prefix(".").ok().filter(|rest| !rest.as_os_str().is_empty()).unwrap_or(path);
    path.components()
        .map(|part| part.as_os_str().to_string_lossy())
        .collect::<Vec<_>>()
        .join("/")
        .replacen("//", "/", 1)
}

fn problem(code: Code, path: &Path, message: String) -> Problem {
    Problem::error(code, Place::whole(&Arc::new(Source::new(shown(path), ""))), message)
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let what = match error.kind() {
        io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        io::ErrorKind::PermissionDenied => "it cannot be read: permission denied".to_owned(),
        _ => format!("it cannot be read: {error}"),
    };
    problem(Code::Unreadable, path, what)
}

/// Reads a file that a manifest names, relative to the manifest. It has to lie inside one of `roots`.
pub fn read_beside(roots: &[PathBuf], manifest: &str, relative: &str, bytes_max: u64) -> Result<Vec<u8>, FileFault> {
    let fault = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => FileFault::Missing,
        _ => FileFault::Unreadable(error.kind().to_string()),
    };
    let relative = Path::new(relative);
    if relative.components().any(|part| matches!(part, Component::RootDir | Component::Prefix(_))) {
        return Err(FileFault::Outside);
    }
    let folder = Path::new(manifest).parent().unwrap_or(Path::new(""));
    let path = folder.join(relative);
    let limits = roots.iter().filter_map(|root| fs::canonicalize(root).ok());
    let limits: Vec<PathBuf> = limits.map(|root| if root.is_dir() { root } else { parent(&root) }).collect();
    // A path that climbs out is told apart from one that is not there.
    let folder = fs::canonicalize(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")));
    let inside = |real: &Path| limits.iter().any(|limit| real.starts_with(limit));
    if !inside(&folder.map_err(fault)?) {
        return Err(FileFault::Outside);
    }
    let real = fs::canonicalize(&path).map_err(fault)?;
    if !inside(&real) {
        return Err(FileFault::Outside);
    }
    let metadata = fs::metadata(&real).map_err(fault)?;
    if !metadata.is_file() {
        return Err(FileFault::Unreadable("it is not a file".to_owned()));
    }
    if metadata.len() > bytes_max {
        return Err(FileFault::TooLarge { bytes: metadata.len(), bytes_max });
    }
    read_bounded(&real, bytes_max).map_err(fault)
}

/// The path in the tree of what a manifest names, relative to itself; none when that lies outside. For trees without links.
pub fn path_beside(manifest: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = manifest.split('/').collect();
    parts.pop();
    if relative.starts_with('/') {
        return None;
    }
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Whether a file of that path in a tree is read as a manifest.
pub fn is_read(path: &str) -> bool {
    is_manifest(Path::new(path)) && !path.split('/').any(|part| part.starts_with('.'))
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree(build: impl FnOnce(&Path)) -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().unwrap();
        build(folder.path());
        let tree = read(&[folder.path().to_owned()]);
        (folder, tree)
    }

    fn names(tree: &Tree) -> Vec<&str> {
        tree.files.iter().map(|file| file.path.rsplit('/').next().unwrap()).collect()
    }

    #[test]
    fn only_yaml_is_read_in_the_order_of_paths_and_nothing_hidden() {
        let (_folder, tree) = tree(|root| {
            fs::create_dir_all(root.join("b/.git")).unwrap();
            for name in ["c.yml", "a.yaml", "b/d.yaml", "b/.git/e.yaml", ".f.yaml", "README.md", "vat.csv"] {
                fs::write(root.join(name), "").unwrap();
            }
        });
        assert_eq!(names(&tree), ["a.yaml", "d.yaml", "c.yml"]);
        assert!(tree.problems.is_empty(), "{:?}", tree.problems);
    }

    #[test]
    fn links_inside_are_followed_and_others_are_problems() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("x.yaml"), "").unwrap();
        let (_folder, tree) = tree(|root| {
            fs::create_dir(root.join("real")).unwrap();
            fs::write(root.join("real/a.yaml"), "").unwrap();
            symlink("real/a.yaml", root.join("b.yaml")).unwrap();
            symlink(outside.path(), root.join("c-out")).unwrap();
            symlink(outside.path().join("x.yaml"), root.join("d.yaml")).unwrap();
            symlink("nowhere.yaml", root.join("e.yaml")).unwrap();
            symlink("..", root.join("real/up")).unwrap();
        });
        assert_eq!(names(&tree), ["b.yaml", "a.yaml"]);
        let codes: Vec<Code> = tree.problems.iter().map(|problem| problem.code).collect();
        assert_eq!(codes, [Code::LeavesTree, Code::LeavesTree, Code::Unreadable, Code::LeavesTree]);
    }

    #[test]
    fn a_path_beside_a_manifest_is_found_without_files() {
        let beside = |relative| path_beside("sub/a.yaml", relative);
        assert_eq!(beside("vat.csv").as_deref(), Some("sub/vat.csv"));
        assert_eq!(beside("./../x//y.csv").as_deref(), Some("x/y.csv"));
        assert_eq!((beside("../../secret"), beside("/etc/hostname")), (None, None));
        assert!(is_read("a/b.yml") && !is_read("a/.b.yml") && !is_read(".g/b.yml") && !is_read("a/b.csv"));
    }

    #[test]
    fn files_beside_a_manifest_stay_inside_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("tree");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(folder.path().join("secret"), "x").unwrap();
        fs::write(root.join("vat.csv"), "abc").unwrap();
        symlink(folder.path().join("secret"), root.join("link")).unwrap();
        let manifest = root.join("sub/a.yaml");
        let get =
            |path: &str, max: u64| read_beside(std::slice::from_ref(&root), manifest.to_str().unwrap(), path, max);
        assert_eq!(get("../vat.csv", 3), Ok(b"abc".to_vec()));
        assert_eq!(get("../vat.csv", 2), Err(FileFault::TooLarge { bytes: 3, bytes_max: 2 }));
        assert_eq!(get("../../secret", 9), Err(FileFault::Outside));
        assert_eq!(get("../link", 9), Err(FileFault::Outside));
        assert_eq!(get("/etc/hostname", 9), Err(FileFault::Outside));
        assert_eq!(get("none.csv", 9), Err(FileFault::Missing));
    }
}
