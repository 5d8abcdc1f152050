//! A job as JSON: in brief for a list, and whole.
//!
//! The keys are the same for every job, and `null` where they mean nothing. Times are RFC 3339 in
//! UTC; a number that is a duration says its unit.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::core::job::{Lane, Unique};
use windlass::core::record::AttemptRecord;
use windlass::core::retry::UNLIMITED;
use windlass::{
    Backoff, Dependency, Jitter, JobId, JobRecord, JobState, LogLine, Name, OnFailure, Retry,
    Start, Step, Timeout, Timestamp, UniqueScope,
};

/// Bytes that a producer or a handler gave.
pub enum Content<'a> {
    /// JSON, to the letter.
    Json(Cow<'a, RawValue>),
    /// Other text.
    Text(&'a str),
    /// Other bytes, two digits each.
    Hex(String),
}

/// What the bytes are. JSON is kept to the letter, but on one line.
pub fn content(bytes: &[u8]) -> Content<'_> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Content::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
    };
    match serde_json::from_str::<&RawValue>(text) {
        Ok(json) if !json.get().contains(['\n', '\r']) => Content::Json(Cow::Borrowed(json)),
        // In JSON a line can only break between two tokens.
        Ok(json) => {
            let line = json.get().replace(['\n', '\r'], " ");
            RawValue::from_string(line)
                .map_or(Content::Text(text), |json| Content::Json(Cow::Owned(json)))
        }
        Err(_) => Content::Text(text),
    }
}

/// JSON as it is, other text as a string, other bytes as `{"hex": …}`.
impl Serialize for Content<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Content::Json(json) => json.serialize(serializer),
            Content::Text(text) => text.serialize(serializer),
            Content::Hex(hex) => serializer.collect_map([("hex", hex)]),
        }
    }
}

/// What a list tells of a job.
#[derive(Serialize, ToSchema)]
#[schema(as = JobSummary)]
pub struct Brief<'a> {
    #[schema(value_type = String, format = "uuid")]
    id: JobId,
    kind: &'a str,
    queue: &'a str,
    state: &'static str,
    priority: i32,
    starts: u32,
    created_at: String,
    updated_at: String,
    /// When a scheduled job is due.
    due_at: Option<String>,
    error: Option<&'a str>,
    tags: Vec<&'a str>,
    /// What it keeps its order with.
    lane: Option<LaneView<'a>>,
    /// The object it is bound to.
    object: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Lane)]
#[serde(rename_all = "snake_case")]
enum LaneView<'a> {
    Key(&'a str),
    /// Without a key; this number of its queue's jobs without one.
    Turn(u64),
}

impl<'a> LaneView<'a> {
    fn of(lane: &'a Lane) -> Option<Self> {
        match lane {
            Lane::Key(key) => Some(Self::Key(key)),
            Lane::Turn(turn) => Some(Self::Turn(*turn)),
            // No accepted job has it.
            Lane::Spread => None,
        }
    }
}

impl<'a> Brief<'a> {
    /// What a list tells of this job.
    pub fn of(record: &'a JobRecord) -> Self {
        let due = match record.status.state {
            JobState::Scheduled { at } => Some(at.to_string()),
            JobState::Blocked { .. }
            | JobState::Ready { .. }
            | JobState::Running(_)
            | JobState::Completed { .. }
            | JobState::Dead { .. }
            | JobState::Cancelled { .. } => None,
        };
        Self {
            id: record.id(),
            kind: record.job.kind.as_str(),
            queue: record.job.queue.as_str(),
            state: record.state().as_str(),
            priority: record.job.priority.0,
            starts: record.status.attempts,
            created_at: record.created_at.to_string(),
            updated_at: record.updated_at.to_string(),
            due_at: due,
            error: record.error.as_ref().map(|error| error.as_str()),
            tags: record.job.tags.iter().map(Name::as_str).collect(),
            lane: record.job.lane.as_ref().and_then(LaneView::of),
            object: record.job.object.as_ref().map(ToString::to_string),
        }
    }
}

