//! Dependencies: extract, then transform in parallel, then load, in one commit.

use serde::{Deserialize, Serialize};
use windlass::{Attempt, Engine, Error, Failure, Job, JobId, Options};

#[derive(Serialize, Deserialize)]
struct Extract;

#[derive(Serialize, Deserialize)]
struct Transform {
    source: JobId,
    part: usize,
}

#[derive(Serialize, Deserialize)]
struct Load;

impl Job for Extract {
    const KIND: &'static str = "extract";
    type Output = Vec<u64>;
}

impl Job for Transform {
    const KIND: &'static str = "transform";
    type Output = u64;
}

impl Job for Load {
    const KIND: &'static str = "load";
    type Output = u64;
}

async fn extract(_: Extract) -> Result<Vec<u64>, Failure> {
    Ok(vec![1, 2, 3])
}

async fn transform(job: Transform, attempt: Attempt) -> Result<u64, Failure> {
    let rows: Vec<u64> = attempt.output_of(job.source).await?.unwrap_or_default();
    Ok(rows.get(job.part).copied().unwrap_or_default() * 100)
}

/// Reads what all the jobs it waited for returned.
async fn load(_: Load, attempt: Attempt) -> Result<u64, Failure> {
    let mut sum = 0;
    for part in attempt.dependencies() {
        sum += attempt.output_of::<u64>(part).await?.unwrap_or_default();
    }
    Ok(sum)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;

    let mut batch = engine.batch();
    let source = batch.add(Extract)?;
    let mut after_all = Options::new();
    for part in 0..3 {
        let after_source = Options::new().depends_on(source);
        after_all = after_all.depends_on(batch.add_with(Transform { source, part }, after_source)?);
    }
    let load_id = batch.add_with(Load, after_all)?;
    batch.commit().await?;
    println!("{} jobs wait for the first", engine.dependents(source).await?.len());

    let worker = engine.worker().handle(extract).handle(transform).handle(load).start().await?;
    println!("loaded {}", engine.handle::<Load>(load_id).outcome().await?);
    worker.stop().await?;
    Ok(())
}
