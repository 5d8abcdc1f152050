//! What a batch costs by what is in it, and by how much: about as much per job however large it is.
//!
//! Each sort of job is enqueued on a store of its own, one call of a thousand, one of ten thousand,
//! and ten of ten thousand; then a job ends on which ten thousand others depend, each on the one
//! before or all of them on the first.

use std::time::{Duration, Instant};
use windlass::store::StoreExt as _;

use anyhow::Context;
use windlass::core::job::{DeadReason, Dependency, Lane, NewJob, OnFailure, Unique, UniqueScope};
use windlass::core::ledger::{Claim, KindClaim, QueueChange, Settlement};
use windlass::core::name::Name;
use windlass::core::outcome::Verdict;
use windlass::{Engine, JobId};

use crate::bench::Plan;
use crate::bench::ground::Subject;
use crate::bench::result::{Extra, Measurement};
use crate::cli::Mode;

/// What is special about the jobs of a batch.
#[derive(Clone, Copy)]
enum Sort {
    Plain,
    Expiring,
    Keyed,
    /// In sixteen lanes, by their keys.
    Laned,
    /// Each depends on the one before.
    Chained,
    /// All depend on the first.
    FannedOut,
}

const SORTS: [(Sort, &str); 6] = [
    (Sort::Plain, "plain"),
    (Sort::Expiring, "expiring"),
    (Sort::Keyed, "keyed"),
    (Sort::Laned, "laned"),
    (Sort::Chained, "chained"),
    (Sort::FannedOut, "fan-out"),
];

/// Most jobs of one call.
const CALL: u64 = 10_000;

/// Every sort at every size up to the planned one, and what follows when the first of many ends.
pub(crate) async fn batches(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    let mut measured = Vec::new();
    let sizes = [plan.jobs / 100, plan.jobs / 10, plan.jobs];
    for (sort, of) in SORTS {
        let mut smallest = None;
        for jobs in sizes.into_iter().filter(|jobs| *jobs > 0) {
            let one = enqueue(plan, sort, jobs).await?;
            measured.push(scaled(one, of, &mut smallest));
        }
    }
    let endings = [
        (Sort::Chained, Verdict::Bury(DeadReason::Permanent), "chain that dies"),
        (Sort::FannedOut, Verdict::Bury(DeadReason::Permanent), "fan that dies"),
        (Sort::FannedOut, Verdict::Complete, "fan that is released"),
    ];
    for (sort, verdict, of) in endings {
        let mut smallest = None;
        for jobs in sizes.into_iter().filter(|jobs| (2..=CALL).contains(jobs)) {
            let one = end(plan, sort, verdict, jobs).await?;
            measured.push(scaled(one, of, &mut smallest));
        }
    }
    Ok(measured)
}

/// What it cost per job, and how much that is compared with the smallest of its sort.
fn scaled(
    (one, jobs, took): (Measurement, u64, Duration),
    of: &'static str,
    smallest: &mut Option<f64>,
) -> Measurement {
    let us_per_job = took.as_secs_f64() * 1e6 / jobs as f64;
    let ratio = us_per_job / *smallest.get_or_insert(us_per_job);
    let extra = Extra::Growth { of, us_per_job: Some(us_per_job), ratio_to_smallest: Some(ratio) };
    one.took(took).extra(extra)
}

type Timed = (Measurement, u64, Duration);

async fn enqueue(plan: &Plan, sort: Sort, jobs: u64) -> anyhow::Result<Timed> {
    let subject = Subject::open(Mode::Batch, plan).await?;
    if matches!(sort, Sort::Laned) {
        let lanes = QueueChange::Lanes(std::num::NonZeroU32::new(16));
        subject.engine.store().configure(Name::new("bench.nothing")?, lanes).await?;
    }
    let mut first = None;
    let mut took = Duration::ZERO;
    // Plans and connections are made by the first calls of an engine, which are not measured.
    subject.engine.enqueue_raw(make(plan, sort, 100, &mut None)?).await?;
    let mut left = jobs;
    while left > 0 {
        let batch = make(plan, sort, left.min(CALL), &mut first)?;
        left -= batch.len() as u64;
        let began = Instant::now();
        subject.engine.enqueue_raw(batch).await?;
        took += began.elapsed();
    }
    let measured = subject.measured(Mode::Batch, plan, jobs).await?;
    subject.end().await;
    Ok((measured, jobs, took))
}

/// So many jobs of a sort. `last` is the job that the next batch goes on from.
fn make(
    plan: &Plan,
    sort: Sort,
    jobs: u64,
    last: &mut Option<JobId>,
) -> anyhow::Result<Vec<NewJob>> {
    let (kind, payload) = (Name::new("bench.nothing")?, "x".repeat(plan.payload).into_bytes());
    let mut batch = Vec::new();
    for _ in 0..jobs {
        let id = windlass::new_id();
        let mut job = NewJob::new(id, kind.clone(), kind.clone(), payload.clone());
        match sort {
            Sort::Plain => {}
            Sort::Expiring => job.expires_after = Some(Duration::from_secs(86_400)),
            Sort::Keyed => {
                let key = id.to_string();
                job.unique = Some(Unique { key, scope: UniqueScope::Open, window: None });
            }
            Sort::Laned => job.lane = Some(Lane::Key((id.to_bytes()[15] % 16).to_string())),
            Sort::Chained | Sort::FannedOut => {
                let edge = |on| Dependency { on, on_failure: OnFailure::Cascade };
                job.depends_on = last.map(edge).into_iter().collect();
            }
        }
        if matches!(sort, Sort::Chained) || last.is_none() {
            *last = Some(id);
        }
        batch.push(job);
    }
    Ok(batch)
}

/// Ends the first of many that depend on it.
async fn end(plan: &Plan, sort: Sort, verdict: Verdict, jobs: u64) -> anyhow::Result<Timed> {
    let subject = Subject::open(Mode::Batch, plan).await?;
    // The same on a few first, for the plans of the database.
    let mut took = Duration::ZERO;
    for size in [100, jobs] {
        subject.engine.enqueue_raw(make(plan, sort, size, &mut None)?).await?;
        let settlement = settlement_of_one(&subject.engine, verdict).await?;
        let began = Instant::now();
        let settled = subject.engine.store().settle(vec![settlement]).await?;
        took = began.elapsed();
        settled.into_iter().next().context("one answer")?.map_err(anyhow::Error::from)?;
        drain(&subject.engine).await?;
    }
    let measured = subject.measured(Mode::Batch, plan, jobs).await?;
    subject.end().await;
    Ok((measured, jobs, took))
}

fn claim(limit: usize) -> anyhow::Result<Claim> {
    let kinds = vec![KindClaim::new(Name::new("bench.nothing")?)];
    Ok(Claim { worker: "bench".into(), queues: None, kinds, limit, request: None })
}

async fn settlement_of_one(engine: &Engine, verdict: Verdict) -> anyhow::Result<Settlement> {
    let handed = engine.store().claim(claim(1)?).await?.jobs;
    let handed = handed.first().context("a job is ready")?;
    Ok(Settlement::new(handed.job.id, handed.lease.token, verdict))
}

/// Takes what was released out of the way.
async fn drain(engine: &Engine) -> anyhow::Result<()> {
    loop {
        let handed = engine.store().claim(claim(1_000)?).await?.jobs;
        if handed.is_empty() {
            return Ok(());
        }
        let complete = |job: &windlass::store::ClaimedJob| {
            Settlement::new(job.job.id, job.lease.token, Verdict::Complete)
        };
        engine.store().settle(handed.iter().map(complete).collect()).await?;
    }
}
