//! Jobs on their way to a worker: what a claim asks for and answers, and the numbers of the jobs,
//! so that a settlement need not look for them by id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;
use windlass_core::job::{JobId, Lease, LeaseToken, NewJob, RequestId};
use windlass_core::ledger::{Claim, KindClaim};
use windlass_core::name::Name;
use windlass_core::outcome::ErrorText;
use windlass_core::record::Step;
use windlass_core::time::Timestamp;
use windlass_core::worker::ASK_AHEAD;

use super::names::QueueKinds;
use super::spec::JobColumns;
use super::wire::{self, Read, UnknownValue};
use super::{Parameter, PostgresStore, record, understood};
use crate::store::{Answer, ClaimedBatch, ClaimedJob};

/// Most jobs that are remembered; beyond that all are forgotten and looked up.
const REMEMBERED: usize = 100_000;

/// The numbers of jobs that were claimed here and are not settled, of those that end without side
/// effects.
#[derive(Default)]
pub(super) struct ClaimedSequences(Mutex<HashMap<JobId, i64>>);

impl ClaimedSequences {
    /// Remembers jobs that a claim answered with: in rows, and as a batch.
    fn remember(&self, rows: &[Row], batch: &[ClaimedJob]) {
        let mut known = self.known();
        if known.len() + rows.len() + batch.len() > REMEMBERED {
            known.clear();
        }
        for row in rows {
            if get::<Option<bool>>(row, Column::HasSideEffects).is_none() {
                known.insert(wire::job_id(get(row, Column::Id)), get(row, Column::Seq));
            }
        }
        known.extend(batch.iter().map(|claimed| (claimed.job.id, claimed.sequence.cast_signed())));
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

/// The parity that a claim keeps to, if it does, until this is dropped.
struct ClaimParity<'a> {
    /// Where it is noted; a small claim is in nobody's way.
    noted: Option<&'a Claims>,
    parity: Option<i32>,
}

impl Claims {
    /// A claim of so many jobs begins.
    fn begin(&self, limit: usize) -> ClaimParity<'_> {
        if limit < ASK_AHEAD as usize {
            return ClaimParity { noted: None, parity: None };
        }
        let mut others = self.at_the_server();
        let is_free = |parity: &i32| !others.contains(&Some(*parity));
        let parity = (!others.is_empty()).then(|| [0, 1].into_iter().find(is_free)).flatten();
        others.push(parity);
        ClaimParity { noted: Some(self), parity }
    }

    fn at_the_server(&self) -> MutexGuard<'_, Vec<Option<i32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClaimParity<'_> {
    fn drop(&mut self) {
        let Some(claims) = self.noted else { return };
        let mut all = claims.at_the_server();
        if let Some(place) = all.iter().position(|parity| *parity == self.parity) {
            all.swap_remove(place);
        }
    }
}

/// The terms of a claim, column by column.
struct ClaimColumns<'a> {
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
    parity: Option<i32>,
    request: Option<Uuid>,
}

impl<'a> ClaimColumns<'a> {
    fn of(claim: &'a Claim, parity: &ClaimParity<'_>) -> Self {
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
            parity: parity.parity,
            request: claim.request.map(|RequestId(number)| Uuid::from_u128(number)),
        }
    }

    fn parameters(&self) -> [Parameter<'_>; 12] {
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
            (&self.parity, Type::INT4),
            (&self.request, Type::UUID),
        ]
    }
}

/// The columns of the answer to a claim, in the order in which they are asked for. They are read by
/// their places: to look for each by its name would cost more than all the rest.
#[derive(Clone, Copy)]
enum Column {
    // Of a job in a row of its own.
    Id,
    Seq,
    QueueKind,
    Payload,
    Spec,
    Priority,
    StartKind,
    StartUs,
    CreatedAt,
    Token,
    Attempt,
    Recoveries,
    Generation,
    FirstStarted,
    StepNames,
    StepResults,
    HasSideEffects,
    LastError,
    // Only if the claim is repeated: what may have changed since the first.
    Until,
    CancelRequested,
    // Of the last row, which says how things stand.
    Ready,
    Since,
    WakeIn,
    Owes,
    // Of jobs under a batch lease, all of them in the last row.
    Ids,
    Seqs,
    Payloads,
    Sizes,
    Created,
    QueueKinds,
    Details,
}

