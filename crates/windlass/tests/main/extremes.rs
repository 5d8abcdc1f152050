//! Every number that a user can give above the store, at its extremes: it is taken or refused with
//! a sentence, nothing panics, hangs or spins, and an ordinary job still runs from end to end.
//!
//! What a store makes of such numbers is asked of every store by the conformance suite.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use windlass::limits::{DELAY_MAX, LEASE_MAX, LEASE_MIN, PAYLOAD_BYTES_MAX};
use windlass::primitives::{
    Continuous, Debounce, FailedRun, PoolEvent, Primitive, RunContext, RunOutcome, StateMachine,
    Task, TaskContext, TaskTurn, Throttle, Turn, WorkerPool,
};
use windlass::store::file::{FileOptions, LedgerOptions, RealDisk};
use windlass::store::{FileStore, MemoryStore, Store};
use windlass::testing::{Lab, VirtualClock};
use windlass::wake::LocalWake;
use windlass::{
    Attempt, Cursor, Durability, Engine, Error, Failure, InvalidSchedule, Jitter, Job, JobId,
    KindOptions, Limits, MissedRuns, Options, Priority, Rate, Recovery, RecoveryMode, Retry,
    Schedule, Start, Timestamp, Topics, UniqueScope, Worker,
};

use crate::common::{Directory, HOUR, SECOND, Tampered, Work, pass, settle_down, work};
use crate::writer::Plate;

const DURATIONS: [Duration; 13] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_nanos(999),
    Duration::from_micros(1),
    Duration::from_millis(1),
    LEASE_MIN,
    LEASE_MAX,
    HOUR,
    DELAY_MAX,
    DELAY_MAX.saturating_add(Duration::from_nanos(1)),
    Duration::from_micros(i64::MAX as u64),
    Duration::from_micros(u64::MAX),
    Duration::MAX,
];
const COUNTS: [u32; 6] = [0, 1, 2, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX];
const LONG_COUNTS: [u64; 6] = [0, 1, 2, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX];
const SIZES: [usize; 6] = [0, 1, 2, i64::MAX as usize, i64::MAX as usize + 1, usize::MAX];
const PRIORITIES: [i32; 5] = [i32::MIN, -1, 0, 1, i32::MAX];
const MICROS: [i64; 7] = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];

/// Points in time, as far away as the machine can name them.
fn times() -> Vec<SystemTime> {
    let later = DURATIONS.iter().filter_map(|duration| UNIX_EPOCH.checked_add(*duration));
    let earlier = DURATIONS.iter().filter_map(|duration| UNIX_EPOCH.checked_sub(*duration));
    let secs = Duration::from_secs(i64::MAX as u64 - 1);
    let ends = [UNIX_EPOCH.checked_add(secs), UNIX_EPOCH.checked_sub(secs)];
    later.chain(earlier).chain(ends.into_iter().flatten()).collect()
}

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Counts the panics of this thread, those that a supervisor catches among them.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.set(0);
}

/// Says which row it was when one fails.
struct Row(String);

impl Drop for Row {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the row that fails: {}", self.0);
        }
    }
}

/// An engine on virtual time, and what it stands on.
struct Scene {
    engine: Engine,
    clock: Arc<VirtualClock>,
    store: Arc<Tampered>,
    row: String,
    _directory: Option<Directory>,
}

/// Calls that one row may make at most: it is a few virtual minutes, and nothing is to be asked
/// more often than every few milliseconds.
const CALLS: u64 = 10_000;

impl Scene {
    fn new(on_files: bool, row: String) -> Self {
        let (clock, wake) = (Arc::new(VirtualClock::new()), Arc::new(LocalWake::new()));
        let (store, directory): (Arc<dyn Store>, _) = if on_files {
            let directory = Directory::new();
            let disk = RealDisk::open(&directory.path().join("jobs")).expect("nobody has it");
            let ledger =
                LedgerOptions { segment_bytes: Some(64 << 10), ..LedgerOptions::default() };
            let options = FileOptions { ledger, durability: Durability::Relaxed(HOUR) };
            let store = FileStore::on_disk(Arc::new(disk), &options, clock.clone(), wake.clone());
            (Arc::new(store.expect("it opens")), Some(directory))
        } else {
            let store = MemoryStore::new(Limits::default(), clock.clone(), wake.clone());
            (Arc::new(store), None)
        };
        let store = Arc::new(Tampered::new(store));
        let engine = Engine::builder().on_store(store.clone(), wake, clock.clone());
        let engine = engine.expect("the default settings are valid");
        Self { engine, clock, store, row, _directory: directory }
    }

    /// Either is fine, as long as it is one of the two.
    #[track_caller]
    fn taken<T>(&self, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Ok(taken) => Some(taken),
            Err(error @ (Error::Refused(_) | Error::InvalidSetting { .. })) => {
                let sentence = error.to_string();
                let row = &self.row;
                assert!(sentence.contains(' '), "{row} is refused without a word: {sentence}");
                None
            }
            Err(other) => panic!("{} fails: {other:?}", self.row),
        }
    }

    /// A worker whose jobs end at once, if it can be made.
    async fn worker(&self, odd: impl FnOnce(KindOptions) -> KindOptions) -> Option<Worker> {
        self.taken(self.engine.worker().handle_with(quick, odd).start().await)
    }

    /// An ordinary job of the same kind, and one of another, run with everything else there.
    async fn ordinary_jobs_run(&self) {
        let worker = self.engine.worker().handle(quick).handle(plain).slots(10);
        let worker = worker.start().await.expect("nothing is odd about it");
        let (row, patience) = (&self.row, SECOND * 60);
        let one = self.engine.enqueue(work(7)).queue("ordinary").await.expect("it is accepted");
        let other = self.engine.enqueue(Plain(8)).queue("ordinary").await.expect("it is accepted");
        let ran = one.outcome_within(patience).await;
        assert_eq!(ran.unwrap_or_else(|error| panic!("after {row}: {error}")), 7);
        let ran = other.outcome_within(patience).await;
        assert_eq!(ran.unwrap_or_else(|error| panic!("after {row}: {error}")), 8);
        self.engine.counts().await.unwrap_or_else(|error| panic!("after {row}: {error}"));
        worker.stop().await.unwrap_or_else(|error| panic!("after {row}: {error}"));
    }
}

