//! A server whose wall clock is stepped while engines work, judged by the clock of this process.
//!
//! libfaketime stands between the server and its clock; the engines' own clocks are right.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use windlass::primitives::{Continuous, Debounce, Flush, StateMachine, Task, TaskContext, Tick};
use windlass::{
    Attempt, Engine, Error, Failure, Handle, Job, JobId, Limits, Rate, Refusal, Schedule,
    StateName, Worker,
};
use windlass_testbed::{Postgres, or_skip};

use crate::common::{Work, soon, until, work};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: i64 = 3_600;
const YEAR: i64 = 365 * 24 * HOUR;

/// How far the clock is stepped, one after the other: each both ways, from both sides.
const STEPS: [i64; 12] = [3, -3, -3, 3, HOUR, -HOUR, -HOUR, HOUR, YEAR, -YEAR, -YEAR, YEAR];

/// How much later than its time a job may start, on a machine that is busy.
const LATE: Duration = Duration::from_secs(10);

const DELAY: Duration = Duration::from_secs(3);

/// Starts of rated jobs, per second and at once.
const RATE: u32 = 5;

/// A job that nobody handles.
#[derive(Serialize, Deserialize)]
struct Waits;

impl Job for Waits {
    const KIND: &'static str = "waits";
    type Output = ();
}

/// A job whose lease is short, and which takes longer.
#[derive(Serialize, Deserialize)]
struct Long;

impl Job for Long {
    const KIND: &'static str = "long";
    type Output = ();
}

/// A job whose starts are limited.
#[derive(Serialize, Deserialize)]
struct Rated;

impl Job for Rated {
    const KIND: &'static str = "rated";
    type Output = ();
}

/// What the handlers saw, by the clock of this process.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Facts>>);

#[derive(Debug, Default)]
struct Facts {
    /// When each run of a job began and ended.
    runs: BTreeMap<JobId, Vec<(Instant, Option<Instant>)>>,
    events: Vec<u32>,
    flushed: u64,
    ticks: u64,
    rated: Vec<Instant>,
}

impl Seen {
    fn facts(&self) -> std::sync::MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn began(&self, attempt: &Attempt) {
        let runs = &mut self.facts().runs;
        runs.entry(attempt.id()).or_default().push((Instant::now(), None));
    }

    fn ended(&self, attempt: &Attempt) {
        let mut facts = self.facts();
        let run = facts.runs.get_mut(&attempt.id()).and_then(|runs| runs.last_mut());
        run.expect("it began").1 = Some(Instant::now());
    }

    /// When the only run of the job began.
    fn only_run(&self, job: JobId) -> Instant {
        let facts = self.facts();
        let runs = &facts.runs[&job];
        assert_eq!(runs.len(), 1, "job {job} ran more than once");
        runs[0].0
    }
}

impl StateMachine for Seen {
    type State = u64;
    type Event = u32;

    async fn on_event(&self, task: &mut TaskContext<u64>, event: u32) -> Result<(), Failure> {
        self.facts().events.push(event);
        task.state += 1;
        Ok(())
    }
}

/// The primitives under test.
struct Definitions {
    task: Task<Seen>,
    debounce: Debounce<u32>,
    continuous: Continuous<u64>,
}

impl Definitions {
    fn new(seen: &Seen) -> Self {
        let flushed = seen.clone();
        let debounce = Debounce::new("pages", SECOND / 2, move |page: Flush<u32>| {
            flushed.facts().flushed += page.count;
            async { Ok::<(), Failure>(()) }
        });
        let ticks = seen.clone();
        let every = Schedule::every(SECOND / 2).expect("an interval");
        let continuous = Continuous::new("beats", every, move |tick: Tick<u64>| {
            ticks.facts().ticks += 1;
            async { Ok(tick) }
        });
        Self { task: Task::new("machine", seen.clone()), debounce, continuous }
    }
}

