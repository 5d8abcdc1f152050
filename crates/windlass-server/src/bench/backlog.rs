//! What a claim costs when few and when many jobs wait: it should be the same.
//!
//! Measured at the store, below the worker: claim ten jobs, settle ten jobs. Ten new ones come in
//! between two readings, so that the backlog stays as it is. Before the first reading so many jobs
//! have passed that history and events are full and the oldest make room, as in a store that has
//! run for a while. The sizes take turns, so that a slow moment of the machine does not make one of
//! them look worse than the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass::core::job::NewJob;
use windlass::core::ledger::{Claim, KindClaim, Settlement};
use windlass::core::limits;
use windlass::core::outcome::Verdict;
use windlass::store::Store;
use windlass::{DEFAULT_QUEUE, Engine, Job, Limits, Name, new_id};

use crate::bench::result::{Extra, Latencies, Measurement, rounded};
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Backlogs that are measured, up to the one asked for, which is measured too.
const SIZES: [u64; 4] = [1_000, 100_000, 1_000_000, 10_000_000];

/// Jobs in one claim.
const CLAIMED: usize = 10;

/// How often each size has its turn, and how many claims it then makes: the first of them only
/// bring its data back into the processor's caches.
const TURNS: usize = 25;
const WARM_UP: usize = 20;
const MEASURED: usize = 200;

/// The cost of a claim for each size of backlog, smallest first.
pub(crate) async fn claim_cost(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    // Fewer could not fill a claim.
    let largest = plan.jobs.max(CLAIMED as u64);
    let mut sizes: Vec<u64> = SIZES.into_iter().filter(|size| *size < largest).collect();
    sizes.push(largest);
    let mut backlogs = Vec::new();
    for size in sizes {
        backlogs.push(Backlog::fill(plan, size).await?);
    }
    for _ in 0..TURNS {
        for backlog in &mut backlogs {
            backlog.take_a_turn().await?;
        }
    }
    let smallest = backlogs.first().map_or(1.0, Backlog::ns_per_job);
    Ok(backlogs.iter().map(|backlog| backlog.measurement(plan, smallest)).collect())
}

/// A store in which so many jobs wait, and how long its claims took.
struct Backlog {
    size: u64,
    store: Arc<dyn Store>,
    job: NewJob,
    claim: Claim,
    latencies: Latencies,
    total: Duration,
}

impl Backlog {
    async fn fill(plan: &Plan, size: u64) -> anyhow::Result<Self> {
        // Only the store is kept: the engine's own tasks end here, and disturb nothing.
        let store = Engine::open(&plan.store).await?.store().clone();
        let kind = Name::new(Nothing::KIND)?;
        let payload = serde_json::to_vec(&Nothing::of_bytes(plan.payload))?;
        let job = NewJob::new(new_id(), kind.clone(), Name::new(DEFAULT_QUEUE)?, payload);
        let claim = Claim {
            worker: "bench".into(),
            queues: None,
            kinds: vec![KindClaim::new(kind)],
            limit: CLAIMED,
        };
        let (latencies, total) = (Latencies::new()?, Duration::ZERO);
        let backlog = Self { size, store, job, claim, latencies, total };
        let mut left = usize::try_from(size)?;
        while left > 0 {
            let batch = left.min(limits::BATCH_JOBS);
            backlog.enqueue(batch).await?;
            left -= batch;
        }
        let past = Limits::default().history_jobs + limits::EVENTS_KEPT;
        for _ in 0..past / CLAIMED {
            let taken = backlog.claim_and_settle().await?;
            backlog.enqueue(taken).await?;
        }
        Ok(backlog)
    }

    async fn enqueue(&self, jobs: usize) -> anyhow::Result<()> {
        let jobs = (0..jobs).map(|_| NewJob { id: new_id(), ..self.job.clone() }.into());
        self.store.enqueue(jobs.collect()).await?;
        Ok(())
    }

    async fn take_a_turn(&mut self) -> anyhow::Result<()> {
        for claim in 0..WARM_UP + MEASURED {
            let began = Instant::now();
            let taken = self.claim_and_settle().await?;
            let took = began.elapsed();
            if claim >= WARM_UP {
                self.latencies.note(took);
                self.total += took;
            }
            self.enqueue(taken).await?;
        }
        Ok(())
    }

    /// One claim and the settlement of what it handed out.
    async fn claim_and_settle(&self) -> anyhow::Result<usize> {
        let handed = self.store.claim(self.claim.clone()).await?;
        let settlements = handed
            .jobs
            .iter()
            .map(|handed| Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete));
        for settled in self.store.settle(settlements.collect()).await? {
            settled?;
        }
        Ok(handed.jobs.len())
    }
    /// By the median claim, which a slow moment of the machine does not move.
    fn ns_per_job(&self) -> f64 {
        self.latencies.nanos(0.5) / CLAIMED as f64
    }

    fn measurement(&self, plan: &Plan, smallest: f64) -> Measurement {
        let ns_per_job = self.ns_per_job();
        let ratio = rounded(ns_per_job / smallest, 3);
        let extra = Extra::Backlog { backlog: self.size, ns_per_job: ns_per_job.round(), ratio };
        let jobs = (TURNS * MEASURED * CLAIMED) as u64;
        let measured = Measurement::new(Mode::Backlog, plan, jobs).took(self.total);
        measured.latencies(&self.latencies).extra(extra)
    }
}
