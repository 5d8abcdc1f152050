//! Jobs: enqueued, looked at, and changed one by one.

use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequestParts, OriginalUri, Request, State};
use axum::http::header::LOCATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::core::job::InvalidJobId;
use windlass::store::StoreExt;
use windlass::{
    Acceptance, CancelAnswer, Cursor, Engine, Enqueued, Explanation, Filter, Job, JobId, Reason,
    Refusal, StateName, limits,
};

use super::access::{acting, acting_without_body};
use super::body;
use super::new_job::JobsBody;
use super::openapi::{EnqueuedOneOrMany, JobOrJobs};
use super::problem::{Problem, ProblemCode};
use super::query::{NameText, Parameters, in_path};
use super::text::{DurationText, TimeText};
use super::{Api, ask};
use crate::view::{Brief, Whole};

/// Jobs on a page if nothing is said.
const PAGE: usize = 50;

/// Longest `Idempotency-Key`, in bytes.
const IDEMPOTENCY_KEY_BYTES: usize = 255;

/// What became of a job that was to be enqueued.
#[derive(Serialize, ToSchema)]
#[schema(as = EnqueuedJob)]
pub(super) struct EnqueuedView {
    /// The job that now stands for it: its own, or the one that holds its unique key.
    #[schema(value_type = String, format = "uuid")]
    id: JobId,
    /// Another job holds its unique key, and no job was added.
    duplicate: bool,
    /// That job's payload is not the same.
    payload_differs: bool,
    /// The request was repeated: the job was there already.
    repeated: bool,
    /// Jobs that wait in its queue.
    depth: u64,
}

/// What became of a list of them, in its order.
#[derive(Serialize, ToSchema)]
#[schema(as = EnqueuedJobs)]
pub(super) struct EnqueuedList {
    jobs: Vec<EnqueuedView>,
}

impl EnqueuedView {
    fn of(Enqueued { id, acceptance, depth, .. }: Enqueued) -> Self {
        let (duplicate, payload_differs, repeated) = match acceptance {
            Acceptance::Accepted => (false, false, false),
            Acceptance::AlreadyAccepted => (false, false, true),
            Acceptance::Deduplicated { payload_differs } => (true, payload_differs, false),
        };
        Self { id, duplicate, payload_differs, repeated, depth }
    }
}

