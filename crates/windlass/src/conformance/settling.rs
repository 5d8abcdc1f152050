//! What ending an attempt promises.

use std::time::Duration;

use windlass_core::event::{EventKind, RecoveryReason};
use windlass_core::job::{
    CancelReason, DeadReason, Dependency, JobId, NewJob, OnFailure, State, StateName,
};
use windlass_core::ledger::{QueueChange, Recovery, Rescue, Settlement};
use windlass_core::limits::Limits;
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::record::{Progress, Report};
use windlass_core::refusal::Refusal;

use super::{Bench, Case, SECOND, claim, id, job, name, named_cases};
use crate::store::{AlterJobs, ClaimedJob, JobAction, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        each_verdict_leads_to_its_state,
        snooze_and_release_are_not_counted_as_starts,
        a_released_job_comes_before_what_was_accepted_after_its_start,
        the_output_and_the_error_of_an_attempt_are_kept,
        an_attempt_is_handed_the_error_before_it_and_its_generation,
        each_job_of_a_batch_has_its_own_output_and_its_own_end,
        a_stale_settlement_is_refused_and_changes_nothing,
        one_refused_item_does_not_hold_up_the_others,
        a_completion_and_its_next_job_are_one_commit,
        a_refused_next_job_leaves_the_completion_undone,
        next_jobs_of_a_failure_are_not_accepted,
        a_request_to_cancel_wins_over_another_run,
        a_settlement_that_comes_before_the_rescue_wins,
        an_oversized_output_is_refused_and_the_job_still_runs,
        a_chain_of_a_thousand_dies_together_each_once,
        a_fan_of_a_thousand_is_released_together,
        a_diamond_completes_in_order,
        events_are_numbered_without_gaps_and_ordered_per_job,
        the_last_failure_tells_both_failed_and_dead,
        a_queue_tells_that_it_is_empty_whenever_its_last_job_has_ended,
    ]
}

fn settlement(handed: &ClaimedJob, verdict: Verdict) -> Settlement {
    Settlement::new(handed.job.id, handed.lease.token, verdict)
}

async fn an_attempt_is_handed_the_error_before_it_and_its_generation(bench: Bench) {
    // Others are claimed with it: some have a past, and some have none.
    bench.accept([job(1)]).await;
    let said = |handed: &ClaimedJob| {
        let error = handed.last_error.as_ref().map(|error| error.as_str().to_string());
        (handed.attempt, handed.generation, error)
    };
    let end = |handed: &ClaimedJob, verdict, error: Option<&str>| {
        let error = error.map(ErrorText::new);
        let settlement = Settlement { error, ..settlement(handed, verdict) };
        let store = bench.store.clone();
        async move {
            let answers = store.settle(vec![settlement]).await;
            answers.expect("answered").remove(0).expect("held")
        }
    };
    let first = bench.take().await;
    assert_eq!(said(&first), (1, 0, None), "nothing was before it");
    end(&first, Verdict::Retry(Duration::ZERO), Some("no route")).await;
    bench.accept([job(2)]).await;
    let both = bench.claim(2).await.jobs;
    let of = |number| both.iter().find(|handed| handed.job.id == id(number)).expect("claimed");
    assert_eq!(said(of(1)), (2, 0, Some("no route".to_string())));
    assert_eq!(said(of(2)), (1, 0, None));
    // What was put off or given back says nothing new.
    end(of(1), Verdict::Snooze(Duration::ZERO), None).await;
    end(of(2), Verdict::Complete, None).await;
    let snoozed = bench.take().await;
    assert_eq!(said(&snoozed), (2, 0, Some("no route".to_string())));
    end(&snoozed, Verdict::Release, None).await;
    let released = bench.take().await;
    assert_eq!(said(&released), (2, 0, Some("no route".to_string())));
    // A lost worker is what went wrong.
    bench.advance(SECOND * 31).await;
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    assert_eq!(bench.store.rescue(rescue).await.expect("it is answered").jobs.len(), 1);
    bench.advance(SECOND).await;
    let recovered = bench.take().await;
    let (attempt, generation, error) = said(&recovered);
    assert_eq!((attempt, generation), (3, 0));
    assert!(error.is_some_and(|error| error != "no route"), "the recovery is told");
    // A replay starts over.
    end(&recovered, Verdict::Bury(DeadReason::Permanent), Some("no use")).await;
    let replay =
        bench.store.alter(AlterJobs::new(Selection::Jobs(vec![id(1)]), JobAction::Replay)).await;
    replay.expect("it is answered").remove(0).result.expect("it is dead");
    let replayed = bench.take().await;
    assert_eq!(said(&replayed), (1, 1, None));
    end(&replayed, Verdict::Retry(Duration::ZERO), Some("still")).await;
    assert_eq!(said(&bench.take().await), (2, 1, Some("still".to_string())));
}

