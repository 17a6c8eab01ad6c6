//! A new database from all that can be read of a damaged one, put in its place at the end.
//!
//! Every message, entry and position that is readable is written again; indexes and counts are made anew. Sequences are never
//! given out twice: streams go on after the highest that was ever stored, as far as anything tells of it. Until the last step
//! the damaged database is not touched, so a repair that is cut off is begun again.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check::{Counter, is_held, look};
use super::holdings::{Heads, Piece, Visitor, walk};
use super::merge::{Found, Merge};
use super::{Error, Progress, Report, Verdict};
use crate::bus::embedded::chunk::Builder;
use crate::bus::embedded::codec::{Decoder, expiry_key, meta};
use crate::bus::embedded::commit::chunk_items;
use crate::bus::embedded::db::{Db, Item, Space, Window, to_bytes};
use crate::bus::embedded::durable::Durable;
use crate::bus::embedded::format;
use crate::bus::embedded::kv::{Bucket, Held};
use crate::bus::embedded::ledger::{Ledger, Mark};
use crate::bus::embedded::open::Options;
use crate::bus::embedded::stream::Stream;
use crate::ports::bus::StreamConfig;
use crate::time::Timestamp;

/// Bytes written to the new database at a time.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Room that has to be free beyond the size of the tables.
const ROOM_BYTES: u64 = 128 * 1024 * 1024;

/// What a repair did.
#[derive(Debug)]
pub struct Repaired {
    pub report: Report,
    /// Where the damaged database is kept.
    pub backup: Option<PathBuf>,
    /// The report, as JSON.
    pub report_file: PathBuf,
}

/// Mends a data directory that no process holds. `agree` is shown what is given up before anything is changed, and may
/// decline: then there is no answer. A directory that is not damaged is left as it is.
pub fn repair(
    options: &Options,
    keep_backup: bool,
    agree: &mut dyn FnMut(&Report) -> bool,
    progress: Progress<'_>,
) -> Result<Option<Repaired>, Error> {
    let data_dir = &options.data_dir;
    let io = |source| Error::Io { path: data_dir.clone(), source };
    let (_lock, mut survey, overlay) = look(data_dir)?;
    let mut counter = Counter::new(&survey);
    let keep_unlisted = counter.keep_unlisted;
    let (heads, holes) = walk(&survey, &overlay, &mut [&mut counter], &mut *progress)?;
    counter.conclude(&heads, &holes, &overlay, &mut survey.report);
    let report_file = data_dir.join(format!("repair-{}.json", options.clock.now().unix_millis()));
    if survey.report.verdict != Verdict::Damaged {
        return Ok(Some(Repaired { report: survey.report, backup: None, report_file }));
    }
    check_room(data_dir, survey.tables_bytes)?;
    if !agree(&survey.report) {
        return Ok(None);
    }

    let fresh = data_dir.join("bus.new");
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).map_err(io)?;
    }
    let last = survey.last.number.max(survey.report.synced.unwrap_or(0));
    let window = Arc::new(Window::new(Arc::clone(&options.clock)));
    let db = Db::open(&fresh, options, window).map_err(|error| Error::Write(error.to_string()))?;
    // Its numbers go on after all that were ever given, and `synced` stays as it is until the new one is in place.
    let before = Mark { number: last, chain: 0, synced: last, base: last + 1 };
    let ledger = Ledger::open(&data_dir.join("bus.new"), before).map_err(io)?;
    let mut writer = Writer::new(&db, ledger, keep_unlisted);
    walk(&survey, &overlay, &mut [&mut writer], &mut *progress)?;
    copy_ids(&survey, &overlay, &mut writer).map_err(|error| match error {
        IdsError::Read(source) => io(source),
        IdsError::Write(error) => error,
    })?;
    writer.finish(&heads)?;
    drop(writer);
    drop(db);
    std::fs::remove_file(fresh.join(crate::bus::embedded::ledger::NAME)).map_err(io)?;

    let json = serde_json::to_vec_pretty(&survey.report).unwrap_or_default();
    write_durably(&report_file, &json).map_err(io)?;
    let kept = data_dir.join(format!("bus.damaged-{}", options.clock.now().unix_millis()));
    put_in_place(data_dir, &fresh, &kept).map_err(io)?;
    format::ensure(data_dir).map_err(io)?;
    if !keep_backup && kept.exists() {
        std::fs::remove_dir_all(&kept).map_err(io)?;
    }
    let backup = kept.exists().then_some(kept);
    Ok(Some(Repaired { report: survey.report, backup, report_file }))
}

fn check_room(data_dir: &Path, tables_bytes: u64) -> Result<(), Error> {
    let stat =
        rustix::fs::statvfs(data_dir).map_err(|error| Error::Io { path: data_dir.to_owned(), source: error.into() })?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = tables_bytes.saturating_add(ROOM_BYTES);
    if free < needed {
        return Err(Error::NoRoom { path: data_dir.to_owned(), needed, free });
    }
    Ok(())
}

fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::write(path, bytes)?;
    File::open(path)?.sync_all()
}

/// Exchanges the two in one step where the file system can, so that there is a database at any moment.
fn put_in_place(data_dir: &Path, fresh: &Path, kept: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let bus = data_dir.join("bus");
    if bus.exists() {
        match renameat_with(CWD, fresh, CWD, &bus, RenameFlags::EXCHANGE) {
            Ok(()) => std::fs::rename(fresh, kept)?,
            Err(_) => {
                std::fs::rename(&bus, kept)?;
                std::fs::rename(fresh, &bus)?;
            }
        }
    } else {
        std::fs::rename(fresh, &bus)?;
    }
    File::open(data_dir)?.sync_all()
}

/// What a stream has come to in the new database.
#[derive(Default)]
struct Rebuilt {
    first: Option<u64>,
    last: u64,
    messages: u64,
    bytes: u64,
    time: Option<Timestamp>,
    by_name: BTreeMap<String, u32>,
    /// Number of the next subject that has none.
    next_subject: u32,
    lasts: BTreeMap<u32, u64>,
}

struct Writer<'a> {
    db: &'a Db,
    ledger: Ledger,
    keep_unlisted: bool,
    streams: BTreeMap<u32, Rebuilt>,
    revisions: BTreeMap<u32, u64>,
    items: Vec<Item>,
    bytes: usize,
}

impl<'a> Writer<'a> {
    fn new(db: &'a Db, ledger: Ledger, keep_unlisted: bool) -> Self {
        let (streams, revisions) = (BTreeMap::new(), BTreeMap::new());
        Writer { db, ledger, keep_unlisted, streams, revisions, items: Vec::new(), bytes: 0 }
    }

    fn put(&mut self, item: Item) -> Result<(), Error> {
        self.bytes += item.key.len() + item.value.as_ref().map_or(0, |value| value.len());
        self.items.push(item);
        if self.bytes >= BATCH_BYTES_MAX { self.flush(false) } else { Ok(()) }
    }

    fn flush(&mut self, sync: bool) -> Result<(), Error> {
        let mut items = std::mem::take(&mut self.items);
        self.bytes = 0;
        self.ledger.seal(&mut items);
        self.db.write(items, sync).map_err(|error| Error::Write(error.to_string()))?;
        if sync {
            self.ledger.note().map_err(|error| Error::Write(error.to_string()))?;
        }
        Ok(())
    }

    /// Writes the state that goes with what was written before.
    fn finish(&mut self, heads: &Heads) -> Result<(), Error> {
        let count = heads.streams.keys().chain(self.streams.keys()).max().map_or(0, |last| last + 1);
        for id in 0..count {
            let rebuilt = self.streams.remove(&id).unwrap_or_default();
            self.finish_stream(heads, id, rebuilt)?;
        }
        for (id, durable) in &heads.durables {
            let key = meta::durable(*id);
            self.put(Item::put(Space::Records, key, durable.value.encode_config()))?;
            let config = || durable.value.config.clone();
            let anew = || Durable::new(*id, durable.value.stream, config(), 0).encode_position();
            let position = heads.positions.get(id).map_or_else(anew, |position| position.value.to_vec());
            self.put(Item::put(Space::Records, meta::position(*id), position))?;
        }
        let count = heads.buckets.keys().chain(self.revisions.keys()).max().map_or(0, |last| last + 1);
        for id in 0..count {
            let revision = self.revisions.get(&id).copied().unwrap_or(0);
            let bucket = match heads.buckets.get(&id) {
                Some(known) => {
                    Bucket::new(known.value.name.clone(), known.value.ttl, known.value.revision.max(revision))
                }
                None => Bucket::new(format!("lost-{id}"), None, revision),
            };
            self.put(Item::put(Space::Records, meta::bucket(id), bucket.encode()))?;
        }
        self.put(format::item())?;
        self.flush(true)
    }

