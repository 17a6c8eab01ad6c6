//! A git repository as the origin of manifests: a bare mirror in the data folder, from which trees are read without a work tree.
//!
//! Everything here blocks, and everything ends: the server has to say something within [`Options::timeout`], and one fetch may take
//! [`FETCH_MAX`]. `tree` reads a commit's files, `verify` looks at its signature, `remote` speaks to the server.

mod remote;
mod tree;
mod verify;

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use git2::{ErrorClass, ErrorCode, ObjectType, Oid, Repository};

pub use verify::AllowedSigners;

use crate::manifest::tree::Snapshot;

/// How long one fetch may take, also from a server that keeps sending.
pub const FETCH_MAX: Duration = Duration::from_secs(300);
/// Objects that the trees of one set of manifests may have, folders counted.
pub const ENTRIES_MAX: usize = 200_000;

/// Who asks.
#[derive(Clone, Default)]
pub struct Credentials {
    /// For `https`: sent as the password, of `user` if one is named.
    pub token: Option<String>,
    pub user: Option<String>,
    /// For SSH: a private key, and the passphrase it may need.
    pub ssh_key: Option<PathBuf>,
    pub ssh_passphrase: Option<String>,
    /// Host keys to trust, in the format of OpenSSH; `~/.ssh/known_hosts` unless named.
    pub known_hosts: Option<PathBuf>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).field("ssh_key", &self.ssh_key).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
pub struct Options {
    pub url: String,
    /// A branch, a tag or the 40 digits of a commit; the server's default branch unless named.
    pub reference: Option<String>,
    /// The folder of the manifests in the repository; empty is the whole.
    pub path: String,
    pub credentials: Credentials,
    /// Only commits that one of these has signed are taken.
    pub verify: Option<AllowedSigners>,
    /// How long the server may be silent.
    pub timeout: Duration,
    /// Where the mirror is kept.
    pub mirror: PathBuf,
}

impl Options {
    /// The URL without what may be secret in it.
    pub fn shown(&self) -> String {
        let Some((scheme, rest)) = self.url.split_once("://") else { return self.url.clone() };
        let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}"))
    }

    fn reference_shown(&self) -> &str {
        self.reference.as_deref().unwrap_or("its default branch")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{url} refuses the credentials, or they cannot be used: {reason}")]
    Denied { url: String, reason: String },
    #[error("the host key or certificate of {url} is not trusted: {reason}")]
    Untrusted { url: String, reason: String },
    #[error("{url} has no branch, tag or commit {reference}{hint}")]
    NoReference { url: String, reference: String, hint: String },
    #[error("commit {commit} has no folder {path:?} (VEJAS_GIT_PATH)")]
    NoPath { commit: String, path: String },
    #[error("commit {commit} is not taken: {reason}")]
    NotSigned { commit: String, reason: String },
    #[error("the tree of commit {commit} has more than {ENTRIES_MAX} entries")]
    TooLarge { commit: String },
    #[error("the mirror {path} cannot be used: {reason}")]
    Mirror { path: String, reason: String },
    #[error("git: {0}")]
    Git(String),
}

impl From<git2::Error> for Error {
    fn from(error: git2::Error) -> Self {
        Error::Git(error.message().to_owned())
    }
}

/// A commit that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// 40 hex digits.
    pub id: String,
    pub author: String,
    /// The first line of its message.
    pub subject: String,
}

/// The local copy. Cheap to clone.
#[derive(Clone)]
pub struct Mirror {
    options: Arc<Options>,
    repository: Arc<Mutex<Option<Repository>>>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mirror({})", self.options.shown())
    }
}

static TIMEOUTS: Once = Once::new();

impl Mirror {
    pub fn new(options: Options) -> Self {
        set_timeouts(options.timeout);
        Mirror { options: Arc::new(options), repository: Arc::default() }
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Brings the copy up to date and answers what the reference names now.
    pub fn fetch(&self) -> Result<Commit, Error> {
        let mut held = self.lock();
        let repository = match held.take() {
            Some(repository) => repository,
            None => self.open()?,
        };
        let found = remote::fetch(&self.options, &repository).and_then(|default| self.resolve(&repository, default));
        *held = Some(repository);
        found
    }

    /// The manifests of a commit that was fetched, if its signature is wanted and good.
    pub fn snapshot(&self, commit: &Commit) -> Result<Snapshot, Error> {
        let held = self.lock();
        let repository = held.as_ref().ok_or_else(|| Error::Git("nothing was fetched".to_owned()))?;
        let id = Oid::from_str(&commit.id)?;
        if let Some(allowed) = &self.options.verify {
            verify::verify(repository, id, allowed)
                .map_err(|reason| Error::NotSigned { commit: commit.id.clone(), reason })?;
        }
        let tree = tree::read(repository, id, &self.options.path)?;
        let (mirror, root) = (self.clone(), id);
        let beside = move |path: &str, bytes_max: u64| {
            let held = mirror.lock();
            tree::file(held.as_ref(), root, &mirror.options.path, path, bytes_max)
        };
        Ok(Snapshot { tree, beside: Box::new(beside) })
    }

    /// Whether `commit` follows from `before`; a history that was rewritten does not.
    pub fn follows(&self, commit: &str, before: &str) -> bool {
        let held = self.lock();
        let follows = |repository: &Repository| {
            let (commit, before) = (Oid::from_str(commit)?, Oid::from_str(before)?);
            repository.graph_descendant_of(commit, before)
        };
        held.as_ref().is_some_and(|repository| commit == before || follows(repository).unwrap_or(false))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Repository>> {
        self.repository.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mirror that cannot be opened is made anew: it holds nothing that the server does not.
    fn open(&self) -> Result<Repository, Error> {
        let path = &self.options.mirror;
        let failed = |reason: String| Error::Mirror { path: path.display().to_string(), reason };
        match Repository::open_bare(path) {
            Ok(repository) => return Ok(repository),
            Err(error) if error.code() == ErrorCode::NotFound && !path.exists() => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), "the mirror is made anew: {}", error.message());
                fs::remove_dir_all(path).map_err(|error| failed(error.to_string()))?;
            }
        }
        fs::create_dir_all(path).map_err(|error| failed(error.to_string()))?;
        Repository::init_bare(path).map_err(|error| failed(error.message().to_owned()))
    }

