//! What the verbs of people promise: cancel, move, replay, remove, pause, clear, list, count.

use std::time::Duration;

use windlass_core::explain::Reason;
use windlass_core::filter::Filter;
use windlass_core::job::{
    CancelReason, DeadReason, Dependency, JobId, NewJob, OnFailure, Priority, Start, State,
    StateName, Unique, UniqueScope,
};
use windlass_core::ledger::{CancelAnswer, QueueChange, WorkerInfo, WorkerKind, WorkerReport};
use windlass_core::limits::Limits;
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;

use super::{Bench, Case, HOUR, SECOND, id, job, name, named_cases, refused};
use crate::store::{
    AlterJobs, Cursor, JobAction, JobActionDone, JobActionResult, Selection, StoreExt,
};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        cancelling_says_what_happened_in_every_state,
        cancelling_a_dependency_cancels_those_that_follow,
        a_cancelled_job_does_not_start,
        running_now_and_moving_change_when_a_job_starts,
        replaying_resets_the_job_and_happens_once,
        a_replayed_job_waits_for_what_it_depends_on,
        a_job_replayed_after_it_expired_does_not_expire_again,
        replaying_a_failed_graph_in_one_call_runs_it_in_order,
        a_replay_does_not_steal_a_unique_key,
        an_edited_replay_is_a_new_job_in_the_old_ones_place,
        removing_deletes_finished_jobs_only,
        a_removed_job_holds_no_key,
        removing_what_others_wait_for_lets_them_follow,
        a_completed_job_is_not_removed_while_an_open_one_depends_on_it,
        dead_letters_are_bounded_and_the_oldest_goes,
        what_was_replayed_is_no_dead_letter_and_stays_when_those_leave,
        history_is_bounded_by_age_and_number,
        what_an_open_job_depends_on_is_kept_for_its_output,
        clearing_leaves_running_work_counters_and_other_queues_alone,
        settings_of_a_queue_are_kept_and_told,
        listing_pages_by_filter_without_repeats,
        any_cursor_and_any_page_size_is_answered,
        altering_by_filter_takes_exactly_what_matches,
        counters_equal_what_a_list_finds,
        totals_tell_successes_deaths_and_cancellations_apart,
        explaining_names_every_reason,
        explaining_an_unknown_job_is_refused,
    ]
}

async fn alter(bench: &Bench, job: JobId, alteration: JobAction) -> Result<JobActionDone, Refusal> {
    let selection = Selection::Jobs(vec![job]);
    let mut altered =
        bench.store.alter(AlterJobs::new(selection, alteration)).await.expect("it is answered");
    altered.remove(0).result
}

fn after(number: u128, on: u128, on_failure: OnFailure) -> NewJob {
    NewJob { depends_on: vec![Dependency { on: id(on), on_failure }], ..job(number) }
}

async fn die(bench: &Bench) -> JobId {
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    handed.job.id
}

async fn complete(bench: &Bench) -> JobId {
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Complete).await;
    handed.job.id
}

async fn cancelling_says_what_happened_in_every_state(bench: Bench) {
    let cancelled = Ok(JobActionDone::Cancel(CancelAnswer::Cancelled));
    bench.accept([NewJob { start: Start::After(HOUR), ..job(1) }]).await;
    assert_eq!(alter(&bench, id(1), JobAction::Cancel).await, cancelled);
    bench.accept([job(2), after(3, 2, OnFailure::Ignore)]).await;
    assert_eq!(alter(&bench, id(3), JobAction::Cancel).await, cancelled);
    let handed = bench.take().await;
    for _ in 0..2 {
        let requested = Ok(JobActionDone::Cancel(CancelAnswer::Requested));
        assert_eq!(alter(&bench, id(2), JobAction::Cancel).await, requested);
    }
    bench.settle(&handed, Verdict::Complete).await;
    for (number, state) in [(1, StateName::Cancelled), (2, StateName::Completed)] {
        let refusal = Refusal::WrongState { job: id(number), state, operation: "cancel".into() };
        assert_eq!(alter(&bench, id(number), JobAction::Cancel).await, Err(refusal));
    }
    let unknown = Refusal::UnknownJob { job: id(9) };
    assert_eq!(alter(&bench, id(9), JobAction::Cancel).await, Err(unknown));
}

