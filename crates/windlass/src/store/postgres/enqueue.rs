//! Jobs on their way into the database: one batch, one call.

use std::sync::Arc;

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::batch;
use windlass_core::job::NewJob;
use windlass_core::ledger::{Acceptance, Enqueued};
use windlass_core::limits::Limits;
use windlass_core::refusal::Refusal;

use super::database::{Database, odd};
use super::group::{EnqueueCall, Joined};
use super::wire::{self, Placed, Sparse};
use super::{Parameter, PostgresStore, about_now, spec, understood};
use crate::store::Answer;

pub(super) async fn enqueue(
    store: &PostgresStore,
    jobs: Vec<Arc<NewJob>>,
) -> Answer<Vec<Enqueued>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    check_batch(&jobs, &store.limits)?;
    let queue_kinds = store.queue_kinds(&jobs).await?;
    let call = EnqueueCall { jobs, queue_kinds };
    if !call.may_share() {
        return accept(&store.database, &call.jobs, call.queue_kinds).await;
    }
    match store.groups.join(&store.database, call) {
        Joined::First(call, turn) => turn.accept_alone(call).await,
        Joined::Waiting(answer) => answer.await,
    }
}

/// Accepts jobs in one statement, all or none, and wakes whom they concern.
pub(super) async fn accept(
    database: &Database,
    jobs: &[Arc<NewJob>],
    queue_kinds: Vec<i32>,
) -> Answer<Vec<Enqueued>> {
    let columns = BatchColumns::of(jobs, queue_kinds);
    let rows = database.call("enqueue", ACCEPT, &columns.parameters()).await?;
    let (enqueued, rings) = read_enqueued(&rows, jobs)?;
    database.committed_and_rings(rings).await;
    Ok(enqueued)
}

/// What of a batch can be refused without asking the database. Whether jobs wait for each other is
/// not: only it knows which of them are new.
pub(super) fn check_batch(jobs: &[Arc<NewJob>], limits: &Limits) -> Result<(), Refusal> {
    batch::check(jobs, limits, about_now())
}

const ACCEPT: &str = "select * from windlass.accept($1, $2, $3, $4, $5, $6, $7, $8)";

/// A batch of jobs, column by column.
struct BatchColumns<'a> {
    ids: Vec<uuid::Uuid>,
    queue_kinds: Vec<i32>,
    payloads: Vec<&'a [u8]>,
    priorities: Vec<i32>,
    start_kinds: Vec<i16>,
    starts: Sparse<i64>,
    max_attempts: Sparse<i64>,
    specs: Sparse<Value>,
}

impl<'a> BatchColumns<'a> {
    fn of(jobs: &'a [Arc<NewJob>], queue_kinds: Vec<i32>) -> Self {
        Self {
            ids: jobs.iter().map(|job| wire::uuid(job.id)).collect(),
            queue_kinds,
            payloads: jobs.iter().map(|job| &*job.payload).collect(),
            priorities: jobs.iter().map(|job| job.priority.0).collect(),
            start_kinds: jobs.iter().map(|job| wire::start(job.start).0).collect(),
            starts: jobs.iter().map(|job| wire::start(job.start).1).collect(),
            max_attempts: jobs.iter().map(|job| job.max_attempts().map(i64::from)).collect(),
            specs: jobs.iter().map(|job| spec::spec(job)).collect(),
        }
    }

    fn parameters(&self) -> [Parameter<'_>; 8] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.queue_kinds, Type::INT4_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.priorities, Type::INT4_ARRAY),
            (&self.start_kinds, Type::INT2_ARRAY),
            (&self.starts.column, Type::INT8_ARRAY),
            (&self.max_attempts.column, Type::INT8_ARRAY),
            (&self.specs.column, Type::JSONB_ARRAY),
        ]
    }
}

/// What became of a batch, and whom to ring.
fn read_enqueued(
    rows: &[Row],
    jobs: &[Arc<NewJob>],
) -> Answer<(Vec<Enqueued>, Option<Vec<String>>)> {
    let Some((last, rows)) = rows.split_last() else {
        return Err(odd("enqueue", "no row came back"));
    };
    let rings = last.get("rings");
    if let Some(sequences) = last.get::<_, Option<Vec<i64>>>("sequences") {
        return Ok((all_new(jobs, &sequences, last.get("depths")), rings));
    }
    let mut enqueued = Vec::with_capacity(rows.len());
    for row in rows {
        let placed = Placed {
            id: row.get("id"),
            acceptance: row.get("acceptance"),
            depth: row.get("depth"),
            sequence: row.get("sequence"),
            lane: row.get("lane"),
            ahead: row.get("ahead"),
        };
        enqueued.push(understood(placed.into_enqueued())?);
    }
    Ok((enqueued, rings))
}

/// Jobs that were all accepted, under these numbers. One depth is that of all.
fn all_new(jobs: &[Arc<NewJob>], sequences: &[i64], depths: Vec<i64>) -> Vec<Enqueued> {
    let depths = depths.iter().chain(depths.last().into_iter().cycle());
    let each = jobs.iter().zip(sequences).zip(depths);
    let enqueued = |((job, sequence), depth): ((&Arc<NewJob>, &i64), &i64)| Enqueued {
        id: job.id,
        acceptance: Acceptance::Accepted,
        depth: depth.cast_unsigned(),
        sequence: sequence.cast_unsigned(),
        lane: None,
    };
    each.map(enqueued).collect()
}
