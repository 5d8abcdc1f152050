//! What a client may ask, what a clock may do, and what a lab may let pass.

use std::time::Duration;

use windlass::limits::DELAY_MAX;
use windlass::testing::Lab;
use windlass::{Cursor, JobId, Priority, Start, Topics};

use super::primitives::{Own, OwnWish, Where};
use super::{DURATIONS, LONG_COUNTS, PRIORITIES, Row, SIZES, quick, times, try_rows};
use crate::common::{HOUR, SECOND, Work, pass, settle_down, work};

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
