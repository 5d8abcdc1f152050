//! Whether one caller's large work holds up everybody else.
//!
//! Small enqueues come at a fixed rate, an open loop: each has a moment at which it is due, and its
//! latency counts from then, whether or not the one before was answered. Beside them runs one large
//! work after another. What the same rate costs with nothing beside it, and in a bare log or by
//! bare inserts, is measured in the same run.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use windlass::store::Durability;
use windlass::{Engine, Error, Options};

use crate::bench::callers::BATCH;
use crate::bench::ground::Subject;
use crate::bench::limit::{ADDED_BY_ENQUEUE, Log};
use crate::bench::result::{Extra, Latencies, Measurement};
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// How many small enqueues are due in a second.
const RATE: u64 = 1_000;

/// A call that takes longer than this is a stall.
const STALL: Duration = Duration::from_millis(50);

/// How long 100,000 callers may take to begin to wait: about a second on two cores.
const CROWD: Duration = Duration::from_secs(3);

/// The small enqueues go here, where nothing runs, so that only the store is measured.
const SMALL: &str = "small";

/// Where the large work is done.
const LARGE: &str = "large";

/// Where jobs come and go.
const FLOWING: &str = "flowing";

/// A tag that some of the large work's jobs have.
const TAG: &str = "marked";

/// The large works, each told apart by what a person would call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LargeWork {
    Nothing,
    Compaction,
    Outcomes,
    List,
    CancelByTag,
    CancelByFilter,
    Clear,
    Dependents,
}

impl LargeWork {
    const ALL: [Self; 8] = [
        Self::Nothing,
        Self::Compaction,
        Self::Outcomes,
        Self::List,
        Self::CancelByTag,
        Self::CancelByFilter,
        Self::Clear,
        Self::Dependents,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Compaction => "jobs flow",
            Self::Outcomes => "outcomes awaited",
            Self::List => "list by tag",
            Self::CancelByTag => "cancel ten by tag",
            Self::CancelByFilter => "cancel by filter",
            Self::Clear => "clear",
            Self::Dependents => "end of a parent",
        }
    }

    /// How many jobs it is about.
    fn jobs(self, plan: &Plan) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Compaction | Self::List | Self::CancelByTag | Self::Clear => plan.jobs,
            Self::CancelByFilter => plan.jobs / 2,
            Self::Outcomes | Self::Dependents => plan.jobs / 10,
        }
    }
}

/// One line for a bare log or bare inserts, then one for each large work.
pub(crate) async fn steady(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    let mut measured = Vec::new();
    measured.extend(bare(plan).await?);
    for work in LargeWork::ALL {
        measured.push(beside(work, plan).await?);
    }
    Ok(measured)
}

/// The small enqueues beside one large work, on a store of its own.
async fn beside(work: LargeWork, plan: &Plan) -> anyhow::Result<Measurement> {
    let subject = Subject::open(Mode::Steady, plan).await?;
    let engine = subject.engine.clone();
    let _waiting = prepare(work, &engine, plan).await?;
    let large = {
        let (engine, plan) = (engine.clone(), plan.clone());
        async move { run(work, &engine, &plan).await }
    };
    let job = Nothing::of_bytes(plan.payload);
    let small = move || {
        let (engine, job) = (engine.clone(), job.clone());
        async move { Ok(engine.enqueue(job).queue(SMALL).await.map(drop)?) }
    };
    let rhythm = at_a_fixed_rate(plan.watch, large, small).await?;
    let measured = subject.measured(Mode::Steady, plan, rhythm.calls).await?;
    subject.end().await;
    Ok(rhythm.into_measurement(measured, work.name(), work.jobs(plan)))
}

/// What was seen of the small calls.
struct Rhythm {
    calls: u64,
    stalls: u64,
    latencies: Latencies,
    /// How long the large work took.
    large: Duration,
}

impl Rhythm {
    fn into_measurement(self, to: Measurement, beside: &'static str, jobs: u64) -> Measurement {
        let large_ms = Some(self.large.as_secs_f64() * 1e3).filter(|_| jobs > 0);
        let stalls = Some(self.stalls as f64);
        let extra = Extra::Steady { beside, jobs, stalls, large_ms };
        to.latencies(&self.latencies).extra(extra)
    }
}

