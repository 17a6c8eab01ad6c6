//! The chores thread: removing messages and expired entries, in bounded steps.
//!
//! It alone changes chunks that are on disk. Each step reads without the lock, hands its changes to the open batch like
//! any other call, and waits until they are durable before it reads again, so no step works on a state that another
//! one is about to change. A chunk that loses some of its messages is written again under the same key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::chunk::{Builder, Chunk, Span};
use super::codec::{chunk_key, index_key, read_expiry_key, span_key};
use super::commit::chunk_items;
use super::db::{Db, Item, Space};
use super::engine::{Broken, Engine, Life, Shared};
use super::select::{self, Loader};
use crate::id::subject_matches;
use crate::ports::bus::Error;
use crate::time::Timestamp;

/// Chunks changed in one step.
const STEP_CHUNKS: usize = 64;
/// Expired entries removed in one step.
const STEP_ENTRIES: usize = 512;

type Answered = oneshot::Sender<Result<u64, Error>>;

pub(super) enum Chore {
    Trim {
        stream: u32,
        first: u64,
        keep_last_of: Vec<String>,
        answer: Answered,
    },
    Remove {
        stream: u32,
        sequences: Vec<u64>,
        answer: Answered,
    },
    /// The journal was rotated: write out what keeps the old ones.
    Flush,
}

pub(super) fn run(shared: &Arc<Shared>, db: &Db) {
    while let Some(chore) = next(shared) {
        let (answer, result) = match chore {
            Due::Chore(Chore::Trim { stream, first, keep_last_of, answer }) => {
                (Some(answer), trim(shared, db, stream, first, &keep_last_of))
            }
            Due::Chore(Chore::Remove { stream, sequences, answer }) => {
                (Some(answer), remove(shared, db, stream, sequences))
            }
            Due::Chore(Chore::Flush) => (None, db.flush().map(|()| 0).map_err(Failed::from)),
            Due::Expiry(now) => (None, sweep(shared, db, now).map(|()| 0)),
        };
        let result = result.map_err(|failed| match failed {
            Failed::Broken(broken) => shared.broken(&broken),
            Failed::Refused(error) => error,
        });
        if let Some(answer) = answer {
            let _ = answer.send(result);
        }
    }
}

enum Failed {
    Broken(Broken),
    Refused(Error),
}

impl<B: Into<Broken>> From<B> for Failed {
    fn from(broken: B) -> Self {
        Failed::Broken(broken.into())
    }
}

enum Due {
    Chore(Chore),
    Expiry(Timestamp),
}

fn next(shared: &Shared) -> Option<Due> {
    let mut engine = shared.lock_any();
    loop {
        if !matches!(engine.life, Life::Running) {
            return None;
        }
        if let Some(chore) = engine.chores.pop_front() {
            return Some(Due::Chore(chore));
        }
        let now = engine.clock.now();
        engine = match engine.buckets.next_expiry {
            Some(expiry) if expiry <= now => {
                engine.buckets.next_expiry = None;
                return Some(Due::Expiry(now));
            }
            Some(expiry) => match shared.chore.wait_timeout(engine, expiry.since(now)) {
                Ok((engine, _)) => engine,
                Err(poisoned) => poisoned.into_inner().0,
            },
            None => shared.chore.wait(engine).unwrap_or_else(std::sync::PoisonError::into_inner),
        };
    }
}

/// Changes that one step makes to a stream.
#[derive(Default)]
struct Step {
    items: Vec<Item>,
    rewritten: Vec<(u64, Option<Arc<Chunk>>)>,
    /// Ascending, not overlapping.
    removed: Vec<(u64, u64)>,
    messages: u64,
    bytes: u64,
    /// Subjects that lost messages.
    subjects: BTreeSet<u32>,
}

impl Step {
    fn has(&self, sequence: u64) -> bool {
        let at = self.removed.partition_point(|(_, last)| *last < sequence);
        self.removed.get(at).is_some_and(|(first, _)| *first <= sequence)
    }

    /// Removes a chunk with all that is in it.
    fn drop_chunk(&mut self, stream: u32, span: &Span) {
        self.items.push(Item::remove(Space::Chunks, chunk_key(stream, span.first)));
        self.items.push(Item::remove(Space::Records, span_key(stream, span.first)));
        for subject in &span.subjects {
            self.items.push(Item::remove(Space::Records, index_key(stream, *subject, span.first)));
        }
        self.rewritten.push((span.first, None));
        self.removed.push((span.first, span.last));
        self.messages += u64::from(span.count);
        self.bytes += span.bytes;
        self.subjects.extend(&span.subjects);
    }

