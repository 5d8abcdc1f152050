//! What is kept of a job and told about it.

use std::time::Duration;

use windlass_core::event::{EventKind, EventResult, RecoveryReason};
use windlass_core::filter::{Filter, Order};
use windlass_core::job::{
    Bytes, DeadReason, Dependency, JobId, Lane, NewJob, OnFailure, Priority, State, StateName,
};
use windlass_core::ledger::{Recovery, Rescue, Settlement};
use windlass_core::limits::{self, Limits};
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::record::AttemptEnd;
use windlass_core::refusal::Refusal;
use windlass_core::retry::Retry;

use super::{Bench, Case, SECOND, id, job, name, named_cases};
use crate::store::{AlterJobs, ClaimedJob, Cursor, JobAction, JobActionDone, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_recovery_is_told_and_recorded_with_its_reason_and_time,
        the_event_of_a_completed_job_carries_its_result_up_to_a_bound,
        the_events_of_a_job_say_who_when_and_what_next,
        a_finished_graph_is_deleted_in_one_call_or_not_at_all,
        graphs_of_one_call_are_deleted_one_by_one,
        what_was_deleted_with_its_graph_is_no_dead_letter,
        a_list_goes_from_either_end_and_by_parent,
        waiting_jobs_are_counted_per_priority,
    ]
}

impl Bench {
    /// What was told of a job, in order.
    async fn told(&self, job: JobId) -> Vec<EventKind> {
        let events =
            self.store.events(0, usize::MAX, Duration::ZERO).await.expect("events are answered");
        let of_job = events.iter().filter(|event| event.job() == Some(job));
        of_job.map(|event| event.what.clone()).collect()
    }

    /// The reasons of recovery that were told of a job, with the topics that told them.
    async fn recoveries_told(&self, job: JobId) -> Vec<(String, RecoveryReason)> {
        let told = self.told(job).await;
        let reason = |what: &EventKind| Some((what.topic().to_string(), what.recovery()?));
        told.iter().filter_map(reason).collect()
    }

    /// How the last attempt of a job ended.
    async fn last_end(&self, job: JobId) -> AttemptEnd {
        let record = self.record(job).await;
        record.attempts.back().expect("it has begun").ended.expect("it has ended").1
    }

    async fn alter_one(&self, job: JobId, alteration: JobAction) -> Result<JobActionDone, Refusal> {
        let altered =
            self.store.alter(AlterJobs::new(Selection::Jobs(vec![job]), alteration)).await;
        altered.expect("it is answered").remove(0).result
    }

    /// Completes an attempt with an output.
    async fn complete(&self, handed: &ClaimedJob, output: Option<Bytes>) {
        let settlement = Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete);
        let settled = self.store.settle(vec![Settlement { output, ..settlement }]).await;
        assert!(settled.expect("it is answered")[0].is_ok());
    }

    async fn rescue_as(&self, reason: RecoveryReason, max_recoveries: u32) {
        let recovery = Recovery { max_recoveries, ..Recovery::default() };
        let rescued = self.store.rescue(Rescue { recovery, reason }).await;
        assert_eq!(rescued.expect("it is answered").jobs.len(), 1);
    }
}

async fn a_recovery_is_told_and_recorded_with_its_reason_and_time(bench: Bench) {
    // Alone in its lane, so that a database cannot recover it together with others.
    let lane = Some(Lane::Key("one".to_string()));
    for (number, job) in [(1, job(1)), (2, NewJob { lane, ..job(2) })] {
        bench.accept([NewJob { retry: Some(Retry::default().unlimited()), ..job }]).await;
        recovered_for_each_reason(&bench, id(number)).await;
    }
}

