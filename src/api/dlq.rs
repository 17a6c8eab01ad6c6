//! `/api/v1/dlq`: dead letters over HTTP. What each call does is decided in `runtime::dead_letters`.
//!
//! | call | what |
//! | --- | --- |
//! | `GET /api/v1/dlq?unit=&code=&since=&until=&text=&from=&through=&limit=` | one page; go on with `next` and `through` |
//! | `GET /api/v1/dlq/{sequence}` | one letter with its headers |
//! | `GET /api/v1/dlq/{sequence}/payload` | the bytes as they are |
//! | `PUT /api/v1/dlq/{sequence}/payload` | another payload; answers the new sequence |
//! | `PATCH /api/v1/dlq/{sequence}` | some fields of a JSON payload: `{"set":[{"path":"a.b","value":1}]}` |
//! | `POST /api/v1/dlq/replay` | `{"select":{…},"rate":"100/s","dryRun":false}`; one page, or one burst of it |
//! | `POST /api/v1/dlq/purge` | `{"select":{…}}`, or `{"all":true}`; one page |

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use axum::{Json, Router};

use super::Told;
use super::status::problem;
use crate::ports::bus;
use crate::runtime::config::MESSAGE_BYTES_MAX;
use crate::runtime::dead_letters::view::{Purge, Replay, Set};
use crate::runtime::dead_letters::{Error, Selection};

/// Largest request that is no payload, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

pub(super) fn routes() -> Router<Told> {
    let payload = get(payload).put(replace).layer(DefaultBodyLimit::max(MESSAGE_BYTES_MAX));
    Router::new()
        .route("/api/v1/dlq", get(list))
        .route("/api/v1/dlq/replay", post(replay))
        .route("/api/v1/dlq/purge", post(purge))
        .route("/api/v1/dlq/{sequence}", patch(set).get(detail))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .route("/api/v1/dlq/{sequence}/payload", payload)
}

/// What a call ends with when it does not succeed.
struct Refusal(StatusCode, &'static str, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        problem(self.0, self.1, &self.2, Vec::new())
    }
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
        Refusal(status, code, error.to_string())
    }
}

macro_rules! bad_request {
    ($($rejection:ty),*) => {$(
        impl From<$rejection> for Refusal {
            fn from(rejection: $rejection) -> Self {
                Refusal(rejection.status(), "bad-request", rejection.body_text())
            }
        }
    )*};
}
bad_request!(BytesRejection, JsonRejection, PathRejection, QueryRejection);

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
