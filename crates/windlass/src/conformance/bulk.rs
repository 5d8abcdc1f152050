//! What changes of many jobs promise: by a filter, and the clearing of a queue.
//!
//! They are made in chunks, with others' calls between them. The cases look at a store while it is
//! at it, so they have enough jobs for several chunks.

use windlass_core::filter::Filter;
use windlass_core::job::{DeadReason, Dependency, JobId, NewJob, OnFailure, State, StateName};
use windlass_core::ledger::CancelAnswer;
use windlass_core::limits;
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;

use super::{Bench, Case, id, job, name, named_cases, refused};
use crate::store::{AlterJobs, JobAction, JobActionDone, JobActionResult, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_change_by_filter_reaches_all_that_were_accepted_before_and_none_after,
        a_change_by_filter_that_is_cut_short_is_finished_by_repeating_it,
        a_change_by_tag_reaches_every_job_that_has_it,
        a_queue_is_cleared_of_all_that_waited_and_of_nothing_that_came_later,
        a_clear_that_is_cut_short_is_finished_by_repeating_it,
        a_large_graph_is_replayed_by_filter_in_whatever_order_it_was_accepted,
        more_jobs_than_one_commit_changes_cannot_be_named,
    ]
}

/// Enough for four chunks.
const MANY: u128 = limits::CHUNK_JOBS as u128 * 4;

/// Enough for so many chunks that somebody else comes between two of them, however fast they are.
const VERY_MANY: u128 = limits::CHUNK_JOBS as u128 * 24;

fn ready() -> Filter {
    Filter { states: vec![StateName::Ready], ..Filter::default() }
}

fn ids(altered: &[JobActionResult]) -> Vec<JobId> {
    altered.iter().map(|altered| altered.job).collect()
}

async fn in_state(bench: &Bench, state: StateName) -> u64 {
    bench.store.count().await.expect("it is answered").in_state(state)
}

/// Looks until some jobs are cancelled, and tells how many.
async fn first_cancelled(bench: &Bench) -> u64 {
    loop {
        match in_state(bench, StateName::Cancelled).await {
            0 => tokio::task::yield_now().await,
            some => return some,
        }
    }
}

async fn a_change_by_filter_reaches_all_that_were_accepted_before_and_none_after(bench: Bench) {
    bench.accept((1..=VERY_MANY).map(job)).await;
    let meanwhile = async {
        let seen = first_cancelled(&bench).await;
        bench.accept([job(VERY_MANY + 1)]).await;
        seen
    };
    let selection = Selection::Matching(ready());
    let (altered, seen) =
        tokio::join!(bench.store.alter(AlterJobs::new(selection, JobAction::Cancel)), meanwhile);
    let altered = altered.expect("it is answered");
    assert_eq!(ids(&altered), (1..=VERY_MANY).map(id).collect::<Vec<_>>());
    let done = Ok(JobActionDone::Cancel(CancelAnswer::Cancelled));
    assert!(altered.iter().all(|altered| altered.result == done));
    assert!(u128::from(seen) < VERY_MANY, "nobody else was let in before it was done");
    assert_eq!(in_state(&bench, StateName::Cancelled).await, VERY_MANY as u64);
    assert_eq!(bench.state_name(id(VERY_MANY + 1)).await, StateName::Ready, "it came later");
}

async fn a_change_by_filter_that_is_cut_short_is_finished_by_repeating_it(bench: Bench) {
    bench.accept((1..=VERY_MANY).map(job)).await;
    let cancel =
        || bench.store.alter(AlterJobs::new(Selection::Matching(ready()), JobAction::Cancel));
    tokio::select! {
        biased;
        altered = cancel() => panic!("nobody was let in: {altered:?}"),
        _ = first_cancelled(&bench) => {}
    }
    let rest = cancel().await.expect("it is answered");
    assert!((rest.len() as u128) < VERY_MANY, "the first call has left nothing behind");
    assert!(rest.iter().all(|altered| altered.result.is_ok()), "the rest had not been reached");
    assert_eq!(in_state(&bench, StateName::Cancelled).await, VERY_MANY as u64);
    let told = bench.topics().await;
    let told = told.iter().filter(|topic| *topic == "job.cancelled").count();
    assert_eq!(told as u128, VERY_MANY, "each is told once");
    assert_eq!(cancel().await.expect("it is answered"), [], "nothing is left");
}

