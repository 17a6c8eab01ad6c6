//! What a changed flow would do: the version that runs and a candidate on the same messages, and where they differ.
//!
//! A *replay* compares on stored messages, or on the dead letters of the flow; a *shadow* on what comes from now on. Neither has
//! any effect: messages are read by their sequence, nothing is published or acknowledged, no durable is made, and the marks of
//! `dedupe` are kept in memory, for each version its own. They begin empty: a duplicate of a message from before passes in both.
//!
//! The version that runs is that of the newest part of the unit's record, compiled from what is stored of it, whoever runs it.
//! Programs see the time of the message, so an old one gives what it gave.
//!
//! Bounds: [`REPLAYS_MAX`] and [`SHADOWS_MAX`] at once in a process, [`MESSAGES_MAX`] messages each, a page in memory.

mod candidate;
mod reading;
mod sides;
pub mod view;

pub use candidate::BESIDE_FILES_MAX;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::reading::{Live, Reading};
use self::sides::Sides;
use self::view::{Candidate, End, Message, Open, Outcome, Reason, Replay, Shadow, Summary};
use super::contents;
use super::versions::Versions;
use crate::flow::message::Stored;
use crate::id::{UnitId, UnitKind};
use crate::manifest::value::{Name, Span};
use crate::ports::bus;
use crate::time::Timestamp;
use crate::transforms::BuildError;
use crate::unit::context::Context;
use crate::unit::status;

/// Replays at once in one process. They take a core while they last.
pub const REPLAYS_MAX: usize = 1;
/// Shadows at once in one process.
pub const SHADOWS_MAX: usize = 4;
/// Messages compared when nothing is said.
pub const MESSAGES_DEFAULT: u64 = 1_000;
/// Messages compared at most.
pub const MESSAGES_MAX: u64 = 100_000;
/// How far back a replay begins when nothing is said.
const SINCE_DEFAULT: Duration = Duration::from_secs(3_600);
/// How long a shadow lasts when nothing is said.
const LASTS_DEFAULT: Duration = Duration::from_secs(60);
/// How long a shadow may last.
const LASTS_MAX: Duration = Duration::from_secs(24 * 3_600);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no {0} runs: `vejas status` lists the flows there are")]
    NoFlow(UnitId),
    #[error("{0}")]
    Wanted(String),
    /// The problems are those of its check; none when it does not declare the flow at all.
    #[error("{}", not_compiled(unit, path, problems))]
    Candidate { unit: UnitId, path: String, problems: Arc<[String]> },
    #[error("{max} {running} at once is what one process takes: wait for the end of one, or end it")]
    Busy { running: &'static str, max: usize },
    #[error("the version that runs cannot be compiled: {0}")]
    Active(String),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Bus(#[from] bus::Error),
}

fn not_compiled(unit: &UnitId, path: &str, problems: &[String]) -> String {
    match problems {
        [] => format!("{path} declares no {unit}"),
        problems => format!("the candidate in {path} has errors, {} of them shown", problems.len()),
    }
}

impl From<contents::Error> for Error {
    fn from(error: contents::Error) -> Self {
        match error {
            contents::Error::Bus(error) => Error::Bus(error),
            other => Error::Active(other.to_string()),
        }
    }
}

/// Starts comparisons. Cheap to clone.
#[derive(Clone)]
pub struct Replays {
    context: Context,
    versions: Arc<Versions>,
    message_bytes_max: usize,
    replays: Arc<Semaphore>,
    shadows: Arc<Semaphore>,
}

impl std::fmt::Debug for Replays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replays").finish_non_exhaustive()
    }
}

/// What a comparison tells next.
#[derive(Debug)]
pub enum Told {
    Message(Box<Message>),
    End(End),
}

/// A comparison under way. Dropped at any point it leaves nothing behind.
pub struct Running {
    open: Open,
    reading: Reading,
    /// Absent while a page is compared.
    sides: Option<Sides>,
    page: VecDeque<Message>,
    over: Option<(Reason, Option<String>)>,
    limit: u64,
    /// Tell also of what comes out the same.
    unchanged: bool,
    summary: Summary,
    _place: OwnedSemaphorePermit,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("open", &self.open).finish_non_exhaustive()
    }
}

