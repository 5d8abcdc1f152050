//! The worker under trouble: lost rings, lost leases, lost answers, stepped clocks, crashed loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::{
    Attempt, CancelAnswer, DeadReason, Error, Failure, KindOptions, StateName, StopReason, Topics,
    Worker,
};

use crate::common::{
    Counter, Fault, HOUR, Notes, Rig, SECOND, Trouble, TroubledWake, Work, pass, rig, rig_on,
    rig_with, settle_down, work,
};

async fn add_one(job: Work) -> Result<i64, Failure> {
    Ok(job.number + 1)
}

/// A mixed load: immediate, delayed, failing once, depending; all must complete.
async fn mixed_load_completes(rig: &Rig) {
    let runs = Counter::default();
    let counter = runs.clone();
    let flaky = move |job: Work, attempt: Attempt| {
        counter.add();
        async move {
            if job.number % 3 == 0 && attempt.number() == 1 {
                return Err(Failure::retry("once"));
            }
            Ok(job.number)
        }
    };
    let worker = rig.engine.worker().slots(4).handle(flaky);
    let _worker = worker.start().await.expect("it starts");
    let mut handles = Vec::new();
    for number in 0..30 {
        let mut enqueue = rig.engine.enqueue(work(number));
        if number % 2 == 1 {
            enqueue = enqueue.delay(SECOND * 7);
        }
        if let Some(last) = handles.last().filter(|_| number % 5 == 0) {
            enqueue = enqueue.depends_on(last);
        }
        handles.push(enqueue.await.expect("it is accepted"));
    }
    for handle in &handles {
        let outcome = tokio::time::timeout(HOUR, handle.outcome()).await;
        outcome.expect("a lost ring is not a lost job").expect("it completes");
    }
    assert_eq!(runs.get(), 40, "30 jobs, 10 of them twice");
}

#[tokio::test(start_paused = true)]
async fn losing_every_ring_costs_a_poll_interval_and_never_a_job() {
    mixed_load_completes(&rig_on(std::sync::Arc::new(TroubledWake::new(Trouble::LoseAll)))).await;
}