async fn recovered_for_each_reason(bench: &Bench, job: JobId) {
    assert_eq!(bench.record(job).await.last_recovery_at, None);
    let noticed = [RecoveryReason::LeaseExpired, RecoveryReason::Manual, RecoveryReason::Restart];
    for (recovery, reason) in (1..).zip(noticed) {
        let handed = bench.take().await;
        let since = bench.record(job).await.executing_since();
        assert_eq!(since, Some(handed.lease.since), "it runs");
        bench.advance(Duration::from_secs(31)).await;
        bench.rescue_as(reason, 3).await;
        let record = bench.record(job).await;
        let (ended, end) = record.attempts.back().expect("it has begun").ended.expect("it ended");
        assert_eq!((end, end.recovery()), (AttemptEnd::Crashed(reason), Some(reason)));
        assert_eq!((record.last_recovery_at, record.executing_since()), (Some(ended), None));
        assert_eq!(record.status.recoveries, recovery);
        let stale_for = ended.since(handed.lease.since);
        assert!(stale_for >= Duration::from_secs(31), "{stale_for:?}");
        let attempt = handed.attempt;
        let told = bench.told(job).await;
        let recovered = EventKind::JobRecovered { reason, attempt, recovery, stale_for };
        assert_eq!(told.last(), Some(&recovered));
        assert!(
            told.contains(&EventKind::RecoveryDetected { reason, attempt, stale_for }),
            "{told:?}"
        );
        bench.advance(SECOND).await;
    }
    let last_recovery = bench.record(job).await.last_recovery_at;
    bench.settle(&bench.take().await, Verdict::Release).await;
    assert_eq!(bench.last_end(job).await.recovery(), Some(RecoveryReason::Released));
    let told = bench.recoveries_told(job).await;
    assert_eq!(told.last(), Some(&("job.released".to_string(), RecoveryReason::Released)));

    bench.take().await;
    bench.advance(Duration::from_secs(31)).await;
    bench.rescue_as(RecoveryReason::LeaseExpired, 3).await;
    let limit = RecoveryReason::LimitReached;
    assert_eq!(bench.last_end(job).await, AttemptEnd::Crashed(limit));
    let told = bench.recoveries_told(job).await;
    assert_eq!(told.last(), Some(&("recovery.exhausted".to_string(), limit)));
    let dead = bench.record(job).await;
    assert_eq!(dead.last_recovery_at, last_recovery, "that was none");

    assert!(bench.alter_one(job, JobAction::Replay).await.is_ok());
    assert_eq!(bench.last_end(job).await, AttemptEnd::Crashed(limit), "the attempt is kept");
    bench.settle(&bench.take().await, Verdict::Complete).await;
    let record = bench.record(job).await;
    let State::Completed { at } = record.status.state else { panic!("{record:?}") };
    assert_eq!(record.last_success_at(), Some(at));
    assert_eq!(record.last_recovery_at, last_recovery, "success and replay leave it");
    assert_eq!(record.status.recoveries, 0);
}

