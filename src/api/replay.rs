//! `/api/v1/replay` and `/api/v1/shadow`: a candidate beside the version that runs, as server-sent events. What is compared and
//! how is decided in `runtime::replay`.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream;
use serde::Serialize;

use super::Told;
use super::refusal::Refusal;
use super::routes::{Operation, Route, route};
use crate::runtime::replay::view::{self, Replay, Shadow};
use crate::runtime::replay::{Error, Running, Told as Next};

/// Largest request, in bytes: a manifest and the files beside it.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;
/// A comment is sent after this much silence, so that both sides notice when the other is gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

pub(super) fn routes() -> Vec<Route> {
    let described = |operation: Operation| {
        operation
            .events::<view::Event>()
            .refuses(400, "The request makes no sense.")
            .refuses(404, "No such flow runs.")
            .refuses(413, "The request is too large.")
            .refuses(
                422,
                "The candidate has errors, or does not declare the flow; or a field is unknown or of the wrong type.",
            )
            .refuses(429, "As many run as one process takes.")
            .refuses(503, "The bus does not answer, or the process is stopping.")
    };
    let large = || DefaultBodyLimit::max(REQUEST_BYTES_MAX);
    vec![
        route(
            "/api/v1/replay/{flow}",
            post(replay).layer(large()),
            [described(
                Operation::post(
                    "A candidate of a flow beside the version that runs, on stored messages, as server-sent events: `open`, \
                     `message`, `end` with the summary. Nothing is published or acknowledged.",
                )
                .takes::<Replay>()
                .reads(),
            )],
        ),
        route(
            "/api/v1/shadow/{flow}",
            post(shadow).layer(large()),
            [described(
                Operation::post(
                    "The same on what comes from now on, until the time is over or another version of the flow runs.",
                )
                .takes::<Shadow>()
                .reads(),
            )],
        ),
    ]
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, code) = match &error {
            Error::NoFlow(_) => (StatusCode::NOT_FOUND, "no-such-flow"),
            Error::Wanted(_) => (StatusCode::BAD_REQUEST, "bad-request"),
            Error::Candidate { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "bad-candidate"),
            Error::Busy { .. } => (StatusCode::TOO_MANY_REQUESTS, "too-many-replays"),
            Error::Bus(_) => (StatusCode::SERVICE_UNAVAILABLE, "bus"),
            Error::Active(_) | Error::Build(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        let text = error.to_string();
        let reasons = match error {
            Error::Candidate { problems, .. } => problems.to_vec(),
            _ => Vec::new(),
        };
        Refusal::new(status, code, text).because(reasons)
    }
}

async fn replay(
    State(told): State<Told>,
    Path(flow): Path<String>,
    wanted: Result<Json<Replay>, JsonRejection>,
) -> Result<Response, Refusal> {
    not_stopping(&told)?;
    let running = told.replays.replay(&flow, wanted?.0).await?;
    Ok(events(told, running))
}

async fn shadow(
    State(told): State<Told>,
    Path(flow): Path<String>,
    wanted: Result<Json<Shadow>, JsonRejection>,
) -> Result<Response, Refusal> {
    not_stopping(&told)?;
    let running = told.replays.shadow(&flow, wanted?.0).await?;
    Ok(events(told, running))
}

fn not_stopping(told: &Told) -> Result<(), Refusal> {
    if told.stopping.is_cancelled() {
        let detail = "the process is stopping".to_owned();
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail));
    }
    Ok(())
}

/// `open`, what differs, and `end`. The comparison ends when the answer is dropped.
fn events(told: Told, running: Running) -> Response {
    let first = event("open", running.open());
    let said = stream::unfold((Some(first), Some(running), told), |(first, running, told)| async move {
        let mut running = running?;
        if let Some(first) = first {
            return Some((Ok::<_, Infallible>(first), (None, Some(running), told)));
        }
        match told.stopping.run_until_cancelled(running.next()).await {
            Some(Next::Message(message)) => Some((Ok(event("message", &message)), (None, Some(running), told))),
            Some(Next::End(end)) => Some((Ok(event("end", &end)), (None, None, told))),
            None => Some((Ok(event("end", &running.stop())), (None, None, told))),
        }
    });
    Sse::new(said).keep_alive(KeepAlive::new().interval(SILENCE_MAX)).into_response()
}

fn event(name: &str, data: &impl Serialize) -> Event {
    // Strings, numbers and JSON values: these can be written always.
    Event::default().event(name).json_data(data).unwrap_or_default()
}
