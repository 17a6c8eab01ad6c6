//! Members, leases, and telling a member to leave.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::time::timeout;

use super::lag::ASK_WAIT_MAX;
use super::routes::{Operation, Route, route};
use super::status::problem;
use super::{Told, view};
use crate::ports::bus::Error;

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(
            "/api/v1/members",
            get(members),
            [Operation::get("The processes of the cluster, which revision they run and how many units they own.")
                .json::<view::Members>()
                .refuses(503, "The bus does not answer.")],
        ),
        route(
            "/api/v1/members/{instance}/drain",
            post(drain),
            [Operation::post(
                "Tells a process to leave as on SIGTERM: it hands over what it owns, finishes what it holds, and ends with 0.",
            )
            .json::<view::Drained>()
            .refuses(404, "No member has that name.")],
        ),
        route(
            "/api/v1/leases",
            get(leases),
            [Operation::get("The units that only one process may run, and which one does.")
                .json::<view::Leases>()
                .refuses(503, "The bus does not answer.")],
        ),
    ]
}

async fn members(State(told): State<Told>) -> Response {
    let Some(overview) = &told.overview else { return Json(view::Members { members: Vec::new() }).into_response() };
    match answered(overview.members()).await {
        Ok(members) => Json(view::Members { members }).into_response(),
        Err(reason) => problem(StatusCode::SERVICE_UNAVAILABLE, "bus-away", &reason, Vec::new()),
    }
}

async fn leases(State(told): State<Told>) -> Response {
    let Some(overview) = &told.overview else { return Json(view::Leases { leases: Vec::new() }).into_response() };
    match answered(overview.leases()).await {
        Ok(leases) => Json(view::Leases { leases }).into_response(),
        Err(reason) => problem(StatusCode::SERVICE_UNAVAILABLE, "bus-away", &reason, Vec::new()),
    }
}

async fn drain(State(told): State<Told>, Path(instance): Path<String>) -> Response {
    let asked = told.overview.as_ref().map_or(0, |overview| overview.drain(&instance));
    if asked == 0 {
        let detail = format!("no member is called {instance}; `vejas members` lists them");
        return problem(StatusCode::NOT_FOUND, "no-such-member", &detail, Vec::new());
    }
    Json(view::Drained { instance, processes: asked }).into_response()
}

async fn answered<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(ASK_WAIT_MAX, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("the bus does not answer".to_owned()),
    }
}
