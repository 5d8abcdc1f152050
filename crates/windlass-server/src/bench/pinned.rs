//! What a forgotten transaction costs: jobs flow through the store, and for a quarter of the way a
//! transaction stays open that keeps PostgreSQL from clearing anything away. The last quarter shows
//! that tables do not grow any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::time::sleep;
use windlass::{Engine, Error};

use crate::bench::callers::{BATCH, fill};
use crate::bench::ground::Subject;
use crate::bench::result::{Extra, Measurement};
use crate::bench::server::Server;
use crate::bench::workers::start_worker;
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Most jobs that wait at a time: the producer rests when there are more.
const WAITING: u64 = 20_000;

/// How long it rests.
const REST: Duration = Duration::from_millis(1);

/// Jobs flow, a quarter of them before, a quarter during, and a half after the transaction.
pub(crate) async fn pinned(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    let subject = Subject::open(Mode::Pinned, plan).await?;
    let address = subject.plot.address();
    let (server, forgetful) = (Server::connect(address).await?, Server::connect(address).await?);
    let done = Arc::new(AtomicU64::new(0));
    let handler = {
        let done = done.clone();
        move |_: Nothing| {
            done.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Error>(()) }
        }
    };
    let worker = start_worker(&subject.engine, plan, handler).await?;
    let share = (plan.jobs / 4).max(1);
    // History fills up first, so that all four quarters let go of as much as they take in.
    flow(&subject.engine, plan, share, &done).await?;
    let mut measured: Vec<Measurement> = Vec::new();
    for part in ["before", "during", "after", "later"] {
        if part == "during" {
            forgetful.forget_a_transaction().await.context("cannot hold a transaction")?;
        }
        let began = Instant::now();
        flow(&subject.engine, plan, share, &done).await?;
        let took = began.elapsed();
        if part == "during" {
            forgetful.remember_it().await?;
        }
        let one = Measurement::new(Mode::Pinned, plan, share).concurrency(plan.concurrency);
        let one = one.durability(subject.engine.durability()).took(took);
        let ratio = one.part_of(measured.first().unwrap_or(&one));
        let schema_bytes = Some(server.bytes_of_schema().await? as f64);
        measured.push(one.extra(Extra::Pinned { part, ratio_to_before: ratio, schema_bytes }));
    }
    worker.stop().await?;
    subject.end().await;
    Ok(measured)
}

/// Lets so many jobs through.
async fn flow(engine: &Engine, plan: &Plan, jobs: u64, done: &AtomicU64) -> anyhow::Result<()> {
    let begun = done.load(Ordering::Relaxed);
    let through = || done.load(Ordering::Relaxed) - begun;
    let mut enqueued = 0;
    while enqueued < jobs {
        if enqueued - through().min(enqueued) > WAITING {
            sleep(REST).await;
            continue;
        }
        let batch = BATCH.min(jobs - enqueued);
        fill(engine, batch, plan.payload, |_, _| {}).await?;
        enqueued += batch;
    }
    while through() < jobs {
        sleep(REST).await;
    }
    Ok(())
}
