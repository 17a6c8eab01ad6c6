//! Dead letters for the people who look after them: seen, edited, replayed, purged. The API and the command line are
//! thin doors in front of this module.
//!
//! A letter is never lost and has at most one successor (its replay, or its edited copy), whoever asks, however often,
//! and wherever the process dies. That is upheld by a *mark* per letter, in three steps:
//!
//! 1. one settlement stores the successor and writes the mark, on the condition that there is none. A bus that settles
//!    atomically does both or nothing; on another one the transport id keeps a second successor out;
//! 2. the letter is removed;
//! 3. the mark gets a time to live, `MARK_KEPT`: somebody may have read the letter just before step 2.
//!
//! A process that dies after step 1 leaves a letter with an open mark. [`DeadLetters::sweep`] does the rest; it runs at
//! start, before anybody asks, and whenever a later step failed. Nothing here ever makes room by itself: a full stream
//! pauses the units that fail, and [`watch`] warns before.

pub mod edit;
mod replay;
mod selection;
pub mod view;
mod watch;

pub use selection::{PAGE_LETTERS_DEFAULT, PAGE_LETTERS_MAX, Selection};
pub use watch::{USED_WARNED_PERCENT, watch};

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;

use crate::bus::embedded::{Embedded, OpenError};
use crate::flow::dead_letter;
use crate::flow::message::{Outgoing, Stored};
use crate::id::Names;
use crate::ports::bus::{self, Batch, Bus, Settlement};
use crate::ports::clock::SharedClock;
use crate::ports::store::{Condition, Store, Write};
use crate::unit::context::Context;
use crate::unit::status::Registry;
use selection::Matcher;
use view::{Detail, Edited, Letter, Page, Purge, Purged};

/// Letters looked at for one page: a filter that matches little still answers soon.
const LOOKED_AT_MAX: usize = 20_000;
/// The same in bytes.
const LOOKED_AT_BYTES_MAX: usize = 64 << 20;
/// How far the clock that stamps a failure may be ahead of the one that stamps what is stored.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);
/// Letters read together.
const READ_LETTERS: usize = 500;
/// How long the mark of a removed letter stays. A letter is read directly before it is settled, so this is ample.
const MARK_KEPT: Duration = Duration::from_secs(120);
/// Marks looked at together.
const MARKS_PAGE: usize = 500;

const MARK_OPEN: &[u8] = b"open";
const MARK_DONE: &[u8] = b"done";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no dead letter {sequence}; `vejas dlq list` shows those there are")]
    NotFound { sequence: u64 },
    #[error("dead letter {sequence} was replayed or edited meanwhile")]
    Gone { sequence: u64 },
    #[error("{0}")]
    Selection(String),
    #[error("{0}")]
    Edit(String),
    #[error("this would be every dead letter there is: say so (`--all`, or `all` in the API), or name some")]
    Everything,
    #[error("there is no data folder {0}: give --data-dir, or start `vejas run`")]
    NoFolder(String),
    #[error("{0}; a process runs on this folder: ask it (--server, or VEJAS_SERVER) instead of opening the folder")]
    InUse(OpenError),
    #[error(transparent)]
    Open(OpenError),
    #[error(transparent)]
    Bus(#[from] bus::Error),
}

/// The dead letters of an installation. Cheap to clone.
#[derive(Clone)]
pub struct DeadLetters {
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    names: Names,
    clock: SharedClock,
    /// The stream of dead letters.
    stream: Arc<str>,
    /// The units that run. Without a process the bus has to say who reads.
    units: Option<Arc<Registry>>,
    /// There may be letters whose mark is open.
    unswept: Arc<AtomicBool>,
}

