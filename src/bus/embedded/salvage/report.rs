//! What a look at a data directory found, for people and as JSON.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::Damage;

/// Entries of any one list in a report. What is beyond is counted.
pub(super) const LISTED_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything that was acknowledged is there.
    #[default]
    Sound,
    /// It ends in a write that was cut off and never acknowledged. The next start removes that.
    Torn,
    /// It is refused until it is repaired.
    Damaged,
}

/// One place that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Inside the data folder.
    pub file: String,
    pub offset: u64,
    /// 0 for the file as a whole.
    pub bytes: u64,
    pub what: String,
}

/// Messages of one stream that are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostMessages {
    pub stream: String,
    pub count: u64,
    /// First and last sequence of each range that they are in.
    pub ranges: Vec<(u64, u64)>,
    /// Whether everything in the ranges is lost. Otherwise some of it had been removed before.
    pub exact: bool,
}

/// Commits of which nothing, or not everything, can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostCommits {
    pub first: u64,
    pub last: u64,
    /// Whether what they held is fully named in the rest of the report.
    pub named: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    pub messages: Vec<LostMessages>,
    /// Entries as `bucket/key` whose last value is gone; an older one may be there.
    pub entries: Vec<String>,
    /// Positions, subjects and other state, in words.
    pub records: Vec<String>,
    pub commits: Vec<LostCommits>,
    /// Entries of these lists beyond what is listed.
    pub more: u64,
}

impl Lost {
    pub fn is_nothing(&self) -> bool {
        self.messages.is_empty() && self.entries.is_empty() && self.records.is_empty() && self.commits.is_empty()
    }

    /// Whether the lists above name all that is lost.
    pub fn is_fully_named(&self) -> bool {
        self.more == 0 && self.commits.iter().all(|commits| commits.named)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamFound {
    pub name: String,
    pub first: u64,
    pub last: u64,
    /// Messages that can be read.
    pub messages: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub data_dir: String,
    pub verdict: Verdict,
    pub format: Option<u32>,
    /// The highest commit that is known to have been synced.
    pub synced: Option<u64>,
    /// The newest commit that was found.
    pub last: Option<u64>,
    pub streams: Vec<StreamFound>,
    pub faults: Vec<Fault>,
    /// Faults beyond those listed.
    pub faults_more: u64,
    pub lost: Lost,
    /// What is worth knowing and no damage.
    pub notes: Vec<String>,
}

impl Report {
    pub(super) fn new(data_dir: &Path) -> Self {
        Report { data_dir: data_dir.display().to_string(), ..Report::default() }
    }

    pub(super) fn fault(&mut self, data_dir: &Path, path: &Path, damage: &Damage) {
        self.verdict = Verdict::Damaged;
        if self.faults.len() >= LISTED_MAX {
            self.faults_more += 1;
            return;
        }
        let file = path.strip_prefix(data_dir).unwrap_or(path).display().to_string();
        let fault = Fault { file, offset: damage.offset, bytes: damage.bytes, what: damage.what.clone() };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// One or two lines: the first fault and how many more there are.
    pub fn summary(&self) -> String {
        let mut text = match self.faults.first() {
            Some(fault) => fault.to_string(),
            None => "something is lost".to_owned(),
        };
        let more = self.faults.len().saturating_sub(1) as u64 + self.faults_more;
        if more > 0 {
            let _ = write!(text, ", and {more} more");
        }
        for commits in &self.lost.commits {
            let _ = write!(text, "; {commits}");
        }
        text
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file)?;
        if self.bytes > 0 {
            write!(f, " at {} ({} bytes)", self.offset, self.bytes)?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::fmt::Display for LostCommits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.first == self.last {
            true => write!(f, "commit {}", self.first)?,
            false => write!(f, "commits {} to {}", self.first, self.last)?,
        }
        f.write_str(if self.named { "" } else { ": what else was in it is not known" })
    }
}

impl std::fmt::Display for LostMessages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN_MAX: usize = 20;
        let range = |(first, last): &(u64, u64)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        let shown: Vec<_> = self.ranges.iter().take(SHOWN_MAX).map(range).collect();
        let of = if self.exact { "" } else { "among " };
        write!(f, "stream {}: {} messages, {of}sequences {}", self.stream, self.count, shown.join(" "))?;
        if self.ranges.len() > SHOWN_MAX {
            write!(f, " and {} more ranges", self.ranges.len() - SHOWN_MAX)?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for messages in &self.messages {
            writeln!(f, "  {messages}")?;
        }
        for entry in &self.entries {
            writeln!(f, "  last value of entry {entry}")?;
        }
        for record in &self.records {
            writeln!(f, "  {record}")?;
        }
        for commits in &self.commits {
            writeln!(f, "  {commits}")?;
        }
        if self.more > 0 {
            writeln!(f, "  and {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.verdict {
            Verdict::Sound => writeln!(f, "{}: sound", self.data_dir)?,
            Verdict::Torn => writeln!(f, "{}: ends in a write that was cut off, which costs nothing", self.data_dir)?,
            Verdict::Damaged => writeln!(f, "{}: damaged", self.data_dir)?,
        }
        for stream in &self.streams {
            let StreamFound { name, first, last, messages } = stream;
            writeln!(f, "  stream {name}: {messages} messages, sequences {first} to {last}")?;
        }
        if !self.faults.is_empty() {
            writeln!(f, "\nDamage:")?;
        }
        for fault in &self.faults {
            writeln!(f, "  {fault}")?;
        }
        if self.faults_more > 0 {
            writeln!(f, "  and {} more", self.faults_more)?;
        }
        match (self.verdict, self.lost.is_nothing()) {
            (Verdict::Damaged, true) => writeln!(f, "\nNothing that was acknowledged is lost.")?,
            (_, false) => write!(f, "\nLost:\n{}", self.lost)?,
            _ => {}
        }
        for note in &self.notes {
            writeln!(f, "\nNote: {note}")?;
        }
        Ok(())
    }
}