async fn cancelling_a_dependency_cancels_those_that_follow(bench: Bench) {
    let third = after(3, 2, OnFailure::Cascade);
    bench.accept([job(1), after(2, 1, OnFailure::Cascade), third]).await;
    alter(&bench, id(1), JobAction::Cancel).await.expect("it waits");
    for number in 2..=3 {
        let state = bench.state(id(number)).await;
        let reason = CancelReason::DependencyCancelled;
        assert!(matches!(state, State::Cancelled { reason: r, .. } if r == reason), "{state:?}");
    }
}

async fn a_cancelled_job_does_not_start(bench: Bench) {
    bench.accept([job(1), NewJob { start: Start::After(SECOND), ..job(2) }]).await;
    alter(&bench, id(1), JobAction::Cancel).await.expect("it waits");
    alter(&bench, id(2), JobAction::Cancel).await.expect("it waits");
    bench.advance(HOUR).await;
    assert!(bench.claim(10).await.jobs.is_empty());
}

async fn running_now_and_moving_change_when_a_job_starts(bench: Bench) {
    bench.accept([NewJob { start: Start::After(HOUR), ..job(1) }, job(2)]).await;
    let now = JobAction::Reschedule(Start::Now);
    assert_eq!(
        alter(&bench, id(1), now.clone()).await,
        Ok(JobActionDone::Rescheduled(StateName::Ready))
    );
    let later = JobAction::Reschedule(Start::After(HOUR));
    assert_eq!(
        alter(&bench, id(2), later.clone()).await,
        Ok(JobActionDone::Rescheduled(StateName::Scheduled))
    );
    assert_eq!(complete(&bench).await, id(1));
    assert!(bench.claim(1).await.jobs.is_empty());
    let refusal = alter(&bench, id(1), now).await.expect_err("it has finished");
    assert!(matches!(refusal, Refusal::WrongState { state: StateName::Completed, .. }));
    bench.advance(HOUR).await;
    assert_eq!(complete(&bench).await, id(2));
    bench.accept([job(3), after(4, 3, OnFailure::Cascade)]).await;
    let blocked = Ok(JobActionDone::Rescheduled(StateName::Blocked));
    assert_eq!(alter(&bench, id(4), later).await, blocked);
    assert_eq!(complete(&bench).await, id(3));
    assert_eq!(bench.state_name(id(4)).await, StateName::Scheduled, "it was moved as well");
}

async fn replaying_resets_the_job_and_happens_once(bench: Bench) {
    bench.accept([job(1)]).await;
    die(&bench).await;
    assert_eq!(alter(&bench, id(1), JobAction::Replay).await, Ok(JobActionDone::Replayed));
    let again = alter(&bench, id(1), JobAction::Replay).await.expect_err("it is not dead");
    assert!(matches!(again, Refusal::WrongState { state: StateName::Ready, .. }), "{again:?}");
    let record = bench.record(id(1)).await;
    assert_eq!(record.status.attempts, 0);
    assert_eq!(record.status.generation, 1);
    assert_eq!((record.error, record.output, record.first_started_at), (None, None, None));
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!((counts.in_state(StateName::Dead), counts.in_state(StateName::Ready)), (0, 1));
    let handed = bench.take().await;
    assert_eq!((handed.attempt, handed.generation), (1, 1), "an attempt knows of the replay");
    bench.settle(&handed, Verdict::Complete).await;
}

