//! What goes over the wire: times, numbers, turns, reports and settings as columns and JSON, and
//! back. `spec.rs` has the jobs themselves.
//!
//! Outputs, results and states are bytes and stay bytes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;
use windlass_core::audit::AuditNote;
use windlass_core::job::{Bytes, CancelReason, DeadReason, JobId, Start, StateName};
use windlass_core::ledger::{Acceptance, Enqueued, LanePosition};
use windlass_core::name::Name;
use windlass_core::object::{Address, Alarm, ObjectStatus, Purge, RunResult, Turn};
use windlass_core::outcome::Verdict;
use windlass_core::record::{AttemptEnd, LogLine, QueueSettings, Report, Step};
use windlass_core::time::Timestamp;

use super::spec;

/// Something in the database that this version does not understand.
#[derive(Debug, thiserror::Error)]
#[error("cannot understand what the database holds: {0}; was it written by another version?")]
pub(super) struct UnknownValue(pub(super) String);

pub(super) type Read<T> = Result<T, UnknownValue>;

pub(super) fn strange(what: &str, value: impl std::fmt::Debug) -> UnknownValue {
    UnknownValue(format!("{what} {value:?}"))
}

pub(super) fn uuid(job: JobId) -> Uuid {
    Uuid::from_bytes(job.to_bytes())
}

pub(super) fn job_id(uuid: Uuid) -> JobId {
    JobId::from_bytes(uuid.into_bytes())
}

/// A duration as it is kept, in microseconds. The longest is far beyond every life and yet so short
/// that PostgreSQL can add it to any time it may see: its sums fail where those of the ledger
/// saturate, and a sum that fails stops whatever it is part of.
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
        Alarm::Set(job) => json!({ "set": spec::whole_job(job) }),
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
        "jobs": turn.jobs.iter().map(|job| spec::whole_job(job)).collect::<Vec<_>>(),
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
    if let Some(note) = AuditNote::of_turn(turn) {
        said["by"] = note.head().into();
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
