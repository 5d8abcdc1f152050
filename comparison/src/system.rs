//! What a column needs of a system.

use std::future::Future;
use std::sync::Arc;

use crate::job::Payload;
use crate::run_log::RunLog;

/// A job system on an empty database, ready to be used. Clones share connections.
pub(crate) trait System: Clone + Send + Sync + 'static {
    /// A worker that runs.
    type Worker;

    /// How it is set up, for people.
    fn settings(&self) -> String;

    /// A query for the number of jobs that are stored and have not finished.
    fn open_jobs(&self) -> &'static str;

    /// A query for the number of jobs that have finished since the database was made.
    fn finished_jobs(&self) -> &'static str;

    /// Stores one job; answers when it is committed.
    fn enqueue(&self, job: Payload) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Stores jobs in one call.
    fn enqueue_bulk(&self, jobs: Vec<Payload>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Starts a worker whose handlers only write to the log.
    fn start_worker(&self, log: Arc<RunLog>) -> impl Future<Output = anyhow::Result<Self::Worker>>;

    /// Lets running jobs end, and returns when they are settled.
    fn stop_worker(&self, worker: Self::Worker) -> impl Future<Output = anyhow::Result<()>>;
}
