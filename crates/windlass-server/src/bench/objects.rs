//! What is built on jobs: a pool with lanes, debounce, and loops that run again and again.
//!
//! What an object takes in memory is what the process grows by when many are made, after the store
//! keeps as many events as it ever does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use windlass::core::limits;
use windlass::primitives::{
    Continuous, Debounce, Flush, PoolContext, PoolEvent, Primitive, Tick, WorkerPool,
};
use windlass::{Engine, Error, Failure, Schedule, Worker};

use crate::bench::callers::{by_callers, fill, lifecycle, shares};
use crate::bench::ground::Subject;
use crate::bench::memory::grown;
use crate::bench::process::resident_bytes;
use crate::bench::result::{Extra, Latencies, Measurement};
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Lanes of the pool.
const LANES: u32 = 16;

/// Keys of the pool's events: many more than lanes, so that lanes get equally many.
const POOL_KEYS: u64 = 1_024;

/// Events of one debounce key, of which the last flushes it.
const EVENTS_PER_KEY: u64 = 10;

/// So long a window that no key is flushed by time.
const WINDOW: Duration = Duration::from_secs(86_400);

/// How often an object of `continuous` runs while it is watched.
const RUNS: u64 = 2;

/// Runs per second that are asked for: with more objects, the period is longer than a second.
const RUNS_PER_SECOND: u64 = 5_000;

/// Lifecycles in a queue without lanes, and in a pool with them, one after the other.
pub(crate) async fn pool(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    let plain = lifecycle(Mode::Pool, plan).await?;
    let lanes = with_lanes(plan).await?;
    let ratio_to_plain = lanes.part_of(&plain);
    Ok(vec![
        plain.extra(Extra::Pool { of: "plain", lanes: 0, ratio_to_plain: None }),
        lanes.extra(Extra::Pool { of: "lanes", lanes: LANES, ratio_to_plain }),
    ])
}

/// Callers enqueue one event with a key and wait for its outcome, while a worker runs.
async fn with_lanes(plan: &Plan) -> anyhow::Result<Measurement> {
    let subject = Subject::open(Mode::Pool, plan).await?;
    let nothing = |_: Nothing, _: PoolContext| async { Ok::<(), Failure>(()) };
    let pool = WorkerPool::new("bench", LANES, nothing);
    let slots = plan.concurrency;
    let worker = subject.engine.worker().name("bench").slots(slots);
    let worker = worker.pool(&pool).start().await?;
    let call = move |engine: Engine, event, number: u64| {
        let pool = pool.clone();
        async move {
            let event = PoolEvent::new(event).key((number % POOL_KEYS).to_string());
            engine.pool(&pool).enqueue_and_wait(event).await
        }
    };
    let measured = by_callers(Mode::Pool, plan, &subject, call).await?;
    worker.stop().await?;
    subject.end().await;
    Ok(measured)
}

/// A number of things that happen, and someone who waits for the last.
#[derive(Clone)]
struct Countdown {
    left: Arc<AtomicU64>,
    last: Arc<Notify>,
}

