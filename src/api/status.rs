//! Health, readiness, status and units.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use super::lag::{self, ASK_WAIT_MAX};
use super::{Told, revisions, server_behind, view};
use crate::id::{UnitId, UnitKind};
use crate::ports::bus::{Error as BusError, StreamInfo};
use crate::unit::status::{State as UnitState, Unit};

/// Units that one answer of `/readyz` names.
const REASONS_MAX: usize = 20;
/// A message that has waited this long is warned about, in seconds.
const OLDEST_WARNED_SECONDS: f64 = 300.0;

/// The process answers; nothing more is said.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(told): State<Told>) -> Response {
    let reasons = not_ready(&told).await;
    if reasons.is_empty() {
        return "ready\n".into_response();
    }
    problem(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "not ready", reasons)
}

pub(super) async fn status(State(told): State<Told>) -> Json<view::Status> {
    // First: units are then at least as far as the set that is shown.
    let manifests = told.manifests.get();
    let (units, (streams, mut warnings), not_ready) =
        futures_util::join!(units_of(&told), streams(&told), not_ready(&told));
    let dead_letters = told.names.dead_letters();
    warnings.extend(streams.iter().filter(|stream| stream.is_nearly_full()).map(|stream| {
        let consequence = if stream.name == dead_letters {
            "units that fail pause: replay or purge (`vejas dlq list`), or raise VEJAS_DLQ_MAX_BYTES"
        } else {
            "new messages are refused"
        };
        format!("stream {} is {:.0} % full; at the limit {consequence}", stream.name, stream.used() * 100.0)
    }));
    warnings.extend(units.iter().filter_map(unit_warning));
    warnings.extend(manifest_warnings(&manifests));
    let (sync, of_sync) = revisions::sync_warnings(&told).await;
    warnings.extend(of_sync);
    let server = server_behind::look(&told).await;
    warnings.extend(server.iter().flat_map(server_behind::warnings));
    let uptime = told.clock.monotonic().saturating_sub(told.started);
    Json(view::Status {
        instance: told.instance.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: uptime.as_secs_f64(),
        ready: not_ready.is_empty(),
        not_ready,
        bus: told.bus_kind.to_owned(),
        data_dir: told.data_dir.as_deref().map(str::to_owned),
        server,
        manifests,
        sync,
        streams,
        units,
        warnings,
    })
}

pub(super) async fn units(State(told): State<Told>) -> Json<view::Units> {
    Json(view::Units { units: units_of(&told).await })
}

pub(super) async fn unit(State(told): State<Told>, Path((kind, name)): Path<(String, String)>) -> Response {
    let Some(unit) = unit_named(&told, &format!("{kind}/{name}")) else {
        let detail = format!("no unit {kind}/{name} runs here");
        return problem(StatusCode::NOT_FOUND, "no-such-unit", &detail, Vec::new());
    };
    let lag = lag::of_unit(Arc::clone(&told.bus), Arc::clone(&unit), told.clock.now()).await;
    Json(view::Unit::new(unit.view(), unit.rates(told.clock.monotonic()), lag)).into_response()
}

pub(super) async fn purge(State(told): State<Told>, Path((kind, name)): Path<(String, String)>) -> Response {
    let purged = match unit_kind(&kind) {
        Some(kind) => told.backlogs.purge(&UnitId::new(kind, &name)).await,
        None => None,
    };
    match purged {
        Some(Ok(messages)) => Json(view::Purged { unit: format!("{kind}/{name}"), messages }).into_response(),
        Some(Err(reason)) => problem(StatusCode::SERVICE_UNAVAILABLE, "not-purged", &reason, Vec::new()),
        None => {
            let detail = format!("no flow or sink {kind}/{name} reads here");
            problem(StatusCode::NOT_FOUND, "no-such-unit", &detail, Vec::new())
        }
    }
}

pub(super) async fn no_such_path() -> Response {
    problem(StatusCode::NOT_FOUND, "no-such-path", "the API has no such path", Vec::new())
}

pub(super) async fn no_such_method() -> Response {
    problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "this path does not take this method", Vec::new())
}

pub(super) fn problem(status: StatusCode, code: &str, detail: &str, reasons: Vec<String>) -> Response {
    let document = view::Problem {
        r#type: "about:blank".to_owned(),
        title: status.canonical_reason().unwrap_or_default().to_owned(),
        status: status.as_u16(),
        code: code.to_owned(),
        detail: detail.to_owned(),
        reasons,
    };
    let mut answer = (status, Json(document)).into_response();
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    answer
}

