//! The commit thread: one batch after the other to disk, then to readers, then the answers.
//!
//! While it waits for the disk the next batch fills, so any number of publishers share a sync. A write or sync that
//! fails ends the bus: what is on disk then is not known, and trying again could only hide that.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::chunk::{Chunk, Finished};
use super::codec::{chunk_key, index_key, span_key};
use super::db::{Db, Item, Space, to_bytes};
use super::engine::{Batch, Broken, Engine, Life, Open, Shared};
use super::ledger::Ledger;
use super::trim::Chore;
use crate::ports::bus::Error;

/// A chunk that was written, with the sequence and subject of each message.
pub(super) struct Written {
    stream: u32,
    pub chunk: Arc<Chunk>,
    messages: Vec<(u64, u32)>,
}

pub(super) fn run(shared: &Shared, db: &Db, ledger: &mut Ledger) {
    let mut engine = shared.lock_any();
    loop {
        if matches!(engine.life, Life::Stopped(_)) {
            return;
        }
        let now = shared.clock.monotonic();
        engine.admit_waiting();
        engine.expire(now);
        if engine.has_work(now) {
            let batch = engine.take_batch();
            drop(engine);
            commit(shared, db, ledger, batch);
            engine = shared.lock_any();
        } else if matches!(engine.life, Life::Closing) {
            return;
        } else {
            engine = wait(shared, engine, now);
        }
    }
}

fn wait<'a>(shared: &'a Shared, engine: MutexGuard<'a, Engine>, now: std::time::Duration) -> MutexGuard<'a, Engine> {
    match engine.sleep(now) {
        Some(sleep) => match shared.work.wait_timeout(engine, sleep) {
            Ok((engine, _)) => engine,
            Err(poisoned) => shared.recover(PoisonError::new(poisoned.into_inner().0)),
        },
        None => shared.work.wait(engine).unwrap_or_else(|poisoned| shared.recover(poisoned)),
    }
}

fn commit(shared: &Shared, db: &Db, ledger: &mut Ledger, batch: Batch) {
    let Batch { mut open, items, replies } = batch;
    let mut written = Ok(Vec::new());
    if !items.is_empty() || !open.builders.is_empty() {
        written = write(db, ledger, &mut open, items);
    }
    let answer = {
        let mut engine = shared.lock_any();
        match written {
            Ok(written) => {
                engine.commits += 1;
                engine.make_visible(&open, written);
                let journals = db.journals();
                if std::mem::replace(&mut engine.journals, journals) < journals {
                    engine.chores.push_back(Chore::Flush);
                    engine.chores_wanted = true;
                }
                if std::mem::take(&mut engine.chores_wanted) {
                    shared.chore.notify_one();
                }
                Ok(())
            }
            Err(broken) => {
                let reason = format!("writing to disk failed: {broken}");
                shared.stop(&mut engine, &reason);
                Err(Error::Stopped(reason))
            }
        }
    };
    for reply in replies {
        reply(answer.clone());
    }
}

fn write(db: &Db, ledger: &mut Ledger, open: &mut Open, mut items: Vec<Item>) -> Result<Vec<Written>, Broken> {
    let mut written = Vec::with_capacity(open.builders.len());
    for builder in std::mem::take(&mut open.builders) {
        written.push(chunk_items(builder.finish(), &mut items)?);
    }
    ledger.seal(&mut items);
    db.write(items, open.sync)?;
    if open.sync {
        ledger.note().map_err(fjall::Error::Io)?;
    }
    Ok(written)
}

/// What is stored for a chunk: itself, its span, and an index entry per subject.
pub(super) fn chunk_items(finished: Finished, items: &mut Vec<Item>) -> Result<Written, Broken> {
    let Finished { stream, bytes, span, index, messages } = finished;
    let first = span.first;
    let value = fjall::Slice::from(bytes);
    items.push(Item { space: Space::Chunks, key: chunk_key(stream, first), value: Some(value.clone()) });
    items.push(Item::put(Space::Records, span_key(stream, first), span.encode()));
    for (subject, sequences) in index {
        items.push(Item::put(Space::Records, index_key(stream, subject, first), sequences));
    }
    Ok(Written { stream, chunk: Arc::new(Chunk::trusted(to_bytes(value))?), messages })
}

impl Engine {
    /// Shows readers, durables and watchers what is durable now.
    fn make_visible(&mut self, open: &Open, written: Vec<Written>) {
        self.ids.settle(&open.ids, open.commit);
        self.buckets.settle(&open.entries, open.commit);
        for (bucket, change) in &open.changes {
            for watcher in &self.buckets.all[*bucket as usize].watchers {
                if let Some(watcher) = watcher.upgrade() {
                    watcher.tell(change);
                }
            }
        }
        for (stream, first, chunk) in &open.rewritten {
            self.rewrites += 1;
            self.hot.replace(*stream, *first, chunk.clone());
            self.cold.replace(*stream, *first, chunk.clone());
        }
        for written in written {
            self.dispatch(written);
        }
    }

    /// Queues new messages at the durables that want them, so that none of them has to search.
    ///
    /// A durable that is behind is passed over: it reads the index when it gets there. So is one whose queue is full.
    fn dispatch(&mut self, written: Written) {
        let Written { stream, chunk, messages } = written;
        let stream = &mut self.streams[stream as usize];
        for id in stream.durables.values() {
            if let Some(durable) = &mut self.durables[*id as usize] {
                durable.live = durable.reached >= stream.visible;
            }
        }
        for (sequence, subject) in messages {
            for id in &stream.subjects[subject as usize].durables {
                let Some(durable) = &mut self.durables[*id as usize] else { continue };
                if durable.live && !durable.offer(sequence) {
                    durable.live = false;
                    durable.reached = sequence - 1;
                }
            }
        }
        stream.visible = chunk.last;
        for id in stream.durables.values() {
            let Some(durable) = &mut self.durables[*id as usize] else { continue };
            if durable.live {
                durable.reached = durable.reached.max(chunk.last);
            }
            if durable.has_due() || durable.is_behind(stream.visible) {
                durable.notify.notify_one();
            }
        }
        self.hot.insert(stream.id, chunk);
    }
}
