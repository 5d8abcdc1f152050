//! What people do to jobs and queues.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::job::{JobId, NewJob, Start};
use windlass_core::ledger::{CancelAnswer, Cleared, Enqueued, QueueChange};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::record::QueueSettings;
use windlass_core::refusal::Refusal;

use super::enqueue::check_batch;
use super::wire::Placed;
use super::{Parameter, PostgresStore, about_now, jobs, refusal, spec, understood, wire};
use crate::store::{Answer, JobAction, JobActionDone, JobActionResult, Selection, StoreError};

pub(super) async fn alter(
    store: &PostgresStore,
    selection: Selection,
    action: JobAction,
) -> Answer<Vec<JobActionResult>> {
    selection.check(&action)?;
    if let (JobAction::ReplayEdited(edited), Selection::Jobs(jobs)) = (&action, &selection)
        && let [job] = jobs.as_slice()
    {
        let result = match replay_edited(store, *job, edited).await {
            Err(StoreError::Refused(refusal)) => Err(refusal),
            other => Ok(JobActionDone::Replaced(other?)),
        };
        return Ok(vec![JobActionResult { job: *job, result }]);
    }
    let (ids, filter) = match selection {
        Selection::Jobs(ids) => (Some(ids), None),
        Selection::Matching(filter) => match jobs::filter(store, &filter).await? {
            Some(filter) => (None, Some(filter)),
            None => return Ok(Vec::new()),
        },
    };
    let ids: Option<Vec<uuid::Uuid>> = ids.map(|ids| ids.into_iter().map(wire::uuid).collect());
    let (what, start) = match action {
        JobAction::Cancel => (0_i32, Start::Now),
        JobAction::Reschedule(start) => {
            start.check(about_now())?;
            (1, start)
        }
        JobAction::Replay | JobAction::ReplayEdited(_) => (2, Start::Now),
        JobAction::Remove => (3, Start::Now),
        JobAction::RemoveGraph => (4, Start::Now),
    };
    let (kind, us) = wire::start(start);
    let kind = i32::from(kind);
    let parameters: [Parameter<'_>; 5] = [
        (&ids, Type::UUID_ARRAY),
        (&filter, Type::JSONB),
        (&what, Type::INT4),
        (&kind, Type::INT4),
        (&us, Type::INT8),
    ];
    let sql = "select * from windlass.alter($1, $2, $3, $4, $5)";
    let rows = store.call("alter jobs", sql, &parameters).await?;
    let (mut altered, mut rings) = (Vec::with_capacity(rows.len()), None);
    for row in rows {
        match row.get::<_, Option<uuid::Uuid>>("job").map(wire::job_id) {
            Some(job) => altered.push(read_altered(&row, job, &action)?),
            None => rings = row.get("rings"),
        }
    }
    store.committed_and_rings(rings).await;
    Ok(altered)
}

fn read_altered(row: &Row, job: JobId, action: &JobAction) -> Answer<JobActionResult> {
    if let Some(detail) = row.get::<_, Option<Value>>("refusal") {
        let refusal = refusal::read(&detail, Some(job));
        let result = Err(refusal.unwrap_or(Refusal::UnknownJob { job }));
        return Ok(JobActionResult { job, result });
    }
    let done = match (action, row.get::<_, i32>("deed")) {
        (JobAction::Cancel, 0) => JobActionDone::Cancel(CancelAnswer::Cancelled),
        (JobAction::Cancel, _) => JobActionDone::Cancel(CancelAnswer::Requested),
        (JobAction::Reschedule(_), state) => {
            JobActionDone::Rescheduled(understood(wire::state_name(state.into()))?)
        }
        (JobAction::Replay | JobAction::ReplayEdited(_), _) => JobActionDone::Replayed,
        (JobAction::Remove, _) => JobActionDone::Removed,
        (JobAction::RemoveGraph, jobs) => {
            JobActionDone::GraphRemoved { jobs: jobs.unsigned_abs().into() }
        }
    };
    Ok(JobActionResult { job, result: Ok(done) })
}

async fn replay_edited(
    store: &PostgresStore,
    job: JobId,
    edited: &Arc<NewJob>,
) -> Answer<Enqueued> {
    let edited = [edited.clone()];
    check_batch(&edited, &store.limits)?;
    let (id, edited) = (wire::uuid(job), spec::whole_job(&edited[0]));
    let parameters: [Parameter<'_>; 2] = [(&id, Type::UUID), (&edited, Type::JSONB)];
    let sql = "select * from windlass.replay_edited($1, $2)";
    let row = match store.one("replay an edited job", sql, &parameters).await {
        Err(StoreError::Refused(Refusal::KeyTaken { holder, .. })) => {
            return Err(Refusal::KeyTaken { job, holder }.into());
        }
        other => other?,
    };
    let placed = understood(Placed::of_json(&row.get("placed")))?;
    store.committed_and_rings(row.get("rings")).await;
    understood(placed.into_enqueued())
}

pub(super) async fn configure(
    store: &PostgresStore,
    queue: Name,
    change: QueueChange,
) -> Answer<QueueSettings> {
    // What is wrong with it whatever the settings are.
    match &change {
        QueueChange::PauseLane(_) => {}
        other => drop(other.clone().apply(&QueueSettings::default())?),
    }
    let (what, value) = write_change(&change);
    let queue = queue.as_str();
    let parameters: [Parameter<'_>; 3] =
        [(&queue, Type::TEXT), (&what, Type::TEXT), (&value, Type::JSONB)];
    let sql = "select * from windlass.configure($1, $2, $3)";
    let row = store.one("configure a queue", sql, &parameters).await?;
    store.committed_and_rings(row.get("rings")).await;
    understood(wire::settings(&row.get("settings")))
}

pub(super) async fn clear(store: &PostgresStore, queue: Name) -> Answer<Cleared> {
    let queue = queue.as_str();
    let sql = "select * from windlass.clear($1)";
    let row = store.one("clear a queue", sql, &[(&queue, Type::TEXT)]).await?;
    store.committed_and_rings(row.get("rings")).await;
    Ok(Cleared {
        cleared: row.get::<_, i64>("cleared").cast_unsigned(),
        followed: row.get::<_, i64>("followed").cast_unsigned(),
    })
}

/// A setting of a queue as SQL takes it.
fn write_change(change: &QueueChange) -> (&'static str, Value) {
    match change {
        QueueChange::Pause => ("pause", Value::Null),
        QueueChange::Resume => ("resume", Value::Null),
        QueueChange::MaxDepth(limit) => ("max_depth", json!(limit.map(limits::countable))),
        QueueChange::Ageing(step) => ("ageing", json!(step.map(wire::micros))),
        QueueChange::Lanes(lanes) => ("lanes", json!(lanes.map(std::num::NonZeroU32::get))),
        QueueChange::PauseLane(lane) => ("pause_lane", json!(lane)),
        QueueChange::ResumeLane(lane) => ("resume_lane", json!(lane)),
        QueueChange::LaneDepth(limit) => ("lane_depth", json!(limit.map(limits::countable))),
        QueueChange::OnDead(kind) => ("on_dead", json!(kind.as_ref().map(Name::as_str))),
        QueueChange::OnEmpty(kind) => ("on_empty", json!(kind.as_ref().map(Name::as_str))),
    }
}
