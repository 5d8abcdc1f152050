//! What a claim costs when few and when many jobs wait: it should be the same.
//!
//! Measured at the store, below the worker: claim ten jobs, settle ten jobs. On a disk a settlement
//! waits for stable storage and a claim does not, so the claim is told apart too. Ten new jobs come
//! in between two readings, so that the backlog stays as it is. Before the first reading so many
//! jobs
//! have passed that history and events are full and the oldest make room, as in a store that has
//! run for a while. The sizes take turns, so that a slow moment of the machine does not make one of
//! them look worse than the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass::core::job::NewJob;
use windlass::core::ledger::{Claim, KindClaim, Settlement};
use windlass::core::limits;
use windlass::core::outcome::Verdict;
use windlass::store::{ClaimedBatch, Store};
use windlass::{DEFAULT_QUEUE, Job, Limits, Name, new_id};

use crate::bench::ground::Plot;
use crate::bench::result::{Extra, Latencies, Measurement, rounded};
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Backlogs that are measured, up to the one asked for, which is measured too.
const SIZES: [u64; 4] = [1_000, 100_000, 1_000_000, 10_000_000];

/// Jobs in one claim.
const CLAIMED: usize = 10;

/// Jobs in one claim of those that pass before the first reading.
const PASSED: usize = 1_000;

/// How often each size has its turn, and how many claims it then makes: the first of them only
/// bring its data back into the processor's caches.
const TURNS: usize = 25;
/// Turns if all backlogs are so small that it is only tried out.
const FEW_TURNS: usize = 3;
const FEW_JOBS: u64 = 10_000;
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
    let turns = if largest < FEW_JOBS { FEW_TURNS } else { TURNS };
    for _ in 0..turns {
        for backlog in &mut backlogs {
            backlog.take_a_turn().await?;
        }
    }
    let smallest = backlogs.first().map_or((1.0, 1.0), Backlog::ns_per_job);
    let measured = backlogs.iter().map(|backlog| backlog.measurement(plan, smallest)).collect();
    for backlog in backlogs {
        backlog.store.close().await;
    }
    Ok(measured)
}

/// A store in which so many jobs wait, and how long its claims took.
struct Backlog {
    size: u64,
    store: Arc<dyn Store>,
    job: NewJob,
    claim: Claim,
    claims: Latencies,
    latencies: Latencies,
    total: Duration,
    jobs: u64,
    written: u64,
    _plot: Plot,
}

impl Backlog {
    async fn fill(plan: &Plan, size: u64) -> anyhow::Result<Self> {
        // Only the store is kept: the engine's own tasks end here, and disturb nothing.
        let plot = plan.ground.plot(Mode::Backlog)?;
        let store = plot.open().await?.store().clone();
        let kind = Name::new(Nothing::KIND)?;
        let payload = serde_json::to_vec(&Nothing::of_bytes(plan.payload))?;
        let job = NewJob::new(new_id(), kind.clone(), Name::new(DEFAULT_QUEUE)?, payload);
        let claim = Claim {
            worker: "bench".into(),
            queues: None,
            kinds: vec![KindClaim::new(kind)],
            limit: CLAIMED,
            request: None,
        };
        let backlog = Self {
            size,
            store,
            job,
            claim,
            claims: Latencies::new()?,
            latencies: Latencies::new()?,
            total: Duration::ZERO,
            jobs: 0,
            written: 0,
            _plot: plot,
        };
        let mut waiting = 0;
        while waiting < size {
            let batch = (size - waiting).min(limits::BATCH_JOBS as u64);
            backlog.enqueue(usize::try_from(batch)?).await?;
            waiting += batch;
            plan.progress.filled("backlog", waiting, size);
        }
        backlog.pass().await?;
        Ok(backlog)
    }

    /// Lets jobs pass until history and events are full.
    async fn pass(&self) -> anyhow::Result<()> {
        let many = Claim { limit: PASSED, ..self.claim.clone() };
        let mut left = Limits::default().history_jobs + limits::EVENTS_KEPT;
        while left > 0 {
            let taken = self.settle(&self.store.claim(many.clone()).await?).await?;
            self.enqueue(taken).await?;
            left = left.saturating_sub(taken);
        }
        Ok(())
    }

    async fn enqueue(&self, jobs: usize) -> anyhow::Result<()> {
        let jobs = (0..jobs).map(|_| NewJob { id: new_id(), ..self.job.clone() }.into());
        self.store.enqueue(jobs.collect()).await?;
        Ok(())
    }

    async fn take_a_turn(&mut self) -> anyhow::Result<()> {
        for claim in 0..WARM_UP + MEASURED {
            let written = self.written_so_far();
            let began = Instant::now();
            let handed = self.store.claim(self.claim.clone()).await?;
            let claimed = began.elapsed();
            let taken = self.settle(&handed).await?;
            let took = began.elapsed();
            if claim >= WARM_UP {
                self.claims.note(claimed);
                self.latencies.note(took);
                self.total += took;
                self.jobs += taken as u64;
                self.written += self.written_so_far() - written;
            }
            self.enqueue(taken).await?;
        }
        Ok(())
    }

    fn written_so_far(&self) -> u64 {
        self.store.info().space.unwrap_or_default().written
    }

    /// Completes what a claim handed out.
    async fn settle(&self, handed: &ClaimedBatch) -> anyhow::Result<usize> {
        let settlements = handed
            .jobs
            .iter()
            .map(|handed| Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete));
        for settled in self.store.settle(settlements.collect()).await? {
            settled?;
        }
        Ok(handed.jobs.len())
    }

    /// What a job costs to claim and settle, and to claim: by the median call, which a slow moment
    /// of the machine does not move.
    fn ns_per_job(&self) -> (f64, f64) {
        let of = |latencies: &Latencies| latencies.nanos(0.5) / CLAIMED as f64;
        (of(&self.latencies), of(&self.claims))
    }

    fn measurement(&self, plan: &Plan, smallest: (f64, f64)) -> Measurement {
        let (both, claim) = self.ns_per_job();
        let extra = Extra::Backlog {
            backlog: self.size,
            ns_per_job: Some(both.round()),
            ratio: Some(rounded(both / smallest.0, 3)),
            claim_ns_per_job: Some(claim.round()),
            claim_ratio: Some(rounded(claim / smallest.1, 3)),
        };
        let measured = Measurement::new(Mode::Backlog, plan, self.jobs);
        let measured = measured.durability(self.store.info().durability).wrote(self.written);
        measured.took(self.total).latencies(&self.latencies).extra(extra)
    }
}
