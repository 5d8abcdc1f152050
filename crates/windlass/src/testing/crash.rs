//! Killing the engine at every durable write and every acknowledgement, and looking whether the
//! user's invariant holds afterwards.
//!
//! Each crash point is a run of its own: a runtime of one thread with paused time, a fresh world, a
//! disk in memory with a trap. When the trap is reached nobody gets an answer any more, and the
//! runtime is dropped with all its tasks. A second runtime then opens what the disk has left. The
//! first run has no trap: it counts the points.
//!
//! Answers: a crash between any two durable writes must be tried, and the same crash again when a
//! test has failed.
//! Why not simpler: a real process is killed at a moment of chance. Here everything that chance
//! could decide is taken away: threads, real time, random ids (`ids.rs`), the writer's thread
//! (`store.rs`).
//! Guarded by: `tests/main/kit.rs`
//! (`every_crash_point_is_the_same_each_time_and_loses_nothing_acknowledged`,
//! `nothing_of_a_killed_process_runs_on`).

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use super::VirtualClock;
use super::disk::{Act, Mark, MemoryDisk, Trap};
use super::ids::CountedIds;
use super::lab::Lab;
use super::pace::{Endless, PaceEnd};
use super::store::MortalStore;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::failure::BoxError;
use crate::wake::LocalWake;
use crate::worker::WorkerBuilder;

/// Which crash point to try alone.
const ONLY: &str = "WINDLASS_CRASH_POINT";

type Furnish = Box<dyn Fn(WorkerBuilder) -> WorkerBuilder>;

/// What one run of [`crash_everywhere`] begins with: the outside world, and who does the work.
pub struct Setup<W> {
    world: Arc<W>,
    worker: Furnish,
    horizon: Duration,
}

impl<W: Send + Sync + 'static> Setup<W> {
    /// The outside world survives the crash, as a payment provider would; handlers get it as
    /// [`State<W>`](crate::State). `worker` gives each process its worker: before the crash one,
    /// and after it another.
    pub fn new(world: W, worker: impl Fn(WorkerBuilder) -> WorkerBuilder + 'static) -> Self {
        let world = Arc::new(world);
        Self { world, worker: Box::new(worker), horizon: Duration::from_secs(86_400) }
    }

    /// For how long, in virtual time, jobs are run after the scenario, if they do not end earlier;
    /// a day by default. Set it low for work that comes back for ever.
    pub fn run_for(mut self, horizon: Duration) -> Self {
        self.horizon = horizon;
        self
    }
}

impl<W> fmt::Debug for Setup<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setup(run for {:?})", self.horizon)
    }
}

/// Where a run is killed, and what becomes of what was not synced.
#[derive(Clone, Debug)]
struct Point {
    trap: Trap,
    keep_unsynced: bool,
    at: Mark,
    /// Whether anything is unsynced there.
    dirty: bool,
}

/// "after the outcome of `charge` was synced and before it was answered"
impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.at.of;
        match (self.at.act, self.trap.before) {
            (Act::Write, true) => write!(f, "before {of} was written"),
            (Act::Write, false) => write!(f, "after {of} was written and before it was synced"),
            (Act::Sync, true) => write!(f, "before {of} was synced"),
            (Act::Sync, false) => write!(f, "after {of} was synced and before it was answered"),
            (Act::Name, true) => write!(f, "before a file was made or let go for {of}"),
            (Act::Name, false) => write!(f, "after a file was made or let go for {of}"),
            (Act::Answer, _) => write!(f, "after {of} was answered"),
        }?;
        match (self.dirty, self.keep_unsynced) {
            (false, _) => Ok(()),
            (true, true) => f.write_str("; what was not synced survived"),
            (true, false) => f.write_str("; what was not synced was lost"),
        }
    }
}

/// The points at one mark. Before a sync is after the write, so that is not tried again.
fn points(mark: usize, at: &Mark) -> Vec<Point> {
    let moments = match at.act {
        Act::Write => vec![(true, at.dirty), (false, true)],
        Act::Name => vec![(true, at.dirty), (false, false)],
        Act::Sync => vec![(false, false)],
        Act::Answer => vec![(false, at.dirty)],
    };
    let mut points = Vec::new();
    for (before, dirty) in moments {
        // With nothing unsynced, to keep it and to drop it are the same crash.
        let fates: &[bool] = if dirty { &[false, true] } else { &[false] };
        points.extend(fates.iter().map(|&keep_unsynced| {
            let trap = Trap { mark, before };
            Point { trap, keep_unsynced, at: at.clone(), dirty }
        }));
    }
    points
}