async fn the_event_of_a_completed_job_carries_its_result_up_to_a_bound(bench: Bench) {
    let bytes = |length: usize| Some(Bytes::from(vec![b'7'; length]));
    let bound = limits::EVENT_RESULT_BYTES;
    let outputs = [None, bytes(0), bytes(bound), bytes(bound + 1), Some((*b"null").into())];
    // One by one, in a lane or not, and all in one settlement.
    for (number, output) in (1u128..).zip(&outputs) {
        let lane = number.is_multiple_of(2).then(|| Lane::Key("one".to_string()));
        bench.accept([NewJob { lane, ..job(number) }]).await;
        bench.complete(&bench.take().await, output.clone()).await;
    }
    bench.accept((11..=15).map(job)).await;
    let handed = bench.claim(5).await.jobs;
    bench.advance(SECOND).await;
    let settlements = handed.iter().zip(&outputs).map(|(handed, output)| {
        let settlement = Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete);
        Settlement { output: output.clone(), ..settlement }
    });
    bench.store.settle(settlements.collect()).await.expect("it is answered");
    for (number, output) in (1..=5).chain(11..=15).zip(outputs.iter().cycle()) {
        let told = bench.told(id(number)).await;
        let Some(EventKind::JobCompleted { worker, attempt, duration, result }) = told.last()
        else {
            panic!("{told:?}")
        };
        assert_eq!((&**worker, *attempt), ("w", 1));
        assert!(number < 10 || *duration >= SECOND, "{duration:?}");
        assert_eq!(*result, EventResult::of(output.as_ref()), "of job {number}");
        assert_eq!(bench.record(id(number)).await.output, *output);
    }
    let too_large = EventResult::TooLarge { bytes: bound + 1 };
    assert_eq!(EventResult::of(outputs[3].as_ref()), too_large);

    // A later job with the same id is another one.
    bench.alter_one(id(5), JobAction::Remove).await.expect("it has finished");
    bench.accept([job(5)]).await;
    bench.advance(SECOND).await;
    bench.complete(&bench.take().await, bytes(3)).await;
    let told = bench.told(id(5)).await;
    let results = told.iter().filter_map(|what| match what {
        EventKind::JobCompleted { result, .. } => Some(result.clone()),
        _ => None,
    });
    let results: Vec<EventResult> = results.collect();
    let first = [EventResult::Gone, EventResult::of(outputs[4].as_ref())];
    assert!(first.contains(&results[0]), "{results:?}");
    assert_eq!(results[1], EventResult::of(bytes(3).as_ref()));
}

async fn the_events_of_a_job_say_who_when_and_what_next(bench: Bench) {
    let error = ErrorText::new("no");
    let fail = async |handed: ClaimedJob, verdict| {
        let settlement = Settlement::new(id(1), handed.lease.token, verdict);
        let settlement = Settlement { error: Some(error.clone()), ..settlement };
        bench.store.settle(vec![settlement]).await.expect("it is answered");
        bench.record(id(1)).await.updated_at
    };
    let priority = Priority(7);
    bench.accept([NewJob { priority, ..job(1) }]).await;
    let at = fail(bench.take().await, Verdict::Retry(SECOND)).await + SECOND;
    bench.advance(SECOND).await;
    let reason = DeadReason::Permanent;
    fail(bench.take().await, Verdict::Bury(reason)).await;
    let worker = || "w".into();
    let failed = |attempt, next_retry_at| {
        let (worker, error) = (worker(), error.clone());
        EventKind::JobFailed { worker, attempt, error, next_retry_at }
    };
    let expected = [
        EventKind::JobEnqueued { priority },
        EventKind::JobStarted { worker: worker(), attempt: 1 },
        failed(1, Some(at)),
        EventKind::JobRetrying { at, attempt: 1 },
        EventKind::JobStarted { worker: worker(), attempt: 2 },
        failed(2, None),
        EventKind::JobDead { reason, attempts: 2, error: Some(error.clone()) },
    ];
    let told = bench.told(id(1)).await;
    assert_eq!(told, expected);
    let again: Vec<bool> = told.iter().map(EventKind::will_retry).collect();
    assert_eq!(again, [false, false, true, false, false, false, false]);
    let events =
        bench.store.events(0, usize::MAX, Duration::ZERO).await.expect("events are answered");
    let last = events.iter().rfind(|event| event.job() == Some(id(1))).expect("there is one");
    assert_eq!(last.at, bench.record(id(1)).await.updated_at);
    let (kind, queue) = (name("work"), name("default"));
    assert_eq!(last.subject, windlass_core::event::Subject::Job { id: id(1), kind, queue });
}

fn after(number: u128, on: u128, on_failure: OnFailure) -> NewJob {
    NewJob { depends_on: vec![Dependency { on: id(on), on_failure }], ..job(number) }
}

