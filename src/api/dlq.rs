//! `/api/v1/dlq`: dead letters over HTTP. What each call does is decided in `runtime::dead_letters`.
//! The routes are listed here with what the OpenAPI document says of them, and with the limit of their bodies.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::Told;
use super::refusal::Refusal;
use super::routes::{Operation, Route, route};
use crate::ports::bus;
use crate::runtime::config::MESSAGE_BYTES_MAX;
use crate::runtime::dead_letters::view::{Detail, Edited, Page, Purge, Purged, Replay, Replayed, Set};
use crate::runtime::dead_letters::{Error, Selection};

/// Largest request that is no payload, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

const NO_NUMBER: &str = "The sequence is no number, or the request is no JSON.";
const NONE: &str = "There is no such dead letter.";
const GONE: &str = "Somebody else removed or changed it meanwhile.";
const FULL: &str = "The stream or the disk is full.";
const UNKNOWN: &str = "A field is unknown or of the wrong type.";
const SELECTION: &str = "The selection makes no sense, or is everything and `all` is not said.";

pub(super) fn routes() -> Vec<Route> {
    let small = || DefaultBodyLimit::max(REQUEST_BYTES_MAX);
    let mut routes = vec![
        route(
            "/api/v1/dlq",
            get(list).layer(small()),
            [Operation::get("One page of dead letters; go on with `next` as `from`, and `through`.")
                .json::<Page>()
                .query_of::<Selection>()
                .refuses(400, "The selection makes no sense.")],
        ),
        route(
            "/api/v1/dlq/{sequence}",
            get(detail).patch(set).layer(small()),
            [
                Operation::get("One dead letter with its headers.")
                    .json::<Detail>()
                    .refuses(400, NO_NUMBER)
                    .refuses(404, NONE),
                Operation::patch("Some fields of a JSON payload get another value. The letter gets a new sequence.")
                    .takes::<Set>()
                    .json::<Edited>()
                    .refuses(400, NO_NUMBER)
                    .refuses(404, NONE)
                    .refuses(409, GONE)
                    .refuses(413, "The request, or the letter it makes, is too large.")
                    .refuses(422, "The payload cannot be edited so, or a field is missing.")
                    .refuses(507, FULL),
            ],
        ),
        route(
            "/api/v1/dlq/{sequence}/payload",
            get(payload).put(replace).layer(DefaultBodyLimit::max(MESSAGE_BYTES_MAX)),
            [
                Operation::get("The payload as it is.").bytes().refuses(400, NO_NUMBER).refuses(404, NONE),
                Operation::put("Another payload. The letter gets a new sequence.")
                    .takes_bytes()
                    .json::<Edited>()
                    .refuses(400, NO_NUMBER)
                    .refuses(404, NONE)
                    .refuses(409, GONE)
                    .refuses(413, "The payload is too large.")
                    .refuses(507, FULL),
            ],
        ),
        route(
            "/api/v1/dlq/replay",
            post(replay).layer(small()),
            [Operation::post(
                "Gives one page of dead letters, or one burst of it, back to the units that failed on them.",
            )
            .takes::<Replay>()
            .json::<Replayed>()
            .refuses(400, SELECTION)
            .refuses(413, "The request is too large.")
            .refuses(422, UNKNOWN)
            .refuses(507, FULL)],
        ),
        route(
            "/api/v1/dlq/purge",
            post(purge).layer(small()),
            [Operation::post("Removes one page of dead letters.")
                .takes::<Purge>()
                .json::<Purged>()
                .refuses(400, SELECTION)
                .refuses(413, "The request is too large.")
                .refuses(422, UNKNOWN)],
        ),
    ];
    for operation in routes.iter_mut().flat_map(|route| &mut route.operations) {
        operation.refusals.push((503, "The bus does not answer."));
    }
    routes
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, code) = match &error {
            Error::NotFound { .. } => (StatusCode::NOT_FOUND, "no-such-dead-letter"),
            Error::Gone { .. } => (StatusCode::CONFLICT, "dead-letter-gone"),
            Error::Selection(_) => (StatusCode::BAD_REQUEST, "bad-selection"),
            Error::Everything => (StatusCode::BAD_REQUEST, "everything"),
            Error::Edit(_) => (StatusCode::UNPROCESSABLE_ENTITY, "bad-edit"),
            Error::Bus(bus::Error::TooLarge { .. }) => (StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
            Error::Bus(bus::Error::Full { .. }) => (StatusCode::INSUFFICIENT_STORAGE, "full"),
            Error::Bus(bus::Error::NoSpace(_)) => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
            Error::Bus(_) => (StatusCode::SERVICE_UNAVAILABLE, "bus"),
            Error::NoFolder(_) | Error::InUse(_) | Error::Open(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        Refusal::new(status, code, error.to_string())
    }
}

type Sequence = Result<Path<u64>, PathRejection>;

async fn list(
    State(told): State<Told>,
    selection: Result<Query<Selection>, QueryRejection>,
) -> Result<Response, Refusal> {
    Ok(Json(told.dead_letters.page(&selection?.0).await?).into_response())
}

async fn detail(State(told): State<Told>, sequence: Sequence) -> Result<Response, Refusal> {
    Ok(Json(told.dead_letters.detail(sequence?.0).await?).into_response())
}

async fn payload(State(told): State<Told>, sequence: Sequence) -> Result<Response, Refusal> {
    let payload = told.dead_letters.payload(sequence?.0).await?;
    // Bytes from outside: a browser must not take them for a page.
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, payload).into_response())
}

async fn replace(
    State(told): State<Told>,
    sequence: Sequence,
    payload: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    Ok(Json(told.dead_letters.edit(sequence?.0, payload?).await?).into_response())
}

async fn set(
    State(told): State<Told>,
    sequence: Sequence,
    fields: Result<Json<Set>, JsonRejection>,
) -> Result<Response, Refusal> {
    Ok(Json(told.dead_letters.set(sequence?.0, &fields?.0).await?).into_response())
}

async fn replay(State(told): State<Told>, wanted: Result<Json<Replay>, JsonRejection>) -> Result<Response, Refusal> {
    Ok(Json(told.dead_letters.replay(&wanted?.0).await?).into_response())
}

async fn purge(State(told): State<Told>, wanted: Result<Json<Purge>, JsonRejection>) -> Result<Response, Refusal> {
    Ok(Json(told.dead_letters.purge(&wanted?.0).await?).into_response())
}
