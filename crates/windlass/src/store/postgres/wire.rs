//! What goes over the wire: jobs, turns and reports as JSON and columns, and back.
//!
//! Payloads, outputs, results and states are bytes and stay bytes. The rest of what a producer says
//! is a JSON object, `spec`, in which only what was said stands, so that most jobs have none.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::job::{
    Bytes, CancelReason, DeadReason, Dependency, JobId, Lane, NewJob, OnFailure, Priority, Start,
    StateName, Timeout, Unique, UniqueScope,
};
use windlass_core::ledger::{Acceptance, Enqueued, LanePosition};
use windlass_core::name::Name;
use windlass_core::object::{Address, Alarm, ObjectStatus, Purge, RunResult, Turn};
use windlass_core::outcome::Verdict;
use windlass_core::record::{AttemptEnd, LogLine, QueueSettings, Report, Step};
use windlass_core::retry::{Backoff, Jitter, Retry};
use windlass_core::time::Timestamp;

use crate::trace;

/// Something in the database that this version does not understand.
#[derive(Debug, thiserror::Error)]
#[error("cannot understand what the database holds: {0}; was it written by another version?")]
pub(super) struct UnknownValue(pub(super) String);

pub(super) type Read<T> = Result<T, UnknownValue>;

fn strange(what: &str, value: impl std::fmt::Debug) -> UnknownValue {
    UnknownValue(format!("{what} {value:?}"))
}

pub(super) fn uuid(job: JobId) -> Uuid {
    Uuid::from_bytes(job.to_bytes())
}

pub(super) fn job_id(uuid: Uuid) -> JobId {
    JobId::from_bytes(uuid.into_bytes())
}

/// Microseconds, saturating: no bound of ours comes near.
/// A duration as it is kept. The longest is far beyond every life and yet so short that PostgreSQL
/// can add it to any time it may see: its sums fail where those of the ledger saturate, and a sum
/// that fails stops whatever it is part of.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub(super) fn name(text: &str) -> Read<Name> {
    Name::new(text).map_err(|_| strange("the name", text))
}

/// Text as PostgreSQL can keep it: it has no room for the character NUL.
pub(super) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Stands before a character that stands for another.
const ESCAPE: char = '\u{e000}';

/// A producer's text, to be read back exactly: as above, but nothing is lost.
fn exact(text: &str) -> String {
    text.replace(ESCAPE, "\u{e000}e").replace('\0', "\u{e000}0")
}

fn read_exact(text: &str) -> String {
    text.replace("\u{e000}0", "\0").replace("\u{e000}e", "\u{e000}")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The two columns of a start: how it is meant, and microseconds.
pub(super) fn start(start: Start) -> (i16, Option<i64>) {
    match start {
        Start::Now => (0, None),
        Start::After(delay) => (1, Some(micros(delay))),
        Start::At(at) => (2, Some(at.as_micros())),
    }
}

pub(super) fn read_start(kind: i16, us: Option<i64>) -> Read<Start> {
    match (kind, us) {
        (0, _) => Ok(Start::Now),
        (1, Some(us)) => Ok(Start::After(duration(us))),
        (2, Some(us)) => Ok(Start::At(time(us))),
        other => Err(strange("the start", other)),
    }
}

/// A column of an array of rows, which is not sent at all if nothing is in it.
pub(super) struct Sparse<T> {
    /// `None` until there is something.
    pub(super) column: Option<Vec<Option<T>>>,
    length: usize,
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self { column: None, length: 0 }
    }
}

impl<T> Sparse<T> {
    pub(super) fn push(&mut self, value: Option<T>) {
        if value.is_some() && self.column.is_none() {
            self.column = Some(std::iter::repeat_with(|| None).take(self.length).collect());
        }
        if let Some(column) = &mut self.column {
            column.push(value);
        }
        self.length += 1;
    }
}

impl<T> FromIterator<Option<T>> for Sparse<T> {
    fn from_iter<I: IntoIterator<Item = Option<T>>>(values: I) -> Self {
        let mut column = Self::default();
        values.into_iter().for_each(|value| column.push(value));
        column
    }
}