/// Everything known about a job.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub struct Whole<'a> {
    #[serde(flatten)]
    brief: Brief<'a>,
    /// Its place in the order of acceptance.
    sequence: u64,
    #[schema(value_type = serde_json::Value)]
    payload: Content<'a>,
    #[schema(value_type = Option<serde_json::Value>)]
    output: Option<Content<'a>>,
    /// What only its state has.
    state_detail: StateDetail,
    recoveries: u32,
    generation: u32,
    first_started_at: Option<String>,
    executing_since: Option<String>,
    last_success_at: Option<String>,
    last_recovery_at: Option<String>,
    start: StartView,
    unique: Option<UniqueView<'a>>,
    depends_on: Vec<DependencyView>,
    /// Dependencies that need not be waited for.
    #[schema(value_type = Vec<String>)]
    met: Vec<JobId>,
    retry: Option<RetryView>,
    max_attempts: Option<u32>,
    timeout: Option<TimeoutView>,
    expires_after_ms: Option<u64>,
    #[schema(value_type = BTreeMap<String, String>)]
    metadata: &'a BTreeMap<String, String>,
    trace: Option<&'a str>,
    #[schema(value_type = Option<String>, format = "uuid")]
    parent: Option<JobId>,
    progress: Option<ProgressView<'a>>,
    attempts: Vec<AttemptView<'a>>,
    attempts_dropped: u32,
    log: Vec<LogView<'a>>,
    log_dropped: u32,
    /// Steps its handler has finished.
    steps: Vec<StepView<'a>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Step)]
struct StepView<'a> {
    name: &'a str,
    #[schema(value_type = serde_json::Value)]
    result: Content<'a>,
}

impl<'a> StepView<'a> {
    fn of(step: &'a Step) -> Self {
        Self { name: step.name.as_str(), result: content(&step.result) }
    }
}

impl<'a> Whole<'a> {
    /// Everything known about this job.
    pub fn of(record: &'a JobRecord) -> Self {
        let job = &record.job;
        Self {
            brief: Brief::of(record),
            sequence: record.sequence,
            payload: content(&job.payload),
            output: record.output.as_deref().map(content),
            state_detail: StateDetail::of(&record.status.state),
            recoveries: record.status.recoveries,
            generation: record.status.generation,
            first_started_at: text(record.first_started_at),
            executing_since: text(record.executing_since()),
            last_success_at: text(record.last_success_at()),
            last_recovery_at: text(record.last_recovery_at),
            start: StartView::of(job.start),
            unique: job.unique.as_ref().map(UniqueView::of),
            depends_on: job.depends_on.iter().map(DependencyView::of).collect(),
            met: record.met.clone(),
            retry: job.retry.as_ref().map(RetryView::of),
            max_attempts: job.max_attempts,
            timeout: job.timeout.map(TimeoutView::of),
            expires_after_ms: job.expires_after.map(millis),
            metadata: &job.metadata,
            trace: job.trace.as_deref(),
            parent: job.parent,
            progress: record
                .progress
                .as_ref()
                .map(|progress| ProgressView { percent: progress.percent, note: &progress.note }),
            attempts: record.attempts.iter().map(AttemptView::of).collect(),
            attempts_dropped: record.attempts_dropped,
            log: record.log.iter().map(LogView::of).collect(),
            log_dropped: record.log_dropped,
            steps: record.steps.iter().map(StepView::of).collect(),
        }
    }
}