    /// Keeps some messages of a chunk.
    fn thin_chunk(&mut self, db: &Db, stream: u32, span: &Span, keep: impl Fn(u64) -> bool) -> Result<(), Broken> {
        let held = select::subjects_of(db, stream, span)?;
        let (kept, gone): (Vec<_>, Vec<_>) = held.into_iter().partition(|(sequence, _)| keep(*sequence));
        if gone.is_empty() {
            return Ok(());
        }
        if kept.is_empty() {
            self.drop_chunk(stream, span);
            return Ok(());
        }
        let mut loader = Loader::new(db, stream);
        let mut builder = Builder::new(stream, span.first, span.time);
        for (sequence, subject) in &kept {
            if let Some((chunk, at)) = loader.find(*sequence)? {
                builder.push_kept(*sequence, *subject, &chunk.message(at)?);
            }
        }
        self.bytes += span.bytes.saturating_sub(builder.charged_bytes);
        self.messages += gone.len() as u64;
        self.removed.extend(gone.iter().map(|(sequence, _)| (*sequence, *sequence)));
        self.subjects.extend(gone.iter().map(|(_, subject)| *subject));
        for subject in span.subjects.iter().filter(|subject| !kept.iter().any(|(_, kept)| kept == *subject)) {
            self.items.push(Item::remove(Space::Records, index_key(stream, *subject, span.first)));
        }
        let chunk = chunk_items(builder.finish(), &mut self.items)?.chunk;
        self.rewritten.push((span.first, Some(chunk)));
        Ok(())
    }
}

/// Makes one step durable.
fn apply(shared: &Arc<Shared>, db: &Db, stream: u32, step: Step) -> Result<u64, Failed> {
    if step.removed.is_empty() {
        return Ok(0);
    }
    let lasts: Vec<(u32, u64)> = {
        let engine = shared.lock().map_err(Failed::Refused)?;
        let subjects = &engine.streams[stream as usize].subjects;
        step.subjects.iter().map(|id| (*id, subjects[*id as usize].last)).collect()
    };
    let mut fallen = Vec::new();
    for (subject, last) in lasts.into_iter().filter(|(_, last)| step.has(*last)) {
        fallen.push((subject, last, select::previous(db, stream, subject, last, |sequence| step.has(sequence))?));
    }
    let messages = step.messages;
    let applied = shared.submit(move |engine| {
        apply_step(engine, stream, step, &fallen);
        Ok(())
    });
    match applied.blocking_recv() {
        Ok(result) => result.map_err(Failed::Refused)?,
        Err(_) => return Err(Failed::Refused(Error::Stopped("closed".to_owned()))),
    }
    Ok(messages)
}

fn apply_step(engine: &mut Engine, stream_id: u32, mut step: Step, fallen: &[(u32, u64, u64)]) {
    let Engine { streams, durables, open, .. } = engine;
    let stream = &mut streams[stream_id as usize];
    for item in step.items.drain(..) {
        open.put(item);
    }
    let rewritten = std::mem::take(&mut step.rewritten);
    open.rewritten.extend(rewritten.into_iter().map(|(first, chunk)| (stream_id, first, chunk)));
    stream.messages = stream.messages.saturating_sub(step.messages);
    stream.bytes = stream.bytes.saturating_sub(step.bytes);
    stream.dirty = true;
    for (id, last, previous) in fallen {
        let subject = &mut stream.subjects[*id as usize];
        if subject.last == *last {
            subject.last = *previous;
            if !std::mem::replace(&mut subject.dirty, true) {
                open.subjects.push((stream_id, *id));
            }
        }
    }
    for id in stream.durables.values() {
        if let Some(durable) = &mut durables[*id as usize] {
            durable.forget(|sequence| step.has(sequence));
        }
    }
}

