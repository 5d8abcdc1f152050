//! What accepting jobs promises.

use crate::store::StoreExt as _;
use windlass_core::job::{
    DeadReason, Dependency, NewJob, OnFailure, Priority, Start, State, StateName, Timeout, Unique,
    UniqueScope,
};
use windlass_core::ledger::{Acceptance, QueueChange};
use windlass_core::limits::{self, Limits};
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;
use windlass_core::retry::Retry;
use windlass_core::time::Timestamp;

use super::{Bench, Case, HOUR, SECOND, id, job, name, named_cases, refused};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        everything_the_producer_said_is_kept,
        an_empty_batch_changes_nothing,
        a_batch_with_one_bad_item_leaves_nothing_behind,
        a_repeated_call_with_the_same_ids_gives_each_job_once,
        a_reused_id_with_another_payload_is_refused,
        an_id_that_stands_twice_in_a_batch_is_refused,
        a_unique_key_is_held_while_the_job_is_open_and_released_at_its_end,
        a_unique_key_counts_within_one_batch,
        a_unique_key_is_apart_per_queue_and_kind,
        a_key_of_scope_any_is_held_after_the_end_until_its_window_closes,
        a_key_whose_window_closed_may_be_taken_while_the_job_is_open,
        a_job_waits_for_its_dependencies_and_is_released_once,
        jobs_of_one_batch_may_depend_on_each_other_in_any_order,
        a_dependency_that_completed_counts_as_met,
        a_delayed_job_that_depends_on_another_waits_for_both,
        unknown_dead_self_and_cyclic_dependencies_are_refused_whole,
        a_failed_dependency_is_cascaded_ignored_or_waited_for_by_edge,
        the_depth_limit_is_exact_and_counts_the_whole_batch,
        a_delayed_job_is_not_ready_before_its_time,
        a_start_in_the_past_means_now_and_does_not_jump_the_queue,
        a_job_that_has_not_started_when_it_expires_is_cancelled,
        oversized_input_is_refused_with_the_limit_and_nothing_stored,
    ]
}

fn unique(
    number: u128,
    key: &str,
    scope: UniqueScope,
    window: Option<std::time::Duration>,
) -> NewJob {
    let unique = Some(Unique { key: key.to_string(), scope, window });
    NewJob { unique, ..job(number) }
}

fn after(number: u128, on: u128, on_failure: OnFailure) -> NewJob {
    let depends_on = vec![Dependency { on: id(on), on_failure }];
    NewJob { depends_on, ..job(number) }
}

async fn everything_the_producer_said_is_kept(bench: Bench) {
    let new = NewJob {
        priority: Priority::HIGH,
        start: Start::After(HOUR),
        unique: Some(Unique { key: "k".into(), scope: UniqueScope::Any, window: Some(HOUR) }),
        retry: Some(Retry::patient().up_to(7)),
        timeout: Some(Timeout::Off),
        expires_after: Some(HOUR * 9),
        tags: vec![name("a"), name("b")],
        metadata: [("tenant".to_string(), "\u{1F40C} \0".to_string())].into(),
        trace: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_string()),
        parent: Some(id(77)),
        ..NewJob::new(id(1), name("work"), name("mail"), vec![0, 159, 146, 150, 0])
    };
    bench.accept([new.clone()]).await;
    assert_eq!(*bench.record(id(1)).await.job, new);
}

async fn an_empty_batch_changes_nothing(bench: Bench) {
    assert_eq!(bench.enqueue(vec![]).await.expect("it is answered"), vec![]);
    assert!(bench.topics().await.is_empty());
}

async fn a_batch_with_one_bad_item_leaves_nothing_behind(bench: Bench) {
    let mut jobs: Vec<NewJob> = (1..100).map(job).collect();
    jobs.push(after(100, 4_711, OnFailure::Cascade));
    refused(bench.enqueue(jobs).await);
    for number in 1..=100 {
        bench.assert_unknown(id(number)).await;
    }
    assert!(bench.topics().await.is_empty(), "events were told of a refused batch");
}

async fn a_repeated_call_with_the_same_ids_gives_each_job_once(bench: Bench) {
    bench.accept([job(1), job(2)]).await;
    let again = bench.enqueue(vec![job(1), job(2)]).await.expect("it is answered");
    assert!(again.iter().all(|item| item.acceptance == Acceptance::AlreadyAccepted));
    assert_eq!(bench.claim(10).await.jobs.len(), 2);
}

