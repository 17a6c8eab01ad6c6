//! Whether a data directory is whole, as far as that can be told without reading every record: asked at each start.
//!
//! Every file the database would trust is checked, journals batch by batch. Commits carry numbers and a chain, each keyspace
//! the newest commit in its tables, and `synced` the highest that was acknowledged: for each keyspace all commits have to be in
//! its tables or in a journal. What is behind the last synced commit is a torn tail; anything else that is missing is lost.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::commits::Walk;
use super::report::Report;
use super::tree::{self, Depth, Tree};
use super::{Damage, Verdict, read_bounded};
use crate::bus::embedded::db::Space;
use crate::bus::embedded::ledger::{self, Mark, Synced};

/// Largest journal, in bytes: it is rotated at 64 MiB, and one batch may come on top.
const JOURNAL_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// A start reads tables whole when they have no more bytes than this; else their data blocks are checked as they are read.
const WHOLE_BYTES_MAX: u64 = 256 * 1024 * 1024;
pub(super) const SPACES: [(Space, &str); 3] =
    [(Space::Records, "records"), (Space::Chunks, "chunks"), (Space::Ids, "ids")];

/// One of the three keyspaces on disk.
#[derive(Debug)]
pub(in super::super) struct Keyspace {
    pub id: u64,
    pub tree: Tree,
}

#[derive(Debug)]
pub(in super::super) struct Survey {
    pub report: Report,
    pub keyspaces: [Keyspace; 3],
    pub journals: Vec<PathBuf>,
    /// Journals that end in bytes nobody was told of, and where these begin.
    pub torn: Vec<(PathBuf, u64)>,
    /// No commit was ever made here.
    pub unborn: bool,
    pub last: Mark,
    /// Bytes of all tables.
    pub tables_bytes: u64,
}