async fn a_change_by_tag_reaches_every_job_that_has_it(bench: Bench) {
    let tagged = |number: u128| {
        let tags = if number.is_multiple_of(3) { vec![name("third")] } else { Vec::new() };
        NewJob { tags, ..job(number) }
    };
    bench.accept((1..=MANY).map(tagged)).await;
    let third = Filter { tags: vec![name("third")], ..Filter::default() };
    let selection = Selection::Matching(third.clone());
    let altered = bench
        .store
        .alter(AlterJobs::new(selection, JobAction::Cancel))
        .await
        .expect("it is answered");
    assert_eq!(ids(&altered), (1..=MANY / 3).map(|third| id(third * 3)).collect::<Vec<_>>());
    assert_eq!(in_state(&bench, StateName::Cancelled).await, (MANY / 3) as u64);
    let counted = bench.store.count_matching(&third).await.expect("it is answered");
    assert_eq!(counted, (MANY / 3) as u64);
    let altered =
        bench.store.alter(AlterJobs::new(Selection::Matching(third), JobAction::Remove)).await;
    assert_eq!(altered.expect("it is answered").len() as u128, MANY / 3);
    bench.assert_unknown(id(3)).await;
}

async fn a_queue_is_cleared_of_all_that_waited_and_of_nothing_that_came_later(bench: Bench) {
    bench.accept((1..=VERY_MANY).map(job)).await;
    let meanwhile = async {
        let seen = first_cancelled(&bench).await;
        let started = bench.claim(1).await.jobs;
        bench.accept([job(VERY_MANY + 1)]).await;
        (seen, started)
    };
    let (cleared, (seen, started)) = tokio::join!(bench.store.clear(name("default")), meanwhile);
    let cleared = cleared.expect("it is answered");
    assert_eq!(u128::from(cleared.cleared), VERY_MANY - started.len() as u128);
    assert!(u128::from(seen) < VERY_MANY, "nobody else was let in before it was done");
    for started in started {
        let State::Running(lease) = bench.state(started.job.id).await else {
            panic!("what has started before it was reached is left alone");
        };
        assert!(!lease.cancel_requested, "it is not even asked to stop");
    }
    assert_eq!(bench.state_name(id(VERY_MANY + 1)).await, StateName::Ready, "it came later");
    let told = bench.topics().await;
    let told = told.iter().filter(|topic| *topic == "queue.cleared").count();
    assert_eq!(told, 1, "it is told once");
}

async fn a_clear_that_is_cut_short_is_finished_by_repeating_it(bench: Bench) {
    bench.accept((1..=VERY_MANY).map(job)).await;
    tokio::select! {
        biased;
        cleared = bench.store.clear(name("default")) => panic!("nobody was let in: {cleared:?}"),
        _ = first_cancelled(&bench) => {}
    }
    let rest = bench.store.clear(name("default")).await.expect("it is answered");
    assert!(u128::from(rest.cleared) < VERY_MANY, "the first call has left nothing behind");
    assert_eq!(in_state(&bench, StateName::Cancelled).await, VERY_MANY as u64);
    assert_eq!(bench.claim(1).await.jobs.len(), 0, "nothing waits");
}

async fn a_large_graph_is_replayed_by_filter_in_whatever_order_it_was_accepted(bench: Bench) {
    // Each depends on the one that is accepted after it, in the same batch.
    let last = MANY * 3 / 4;
    let before = |number: u128| {
        let next = Dependency { on: id(number + 1), on_failure: OnFailure::Cascade };
        NewJob { depends_on: if number < last { vec![next] } else { Vec::new() }, ..job(number) }
    };
    bench.accept((1..=last).map(before)).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    assert_eq!(in_state(&bench, StateName::Dead).await, last as u64);
    let dead = Filter { states: vec![StateName::Dead], ..Filter::default() };
    let replayed =
        bench.store.alter(AlterJobs::new(Selection::Matching(dead), JobAction::Replay)).await;
    let replayed = replayed.expect("it is answered");
    assert_eq!(replayed.len() as u128, last, "each is answered once");
    let refused = replayed.iter().find(|replayed| replayed.result.is_err());
    assert!(refused.is_none(), "{refused:?}");
    assert_eq!(in_state(&bench, StateName::Blocked).await, last as u64 - 1);
    assert_eq!(bench.state_name(id(last)).await, StateName::Ready);
}

async fn more_jobs_than_one_commit_changes_cannot_be_named(bench: Bench) {
    bench.accept([job(1)]).await;
    let named = |jobs: u128| Selection::Jobs((1..=jobs).map(id).collect());
    let most = limits::BATCH_JOBS as u128;
    let refusal =
        refused(bench.store.alter(AlterJobs::new(named(most + 1), JobAction::Cancel)).await);
    assert!(matches!(refusal, Refusal::OutOfBounds { .. }), "{refusal:?}");
    assert_eq!(bench.state_name(id(1)).await, StateName::Ready);
    let altered = bench
        .store
        .alter(AlterJobs::new(named(most), JobAction::Cancel))
        .await
        .expect("it is answered");
    assert_eq!(altered.iter().filter(|altered| altered.result.is_ok()).count(), 1);
}
