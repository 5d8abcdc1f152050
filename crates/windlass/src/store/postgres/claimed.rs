//! Jobs on their way to a worker: what a claim asks for and answers, and the numbers of the jobs,
//! so that a settlement need not look for them by id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::job::{JobId, Lease, LeaseToken, NewJob};
use windlass_core::ledger::{Claim, KindClaim};
use windlass_core::name::Name;
use windlass_core::outcome::ErrorText;
use windlass_core::record::Step;
use windlass_core::time::Timestamp;
use windlass_core::worker::ASK_AHEAD;

use super::Parameter;
use super::event::QueueKinds;
use super::record;
use super::wire::{self, JobColumns, Read, UnknownValue};
use crate::store::ClaimedJob;

/// Most jobs that are remembered; beyond that all are forgotten and looked up.
const REMEMBERED: usize = 100_000;

/// The numbers of jobs that were handed out here and are not settled, of those with whose end
/// nothing else begins or ends.
#[derive(Default)]
pub(super) struct HandedOut(Mutex<HashMap<JobId, i64>>);

impl HandedOut {
    /// Remembers jobs that a claim handed out, of each row and in the last.
    pub(super) fn remember(&self, rows: &[Row], spoken: &[ClaimedJob]) {
        let mut known = self.known();
        if known.len() + rows.len() + spoken.len() > REMEMBERED {
            known.clear();
        }
        let alone = rows.iter().filter(|row| row.get::<_, Option<bool>>(15).is_none());
        known.extend(alone.map(|row| (wire::job_id(row.get(0)), row.get::<_, i64>(1))));
        known.extend(spoken.iter().map(|claimed| (claimed.job.id, claimed.sequence.cast_signed())));
    }

    /// The numbers of jobs, as far as they are known.
    pub(super) fn numbers(&self, jobs: impl Iterator<Item = JobId>) -> Vec<Option<i64>> {
        let known = self.known();
        jobs.map(|job| known.get(&job).copied()).collect()
    }

    /// Forgets jobs that have been settled. Not before the answer is there: a settlement whose
    /// answer was lost is sent again.
    pub(super) fn forget(&self, jobs: impl Iterator<Item = JobId>) {
        let mut known = self.known();
        for job in jobs {
            known.remove(&job);
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<JobId, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Large claims that are at the server, each with the parity of the numbers it keeps to, or `None`
/// if it takes what there is. Two at the same time would spend their time passing over what the
/// other holds.
#[derive(Default)]
pub(super) struct Claims(Mutex<Vec<Option<i32>>>);

/// The half that a claim keeps to, if it does, until this is dropped.
pub(super) struct ClaimParity<'a> {
    /// Where it is noted; a small claim is in nobody's way.
    noted: Option<&'a Claims>,
    half: Option<i32>,
}

impl Claims {
    /// A claim of so many jobs begins.
    pub(super) fn begin(&self, limit: usize) -> ClaimParity<'_> {
        if limit < ASK_AHEAD as usize {
            return ClaimParity { noted: None, half: None };
        }
        let mut others = self.at_the_server();
        let is_free = |half: &i32| !others.contains(&Some(*half));
        let half = (!others.is_empty()).then(|| [0, 1].into_iter().find(is_free)).flatten();
        others.push(half);
        ClaimParity { noted: Some(self), half }
    }

    fn at_the_server(&self) -> MutexGuard<'_, Vec<Option<i32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClaimParity<'_> {
    fn drop(&mut self) {
        let Some(claims) = self.noted else { return };
        let mut all = claims.at_the_server();
        if let Some(place) = all.iter().position(|half| *half == self.half) {
            all.swap_remove(place);
        }
    }
}

/// The terms of a claim, column by column.
pub(super) struct ClaimColumns<'a> {
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

impl<'a> ClaimColumns<'a> {
    pub(super) fn of(claim: &'a Claim, part: &ClaimParity<'_>) -> Self {
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
            rate_periods: each().map(|kind| kind.rate.map(|rate| rate.period_micros())).collect(),
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

/// The lines of the jobs in the answer to a claim.
pub(super) fn lines(rows: &[Row]) -> impl Iterator<Item = i32> {
    let spoken = rows.last().and_then(|stand| stand.get::<_, Option<Vec<i32>>>(24));
    rows.iter().filter_map(|row| row.get(2)).chain(spoken.into_iter().flatten())
}

/// Reads the answer to a claim.
pub(super) struct ClaimReader<'a> {
    pub(super) claim: &'a Claim,
    pub(super) since: Timestamp,
    pub(super) lines: &'a QueueKinds,
}

/// What all jobs of a line have in common.
struct OfLine<'a> {
    queue: &'a Name,
    kind: &'a Name,
    terms: &'a KindClaim,
}

/// What is said of a job apart from what its producer said.
struct Hand {
    token: i64,
    attempt: u32,
    recoveries: u32,
    generation: u32,
    number: i64,
    created_at: i64,
    first_started_at: Option<i64>,
    steps: Vec<Step>,
    last_error: Option<ErrorText>,
}

impl ClaimReader<'_> {
    fn line(&self, line: Option<&i32>) -> Read<OfLine<'_>> {
        let unknown = || UnknownValue("a job of a line that is not there".to_string());
        let (queue, kind) = line.and_then(|line| self.lines.get(line)).ok_or_else(unknown)?;
        let terms = self.claim.kinds.iter().find(|terms| terms.kind == *kind);
        Ok(OfLine { queue, kind, terms: terms.ok_or_else(unknown)? })
    }