/// Enqueues a job, or a list of them in one commit.
#[utoipa::path(
    post,
    path = "/v1/jobs",
    tag = "jobs",
    params(
        ("Idempotency-Key" = Option<String>, Header,
            description = "Becomes the ids, so that the call can be repeated"),
    ),
    request_body(
        content = JobOrJobs,
        example = json!({"kind": "hello", "payload": {"n": 1}})
    ),
    responses(
        (status = 201,
            description = "The store has the job, or the jobs in their order",
            body = EnqueuedOneOrMany),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn enqueue(
    State(api): State<Api>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Result<Response, Problem> {
    let key = idempotency_key(request.headers())?;
    let body = body::read(&api, request).await?;
    let JobsBody { jobs, is_list } = JobsBody::of(&body, key.as_deref())?;
    let enqueued = ask(api.engine().enqueue_raw(jobs)).await.map_err(|problem| match &key {
        Some(_) => problem.under_a_key(),
        None => problem,
    })?;
    let mut jobs: Vec<EnqueuedView> = enqueued.into_iter().map(EnqueuedView::of).collect();
    match jobs.pop() {
        Some(job) if !is_list => {
            let mut response = (StatusCode::CREATED, Json(&job)).into_response();
            let place = format!("{}/{}", uri.path().trim_end_matches('/'), job.id);
            if let Ok(place) = HeaderValue::from_str(&place) {
                response.headers_mut().insert(LOCATION, place);
            }
            Ok(response)
        }
        last => {
            jobs.extend(last);
            Ok((StatusCode::CREATED, Json(EnqueuedList { jobs })).into_response())
        }
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key.to_str().unwrap_or_default();
    if key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES {
        let why = format!(
            "an Idempotency-Key has 1 to {IDEMPOTENCY_KEY_BYTES} visible characters of ASCII"
        );
        return Err(Problem::new(ProblemCode::InvalidHeader, why));
    }
    Ok(Some(key.to_string()))
}

/// The id of the job in an address.
pub(super) struct JobPath(JobId);

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let id = in_path("id", parts, state).await?;
        id.parse()
            .map(Self)
            .map_err(|error: InvalidJobId| Problem::parameter("id", error.to_string()))
    }
}

/// A job of which nothing is known but its id, to wait for.
#[derive(Serialize, Deserialize)]
struct AnyJob;

impl Job for AnyJob {
    const KIND: &'static str = "any";
    type Output = ();
}

/// Everything known about a job; `?wait=30s` waits until it has ended.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}",
    tag = "jobs",
    operation_id = "show_job",
    params(
        ("id" = String, Path, description = "The id of the job"),
        ("wait" = Option<String>, Query,
            description = "Answer when it has ended, or after this long, at most 60s"),
    ),
    responses(
        (status = 200, description = "Everything known about it", body = Whole<'static>),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn show(
    State(api): State<Api>,
    JobPath(id): JobPath,
    uri: Uri,
) -> Result<Response, Problem> {
    let wait = wait(&Parameters::of(&uri, &["wait"])?)?;
    if !wait.is_zero() {
        let job = api.engine().handle::<AnyJob>(id);
        // However it ends, its record tells more.
        tokio::select! {
            _ = job.outcome_within(wait) => {}
            () = api.closed() => {}
        }
    }
    let record = ask(api.engine().find(id)).await?.ok_or(Refusal::UnknownJob { job: id })?;
    Ok(Json(Whole::of(&record)).into_response())
}

/// How long a request is ready to wait.
fn wait(parameters: &Parameters) -> Result<Duration, Problem> {
    let wait = parameters.one("wait")?.map_or(Duration::ZERO, |DurationText(wait)| wait);
    check_wait(wait).map_err(|why| Problem::parameter("wait", why))
}

/// Refuses to wait for longer than connections last.
pub(super) fn check_wait(wait: Duration) -> Result<Duration, String> {
    match wait <= limits::WAIT_MAX {
        true => Ok(wait),
        false => Err(format!("it may be at most {:?}; ask again then", limits::WAIT_MAX)),
    }
}

/// A page of jobs.
#[derive(Serialize, ToSchema)]
struct JobPage<'a> {
    jobs: Vec<Brief<'a>>,
    /// The `cursor` of the next page; `null` at the end. A page may be short and still have one.
    next: Option<String>,
}

/// A page of the jobs that match, the last accepted first.
#[utoipa::path(
    get,
    path = "/v1/jobs",
    tag = "jobs",
    operation_id = "list_jobs",
    params(
        ("state" = Option<String>, Query, description = "In one of these states, with commas"),
        ("kind" = Option<String>, Query, description = "Of one of these kinds"),
        ("queue" = Option<String>, Query, description = "In one of these queues"),
        ("tag" = Option<String>, Query, description = "With all of these tags"),
        ("limit" = Option<u16>, Query,
            description = "How many: 50 if nothing is said, at most 500"),
        ("cursor" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses(
        (status = 200, description = "A page, the last accepted first", body = JobPage<'static>),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn list(State(api): State<Api>, uri: Uri) -> Result<Response, Problem> {
    let known = ["state", "kind", "queue", "tag", "limit", "cursor"];
    let parameters = Parameters::of(&uri, &known)?;
    let names = |name| -> Result<Vec<_>, Problem> {
        Ok(parameters.all(name)?.into_iter().map(|NameText(name)| name).collect())
    };
    let states = parameters.all("state")?.into_iter().map(|StateText(state)| state).collect();
    let (kinds, queues, tags) = (names("kind")?, names("queue")?, names("tag")?);
    let filter = Filter { states, kinds, queues, tags, ..Filter::default() };
    let after = parameters.one("cursor")?.map(|CursorText(cursor)| cursor);
    let limit = parameters.one("limit")?.unwrap_or(PAGE);
    if !(1..=limits::PAGE_JOBS_HTTP).contains(&limit) {
        let why = format!("a page has 1 to {} jobs", limits::PAGE_JOBS_HTTP);
        return Err(Problem::parameter("limit", why));
    }
    let page = ask(api.engine().store().list(&filter, after, limit)).await?;
    let next = page.next.map(|next| CursorText(next).to_string());
    Ok(Json(JobPage { jobs: page.jobs.iter().map(Brief::of).collect(), next }).into_response())
}

/// The name of a state.
struct StateText(StateName);

impl std::str::FromStr for StateText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let state = StateName::ALL.into_iter().find(|state| state.as_str() == text);
        state.map(Self).ok_or_else(|| {
            let states = StateName::ALL.map(StateName::as_str).join(", ");
            format!("that is no state; there are {states}")
        })
    }
}

/// Where a page ended, as a text that means nothing to others.
struct CursorText(Cursor);

impl std::fmt::Display for CursorText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "j{:016x}", self.0.0)
    }
}

