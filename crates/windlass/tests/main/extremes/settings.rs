//! How a worker, an engine and a store may be set.

use std::sync::Arc;
use std::time::Duration;

use windlass::limits::PAYLOAD_BYTES_MAX;
use windlass::store::FileStore;
use windlass::store::file::{FileOptions, LedgerOptions};
use windlass::wake::LocalWake;
use windlass::{
    Attempt, Durability, Engine, Failure, KindOptions, Limits, Rate, Recovery, RecoveryMode, Retry,
};

use super::{
    COUNTS, DURATIONS, LONG_COUNTS, PANICS, Row, SIZES, count_panics, quick, try_rows, try_rows_on,
};
use crate::common::{Directory, SECOND, Work, pass, work};
use crate::writer::Plate;

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
