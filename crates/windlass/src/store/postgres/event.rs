//! Events, from the rows that hold what one statement had to tell under one topic.

use std::sync::Arc;

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::event::{Event, EventKind, EventResult, RecoveryReason, RemoveReason, Subject};
use windlass_core::job::Priority;
use windlass_core::limits;
use windlass_core::outcome::ErrorText;

use super::names::QueueKinds;
use super::wire::{self, Read, UnknownValue};
use super::{Parameter, PostgresStore, signed, understood};
use crate::store::Answer;

pub(super) async fn events(
    store: &PostgresStore,
    after: u64,
    limit: usize,
) -> Answer<Vec<Arc<Event>>> {
    let number = signed(after);
    let rows = i32::try_from(limit).unwrap_or(i32::MAX);
    let parameters: [Parameter<'_>; 2] = [(&number, Type::INT8), (&rows, Type::INT4)];
    let sql = "select * from windlass.events($1, $2)";
    let rows = store.call("read events", sql, &parameters).await?;
    let mut told = Vec::with_capacity(rows.len());
    for row in &rows {
        match row.get::<_, Option<i64>>("last") {
            Some(last) => {
                let last = last.cast_unsigned();
                store.database.committed.send_if_modified(|known| {
                    *known = last.max(*known);
                    false
                });
            }
            None => told.push(EventRow::of(row)),
        }
    }
    store.know(told.iter().flat_map(|told| told.queue_kinds.iter().copied())).await?;
    let mut events = Vec::new();
    for told in &told {
        events.extend(understood(told.events(&store.names().by_number, after))?);
        if events.len() >= limit {
            break;
        }
    }
    events.truncate(limit);
    look_up_results(store, &mut events).await?;
    Ok(events.into_iter().map(Arc::new).collect())
}

/// Adds what completed jobs returned to the events that tell of it.
async fn look_up_results(store: &PostgresStore, events: &mut [Event]) -> Answer<()> {
    let mut completed: Vec<&mut Event> = events
        .iter_mut()
        .filter(|event| matches!(event.what, EventKind::JobCompleted { .. }))
        .collect();
    if completed.is_empty() {
        return Ok(());
    }
    let job = |event: &&mut Event| event.job().map(wire::uuid).unwrap_or_default();
    let jobs: Vec<uuid::Uuid> = completed.iter().map(job).collect();
    let ats: Vec<i64> = completed.iter().map(|event| event.at.as_micros()).collect();
    let most = i32::try_from(limits::EVENT_RESULT_BYTES).unwrap_or(i32::MAX);
    let parameters: [Parameter<'_>; 3] =
        [(&jobs, Type::UUID_ARRAY), (&ats, Type::INT8_ARRAY), (&most, Type::INT4)];
    for row in store.call("read results", RESULTS, &parameters).await? {
        let place = usize::try_from(row.get::<_, i32>("n")).ok();
        let event = place.and_then(|n| completed.get_mut(n.checked_sub(1)?));
        if let Some(EventKind::JobCompleted { result, .. }) = event.map(|event| &mut event.what) {
            *result = read_result(&row);
        }
    }
    Ok(())
}

/// One row: events with consecutive numbers.
struct EventRow {
    first: i64,
    at: i64,
    topic: String,
    jobs: Vec<Uuid>,
    queue_kinds: Vec<i32>,
    a: Vec<Option<i64>>,
    b: Vec<Option<i64>>,
    detail: Value,
}

impl EventRow {
    fn of(row: &Row) -> Self {
        Self {
            first: row.get("number"),
            at: row.get("at"),
            topic: row.get("topic"),
            jobs: row.get::<_, Option<_>>("jobs").unwrap_or_default(),
            queue_kinds: row.get::<_, Option<_>>("queue_kinds").unwrap_or_default(),
            a: row.get::<_, Option<_>>("a").unwrap_or_default(),
            b: row.get::<_, Option<_>>("b").unwrap_or_default(),
            detail: row.get::<_, Option<_>>("detail").unwrap_or(Value::Null),
        }
    }

    /// The events after number `after`.
    fn events(&self, names: &QueueKinds, after: u64) -> Read<Vec<Event>> {
        let mut events = Vec::new();
        for index in 0..self.jobs.len().max(1) {
            let number = self.first.cast_unsigned() + index as u64;
            if number <= after {
                continue;
            }
            let at = wire::time(self.at);
            let (subject, what) = (self.subject(index, names)?, self.what(index)?);
            events.push(Event { number, at, subject, what });
        }
        Ok(events)
    }

    fn strange(&self) -> UnknownValue {
        UnknownValue(format!("the event {} {}", self.topic, self.detail))
    }

    fn subject(&self, index: usize, names: &QueueKinds) -> Read<Subject> {
        if let Some(job) = self.jobs.get(index) {
            let pair = of(&self.queue_kinds, index).and_then(|number| names.get(number));
            let (queue, kind) = pair.cloned().ok_or_else(|| self.strange())?;
            return Ok(Subject::Job { id: wire::job_id(*job), kind, queue });
        }
        if let Some(queue) = self.detail["queue"].as_str() {
            return Ok(Subject::Queue(wire::name(queue)?));
        }
        if let Some(worker) = self.detail["worker"].as_str() {
            return Ok(Subject::Worker(worker.into()));
        }
        Ok(Subject::Object(wire::read_address(&self.detail["object"])?))
    }

    fn what(&self, index: usize) -> Read<EventKind> {
        let a = || of(&self.a, index).copied().flatten().ok_or_else(|| self.strange());
        let b = || of(&self.b, index).copied().flatten().ok_or_else(|| self.strange());
        let number = |value: i64| u32::try_from(value).map_err(|_| self.strange());
        let worker = || -> Arc<str> { self.detail["worker"].as_str().unwrap_or_default().into() };
        let error = || self.detail["error"].as_str().map(ErrorText::new);
        let detail = |what: &str| self.detail[what].as_u64().ok_or_else(|| self.strange());
        let reason = || {
            let reason = usize::try_from(detail("reason")?).map_err(|_| self.strange())?;
            RecoveryReason::ALL.get(reason).copied().ok_or_else(|| self.strange())
        };
        Ok(match self.topic.as_str() {
            "job.enqueued" => {
                let priority = i32::try_from(a()?).map_err(|_| self.strange())?;
                EventKind::JobEnqueued { priority: Priority(priority) }
            }
            "job.deduplicated" => EventKind::JobDeduplicated { payload_differs: a()? == 1 },
            "job.blocked" => EventKind::JobBlocked { unmet: number(a()?)? },
            "job.unblocked" => EventKind::JobUnblocked,
            "job.scheduled" => EventKind::JobScheduled { at: wire::time(a()?) },
            "job.started" => EventKind::JobStarted { worker: worker(), attempt: number(a()?)? },
            "job.progress" => {
                EventKind::JobProgress { percent: u8::try_from(a()?).map_err(|_| self.strange())? }
            }
            "step.completed" => {
                let name = self.detail["name"].as_str().ok_or_else(|| self.strange())?;
                EventKind::StepCompleted { name: wire::name(name)? }
            }
            "job.completed" => {
                let duration = wire::duration(b()?);
                // Looked up when the events to be answered are known.
                let result = EventResult::Gone;
                EventKind::JobCompleted {
                    worker: worker(),
                    attempt: number(a()?)?,
                    duration,
                    result,
                }
            }
            "job.failed" => EventKind::JobFailed {
                worker: worker(),
                attempt: number(a()?)?,
                error: error().ok_or_else(|| self.strange())?,
                next_retry_at: of(&self.b, index).copied().flatten().map(wire::time),
            },
            "job.retrying" => {
                EventKind::JobRetrying { at: wire::time(b()?), attempt: number(a()?)? }
            }
            "job.snoozed" => EventKind::JobSnoozed { until: wire::time(a()?) },
            "job.released" => EventKind::JobReleased { worker: worker() },
            "job.dead" => EventKind::JobDead {
                reason: wire::dead_reason(detail("reason")?.cast_signed())?,
                attempts: number(a()?)?,
                error: error(),
            },
            "job.cancel_requested" => EventKind::JobCancelRequested,
            "job.cancelled" => EventKind::JobCancelled { reason: wire::cancel_reason(a()?)? },
            "job.replayed" => EventKind::JobReplayed { generation: number(a()?)? },
            "job.removed" => EventKind::JobRemoved {
                reason: match a()? {
                    0 => RemoveReason::Requested,
                    1 => RemoveReason::Retention,
                    _ => RemoveReason::DeadLettersFull,
                },
            },
            "recovery.detected" => {
                let stale_for = wire::duration(b()?);
                EventKind::RecoveryDetected { reason: reason()?, attempt: number(a()?)?, stale_for }
            }
            "job.recovered" => EventKind::JobRecovered {
                reason: reason()?,
                attempt: number(a()?)?,
                recovery: number(detail("recovery")?.cast_signed())?,
                stale_for: wire::duration(b()?),
            },
            "recovery.exhausted" => EventKind::RecoveryExhausted { recoveries: number(a()?)? },
            "queue.paused" => EventKind::QueuePaused,
            "queue.resumed" => EventKind::QueueResumed,
            "queue.cleared" => EventKind::QueueCleared { jobs: detail("jobs")? },
            "queue.empty" => EventKind::QueueEmpty,
            "pool.empty" => EventKind::LaneEmpty {
                lane: number(detail("lane")?.cast_signed())?,
                completed: detail("completed")?,
            },
            "queue.full" => EventKind::QueueFull { limit: detail("limit")? },
            "queue.configured" => EventKind::QueueConfigured,
            "object.created" => EventKind::ObjectCreated,
            "object.removed" => EventKind::ObjectRemoved,
            "worker.started" => EventKind::WorkerStarted,
            "worker.stopping" => EventKind::WorkerStopping,
            "worker.stopped" => EventKind::WorkerStopped,
            "worker.error" => EventKind::WorkerError {
                error: error().unwrap_or_else(|| ErrorText::new("no reason was given")),
            },
            topic => EventKind::Object {
                topic: wire::name(topic)?,
                detail: self.detail["detail"].as_str().unwrap_or_default().into(),
            },
        })
    }
}

/// What is said of one of the jobs: what is said once is said of all.
fn of<T>(said: &[T], index: usize) -> Option<&T> {
    if said.len() == 1 { said.first() } else { said.get(index) }
}

/// Reads the outputs of jobs that completed at these times, if they are still kept: how many
/// bytes, -1 for none, and the bytes if they fit an event.
///
/// A copy in the event would make every completion write its output twice. An output does not
/// change once the job has completed, so what is read later is what was true then. The time tells
/// the job from a later one with its id.
const RESULTS: &str = "select c.n::int as n, \
      coalesce(pg_catalog.octet_length(p.output), -1) as bytes, \
      case when pg_catalog.octet_length(p.output) <= $3 then p.output end as output \
    from unnest($1::uuid[], $2::bigint[]) with ordinality as c(job, at, n) \
      cross join lateral (select j.seq from windlass.job j where j.id = c.job offset 0) j \
      cross join lateral (select p.output from windlass.job_state p \
        where p.seq = j.seq and p.state = 4 and p.at = c.at offset 0) p";

/// What a row of [`RESULTS`] says.
fn read_result(row: &Row) -> EventResult {
    let bytes: i32 = row.get("bytes");
    match (usize::try_from(bytes), row.get::<_, Option<Vec<u8>>>("output")) {
        (Err(_), _) => EventResult::None,
        (Ok(_), Some(output)) => EventResult::Output(wire::bytes(output)),
        (Ok(bytes), None) => EventResult::TooLarge { bytes },
    }
}

pub(super) fn recovery_number(reason: RecoveryReason) -> i32 {
    reason.noticed() as i32
}
