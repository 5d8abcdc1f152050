//! What holds for jobs that were claimed together: a store may keep their leases as one, and each
//! of them is a job of its own all the same.

use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::filter::Filter;
use windlass_core::job::{CancelReason, JobId, LeaseToken, NewJob, Priority, State, StateName};
use windlass_core::ledger::{
    CancelAnswer, Claim, KindClaim, QueueChange, Recovery, Renewal, Rescue, Settled, Settlement,
    WorkerInfo, WorkerReport,
};
use windlass_core::outcome::Verdict;
use windlass_core::record::Report;
use windlass_core::refusal::Refusal;

use super::{Bench, Case, SECOND, claim, id, job, name, named_cases};
use crate::store::{AlterJobs, ClaimedJob, JobAction, JobActionDone, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        jobs_that_were_claimed_together_are_seen_to_run,
        a_token_holds_for_one_job_alone,
        one_of_many_that_were_claimed_together_is_told_to_stop,
        one_of_many_that_were_claimed_together_ends_otherwise,
        a_job_that_is_settled_twice_at_once_ends_once,
        one_of_many_that_were_claimed_together_goes_on_for_longer,
        jobs_that_were_claimed_together_are_given_back_together,
        a_new_order_of_a_queue_leaves_alone_what_runs,
        kinds_that_are_claimed_together_keep_their_own_terms,
        jobs_that_were_claimed_together_are_what_their_producers_said,
    ]
}

async fn assert_runs(bench: &Bench, handed: &ClaimedJob) {
    let record = bench.record(handed.job.id).await;
    assert_eq!(record.status.state, State::Running(handed.lease.clone()), "{record:?}");
    assert_eq!((record.status.attempts, record.status.begun), (handed.attempt, true));
    assert_eq!(record.first_started_at, Some(handed.first_started_at));
    assert_eq!(record.updated_at, handed.lease.since);
}

async fn in_state(bench: &Bench, state: StateName) -> Vec<JobId> {
    let filter = Filter { states: vec![state], ..Filter::default() };
    let page = bench.store.list(&filter, None, 100).await.expect("it is answered");
    let count = bench.store.count().await.expect("it is answered").in_state(state);
    assert_eq!(count, page.jobs.len() as u64, "{state}");
    page.jobs.iter().map(|record| record.id()).collect()
}

async fn rescue(bench: &Bench) -> Vec<JobId> {
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    let rescued = bench.store.rescue(rescue).await.expect("it is answered");
    rescued.jobs.iter().map(|job| job.id).collect()
}

async fn jobs_that_were_claimed_together_are_seen_to_run(bench: Bench) {
    let info = WorkerInfo { queues: None, kinds: Vec::new(), slots: 5, quiet: false };
    bench.store.heartbeat("w".into(), WorkerReport::Started(info)).await.expect("it is answered");
    bench.accept((1..=5).map(job)).await;
    let handed = bench.claim(3).await.jobs;
    for handed in &handed {
        assert_runs(&bench, handed).await;
    }
    assert_eq!(in_state(&bench, StateName::Running).await, [id(3), id(2), id(1)]);
    assert_eq!(in_state(&bench, StateName::Ready).await, [id(5), id(4)]);
    let workers = bench.store.count().await.expect("it is answered").workers;
    assert_eq!(workers.iter().map(|worker| worker.running).collect::<Vec<_>>(), [3]);
    bench.settle(&handed[1], Verdict::Complete).await;
    assert_eq!(in_state(&bench, StateName::Running).await, [id(3), id(1)]);
    let record = bench.record(id(2)).await;
    assert_eq!(record.attempts.len(), 1);
    assert_eq!(record.attempts[0].worker, handed[1].lease.worker);
    assert_eq!(record.attempts[0].started_at, handed[1].lease.since);
}

async fn a_token_holds_for_one_job_alone(bench: Bench) {
    let other = NewJob { kind: name("print"), ..job(2) };
    bench.accept([job(1), other, job(3), job(4)]).await;
    let works = bench.claim(2).await.jobs;
    let prints = Claim { kinds: vec![KindClaim::new(name("print"))], ..claim(1) };
    let prints = bench.store.claim(prints).await.expect("it is answered").jobs;
    let first = works[0].lease.token.0;
    for (job, token) in [
        (id(1), works[1].lease.token.0),
        (id(3), works[0].lease.token.0),
        // Of nobody, and of whoever would be between the two.
        (id(2), first + 1),
        (id(3), first + 3),
        (id(4), first + 3),
        (id(4), first + 1),
    ] {
        let token = LeaseToken(token);
        let late = Settlement::new(job, token, Verdict::Complete);
        let answer = bench.store.settle(vec![late]).await.expect("it is answered").remove(0);
        assert_eq!(answer, Err(Refusal::LeaseLost { job }), "with {token:?}");
    }
    for handed in works.iter().chain(&prints) {
        assert_runs(&bench, handed).await;
        assert_eq!(bench.settle(handed, Verdict::Complete).await, StateName::Completed);
    }
    assert_eq!(bench.state_name(id(4)).await, StateName::Ready);
}