/// Runs `scenario` once for every durable write (before it reaches the disk, and after) and once
/// for every acknowledgement, kills the engine there, opens it again on what the disk has left,
/// runs all that is due, and then `check`. Returns how many crash points there were.
///
/// - `setup` is called once per run. It builds a fresh outside world and registers handlers, which
///   get that world as [`State`](crate::State).
/// - `scenario` is your producer: it enqueues. It runs up to the crash and is not run again, as a
///   request to a web server would not be. Its error fails the test only in the run without a
///   crash, in which everything is counted first.
/// - `check` asserts what must be true however it came about. It may panic or return an error.
///
/// Nothing is printed when all is well. Otherwise it **panics** with the number of the crash point,
/// what was written or acknowledged there, what `check` said, and how to run that point alone: with
/// `WINDLASS_CRASH_POINT=17` in the environment.
///
/// *What a crash is.* From that moment nobody gets an answer from the engine, no task is polled
/// again, and what was written without a sync is once lost and once kept. A claim is not synced
/// before its job starts, so a handler may have run although its start is forgotten. Two things
/// differ from a real end: values are dropped, so a `Drop` that acts on the world is seen to act,
/// and a blocking handler runs to its end.
///
/// *Always the same.* Each run has one thread, paused time, and ids that are counted from 1, so a
/// point is the same place every time. A scenario that reads the machine's clock, draws random
/// numbers or starts threads may do something else each time; it panics if that is noticed.
///
/// It makes runtimes of its own: call it from a plain `#[test]`, not from an async one.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use serde::{Deserialize, Serialize};
/// use windlass::testing::{Setup, crash_everywhere};
/// use windlass::{Attempt, BoxError, Engine, Failure, Job, JobId, State};
///
/// #[derive(Serialize, Deserialize)]
/// struct Charge { cents: u64 }
/// impl Job for Charge {
///     const KIND: &'static str = "charge";
///     type Output = ();
/// }
///
/// /// A payment provider that knows idempotency keys.
/// #[derive(Default)]
/// struct Provider { charges: Mutex<std::collections::BTreeMap<JobId, u64>> }
///
/// async fn charge(job: Charge, attempt: Attempt, at: State<Provider>) -> Result<(), Failure> {
///     at.charges.lock().unwrap().insert(attempt.id(), job.cents);
///     Ok(())
/// }
///
/// async fn order(engine: Engine, _: Arc<Provider>) -> Result<(), BoxError> {
///     engine.enqueue(Charge { cents: 999 }).await?;
///     Ok(())
/// }
///
/// let points = crash_everywhere(
///     || Setup::new(Provider::default(), |worker| worker.handle(charge)),
///     order,
///     async |_, provider: Arc<Provider>| {
///         assert!(provider.charges.lock().unwrap().len() <= 1, "charged twice");
///         Ok(())
///     },
/// );
/// assert!(points > 10);
/// ```
#[track_caller]
pub fn crash_everywhere<W: Send + Sync + 'static>(
    setup: impl Fn() -> Setup<W>,
    scenario: impl AsyncFn(Engine, Arc<W>) -> Result<(), BoxError>,
    check: impl AsyncFn(Engine, Arc<W>) -> Result<(), BoxError>,
) -> usize {
    assert!(
        tokio::runtime::Handle::try_current().is_err(),
        "crash_everywhere makes runtimes of its own: call it from a plain `#[test]`, not from an \
         async one"
    );
    crate::panics::watch();
    let marks = match count(&setup, &scenario, &check) {
        Ok(marks) => marks,
        Err(why) => panic!("without any crash, {why}"),
    };
    let points: Vec<Point> =
        marks.iter().enumerate().flat_map(|(mark, at)| points(mark, at)).collect();
    let all = points.len();
    let only = only(all);
    let mut tried = 0;
    for (number, point) in (1..).zip(points) {
        if only.is_some_and(|only| only != number) {
            continue;
        }
        if let Err(why) = crash_at(&point, &setup, &scenario, &check) {
            panic!(
                "crash point {number} of {all}, {point}:\n{why}\n\
                 Run this point alone with {ONLY}={number} in the environment."
            );
        }
        tried += 1;
    }
    tried
}

/// The one point to try, if the environment names one.
fn only(all: usize) -> Option<usize> {
    let text = std::env::var(ONLY).ok()?;
    let number = text.parse().ok().filter(|number| (1..=all).contains(number));
    assert!(number.is_some(), "{ONLY} is {text:?}; it must be a number from 1 to {all}");
    number
}

