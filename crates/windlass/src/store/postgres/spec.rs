//! What a producer says of a job, as the columns of `job` have it, and back.
//!
//! Payloads are bytes and stay bytes. What has no column of its own is a JSON object, `spec`, in
//! which only what was said stands, so that most jobs have none.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::job::{
    Dependency, Lane, NewJob, OnFailure, Priority, Timeout, Unique, UniqueScope,
};
use windlass_core::name::Name;
use windlass_core::retry::{Backoff, Jitter, Retry};

use super::wire::{
    Read, address, duration, hex, job_id, micros, name, read_address, read_start, start, strange,
};
use crate::trace;

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

/// Stands before a character that stands for another.
const ESCAPE: char = '\u{e000}';

/// A producer's text, to be read back exactly: as above, but nothing is lost.
fn exact(text: &str) -> String {
    text.replace(ESCAPE, "\u{e000}e").replace('\0', "\u{e000}0")
}

fn read_exact(text: &str) -> String {
    text.replace("\u{e000}0", "\0").replace("\u{e000}e", "\u{e000}")
}