async fn one_of_many_that_were_claimed_together_is_told_to_stop(bench: Bench) {
    bench.accept((1..=3).map(job)).await;
    let handed = bench.claim(3).await.jobs;
    let selection = Selection::Jobs(vec![id(2)]);
    let altered = bench
        .store
        .alter(AlterJobs::new(selection, JobAction::Cancel))
        .await
        .expect("it is answered");
    assert_eq!(altered[0].result, Ok(JobActionDone::Cancel(CancelAnswer::Requested)));
    let State::Running(lease) = bench.state(id(2)).await else { panic!("it does not run") };
    assert!(lease.cancel_requested);
    assert_runs(&bench, &handed[0]).await;
    let end =
        |handed: &ClaimedJob, verdict| Settlement::new(handed.job.id, handed.lease.token, verdict);
    let ends = vec![
        end(&handed[0], Verdict::Complete),
        end(&handed[1], Verdict::Cancel(CancelReason::Requested)),
        end(&handed[2], Verdict::Complete),
    ];
    let answers = bench.store.settle(ends).await.expect("it is answered");
    let states: Vec<_> =
        answers.into_iter().map(|answer| answer.expect("it is held").state).collect();
    assert_eq!(states, [StateName::Completed, StateName::Cancelled, StateName::Completed]);
}

async fn one_of_many_that_were_claimed_together_ends_otherwise(bench: Bench) {
    bench.accept((1..=4).map(job)).await;
    let handed = bench.claim(4).await.jobs;
    assert_eq!(bench.settle(&handed[0], Verdict::Retry(SECOND)).await, StateName::Scheduled);
    assert_eq!(bench.settle(&handed[1], Verdict::Release).await, StateName::Ready);
    assert_eq!(bench.settle(&handed[2], Verdict::Complete).await, StateName::Completed);
    assert_runs(&bench, &handed[3]).await;
    // One that has run before and one that has not.
    bench.accept([job(5)]).await;
    let again = bench.claim(9).await.jobs;
    assert_eq!(again.iter().map(|handed| handed.job.id).collect::<Vec<_>>(), [id(2), id(5)]);
    for handed in &again {
        assert_runs(&bench, handed).await;
    }
    let stale = Settlement::new(id(2), handed[1].lease.token, Verdict::Complete);
    let answer = bench.store.settle(vec![stale]).await.expect("it is answered").remove(0);
    assert_eq!(answer, Err(Refusal::LeaseLost { job: id(2) }));
    bench.advance(SECOND).await;
    let retried = bench.take().await;
    assert_eq!((retried.job.id, retried.attempt), (id(1), 2));
    for handed in again.iter().chain([&retried, &handed[3]]) {
        assert_eq!(bench.settle(handed, Verdict::Complete).await, StateName::Completed);
    }
}

async fn a_job_that_is_settled_twice_at_once_ends_once(bench: Bench) {
    bench.accept((1..=3).map(job)).await;
    let handed = bench.claim(3).await.jobs;
    let end = |at: usize| {
        let ClaimedJob { job, lease, .. } = &handed[at];
        Settlement::new(job.id, lease.token, Verdict::Complete)
    };
    let ends = vec![end(1), end(0), end(1), end(2)];
    let answers = bench.store.settle(ends).await.expect("it is answered");
    let completed = Settled { state: StateName::Completed };
    assert_eq!(answers, vec![Ok(completed); 4]);
    let topics = bench.topics().await;
    assert_eq!(topics.iter().filter(|topic| *topic == "job.completed").count(), 3);
    // What is said first holds.
    bench.accept([job(4)]).await;
    let ClaimedJob { job, lease, .. } = bench.take().await;
    let ends = [Verdict::Snooze(SECOND), Verdict::Complete];
    let ends = ends.map(|verdict| Settlement::new(job.id, lease.token, verdict));
    let answers = bench.store.settle(ends.to_vec()).await.expect("it is answered");
    assert_eq!(answers[1], Ok(Settled { state: StateName::Scheduled }));
    assert_eq!(bench.state_name(id(4)).await, StateName::Scheduled);
}