async fn each_verdict_leads_to_its_state(bench: Bench) {
    for (number, verdict, state) in [
        (1, Verdict::Complete, StateName::Completed),
        (2, Verdict::Retry(SECOND), StateName::Scheduled),
        (3, Verdict::Snooze(SECOND), StateName::Scheduled),
        (4, Verdict::Bury(DeadReason::Permanent), StateName::Dead),
        (5, Verdict::Cancel(CancelReason::Handler), StateName::Cancelled),
        (6, Verdict::Release, StateName::Ready),
    ] {
        bench.accept([job(number)]).await;
        let handed = bench.take().await;
        assert_eq!(bench.settle(&handed, verdict).await, state);
        assert_eq!(bench.state_name(id(number)).await, state);
    }
}

async fn snooze_and_release_are_not_counted_as_starts(bench: Bench) {
    bench.accept([job(1)]).await;
    for verdict in [Verdict::Snooze(Duration::ZERO), Verdict::Release] {
        for _ in 0..5 {
            let handed = bench.take().await;
            assert_eq!(handed.attempt, 1);
            bench.settle(&handed, verdict).await;
            assert_eq!(bench.record(id(1)).await.status.attempts, 0);
        }
    }
}

async fn a_released_job_comes_before_what_was_accepted_after_its_start(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    bench.advance(SECOND).await;
    bench.accept([job(2)]).await;
    bench.advance(SECOND).await;
    bench.settle(&handed, Verdict::Release).await;
    assert_eq!(bench.take().await.job.id, id(1));
    assert_eq!(bench.take().await.job.id, id(2));
}

async fn the_output_and_the_error_of_an_attempt_are_kept(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    let error = ErrorText::new("the first one failed");
    let failed = Settlement {
        error: Some(error.clone()),
        ..settlement(&handed, Verdict::Retry(Duration::ZERO))
    };
    bench.store.settle(vec![failed]).await.expect("it is answered");
    assert_eq!(bench.record(id(1)).await.error, Some(error.clone()));
    let handed = bench.take().await;
    assert_eq!(handed.attempt, 2);
    let output = Some(b"{\"n\":42}".to_vec().into());
    let progress = Some(Progress { percent: 100, note: "last words".to_string() });
    let report = Report { progress: progress.clone(), ..Report::default() };
    let settlement = settlement(&handed, Verdict::Complete);
    let completed = Settlement { output: output.clone(), report, ..settlement };
    bench.store.settle(vec![completed]).await.expect("it is answered");
    let record = bench.record(id(1)).await;
    assert_eq!(record.output, output);
    assert_eq!(record.progress, progress, "what the handler said last is part of the commit");
    assert_eq!(record.error, None, "success clears the last error");
    assert_eq!(record.attempts.len(), 2);
    assert_eq!(record.attempts[0].error, Some(error));
}

/// Lets the first holder of job 1 lose its lease to a second.
async fn two_holders(bench: &Bench) -> (ClaimedJob, ClaimedJob) {
    bench.accept([job(1)]).await;
    let first = bench.take().await;
    bench.advance(Duration::from_secs(31)).await;
    rescue(bench).await;
    bench.advance(SECOND).await;
    (first, bench.take().await)
}

async fn rescue(bench: &Bench) {
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    bench.store.rescue(rescue).await.expect("it is answered");
}

async fn each_job_of_a_batch_has_its_own_output_and_its_own_end(bench: Bench) {
    bench.accept((1..=9).map(job)).await;
    let handed = bench.store.claim(claim(9)).await.expect("a claim is answered").jobs;
    let output = |job: JobId| match (1..=9).find(|number| id(*number) == job) {
        Some(number) if number % 3 == 0 => None,
        // Of different lengths, the empty one too.
        Some(number) => Some(vec![number as u8; number as usize - 1].into()),
        None => panic!("{job} was not accepted"),
    };
    let end = |handed: &ClaimedJob| {
        let verdict = match handed.job.id == id(5) {
            true => Verdict::Bury(DeadReason::Permanent),
            false => Verdict::Complete,
        };
        Settlement { output: output(handed.job.id), ..settlement(handed, verdict) }
    };
    let answers = bench.store.settle(handed.iter().rev().map(end).collect()).await;
    for (handed, answer) in handed.iter().rev().zip(answers.expect("it is answered")) {
        let (job, settled) = (handed.job.id, answer.expect("its lease is held"));
        let record = bench.record(job).await;
        if job == id(5) {
            assert_eq!((settled.state, record.output), (StateName::Dead, None));
        } else {
            assert_eq!(
                (settled.state, record.output),
                (StateName::Completed, output(job)),
                "{job}"
            );
        }
    }
}