impl std::str::FromStr for CursorText {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let digits = text.strip_prefix('j').filter(|digits| digits.len() == 16);
        let is_hex = |digits: &&str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = digits.filter(is_hex).and_then(|it| u64::from_str_radix(it, 16).ok());
        number
            .map(|number| Self(Cursor(number)))
            .ok_or("that is no cursor; take it from `next` of the page before")
    }
}

/// Why a job is not running.
#[derive(Serialize, ToSchema)]
#[schema(as = Explanation)]
struct ExplanationView {
    #[schema(value_type = String, format = "uuid")]
    job: JobId,
    state: &'static str,
    /// The whole as a sentence.
    text: String,
    /// The first cause first; none if nothing but a moment is missing.
    reasons: Vec<ReasonView>,
}

/// One reason.
#[derive(Serialize, ToSchema)]
#[schema(as = Reason)]
struct ReasonView {
    /// What it is, for programs.
    code: &'static str,
    /// What it is, for people.
    text: String,
    /// The job that it waits for, and why that is not running.
    #[schema(no_recursion)]
    blocked_by: Option<ExplanationView>,
}

impl ExplanationView {
    fn of(explanation: &Explanation) -> Self {
        let reasons = explanation.reasons.iter().map(|reason| {
            let mut view =
                ReasonView { code: reason.code(), text: reason.to_string(), blocked_by: None };
            if let Reason::BlockedBy(other) = reason {
                view.blocked_by = Some(Self::of(other));
            }
            view
        });
        let (job, state) = (explanation.job, explanation.state.as_str());
        Self { job, state, text: explanation.to_string(), reasons: reasons.collect() }
    }
}

