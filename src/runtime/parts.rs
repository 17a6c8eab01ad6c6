//! The record of one unit that reads (`protocol::parts`), kept in the store and asked before any message is worked on.
//!
//! Grants come in two ways. *By record*: whoever holds a message beyond `granted` extends the record first and waits until that is
//! stored; needed where work has effects before the acknowledgement, as a delivery has. *By acknowledgement*: a flow on a bus that
//! settles atomically has no effect at all before its input is acknowledged, so what was not acknowledged may still go to any
//! version, and the acknowledgement itself is the grant. The record catches up when a version begins (`Run::raised`): its
//! predecessor has stopped by then, and the durable knows what was handed out.
//!
//! Order of a change, each step repeated until it is done: contents stored, record written, durables made. Killed in between, the
//! next start does the rest.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::contents::Piece;
use super::versions::{Versions, Written};
use crate::id::{Names, UnitId};
use crate::manifest::value::StartFrom;
use crate::ports::bus::{self, Durable, DurableConfig, DurableInfo, Start};
use crate::protocol::parts::{self, PARTS_MAX, Part, Run, StreamIdentity, Wanted};
use crate::unit::context::Context;

/// How long a delivery may stay unacknowledged before it is handed out again.
pub const ACK_WAIT: Duration = Duration::from_secs(3);

/// See the module head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granting {
    ByRecord,
    ByAcknowledgement,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Bus(#[from] bus::Error),
    #[error(transparent)]
    Parts(#[from] parts::Error),
    #[error(
        "its record counts in the stream {name} made at {recorded}, but the stream was made at {found}: the one or the other was restored or made anew"
    )]
    OtherStream { name: String, recorded: String, found: String },
}

impl Error {
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Bus(error) if error.is_retryable())
    }
}

/// What is to be done with a message in hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed<'a> {
    /// Work on it under this version.
    Under(&'a str),
    /// Acknowledge it without effect.
    NotHere,
    /// Leave it: the unit is removed, or the grant is not there yet.
    Left,
}

/// A part that is worked off.
#[derive(Debug)]
pub struct Done {
    /// The durable that no part names any more.
    pub durable: Option<u32>,
    next: Run,
    revision: u64,
}

#[derive(Debug)]
pub struct UnitParts {
    context: Context,
    versions: Arc<Versions>,
    id: UnitId,
    granting: Granting,
    stream: Arc<str>,
    /// The record as last read or written, and the store's revision of it. Never stands still across an await.
    held: Mutex<Option<(Arc<Run>, u64)>>,
    /// One task of this process asks for a grant at a time: one grant covers the hands of all, and two that write the record at
    /// once only refuse each other.
    asking: tokio::sync::Mutex<()>,
}

/// The sorted filters of a unit that reads these patterns.
pub fn reads<'p>(names: &Names, id: &UnitId, patterns: impl IntoIterator<Item = &'p str>) -> Vec<String> {
    let mut reads: Vec<String> = patterns.into_iter().map(|pattern| names.stored(pattern)).collect();
    reads.push(names.replay(id));
    reads.sort();
    reads.dedup();
    reads
}

impl UnitParts {
    pub fn new(context: Context, versions: Arc<Versions>, id: UnitId, granting: Granting) -> Self {
        let stream = Arc::from(context.names.messages());
        UnitParts { context, versions, id, granting, stream, held: Mutex::new(None), asking: Default::default() }
    }

    /// The record, once it was read.
    pub fn current(&self) -> Option<Arc<Run>> {
        self.lock().as_ref().map(|(run, _)| Arc::clone(run))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Arc<Run>, u64)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the record in line with publication `no`, in which the unit has this version, or none. Nothing of the unit may be at
    /// work. `before` is a durable that was made when units had no records yet.
    pub async fn roll(
        &self,
        wanted: Option<(&Wanted, StartFrom, &[Arc<Piece>])>,
        no: u64,
        before: Option<(u32, &DurableInfo)>,
    ) -> Result<Option<Arc<Run>>, Error> {
        if let Some((_, _, pieces)) = wanted {
            self.versions.store_contents(pieces).await?;
        }
        loop {
            let held = self.versions.run(&self.id).await?;
            let next = match (&held, wanted) {
                (Some((run, _)), wanted) => self.next(run, wanted.map(|(wanted, ..)| wanted), no).await?,
                (None, Some((wanted, start, _))) => {
                    let run = self.begin(wanted, start, no, before).await?;
                    let changed = run.last().reads != wanted.reads;
                    // What the durable was made for may have changed since: then this version begins behind that.
                    let unnamed = run.clone().named("");
                    let next = if changed { self.next(&unnamed, Some(wanted), no).await? } else { None };
                    Some(next.map_or(run, |next| next.named(&wanted.digest)))
                }
                (None, None) => return Ok(None),
            };
            let at = held.as_ref().map(|(_, revision)| *revision);
            let Some(next) = next else {
                let (run, revision) = held.expect("only a record can stay as it is");
                return Ok(Some(self.keep(run, revision)));
            };
            if let Written::Won(revision) = self.versions.write_run(&self.id, &next, at).await? {
                return Ok(Some(self.keep(next, revision)));
            }
        }
    }

