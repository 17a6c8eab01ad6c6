//! Handing out: from memory while a durable keeps up, from the index and the chunks on disk when it is behind.
//!
//! A pull that finds nothing waits for the durable's notification. What reads from disk runs to its end on a blocking
//! thread even when the puller gives up, so that the durable's state never hangs on a dropped future.

use std::sync::Arc;
use std::time::Duration;

use super::chunk::Chunk;
use super::db::Db;
use super::durable::READY_MAX;
use super::engine::{Broken, Engine, Shared};
use super::select::{self, Loader, Selection};
use crate::ports::bus::{self, Delivery, Error, PULL_MESSAGES_MAX};

/// Sequences read from the index at once by a durable that is behind.
const REFILL_SEQUENCES: usize = READY_MAX / 2;

enum Pulled {
    Handed(Vec<(Arc<Chunk>, usize, u32)>, u64),
    /// Handed out, but the messages have to be read first: sequences and attempts.
    Cold(Cold),
    Behind(Refill),
    Nothing,
}

struct Cold {
    durable: u32,
    stream: u32,
    taken: Vec<(u64, u32)>,
    bytes_max: usize,
    pending: u64,
    rewrites: u64,
}

struct Refill {
    durable: u32,
    stream: u32,
    selection: Selection,
    from: u64,
    to: u64,
}

pub(super) async fn pull(
    shared: Arc<Shared>,
    durable: bus::Durable,
    messages_max: usize,
    bytes_max: usize,
    wait: Duration,
) -> Result<Vec<Delivery>, Error> {
    let messages_max = messages_max.clamp(1, PULL_MESSAGES_MAX);
    let timeout = tokio::time::sleep(wait);
    tokio::pin!(timeout);
    loop {
        let notify = {
            let mut engine = shared.lock()?;
            Arc::clone(&engine.durable(&durable)?.notify)
        };
        let notified = notify.notified();
        match attempt(&shared, &durable, messages_max, bytes_max)? {
            Pulled::Handed(picked, pending) => {
                let delivery = |(chunk, at, attempt): (Arc<Chunk>, usize, u32)| {
                    chunk.message(at).map(|message| Delivery { message, attempt, pending })
                };
                let deliveries: Result<Vec<_>, _> = picked.into_iter().map(delivery).collect();
                return deliveries.map_err(|damaged| shared.broken(&Broken::Damaged(damaged)));
            }
            Pulled::Cold(cold) => {
                let deliveries = blocking(&shared, move |shared, db| load(shared, db, cold)).await?;
                if !deliveries.is_empty() {
                    return Ok(deliveries);
                }
            }
            Pulled::Behind(refill) => blocking(&shared, move |shared, db| catch_up(shared, db, &refill)).await?,
            Pulled::Nothing => tokio::select! {
                () = notified => {}
                () = &mut timeout => return Ok(Vec::new()),
            },
        }
    }
}

