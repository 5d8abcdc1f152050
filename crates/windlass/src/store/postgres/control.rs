//! What people do to jobs and queues.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::audit::{Actor, AuditNote};
use windlass_core::job::{JobId, NewJob, Start};
use windlass_core::ledger::{CancelAnswer, Cleared, Enqueued, QueueChange};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::record::QueueSettings;
use windlass_core::refusal::Refusal;

use super::enqueue::check_batch;
use super::wire::Placed;
use super::{Parameter, PostgresStore, about_now, jobs, refusal, spec, understood, wire};
use crate::store::{
    AlterJobs, Answer, JobAction, JobActionDone, JobActionResult, Selection, StoreError, bulk,
};

/// What a change of jobs is called in an error.
const DOING: &str = "alter jobs";

pub(super) async fn alter(store: &PostgresStore, alter: AlterJobs) -> Answer<Vec<JobActionResult>> {
    alter.check()?;
    let by = alter.note().map(|note| note.head());
    let AlterJobs { selection, action, .. } = alter;
    if let (JobAction::ReplayEdited(edited), Selection::Jobs(jobs)) = (&action, &selection)
        && let [job] = jobs.as_slice()
    {
        let result = match replay_edited(store, *job, edited, by).await {
            Err(StoreError::Refused(refusal)) => Err(refusal),
            other => Ok(JobActionDone::Replaced(other?)),
        };
        return Ok(vec![JobActionResult { job: *job, result }]);
    }
    let (what, start) = match &action {
        JobAction::Cancel => (0_i32, Start::Now),
        JobAction::Reschedule(start) => {
            start.check(about_now())?;
            (1, *start)
        }
        JobAction::Replay | JobAction::ReplayEdited(_) => (2, Start::Now),
        JobAction::Remove => (3, Start::Now),
        JobAction::RemoveGraph => (4, Start::Now),
    };
    let change = BulkChange { action: &action, what, start: wire::start(start), by };
    match selection {
        Selection::Jobs(ids) => Ok(change.these(store, ids).await?),
        Selection::Matching(filter) => match jobs::filter(store, &filter).await? {
            Some(filter) => change.matching(store, filter).await,
            None => Ok(Vec::new()),
        },
    }
}

/// What is done to many jobs, as SQL takes it.
struct BulkChange<'a> {
    action: &'a JobAction,
    what: i32,
    start: (i16, Option<i64>),
    /// What its audit entries begin with.
    by: Option<String>,
}

/// Which jobs one call is about.
#[derive(Default)]
struct Chunk {
    ids: Option<Vec<uuid::Uuid>>,
    filter: Option<Value>,
    /// Up to where the calls before have looked.
    after: i64,
    /// The last job that was there when the change began.
    until: Option<i64>,
}

/// What one call has done.
struct ChunkDone {
    altered: Vec<JobActionResult>,
    /// Up to where it has looked; `None` if nothing is left.
    looked_to: Option<i64>,
    until: Option<i64>,
}