    /// Reads the record, if there is one.
    pub async fn look(&self) -> Result<(), Error> {
        if let Some((run, revision)) = self.versions.run(&self.id).await? {
            self.keep(run, revision);
        }
        Ok(())
    }

    fn keep(&self, run: Run, revision: u64) -> Arc<Run> {
        let run = Arc::new(run);
        *self.lock() = Some((Arc::clone(&run), revision));
        run
    }

    /// The unit cannot run and never did. What would come to it waits in a durable of its own: to the record it is removed.
    pub async fn wait(
        &self,
        reads: &[String],
        start: StartFrom,
        no: u64,
        before: Option<(u32, &DurableInfo)>,
    ) -> Result<(), Error> {
        loop {
            if let Some((run, revision)) = self.versions.run(&self.id).await? {
                self.keep(run, revision);
                return Ok(());
            }
            let wanted = Wanted { digest: String::new(), reads: reads.to_vec() };
            let mut run = self.begin(&wanted, start, no, before).await?;
            run.parts[0].digest = None;
            if let Written::Won(revision) = self.versions.write_run(&self.id, &run, None).await? {
                self.keep(run, revision);
                return Ok(());
            }
        }
    }

    async fn begin(
        &self,
        wanted: &Wanted,
        start: StartFrom,
        no: u64,
        before: Option<(u32, &DurableInfo)>,
    ) -> Result<Run, Error> {
        let stream = self.context.bus.stream(&self.stream).await?;
        let identity = StreamIdentity { name: stream.config.name.clone(), created: stream.created.0 };
        if let Some((number, info)) = before {
            let mut reads = info.config.filters.clone();
            reads.sort();
            let found = Wanted { digest: wanted.digest.clone(), reads };
            return Ok(Run::found(identity, &found, no, number).raised(info.delivered));
        }
        let from = match start {
            StartFrom::End => stream.last + 1,
            StartFrom::First => 1,
            StartFrom::Sequence(sequence) => sequence,
            StartFrom::Time(time) => self.context.bus.sequence_at(&self.stream, time).await?,
        };
        Ok(Run::begin(identity, wanted, no, from))
    }

