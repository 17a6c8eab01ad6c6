//! Where the dead letters are reached: the API of a running process, or the data folder when none runs.
//!
//! Which of the two is never guessed against what was said: `--server` is the API and nothing else, `--data-dir` the folder
//! and nothing else. With neither, the API is asked first, and the folder is opened only when nothing listens on this
//! machine; the lock on it tells when a process runs after all.

use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;

use super::super::run::environment;
use super::super::status;
use super::remote::{Remote, RemoteError};
use crate::id::{Names, SUBJECT_ROOT_DEFAULT};
use crate::runtime::dead_letters::view::{Detail, Edited, Page, Purge, Purged, Replay, Replayed};
use crate::runtime::dead_letters::{self, DeadLetters, Selection};

const DATA_DIR_DEFAULT: &str = ".vejas";

#[derive(Debug, Args)]
pub struct Where {
    /// The API to ask, and nothing else. Default: VEJAS_SERVER or http://127.0.0.1:8686.
    #[arg(long, conflicts_with = "data_dir")]
    server: Option<String>,
    /// The data folder to open, and nothing else; no process may run on it. Default, when nothing listens at the API's
    /// address on this machine: VEJAS_DATA_DIR or `.vejas`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// The token to ask with; the read token will do for `list` and `show`.
    #[arg(long, env = "VEJAS_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A PEM file of certificate authorities to trust besides the system's.
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Prefix of all subjects in the data folder.
    #[arg(long, env = "VEJAS_SUBJECT_ROOT", default_value = SUBJECT_ROOT_DEFAULT)]
    subject_root: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(transparent)]
    Letters(#[from] dead_letters::Error),
    #[error("{0}")]
    Io(String),
}

pub enum Door {
    Api(Remote),
    Folder(DeadLetters),
}

impl Where {
    pub async fn open(self) -> Result<Door, Error> {
        let names = Names::new(&self.subject_root).map_err(|error| Error::Usage(error.to_string()))?;
        if let Some(folder) = &self.data_dir {
            return Ok(Door::Folder(DeadLetters::open(folder, &names).await?));
        }
        let set = |name| environment(name).filter(|value| !value.is_empty());
        let server = self.server.clone().or_else(|| set("VEJAS_SERVER"));
        let server = server.unwrap_or_else(|| status::SERVER_DEFAULT.to_owned());
        let remote = Remote::new(server, self.token, self.ca)?;
        if self.server.is_some() || !remote.is_on_this_machine() || remote.listens().await {
            return Ok(Door::Api(remote));
        }
        let folder = set("VEJAS_DATA_DIR").map_or_else(|| PathBuf::from(DATA_DIR_DEFAULT), PathBuf::from);
        let letters = DeadLetters::open(&folder, &names).await.map_err(|error| match error {
            dead_letters::Error::NoFolder(_) => {
                Error::Io(format!("nothing listens at {}, and {error}", remote.server()))
            }
            error => Error::Letters(error),
        })?;
        super::super::output::error(&format!(
            "nothing listens at {}: reading the data folder {}",
            remote.server(),
            folder.display()
        ));
        Ok(Door::Folder(letters))
    }
}

impl Door {
    pub async fn page(&self, selection: &Selection) -> Result<Page, Error> {
        match self {
            Door::Api(remote) => Ok(remote.page(selection).await?),
            Door::Folder(letters) => Ok(letters.page(selection).await?),
        }
    }

    pub async fn detail(&self, sequence: u64) -> Result<Detail, Error> {
        match self {
            Door::Api(remote) => Ok(remote.detail(sequence).await?),
            Door::Folder(letters) => Ok(letters.detail(sequence).await?),
        }
    }

    pub async fn payload(&self, sequence: u64) -> Result<Bytes, Error> {
        match self {
            Door::Api(remote) => Ok(remote.payload(sequence).await?),
            Door::Folder(letters) => Ok(letters.payload(sequence).await?),
        }
    }

    pub async fn edit(&self, sequence: u64, payload: Bytes) -> Result<Edited, Error> {
        match self {
            Door::Api(remote) => Ok(remote.edit(sequence, payload).await?),
            Door::Folder(letters) => Ok(letters.edit(sequence, payload).await?),
        }
    }

    pub async fn replay(&self, replay: &Replay) -> Result<Replayed, Error> {
        match self {
            Door::Api(remote) => Ok(remote.post("replay", replay).await?),
            Door::Folder(letters) => Ok(letters.replay(replay).await?),
        }
    }

    pub async fn purge(&self, purge: &Purge) -> Result<Purged, Error> {
        match self {
            Door::Api(remote) => Ok(remote.post("purge", purge).await?),
            Door::Folder(letters) => Ok(letters.purge(purge).await?),
        }
    }
}