async fn quick(job: Work) -> Result<i64, Failure> {
    Ok(job.number)
}

#[derive(Serialize, Deserialize)]
struct Plain(u32);

impl Job for Plain {
    const KIND: &'static str = "plain";
    type Output = u32;
}

async fn plain(job: Plain) -> Result<u32, Failure> {
    Ok(job.0)
}

/// Tries each row on the memory store and on the file store.
fn try_rows<R: Clone + Debug>(
    what: &str,
    rows: impl IntoIterator<Item = R>,
    test: impl AsyncFn(&Scene, R),
) {
    try_rows_on(&[false, true], what, rows, test);
}

/// Tries each row on these stores, with files or without, each on a runtime of its own.
fn try_rows_on<R: Clone + Debug>(
    stores: &[bool],
    what: &str,
    rows: impl IntoIterator<Item = R>,
    test: impl AsyncFn(&Scene, R),
) {
    count_panics();
    for row in rows {
        for &on_files in stores {
            let name = format!("{what}: {row:?}, files: {on_files}");
            let _row = Row(name.clone());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let scene = Scene::new(on_files, name.clone());
                test(&scene, row.clone()).await;
                scene.ordinary_jobs_run().await;
                let calls = scene.store.all_calls();
                assert!(calls < CALLS, "{name}: {calls} calls of the store");
                scene.engine.close().await;
            });
            assert_eq!(PANICS.get(), 0, "{name}: something panicked");
        }
    }
}

/// Policies with this number in every place where there may be one.
fn retries(duration: Duration) -> Vec<Retry> {
    let mut retries = Vec::new();
    for retry in [
        Retry::constant(duration),
        Retry::linear(duration),
        Retry::exponential(duration),
        Retry::custom([duration, Duration::ZERO]),
    ] {
        for jitter in [Jitter::None, Jitter::Tenth, Jitter::Equal, Jitter::Full] {
            retries.push(retry.clone().jitter(jitter));
        }
        retries.push(retry.clone().cap(Duration::MAX));
        retries.push(retry.clone().cap(Duration::ZERO));
        retries.push(retry.within(duration));
    }
    retries
}

/// What a producer may say of a job.
fn odd_options() -> Vec<Options> {
    let mut all = Vec::new();
    for duration in DURATIONS {
        all.push(Options::new().delay(duration));
        all.push(Options::new().timeout(duration));
        all.push(Options::new().expires_after(duration));
        all.push(Options::new().delay(SECOND).expires_after(duration));
        for scope in [UniqueScope::Open, UniqueScope::Any] {
            all.push(Options::new().unique("key").unique_scope(scope).unique_for(duration));
        }
    }
    all.extend(times().into_iter().map(|time| Options::new().at(time)));
    all.extend(COUNTS.map(|runs| Options::new().max_attempts(runs)));
    all.extend(PRIORITIES.map(|priority| Options::new().priority(Priority(priority))));
    all
}

#[test]
fn a_job_may_be_enqueued_with_any_number() {
    try_rows("enqueued with", odd_options(), async |scene, options| {
        let fails = |_: Work| async { Err::<i64, _>(Failure::retry("always")) };
        let worker = scene.engine.worker().handle(fails).start().await.expect("it starts");
        for number in 0..2 {
            let mut batch = scene.engine.batch();
            batch.add_with(work(number), options.clone()).expect("its names are valid");
            let Some(enqueued) = scene.taken(batch.commit().await) else { break };
            pass(SECOND * 5).await;
            scene.engine.find(enqueued[0].id).await.expect("it is answered");
            scene.engine.explain(enqueued[0].id).await.expect("it is answered");
        }
        worker.stop().await.expect("it stops");
    });
}

#[test]
fn a_job_may_be_retried_by_any_policy() {
    let rows = DURATIONS.into_iter().map(retries);
    let rows = rows.chain([COUNTS.map(|runs| Retry::constant(SECOND).up_to(runs)).to_vec()]);
    try_rows("retried by", rows, async |scene, policies| {
        let fails = |_: Work| async { Err::<i64, _>(Failure::retry("always")) };
        let mut jobs = Vec::new();
        // By the policy of its kind, and by one of its own.
        let (kind, others) = policies.split_first().expect("there are some");
        let kind = kind.clone();
        let worker = scene.engine.worker().handle_with(fails, move |terms| terms.retry(kind));
        let worker = worker.start().await.expect("it starts");
        jobs.push(scene.engine.enqueue(work(1)).await.expect("it is accepted").id());
        for policy in others {
            let own = scene.engine.enqueue(work(2)).retry(policy.clone()).max_attempts(5).await;
            jobs.extend(scene.taken(own).map(|own| own.id()));
        }
        pass(SECOND * 20).await;
        for id in jobs {
            scene.engine.explain(id).await.expect("it is answered");
            let record = scene.engine.find(id).await.expect("it is answered");
            let record = record.expect("it is kept");
            assert!(record.status.attempts > 0, "{}: {record:?}", scene.row);
        }
        worker.stop().await.expect("it stops");
    });
}

/// What a handler may wish for, with a number.
#[derive(Clone, Copy, Debug)]
enum Wish {
    RetryAfter(Duration),
    Snooze(Duration),
    Sleep(Duration),
    Continue(Duration),
    Progress(u8),
}

