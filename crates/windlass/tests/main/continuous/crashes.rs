//! Crashes: a loop goes on by itself, and stops if it is what kills its process.

use std::future::pending;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use windlass::primitives::{Continuous, Standing, Started, Tick};
use windlass::store::FileStore;
use windlass::store::file::FileOptions;
use windlass::testing::{Setup, VirtualClock, crash_everywhere};
use windlass::wake::LocalWake;
use windlass::{BoxError, Engine, Failure, Received, State, StateName, Topics, WorkerBuilder};

use super::{MINUTE, every, status};
use crate::common::{Counter, Directory, HOUR, Notes, SECOND};

/// What the code of a loop has done outside.
#[derive(Default)]
struct World {
    /// The number of each run that began.
    began: Mutex<Vec<u64>>,
}

async fn count_outside(mut tick: Tick<u64>) -> Result<Tick<u64>, Failure> {
    let world: State<World> = tick.attempt().state().expect("the kit gives it");
    world.began.lock().expect("no panic").push(tick.run_count());
    assert_eq!(tick.state + 1, tick.run_count(), "no run is counted without its state");
    tick.state += 1;
    Ok(tick)
}

#[test]
fn no_crash_puts_a_loop_to_sleep_or_counts_a_run_without_its_state() {
    let definition = || Continuous::new("counting", every(MINUTE), count_outside);
    let setup = || {
        let worker = move |worker: WorkerBuilder| worker.primitive(definition());
        Setup::new(World::default(), worker).run_for(MINUTE * 3)
    };
    let scenario = async |engine: Engine, _| -> Result<(), BoxError> {
        engine.continuous(&definition()).start("a", 0).await?;
        Ok(())
    };
    let check = async |engine: Engine, world: Arc<World>| -> Result<(), BoxError> {
        let definition = definition();
        let loops = engine.continuous(&definition);
        let began = world.began.lock().expect("no panic").clone();
        let Some(status) = loops.status("a").await? else {
            // Only if the process died before the start was answered.
            assert!(began.is_empty(), "it ran, and is gone");
            return Ok(());
        };
        assert_eq!(status.standing, Standing::Active);
        assert!(status.next_run.is_some(), "it sleeps");
        assert_eq!(loops.state("a").await?, Some(status.run_count));
        let count = status.run_count;
        assert!(count >= 4, "at 0, 60, 120 and 180, and not only {count} times");
        let each_once = (1..=count).collect::<Vec<_>>();
        let mut distinct = began.clone();
        distinct.dedup();
        assert_eq!(distinct, each_once, "in their order");
        assert!(began.len() as u64 <= count + 1, "one crash repeats one run: {began:?}");
        Ok(())
    };
    let points = crash_everywhere(setup, scenario, check);
    assert!(points > 30, "{points}");
}

/// One process: an engine on the file store, killed when `life` returns. What the disk holds at
/// that moment is what the next process finds.
fn process<T>(
    disk: &mut Directory,
    clock: &Arc<VirtualClock>,
    definition: &Continuous<u64>,
    life: impl AsyncFnOnce(Engine) -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (ended, left) = runtime.block_on(async {
        let wake = Arc::new(LocalWake::new());
        let options = FileOptions::default();
        let store =
            FileStore::open(disk.path(), &options, clock.clone(), wake.clone()).expect("it opens");
        let engine = Engine::builder().on_store(Arc::new(store), wake, clock.clone());
        let engine = engine.expect("the default settings are valid");
        let worker = engine.worker().primitive(definition.clone()).start().await;
        let _worker = worker.expect("it starts");
        let ended = life(engine).await;
        let left = Directory::new();
        for file in std::fs::read_dir(disk.path()).expect("a directory") {
            let file = file.expect("an entry");
            std::fs::copy(file.path(), left.path().join(file.file_name())).expect("a copy");
        }
        (ended, left)
    });
    *disk = left;
    ended
}

/// Waits until something of this topic is told.
async fn heard(engine: &Engine, topic: &str) {
    let mut subscription =
        engine.subscribe_after(Topics::all().topic(topic), Some(0)).expect("the topic is known");
    // Those of earlier processes are not kept.
    while let Received::Lagged { .. } = subscription.next().await {}
}

#[test]
fn a_loop_resumes_by_itself_after_six_hours() {
    let (mut disk, clock) = (Directory::new(), Arc::new(VirtualClock::new()));
    let ran = Arc::new(Notify::new());
    let definition = {
        let ran = ran.clone();
        Continuous::new("counting", every(HOUR), move |mut tick: Tick<u64>| {
            ran.notify_one();
            async move {
                tick.state += 1;
                Ok(tick)
            }
        })
    };
    let started = process(&mut disk, &clock, &definition, async |engine| {
        engine.continuous(&definition).start("a", 0).await.expect("started");
        heard(&engine, "continuous.executed").await;
        status(&engine, &definition).await
    });
    assert_eq!(started.run_count, 1);
    let first = started.next_run.expect("it is planned");
    clock.step_forward(HOUR * 6 + MINUTE);
    let resumed = process(&mut disk, &clock, &definition, async |engine| {
        heard(&engine, "continuous.executed").await;
        status(&engine, &definition).await
    });
    assert_eq!(resumed.run_count, 2, "once for all that was missed");
    assert_eq!(resumed.next_run, Some(first + HOUR * 6), "on the same times as before");
}

