//! One job's journey, in every way it can go. The first seven are the named tests N27 to N33.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{
    Attempt, CancelReason, DeadReason, Engine, Error, EventKind, Failure, Job, JobId, KindOptions,
    OnFailure, Options, Priority, Rate, Retry, State, StateName, Topics, UniqueScope,
};

use crate::common::{Counter, Fault, HOUR, Notes, SECOND, Work, pass, rig, settle_down, work};

async fn add_one(job: Work) -> Result<i64, Failure> {
    Ok(job.number + 1)
}

/// Retries quickly, twice in all.
fn quick(options: KindOptions) -> KindOptions {
    let retry = Retry::exponential(Duration::from_millis(100)).cap(Duration::from_millis(500));
    options.retry(retry.up_to(2))
}

#[tokio::test(start_paused = true)]
async fn a_job_is_processed_and_its_result_returned() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(add_one).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(41)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 42);
    let record = handle.record().await.expect("it is kept");
    assert_eq!(record.output.as_deref(), Some(&b"42"[..]));
    assert_eq!(record.status.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_flaky_job_is_retried_and_the_failure_says_so() {
    let rig = rig().await;
    let mut failures =
        rig.engine.subscribe(Topics::all().topic("job.failed")).expect("the topic is known");
    let flaky = |job: Work, attempt: Attempt| async move {
        if attempt.number() == 1 { Err(Failure::retry("not yet")) } else { Ok(job.number) }
    };
    let _worker = rig.engine.worker().handle_with(flaky, quick).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(7)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("the second attempt succeeds"), 7);
    let windlass::Received::Event(event) = failures.next().await else {
        panic!("nothing is missed")
    };
    let EventKind::JobFailed { attempt: 1, next_retry_at: Some(_), error, .. } = &event.what else {
        panic!("{event:?}");
    };
    assert_eq!(error.as_str(), "not yet");
    assert_eq!(handle.record().await.expect("it is kept").status.attempts, 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_always_fails_ends_among_the_dead_letters() {
    let rig = rig().await;
    let fails = |_: Work| async { Err::<i64, _>(Failure::retry("always")) };
    let _worker = rig.engine.worker().handle_with(fails, quick).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let error = handle.outcome().await.expect_err("it dies");
    let Error::Died { reason: DeadReason::AttemptsExhausted, error, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(error, "always");
    let page = rig.engine.dead_letters().page(None, 10).await.expect("it is answered");
    assert_eq!(page.jobs.len(), 1);
    assert_eq!(page.jobs[0].status.attempts, 2);
    assert_eq!(rig.engine.counts().await.expect("answered").in_state(StateName::Dead), 1);
}

#[tokio::test(start_paused = true)]
async fn jobs_start_by_priority() {
    let rig = rig().await;
    let order = Notes::default();
    let notes = order.clone();
    let note = move |job: Work| {
        notes.add(job.number.to_string());
        async move { Ok::<_, Failure>(job.number) }
    };
    // Paused while they are enqueued, so that an idle worker cannot take the first that comes.
    rig.engine.queue("default").expect("a name").pause().await.expect("it pauses");
    let worker = rig.engine.worker().slots(1).handle(note);
    let _worker = worker.start().await.expect("it starts");
    for (number, priority) in [
        (1, Priority::LOW),
        (2, Priority::NORMAL),
        (3, Priority::HIGH),
        (4, Priority::CRITICAL),
        (5, Priority(15)),
    ] {
        rig.engine.enqueue(work(number)).priority(priority).await.expect("it is accepted");
    }
    rig.engine.queue("default").expect("a name").resume().await.expect("it resumes");
    pass(SECOND).await;
    assert_eq!(order.all(), ["4", "5", "3", "2", "1"]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_job_is_replayed_and_leaves_the_dead_letters() {
    let rig = rig().await;
    let runs = Counter::default();
    let counter = runs.clone();
    let heals = move |job: Work| {
        let run = counter.add();
        async move { if run <= 2 { Err(Failure::retry("broken")) } else { Ok(job.number) } }
    };
    let _worker = rig.engine.worker().handle_with(heals, quick).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(5)).await.expect("it is accepted");
    handle.outcome().await.expect_err("it dies");
    rig.engine.replay(handle.id()).await.expect("it is dead");
    assert_eq!(handle.outcome().await.expect("it completes"), 5);
    assert_eq!(rig.engine.counts().await.expect("answered").in_state(StateName::Dead), 0);
    let again = rig.engine.replay(handle.id()).await.expect_err("it completed");
    assert!(again.to_string().contains("completed"), "{again}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_uses_as_many_slots_as_jobs_are_ready() {
    let rig = rig().await;
    let slow = |job: Work| async move {
        tokio::time::sleep(SECOND).await;
        Ok::<_, Failure>(job.number)
    };
    let worker = rig.engine.worker().slots(10).handle(slow).start().await.expect("it starts");
    settle_down().await;
    assert_eq!((worker.slots(), worker.busy()), (10, 0));
    rig.engine.enqueue_many((0..3).map(work)).await.expect("they are accepted");
    settle_down().await;
    assert_eq!((worker.slots(), worker.busy()), (10, 3));
    rig.engine.enqueue_many((0..1_000).map(work)).await.expect("they are accepted");
    settle_down().await;
    assert_eq!((worker.slots(), worker.busy()), (10, 10));
    worker.scale(20).expect("it has slots");
    pass(SECOND).await;
    assert_eq!(worker.busy(), 20);
    worker.scale(2).expect("it has slots");
    pass(SECOND).await;
    assert_eq!((worker.slots(), worker.busy()), (2, 2));
    worker.scale(0).expect_err("it could run nothing any more");
    pass(SECOND * 600).await;
    assert_eq!((worker.slots(), worker.busy()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_graceful_stop_completes_what_runs() {
    let rig = rig().await;
    let slow = |job: Work| async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok::<_, Failure>(job.number)
    };
    let worker = rig.engine.worker().handle(slow).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(3)).await.expect("it is accepted");
    settle_down().await;
    let report = worker.stop().await.expect("it stops");
    assert_eq!((report.completed, report.interrupted), (1, 0));
    assert_eq!(handle.outcome().await.expect("it completed"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_job_runs_at_its_time_with_no_other_traffic() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(add_one).start().await.expect("it starts");
    let start = tokio::time::Instant::now();
    let handle = rig.engine.enqueue(work(1)).delay(HOUR).await.expect("it is accepted");
    handle.outcome().await.expect("it completes");
    let waited = start.elapsed();
    assert!(waited >= HOUR && waited < HOUR + Duration::from_millis(10), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_for_its_backoff_and_no_longer() {
    let rig = rig().await;
    let starts = Notes::default();
    let (notes, start) = (starts.clone(), tokio::time::Instant::now());
    let fails = move |_: Work| {
        notes.add(start.elapsed().as_secs().to_string());
        async { Err::<i64, _>(Failure::retry("again")) }
    };
    let _worker = rig.engine.worker().handle(fails).start().await.expect("it starts");
    let retry = Retry::exponential(SECOND * 10).jitter(windlass::Jitter::None).up_to(5);
    let handle = rig.engine.enqueue(work(1)).retry(retry).await.expect("it is accepted");
    handle.outcome().await.expect_err("it dies");
    assert_eq!(starts.all(), ["0", "10", "30", "70", "150"]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_decides_how_it_failed() {
    let rig = rig().await;
    let decides = |job: Work, attempt: Attempt| async move {
        match (job.number, attempt.number()) {
            (1, _) => Err(Failure::permanent("pointless")),
            (2, _) => Err(Failure::cancel("not needed any more")),
            (3, 1) => Err(Failure::retry_after(HOUR, "come back in an hour")),
            (number, _) => Ok(number),
        }
    };
    let _worker = rig.engine.worker().handle(decides).start().await.expect("it starts");
    let outcome = |number| {
        let enqueue = rig.engine.enqueue(work(number));
        async move { enqueue.await.expect("it is accepted").outcome().await }
    };
    let died = outcome(1).await;
    assert!(matches!(died, Err(Error::Died { reason: DeadReason::Permanent, .. })), "{died:?}");
    let cancelled = outcome(2).await;
    let reason = CancelReason::Handler;
    assert!(matches!(cancelled, Err(Error::Cancelled { reason: r, .. }) if r == reason));
    let start = tokio::time::Instant::now();
    assert_eq!(outcome(3).await.expect("the second attempt succeeds"), 3);
    assert!(start.elapsed() >= HOUR);
}

#[tokio::test(start_paused = true)]
async fn a_snoozed_job_runs_again_with_its_start_uncounted() {
    let rig = rig().await;
    let runs = Counter::default();
    let counter = runs.clone();
    let snoozes = move |job: Work, attempt: Attempt| {
        let run = counter.add();
        async move {
            assert_eq!(attempt.number(), 1);
            if run < 10 { Err(Failure::snooze(SECOND)) } else { Ok(job.number) }
        }
    };
    let _worker = rig.engine.worker().handle(snoozes).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(6)).max_attempts(1).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 6);
    assert_eq!(runs.get(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_kind_may_decide_by_the_error_whether_to_try_again() {
    let rig = rig().await;
    let fails = |job: Work| async move {
        let kind = if job.number == 1 { "refused" } else { "timed out" };
        Err::<i64, _>(std::io::Error::other(kind))
    };
    let decide =
        |options: KindOptions| options.retry_if(|failure| !failure.to_string().contains("refused"));
    let _worker = rig.engine.worker().handle_with(fails, decide).start().await.expect("it starts");
    for (number, attempts) in [(1, 1), (2, 3)] {
        let handle = rig.engine.enqueue(work(number)).await.expect("it is accepted");
        handle.outcome().await.expect_err("it dies");
        let record = handle.record().await.expect("it is kept");
        assert_eq!(record.status.attempts, attempts, "job {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_not_retried_beyond_its_maximum_duration() {
    let rig = rig().await;
    let fails = |_: Work| async { Err::<i64, _>(Failure::retry("again")) };
    let _worker = rig.engine.worker().handle(fails).start().await.expect("it starts");
    let retry = Retry::constant(SECOND * 10).jitter(windlass::Jitter::None);
    let retry = retry.unlimited().within(SECOND * 35);
    let handle = rig.engine.enqueue(work(1)).retry(retry).await.expect("it is accepted");
    let error = handle.outcome().await.expect_err("it dies");
    let reason = DeadReason::DurationExhausted;
    assert!(matches!(error, Error::Died { reason: r, .. } if r == reason), "{error}");
    assert_eq!(handle.record().await.expect("it is kept").status.attempts, 4);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_with_its_message_and_place() {
    let rig = rig().await;
    let panics = |job: Work| async move {
        if job.number > 0 {
            panic!("boom {}", job.number);
        }
        Ok::<i64, Failure>(0)
    };
    let _worker = rig.engine.worker().handle(panics).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(9)).max_attempts(1).await.expect("it is accepted");
    let error = handle.outcome().await.expect_err("it dies").to_string();
    assert!(error.contains("boom 9") && error.contains("journey.rs:"), "{error}");
    let healthy = rig.engine.enqueue(work(0)).await.expect("it is accepted");
    assert_eq!(healthy.outcome().await.expect("the worker lives"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_blocking_handler_runs_apart_and_its_panic_is_a_failure_too() {
    let rig = rig().await;
    let blocks = |job: Work, attempt: Attempt| {
        assert!(job.number != 2, "two is bad");
        attempt.log("working");
        Ok::<_, Failure>(job.number * 2)
    };
    let _worker = rig.engine.worker().handle_blocking(blocks).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(21)).await.expect("it is accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 42);
    let bad = rig.engine.enqueue(work(2)).max_attempts(1).await.expect("it is accepted");
    let error = bad.outcome().await.expect_err("it dies").to_string();
    assert!(error.contains("two is bad") && error.contains("journey.rs:"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_job_continues_with_another_in_the_same_commit() {
    let rig = rig().await;
    let continues = |job: Work, attempt: Attempt| async move {
        if job.number < 3 {
            attempt.continue_with(work(job.number + 1))?;
        }
        Ok::<_, Failure>(job.number)
    };
    let _worker = rig.engine.worker().handle(continues).start().await.expect("it starts");
    rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(SECOND).await;
    let page = rig.engine.jobs().page(None, 10).await.expect("it is answered");
    let numbers: Vec<&[u8]> =
        page.jobs.iter().filter_map(|record| record.output.as_deref()).collect();
    assert_eq!(numbers, [b"3", b"2", b"1"]);
    assert_eq!(page.jobs[0].job.parent, Some(page.jobs[1].id()));
    let trace = |index: usize| page.jobs[index].job.trace.clone().expect("every job has one");
    assert_eq!(trace(0)[3..35], trace(2)[3..35], "one trace for the whole chain");
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_continues_with_nothing() {
    let rig = rig().await;
    let continues = |job: Work, attempt: Attempt| async move {
        attempt.continue_with(work(100 + job.number))?;
        if attempt.number() == 1 { Err(Failure::retry("after continuing")) } else { Ok(0) }
    };
    let worker = rig.engine.worker().slots(1).handle(continues);
    let _worker = worker.queue("first").start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).queue("first").await.expect("it is accepted");
    handle.outcome().await.expect("the second attempt succeeds");
    let counts = rig.engine.counts().await.expect("it is answered");
    assert_eq!(counts.in_queue("default", StateName::Ready), 1, "only the success continued");
}

#[derive(Serialize, Deserialize)]
struct Sum {
    parts: Vec<JobId>,
}

impl Job for Sum {
    const KIND: &'static str = "sum";
    type Output = i64;
}

async fn sum(job: Sum, attempt: Attempt) -> Result<i64, Failure> {
    let mut total = 0;
    for part in job.parts {
        total += attempt.output_of::<i64>(part).await?.unwrap_or(0);
    }
    Ok(total)
}

#[tokio::test(start_paused = true)]
async fn a_job_reads_what_the_jobs_before_it_returned() {
    let rig = rig().await;
    let worker = rig.engine.worker().handle(add_one).handle(sum);
    let _worker = worker.start().await.expect("it starts");
    let mut batch = rig.engine.batch();
    let parts: Result<Vec<JobId>, Error> = (1..=3).map(|number| batch.add(work(number))).collect();
    let parts = parts.expect("the jobs are valid");
    let mut options = Options::new();
    for part in &parts {
        options = options.depends_on(*part);
    }
    let total = batch.add_with(Sum { parts }, options).expect("the job is valid");
    batch.commit().await.expect("they are accepted");
    let handle = rig.engine.handle::<Sum>(total);
    assert_eq!(handle.outcome().await.expect("it completes"), 9);
}

#[tokio::test(start_paused = true)]
async fn a_dead_dependency_kills_those_that_follow_with_a_chain_of_reasons() {
    let rig = rig().await;
    let fails = |_: Work| async { Err::<i64, _>(Failure::permanent("root cause")) };
    let _worker = rig.engine.worker().handle(fails).start().await.expect("it starts");
    let mut batch = rig.engine.batch();
    let mut last = batch.add(work(0)).expect("the job is valid");
    for number in 1..5 {
        let options = Options::new().depends_on(last);
        last = batch.add_with(work(number), options).expect("the job is valid");
    }
    let ignoring = Options::new().depends_on_with(last, OnFailure::Ignore);
    let ignoring = batch.add_with(work(9), ignoring).expect("the job is valid");
    batch.commit().await.expect("they are accepted");
    let error = rig.engine.handle::<Work>(last).outcome().await.expect_err("it follows");
    assert!(error.to_string().contains("root cause"), "{error}");
    let ran = rig.engine.handle::<Work>(ignoring).outcome().await.expect_err("it ran and failed");
    assert!(matches!(ran, Error::Died { reason: DeadReason::Permanent, .. }), "{ran}");
    assert_eq!(rig.engine.counts().await.expect("answered").in_state(StateName::Dead), 6);
}

#[tokio::test(start_paused = true)]
async fn a_unique_job_is_enqueued_once() {
    let rig = rig().await;
    let first = rig.engine.enqueue(work(1)).unique("order-7").await.expect("it is accepted");
    let second = rig.engine.enqueue(work(1)).unique("order-7").await.expect("it is answered");
    assert!(!first.is_duplicate() && second.is_duplicate());
    assert_eq!(first.id(), second.id());
    let _worker = rig.engine.worker().handle(add_one).start().await.expect("it starts");
    assert_eq!(second.outcome().await.expect("the first one completes"), 2);
    let third = rig.engine.enqueue(work(1)).unique("order-7").await.expect("it is accepted");
    assert!(!third.is_duplicate(), "the key was released");
    let throttled = || {
        let enqueue = rig.engine.enqueue(work(1)).unique("hourly");
        enqueue.unique_scope(UniqueScope::Any).unique_for(HOUR)
    };
    let first = throttled().await.expect("it is accepted");
    first.outcome().await.expect("it completes");
    assert!(throttled().await.expect("it is answered").is_duplicate());
    pass(HOUR).await;
    assert!(!throttled().await.expect("it is accepted").is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn shared_state_reaches_the_handler() {
    struct Mailer {
        sent: Notes,
    }
    let rig = rig().await;
    let sent = Notes::default();
    async fn send(job: Work, attempt: Attempt, mailer: State<Mailer>) -> Result<i64, Failure> {
        mailer.sent.add(format!("{} by {}", job.number, attempt.worker()));
        Ok(1)
    }
    let worker = rig.engine.worker().name("mailer").state(Mailer { sent: sent.clone() });
    let worker = worker.handle(send).start().await.expect("it starts");
    rig.engine.enqueue(work(1)).await.expect("accepted").outcome().await.expect("it completes");
    assert_eq!(sent.all(), [format!("1 by {}", worker.id())]);
    assert!(worker.id().starts_with("mailer-"));
}

tokio::task_local! {
    static CONTEXT: String;
}

#[tokio::test(start_paused = true)]
async fn middleware_wraps_every_attempt_in_onion_order_and_can_carry_context() {
    let rig = rig().await;
    let notes = Notes::default();
    let layer = |name: &'static str| {
        let notes = notes.clone();
        move |attempt: Attempt, next: windlass::Next| {
            let notes = notes.clone();
            async move {
                notes.add(format!("{name} before"));
                let context = format!("{}#{}", attempt.kind(), attempt.number());
                let returned = CONTEXT.scope(context, next.run()).await;
                notes.add(format!("{name} after {}", returned.is_ok()));
                returned
            }
        }
    };
    let handler_notes = notes.clone();
    let handler = move |job: Work, attempt: Attempt| {
        let notes = handler_notes.clone();
        async move {
            notes.add(CONTEXT.with(Clone::clone));
            if attempt.number() == 1 { Err(Failure::retry("first")) } else { Ok(job.number) }
        }
    };
    let worker = rig.engine.worker().middleware(layer("1")).middleware(layer("2"));
    let _worker = worker.handle(handler).start().await.expect("it starts");
    rig.engine.enqueue(work(1)).await.expect("accepted").outcome().await.expect("it completes");
    let around = |context: &str, ok: bool| {
        vec![
            "1 before".to_string(),
            "2 before".to_string(),
            context.to_string(),
            format!("2 after {ok}"),
            format!("1 after {ok}"),
        ]
    };
    assert_eq!(notes.all(), [around("work#1", false), around("work#2", true)].concat());
}

#[tokio::test(start_paused = true)]
async fn middleware_of_a_kind_is_inside_that_of_the_worker_and_around_no_other_kind() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Other;
    impl windlass::Job for Other {
        const KIND: &'static str = "other";
        type Output = ();
    }
    let rig = rig().await;
    let notes = Notes::default();
    let layer = |name: &'static str| {
        let notes = notes.clone();
        move |attempt: Attempt, next: windlass::Next| {
            let notes = notes.clone();
            async move {
                notes.add(format!("{name} before {}", attempt.kind()));
                let returned = next.run().await;
                notes.add(format!("{name} after {}", attempt.kind()));
                returned
            }
        }
    };
    let quick = |job: Work| async move { Ok::<_, Failure>(job.number) };
    let blocks = |_: Other, _: Attempt| Ok::<_, Failure>(());
    let worker = rig.engine.worker().middleware(layer("worker"));
    let worker =
        worker.handle_with(quick, |kind| kind.middleware(layer("1")).middleware(layer("2")));
    let worker = worker.handle_blocking_with(blocks, |kind| kind.middleware(layer("3")));
    let _worker = worker.start().await.expect("it starts");
    rig.engine.enqueue(work(1)).await.expect("accepted").outcome().await.expect("it completes");
    rig.engine.enqueue(Other).await.expect("accepted").outcome().await.expect("it completes");
    let around = |kind: &str, layers: &[&str]| {
        let before = layers.iter().map(|layer| format!("{layer} before {kind}"));
        let after = layers.iter().rev().map(|layer| format!("{layer} after {kind}"));
        before.chain(after).collect::<Vec<_>>()
    };
    let expected = [around("work", &["worker", "1", "2"]), around("other", &["worker", "3"])];
    assert_eq!(notes.all(), expected.concat());
}

#[tokio::test(start_paused = true)]
async fn a_handler_takes_several_states_with_or_without_the_attempt() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Other;
    impl windlass::Job for Other {
        const KIND: &'static str = "other";
        type Output = String;
    }
    struct Prefix(&'static str);
    #[expect(clippy::too_many_arguments, reason = "as many as a handler can have")]
    async fn six(
        job: Work,
        attempt: Attempt,
        a: State<u8>,
        b: State<u16>,
        c: State<u32>,
        d: State<u64>,
        e: State<i8>,
        f: State<i64>,
    ) -> Result<i64, Failure> {
        let sum = i64::from(*a) + i64::from(*b) + i64::from(*c) + *d as i64 + i64::from(*e) + *f;
        Ok(job.number + sum + i64::from(attempt.number()))
    }
    async fn two(_: Other, prefix: State<Prefix>, number: State<u8>) -> Result<String, Failure> {
        Ok(format!("{}{}", prefix.0.0, *number))
    }
    let rig = rig().await;
    let states = || rig.engine.worker().state(1_u8).state(20_u16).state(300_u32).state(4_000_u64);
    let worker = states().state(Prefix("number ")).state(5_i8).handle(six).handle(two);
    let missing = worker.start().await.expect_err("one of eight is missing");
    assert!(matches!(missing, Error::MissingState { state: "i64", .. }), "{missing}");
    let worker = states().state(Prefix("number ")).state(5_i8).state(60_000_i64);
    let _worker = worker.handle(six).handle(two).start().await.expect("it starts");
    let sum = rig.engine.enqueue(work(100_000)).await.expect("accepted").outcome().await;
    assert_eq!(sum.expect("it completes"), 164_327);
    let text = rig.engine.enqueue(Other).await.expect("accepted").outcome().await;
    assert_eq!(text.expect("it completes"), "number 1");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_knows_the_error_before_it_and_its_generation() {
    let rig = rig().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let fails = move |_: Work, attempt: Attempt| {
        let (number, generation) = (attempt.number(), attempt.generation());
        seen.add(format!("{generation}.{number} {:?}", attempt.last_error()));
        async move { Err::<i64, _>(Failure::retry(format!("failure {generation}.{number}"))) }
    };
    let _worker = rig.engine.worker().handle(fails).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).max_attempts(2).await.expect("it is accepted");
    handle.outcome().await.expect_err("it dies");
    rig.engine.replay(handle.id()).await.expect("it is dead");
    handle.outcome().await.expect_err("it dies again");
    let expected =
        ["0.1 None", "0.2 Some(\"failure 0.1\")", "1.1 None", "1.2 Some(\"failure 1.1\")"];
    assert_eq!(notes.all(), expected);
}

#[tokio::test(start_paused = true)]
async fn progress_and_log_lines_are_kept_with_the_job() {
    let rig = rig().await;
    let mut progress =
        rig.engine.subscribe(Topics::all().topic("job.progress")).expect("the topic is known");
    let reports = |job: Work, attempt: Attempt| async move {
        attempt.progress(40, "halfway, alnotes");
        attempt.log("first line");
        tokio::time::sleep(SECOND).await;
        attempt.progress(250, "beyond");
        tokio::time::sleep(SECOND).await;
        Ok::<_, Failure>(job.number)
    };
    let _worker = rig.engine.worker().handle(reports).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(Duration::from_millis(500)).await;
    let record = handle.record().await.expect("it is kept");
    assert_eq!(record.progress.expect("it was reported").percent, 40);
    handle.outcome().await.expect("it completes");
    let record = handle.record().await.expect("it is kept");
    assert_eq!(record.progress.expect("it was reported").percent, 100);
    assert_eq!(record.log[0].text, "first line");
    let heard = progress.next().await;
    assert!(matches!(heard, windlass::Received::Event(event) if event.job() == Some(handle.id())));
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_said_while_the_store_was_away_is_written_later() {
    let rig = rig().await;
    rig.store.tamper("renew", |call| (call <= 2).then_some(Fault::NotDone));
    let reports = |job: Work, attempt: Attempt| async move {
        attempt.log("first");
        tokio::time::sleep(SECOND).await;
        attempt.log("second");
        attempt.progress(90, "almost");
        tokio::time::sleep(SECOND * 5).await;
        attempt.log("last words");
        Ok::<_, Failure>(job.number)
    };
    let _worker = rig.engine.worker().handle(reports).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    handle.outcome().await.expect("it completes");
    let record = handle.record().await.expect("it is kept");
    let lines: Vec<&str> = record.log.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(lines, ["first", "second", "last words"]);
    assert_eq!(record.progress.expect("it was reported").percent, 90);
}

#[tokio::test(start_paused = true)]
async fn jobs_of_an_unknown_kind_wait_and_are_reported() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(add_one).start().await.expect("it starts");
    let handle = rig.engine.enqueue(Sum { parts: vec![] }).await.expect("it is accepted");
    pass(HOUR).await;
    let record = handle.record().await.expect("it is kept");
    assert_eq!(record.status.state.name(), StateName::Ready);
    assert_eq!(record.status.attempts, 0);
    let unhandled = rig.engine.counts().await.expect("it is answered").unhandled();
    assert_eq!(unhandled.iter().map(|(kind, n)| (kind.as_str(), *n)).next(), Some(("sum", 1)));
    let why = rig.engine.explain(handle.id()).await.expect("it is answered").to_string();
    assert!(why.contains("no worker handles `sum`"), "{why}");
    let _other = rig.engine.worker().handle(sum).start().await.expect("it starts");
    assert_eq!(handle.outcome().await.expect("it completes"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kinds_concurrency_limit_holds_over_workers_and_frees_up() {
    let rig = rig().await;
    let (running, notes) = (Counter::default(), Notes::default());
    let make = |engine: &Engine| {
        let (running, notes) = (running.clone(), notes.clone());
        let handler = move |job: Work| {
            let (running, notes) = (running.clone(), notes.clone());
            async move {
                running.add();
                notes.add("start");
                tokio::time::sleep(SECOND).await;
                notes.add("end");
                Ok::<_, Failure>(job.number)
            }
        };
        engine.worker().handle_with(handler, |options| options.concurrency(2))
    };
    let _first = make(&rig.engine).start().await.expect("it starts");
    let _second = make(&rig.engine).start().await.expect("it starts");
    let handles = rig.engine.enqueue_many((0..10).map(work)).await.expect("they are accepted");
    for handle in handles {
        handle.outcome().await.expect("it completes");
    }
    let mut open = 0;
    for note in notes.all() {
        open += if note == "start" { 1 } else { -1 };
        assert!(open <= 2, "{open} ran at once");
    }
    assert_eq!(running.get(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_kinds_rate_limit_spaces_its_starts() {
    let rig = rig().await;
    let start = tokio::time::Instant::now();
    let limited = |options: KindOptions| options.rate(Rate::per_second(10).burst(1));
    let worker = rig.engine.worker().slots(100).handle_with(add_one, limited);
    let _worker = worker.start().await.expect("it starts");
    let handles = rig.engine.enqueue_many((0..51).map(work)).await.expect("they are accepted");
    for handle in handles {
        handle.outcome().await.expect("it completes");
    }
    let took = start.elapsed();
    assert!(took >= SECOND * 5 && took < SECOND * 6, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_an_outcome_can_be_given_up() {
    let rig = rig().await;
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    let error = handle.outcome_within(SECOND).await.expect_err("nobody runs it");
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let _worker = rig.engine.worker().handle(add_one).start().await.expect("it starts");
    assert_eq!(handle.outcome_within(SECOND).await.expect("it completes"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_dead_job_can_be_edited_and_replayed_as_a_new_one() {
    let rig = rig().await;
    let picky = |job: Work| async move {
        if job.number < 0 { Err(Failure::permanent("negative")) } else { Ok(job.number) }
    };
    let _worker = rig.engine.worker().handle(picky).start().await.expect("it starts");
    let bad = rig.engine.enqueue(work(-1)).tag("vip").await.expect("it is accepted");
    bad.outcome().await.expect_err("it dies");
    let good = rig.engine.replay_edited(bad.id(), work(1)).await.expect("it is dead");
    assert_eq!(good.outcome().await.expect("it completes"), 1);
    let record = good.record().await.expect("it is kept");
    assert_eq!(record.job.parent, Some(bad.id()));
    assert_eq!(record.job.tags.len(), 1, "what the producer said is kept");
    let replaced = bad.outcome().await.expect_err("it was replaced");
    assert!(matches!(replaced, Error::Cancelled { reason: CancelReason::Replaced, .. }));
    assert_eq!(rig.engine.counts().await.expect("answered").in_state(StateName::Dead), 0);
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_replayed_by_filter_in_one_commit() {
    let rig = rig().await;
    let runs = Counter::default();
    let counter = runs.clone();
    let heals = move |job: Work| {
        let broken = counter.add() <= 10;
        async move { if broken { Err(Failure::permanent("down")) } else { Ok(job.number) } }
    };
    let _worker = rig.engine.worker().handle(heals).start().await.expect("it starts");
    rig.engine.enqueue_many((0..10).map(work)).await.expect("they are accepted");
    pass(SECOND).await;
    assert_eq!(rig.engine.counts().await.expect("answered").in_state(StateName::Dead), 10);
    let replayed = rig.engine.dead_letters().kind("work").replay().await.expect("answered");
    assert_eq!(replayed.len(), 10);
    pass(SECOND).await;
    let counts = rig.engine.counts().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Dead), 0);
    assert_eq!(counts.in_state(StateName::Completed), 10);
}
