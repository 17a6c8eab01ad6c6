//! The OpenAPI document, made of the routes and of the types they answer with.

use axum::Json;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::routes::{self, Content, Operation, Route};
use super::view;

/// An OpenAPI 3.1 document.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "its schema describes the document, which is never read as a type")]
pub(super) struct Document {
    openapi: String,
    paths: Map<String, Value>,
    components: Map<String, Value>,
}

pub(super) async fn openapi() -> Json<Value> {
    Json(document())
}

/// The whole document. It is the same in every process of a version.
pub fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut schemas = settings.into_generator();
    let problem = schemas.subschema_for::<view::Problem>();
    let mut paths = Map::new();
    for (routes, is_open) in [(routes::open(), true), (routes::guarded(), false)] {
        for route in routes {
            let operations = route.operations.iter().map(|operation| {
                let described = describe(&route, operation, is_open, &problem, &mut schemas);
                (operation.method.to_owned(), described)
            });
            let operations: Map<String, Value> = operations.collect();
            paths.insert(route.path.to_owned(), Value::Object(operations));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Vejas",
            "version": "v1",
            "description": "What a Vejas process tells about itself. Fields are only ever added. \
                Durations are seconds, times RFC 3339.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "VEJAS_TOKEN, or VEJAS_READ_TOKEN for GET, replay and shadow. Not needed when neither is set.",
                },
            },
        },
    })
}

fn describe(
    route: &Route,
    operation: &Operation,
    is_open: bool,
    problem: &Schema,
    schemas: &mut SchemaGenerator,
) -> Value {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path
        .map(|name| {
            let kind = if name == "sequence" { "integer" } else { "string" };
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": kind } })
        })
        .collect();
    parameters.extend(operation.query.iter().map(|(name, meaning)| {
        json!({ "name": name, "in": "query", "description": meaning, "schema": { "type": "string" } })
    }));
    let fields = operation.query_fields.map(|fields| fields(schemas));
    let fields = fields.as_ref().and_then(|fields| fields.get("properties")?.as_object());
    parameters.extend(
        fields.into_iter().flatten().map(|(name, schema)| json!({ "name": name, "in": "query", "schema": schema })),
    );
    let mut responses = Map::new();
    let answer = content(&operation.answer, schemas);
    responses.insert("200".to_owned(), json!({ "description": "Done.", "content": answer }));
    let guard = [(401, "A token is wanted, or this one is wrong."), (403, "This token may read only.")];
    let guard = guard.into_iter().filter(|(status, _)| !is_open && (*status == 401 || !operation.reads));
    for (status, when) in operation.refusals.iter().copied().chain(guard) {
        let content = json!({ "application/problem+json": { "schema": problem } });
        responses.insert(status.to_string(), json!({ "description": when, "content": content }));
    }
    let security = if is_open { json!([]) } else { json!([{ "token": [] }]) };
    let mut described =
        json!({ "summary": operation.summary, "parameters": parameters, "responses": responses, "security": security });
    if let Some(body) = &operation.body {
        described["requestBody"] = json!({ "required": true, "content": content(body, schemas) });
    }
    described
}

fn content(content: &Content, schemas: &mut SchemaGenerator) -> Value {
    let schema = content.schema.map_or_else(|| json!({ "type": "string" }), |schema| json!(schema(schemas)));
    Value::Object(Map::from_iter([(content.kind.to_owned(), json!({ "schema": schema }))]))
}