async fn a_reused_id_with_another_payload_is_refused(bench: Bench) {
    bench.accept([job(1)]).await;
    let other = NewJob { payload: b"other".to_vec().into(), ..job(1) };
    let refusal = refused(bench.enqueue(vec![other]).await);
    assert_eq!(refusal, Refusal::IdReused { job: id(1) });
}

async fn an_id_that_stands_twice_in_a_batch_is_refused(bench: Bench) {
    let refusal = refused(bench.enqueue(vec![job(1), job(1)]).await);
    assert_eq!(refusal, Refusal::IdTwiceInBatch { job: id(1) });
    bench.assert_unknown(id(1)).await;
}

async fn a_unique_key_is_held_while_the_job_is_open_and_released_at_its_end(bench: Bench) {
    bench.accept([unique(1, "k", UniqueScope::Open, None)]).await;
    let same = NewJob { payload: job(1).payload, ..unique(2, "k", UniqueScope::Open, None) };
    let answer = bench.enqueue(vec![same]).await.expect("it is answered");
    assert_eq!(answer[0].id, id(1));
    assert_eq!(answer[0].acceptance, Acceptance::Deduplicated { payload_differs: false });
    let other = unique(3, "k", UniqueScope::Open, None);
    let answer = bench.enqueue(vec![other]).await.expect("it is answered");
    assert_eq!(answer[0].acceptance, Acceptance::Deduplicated { payload_differs: true });
    bench.assert_unknown(id(2)).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    bench.accept([unique(4, "k", UniqueScope::Open, None)]).await;
    assert_eq!(bench.state_name(id(4)).await, StateName::Ready);
}

async fn a_unique_key_counts_within_one_batch(bench: Bench) {
    let batch = vec![
        unique(1, "k", UniqueScope::Open, None),
        unique(2, "k", UniqueScope::Open, None),
        // Depends on the duplicate, which stands for the first.
        after(3, 2, OnFailure::Cascade),
    ];
    let answer = bench.enqueue(batch).await.expect("it is answered");
    assert_eq!((answer[0].id, answer[1].id), (id(1), id(1)));
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Complete).await;
    assert_eq!(bench.state_name(id(3)).await, StateName::Ready);
}

async fn a_unique_key_is_apart_per_queue_and_kind(bench: Bench) {
    let mut queue = unique(2, "k", UniqueScope::Open, None);
    queue.queue = name("other");
    let mut kind = unique(3, "k", UniqueScope::Open, None);
    kind.kind = name("other");
    bench.accept([unique(1, "k", UniqueScope::Open, None), queue, kind]).await;
    for number in 1..=3 {
        assert_eq!(bench.state_name(id(number)).await, StateName::Ready);
    }
}

async fn a_key_of_scope_any_is_held_after_the_end_until_its_window_closes(bench: Bench) {
    bench.accept([unique(1, "k", UniqueScope::Any, Some(HOUR))]).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Complete).await;
    let second = unique(2, "k", UniqueScope::Any, Some(HOUR));
    let answer = bench.enqueue(vec![second.clone()]).await.expect("it is answered");
    assert_eq!(answer[0].id, id(1));
    bench.advance(HOUR).await;
    let answer = bench.enqueue(vec![second]).await.expect("it is answered");
    assert_eq!(answer[0].acceptance, Acceptance::Accepted);
}

async fn a_key_whose_window_closed_may_be_taken_while_the_job_is_open(bench: Bench) {
    bench.accept([unique(1, "k", UniqueScope::Open, Some(HOUR))]).await;
    bench.advance(HOUR).await;
    bench.accept([unique(2, "k", UniqueScope::Open, Some(HOUR))]).await;
    assert_eq!(bench.state_name(id(1)).await, StateName::Ready);
    assert_eq!(bench.state_name(id(2)).await, StateName::Ready);
    // The first one's end must not release the key, which is the second one's now.
    let handed = bench.take().await;
    assert_eq!(handed.job.id, id(1));
    bench.settle(&handed, Verdict::Complete).await;
    let third = unique(3, "k", UniqueScope::Open, Some(HOUR));
    let answer = bench.enqueue(vec![third]).await.expect("it is answered");
    assert_eq!(answer[0].id, id(2));
}

