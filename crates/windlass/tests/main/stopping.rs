//! Stopping: nothing new starts, nothing is lost, nobody waits for ever.

use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use windlass::primitives::{Continuous, Tick};
use windlass::{
    Attempt, Error, Failure, Received, Refusal, Schedule, StateName, StopReason, Topics,
};

use crate::common::{Fault, Notes, SECOND, Work, pass, rig, rig_with, settle_down, work};

#[tokio::test(start_paused = true)]
async fn what_outlasts_the_grace_is_told_aborted_and_given_back_uncounted() {
    let rig = rig().await;
    let reasons = Notes::default();
    let notes = reasons.clone();
    let stuck = move |job: Work, attempt: Attempt| {
        let notes = notes.clone();
        async move {
            let reason = attempt.cancellation().cancelled().await;
            notes.add(format!("{} {reason:?}", job.number));
            if job.number == 1 {
                return Ok(1);
            }
            std::future::pending::<Result<i64, Failure>>().await
        }
    };
    let worker = rig.engine.worker().handle_with(stuck, |options| options.no_timeout());
    let worker = worker.start().await.expect("it starts");
    let handles = rig.engine.enqueue_many((1..=3).map(work)).await.expect("they are accepted");
    settle_down().await;
    let start = tokio::time::Instant::now();
    let report = worker.stop().await.expect("it stops");
    assert_eq!((report.completed, report.interrupted, report.lost), (1, 2, 0));
    let took = start.elapsed();
    assert!(took >= SECOND * 30 && took <= SECOND * 32, "{took:?}");
    assert_eq!(reasons.all().len(), 3);
    assert!(reasons.all()[0].contains(&format!("{:?}", StopReason::Shutdown)));
    for handle in &handles[1..] {
        let status = handle.record().await.expect("it is kept").status;
        assert_eq!(status.state.name(), StateName::Ready);
        assert_eq!(status.attempts, 0, "the interrupted start is not counted");
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_stops_without_waiting() {
    let rig = rig().await;
    let stuck = |_: Work| async { std::future::pending::<Result<i64, Failure>>().await };
    let worker = rig.engine.worker().handle(stuck).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    settle_down().await;
    let start = tokio::time::Instant::now();
    let signal = || async { tokio::time::sleep(SECOND).await };
    let report = worker.run_until(signal).await.expect("it stops");
    assert_eq!(report.interrupted, 1);
    assert!(start.elapsed() < SECOND * 3, "{:?}", start.elapsed());
    assert_eq!(handle.record().await.expect("it is kept").status.attempts, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_after_a_stop_and_events_tell_the_order() {
    let rig = rig().await;
    let mut workers =
        rig.engine.subscribe(Topics::all().topic("worker.*")).expect("the topic is known");
    let quick = |job: Work| async move { Ok::<_, Failure>(job.number) };
    let worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    worker.stop().await.expect("it stops");
    let again = worker.stop().await.expect("stopping twice is fine");
    assert_eq!(again.completed, 0);
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(SECOND * 60).await;
    let record = handle.record().await.expect("it is kept");
    assert_eq!(record.status.state.name(), StateName::Ready);
    let mut topics = Vec::new();
    while let Some(Received::Event(event)) = workers.try_next().await {
        topics.push(event.topic().to_string());
    }
    assert_eq!(topics, ["worker.started", "worker.stopping", "worker.stopped"]);
}

#[tokio::test(start_paused = true)]
async fn a_closing_engine_refuses_new_jobs_and_stops_its_workers() {
    let rig = rig().await;
    let slow = |job: Work| async move {
        tokio::time::sleep(SECOND).await;
        Ok::<_, Failure>(job.number)
    };
    let _worker = rig.engine.worker().handle(slow).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    settle_down().await;
    let reports = rig.engine.close().await;
    assert_eq!(reports[0].completed, 1);
    assert_eq!(handle.outcome().await.expect("it completed"), 1);
    let refused = rig.engine.enqueue(work(2)).await.expect_err("it is closing");
    assert!(matches!(refused, Error::Refused(Refusal::ShuttingDown)), "{refused}");
    let counts = rig.engine.counts().await.expect("it is answered");
    assert_eq!(counts.totals().enqueued, 1);
    let worker = rig.engine.worker().handle(slow).start().await;
    assert!(matches!(worker, Err(Error::Refused(Refusal::ShuttingDown))));
}

#[tokio::test(start_paused = true)]
async fn a_stop_with_the_store_gone_ends_and_the_job_is_recovered_later() {
    let rig = rig().await;
    let stuck = |_: Work| async { std::future::pending::<Result<i64, Failure>>().await };
    let worker = rig.engine.worker().handle(stuck).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    settle_down().await;
    rig.store.tamper("settle", |_| Some(Fault::NotDone));
    let report = worker.stop_now().await.expect("it stops all the same");
    assert_eq!((report.interrupted, report.lost), (0, 1));
    rig.store.heal();
    let quick = |job: Work| async move { Ok::<_, Failure>(job.number) };
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let outcome = handle.outcome_within(Duration::from_secs(60)).await;
    assert_eq!(outcome.expect("it is recovered after its lease"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_graceful_stop_does_not_wait_for_ever_for_a_store_that_is_gone() {
    let rig = rig().await;
    let quick = |job: Work| async move { Ok::<_, Failure>(job.number) };
    let worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    rig.store.tamper("settle", |_| Some(Fault::NotDone));
    rig.engine.enqueue(work(1)).await.expect("it is accepted");
    settle_down().await;
    let start = tokio::time::Instant::now();
    assert_eq!(worker.stop().await.expect("it stops all the same").lost, 1);
    assert!(start.elapsed() < SECOND * 60, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_ever_for_an_object_that_cannot_be_read() {
    for fault in [Fault::Hang, Fault::NotDone, Fault::Refused] {
        let rig = rig().await;
        let minute = Schedule::every(SECOND * 60).expect("a valid interval");
        let counting = Continuous::new("counting", minute, |mut tick: Tick<u64>| async move {
            tokio::time::sleep(SECOND).await;
            tick.state += 1;
            Ok(tick)
        });
        let worker = rig.engine.worker().primitive(counting.clone());
        let worker = worker.start().await.expect("it starts");
        rig.engine.continuous(&counting).start("a", 0).await.expect("it is started");
        settle_down().await;
        // Its code runs, and how it ended cannot be written.
        rig.store.tamper("object", move |_| Some(fault));
        pass(SECOND * 2).await;
        let stopped = tokio::time::timeout(SECOND * 120, worker.stop()).await;
        let report = stopped.unwrap_or_else(|_| panic!("{fault:?}: the stop hangs"));
        assert_eq!(report.expect("it stops").lost, 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_because_it_was_told_to_stop_has_not_failed() {
    let rig = rig().await;
    let obeys = |_: Work, attempt: Attempt| async move {
        let reason = attempt.cancellation().cancelled().await;
        Err::<i64, _>(Failure::retry(format!("stopped: {reason:?}")))
    };
    let worker = rig.engine.worker().handle(obeys).start().await.expect("it starts");
    let handles = rig.engine.enqueue_many((0..10).map(work)).await.expect("they are accepted");
    settle_down().await;
    let report = worker.stop_now().await.expect("it stops");
    assert_eq!((report.interrupted, report.failed), (10, 0));
    for handle in handles {
        assert_eq!(handle.record().await.expect("it is kept").status.attempts, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_blocks_for_ever_is_abandoned_and_said_so() {
    let rig = rig().await;
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let began = std::sync::Arc::new(tokio::sync::Notify::new());
    let begins = began.clone();
    let blocks = move |_: Work, _: Attempt| {
        begins.notify_one();
        let _ = wait.lock().expect("one at a time").recv();
        Ok::<i64, Failure>(0)
    };
    let worker = rig.engine.worker().handle_blocking(blocks).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    began.notified().await;
    let stop = tokio::spawn(async move { worker.stop_now().await });
    // Paused time stands still while a blocking thread runs, so it is moved by hand.
    for _ in 0..40 {
        tokio::time::advance(Duration::from_millis(100)).await;
        settle_down().await;
    }
    let report = stop.await.expect("it does not panic").expect("it stops");
    assert_eq!((report.interrupted, report.abandoned), (1, 1));
    assert_eq!(handle.record().await.expect("it is kept").state(), StateName::Ready);
    release.send(()).expect("the handler waits");
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_nobody_waits_for_goes_on_and_absurd_settings_do_not_panic() {
    let rig = rig().await;
    let quick = |job: Work| async move { Ok::<_, Failure>(job.number) };
    let worker = rig.engine.worker().handle(quick).cancel_grace(Duration::MAX);
    let worker = worker.grace(Duration::MAX).start().await.expect("it starts");
    let impatient = tokio::time::timeout(Duration::ZERO, worker.stop()).await;
    assert!(impatient.is_err(), "it was given up");
    let stopped = tokio::time::timeout(SECOND * 60, worker.stopped()).await;
    stopped.expect("it stops by itself").expect("without a failure");
    let mut far =
        rig.engine.subscribe_after(Topics::all(), Some(u64::MAX)).expect("the topic is known");
    assert!(far.try_next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_closing_engine_stops_all_its_workers_at_once() {
    let rig = rig().await;
    let stuck = |_: Work| async { std::future::pending::<Result<i64, Failure>>().await };
    for _ in 0..3 {
        let worker = rig.engine.worker().slots(1);
        let worker = worker.handle_with(stuck, |options| options.no_timeout());
        drop(worker.start().await.expect("it starts"));
    }
    rig.engine.enqueue_many((0..9).map(work)).await.expect("they are accepted");
    settle_down().await;
    let start = tokio::time::Instant::now();
    let reports = rig.engine.close().await;
    assert_eq!(reports.iter().map(|report| report.interrupted).sum::<u64>(), 3);
    assert!(start.elapsed() < SECOND * 35, "{:?}", start.elapsed());
    let counts = rig.engine.counts().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Ready), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_waits_for_a_step_of_housekeeping_that_is_under_way() {
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let may_go_on = Mutex::new(may_go_on);
    let rig = rig_with(|store| {
        store.tamper("rescue", move |_| {
            begun.send(()).expect("the test waits for it");
            may_go_on.lock().expect("not poisoned").recv().expect("the test lets it go on");
            None
        });
    });
    has_begun.recv().await.expect("housekeeping begins with a rescue");

    let mut close = std::pin::pin!(rig.engine.close());
    let now = std::future::poll_fn(|cx| Poll::Ready(close.as_mut().poll(cx))).await;
    assert!(now.is_pending(), "it was closed while housekeeping asked it");
    go_on.send(()).expect("it waits");
    close.await;
}
