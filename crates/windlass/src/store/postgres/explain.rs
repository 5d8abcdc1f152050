//! Why a job is not running: the facts, as `explain_facts` of the database tells them. What follows
//! from them is decided in the core.

use serde::Deserialize;
use serde_json::Value;
use tokio_postgres::types::Type;
use windlass_core::explain::{
    self, ExplainFacts, Explanation, JobFacts, LaneFacts, QueueKindFacts, StateFacts,
    blockers_shown,
};
use windlass_core::job::{JobId, StateName};
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::{PostgresStore, odd, understood, wire};
use crate::clock::BoxFuture;
use crate::store::{Answer, Store};

const DOING: &str = "explain a job";

pub(super) async fn explain(store: &PostgresStore, job: JobId) -> Answer<Explanation> {
    let workers = store.count().await?.workers;
    let (job, now) = job_facts(store, job, 0).await?;
    Ok(explain::explain(&ExplainFacts { now, workers, job }))
}

/// What `explain_facts` answers; what is optional is there in some states only.
#[derive(Deserialize)]
struct FactsRow {
    now: i64,
    state: i64,
    at: i64,
    attempts: u32,
    reason: Option<i64>,
    cancel_requested: bool,
    blockers: Option<Vec<JobId>>,
    queue_kind: Option<QueueKindRow>,
    ahead: Option<u64>,
    lane: Option<LaneRow>,
}

#[derive(Deserialize)]
struct QueueKindRow {
    queue: String,
    paused: bool,
    kind: String,
    running: u64,
    full_at: i64,
}

#[derive(Deserialize)]
struct LaneRow {
    paused: Option<u32>,
    holder: Option<JobId>,
    busy: bool,
    first: bool,
    ahead: u64,
}

/// What is known of a job, `depth` jobs away from the one that was asked about, and when.
fn job_facts(
    store: &PostgresStore,
    job: JobId,
    depth: usize,
) -> BoxFuture<'_, Answer<(JobFacts, Timestamp)>> {
    Box::pin(async move {
        let id = wire::uuid(job);
        let sql = "select windlass.explain_facts($1)";
        let row = store.one(DOING, sql, &[(&id, Type::UUID)]).await?;
        let Some(facts) = row.get::<_, Option<Value>>(0) else {
            return Err(Refusal::UnknownJob { job }.into());
        };
        let row = FactsRow::deserialize(facts).map_err(|why| odd(DOING, &why.to_string()))?;
        let now = wire::time(row.now);
        Ok((JobFacts { job, state: state_facts(store, row, depth).await? }, now))
    })
}

async fn state_facts(store: &PostgresStore, row: FactsRow, depth: usize) -> Answer<StateFacts> {
    let at = wire::time(row.at);
    let reason = row.reason.unwrap_or(0);
    Ok(match understood(wire::state_name(row.state))? {
        StateName::Blocked => {
            let blockers = row.blockers.unwrap_or_default();
            let mut by = Vec::new();
            for blocker in blockers.iter().take(blockers_shown(depth)) {
                by.push(job_facts(store, *blocker, depth + 1).await?.0);
            }
            StateFacts::Blocked { by, of: blockers.len() }
        }
        StateName::Scheduled => {
            let queue_kind = queue_kind_facts(row.queue_kind)?;
            StateFacts::Scheduled { at, attempts: row.attempts, queue_kind }
        }
        StateName::Ready => {
            let queue_kind = queue_kind_facts(row.queue_kind)?;
            let (lane, ahead) = (row.lane.map(lane_facts), row.ahead.unwrap_or(0));
            StateFacts::Ready { queue_kind, lane, ahead }
        }
        StateName::Running => StateFacts::Running { cancel_requested: row.cancel_requested },
        StateName::Completed => StateFacts::Completed { at },
        StateName::Dead => StateFacts::Dead { at, reason: understood(wire::dead_reason(reason))? },
        StateName::Cancelled => {
            StateFacts::Cancelled { at, reason: understood(wire::cancel_reason(reason))? }
        }
    })
}

fn queue_kind_facts(row: Option<QueueKindRow>) -> Answer<QueueKindFacts> {
    let row = row.ok_or_else(|| odd(DOING, "its queue and kind are unknown"))?;
    let QueueKindRow { queue, paused, kind, running, full_at } = row;
    Ok(QueueKindFacts {
        queue: understood(wire::name(&queue))?,
        paused,
        kind: understood(wire::name(&kind))?,
        running,
        full_at: wire::time(full_at),
    })
}

fn lane_facts(LaneRow { paused, holder, busy, first, ahead }: LaneRow) -> LaneFacts {
    LaneFacts { paused, holder, busy, first, ahead }
}