/// What a producer said beyond the columns; `None` if nothing.
pub(super) fn spec(job: &NewJob) -> Option<Value> {
    let mut spec = Map::new();
    let mut say = |what: &str, value: Value| drop(spec.insert(what.to_string(), value));
    if let Some(unique) = &job.unique {
        let scope = match unique.scope {
            UniqueScope::Open => "open",
            UniqueScope::Any => "any",
        };
        let mut said = json!({ "key": unique.key, "scope": scope });
        if let Some(window) = unique.window {
            said["window"] = micros(window).into();
        }
        say("unique", said);
    }
    if !job.depends_on.is_empty() {
        let edge = |dependency: &Dependency| {
            let on_failure = match dependency.on_failure {
                OnFailure::Cascade => 0,
                OnFailure::Ignore => 1,
                OnFailure::Wait => 2,
            };
            json!({ "on": dependency.on.to_string(), "on_failure": on_failure })
        };
        say("depends_on", job.depends_on.iter().map(edge).collect());
    }
    if let Some(retry) = &job.retry {
        say("retry", write_retry(retry));
    }
    if let Some(runs) = job.max_attempts {
        say("max_attempts", runs.into());
    }
    match job.timeout {
        None => {}
        Some(Timeout::Off) => say("timeout", "off".into()),
        Some(Timeout::After(limit)) => say("timeout", micros(limit).into()),
    }
    if let Some(after) = job.expires_after {
        say("expires_after", micros(after).into());
    }
    if !job.tags.is_empty() {
        say("tags", job.tags.iter().map(Name::as_str).collect());
    }
    if !job.metadata.is_empty() {
        let entries = job.metadata.iter().map(|(key, value)| (exact(key), exact(value).into()));
        say("metadata", Value::Object(entries.collect()));
    }
    // Nothing is said of the trace that most jobs have, so that most have nothing to say at all.
    match &job.trace {
        Some(trace) if *trace == trace::of_its_own(job.id) => {}
        Some(trace) => say("trace", exact(trace).into()),
        None => say("trace", Value::Null),
    }
    if let Some(parent) = job.parent {
        say("parent", parent.to_string().into());
    }
    match &job.lane {
        None => {}
        Some(Lane::Key(key)) => {
            let partition = job.lane.as_ref().and_then(Lane::partition).unwrap_or(0);
            say("lane", json!({ "key": key, "partition": partition.cast_signed() }));
        }
        Some(Lane::Spread) => say("lane", json!({ "spread": true })),
        Some(Lane::Turn(turn)) => {
            say("lane", json!({ "turn": turn, "partition": turn.cast_signed() }));
        }
    }
    if let Some(object) = &job.object {
        say("object", address(object));
    }
    (!spec.is_empty()).then_some(Value::Object(spec))
}

/// A whole job in JSON, for where there are no columns.
pub(super) fn whole_job(job: &NewJob) -> Value {
    let (start_kind, start_us) = start(job.start);
    json!({
        "id": job.id.to_string(),
        "queue": job.queue.as_str(),
        "kind": job.kind.as_str(),
        "payload": hex(&job.payload),
        "priority": job.priority.0,
        "start_kind": start_kind,
        "start_us": start_us,
        "max_attempts": job.max_attempts(),
        "spec": spec(job),
    })
}

/// The columns of a job, as they were read.
pub(super) struct JobColumns {
    pub(super) id: Uuid,
    pub(super) queue: Name,
    pub(super) kind: Name,
    pub(super) payload: Vec<u8>,
    pub(super) priority: i32,
    pub(super) start: (i16, Option<i64>),
    pub(super) spec: Option<Value>,
}

impl JobColumns {
    pub(super) fn of(row: &Row) -> Read<Self> {
        Ok(Self {
            id: row.get("id"),
            queue: name(row.get("queue"))?,
            kind: name(row.get("kind"))?,
            payload: row.get("payload"),
            priority: row.get("priority"),
            start: (row.get("start_kind"), row.get("start_us")),
            spec: row.get("spec"),
        })
    }

    /// A job that has no priority and may start at once, and of which no more is said.
    pub(super) fn usual(id: Uuid, queue: Name, kind: Name, payload: &[u8]) -> Self {
        let payload = payload.to_vec();
        Self { id, queue, kind, payload, priority: 0, start: (0, None), spec: None }
    }

    /// With what else is said of it.
    pub(super) fn with(mut self, mut detail: Value) -> Read<Self> {
        let small = |what: &str| {
            let number = detail[what].as_i64().and_then(|number| i32::try_from(number).ok());
            number.ok_or_else(|| strange(what, &detail[what]))
        };
        self.priority = small("priority")?;
        let kind = i16::try_from(small("start_kind")?);
        let kind = kind.map_err(|_| strange("start_kind", &detail["start_kind"]))?;
        self.start = (kind, detail["start_us"].as_i64());
        self.spec = Some(detail["spec"].take());
        Ok(self)
    }