async fn a_job_waits_for_its_dependencies_and_is_released_once(bench: Bench) {
    let edges = [1, 2].map(|on| Dependency { on: id(on), on_failure: OnFailure::Cascade });
    let joined = NewJob { depends_on: edges.to_vec(), ..job(3) };
    bench.accept([job(1), job(2), joined]).await;
    assert!(matches!(bench.state(id(3)).await, State::Blocked { unmet: 2, .. }));
    assert_eq!(bench.store.dependents(id(1)).await.expect("it is answered"), vec![id(3)]);
    for _ in 0..2 {
        assert_eq!(bench.state_name(id(3)).await, StateName::Blocked);
        let handed = bench.take().await;
        bench.settle(&handed, Verdict::Complete).await;
    }
    assert_eq!(bench.state_name(id(3)).await, StateName::Ready);
    assert!(bench.store.dependents(id(1)).await.expect("it is answered").is_empty());
    let unblocked = bench.topics().await.iter().filter(|t| *t == "job.unblocked").count();
    assert_eq!(unblocked, 1);
}

async fn jobs_of_one_batch_may_depend_on_each_other_in_any_order(bench: Bench) {
    let batch = [after(3, 2, OnFailure::Cascade), after(2, 1, OnFailure::Cascade), job(1)];
    bench.accept(batch).await;
    for number in 1..=3 {
        let handed = bench.take().await;
        assert_eq!(handed.job.id, id(number));
        bench.settle(&handed, Verdict::Complete).await;
    }
}

async fn a_dependency_that_completed_counts_as_met(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Complete).await;
    bench.accept([after(2, 1, OnFailure::Cascade)]).await;
    assert_eq!(bench.state_name(id(2)).await, StateName::Ready);
}

async fn a_delayed_job_that_depends_on_another_waits_for_both(bench: Bench) {
    let delayed = |number| NewJob {
        start: Start::After(HOUR),
        ..after(number, number - 1, OnFailure::Cascade)
    };
    bench.accept([job(1), delayed(2), job(3), delayed(4)]).await;
    let (first, third) = (bench.take().await, bench.take().await);
    bench.settle(&first, Verdict::Complete).await;
    assert_eq!(bench.state_name(id(2)).await, StateName::Scheduled, "its time has not come");
    assert!(bench.claim(1).await.jobs.is_empty());
    bench.advance(HOUR).await;
    assert_eq!(bench.take().await.job.id, id(2));
    assert_eq!(bench.state_name(id(4)).await, StateName::Blocked, "its time alone is not enough");
    bench.settle(&third, Verdict::Complete).await;
    assert_eq!(bench.take().await.job.id, id(4));
}

async fn unknown_dead_self_and_cyclic_dependencies_are_refused_whole(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    let enqueue = |jobs: Vec<NewJob>| bench.enqueue(jobs);
    let unknown = refused(enqueue(vec![after(2, 9, OnFailure::Cascade)]).await);
    assert_eq!(unknown, Refusal::UnknownDependency { job: id(2), dependency: id(9) });
    let dead = refused(enqueue(vec![after(2, 1, OnFailure::Cascade)]).await);
    let state = StateName::Dead;
    assert_eq!(dead, Refusal::DependencyFailed { job: id(2), dependency: id(1), state });
    let itself = refused(enqueue(vec![after(2, 2, OnFailure::Cascade)]).await);
    assert_eq!(itself, Refusal::DependencyCycle { job: id(2) });
    let two = vec![after(3, 2, OnFailure::Cascade), after(2, 3, OnFailure::Cascade), job(4)];
    assert!(matches!(refused(enqueue(two).await), Refusal::DependencyCycle { .. }));
    for number in 2..=4 {
        bench.assert_unknown(id(number)).await;
    }
}

async fn a_failed_dependency_is_cascaded_ignored_or_waited_for_by_edge(bench: Bench) {
    bench
        .accept([
            job(1),
            after(2, 1, OnFailure::Cascade),
            after(3, 1, OnFailure::Ignore),
            after(4, 1, OnFailure::Wait),
            after(5, 2, OnFailure::Cascade),
        ])
        .await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    for (number, state) in
        [(2, StateName::Dead), (3, StateName::Ready), (4, StateName::Blocked), (5, StateName::Dead)]
    {
        assert_eq!(bench.state_name(id(number)).await, state, "job {number}");
    }
    // The same for those that come when it has failed.
    bench.accept([after(6, 1, OnFailure::Ignore), after(7, 1, OnFailure::Wait)]).await;
    assert_eq!(bench.state_name(id(6)).await, StateName::Ready);
    assert_eq!(bench.state_name(id(7)).await, StateName::Blocked);
    let error = bench.record(id(5)).await.error.expect("it says why").to_string();
    assert!(error.contains(&id(1).to_string()), "{error}");
}