async fn one_of_many_that_were_claimed_together_goes_on_for_longer(bench: Bench) {
    bench.accept((1..=3).map(job)).await;
    let handed = bench.claim(3).await.jobs;
    bench.advance(SECOND * 20).await;
    let renewal = Renewal {
        job: id(2),
        token: handed[1].lease.token,
        lease: SECOND * 30,
        report: Report::default(),
    };
    let renewed = bench.store.renew(vec![renewal]).await.expect("it is answered").remove(0);
    assert_eq!(renewed.expect("it is held").until, handed[1].lease.since + SECOND * 50);
    assert_eq!(rescue(&bench).await, []);
    bench.advance(SECOND * 10).await;
    assert_eq!(rescue(&bench).await, [id(1), id(3)]);
    assert_eq!(bench.state_name(id(2)).await, StateName::Running);
    bench.advance(SECOND * 20).await;
    assert_eq!(rescue(&bench).await, [id(2)]);
}

async fn jobs_that_were_claimed_together_are_given_back_together(bench: Bench) {
    bench.accept((1..=3).map(job)).await;
    let handed = bench.claim(3).await.jobs;
    bench.settle(&handed[2], Verdict::Complete).await;
    bench.advance(Duration::from_secs(31)).await;
    assert_eq!(rescue(&bench).await, [id(1), id(2)]);
    bench.advance(SECOND).await;
    let again = bench.claim(9).await.jobs;
    assert_eq!(again.iter().map(|handed| handed.attempt).collect::<Vec<_>>(), [2, 2]);
    for (late, handed) in handed.iter().zip(&again) {
        let job = late.job.id;
        let late = Settlement::new(job, late.lease.token, Verdict::Complete);
        let answer = bench.store.settle(vec![late]).await.expect("it is answered").remove(0);
        assert_eq!(answer, Err(Refusal::LeaseLost { job }));
        assert_runs_again(&bench, handed).await;
    }
}

/// As an attempt that is not the first runs.
async fn assert_runs_again(bench: &Bench, handed: &ClaimedJob) {
    assert_eq!(bench.state(handed.job.id).await, State::Running(handed.lease.clone()));
}

async fn a_new_order_of_a_queue_leaves_alone_what_runs(bench: Bench) {
    bench.accept((1..=3).map(job)).await;
    let handed = bench.claim(2).await.jobs;
    let ageing = QueueChange::Ageing(Some(SECOND));
    bench.store.configure(name("default"), ageing).await.expect("it is answered");
    for handed in &handed {
        assert_runs(&bench, handed).await;
    }
    let rest = bench.claim(9).await.jobs;
    assert_eq!(rest.iter().map(|handed| handed.job.id).collect::<Vec<_>>(), [id(3)]);
    for handed in handed.iter().chain(&rest) {
        assert_eq!(bench.settle(handed, Verdict::Complete).await, StateName::Completed);
    }
}

async fn kinds_that_are_claimed_together_keep_their_own_terms(bench: Bench) {
    let print = |number| NewJob { kind: name("print"), ..job(number) };
    bench.accept([job(1), print(2), job(3), print(4)]).await;
    let mut both = claim(4);
    both.kinds.push(KindClaim { lease: SECOND * 90, ..KindClaim::new(name("print")) });
    let handed = bench.store.claim(both).await.expect("it is answered").jobs;
    let lengths: Vec<_> =
        handed.iter().map(|handed| handed.lease.until.since(handed.lease.since)).collect();
    assert_eq!(lengths, [30, 90, 30, 90].map(Duration::from_secs));
    for handed in &handed {
        assert_runs(&bench, handed).await;
    }
    bench.advance(SECOND * 31).await;
    assert_eq!(rescue(&bench).await, [id(1), id(3)]);
    for handed in [&handed[1], &handed[3]] {
        assert_eq!(bench.settle(handed, Verdict::Complete).await, StateName::Completed);
    }
}

async fn jobs_that_were_claimed_together_are_what_their_producers_said(bench: Bench) {
    let print = |number| NewJob { kind: name("print"), queue: name("paper"), ..job(number) };
    let tagged = NewJob { tags: vec![name("blue")], ..job(3) };
    let urgent = |job| NewJob { priority: Priority(5), ..job };
    let jobs = [job(1), print(2), tagged, print(4)].map(urgent);
    bench.accept(jobs.clone()).await;
    let mut both = claim(4);
    both.kinds.push(KindClaim::new(name("print")));
    let handed = bench.store.claim(both).await.expect("it is answered").jobs;
    assert_eq!(handed.len(), jobs.len());
    for (handed, said) in handed.iter().zip(jobs) {
        assert_eq!(handed.job.id, said.id);
        assert_eq!((&handed.job.kind, &handed.job.queue), (&said.kind, &said.queue));
        assert_eq!((&handed.job.payload, &handed.job.tags), (&said.payload, &said.tags));
        assert_eq!(handed.job.priority, said.priority);
        assert_runs(&bench, handed).await;
    }
}
