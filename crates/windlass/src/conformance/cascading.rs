//! What the end of a job with very many dependents promises: each is told, once, and soon.
//!
//! A store may tell them in several commits, or in one.

use windlass_core::filter::Filter;
use windlass_core::job::{DeadReason, Dependency, NewJob, OnFailure, StateName};
use windlass_core::limits;
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;

use super::{Bench, Case, id, job, name, named_cases};
use crate::store::{AlterJobs, JobAction, JobActionDone, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        the_end_of_a_job_with_thousands_of_dependents_reaches_each_of_them_once,
        a_dependent_of_two_large_cascades_is_released_once_by_each,
        a_death_spreads_to_thousands_and_to_theirs_each_once,
        while_a_cascade_goes_on_claims_come_back_at_once_and_counters_are_true,
        a_dead_job_for_which_thousands_wait_is_not_removed,
        a_job_that_is_replayed_while_its_cascade_goes_on_is_waited_for_by_the_rest,
    ]
}

/// Too many for one commit of a store that bounds it.
const MANY: u128 = limits::CASCADE_JOBS as u128 * 2 + 100;

fn after(number: u128, on: u128) -> NewJob {
    let depends_on = vec![Dependency { on: id(on), on_failure: OnFailure::Cascade }];
    NewJob { depends_on, kind: name("then"), ..job(number) }
}

async fn count(bench: &Bench, state: StateName) -> u128 {
    bench.store.count().await.expect("it is answered").in_state(state).into()
}

/// Lets the store go on until it is through; how often it said that it was not.
async fn settle_down(bench: &Bench) -> usize {
    let mut times = 0;
    while bench.store.promote().await.expect("it is answered").more {
        times += 1;
        assert!(times < 1_000, "it goes on for ever");
    }
    times
}

async fn told(bench: &Bench, topic: &str) -> u128 {
    bench.topics().await.iter().filter(|told| *told == topic).count() as u128
}

async fn the_end_of_a_job_with_thousands_of_dependents_reaches_each_of_them_once(bench: Bench) {
    bench.accept([job(1)]).await;
    bench.accept((2..=MANY + 1).map(|number| after(number, 1))).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Complete).await;
    let (ready, blocked) =
        (count(&bench, StateName::Ready).await, count(&bench, StateName::Blocked).await);
    assert_eq!(ready + blocked, MANY, "no counter is ahead of the jobs");
    assert!(ready >= limits::CASCADE_EACH as u128, "only {ready} were released with the end");
    if blocked > 0 {
        let waiting = Filter { blocked_by: Some(id(1)), ..Filter::default() };
        let waiting = bench.store.count_matching(&waiting).await.expect("it is answered");
        assert_eq!(u128::from(waiting), blocked);
        let why = bench.store.explain(id(MANY + 1)).await.expect("it is answered").to_string();
        assert!(why.contains("completed"), "{why}");
    }
    settle_down(&bench).await;
    assert_eq!(count(&bench, StateName::Ready).await, MANY);
    assert_eq!(count(&bench, StateName::Blocked).await, 0);
    assert_eq!(told(&bench, "job.unblocked").await, MANY, "each is told once");
}

async fn a_dependent_of_two_large_cascades_is_released_once_by_each(bench: Bench) {
    let second = Dependency { on: id(2), on_failure: OnFailure::Cascade };
    let after_both = |number: u128| {
        let mut job = after(number, 1);
        job.depends_on.push(second);
        job
    };
    bench.accept([job(1), job(2)]).await;
    bench.accept((3..=MANY + 2).map(after_both)).await;
    let (first, second) = (bench.take().await, bench.take().await);
    bench.settle(&first, Verdict::Complete).await;
    settle_down(&bench).await;
    assert_eq!(count(&bench, StateName::Blocked).await, MANY, "the second has not completed");
    bench.settle(&second, Verdict::Complete).await;
    settle_down(&bench).await;
    assert_eq!(count(&bench, StateName::Ready).await, MANY);
    assert_eq!(told(&bench, "job.unblocked").await, MANY, "each is told once");
}