/// Asks for the columns as [`Column`] has them.
const CLAIM: &str = "select id, seq, queue_kind, payload, spec, priority, start_kind, start_us, \
    created_at, token, attempt, recoveries, generation, first_started, step_names, step_results, \
    has_side_effects, last_error, until, cancel_requested, ready, since, wake_in, owes, \
    ids, seqs, payloads, sizes, created, queue_kinds, details \
    from windlass.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// What stands in a column.
fn get<'a, T: FromSql<'a>>(row: &'a Row, column: Column) -> T {
    row.get(column as usize)
}

/// What stands in a column that is null where it is the default.
fn get_or<'a, T: FromSql<'a>>(row: &'a Row, column: Column, default: T) -> T {
    row.get::<_, Option<T>>(column as usize).unwrap_or(default)
}

pub(super) async fn claim(store: &PostgresStore, claim: Claim) -> Answer<ClaimedBatch> {
    let parity = store.claims.begin(claim.limit);
    let terms = ClaimColumns::of(&claim, &parity);
    let rows = store.call("claim", CLAIM, &terms.parameters()).await?;
    drop(parity);
    store.know(queue_kinds(&rows)).await?;
    let mut claimed = ClaimedBatch::default();
    let mut owes = false;
    if let Some((last, rows)) = rows.split_last() {
        claimed.ready = get::<i64>(last, Column::Ready).cast_unsigned();
        claimed.wake_in = get::<Option<i64>>(last, Column::WakeIn).map(wire::duration);
        owes = get(last, Column::Owes);
        let since = wire::time(get(last, Column::Since));
        let names = &store.names().by_number;
        let reader = ClaimReader { claim: &claim, since, names };
        claimed.jobs = understood(reader.batch(last))?;
        store.sequences.remember(rows, &claimed.jobs);
        for row in rows {
            claimed.jobs.push(understood(reader.row(row))?);
        }
    }
    // In the order in which they are to start, whatever the database thinks of it.
    claimed.jobs.sort_by_key(|claimed| claimed.lease.token);
    if !claimed.jobs.is_empty() {
        store.committed_and_rings(None).await;
    }
    if owes {
        go_on_with_cascades(store, &mut claimed).await;
    }
    Ok(claimed)
}

/// When a claim that found another call telling dependents should look again.
const ANOTHER_GOES_ON: Duration = Duration::from_millis(20);

/// Tells dependents of finished jobs that a large cascade has not reached yet: they may be what
/// this worker waits for. A call of its own, so that the jobs that were claimed wait for nothing
/// else to commit; if it fails, the next claim or housekeeping makes it.
async fn go_on_with_cascades(store: &PostgresStore, claimed: &mut ClaimedBatch) {
    let sql = "select * from windlass.go_on_with_cascades()";
    let row = match store.one("go on with cascades", sql, &[]).await {
        Ok(row) => row,
        Err(error) => return tracing::warn!(%error, "dependents will be told by a later call"),
    };
    store.committed_and_rings(row.get("rings")).await;
    if row.get("goes_on") {
        claimed.wake_in = Some(Duration::ZERO);
    } else if row.get("more") {
        let soon = claimed.wake_in.map_or(ANOTHER_GOES_ON, |wake_in| wake_in.min(ANOTHER_GOES_ON));
        claimed.wake_in = Some(soon);
    }
}

/// The pairs of queue and kind in the answer to a claim.
fn queue_kinds(rows: &[Row]) -> impl Iterator<Item = i32> {
    let batch = rows.last().and_then(|last| get::<Option<Vec<i32>>>(last, Column::QueueKinds));
    let each = rows.iter().filter_map(|row| get(row, Column::QueueKind));
    each.chain(batch.into_iter().flatten())
}

