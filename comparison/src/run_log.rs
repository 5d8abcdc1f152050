//! Notes when each job's handler started, and that each started once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::sync::Notify;

/// Shared by the handlers of one worker and by who waits for them.
#[derive(Debug)]
pub(crate) struct RunLog {
    began: Instant,
    /// Nanoseconds since `began`, by number of the job; 0 if it has not started.
    starts: Vec<AtomicU64>,
    started: AtomicU32,
    changed: Notify,
}

impl RunLog {
    pub(crate) fn for_jobs(jobs: u32) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            starts: (0..jobs).map(|_| AtomicU64::new(0)).collect(),
            started: AtomicU32::new(0),
            changed: Notify::new(),
        })
    }

    /// Called first thing by a handler.
    pub(crate) fn note(&self, number: u32) {
        let since = self.began.elapsed().as_nanos() as u64;
        self.starts[number as usize].store(since.max(1), Ordering::Release);
        self.started.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_one();
    }

    /// Waits until so many jobs have started.
    pub(crate) async fn reached(&self, jobs: u32) {
        while self.started.load(Ordering::Acquire) < jobs {
            self.changed.notified().await;
        }
    }

    /// How long after `called` the job started.
    pub(crate) fn since(&self, called: Instant, number: u32) -> Duration {
        let at = self.starts[number as usize].load(Ordering::Acquire);
        (self.began + Duration::from_nanos(at)).saturating_duration_since(called)
    }

    /// Every job started, and none twice.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let missing = self.starts.iter().filter(|at| at.load(Ordering::Acquire) == 0).count();
        let (started, jobs) = (self.started.load(Ordering::Acquire) as usize, self.starts.len());
        ensure!(missing == 0, "{missing} of {jobs} jobs did not run");
        ensure!(started == jobs, "{jobs} jobs ran {started} times");
        Ok(())
    }
}