async fn a_finished_graph_is_deleted_in_one_call_or_not_at_all(bench: Bench) {
    // 1 is needed by 2 and 3, both by 4; 5 waits in vain for 3 to be replayed; 9 is alone.
    let mut fourth = after(4, 2, OnFailure::Cascade);
    fourth.depends_on.push(Dependency { on: id(3), on_failure: OnFailure::Ignore });
    let graph = [
        fourth,
        job(1),
        after(2, 1, OnFailure::Cascade),
        after(3, 1, OnFailure::Cascade),
        after(5, 3, OnFailure::Wait),
        job(9),
    ];
    bench.accept(graph).await;
    let open = |number, state| {
        Err(Refusal::WrongState { job: id(number), state, operation: "remove".into() })
    };
    let remove = JobAction::RemoveGraph;
    // The one that was accepted first is named.
    assert_eq!(bench.alter_one(id(1), remove.clone()).await, open(4, StateName::Blocked));
    assert_eq!(bench.alter_one(id(9), remove.clone()).await, open(9, StateName::Ready));
    loop {
        let handed = bench.claim(10).await.jobs;
        for handed in &handed {
            let fails = handed.job.id == id(3);
            let verdict =
                if fails { Verdict::Bury(DeadReason::Permanent) } else { Verdict::Complete };
            bench.settle(handed, verdict).await;
        }
        if handed.is_empty() {
            break;
        }
    }
    assert_eq!(bench.alter_one(id(1), remove.clone()).await, open(5, StateName::Blocked));
    for number in [1, 2, 3, 4, 5, 9] {
        bench.record(id(number)).await;
    }
    bench.alter_one(id(5), JobAction::Cancel).await.expect("it waits");
    // A part of it, then the rest in one call with one that is unknown by now.
    assert_eq!(
        bench.alter_one(id(2), remove.clone()).await,
        Ok(JobActionDone::GraphRemoved { jobs: 2 })
    );
    let roots = Selection::Jobs([1, 2, 9].map(id).to_vec());
    let altered = bench.store.alter(AlterJobs::new(roots, remove)).await.expect("it is answered");
    let results: Vec<_> = altered.into_iter().map(|each| each.result).collect();
    let gone = |jobs| Ok(JobActionDone::GraphRemoved { jobs });
    assert_eq!(results, [gone(3), Err(Refusal::UnknownJob { job: id(2) }), gone(1)]);
    for number in [1, 2, 3, 4, 5, 9] {
        bench.assert_unknown(id(number)).await;
        let told = bench.told(id(number)).await;
        assert!(matches!(told.last(), Some(EventKind::JobRemoved { .. })), "{told:?}");
    }
}

async fn graphs_of_one_call_are_deleted_one_by_one(bench: Bench) {
    // 3 needs 1 and 2; 5 needs 4, and is to start later.
    let mut third = after(3, 1, OnFailure::Cascade);
    third.depends_on.push(Dependency { on: id(2), on_failure: OnFailure::Cascade });
    let later = windlass_core::job::Start::After(SECOND);
    let fifth = NewJob { start: later, ..after(5, 4, OnFailure::Cascade) };
    bench.accept([job(1), job(2), third, job(4), fifth]).await;
    for _ in 0..4 {
        let handed = bench.take().await;
        bench.settle(&handed, Verdict::Complete).await;
    }
    let roots = Selection::Jobs([4, 1, 2, 1, 7, 5].map(id).to_vec());
    let altered = bench.store.alter(AlterJobs::new(roots, JobAction::RemoveGraph)).await;
    let results: Vec<_> =
        altered.expect("it is answered").into_iter().map(|each| each.result).collect();
    let open = || {
        let state = StateName::Scheduled;
        Err(Refusal::WrongState { job: id(5), state, operation: "remove".into() })
    };
    let gone = |jobs| Ok(JobActionDone::GraphRemoved { jobs });
    let unknown = |number| Err(Refusal::UnknownJob { job: id(number) });
    // What two of them share goes with the first.
    assert_eq!(results, [open(), gone(2), gone(1), unknown(1), unknown(7), open()]);
    for number in [1, 2, 3] {
        bench.assert_unknown(id(number)).await;
    }
    let counts = bench.store.count().await.expect("counts are answered");
    assert_eq!(counts.in_state(StateName::Completed), 1);
    assert_eq!(bench.state_name(id(4)).await, StateName::Completed);
}