/// The unit of a name such as `flow/price-orders`.
pub(super) fn unit_named(told: &Told, name: &str) -> Option<Arc<Unit>> {
    let (kind, name) = name.split_once('/')?;
    told.registry.get(&UnitId::new(unit_kind(kind)?, name))
}

pub(super) fn unit_kind(text: &str) -> Option<UnitKind> {
    [UnitKind::HttpIn, UnitKind::Source, UnitKind::Flow, UnitKind::Sink].into_iter().find(|kind| kind.as_str() == text)
}

async fn units_of(told: &Told) -> Vec<view::Unit> {
    let units = told.registry.all();
    let lags = lag::of_units(&told.bus, &units, told.clock.now()).await;
    let now = told.clock.monotonic();
    units.iter().zip(lags).map(|(unit, lag)| view::Unit::new(unit.view(), unit.rates(now), lag)).collect()
}

fn manifest_warnings(manifests: &view::Manifests) -> Vec<String> {
    let errors = manifests.problems.iter().filter(|problem| problem.severity == "error").take(REASONS_MAX);
    let mut warnings: Vec<String> =
        errors.map(|problem| format!("{} {}: {}", problem.place, problem.code, problem.message)).collect();
    if !manifests.kept.is_empty() {
        warnings.push(format!("the last good version runs on of {}", manifests.kept.join(", ")));
    }
    warnings.extend(manifests.failure.iter().map(|reason| format!("the newest manifests are not in effect: {reason}")));
    warnings
}

fn unit_warning(unit: &view::Unit) -> Option<String> {
    let reason = unit.reason.as_deref().unwrap_or("no reason given");
    match unit.state.as_str() {
        "failed" => return Some(format!("{} has failed: {reason}", unit.unit)),
        "parked" => return Some(format!("{} is removed: {reason}", unit.unit)),
        "paused" => return Some(format!("{} is paused: {reason}", unit.unit)),
        _ => {}
    }
    let oldest = unit.lag?.oldest_seconds.filter(|seconds| *seconds >= OLDEST_WARNED_SECONDS)?;
    Some(format!("the oldest message of {} has waited for {oldest:.0} s", unit.unit))
}

/// The streams that exist, and what could not be asked.
pub(super) async fn streams(told: &Told) -> (Vec<view::Stream>, Vec<String>) {
    let mut streams = Vec::new();
    let mut warnings = Vec::new();
    for name in [told.names.messages(), told.names.dead_letters()] {
        match timeout(ASK_WAIT_MAX, told.bus.stream(&name)).await {
            Ok(Ok(info)) => streams.push(stream_view(&info)),
            Ok(Err(BusError::NoStream(_))) => {}
            Ok(Err(error)) => warnings.push(format!("stream {name} cannot be asked: {error}")),
            Err(_) => warnings.push(format!("stream {name} did not answer")),
        }
    }
    (streams, warnings)
}

fn stream_view(info: &StreamInfo) -> view::Stream {
    view::Stream {
        name: info.config.name.clone(),
        bytes: info.bytes,
        bytes_max: info.config.bytes_max,
        messages: info.messages,
        first: info.first,
        last: info.last,
    }
}

/// What is missing. A paused unit is no reason: it waits for something that another start would not mend. Nor is one that was
/// left out: the others serve without it, and the warnings of the status name it.
async fn not_ready(told: &Told) -> Vec<String> {
    let mut reasons = Vec::new();
    if told.stopping.is_cancelled() {
        reasons.push("the process is draining".to_owned());
    }
    if !told.loaded.is_set() {
        reasons.push("the manifests are not loaded yet".to_owned());
    }
    match timeout(ASK_WAIT_MAX, told.bus.stream(&told.names.messages())).await {
        Ok(Ok(info)) => reasons.extend(info.refuses.map(|reason| format!("the bus takes no new messages: {reason}"))),
        Ok(Err(error)) => reasons.push(error.to_string()),
        Err(_) => reasons.push("the bus does not answer".to_owned()),
    }
    let down: Vec<String> = told
        .registry
        .all()
        .iter()
        .filter(|unit| {
            !matches!(
                unit.state(),
                UnitState::Running
                    | UnitState::Paused
                    | UnitState::Standby
                    | UnitState::Suspended
                    | UnitState::Parked
                    | UnitState::Failed
            )
        })
        .map(|unit| format!("{} is {}", unit.id, view::state_text(unit.state())))
        .collect();
    let more = down.len().saturating_sub(REASONS_MAX);
    reasons.extend(down.into_iter().take(REASONS_MAX));
    if more > 0 {
        reasons.push(format!("{more} more units are not up"));
    }
    reasons
}
