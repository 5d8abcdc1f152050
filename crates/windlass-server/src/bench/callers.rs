//! Producers: how fast jobs are accepted, and how fast whole lifecycles go.

use std::future::Future;
use std::time::Instant;

use tokio::task::JoinSet;
use windlass::{Engine, Error};

use crate::bench::result::{Extra, Latencies, Measurement};
use crate::bench::workers::start_worker;
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Jobs in one call of `bulk`.
const BATCH: u64 = 1_000;

/// Callers enqueue one job per call and wait for each answer.
pub(crate) async fn enqueue(plan: &Plan) -> anyhow::Result<Measurement> {
    let engine = Engine::open(&plan.store).await?;
    let call = |engine: Engine, job| async move { engine.enqueue(job).await.map(drop) };
    by_callers(Mode::Enqueue, plan, &engine, call).await
}

/// Callers enqueue one job and wait for its outcome, while a worker runs.
pub(crate) async fn lifecycle(plan: &Plan) -> anyhow::Result<Measurement> {
    let engine = Engine::open(&plan.store).await?;
    let worker = start_worker(&engine, plan, |_: Nothing| async { Ok::<_, Error>(()) }).await?;
    let call = |engine: Engine, job| async move { engine.enqueue(job).await?.outcome().await };
    let measured = by_callers(Mode::Lifecycle, plan, &engine, call).await?;
    worker.stop().await?;
    Ok(measured)
}

/// Shares the jobs among the callers, lets them all call, and waits for the last.
async fn by_callers<C, Fut>(
    mode: Mode,
    plan: &Plan,
    engine: &Engine,
    call: C,
) -> anyhow::Result<Measurement>
where
    C: Fn(Engine, Nothing) -> Fut + Copy + Send + 'static,
    Fut: Future<Output = Result<(), Error>> + Send,
{
    let job = Nothing::of_bytes(plan.payload);
    let mut callers = JoinSet::new();
    let began = Instant::now();
    for share in shares(plan.jobs, plan.concurrency) {
        let (engine, job) = (engine.clone(), job.clone());
        callers.spawn(async move {
            let mut latencies = Latencies::new()?;
            for _ in 0..share {
                let (engine, job) = (engine.clone(), job.clone());
                let called = Instant::now();
                call(engine, job).await?;
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
    let measured = Measurement::new(mode, plan, plan.jobs).concurrency(plan.concurrency);
    Ok(measured.took(took).latencies(&latencies))
}

/// How many jobs each caller gets: as evenly as they divide.
fn shares(jobs: u64, callers: u32) -> impl Iterator<Item = u64> {
    let callers = u64::from(callers);
    (0..callers).map(move |caller| jobs / callers + u64::from(caller < jobs % callers))
}

/// One caller enqueues a thousand jobs per call; the latencies are those of whole calls.
pub(crate) async fn bulk(plan: &Plan) -> anyhow::Result<Measurement> {
    let engine = Engine::open(&plan.store).await?;
    let mut latencies = Latencies::new()?;
    let began = Instant::now();
    fill(&engine, plan.jobs, plan.payload, |took| latencies.note(took)).await?;
    let took = began.elapsed();
    let batch = BATCH.min(plan.jobs);
    let measured = Measurement::new(Mode::Bulk, plan, plan.jobs).extra(Extra::Batch { batch });
    Ok(measured.took(took).latencies(&latencies))
}

/// Enqueues so many jobs in batches, and says how long each batch took.
pub(crate) async fn fill(
    engine: &Engine,
    jobs: u64,
    payload: usize,
    mut note: impl FnMut(std::time::Duration),
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
        note(called.elapsed());
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