impl Countdown {
    fn of(number: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(number)), last: Arc::new(Notify::new()) }
    }

    /// Whether it was one of those that are waited for.
    fn count(&self) -> bool {
        let fewer = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer) {
            Ok(1) => {
                self.last.notify_one();
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    async fn wait(&self) {
        self.last.notified().await;
    }
}

/// A store whose growth is that of its objects.
async fn open(mode: Mode, plan: &Plan) -> anyhow::Result<Subject> {
    let subject = Subject::open(mode, plan).await?;
    if plan.first {
        fill(&subject.engine, limits::EVENTS_KEPT as u64, plan.payload, |_, _| {}).await?;
    }
    Ok(subject)
}

async fn start_worker<P: Primitive>(
    engine: &Engine,
    plan: &Plan,
    definition: P,
) -> Result<Worker, Error> {
    let slots = plan.concurrency;
    engine.worker().name("bench").slots(slots).primitive(definition).start().await
}

/// Callers add events, first one to each key and then the others, while a worker flushes the keys
/// that have all of theirs.
pub(crate) async fn debounce(plan: &Plan) -> anyhow::Result<Measurement> {
    let per_key = EVENTS_PER_KEY.min(plan.jobs);
    let keys = plan.jobs / per_key;
    let mut subject = open(Mode::Debounce, plan).await?;
    let flushed = Countdown::of(keys);
    let counted = flushed.clone();
    let flush = move |_: Flush<Nothing>| {
        counted.count();
        async { Ok::<(), Failure>(()) }
    };
    let definition = Debounce::new("bench", WINDOW, flush).max_events(per_key);
    let worker = start_worker(&subject.engine, plan, definition.clone()).await?;
    subject.begin().await?;
    let before = resident_bytes();
    let began = Instant::now();
    let mut latencies = add(plan, &subject, &definition, keys, 1).await?;
    let bytes_per_object = plan.first.then(|| grown(before, keys)).flatten();
    latencies.absorb(&add(plan, &subject, &definition, keys, per_key - 1).await?)?;
    flushed.wait().await;
    // What has started is finished by the stop.
    worker.stop().await?;
    let took = began.elapsed();
    let measured = subject.measured(Mode::Debounce, plan, keys * per_key).await?.took(took);
    subject.end().await;
    let measured = measured.concurrency(plan.concurrency).latencies(&latencies);
    Ok(measured.extra(Extra::Debounce { keys, flushes: keys, bytes_per_object }))
}

/// Adds so many events to each key, one key after the other and then again.
async fn add(
    plan: &Plan,
    subject: &Subject,
    definition: &Debounce<Nothing>,
    keys: u64,
    times: u64,
) -> anyhow::Result<Latencies> {
    let event = Nothing::of_bytes(plan.payload);
    let callers = u64::from(plan.concurrency);
    let mut adding = JoinSet::new();
    for (caller, share) in (0..).zip(shares(keys * times, plan.concurrency)) {
        let (engine, definition) = (subject.engine.clone(), definition.clone());
        let event = event.clone();
        adding.spawn(async move {
            let mut latencies = Latencies::new()?;
            for number in 0..share {
                let key = (caller + number * callers) % keys;
                let (key, event) = (key.to_string(), event.clone());
                let called = Instant::now();
                engine.debounce(&definition).add(&key, event).await?;
                latencies.note(called.elapsed());
            }
            anyhow::Ok(latencies)
        });
    }
    gather(adding).await
}

async fn gather(mut callers: JoinSet<anyhow::Result<Latencies>>) -> anyhow::Result<Latencies> {
    let mut latencies = Latencies::new()?;
    while let Some(caller) = callers.join_next().await {
        latencies.absorb(&caller??)?;
    }
    Ok(latencies)
}

/// Objects that are started evenly over a period, and run once in each: how long after the time it
/// was planned for each run begins.
pub(crate) async fn continuous(plan: &Plan) -> anyhow::Result<Measurement> {
    let objects = plan.jobs;
    let period = Duration::from_secs(objects.div_ceil(RUNS_PER_SECOND).max(1));
    let mut subject = open(Mode::Continuous, plan).await?;
    let runs = Countdown::of(objects * RUNS);
    let lags = Arc::new(Mutex::new(Latencies::new()?));
    let definition = ticking(period, runs.clone(), lags.clone())?;
    let worker = start_worker(&subject.engine, plan, definition.clone()).await?;
    let before = resident_bytes();
    start_evenly(plan, &subject.engine, &definition, period).await?;
    let bytes_per_object = plan.first.then(|| grown(before, objects)).flatten();
    subject.begin().await?;
    let began = Instant::now();
    runs.wait().await;
    let took = began.elapsed();
    let measured = subject.measured(Mode::Continuous, plan, objects * RUNS).await?.took(took);
    worker.stop().await?;
    subject.end().await;
    let lags = lags.lock().unwrap_or_else(PoisonError::into_inner);
    let measured = measured.concurrency(plan.concurrency).latencies(&lags).without_payload();
    let period_ms = u64::try_from(period.as_millis())?;
    Ok(measured.extra(Extra::Continuous { objects, period_ms, bytes_per_object }))
}

fn ticking(
    period: Duration,
    runs: Countdown,
    lags: Arc<Mutex<Latencies>>,
) -> anyhow::Result<Continuous<u64>> {
    let tick = move |mut tick: Tick<u64>| {
        if runs.count() {
            let planned = tick.planned_at().as_micros();
            let planned = Duration::from_micros(u64::try_from(planned).unwrap_or(0));
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let lag = now.unwrap_or_default().saturating_sub(planned);
            lags.lock().unwrap_or_else(PoisonError::into_inner).note(lag);
        }
        tick.state += 1;
        async { Ok(tick) }
    };
    let every = Schedule::every(period)?;
    Ok(Continuous::new("bench", every, tick).start_immediately(false))
}

/// Starts the objects spread over one period, or as fast as it goes if that is slower.
async fn start_evenly(
    plan: &Plan,
    engine: &Engine,
    definition: &Continuous<u64>,
    period: Duration,
) -> anyhow::Result<()> {
    let (objects, callers) = (plan.jobs, u64::from(plan.concurrency));
    let began = tokio::time::Instant::now();
    let mut starting = JoinSet::new();
    for (caller, share) in (0..).zip(shares(objects, plan.concurrency)) {
        let (engine, definition) = (engine.clone(), definition.clone());
        starting.spawn(async move {
            for number in 0..share {
                let object: u64 = caller + number * callers;
                let part = object as f64 / objects as f64;
                tokio::time::sleep_until(began + period.mul_f64(part)).await;
                engine.continuous(&definition).start(&object.to_string(), 0).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(started) = starting.join_next().await {
        started??;
    }
    Ok(())
}