async fn a_replayed_job_waits_for_what_it_depends_on(bench: Bench) {
    bench.accept([job(1), after(2, 1, OnFailure::Cascade)]).await;
    die(&bench).await;
    let early = alter(&bench, id(2), JobAction::Replay).await.expect_err("1 is still dead");
    assert!(matches!(early, Refusal::DependencyFailed { .. }), "{early:?}");
    alter(&bench, id(1), JobAction::Replay).await.expect("it is dead");
    alter(&bench, id(2), JobAction::Replay).await.expect("1 is open again");
    assert_eq!(bench.state_name(id(2)).await, StateName::Blocked);
    assert_eq!(complete(&bench).await, id(1));
    assert_eq!(complete(&bench).await, id(2));
}

async fn a_job_replayed_after_it_expired_does_not_expire_again(bench: Bench) {
    bench.accept([NewJob { expires_after: Some(SECOND), ..job(1) }]).await;
    bench.advance(HOUR).await;
    bench.store.promote().await.expect("it is answered");
    assert_eq!(bench.state_name(id(1)).await, StateName::Cancelled);
    alter(&bench, id(1), JobAction::Replay).await.expect("it is cancelled");
    bench.advance(HOUR).await;
    bench.store.promote().await.expect("it is answered");
    assert_eq!(complete(&bench).await, id(1));
}

async fn replaying_a_failed_graph_in_one_call_runs_it_in_order(bench: Bench) {
    let chain = (2..=5).map(|number| after(number, number - 1, OnFailure::Cascade));
    bench.accept([job(1)].into_iter().chain(chain)).await;
    die(&bench).await;
    let filter = Filter { states: vec![StateName::Dead], ..Filter::default() };
    let selection = Selection::Matching(filter);
    let altered = bench
        .store
        .alter(AlterJobs::new(selection, JobAction::Replay))
        .await
        .expect("it is answered");
    assert!(altered.iter().all(|each| each.result.is_ok()), "{altered:?}");
    assert_eq!(altered.len(), 5);
    for number in 1..=5 {
        assert_eq!(complete(&bench).await, id(number));
    }
}

fn with_key(number: u128, scope: UniqueScope) -> NewJob {
    let unique = Unique { key: "k".to_string(), scope, window: None };
    NewJob { unique: Some(unique), ..job(number) }
}

async fn a_replay_does_not_steal_a_unique_key(bench: Bench) {
    let unique = |number| with_key(number, UniqueScope::Open);
    bench.accept([unique(1)]).await;
    die(&bench).await;
    bench.accept([unique(2)]).await;
    let refusal = alter(&bench, id(1), JobAction::Replay).await.expect_err("2 holds the key");
    assert_eq!(refusal, Refusal::KeyTaken { job: id(1), holder: id(2) });
    complete(&bench).await;
    alter(&bench, id(1), JobAction::Replay).await.expect("the key is free");
    let answer = bench.enqueue(vec![unique(3)]).await.expect("it is answered");
    assert_eq!(answer[0].id, id(1), "a replayed job holds its key again");
}

async fn an_edited_replay_is_a_new_job_in_the_old_ones_place(bench: Bench) {
    bench.accept([job(1)]).await;
    let edited = NewJob { parent: Some(id(1)), payload: b"fixed".to_vec().into(), ..job(2) };
    let early = refused(bench.store.replay_edited(id(1), edited.clone()).await);
    assert!(matches!(early, Refusal::WrongState { .. }), "{early:?}");
    bench.assert_unknown(id(2)).await;
    die(&bench).await;
    bench.store.replay_edited(id(1), edited).await.expect("it is answered");
    let state = bench.state(id(1)).await;
    assert!(matches!(state, State::Cancelled { reason: CancelReason::Replaced, .. }), "{state:?}");
    assert_eq!(bench.record(id(2)).await.job.parent, Some(id(1)));
    assert_eq!(&*bench.record(id(1)).await.job.payload, b"1", "the old payload stays");
    assert_eq!(complete(&bench).await, id(2));
}