/// The used part of a journal.
pub(super) fn read_journal(path: &Path) -> io::Result<Bytes> {
    const STEP: usize = 64 * 1024;
    static ZEROS: [u8; STEP] = [0; STEP];
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > JOURNAL_BYTES_MAX {
        let what = format!("{}: longer than a journal gets ({JOURNAL_BYTES_MAX} bytes)", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let (mut bytes, mut step, mut at) = (Vec::new(), vec![0; STEP], 0);
    while at < length {
        // Most of a journal is a hole. Where that cannot be asked, it is read as zeros.
        match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => at = data.max(at),
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => {}
        }
        let size = STEP.min(usize::try_from(length - at).unwrap_or(STEP));
        file.read_exact_at(&mut step[..size], at)?;
        if step[..size] != ZEROS[..size] {
            // The zeros that were passed over, if any, are inside of what is used.
            bytes.resize(usize::try_from(at).unwrap_or(0), 0);
            bytes.extend_from_slice(&step[..size]);
        }
        at += size as u64;
    }
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    bytes.truncate(used);
    bytes.shrink_to_fit();
    Ok(Bytes::from(bytes))
}

pub(in super::super) fn survey(data_dir: &Path, depth: Option<Depth>) -> io::Result<Survey> {
    let mut report = Report::new(data_dir);
    let bus = data_dir.join("bus");
    let synced = ledger::read_synced(data_dir).unwrap_or(Synced::Unreadable);
    match synced {
        Synced::Commit { number, .. } => report.synced = Some(number),
        Synced::Unreadable => report.notes.push("the file `synced` cannot be read; it is written anew".to_owned()),
        Synced::Nothing => {}
    }
    let journals = journals(&bus, data_dir, &mut report)?;
    let bytes = folder_bytes(&bus.join("keyspaces"));
    let depth = depth.unwrap_or(if bytes <= WHOLE_BYTES_MAX { Depth::Whole } else { Depth::Index });
    let keyspaces = keyspaces(&bus, data_dir, &mut report, depth)?;
    let mut walk = Walk::new(&keyspaces, synced, data_dir);
    for path in &journals {
        walk.journal(path, &mut report)?;
    }
    let unborn = walk.first.is_none() && keyspaces.iter().all(|keyspace| keyspace.tree.mark.is_none());
    if unborn && synced == Synced::Nothing && keyspaces.iter().all(|keyspace| keyspace.tree.tables.is_empty()) {
        let report = Report { notes: Vec::new(), ..Report::new(data_dir) };
        return Ok(Survey {
            report,
            keyspaces,
            journals,
            torn: Vec::new(),
            unborn,
            last: Mark::default(),
            tables_bytes: 0,
        });
    }
    if !bus.is_dir() {
        report.fault(data_dir, &bus, &whole("the folder is missing"));
    } else if read_bounded(&bus.join("version"), 16).ok().as_deref() != Some(b"FJL\x03") {
        report.fault(data_dir, &bus.join("version"), &whole("it is missing or does not say version 3"));
    }
    walk.end(&journals, &mut report);
    let Walk { torn, last, .. } = walk;
    report.last = Some(last.number);
    if report.verdict == Verdict::Sound && !torn.is_empty() {
        report.verdict = Verdict::Torn;
    }
    Ok(Survey { report, keyspaces, journals, torn, unborn: false, last, tables_bytes: bytes })
}

fn whole(what: impl Into<String>) -> Damage {
    Damage { offset: 0, bytes: 0, what: what.into() }
}

fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => folder_bytes(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// The journals, oldest first.
fn journals(bus: &Path, data_dir: &Path, report: &mut Report) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(bus) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("jnl")) {
            continue;
        }
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        match number.filter(|_| path.is_file()) {
            Some(number) => found.push((number, path)),
            None => report.fault(data_dir, &path, &whole("a journal has a number for a name")),
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// The three keyspaces, by the names that the keyspace 0 gives them; by the order they are made in when it is damaged.
fn keyspaces(bus: &Path, data_dir: &Path, report: &mut Report, depth: Depth) -> io::Result<[Keyspace; 3]> {
    let folder = bus.join("keyspaces");
    let mut ids = [1, 2, 3];
    let names = tree::read(&folder.join("0"), Depth::Whole)?;
    let exists = folder.join("0").exists();
    for (path, damage) in names.faults.iter().filter(|_| exists) {
        report.fault(data_dir, path, damage);
    }
    if !exists && bus.exists() {
        report.fault(data_dir, &folder.join("0"), &whole("the folder is missing"));
    }
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
        if entry.path().is_dir() && number.is_none() {
            report.fault(data_dir, &entry.path(), &whole("a keyspace has a number for a name"));
        }
    }
    let mut named = [false; 3];
    for table in &names.tables {
        let mut cursor = tree::open_cursor(&table.path)?;
        while let Some(step) = cursor.next()? {
            let tree_entry = match step {
                super::table::Step::Entry(entry) => entry,
                super::table::Step::Lost { .. } => continue,
            };
            let id = tree_entry.key.strip_prefix(b"n").and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
            let at = SPACES.iter().position(|(_, name)| tree_entry.value.as_deref() == Some(name.as_bytes()));
            if let (Some(id), Some(at)) = (id, at) {
                (ids[at], named[at]) = (id, true);
            }
        }
    }
    let born = named.iter().any(|named| *named);
    let mut read = |at: usize| {
        let path = folder.join(ids[at].to_string());
        // Before its folder is finished, a keyspace holds nothing.
        let tree = if path.is_dir() { tree::read(&path, depth)? } else { Tree::default() };
        if !path.is_dir() && named[at] {
            report.fault(data_dir, &path, &whole(format!("the folder of the keyspace `{}` is missing", SPACES[at].1)));
        }
        if !named[at] && born {
            let what = format!("the keyspace `{}` has no name any more", SPACES[at].1);
            report.fault(data_dir, &folder.join("0"), &whole(what));
        }
        for (path, damage) in &tree.faults {
            report.fault(data_dir, path, damage);
        }
        Ok::<_, io::Error>(Keyspace { id: ids[at], tree })
    };
    Ok([read(0)?, read(1)?, read(2)?])
}
