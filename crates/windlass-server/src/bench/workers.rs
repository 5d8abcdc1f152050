//! Workers: how fast a full queue empties, and how soon the first job of an idle engine starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use windlass::core::ledger::Counts;
use windlass::{Engine, Error, Handler, StateName, Worker};

use crate::bench::callers::fill;
use crate::bench::ground::Subject;
use crate::bench::result::{Latencies, Measurement};
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Between two samples of the latency: long enough for everything to be asleep again.
const REST: Duration = Duration::from_millis(3);

/// A worker with as many slots as there would be callers.
pub(crate) async fn start_worker<A, H>(
    engine: &Engine,
    plan: &Plan,
    handler: H,
) -> Result<Worker, Error>
where
    A: 'static,
    H: Handler<A> + Send + Sync + 'static,
    H::Future: Send,
{
    let slots = plan.concurrency;
    engine.worker().name("bench").slots(slots).handle(handler).start().await
}

/// A worker empties a queue of jobs that do nothing.
pub(crate) async fn drain(plan: &Plan) -> anyhow::Result<Measurement> {
    let mut subject = Subject::open(Mode::Drain, plan).await?;
    fill(&subject.engine, plan.jobs, plan.payload, |_, _| {}).await?;
    subject.begin().await?;
    let (ran, last) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let handler = {
        let (ran, last, jobs) = (ran.clone(), last.clone(), plan.jobs);
        move |_: Nothing| {
            if ran.fetch_add(1, Ordering::Relaxed) + 1 == jobs {
                last.notify_one();
            }
            async { Ok::<_, Error>(()) }
        }
    };
    let began = Instant::now();
    let worker = start_worker(&subject.engine, plan, handler).await?;
    last.notified().await;
    // The last one has started; what is left is to be settled, which takes no longer than a batch.
    while open(&subject.engine.counts().await?) > 0 {
        tokio::task::yield_now().await;
    }
    let took = began.elapsed();
    worker.stop().await?;
    let measured =
        subject.measured(Mode::Drain, plan, plan.jobs).await?.concurrency(plan.concurrency);
    subject.end().await;
    Ok(measured.took(took))
}

fn open(counts: &Counts) -> u64 {
    let states = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
    states.map(|state| counts.in_state(state)).sum()
}

/// From the call of `enqueue` on an idle engine until the handler starts.
pub(crate) async fn latency(plan: &Plan) -> anyhow::Result<Measurement> {
    let subject = Subject::open(Mode::Latency, plan).await?;
    let (start, mut started) = mpsc::unbounded_channel();
    let handler = move |_: Nothing| {
        // The receiver outlives the worker.
        let _ = start.send(Instant::now());
        async { Ok::<_, Error>(()) }
    };
    let worker = start_worker(&subject.engine, plan, handler).await?;
    let job = Nothing::of_bytes(plan.payload);
    let mut latencies = Latencies::new()?;
    for _ in 0..plan.jobs {
        sleep(REST).await;
        let job = job.clone();
        let called = Instant::now();
        let handle = subject.engine.enqueue(job).await?;
        let began = started.recv().await;
        let began = began.ok_or_else(|| anyhow::anyhow!("the worker is gone"))?;
        latencies.note(began.saturating_duration_since(called));
        handle.outcome().await?;
    }
    worker.stop().await?;
    let measured = subject.measured(Mode::Latency, plan, plan.jobs).await?;
    subject.end().await;
    Ok(measured.latencies(&latencies))
}
