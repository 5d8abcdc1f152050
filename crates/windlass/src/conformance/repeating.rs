//! What repeating a call promises whose answer was lost.

use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::job::{
    CancelReason, DeadReason, JobId, Lane, LeaseToken, NewJob, Priority, RequestId, Start,
    StateName,
};
use windlass_core::ledger::{Claim, Recovery, Rescue, Settled, Settlement};
use windlass_core::object::{Address, Turn};
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::record::{LogLine, Report, Step};
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::{Bench, Case, HOUR, SECOND, claim, id, job, name, named_cases};
use crate::store::{AlterJobs, ClaimedJob, JobAction, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_settlement_that_is_repeated_answers_as_the_first_time,
        a_repeated_settlement_does_nothing_again,
        a_repeated_settlement_tells_where_the_job_stands_now,
        many_settlements_are_repeated_together,
        a_settlement_repeated_after_the_next_start_is_refused,
        a_settlement_repeated_after_a_replay_is_refused,
        a_settlement_after_a_rescue_is_refused_whatever_was_settled_before,
        a_settlement_under_a_token_that_did_not_end_the_attempt_is_refused,
        a_settlement_of_a_job_that_is_no_longer_kept_is_refused,
        a_claim_that_is_repeated_hands_out_the_same_jobs_and_takes_no_others,
        a_repeated_claim_hands_out_what_had_begun_before_as_it_did,
        a_repeated_claim_leaves_out_what_has_ended,
        a_claim_of_which_nothing_runs_any_more_is_a_new_one,
        a_claim_that_got_nothing_is_a_new_one_when_it_is_repeated,
        a_request_of_another_worker_is_another_claim,
    ]
}

const VERDICTS: [(Verdict, StateName); 6] = [
    (Verdict::Complete, StateName::Completed),
    (Verdict::Retry(HOUR), StateName::Scheduled),
    (Verdict::Snooze(HOUR), StateName::Scheduled),
    (Verdict::Release, StateName::Ready),
    (Verdict::Bury(DeadReason::Permanent), StateName::Dead),
    (Verdict::Cancel(CancelReason::Handler), StateName::Cancelled),
];

fn settlement(handed: &ClaimedJob, verdict: Verdict) -> Settlement {
    Settlement::new(handed.job.id, handed.lease.token, verdict)
}

async fn settle(bench: &Bench, settlement: Settlement) -> Result<Settled, Refusal> {
    bench.store.settle(vec![settlement]).await.expect("it is answered").remove(0)
}

/// Accepts a job and claims it, and nothing else.
async fn taken(bench: &Bench, number: u128) -> ClaimedJob {
    bench.accept([job(number)]).await;
    let handed = bench.take().await;
    assert_eq!(handed.job.id, id(number));
    handed
}

async fn rescue(bench: &Bench) {
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    bench.store.rescue(rescue).await.expect("it is answered");
}

async fn alter(bench: &Bench, job: JobId, action: JobAction) {
    let done = bench.store.alter(AlterJobs::new(Selection::Jobs(vec![job]), action)).await;
    done.expect("it is answered").remove(0).result.expect("it is done");
}

async fn a_settlement_that_is_repeated_answers_as_the_first_time(bench: Bench) {
    for (number, (verdict, state)) in (1..).zip(VERDICTS) {
        let handed = taken(&bench, number).await;
        for _ in 0..3 {
            let answer = settle(&bench, settlement(&handed, verdict)).await;
            assert_eq!(answer, Ok(Settled { state }), "{verdict:?}");
        }
        assert_eq!(bench.record(id(number)).await.status.settled_by, Some(handed.lease.token));
        // Out of the way of the next.
        if verdict == Verdict::Release {
            alter(&bench, id(number), JobAction::Cancel).await;
        }
    }
}