async fn blocking<T, F>(shared: &Arc<Shared>, work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce(&Shared, &Db) -> Result<T, Broken> + Send + 'static,
{
    let shared = Arc::clone(shared);
    let done = tokio::task::spawn_blocking(move || {
        let db = shared.lock()?.db()?;
        work(&shared, &db).map_err(|broken| shared.broken(&broken))
    });
    done.await.unwrap_or_else(|_| Err(Error::Stopped("a read was cut off".to_owned())))
}

fn attempt(shared: &Shared, durable: &bus::Durable, messages_max: usize, bytes_max: usize) -> Result<Pulled, Error> {
    let mut engine = shared.lock()?;
    let engine = &mut *engine;
    let id = engine.durable_id(durable)?;
    let now = engine.clock.monotonic();
    let Engine { durables, streams, hot, cold, .. } = engine;
    let Some(durable) = &mut durables[id as usize] else { return Ok(Pulled::Nothing) };
    let stream = &streams[durable.stream as usize];
    durable.expire(now);
    let (mut picked, mut bytes): (Vec<(Arc<Chunk>, usize, u32)>, usize) = (Vec::new(), 0);
    while picked.len() < messages_max
        && let Some(sequence) = durable.peek()
    {
        let chunk = match picked.last() {
            Some((chunk, ..)) if chunk.first <= sequence && sequence <= chunk.last => chunk,
            _ => match hot.find(stream.id, sequence).or_else(|| cold.find(stream.id, sequence)) {
                Some(chunk) => chunk,
                None => break,
            },
        };
        let Some(at) = chunk.find(sequence) else {
            // Removed from the stream since it was queued.
            durable.take(sequence, now);
            durable.acknowledge(sequence);
            continue;
        };
        bytes += chunk.message_bytes(at);
        if bytes > bytes_max && !picked.is_empty() {
            break;
        }
        let chunk = Arc::clone(chunk);
        picked.push((chunk, at, durable.take(sequence, now)));
    }
    let mut taken = Vec::new();
    if picked.is_empty() {
        while taken.len() < messages_max
            && let Some(sequence) = durable.peek()
        {
            taken.push((sequence, durable.take(sequence, now)));
        }
    }
    let pending = durable.ready() as u64;
    let pulled = if !picked.is_empty() {
        Pulled::Handed(picked, pending)
    } else if !taken.is_empty() {
        Pulled::Cold(Cold { durable: id, stream: stream.id, taken, bytes_max, pending, rewrites: engine.rewrites })
    } else if durable.is_behind(stream.visible) && !durable.refilling {
        durable.refilling = true;
        let selection = stream.matching(&durable.config.filters).into();
        let (from, to) = (durable.reached + 1, stream.visible);
        return Ok(Pulled::Behind(Refill { durable: id, stream: stream.id, selection, from, to }));
    } else {
        return Ok(Pulled::Nothing);
    };
    if durable.has_due() || durable.is_behind(stream.visible) {
        durable.notify.notify_one();
    }
    let wake = durable.next_wake;
    note_hand_out(shared, engine, wake, now);
    Ok(pulled)
}

/// Sees to it that the commit thread writes the hand-out down soon and wakes for its ack wait.
fn note_hand_out(shared: &Shared, engine: &mut Engine, wake: Option<Duration>, now: Duration) {
    let sooner = engine.wake_by(wake);
    if engine.lazy_due.is_none() {
        engine.lazy_due = Some(now + engine.lazy_after);
        shared.work.notify_one();
    } else if sooner {
        shared.work.notify_one();
    }
}

/// Reads what was handed out; what goes beyond the bytes is given back.
fn load(shared: &Shared, db: &Db, cold: Cold) -> Result<Vec<Delivery>, Broken> {
    let mut loader = Loader::new(db, cold.stream);
    let (mut deliveries, mut missing, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut too_many = cold.taken.len();
    for (at, (sequence, attempt)) in cold.taken.iter().enumerate() {
        let Some((chunk, place)) = loader.find(*sequence)? else {
            missing.push(*sequence);
            continue;
        };
        bytes += chunk.message_bytes(place);
        if bytes > cold.bytes_max && !deliveries.is_empty() {
            too_many = at;
            break;
        }
        deliveries.push(Delivery { message: chunk.message(place)?, attempt: *attempt, pending: cold.pending });
    }
    let mut engine = shared.lock_any();
    if engine.rewrites == cold.rewrites {
        for chunk in loader.loaded {
            engine.cold.insert(cold.stream, chunk);
        }
    }
    if let Some(durable) = &mut engine.durables[cold.durable as usize] {
        for (sequence, attempt) in cold.taken[too_many..].iter().rev() {
            durable.give_back(*sequence, *attempt);
        }
        for sequence in missing {
            durable.acknowledge(sequence);
        }
        if durable.has_due() {
            durable.notify.notify_one();
        }
    }
    Ok(deliveries)
}

fn catch_up(shared: &Shared, db: &Db, refill: &Refill) -> Result<(), Broken> {
    let found = select::sequences(db, refill.stream, &refill.selection, refill.from..=refill.to, REFILL_SEQUENCES);
    let mut engine = shared.lock_any();
    if let Some(durable) = &mut engine.durables[refill.durable as usize] {
        durable.refilling = false;
        let (sequences, until) = found?;
        durable.refill(sequences, until);
        durable.notify.notify_one();
    }
    Ok(())
}