async fn what_was_deleted_with_its_graph_is_no_dead_letter(bench: Bench) {
    let bench = bench.with_limits(Limits { dead_letters: 2, ..Limits::default() }).await;
    let die = async || {
        let handed = bench.take().await;
        bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
        bench.advance(SECOND).await;
    };
    // Both die with the first.
    bench.accept([job(1), after(2, 1, OnFailure::Cascade)]).await;
    die().await;
    let removed = bench.alter_one(id(1), JobAction::RemoveGraph).await;
    assert_eq!(removed, Ok(JobActionDone::GraphRemoved { jobs: 2 }));
    let counts = bench.store.count().await.expect("counts are answered");
    assert_eq!(counts.in_state(StateName::Dead), 0);
    for number in 3..=5 {
        bench.accept([job(number)]).await;
        die().await;
    }
    // The oldest of those that are left has made room.
    bench.assert_unknown(id(3)).await;
    assert_eq!(bench.state_name(id(4)).await, StateName::Dead);
}

async fn a_list_goes_from_either_end_and_by_parent(bench: Bench) {
    for number in 1..=9u128 {
        // Those of one batch and those of later ones; every third follows from 1.
        let parent = number.is_multiple_of(3).then(|| id(1));
        bench.accept([NewJob { parent, ..job(number) }]).await;
    }
    let list = async |filter: &Filter, limit: usize| {
        let (mut ids, mut after): (Vec<JobId>, Option<Cursor>) = (Vec::new(), None);
        loop {
            let page = bench.store.list(filter, after, limit).await.expect("a list is answered");
            assert!(page.jobs.len() <= limit, "{} on a page of {limit}", page.jobs.len());
            ids.extend(page.jobs.iter().map(|record| record.id()));
            match page.next {
                Some(next) => after = Some(next),
                None => return ids,
            }
        }
    };
    for limit in [1, 2, 3, 9, 10, 1_000] {
        for parent in [None, Some(id(1))] {
            let meant = |number: &u128| parent.is_none() || number.is_multiple_of(3);
            let mut expected: Vec<JobId> = (1..=9).filter(meant).map(id).collect();
            let oldest = Filter { parent, order: Order::OldestFirst, ..Filter::default() };
            assert_eq!(list(&oldest, limit).await, expected, "{limit} {parent:?}");
            expected.reverse();
            let newest = Filter { parent, ..Filter::default() };
            assert_eq!(list(&newest, limit).await, expected, "{limit} {parent:?}");
        }
    }
    // One that is accepted meanwhile comes at the end.
    let oldest = Filter { order: Order::OldestFirst, ..Filter::default() };
    let page = bench.store.list(&oldest, None, 5).await.expect("a list is answered");
    bench.accept([job(10)]).await;
    let rest = bench.store.list(&oldest, page.next, 10).await.expect("a list is answered");
    let last = rest.jobs.last().map(|record| record.id());
    assert_eq!((rest.jobs.len(), last), (5, Some(id(10))));
    let orphans = Filter { parent: Some(id(77)), ..Filter::default() };
    assert_eq!(list(&orphans, 10).await, []);
    // A change by filter knows the parent, and goes by acceptance.
    let filter = Filter { parent: Some(id(1)), ..Filter::default() };
    let altered =
        bench.store.alter(AlterJobs::new(Selection::Matching(filter), JobAction::Cancel)).await;
    let altered: Vec<JobId> =
        altered.expect("it is answered").into_iter().map(|each| each.job).collect();
    assert_eq!(altered, [3, 6, 9].map(id));
}