    pub(super) fn into_job(self) -> Read<NewJob> {
        let id = job_id(self.id);
        let mut job = NewJob::new(id, self.kind, self.queue, self.payload);
        job.priority = Priority(self.priority);
        job.start = read_start(self.start.0, self.start.1)?;
        job.trace = Some(trace::of_its_own(id));
        let Some(Value::Object(spec)) = self.spec else { return Ok(job) };
        for (what, value) in &spec {
            read_said(&mut job, what, value).ok_or_else(|| strange(what, value))?;
        }
        Ok(job)
    }
}

/// Takes over one thing a producer said; `None` if it makes no sense.
fn read_said(job: &mut NewJob, what: &str, value: &Value) -> Option<()> {
    match what {
        "unique" => {
            let scope = match value["scope"].as_str()? {
                "open" => UniqueScope::Open,
                "any" => UniqueScope::Any,
                _ => return None,
            };
            let key = value["key"].as_str()?.to_string();
            job.unique =
                Some(Unique { key, scope, window: value["window"].as_i64().map(duration) });
        }
        "depends_on" => {
            let edge = |value: &Value| {
                let on_failure = match value["on_failure"].as_i64()? {
                    0 => OnFailure::Cascade,
                    1 => OnFailure::Ignore,
                    2 => OnFailure::Wait,
                    _ => return None,
                };
                Some(Dependency { on: value["on"].as_str()?.parse().ok()?, on_failure })
            };
            job.depends_on = value.as_array()?.iter().map(edge).collect::<Option<_>>()?;
        }
        "retry" => job.retry = Some(read_retry(value)?),
        "max_attempts" => job.max_attempts = Some(u32::try_from(value.as_u64()?).ok()?),
        "timeout" => {
            job.timeout = Some(match value.as_i64() {
                Some(limit) => Timeout::After(duration(limit)),
                None => Timeout::Off,
            });
        }
        "expires_after" => job.expires_after = Some(duration(value.as_i64()?)),
        "tags" => {
            let tag = |value: &Value| Name::new(value.as_str()?).ok();
            job.tags = value.as_array()?.iter().map(tag).collect::<Option<_>>()?;
        }
        "metadata" => {
            let entry = |(key, value): (&String, &Value)| {
                Some((read_exact(key), read_exact(value.as_str()?)))
            };
            job.metadata = value.as_object()?.iter().map(entry).collect::<Option<_>>()?;
        }
        "trace" if value.is_null() => job.trace = None,
        "trace" => job.trace = Some(read_exact(value.as_str()?)),
        "parent" => job.parent = Some(value.as_str()?.parse().ok()?),
        "lane" => {
            job.lane = Some(match (value["key"].as_str(), value["turn"].as_u64()) {
                (Some(key), _) => Lane::Key(key.to_string()),
                (None, Some(turn)) => Lane::Turn(turn),
                (None, None) => Lane::Spread,
            });
        }
        "object" => job.object = Some(read_address(value).ok()?),
        _ => return None,
    }
    Some(())
}

fn write_retry(retry: &Retry) -> Value {
    let backoff = match &retry.backoff {
        Backoff::Constant(delay) => json!({ "constant": micros(*delay) }),
        Backoff::Linear(step) => json!({ "linear": micros(*step) }),
        Backoff::Exponential { base, factor_milli } => {
            json!({ "exponential": micros(*base), "factor_milli": factor_milli })
        }
        Backoff::Custom(delays) => {
            json!({ "custom": delays.iter().copied().map(micros).collect::<Vec<_>>() })
        }
    };
    let jitter = match retry.jitter {
        Jitter::None => "none",
        Jitter::Tenth => "tenth",
        Jitter::Equal => "equal",
        Jitter::Full => "full",
    };
    // A cap that is never reached has no place among microseconds.
    let cap = (retry.cap != Duration::MAX).then(|| micros(retry.cap));
    json!({
        "backoff": backoff,
        "cap": cap,
        "jitter": jitter,
        "max_attempts": retry.max_attempts,
        "max_duration": retry.max_duration.map(micros),
    })
}

