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

use super::journal::{Batch, Gap, Part, Parts};
use super::report::{LostCommits, Report};
use super::tree::{self, Depth, Tree};
use super::{Damage, Verdict, read_bounded};
use crate::bus::embedded::db::Space;
use crate::bus::embedded::ledger::{self, Mark, Synced};

/// Largest journal, in bytes: it is rotated at 64 MiB, and one batch may come on top.
const JOURNAL_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// A start reads tables whole when they have no more bytes than this; else their data blocks are checked as they are read.
const WHOLE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// fjall counts writes; commits that follow each other are never further apart than this.
const SEQNO_STEP_MAX: u64 = 1 << 20;
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

/// What is left of a range.
fn without(range: (u64, u64), taken: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = vec![range];
    for (first, last) in taken {
        left = left
            .into_iter()
            .flat_map(|(from, to)| [(from, to.min(first.saturating_sub(1))), (from.max(last + 1), to)])
            .filter(|(from, to)| from <= to)
            .collect();
    }
    left
}

/// A stretch of journal without whole batches that is not explained yet.
struct Pending {
    path: PathBuf,
    offset: u64,
    bytes: u64,
    /// The first commit that may have been in it.
    number: Option<u64>,
    /// A whole batch comes behind it in the same file.
    followed: bool,
}

/// Goes over all journals, from the oldest commit to the newest.
struct Walk<'a> {
    data_dir: &'a Path,
    keyspaces: &'a [Keyspace; 3],
    synced: Synced,
    first: Option<Mark>,
    previous: Option<(Mark, u64)>,
    /// The newest commit anywhere.
    last: Mark,
    pending: Vec<Pending>,
    lost: Vec<(u64, u64)>,
    /// Commits that are there out of their order.
    stray: Vec<(u64, u64)>,
    torn: Vec<(PathBuf, u64)>,
    /// Bytes of the journal that was read last.
    end: u64,
}

impl<'a> Walk<'a> {
    fn new(keyspaces: &'a [Keyspace; 3], synced: Synced, data_dir: &'a Path) -> Self {
        let marks = keyspaces.iter().filter_map(|keyspace| keyspace.tree.mark);
        let last = marks.max_by_key(|mark| mark.number).unwrap_or_default();
        let (pending, lost, torn) = (Vec::new(), Vec::new(), Vec::new());
        Walk {
            data_dir,
            keyspaces,
            synced,
            first: None,
            previous: None,
            last,
            pending,
            lost,
            stray: Vec::new(),
            torn,
            end: 0,
        }
    }

    fn journal(&mut self, path: &Path, report: &mut Report) -> io::Result<()> {
        let bytes = read_journal(path)?;
        self.end = bytes.len() as u64;
        for part in Parts::new(bytes) {
            match part {
                Part::Batch(batch) => {
                    if let Some(pending) = self.pending.last_mut().filter(|pending| pending.path == path) {
                        pending.followed = true;
                    }
                    self.batch(path, &batch, report);
                }
                Part::Gap(Gap { offset, end, .. }) => self.pending.push(Pending {
                    path: path.to_owned(),
                    offset: offset as u64,
                    bytes: (end - offset) as u64,
                    number: self.previous.map(|(mark, _)| mark.number + 1),
                    followed: false,
                }),
            }
        }
        Ok(())
    }

    fn batch(&mut self, path: &Path, batch: &Batch, report: &mut Report) {
        let bytes = (batch.end - batch.offset) as u64;
        let mut fault = |what: String| {
            report.fault(self.data_dir, path, &Damage { offset: batch.offset as u64, bytes, what });
        };
        let Some(mark) = batch.mark() else { return fault("a batch that is no commit".to_owned()) };
        let expected = self.previous.map(|(previous, _)| previous.number + 1);
        match self.previous {
            Some((previous, _)) if mark.number <= previous.number => {
                match self.stray.last_mut() {
                    Some(open) if open.1 + 1 == mark.number => open.1 = mark.number,
                    _ => {
                        self.stray.push((mark.number, mark.number));
                        fault(format!("commit {} comes after commit {}", mark.number, previous.number));
                    }
                }
                return;
            }
            Some((previous, _)) if Some(mark.number) == expected => {
                if batch.chain_after(previous.chain, mark.number) != mark.chain {
                    fault(format!("commit {} does not follow from the one before it", mark.number));
                }
            }
            Some((previous, _)) => self.lost.push((previous.number + 1, mark.number - 1)),
            None => {
                self.first = Some(mark);
                let mut before = self.keyspaces.iter().filter_map(|keyspace| keyspace.tree.mark);
                let before = before.find(|before| before.number + 1 == mark.number);
                if before.is_some_and(|before| batch.chain_after(before.chain, mark.number) != mark.chain) {
                    fault(format!("commit {} does not follow from what is in the tables", mark.number));
                }
            }
        }
        let seqno_before = self.previous.map(|(_, seqno)| seqno);
        let hidden = self.keyspaces.iter().any(|keyspace| {
            let tree = &keyspace.tree;
            tree.mark.is_some_and(|held| held.number < mark.number) && tree.seqno_max >= Some(batch.seqno)
        });
        if hidden || seqno_before.is_some_and(|before| batch.seqno <= before || batch.seqno - before > SEQNO_STEP_MAX) {
            fault(format!("commit {} has a place in the order that is not its own", mark.number));
        }
        if let Synced::Commit { number, chain } = self.synced
            && number == mark.number
            && chain != mark.chain
        {
            fault(format!("commit {number} is not the one that was stored: the files are of another history"));
        }
        self.previous = Some((mark, batch.seqno));
        if mark.number > self.last.number {
            self.last = mark;
        }
    }

