//! What a waiting job costs in memory: the ledger's part of it, which every store holds.
//!
//! The ledger is driven directly and what it asks to persist is dropped at once, so that the
//! process grows by the ledger alone. The operating system tells by how much.

use std::time::{Duration, Instant};

use windlass::core::job::NewJob;
use windlass::core::ledger::{Enqueue, Ledger};
use windlass::core::time::{Now, Steady, Timestamp};
use windlass::{DEFAULT_QUEUE, Job, Limits, Name, Start, new_id};

use crate::bench::result::{Extra, Measurement, resident_bytes, rounded};
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Jobs in one command: what a command allocates meanwhile stays small beside the ledger.
const BATCH: u64 = 100;

/// Jobs before the first reading, so that what a first command needs is there.
const WARM_UP: u64 = 1_000;

/// The cost of a ready job, and of a scheduled one.
pub(crate) fn per_waiting_job(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    let (ready, first) = measure(plan, "ready", |_| Start::Now)?;
    // Due one after the other, from an hour on: none becomes ready meanwhile.
    let later = |job| Start::After(Duration::from_secs(3_600) + Duration::from_millis(job));
    let (scheduled, second) = measure(plan, "scheduled", later)?;
    // Both ledgers lived until here: what the first one freed would have hidden the second.
    drop((first, second));
    Ok(vec![ready, scheduled])
}

fn measure(
    plan: &Plan,
    state: &'static str,
    start: impl Fn(u64) -> Start,
) -> anyhow::Result<(Measurement, Ledger)> {
    let mut ledger = Ledger::new(Limits::default());
    let job = NewJob::new(new_id(), Name::new(Nothing::KIND)?, Name::new(DEFAULT_QUEUE)?, []);
    let mut accept = |jobs: std::ops::Range<u64>| -> anyhow::Result<()> {
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
    let grown = before.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
    let bytes_per_job = grown.map(|grown| rounded(grown as f64 / plan.jobs as f64, 1));
    let measured = Measurement::new(Mode::Memory, plan, plan.jobs).took(took).without_payload();
    Ok((measured.extra(Extra::Memory { state, bytes_per_job }), ledger))
}

/// Time that advances with the jobs.
fn reading(job: u64) -> Now {
    let micros = 1_000_000 + job;
    let wall = Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
    Now { wall, steady: Steady::from_micros(micros) }
}
