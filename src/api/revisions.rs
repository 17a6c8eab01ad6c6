//! Revisions over HTTP: what is published, plan, publish, roll back, suspend. What each call does is decided in `runtime::publisher`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Told;
use super::refusal::Refusal;
use super::routes::{Operation, Route, route};
use super::status::unit_kind;
use super::view::{self, revisions};
use crate::id::UnitId;
use crate::manifest::check::{FileFault, Tree, TreeFile};
use crate::manifest::tree::{Snapshot, is_read};
use crate::protocol::publish::{Head, Made, Publication, Refused};
use crate::runtime::load::{self, Loaded};
use crate::runtime::planning::Given;
use crate::runtime::publisher::{Error, How, Published, Publisher};

/// Largest set of manifests that one call may bring, in bytes.
const UPLOAD_BYTES_MAX: usize = 96 << 20;
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Fewer hex digits do not name a plan.
const PLAN_DIGITS_MIN: usize = 8;
/// Who publishes that does not say.
const NOBODY: &str = "api";

const MOVED: &str = "Something else was published meanwhile, or is being decided: plan again.";
const NOT_ALL: &str =
    "Not every member can run it, it removes much and is not confirmed, or the manifests have errors; nothing changed.";

pub(super) fn routes() -> Vec<Route> {
    let small = || DefaultBodyLimit::max(REQUEST_BYTES_MAX);
    let upload = || DefaultBodyLimit::max(UPLOAD_BYTES_MAX);
    let mut routes = vec![
        route(
            "/api/v1/revisions",
            get(show).layer(small()),
            [Operation::get("What is published, what is being decided, and how far each member is.").json::<revisions::Revisions>()],
        ),
        route(
            "/api/v1/revisions/history",
            get(history).layer(small()),
            [Operation::get("The publication in effect and those before it, the newest first.").json::<revisions::History>()],
        ),
        route(
            "/api/v1/revisions/diff",
            get(diff).layer(small()),
            [Operation::get("What differs between two publications, unit by unit.")
                .query_of::<revisions::Between>()
                .json::<revisions::Diff>()
                .refuses(400, "A number is none.")
                .refuses(404, "One of them is not kept any more.")],
        ),
        route(
            "/api/v1/revisions/plan",
            post(plan).layer(upload()),
            [Operation::post("What a set of manifests would change. Nothing changes.")
                .takes::<revisions::Upload>()
                .json::<revisions::Plan>()
                .refuses(413, "The set is too large.")
                .refuses(422, "A field is unknown or of the wrong type.")],
        ),
        route(
            "/api/v1/revisions/publish",
            post(publish).layer(upload()),
            [Operation::post("Puts a set of manifests into effect on all members, or says why not.")
                .takes::<revisions::Publish>()
                .json::<revisions::Published>()
                .refuses(409, MOVED)
                .refuses(413, "The set is too large.")
                .refuses(422, NOT_ALL)],
        ),
        route(
            "/api/v1/revisions/confirm",
            post(confirm).layer(small()),
            [Operation::post("Says yes to a plan of git or of the folder that waits because it removes much.")
                .takes::<revisions::Confirm>()
                .json::<revisions::Confirmed>()
                .refuses(404, "No such plan waits.")
                .refuses(422, "It is no hash of a plan.")],
        ),
        route(
            "/api/v1/revisions/rollback",
            post(rollback).layer(small()),
            [Operation::post(
                "Publishes an earlier publication again, and sets the present one aside: git or the folder do not bring it back.",
            )
            .takes::<revisions::Rollback>()
            .json::<revisions::Published>()
            .refuses(404, "It is not kept any more.")
            .refuses(409, MOVED)
            .refuses(422, NOT_ALL)],
        ),
        route(
            "/api/v1/units/{kind}/{name}/suspend",
            post(suspend).layer(small()),
            [Operation::post("Stops a unit on all members until it is resumed. What comes to it waits; an entrance answers 503.")
                .takes::<revisions::Suspend>()
                .json::<revisions::Suspended>()
                .refuses(404, "No such unit is published.")
                .refuses(422, "A field is unknown or of the wrong type.")],
        ),
        route(
            "/api/v1/units/{kind}/{name}/resume",
            post(resume).layer(small()),
            [Operation::post("Lets a suspended unit go on.")
                .json::<revisions::Suspended>()
                .refuses(404, "No such unit is published.")],
        ),
    ];
    for operation in routes.iter_mut().flat_map(|route| &mut route.operations) {
        operation.refusals.push((503, "The bus does not answer, or this process has no publisher."));
    }
    routes
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, code) = match &error {
            Error::Bus(_) | Error::Undecided(_) | Error::Unreadable(_) => (StatusCode::SERVICE_UNAVAILABLE, "bus"),
            Error::Refused(Refused::Forgotten { .. } | Refused::NotYet { .. }) | Error::NothingBefore(_) => {
                (StatusCode::NOT_FOUND, "no-such-publication")
            }
            Error::Refused(_) | Error::OtherPlan { .. } => (StatusCode::CONFLICT, "plan-again"),
            Error::NothingWaits | Error::OtherWaits { .. } => (StatusCode::NOT_FOUND, "no-such-plan"),
            Error::NoUnit(_) => (StatusCode::NOT_FOUND, "no-such-unit"),
            Error::Rejected(_) => (StatusCode::UNPROCESSABLE_ENTITY, "rejected"),
            Error::Guard { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "removes-much"),
            Error::Pinned { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "set-aside"),
            Error::Problems { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "problems"),
            Error::Contents(_) => (StatusCode::UNPROCESSABLE_ENTITY, "contents"),
        };
        Refusal::new(status, code, error.to_string())
    }
}