async fn a_repeated_settlement_does_nothing_again(bench: Bench) {
    let object = Address::new(name("test"), name("letters"), "a").expect("an address");
    let line = LogLine { at: Timestamp::default(), attempt: 1, text: "done".to_string() };
    let step = Step { name: name("sent"), result: b"1".to_vec().into() };
    for (number, (verdict, state)) in (1..).zip(VERDICTS) {
        let handed = taken(&bench, number).await;
        let version = u64::try_from(number).expect("it is small") - 1;
        let report =
            Report { lines: vec![line.clone()], steps: vec![step.clone()], ..Report::default() };
        let next = NewJob { start: Start::After(HOUR * 100), ..job(100 + number) };
        let said = Settlement {
            report,
            output: Some(b"7".to_vec().into()),
            error: Some(ErrorText::new("as it went")),
            next: vec![next.into()],
            turn: Some(Box::new(Turn::new(object.clone(), version))),
            ..settlement(&handed, verdict)
        };
        assert_eq!(settle(&bench, said.clone()).await, Ok(Settled { state }), "{verdict:?}");
        let seen = seen(&bench, &object, number).await;
        bench.advance(SECOND).await;
        assert_eq!(settle(&bench, said.clone()).await, Ok(Settled { state }), "{verdict:?}");
        // Neither does it when other things are said now, even what would have been refused.
        let too_long = NewJob { trace: Some("x".repeat(100_000)), ..job(1_000) };
        let next = vec![too_long.into()];
        let other = Settlement { next, ..settlement(&handed, Verdict::Complete) };
        assert_eq!(settle(&bench, other).await, Ok(Settled { state }), "{verdict:?}");
        assert_eq!(self::seen(&bench, &object, number).await, seen, "{verdict:?}");
        if verdict == Verdict::Release {
            alter(&bench, id(number), JobAction::Cancel).await;
        }
    }
}

/// All that a settlement could have changed.
async fn seen(bench: &Bench, object: &Address, number: u128) -> String {
    let record = bench.record(id(number)).await;
    let next = bench.store.find(&[id(100 + number)]).await.expect("a find is answered");
    let object = bench.store.object(object).await.expect("it is answered");
    let counts = bench.store.count().await.expect("it is answered");
    format!("{record:?} {next:?} {object:?} {counts:?} {:?}", bench.topics().await)
}

async fn a_repeated_settlement_tells_where_the_job_stands_now(bench: Bench) {
    let handed = taken(&bench, 1).await;
    let again = || settle(&bench, settlement(&handed, Verdict::Retry(SECOND)));
    assert_eq!(again().await, Ok(Settled { state: StateName::Scheduled }));
    bench.advance(SECOND).await;
    assert_eq!(again().await, Ok(Settled { state: StateName::Ready }));
    alter(&bench, id(1), JobAction::Cancel).await;
    assert_eq!(again().await, Ok(Settled { state: StateName::Cancelled }));
}

async fn many_settlements_are_repeated_together(bench: Bench) {
    bench.accept((1..=6).map(job)).await;
    let handed = bench.claim(6).await.jobs;
    let ends = |of: &[ClaimedJob]| {
        of.iter().map(|handed| settlement(handed, Verdict::Complete)).collect::<Vec<_>>()
    };
    bench.store.settle(ends(&handed[1..4])).await.expect("it is answered");
    // Some of them were settled before, and some were not.
    let answers = bench.store.settle(ends(&handed)).await.expect("it is answered");
    assert_eq!(answers, vec![Ok(Settled { state: StateName::Completed }); 6]);
    let completed = |topic: &&String| *topic == "job.completed";
    assert_eq!(bench.topics().await.iter().filter(completed).count(), 6);
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!(counts.lines[0].totals.completed, 6);
}

async fn a_settlement_repeated_after_the_next_start_is_refused(bench: Bench) {
    for (number, verdict) in
        (1..).zip([Verdict::Retry(SECOND), Verdict::Snooze(SECOND), Verdict::Release])
    {
        let first = taken(&bench, number).await;
        bench.settle(&first, verdict).await;
        bench.advance(SECOND).await;
        let second = bench.take().await;
        let before = bench.record(id(number)).await;
        let lost = Err(Refusal::LeaseLost { job: id(number) });
        assert_eq!(settle(&bench, settlement(&first, verdict)).await, lost, "it runs");
        assert_eq!(bench.record(id(number)).await, before);
        bench.settle(&second, Verdict::Complete).await;
        assert_eq!(settle(&bench, settlement(&first, verdict)).await, lost, "it ended otherwise");
    }
}

