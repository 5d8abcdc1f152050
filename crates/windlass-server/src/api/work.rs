//! Work from any language: take jobs, say that they go on, and say how they ended.
//!
//! A worker over HTTP holds the leases that a Rust worker holds, and obeys the same rules: what
//! becomes of a job is decided by [`decide`], and written under its lease. Nothing here tells
//! whether such a worker lives, so its leases end by time alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::sleep;
use utoipa::ToSchema;
use windlass::clock::timestamp;
use windlass::core::job::RequestId;
use windlass::core::ledger::{
    Claim, KindClaim, Renewal, Renewed, Settled, Settlement, WorkerKind, WorkerReport,
};
use windlass::core::limits::at_most;
use windlass::core::outcome::{ErrorText, Outcome, Retryable, RunCounts, Verdict, decide};
use windlass::core::record::Report;
use windlass::core::retry::jitter_seed;
use windlass::core::worker::sleep_for;
use windlass::store::{ClaimedBatch, ClaimedJob, StoreExt};
use windlass::wake::Interest;
use windlass::{
    CancelReason, JobId, JobRecord, JobState, LogLine, Name, Progress, Refusal, Retry, Timeout,
    Timestamp, WorkerInfo, WorkerOrder, limits,
};

use super::jobs::check_wait;
use super::lease_text::{GivenLease, LeaseSecret};
use super::problem::{Problem, ProblemCode};
use super::text::{DurationText, Meant};
use super::{Api, ask, body};
use crate::view::{Content, content};

/// How long a lease lasts if nothing is said.
const LEASE: Duration = Duration::from_secs(30);

/// How often a worker that waits looks by itself, in case it was not rung, and is said to live.
const LOOK: Duration = Duration::from_secs(5);

/// Most leases that one request names.
const LEASES: usize = 1_000;

/// Most kinds one worker handles.
const KINDS: usize = 1_000;

/// Most workers of which is remembered what they handle, so that heartbeats need not repeat it.
const WORKERS: usize = 10_000;

/// The workers that have asked this server for jobs, and what they handle.
pub(super) type KnownWorkers = std::sync::Mutex<HashMap<Arc<str>, WorkerInfo>>;

/// The name of a worker: 1 to 256 bytes without control characters.
#[derive(Clone)]
pub(super) struct WorkerText(Arc<str>);

impl std::str::FromStr for WorkerText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match !text.is_empty() && text.len() <= 256 && !text.chars().any(char::is_control) {
            true => Ok(Self(text.into())),
            false => Err("a worker's name has 1 to 256 bytes and no control characters".into()),
        }
    }
}

impl<'de> Deserialize<'de> for WorkerText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Meant::of("the name of a worker"))
    }
}

/// What a worker asks for.
#[derive(Deserialize, ToSchema)]
#[schema(as = LeaseRequest)]
#[serde(deny_unknown_fields)]
struct LeaseBody {
    /// Who asks; a name of its own for each worker.
    worker: WorkerText,
    /// Names this call, so that it can be repeated if its answer was lost: new for each.
    request_id: Option<String>,
    /// From which queues; all if it is not said.
    #[schema(value_type = Option<Vec<String>>)]
    queues: Option<Vec<Name>>,
    /// Of which kinds.
    #[schema(value_type = Vec<String>)]
    kinds: Vec<Name>,
    /// How many jobs at most; 1 if it is not said.
    max: Option<usize>,
    /// How long to wait for one; not at all if it is not said.
    wait: Option<DurationText>,
    /// How long the leases last unless renewed; 30 s if it is not said.
    lease: Option<DurationText>,
}

/// A call of a worker for jobs, checked.
struct Asked {
    claim: Claim,
    info: WorkerInfo,
    wait: Duration,
    lease: Duration,
}

