//! What a waiting job costs in memory: the ledger's part of it, which every store holds, and on a
//! disk that of the whole store, whose payloads lie there.
//!
//! The ledger is driven directly and what it asks to persist is dropped at once, so that the
//! process grows by the ledger alone. The operating system tells by how much.

use std::ops::Range;
use std::time::{Duration, Instant};

use windlass::core::job::NewJob;
use windlass::core::ledger::{Enqueue, Ledger};
use windlass::core::limits;
use windlass::core::time::{Now, Steady, Timestamp};
use windlass::{DEFAULT_QUEUE, Job, Limits, Name, Start, new_id};

use crate::bench::callers::fill;
use crate::bench::ground::Subject;
use crate::bench::process::resident_bytes;
use crate::bench::result::{Extra, Measurement, rounded};
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Jobs in one command: what a command allocates meanwhile stays small beside the ledger.
const BATCH: u64 = 100;

/// Jobs before the first reading, so that what a first command needs is there; in a store, so that
/// it already keeps as many events as it ever does.
const WARM_UP: u64 = 1_000;
const WARM_UP_STORE: u64 = limits::EVENTS_KEPT as u64;

/// The cost of a ready job, and of a scheduled one; and of a ready one in a store on a disk.
pub(crate) async fn per_waiting_job(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    let (ready, first) = of_ledger(plan, "ready", |_| Start::Now)?;
    // Due one after the other, from an hour on: none becomes ready meanwhile.
    let later = |job| Start::After(Duration::from_secs(3_600) + Duration::from_millis(job));
    let (scheduled, second) = of_ledger(plan, "scheduled", later)?;
    let mut measured = vec![ready, scheduled];
    if plan.ground.is_a_disk() {
        measured.push(of_store(plan).await?);
    }
    // Both ledgers lived until here: what one has freed would have hidden the next.
    drop((first, second));
    Ok(measured)
}

fn of_ledger(
    plan: &Plan,
    state: &'static str,
    start: impl Fn(u64) -> Start,
) -> anyhow::Result<(Measurement, Ledger)> {
    let mut ledger = Ledger::new(Limits::default());
    let job = NewJob::new(new_id(), Name::new(Nothing::KIND)?, Name::new(DEFAULT_QUEUE)?, []);
    let mut accept = |jobs: Range<u64>| -> anyhow::Result<()> {
        let now = reading(jobs.start);
        let jobs =
            jobs.map(|each| NewJob { id: new_id(), start: start(each), ..job.clone() }.into());
        ledger.apply(Enqueue { jobs: jobs.collect() }, now).reply?;
        Ok(())
    };
    accept(0..WARM_UP)?;
    let before = resident_bytes();
    let began = Instant::now();
    let end = WARM_UP + plan.jobs;
    let mut next = WARM_UP;
    while next < end {
        let batch = next..end.min(next + BATCH);
        next = batch.end;
        accept(batch)?;
    }
    let took = began.elapsed();
    let bytes_per_job = grown(before, plan.jobs);
    let measured = Measurement::new(Mode::Memory, plan, plan.jobs).took(took).without_payload();
    Ok((measured.extra(Extra::Memory { of: "ledger", state, bytes_per_job }), ledger))
}

async fn of_store(plan: &Plan) -> anyhow::Result<Measurement> {
    let mut subject = Subject::open(Mode::Memory, plan).await?;
    fill(&subject.engine, WARM_UP_STORE, plan.payload, |_, _| {}).await?;
    subject.begin().await?;
    let before = resident_bytes();
    let began = Instant::now();
    fill(&subject.engine, plan.jobs, plan.payload, |_, _| {}).await?;
    let took = began.elapsed();
    let bytes_per_job = grown(before, plan.jobs);
    let measured = subject.measured(Mode::Memory, plan, plan.jobs).await?.took(took);
    subject.end().await;
    Ok(measured.extra(Extra::Memory { of: "store", state: "ready", bytes_per_job }))
}

/// By how many bytes per job, or object, the process has grown.
pub(crate) fn grown(before: Option<u64>, jobs: u64) -> Option<f64> {
    let grown = resident_bytes()?.saturating_sub(before?);
    Some(rounded(grown as f64 / jobs as f64, 1))
}

/// Time that advances with the jobs.
fn reading(job: u64) -> Now {
    let micros = 1_000_000 + job;
    let wall = Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
    Now { wall, steady: Steady::from_micros(micros) }
}