#[test]
fn a_handler_may_wish_for_any_number() {
    let wishes = DURATIONS.into_iter().flat_map(|duration| {
        [
            Wish::RetryAfter(duration),
            Wish::Snooze(duration),
            Wish::Sleep(duration),
            Wish::Continue(duration),
        ]
    });
    let wishes = wishes.chain([0, 100, 101, u8::MAX].map(Wish::Progress));
    try_rows("a handler wishes for", wishes, async |scene, wish| {
        let runs = crate::common::Counter::default();
        let counter = runs.clone();
        let wishes = move |job: Work, attempt: Attempt| {
            let first = counter.add() == 1;
            async move {
                match wish {
                    Wish::RetryAfter(delay) if first => {
                        return Err(Failure::retry_after(delay, "later"));
                    }
                    Wish::Snooze(pause) if first => return Err(Failure::snooze(pause)),
                    Wish::Sleep(pause) => attempt.sleep("a-while", pause).await?,
                    Wish::Continue(delay) if first => {
                        let later = Options::new().delay(delay).expires_after(delay);
                        attempt.continue_with_options(Plain(1), later)?;
                    }
                    Wish::Progress(percent) => attempt.progress(percent, "so far"),
                    Wish::RetryAfter(_) | Wish::Snooze(_) | Wish::Continue(_) => {}
                }
                Ok(job.number)
            }
        };
        let worker = scene.engine.worker().handle(wishes).start().await.expect("it starts");
        let handle = scene.engine.enqueue(work(1)).await.expect("it is accepted");
        pass(SECOND * 5).await;
        assert!(runs.get() > 0, "{}", scene.row);
        scene.engine.explain(handle.id()).await.expect("it is answered");
        handle.record().await.expect("it is kept");
        worker.stop().await.expect("it stops");
    });
}

/// How a worker may be set, with a number.
#[derive(Clone, Copy, Debug)]
enum Setting {
    Slots(u32),
    PollInterval(Duration),
    Grace(Duration),
    CancelGrace(Duration),
    Lease(Duration),
    Timeout(Duration),
    Concurrency(u32),
    Rate(Rate),
    Attempts(u32),
}

fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for duration in DURATIONS {
        settings.extend([
            Setting::PollInterval(duration),
            Setting::Grace(duration),
            Setting::CancelGrace(duration),
            Setting::Lease(duration),
            Setting::Timeout(duration),
        ]);
        for (jobs, burst) in [(1, 1), (1, u32::MAX), (u32::MAX, 1)] {
            settings.push(Setting::Rate(Rate { jobs, period: duration, burst }));
        }
    }
    for count in COUNTS {
        settings.extend([
            Setting::Slots(count),
            Setting::Concurrency(count),
            Setting::Rate(Rate::per_second(count)),
            Setting::Rate(Rate::per_minute(count)),
            Setting::Attempts(count),
        ]);
    }
    settings
}

#[test]
fn a_worker_may_be_set_to_any_number() {
    try_rows("a worker with", settings(), async |scene, setting| {
        let slow = |job: Work, attempt: Attempt| async move {
            // One of them is slow, and obeys.
            let pause = SECOND * u32::try_from(job.number).unwrap_or(0);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = attempt.cancellation().cancelled() => {}
            }
            Ok::<_, Failure>(job.number)
        };
        let kind = move |kind: KindOptions| match setting {
            Setting::Lease(lease) => kind.lease(lease),
            Setting::Timeout(timeout) => kind.timeout(timeout),
            Setting::Concurrency(limit) => kind.concurrency(limit),
            Setting::Rate(rate) => kind.rate(rate),
            Setting::Attempts(runs) => kind.retry(Retry::default().up_to(runs)),
            Setting::Slots(..)
            | Setting::PollInterval(_)
            | Setting::Grace(_)
            | Setting::CancelGrace(_) => kind,
        };
        let worker = scene.engine.worker().handle_with(slow, kind);
        let worker = match setting {
            Setting::Slots(slots) => worker.slots(slots),
            Setting::PollInterval(interval) => worker.poll_interval(interval),
            Setting::Grace(grace) => worker.grace(grace),
            Setting::CancelGrace(grace) => worker.cancel_grace(grace),
            Setting::Lease(_)
            | Setting::Timeout(_)
            | Setting::Concurrency(_)
            | Setting::Rate(_)
            | Setting::Attempts(_) => worker,
        };
        let Some(worker) = scene.taken(worker.start().await) else { return };
        scene.engine.enqueue_many((0..5).map(work)).await.expect("they are accepted");
        pass(SECOND * 2).await;
        for count in COUNTS {
            scene.taken(worker.scale(count));
        }
        pass(SECOND).await;
        scene.engine.counts().await.expect("it is answered");
        // Some are still running, or wait for their turn.
        let stopped = tokio::time::timeout(SECOND * 120, worker.stop()).await;
        stopped.unwrap_or_else(|_| panic!("{}: it does not stop", scene.row)).expect("it stops");
    });
}

#[test]
fn an_engine_may_be_set_to_any_number() {
    let plain = Limits::default;
    let mut rows = Vec::new();
    for size in SIZES.into_iter().chain([PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1]) {
        rows.push((Limits { payload_bytes: size, ..plain() }, Recovery::default()));
        rows.push((Limits { dead_letters: size, ..plain() }, Recovery::default()));
        rows.push((Limits { history_jobs: size, ..plain() }, Recovery::default()));
    }
    for duration in DURATIONS {
        rows.push((Limits { history_age: duration, ..plain() }, Recovery::default()));
        rows.push((plain(), Recovery { delay: duration, ..Recovery::default() }));
    }
    for max_recoveries in COUNTS {
        for mode in [RecoveryMode::Act, RecoveryMode::Observe] {
            rows.push((plain(), Recovery { max_recoveries, mode, ..Recovery::default() }));
        }
    }
    try_rows("an engine with", rows, async |scene, (limits, recovery)| {
        let builder = Engine::builder().limits(limits).recovery(recovery);
        let builder = builder.clock(scene.clock.clone());
        let Some(engine) = scene.taken(builder.open("memory:").await) else { return };
        let hangs = |job: Work| async move {
            // Longer than its lease: it is not renewed while its worker is not there.
            if job.number == 0 {
                std::future::pending::<()>().await;
            }
            Err::<i64, _>(Failure::permanent("no more"))
        };
        let terms = |kind: KindOptions| kind.lease(SECOND).no_timeout();
        let worker = engine.worker().handle_with(hangs, terms).start().await.expect("it starts");
        for number in 0..4 {
            // A payload may be too large for the smallest limit.
            scene.taken(engine.enqueue(work(number)).await);
        }
        pass(SECOND * 10).await;
        worker.stop_now().await.expect("it stops");
        pass(SECOND * 10).await;
        engine.counts().await.expect("it is answered");
        engine.close().await;
    });
}