/// Reads the answer to a claim.
struct ClaimReader<'a> {
    claim: &'a Claim,
    since: Timestamp,
    names: &'a QueueKinds,
}

/// What all jobs of one kind in one queue have in common.
struct KindOfQueue<'a> {
    queue: &'a Name,
    kind: &'a Name,
    terms: &'a KindClaim,
}

/// What is said of an attempt apart from what the producer of its job said.
struct AttemptColumns {
    token: i64,
    attempt: u32,
    recoveries: u32,
    generation: u32,
    sequence: i64,
    created_at: i64,
    first_started_at: Option<i64>,
    steps: Vec<Step>,
    last_error: Option<ErrorText>,
    /// When the lease ends, if that is not as long after its start as a new one does.
    until: Option<i64>,
    cancel_requested: bool,
}

impl AttemptColumns {
    /// The first attempt of a job.
    fn first(token: i64, sequence: i64, created_at: i64) -> Self {
        Self {
            token,
            attempt: 1,
            recoveries: 0,
            generation: 0,
            sequence,
            created_at,
            first_started_at: None,
            steps: Vec::new(),
            last_error: None,
            until: None,
            cancel_requested: false,
        }
    }
}

impl ClaimReader<'_> {
    fn pair(&self, number: Option<&i32>) -> Read<KindOfQueue<'_>> {
        let unknown = || UnknownValue("a job of a queue and kind that are not there".to_string());
        let (queue, kind) = number.and_then(|number| self.names.get(number)).ok_or_else(unknown)?;
        let terms = self.claim.kinds.iter().find(|terms| terms.kind == *kind);
        Ok(KindOfQueue { queue, kind, terms: terms.ok_or_else(unknown)? })
    }

    fn claimed(&self, job: NewJob, pair: &KindOfQueue<'_>, attempt: AttemptColumns) -> ClaimedJob {
        let lease = Lease {
            token: LeaseToken(attempt.token.cast_unsigned()),
            worker: self.claim.worker.clone(),
            since: self.since,
            until: attempt.until.map_or(self.since + pair.terms.lease_length(), wire::time),
            max_attempts: pair.terms.most_runs(job.max_attempts()),
            cancel_requested: attempt.cancel_requested,
        };
        ClaimedJob {
            job: Arc::new(job),
            lease,
            attempt: attempt.attempt,
            recoveries: attempt.recoveries,
            generation: attempt.generation,
            sequence: attempt.sequence.cast_unsigned(),
            created_at: wire::time(attempt.created_at),
            first_started_at: attempt.first_started_at.map_or(self.since, wire::time),
            steps: attempt.steps,
            last_error: attempt.last_error,
        }
    }

    /// A claimed job in a row of its own.
    fn row(&self, row: &Row) -> Read<ClaimedJob> {
        let pair = self.pair(get::<Option<i32>>(row, Column::QueueKind).as_ref())?;
        let columns = JobColumns {
            id: get(row, Column::Id),
            queue: pair.queue.clone(),
            kind: pair.kind.clone(),
            payload: get(row, Column::Payload),
            spec: get(row, Column::Spec),
            priority: get_or(row, Column::Priority, 0),
            start: (get_or(row, Column::StartKind, 0), get(row, Column::StartUs)),
        };
        let attempt = AttemptColumns {
            token: get(row, Column::Token),
            attempt: get_or(row, Column::Attempt, 1_i32).cast_unsigned(),
            recoveries: get_or(row, Column::Recoveries, 0_i32).cast_unsigned(),
            generation: get_or(row, Column::Generation, 0_i32).cast_unsigned(),
            sequence: get(row, Column::Seq),
            created_at: get(row, Column::CreatedAt),
            first_started_at: get(row, Column::FirstStarted),
            steps: record::steps(get(row, Column::StepNames), get(row, Column::StepResults))?,
            last_error: get::<Option<&str>>(row, Column::LastError).map(ErrorText::new),
            until: get(row, Column::Until),
            cancel_requested: get_or(row, Column::CancelRequested, false),
        };
        Ok(self.claimed(columns.into_job()?, &pair, attempt))
    }

    /// The claimed jobs under a batch lease, all in the last row.
    fn batch(&self, last: &Row) -> Read<Vec<ClaimedJob>> {
        let Some(ids) = get::<Option<Vec<Uuid>>>(last, Column::Ids) else { return Ok(Vec::new()) };
        let sequences: Vec<i64> = get(last, Column::Seqs);
        let mut payloads: &[u8] = get(last, Column::Payloads);
        let sizes: Vec<i32> = get(last, Column::Sizes);
        let created: Vec<i64> = get(last, Column::Created);
        let numbers: Vec<i32> = get(last, Column::QueueKinds);
        let mut details: Vec<Option<Value>> = get_or(last, Column::Details, Vec::new());
        let lowest = sequences.iter().copied().min().unwrap_or(0);
        let first = get::<i64>(last, Column::Token);
        let common = if numbers.len() == 1 { Some(self.pair(numbers.first())?) } else { None };
        let mut jobs = Vec::with_capacity(ids.len());
        let each = ids.into_iter().zip(sequences).zip(sizes.into_iter().zip(created));
        for (place, ((id, sequence), (size, created_at))) in each.enumerate() {
            let size = usize::try_from(size).unwrap_or(0);
            let cut = payloads.split_at_checked(size);
            let (payload, rest) =
                cut.ok_or_else(|| UnknownValue("payloads cut short".to_string()))?;
            payloads = rest;
            let pair = match &common {
                Some(pair) => pair,
                None => &self.pair(numbers.get(place))?,
            };
            let columns = JobColumns::usual(id, pair.queue.clone(), pair.kind.clone(), payload);
            let columns = match details.get_mut(place).and_then(Option::take) {
                Some(detail) => columns.with(detail)?,
                None => columns,
            };
            let token = first + sequence - lowest;
            let attempt = AttemptColumns::first(token, sequence, created_at);
            jobs.push(self.claimed(columns.into_job()?, pair, attempt));
        }
        Ok(jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_asked_for_in_the_order_in_which_they_are_read() {
        let list = CLAIM.strip_prefix("select ").and_then(|rest| rest.split_once(" from "));
        let asked: Vec<&str> = list.expect("it asks for columns").0.split(", ").collect();
        let places = [
            (Column::Id, "id"),
            (Column::Seq, "seq"),
            (Column::QueueKind, "queue_kind"),
            (Column::Payload, "payload"),
            (Column::Spec, "spec"),
            (Column::Priority, "priority"),
            (Column::StartKind, "start_kind"),
            (Column::StartUs, "start_us"),
            (Column::CreatedAt, "created_at"),
            (Column::Token, "token"),
            (Column::Attempt, "attempt"),
            (Column::Recoveries, "recoveries"),
            (Column::Generation, "generation"),
            (Column::FirstStarted, "first_started"),
            (Column::StepNames, "step_names"),
            (Column::StepResults, "step_results"),
            (Column::HasSideEffects, "has_side_effects"),
            (Column::LastError, "last_error"),
            (Column::Until, "until"),
            (Column::CancelRequested, "cancel_requested"),
            (Column::Ready, "ready"),
            (Column::Since, "since"),
            (Column::WakeIn, "wake_in"),
            (Column::Owes, "owes"),
            (Column::Ids, "ids"),
            (Column::Seqs, "seqs"),
            (Column::Payloads, "payloads"),
            (Column::Sizes, "sizes"),
            (Column::Created, "created"),
            (Column::QueueKinds, "queue_kinds"),
            (Column::Details, "details"),
        ];
        assert_eq!(asked.len(), places.len());
        for (column, name) in places {
            assert_eq!(asked[column as usize], name);
        }
    }
}
