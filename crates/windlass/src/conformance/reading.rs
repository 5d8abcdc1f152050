//! What reading promises beyond single records: counting, who waits for whom, waiting for events.

use std::time::Duration;

use windlass_core::filter::{Filter, Order};
use windlass_core::job::{Dependency, JobId, NewJob, OnFailure, StateName};
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;

use super::{Bench, Case, id, job, name, named_cases, refused};
use crate::store::{AlterJobs, JobAction, JobQuery, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        jobs_read_by_id_come_in_the_order_asked_and_unknown_ones_are_left_out,
        counting_finds_as_many_as_listing,
        a_filter_finds_who_waits_for_a_job,
        jobs_that_wait_for_another_can_be_cancelled_together,
        an_edited_job_replaces_one_job_named_by_its_id,
        a_reader_that_waits_is_told_of_the_next_event,
        a_reader_that_waits_for_nothing_is_answered_in_the_end,
        what_was_answered_is_among_the_events_a_store_knows_of,
    ]
}

fn after(number: u128, on: &[u128]) -> NewJob {
    let wait = |on: &u128| Dependency { on: id(*on), on_failure: OnFailure::Cascade };
    NewJob { depends_on: on.iter().map(wait).collect(), ..job(number) }
}

async fn listed(bench: &Bench, filter: &Filter, limit: usize) -> Vec<JobId> {
    let (mut jobs, mut cursor) = (Vec::new(), None);
    loop {
        let page = bench.store.list(filter, cursor, limit).await.expect("a list is answered");
        assert_eq!(page.count, page.jobs.len() as u64);
        jobs.extend(page.jobs.iter().map(|record| record.id()));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return jobs,
        }
    }
}

async fn jobs_read_by_id_come_in_the_order_asked_and_unknown_ones_are_left_out(bench: Bench) {
    bench.accept((1..=5).map(job)).await;
    let query = JobQuery::Ids([4, 99, 1, 5].map(id).to_vec());
    let page = bench.store.jobs(&query).await.expect("a read is answered");
    let found: Vec<JobId> = page.jobs.iter().map(|record| record.id()).collect();
    assert_eq!(found, [4, 1, 5].map(id));
    assert_eq!((page.count, page.next), (3, None));
    let none = bench.store.jobs(&JobQuery::Ids(Vec::new())).await.expect("a read is answered");
    assert!(none.jobs.is_empty() && none.next.is_none());
}

async fn counting_finds_as_many_as_listing(bench: Bench) {
    let tagged = |number: u128| NewJob {
        tags: if number.is_multiple_of(3) { vec![name("third")] } else { Vec::new() },
        kind: name(if number.is_multiple_of(2) { "work" } else { "other" }),
        ..job(number)
    };
    bench.accept((1..=30).map(tagged)).await;
    let ready = vec![StateName::Ready];
    let filters = [
        (Filter::default(), 30),
        (Filter { tags: vec![name("third")], ..Filter::default() }, 10),
        (Filter { kinds: vec![name("work")], states: ready, ..Filter::default() }, 15),
        (Filter { kinds: vec![name("nobody")], ..Filter::default() }, 0),
        (Filter { order: Order::OldestFirst, ..Filter::default() }, 30),
    ];
    for (filter, expected) in filters {
        let counted = bench.store.count_matching(&filter).await.expect("a count is answered");
        assert_eq!(counted, expected, "{filter:?}");
        assert_eq!(listed(&bench, &filter, 7).await.len() as u64, expected, "{filter:?}");
    }
}