// A real thread writes here, so time is real; nobody waits for it.
#[tokio::test(flavor = "current_thread")]
async fn a_store_may_be_relaxed_by_any_time() {
    count_panics();
    for every in DURATIONS {
        let _row = Row(format!("relaxed by {every:?}"));
        let directory = Directory::new();
        let path = directory.path().join("jobs");
        let address = path.to_str().expect("a path of letters");
        for round in 1..=2 {
            let builder = Engine::builder().durability(Durability::Relaxed(every));
            let engine = builder.open(address).await.expect("any time is fine");
            let worker = engine.worker().handle(quick).start().await.expect("it starts");
            let handle = engine.enqueue(work(round)).await.expect("it is accepted");
            assert_eq!(handle.outcome().await.expect("it completes"), round);
            worker.stop().await.expect("it stops");
            engine.close().await;
        }
        let engine = Engine::builder().open(address).await.expect("nothing is damaged");
        let counts = engine.counts().await.expect("it is answered");
        assert_eq!(counts.totals().completed, 2, "{every:?}");
        engine.close().await;
    }
    assert_eq!(PANICS.get(), 0);
}

#[test]
fn a_directory_may_be_written_with_any_number() {
    let sizes = [0, 1, 4_095, 4_096, u32::MAX].into_iter().map(|bytes| (Some(bytes), None));
    let rows = sizes.chain(LONG_COUNTS.map(|bytes| (None, Some(bytes))));
    try_rows_on(
        &[false],
        "a store with",
        rows,
        async |scene, (segment_bytes, checkpoint_bytes)| {
            let disk = Arc::new(Plate::default());
            for round in 1..=2 {
                let ledger =
                    LedgerOptions { segment_bytes, checkpoint_bytes, ..LedgerOptions::default() };
                let options = FileOptions { ledger, durability: Durability::Sync };
                let (clock, wake) = (scene.clock.clone(), Arc::new(LocalWake::new()));
                let store = FileStore::on_disk(disk.clone(), &options, clock.clone(), wake.clone());
                let store =
                    Arc::new(store.unwrap_or_else(|error| panic!("{}: {error}", scene.row)));
                let engine = Engine::builder().on_store(store, wake, clock).expect("it is valid");
                let worker = engine.worker().handle(quick).start().await.expect("it starts");
                let jobs = engine.enqueue_many((0..50).map(work)).await.expect("they are accepted");
                for (job, number) in jobs.iter().zip(0..) {
                    let ran = job.outcome_within(SECOND * 60).await;
                    assert_eq!(ran.unwrap_or_else(|e| panic!("{}: {e}", scene.row)), number);
                }
                let completed = engine.counts().await.expect("it is answered").totals().completed;
                assert_eq!(completed, 50 * round, "{}", scene.row);
                worker.stop().await.expect("it stops");
                engine.close().await;
            }
        },
    );
}

#[test]
fn a_debounce_may_be_given_any_number() {
    #[derive(Clone, Copy, Debug)]
    enum Odd {
        FlushAfter(Duration),
        Sliding(Duration, Duration),
        MaxEvents(u64),
        MaxBytes(usize),
        RememberIds(Duration),
    }
    let mut rows = Vec::new();
    for duration in DURATIONS {
        rows.extend([
            Odd::FlushAfter(duration),
            Odd::Sliding(duration, duration),
            Odd::Sliding(SECOND, duration),
            Odd::Sliding(duration, Duration::MAX),
            Odd::RememberIds(duration),
        ]);
    }
    rows.extend(LONG_COUNTS.map(Odd::MaxEvents));
    rows.extend(SIZES.map(Odd::MaxBytes));
    try_rows("a debounce with", rows, async |scene, odd| {
        let flush = |_| async { Ok::<_, Failure>(()) };
        let debounce = |after| Debounce::<u32, Vec<u32>>::collect("odd", after, flush);
        let definition = match odd {
            Odd::FlushAfter(after) => debounce(after),
            Odd::Sliding(after, max_wait) => debounce(after).sliding(max_wait),
            Odd::MaxEvents(events) => debounce(SECOND).max_events(events),
            Odd::MaxBytes(bytes) => debounce(SECOND).max_bytes(bytes),
            Odd::RememberIds(window) => debounce(SECOND).remember_ids(window),
        };
        let worker = scene.engine.worker().primitive(definition.clone()).start().await;
        let worker = scene.taken(worker);
        let client = scene.engine.debounce(&definition);
        for event in 0..3 {
            let added = scene.taken(client.add("key", event).await);
            assert!(worker.is_some() || added.is_none(), "{}: refused and taken", scene.row);
            scene.taken(client.add_once("key", &event.to_string(), event).await);
            pass(SECOND / 2).await;
            scene.taken(client.status("key").await);
        }
        scene.taken(client.flush("key").await);
        scene.taken(client.clear("key").await);
        pass(SECOND * 3).await;
        if let Some(worker) = worker {
            worker.stop().await.expect("it stops");
        }
    });
}

