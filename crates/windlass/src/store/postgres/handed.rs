//! Jobs on their way to a worker: what a claim asks for and answers, and the numbers of the jobs,
//! so that a settlement need not look for them by id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::job::{JobId, Lease, LeaseToken};
use windlass_core::ledger::Claim;
use windlass_core::name::Name;
use windlass_core::time::Timestamp;
use windlass_core::worker::ASK_AHEAD;

use super::Parameter;
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
    /// Remembers what a claim handed out.
    pub(super) fn remember(&self, rows: &[Row]) {
        let mut known = self.known();
        if known.len() + rows.len() > REMEMBERED {
            known.clear();
        }
        let alone = rows.iter().filter(|row| row.get::<_, Option<bool>>(15).is_none());
        known.extend(alone.map(|row| (wire::job_id(row.get(0)), row.get::<_, i64>(1))));
    }

    /// The number of a job, if it is known, once.
    pub(super) fn take(&self, job: JobId) -> Option<i64> {
        self.known().remove(&job)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<JobId, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Large claims that are at the server, each with the half of the numbers it keeps to, or `None` if
/// it takes what there is. Two at the same time would spend their time passing over what the other
/// holds.
#[derive(Default)]
pub(super) struct Claims(Mutex<Vec<Option<i32>>>);

/// The half that a claim keeps to, if it does, until this is dropped.
pub(super) struct Part<'a> {
    /// Where it is noted; a small claim is in nobody's way.
    noted: Option<&'a Claims>,
    half: Option<i32>,
}

impl Claims {
    /// A claim of so many jobs begins.
    pub(super) fn begin(&self, limit: usize) -> Part<'_> {
        if limit < ASK_AHEAD as usize {
            return Part { noted: None, half: None };
        }
        let mut others = self.at_the_server();
        let is_free = |half: &i32| !others.contains(&Some(*half));
        let half = (!others.is_empty()).then(|| [0, 1].into_iter().find(is_free)).flatten();
        others.push(half);
        Part { noted: Some(self), half }
    }

    fn at_the_server(&self) -> MutexGuard<'_, Vec<Option<i32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let Some(claims) = self.noted else { return };
        let mut all = claims.at_the_server();
        if let Some(place) = all.iter().position(|half| *half == self.half) {
            all.swap_remove(place);
        }
    }
}

/// The terms of a claim, column by column.
pub(super) struct Terms<'a> {
    worker: &'a str,
    queues: Option<Vec<&'a str>>,
    kinds: Vec<&'a str>,
    leases: Vec<i64>,
    max_attempts: Vec<i64>,
    concurrency: Vec<Option<i32>>,
    rate_jobs: Vec<Option<i32>>,
    rate_periods: Vec<Option<i64>>,
    rate_bursts: Vec<Option<i32>>,
    limit: i32,
    half: Option<i32>,
}

impl<'a> Terms<'a> {
    pub(super) fn of(claim: &'a Claim, part: &Part<'_>) -> Self {
        let each = || claim.kinds.iter();
        let count = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        Self {
            worker: &claim.worker,
            queues: claim.queues.as_ref().map(|queues| queues.iter().map(Name::as_str).collect()),
            kinds: each().map(|kind| kind.kind.as_str()).collect(),
            leases: each().map(|kind| wire::micros(kind.lease_length())).collect(),
            max_attempts: each().map(|kind| i64::from(kind.most_runs(None))).collect(),
            concurrency: each().map(|kind| kind.concurrency.map(count)).collect(),
            rate_jobs: each().map(|kind| kind.rate.map(|rate| count(rate.jobs))).collect(),
            rate_periods: each()
                .map(|kind| kind.rate.map(|rate| wire::micros(rate.period)))
                .collect(),
            rate_bursts: each().map(|kind| kind.rate.map(|rate| count(rate.burst))).collect(),
            limit: i32::try_from(claim.limit).unwrap_or(i32::MAX),
            half: part.half,
        }
    }

    pub(super) fn parameters(&self) -> [Parameter<'_>; 11] {
        [
            (&self.worker, Type::TEXT),
            (&self.queues, Type::TEXT_ARRAY),
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.leases, Type::INT8_ARRAY),
            (&self.max_attempts, Type::INT8_ARRAY),
            (&self.concurrency, Type::INT4_ARRAY),
            (&self.rate_jobs, Type::INT4_ARRAY),
            (&self.rate_periods, Type::INT8_ARRAY),
            (&self.rate_bursts, Type::INT4_ARRAY),
            (&self.limit, Type::INT4),
            (&self.half, Type::INT4),
        ]
    }
}

/// The line of a claimed job; `None` in the row that tells how things stand.
pub(super) fn line(row: &Row) -> Option<i32> {
    row.get(2)
}

/// A claimed job. Columns are read by their numbers: by name would cost more than all the rest.
/// What is as usual is left out: no priority, ready at once, the first start, nothing recovered.
pub(super) fn read(row: &Row, claim: &Claim, since: Timestamp, lines: &Lines) -> Read<HandedJob> {
    let unknown = || Strange("a job of a line that is not there".to_string());
    let (queue, kind) = line(row).and_then(|line| lines.get(&line)).ok_or_else(unknown)?;
    let terms = claim.kinds.iter().find(|terms| terms.kind == *kind).ok_or_else(unknown)?;
    let columns = JobColumns {
        id: row.get(0),
        queue: queue.clone(),
        kind: kind.clone(),
        payload: row.get(3),
        spec: row.get(4),
        priority: row.get::<_, Option<_>>(5).unwrap_or(0),
        start: (row.get::<_, Option<_>>(6).unwrap_or(0), row.get(7)),
    };
    let job = columns.into_job()?;
    let lease = Lease {
        token: LeaseToken(row.get::<_, i64>(9).cast_unsigned()),
        worker: claim.worker.clone(),
        since,
        until: since + terms.lease_length(),
        max_attempts: terms.most_runs(job.max_attempts()),
        cancel_requested: false,
    };
    Ok(HandedJob {
        job: Arc::new(job),
        lease,
        attempt: row.get::<_, Option<i32>>(10).unwrap_or(1).cast_unsigned(),
        recoveries: row.get::<_, Option<i32>>(11).unwrap_or(0).cast_unsigned(),
        sequence: row.get::<_, i64>(1).cast_unsigned(),
        created_at: wire::time(row.get(8)),
        first_started_at: row.get::<_, Option<i64>>(12).map_or(since, wire::time),
        steps: record::steps(row.get(13), row.get(14))?,
    })
}