    fn resolve(&self, repository: &Repository, default: Option<String>) -> Result<Commit, Error> {
        let options = &self.options;
        let wanted = options.reference.clone().or(default);
        let none = |hint: &str| Error::NoReference {
            url: options.shown(),
            reference: options.reference_shown().to_owned(),
            hint: hint.to_owned(),
        };
        let Some(wanted) = wanted else { return Err(none("; the repository is empty")) };
        let candidates = [wanted.clone(), format!("refs/heads/{wanted}"), format!("refs/tags/{wanted}")];
        let named = candidates.iter().filter(|name| name.starts_with("refs/"));
        let mut found = named.filter_map(|name| repository.find_reference(name).ok());
        let object = match found.next() {
            Some(reference) => reference.peel(ObjectType::Commit).map_err(|_| none("; it names no commit"))?,
            None => match Oid::from_str(&wanted) {
                Ok(id) if wanted.len() == 40 => {
                    let commit = repository.find_object(id, Some(ObjectType::Commit));
                    commit.map_err(|_| none(" that one of its branches or tags leads to"))?
                }
                _ => return Err(none("; it may have been deleted")),
            },
        };
        let commit = object.peel_to_commit()?;
        let author = commit.author();
        let (name, email) = (author.name().unwrap_or("unknown"), author.email().unwrap_or("unknown"));
        Ok(Commit {
            id: commit.id().to_string(),
            author: format!("{name} <{email}>"),
            subject: commit.summary().ok().flatten().unwrap_or_default().chars().take(SUBJECT_CHARS_MAX).collect(),
        })
    }
}

/// Characters kept of the first line of a commit's message.
const SUBJECT_CHARS_MAX: usize = 200;

/// A server that says nothing would be waited for without end. The settings are the library's own and hold for the process.
#[allow(unsafe_code)]
fn set_timeouts(timeout: Duration) {
    TIMEOUTS.call_once(|| {
        let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the library reads these without a lock when it connects; nothing has connected yet, and they are set once.
        let set = unsafe {
            git2::opts::set_server_connect_timeout_in_milliseconds(millis)
                .and_then(|()| git2::opts::set_server_timeout_in_milliseconds(millis))
        };
        if let Err(error) = set {
            tracing::warn!("git has no time limit: {}", error.message());
        }
    });
}

/// What the library says of a server, by what a person would do about it.
fn refused(options: &Options, error: &git2::Error) -> Error {
    let (url, reason) = (options.shown(), error.message().trim().to_owned());
    match (error.code(), error.class()) {
        (ErrorCode::Auth, _) => Error::Denied { url, reason },
        (ErrorCode::Certificate, ErrorClass::Ssh) => {
            let reason = remote::why_unknown(options.credentials.known_hosts.as_deref());
            Error::Untrusted { url, reason }
        }
        (ErrorCode::Certificate, _) => Error::Untrusted { url, reason },
        (_, ErrorClass::Ssh) if reason.contains("private key") => {
            let mend = "is the file of VEJAS_GIT_SSH_KEY a private key, and VEJAS_GIT_SSH_PASSPHRASE its passphrase?";
            Error::Denied { url, reason: format!("{reason}; {mend}") }
        }
        (_, ErrorClass::Http) if reason.contains("401") || reason.contains("403") => Error::Denied { url, reason },
        (_, ErrorClass::Ssl) => Error::Untrusted { url, reason },
        _ => Error::Unreachable { url, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_what_may_be_a_secret() {
        let shown = |url: &str| {
            Options {
                url: url.to_owned(),
                reference: None,
                path: String::new(),
                credentials: Credentials::default(),
                verify: None,
                timeout: Duration::from_secs(1),
                mirror: PathBuf::new(),
            }
            .shown()
        };
        assert_eq!(shown("https://me:token@git.example/a.git"), "https://git.example/a.git");
        assert_eq!(shown("https://git.example/a@b.git"), "https://git.example/a@b.git");
        assert_eq!(shown("git@git.example:a.git"), "git@git.example:a.git");
        assert_eq!(shown("/srv/a.git"), "/srv/a.git");
    }
}