#[test]
fn a_throttle_may_be_given_any_number() {
    let periods = DURATIONS.into_iter().map(|period| (period, HOUR));
    let windows = DURATIONS.into_iter().map(|window| (SECOND, window));
    try_rows("a throttle with", periods.chain(windows), async |scene, (period, window)| {
        let run = |_| async { Ok::<_, Failure>(()) };
        let definition = Throttle::<u32>::new("odd", period, run).remember_ids(window);
        for definition in [definition.clone(), definition.keep_latest()] {
            let worker = scene.engine.worker().primitive(definition.clone()).start().await;
            let worker = scene.taken(worker);
            let client = scene.engine.throttle(&definition);
            for event in 0..3 {
                let offered = scene.taken(client.offer("key", event).await);
                assert!(worker.is_some() || offered.is_none(), "{}: refused, taken", scene.row);
                scene.taken(client.offer_once("key", &event.to_string(), event).await);
                pass(SECOND / 2).await;
                scene.taken(client.status("key").await);
            }
            scene.taken(client.clear("key").await);
            pass(SECOND).await;
            if let Some(worker) = worker {
                worker.stop().await.expect("it stops");
            }
        }
    });
}

/// A schedule, or the sentence that says why it is none.
fn schedule(made: Result<Schedule, InvalidSchedule>) -> Option<Schedule> {
    made.map_err(|why| assert!(why.to_string().contains(' '), "no sentence: {why}")).ok()
}

const MISSED: [MissedRuns; 4] = [
    MissedRuns::Skip,
    MissedRuns::RunOnce,
    MissedRuns::CatchUp { at_most: 0 },
    MissedRuns::CatchUp { at_most: 2 },
];

/// More than are made up for at once.
const CATCH_UP: [MissedRuns; 3] = [
    MissedRuns::CatchUp { at_most: 1_000 },
    MissedRuns::CatchUp { at_most: 1_001 },
    MissedRuns::CatchUp { at_most: u32::MAX },
];

fn schedules() -> Vec<Schedule> {
    let mut all: Vec<Schedule> =
        DURATIONS.iter().filter_map(|every| schedule(Schedule::every(*every))).collect();
    for pattern in ["* * * * * *", "0 0 1 1 *", "0 0 29 2 *", "0 0 0 1 1 * 4999"] {
        all.push(schedule(Schedule::cron(pattern)).expect("it runs"));
    }
    let started = |start: i64| {
        let every = Schedule::every(SECOND).expect("it is valid");
        schedule(every.starting_at(Timestamp::from_micros(start)))
    };
    all.extend(MICROS.into_iter().filter_map(started));
    all.extend(started(Timestamp::from_millis(95_617_583_999_999).as_micros()));
    all
}

#[test]
fn a_schedule_answers_at_any_time() {
    for schedule in schedules() {
        let _row = Row(schedule.to_string());
        for after in MICROS.map(Timestamp::from_micros) {
            schedule.next_after(after);
            for count in [0, 1, 3] {
                assert!(schedule.upcoming(after, count).len() <= count);
            }
            for now in MICROS.map(Timestamp::from_micros) {
                for missed in [MissedRuns::Skip, MissedRuns::CatchUp { at_most: 2 }] {
                    for grace in [Duration::ZERO, Duration::MAX] {
                        assert!(schedule.due(after, now, missed, grace).runs.len() <= 2);
                    }
                }
            }
        }
    }
    let every = Schedule::every(Duration::from_millis(1)).expect("it is valid");
    assert_eq!(every.upcoming(Timestamp::default(), usize::MAX).len(), windlass::RUNS_AT_ONCE);
    for text in ["every 340282366920938463463374607431768211455d", "every 0ms", "every 1000000d"] {
        text.parse::<Schedule>().expect_err("it cannot be kept");
    }
}

#[test]
fn a_schedule_may_enqueue_with_any_number() {
    let rows = schedules().into_iter().flat_map(|schedule| {
        MISSED.into_iter().map(move |missed| (schedule.clone(), missed, Options::new()))
    });
    let every = Schedule::every(SECOND).expect("it is valid");
    let with_options =
        odd_options().into_iter().map(|options| (every.clone(), MissedRuns::RunOnce, options));
    let many = CATCH_UP.into_iter().map(|missed| (every.clone(), missed, Options::new()));
    let rows: Vec<_> = rows.chain(with_options).chain(many).collect();
    try_rows_on(&[false], "a schedule", rows, async |scene, (schedule, missed, options)| {
        let schedules = scene.engine.schedules();
        let set = schedules.set("odd", schedule.clone(), work(1));
        let set = set.options(options).missed_runs(missed);
        let every_second = schedule == Schedule::every(SECOND).expect("it is valid");
        let set = match set.await {
            // A fixed time is that of a single job.
            Err(Error::Validation { issues, .. }) => {
                assert!(issues.contains(' '), "{issues}");
                None
            }
            answer => scene.taken(answer),
        };
        let worker = scene.worker(|kind| kind).await.expect("it starts");
        pass(Duration::from_millis(100)).await;
        // Nobody is there for a while.
        worker.stop().await.expect("it stops");
        scene.clock.step_forward(SECOND * 5_000);
        let worker = scene.worker(|kind| kind).await.expect("it starts");
        pass(Duration::from_millis(20)).await;
        if set.is_some() && every_second && missed != MissedRuns::Skip {
            let enqueued = scene.engine.jobs().kind("work").page(None, 1).await;
            let enqueued = enqueued.expect("it is answered").jobs;
            let view = schedules.get("odd").await;
            assert!(!enqueued.is_empty(), "{}: set, and nothing comes: {view:?}", scene.row);
        }
        scene.taken(schedules.get("odd").await);
        for limit in SIZES {
            scene.taken(schedules.list(None, limit).await);
        }
        if scene.taken(schedules.get("odd").await).flatten().is_some() {
            scene.taken(schedules.run_now("odd").await);
            schedules.remove("odd").await.expect("it is removed");
        }
        worker.stop().await.expect("it stops");
    });
}