    /// Says which commits are lost to which keyspace, and which bytes are a torn tail.
    fn end(&mut self, journals: &[PathBuf], report: &mut Report) {
        let synced = match self.synced {
            Synced::Commit { number, .. } => Some(number),
            Synced::Nothing | Synced::Unreadable => None,
        };
        // What a later commit names as synced was, too, also when the file is older.
        let known = synced.unwrap_or(0).max(self.previous.map_or(0, |(mark, _)| mark.synced));
        self.settle_pending(synced, known, report);
        if self.last.number < known {
            self.lost.push((self.last.number + 1, known));
        }
        let from_journal = self.first.map(|first| first.number);
        let until_journal = self.previous.map_or(0, |(mark, _)| mark.number);
        let mut commits: Vec<(u64, u64)> = Vec::new();
        let mut lost_here = std::mem::take(&mut self.lost);
        for (at, keyspace) in self.keyspaces.iter().enumerate() {
            let held = keyspace.tree.mark.map_or(self.last.base.saturating_sub(1), |mark| mark.number);
            let mut missing: Vec<(u64, u64)> = Vec::new();
            let mut end = held;
            match from_journal {
                Some(first) if first > held + 1 => {
                    missing.push((held + 1, first - 1));
                    end = until_journal;
                }
                Some(_) => end = held.max(until_journal),
                None => {}
            }
            if end < self.last.number {
                missing.push((end + 1, self.last.number));
            }
            missing.extend(
                lost_here.iter().filter(|(_, last)| *last > held).map(|(first, last)| (*first.max(&(held + 1)), *last)),
            );
            let missing: Vec<(u64, u64)> = missing.into_iter().flat_map(|range| without(range, &self.stray)).collect();
            for (first, last) in &missing {
                let what = format!("the keyspace `{}` lacks commits {first} to {last}", SPACES[at].1);
                let path = journals.last().cloned().unwrap_or_else(|| self.data_dir.join("bus"));
                report.fault(self.data_dir, &path, &Damage { offset: self.end, bytes: 0, what });
            }
            commits.extend(missing);
        }
        // Lost from the journals but in every table: fjall would stop reading there all the same.
        for (first, last) in lost_here.drain(..) {
            if !commits.iter().any(|(f, l)| first <= *l && *f <= last) {
                report.verdict = Verdict::Damaged;
                report
                    .notes
                    .push(format!("commits {first} to {last} are damaged in a journal and whole in the tables"));
            }
        }
        commits.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (first, last) in commits {
            match merged.last_mut() {
                Some(open) if first <= open.1 + 1 => open.1 = open.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        report.lost.commits =
            merged.into_iter().map(|(first, last)| LostCommits { first, last, named: false }).collect();
    }

    fn settle_pending(&mut self, synced: Option<u64>, known: u64, report: &mut Report) {
        let end = self.previous.map_or(0, |(mark, _)| mark.number);
        for pending in std::mem::take(&mut self.pending) {
            if self.torn.iter().any(|(path, _)| *path == pending.path) {
                continue;
            }
            let unsynced = match pending.number {
                Some(number) => number > known,
                None => self.first.is_none() && known <= self.last.number,
            };
            // Bytes behind the last commit of a journal whose successor goes on without a hole.
            let passed = |number: u64| !pending.followed && number <= end && !self.is_lost(number);
            // Without `synced` nobody can tell whether the end was acknowledged, and it counts as lost.
            if (unsynced && synced.is_some()) || pending.number.is_some_and(passed) {
                self.torn.push((pending.path, pending.offset));
                if let Some(number) = pending.number.filter(|number| *number > known) {
                    self.forget_from(number);
                }
                continue;
            }
            let what = match pending.number {
                Some(number) if unsynced => {
                    self.lost.push((number, number));
                    format!("no whole commit; whether commit {number} was acknowledged cannot be told without `synced`")
                }
                Some(number) if self.is_lost(number) || number > end => format!("damaged; commit {number} was here"),
                _ => "damaged".to_owned(),
            };
            report.fault(self.data_dir, &pending.path, &Damage { offset: pending.offset, bytes: pending.bytes, what });
        }
    }

    fn is_lost(&self, number: u64) -> bool {
        self.lost.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }

    /// What comes behind a torn commit was not acknowledged either, and goes with it.
    fn forget_from(&mut self, number: u64) {
        self.lost.retain(|(first, _)| *first < number);
        if let Some((previous, _)) = &mut self.previous {
            previous.number = previous.number.min(number - 1);
        }
        let in_tables = self.keyspaces.iter().filter_map(|keyspace| keyspace.tree.mark);
        let in_tables = in_tables.map(|mark| mark.number).max().unwrap_or(0);
        self.last.number = self.last.number.min((number - 1).max(in_tables));
    }
}
