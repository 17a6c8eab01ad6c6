//! `/api/v1/tap`: messages live, as server-sent events.
//!
//! By subject, messages are read from the bus by their sequence: no durable is made, nothing is held back or kept longer.
//! By unit, the unit tells of its steps ([`crate::unit::tap`]). Either way a client that reads slowly gets a `gap` with
//! the count of what it missed, and the bus and the units do not notice it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior};

use super::status::{problem, unit_named};
use super::{Told, view};
use crate::id::UnitKind;
use crate::manifest::value::Pattern;
use crate::ports::bus::Error as BusError;
use crate::unit::tap::{Heard, Listener};

/// Taps open at once.
pub const TAPS_MAX: usize = 64;
/// How often the end of the stream is looked at. It is for eyes: to be woken by each commit would put work on the way of
/// every message.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Messages read at once.
const PAGE_MESSAGES_MAX: usize = 64;
/// Pages read at once, for all taps together. A message may be as large as the bus takes, and each tap would read its own.
const READS_MAX: usize = 2;
/// Sequences a client may be behind before it misses some.
const BEHIND_SEQUENCES_MAX: u64 = 10_000;
/// A comment is sent after this much silence, so that both sides notice when the other is gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The places there are for taps, and for their reading. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Taps {
    places: Arc<Semaphore>,
    reads: Arc<Semaphore>,
}