fn read_retry(value: &Value) -> Option<Retry> {
    let said = &value["backoff"];
    let backoff = if let Some(delay) = said["constant"].as_i64() {
        Backoff::Constant(duration(delay))
    } else if let Some(step) = said["linear"].as_i64() {
        Backoff::Linear(duration(step))
    } else if let Some(base) = said["exponential"].as_i64() {
        let factor_milli = u32::try_from(said["factor_milli"].as_u64()?).ok()?;
        Backoff::Exponential { base: duration(base), factor_milli }
    } else {
        let delays = said["custom"].as_array()?.iter();
        Backoff::Custom(delays.map(|delay| delay.as_i64().map(duration)).collect::<Option<_>>()?)
    };
    let jitter = match value["jitter"].as_str()? {
        "none" => Jitter::None,
        "tenth" => Jitter::Tenth,
        "equal" => Jitter::Equal,
        "full" => Jitter::Full,
        _ => return None,
    };
    Some(Retry {
        backoff,
        cap: value["cap"].as_i64().map_or(Duration::MAX, duration),
        jitter,
        max_attempts: value["max_attempts"].as_u64().and_then(|runs| u32::try_from(runs).ok()),
        max_duration: value["max_duration"].as_i64().map(duration),
    })
}

pub(super) fn address(address: &Address) -> Value {
    json!([address.kind().as_str(), address.name().as_str(), address.key()])
}

pub(super) fn read_address(value: &Value) -> Read<Address> {
    let part = |index: usize| value[index].as_str().ok_or_else(|| strange("the object", value));
    Address::new(name(part(0)?)?, name(part(1)?)?, part(2)?)
        .map_err(|_| strange("the object", value))
}

/// A turn without its state, which is bytes.
pub(super) fn turn(turn: &Turn) -> Value {
    let alarm = match &turn.alarm {
        Alarm::Keep => json!({}),
        Alarm::Cancel => json!({ "cancel": true }),
        Alarm::Set(job) => json!({ "set": whole_job(job) }),
        Alarm::Move(when) => {
            let (kind, us) = start(*when);
            json!({ "move": [kind, us] })
        }
    };
    let news = turn.news.iter().map(|news| {
        let cut = windlass_core::outcome::ErrorText::new(&news.detail);
        json!({ "topic": news.topic.as_str(), "detail": text(cut.as_str()) })
    });
    let mut said = json!({
        "object": address(&turn.object),
        "version": turn.version,
        "alarm": alarm,
        "jobs": turn.jobs.iter().map(|job| whole_job(job)).collect::<Vec<_>>(),
        "news": news.collect::<Vec<_>>(),
        "purge": match turn.purge {
            Purge::Keep => json!("keep"),
            Purge::Now => json!("now"),
            Purge::Never => json!("never"),
            Purge::After(delay) => json!({ "after": micros(delay) }),
        },
    });
    if let Some((status, reason)) = &turn.status {
        let reason = reason.as_ref().map(|reason| text(reason.as_str()));
        said["status"] = json!([status_number(*status), reason]);
    }
    match turn.ran {
        None => {}
        Some(RunResult::Well) => said["ran"] = "well".into(),
        Some(RunResult::Badly) => said["ran"] = "badly".into(),
    }
    said
}

pub(super) fn status_number(status: ObjectStatus) -> i16 {
    match status {
        ObjectStatus::Active => 0,
        ObjectStatus::Stopped => 1,
        ObjectStatus::Failed => 2,
    }
}

pub(super) fn read_status(number: i16) -> Read<ObjectStatus> {
    match number {
        0 => Ok(ObjectStatus::Active),
        1 => Ok(ObjectStatus::Stopped),
        2 => Ok(ObjectStatus::Failed),
        other => Err(strange("the status", other)),
    }
}

/// A report, cut to what a record keeps; `None` if it says nothing.
pub(super) fn report(report: &Report) -> Option<Value> {
    if report.is_empty() {
        return None;
    }
    let report = report.clone().bounded();
    let mut said = json!({});
    if let Some(progress) = &report.progress {
        said["progress"] = json!({ "percent": progress.percent, "note": text(&progress.note) });
    }
    if !report.lines.is_empty() {
        let line = |line: &LogLine| {
            let (at, text) = (line.at.as_micros(), text(&line.text));
            json!({ "at": at, "attempt": line.attempt, "text": text })
        };
        said["lines"] = report.lines.iter().map(line).collect();
        said["lines_dropped"] = report.lines_dropped.min(i32::MAX as u32).into();
    }
    if !report.steps.is_empty() {
        let step = |step: &Step| {
            let (name, result) = (step.name.as_str(), hex(&step.result));
            json!({ "name": name, "result": result })
        };
        said["steps"] = report.steps.iter().map(step).collect();
    }
    Some(said)
}