/// Calls at a fixed rate until the large work is done, and for `least` in any case.
async fn at_a_fixed_rate<Small>(
    least: Duration,
    large: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    small: impl Fn() -> Small,
) -> anyhow::Result<Rhythm>
where
    Small: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let seen = Arc::new(Mutex::new((Latencies::new()?, 0)));
    let began = Instant::now();
    let large = tokio::spawn(async move {
        let done = large.await;
        (done, began.elapsed())
    });
    let mut calls = JoinSet::new();
    let mut made = 0;
    while began.elapsed() < least || !large.is_finished() {
        let due = began + Duration::from_secs(1) * u32::try_from(made)? / u32::try_from(RATE)?;
        sleep_until(due.into()).await;
        made += 1;
        let (call, seen) = (small(), seen.clone());
        calls.spawn(async move {
            call.await?;
            let took = due.elapsed();
            let mut seen = seen.lock().await;
            seen.0.note(took);
            seen.1 += u64::from(took > STALL);
            anyhow::Ok(())
        });
        while let Some(done) = calls.try_join_next() {
            done??;
        }
    }
    while let Some(done) = calls.join_next().await {
        done??;
    }
    let (done, large) = large.await?;
    done?;
    let (latencies, stalls) = std::mem::replace(&mut *seen.lock().await, (Latencies::new()?, 0));
    Ok(Rhythm { calls: made, stalls, latencies, large })
}

/// The same rate without an engine.
async fn bare(plan: &Plan) -> anyhow::Result<Option<Measurement>> {
    let nothing = async { Ok(()) };
    let measured = Measurement::new(Mode::Steady, plan, 0).durability(Durability::Sync);
    #[cfg(feature = "postgres")]
    if plan.ground.is_a_database() {
        let rows = Arc::new(crate::bench::bare::Rows::create(plan).await?);
        let insert = {
            let rows = rows.clone();
            move || {
                let rows = rows.clone();
                async move { rows.insert().await }
            }
        };
        let rhythm = at_a_fixed_rate(plan.watch, nothing, insert).await?;
        rows.drop_table().await?;
        return Ok(Some(rhythm.into_measurement(measured, "bare inserts", 0)));
    }
    let plot = plan.ground.plot(Mode::Limit)?;
    let Some(directory) = plot.directory() else { return Ok(None) };
    let bytes: Arc<[u8]> = vec![b'x'; plan.payload + ADDED_BY_ENQUEUE as usize].into();
    let room = bytes.len() as u64 * RATE * (plan.watch.as_secs() + 1);
    let log = Arc::new(Log::open(directory, room)?);
    let write = {
        let log = log.clone();
        move || {
            let (log, bytes) = (log.clone(), bytes.clone());
            async move { log.write(&bytes).await }
        }
    };
    let rhythm = at_a_fixed_rate(plan.watch, nothing, write).await?;
    log.close()?;
    Ok(Some(rhythm.into_measurement(measured, "bare log", 0)))
}

/// Callers that wait for outcomes, for as long as this lives.
type WaitingCallers = JoinSet<Result<(), Error>>;

/// Puts in place what the large work is about.
async fn prepare(work: LargeWork, engine: &Engine, plan: &Plan) -> anyhow::Result<WaitingCallers> {
    let jobs = work.jobs(plan);
    match work {
        LargeWork::Nothing => {}
        LargeWork::Compaction | LargeWork::CancelByFilter | LargeWork::Clear => {
            waiting(engine, plan, jobs, |_| false).await?;
        }
        LargeWork::Outcomes => {
            waiting(engine, plan, jobs, |_| false).await?;
            return await_outcomes(engine).await;
        }
        LargeWork::List => waiting(engine, plan, jobs, |_| true).await?,
        // The ten that a search finds last.
        LargeWork::CancelByTag => waiting(engine, plan, jobs, |number| number < 10).await?,
        LargeWork::Dependents => dependents(engine, plan, jobs).await?,
    }
    Ok(WaitingCallers::new())
}