impl std::fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetters").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl DeadLetters {
    /// Those of the process that runs here.
    pub fn new(context: &Context, units: Arc<Registry>) -> Self {
        DeadLetters {
            bus: Arc::clone(&context.bus),
            store: Arc::clone(&context.store),
            names: context.names.clone(),
            clock: Arc::clone(&context.clock),
            stream: Arc::from(context.names.dead_letters()),
            units: Some(units),
            unswept: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Those in a data folder that no process runs on. The lock on the folder is held until the value is dropped.
    pub async fn open(data_dir: &Path, names: &Names) -> Result<Self, Error> {
        // The bus would make a folder; a mistyped name must not.
        if !data_dir.join("bus").is_dir() {
            return Err(Error::NoFolder(data_dir.display().to_string()));
        }
        let embedded: Arc<Embedded> = super::open_bus(data_dir).map_err(|error| match error {
            OpenError::InUse { .. } => Error::InUse(error),
            error => Error::Open(error),
        })?;
        let letters = DeadLetters {
            bus: Arc::clone(&embedded) as _,
            store: embedded,
            names: names.clone(),
            clock: Arc::new(super::clock::SystemClock),
            stream: Arc::from(names.dead_letters()),
            units: None,
            unswept: Arc::new(AtomicBool::new(true)),
        };
        // Fails when nothing of this installation ever ran here.
        letters.bus.stream(&letters.stream).await?;
        letters.store.ensure_bucket(&names.dead_letter_marks_bucket(), None).await?;
        letters.sweep().await?;
        Ok(letters)
    }

    /// One page of what is selected, in the order of failure.
    pub async fn page(&self, selection: &Selection) -> Result<Page, Error> {
        self.select(selection, selection.page_letters()).await
    }

    pub async fn detail(&self, sequence: u64) -> Result<Detail, Error> {
        Ok(Detail::of(&self.letter(sequence).await?))
    }

    /// The bytes as they are.
    pub async fn payload(&self, sequence: u64) -> Result<Bytes, Error> {
        Ok(self.letter(sequence).await?.payload)
    }

    /// Gives the letter another payload: a new letter with the same history takes its place.
    pub async fn edit(&self, sequence: u64, payload: Bytes) -> Result<Edited, Error> {
        let letter = self.letter(sequence).await?;
        let edited = dead_letter::edited(&letter, payload, self.clock.now());
        let unfinished = Unfinished::new(self);
        let acks = self.succeed(sequence, &self.stream, edited).await?;
        unfinished.finish(&[sequence]).await;
        let edited = acks.first().map_or(0, |ack| ack.sequence);
        tracing::info!(letter = sequence, edited, "dead letter edited");
        Ok(Edited { sequence: edited })
    }

    /// Changes fields of a JSON payload.
    pub async fn set(&self, sequence: u64, set: &view::Set) -> Result<Edited, Error> {
        let payload = edit::set(&self.payload(sequence).await?, &set.set)?;
        self.edit(sequence, payload.into()).await
    }

    /// Removes one page of what is selected, or everything.
    pub async fn purge(&self, purge: &Purge) -> Result<Purged, Error> {
        let everything = purge.select.is_everything();
        if everything && !purge.all {
            return Err(Error::Everything);
        }
        if everything && purge.select.from.is_none() {
            let info = self.bus.stream(&self.stream).await?;
            let through = purge.select.through.unwrap_or(info.last).min(info.last);
            let removed = self.bus.trim(&self.stream, through + 1, &[]).await?;
            tracing::info!(letters = removed, "all dead letters purged");
            return Ok(Purged { removed, next: None, through });
        }
        let page = self.select(&purge.select, purge.select.page_letters()).await?;
        let sequences: Vec<u64> = page.letters.iter().map(|letter| letter.sequence).collect();
        let removed = self.bus.remove(&self.stream, &sequences).await?;
        tracing::info!(letters = removed, "dead letters purged");
        Ok(Purged { removed, next: page.next, through: page.through })
    }

    /// Removes letters whose successor is stored already.
    pub async fn sweep(&self) -> Result<(), bus::Error> {
        if !self.unswept.swap(false, Relaxed) {
            return Ok(());
        }
        let swept = self.sweep_marks().await;
        if swept.is_err() {
            self.unswept.store(true, Relaxed);
        }
        swept
    }

    async fn sweep_marks(&self) -> Result<(), bus::Error> {
        let bucket = self.names.dead_letter_marks_bucket();
        let mut after: Option<String> = None;
        loop {
            let marks = self.store.list(&bucket, "", after.as_deref(), MARKS_PAGE).await?;
            let Some(last) = marks.last() else { return Ok(()) };
            after = Some(last.key.clone());
            let open = marks.iter().filter(|mark| mark.value == MARK_OPEN);
            let sequences: Vec<u64> = open.filter_map(|mark| mark.key.parse().ok()).collect();
            self.remove_marked(&sequences).await?;
        }
    }

    async fn letter(&self, sequence: u64) -> Result<Stored, Error> {
        let read = self.bus.read(&self.stream, sequence, &[], 1).await?;
        read.into_iter().find(|letter| letter.sequence == sequence).ok_or(Error::NotFound { sequence })
    }

    async fn select(&self, selection: &Selection, letters_max: usize) -> Result<Page, Error> {
        let matcher = Matcher::new(selection, &self.names, self.clock.now())?;
        if let Some(sequence) = selection.sequence {
            let letter = self.letter(sequence).await?;
            let letters = if matcher.matches(&letter) { vec![Letter::of(&letter)] } else { Vec::new() };
            return Ok(Page { letters, next: None, through: sequence });
        }
        let last = self.bus.stream(&self.stream).await?.last;
        let through = selection.through.unwrap_or(last).min(last);
        let mut from = selection.from.unwrap_or(1);
        if let Some(since) = matcher.since {
            // A letter is stored after its message failed, but another clock may say when.
            from = from.max(self.bus.sequence_at(&self.stream, since.minus(CLOCK_SKEW_MAX)).await?);
        }
        let mut letters = Vec::new();
        let (mut looked_at, mut bytes) = (0, 0);
        while from <= through {
            let read = self.bus.read(&self.stream, from, &matcher.subjects, READ_LETTERS).await?;
            if read.is_empty() {
                break;
            }
            for letter in read {
                if letter.sequence > through {
                    return Ok(Page { letters, next: None, through });
                }
                if letters.len() >= letters_max || looked_at >= LOOKED_AT_MAX || bytes >= LOOKED_AT_BYTES_MAX {
                    return Ok(Page { letters, next: Some(letter.sequence), through });
                }
                from = letter.sequence + 1;
                looked_at += 1;
                bytes += letter.payload.len();
                if matcher.matches(&letter) {
                    letters.push(Letter::of(&letter));
                }
            }
        }
        Ok(Page { letters, next: None, through })
    }

    /// Stores the one successor a letter may have, with the mark that there is one now. The call to the bus is made here and
    /// not in the future: successors take effect in the order of the calls.
    fn succeed(
        &self,
        sequence: u64,
        stream: &Arc<str>,
        successor: Outgoing,
    ) -> impl Future<Output = Result<Vec<bus::PubAck>, Error>> + use<> {
        let mark = Write {
            bucket: self.names.dead_letter_marks_bucket(),
            key: sequence.to_string(),
            value: Some(Bytes::from_static(MARK_OPEN)),
            condition: Condition::Absent,
            ttl: None,
        };
        let batch = Batch { stream: Arc::clone(stream), messages: vec![successor], expected: Vec::new() };
        let settlement = Settlement { batches: vec![batch], writes: vec![mark], ..Settlement::default() };
        let settled = self.bus.settle(settlement);
        async move {
            match settled.await {
                Err(bus::Error::WrongRevision { .. }) => Err(Error::Gone { sequence }),
                other => Ok(other?),
            }
        }
    }

    async fn remove_marked(&self, sequences: &[u64]) -> Result<(), bus::Error> {
        if sequences.is_empty() {
            return Ok(());
        }
        self.bus.remove(&self.stream, sequences).await?;
        let bucket = self.names.dead_letter_marks_bucket();
        let mut writes = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let key = sequence.to_string();
            let Some(mark) = self.store.get(&bucket, &key).await? else { continue };
            writes.push(Write {
                bucket: bucket.clone(),
                key,
                value: Some(Bytes::from_static(MARK_DONE)),
                condition: Condition::Revision(mark.revision),
                ttl: Some(MARK_KEPT),
            });
        }
        self.store.write(writes).await.map(|_| ())
    }
}

/// Between step 1 and step 3. Whoever asked may go away meanwhile, and its future with it: then the sweep finishes.
struct Unfinished<'a> {
    letters: &'a DeadLetters,
    armed: bool,
}

impl<'a> Unfinished<'a> {
    fn new(letters: &'a DeadLetters) -> Self {
        Unfinished { letters, armed: true }
    }

    /// Steps 2 and 3. A failure here is no failure of the call: the successor is stored, and the mark stands.
    async fn finish(mut self, sequences: &[u64]) {
        match self.letters.remove_marked(sequences).await {
            Ok(()) => self.armed = false,
            Err(error) => tracing::warn!("dead letters that have a successor are removed later: {error}"),
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.letters.unswept.store(true, Relaxed);
        }
    }
}