/// The number of a verdict, and its delay or reason.
pub(super) fn verdict(verdict: Verdict) -> (i16, Option<i64>) {
    match verdict {
        Verdict::Complete => (0, None),
        Verdict::Retry(delay) => (1, Some(micros(delay))),
        Verdict::Snooze(pause) => (2, Some(micros(pause))),
        Verdict::Release => (3, None),
        Verdict::Bury(reason) => (4, Some(reason as i64)),
        Verdict::Cancel(reason) => (5, Some(reason as i64)),
    }
}

pub(super) fn state_name(number: i64) -> Read<StateName> {
    let index = usize::try_from(number).ok();
    index
        .and_then(|index| StateName::ALL.get(index))
        .copied()
        .ok_or_else(|| strange("state", number))
}

pub(super) fn dead_reason(number: i64) -> Read<DeadReason> {
    Ok(match number {
        0 => DeadReason::AttemptsExhausted,
        1 => DeadReason::Permanent,
        2 => DeadReason::DurationExhausted,
        3 => DeadReason::Crashed,
        4 => DeadReason::DependencyFailed,
        other => return Err(strange("the reason of a death", other)),
    })
}

pub(super) fn cancel_reason(number: i64) -> Read<CancelReason> {
    Ok(match number {
        0 => CancelReason::Requested,
        1 => CancelReason::Handler,
        2 => CancelReason::Expired,
        3 => CancelReason::Cleared,
        4 => CancelReason::DependencyCancelled,
        5 => CancelReason::Replaced,
        other => return Err(strange("the reason of a cancellation", other)),
    })
}

pub(super) fn attempt_end(number: i64) -> Read<AttemptEnd> {
    let end = u8::try_from(number).ok().and_then(AttemptEnd::from_number);
    end.ok_or_else(|| strange("the end of an attempt", number))
}

pub(super) fn settings(value: &Value) -> Read<QueueSettings> {
    let read = || {
        let number = |what: &str| value[what].as_u64();
        let hook = |what: &str| match value[what].as_str() {
            Some(kind) => Name::new(kind).ok().map(Some),
            None => Some(None),
        };
        let lanes = value["paused_lanes"].as_array()?.iter();
        let lanes = lanes.map(|lane| u32::try_from(lane.as_u64()?).ok());
        Some(QueueSettings {
            paused: value["paused"].as_bool()?,
            max_depth: number("max_depth"),
            ageing: value["ageing"].as_i64().map(duration),
            lanes: number("lanes")
                .and_then(|lanes| u32::try_from(lanes).ok())
                .and_then(std::num::NonZeroU32::new),
            paused_lanes: lanes.collect::<Option<_>>()?,
            lane_depth: number("lane_depth"),
            on_dead: hook("on_dead")?,
            on_empty: hook("on_empty")?,
        })
    };
    read().ok_or_else(|| strange("the settings", value))
}

/// What became of an item of a batch.
pub(super) struct Placed {
    pub(super) id: Uuid,
    pub(super) acceptance: i32,
    pub(super) depth: i64,
    pub(super) sequence: i64,
    pub(super) lane: Option<i64>,
    pub(super) ahead: Option<i64>,
}

impl Placed {
    pub(super) fn of_json(value: &Value) -> Read<Self> {
        let read = || {
            Some(Self {
                id: value["id"].as_str()?.parse().ok()?,
                acceptance: i32::try_from(value["acceptance"].as_i64()?).ok()?,
                depth: value["depth"].as_i64()?,
                sequence: value["sequence"].as_i64()?,
                lane: value["lane"].as_i64(),
                ahead: value["position"].as_i64(),
            })
        };
        read().ok_or_else(|| strange("the place of a job", value))
    }

    pub(super) fn into_enqueued(self) -> Read<Enqueued> {
        let acceptance = match self.acceptance {
            0 => Acceptance::Accepted,
            1 => Acceptance::AlreadyAccepted,
            2 => Acceptance::Deduplicated { payload_differs: false },
            3 => Acceptance::Deduplicated { payload_differs: true },
            other => return Err(strange("acceptance", other)),
        };
        let lane = self.lane.and_then(|lane| u32::try_from(lane).ok());
        let position = self.ahead.unwrap_or(0).cast_unsigned();
        Ok(Enqueued {
            id: job_id(self.id),
            acceptance,
            depth: self.depth.max(0).cast_unsigned(),
            sequence: self.sequence.cast_unsigned(),
            lane: lane.map(|lane| LanePosition { lane, position }),
        })
    }
}

pub(super) fn bytes(bytes: Vec<u8>) -> Bytes {
    Arc::from(bytes)
}
