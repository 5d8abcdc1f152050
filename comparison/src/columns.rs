//! The columns: what is done, what is counted, and what must be true afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::job::{Pauses, Payload};
use crate::pacer;
use crate::plan::Plan;
use crate::report::Report;
use crate::run_log::RunLog;
use crate::server::Server;
use crate::system::System;

/// Callers of `enqueue`.
const CALLERS: u32 = 64;
/// Jobs in one call of `bulk`.
const BATCH: u32 = 1_000;
/// Between two calls of `load`: 1,000 a second.
const EVERY: Duration = Duration::from_millis(1);
/// A system that has not done its work by then has lost jobs.
const PATIENCE: Duration = Duration::from_secs(300);

/// One column of one system.
pub(crate) async fn measure<S: System>(system: S, plan: &Plan) -> anyhow::Result<Report> {
    let server = Server::connect(&plan.url, plan.postmaster).await?;
    let column = async {
        match plan.column.as_str() {
            "enqueue" => enqueue(&system, &server, plan).await,
            "bulk" => bulk(&system, &server, plan).await,
            "drain" => drain(&system, &server, plan).await,
            "idle" => idle(&system, &server, plan).await,
            "load" => load(&system, &server, plan).await,
            other => bail!("there is no column {other}"),
        }
    };
    timeout(PATIENCE, column).await?
}

/// Callers that each wait for their answer before the next call.
async fn enqueue<S: System>(system: &S, server: &Server, plan: &Plan) -> anyhow::Result<Report> {
    by_callers(system, plan.warm_up).await?;
    server.settle().await?;
    let (before, began) = (server.used().await?, Instant::now());
    by_callers(system, plan.jobs).await?;
    let took = began.elapsed();
    let used = server.used().await?.since(before);
    stored(system, server, plan.warm_up + plan.jobs).await?;
    Ok(Report::new(plan, system.settings(), plan.jobs, used).took(took))
}