async fn removing_deletes_finished_jobs_only(bench: Bench) {
    bench.accept([job(1), job(2)]).await;
    die(&bench).await;
    assert_eq!(alter(&bench, id(1), JobAction::Remove).await, Ok(JobActionDone::Removed));
    bench.assert_unknown(id(1)).await;
    let refusal = alter(&bench, id(2), JobAction::Remove).await.expect_err("it waits");
    assert!(matches!(refusal, Refusal::WrongState { state: StateName::Ready, .. }));
    bench.accept([NewJob { payload: b"new".to_vec().into(), ..job(1) }]).await;
}

async fn a_removed_job_holds_no_key(bench: Bench) {
    let unique = |number| with_key(number, UniqueScope::Any);
    bench.accept([unique(1)]).await;
    die(&bench).await;
    let answer = bench.enqueue(vec![unique(2)]).await.expect("it is answered");
    assert_eq!(answer[0].id, id(1), "it holds its key for good");
    alter(&bench, id(1), JobAction::Remove).await.expect("it is dead");
    bench.accept([unique(2)]).await;
    assert_eq!(bench.state_name(id(2)).await, StateName::Ready);
}

async fn removing_what_others_wait_for_lets_them_follow(bench: Bench) {
    let third = after(3, 2, OnFailure::Cascade);
    bench.accept([job(1), after(2, 1, OnFailure::Wait), third]).await;
    die(&bench).await;
    assert_eq!(bench.state_name(id(2)).await, StateName::Blocked);
    alter(&bench, id(1), JobAction::Remove).await.expect("it is dead");
    assert_eq!(bench.state_name(id(2)).await, StateName::Dead);
    assert_eq!(bench.state_name(id(3)).await, StateName::Dead);
}

async fn a_completed_job_is_not_removed_while_an_open_one_depends_on_it(bench: Bench) {
    let ignoring = after(3, 2, OnFailure::Ignore);
    bench.accept([job(1), after(2, 1, OnFailure::Cascade), ignoring, job(4)]).await;
    complete(&bench).await;
    let second = bench.take().await;
    assert_eq!(die(&bench).await, id(4));
    let needed = Refusal::StillNeeded { job: id(1), by: id(2) };
    // It alone is refused; whoever runs may read its output.
    let both = Selection::Jobs(vec![id(1), id(4)]);
    let altered =
        bench.store.alter(AlterJobs::new(both, JobAction::Remove)).await.expect("it is answered");
    assert_eq!(altered[0].result, Err(needed));
    assert_eq!(altered[1].result, Ok(JobActionDone::Removed));
    assert_eq!(bench.state_name(id(1)).await, StateName::Completed);
    bench.settle(&second, Verdict::Bury(DeadReason::Permanent)).await;
    assert_eq!(alter(&bench, id(1), JobAction::Remove).await, Ok(JobActionDone::Removed));
    // What did not complete has no output to be read.
    assert_eq!(bench.state_name(id(3)).await, StateName::Ready);
    assert_eq!(alter(&bench, id(2), JobAction::Remove).await, Ok(JobActionDone::Removed));
}

async fn any_cursor_and_any_page_size_is_answered(bench: Bench) {
    bench.accept((1..=5).map(job)).await;
    let list = async |cursor: Option<u64>, limit| {
        let page = bench.store.list(&Filter::default(), cursor.map(Cursor), limit).await;
        page.expect("it is answered").jobs.len()
    };
    for first in [None, Some(u64::MAX), Some(i64::MAX as u64), Some(i64::MAX as u64 + 1)] {
        assert_eq!(list(first, usize::MAX).await, 5, "from {first:?}");
        assert_eq!(list(first, 2).await, 2, "from {first:?}");
        assert_eq!(list(first, 0).await, 1, "from {first:?}");
    }
    assert_eq!(list(Some(0), 10).await, 0);
    for after in [u64::MAX, i64::MAX as u64 + 1] {
        let events =
            bench.store.events(after, usize::MAX, Duration::ZERO).await.expect("it is answered");
        assert!(events.is_empty(), "nothing has happened after event {after}");
    }
}