/// Both versions of a flow, ready to run.
struct Pair {
    unit: UnitId,
    active: String,
    candidate: String,
    sides: Sides,
}

impl Replays {
    pub fn new(context: &Context, message_bytes_max: usize) -> Self {
        Replays {
            context: context.clone(),
            versions: Arc::new(Versions::new(Arc::clone(&context.store), &context.names)),
            message_bytes_max,
            replays: Arc::new(Semaphore::new(REPLAYS_MAX)),
            shadows: Arc::new(Semaphore::new(SHADOWS_MAX)),
        }
    }

    /// Compares on what is stored.
    pub async fn replay(&self, flow: &str, wanted: Replay) -> Result<Running, Error> {
        let Replay { candidate, since, from_sequence, limit, dead_letters, unchanged } = wanted;
        let limit = messages(limit)?;
        if since.is_some() && from_sequence.is_some() {
            return Err(Error::Wanted("give either `since` or `fromSequence`".to_owned()));
        }
        let since = since.as_deref().map(|text| moment(text, self.context.clock.now())).transpose()?;
        let place = place(&self.replays, "replays", REPLAYS_MAX)?;
        let pair = self.pair(flow, candidate).await?;
        let names = &self.context.names;
        let (stream, filters) = match dead_letters {
            true => (names.dead_letters(), vec![names.dead_letter(&pair.unit)]),
            false => (names.messages(), pair.sides.filters()),
        };
        let info = self.context.bus.stream(&stream).await?;
        let from = match (from_sequence, since) {
            (Some(sequence), _) => sequence,
            (None, Some(time)) => self.context.bus.sequence_at(&stream, time).await?,
            (None, None) if dead_letters => info.first,
            (None, None) => {
                let since = self.context.clock.now().minus(SINCE_DEFAULT);
                self.context.bus.sequence_at(&stream, since).await?
            }
        };
        let next = from.max(info.first);
        let reading =
            Reading { are_letters: dead_letters, ..self.reading(&pair.unit, stream, filters, next, info.last) };
        Ok(self.running(pair, reading, limit, unchanged, place))
    }

    /// Compares on what comes.
    pub async fn shadow(&self, flow: &str, wanted: Shadow) -> Result<Running, Error> {
        let Shadow { candidate, lasts, limit, unchanged } = wanted;
        let limit = messages(limit)?;
        let lasts = lasts.map_or(LASTS_DEFAULT, |span| span.0);
        if lasts > LASTS_MAX {
            return Err(Error::Wanted(format!("a shadow lasts {} at most", Span(LASTS_MAX))));
        }
        let place = place(&self.shadows, "shadows", SHADOWS_MAX)?;
        let pair = self.pair(flow, candidate).await?;
        let stream = self.context.names.messages();
        let last = self.context.bus.stream(&stream).await?.last;
        let live = Live { until: self.context.clock.monotonic() + lasts, active: pair.active.clone() };
        let filters = pair.sides.filters();
        let reading = Reading { live: Some(live), ..self.reading(&pair.unit, stream, filters, last + 1, last) };
        Ok(self.running(pair, reading, limit, unchanged, place))
    }

    async fn pair(&self, flow: &str, candidate: Candidate) -> Result<Pair, Error> {
        let unit = UnitId::new(UnitKind::Flow, flow);
        let run = match Name::parse(flow) {
            Ok(_) => self.versions.run(&unit).await?,
            Err(_) => None,
        };
        let active = run.and_then(|(run, _)| run.last().digest.clone());
        let active = active.ok_or_else(|| Error::NoFlow(unit.clone()))?;
        let candidate = candidate::compile(&self.versions, &unit, &active, candidate).await?;
        let running = contents::load(&self.versions, &active).await?;
        let sides = Sides::new(&running, &candidate, &self.context.names, self.message_bytes_max)?;
        Ok(Pair { unit, active, candidate: candidate.digest, sides })
    }