/// Brings the stream's first sequence in line with what is held.
fn find_first(shared: &Arc<Shared>, db: &Db, stream: u32, visible: u64) -> Result<(), Failed> {
    let first = match select::spans(db, stream, 0)?.next().transpose()? {
        Some(span) if span.is_dense() => span.first,
        Some(span) => select::subjects_of(db, stream, &span)?.first().map_or(span.first, |(sequence, _)| *sequence),
        None => visible + 1,
    };
    let applied = shared.submit(move |engine| {
        let stream = &mut engine.streams[stream as usize];
        stream.first = first;
        stream.dirty = true;
        engine.open.sync = true;
        Ok(())
    });
    applied.blocking_recv().unwrap_or_else(|_| Err(Error::Stopped("closed".to_owned()))).map_err(Failed::Refused)
}

fn trim(shared: &Arc<Shared>, db: &Db, stream: u32, first: u64, keep_last_of: &[String]) -> Result<u64, Failed> {
    let (visible, kept) = {
        let engine = shared.lock().map_err(Failed::Refused)?;
        let stream = &engine.streams[stream as usize];
        let is_kept = |name: &str| keep_last_of.iter().any(|filter| subject_matches(filter, name));
        let kept = stream.subjects.iter().filter(|subject| is_kept(&subject.name)).map(|subject| subject.last);
        (stream.visible, kept.collect::<BTreeSet<u64>>())
    };
    let end = first.min(visible + 1);
    let (mut from, mut removed) = (0, 0);
    loop {
        let mut step = Step::default();
        let mut spans = select::spans(db, stream, from)?;
        let mut more = false;
        for span in &mut spans {
            let span = span?;
            if span.first >= end {
                break;
            }
            from = span.last + 1;
            if span.last < end && kept.range(span.first..=span.last).next().is_none() {
                step.drop_chunk(stream, &span);
            } else if kept.range(span.first..=span.last).count() < span.count as usize {
                step.thin_chunk(db, stream, &span, |sequence| sequence >= end || kept.contains(&sequence))?;
            }
            more = step.rewritten.len() >= STEP_CHUNKS;
            if more {
                break;
            }
        }
        drop(spans);
        removed += apply(shared, db, stream, step)?;
        if !more {
            break;
        }
    }
    if removed > 0 {
        find_first(shared, db, stream, visible)?;
    }
    Ok(removed)
}

fn remove(shared: &Arc<Shared>, db: &Db, stream: u32, sequences: Vec<u64>) -> Result<u64, Failed> {
    let visible = shared.lock().map_err(Failed::Refused)?.streams[stream as usize].visible;
    let mut by_chunk: BTreeMap<u64, (Span, BTreeSet<u64>)> = BTreeMap::new();
    for sequence in sequences.into_iter().filter(|sequence| *sequence <= visible) {
        if let Some(span) = select::span_at(db, stream, sequence)?.filter(|span| span.last >= sequence) {
            by_chunk.entry(span.first).or_insert_with(|| (span, BTreeSet::new())).1.insert(sequence);
        }
    }
    let mut removed = 0;
    let mut chunks: VecDeque<_> = by_chunk.into_values().collect();
    while !chunks.is_empty() {
        let mut step = Step::default();
        for (span, gone) in chunks.drain(..chunks.len().min(STEP_CHUNKS)) {
            step.thin_chunk(db, stream, &span, |sequence| !gone.contains(&sequence))?;
        }
        removed += apply(shared, db, stream, step)?;
    }
    if removed > 0 {
        find_first(shared, db, stream, visible)?;
    }
    Ok(removed)
}

/// Removes a step of entries that have expired and notes when the next one does.
fn sweep(shared: &Arc<Shared>, db: &Db, now: Timestamp) -> Result<(), Failed> {
    let mut due = Vec::new();
    let mut next = None;
    for item in db.prefix(Space::Records, b"x") {
        let (key, value) = item.into_inner()?;
        let (expires, bucket, name) = read_expiry_key(&key)?;
        if expires > now || due.len() >= STEP_ENTRIES {
            next = Some(expires);
            break;
        }
        let revision = value.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        due.push((bucket, name.to_owned(), expires, revision));
    }
    let applied = shared.submit(move |engine| {
        for (bucket, name, expires, revision) in due {
            engine.expire_entry(bucket, &name, expires, revision)?;
        }
        Ok(())
    });
    applied.blocking_recv().unwrap_or_else(|_| Err(Error::Stopped("closed".to_owned()))).map_err(Failed::Refused)?;
    let mut engine = shared.lock().map_err(Failed::Refused)?;
    engine.buckets.next_expiry = [engine.buckets.next_expiry, next].into_iter().flatten().min();
    Ok(())
}
