//! Storing messages and ending work on others: everything is checked first, then everything is applied.
//!
//! A refusal changes nothing, because applying cannot fail. Conditions are checked against what has been accepted, and
//! see what the same settlement puts before them.

use std::collections::HashMap;

use super::chunk::Builder;
use super::codec::entry_key;
use super::engine::Engine;
use super::ids::id_key;
use crate::flow::message::{self, Outgoing};
use crate::id::subject_matches;
use crate::ports::bus::{self, Batch, Error, PubAck, Settlement};
use crate::ports::store::{Condition, Write};
use crate::time::Timestamp;

/// No stream takes larger messages, whatever its limit says: a chunk's offsets have 32 bits. Above the largest message by more
/// than the headers of its dead letter, which has to fit, too: it would pause its unit for ever.
const MESSAGE_BYTES_MAX: usize = message::MESSAGE_BYTES_MAX + 1024 * 1024;
/// What a stored message costs beyond its bytes in the open batch, about.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

struct Planned {
    stream: u32,
    subject: u32,
    /// The transport id is known: the first message's sequence.
    duplicate: Option<u64>,
    id: Option<Vec<u8>>,
}

/// What a settlement would come to, while it is checked.
#[derive(Default)]
struct Plan {
    /// How much of a stream's limit may be filled.
    room_percent: u64,
    messages: Vec<Planned>,
    /// Per stream of this settlement: last sequence and bytes.
    ends: Vec<(u32, u64, u64)>,
    /// The last sequence per (stream, subject) that this settlement itself stores.
    lasts: HashMap<(u32, u32), u64>,
    ids: HashMap<Vec<u8>, u64>,
    durables: Vec<u32>,
    writes: Vec<(u32, Vec<u8>)>,
}

impl Engine {
    /// `reserve_percent` of every stream's limit is not for these messages.
    pub(super) fn settle(&mut self, settlement: &Settlement, reserve_percent: u64) -> Result<Vec<PubAck>, Error> {
        let mut plan = Plan { room_percent: 100 - reserve_percent, ..Plan::default() };
        let now = self.clock.now();
        if settlement.batches.iter().any(|batch| !batch.messages.is_empty()) {
            self.check_space(reserve_percent == 0)?;
        }
        // Only a second batch can meet what the first one stores.
        let several = settlement.batches.len() > 1;
        for batch in &settlement.batches {
            self.plan_batch(batch, &mut plan, several, now)?;
        }
        self.plan_writes(&settlement.writes, &mut plan, now)?;
        self.plan_acknowledgements(&settlement.acknowledged, &mut plan)?;

        let messages = settlement.batches.iter().flat_map(|batch| &batch.messages);
        let acks = messages.zip(plan.messages).map(|(message, planned)| self.store(message, planned, now)).collect();
        for (write, (bucket, key)) in settlement.writes.iter().zip(plan.writes) {
            self.apply_write(bucket, key, write, now);
        }
        for ((_, sequence), durable) in settlement.acknowledged.iter().zip(plan.durables) {
            self.acknowledge(durable, *sequence);
        }
        Ok(acks)
    }

    fn plan_batch(&mut self, batch: &Batch, plan: &mut Plan, several: bool, now: Timestamp) -> Result<(), Error> {
        let id = self.stream_id(&batch.stream)?;
        let begin = plan.messages.len();
        let stream = &self.streams[id as usize];
        let (mut last, mut bytes) = match plan.ends.iter().find(|(stream, ..)| *stream == id) {
            Some((_, last, bytes)) => (*last, *bytes),
            None => (stream.last, stream.bytes),
        };
        let lasts_before = (several && !batch.expected.is_empty()).then(|| plan.lasts.clone());
        for message in &batch.messages {
            let planned = self.plan_message(id, message, plan, now)?;
            if planned.duplicate.is_none() {
                let stream = &self.streams[id as usize];
                bytes += message.size_bytes() as u64;
                if bytes > stream.config.bytes_max / 100 * plan.room_percent {
                    let (stream, bytes_max) = (stream.config.name.clone(), stream.config.bytes_max);
                    return Err(Error::Full { stream, bytes_max });
                }
                last += 1;
                if several {
                    plan.lasts.insert((id, planned.subject), last);
                }
                if let Some(key) = &planned.id {
                    plan.ids.insert(key.clone(), last);
                }
            }
            plan.messages.push(planned);
        }
        // A batch that was stored before is answered as it was then, although its conditions no longer hold.
        let added = &plan.messages[begin..];
        if added.is_empty() || added.iter().any(|planned| planned.duplicate.is_none()) {
            self.check_expected(id, batch, lasts_before.as_ref())?;
        }
        plan.ends.retain(|(stream, ..)| *stream != id);
        plan.ends.push((id, last, bytes));
        Ok(())
    }

