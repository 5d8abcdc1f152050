//! Queues: counted, paused, resumed and cleared.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use windlass::{Cleared, Counts, Name, QueueSettings, StateName, Totals};

use super::access::acting_without_body;
use super::problem::{Problem, ProblemCode};
use super::query::in_path;
use super::{Api, LONG_PATIENCE, ask, ask_for};

/// A queue, its settings and its counts.
#[derive(Serialize, ToSchema)]
#[schema(as = Queue)]
struct QueueView {
    name: String,
    #[serde(flatten)]
    settings: SettingsView,
    /// Jobs that wait, for whatever.
    waiting: u64,
    /// Jobs in each state.
    jobs: BTreeMap<&'static str, u64>,
    /// What has happened so far.
    totals: TotalsView,
}

/// How a queue is set.
#[derive(Serialize, ToSchema)]
#[schema(as = QueueSettings)]
struct SettingsView {
    /// No job of it starts.
    paused: bool,
    /// Enqueues beyond so many waiting jobs are refused; `null` for no limit.
    max_depth: Option<u64>,
    /// How many lanes it has; `null` if it has none.
    lanes: Option<u32>,
}

/// What has happened so far.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = Totals)]
struct TotalsView {
    enqueued: u64,
    completed: u64,
    failed: u64,
    retried: u64,
    rescued: u64,
    dead: u64,
    cancelled: u64,
}

/// All queues.
#[derive(Serialize, ToSchema)]
#[schema(as = Queues)]
struct QueueList {
    queues: Vec<QueueView>,
}

impl SettingsView {
    fn of(settings: &QueueSettings) -> Self {
        let lanes = settings.lanes.map(std::num::NonZeroU32::get);
        Self { paused: settings.paused, max_depth: settings.max_depth, lanes }
    }
}

impl TotalsView {
    fn add(&mut self, totals: &Totals) {
        self.enqueued += totals.enqueued;
        self.completed += totals.completed;
        self.failed += totals.failed;
        self.retried += totals.retried;
        self.rescued += totals.rescued;
        self.dead += totals.dead;
        self.cancelled += totals.cancelled;
    }
}

/// The queues there are, by name: those that have or had jobs, and those that were set.
fn views(counts: &Counts) -> Vec<QueueView> {
    let view = |queue: &windlass::QueueCount| {
        let name = queue.queue.as_str();
        let mut totals = TotalsView::default();
        let lines = counts.lines.iter().filter(|line| line.queue == queue.queue);
        lines.for_each(|line| totals.add(&line.totals));
        let in_state = |state: StateName| (state.as_str(), counts.in_queue(name, state));
        QueueView {
            name: name.to_string(),
            settings: SettingsView::of(&queue.settings),
            waiting: queue.waiting,
            jobs: StateName::ALL.into_iter().map(in_state).collect(),
            totals,
        }
    };
    counts.queues.iter().map(view).collect()
}

/// The name of the queue in an address.
pub(super) struct QueuePath(Name);

impl<S: Send + Sync> FromRequestParts<S> for QueuePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = in_path("name", parts, state).await?;
        Name::new(&name).map(Self).map_err(|error| Problem::parameter("name", error.to_string()))
    }
}

/// All queues.
#[utoipa::path(
    get,
    path = "/v1/queues",
    tag = "queues",
    operation_id = "list_queues",
    responses(
        (status = 200, description = "All queues", body = QueueList),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Response, Problem> {
    let counts = ask(api.engine().counts()).await?;
    Ok(Json(QueueList { queues: views(&counts) }).into_response())
}

/// One queue.
#[utoipa::path(
    get,
    path = "/v1/queues/{name}",
    tag = "queues",
    operation_id = "show_queue",
    params(
        ("name" = String, Path, description = "The name of the queue"),
    ),
    responses(
        (status = 200, description = "The queue", body = QueueView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn show(
    State(api): State<Api>,
    QueuePath(name): QueuePath,
) -> Result<Response, Problem> {
    let counts = ask(api.engine().counts()).await?;
    let queue = views(&counts).into_iter().find(|queue| queue.name == name.as_str());
    let unknown = || {
        let why = format!("no queue `{name}` has or had jobs or settings");
        Problem::new(ProblemCode::UnknownQueue, why)
    };
    Ok(Json(queue.ok_or_else(unknown)?).into_response())
}

/// Starts no more of its jobs.
#[utoipa::path(
    post,
    path = "/v1/queues/{name}/pause",
    tag = "queues",
    operation_id = "pause_queue",
    params(
        ("name" = String, Path, description = "The name of the queue"),
    ),
    responses(
        (status = 200, description = "None of its jobs starts", body = SettingsView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn pause(
    State(api): State<Api>,
    QueuePath(name): QueuePath,
    request: Request,
) -> Result<Response, Problem> {
    let engine = acting_without_body(&api, request).await?;
    let settings = ask(engine.queue(name.as_str())?.pause()).await?;
    Ok(Json(SettingsView::of(&settings)).into_response())
}

/// Starts its jobs again.
#[utoipa::path(
    post,
    path = "/v1/queues/{name}/resume",
    tag = "queues",
    operation_id = "resume_queue",
    params(
        ("name" = String, Path, description = "The name of the queue"),
    ),
    responses(
        (status = 200, description = "Its jobs start again", body = SettingsView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn resume(
    State(api): State<Api>,
    QueuePath(name): QueuePath,
    request: Request,
) -> Result<Response, Problem> {
    let engine = acting_without_body(&api, request).await?;
    let settings = ask(engine.queue(name.as_str())?.resume()).await?;
    Ok(Json(SettingsView::of(&settings)).into_response())
}

/// What was called off.
#[derive(Serialize, ToSchema)]
#[schema(as = Cleared)]
struct ClearedView {
    /// Jobs of the queue.
    cancelled: u64,
    /// Jobs of other queues that depended on them.
    followed: u64,
}

/// Calls off all its waiting jobs.
#[utoipa::path(
    post,
    path = "/v1/queues/{name}/clear",
    tag = "queues",
    operation_id = "clear_queue",
    params(
        ("name" = String, Path, description = "The name of the queue"),
    ),
    responses(
        (status = 200, description = "Its waiting jobs were called off", body = ClearedView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn clear(
    State(api): State<Api>,
    QueuePath(name): QueuePath,
    request: Request,
) -> Result<Response, Problem> {
    let engine = acting_without_body(&api, request).await?;
    let Cleared { cleared: cancelled, followed } =
        ask_for(LONG_PATIENCE, engine.queue(name.as_str())?.clear()).await?;
    Ok(Json(ClearedView { cancelled, followed }).into_response())
}
