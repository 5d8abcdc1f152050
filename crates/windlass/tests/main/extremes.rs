//! Every number that a user can give above the store, at its extremes: it is taken or refused with
//! a sentence, nothing panics, hangs or spins, and an ordinary job still runs from end to end.
//!
//! What a store makes of such numbers is asked of every store by the conformance suite.

mod clients;
mod jobs;
mod primitives;
mod schedules;
mod settings;

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use windlass::limits::{DELAY_MAX, LEASE_MAX, LEASE_MIN};
use windlass::store::file::{FileOptions, LedgerOptions, RealDisk};
use windlass::store::{FileStore, MemoryStore, Store};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::{Durability, Engine, Error, Failure, Job, KindOptions, Limits, Worker};

use crate::common::{Directory, HOUR, SECOND, Tampered, Work, work};

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