async fn a_filter_finds_who_waits_for_a_job(bench: Bench) {
    bench.accept([job(1), job(2)]).await;
    bench.accept([after(5, &[1, 2]), after(3, &[1]), after(4, &[2])]).await;
    let waits_for = |on| Filter { blocked_by: Some(id(on)), ..Filter::default() };
    assert_eq!(listed(&bench, &waits_for(1), 1).await, [3, 5].map(id), "the newest first");
    let oldest = Filter { order: Order::OldestFirst, ..waits_for(1) };
    assert_eq!(listed(&bench, &oldest, 1).await, [5, 3].map(id));
    let of_a_kind = |kind| Filter { kinds: vec![name(kind)], ..waits_for(1) };
    assert_eq!(listed(&bench, &of_a_kind("work"), 10).await.len(), 2);
    assert!(listed(&bench, &of_a_kind("other"), 10).await.is_empty());
    assert_eq!(bench.store.count_matching(&waits_for(2)).await.expect("it is answered"), 2);
    let first = bench.take().await;
    assert_eq!(first.job.id, id(1));
    bench.settle(&first, Verdict::Complete).await;
    assert!(listed(&bench, &waits_for(1), 10).await.is_empty(), "it is waited for no more");
    assert_eq!(listed(&bench, &waits_for(2), 10).await, [4, 5].map(id));
    assert!(listed(&bench, &waits_for(77), 10).await.is_empty());
}

async fn jobs_that_wait_for_another_can_be_cancelled_together(bench: Bench) {
    bench.accept([job(1), job(2), after(3, &[1]), after(4, &[1, 2]), after(5, &[2])]).await;
    let filter = Filter { blocked_by: Some(id(1)), ..Filter::default() };
    let altered =
        bench.store.alter(AlterJobs::new(Selection::Matching(filter), JobAction::Cancel)).await;
    let altered = altered.expect("it is answered");
    assert_eq!(altered.iter().map(|each| each.job).collect::<Vec<_>>(), [3, 4].map(id));
    assert_eq!(bench.state_name(id(3)).await, StateName::Cancelled);
    assert_eq!(bench.state_name(id(5)).await, StateName::Blocked);
}

async fn an_edited_job_replaces_one_job_named_by_its_id(bench: Bench) {
    bench.accept([job(1), job(2)]).await;
    let edited = || JobAction::ReplayEdited(job(9).into());
    for selection in [
        Selection::Jobs(Vec::new()),
        Selection::Jobs([1, 2].map(id).to_vec()),
        Selection::Matching(Filter::default()),
    ] {
        let refusal = refused(bench.store.alter(AlterJobs::new(selection, edited())).await);
        assert!(matches!(refusal, Refusal::OutOfBounds { .. }), "{refusal:?}");
    }
    bench.assert_unknown(id(9)).await;
}

async fn a_reader_that_waits_is_told_of_the_next_event(bench: Bench) {
    bench.accept([job(1)]).await;
    let last = bench.store.events(0, usize::MAX, Duration::ZERO).await.expect("it is answered");
    let last = last.last().expect("the job was told of").number;
    let store = bench.store.clone();
    let reader = async move { store.events(last, 10, Duration::from_secs(60)).await };
    let writer = async {
        tokio::task::yield_now().await;
        bench.accept([job(2)]).await;
    };
    let (events, ()) = tokio::join!(reader, writer);
    let events = events.expect("it is answered");
    assert_eq!(events.first().and_then(|event| event.job()), Some(id(2)));
}

async fn a_reader_that_waits_for_nothing_is_answered_in_the_end(bench: Bench) {
    bench.accept([job(1)]).await;
    let told = bench.store.events(0, usize::MAX, Duration::ZERO).await.expect("it is answered");
    let last = told.last().expect("the job was told of").number;
    let wait = Duration::from_millis(20);
    let store = bench.store.clone();
    let reader = async move { store.events(last, 10, wait).await };
    let clock = async {
        tokio::task::yield_now().await;
        bench.advance(wait).await;
    };
    let (events, ()) = tokio::join!(reader, clock);
    assert!(events.expect("it is answered").is_empty());
}

async fn what_was_answered_is_among_the_events_a_store_knows_of(bench: Bench) {
    bench.accept([job(1)]).await;
    let known = bench.store.info().last_event;
    bench.accept([job(2)]).await;
    let next = bench.store.events(known, usize::MAX, Duration::ZERO).await;
    let next = next.expect("it is answered");
    assert!(next.iter().any(|event| event.job() == Some(id(2))), "{next:?}");
}