/// The run without a crash, which must end well.
fn count<W: Send + Sync + 'static>(
    setup: &impl Fn() -> Setup<W>,
    scenario: &impl AsyncFn(Engine, Arc<W>) -> Result<(), BoxError>,
    check: &impl AsyncFn(Engine, Arc<W>) -> Result<(), BoxError>,
) -> Result<Vec<Mark>, String> {
    let (_ids, disk, setup) = (CountedIds::begin(), MemoryDisk::default(), setup());
    in_process(async || {
        let lab = open(&disk, &setup, VirtualClock::new()).await?;
        disk.arm(None);
        let done = scenario(lab.engine().clone(), setup.world.clone()).await;
        done.map_err(|error| format!("the scenario failed: {error}"))?;
        run(&lab, &setup).await?;
        let marks = disk.marks();
        run_check(&lab, &setup, check).await.map(|()| marks)
    })
}

/// One run with a crash.
fn crash_at<W: Send + Sync + 'static>(
    point: &Point,
    setup: &impl Fn() -> Setup<W>,
    scenario: &impl AsyncFn(Engine, Arc<W>) -> Result<(), BoxError>,
    check: &impl AsyncFn(Engine, Arc<W>) -> Result<(), BoxError>,
) -> Result<(), String> {
    let (_ids, disk, setup) = (CountedIds::begin(), MemoryDisk::default(), setup());
    let wall = in_process(async || {
        let lab = open(&disk, &setup, VirtualClock::new()).await?;
        disk.arm(Some(point.trap));
        let life = async {
            // What it makes of a failure does not matter: its process is about to end.
            let _ = scenario(lab.engine().clone(), setup.world.clone()).await;
            run(&lab, &setup).await
        };
        tokio::select! {
            biased;
            () = disk.killed() => {}
            ended = life => ended?,
        }
        Ok(lab.clock().now().wall)
    })?;
    if !disk.is_dead() || !same_place(&disk, point) {
        return Err("the second run did not do what the first one did. A scenario or a handler \
             that reads the machine's clock, draws random numbers or starts threads cannot be \
             killed at the same place twice"
            .to_string());
    }
    disk.revive(point.keep_unsynced);
    in_process(async || {
        let lab = open(&disk, &setup, VirtualClock::showing(wall)).await?;
        run(&lab, &setup).await?;
        run_check(&lab, &setup, check).await
    })
}

/// Whether the disk died where the run without a crash was at that point. What a claim was for is
/// known only when it is answered, so its words may differ.
fn same_place(disk: &MemoryDisk, point: &Point) -> bool {
    let marks = disk.marks();
    let last = marks.last().map(|mark| (mark.act, mark.dirty));
    marks.len() == point.trap.mark + 1 && last == Some((point.at.act, point.at.dirty))
}

/// Runs one process from its start to its end: when this returns, none of its tasks is left.
fn in_process<T>(life: impl AsyncFnOnce() -> Result<T, String>) -> Result<T, String> {
    // `event_interval(1)`: after each poll of a task, the future that waits for the kill is polled
    // if it was woken, so that nothing runs on after the trap.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_all().start_paused(true).event_interval(1);
    let runtime = builder.build().map_err(|error| format!("no runtime could be made: {error}"))?;
    let ended = crate::panics::catch(AssertUnwindSafe(|| runtime.block_on(life())));
    // A thread that blocks for ever must not hold up the test for ever.
    runtime.shutdown_timeout(Duration::from_secs(10));
    ended.unwrap_or_else(Err)
}

async fn open<W: Send + Sync + 'static>(
    disk: &MemoryDisk,
    setup: &Setup<W>,
    clock: VirtualClock,
) -> Result<Lab, String> {
    let (clock, wake) = (Arc::new(clock), Arc::new(LocalWake::new()));
    let store = MortalStore::open(disk, clock.clone(), wake.clone());
    let store = store.map_err(|error| format!("the store could not be opened: {error}"))?;
    let worker = |worker: WorkerBuilder| (setup.worker)(worker.shared_state(setup.world.clone()));
    Ok(Lab::on(Arc::new(store), wake, clock, worker).await)
}

/// Runs what is due. That something is left to do is for the check to judge.
async fn run<W>(lab: &Lab, setup: &Setup<W>) -> Result<(), String> {
    match lab.pace().until_done(setup.horizon).await {
        Ok(PaceEnd::Done | PaceEnd::Stuck | PaceEnd::Horizon) => Ok(()),
        Err(Endless(why)) => {
            Err(format!("there is no end: {why}:{}", lab.pace().open_jobs().await))
        }
    }
}

async fn run_check<W>(
    lab: &Lab,
    setup: &Setup<W>,
    check: &impl AsyncFn(Engine, Arc<W>) -> Result<(), BoxError>,
) -> Result<(), String> {
    let checked = check(lab.engine().clone(), setup.world.clone()).await;
    checked.map_err(|error| format!("the check failed: {error}"))
}
