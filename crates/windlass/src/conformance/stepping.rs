//! What finished steps of a handler promise.

use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::job::{DeadReason, StateName};
use windlass_core::ledger::{Recovery, Renewal, Renewed, Rescue, Settlement};
use windlass_core::limits;
use windlass_core::outcome::Verdict;
use windlass_core::record::{Progress, Report, Step};
use windlass_core::refusal::Refusal;

use super::{Bench, Case, SECOND, id, job, name, named_cases};
use crate::store::{AlterJobs, ClaimedJob, JobAction, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_finished_step_is_handed_to_every_later_attempt,
        an_edited_replay_starts_without_steps,
        a_stale_step_is_refused_and_not_kept,
        a_step_that_is_repeated_keeps_its_first_result_and_is_told_once,
        steps_beyond_a_bound_are_refused_with_all_that_is_reported_beside_them,
        a_settlement_keeps_its_steps_or_is_refused_with_them,
    ]
}

fn step(text: &str, result: impl Into<Vec<u8>>) -> Step {
    Step { name: name(text), result: result.into().into() }
}

/// A sign of life with finished steps and progress.
async fn report(bench: &Bench, handed: &ClaimedJob, steps: Vec<Step>) -> Result<Renewed, Refusal> {
    let progress = Some(Progress { percent: 40, note: String::new() });
    let report = Report { progress, steps, ..Report::default() };
    let (job, token, lease) = (handed.job.id, handed.lease.token, Duration::from_secs(30));
    let renewal = Renewal { job, token, lease, report };
    bench.store.renew(vec![renewal]).await.expect("it is answered").remove(0)
}

async fn lose(bench: &Bench) {
    bench.advance(Duration::from_secs(31)).await;
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    bench.store.rescue(rescue).await.expect("it is answered");
    bench.advance(SECOND).await;
}

async fn replay(bench: &Bench) {
    let selection = Selection::Jobs(vec![id(1)]);
    let altered = bench
        .store
        .alter(AlterJobs::new(selection, JobAction::Replay))
        .await
        .expect("it is answered");
    assert!(altered[0].result.is_ok(), "{altered:?}");
}

async fn a_finished_step_is_handed_to_every_later_attempt(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    assert_eq!(handed.steps, [], "nothing has been done yet");
    report(&bench, &handed, vec![step("charge", "1")]).await.expect("the lease is held");
    report(&bench, &handed, vec![step("ship", "2")]).await.expect("the lease is held");
    let steps = vec![step("charge", "1"), step("ship", "2")];
    assert_eq!(bench.record(id(1)).await.steps, steps);
    bench.settle(&handed, Verdict::Retry(Duration::ZERO)).await;
    for verdict in [Verdict::Snooze(Duration::ZERO), Verdict::Release] {
        let handed = bench.take().await;
        assert_eq!(handed.steps, steps);
        bench.settle(&handed, verdict).await;
    }
    assert_eq!(bench.take().await.steps, steps, "after it was given back");
    lose(&bench).await;
    let handed = bench.take().await;
    assert_eq!(handed.steps, steps, "after its worker was lost");
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    replay(&bench).await;
    let handed = bench.take().await;
    assert_eq!(handed.steps, steps, "a replay goes on from them");
    bench.settle(&handed, Verdict::Complete).await;
    assert_eq!(bench.record(id(1)).await.steps, steps, "they are part of its history");
}

async fn an_edited_replay_starts_without_steps(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    report(&bench, &handed, vec![step("charge", "1")]).await.expect("the lease is held");
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    bench.store.replay_edited(id(1), job(2)).await.expect("it is dead");
    let handed = bench.take().await;
    assert_eq!((handed.job.id, handed.steps), (id(2), vec![]));
}

async fn a_stale_step_is_refused_and_not_kept(bench: Bench) {
    bench.accept([job(1)]).await;
    let first = bench.take().await;
    lose(&bench).await;
    let second = bench.take().await;
    // That it is beyond a bound as well is not what it hears.
    for steps in [vec![step("charge", "1")], vec![step("charge", vec![7; limits::STEP_BYTES + 1])]]
    {
        let answer = report(&bench, &first, steps).await;
        assert_eq!(answer, Err(Refusal::LeaseLost { job: id(1) }));
    }
    assert_eq!(bench.record(id(1)).await.steps, []);
    report(&bench, &second, vec![step("charge", "2")]).await.expect("the lease is held");
    assert_eq!(bench.record(id(1)).await.steps, [step("charge", "2")]);
}

async fn a_step_that_is_repeated_keeps_its_first_result_and_is_told_once(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    for result in ["1", "1", "2"] {
        let steps = vec![step("charge", result)];
        report(&bench, &handed, steps).await.expect("the lease is held");
    }
    assert_eq!(bench.record(id(1)).await.steps, [step("charge", "1")]);
    let told = bench.topics().await.into_iter().filter(|topic| *topic == "step.completed");
    assert_eq!(told.count(), 1);
}

async fn steps_beyond_a_bound_are_refused_with_all_that_is_reported_beside_them(bench: Bench) {
    let many = (0..=limits::STEPS).map(|number| step(&format!("step{number}"), "")).collect();
    let full = limits::STEPS_BYTES / limits::STEP_BYTES;
    let large = |number| step(&format!("large{number}"), vec![7; limits::STEP_BYTES]);
    let mut too_large_in_all: Vec<Step> = (0..full).map(large).collect();
    too_large_in_all.push(step("one_more", "1"));
    let too_large = vec![step("large", vec![7; limits::STEP_BYTES + 1])];
    for (number, steps, limit) in [
        (1, many, limits::STEPS),
        (2, too_large, limits::STEP_BYTES),
        (3, too_large_in_all, limits::STEPS_BYTES),
    ] {
        bench.accept([job(number)]).await;
        let handed = bench.take().await;
        let refusal = report(&bench, &handed, steps.clone()).await.expect_err("it is beyond");
        let names_it = refusal.to_string().contains(&limit.to_string());
        assert!(matches!(refusal, Refusal::OutOfBounds { .. }) && names_it, "{refusal}");
        let record = bench.record(id(number)).await;
        assert!(record.steps.is_empty() && record.progress.is_none(), "{:?}", record.progress);
        // Up to the bound they are kept, and the one beyond it is refused later as well.
        let (last, fitting) = steps.split_last().expect("there are some");
        report(&bench, &handed, fitting.to_vec()).await.expect("they are within the bounds");
        let refused = report(&bench, &handed, vec![last.clone()]).await;
        assert!(refused.is_err(), "the bound is for all of them: {refused:?}");
        assert_eq!(bench.record(id(number)).await.steps, fitting);
        bench.settle(&handed, Verdict::Complete).await;
    }
}

async fn a_settlement_keeps_its_steps_or_is_refused_with_them(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    let settlement = |result: Vec<u8>| {
        let (job, token) = (handed.job.id, handed.lease.token);
        let report = Report { steps: vec![step("charge", result)], ..Report::default() };
        Settlement { report, ..Settlement::new(job, token, Verdict::Release) }
    };
    for (bytes, state) in
        [(limits::STEP_BYTES + 1, StateName::Running), (limits::STEP_BYTES, StateName::Ready)]
    {
        let settlements = vec![settlement(vec![7; bytes])];
        let answer = bench.store.settle(settlements).await.expect("it is answered").remove(0);
        assert_eq!(answer.is_ok(), state == StateName::Ready, "{answer:?}");
        assert_eq!(bench.state_name(id(1)).await, state);
    }
    assert_eq!(bench.take().await.steps.len(), 1);
}