#[test]
fn a_loop_may_be_given_any_number() {
    #[derive(Clone, Debug)]
    enum Odd {
        Schedule(Schedule, MissedRuns),
        NextIn(Duration),
        NextAt(SystemTime),
        PurgeAfter(Duration),
    }
    let mut rows = Vec::new();
    for schedule in schedules() {
        rows.extend(MISSED.map(|missed| Odd::Schedule(schedule.clone(), missed)));
    }
    for duration in DURATIONS {
        rows.extend([Odd::NextIn(duration), Odd::PurgeAfter(duration)]);
    }
    rows.extend(times().into_iter().map(Odd::NextAt));
    try_rows("a loop with", rows, async |scene, odd| {
        let wish = odd.clone();
        let code = move |mut tick: windlass::primitives::Tick<u64>| {
            let wish = wish.clone();
            async move {
                tick.state += 1;
                // Only now and then: what is to run at once again and again does so.
                match wish {
                    Odd::NextIn(delay) if tick.run_count() <= 3 => tick.next_in(delay),
                    Odd::NextAt(time) if tick.run_count() <= 3 => tick.next_at(time),
                    _ => {}
                }
                Ok(tick)
            }
        };
        let (schedule, missed) = match &odd {
            Odd::Schedule(schedule, missed) => (schedule.clone(), *missed),
            Odd::NextIn(_) | Odd::NextAt(_) | Odd::PurgeAfter(_) => {
                (Schedule::every(SECOND).expect("it is valid"), MissedRuns::RunOnce)
            }
        };
        let definition = Continuous::new("odd", schedule, code).missed_runs(missed);
        let definition = match odd {
            Odd::PurgeAfter(delay) => definition.purge_after(delay),
            Odd::Schedule(..) | Odd::NextIn(_) | Odd::NextAt(_) => definition,
        };
        let worker = scene.engine.worker().primitive(definition.clone()).start().await;
        let worker = scene.taken(worker);
        let client = scene.engine.continuous(&definition);
        let started = scene.taken(client.start("key", 0).await);
        assert!(worker.is_some() || started.is_none(), "{}: refused and taken", scene.row);
        let (Some(worker), Some(_)) = (worker, started) else { return };
        pass(Duration::from_millis(100)).await;
        let ran = client.state("key").await.expect("it can be read").expect("it was started");
        assert!(ran >= 1, "{}: it does not run", scene.row);
        worker.stop().await.expect("it stops");
        scene.clock.step_forward(SECOND * 5_000);
        let again = scene.engine.worker().primitive(definition.clone()).start().await;
        let again = again.expect("it started before");
        pass(Duration::from_millis(20)).await;
        scene.taken(client.status("key").await);
        scene.taken(client.trigger("key").await);
        pass(Duration::from_millis(20)).await;
        let then = client.state("key").await.expect("it can be read").expect("it was started");
        assert!(then > ran, "{}: it does not run any more: {ran}, {then}", scene.row);
        scene.taken(client.terminate("key").await);
        again.stop().await.expect("it stops");
    });
}

#[test]
fn a_loop_or_a_schedule_makes_up_for_a_thousand_runs_at_most() {
    try_rows_on(&[false], "making up with", CATCH_UP, async |scene, missed| {
        let every = Schedule::every(SECOND).expect("it is valid");
        let code = |mut tick: windlass::primitives::Tick<u64>| async move {
            tick.state += 1;
            Ok(tick)
        };
        let definition = Continuous::new("odd", every.clone(), code).missed_runs(missed);
        let client = scene.engine.continuous(&definition);
        client.start("key", 0).await.expect("it starts");
        let schedules = scene.engine.schedules();
        let set = schedules.set("odd", every, Plain(1)).missed_runs(missed);
        set.await.expect("it is set");
        scene.clock.step_forward(SECOND * 5_000);
        let worker = scene.engine.worker().primitive(definition.clone()).handle(plain).slots(50);
        let worker = worker.start().await.expect("it starts");
        pass(SECOND / 2).await;
        let runs = client.state("key").await.expect("it can be read").expect("it was started");
        assert_eq!(runs, 1_000, "{}", scene.row);
        let counts = scene.engine.counts().await.expect("it is answered");
        assert_eq!(counts.of_kind("plain", windlass::StateName::Completed), 1_000);
        worker.stop().await.expect("it stops");
    });
}

#[test]
fn a_pool_may_be_given_any_number() {
    #[derive(Clone, Copy, Debug)]
    enum Odd {
        Lanes(u32),
        LaneDepth(u64),
        RememberIds(Duration),
        Priority(i32),
        Lane(u32),
    }
    let rows = COUNTS.map(Odd::Lanes).into_iter().chain(COUNTS.map(Odd::Lane));
    let rows = rows.chain(LONG_COUNTS.map(Odd::LaneDepth)).chain(DURATIONS.map(Odd::RememberIds));
    let rows = rows.chain(PRIORITIES.map(Odd::Priority));
    try_rows("a pool with", rows, async |scene, odd| {
        let handle = |_: u32, _| async { Ok::<_, Failure>(()) };
        let lanes = if let Odd::Lanes(lanes) = odd { lanes } else { 3 };
        let pool = WorkerPool::new("odd", lanes, handle);
        let pool = match odd {
            Odd::LaneDepth(depth) => pool.lane_depth(depth),
            Odd::RememberIds(window) => pool.remember_ids(window),
            Odd::Lanes(_) | Odd::Priority(_) | Odd::Lane(_) => pool,
        };
        let worker = scene.taken(scene.engine.worker().pool(&pool).start().await);
        let client = scene.engine.pool(&pool);
        for number in 0..5 {
            let event = PoolEvent::new(number).key(number.to_string()).id(number.to_string());
            let event = match odd {
                Odd::Priority(priority) => event.priority(Priority(priority)),
                Odd::Lanes(_) | Odd::LaneDepth(_) | Odd::RememberIds(_) | Odd::Lane(_) => event,
            };
            let taken = scene.taken(client.enqueue(event).await);
            assert!(worker.is_some() || taken.is_none(), "{}: refused and taken", scene.row);
        }
        let lane = if let Odd::Lane(lane) = odd { Some(lane) } else { None };
        scene.taken(client.pause(lane).await);
        scene.taken(client.resume(lane).await);
        scene.taken(client.lane_status(lane.unwrap_or(0)).await);
        pass(SECOND).await;
        scene.taken(client.status().await);
        scene.taken(client.clear(lane).await);
        scene.taken(client.cancel("1").await);
        if let Some(worker) = worker {
            worker.stop().await.expect("it stops");
        }
    });
}