async fn a_settlement_repeated_after_a_replay_is_refused(bench: Bench) {
    let verdicts = [Verdict::Bury(DeadReason::Permanent), Verdict::Cancel(CancelReason::Handler)];
    for (number, verdict) in (1..).zip(verdicts) {
        let handed = taken(&bench, number).await;
        bench.settle(&handed, verdict).await;
        alter(&bench, id(number), JobAction::Replay).await;
        let lost = Err(Refusal::LeaseLost { job: id(number) });
        assert_eq!(settle(&bench, settlement(&handed, verdict)).await, lost);
        assert_eq!(bench.state_name(id(number)).await, StateName::Ready);
        assert_eq!(bench.record(id(number)).await.status.settled_by, None);
        alter(&bench, id(number), JobAction::Cancel).await;
        assert_eq!(settle(&bench, settlement(&handed, verdict)).await, lost);
    }
}

async fn a_settlement_after_a_rescue_is_refused_whatever_was_settled_before(bench: Bench) {
    // The first attempt was settled. The second is given back, waits, and is at last given up.
    let settled = taken(&bench, 1).await;
    bench.settle(&settled, Verdict::Retry(Duration::ZERO)).await;
    for state in [StateName::Scheduled, StateName::Dead] {
        let lost = bench.take().await;
        bench.advance(SECOND * 31).await;
        rescue(&bench).await;
        assert_eq!(bench.state_name(id(1)).await, state);
        let before = bench.record(id(1)).await;
        assert_eq!(before.status.settled_by, None);
        for stale in [&settled, &lost] {
            for (verdict, _) in VERDICTS {
                let answer = settle(&bench, settlement(stale, verdict)).await;
                assert_eq!(answer, Err(Refusal::LeaseLost { job: id(1) }), "{verdict:?}");
            }
        }
        assert_eq!(bench.record(id(1)).await, before);
        bench.advance(SECOND).await;
    }
    // Of one that was to stop.
    let lost = taken(&bench, 2).await;
    alter(&bench, id(2), JobAction::Cancel).await;
    bench.advance(SECOND * 31).await;
    rescue(&bench).await;
    assert_eq!(bench.state_name(id(2)).await, StateName::Cancelled);
    let answer = settle(&bench, settlement(&lost, Verdict::Complete)).await;
    assert_eq!(answer, Err(Refusal::LeaseLost { job: id(2) }));
}

async fn a_settlement_under_a_token_that_did_not_end_the_attempt_is_refused(bench: Bench) {
    bench.accept((1..=3).map(job)).await;
    let handed = bench.claim(3).await.jobs;
    for handed in &handed {
        bench.settle(handed, Verdict::Complete).await;
    }
    for ended in &handed {
        for other in &handed {
            let job = ended.job.id;
            let said = Settlement::new(job, other.lease.token, Verdict::Complete);
            let expected = match job == other.job.id {
                true => Ok(Settled { state: StateName::Completed }),
                false => Err(Refusal::LeaseLost { job }),
            };
            assert_eq!(settle(&bench, said).await, expected);
        }
    }
}

async fn a_settlement_of_a_job_that_is_no_longer_kept_is_refused(bench: Bench) {
    let handed = taken(&bench, 1).await;
    bench.settle(&handed, Verdict::Complete).await;
    alter(&bench, id(1), JobAction::Remove).await;
    let answer = settle(&bench, settlement(&handed, Verdict::Complete)).await;
    assert_eq!(answer, Err(Refusal::LeaseLost { job: id(1) }));
    // Another job under its id is another job.
    bench.accept([job(1)]).await;
    let answer = settle(&bench, settlement(&handed, Verdict::Complete)).await;
    assert_eq!(answer, Err(Refusal::LeaseLost { job: id(1) }));
}

/// The claim with this number, of the worker of the suite.
fn request(number: u128, limit: usize) -> Claim {
    Claim { request: Some(RequestId(number)), ..claim(limit) }
}

async fn make(bench: &Bench, claim: Claim) -> Vec<ClaimedJob> {
    bench.store.claim(claim).await.expect("a claim is answered").jobs
}

fn leases(jobs: &[ClaimedJob]) -> Vec<(JobId, LeaseToken)> {
    jobs.iter().map(|handed| (handed.job.id, handed.lease.token)).collect()
}