async fn a_death_spreads_to_thousands_and_to_theirs_each_once(bench: Bench) {
    // Each of the first hundred has so many behind it, and the last of each one more.
    let (roots, behind) = (100, MANY / 100);
    let second = |root: u128, number: u128| after(1_000 * root + number, root);
    bench.accept([job(1)]).await;
    bench.accept((2..=roots).map(|number| after(number, 1))).await;
    for root in 2..=roots {
        bench.accept((1..=behind).map(|number| second(root, number))).await;
        bench.accept([after(1_000 * root, 1_000 * root + behind)]).await;
    }
    let all = 1 + (roots - 1) * (behind + 2);
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    let (dead, blocked) =
        (count(&bench, StateName::Dead).await, count(&bench, StateName::Blocked).await);
    assert_eq!(dead + blocked, all, "no counter is ahead of the jobs");
    settle_down(&bench).await;
    assert_eq!(count(&bench, StateName::Dead).await, all);
    assert_eq!(told(&bench, "job.dead").await, all, "each is told once");
    let last = bench.record(id(1_000 * roots)).await;
    let error = last.error.map(|error| error.as_str().to_string()).unwrap_or_default();
    let on = id(1_000 * roots + behind);
    assert!(error.starts_with(&format!("depends on job {on}, which is dead")), "{error}");
}

async fn while_a_cascade_goes_on_claims_come_back_at_once_and_counters_are_true(bench: Bench) {
    bench.accept([job(1)]).await;
    bench.accept((2..=MANY + 1).map(|number| after(number, 1))).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Complete).await;
    loop {
        // It has no kind of theirs: it can only go on with what is owed.
        let claimed = bench.claim(1).await;
        let (ready, blocked) =
            (count(&bench, StateName::Ready).await, count(&bench, StateName::Blocked).await);
        assert_eq!(ready + blocked, MANY, "no counter is ahead of the jobs");
        if blocked == 0 {
            break;
        }
        let at_once = claimed.wake_in == Some(std::time::Duration::ZERO);
        assert!(at_once, "a worker would sleep while {blocked} wait for nothing");
    }
    let after = bench.claim(1).await.wake_in;
    assert_ne!(after, Some(std::time::Duration::ZERO), "nothing is left");
    assert_eq!(told(&bench, "job.unblocked").await, MANY, "each is told once");
}

async fn a_dead_job_for_which_thousands_wait_is_not_removed(bench: Bench) {
    let waits = |number: u128| {
        let depends_on = vec![Dependency { on: id(1), on_failure: OnFailure::Wait }];
        NewJob { depends_on, ..after(number, 1) }
    };
    bench.accept([job(1)]).await;
    bench.accept((2..=limits::CASCADE_JOBS as u128 + 2).map(waits)).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    let remove =
        || bench.store.alter(AlterJobs::new(Selection::Jobs(vec![id(1)]), JobAction::Remove));
    let refused = remove().await.expect("it is answered").remove(0).result;
    assert_eq!(refused, Err(Refusal::StillNeeded { job: id(1), by: id(2) }));
    let one = Selection::Jobs(vec![id(2)]);
    bench.store.alter(AlterJobs::new(one, JobAction::Cancel)).await.expect("it is answered");
    let removed = remove().await.expect("it is answered").remove(0).result;
    assert_eq!(removed, Ok(JobActionDone::Removed), "as many as one commit ends can follow it");
    settle_down(&bench).await;
    assert_eq!(count(&bench, StateName::Blocked).await, 0);
    assert_eq!(count(&bench, StateName::Dead).await, limits::CASCADE_JOBS as u128);
}

async fn a_job_that_is_replayed_while_its_cascade_goes_on_is_waited_for_by_the_rest(bench: Bench) {
    bench.accept([job(1)]).await;
    bench.accept((2..=MANY + 1).map(|number| after(number, 1))).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    let replay = Selection::Jobs(vec![id(1)]);
    bench.store.alter(AlterJobs::new(replay, JobAction::Replay)).await.expect("it is answered");
    let (dead, blocked) =
        (count(&bench, StateName::Dead).await, count(&bench, StateName::Blocked).await);
    assert_eq!(dead + blocked, MANY, "no counter is ahead of the jobs");
    settle_down(&bench).await;
    assert_eq!(count(&bench, StateName::Dead).await, dead, "nothing more follows it");
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Complete).await;
    settle_down(&bench).await;
    assert_eq!(count(&bench, StateName::Ready).await, blocked);
    assert_eq!(count(&bench, StateName::Blocked).await, 0);
}
