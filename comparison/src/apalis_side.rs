//! apalis-postgres, set up for speed by what its documentation offers.
//!
//! - One job goes by `queries::push_tasks` on a pooled connection: one round trip, where `push` takes three (begin,
//!   insert, commit). A thousand go by the same call.
//! - Jobs are not locked one by one when they start (`lock_tasks` off), and are fetched in batches of 1,000.
//! - The worker hears of new jobs by `NOTIFY`, and looks for itself every 100 ms: a notification that comes while it
//!   fetches can be passed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use apalis::prelude::{
    BackendExt, BoxDynError, TaskBuilder, WorkerBuilder, WorkerBuilderExt, WorkerContext,
    WorkerError,
};
use apalis_postgres::{Config, PgPool, PgTask, PostgresStorage, queries};
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinHandle;

use crate::job::Payload;
use crate::plan::Plan;
use crate::run_log::RunLog;
use crate::system::System;

const QUEUE: &str = "measured";
const BATCH: usize = 1_000;
const SLOTS: u32 = 1_000;
/// The best of 10, 20, 32 and 64 in short runs; a connection is not asked whether it lives before each use.
const CONNECTIONS: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct Apalis {
    pool: PgPool,
    connections: u32,
    slots: u32,
    workers: Arc<AtomicU32>,
}

impl Apalis {
    pub(crate) async fn open(plan: &Plan) -> anyhow::Result<Self> {
        let connections = plan.pool.unwrap_or(CONNECTIONS);
        let options = PgPoolOptions::new().max_connections(connections);
        let pool = options.test_before_acquire(false).connect(&plan.url).await?;
        PostgresStorage::setup(&pool).await?;
        let slots = plan.slots.unwrap_or(SLOTS);
        Ok(Self { pool, connections, slots, workers: Arc::default() })
    }

    async fn push(&self, tasks: Vec<PgTask>) -> anyhow::Result<()> {
        let mut connection = self.pool.acquire().await?;
        Ok(queries::push_tasks(&mut *connection, QUEUE, tasks).await?)
    }
}

fn task(job: &Payload) -> anyhow::Result<PgTask> {
    Ok(TaskBuilder::new(serde_json::to_vec(job)?).build())
}

/// A worker and how to stop it.
pub(crate) struct Running {
    context: WorkerContext,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl System for Apalis {
    type Worker = Running;

    fn settings(&self) -> String {
        let Self { connections, slots, .. } = self;
        format!("slots {slots}, batches of {BATCH}, pool of {connections}, lock_tasks off")
    }

    fn open_jobs(&self) -> &'static str {
        "select count(*) from apalis.jobs where status <> 'Done'"
    }

    fn finished_jobs(&self) -> &'static str {
        "select count(*) from apalis.jobs where status = 'Done'"
    }

    async fn enqueue(&self, job: Payload) -> anyhow::Result<()> {
        self.push(vec![task(&job)?]).await
    }

    async fn enqueue_bulk(&self, jobs: Vec<Payload>) -> anyhow::Result<()> {
        self.push(jobs.iter().map(task).collect::<Result<_, _>>()?).await
    }

    async fn start_worker(&self, log: Arc<RunLog>) -> anyhow::Result<Running> {
        let config = Config::default().queue(QUEUE).batch_size(BATCH).lock_tasks(false);
        let storage = PostgresStorage::<Payload>::new(&self.pool).with_config(config);
        let backend = storage.with_pubsub().poll_with_interval(LOOK_EVERY);
        let handler = move |job: Payload| {
            log.note(job.number);
            async { Ok::<_, BoxDynError>(()) }
        };
        let number = self.workers.fetch_add(1, Ordering::Relaxed);
        let context = WorkerContext::new(&format!("worker-{number}"));
        let worker = WorkerBuilder::new(&context).backend(backend);
        let worker = worker.concurrency(self.slots as usize).build(handler);
        let task = tokio::spawn(worker.run());
        Ok(Running { context, task })
    }

    async fn stop_worker(&self, worker: Running) -> anyhow::Result<()> {
        worker.context.stop().map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(worker.task.await??)
    }
}