async fn a_claim_that_is_repeated_hands_out_the_same_jobs_and_takes_no_others(bench: Bench) {
    bench.accept((1..=5).map(job)).await;
    let first = make(&bench, request(1, 3)).await;
    let others = make(&bench, request(2, 1)).await;
    assert_eq!((first.len(), others.len()), (3, 1));
    let before = (bench.record(id(1)).await, bench.topics().await);
    bench.advance(SECOND).await;
    // However many are asked for now.
    for limit in [3, 1, 10] {
        let again = bench.store.claim(request(1, limit)).await.expect("a claim is answered");
        assert_eq!(format!("{:?}", again.jobs), format!("{first:?}"), "a limit of {limit}");
        assert_eq!(again.ready, 1, "what waits is left alone");
    }
    assert_eq!(format!("{:?}", make(&bench, request(2, 1)).await), format!("{others:?}"));
    assert_eq!((bench.record(id(1)).await, bench.topics().await), before);
    assert_eq!(bench.state_name(id(5)).await, StateName::Ready);
    for handed in first.iter().chain(&others) {
        assert_eq!(bench.settle(handed, Verdict::Complete).await, StateName::Completed);
    }
}

async fn a_repeated_claim_hands_out_what_had_begun_before_as_it_did(bench: Bench) {
    // With a past, a place of its own in the order, a lane, and a payload.
    let urgent = NewJob { priority: Priority::HIGH, ..job(2) };
    let laned = NewJob { lane: Some(Lane::Key("a".to_string())), ..job(3) };
    let failing = taken(&bench, 1).await;
    let step = Step { name: name("sent"), result: b"1".to_vec().into() };
    let failed = Settlement {
        error: Some(ErrorText::new("no route")),
        report: Report { steps: vec![step], ..Report::default() },
        ..settlement(&failing, Verdict::Retry(Duration::ZERO))
    };
    settle(&bench, failed).await.expect("it is held");
    bench.accept([urgent, laned, job(4)]).await;
    let first = make(&bench, request(7, 9)).await;
    assert_eq!(first.len(), 4);
    assert_eq!((first[0].job.id, first[1].attempt), (id(2), 2));
    assert!(first[1].last_error.is_some() && first[1].steps.len() == 1);
    let again = make(&bench, request(7, 9)).await;
    assert_eq!(format!("{again:?}"), format!("{first:?}"));
    for handed in &again {
        assert_eq!(bench.settle(handed, Verdict::Complete).await, StateName::Completed);
    }
}

async fn a_repeated_claim_leaves_out_what_has_ended(bench: Bench) {
    bench.accept((1..=5).map(job)).await;
    let first = make(&bench, request(1, 4)).await;
    bench.settle(&first[0], Verdict::Complete).await;
    bench.settle(&first[1], Verdict::Release).await;
    let again = make(&bench, request(1, 4)).await;
    assert_eq!(leases(&again), leases(&first[2..]));
    // The one that was given back runs again, under another lease of the same worker.
    let released = make(&bench, request(2, 1)).await;
    assert_eq!(released[0].job.id, id(2));
    assert_eq!(leases(&make(&bench, request(1, 4)).await), leases(&first[2..]));
    bench.settle(&first[3], Verdict::Snooze(HOUR)).await;
    assert_eq!(leases(&make(&bench, request(1, 4)).await), leases(&first[2..3]));
}

async fn a_claim_of_which_nothing_runs_any_more_is_a_new_one(bench: Bench) {
    bench.accept((1..=4).map(job)).await;
    for handed in make(&bench, request(1, 2)).await {
        bench.settle(&handed, Verdict::Complete).await;
    }
    let second = make(&bench, request(1, 1)).await;
    assert_eq!(second[0].job.id, id(3));
    assert_eq!(leases(&make(&bench, request(1, 1)).await), leases(&second));
    // Its worker was lost to the store.
    bench.advance(SECOND * 31).await;
    rescue(&bench).await;
    let third = make(&bench, request(1, 1)).await;
    assert_eq!(third[0].job.id, id(4), "the one that was given back rests");
}

async fn a_claim_that_got_nothing_is_a_new_one_when_it_is_repeated(bench: Bench) {
    assert!(make(&bench, request(1, 2)).await.is_empty());
    bench.accept([job(1)]).await;
    assert_eq!(make(&bench, request(1, 2)).await.len(), 1);
}

async fn a_request_of_another_worker_is_another_claim(bench: Bench) {
    bench.accept((1..=2).map(job)).await;
    let first = make(&bench, request(1, 1)).await;
    let theirs = || Claim { worker: "other".into(), ..request(1, 1) };
    let second = make(&bench, theirs()).await;
    assert_eq!((first[0].job.id, second[0].job.id), (id(1), id(2)));
    assert_eq!(leases(&make(&bench, request(1, 1)).await), leases(&first));
    assert_eq!(leases(&make(&bench, theirs()).await), leases(&second));
}