/// So many waiting jobs, of which some have the tag.
async fn waiting(
    engine: &Engine,
    plan: &Plan,
    jobs: u64,
    tagged: impl Fn(u64) -> bool,
) -> anyhow::Result<()> {
    let job = Nothing::of_bytes(plan.payload);
    for first in (0..jobs).step_by(usize::try_from(BATCH)?) {
        let mut batch = engine.batch();
        for number in first..(first + BATCH).min(jobs) {
            let options = Options::new().queue(LARGE);
            let options = if tagged(number) { options.tag(TAG) } else { options };
            batch.add_with(job.clone(), options)?;
        }
        batch.commit().await?;
    }
    Ok(())
}

/// A job for which all the others wait.
async fn dependents(engine: &Engine, plan: &Plan, jobs: u64) -> anyhow::Result<()> {
    let job = Nothing::of_bytes(plan.payload);
    let parent = engine.enqueue(job.clone()).queue(LARGE).tag(TAG).await?;
    for first in (0..jobs).step_by(usize::try_from(BATCH)?) {
        let mut batch = engine.batch();
        for _ in first..(first + BATCH).min(jobs) {
            let options = Options::new().queue(SMALL).depends_on(&parent);
            batch.add_with(job.clone(), options)?;
        }
        batch.commit().await?;
    }
    Ok(())
}

/// Does the large work.
async fn run(work: LargeWork, engine: &Engine, plan: &Plan) -> anyhow::Result<()> {
    match work {
        LargeWork::Nothing => Ok(()),
        LargeWork::Compaction => flow(engine, plan).await,
        // The callers wait already.
        LargeWork::Outcomes => {
            tokio::time::sleep(plan.watch).await;
            Ok(())
        }
        LargeWork::List => list_all(engine).await,
        LargeWork::CancelByTag => Ok(engine.jobs().tag(TAG).cancel().await.map(drop)?),
        LargeWork::CancelByFilter => Ok(engine.jobs().queue(LARGE).cancel().await.map(drop)?),
        LargeWork::Clear => Ok(engine.queue(LARGE)?.clear().await.map(drop)?),
        LargeWork::Dependents => end_the_parent(engine, plan).await,
    }
}

/// Jobs come and go, in another queue than those that wait: what they leave behind is compacted.
async fn flow(engine: &Engine, plan: &Plan) -> anyhow::Result<()> {
    let nothing = |_: Nothing| async { Ok::<_, Error>(()) };
    let worker = engine.worker().queue(FLOWING).slots(plan.concurrency).handle(nothing);
    let worker = worker.start().await?;
    let began = Instant::now();
    let job = Nothing::of_bytes(plan.payload);
    while began.elapsed() < plan.watch {
        let mut batch = engine.batch();
        for _ in 0..BATCH {
            batch.add_with(job.clone(), Options::new().queue(FLOWING))?;
        }
        batch.commit().await?;
    }
    worker.stop().await?;
    Ok(())
}

/// Many callers wait for jobs that do not end. They get time to begin, so that what is measured is
/// their waiting and not the crowd that comes.
async fn await_outcomes(engine: &Engine) -> anyhow::Result<WaitingCallers> {
    let mut waiting = WaitingCallers::new();
    let mut after = None;
    loop {
        let page = engine.jobs().queue(LARGE).page(after, 1_000).await?;
        for record in &page.jobs {
            let handle = engine.handle::<Nothing>(record.id());
            waiting.spawn(async move { handle.outcome().await });
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    tokio::time::sleep(CROWD).await;
    Ok(waiting)
}

async fn list_all(engine: &Engine) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let page = engine.jobs().tag(TAG).page(after, 1_000).await?;
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// The parent completes, and all who waited for it are released.
async fn end_the_parent(engine: &Engine, plan: &Plan) -> anyhow::Result<()> {
    let parents = engine.jobs().tag(TAG).oldest_first().page(None, 1).await?;
    let parent = parents.jobs.first().map(windlass::JobRecord::id);
    let parent = parent.ok_or_else(|| anyhow::anyhow!("the parent is gone"))?;
    let nothing = |_: Nothing| async { Ok::<_, Error>(()) };
    let worker = engine.worker().queue(LARGE).slots(plan.concurrency).handle(nothing);
    let worker = worker.start().await?;
    engine.handle::<Nothing>(parent).outcome().await?;
    worker.stop().await?;
    Ok(())
}