impl Default for Taps {
    fn default() -> Self {
        Taps { places: Arc::new(Semaphore::new(TAPS_MAX)), reads: Arc::new(Semaphore::new(READS_MAX)) }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    subject: Option<String>,
    unit: Option<String>,
}

pub(super) async fn tap(
    State(told): State<Told>,
    asked: Result<Query<Asked>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let wrong = |code: &str, detail: &str| problem(StatusCode::BAD_REQUEST, code, detail, Vec::new());
    if told.stopping.is_cancelled() {
        let detail = "the process is stopping";
        return problem(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail, Vec::new());
    }
    let Ok(place) = Arc::clone(&told.taps.places).try_acquire_owned() else {
        let detail = format!("{TAPS_MAX} taps are open, which is as many as one process serves");
        return problem(StatusCode::TOO_MANY_REQUESTS, "too-many-taps", &detail, Vec::new());
    };
    match asked.map(|Query(asked)| (asked.subject, asked.unit)) {
        Ok((Some(subject), None)) => match Pattern::parse(&subject) {
            Ok(pattern) => {
                let after = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
                by_subject(told, &pattern, after, place).await
            }
            Err(error) => wrong("bad-subject", &error.to_string()),
        },
        Ok((None, Some(unit))) => by_unit(told, &unit, place),
        Ok(_) => wrong("bad-query", "give either `subject` or `unit`"),
        Err(rejection) => wrong("bad-query", &rejection.body_text()),
    }
}

async fn by_subject(told: Told, pattern: &Pattern, after: Option<u64>, place: OwnedSemaphorePermit) -> Response {
    let stream = told.names.messages();
    let end = match told.bus.stream(&stream).await {
        Ok(info) => info.last + 1,
        Err(error) => return problem(StatusCode::SERVICE_UNAVAILABLE, "bus", &error.to_string(), Vec::new()),
    };
    // A sequence behind the end is of another stream: its data directory was replaced meanwhile.
    let next = after.map_or(end, |after| after.saturating_add(1).min(end));
    let mut looks = tokio::time::interval(LOOK_PERIOD);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let filters = [told.names.stored(pattern.as_str())];
    let opened = view::TapOpen { instance: told.instance.to_string(), next: Some(next) };
    let following = Following { told, stream, filters, next, page: VecDeque::new(), looks };
    events(&opened, Tapping::Subject(following), place)
}

fn by_unit(told: Told, name: &str, place: OwnedSemaphorePermit) -> Response {
    let Some(unit) = unit_named(&told, name) else {
        let detail = format!("no unit {name} runs here");
        return problem(StatusCode::NOT_FOUND, "no-such-unit", &detail, Vec::new());
    };
    if matches!(unit.id.kind, UnitKind::HttpIn | UnitKind::Source) {
        let detail = format!("{name} has no steps: tap the subject that it stores messages under");
        return problem(StatusCode::BAD_REQUEST, "no-steps", &detail, Vec::new());
    }
    let opened = view::TapOpen { instance: told.instance.to_string(), next: None };
    events(&opened, Tapping::Unit(unit.tap().listen(), told), place)
}

/// `opened`, what the tap gives, and `end`. The place is free again when the answer is dropped.
fn events(opened: &view::TapOpen, tapping: Tapping, place: OwnedSemaphorePermit) -> Response {
    let first = event("open", opened);
    let said = stream::unfold((Some(first), Some(tapping), place), |(first, tapping, place)| async move {
        let mut tapping = tapping?;
        if let Some(first) = first {
            return Some((Ok::<_, Infallible>(first), (None, Some(tapping), place)));
        }
        match tapping.next().await {
            Some(event) => Some((Ok(event), (None, Some(tapping), place))),
            None => Some((Ok(event("end", &view::TapEnd {})), (None, None, place))),
        }
    });
    Sse::new(said).keep_alive(KeepAlive::new().interval(SILENCE_MAX)).into_response()
}

fn event(name: &str, data: &impl Serialize) -> Event {
    // Strings, numbers and JSON values: these can be written always.
    Event::default().event(name).json_data(data).unwrap_or_default()
}

enum Tapping {
    Subject(Following),
    Unit(Listener, Told),
}

impl Tapping {
    /// `None` when there will be nothing more.
    async fn next(&mut self) -> Option<Event> {
        match self {
            Tapping::Subject(following) => {
                let stopping = following.told.stopping.clone();
                stopping.run_until_cancelled(following.next()).await?
            }
            Tapping::Unit(listener, told) => Some(match told.stopping.run_until_cancelled(listener.next()).await? {
                Heard::Record(record) => event("step", &view::TapStep::new(&record, &told.names)),
                Heard::Gap(skipped) => event("gap", &view::TapGap { skipped }),
            }),
        }
    }
}

/// Reads a stream from its end on.
struct Following {
    told: Told,
    stream: String,
    filters: [String; 1],
    /// The sequence to read from.
    next: u64,
    /// As it is shown, so that a reader that waits holds no large message.
    page: VecDeque<view::TapMessage>,
    looks: Interval,
}

impl Following {
    /// `None` when the bus has stopped.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(shown) = self.page.pop_front() {
                return Some(event("message", &shown).id(shown.sequence.to_string()));
            }
            match self.read().await {
                Ok(0) => {}
                Ok(skipped) => return Some(event("gap", &view::TapGap { skipped })),
                Err(error) if error.is_retryable() => {}
                Err(_) => return None,
            }
        }
    }

    /// Reads the next page, after a wait when everything has been read. Answers how many sequences had to be passed over.
    async fn read(&mut self) -> Result<u64, BusError> {
        let info = loop {
            let info = self.told.bus.stream(&self.stream).await?;
            if info.last >= self.next {
                break info;
            }
            self.looks.tick().await;
        };
        let reachable = info.first.max((info.last + 1).saturating_sub(BEHIND_SEQUENCES_MAX));
        let skipped = reachable.saturating_sub(self.next);
        if skipped > 0 {
            self.next = reachable;
            return Ok(skipped);
        }
        let reads = Arc::clone(&self.told.taps.reads);
        let _turn = reads.acquire().await.expect("the semaphore is never closed");
        let page = self.told.bus.read(&self.stream, self.next, &self.filters, PAGE_MESSAGES_MAX).await?;
        // Nothing found means nothing up to the end that was seen before the reading.
        self.next = page.last().map_or(info.last, |message| message.sequence) + 1;
        self.page = page.iter().map(|message| view::TapMessage::new(message, &self.told.names)).collect();
        Ok(0)
    }
}
