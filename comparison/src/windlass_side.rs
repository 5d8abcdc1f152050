//! Windlass, as a program would use it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use windlass::{Engine, Error, Job, Worker};

use crate::job::Payload;
use crate::plan::Plan;
use crate::run_log::RunLog;
use crate::system::System;

/// Windlass's own default.
const CONNECTIONS: u32 = 10;

/// The payload as a job of Windlass.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Measured(Payload);

impl Job for Measured {
    const KIND: &'static str = "measured";
    type Output = ();
}

#[derive(Clone)]
pub(crate) struct WindlassSide {
    engine: Engine,
    pool: u32,
    /// Windlass's own default if it is not said.
    slots: Option<u32>,
}

impl WindlassSide {
    pub(crate) async fn open(plan: &Plan) -> anyhow::Result<Self> {
        let pool = plan.pool.unwrap_or(CONNECTIONS);
        let url = format!("{}?windlass_pool={pool}", plan.url);
        Ok(Self { engine: Engine::open(&url).await?, pool, slots: plan.slots })
    }
}

impl System for WindlassSide {
    type Worker = Worker;

    fn settings(&self) -> String {
        let slots = self.slots.map_or("default".into(), |slots| slots.to_string());
        format!("slots {slots}, pool of {}", self.pool)
    }

    fn open_jobs(&self) -> &'static str {
        "select coalesce(sum(blocked + scheduled + ready + running), 0)::bigint from windlass.queues"
    }

    fn finished_jobs(&self) -> &'static str {
        "select coalesce(sum(completed_so_far), 0)::bigint from windlass.queues"
    }

    async fn enqueue(&self, job: Payload) -> anyhow::Result<()> {
        Ok(self.engine.enqueue(Measured(job)).await.map(drop)?)
    }

    async fn enqueue_bulk(&self, jobs: Vec<Payload>) -> anyhow::Result<()> {
        let mut batch = self.engine.batch();
        for job in jobs {
            batch.add(Measured(job))?;
        }
        Ok(batch.commit().await.map(drop)?)
    }

    async fn start_worker(&self, log: Arc<RunLog>) -> anyhow::Result<Worker> {
        let handler = move |job: Measured| {
            log.note(job.0.number);
            async { Ok::<_, Error>(()) }
        };
        let worker = self.engine.worker().handle(handler);
        let worker = match self.slots {
            Some(slots) => worker.slots(slots),
            None => worker,
        };
        Ok(worker.start().await?)
    }

    async fn stop_worker(&self, worker: Worker) -> anyhow::Result<()> {
        Ok(worker.stop().await.map(drop)?)
    }
}
