//! Durable steps inside a handler: what is finished is not done again, and a sleep holds no slot.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::limits;
use windlass::store::file::{FileOptions, RealDisk};
use windlass::store::{Durability, FileStore, Store};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::{
    Attempt, DeadReason, Engine, Error, Failure, Handle, JobState, KindOptions, Retry, StateName,
    Topics,
};

use crate::common::{
    Counter, Directory, Fault, HOUR, Notes, Rig, SECOND, Work, pass, rig, settle_down, work,
};

/// Counts and returns how often it was done.
async fn count(counter: &Counter) -> Result<u32, Failure> {
    Ok(counter.add())
}

/// The error a job died of, which must be for good and at the first attempt.
#[track_caller]
fn died(outcome: Result<i64, Error>) -> String {
    match outcome {
        Err(Error::Died { reason: DeadReason::Permanent, error, .. }) => error,
        other => panic!("expected a job that died for good, got {other:?}"),
    }
}

async fn names(handle: &Handle<Work>) -> Vec<String> {
    let record = handle.record().await.expect("it is kept");
    record.steps.iter().map(|step| step.name.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_retry_passes_over_finished_steps_and_gets_their_results() {
    let rig = rig().await;
    let (charges, ships) = (Counter::default(), Counter::default());
    let counters = (charges.clone(), ships.clone());
    let handler = move |job: Work, attempt: Attempt| {
        let (charges, ships) = counters.clone();
        async move {
            let charged = attempt.step("charge", || count(&charges)).await?;
            if attempt.number() < 3 {
                Err("not yet")?;
            }
            let shipped = attempt.step("ship", || count(&ships)).await?;
            Ok::<_, Failure>(job.number + i64::from(charged * 10 + shipped))
        }
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(100)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 111);
    assert_eq!((charges.get(), ships.get()), (1, 1));
    assert_eq!(names(&handle).await, ["charge", "ship"]);
}

#[tokio::test(start_paused = true)]
async fn the_work_of_a_step_that_fails_is_done_again_and_nothing_of_it_is_kept() {
    let rig = rig().await;
    let charges = Counter::default();
    let counter = charges.clone();
    let handler = move |_: Work, attempt: Attempt| {
        let charges = counter.clone();
        async move {
            let flaky = || async {
                if charges.add() < 3 { Err("declined")? } else { Ok::<i64, Failure>(7) }
            };
            // A step whose work failed may be tried once more in the same attempt.
            match attempt.step("charge", &flaky).await {
                Ok(charged) => Ok(charged),
                Err(_) => attempt.step("charge", &flaky).await,
            }
        }
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 7);
    assert_eq!(charges.get(), 3, "twice in the first attempt, once in the second");
}

/// An engine on a file store in this directory, as after a restart.
fn engine_on(path: &Path, clock: &Arc<VirtualClock>) -> Engine {
    let options = FileOptions { durability: Durability::Sync, ..FileOptions::default() };
    let disk = Arc::new(RealDisk::open(path).expect("it is nobody's"));
    let wake = Arc::new(LocalWake::new());
    let store = FileStore::on_disk(disk, &options, clock.clone(), wake.clone()).expect("it opens");
    let store: Arc<dyn Store> = Arc::new(store);
    Engine::builder().on_store(store, wake, clock.clone()).expect("it starts")
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_a_step_does_not_repeat_it() {
    let directory = Directory::new();
    let (before, after) = (directory.path().join("before"), directory.path().join("after"));
    let clock = Arc::new(VirtualClock::new());
    let charges = Counter::default();
    let counter = charges.clone();
    let handler = move |job: Work, attempt: Attempt| {
        let charges = counter.clone();
        async move {
            let charged = attempt.step("charge", || count(&charges)).await?;
            if attempt.recoveries() == 0 {
                std::future::pending::<()>().await;
            }
            Ok::<_, Failure>(job.number + i64::from(charged))
        }
    };
    let engine = engine_on(&before, &clock);
    let _worker = engine.worker().handle(handler.clone()).start().await.expect("it starts");
    let handle = engine.enqueue(work(100)).await.expect("it is accepted");
    settle_down().await;
    assert_eq!(names(&handle).await, ["charge"]);

    // What the disk holds at this moment is what a crash would leave.
    fs::create_dir(&after).expect("a directory");
    for file in fs::read_dir(&before).expect("a store") {
        let file = file.expect("an entry").path();
        fs::copy(&file, after.join(file.file_name().expect("a name"))).expect("copied");
    }
    let engine = engine_on(&after, &clock);
    let _worker = engine.worker().handle(handler).start().await.expect("it starts");
    let outcome = engine.handle::<Work>(handle.id()).outcome().await;
    assert_eq!(outcome.expect("it completes"), 101);
    assert_eq!(charges.get(), 1, "the first process did it");
}

#[tokio::test(start_paused = true)]
async fn a_sleep_gives_the_slot_back_and_the_handler_goes_on_after_it() {
    let rig = rig().await;
    let notes = Notes::default();
    let noted = notes.clone();
    let handler = move |job: Work, attempt: Attempt| {
        let notes = noted.clone();
        async move {
            if job.number == 1 {
                let write = || async {
                    notes.add("charged");
                    Ok::<_, Failure>(())
                };
                attempt.step("charge", write).await?;
                attempt.sleep("cool-down", HOUR).await?;
            }
            notes.add(format!("{} done at start {}", job.number, attempt.number()));
            Ok::<_, Failure>(job.number)
        }
    };
    let _worker = rig.engine.worker().slots(1).handle(handler).start().await.expect("it starts");
    let sleeper = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    settle_down().await;
    assert_eq!(names(&sleeper).await, ["charge", "cool-down"]);
    let other = rig.engine.enqueue(work(2)).await.expect("it is accepted");
    assert_eq!(other.outcome().await.expect("the only slot is free"), 2);
    pass(HOUR - SECOND).await;
    let state = sleeper.record().await.expect("it is kept").status.state;
    assert!(matches!(state, JobState::Scheduled { .. }), "{state:?}");
    assert_eq!(sleeper.outcome().await.expect("it completes"), 1);
    assert_eq!(notes.all(), ["charged", "2 done at start 1", "1 done at start 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_sleep_that_is_woken_early_goes_on_for_the_rest_of_its_time() {
    let rig = rig().await;
    let runs = Counter::default();
    let counter = runs.clone();
    let handler = move |job: Work, attempt: Attempt| {
        counter.add();
        async move {
            attempt.sleep("cool-down", HOUR).await?;
            Ok::<_, Failure>(job.number)
        }
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    let start = tokio::time::Instant::now();
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(HOUR / 2).await;
    rig.engine.run_now(handle.id()).await.expect("it waits for a time");
    pass(SECOND).await;
    assert_eq!(runs.get(), 2, "it was woken");
    assert_eq!(handle.outcome().await.expect("it completes"), 1);
    assert_eq!((start.elapsed().as_secs(), runs.get()), (3_600, 3));
}

#[tokio::test(start_paused = true)]
async fn a_sleep_of_no_time_at_all_does_not_stop_the_handler() {
    let rig = rig().await;
    let handler = |job: Work, attempt: Attempt| async move {
        attempt.sleep("nap", Duration::ZERO).await?;
        Ok::<_, Failure>(job.number)
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 1);
    assert_eq!(handle.record().await.expect("it is kept").attempts.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_name_twice_in_one_attempt_is_a_failure_for_good_that_says_so() {
    let rig = rig().await;
    let handler = |job: Work, attempt: Attempt| async move {
        let one = || async { Ok::<i64, Failure>(1) };
        let first = attempt.step("charge", one).await?;
        let second = match job.number {
            1 => attempt.step("charge", one).await?,
            _ => attempt.sleep("charge", SECOND).await.map(|()| 2)?,
        };
        Ok::<_, Failure>(first + second)
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    for number in [1, 2] {
        let handle = rig.engine.enqueue(work(number)).await.expect("it is accepted");
        let error = died(handle.outcome().await);
        assert!(error.contains("step `charge` was called twice"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_no_longer_of_the_type_is_a_failure_for_good_that_names_the_step() {
    let rig = rig().await;
    let handler = |_: Work, attempt: Attempt| async move {
        if attempt.number() == 1 {
            attempt.step("charge", || async { Ok("a text".to_string()) }).await?;
            Err("the next version of the handler runs next")?;
        }
        attempt.step("charge", || async { Ok::<i64, Failure>(1) }).await
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let error = died(handle.outcome().await);
    assert!(error.contains("step `charge`") && error.contains("`i64`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_none_is_refused_before_the_work_is_done() {
    let rig = rig().await;
    let charges = Counter::default();
    let counter = charges.clone();
    let handler = move |_: Work, attempt: Attempt| {
        let charges = counter.clone();
        async move { attempt.step("charge it!", || count(&charges)).await.map(i64::from) }
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let error = died(handle.outcome().await);
    assert!(error.contains("charge it!"), "{error}");
    assert_eq!(charges.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn more_steps_than_a_job_may_have_are_refused_before_the_work_is_done() {
    let rig = rig().await;
    let done = Counter::default();
    let counter = done.clone();
    let handler = move |job: Work, attempt: Attempt| {
        let done = counter.clone();
        async move {
            for number in 0..=limits::STEPS {
                attempt.step(&format!("step{number}"), || count(&done)).await?;
                // Some are of an earlier attempt.
                if number == 100 && attempt.number() == 1 {
                    Err("halfway")?;
                }
            }
            Ok::<_, Failure>(job.number)
        }
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let error = died(handle.outcome().await);
    assert!(error.contains("step256") && error.contains("256 steps"), "{error}");
    assert_eq!(done.get() as usize, limits::STEPS);
    assert_eq!(names(&handle).await.len(), limits::STEPS);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_is_a_failure_for_good_that_names_the_limit() {
    let rig = rig().await;
    let handler = |job: Work, attempt: Attempt| async move {
        let large = || async { Ok::<_, Failure>("x".repeat(limits::STEP_BYTES)) };
        attempt.step("export", large).await?;
        Ok::<_, Failure>(job.number)
    };
    let _worker = rig.engine.worker().handle(handler).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let error = died(handle.outcome().await);
    assert!(error.contains("step `export`") && error.contains("131072"), "{error}");
    assert_eq!(names(&handle).await, Vec::<String>::new());
}

/// A job whose handler does one step, and how often the work of it was done.
async fn one_step(rig: &Rig) -> (Handle<Work>, Counter) {
    let charges = Counter::default();
    let counter = charges.clone();
    let handler = move |_: Work, attempt: Attempt| {
        let charges = counter.clone();
        async move { attempt.step("charge", || count(&charges)).await.map(i64::from) }
    };
    let terms = |options: KindOptions| options.lease(SECOND * 9).retry(Retry::constant(SECOND));
    let worker = rig.engine.worker().handle_with(handler, terms).start().await;
    std::mem::forget(worker.expect("it starts"));
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    (handle, charges)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_asked_again_with_the_same_result() {
    for fault in [Fault::NotDone, Fault::Done, Fault::Hang] {
        let rig = rig().await;
        let times = if fault == Fault::Hang { 1 } else { 4 };
        rig.store.tamper("renew", move |call| (call <= times).then_some(fault));
        let mut events =
            rig.engine.subscribe(Topics::all().topic("step.*")).expect("the topic is known");
        let (handle, charges) = one_step(&rig).await;
        // A call that hangs is given up on after ten seconds; the lease is renewed meanwhile.
        assert_eq!(handle.outcome().await.expect("it completes"), 1, "{fault:?}");
        assert_eq!(charges.get(), 1, "{fault:?}");
        assert_eq!(names(&handle).await, ["charge"]);
        settle_down().await;
        assert!(events.try_next().await.is_some(), "{fault:?}: it is told");
        assert!(events.try_next().await.is_none(), "{fault:?}: it is told once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_under_a_lost_lease_keeps_nothing_and_ends_the_handler() {
    let rig = rig().await;
    let notes = Notes::default();
    let noted = notes.clone();
    let handler = move |job: Work, attempt: Attempt| {
        let notes = noted.clone();
        async move {
            let first = attempt.recoveries() == 0;
            let slow = || async {
                if first {
                    tokio::time::sleep(SECOND * 6).await;
                }
                Ok::<_, Failure>(first)
            };
            let kept = attempt.step("charge", slow).await;
            let kept = kept.inspect_err(|failure| notes.add(failure.to_string()))?;
            notes.add(format!("kept {kept}"));
            Ok::<_, Failure>(job.number)
        }
    };
    let terms = |options: KindOptions| options.lease(SECOND * 3);
    // Enough time to obey, so that it is the step that ends the handler.
    let worker = rig.engine.worker().slots(2).cancel_grace(SECOND * 60);
    let _worker = worker.handle_with(handler, terms).start().await.expect("it starts");
    // The first renewal hangs, so the lease ends.
    rig.store.tamper("renew", |call| (call == 1).then_some(Fault::Hang));
    let handle = rig.engine.enqueue(work(5)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("the second attempt completes"), 5);
    pass(SECOND * 20).await;
    let lost = format!("the lease on job {} ended; another worker may be running it", handle.id());
    assert_eq!(notes.all(), ["kept false".to_string(), lost]);
    let record = handle.record().await.expect("it is kept");
    assert_eq!(&*record.steps[0].result, b"false", "the stale result is not kept");
    assert_eq!(record.state(), StateName::Completed);
}
