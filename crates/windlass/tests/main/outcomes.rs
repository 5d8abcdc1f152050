//! Waiting for the outcome of a job: who is told, who looks, and what a crowd of them costs.

use std::sync::Arc;

use windlass::wake::LocalWake;
use windlass::{Error, Failure, Job};

use crate::common::{Fault, Rig, SECOND, Work, rig, rig_on, settle_down, work};

async fn quick(job: Work) -> Result<i64, Failure> {
    Ok(job.number)
}

/// Someone waits, so ends are listened to. The job completes after three seconds.
async fn someone_waits(rig: &Rig) -> tokio::task::JoinHandle<Result<i64, Error>> {
    let later = rig.engine.enqueue(work(1)).delay(SECOND * 3).await.expect("it is accepted");
    let waits = tokio::spawn(async move { later.outcome().await });
    settle_down().await;
    waits
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_completion_is_told_by_its_event_and_nothing_is_read() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let waits = someone_waits(&rig).await;
    rig.store.tamper("find", |_| None);
    for number in 2..10 {
        let handle = rig.engine.enqueue(work(number)).await.expect("it is accepted");
        let other = handle.clone();
        let both = tokio::join!(handle.outcome(), other.outcome());
        assert_eq!(both.0.expect("it completes"), number);
        assert_eq!(both.1.expect("it completes"), number);
    }
    assert_eq!(rig.store.calls("find"), 0, "the events say it all");
    assert_eq!(waits.await.expect("no panic").expect("it completes"), 1);
}

/// A job whose output no event carries.
#[derive(serde::Serialize, serde::Deserialize)]
struct Large;

impl Job for Large {
    const KIND: &'static str = "large";
    type Output = String;
}

#[tokio::test(start_paused = true)]
async fn an_end_of_which_the_event_does_not_say_all_is_read_once() {
    let rig = rig().await;
    let large = |_: Large| async { Ok::<_, Failure>("x".repeat(5_000)) };
    let dies = |_: Work| async { Err::<i64, _>(Failure::permanent("it cannot be done")) };
    let worker = rig.engine.worker().handle(large).handle(dies).start();
    let _worker = worker.await.expect("it starts");
    let later = rig.engine.enqueue(Large).delay(SECOND * 3).await.expect("it is accepted");
    let waits = tokio::spawn(async move { later.outcome().await });
    settle_down().await;
    rig.store.tamper("find", |_| None);
    let handle = rig.engine.enqueue(Large).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes").len(), 5_000);
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let error = handle.outcome().await.expect_err("it dies");
    assert!(matches!(error, Error::Died { .. }), "{error}");
    assert_eq!(rig.store.calls("find"), 2, "one look per end, and none before waiting");
    waits.await.expect("no panic").expect("it completes");
}

#[tokio::test(start_paused = true)]
async fn whoever_begins_to_wait_after_the_end_does_not_wait_for_it() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let waits = someone_waits(&rig).await;
    let handle = rig.engine.enqueue(work(2)).await.expect("it is accepted");
    settle_down().await;
    let start = tokio::time::Instant::now();
    for _ in 0..2 {
        assert_eq!(handle.outcome().await.expect("it has completed"), 2);
    }
    assert_eq!(start.elapsed(), std::time::Duration::ZERO);
    waits.await.expect("no panic").expect("it completes");
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_waiting_leaves_the_others_waiting() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(7)).delay(SECOND * 3).await.expect("it is accepted");
    for gives_up in 0..3 {
        let mut waits = Vec::new();
        for _ in 0..3 {
            let handle = handle.clone();
            waits.push(tokio::spawn(async move { handle.outcome().await }));
            settle_down().await;
        }
        waits.remove(gives_up).abort();
        settle_down().await;
        if gives_up == 2 {
            tokio::time::sleep(SECOND * 4).await;
        }
        let start = tokio::time::Instant::now();
        for waits in waits {
            assert_eq!(waits.await.expect("no panic").expect("it completes"), 7);
        }
        assert!(start.elapsed() <= SECOND * 3, "told, and not found by looking");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_could_not_be_told_looks_for_themselves() {
    for fault in [Fault::NotDone, Fault::Hang, Fault::Panic] {
        let rig = rig().await;
        let dies = |_: Work| async move {
            tokio::time::sleep(SECOND).await;
            Err::<i64, _>(Failure::permanent("it cannot be done"))
        };
        let _worker = rig.engine.worker().handle(dies).start().await.expect("it starts");
        let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
        let waits = tokio::spawn(async move { handle.outcome_within(SECOND * 12).await });
        settle_down().await;
        // The next look is that of the engine itself, which then has nothing to tell.
        rig.store.tamper("find", move |call| (call == 1).then_some(fault));
        let error = waits.await.expect("no panic").expect_err("it dies");
        assert!(matches!(error, Error::Died { .. }), "{fault:?}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_crowd_that_waits_few_are_looked_up_at_a_time_and_in_the_end_all() {
    let rig = rig().await;
    let mut batch = rig.engine.batch();
    let jobs = (0..3_000).map(|number| batch.add(work(number)).expect("it is well-formed"));
    let jobs: Vec<_> = jobs.collect();
    batch.commit().await.expect("they are accepted");
    let mut crowd = tokio::task::JoinSet::new();
    for job in jobs {
        let handle = rig.engine.handle::<Work>(job);
        crowd.spawn(async move { handle.outcome().await });
    }
    settle_down().await;
    rig.store.tamper("find", |_| None);
    tokio::time::sleep(SECOND * 6).await;
    assert_eq!(rig.store.calls("find"), 16, "1,024 of them, 64 at a time");
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!(rig.store.calls("find"), 32);
    // They end, and nobody is told: whoever listens hears of nothing for an hour.
    rig.store.deafen();
    let other = windlass::Engine::builder();
    let other = other.on_store(rig.store.inner().clone(), wake(), rig.clock.clone());
    let other = other.expect("it opens");
    let _worker = other.worker().handle(quick).start().await.expect("it starts");
    let began = tokio::time::Instant::now();
    while let Some(outcome) = crowd.join_next().await {
        outcome.expect("no panic").expect("it completes");
    }
    assert!(began.elapsed() <= SECOND * 25, "{:?}", began.elapsed());
}

fn wake() -> Arc<LocalWake> {
    Arc::new(LocalWake::new())
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_waited_for_even_by_an_engine_that_was_closed() {
    let wake = wake();
    let rig = rig_on(wake.clone());
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let waits = tokio::spawn(async move { handle.outcome_within(SECOND * 20).await });
    settle_down().await;
    rig.engine.close().await;
    settle_down().await;
    let builder = windlass::Engine::builder();
    let other = builder.on_store(rig.store.clone(), wake, rig.clock.clone()).expect("it opens");
    let _worker = other.worker().handle(quick).start().await.expect("it starts");
    assert_eq!(waits.await.expect("no panic").expect("it completes elsewhere"), 1);
}