async fn worker(engine: &Engine, seen: &Seen, definitions: &Definitions) -> Worker {
    let (short, long, rated) = (seen.clone(), seen.clone(), seen.clone());
    let short = move |job: Work, attempt: Attempt| {
        short.began(&attempt);
        async move { Ok::<u64, Failure>(job.number) }
    };
    let long = move |_: Long, attempt: Attempt| {
        let seen = long.clone();
        async move {
            seen.began(&attempt);
            tokio::time::sleep(DELAY).await;
            seen.ended(&attempt);
            Ok::<(), Failure>(())
        }
    };
    let rated = move |_: Rated| {
        rated.facts().rated.push(Instant::now());
        async { Ok::<(), Failure>(()) }
    };
    let worker = engine.worker().poll_interval(SECOND / 5).handle(short);
    let worker = worker.handle_with(long, |terms| terms.lease(SECOND));
    let worker = worker.handle_with(rated, |terms| terms.rate(Rate::per_second(RATE)));
    let worker = worker.primitive(definitions.task.clone());
    let worker = worker.primitive(definitions.debounce.clone());
    let worker = worker.primitive(definitions.continuous.clone());
    worker.start().await.expect("the worker starts")
}

async fn open(address: &str) -> Engine {
    let limits = Limits { history_age: Duration::from_secs(1_800), ..Limits::default() };
    Engine::builder().limits(limits).open(address).await.expect("the engine opens")
}

