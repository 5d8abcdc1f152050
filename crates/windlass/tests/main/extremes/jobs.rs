//! What a producer may say of a job, and what a handler may wish for.

use std::time::Duration;

use windlass::{Attempt, Failure, Jitter, Options, Priority, Retry, UniqueScope};

use super::{COUNTS, DURATIONS, PRIORITIES, Plain, times, try_rows};
use crate::common::{SECOND, Work, pass, work};

/// Policies with this number in every place where there may be one.
fn retries(duration: Duration) -> Vec<Retry> {
    let mut retries = Vec::new();
    for retry in [
        Retry::constant(duration),
        Retry::linear(duration),
        Retry::exponential(duration),
        Retry::custom([duration, Duration::ZERO]),
    ] {
        for jitter in [Jitter::None, Jitter::Tenth, Jitter::Equal, Jitter::Full] {
            retries.push(retry.clone().jitter(jitter));
        }
        retries.push(retry.clone().cap(Duration::MAX));
        retries.push(retry.clone().cap(Duration::ZERO));
        retries.push(retry.within(duration));
    }
    retries
}

/// What a producer may say of a job.
pub(super) fn odd_options() -> Vec<Options> {
    let mut all = Vec::new();
    for duration in DURATIONS {
        all.push(Options::new().delay(duration));
        all.push(Options::new().timeout(duration));
        all.push(Options::new().expires_after(duration));
        all.push(Options::new().delay(SECOND).expires_after(duration));
        for scope in [UniqueScope::Open, UniqueScope::Any] {
            all.push(Options::new().unique("key").unique_scope(scope).unique_for(duration));
        }
    }
    all.extend(times().into_iter().map(|time| Options::new().at(time)));
    all.extend(COUNTS.map(|runs| Options::new().max_attempts(runs)));
    all.extend(PRIORITIES.map(|priority| Options::new().priority(Priority(priority))));
    all
}

#[test]
fn a_job_may_be_enqueued_with_any_number() {
    try_rows("enqueued with", odd_options(), async |scene, options| {
        let fails = |_: Work| async { Err::<i64, _>(Failure::retry("always")) };
        let worker = scene.engine.worker().handle(fails).start().await.expect("it starts");
        for number in 0..2 {
            let mut batch = scene.engine.batch();
            batch.add_with(work(number), options.clone()).expect("its names are valid");
            let Some(enqueued) = scene.taken(batch.commit().await) else { break };
            pass(SECOND * 5).await;
            scene.engine.find(enqueued[0].id).await.expect("it is answered");
            scene.engine.explain(enqueued[0].id).await.expect("it is answered");
        }
        worker.stop().await.expect("it stops");
    });
}

#[test]
fn a_job_may_be_retried_by_any_policy() {
    let rows = DURATIONS.into_iter().map(retries);
    let rows = rows.chain([COUNTS.map(|runs| Retry::constant(SECOND).up_to(runs)).to_vec()]);
    try_rows("retried by", rows, async |scene, policies| {
        let fails = |_: Work| async { Err::<i64, _>(Failure::retry("always")) };
        let mut jobs = Vec::new();
        // By the policy of its kind, and by one of its own.
        let (kind, others) = policies.split_first().expect("there are some");
        let kind = kind.clone();
        let worker = scene.engine.worker().handle_with(fails, move |terms| terms.retry(kind));
        let worker = worker.start().await.expect("it starts");
        jobs.push(scene.engine.enqueue(work(1)).await.expect("it is accepted").id());
        for policy in others {
            let own = scene.engine.enqueue(work(2)).retry(policy.clone()).max_attempts(5).await;
            jobs.extend(scene.taken(own).map(|own| own.id()));
        }
        pass(SECOND * 20).await;
        for id in jobs {
            scene.engine.explain(id).await.expect("it is answered");
            let record = scene.engine.find(id).await.expect("it is answered");
            let record = record.expect("it is kept");
            assert!(record.status.attempts > 0, "{}: {record:?}", scene.row);
        }
        worker.stop().await.expect("it stops");
    });
}

/// What a handler may wish for, with a number.
#[derive(Clone, Copy, Debug)]
enum Wish {
    RetryAfter(Duration),
    Snooze(Duration),
    Sleep(Duration),
    Continue(Duration),
    Progress(u8),
}

#[test]
fn a_handler_may_wish_for_any_number() {
    let wishes = DURATIONS.into_iter().flat_map(|duration| {
        [
            Wish::RetryAfter(duration),
            Wish::Snooze(duration),
            Wish::Sleep(duration),
            Wish::Continue(duration),
        ]
    });
    let wishes = wishes.chain([0, 100, 101, u8::MAX].map(Wish::Progress));
    try_rows("a handler wishes for", wishes, async |scene, wish| {
        let runs = crate::common::Counter::default();
        let counter = runs.clone();
        let wishes = move |job: Work, attempt: Attempt| {
            let first = counter.add() == 1;
            async move {
                match wish {
                    Wish::RetryAfter(delay) if first => {
                        return Err(Failure::retry_after(delay, "later"));
                    }
                    Wish::Snooze(pause) if first => return Err(Failure::snooze(pause)),
                    Wish::Sleep(pause) => attempt.sleep("a-while", pause).await?,
                    Wish::Continue(delay) if first => {
                        let later = Options::new().delay(delay).expires_after(delay);
                        attempt.continue_with_options(Plain(1), later)?;
                    }
                    Wish::Progress(percent) => attempt.progress(percent, "so far"),
                    Wish::RetryAfter(_) | Wish::Snooze(_) | Wish::Continue(_) => {}
                }
                Ok(job.number)
            }
        };
        let worker = scene.engine.worker().handle(wishes).start().await.expect("it starts");
        let handle = scene.engine.enqueue(work(1)).await.expect("it is accepted");
        pass(SECOND * 5).await;
        assert!(runs.get() > 0, "{}", scene.row);
        scene.engine.explain(handle.id()).await.expect("it is answered");
        handle.record().await.expect("it is kept");
        worker.stop().await.expect("it stops");
    });
}