async fn dead_letters_are_bounded_and_the_oldest_goes(bench: Bench) {
    let bench = bench.with_limits(Limits { dead_letters: 3, ..Limits::default() }).await;
    for number in 1..=5 {
        bench.accept([job(number)]).await;
        die(&bench).await;
        bench.advance(SECOND).await;
    }
    bench.assert_unknown(id(1)).await;
    bench.assert_unknown(id(2)).await;
    assert_eq!(bench.state_name(id(3)).await, StateName::Dead);
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Dead), 3);
    assert_eq!(counts.totals().dead, 5);
    assert_eq!(counts.queues[0].dead_letters_dropped, 2);
    assert!(bench.topics().await.iter().any(|topic| topic == "job.removed"));
}

async fn what_was_replayed_is_no_dead_letter_and_stays_when_those_leave(bench: Bench) {
    let bench = bench.with_limits(Limits { dead_letters: 2, ..Limits::default() }).await;
    bench.accept([job(1)]).await;
    die(&bench).await;
    alter(&bench, id(1), JobAction::Replay).await.expect("it is dead");
    let replayed = bench.take().await;
    bench.accept([job(2)]).await;
    die(&bench).await;
    bench.store.replay_edited(id(2), job(3)).await.expect("it is dead");
    assert_eq!(die(&bench).await, id(3));
    for number in 4..=5 {
        bench.advance(SECOND).await;
        bench.accept([job(number)]).await;
        die(&bench).await;
    }
    bench.assert_unknown(id(3)).await;
    assert_eq!(bench.state_name(id(1)).await, StateName::Running);
    assert_eq!(bench.state_name(id(2)).await, StateName::Cancelled);
    assert_eq!(bench.settle(&replayed, Verdict::Complete).await, StateName::Completed);
}

async fn history_is_bounded_by_age_and_number(bench: Bench) {
    let limits = Limits { history_jobs: 3, history_age: HOUR, ..Limits::default() };
    let bench = bench.with_limits(limits).await;
    for number in 1..=5 {
        bench.accept([job(number)]).await;
        complete(&bench).await;
        bench.advance(SECOND).await;
    }
    bench.assert_unknown(id(2)).await;
    assert_eq!(bench.state_name(id(3)).await, StateName::Completed);
    bench.advance(HOUR).await;
    assert_eq!(bench.store.promote().await.expect("it is answered").purged, 3);
    bench.assert_unknown(id(5)).await;
}

async fn what_an_open_job_depends_on_is_kept_for_its_output(bench: Bench) {
    let limits = Limits { history_jobs: 1, history_age: HOUR, ..Limits::default() };
    let bench = bench.with_limits(limits).await;
    let last = NewJob { priority: Priority::LOW, ..after(2, 1, OnFailure::Cascade) };
    bench.accept([job(1), last, job(3), job(4)]).await;
    assert_eq!(complete(&bench).await, id(1));
    assert_eq!(complete(&bench).await, id(3));
    assert_eq!(complete(&bench).await, id(4));
    bench.assert_unknown(id(3)).await;
    bench.advance(HOUR * 2).await;
    bench.store.promote().await.expect("it is answered");
    bench.assert_unknown(id(4)).await;
    assert_eq!(bench.state_name(id(1)).await, StateName::Completed);
    assert_eq!(complete(&bench).await, id(2));
    bench.store.promote().await.expect("it is answered");
    bench.assert_unknown(id(1)).await;
}