async fn waiting_jobs_are_counted_per_priority(bench: Bench) {
    let counted = async || {
        let counts = bench.store.count().await.expect("counts are answered");
        let queue = counts.queues.iter().find(|queue| queue.queue.as_str() == "default");
        let by_priority = queue.map(|queue| queue.waiting_by_priority.clone()).unwrap_or_default();
        let sum: u64 = by_priority.iter().map(|(_, jobs)| jobs).sum();
        assert_eq!(Some(sum), queue.map(|queue| queue.waiting));
        assert_eq!(counts.queue_size("default"), sum + counts.in_state(StateName::Running));
        by_priority
            .into_iter()
            .map(|(Priority(priority), jobs)| (priority, jobs))
            .collect::<Vec<_>>()
    };
    let of = |number, priority| NewJob { priority: Priority(priority), ..job(number) };
    let start = windlass_core::job::Start::After(SECOND);
    let lane = Some(Lane::Key("one".to_string()));
    bench.accept([of(1, 0), of(2, 5), of(3, 5), of(4, i32::MAX), of(5, i32::MIN)]).await;
    bench.accept([NewJob { start, ..of(6, -5) }, NewJob { lane, ..of(7, -5) }]).await;
    let depends_on = vec![Dependency { on: id(1), on_failure: OnFailure::Wait }];
    bench.accept([NewJob { depends_on, ..of(8, 0) }, of(9, 0)]).await;
    let all = [(i32::MAX, 1), (5, 2), (0, 3), (-5, 2), (i32::MIN, 1)];
    assert_eq!(counted().await, all);
    let handed = bench.claim(3).await.jobs;
    assert_eq!(counted().await, all[2..]);
    bench.settle(&handed[0], Verdict::Complete).await;
    bench.settle(&handed[1], Verdict::Retry(SECOND)).await;
    assert_eq!(counted().await[0], (5, 1));
    bench.advance(Duration::from_secs(31)).await;
    bench.rescue_as(RecoveryReason::LeaseExpired, 3).await;
    assert_eq!(counted().await[0], (5, 2));
    bench.alter_one(id(2), JobAction::Cancel).await.expect("it waits");
    bench.alter_one(id(6), JobAction::Cancel).await.expect("it waits");
    bench.alter_one(id(6), JobAction::Replay).await.expect("it was cancelled");
    bench.alter_one(id(5), JobAction::Cancel).await.expect("it waits");
    assert_eq!(counted().await, [(5, 1), (0, 3), (-5, 2)]);
    bench.store.promote().await.expect("it is answered");
    assert_eq!(counted().await, [(5, 1), (0, 3), (-5, 2)], "added up");
    bench.advance(SECOND).await;
    let left = bench.claim(10).await.jobs.len();
    assert_eq!((left, counted().await), (5, vec![(0, 1)]), "one is blocked");
    // Jobs that start for the first time may be leased together.
    bench.accept([of(21, 4), of(22, 4), of(23, 4)]).await;
    assert_eq!(bench.claim(2).await.jobs.len(), 2);
    assert_eq!(counted().await, [(4, 1), (0, 1)]);
    let depends_on = vec![Dependency { on: id(24), on_failure: OnFailure::Cascade }];
    bench.accept([of(24, 3), NewJob { depends_on, ..of(25, 3) }]).await;
    assert_eq!(counted().await, [(4, 1), (3, 2), (0, 1)]);
    bench.alter_one(id(24), JobAction::Cancel).await.expect("it waits");
    assert_eq!(counted().await, [(4, 1), (0, 1)], "the other has followed");

    // Of very many priorities the highest are told.
    let bench = bench.with_limits(windlass_core::limits::Limits::default()).await;
    bench.accept((1..=150).map(|number| of(number, 60 - number as i32))).await;
    let counts = bench.store.count().await.expect("counts are answered");
    let expected: Vec<(Priority, u64)> = (0..100).map(|n| (Priority(59 - n), 1)).collect();
    assert_eq!(counts.queues[0].waiting_by_priority, expected);
    assert_eq!((counts.queues[0].waiting, counts.waiting()), (150, 150));
}
