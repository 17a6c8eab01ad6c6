//! Follows the folder of manifests while the process runs.
//!
//! The file system says when to look (`notify`), a look every [`Reloads::new`]`(period)` makes up for what it does not say: network
//! file systems and swapped links say little. What counts is the content: the bytes of all manifests and of the files they name. A
//! look that finds the same does nothing.
//!
//! Nothing is decided here but when: what follows from another content is `units`' business.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::config::Config;
use super::contents;
use super::load::{self, Loaded, Shown};
use super::units::{self, Change};
use crate::id::UnitId;
use crate::manifest::check::Tree;
use crate::manifest::tree;
use crate::time::Timestamp;

/// Changes that follow each other this closely are one.
const QUIET: Duration = Duration::from_millis(200);
/// A folder that never gets quiet is looked at this often.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(2);
/// Problems shown.
const PROBLEMS_MAX: usize = 100;
/// Bytes of one file beside a manifest that count.
const BESIDE_BYTES_MAX: u64 = contents::PIECE_BYTES_MAX as u64;

/// The set of manifests that is in effect, and what is wrong with the newest.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Manifests {
    /// Where they are read.
    pub path: String,
    /// Grows with every set that came into effect.
    pub no: u64,
    /// The digest over all units.
    pub revision: String,
    /// When the set came into effect, RFC 3339.
    pub applied: String,
    pub documents: usize,
    /// How many errors there are. A manifest with an error does not take effect; what it declared before runs on.
    pub errors: usize,
    /// The first hundred errors and warnings, by file and place.
    pub problems: Vec<Shown>,
    /// Units that run on in their last good version.
    pub kept: Vec<String>,
    /// Why the newest set is not in effect.
    pub failure: Option<String>,
}

/// Shared between who applies and who shows.
#[derive(Debug, Clone, Default)]
pub struct Told(Arc<Mutex<Manifests>>);

impl Told {
    pub fn get(&self) -> Manifests {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was read.
    pub fn read(&self, config: &Config, loaded: &Loaded) {
        let mut manifests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        manifests.path = config.manifests.display().to_string();
        manifests.documents = loaded.documents;
        manifests.errors = loaded.errors();
        manifests.problems = loaded.problems.iter().take(PROBLEMS_MAX).cloned().collect();
        metrics::gauge!("vejas_manifest_errors").set(manifests.errors as f64);
    }

    /// What came of it.
    pub fn applied(&self, applied: &Result<Change, units::Error>, now: Timestamp) {
        let mut manifests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match applied {
            Ok(change) => {
                manifests.no = change.no;
                manifests.revision.clone_from(&change.revision);
                manifests.applied = now.to_string();
                manifests.kept = change.kept.iter().map(ToString::to_string).collect();
                manifests.failure.clone_from(&change.degraded);
            }
            Err(error) => manifests.failure = Some(error.to_string()),
        }
    }
}

pub(super) fn log(change: &Change) {
    let result = if change.is_empty() { "unchanged" } else { "applied" };
    metrics::counter!("vejas_reloads_total", "result" => result).increment(1);
    let names = |ids: &[UnitId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let Change { no, added, changed, removed, kept, .. } = change;
    if result == "applied" {
        let (added, changed, removed, kept) = (names(added), names(changed), names(removed), names(kept));
        tracing::info!(no, added, changed, removed, kept, "new manifests in effect");
    }
}

/// The folder, watched.
pub struct Reloads {
    config: Arc<Config>,
    period: Duration,
    changed: Arc<Notify>,
    /// Kept, because dropped it watches no more.
    watcher: Option<RecommendedWatcher>,
    /// Of the content that is in effect.
    seen: Option<String>,
    /// The files beside manifests that count.
    beside: Vec<PathBuf>,
}

impl Reloads {
    /// Watches from now on. `loaded` is what is about to be in effect.
    pub fn new(config: &Arc<Config>, period: Duration, loaded: &Loaded) -> Self {
        let changed = Arc::new(Notify::new());
        let watcher = watch(config, Arc::clone(&changed));
        if let Err(error) = &watcher {
            let period = humantime::format_duration(period);
            tracing::warn!("the folder of manifests is not watched, only looked at every {period}: {error}");
        }
        Reloads {
            config: Arc::clone(config),
            period,
            changed,
            watcher: watcher.ok(),
            seen: loaded.fingerprint.clone(),
            beside: loaded.beside.clone(),
        }
    }

    /// Waits until the content is another, and reads it. Call [`Reloads::applied`] when it is in effect; until then every look
    /// finds it again.
    pub async fn next(&mut self) -> Loaded {
        loop {
            let changed = timeout(self.period, self.changed.notified()).await.is_ok();
            if changed {
                self.quiet().await;
            }
            let (config, beside) = (Arc::clone(&self.config), self.beside.clone());
            let look = tokio::task::spawn_blocking(move || fingerprint(&config.manifests, &beside)).await;
            if look.as_ref().is_ok_and(|found| Some(found) == self.seen.as_ref()) {
                continue;
            }
            match load::read(&self.config).await {
                Ok(loaded) => return loaded,
                Err(error) => tracing::error!("{error}"),
            }
        }
    }

    async fn quiet(&self) {
        let quiet = async { while timeout(QUIET, self.changed.notified()).await.is_ok() {} };
        let _ = timeout(QUIET_WAIT_MAX, quiet).await;
    }

    pub fn applied(&mut self, fingerprint: Option<String>, beside: Vec<PathBuf>) {
        self.seen = fingerprint;
        self.beside = beside;
        // A folder that was made anew is another one to the file system.
        let changed = Arc::clone(&self.changed);
        if let Ok(watcher) = watch(&self.config, changed) {
            self.watcher = Some(watcher);
        }
    }
}

fn watch(config: &Config, changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // An error says that something was missed: worth a look as well.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            changed.notify_one();
        }
    })?;
    let path = &config.manifests;
    if path.is_dir() {
        watcher.watch(path, RecursiveMode::Recursive)?;
    } else {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        watcher.watch(folder.unwrap_or(std::path::Path::new(".")), RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

/// The digest over all that counts.
pub(super) fn fingerprint(manifests: &std::path::Path, beside: &[PathBuf]) -> String {
    fingerprint_of(&tree::read(&[manifests.to_owned()]), beside)
}

pub(super) fn fingerprint_of(tree: &Tree, beside: &[PathBuf]) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    for file in &tree.files {
        part(file.path.as_bytes());
        part(&file.bytes);
    }
    for problem in &tree.problems {
        part(problem.place.to_string().as_bytes());
        part(problem.message.as_bytes());
    }
    for path in beside {
        part(path.to_string_lossy().as_bytes());
        match tree::read_bounded(path, BESIDE_BYTES_MAX) {
            Ok(bytes) => part(&bytes),
            Err(error) => part(error.kind().to_string().as_bytes()),
        }
    }
    contents::hex(&hash.finalize().into())
}