async fn clearing_leaves_running_work_counters_and_other_queues_alone(bench: Bench) {
    bench.accept((1..=4).map(job)).await;
    let elsewhere = NewJob { queue: name("other"), ..job(5) };
    let follower = NewJob { queue: name("other"), ..after(6, 4, OnFailure::Cascade) };
    bench.accept([elsewhere, follower]).await;
    let running = bench.take().await;
    let cleared = bench.store.clear(name("default")).await.expect("it is answered");
    assert_eq!((cleared.cleared, cleared.followed), (3, 1));
    assert_eq!(bench.state_name(id(5)).await, StateName::Ready);
    let State::Running(lease) = bench.state(id(1)).await else { panic!("it does not run") };
    assert!(!lease.cancel_requested, "it is not even asked to stop");
    assert_eq!(bench.settle(&running, Verdict::Complete).await, StateName::Completed);
    bench.accept([job(7)]).await;
    assert_eq!(bench.claim(1).await.jobs.len(), 1, "the queue goes on");
    assert_eq!(bench.store.count().await.expect("it is answered").totals().enqueued, 7);
    let unknown = bench.store.clear(name("never")).await.expect("it is answered");
    assert_eq!(unknown.cleared, 0);
}

async fn settings_of_a_queue_are_kept_and_told(bench: Bench) {
    for change in [
        QueueChange::Pause,
        QueueChange::Pause,
        QueueChange::MaxDepth(Some(9)),
        QueueChange::Ageing(Some(HOUR)),
    ] {
        bench.store.configure(name("mail"), change).await.expect("it is answered");
    }
    let counts = bench.store.count().await.expect("it is answered");
    let settings = &counts.queues[0].settings;
    assert!(settings.paused);
    assert_eq!((settings.max_depth, settings.ageing), (Some(9), Some(HOUR)));
    bench.store.configure(name("mail"), QueueChange::Resume).await.expect("it is answered");
    let told = bench.topics().await;
    let expected = ["queue.paused", "queue.configured", "queue.configured", "queue.resumed"];
    assert_eq!(told, expected, "a setting that does not change is not told");
    let none = QueueChange::Ageing(Some(std::time::Duration::ZERO));
    refused(bench.store.configure(name("mail"), none).await);
}

