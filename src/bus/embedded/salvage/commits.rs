//! The commits of a directory in their order: which are lost to which keyspace, and which bytes are a torn tail.

use std::io;
use std::path::{Path, PathBuf};

use super::journal::{Batch, Gap, Part, Parts};
use super::report::{LostCommits, Report};
use super::survey::{Keyspace, SPACES, read_journal};
use super::{Damage, Verdict};
use crate::bus::embedded::ledger::{Mark, Synced};

/// fjall counts writes; commits that follow each other are never further apart than this.
const SEQNO_STEP_MAX: u64 = 1 << 20;

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
pub(super) struct Walk<'a> {
    data_dir: &'a Path,
    keyspaces: &'a [Keyspace; 3],
    synced: Synced,
    pub first: Option<Mark>,
    previous: Option<(Mark, u64)>,
    /// The newest commit anywhere.
    pub last: Mark,
    pending: Vec<Pending>,
    lost: Vec<(u64, u64)>,
    /// Commits that are there out of their order.
    stray: Vec<(u64, u64)>,
    pub torn: Vec<(PathBuf, u64)>,
    /// Bytes of the journal that was read last.
    end: u64,
}

impl<'a> Walk<'a> {
    pub fn new(keyspaces: &'a [Keyspace; 3], synced: Synced, data_dir: &'a Path) -> Self {
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

    pub fn journal(&mut self, path: &Path, report: &mut Report) -> io::Result<()> {
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
    pub fn end(&mut self, journals: &[PathBuf], report: &mut Report) {
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