impl LeaseBody {
    fn check(self) -> Result<Asked, Problem> {
        let wrong = |field: &str, why: String| {
            Problem::new(ProblemCode::InvalidField, why).at(&format!("/{field}"))
        };
        let wait = self.wait.map_or(Duration::ZERO, |DurationText(wait)| wait);
        let wait = check_wait(wait).map_err(|why| wrong("wait", why))?;
        let lease = self.lease.map_or(LEASE, |DurationText(lease)| lease);
        let (shortest, longest) = (limits::LEASE_MIN, limits::LEASE_MAX);
        if !(shortest..=longest).contains(&lease) {
            return Err(wrong("lease", format!("it must be from {shortest:?} to {longest:?}")));
        }
        let max = self.max.unwrap_or(1);
        if !(1..=limits::LEASE_JOBS).contains(&max) {
            return Err(wrong("max", format!("it must be from 1 to {}", limits::LEASE_JOBS)));
        }
        if self.kinds.is_empty() || self.kinds.len() > KINDS {
            return Err(wrong("kinds", format!("name 1 to {KINDS} kinds")));
        }
        let WorkerText(worker) = self.worker;
        // Another worker may happen to choose the same.
        let request = self.request_id.map(|id| JobId::named(&format!("lease/{id}/{worker}")));
        let request = request.map(|id| RequestId(u128::from_be_bytes(id.to_bytes())));
        let info = WorkerInfo {
            queues: self.queues.clone(),
            kinds: self.kinds.iter().map(|kind| unlimited(kind.clone())).collect(),
            slots: u32::try_from(max).unwrap_or(u32::MAX),
            quiet: false,
        };
        let terms = |kind| KindClaim { lease, ..KindClaim::new(kind) };
        let kinds = self.kinds.into_iter().map(terms).collect();
        let claim = Claim { worker, queues: self.queues, kinds, limit: max, request };
        Ok(Asked { claim, info, wait, lease })
    }
}

/// A kind without limits of the worker's own.
fn unlimited(kind: Name) -> WorkerKind {
    WorkerKind { kind, concurrency: None, rate: None }
}

/// Jobs for a worker.
#[derive(Serialize, ToSchema)]
#[schema(as = LeasedJobs)]
struct LeasedList<'a> {
    jobs: Vec<LeasedView<'a>>,
    /// The worker is to finish what it has and ask for no more.
    drain: bool,
}

/// A job for a worker.
#[derive(Serialize, ToSchema)]
#[schema(as = LeasedJob)]
struct LeasedView<'a> {
    #[schema(value_type = String, format = "uuid")]
    id: JobId,
    kind: &'a str,
    queue: &'a str,
    /// Which start this is, 1 for the first.
    attempt: u32,
    #[schema(value_type = serde_json::Value)]
    payload: Content<'a>,
    content_type: &'static str,
    /// What the worker names the job with from now on.
    lease: String,
    /// When the job is given to another worker unless the lease is renewed.
    lease_until: String,
    /// When the attempt should have ended; `null` if the job sets no limit.
    deadline: Option<String>,
    /// What went wrong in the attempt before.
    last_error: Option<&'a str>,
    /// The W3C `traceparent` of the producer.
    trace: Option<&'a str>,
}

impl<'a> LeasedView<'a> {
    fn of(claimed: &'a ClaimedJob, length: Duration, secret: &LeaseSecret) -> Self {
        let ClaimedJob { job, lease, attempt, .. } = claimed;
        let given = GivenLease { job: job.id, token: lease.token, attempt: *attempt, length };
        let payload = content(&job.payload);
        let content_type = match &payload {
            Content::Json(_) => "application/json",
            Content::Text(_) => "text/plain",
            Content::Hex(_) => "application/octet-stream",
        };
        let deadline = match job.timeout {
            Some(Timeout::After(limit)) => Some((lease.since + limit).to_string()),
            Some(Timeout::Off) | None => None,
        };
        Self {
            id: job.id,
            kind: job.kind.as_str(),
            queue: job.queue.as_str(),
            attempt: *attempt,
            payload,
            content_type,
            lease: secret.sign(&given),
            lease_until: lease.until.to_string(),
            deadline,
            last_error: claimed.last_error.as_ref().map(ErrorText::as_str),
            trace: job.trace.as_deref(),
        }
    }
}