async fn listing_pages_by_filter_without_repeats(bench: Bench) {
    let tagged = |number: u128| NewJob {
        tags: if number.is_multiple_of(2) {
            vec![name("even"), name("all")]
        } else {
            vec![name("all")]
        },
        kind: name(if number <= 20 { "work" } else { "other" }),
        ..job(number)
    };
    bench.accept((1..=25).map(tagged)).await;
    bench.advance(SECOND).await;
    bench.accept((26..=30).map(tagged)).await;
    let tags = vec![name("even"), name("all")];
    let filter = Filter { tags, kinds: vec![name("work")], ..Filter::default() };
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = bench.store.list(&filter, after, 3).await.expect("it is answered");
        assert!(page.jobs.len() <= 3);
        found.extend(page.jobs.iter().map(|record| record.id()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let expected: Vec<JobId> = (1..=10).rev().map(|half| id(half * 2)).collect();
    assert_eq!(found, expected);
    let since = bench.record(id(26)).await.created_at;
    let recent = Filter { created_from: Some(since), ..Filter::default() };
    let page = bench.store.list(&recent, None, 100).await.expect("it is answered");
    assert_eq!(page.jobs.len(), 5);
    let older = Filter { created_before: Some(since), ..Filter::default() };
    let page = bench.store.list(&older, None, 100).await.expect("it is answered");
    assert_eq!(page.jobs.len(), 25);
}

async fn altering_by_filter_takes_exactly_what_matches(bench: Bench) {
    let other = |number| NewJob { kind: name("other"), ..job(number) };
    bench.accept([job(1), other(2), job(3)]).await;
    let filter = Filter { kinds: vec![name("work")], ..Filter::default() };
    let selection = Selection::Matching(filter);
    let altered = bench
        .store
        .alter(AlterJobs::new(selection, JobAction::Cancel))
        .await
        .expect("it is answered");
    let ids: Vec<JobId> = altered.iter().map(|JobActionResult { job, .. }| *job).collect();
    assert_eq!(ids, [id(1), id(3)]);
    assert_eq!(bench.state_name(id(2)).await, StateName::Ready);
}

async fn counters_equal_what_a_list_finds(bench: Bench) {
    bench.accept((1..=10).map(job)).await;
    bench.accept([after(11, 1, OnFailure::Cascade)]).await;
    bench.accept([NewJob { start: Start::After(SECOND), ..job(12) }]).await;
    complete(&bench).await;
    die(&bench).await;
    bench.take().await;
    alter(&bench, id(9), JobAction::Cancel).await.expect("it waits");
    bench.advance(SECOND).await;
    let counts = bench.store.count().await.expect("it is answered");
    for state in StateName::ALL {
        let filter = Filter { states: vec![state], ..Filter::default() };
        let page = bench.store.list(&filter, None, 100).await.expect("it is answered");
        assert_eq!(counts.in_state(state), page.jobs.len() as u64, "{state}");
    }
}

async fn totals_tell_successes_deaths_and_cancellations_apart(bench: Bench) {
    bench.accept((1..=6).map(job)).await;
    complete(&bench).await;
    complete(&bench).await;
    die(&bench).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Retry(HOUR)).await;
    alter(&bench, id(5), JobAction::Cancel).await.expect("it waits");
    let totals = bench.store.count().await.expect("it is answered").totals();
    assert_eq!((totals.enqueued, totals.completed, totals.dead), (6, 2, 1));
    assert_eq!((totals.cancelled, totals.failed, totals.retried), (1, 2, 1));
}

async fn explaining_names_every_reason(bench: Bench) {
    bench.accept([NewJob { kind: name("wrok"), start: Start::After(HOUR), ..job(1) }]).await;
    bench.accept([after(2, 1, OnFailure::Cascade)]).await;
    let terms = WorkerKind { kind: name("work"), concurrency: Some(1), rate: None };
    let info = WorkerInfo { queues: None, kinds: vec![terms], slots: 1, quiet: false };
    bench.store.heartbeat("w".into(), WorkerReport::Started(info)).await.expect("it is answered");
    bench.store.configure(name("default"), QueueChange::Pause).await.expect("it is answered");
    let explanation = bench.store.explain(id(2)).await.expect("it is answered");
    let [Reason::BlockedBy(blocker)] = explanation.reasons.as_slice() else {
        panic!("{explanation}");
    };
    assert!(matches!(blocker.reasons[0], Reason::ScheduledFor { attempts: 0, .. }), "{blocker}");
    assert!(matches!(blocker.reasons[1], Reason::QueuePaused { .. }), "{blocker}");
    let Reason::NoWorkerForKind { nearest, .. } = &blocker.reasons[2] else { panic!("{blocker}") };
    assert_eq!(nearest.as_ref().map(|name| name.as_str()), Some("work"));
    bench.store.configure(name("default"), QueueChange::Resume).await.expect("it is answered");
    bench.accept([job(3), job(4), job(5)]).await;
    bench.take().await;
    let text = bench.store.explain(id(5)).await.expect("it is answered").to_string();
    for part in ["the limit is 1", "1 jobs are ahead of it", "run 1 jobs in 1 slots"] {
        assert!(text.contains(part), "{part:?} is missing from: {text}");
    }
    let running = bench.store.explain(id(3)).await.expect("it is answered");
    assert_eq!(running.reasons, vec![Reason::Running { cancel_requested: false }]);
}

async fn explaining_an_unknown_job_is_refused(bench: Bench) {
    let refusal = refused(bench.store.explain(id(9)).await);
    assert_eq!(refusal, Refusal::UnknownJob { job: id(9) });
}