    fn plan_message(&mut self, id: u32, message: &Outgoing, plan: &Plan, now: Timestamp) -> Result<Planned, Error> {
        let db = self.db()?;
        let Engine { streams, durables, ids, .. } = self;
        let stream = &mut streams[id as usize];
        let (bytes, bytes_max) = (message.size_bytes(), stream.config.message_bytes_max.min(MESSAGE_BYTES_MAX));
        if bytes > bytes_max {
            return Err(Error::TooLarge { bytes, bytes_max });
        }
        let subject = stream.subject_or_new(&message.subject, |stream| {
            let wants = |id: &&u32| {
                let durable = durables[**id as usize].as_ref();
                durable.is_some_and(|d| d.config.filters.iter().any(|f| subject_matches(f, &message.subject)))
            };
            stream.durables.values().filter(wants).copied().collect()
        })?;
        let key = message.transport_id.as_ref().map(|transport_id| id_key(id, transport_id));
        let duplicate = match &key {
            None => None,
            Some(key) => match plan.ids.get(key) {
                Some(sequence) => Some(*sequence),
                None => ids.find(&db, key, now, stream.config.duplicate_window)?,
            },
        };
        Ok(Planned { stream: id, subject, duplicate, id: key })
    }

    fn check_expected(&self, id: u32, batch: &Batch, own: Option<&HashMap<(u32, u32), u64>>) -> Result<(), Error> {
        let stream = &self.streams[id as usize];
        for expected in &batch.expected {
            let subject = stream.subject(&expected.subject);
            let own = own.zip(subject).and_then(|(own, subject)| own.get(&(id, subject)).copied());
            let actual = own.unwrap_or_else(|| stream.subject_last(&expected.subject));
            if actual != expected.last {
                let (subject, expected) = (expected.subject.clone(), expected.last);
                return Err(Error::WrongLast { subject, expected, actual });
            }
        }
        Ok(())
    }

    fn plan_writes(&self, writes: &[Write], plan: &mut Plan, now: Timestamp) -> Result<(), Error> {
        // What the writes before leave behind: per key the revision, and per bucket how many there were.
        let mut left: HashMap<Vec<u8>, Option<u64>> = HashMap::new();
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for write in writes {
            let bucket = self.check_write(write)?;
            let key = entry_key(bucket, &write.key);
            let revision = match left.get(&key) {
                Some(revision) => *revision,
                None => self.buckets.current(&*self.db()?, &key, now)?.map(|held| held.revision),
            };
            let holds = match write.condition {
                Condition::Absent => revision.is_none(),
                Condition::Revision(wanted) => revision == Some(wanted),
            };
            if !holds {
                return Err(Error::WrongRevision { bucket: write.bucket.clone(), key: write.key.clone() });
            }
            let count = counts.entry(bucket).or_default();
            *count += 1;
            let revision = self.buckets.all[bucket as usize].revision + *count;
            left.insert(key.clone(), write.value.is_some().then_some(revision));
            plan.writes.push((bucket, key));
        }
        Ok(())
    }

    fn plan_acknowledgements(&self, acknowledged: &[(bus::Durable, u64)], plan: &mut Plan) -> Result<(), Error> {
        plan.durables.reserve(acknowledged.len());
        let mut previous: Option<(&bus::Durable, u32)> = None;
        for (durable, _) in acknowledged {
            let id = match previous {
                Some((known, id)) if known == durable => id,
                _ => self.durable_id(durable)?,
            };
            previous = Some((durable, id));
            plan.durables.push(id);
        }
        Ok(())
    }

    fn store(&mut self, message: &Outgoing, planned: Planned, now: Timestamp) -> PubAck {
        if let Some(sequence) = planned.duplicate {
            return PubAck { sequence, duplicate: true };
        }
        let stream = &mut self.streams[planned.stream as usize];
        stream.time = stream.time.max(now);
        stream.last += 1;
        let sequence = stream.last;
        if stream.building.as_ref().is_some_and(Builder::is_full) {
            self.open.builders.extend(stream.building.take());
        }
        let (id, time) = (stream.id, stream.time);
        stream.building.get_or_insert_with(|| Builder::new(id, sequence, time)).push(
            sequence,
            planned.subject,
            message,
        );
        let size_bytes = message.size_bytes();
        stream.messages += 1;
        stream.bytes += size_bytes as u64;
        stream.dirty = true;
        let subject = &mut stream.subjects[planned.subject as usize];
        subject.last = sequence;
        if !std::mem::replace(&mut subject.dirty, true) {
            self.open.subjects.push((planned.stream, planned.subject));
        }
        self.open.bytes += size_bytes + MESSAGE_OVERHEAD_BYTES;
        self.open.sync = true;
        if let Some(key) = planned.id {
            let item = self.ids.remember(key.clone(), sequence, now, self.open.commit);
            self.open.put(item);
            self.open.ids.push(key);
        }
        PubAck { sequence, duplicate: false }
    }

    fn acknowledge(&mut self, id: u32, sequence: u64) {
        let Some(durable) = &mut self.durables[id as usize] else { return };
        let was_full = !durable.has_room();
        if durable.acknowledge(sequence) {
            self.open.sync = true;
            let visible = self.streams[durable.stream as usize].visible;
            if was_full && (durable.has_due() || durable.is_behind(visible)) {
                durable.notify.notify_one();
            }
        }
    }
}