/// One step of the clock: what is under way before it ends as it should, and so does what comes
/// after it.
async fn step(
    server: &Postgres,
    to: i64,
    engine: &Engine,
    seen: &Seen,
    definitions: &Definitions,
    event: &mut u32,
) {
    let (tasks, pages) = (engine.task(&definitions.task), engine.debounce(&definitions.debounce));
    let before = Instant::now();
    let delayed = engine.enqueue(work(1)).delay(DELAY).await.expect("accepted");
    let long: Handle<Long> = engine.enqueue(Long).await.expect("accepted");
    until("it runs", || async { seen.facts().runs.contains_key(&long.id()) }).await;
    // An object that is made just before the step, and one that is stopped and started around it.
    let (fresh, loops) = (format!("made with {event}"), engine.continuous(&definitions.continuous));
    loops.start(&fresh, 0).await.expect("it starts");
    loops.stop(&fresh, "for a moment").await.expect("it stops");
    for is_after in [false, true] {
        if is_after {
            server.set_clock(to);
            loops.start(&fresh, 0).await.expect("it starts");
        }
        for _ in 0..3 {
            acknowledged(|| tasks.send("ada", *event)).await;
            acknowledged(|| pages.add("home", *event)).await;
            *event += 1;
        }
        acknowledged(|| tasks.send(&fresh, *event)).await;
        *event += 1;
    }
    let ticks = seen.facts().ticks;
    let after = Instant::now();
    let later = engine.enqueue(work(2)).delay(DELAY).await.expect("accepted");
    for (job, since) in [(&delayed, before), (&later, after)] {
        soon("a delayed job", job.outcome()).await.expect("it completes");
        let waited = seen.only_run(job.id()).duration_since(since);
        assert!(waited > DELAY - SECOND, "at {to} a job came early, after {waited:?}");
        assert!(waited < DELAY + LATE, "at {to} a job came late, after {waited:?}");
    }
    soon("a long job", long.outcome()).await.expect("it completes");
    seen.only_run(long.id());
    let (events, flushed) = (*event as usize, u64::from(*event) * 6 / 8);
    until("all events are handled", || async {
        let facts = seen.facts();
        facts.events.len() >= events && facts.flushed >= flushed && facts.ticks > ticks + 2
    })
    .await;
    until("the fresh loop goes on", || async {
        let status = loops.status(&fresh).await.expect("answered");
        status.is_some_and(|status| status.run_count >= 3)
    })
    .await;
    loops.terminate(&fresh).await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_servers_clock_is_stepped_time_goes_on_from_where_it_was() {
    let Some(server) = or_skip(Postgres::with_clock()) else { return };
    let address = format!("{}?windlass_pool=6", server.url());
    let (engine, other) = (open(&address).await, open(&address).await);
    let seen = Seen::default();
    let definitions = Definitions::new(&seen);
    let workers =
        [worker(&engine, &seen, &definitions).await, worker(&other, &seen, &definitions).await];
    let begun = Instant::now();
    engine.continuous(&definitions.continuous).start("a", 0).await.expect("it starts");
    let ended = engine.enqueue(work(0)).await.expect("accepted");
    soon("its end", ended.outcome()).await.expect("it completes");
    let expires = engine.enqueue(Waits).expires_after(Duration::from_secs(1_800));
    let expires = expires.await.expect("accepted").id();
    let rated = engine.enqueue_many((0..2_000).map(|_| Rated)).await.expect("accepted");
    let (mut stands, mut event) = (0, 0);
    for by in STEPS {
        stands += by;
        step(&server, stands, &engine, &seen, &definitions, &mut event).await;
    }
    for worker in workers {
        let report = soon("a worker", worker.stop()).await.expect("it stops");
        assert_eq!(report.lost, 0, "no lease was lost to a step: {report}");
    }
    let (mut events, rated_starts) = {
        let facts = seen.facts();
        (facts.events.clone(), facts.rated.len())
    };
    events.sort_unstable();
    assert_eq!(events, (0..event).collect::<Vec<_>>(), "each event once");
    let most = begun.elapsed().as_secs_f64() * f64::from(RATE) + f64::from(RATE) + 1.0;
    assert!(rated_starts as f64 <= most * 1.1, "{rated_starts} starts, of at most {most}");
    assert!(rated_starts >= STEPS.len(), "the rate does not stall");
    drop(rated);
    let counts = engine.counts().await.expect("answered");
    assert_eq!(counts.totals().rescued, 0, "no lease ended by a step");
    let expires = engine.find(expires).await.expect("answered").expect("it is kept");
    assert_eq!(expires.state(), StateName::Ready, "no job expired by a step");
    assert!(ended.record().await.is_ok(), "no history was deleted by a step");
    engine.close().await;
    other.close().await;
}

/// Makes a call that may be told that rows are locked, and that nothing was done: this server finds
/// circles of locks late, and a step may cut the wait short.
async fn acknowledged<T, F: Future<Output = Result<T, Error>>>(call: impl Fn() -> F) {
    for _ in 0..5 {
        match call().await {
            Err(Error::Refused(Refusal::Unavailable { .. })) => {}
            answer => return drop(answer.expect("acknowledged")),
        }
    }
    panic!("it was not acknowledged in five tries");
}

/// A server measures by its wall clock how long a call has waited for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_a_stepped_clock_tells_to_give_a_lock_up_waits_again() {
    let Some(server) = or_skip(Postgres::with_clock()) else { return };
    // Who waits for a lock is told the real time when it looks for circles, after a second; that is
    // an hour ahead.
    server.set_clock(-HOUR);
    server.configure(&["deadlock_timeout=1s"]);
    let engine = open(&server.url()).await;
    let job = engine.enqueue(work(1)).await.expect("accepted");
    let holder = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await;
    let (holder, connection) = holder.expect("it connects");
    tokio::spawn(connection);
    let hold = "begin; select from windlass.job_state for update";
    holder.batch_execute(hold).await.expect("nobody else has it");
    let handle = job.clone();
    let call = tokio::spawn(async move { handle.cancel().await });
    // When the statement that waits has begun, if one does.
    let begun = || {
        let sql = "select query_start from pg_stat_activity \
             where wait_event_type = 'Lock' and query like '%.alter(%'";
        server.sql("postgres", sql)
    };
    until("the call waits", || async { !begun().is_empty() }).await;
    let first = begun();
    until("it waits again", || async {
        let now = begun();
        call.is_finished() || !now.is_empty() && now != first
    })
    .await;
    assert!(!call.is_finished(), "{:?}", call.await);
    holder.batch_execute("rollback").await.expect("it ends");
    soon("its answer", call).await.expect("no panic").expect("it is cancelled");
    engine.close().await;
}