async fn a_stale_settlement_is_refused_and_changes_nothing(bench: Bench) {
    let (first, second) = two_holders(&bench).await;
    let before = bench.record(id(1)).await;
    for verdict in [
        Verdict::Complete,
        Verdict::Retry(SECOND),
        Verdict::Snooze(SECOND),
        Verdict::Release,
        Verdict::Bury(DeadReason::Permanent),
        Verdict::Cancel(CancelReason::Handler),
    ] {
        // A store may take a short way with an outcome that brings nothing else.
        let bare = settlement(&first, verdict);
        let with_next = Settlement { next: vec![job(50).into()], ..bare.clone() };
        for late in [bare, with_next] {
            let answer = bench.store.settle(vec![late]).await.expect("it is answered").remove(0);
            assert_eq!(answer, Err(Refusal::LeaseLost { job: id(1) }));
            assert_eq!(bench.record(id(1)).await, before);
            bench.assert_unknown(id(50)).await;
        }
    }
    assert_eq!(bench.settle(&second, Verdict::Complete).await, StateName::Completed);
}

async fn one_refused_item_does_not_hold_up_the_others(bench: Bench) {
    let (first, second) = two_holders(&bench).await;
    bench.accept([job(2)]).await;
    let third = bench.take().await;
    let batch = [&first, &second, &third].map(|handed| settlement(handed, Verdict::Complete));
    let answers = bench.store.settle(batch.to_vec()).await.expect("it is answered");
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, true]);
}

async fn a_completion_and_its_next_job_are_one_commit(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    let on_failure = OnFailure::Cascade;
    let child = NewJob {
        parent: Some(id(1)),
        depends_on: vec![Dependency { on: id(1), on_failure }],
        ..job(2)
    };
    let with_next =
        Settlement { next: vec![child.into()], ..settlement(&handed, Verdict::Complete) };
    bench.store.settle(vec![with_next]).await.expect("it is answered").remove(0).expect("applied");
    assert_eq!(bench.state_name(id(1)).await, StateName::Completed);
    assert_eq!(bench.state_name(id(2)).await, StateName::Ready);
    assert_eq!(bench.record(id(2)).await.job.parent, Some(id(1)));
}

async fn a_refused_next_job_leaves_the_completion_undone(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    let limit = QueueChange::MaxDepth(Some(0));
    bench.store.configure(name("full"), limit).await.expect("it is answered");
    let child = NewJob { queue: name("full"), ..job(3) };
    let next = vec![job(2).into(), child.into()];
    let with_next = Settlement { next, ..settlement(&handed, Verdict::Complete) };
    let answer = bench.store.settle(vec![with_next]).await.expect("it is answered").remove(0);
    assert!(matches!(answer, Err(Refusal::QueueFull { .. })), "{answer:?}");
    assert_eq!(bench.state_name(id(1)).await, StateName::Running);
    bench.assert_unknown(id(2)).await;
}

async fn next_jobs_of_a_failure_are_not_accepted(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    let failed =
        Settlement { next: vec![job(2).into()], ..settlement(&handed, Verdict::Retry(SECOND)) };
    bench.store.settle(vec![failed]).await.expect("it is answered").remove(0).expect("applied");
    bench.assert_unknown(id(2)).await;
}

async fn a_request_to_cancel_wins_over_another_run(bench: Bench) {
    for (number, verdict, state) in [
        (1, Verdict::Retry(SECOND), StateName::Cancelled),
        (2, Verdict::Snooze(SECOND), StateName::Cancelled),
        (3, Verdict::Release, StateName::Cancelled),
        (4, Verdict::Complete, StateName::Completed),
        (5, Verdict::Bury(DeadReason::Permanent), StateName::Dead),
    ] {
        bench.accept([job(number)]).await;
        let handed = bench.take().await;
        cancel(&bench, id(number)).await;
        assert_eq!(bench.settle(&handed, verdict).await, state, "{verdict:?}");
    }
    bench.accept([job(6)]).await;
    bench.take().await;
    cancel(&bench, id(6)).await;
    bench.advance(Duration::from_secs(31)).await;
    rescue(&bench).await;
    assert_eq!(bench.state_name(id(6)).await, StateName::Cancelled, "a lost worker's job");
}

async fn cancel(bench: &Bench, job: JobId) {
    let selection = Selection::Jobs(vec![job]);
    bench.store.alter(AlterJobs::new(selection, JobAction::Cancel)).await.expect("it is answered");
}

async fn a_settlement_that_comes_before_the_rescue_wins(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    bench.advance(Duration::from_secs(31)).await;
    assert_eq!(bench.settle(&handed, Verdict::Complete).await, StateName::Completed);
    rescue(&bench).await;
    assert_eq!(bench.state_name(id(1)).await, StateName::Completed);
}