/// Takes jobs, or waits for some.
#[utoipa::path(
    post,
    path = "/v1/lease",
    tag = "work",
    request_body(
        content = LeaseBody,
        example = json!({"worker": "worker-1", "kinds": ["hello"]})
    ),
    responses(
        (status = 200, description = "Jobs", body = LeasedList<'static>),
        (status = 204, description = "There is none"),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn lease(State(api): State<Api>, request: Request) -> Result<Response, Problem> {
    let Asked { claim, info, wait, lease } =
        body::json::<LeaseBody>(&api, request).await?.check()?;
    let secret = api.lease_secret().await?;
    // Before the first look, so that no ring is missed.
    let interest = Interest::Queues(claim.queues.clone());
    let mut rung = api.engine().wake().listen(interest);
    let over = sleep(wait);
    tokio::pin!(over);
    let mut is_over = wait.is_zero();
    let mut order = say_alive(&api, &claim.worker, info.clone()).await?;
    loop {
        let mut pause = LOOK;
        if order.is_none() {
            let batch = ask(api.remote_store().claim(claim.clone())).await?;
            if !batch.jobs.is_empty() {
                return Ok(given(&batch, lease, secret));
            }
            pause = sleep_for(batch.wake_in, LOOK);
        }
        if is_over || order == Some(WorkerOrder::Stop) {
            return Ok(nothing(order.is_some()));
        }
        tokio::select! {
            () = api.closed() => return Err(Problem::stopping()),
            () = &mut over => is_over = true,
            () = rung.heard(), if order.is_none() => {}
            () = sleep(pause) => order = say_alive(&api, &claim.worker, info.clone()).await?,
        }
    }
}

fn given(batch: &ClaimedBatch, lease: Duration, secret: &LeaseSecret) -> Response {
    let jobs = batch.jobs.iter().map(|job| LeasedView::of(job, lease, secret)).collect();
    Json(LeasedList { jobs, drain: false }).into_response()
}

fn nothing(drain: bool) -> Response {
    match drain {
        true => Json(LeasedList { jobs: Vec::new(), drain }).into_response(),
        false => StatusCode::NO_CONTENT.into_response(),
    }
}

/// Says that a worker lives and what it handles, and answers with the order there is for it.
async fn say_alive(
    api: &Api,
    worker: &Arc<str>,
    info: WorkerInfo,
) -> Result<Option<WorkerOrder>, Problem> {
    let before = api.known_workers().get(worker).is_some_and(|known| known.quiet);
    let alive = WorkerReport::Alive(WorkerInfo { quiet: before, ..info.clone() });
    let order = ask(api.remote_store().heartbeat(worker.clone(), alive)).await?.order;
    let mut known = api.known_workers();
    if known.len() >= WORKERS && !known.contains_key(worker) {
        known.clear();
    }
    // Others see it with the next heartbeat.
    known.insert(worker.clone(), WorkerInfo { quiet: order == Some(WorkerOrder::Quiet), ..info });
    Ok(order)
}

/// What a worker says of the jobs it runs.
#[derive(Deserialize, ToSchema)]
#[schema(as = HeartbeatRequest)]
#[serde(deny_unknown_fields)]
struct HeartbeatBody {
    /// Who says it.
    worker: WorkerText,
    /// The leases that it holds.
    leases: Vec<String>,
    /// How far jobs are, by lease.
    #[serde(default)]
    progress: BTreeMap<String, ProgressBody>,
    /// Lines for the logs of jobs, by lease.
    #[serde(default)]
    logs: BTreeMap<String, Vec<String>>,
}

/// How far a job is.
#[derive(Deserialize, ToSchema)]
#[schema(as = NewProgress)]
#[serde(deny_unknown_fields)]
struct ProgressBody {
    /// 0 to 100.
    percent: u8,
    /// In words.
    #[serde(default)]
    note: String,
}

/// What a worker is told about the jobs it runs.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = HeartbeatAnswer)]
struct HeartbeatView {
    /// Leases that are lost: whatever is done under them counts for nothing.
    lost: Vec<String>,
    /// Leases of jobs that someone has called off.
    cancel: Vec<String>,
    /// Until when all the others hold; `null` if there are none.
    extend_until: Option<String>,
    /// The worker is to finish what it has and ask for no more.
    drain: bool,
}

/// Extends leases, and takes what there is to say about their jobs.
#[utoipa::path(
    post,
    path = "/v1/heartbeat",
    tag = "work",
    request_body(
        content = HeartbeatBody,
        example = json!({"worker": "worker-1", "leases": []})
    ),
    responses(
        (status = 200, description = "What there is to know", body = HeartbeatView),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn heartbeat(
    State(api): State<Api>,
    request: Request,
) -> Result<Response, Problem> {
    let mut body: HeartbeatBody = body::json(&api, request).await?;
    at_most("leases of one request", body.leases.len(), LEASES, "send several")?;
    check_reports(&body)?;
    let secret = api.lease_secret().await?;
    let now = timestamp(SystemTime::now());
    let (mut told, mut renewed, mut renewals) = (HeartbeatView::default(), Vec::new(), Vec::new());
    for lease in std::mem::take(&mut body.leases) {
        match secret.verify(&lease) {
            Some(given) => {
                renewals.push(renewal(given, &lease, &mut body, now));
                renewed.push(lease);
            }
            None => told.lost.push(lease),
        }
    }
    let answers = ask(api.remote_store().renew(renewals)).await?;
    let mut until: Option<Timestamp> = None;
    for (lease, answer) in renewed.into_iter().zip(answers) {
        match answer {
            Ok(Renewed { until: new, cancel_requested }) => {
                until = Some(until.map_or(new, |until| until.min(new)));
                if cancel_requested {
                    told.cancel.push(lease);
                }
            }
            Err(Refusal::LeaseLost { .. }) => told.lost.push(lease),
            Err(refusal) => return Err(refusal.into()),
        }
    }
    told.extend_until = until.map(|until| until.to_string());
    let WorkerText(worker) = body.worker;
    let known = api.known_workers().get(&worker).cloned();
    let order = match known {
        Some(info) => say_alive(&api, &worker, info).await?,
        // Its next call for jobs says what it handles; its leases are renewed in any case.
        None => None,
    };
    told.drain = order.is_some();
    Ok(Json(told).into_response())
}

/// Refuses reports of jobs whose leases are not named: they would be lost.
fn check_reports(body: &HeartbeatBody) -> Result<(), Problem> {
    let of = |field: &'static str, lease: &String| {
        let why = "`leases` does not name this one";
        let pointer = format!("/{field}/{lease}");
        match body.leases.contains(lease) {
            true => Ok(()),
            false => Err(Problem::new(ProblemCode::InvalidField, why).at(&pointer)),
        }
    };
    body.progress.keys().try_for_each(|lease| of("progress", lease))?;
    body.logs.keys().try_for_each(|lease| of("logs", lease))
}

fn renewal(given: GivenLease, lease: &str, body: &mut HeartbeatBody, now: Timestamp) -> Renewal {
    let GivenLease { job, token, attempt, length } = given;
    let progress = body.progress.remove(lease);
    let progress = progress.map(|ProgressBody { percent, note }| Progress { percent, note });
    let lines = body.logs.remove(lease).unwrap_or_default();
    let line = |text| LogLine { at: now, attempt, text };
    let lines = lines.into_iter().map(line).collect();
    let report = Report { progress, lines, ..Report::default() };
    Renewal { job, token, lease: length, report }
}

/// How attempts ended.
#[derive(Deserialize, ToSchema)]
#[schema(as = FinishRequest)]
#[serde(deny_unknown_fields)]
struct FinishBody {
    results: Vec<ResultBody>,
}

/// How one attempt ended.
#[derive(Deserialize, ToSchema)]
#[schema(as = AttemptResult)]
#[serde(deny_unknown_fields)]
struct ResultBody {
    /// The lease it ran under.
    lease: String,
    outcome: OutcomeText,
    /// What it returned: any JSON, kept to the letter. Only if it is `ok`.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
    /// What went wrong. Not if it is `ok`.
    error: Option<String>,
    /// When to try again: for `retry` instead of the job's policy, for `snooze` always.
    retry_after: Option<DurationText>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = OutcomeName)]
#[serde(rename_all = "snake_case")]
enum OutcomeText {
    /// It is done.
    Ok,
    /// It failed, and may be tried again.
    Retry,
    /// It failed, and trying again is pointless.
    Fail,
    /// It is to run again later; this start is not counted.
    Snooze,
    /// It is called off.
    Cancel,
}

/// What became of each, in the order of the request.
#[derive(Serialize, ToSchema)]
#[schema(as = FinishedAttempts)]
struct FinishedList {
    results: Vec<FinishedView>,
}

/// What became of a job: its state, or why the result does not count.
#[derive(Serialize, ToSchema)]
#[schema(as = FinishedAttempt)]
struct FinishedView {
    lease: String,
    /// The state that the job is in now.
    state: Option<&'static str>,
    /// Why the result does not count.
    error: Option<Problem>,
}

impl ResultBody {
    /// Refuses what cannot be meant, before anything is done.
    fn check(&self, place: usize) -> Result<(), Problem> {
        let wrong = |field: &str, why: &str| {
            let pointer = format!("/results/{place}/{field}");
            Err(Problem::new(ProblemCode::InvalidField, why).at(&pointer))
        };
        let is_ok = self.outcome == OutcomeText::Ok;
        let takes_pause = matches!(self.outcome, OutcomeText::Retry | OutcomeText::Snooze);
        match (&self.value, &self.error, self.retry_after) {
            (Some(_), _, _) if !is_ok => wrong("value", "only what is `ok` has a value"),
            (_, Some(_), _) if is_ok => wrong("error", "what is `ok` has no error"),
            (_, _, Some(_)) if !takes_pause => {
                wrong("retry_after", "only `retry` and `snooze` say when to try again")
            }
            (_, _, None) if self.outcome == OutcomeText::Snooze => {
                wrong("retry_after", "say for how long to snooze")
            }
            _ => Ok(()),
        }
    }

    fn outcome(&self) -> Outcome {
        let pause = self.retry_after.map(|DurationText(pause)| pause);
        match self.outcome {
            OutcomeText::Ok => Outcome::Completed,
            OutcomeText::Retry => {
                Outcome::Failed(pause.map_or(Retryable::ByPolicy, Retryable::After))
            }
            OutcomeText::Fail => Outcome::Failed(Retryable::Never),
            OutcomeText::Snooze => Outcome::Snoozed(pause.unwrap_or_default()),
            OutcomeText::Cancel => Outcome::Cancelled(CancelReason::Handler),
        }
    }
}

/// Says how attempts ended. Repeating it is answered as the first time.
#[utoipa::path(
    post,
    path = "/v1/finish",
    tag = "work",
    request_body(
        content = FinishBody,
        example = json!({"results": [{"lease": "…", "outcome": "ok", "value": {"sum": 3}}]})
    ),
    responses(
        (status = 200, description = "What became of each, in their order", body = FinishedList),
        (status = "default", description = "It was not done, and why", body = Problem,
            content_type = "application/problem+json")
    )
)]
pub(super) async fn finish(State(api): State<Api>, request: Request) -> Result<Response, Problem> {
    let FinishBody { results } = body::json(&api, request).await?;
    at_most("results of one request", results.len(), LEASES, "send several")?;
    results.iter().enumerate().try_for_each(|(place, result)| result.check(place))?;
    let secret = api.lease_secret().await?;
    let given: Vec<_> = results.iter().map(|result| secret.verify(&result.lease)).collect();
    let ids: Vec<JobId> = given.iter().flatten().map(|given| given.job).collect();
    let store = api.remote_store();
    let mut records = ask(store.find(&ids)).await?.into_iter();
    let now = timestamp(SystemTime::now());
    let settlements = results.iter().zip(&given).filter_map(|(result, given)| {
        let given = (*given)?;
        Some(settlement(given, records.next().flatten().as_ref(), result, now))
    });
    let settlements = settlements.collect();
    let mut answers = ask(store.settle(settlements)).await?.into_iter();
    let views = results.into_iter().zip(given).map(|(result, given)| {
        let answer = given.and_then(|_| answers.next());
        FinishedView::of(result.lease, answer)
    });
    Ok(Json(FinishedList { results: views.collect() }).into_response())
}