fn publisher(told: &Told) -> Result<&Publisher, Refusal> {
    let none = || "this process publishes nothing".to_owned();
    told.publisher.as_ref().ok_or_else(|| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no-publisher", none()))
}

/// Reads what a call brought.
async fn given(publisher: &Publisher, upload: revisions::Upload) -> Result<(Given, Vec<load::Shown>), Refusal> {
    let mut files = BTreeMap::new();
    for file in upload.files {
        let bytes = match (file.text, file.base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(encoded)) => STANDARD.decode(encoded).map_err(|error| {
                let detail = format!("{}: `base64` is none: {error}", file.path);
                Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-request", detail)
            })?,
            _ => {
                let detail = format!("{}: exactly one of `text` and `base64` is wanted", file.path);
                return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-request", detail));
            }
        };
        files.insert(file.path, bytes);
    }
    let manifests = files.iter().filter(|(path, _)| is_read(path.trim_start_matches("./")));
    let manifests = manifests.map(|(path, bytes)| TreeFile { path: path.clone(), bytes: bytes.clone() });
    let tree = Tree { files: manifests.collect(), problems: Vec::new() };
    let beside = move |path: &str, bytes_max: u64| {
        let bytes: &Vec<u8> = files.get(path).ok_or(FileFault::Missing)?;
        let found = bytes.len() as u64;
        if found > bytes_max { Err(FileFault::TooLarge { bytes: found, bytes_max }) } else { Ok(bytes.clone()) }
    };
    let (config, snapshot) = (Arc::clone(publisher.config()), Snapshot { tree, beside: Box::new(beside) });
    let compiled = tokio::task::spawn_blocking(move || load::compile(&config, &snapshot)).await;
    let internal = |reason: String| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", reason);
    let loaded: Loaded =
        compiled.map_err(|panic| internal(panic.to_string()))?.map_err(|error| internal(error.to_string()))?;
    let problems = loaded.problems.clone();
    Ok((Given::of(loaded, upload.root), problems))
}

async fn plan(
    State(told): State<Told>,
    upload: Result<Json<revisions::Upload>, JsonRejection>,
) -> Result<Json<revisions::Plan>, Refusal> {
    let publisher = publisher(&told)?;
    let (given, problems) = given(publisher, upload?.0).await?;
    let (plan, current, head) = publisher.plan(&given).await?;
    let changes = publisher.changes(&given, &plan, &current).await?;
    let touched = changes.iter().filter(|change| change.from != change.to).count();
    Ok(Json(revisions::Plan {
        no: head.no,
        hash: plan.hash(head.no),
        unchanged: (plan.set.len() + plan.removed.len()).saturating_sub(touched),
        guard: plan.guard(),
        revision: plan.revision,
        changes,
        errors: given.errors,
        problems,
    }))
}