/// Wishes for an alarm wherever it can.
#[derive(Clone, Copy, Debug)]
enum TaskWish {
    After(Duration),
    At(i64),
    OnIdle(Duration),
    OnError(Duration),
}

struct Wishful(TaskWish);

impl StateMachine for Wishful {
    type State = u32;
    type Event = u32;

    async fn on_event(&self, task: &mut TaskContext<u32>, event: u32) -> Result<(), Failure> {
        task.state += 1;
        match self.0 {
            TaskWish::OnError(_) if event == 0 => return Err(Failure::permanent("as it wishes")),
            TaskWish::After(delay) if event == 0 => task.schedule(delay),
            TaskWish::At(at) if event == 0 => task.schedule_at(Timestamp::from_micros(at)),
            _ => {}
        }
        Ok(())
    }

    async fn on_alarm(&self, task: &mut TaskContext<u32>) -> Result<(), Failure> {
        task.state += 100;
        Ok(())
    }

    fn on_idle(&self, turn: &mut TaskTurn<'_, Self>) {
        match self.0 {
            TaskWish::OnIdle(delay) if *turn.state < 100 => turn.schedule(delay),
            _ => {}
        }
    }

    fn on_error(&self, turn: &mut TaskTurn<'_, Self>, _: FailedRun<u32>) {
        if let TaskWish::OnError(delay) = self.0 {
            turn.schedule(delay);
        }
    }
}

#[test]
fn a_task_may_wish_for_any_alarm() {
    let wishes = DURATIONS.into_iter().flat_map(|duration| {
        [TaskWish::After(duration), TaskWish::OnIdle(duration), TaskWish::OnError(duration)]
    });
    try_rows("a task wishes for", wishes.chain(MICROS.map(TaskWish::At)), async |scene, wish| {
        let definition = Task::new("odd", Wishful(wish));
        let worker = scene.engine.worker().primitive(definition.clone()).start().await;
        let worker = worker.expect("it starts");
        let client = scene.engine.task(&definition);
        client.send("key", 0).await.expect("it is accepted");
        pass(SECOND * 30).await;
        // It takes events as ever, and its state is that of all that succeeded.
        client.send("key", 1).await.expect("it is accepted");
        pass(SECOND * 30).await;
        let state = client.state("key").await.expect("it can be read").expect("it is there");
        let status = client.status("key").await.expect("it can be read").expect("it is there");
        assert!(state % 100 >= 1, "{}: {state}, {status:?}", scene.row);
        assert_eq!(status.events, 0, "{}: {state}, {status:?}", scene.row);
        worker.stop().await.expect("it stops");
    });
    let windows = DURATIONS;
    try_rows("a task remembers for", windows, async |scene, window| {
        let odd = Task::new("odd", Wishful(TaskWish::At(0))).remember_ids(window);
        let client = scene.engine.task(&odd);
        scene.taken(client.send_once("key", "one", 1).await);
        scene.taken(client.send_once("key", "one", 1).await);
    });
}

/// A primitive of one's own that wishes for something in one of its turns.
#[derive(Clone, Debug)]
struct Own {
    wish: OwnWish,
    at: Where,
}

#[derive(Clone, Copy, Debug)]
enum OwnWish {
    Alarm(Start),
    AlarmToRun(Start),
    Move(Start),
    Purge(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Command,
    Alarm,
    Outcome,
}

impl Own {
    fn wish_for(&self, turn: &mut Turn<Self>) {
        match self.wish {
            OwnWish::Alarm(start) => turn.alarm(start),
            OwnWish::AlarmToRun(start) => turn.alarm_to_run(start, 1),
            OwnWish::Move(start) => turn.move_alarm(start),
            OwnWish::Purge(delay) => turn.purge_after(delay),
        }
    }
}

impl Primitive for Own {
    const KIND: &'static str = "own";
    type State = u32;
    type Command = u32;
    type Reply = u32;
    type Run = u32;
    type Output = u32;

    fn name(&self) -> &str {
        match self.at {
            Where::Command => "command",
            Where::Alarm => "alarm",
            Where::Outcome => "outcome",
        }
    }

    fn on_command(&self, sum: &mut u32, add: &u32, turn: &mut Turn<Self>) -> Result<u32, Error> {
        *sum += add;
        turn.alarm_in(SECOND);
        if self.at == Where::Command && *add == 1 {
            self.wish_for(turn);
        }
        Ok(*sum)
    }

    fn on_alarm(&self, sum: &mut u32, turn: &mut Turn<Self>) {
        *sum += 1_000;
        match self.at {
            Where::Alarm if *sum < 4_000 => self.wish_for(turn),
            Where::Outcome if *sum < 4_000 => turn.run(0),
            Where::Alarm | Where::Outcome | Where::Command => {}
        }
    }

    async fn run(&self, _: u32, _: RunContext<Self>) -> Result<u32, Failure> {
        Ok(0)
    }