impl BulkChange<'_> {
    /// Changes these jobs, in one commit.
    async fn these(&self, store: &PostgresStore, ids: Vec<JobId>) -> Answer<Vec<JobActionResult>> {
        let ids = Some(ids.into_iter().map(wire::uuid).collect());
        Ok(self.change(store, &Chunk { ids, ..Chunk::default() }).await?.altered)
    }

    /// Changes the jobs that match, of those that were there when the call began, in chunks.
    async fn matching(&self, store: &PostgresStore, filter: Value) -> Answer<Vec<JobActionResult>> {
        let mut chunk = Chunk { filter: Some(filter), ..Chunk::default() };
        let (mut altered, mut chunks) = (Vec::new(), 0);
        loop {
            let done = self.change(store, &chunk).await;
            let done = done.map_err(|error| bulk::after_others(error, chunks, DOING))?;
            chunks += usize::from(!done.altered.is_empty());
            altered.extend(done.altered);
            let Some(looked_to) = done.looked_to else { break };
            (chunk.after, chunk.until) = (looked_to, done.until);
        }
        let replay = |jobs| self.these(store, jobs);
        bulk::replay_those_left(self.action, altered, chunks, DOING, replay).await
    }

    async fn change(&self, store: &PostgresStore, chunk: &Chunk) -> Answer<ChunkDone> {
        let (kind, us) = self.start;
        let kind = i32::from(kind);
        let most = i32::try_from(bulk::chunk_of(self.action)).unwrap_or(i32::MAX);
        let parameters: [Parameter<'_>; 9] = [
            (&chunk.ids, Type::UUID_ARRAY),
            (&chunk.filter, Type::JSONB),
            (&chunk.after, Type::INT8),
            (&chunk.until, Type::INT8),
            (&most, Type::INT4),
            (&self.what, Type::INT4),
            (&kind, Type::INT4),
            (&us, Type::INT8),
            (&self.by, Type::TEXT),
        ];
        let sql = "select * from windlass.alter($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let rows = store.call(DOING, sql, &parameters).await?;
        let altered = Vec::with_capacity(rows.len());
        let (mut done, mut rings) = (ChunkDone { altered, looked_to: None, until: None }, None);
        for row in rows {
            match row.get::<_, Option<uuid::Uuid>>("job").map(wire::job_id) {
                Some(job) => done.altered.push(read_altered(&row, job, self.action)?),
                None => {
                    rings = row.get("rings");
                    (done.looked_to, done.until) = (row.get("looked_to"), row.get("until"));
                }
            }
        }
        store.committed_and_rings(rings).await;
        Ok(done)
    }
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
    by: Option<String>,
) -> Answer<Enqueued> {
    let edited = [edited.clone()];
    check_batch(&edited, &store.limits)?;
    let (id, edited) = (wire::uuid(job), spec::whole_job(&edited[0]));
    let parameters: [Parameter<'_>; 3] =
        [(&id, Type::UUID), (&edited, Type::JSONB), (&by, Type::TEXT)];
    let sql = "select * from windlass.replay_edited($1, $2, $3)";
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
    by: Option<Actor>,
) -> Answer<QueueSettings> {
    let by = by.map(|by| AuditNote::of_setting(by, &queue, &change).head());
    // What is wrong with it whatever the settings are.
    match &change {
        QueueChange::PauseLane(_) => {}
        other => drop(other.clone().apply(&QueueSettings::default())?),
    }
    let (what, value) = write_change(&change);
    let queue = queue.as_str();
    let parameters: [Parameter<'_>; 4] =
        [(&queue, Type::TEXT), (&what, Type::TEXT), (&value, Type::JSONB), (&by, Type::TEXT)];
    let sql = "select * from windlass.configure($1, $2, $3, $4)";
    let row = store.one("configure a queue", sql, &parameters).await?;
    store.committed_and_rings(row.get("rings")).await;
    understood(wire::settings(&row.get("settings")))
}

pub(super) async fn clear(
    store: &PostgresStore,
    queue: Name,
    by: Option<Actor>,
) -> Answer<Cleared> {
    const DOING: &str = "clear a queue";
    let by = by.map(|by| AuditNote::of_clear(by, &queue).head());
    let queue = queue.as_str();
    let (mut after, mut until, mut all) = (0_i64, None::<i64>, Cleared::default());
    loop {
        let before = all.cleared.cast_signed();
        let parameters: [Parameter<'_>; 5] = [
            (&queue, Type::TEXT),
            (&after, Type::INT8),
            (&until, Type::INT8),
            (&before, Type::INT8),
            (&by, Type::TEXT),
        ];
        let sql = "select * from windlass.clear($1, $2, $3, $4, $5)";
        let row = store.one(DOING, sql, &parameters).await;
        let chunks = usize::from(all.cleared > 0);
        let row = row.map_err(|error| bulk::after_others(error, chunks, DOING))?;
        store.committed_and_rings(row.get("rings")).await;
        all.cleared += row.get::<_, i64>("cleared").cast_unsigned();
        all.followed += row.get::<_, i64>("followed").cast_unsigned();
        until = row.get("until");
        match row.get("looked_to") {
            Some(looked_to) => after = looked_to,
            None => return Ok(all),
        }
    }
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