    fn hand(&self, job: NewJob, line: &OfLine<'_>, hand: Hand) -> ClaimedJob {
        let lease = Lease {
            token: LeaseToken(hand.token.cast_unsigned()),
            worker: self.claim.worker.clone(),
            since: self.since,
            until: self.since + line.terms.lease_length(),
            max_attempts: line.terms.most_runs(job.max_attempts()),
            cancel_requested: false,
        };
        ClaimedJob {
            job: Arc::new(job),
            lease,
            attempt: hand.attempt,
            recoveries: hand.recoveries,
            generation: hand.generation,
            sequence: hand.number.cast_unsigned(),
            created_at: wire::time(hand.created_at),
            first_started_at: hand.first_started_at.map_or(self.since, wire::time),
            steps: hand.steps,
            last_error: hand.last_error,
        }
    }

    /// A claimed job in a row of its own. Columns are read by their numbers: by name would cost
    /// more than all the rest. What is as usual is left out: no priority, ready at once, the first
    /// start, nothing recovered.
    pub(super) fn row(&self, row: &Row) -> Read<ClaimedJob> {
        let line = self.line(row.get::<_, Option<i32>>(2).as_ref())?;
        let columns = JobColumns {
            id: row.get(0),
            queue: line.queue.clone(),
            kind: line.kind.clone(),
            payload: row.get(3),
            spec: row.get(4),
            priority: row.get::<_, Option<_>>(5).unwrap_or(0),
            start: (row.get::<_, Option<_>>(6).unwrap_or(0), row.get(7)),
        };
        let hand = Hand {
            token: row.get(9),
            attempt: row.get::<_, Option<i32>>(10).unwrap_or(1).cast_unsigned(),
            recoveries: row.get::<_, Option<i32>>(11).unwrap_or(0).cast_unsigned(),
            generation: row.get::<_, Option<i32>>(26).unwrap_or(0).cast_unsigned(),
            number: row.get(1),
            created_at: row.get(8),
            first_started_at: row.get(12),
            steps: record::steps(row.get(13), row.get(14))?,
            last_error: row.get::<_, Option<&str>>(27).map(ErrorText::new),
        };
        Ok(self.hand(columns.into_job()?, &line, hand))
    }

    /// The claimed jobs that a lease speaks for, all in the last row.
    pub(super) fn spoken(&self, stand: &Row) -> Read<Vec<ClaimedJob>> {
        let Some(ids) = stand.get::<_, Option<Vec<Uuid>>>(19) else { return Ok(Vec::new()) };
        let numbers: Vec<i64> = stand.get(20);
        let mut payloads: &[u8] = stand.get(21);
        let sizes: Vec<i32> = stand.get(22);
        let created: Vec<i64> = stand.get(23);
        let lines: Vec<i32> = stand.get(24);
        let mut details: Vec<Option<Value>> = stand.get::<_, Option<_>>(25).unwrap_or_default();
        let (first, lowest) = (stand.get::<_, i64>(9), numbers.iter().copied().min().unwrap_or(0));
        let common = if lines.len() == 1 { Some(self.line(lines.first())?) } else { None };
        let mut jobs = Vec::with_capacity(ids.len());
        let each = ids.into_iter().zip(numbers).zip(sizes.into_iter().zip(created));
        for (place, ((id, number), (size, created_at))) in each.enumerate() {
            let size = usize::try_from(size).unwrap_or(0);
            let cut = payloads.split_at_checked(size);
            let (payload, rest) =
                cut.ok_or_else(|| UnknownValue("payloads cut short".to_string()))?;
            payloads = rest;
            let line = match &common {
                Some(line) => line,
                None => &self.line(lines.get(place))?,
            };
            let detail = details.get_mut(place).and_then(Option::take);
            let columns = JobColumns::usual(id, line.queue.clone(), line.kind.clone(), payload);
            let columns = match detail {
                Some(detail) => columns.with(detail)?,
                None => columns,
            };
            let hand = Hand {
                token: first + number - lowest,
                attempt: 1,
                recoveries: 0,
                generation: 0,
                number,
                created_at,
                first_started_at: None,
                steps: Vec::new(),
                last_error: None,
            };
            jobs.push(self.hand(columns.into_job()?, line, hand));
        }
        Ok(jobs)
    }
}
