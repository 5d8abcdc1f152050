//! Jobs on their way to a worker: what a claim answered, and their numbers, so that a settlement
//! need not look for them by id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_postgres::Row;
use windlass_core::job::{JobId, Lease, LeaseToken};

use super::event::Lines;
use super::record;
use super::wire::{self, JobColumns, Read, Strange};
use crate::store::HandedJob;

/// Most jobs that are remembered; beyond that all are forgotten and looked up.
const REMEMBERED: usize = 100_000;

/// The numbers of jobs that were handed out here and are not settled, of those with whose end
/// nothing else begins or ends.
#[derive(Default)]
pub(super) struct HandedOut(Mutex<HashMap<JobId, i64>>);

impl HandedOut {
    /// Remembers what a claim answered.
    pub(super) fn remember(&self, rows: &[Row]) {
        let mut known = self.known();
        if known.len() + rows.len() > REMEMBERED {
            known.clear();
        }
        let plain = rows.iter().filter(|row| row.get::<_, Option<bool>>(20).unwrap_or(false));
        known.extend(plain.map(|row| (wire::job_id(row.get(0)), row.get::<_, i64>(1))));
    }

    /// The number of a job, if it is known, once.
    pub(super) fn take(&self, job: JobId) -> Option<i64> {
        self.known().remove(&job)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<JobId, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The line of a claimed job; `None` in the row that tells how things stand.
pub(super) fn line(row: &Row) -> Option<i32> {
    row.get(2)
}

/// A claimed job. Columns are read by their numbers: by name would cost more than all the rest.
pub(super) fn read(row: &Row, worker: &Arc<str>, lines: &Lines) -> Read<HandedJob> {
    let unknown = || Strange("a job of a line that is not there".to_string());
    let (queue, kind) = line(row).and_then(|line| lines.get(&line)).ok_or_else(unknown)?;
    let job = JobColumns {
        id: row.get(0),
        queue: queue.clone(),
        kind: kind.clone(),
        payload: row.get(3),
        spec: row.get(4),
        priority: row.get(5),
        start: (row.get(6), row.get(7)),
    };
    let lease = Lease {
        token: LeaseToken(row.get::<_, i64>(9).cast_unsigned()),
        worker: worker.clone(),
        since: wire::time(row.get(18)),
        until: wire::time(row.get(10)),
        max_attempts: u32::try_from(row.get::<_, i64>(11)).unwrap_or(u32::MAX),
        cancel_requested: false,
    };
    Ok(HandedJob {
        job: Arc::new(job.into_job()?),
        lease,
        attempt: row.get::<_, i32>(12).cast_unsigned(),
        recoveries: row.get::<_, i32>(13).cast_unsigned(),
        sequence: row.get::<_, i64>(1).cast_unsigned(),
        created_at: wire::time(row.get(8)),
        first_started_at: wire::time(row.get(14)),
        steps: record::steps(row.get(15), row.get(16))?,
    })
}
