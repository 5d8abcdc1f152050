//! Producers: how fast jobs are accepted, and how fast whole lifecycles go.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use windlass::{Engine, Error};

use crate::bench::ground::Subject;
use crate::bench::result::{Extra, Latencies, Measurement};
use crate::bench::workers::start_worker;
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Jobs in one call of `bulk`.
pub(crate) const BATCH: u64 = 1_000;

/// Callers enqueue one job per call and wait for each answer.
pub(crate) async fn enqueue(plan: &Plan) -> anyhow::Result<Measurement> {
    let subject = Subject::open(Mode::Enqueue, plan).await?;
    let call = |engine: Engine, job, _| async move { engine.enqueue(job).await.map(drop) };
    let measured = by_callers(Mode::Enqueue, plan, &subject, call).await?;
    subject.end().await;
    Ok(measured)
}

/// Callers enqueue one job and wait for its outcome, while a worker runs.
pub(crate) async fn lifecycle(mode: Mode, plan: &Plan) -> anyhow::Result<Measurement> {
    let subject = Subject::open(mode, plan).await?;
    let nothing = |_: Nothing| async { Ok::<_, Error>(()) };
    let worker = start_worker(&subject.engine, plan, nothing).await?;
    let call = |engine: Engine, job, _| async move { engine.enqueue(job).await?.outcome().await };
    let measured = by_callers(mode, plan, &subject, call).await?;
    worker.stop().await?;
    subject.end().await;
    Ok(measured)
}

/// Shares the jobs among the callers, lets them all call, each time with a number that no other
/// call has, and waits for the last.
pub(crate) async fn by_callers<C, Fut>(
    mode: Mode,
    plan: &Plan,
    subject: &Subject,
    call: C,
) -> anyhow::Result<Measurement>
where
    C: Fn(Engine, Nothing, u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<(), Error>> + Send,
{
    let job = Nothing::of_bytes(plan.payload);
    let mut callers = JoinSet::new();
    let began = Instant::now();
    let mut next = 0;
    for share in shares(plan.jobs, plan.concurrency) {
        let numbers = next..next + share;
        next = numbers.end;
        let (engine, job, call) = (subject.engine.clone(), job.clone(), call.clone());
        callers.spawn(async move {
            let mut latencies = Latencies::new()?;
            for number in numbers {
                let (engine, job) = (engine.clone(), job.clone());
                let called = Instant::now();
                call(engine, job, number).await?;
                latencies.note(called.elapsed());
            }
            anyhow::Ok(latencies)
        });
    }
    let mut latencies = Latencies::new()?;
    while let Some(caller) = callers.join_next().await {
        latencies.absorb(&caller??)?;
    }
    let took = began.elapsed();
    let measured = subject.measured(mode, plan, plan.jobs).await?.concurrency(plan.concurrency);
    Ok(measured.took(took).latencies(&latencies))
}

/// How many jobs each caller gets: as evenly as they divide.
pub(crate) fn shares(jobs: u64, callers: u32) -> impl Iterator<Item = u64> {
    let callers = u64::from(callers);
    (0..callers).map(move |caller| jobs / callers + u64::from(caller < jobs % callers))
}

/// One caller enqueues a thousand jobs per call; the latencies are those of whole calls.
pub(crate) async fn bulk(plan: &Plan) -> anyhow::Result<Measurement> {
    let subject = Subject::open(Mode::Bulk, plan).await?;
    let mut latencies = Latencies::new()?;
    let began = Instant::now();
    fill(&subject.engine, plan.jobs, plan.payload, |took, _| latencies.note(took)).await?;
    let took = began.elapsed();
    let measured = subject.measured(Mode::Bulk, plan, plan.jobs).await?;
    subject.end().await;
    let bytes_per_s = measured.bytes_per_job() * plan.jobs as f64 / took.as_secs_f64().max(1e-9);
    let bytes_per_s = Some(bytes_per_s.round());
    let extra = Extra::Batch { batch: BATCH.min(plan.jobs), bytes_per_s };
    Ok(measured.took(took).latencies(&latencies).extra(extra))
}

/// Enqueues so many jobs in batches, and says how long each batch took and how many it held.
pub(crate) async fn fill(
    engine: &Engine,
    jobs: u64,
    payload: usize,
    mut note: impl FnMut(Duration, u64),
) -> anyhow::Result<()> {
    let job = Nothing::of_bytes(payload);
    let mut left = jobs;
    while left > 0 {
        let size = left.min(BATCH);
        let called = Instant::now();
        let mut batch = engine.batch();
        for _ in 0..size {
            batch.add(job.clone())?;
        }
        batch.commit().await?;
        note(called.elapsed(), size);
        left -= size;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_has_one_caller() {
        for (jobs, callers) in [(1, 64), (200, 64), (64, 64), (7, 1)] {
            let shares: Vec<u64> = shares(jobs, callers).collect();
            assert_eq!(shares.iter().sum::<u64>(), jobs);
            assert_eq!(shares.len(), callers as usize);
        }
    }
}