/// A time as text.
pub fn text(at: Option<Timestamp>) -> Option<String> {
    at.map(|at| at.to_string())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What a state holds beyond its name.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum StateDetail {
    Blocked { unmet: u32, not_before: String },
    Scheduled { at: String },
    Ready { since: String },
    Running(LeaseView),
    Completed { at: String },
    Ended { at: String, reason: String },
}

#[derive(Serialize, ToSchema)]
#[schema(as = Lease)]
struct LeaseView {
    worker: String,
    token: u64,
    since: String,
    until: String,
    max_attempts: Option<u32>,
    cancel_requested: bool,
}

impl StateDetail {
    fn of(state: &JobState) -> Self {
        match state {
            JobState::Blocked { unmet, not_before } => {
                Self::Blocked { unmet: *unmet, not_before: not_before.to_string() }
            }
            JobState::Scheduled { at } => Self::Scheduled { at: at.to_string() },
            JobState::Ready { since } => Self::Ready { since: since.to_string() },
            JobState::Running(lease) => Self::Running(LeaseView {
                worker: lease.worker.to_string(),
                token: lease.token.0,
                since: lease.since.to_string(),
                until: lease.until.to_string(),
                max_attempts: bounded(lease.max_attempts),
                cancel_requested: lease.cancel_requested,
            }),
            JobState::Completed { at } => Self::Completed { at: at.to_string() },
            JobState::Dead { at, reason } => {
                Self::Ended { at: at.to_string(), reason: reason.to_string() }
            }
            JobState::Cancelled { at, reason } => {
                Self::Ended { at: at.to_string(), reason: reason.to_string() }
            }
        }
    }
}

/// `null` for a number of attempts that never runs out.
fn bounded(attempts: u32) -> Option<u32> {
    (attempts != UNLIMITED).then_some(attempts)
}

#[derive(Serialize, ToSchema)]
#[schema(as = Start)]
#[serde(rename_all = "snake_case")]
enum StartView {
    Now,
    AfterMs(u64),
    At(String),
}

impl StartView {
    fn of(start: Start) -> Self {
        match start {
            Start::Now => Self::Now,
            Start::After(delay) => Self::AfterMs(millis(delay)),
            Start::At(at) => Self::At(at.to_string()),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Unique)]
struct UniqueView<'a> {
    key: &'a str,
    scope: &'static str,
    window_ms: Option<u64>,
}

impl<'a> UniqueView<'a> {
    fn of(unique: &'a Unique) -> Self {
        let scope = match unique.scope {
            UniqueScope::Open => "open",
            UniqueScope::Any => "any",
        };
        Self { key: &unique.key, scope, window_ms: unique.window.map(millis) }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Dependency)]
struct DependencyView {
    #[schema(value_type = String, format = "uuid")]
    on: JobId,
    on_failure: &'static str,
}

impl DependencyView {
    fn of(dependency: &Dependency) -> Self {
        let on_failure = match dependency.on_failure {
            OnFailure::Cascade => "cascade",
            OnFailure::Ignore => "ignore",
            OnFailure::Wait => "wait",
        };
        Self { on: dependency.on, on_failure }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Timeout)]
#[serde(rename_all = "snake_case")]
enum TimeoutView {
    Off,
    AfterMs(u64),
}

impl TimeoutView {
    fn of(timeout: Timeout) -> Self {
        match timeout {
            Timeout::Off => Self::Off,
            Timeout::After(limit) => Self::AfterMs(millis(limit)),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Retry)]
struct RetryView {
    backoff: BackoffView,
    cap_ms: u64,
    jitter: &'static str,
    max_attempts: Option<u32>,
    max_duration_ms: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Backoff)]
#[serde(rename_all = "snake_case")]
enum BackoffView {
    ConstantMs(u64),
    LinearMs(u64),
    Exponential { base_ms: u64, factor: f64 },
    CustomMs(Vec<u64>),
}

impl RetryView {
    fn of(retry: &Retry) -> Self {
        let backoff = match &retry.backoff {
            Backoff::Constant(delay) => BackoffView::ConstantMs(millis(*delay)),
            Backoff::Linear(step) => BackoffView::LinearMs(millis(*step)),
            Backoff::Exponential { base, factor_milli } => BackoffView::Exponential {
                base_ms: millis(*base),
                factor: f64::from(*factor_milli) / 1_000.0,
            },
            Backoff::Custom(delays) => {
                BackoffView::CustomMs(delays.iter().copied().map(millis).collect())
            }
        };
        let jitter = match retry.jitter {
            Jitter::None => "none",
            Jitter::Tenth => "tenth",
            Jitter::Equal => "equal",
            Jitter::Full => "full",
        };
        Self {
            backoff,
            cap_ms: millis(retry.cap),
            jitter,
            max_attempts: retry.max_attempts.and_then(bounded),
            max_duration_ms: retry.max_duration.map(millis),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Progress)]
struct ProgressView<'a> {
    percent: u8,
    note: &'a str,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Attempt)]
struct AttemptView<'a> {
    number: u32,
    worker: &'a str,
    started_at: String,
    ended_at: Option<String>,
    /// How it ended; `null` if it did not.
    end: Option<&'static str>,
    /// Why it ended without an outcome of its own; `null` if it had one.
    recovery: Option<&'static str>,
    error: Option<&'a str>,
}

impl<'a> AttemptView<'a> {
    fn of(attempt: &'a AttemptRecord) -> Self {
        Self {
            number: attempt.number,
            worker: &attempt.worker,
            started_at: attempt.started_at.to_string(),
            ended_at: text(attempt.ended.map(|(at, _)| at)),
            end: attempt.ended.map(|(_, end)| end.as_str()),
            recovery: attempt.ended.and_then(|(_, end)| end.recovery()).map(|why| why.as_str()),
            error: attempt.error.as_ref().map(|error| error.as_str()),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = LogLine)]
struct LogView<'a> {
    at: String,
    attempt: u32,
    text: &'a str,
}

impl<'a> LogView<'a> {
    fn of(line: &'a LogLine) -> Self {
        Self { at: line.at.to_string(), attempt: line.attempt, text: &line.text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(bytes: &[u8]) -> String {
        serde_json::to_string(&content(bytes)).expect("it can be written")
    }

    #[test]
    fn json_stays_as_it_is_and_other_bytes_become_json() {
        assert_eq!(
            json(br#"{"b":1, "a":12345678901234567890123}"#),
            r#"{"b":1, "a":12345678901234567890123}"#
        );
        assert_eq!(json(b"{\"text\":\r\n\"a\\nb\"}"), r#"{"text":  "a\nb"}"#);
        assert_eq!(json(b"plain words"), r#""plain words""#);
        assert_eq!(json(b""), r#""""#);
        assert_eq!(json(&[0xff, 0x00]), r#"{"hex":"ff00"}"#);
    }
}