async fn by_callers<S: System>(system: &S, jobs: u32) -> anyhow::Result<()> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let system = system.clone();
        callers.spawn(async move {
            for number in (caller..jobs).step_by(CALLERS as usize) {
                system.enqueue(Payload::new(number)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    Ok(())
}

/// One caller, a thousand jobs a call.
async fn bulk<S: System>(system: &S, server: &Server, plan: &Plan) -> anyhow::Result<Report> {
    fill(system, plan.warm_up).await?;
    server.settle().await?;
    let (before, began) = (server.used().await?, Instant::now());
    fill(system, plan.jobs).await?;
    let took = began.elapsed();
    let used = server.used().await?.since(before);
    stored(system, server, plan.warm_up + plan.jobs).await?;
    Ok(Report::new(plan, system.settings(), plan.jobs, used).took(took))
}

async fn fill<S: System>(system: &S, jobs: u32) -> anyhow::Result<()> {
    for first in (0..jobs).step_by(BATCH as usize) {
        let numbers = first..(first + BATCH).min(jobs);
        system.enqueue_bulk(numbers.map(Payload::new).collect()).await?;
    }
    Ok(())
}

/// A worker empties a full queue. It ends when the server says that no job is open.
async fn drain<S: System>(system: &S, server: &Server, plan: &Plan) -> anyhow::Result<Report> {
    fill(system, plan.warm_up).await?;
    let warm = RunLog::for_jobs(plan.warm_up);
    let worker = system.start_worker(warm.clone()).await?;
    emptied(system, server, &warm, plan.warm_up).await?;
    system.stop_worker(worker).await?;

    fill(system, plan.jobs).await?;
    stored(system, server, plan.jobs).await?;
    server.settle().await?;
    let log = RunLog::for_jobs(plan.jobs);
    let (before, began) = (server.used().await?, Instant::now());
    let worker = system.start_worker(log.clone()).await?;
    emptied(system, server, &log, plan.jobs).await?;
    let took = began.elapsed();
    let used = server.used().await?.since(before);
    system.stop_worker(worker).await?;
    finished(system, server, &log, plan.warm_up + plan.jobs).await?;
    Ok(Report::new(plan, system.settings(), plan.jobs, used).took(took))
}

/// Waits for the last handler to start, and then for the last job to be settled.
async fn emptied<S: System>(
    system: &S,
    server: &Server,
    log: &RunLog,
    jobs: u32,
) -> anyhow::Result<()> {
    log.reached(jobs).await;
    while server.number(system.open_jobs()).await? > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// One job at a time with a pause before each: from the call until the handler starts.
async fn idle<S: System>(system: &S, server: &Server, plan: &Plan) -> anyhow::Result<Report> {
    let all = plan.warm_up + plan.jobs;
    let log = RunLog::for_jobs(all);
    let worker = system.start_worker(log.clone()).await?;
    let (mut pauses, mut latencies) = (Pauses::from_seed(plan.seed), Vec::new());
    let mut before = server.used().await?;
    for number in 0..all {
        if number == plan.warm_up {
            before = server.used().await?;
        }
        sleep(Duration::from_micros(pauses.next_micros())).await;
        let job = Payload::new(number);
        let called = Instant::now();
        system.enqueue(job).await?;
        log.reached(number + 1).await;
        latencies.push(log.since(called, number));
    }
    let used = server.used().await?.since(before);
    let latencies = latencies.split_off(plan.warm_up as usize);
    end_of_latencies(system, server, worker, &log, all).await?;
    Ok(Report::new(plan, system.settings(), plan.jobs, used).latencies(latencies))
}

/// A fixed rate: from the moment at which the call is due until the handler starts.
async fn load<S: System>(system: &S, server: &Server, plan: &Plan) -> anyhow::Result<Report> {
    let all = plan.warm_up + plan.jobs;
    let log = RunLog::for_jobs(all);
    let worker = system.start_worker(log.clone()).await?;
    let before = server.used().await?;
    let due = at_a_fixed_rate(system, all).await?;
    log.reached(all).await;
    let used = server.used().await?.since(before);
    let measured = due.into_iter().filter(|(number, _)| *number >= plan.warm_up);
    let latencies = measured.map(|(number, moment)| log.since(moment, number)).collect();
    end_of_latencies(system, server, worker, &log, all).await?;
    Ok(Report::new(plan, system.settings(), all, used).latencies(latencies))
}

/// Makes the calls, and answers with when each was due.
async fn at_a_fixed_rate<S: System>(system: &S, calls: u32) -> anyhow::Result<Vec<(u32, Instant)>> {
    let (mut pacer, mut running, mut due) =
        (pacer::start(calls, EVERY), JoinSet::new(), Vec::new());
    while let Some((number, moment)) = pacer.recv().await {
        due.push((number, moment));
        let system = system.clone();
        running.spawn(async move { system.enqueue(Payload::new(number)).await });
        while let Some(call) = running.try_join_next() {
            call??;
        }
    }
    while let Some(call) = running.join_next().await {
        call??;
    }
    Ok(due)
}

async fn end_of_latencies<S: System>(
    system: &S,
    server: &Server,
    worker: S::Worker,
    log: &Arc<RunLog>,
    jobs: u32,
) -> anyhow::Result<()> {
    emptied(system, server, log, jobs).await?;
    system.stop_worker(worker).await?;
    finished(system, server, log, jobs).await
}

/// The server holds exactly these jobs.
async fn stored<S: System>(system: &S, server: &Server, jobs: u32) -> anyhow::Result<()> {
    let open = server.number(system.open_jobs()).await?;
    ensure!(open == u64::from(jobs), "{jobs} jobs were enqueued, and {open} are stored");
    Ok(())
}

/// Every handler ran once, and the server has all jobs as finished.
async fn finished<S: System>(
    system: &S,
    server: &Server,
    log: &RunLog,
    jobs: u32,
) -> anyhow::Result<()> {
    log.check()?;
    let finished = server.number(system.finished_jobs()).await?;
    ensure!(finished == u64::from(jobs), "{jobs} jobs ran, and {finished} are finished");
    Ok(())
}