async fn publish(
    State(told): State<Told>,
    wanted: Result<Json<revisions::Publish>, JsonRejection>,
) -> Result<Json<revisions::Published>, Refusal> {
    let (publisher, wanted) = (publisher(&told)?, wanted?.0);
    if let Some(plan) = &wanted.plan {
        check_hash(plan)?;
    }
    let (given, _) = given(publisher, wanted.upload).await?;
    if given.errors > 0 && !wanted.keep_going {
        return Err(Error::Problems { errors: given.errors, first: given.first_error }.into());
    }
    let by = by(wanted.by);
    let made = Made { commit: wanted.commit, author: wanted.author, reason: wanted.reason, ..publisher.made(&by) };
    let how = How { plan: wanted.plan, person: true, prune: wanted.prune };
    Ok(Json(published(publisher, publisher.publish(&given, made, &how).await?).await))
}

async fn rollback(
    State(told): State<Told>,
    wanted: Result<Json<revisions::Rollback>, JsonRejection>,
) -> Result<Json<revisions::Published>, Refusal> {
    let (publisher, wanted) = (publisher(&told)?, wanted?.0);
    let made = Made { reason: wanted.reason, ..publisher.made(&by(wanted.by)) };
    Ok(Json(published(publisher, publisher.rollback(wanted.to, made).await?).await))
}

async fn confirm(
    State(told): State<Told>,
    wanted: Result<Json<revisions::Confirm>, JsonRejection>,
) -> Result<Json<revisions::Confirmed>, Refusal> {
    let plan = wanted?.0.plan;
    check_hash(&plan)?;
    publisher(&told)?.confirm(&plan).await?;
    Ok(Json(revisions::Confirmed { plan }))
}

fn check_hash(hash: &str) -> Result<(), Refusal> {
    if hash.len() >= PLAN_DIGITS_MIN && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    let detail = format!("{hash:?} is no hash of a plan: at least {PLAN_DIGITS_MIN} hex digits");
    Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-request", detail))
}

fn by(by: Option<String>) -> String {
    by.filter(|by| !by.is_empty()).unwrap_or_else(|| NOBODY.to_owned())
}

async fn published(publisher: &Publisher, published: Published) -> revisions::Published {
    revisions::Published {
        pending: publisher.in_effect(published.head.no).await,
        publication: shown(&published.head.current()),
        unchanged: published.unchanged,
        uncounted: published.uncounted,
    }
}

fn shown(publication: &Publication) -> revisions::Publication {
    let made = &publication.made;
    revisions::Publication {
        no: publication.no,
        revision: publication.revision.clone(),
        by: made.by.clone(),
        at: crate::time::Timestamp(made.at).to_string(),
        commit: made.commit.clone(),
        author: made.author.clone(),
        reason: made.reason.clone(),
    }
}

async fn head(told: &Told) -> Result<Head, Refusal> {
    Ok(publisher(told)?.head().await.map_err(Error::Bus)?)
}

async fn history(State(told): State<Told>) -> Result<Json<revisions::History>, Refusal> {
    let head = head(&told).await?;
    let current = head.is_published().then(|| head.current());
    let publications = current.iter().chain(head.history.iter().rev());
    let set_aside = |revision: &str, commit: Option<&str>| head.pin_of(revision, commit).is_some();
    let publications = publications.map(|one| revisions::Past {
        set_aside: set_aside(&one.revision, one.made.commit.as_deref()),
        publication: shown(one),
    });
    Ok(Json(revisions::History { publications: publications.collect() }))
}

async fn diff(
    State(told): State<Told>,
    between: Result<Query<revisions::Between>, QueryRejection>,
) -> Result<Json<revisions::Diff>, Refusal> {
    let publisher = publisher(&told)?;
    let (head, between) = (head(&told).await?, between?.0);
    let to = between.to.unwrap_or(head.no);
    let from = between.from.unwrap_or(to.saturating_sub(1));
    Ok(Json(revisions::Diff { from, to, units: publisher.diff(from, to).await? }))
}