async fn an_oversized_output_is_refused_and_the_job_still_runs(bench: Bench) {
    let bench = bench.with_limits(Limits { payload_bytes: 100, ..Limits::default() }).await;
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    let output = Some(vec![b'1'; 101].into());
    let large = Settlement { output, ..settlement(&handed, Verdict::Complete) };
    let answer = bench.store.settle(vec![large]).await.expect("it is answered").remove(0);
    assert!(matches!(answer, Err(Refusal::OutOfBounds { .. })), "{answer:?}");
    assert_eq!(bench.state_name(id(1)).await, StateName::Running);
}

fn after(number: u128, on: u128) -> NewJob {
    let on_failure = OnFailure::Cascade;
    NewJob { depends_on: vec![Dependency { on: id(on), on_failure }], ..job(number) }
}

async fn a_chain_of_a_thousand_dies_together_each_once(bench: Bench) {
    bench.accept([job(1)]).await;
    bench.accept((2..=1_000).map(|number| after(number, number - 1))).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Dead), 1_000);
    let dead = bench.topics().await.iter().filter(|topic| *topic == "job.dead").count();
    assert_eq!(dead, 1_000);
    let state = bench.state(id(1_000)).await;
    assert!(matches!(state, State::Dead { reason: DeadReason::DependencyFailed, .. }));
}

async fn a_fan_of_a_thousand_is_released_together(bench: Bench) {
    bench.accept([job(1)]).await;
    bench.accept((2..=1_001).map(|number| after(number, 1))).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Complete).await;
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Ready), 1_000);
}

async fn a_diamond_completes_in_order(bench: Bench) {
    let edges = [2, 3].map(|on| Dependency { on: id(on), on_failure: OnFailure::Cascade });
    let bottom = NewJob { depends_on: edges.to_vec(), ..job(4) };
    bench.accept([bottom, after(3, 1), after(2, 1), job(1)]).await;
    let mut order = Vec::new();
    while let Some(handed) = bench.claim(1).await.jobs.pop() {
        order.push(handed.job.id);
        bench.settle(&handed, Verdict::Complete).await;
    }
    assert_eq!(order, [1, 3, 2, 4].map(id));
}

async fn events_are_numbered_without_gaps_and_ordered_per_job(bench: Bench) {
    bench.accept((1..=20).map(job)).await;
    for handed in bench.claim(20).await.jobs {
        bench.settle(&handed, Verdict::Complete).await;
    }
    let events = bench.store.events(0, usize::MAX, Duration::ZERO).await.expect("it is answered");
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event.number, index as u64 + 1);
    }
    for number in 1..=20 {
        let of_job = events.iter().filter(|event| event.job() == Some(id(number)));
        let topics: Vec<&str> = of_job.map(|event| event.topic()).collect();
        assert_eq!(topics, ["job.enqueued", "job.started", "job.completed"]);
    }
    let tail = bench.store.events(15, 2, Duration::ZERO).await.expect("it is answered");
    assert_eq!(tail.iter().map(|event| event.number).collect::<Vec<_>>(), [16, 17]);
}

async fn the_last_failure_tells_both_failed_and_dead(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    let verdict = Verdict::Bury(DeadReason::AttemptsExhausted);
    let error = Some(ErrorText::new("boom"));
    let dead = Settlement { error: error.clone(), ..settlement(&handed, verdict) };
    bench.store.settle(vec![dead]).await.expect("it is answered").remove(0).expect("applied");
    let events = bench.store.events(2, usize::MAX, Duration::ZERO).await.expect("it is answered");
    let failed = &events[0].what;
    assert!(
        matches!(failed, EventKind::JobFailed { attempt: 1, next_retry_at: None, .. }),
        "{failed:?}"
    );
    let reason = DeadReason::AttemptsExhausted;
    assert_eq!(events[1].what, EventKind::JobDead { reason, attempts: 1, error });
}

async fn a_queue_tells_that_it_is_empty_whenever_its_last_job_has_ended(bench: Bench) {
    let told = async || {
        let topics = bench.topics().await;
        topics.iter().filter(|topic| *topic == "queue.empty").count()
    };
    bench.accept([job(1), job(2)]).await;
    let (first, second) = (bench.take().await, bench.take().await);
    bench.settle(&first, Verdict::Complete).await;
    assert_eq!(told().await, 0, "one runs");
    bench.settle(&second, Verdict::Complete).await;
    assert_eq!(told().await, 1);
    bench.accept([job(3)]).await;
    cancel(&bench, id(3)).await;
    assert_eq!(told().await, 2, "however it ended");
}