/// Why a job is not running.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}/explain",
    tag = "jobs",
    operation_id = "explain_job",
    params(
        ("id" = String, Path, description = "The id of the job"),
    ),
    responses(
        (status = 200,
            description = "Why it is not running, the first cause first",
            body = ExplanationView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn explain(
    State(api): State<Api>,
    JobPath(id): JobPath,
) -> Result<Response, Problem> {
    let explanation = ask(api.engine().explain(id)).await?;
    Ok(Json(ExplanationView::of(&explanation)).into_response())
}

/// A job that was changed.
#[derive(Serialize, ToSchema)]
#[schema(as = ChangedJob)]
struct ChangedView {
    #[schema(value_type = String, format = "uuid")]
    id: JobId,
    /// The state it is in now.
    state: &'static str,
    /// It runs, and its handler was asked to stop.
    cancel_requested: bool,
}

/// What a change answers: where the job stands now.
async fn changed(engine: &Engine, id: JobId, cancel_requested: bool) -> Result<Response, Problem> {
    let record = ask(engine.find(id)).await?.ok_or(Refusal::UnknownJob { job: id })?;
    let state = record.state().as_str();
    Ok(Json(ChangedView { id, state, cancel_requested }).into_response())
}

/// Calls a job off.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/cancel",
    tag = "jobs",
    operation_id = "cancel_job",
    params(
        ("id" = String, Path, description = "The id of the job"),
    ),
    responses(
        (status = 200, description = "It was called off, or asked to stop", body = ChangedView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    JobPath(id): JobPath,
    request: Request,
) -> Result<Response, Problem> {
    let engine = acting_without_body(&api, request).await?;
    let requested = match ask(engine.cancel(id)).await? {
        CancelAnswer::Cancelled => false,
        CancelAnswer::Requested => true,
    };
    changed(&engine, id, requested).await
}

/// Lets a scheduled or retrying job start now.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/run-now",
    tag = "jobs",
    operation_id = "run_job_now",
    params(
        ("id" = String, Path, description = "The id of the job"),
    ),
    responses(
        (status = 200, description = "It may start now", body = ChangedView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn run_now(
    State(api): State<Api>,
    JobPath(id): JobPath,
    request: Request,
) -> Result<Response, Problem> {
    let engine = acting_without_body(&api, request).await?;
    ask(engine.run_now(id)).await?;
    changed(&engine, id, false).await
}

/// When a waiting job is to start: one of the two.
#[derive(Deserialize, ToSchema)]
#[schema(as = NewStart)]
#[serde(deny_unknown_fields)]
struct StartBody {
    /// This long from now.
    delay: Option<DurationText>,
    /// At this time.
    at: Option<TimeText>,
}

/// Moves the start of a waiting job.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/reschedule",
    tag = "jobs",
    operation_id = "reschedule_job",
    params(
        ("id" = String, Path, description = "The id of the job"),
    ),
    request_body(
        content = StartBody,
        example = json!({"delay": "5m"})
    ),
    responses(
        (status = 200, description = "Its start was moved", body = ChangedView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn reschedule(
    State(api): State<Api>,
    JobPath(id): JobPath,
    request: Request,
) -> Result<Response, Problem> {
    let engine = acting(&api, request.extensions())?;
    match body::json(&api, request).await? {
        StartBody { delay: Some(DurationText(delay)), at: None } => {
            ask(engine.reschedule_in(id, delay)).await?;
        }
        StartBody { delay: None, at: Some(TimeText(at)) } => ask(engine.reschedule(id, at)).await?,
        StartBody { delay: Some(_), at: Some(_) } | StartBody { delay: None, at: None } => {
            let why = "say either `delay` or `at`";
            return Err(Problem::new(ProblemCode::InvalidField, why).at(""));
        }
    }
    changed(&engine, id, false).await
}

/// Tries a dead or cancelled job again.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/replay",
    tag = "jobs",
    operation_id = "replay_job",
    params(
        ("id" = String, Path, description = "The id of the job"),
    ),
    responses(
        (status = 200, description = "It is tried again", body = ChangedView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn replay(
    State(api): State<Api>,
    JobPath(id): JobPath,
    request: Request,
) -> Result<Response, Problem> {
    let engine = acting_without_body(&api, request).await?;
    ask(engine.replay(id)).await?;
    changed(&engine, id, false).await
}

/// Deletes a finished job.
#[utoipa::path(
    delete,
    path = "/v1/jobs/{id}",
    tag = "jobs",
    operation_id = "remove_job",
    params(
        ("id" = String, Path, description = "The id of the job"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn remove(
    State(api): State<Api>,
    JobPath(id): JobPath,
    request: Request,
) -> Result<StatusCode, Problem> {
    let engine = acting_without_body(&api, request).await?;
    ask(engine.remove(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}