async fn show(State(told): State<Told>) -> Result<Json<revisions::Revisions>, Refusal> {
    let publisher = publisher(&told)?;
    let head = head(&told).await?;
    let members = match &told.overview {
        Some(overview) => overview.members().await.map_err(Error::Bus)?,
        None => Vec::new(),
    };
    // An announcement outlives its process for a while.
    let alone = publisher.is_alone();
    let lives = |member: &view::Member| member.own || (!alone && member.session != "gone");
    let members: Vec<view::Member> = members.into_iter().filter(lives).collect();
    let candidate = match &head.candidate {
        None => None,
        Some(candidate) => {
            let incs: Vec<_> = publisher.members();
            let answers = publisher.versions().answers(candidate.id, &incs).await.map_err(Error::Bus)?;
            let answers = answers.into_values();
            let answers = answers.map(|one| revisions::Answer { instance: one.instance, reasons: one.reasons });
            Some(revisions::Candidate {
                id: candidate.id,
                revision: candidate.revision.clone(),
                by: candidate.made.by.clone(),
                answers: answers.collect(),
            })
        }
    };
    let sync = publisher.sync().await.map_err(Error::Bus)?.filter(|_| told.follows_git);
    let converged = head.candidate.is_none() && members.iter().all(|member| member.no == head.no);
    let aborted = head.decided.last().filter(|decided| decided.no.is_none());
    Ok(Json(revisions::Revisions {
        publication: head.is_published().then(|| shown(&head.current())),
        candidate,
        last_aborted: aborted.and_then(|decided| decided.reason.clone()),
        converged,
        members: members
            .into_iter()
            .map(|member| revisions::Applied { instance: member.instance, no: member.no, degraded: member.degraded })
            .collect(),
        suspended: head.suspended.iter().map(suspended).collect(),
        sync,
    }))
}

fn suspended(suspension: &crate::protocol::publish::Suspension) -> revisions::Suspended {
    revisions::Suspended {
        unit: suspension.unit.clone(),
        suspended: true,
        by: Some(suspension.by.clone()),
        reason: suspension.reason.clone(),
        since: Some(crate::time::Timestamp(suspension.at).to_string()),
    }
}

fn unit((kind, name): (String, String)) -> Result<UnitId, Refusal> {
    let kind_found = unit_kind(&kind).ok_or_else(|| Error::NoUnit(format!("{kind}/{name}")))?;
    Ok(UnitId::new(kind_found, &name))
}

async fn suspend(
    State(told): State<Told>,
    Path(named): Path<(String, String)>,
    wanted: Result<Json<revisions::Suspend>, JsonRejection>,
) -> Result<Json<revisions::Suspended>, Refusal> {
    let (publisher, id, wanted) = (publisher(&told)?, unit(named)?, wanted?.0);
    publisher.suspend(&id, &by(wanted.by), wanted.reason).await?;
    let head = head(&told).await?;
    let found = head.suspension(&id.to_string()).map(suspended);
    Ok(Json(found.unwrap_or_else(|| not_suspended(&id))))
}

async fn resume(
    State(told): State<Told>,
    Path(named): Path<(String, String)>,
) -> Result<Json<revisions::Suspended>, Refusal> {
    let id = unit(named)?;
    publisher(&told)?.resume(&id).await?;
    Ok(Json(not_suspended(&id)))
}

fn not_suspended(id: &UnitId) -> revisions::Suspended {
    revisions::Suspended { unit: id.to_string(), suspended: false, by: None, reason: None, since: None }
}

/// For the status: how the repository stands, as warnings.
pub(super) async fn sync_warnings(told: &Told) -> (Option<view::Sync>, Vec<String>) {
    let Some(publisher) = told.publisher.as_ref().filter(|_| told.follows_git) else { return (None, Vec::new()) };
    match publisher.sync().await {
        Ok(Some(sync)) => {
            let reason = sync.reason.clone().unwrap_or_default();
            let warnings = match sync.state {
                _ if reason.is_empty() => Vec::new(),
                state => vec![format!("git {}: {reason}", state.as_str())],
            };
            (Some(sync), warnings)
        }
        Ok(None) => (None, vec!["git: the repository was not looked at yet".to_owned()]),
        Err(error) => (None, vec![format!("git: {error}")]),
    }
}