    fn reading(&self, unit: &UnitId, stream: String, filters: Vec<String>, next: u64, through: u64) -> Reading {
        Reading {
            bus: Arc::clone(&self.context.bus),
            versions: Arc::clone(&self.versions),
            names: self.context.names.clone(),
            clock: Arc::clone(&self.context.clock),
            unit: unit.clone(),
            stream,
            filters,
            next,
            through,
            live: None,
            are_letters: false,
        }
    }

    fn running(
        &self,
        pair: Pair,
        reading: Reading,
        limit: u64,
        unchanged: bool,
        place: OwnedSemaphorePermit,
    ) -> Running {
        let open = Open {
            instance: self.context.instance.to_string(),
            unit: pair.unit.to_string(),
            active: status::short(&pair.active).to_owned(),
            candidate: status::short(&pair.candidate).to_owned(),
            stream: reading.stream.clone(),
            from: reading.next,
            through: reading.live.is_none().then_some(reading.through),
        };
        tracing::info!(unit = open.unit, active = open.active, candidate = open.candidate, "compares with a candidate");
        Running {
            open,
            reading,
            sides: Some(pair.sides),
            page: VecDeque::new(),
            over: None,
            limit,
            unchanged,
            summary: Summary::default(),
            _place: place,
        }
    }
}

impl Running {
    pub fn open(&self) -> &Open {
        &self.open
    }

    /// What comes next; after the end the end again.
    pub async fn next(&mut self) -> Told {
        loop {
            if let Some(message) = self.page.pop_front() {
                return Told::Message(Box::new(message));
            }
            if let Some((reason, detail)) = self.over.clone() {
                return Told::End(self.end(reason, detail));
            }
            let left = self.limit - self.summary.messages;
            if left == 0 {
                let is_all = self.reading.live.is_none() && self.reading.next > self.reading.through;
                self.over = Some((if is_all { Reason::Complete } else { Reason::Limit }, None));
                continue;
            }
            let (messages, over) = self.reading.page(left).await;
            if let Err(panic) = self.compare(messages).await {
                self.over = Some((Reason::Bus, Some(format!("the comparison broke off: {panic}"))));
                continue;
            }
            self.over = over;
        }
    }

    /// The end now, whatever is left.
    pub fn stop(&self) -> End {
        self.end(Reason::Stopping, None)
    }

    async fn compare(&mut self, messages: Vec<(Stored, String)>) -> Result<(), tokio::task::JoinError> {
        let Some(mut sides) = self.sides.take() else { return Ok(()) };
        let are_letters = self.reading.are_letters;
        let compared = tokio::task::spawn_blocking(move || {
            let compare = |(message, id)| sides.compare(&message, id, are_letters);
            let compared: Vec<Message> = messages.into_iter().map(compare).collect();
            (sides, compared)
        });
        let (sides, compared) = compared.await?;
        self.sides = Some(sides);
        for message in compared {
            self.summary.count(message.outcome, message.candidate.failure.is_some());
            if self.unchanged || message.outcome != Outcome::Unchanged {
                self.page.push_back(message);
            }
        }
        Ok(())
    }

    fn end(&self, reason: Reason, detail: Option<String>) -> End {
        End { reason, detail, next: self.reading.next, summary: self.summary }
    }
}

fn place(places: &Arc<Semaphore>, running: &'static str, max: usize) -> Result<OwnedSemaphorePermit, Error> {
    Arc::clone(places).try_acquire_owned().map_err(|_| Error::Busy { running, max })
}

fn messages(limit: Option<u64>) -> Result<u64, Error> {
    let limit = limit.unwrap_or(MESSAGES_DEFAULT);
    if (1..=MESSAGES_MAX).contains(&limit) {
        return Ok(limit);
    }
    Err(Error::Wanted(format!("`limit` is {limit}: compared are 1 to {MESSAGES_MAX} messages")))
}

fn moment(text: &str, now: Timestamp) -> Result<Timestamp, Error> {
    let ago = |span: Span| now.minus(span.0);
    Timestamp::parse(text).or_else(|| Span::parse(text).ok().map(ago)).ok_or_else(|| {
        Error::Wanted(format!(
            "`since` is {text:?}: write a time as in 2026-03-01T08:00:00Z, or how long ago as in `2h`"
        ))
    })
}