async fn the_depth_limit_is_exact_and_counts_the_whole_batch(bench: Bench) {
    let limit = QueueChange::MaxDepth(Some(3));
    bench.store.configure(name("default"), limit).await.expect("it is answered");
    bench.accept([job(1), job(2)]).await;
    let refusal = refused(bench.enqueue(vec![job(3), job(4)]).await);
    let full = |depth| Refusal::QueueFull { queue: name("default"), depth, limit: 3 };
    assert_eq!(refusal, full(2));
    bench.assert_unknown(id(3)).await;
    bench.accept([job(3)]).await;
    assert_eq!(refused(bench.enqueue(vec![job(4)]).await), full(3));
    bench.take().await;
    bench.accept([job(4)]).await;
}

async fn a_delayed_job_is_not_ready_before_its_time(bench: Bench) {
    bench.accept([NewJob { start: Start::After(HOUR), ..job(1) }]).await;
    bench.advance(HOUR - SECOND).await;
    let handed = bench.claim(1).await;
    assert!(handed.jobs.is_empty());
    assert!(handed.wake_in.expect("it is due") <= SECOND);
    bench.advance(SECOND).await;
    assert_eq!(bench.state_name(id(1)).await, StateName::Ready);
    assert_eq!(bench.claim(1).await.jobs.len(), 1);
}

async fn a_start_in_the_past_means_now_and_does_not_jump_the_queue(bench: Bench) {
    bench.accept([job(1)]).await;
    bench.advance(SECOND).await;
    let start = Start::At(Timestamp::from_millis(1));
    bench.accept([NewJob { start, ..job(2) }]).await;
    assert_eq!(bench.take().await.job.id, id(1));
    assert_eq!(bench.take().await.job.id, id(2));
}

async fn a_job_that_has_not_started_when_it_expires_is_cancelled(bench: Bench) {
    let expiring = |number| NewJob { expires_after: Some(HOUR), ..job(number) };
    bench.accept([expiring(1), expiring(2)]).await;
    let started = bench.take().await;
    bench.advance(HOUR).await;
    bench.store.promote().await.expect("it is answered");
    assert_eq!(bench.state_name(id(2)).await, StateName::Cancelled);
    assert_eq!(bench.state_name(id(1)).await, StateName::Running);
    bench.settle(&started, Verdict::Retry(SECOND)).await;
    bench.advance(SECOND).await;
    bench.store.promote().await.expect("it is answered");
    assert_eq!(bench.state_name(id(1)).await, StateName::Ready, "it had started");
}

async fn oversized_input_is_refused_with_the_limit_and_nothing_stored(bench: Bench) {
    let bench = bench.with_limits(Limits { payload_bytes: 100, ..Limits::default() }).await;
    let long = "k".repeat(limits::KEY_BYTES + 1);
    let bad = [
        NewJob { payload: vec![0; 101].into(), ..job(1) },
        unique(1, &long, UniqueScope::Open, None),
        unique(1, "", UniqueScope::Open, None),
        unique(1, "a\0b", UniqueScope::Open, None),
        NewJob { start: Start::After(std::time::Duration::MAX), ..job(1) },
        NewJob { start: Start::At(Timestamp::from_micros(i64::MAX)), ..job(1) },
        NewJob { expires_after: Some(std::time::Duration::MAX), ..job(1) },
        NewJob { tags: vec![name("t"); limits::TAGS + 1], ..job(1) },
        NewJob { metadata: [("k".into(), "v".repeat(limits::METADATA_BYTES))].into(), ..job(1) },
    ];
    for new in bad {
        let refusal = refused(bench.enqueue(vec![new]).await);
        assert!(matches!(refusal, Refusal::OutOfBounds { .. }), "{refusal:?}");
        bench.assert_unknown(id(1)).await;
    }
}
