//! A data directory looked at from outside: what is damaged, what is lost by it, and what can still be had.
//!
//! The database cuts off or deletes what it cannot read when it opens. So nothing here opens it: journals (`journal`), tables
//! (`table`, `tree`) are read as files, and only read. `survey` says whether a directory is whole as far as that can be told
//! quickly; every start asks it. `check` looks at every record and names what is lost, `export` gives out messages, and
//! `repair` writes a new database from all that can be read. `merge` shows them one ordered view of a keyspace.
//!
//! Memory is bounded by the journals (about 64 MiB of the newest commits) and one block per table, whatever the size of the directory.

mod check;
mod commits;
mod export;
mod holdings;
mod journal;
mod merge;
mod names;
mod repair;
mod report;
mod survey;
mod table;
mod tree;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use check::check;
pub use export::{Exported, Selection, export};
pub use repair::{Repaired, repair};
pub use report::{Fault, Lost, LostCommits, LostMessages, Report, StreamFound, Verdict};
pub(super) use survey::{Survey, survey};

/// Where in a file something is wrong. No bytes mean the file as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    pub offset: u64,
    pub bytes: u64,
    pub what: String,
}

/// What looking or mending could not do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no data folder at {0}")]
    NoFolder(std::path::PathBuf),
    #[error(transparent)]
    Open(#[from] super::OpenError),
    #[error("{}", path.display())]
    Io { path: std::path::PathBuf, source: io::Error },
    #[error("writing the mended database: {0}")]
    Write(String),
    #[error("{0}")]
    Output(io::Error),
    #[error("mending needs about {needed} bytes of room in {}, and {free} are free", path.display())]
    NoRoom { path: std::path::PathBuf, needed: u64, free: u64 },
    #[error("there is no stream {0} in this folder")]
    NoStream(String),
}

/// Told about long work: what is looked at, how many bytes of it are done, and how many there are.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// The format as a record of the database says it.
pub(super) fn recorded_format(survey: &Survey) -> io::Result<Option<u32>> {
    use super::codec::meta;
    // Whatever form its commits have: an older one may have no marks.
    for path in &survey.journals {
        for part in journal::Parts::new(survey::read_journal(path)?) {
            let journal::Part::Batch(batch) = part else { continue };
            let format =
                batch.items.iter().find(|item| item.key == meta::FORMAT).and_then(|item| item.value.as_deref());
            if let Some(format) = format.and_then(|value| value.try_into().ok()) {
                return Ok(Some(u32::from_le_bytes(format)));
            }
        }
    }
    let overlay = merge::overlay(survey)?;
    let mut records = merge::Merge::new(survey, &overlay, 0)?;
    while let Some(found) = records.next()?.filter(|found| &found.key[..] <= meta::FORMAT) {
        if found.key == meta::FORMAT {
            return Ok(found.value[..].try_into().ok().map(u32::from_le_bytes));
        }
    }
    Ok(None)
}

/// A small file whole; an error when it is larger than it can be.
pub(super) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}