    fn on_outcome(&self, sum: &mut u32, _: u32, _: RunOutcome<u32>, turn: &mut Turn<Self>) {
        *sum += 1_000_000;
        if self.at == Where::Outcome && *sum < 4_000_000 {
            self.wish_for(turn);
        }
    }
}

#[test]
fn a_primitive_of_ones_own_may_wish_for_any_number() {
    let starts = DURATIONS.map(Start::After).into_iter();
    let starts = starts.chain(MICROS.map(|micros| Start::At(Timestamp::from_micros(micros))));
    let wishes = starts.flat_map(|start| {
        [OwnWish::Alarm(start), OwnWish::AlarmToRun(start), OwnWish::Move(start)]
    });
    let wishes: Vec<_> = wishes.chain(DURATIONS.map(OwnWish::Purge)).collect();
    try_rows("a primitive", wishes, async |scene, wish| {
        let own = [Where::Command, Where::Alarm, Where::Outcome].map(|at| Own { wish, at });
        let worker = own.iter().fold(scene.engine.worker(), |to, own| to.primitive(own.clone()));
        let worker = worker.start().await.expect("it starts");
        for own in &own {
            scene.taken(scene.engine.objects(own).command("key", &1).await);
        }
        pass(SECOND * 20).await;
        for own in &own {
            let (objects, row) = (scene.engine.objects(own), &scene.row);
            let gone = matches!(wish, OwnWish::Purge(_));
            if own.at != Where::Command && !gone {
                let view = objects.view("key").await.expect("it is answered");
                let view = view.unwrap_or_else(|| panic!("{row}, {own:?}: it is gone"));
                let sum = objects.state("key").await.expect("it can be read");
                // An alarm was taken over at least, and what followed from it has ended.
                assert!(sum >= Some(1_000), "{row}, {own:?}: {sum:?}, {view:?}");
                assert_eq!(view.executing_since, None, "{row}, {own:?}: {sum:?}, {view:?}");
            }
            // Whatever came of it, the object takes commands.
            objects.command("key", &2).await.unwrap_or_else(|e| panic!("{row}, {own:?}: {e}"));
            for limit in SIZES {
                objects.list(None, limit).await.expect("it is answered");
            }
        }
        pass(SECOND * 3).await;
        worker.stop().await.expect("it stops");
    });
}

#[test]
fn a_client_may_ask_with_any_number() {
    let rows = DURATIONS;
    try_rows("a client asks with", rows, async |scene, duration| {
        let engine = &scene.engine;
        let handle = engine.enqueue(work(1)).delay(HOUR).await.expect("it is accepted");
        let waits = tokio::spawn({
            let handle = handle.clone();
            async move { handle.outcome_within(duration).await }
        });
        settle_down().await;
        scene.taken(engine.reschedule_in(handle.id(), duration).await);
        for time in times() {
            scene.taken(engine.reschedule(handle.id(), time).await);
            let jobs = engine.jobs().created_from(time).created_before(time);
            scene.taken(jobs.page(None, 10).await);
        }
        for (limit, cursor) in SIZES.into_iter().zip(LONG_COUNTS) {
            for query in [engine.jobs(), engine.jobs().oldest_first()] {
                scene.taken(query.page(Some(Cursor(cursor)), limit).await);
            }
            let mut events = engine.subscribe_after(Topics::all(), Some(cursor)).expect("valid");
            let _ = events.try_next().await;
            let queue = engine.queue("odd").expect("a name");
            scene.taken(queue.max_depth(Some(cursor)).await);
            scene.taken(queue.ageing(Some(duration)).await);
            for priority in PRIORITIES {
                let odd = engine.enqueue(work(2)).queue("odd").priority(Priority(priority));
                scene.taken(odd.await);
            }
        }
        let own = Own { wish: OwnWish::Alarm(Start::Now), at: Where::Alarm };
        for _ in 0..2 {
            let once = engine.objects(&own).command_once("once", "event", duration, &2).await;
            scene.taken(once);
        }
        engine.run_now(handle.id()).await.expect("it waits");
        let worker = scene.worker(|kind| kind).await.expect("it starts");
        pass(SECOND * 5).await;
        assert_eq!(handle.outcome().await.expect("it completes"), 1);
        assert!(waits.is_finished(), "{}: nobody was told", scene.row);
        worker.stop().await.expect("it stops");
    });
}

#[test]
fn a_clock_may_be_stepped_by_any_time() {
    let rows = DURATIONS.into_iter().flat_map(|by| [(by, true), (by, false)]);
    try_rows("a step of the clock", rows, async |scene, (by, forward)| {
        let worker = scene.worker(|kind| kind).await.expect("it starts");
        let handle = scene.engine.enqueue(work(1)).delay(SECOND).await.expect("it is accepted");
        for _ in 0..3 {
            match forward {
                true => scene.clock.step_forward(by),
                false => scene.clock.step_back(by),
            }
        }
        pass(SECOND * 3).await;
        // It has completed after the steps, so it is not old.
        let ran = handle.outcome_within(SECOND).await;
        assert_eq!(ran.unwrap_or_else(|error| panic!("{}: {error}", scene.row)), 1);
        worker.stop().await.expect("it stops");
    });
}

#[test]
fn a_lab_may_let_any_time_pass() {
    for duration in DURATIONS {
        let _row = Row(format!("a lab lets {duration:?} pass"));
        let passes = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
            runtime.block_on(letting_pass(duration));
        };
        match std::panic::catch_unwind(passes) {
            Ok(()) => assert!(duration <= DELAY_MAX),
            // A lab has no other way to refuse something.
            Err(panic) => {
                let said = panic.downcast_ref::<String>().expect("it says why");
                assert!(duration > DELAY_MAX && said.contains("check the unit"), "{said}");
            }
        }
    }
}

async fn letting_pass(duration: Duration) {
    let lab = Lab::new(|worker| worker.handle(quick)).await;
    let handle = lab.engine().enqueue(work(1)).delay(SECOND).await.expect("it is accepted");
    lab.advance(duration).await;
    lab.now();
    lab.run_everything().await;
    // After years its record is no longer kept.
    if lab.engine().find(handle.id()).await.expect("it is answered").is_some() {
        assert_eq!(lab.outcome::<Work>(&handle).await.expect("it completes"), 1);
    }
    let handle = lab.engine().enqueue(work(2)).await.expect("it is accepted");
    lab.run_until_idle().await;
    assert_eq!(lab.outcome::<Work>(&handle).await.expect("it completes"), 2);
}

/// Nobody else may have an id like it.
#[test]
fn an_id_may_be_any_number() {
    try_rows("an id", [0, 1, u128::MAX], async |scene, number| {
        let id = JobId::from_u128(number);
        scene.taken(scene.engine.enqueue(work(1)).id(id).await);
        let worker = scene.worker(|kind| kind).await.expect("it starts");
        pass(SECOND).await;
        worker.stop().await.expect("it stops");
    });
}