impl FinishedView {
    /// `answer` is `None` for a lease that was never given.
    fn of(lease: String, answer: Option<Result<Settled, Refusal>>) -> Self {
        let (state, error) = match answer {
            Some(Ok(Settled { state })) => (Some(state.as_str()), None),
            Some(Err(refusal)) => (None, Some(Problem::from(refusal))),
            None => {
                let why = "this lease was never given by a server of this store";
                (None, Some(Problem::new(ProblemCode::InvalidLease, why)))
            }
        };
        Self { lease, state, error }
    }
}

/// What is written of an attempt: the verdict on its job, and what there is to keep.
fn settlement(
    given: GivenLease,
    record: Option<&JobRecord>,
    result: &ResultBody,
    now: Timestamp,
) -> Settlement {
    let GivenLease { job, token, .. } = given;
    let verdict = verdict(given, record, result, now);
    let value = result.value.as_ref().map_or("null", |value| value.get());
    let output = (result.outcome == OutcomeText::Ok).then(|| value.as_bytes().into());
    let error = result.error.as_ref().map(ErrorText::new);
    let error = match result.outcome {
        OutcomeText::Retry | OutcomeText::Fail => {
            error.or_else(|| Some(ErrorText::new("the worker gave no reason")))
        }
        OutcomeText::Ok | OutcomeText::Snooze | OutcomeText::Cancel => error,
    };
    Settlement { output, error, ..Settlement::new(job, token, verdict) }
}

/// What becomes of the job, by the rule that Rust workers follow.
fn verdict(
    given: GivenLease,
    record: Option<&JobRecord>,
    result: &ResultBody,
    now: Timestamp,
) -> Verdict {
    let held = record.and_then(|record| match &record.status.state {
        JobState::Running(lease) if lease.token == given.token => Some((record, lease)),
        JobState::Running(_)
        | JobState::Blocked { .. }
        | JobState::Scheduled { .. }
        | JobState::Ready { .. }
        | JobState::Completed { .. }
        | JobState::Dead { .. }
        | JobState::Cancelled { .. } => None,
    });
    // The lease has ended, and no verdict counts: the store says what became of the job.
    let Some((record, lease)) = held else { return Verdict::Release };
    let outcome = match lease.cancel_requested {
        true => result.outcome().after_cancel_request(),
        false => result.outcome(),
    };
    let usual = Retry::default();
    let counts = RunCounts {
        attempt: given.attempt,
        max_attempts: lease.max_attempts,
        since_first_start: now.since(record.first_started_at.unwrap_or(lease.since)),
        retry: record.job.retry.as_ref().unwrap_or(&usual),
    };
    decide(&outcome, counts, jitter_seed(given.job, given.attempt))
}