    async fn next(&self, run: &Run, wanted: Option<&Wanted>, no: u64) -> Result<Option<Run>, Error> {
        let stream = self.context.bus.stream(&self.stream).await?;
        if run.stream.created != stream.created.0 {
            let time = |nanos: i64| crate::time::Timestamp(nanos).to_string();
            return Err(Error::OtherStream {
                name: run.stream.name.clone(),
                recorded: time(run.stream.created),
                found: time(stream.created.0),
            });
        }
        let mut run = run.clone();
        if self.context.bus.settles_atomically() {
            // The version before may have worked without grants: what was handed out belongs to it.
            match self.context.bus.durable(&self.durable(run.last().durable)).await {
                Ok(info) => run = run.raised(info.delivered),
                Err(bus::Error::NoDurable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(run.rolled(wanted, no, stream.last)?)
    }

    pub fn durable(&self, number: u32) -> Durable {
        Durable { stream: Arc::clone(&self.stream), name: Arc::from(self.id.durable(number)) }
    }

    /// Makes what durables the record names and are not there.
    pub async fn ensure_durables(&self, in_flight_max: usize) -> Result<(), Error> {
        let Some(run) = self.current() else { return Ok(()) };
        for (number, from, reads) in run.durables() {
            let config = DurableConfig {
                name: self.id.durable(number),
                filters: reads.to_vec(),
                start: Start::Sequence(from),
                ack_wait: ACK_WAIT,
                in_flight_max,
            };
            self.context.bus.ensure_durable(&self.stream, config).await?;
        }
        // Those of parts that were replaced before anything was granted to them, and of parts dropped before a crash.
        let named: Vec<u32> = run.durables().iter().map(|(number, ..)| *number).collect();
        let lowest = named[0].saturating_sub(PARTS_MAX as u32).max(1);
        for number in (lowest..run.last().durable).filter(|number| !named.contains(number)) {
            self.context.bus.delete_durable(&self.durable(number)).await?;
        }
        Ok(())
    }

    /// Rule cut-1 to cut-3 for a message that the durable with this number handed out. [`UnitParts::cover`] comes first.
    pub fn place<'r>(&self, run: &'r Run, sequence: u64, number: u32) -> Placed<'r> {
        let last = run.last();
        if self.granting == Granting::ByAcknowledgement && sequence > run.granted {
            // Only the last part reaches there, and its own durable hands the message out as well.
            return match &last.digest {
                Some(digest) if last.durable == number => Placed::Under(digest),
                Some(_) => Placed::NotHere,
                None => Placed::Left,
            };
        }
        match run.place(sequence, number) {
            parts::Place::Under(Part { digest: Some(digest), .. }) => Placed::Under(digest),
            parts::Place::Under(_) | parts::Place::Ungranted | parts::Place::Parked => Placed::Left,
            parts::Place::NotHere => Placed::NotHere,
        }
    }

    /// The record under which everything up to `highest` may be worked on. `ahead` messages exist behind it.
    pub async fn cover(&self, highest: u64, ahead: u64) -> Result<Arc<Run>, Error> {
        let held = || self.lock().clone().ok_or_else(|| bus::Error::Stopped(format!("{} has no record", self.id)));
        let (run, _) = held()?;
        if self.granting == Granting::ByAcknowledgement || highest <= run.granted {
            return Ok(run);
        }
        let _asking = self.asking.lock().await;
        loop {
            let (run, revision) = held()?;
            let Some(next) = run.granting(highest, ahead)? else { return Ok(run) };
            // An answer that is lost is an error here; the next try reads what came of it.
            match self.versions.write_run(&self.id, &next, Some(revision)).await? {
                Written::Won(revision) => _ = self.keep(next, revision),
                Written::Lost => {
                    if let Some((run, revision)) = self.versions.run(&self.id).await? {
                        self.keep(run, revision);
                    }
                }
            }
        }
    }

    /// Asks for more while work goes on under what is granted, so that the next batch need not wait. What comes of it is seen by
    /// [`UnitParts::cover`]; a failure is met there too.
    pub fn cover_early(self: &Arc<Self>, highest: u64, ahead: u64) {
        let is_due = |run: &Arc<Run>| run.granting_early(highest, ahead).is_some();
        if self.granting == Granting::ByAcknowledgement || !self.current().as_ref().is_some_and(is_due) {
            return;
        }
        let parts = Arc::clone(self);
        tokio::spawn(async move {
            // Somebody is asking: that will do.
            let Ok(_asking) = parts.asking.try_lock() else { return };
            let Some((run, revision)) = parts.lock().clone() else { return };
            let Some(next) = run.granting_early(highest, ahead) else { return };
            if let Ok(Written::Won(revision)) = parts.versions.write_run(&parts.id, &next, Some(revision)).await {
                parts.keep(next, revision);
            }
        });
    }

    /// Rule cut-14: the first part, if everything in it is acknowledged and there is a later one.
    pub async fn worked_off(&self) -> Result<Option<Done>, Error> {
        let Some((run, revision)) = self.lock().clone() else { return Ok(None) };
        let Some(next) = run.without_first() else { return Ok(None) };
        let first = &run.parts[0];
        if !self.is_worked_off(first, next.parts[0].from).await? {
            return Ok(None);
        }
        let durable = (next.parts[0].durable != first.durable).then_some(first.durable);
        Ok(Some(Done { durable, next, revision }))
    }

    /// Drops what [`UnitParts::worked_off`] found, and the durable. Nobody may read that any more.
    pub async fn drop_first(&self, done: &Done) -> Result<(), Error> {
        // Lost: somebody wrote the record meanwhile, and the next look finds what is to be done then.
        if let Written::Won(revision) = self.versions.write_run(&self.id, &done.next, Some(done.revision)).await? {
            self.keep(done.next.clone(), revision);
            if let Some(number) = done.durable {
                self.context.bus.delete_durable(&self.durable(number)).await?;
            }
        }
        Ok(())
    }

    /// Whether nothing below `end` waits in the durable of a part. The floor need not get there: on a quiet subject it stays.
    async fn is_worked_off(&self, part: &Part, end: u64) -> Result<bool, Error> {
        let info = match self.context.bus.durable(&self.durable(part.durable)).await {
            Ok(info) => info,
            // Not made yet: nothing of it can be done.
            Err(bus::Error::NoDurable { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if info.ack_floor + 1 >= end {
            return Ok(true);
        }
        let next = self.context.bus.read(&self.stream, info.ack_floor + 1, &part.reads, 1).await?;
        Ok(next.first().is_none_or(|message| message.sequence >= end))
    }

    /// Messages that wait in the durables of the record; none when there is no durable.
    pub async fn waiting(&self) -> Result<Option<u64>, Error> {
        let Some(run) = self.current() else { return Ok(None) };
        let mut waiting = None;
        for (number, ..) in run.durables() {
            match self.context.bus.durable(&self.durable(number)).await {
                Ok(info) => {
                    *waiting.get_or_insert(0) += info.pending + (info.in_flight + info.redelivering) as u64;
                }
                Err(bus::Error::NoDurable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(waiting)
    }

    /// Gives up all that waits; answers how many messages that were. Nothing of the unit may be at work.
    pub async fn purge(&self) -> Result<u64, Error> {
        loop {
            let Some((run, revision)) = self.versions.run(&self.id).await? else { return Ok(0) };
            self.keep(run.clone(), revision);
            let waiting = self.waiting().await?.unwrap_or(0);
            let last = self.context.bus.stream(&self.stream).await?.last;
            let next = run.purged(last);
            if let Written::Won(revision) = self.versions.write_run(&self.id, &next, Some(revision)).await? {
                self.keep(next, revision);
                for (number, ..) in run.durables() {
                    self.context.bus.delete_durable(&self.durable(number)).await?;
                }
                return Ok(waiting);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use futures_util::stream::BoxStream;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::bus::embedded::{Embedded, Options};
    use crate::id::UnitKind;
    use crate::ports::bus::Answer;
    use crate::ports::clock::SharedClock;
    use crate::ports::store::{BucketInfo, Change, Entry, Outcome, Store, Write};
    use crate::runtime::clock::SystemClock;

    /// Counts what is asked of the store behind it.
    struct Counting {
        store: Arc<dyn Store>,
        writes: AtomicUsize,
    }

    impl Store for Counting {
        fn ensure_bucket(&self, bucket: &str, ttl: Option<Duration>) -> Answer<()> {
            self.store.ensure_bucket(bucket, ttl)
        }

        fn bucket(&self, bucket: &str) -> Answer<BucketInfo> {
            self.store.bucket(bucket)
        }

        fn get(&self, bucket: &str, key: &str) -> Answer<Option<Entry>> {
            self.store.get(bucket, key)
        }

        fn write(&self, writes: Vec<Write>) -> Answer<Vec<Outcome>> {
            self.writes.fetch_add(writes.len(), Ordering::Relaxed);
            self.store.write(writes)
        }

        fn list(&self, bucket: &str, prefix: &str, after: Option<&str>, entries_max: usize) -> Answer<Vec<Entry>> {
            self.store.list(bucket, prefix, after, entries_max)
        }

        fn watch(&self, bucket: &str, prefix: &str) -> BoxStream<'static, Result<Change, bus::Error>> {
            self.store.watch(bucket, prefix)
        }
    }

    #[tokio::test]
    async fn batches_that_need_a_grant_at_once_are_covered_by_one_write() {
        let folder = tempfile::tempdir().unwrap();
        let clock: SharedClock = Arc::new(SystemClock);
        let bus = Embedded::open(Options::new(folder.path(), Arc::clone(&clock))).unwrap();
        let store = Arc::new(Counting { store: bus.clone(), writes: AtomicUsize::new(0) });
        let names = Names::new("vx").unwrap();
        store.ensure_bucket(&names.versions_bucket(), None).await.unwrap();
        let context = Context {
            bus: bus.clone(),
            store: store.clone(),
            names: names.clone(),
            clock,
            instance: Arc::from("a"),
            stopping: CancellationToken::new(),
        };
        let versions = Arc::new(Versions::new(store.clone(), &names));
        let id = UnitId::new(UnitKind::Flow, "f");
        let identity = StreamIdentity { name: names.messages(), created: 1 };
        let run = Run::begin(identity, &Wanted { digest: "d".to_owned(), reads: Vec::new() }, 1, 1);
        let Written::Won(revision) = versions.write_run(&id, &run, None).await.unwrap() else { panic!("lost") };
        let parts = UnitParts::new(context, versions, id, Granting::ByRecord);
        parts.keep(run, revision);
        store.writes.store(0, Ordering::Relaxed);

        // Four batches in hand, and more behind each.
        let batches = [256, 512, 768, 1_024];
        let covered = join_all(batches.map(|highest| parts.cover(highest, 5_000))).await;
        for (run, highest) in covered.into_iter().zip(batches) {
            assert!(run.unwrap().granted >= highest);
        }
        assert_eq!(store.writes.load(Ordering::Relaxed), 1);
        bus.close();
    }
}