    fn finish_stream(&mut self, heads: &Heads, id: u32, rebuilt: Rebuilt) -> Result<(), Error> {
        let mut stream = match heads.streams.get(&id) {
            Some(known) => {
                let mut stream = Stream::new(id, known.value.config.clone(), known.value.created);
                (stream.last, stream.time) = (known.value.last, known.value.time);
                stream
            }
            None => Stream::new(id, unnamed(id), rebuilt.time.unwrap_or(Timestamp(0))),
        };
        let positions = heads.durables.iter().filter(|(_, durable)| durable.value.stream == id);
        let reached = positions.filter_map(|(id, _)| {
            let mut decoder = Decoder(&heads.positions.get(id)?.value);
            Some(decoder.varint().ok()?.max(decoder.varint().ok()?))
        });
        stream.last = stream.last.max(rebuilt.last).max(reached.max().unwrap_or(0));
        stream.first = rebuilt.first.unwrap_or(stream.last + 1);
        (stream.messages, stream.bytes) = (rebuilt.messages, rebuilt.bytes);
        stream.time = stream.time.max(rebuilt.time.unwrap_or(stream.time));
        self.put(Item::put(Space::Records, meta::stream(id), stream.encode()))?;
        for (name, number) in rebuilt.by_name {
            let mut encoder = crate::bus::embedded::codec::Encoder::default();
            encoder.u64(rebuilt.lasts.get(&number).copied().unwrap_or(0)).text(&name);
            self.put(Item::put(Space::Records, meta::subject(id, number), encoder.0))?;
        }
        Ok(())
    }
}

/// A stream whose name is lost. It stores nothing new, and what it holds can be exported.
fn unnamed(id: u32) -> StreamConfig {
    StreamConfig {
        name: format!("lost-{id}"),
        subjects: Vec::new(),
        bytes_max: 0,
        message_bytes_max: 0,
        duplicate_window: std::time::Duration::ZERO,
    }
}

impl Visitor for Writer<'_> {
    fn heads(&mut self, heads: &Heads) -> Result<(), Error> {
        for ((stream, number), subject) in &heads.subjects {
            let rebuilt = self.streams.entry(*stream).or_default();
            rebuilt.by_name.insert(subject.value.1.clone(), *number);
            rebuilt.next_subject = rebuilt.next_subject.max(number + 1);
        }
        Ok(())
    }

    fn piece(&mut self, heads: &Heads, piece: &Piece) -> Result<(), Error> {
        let rebuilt = self.streams.entry(piece.stream).or_default();
        if let Some(span) = &piece.span {
            rebuilt.last = rebuilt.last.max(span.last);
        }
        let Some(chunk) = piece.chunk.as_ref().filter(|_| is_held(heads, piece, self.keep_unlisted)) else {
            return Ok(());
        };
        let mut builder: Option<Builder> = None;
        for at in 0..chunk.count() {
            let Ok(message) = chunk.message(at) else { continue };
            let subject = match rebuilt.by_name.get(&message.subject) {
                Some(subject) => *subject,
                None => {
                    let subject = rebuilt.next_subject;
                    rebuilt.next_subject += 1;
                    rebuilt.by_name.insert(message.subject.clone(), subject);
                    subject
                }
            };
            let builder = builder.get_or_insert_with(|| Builder::new(piece.stream, piece.first, message.time));
            builder.push_kept(message.sequence, subject, &message);
            rebuilt.lasts.insert(subject, message.sequence);
            rebuilt.first.get_or_insert(message.sequence);
            rebuilt.last = rebuilt.last.max(message.sequence);
            rebuilt.time = rebuilt.time.max(Some(message.time));
        }
        let Some(builder) = builder else { return Ok(()) };
        rebuilt.bytes += builder.charged_bytes;
        rebuilt.messages += chunk.count() as u64;
        let mut items = Vec::new();
        chunk_items(builder.finish(), &mut items).map_err(|error| Error::Write(error.to_string()))?;
        items.into_iter().try_for_each(|item| self.put(item))
    }

    fn entry(&mut self, _: &Heads, found: &Found) -> Result<(), Error> {
        let Ok(held) = Held::decode(found.value.clone()) else { return Ok(()) };
        let Some(bucket) = found.key.get(1..5).and_then(|id| id.try_into().ok()).map(u32::from_be_bytes) else {
            return Ok(());
        };
        let Ok(name) = std::str::from_utf8(&found.key[5..]) else { return Ok(()) };
        let revision = self.revisions.entry(bucket).or_default();
        *revision = held.revision.max(*revision);
        if let Some(expires) = held.expires {
            let key = expiry_key(expires, bucket, name);
            self.put(Item::put(Space::Records, key, held.revision.to_le_bytes().to_vec()))?;
        }
        self.put(Item::put(Space::Records, found.key.to_vec(), found.value.to_vec()))
    }
}

enum IdsError {
    Read(std::io::Error),
    Write(Error),
}

/// Transport ids are taken over as they are.
fn copy_ids(survey: &super::Survey, overlay: &super::merge::Overlay, writer: &mut Writer<'_>) -> Result<(), IdsError> {
    let mut ids = Merge::new(survey, overlay, 2).map_err(IdsError::Read)?;
    while let Some(found) = ids.next().map_err(IdsError::Read)? {
        if found.key != meta::MARK {
            let value = to_bytes(fjall::Slice::from(&found.value[..])).to_vec();
            writer.put(Item::put(Space::Ids, found.key.to_vec(), value)).map_err(IdsError::Write)?;
        }
    }
    Ok(())
}
