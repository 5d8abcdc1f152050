//! The API as OpenAPI, made from the code: `GET /openapi.json`.
//!
//! What a handler takes and answers stands at the handler; the types say their own form. Here is
//! what they have in common, and the forms of those that read themselves.

use std::borrow::Cow;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{OpenApi, Ref, RefOr};
use utoipa::{Modify, PartialSchema, ToSchema};

use super::Api;
use super::jobs::{EnqueuedList, EnqueuedView};
use super::new_job::{DependencyFields, NewJobBody};
use super::text::{DurationText, TimeText};
use super::work::WorkerText;

/// What all of the API has in common.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Windlass",
        description = "Durable background jobs. Unknown fields and parameters are refused; \
                       durations are text such as \"30s\", times are RFC 3339.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    security((), ("token" = [])),
    modifiers(&TokenScheme)
)]
pub(super) struct CommonParts;

/// The token of a server that asks for one.
struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, openapi: &mut OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("token", scheme);
    }
}

/// `GET /openapi.json`: this description. It says nothing of a store, so it needs no token.
pub(super) async fn show(State(api): State<Api>) -> Response {
    Json(api.openapi()).into_response()
}

/// One job, or a list of them.
pub(super) struct JobOrJobs;

/// What became of one job, or of a list of them.
pub(super) struct EnqueuedOneOrMany;

fn named<T: ToSchema>() -> RefOr<Schema> {
    Ref::from_schema_name(T::name()).into()
}

fn either(forms: impl IntoIterator<Item = RefOr<Schema>>) -> RefOr<Schema> {
    let all = forms.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item);
    RefOr::T(Schema::OneOf(all.build()))
}

/// Adds a type, and those it is made of, to those that are described.
fn describe<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

impl PartialSchema for JobOrJobs {
    fn schema() -> RefOr<Schema> {
        let list = ArrayBuilder::new().items(named::<NewJobBody>()).build();
        either([named::<NewJobBody>(), Schema::Array(list).into()])
    }
}

impl ToSchema for JobOrJobs {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        describe::<NewJobBody>(schemas);
    }
}

impl PartialSchema for EnqueuedOneOrMany {
    fn schema() -> RefOr<Schema> {
        either([named::<EnqueuedView>(), named::<EnqueuedList>()])
    }
}

impl ToSchema for EnqueuedOneOrMany {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        describe::<EnqueuedView>(schemas);
        describe::<EnqueuedList>(schemas);
    }
}

/// A job to wait for, as its id or with what to do if it fails.
pub(super) struct DependencyForms;

impl PartialSchema for DependencyForms {
    fn schema() -> RefOr<Schema> {
        either([text("The id of a job", None), named::<DependencyFields>()])
    }
}

impl ToSchema for DependencyForms {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        describe::<DependencyFields>(schemas);
    }
}

fn text(description: &str, example: Option<&str>) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.examples(example).build().into()
}

impl PartialSchema for DurationText {
    fn schema() -> RefOr<Schema> {
        text("A duration, such as 250ms, 30s, 1h30m or 2d", Some("30s"))
    }
}

impl ToSchema for DurationText {
    fn name() -> Cow<'static, str> {
        "Duration".into()
    }
}

impl PartialSchema for TimeText {
    fn schema() -> RefOr<Schema> {
        text("A time by RFC 3339", Some("2026-11-20T09:00:00Z"))
    }
}

impl ToSchema for TimeText {
    fn name() -> Cow<'static, str> {
        "Time".into()
    }
}

impl PartialSchema for WorkerText {
    fn schema() -> RefOr<Schema> {
        text("The name of a worker: 1 to 256 bytes without control characters", Some("worker-1"))
    }
}

impl ToSchema for WorkerText {
    fn name() -> Cow<'static, str> {
        "WorkerName".into()
    }
}
