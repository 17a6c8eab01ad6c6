//! Every path of the API: what serves it and what the OpenAPI document says of it.
//!
//! The router and the document are made from these lists, so a path that is served is also described. A new endpoint is
//! one more entry in [`guarded`], or in the list of its own file that is appended there.

use axum::routing::{MethodRouter, get, post};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{Told, dlq, members, metrics, openapi, replay, revisions, status, tap, view, webhook};

pub(super) struct Route {
    pub path: &'static str,
    pub service: MethodRouter<Told>,
    /// One for each method that `service` takes.
    pub operations: Vec<Operation>,
}

type Describe = fn(&mut SchemaGenerator) -> Schema;

/// A body, and its type where it is JSON or events.
pub(super) struct Content {
    pub kind: &'static str,
    pub schema: Option<Describe>,
}

impl Content {
    const TEXT: Content = Content { kind: "text/plain", schema: None };
    const BYTES: Content = Content { kind: "application/octet-stream", schema: None };

    fn json<T: JsonSchema>() -> Self {
        Content { kind: "application/json", schema: Some(SchemaGenerator::subschema_for::<T>) }
    }
}

/// One method of one path, as it is described. What is in braces in the path is described by itself.
pub(super) struct Operation {
    pub method: &'static str,
    pub summary: &'static str,
    /// Name and meaning of what may stand behind the `?`.
    pub query: Vec<(&'static str, &'static str)>,
    /// The type whose fields may stand there.
    pub query_fields: Option<Describe>,
    /// What it takes.
    pub body: Option<Content>,
    pub answer: Content,
    /// Other answers than 200 and those that every path has: status and when it is given.
    pub refusals: Vec<(u16, &'static str)>,
    /// It changes nothing.
    pub reads: bool,
}

impl Operation {
    fn new(method: &'static str, summary: &'static str) -> Self {
        Operation {
            method,
            summary,
            query: Vec::new(),
            query_fields: None,
            body: None,
            answer: Content::TEXT,
            refusals: Vec::new(),
            reads: method == "get",
        }
    }

    pub fn get(summary: &'static str) -> Self {
        Operation::new("get", summary)
    }

    pub fn put(summary: &'static str) -> Self {
        Operation::new("put", summary)
    }

    pub fn patch(summary: &'static str) -> Self {
        Operation::new("patch", summary)
    }

    pub fn post(summary: &'static str) -> Self {
        Operation::new("post", summary)
    }

    /// It takes this type as JSON.
    pub fn takes<T: JsonSchema>(self) -> Self {
        Operation { body: Some(Content::json::<T>()), ..self }.refuses(415, "The content type is not JSON.")
    }

    /// It takes bytes, whatever they are.
    pub fn takes_bytes(self) -> Self {
        Operation { body: Some(Content::BYTES), ..self }
    }

    /// It answers this type as JSON.
    pub fn json<T: JsonSchema>(self) -> Self {
        Operation { answer: Content::json::<T>(), ..self }
    }

    /// It answers bytes, whatever they are.
    pub fn bytes(self) -> Self {
        Operation { answer: Content::BYTES, ..self }
    }

    /// It answers server-sent events, the data of each being JSON of this type.
    pub fn events<T: JsonSchema>(self) -> Self {
        Operation { answer: Content { kind: "text/event-stream", ..Content::json::<T>() }, ..self }
    }

    /// The read token will do, whatever the method.
    pub fn reads(self) -> Self {
        Operation { reads: true, ..self }
    }

    /// The fields of this type may stand behind the `?`.
    pub fn query_of<T: JsonSchema>(self) -> Self {
        Operation { query_fields: Some(T::json_schema), ..self }
    }

    pub fn query(mut self, name: &'static str, meaning: &'static str) -> Self {
        self.query.push((name, meaning));
        self
    }

    pub fn refuses(mut self, status: u16, when: &'static str) -> Self {
        self.refusals.push((status, when));
        self
    }
}

pub(super) fn route<const N: usize>(
    path: &'static str,
    service: MethodRouter<Told>,
    operations: [Operation; N],
) -> Route {
    Route { path, service, operations: operations.into() }
}

/// For everybody.
pub(super) fn open() -> Vec<Route> {
    vec![
        webhook::route(),
        route("/healthz", get(status::healthz), [Operation::get("The process is alive.")]),
        route(
            "/readyz",
            get(status::readyz),
            [Operation::get("Every unit is up and the bus takes messages.")
                .refuses(503, "Not ready; the reasons are given.")],
        ),
    ]
}

/// For those with a token, where one is set.
pub(super) fn guarded() -> Vec<Route> {
    let mut routes = vec![
        route("/metrics", get(metrics::metrics), [Operation::get("Metrics in the text format of Prometheus.")]),
        route("/api/v1/openapi.json", get(openapi::openapi), [Operation::get("This document.").json::<openapi::Document>()]),
        route(
            "/api/v1/status",
            get(status::status),
            [Operation::get("The process, its streams, its units, and what a person should look at.").json::<view::Status>()],
        ),
        route("/api/v1/units", get(status::units), [Operation::get("All units of this process.").json::<view::Units>()]),
        route(
            "/api/v1/units/{kind}/{name}",
            get(status::unit),
            [Operation::get("One unit, such as flow/price-orders.")
                .json::<view::Unit>()
                .refuses(404, "No such unit runs here.")],
        ),
        route(
            "/api/v1/units/{kind}/{name}/purge",
            post(status::purge),
            [Operation::post(
                "Gives up every message that waits for one flow or sink, such as those of a removed unit that hold the stream full.",
            )
            .json::<view::Purged>()
            .refuses(404, "No such unit reads here.")
            .refuses(503, "The bus refuses now.")],
        ),
        route(
            "/api/v1/tap",
            get(tap::tap),
            [Operation::get(
                "Messages live, as server-sent events: `open` at the beginning, `message` or `step`, `gap` where something was \
                 left out, `end` when the process stops. Exactly one of `subject` and `unit`.",
            )
            .events::<view::TapEvent>()
            .query("subject", "A subject or pattern, such as orders.*: every message stored under it from now on. With the \
                    header Last-Event-ID, from behind that sequence on.")
            .query("unit", "A flow or sink, such as flow/price-orders: every message before and after each step.")
            .refuses(400, "Neither or both, or something that cannot be tapped.")
            .refuses(404, "No such unit runs here.")
            .refuses(429, "As many taps are open as one process serves.")
            .refuses(503, "The process is stopping.")],
        ),
    ];
    routes.extend(revisions::routes());
    routes.extend(members::routes());
    routes.extend(dlq::routes());
    routes.extend(replay::routes());
    routes
}