#[tokio::test(start_paused = true)]
async fn losing_repeating_and_delaying_rings_changes_nothing() {
    for trouble in [Trouble::LoseSome, Trouble::Repeat, Trouble::Delay(SECOND * 3)] {
        mixed_load_completes(&rig_on(std::sync::Arc::new(TroubledWake::new(trouble)))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_rings_a_job_starts_at_once_and_without_within_the_poll_interval() {
    for (trouble, most) in [(None, 1), (Some(Trouble::LoseAll), 5_001)] {
        let rig = match trouble {
            None => rig().await,
            Some(trouble) => rig_on(std::sync::Arc::new(TroubledWake::new(trouble))),
        };
        let _worker = rig.engine.worker().handle(add_one).start().await.expect("it starts");
        pass(SECOND * 60).await;
        let start = tokio::time::Instant::now();
        let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
        while handle.record().await.expect("it is kept").status.attempts == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let waited = start.elapsed();
        assert!(waited <= Duration::from_millis(most), "{trouble:?}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_only_looks_once_per_poll_interval() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(add_one).start().await.expect("it starts");
    settle_down().await;
    let before = rig.store.calls("claim");
    pass(HOUR).await;
    let claims = rig.store.calls("claim") - before;
    assert!(claims <= 3_600 / 5 + 1, "{claims} claims in an idle hour");
    assert_eq!(rig.store.calls("renew"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_much_longer_than_its_lease_runs_once() {
    let rig = rig().await;
    let runs = Counter::default();
    let counter = runs.clone();
    let long = move |job: Work| {
        counter.add();
        async move {
            tokio::time::sleep(SECOND * 15).await;
            Ok::<_, Failure>(job.number)
        }
    };
    let terms = |options: KindOptions| options.lease(SECOND * 3);
    let _worker = rig.engine.worker().handle_with(long, terms).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(4)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 4);
    assert_eq!(runs.get(), 1);
    assert_eq!(handle.record().await.expect("it is kept").status.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_large_worker_asks_ahead_and_never_runs_more_than_its_slots() {
    let rig = rig().await;
    rig.engine.enqueue_many((0..5_000).map(work)).await.expect("they are accepted");
    rig.store.tamper("claim", |_| Some(Fault::Late(SECOND)));
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counting = (running.clone(), most.clone());
    let long = move |job: Work| {
        let (running, most) = counting.clone();
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(SECOND * 10).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Failure>(job.number)
        }
    };
    let worker = rig.engine.worker().slots(1_700).handle(long);
    let worker = worker.start().await.expect("it starts");
    settle_down().await;
    assert_eq!(rig.store.calls("claim"), 2, "the second does not wait for the first");
    pass(SECOND * 60).await;
    assert_eq!(most.load(Ordering::SeqCst), 1_700);
    assert_eq!(rig.engine.counts().await.expect("it is").in_state(StateName::Completed), 5_000);
    assert_eq!((running.load(Ordering::SeqCst), worker.busy()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_free_while_its_settlement_is_in_flight_and_a_silent_store_gets_no_more() {
    let rig = rig().await;
    let ran = Counter::default();
    let counted = ran.clone();
    let handler = move |job: Work| {
        counted.add();
        async move { Ok::<_, Failure>(job.number) }
    };
    rig.engine.enqueue_many((0..600).map(work)).await.expect("they are accepted");
    rig.store.tamper("settle", |_| Some(Fault::Delayed(SECOND * 5)));
    let worker = rig.engine.worker().slots(1).handle(handler);
    let worker = worker.start().await.expect("it starts");
    pass(SECOND).await;
    assert_eq!(ran.get(), 500, "ahead of the answers, and not far");
    rig.store.heal();
    pass(SECOND * 5).await;
    assert_eq!(ran.get(), 600);
    let report = worker.stop().await.expect("it stops");
    assert_eq!((report.completed, report.lost), (600, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_every_claim_on_its_way_and_strands_no_job() {
    let rig = rig().await;
    rig.engine.enqueue_many((0..5_000).map(work)).await.expect("they are accepted");
    rig.store.tamper("claim", |call| Some(Fault::Late(SECOND * u32::try_from(call).unwrap_or(9))));
    let worker = rig.engine.worker().slots(2_000).handle(add_one);
    let worker = worker.start().await.expect("it starts");
    settle_down().await;
    assert_eq!(rig.store.calls("claim"), 2);
    worker.stop().await.expect("it stops");
    let counts = rig.engine.counts().await.expect("it is answered");
    let of = |state| counts.in_state(state);
    assert_eq!((of(StateName::Completed), of(StateName::Ready)), (1_000, 4_000));
    assert_eq!(of(StateName::Running), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_crashes_gives_its_slots_back() {
    let rig = rig().await;
    rig.engine.enqueue_many((0..5_000).map(work)).await.expect("they are accepted");
    rig.store.tamper("claim", |call| (call % 2 == 1 && call < 6).then_some(Fault::Panic));
    let worker = rig.engine.worker().slots(2_000).handle(add_one);
    let _worker = worker.start().await.expect("it starts");
    pass(SECOND * 60).await;
    assert_eq!(rig.engine.counts().await.expect("it is").in_state(StateName::Completed), 5_000);
}

/// Starts a worker on 701 jobs: one ends at once, a hundred after a second, the rest after two.
async fn in_three_waves(rig: &Rig) -> Worker {
    rig.engine.enqueue_many((0..=700).map(work)).await.expect("they are accepted");
    let waves = |job: Work| async move {
        let wave = match job.number {
            0 => Duration::ZERO,
            1..=100 => SECOND,
            _ => SECOND * 2,
        };
        tokio::time::sleep(wave).await;
        Ok::<_, Failure>(job.number)
    };
    rig.engine.worker().slots(2_000).handle(waves).start().await.expect("it starts")
}

#[tokio::test(start_paused = true)]
async fn what_ends_while_a_settlement_is_on_its_way_waits_for_it_unless_it_is_much() {
    let rig = rig().await;
    rig.store.tamper("settle", |call| (call == 1).then_some(Fault::Late(SECOND * 10)));
    let worker = in_three_waves(&rig).await;
    pass(Duration::from_millis(1_500)).await;
    assert_eq!(rig.store.calls("settle"), 1, "a hundred are not worth a commit of their own");
    pass(SECOND).await;
    assert_eq!(rig.store.calls("settle"), 2, "seven hundred are");
    assert_eq!(worker.busy(), 0, "no slot waits for an answer");
    pass(SECOND * 10).await;
    assert_eq!(rig.engine.counts().await.expect("it is").in_state(StateName::Completed), 701);
}

#[tokio::test(start_paused = true)]
async fn where_calls_share_commits_a_second_settlement_goes_at_once() {
    let rig = rig_with(|store| store.share_commits());
    rig.store.tamper("settle", |call| (call == 1).then_some(Fault::Late(SECOND * 10)));
    let _worker = in_three_waves(&rig).await;
    pass(Duration::from_millis(1_500)).await;
    assert_eq!(rig.store.calls("settle"), 2, "a hundred need not wait for the first answer");
    pass(SECOND * 20).await;
    assert_eq!(rig.engine.counts().await.expect("it is").in_state(StateName::Completed), 701);
}

/// How many settlements were sent when so many attempts have ended beside one whose settlement is
/// on its way: first one of them, which waits for more, then all others.
async fn settlements_with(ended: i64) -> u64 {
    let rig = rig().await;
    rig.store.tamper("settle", |call| (call == 1).then_some(Fault::Late(SECOND * 10)));
    rig.engine.enqueue_many((0..=ended).map(work)).await.expect("they are accepted");
    let waves = |job: Work| async move {
        tokio::time::sleep(Duration::from_secs(job.number.clamp(0, 2).unsigned_abs())).await;
        Ok::<_, Failure>(job.number)
    };
    let worker = rig.engine.worker().slots(2_000).handle(waves);
    let _worker = worker.start().await.expect("it starts");
    pass(SECOND * 3).await;
    rig.store.calls("settle")
}

#[tokio::test(start_paused = true)]
async fn a_second_settlement_goes_beside_the_first_with_five_hundred_and_not_with_fewer() {
    assert_eq!(settlements_with(499).await, 1);
    assert_eq!(settlements_with(500).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_settle_loop_that_crashes_leaves_nothing_behind_in_either_hand() {
    let rig = rig().await;
    rig.store.tamper("settle", |call| match call {
        1 => Some(Fault::Late(SECOND * 10)),
        2 => Some(Fault::Panic),
        _ => None,
    });
    let _worker = in_three_waves(&rig).await;
    pass(SECOND * 20).await;
    assert_eq!(rig.engine.counts().await.expect("it is").in_state(StateName::Completed), 701);
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_in_one_batch_at_a_third_of_their_length() {
    let rig = rig().await;
    let long = |job: Work| async move {
        tokio::time::sleep(SECOND * 29).await;
        Ok::<_, Failure>(job.number)
    };
    let worker = rig.engine.worker().slots(50).handle(long);
    let _worker = worker.start().await.expect("it starts");
    let handles = rig.engine.enqueue_many((0..50).map(work)).await.expect("they are accepted");
    for handle in handles {
        handle.outcome().await.expect("it completes");
    }
    assert_eq!(rig.store.calls("renew"), 2, "at 10 s and at 20 s, for all fifty");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_before_the_lease_is_lost() {
    let rig = rig().await;
    rig.store.tamper("renew", |call| (call <= 4).then_some(Fault::NotDone));
    let long = |job: Work| async move {
        tokio::time::sleep(SECOND * 25).await;
        Ok::<_, Failure>(job.number)
    };
    let terms = |options: KindOptions| options.lease(SECOND * 9);
    let _worker = rig.engine.worker().handle_with(long, terms).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(4)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 4);
    assert_eq!(handle.record().await.expect("it is kept").status.recoveries, 0);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_loses_its_lease_is_told_and_its_late_result_does_not_count() {
    let rig = rig().await;
    rig.store.tamper("renew", |call| (call <= 200).then_some(Fault::NotDone));
    let reasons = Notes::default();
    let notes = reasons.clone();
    let stubborn = move |_: Work, attempt: Attempt| {
        let notes = notes.clone();
        async move {
            if attempt.recoveries() == 0 {
                let reason = attempt.cancellation().cancelled().await;
                notes.add(format!("{reason:?}"));
                return Ok(-1);
            }
            Ok::<_, Failure>(1)
        }
    };
    let terms = |options: KindOptions| options.lease(SECOND * 3).no_timeout();
    let worker = rig.engine.worker().handle_with(stubborn, terms);
    let worker = worker.start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(4)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("the second holder completes it"), 1);
    pass(SECOND).await;
    assert_eq!(reasons.all(), [format!("{:?}", StopReason::LeaseLost)]);
    assert_eq!(handle.record().await.expect("it is kept").status.attempts, 2);
    rig.store.heal();
    assert_eq!(worker.stop().await.expect("it stops").lost, 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_fails_the_attempt_frees_the_slot_and_ignores_the_late_result() {
    let rig = rig().await;
    let hangs = |job: Work, attempt: Attempt| async move {
        if job.number == 1 {
            let reason = attempt.cancellation().cancelled().await;
            assert_eq!(reason, StopReason::Timeout);
            // Obeys late, but within the grace: still too late to count.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok::<_, Failure>(job.number)
    };
    let terms = |options: KindOptions| options.timeout(SECOND * 2);
    let worker = rig.engine.worker().slots(1).handle_with(hangs, terms);
    let worker = worker.start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).max_attempts(2).await.expect("it is accepted");
    let error = handle.outcome().await.expect_err("it dies").to_string();
    assert!(error.contains("timed out after 2000 ms"), "{error}");
    settle_down().await;
    assert_eq!(worker.busy(), 0);
    let next = rig.engine.enqueue(work(2)).await.expect("it is accepted");
    assert_eq!(next.outcome().await.expect("the slot is free"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_in_time_is_not_hit_by_an_earlier_jobs_timeout() {
    let rig = rig().await;
    let waits = |job: Work| async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok::<_, Failure>(job.number)
    };
    let terms = |options: KindOptions| options.timeout(Duration::from_millis(300));
    let worker = rig.engine.worker().slots(1).handle_with(waits, terms);
    let worker = worker.start().await.expect("it starts");
    let handles = rig.engine.enqueue_many((0..20).map(work)).await.expect("they are accepted");
    for handle in handles {
        handle.outcome().await.expect("it completes");
    }
    let report = worker.stop().await.expect("it stops");
    assert_eq!((report.completed, report.failed), (20, 0));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_cancellation_is_aborted_and_the_job_settled() {
    let rig = rig().await;
    let deaf = |_: Work| async {
        std::future::pending::<()>().await;
        Ok::<i64, Failure>(0)
    };
    let terms = |options: KindOptions| options.timeout(SECOND);
    let worker = rig.engine.worker().slots(1).handle_with(deaf, terms);
    let worker = worker.start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).max_attempts(1).await.expect("it is accepted");
    handle.outcome().await.expect_err("it dies");
    settle_down().await;
    assert_eq!(worker.busy(), 0, "its slot is free again");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_blocks_holds_its_slot_until_it_returns() {
    let rig = rig().await;
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let began = std::sync::Arc::new(tokio::sync::Notify::new());
    let begins = began.clone();
    let blocks = move |job: Work, _: Attempt| {
        if job.number == 1 {
            begins.notify_one();
            let _ = wait.lock().expect("one at a time").recv();
        }
        Ok::<_, Failure>(job.number)
    };
    let terms = |options: KindOptions| options.timeout(SECOND);
    let worker = rig.engine.worker().slots(1).handle_blocking_with(blocks, terms);
    let worker = worker.start().await.expect("it starts");
    let stuck = rig.engine.enqueue(work(1)).max_attempts(1).await.expect("it is accepted");
    let next = rig.engine.enqueue(work(2)).await.expect("it is accepted");
    began.notified().await;
    // Paused time stands still while a blocking thread runs, so it is moved by hand.
    for _ in 0..40 {
        tokio::time::advance(Duration::from_millis(100)).await;
        settle_down().await;
    }
    let record = stuck.record().await.expect("it is kept");
    assert_eq!(record.status.state.name(), StateName::Dead, "settled without waiting");
    assert_eq!(worker.busy(), 1, "its thread still runs, so its slot is in use");
    let waiting = next.record().await.expect("it is kept");
    assert_eq!(waiting.status.state.name(), StateName::Ready);
    release.send(()).expect("the handler waits");
    assert_eq!(next.outcome().await.expect("it completes"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_is_told_at_once_or_with_all_rings_lost_at_the_next_renewal() {
    for (trouble, most) in [(None, 1), (Some(Trouble::LoseAll), 10_002)] {
        let rig = match trouble {
            None => rig().await,
            Some(trouble) => rig_on(std::sync::Arc::new(TroubledWake::new(trouble))),
        };
        let waits = |_: Work, attempt: Attempt| async move {
            let reason = attempt.cancellation().cancelled().await;
            assert_eq!(reason, StopReason::Cancelled);
            Err::<i64, _>(Failure::retry("stopped as asked"))
        };
        let _worker = rig.engine.worker().handle(waits).start().await.expect("it starts");
        let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
        pass(SECOND * 6).await;
        let start = tokio::time::Instant::now();
        assert_eq!(handle.cancel().await.expect("it runs"), CancelAnswer::Requested);
        let error = handle.outcome().await.expect_err("it is cancelled");
        assert!(matches!(error, Error::Cancelled { .. }), "{error}");
        let waited = start.elapsed();
        assert!(waited <= Duration::from_millis(most), "{trouble:?}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_enqueue_whose_answer_was_lost_is_repeated_and_gives_one_job() {
    for fault in [Fault::NotDone, Fault::Done] {
        let rig = rig().await;
        rig.store.tamper("enqueue", move |call| (call == 1).then_some(fault));
        let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
        let page = rig.engine.jobs().page(None, 10).await.expect("it is answered");
        assert_eq!(page.jobs.len(), 1, "{fault:?}");
        assert_eq!(page.jobs[0].id(), handle.id());
    }
}

#[tokio::test(start_paused = true)]
async fn an_enqueue_that_is_never_answered_says_that_it_may_have_been_done() {
    let rig = rig().await;
    rig.store.tamper("enqueue", |_| Some(Fault::Done));
    let error = rig.engine.enqueue(work(1)).await.expect_err("no answer came");
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    assert!(error.to_string().contains("may have been done"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_of_every_worker_verb_lose_and_double_nothing() {
    for fault in [Fault::NotDone, Fault::Done] {
        for verb in ["claim", "renew", "settle", "rescue", "promote"] {
            let rig = rig().await;
            rig.store.tamper(verb, move |call| (call % 2 == 1 && call < 20).then_some(fault));
            let slow = |job: Work| async move {
                tokio::time::sleep(SECOND * 12).await;
                Ok::<_, Failure>(job.number)
            };
            let worker = rig.engine.worker().handle(slow).start().await.expect("it starts");
            let handles = rig.engine.enqueue_many((0..25).map(work)).await.expect("accepted");
            for handle in &handles {
                let outcome = handle.outcome_within(HOUR).await;
                assert!(outcome.is_ok(), "{verb} {fault:?}: {outcome:?}");
            }
            worker.stop().await.expect("it stops");
            let counts = rig.engine.counts().await.expect("it is answered");
            assert_eq!(counts.in_state(StateName::Completed), 25, "{verb} {fault:?}");
            assert_eq!(counts.totals().completed, 25, "{verb} {fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_claim_that_lost_its_answer_start_when_it_is_repeated() {
    for fault in [Fault::Done, Fault::DoneHang] {
        let rig = rig().await;
        let handles = rig.engine.enqueue_many((0..5).map(work)).await.expect("accepted");
        rig.store.tamper("claim", move |call| (call == 1).then_some(fault));
        let quick = |job: Work| async move { Ok::<_, Failure>(job.number) };
        let worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
        for handle in &handles {
            // Long before their leases end. A store that says nothing is given up after ten.
            let outcome = handle.outcome_within(SECOND * 15).await;
            assert!(outcome.is_ok(), "{fault:?}: {outcome:?}");
            let record = handle.record().await.expect("it is kept");
            assert_eq!(record.attempts.len(), 1, "{fault:?}: it started once");
        }
        worker.stop().await.expect("it stops");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crashed_loop_is_restarted_and_its_job_is_not_lost() {
    for verb in ["claim", "settle", "renew"] {
        let rig = rig().await;
        let mut errors =
            rig.engine.subscribe(Topics::all().topic("worker.error")).expect("the topic is known");
        rig.store.tamper(verb, |call| (call == 1).then_some(Fault::Panic));
        let slow = |job: Work| async move {
            tokio::time::sleep(SECOND * 12).await;
            Ok::<_, Failure>(job.number)
        };
        let worker = rig.engine.worker().handle(slow).start().await.expect("it starts");
        let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
        assert_eq!(handle.outcome_within(HOUR).await.expect("it completes"), 1, "{verb}");
        worker.stop().await.expect("it stops");
        assert!(errors.try_next().await.is_some(), "{verb}: the crash was not told");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_keeps_crashing_stops_with_a_clear_error() {
    for (verb, part) in [("claim", "fill"), ("settle", "settle"), ("renew", "renew")] {
        let rig = rig().await;
        rig.store.tamper(verb, |_| Some(Fault::Panic));
        let ends_late = |job: Work, attempt: Attempt| async move {
            attempt.log("so that there is something to renew");
            tokio::time::sleep(SECOND * 20).await;
            Ok::<_, Failure>(job.number)
        };
        let worker = rig.engine.worker().handle(ends_late).start().await.expect("it starts");
        rig.engine.enqueue_many((0..5).map(work)).await.expect("they are accepted");
        let stopped = tokio::time::timeout(HOUR, worker.stopped()).await;
        let error = stopped.expect("it stops").expect_err("it gives up").to_string();
        let crashed = format!("{part} loop crashed more than 10 times in 60s");
        assert!(error.contains(&crashed), "{error}");
        assert!(error.contains(&format!("planned panic in {verb}")), "{error}");
        assert_eq!(rig.store.calls(verb), 11);
        rig.store.heal();
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_renewals_is_not_asked_without_pause() {
    let rig = rig().await;
    rig.store.tamper("renew", |_| Some(Fault::NotDone));
    let reports = |job: Work, attempt: Attempt| async move {
        attempt.log("said once");
        tokio::time::sleep(SECOND).await;
        Ok::<_, Failure>(job.number)
    };
    let _worker = rig.engine.worker().handle(reports).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let outcome = tokio::time::timeout(SECOND * 40, handle.outcome()).await;
    assert_eq!(outcome.expect("it ends").expect("it completes"), 1);
    assert!(rig.store.calls("renew") < 20, "{} renewals", rig.store.calls("renew"));
    assert_eq!(handle.record().await.expect("it is kept").log[0].text, "said once");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_when_asked_what_it_is_fails_the_attempt() {
    #[derive(Debug)]
    struct Unspeakable;
    impl std::fmt::Display for Unspeakable {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("it cannot be said")
        }
    }
    impl std::error::Error for Unspeakable {}
    let rig = rig().await;
    let fails = |_: Work| async { Err::<i64, _>(Unspeakable) };
    let worker = rig.engine.worker().handle(fails).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).max_attempts(1).await.expect("it is accepted");
    let error = handle.outcome_within(HOUR).await.expect_err("it dies").to_string();
    assert!(error.contains("it cannot be said"), "{error}");
    worker.stop().await.expect("it stops");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_limits_its_attempts_keeps_its_kinds_backoff() {
    let rig = rig().await;
    let fails = |_: Work| async { Err::<i64, _>(Failure::retry("again")) };
    let retry = windlass::Retry::constant(Duration::from_millis(10));
    let terms = |options: KindOptions| options.retry(retry.jitter(windlass::Jitter::None));
    let _worker = rig.engine.worker().handle_with(fails, terms).start().await.expect("it starts");
    let start = tokio::time::Instant::now();
    let handle = rig.engine.enqueue(work(1)).max_attempts(5).await.expect("it is accepted");
    handle.outcome().await.expect_err("it dies");
    assert_eq!(handle.record().await.expect("it is kept").status.attempts, 5);
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_hangs_nobody() {
    for verb in ["claim", "renew", "settle", "announce", "heartbeat"] {
        let rig = rig().await;
        let slow = |job: Work| async move {
            tokio::time::sleep(SECOND * 12).await;
            Ok::<_, Failure>(job.number)
        };
        let worker = rig.engine.worker().handle(slow).start().await.expect("it starts");
        let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
        settle_down().await;
        rig.store.tamper(verb, |call| (call <= 2).then_some(Fault::Hang));
        let outcome = handle.outcome_within(HOUR).await;
        assert_eq!(outcome.expect("it completes"), 1, "{verb}");
        rig.store.tamper(verb, |_| Some(Fault::Hang));
        let stopped = tokio::time::timeout(SECOND * 120, worker.stop()).await;
        stopped.unwrap_or_else(|_| panic!("{verb}: the stop hangs")).expect("it stops");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_cancelled_on_its_way_to_the_worker_is_told_at_once() {
    let rig = rig().await;
    let waits = |_: Work, attempt: Attempt| async move {
        attempt.cancellation().cancelled().await;
        Err::<i64, _>(Failure::retry("stopped as asked"))
    };
    // The store has handed the job out, but the worker does not have it yet.
    rig.store.tamper("claim", |_| Some(Fault::Late(SECOND)));
    let terms = |options: KindOptions| options.lease(HOUR).no_timeout();
    let worker = rig.engine.worker().handle_with(waits, terms);
    let _worker = worker.start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    while handle.record().await.expect("it is kept").status.attempts == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    handle.cancel().await.expect("it runs");
    let error = handle.outcome_within(SECOND * 10).await.expect_err("it is cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
}

/// On real threads and a real clock, because this is about threads; nothing in it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_races_a_claim_loses_and_counts_nothing() {
    let engine = windlass::Engine::open("memory:").await.expect("it opens");
    let (mut handles, mut completed) = (Vec::new(), 0);
    for round in 0..300 {
        let worker = engine.worker().handle(add_one).start().await.expect("it starts");
        handles.push(engine.enqueue(work(round)).await.expect("it is accepted"));
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        let report = match round % 2 {
            0 => worker.stop().await.expect("it stops"),
            _ => worker.stop_now().await.expect("it stops"),
        };
        assert_eq!((report.lost, report.abandoned), (0, 0), "round {round}");
        completed += report.completed;
    }
    let last = engine.worker().handle(add_one).start().await.expect("it starts");
    for handle in handles {
        handle.outcome().await.expect("it completes");
        let status = handle.record().await.expect("it is kept").status;
        assert_eq!(status.attempts, 1, "no interrupted start was counted");
    }
    completed += last.stop().await.expect("it stops").completed;
    let totals = engine.counts().await.expect("it is answered").totals();
    assert_eq!((completed, totals.completed), (300, 300));
    assert_eq!((totals.rescued, totals.failed), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn clock_steps_of_an_hour_and_a_year_lose_double_and_stall_nothing() {
    let year = HOUR * 24 * 365;
    for (forward, by) in [(true, HOUR), (false, HOUR), (true, year), (false, year)] {
        let rig = rig().await;
        let runs = Counter::default();
        let counter = runs.clone();
        let slow = move |job: Work| {
            counter.add();
            async move {
                tokio::time::sleep(SECOND * 20).await;
                Ok::<_, Failure>(job.number)
            }
        };
        let _worker = rig.engine.worker().handle(slow).start().await.expect("it starts");
        let running = rig.engine.enqueue(work(1)).await.expect("it is accepted");
        let delayed = rig.engine.enqueue(work(2)).delay(SECOND * 30).await.expect("accepted");
        pass(SECOND * 5).await;
        match forward {
            true => rig.clock.step_forward(by),
            false => rig.clock.step_back(by),
        }
        let after = rig.engine.enqueue(work(3)).delay(SECOND * 40).await.expect("accepted");
        for (handle, number) in [(running, 1), (delayed, 2), (after, 3)] {
            let outcome = handle.outcome_within(SECOND * 120).await;
            assert_eq!(outcome.expect("it completes soon"), number, "{forward} {by:?}");
            let status = handle.record().await.expect("it is kept").status;
            assert_eq!((status.attempts, status.recoveries), (1, 0));
        }
        assert_eq!(runs.get(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn two_workers_with_one_name_are_not_confused() {
    let rig = rig().await;
    let start = || rig.engine.worker().name("same").handle(add_one).start();
    let (first, second) = (start().await.expect("starts"), start().await.expect("starts"));
    assert_ne!(first.id(), second.id());
    first.stop().await.expect("it stops");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("the second one works"), 2);
    second.stop().await.expect("it stops");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_vanishes_gives_its_jobs_back_after_the_lease() {
    let rig = rig().await;
    let name = |text: &str| windlass::Name::new(text).expect("a name");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    // A worker in another process that claims and is never heard of again.
    let claim = windlass::core::ledger::Claim {
        worker: "ghost".into(),
        queues: None,
        kinds: vec![windlass::core::ledger::KindClaim::new(name("work"))],
        limit: 1,
        request: None,
    };
    rig.engine.store().claim(claim).await.expect("it is answered");
    let start = tokio::time::Instant::now();
    let _worker = rig.engine.worker().handle(add_one).start().await.expect("it starts");
    assert_eq!(handle.outcome().await.expect("it is recovered"), 2);
    assert!(start.elapsed() <= SECOND * 32, "{:?}", start.elapsed());
    let record = handle.record().await.expect("it is kept");
    assert_eq!((record.status.attempts, record.status.recoveries), (2, 0));
    assert_eq!(record.attempts[0].worker.as_ref(), "ghost");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_the_store_refuses_is_a_failed_attempt() {
    let rig = rig().await;
    rig.engine.queue("full").expect("a name").max_depth(Some(0)).await.expect("it is set");
    let continues = |job: Work, attempt: Attempt| async move {
        let options = windlass::Options::new().queue("full");
        attempt.continue_with_options(work(2), options)?;
        Ok::<_, Failure>(job.number)
    };
    let _worker = rig.engine.worker().handle(continues).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).max_attempts(1).await.expect("it is accepted");
    let error = handle.outcome().await.expect_err("it dies");
    let Error::Died { reason: DeadReason::AttemptsExhausted, error, .. } = error else {
        panic!("{error}");
    };
    assert!(error.contains("queue `full` holds"), "{error}");
}