/// A loop whose first `crashes` attempts never end, and that notes its recoveries.
fn crashing(crashes: u32, began: &Arc<Notify>, notes: &Notes) -> Continuous<u64> {
    let (began, notes, count) = (began.clone(), notes.clone(), Counter::default());
    Continuous::new("counting", every(HOUR), move |mut tick: Tick<u64>| {
        let (began, notes, attempts) = (began.clone(), notes.clone(), count.add());
        async move {
            notes.add(format!("attempt {} after {}", tick.attempt_number(), tick.recoveries()));
            began.notify_one();
            if attempts <= crashes {
                pending::<()>().await;
            }
            tick.state += 1;
            Ok(tick)
        }
    })
    .options(|options| options.no_timeout())
}

#[test]
fn a_loop_that_kills_its_process_stops_after_three_and_says_why() {
    let (mut disk, clock) = (Directory::new(), Arc::new(VirtualClock::new()));
    let (began, notes) = (Arc::new(Notify::new()), Notes::default());
    let definition = crashing(3, &began, &notes);
    process(&mut disk, &clock, &definition, async |engine| {
        engine.continuous(&definition).start("a", 10).await.expect("started");
        began.notified().await;
        let executing = status(&engine, &definition).await;
        assert_eq!(executing.standing, Standing::Executing);
    });
    for _ in 0..2 {
        clock.step_forward(SECOND);
        process(&mut disk, &clock, &definition, async |_| began.notified().await);
    }
    assert_eq!(notes.all(), ["attempt 1 after 0", "attempt 2 after 1", "attempt 3 after 2"]);
    clock.step_forward(SECOND);
    // Failed is failed: it is not recovered, however often the process starts.
    for _ in 0..2 {
        let failed = process(&mut disk, &clock, &definition, async |engine| {
            assert_eq!(engine.continuous(&definition).state("a").await.expect("kept"), Some(10));
            status(&engine, &definition).await
        });
        assert_eq!((failed.standing, failed.next_run), (Standing::Failed, None));
        let reason = failed.reason.expect("a reason");
        assert!(reason.contains("its workers were lost"), "{reason}");
        clock.step_forward(HOUR * 5);
    }
    assert_eq!(notes.all().len(), 3);
    let again = process(&mut disk, &clock, &definition, async |engine| {
        let started = engine.continuous(&definition).start("a", 0).await.expect("started");
        assert_eq!(started, Started { created: false, resumed: true });
        heard(&engine, "continuous.executed").await;
        assert_eq!(engine.continuous(&definition).state("a").await.expect("kept"), Some(11));
        status(&engine, &definition).await
    });
    assert_eq!((again.standing, again.reason), (Standing::Active, None));
}

#[test]
fn success_after_two_recoveries_forgives_them() {
    let (mut disk, clock) = (Directory::new(), Arc::new(VirtualClock::new()));
    let (began, notes) = (Arc::new(Notify::new()), Notes::default());
    let definition = crashing(2, &began, &notes);
    process(&mut disk, &clock, &definition, async |engine| {
        engine.continuous(&definition).start("a", 10).await.expect("started");
        began.notified().await;
    });
    clock.step_forward(SECOND);
    let between = process(&mut disk, &clock, &definition, async |engine| {
        began.notified().await;
        status(&engine, &definition).await
    });
    assert_eq!((between.recoveries, between.run_count), (1, 0));
    clock.step_forward(SECOND);
    let after = process(&mut disk, &clock, &definition, async |engine| {
        heard(&engine, "continuous.executed").await;
        status(&engine, &definition).await
    });
    assert_eq!((after.recoveries, after.run_count), (0, 1));
    assert!(after.last_recovery.is_some() && after.last_success.is_some());
    assert_eq!(notes.all().last().map(String::as_str), Some("attempt 3 after 2"));
}

#[test]
fn a_loop_that_was_stopped_while_it_ran_is_not_recovered() {
    let (mut disk, clock) = (Directory::new(), Arc::new(VirtualClock::new()));
    let (began, notes) = (Arc::new(Notify::new()), Notes::default());
    let definition = crashing(9, &began, &notes);
    process(&mut disk, &clock, &definition, async |engine| {
        let loops = engine.continuous(&definition);
        loops.start("a", 10).await.expect("started");
        began.notified().await;
        loops.stop("a", "enough").await.expect("stopped");
    });
    clock.step_forward(HOUR * 6);
    let stopped = process(&mut disk, &clock, &definition, async |engine| {
        let counts = engine.counts().await.expect("answered");
        assert_eq!(counts.in_state(StateName::Cancelled), 1);
        status(&engine, &definition).await
    });
    assert_eq!((stopped.standing, stopped.next_run), (Standing::Stopped, None));
    assert_eq!((stopped.recoveries, notes.all().len()), (0, 1));
}
