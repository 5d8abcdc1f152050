//! What handing out jobs, keeping leases and giving jobs back promises.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::job::{DeadReason, LeaseToken, NewJob, Priority, Start, State, StateName};
use windlass_core::ledger::{KindClaim, QueueChange, Recovery, RecoveryMode, Renewal, Rescue};
use windlass_core::limits;
use windlass_core::outcome::Verdict;
use windlass_core::rate::Rate;
use windlass_core::record::{LogLine, Progress, Report};
use windlass_core::refusal::Refusal;
use windlass_core::retry::Retry;
use windlass_core::time::Timestamp;

use super::{Bench, Case, HOUR, SECOND, claim, id, job, name, named_cases};
use crate::store::{AlterJobs, ClaimedJob, JobAction, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        jobs_start_by_priority_then_due_time_then_acceptance,
        a_thousand_equal_jobs_start_in_the_order_of_acceptance,
        a_claim_of_several_queues_and_kinds_takes_the_most_urgent_of_all,
        only_the_kinds_and_queues_asked_for_are_handed_out,
        a_job_is_handed_to_one_caller,
        a_start_is_counted_and_visible_before_the_handler_sees_the_job,
        tokens_grow_over_retry_snooze_release_and_replay,
        nothing_of_a_paused_queue_starts_and_due_times_are_kept,
        ageing_lets_a_low_job_overtake_after_its_stated_wait,
        concurrency_limits_count_leases_and_never_leak,
        a_rate_limit_holds_over_any_claims,
        a_rate_that_is_no_whole_number_of_microseconds_is_not_exceeded,
        no_claim_hands_out_a_job_that_has_expired,
        an_empty_claim_says_when_to_come_back,
        whoever_keeps_house_is_told_how_long_to_rest,
        a_renewed_lease_goes_on_and_its_report_is_kept,
        lines_that_no_log_keeps_are_counted,
        a_stale_renewal_is_refused_and_records_nothing,
        a_lease_that_ended_is_rescued_once_and_counted,
        a_job_that_kills_its_workers_dies_after_exactly_its_attempts,
        recovery_is_capped_even_with_attempts_left,
        a_rescue_takes_kinds_nobody_here_knows,
        observing_tells_of_lost_workers_and_leaves_them,
        a_restart_takes_every_lease_at_once,
        ten_thousand_leases_are_all_rescued,
    ]
}

async fn order(bench: &Bench, jobs: usize) -> Vec<u128> {
    numbers(&bench.claim(jobs).await.jobs)
}

fn numbers(handed: &[ClaimedJob]) -> Vec<u128> {
    handed.iter().map(|handed| u128::from_be_bytes(handed.job.id.to_bytes())).collect()
}

async fn jobs_start_by_priority_then_due_time_then_acceptance(bench: Bench) {
    let with = |number, priority| NewJob { priority, ..job(number) };
    let delayed = NewJob { start: Start::After(SECOND), ..job(9) };
    bench.accept([delayed, with(1, Priority::LOW), with(2, Priority::NORMAL)]).await;
    bench.accept([with(3, Priority::CRITICAL), with(4, Priority::HIGH)]).await;
    bench.accept([with(5, Priority::CRITICAL)]).await;
    bench.advance(SECOND * 2).await;
    bench.accept([with(6, Priority::NORMAL)]).await;
    assert_eq!(order(&bench, 10).await, [3, 5, 4, 2, 9, 6, 1]);
}

async fn a_thousand_equal_jobs_start_in_the_order_of_acceptance(bench: Bench) {
    bench.accept((1..=1_000).rev().map(job)).await;
    let expected: Vec<u128> = (1..=1_000).rev().collect();
    assert_eq!(order(&bench, 1_000).await, expected);
}

async fn a_claim_of_several_queues_and_kinds_takes_the_most_urgent_of_all(bench: Bench) {
    let with = |number, priority| NewJob { priority, ..job(number) };
    let mail = |number, priority| NewJob { queue: name("mail"), ..with(number, priority) };
    let print = |number, priority| NewJob { kind: name("print"), ..with(number, priority) };
    bench.accept([with(1, Priority::LOW), mail(2, Priority::NORMAL)]).await;
    bench.accept([print(3, Priority::NORMAL), mail(4, Priority::CRITICAL)]).await;
    bench.accept([with(5, Priority::NORMAL), print(6, Priority::HIGH)]).await;
    for expected in [vec![4], vec![6, 2], vec![3, 5, 1]] {
        let mut both = claim(expected.len());
        both.kinds.push(KindClaim::new(name("print")));
        let handed = bench.store.claim(both).await.expect("a claim is answered");
        assert_eq!(numbers(&handed.jobs), expected);
    }
}

async fn only_the_kinds_and_queues_asked_for_are_handed_out(bench: Bench) {
    let other_kind = NewJob { kind: name("other"), ..job(1) };
    let other_queue = NewJob { queue: name("other"), ..job(2) };
    bench.accept([other_kind, other_queue, job(3)]).await;
    let mut mine = claim(10);
    mine.queues = Some(vec![name("default")]);
    let handed = bench.store.claim(mine).await.expect("a claim is answered");
    assert_eq!(handed.jobs.len(), 1);
    assert_eq!(handed.jobs[0].job.id, id(3));
    assert_eq!(order(&bench, 10).await, [2]);
}

async fn a_job_is_handed_to_one_caller(bench: Bench) {
    bench.accept((1..=100).map(job)).await;
    let claims = (0..20).map(|_| {
        let bench = bench.clone();
        tokio::spawn(async move { bench.claim(10).await })
    });
    let mut seen = BTreeSet::new();
    for task in claims.collect::<Vec<_>>() {
        for handed in task.await.expect("the claim does not panic").jobs {
            assert!(seen.insert(handed.job.id), "{} was handed out twice", handed.job.id);
        }
    }
    assert_eq!(seen.len(), 100);
}

async fn a_start_is_counted_and_visible_before_the_handler_sees_the_job(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    assert_eq!(handed.attempt, 1);
    let record = bench.record(id(1)).await;
    assert_eq!(record.status.attempts, 1);
    assert_eq!(record.first_started_at, Some(handed.first_started_at));
    assert_eq!(record.attempts.len(), 1);
    let State::Running(lease) = record.status.state else { panic!("it does not run") };
    assert_eq!(lease, handed.lease);
    assert_eq!(&*lease.worker, "w");
}

async fn tokens_grow_over_retry_snooze_release_and_replay(bench: Bench) {
    bench.accept([job(1)]).await;
    let mut last = LeaseToken(0);
    for verdict in [
        Verdict::Retry(Duration::ZERO),
        Verdict::Snooze(Duration::ZERO),
        Verdict::Release,
        Verdict::Bury(DeadReason::Permanent),
        Verdict::Complete,
    ] {
        let handed = bench.take().await;
        assert!(handed.lease.token > last, "{:?} after {last:?}", handed.lease.token);
        last = handed.lease.token;
        bench.settle(&handed, verdict).await;
        if let Verdict::Bury(_) = verdict {
            let selection = Selection::Jobs(vec![id(1)]);
            bench
                .store
                .alter(AlterJobs::new(selection, JobAction::Replay))
                .await
                .expect("it is answered");
        }
    }
}

async fn nothing_of_a_paused_queue_starts_and_due_times_are_kept(bench: Bench) {
    bench.accept([job(1), NewJob { start: Start::After(HOUR), ..job(2) }]).await;
    let queue = name("default");
    let configure = |change| bench.store.configure(queue.clone(), change);
    configure(QueueChange::Pause).await.expect("it is answered");
    assert!(bench.claim(10).await.jobs.is_empty());
    bench.accept([job(3)]).await;
    configure(QueueChange::Resume).await.expect("it is answered");
    assert_eq!(order(&bench, 10).await, [1, 3]);
    assert_eq!(bench.state_name(id(2)).await, StateName::Scheduled);
}

async fn ageing_lets_a_low_job_overtake_after_its_stated_wait(bench: Bench) {
    let ageing = QueueChange::Ageing(Some(SECOND));
    bench.store.configure(name("default"), ageing).await.expect("it is answered");
    bench.accept([NewJob { priority: Priority(-10), ..job(1) }]).await;
    bench.advance(SECOND * 9).await;
    bench.accept([job(2)]).await;
    bench.advance(SECOND * 2).await;
    bench.accept([job(3)]).await;
    // Ten points below, so it comes before what is accepted more than ten seconds later.
    assert_eq!(order(&bench, 10).await, [2, 1, 3]);
    // One that was due while nobody looked has aged since then.
    bench.accept([NewJob { start: Start::After(SECOND), ..job(4) }]).await;
    bench.advance(SECOND * 3).await;
    bench.accept([job(5)]).await;
    bench.advance(SECOND).await;
    assert_eq!(order(&bench, 10).await, [4, 5]);
}

async fn concurrency_limits_count_leases_and_never_leak(bench: Bench) {
    bench.accept((1..=6).map(job)).await;
    let limited = |limit| {
        let mut request = claim(limit);
        request.kinds[0].concurrency = Some(2);
        bench.store.claim(request)
    };
    let first = limited(10).await.expect("a claim is answered").jobs;
    assert_eq!(first.len(), 2);
    assert!(limited(10).await.expect("a claim is answered").jobs.is_empty());
    bench.settle(&first[0], Verdict::Complete).await;
    assert_eq!(limited(10).await.expect("a claim is answered").jobs.len(), 1);
    // A lost worker gives its place back.
    bench.advance(Duration::from_secs(31)).await;
    rescue(&bench, Recovery::default()).await;
    assert_eq!(limited(10).await.expect("a claim is answered").jobs.len(), 2);
}

async fn a_rate_limit_holds_over_any_claims(bench: Bench) {
    bench.accept((1..=100).map(job)).await;
    let request = || {
        let mut request = claim(100);
        request.kinds[0].rate = Some(Rate::per_second(10).burst(5));
        bench.store.claim(request)
    };
    let burst = request().await.expect("a claim is answered");
    assert_eq!(burst.jobs.len(), 5);
    assert_eq!(burst.wake_in, Some(Duration::from_millis(100)));
    let mut started = 0;
    for _ in 0..10 {
        bench.advance(Duration::from_millis(100)).await;
        started += request().await.expect("a claim is answered").jobs.len();
    }
    assert_eq!(started, 10);
}

async fn a_rate_that_is_no_whole_number_of_microseconds_is_not_exceeded(bench: Bench) {
    bench.accept((1..=20).map(job)).await;
    // Seven in ten microseconds: spaced by one, there would be ten.
    let rate = Rate { jobs: 7, period: Duration::from_micros(10), burst: 1 };
    let mut started = 0;
    for passed in 0..=10_u32 {
        let mut request = claim(100);
        request.kinds[0].rate = Some(rate);
        started += bench.store.claim(request).await.expect("a claim is answered").jobs.len();
        let most = 1 + passed * rate.jobs / 10;
        assert!(started <= most as usize, "{started} started within {passed} microseconds");
        bench.advance(Duration::from_micros(1)).await;
    }
    assert!(started >= 5, "only {started} started");
}

async fn no_claim_hands_out_a_job_that_has_expired(bench: Bench) {
    // More than one sweep takes, and behind them one that has not expired.
    let last = limits::SWEEP_BATCH as u128 + 101;
    let expiring = |number| NewJob { expires_after: Some(HOUR), ..job(number) };
    bench.accept((1..last).map(expiring).chain([job(last)])).await;
    bench.advance(HOUR).await;
    let mut handed = Vec::new();
    for _ in 0..3 {
        let claims = bench.claim(50).await;
        handed.extend(numbers(&claims.jobs));
        assert!(
            !handed.is_empty() || claims.wake_in == Some(Duration::ZERO),
            "there is more to sweep, and nobody is told: {:?}",
            claims.wake_in
        );
    }
    assert_eq!(handed, [last], "only one had not expired");
    let topics = bench.topics().await;
    let told = |topic: &str| topics.iter().filter(|told| *told == topic).count();
    assert_eq!((told("job.cancelled"), told("job.started")), (last as usize - 1, 1));
}

async fn an_empty_claim_says_when_to_come_back(bench: Bench) {
    let empty = bench.claim(10).await;
    assert!(empty.jobs.is_empty() && empty.ready == 0 && empty.wake_in.is_none());
    bench.accept([NewJob { start: Start::After(HOUR), ..job(1) }]).await;
    bench.accept([NewJob { start: Start::After(SECOND), ..job(2) }]).await;
    assert_eq!(bench.claim(10).await.wake_in, Some(SECOND));
}

async fn whoever_keeps_house_is_told_how_long_to_rest(bench: Bench) {
    let next_in = async || {
        let reason = RecoveryReason::LeaseExpired;
        let rescue = Rescue { recovery: Recovery::default(), reason };
        let rescued = bench.store.rescue(rescue).await.expect("it is answered");
        let promoted = bench.store.promote().await.expect("it is answered");
        (rescued.next_in, promoted.next_in)
    };
    assert_eq!(next_in().await, (None, None), "nothing will ever be due");
    bench.accept([NewJob { start: Start::After(SECOND * 3), ..job(1) }, job(2)]).await;
    assert_eq!(next_in().await, (None, Some(SECOND * 3)));
    bench.advance(SECOND).await;
    let mut mine = claim(1);
    mine.kinds[0].lease = SECOND * 9;
    bench.store.claim(mine).await.expect("a claim is answered");
    assert_eq!(next_in().await, (Some(SECOND * 9), Some(SECOND * 2)));
}

fn renewal(handed: &ClaimedJob, token: LeaseToken) -> Renewal {
    let report = Report {
        progress: Some(Progress { percent: 40, note: "halfway, almost".to_string() }),
        lines: vec![LogLine {
            at: Timestamp::from_millis(1),
            attempt: handed.attempt,
            text: "hello".to_string(),
        }],
        ..Report::default()
    };
    Renewal { job: handed.job.id, token, lease: Duration::from_secs(30), report }
}

async fn a_renewed_lease_goes_on_and_its_report_is_kept(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    for _ in 0..5 {
        bench.advance(Duration::from_secs(20)).await;
        let renewals = vec![renewal(&handed, handed.lease.token)];
        let renewed = bench.store.renew(renewals).await.expect("it is answered").remove(0);
        assert!(!renewed.expect("the lease is held").cancel_requested);
        assert!(rescue(&bench, Recovery::default()).await.is_empty());
    }
    let record = bench.record(id(1)).await;
    assert_eq!(record.progress.expect("it was reported").percent, 40);
    assert_eq!(record.log.len(), 5);
    assert_eq!(record.status.attempts, 1);
}

async fn lines_that_no_log_keeps_are_counted(bench: Bench) {
    bench.accept([job(1)]).await;
    let handed = bench.take().await;
    let mut sent = renewal(&handed, handed.lease.token);
    let line = sent.report.lines.remove(0);
    let told = |number: usize| LogLine { text: number.to_string(), ..line.clone() };
    for (said, dropped) in [(150, 50), (1, 51), (100, 151)] {
        sent.report.lines = (0..said).map(told).collect();
        let renewed = bench.store.renew(vec![sent.clone()]).await.expect("it is answered");
        renewed[0].as_ref().expect("the lease is held");
        let record = bench.record(id(1)).await;
        assert_eq!((record.log.len(), record.log_dropped), (limits::LOG_LINES_KEPT, dropped));
        assert_eq!(record.log.back().expect("it is kept").text, (said - 1).to_string());
    }
    sent.report.lines_dropped = 7;
    bench.store.renew(vec![sent]).await.expect("it is answered");
    assert_eq!(bench.record(id(1)).await.log_dropped, 258, "and what the worker dropped");
}

async fn a_stale_renewal_is_refused_and_records_nothing(bench: Bench) {
    bench.accept([job(1)]).await;
    let first = bench.take().await;
    bench.advance(Duration::from_secs(31)).await;
    rescue(&bench, Recovery::default()).await;
    bench.advance(SECOND).await;
    let second = bench.take().await;
    bench.advance(SECOND).await;
    // A store may take a short way with a sign of life that brings nothing else.
    let with_report = renewal(&first, first.lease.token);
    let bare = Renewal { report: Report::default(), ..with_report.clone() };
    for late in [bare, with_report] {
        let answer = bench.store.renew(vec![late]).await.expect("it is answered").remove(0);
        assert_eq!(answer, Err(Refusal::LeaseLost { job: id(1) }));
        let record = bench.record(id(1)).await;
        assert!(record.log.is_empty() && record.progress.is_none());
        let State::Running(lease) = record.status.state else { panic!("it does not run") };
        assert_eq!(lease, second.lease);
    }
}

async fn rescue(bench: &Bench, recovery: Recovery) -> Vec<(u128, StateName)> {
    let reason = RecoveryReason::LeaseExpired;
    let rescued = bench.store.rescue(Rescue { recovery, reason }).await.expect("it is answered");
    let pair = |job: &windlass_core::ledger::RescuedJob| {
        (u128::from_be_bytes(job.id.to_bytes()), job.state)
    };
    rescued.jobs.iter().map(pair).collect()
}

async fn a_lease_that_ended_is_rescued_once_and_counted(bench: Bench) {
    bench.accept([job(1)]).await;
    let first = bench.take().await;
    bench.advance(Duration::from_secs(29)).await;
    assert!(rescue(&bench, Recovery::default()).await.is_empty(), "the lease is held");
    bench.advance(SECOND).await;
    let expected = vec![(1, StateName::Scheduled)];
    assert_eq!(rescue(&bench, Recovery::default()).await, expected);
    assert!(rescue(&bench, Recovery::default()).await.is_empty(), "it was rescued twice");
    let status = bench.record(id(1)).await.status;
    assert_eq!((status.attempts, status.recoveries), (1, 1));
    bench.advance(Duration::from_millis(100)).await;
    let second = bench.take().await;
    assert_eq!(second.recoveries, 1);
    assert_eq!(second.first_started_at, first.first_started_at, "the first start stays the first");
    let record = bench.record(second.job.id).await;
    assert_eq!(record.first_started_at, Some(first.first_started_at), "in the record as well");
    bench.settle(&second, Verdict::Complete).await;
    assert_eq!(bench.record(id(1)).await.status.recoveries, 0, "success forgives them");
    let topics = bench.topics().await;
    for topic in ["recovery.detected", "job.recovered", "job.failed", "job.retrying"] {
        assert!(topics.iter().any(|told| told == topic), "{topic} is missing from {topics:?}");
    }
}

async fn a_job_that_kills_its_workers_dies_after_exactly_its_attempts(bench: Bench) {
    bench.accept([job(1)]).await;
    for start in 1..=3 {
        assert_eq!(bench.take().await.attempt, start);
        bench.advance(Duration::from_secs(31)).await;
        rescue(&bench, Recovery::default()).await;
        bench.advance(SECOND).await;
    }
    assert!(bench.claim(1).await.jobs.is_empty());
    let state = bench.state(id(1)).await;
    assert!(matches!(state, State::Dead { reason: DeadReason::Crashed, .. }), "{state:?}");
    assert!(bench.topics().await.iter().any(|topic| topic == "recovery.exhausted"));
}

async fn recovery_is_capped_even_with_attempts_left(bench: Bench) {
    let retry = Some(Retry::default().unlimited());
    bench.accept([NewJob { retry, ..job(1) }]).await;
    let mut starts = 0;
    while let Some(_handed) = bench.claim(1).await.jobs.pop() {
        starts += 1;
        assert!(starts <= 4, "there is no end of it");
        bench.advance(Duration::from_secs(31)).await;
        rescue(&bench, Recovery::default()).await;
        bench.advance(SECOND).await;
    }
    assert_eq!(starts, 4, "the first start and three recoveries");
    assert_eq!(bench.state_name(id(1)).await, StateName::Dead);
}

async fn a_rescue_takes_kinds_nobody_here_knows(bench: Bench) {
    bench.accept([NewJob { kind: name("foreign"), ..job(1) }]).await;
    let mut foreign = claim(1);
    foreign.kinds = vec![KindClaim::new(name("foreign"))];
    bench.store.claim(foreign).await.expect("a claim is answered");
    bench.advance(Duration::from_secs(31)).await;
    assert_eq!(rescue(&bench, Recovery::default()).await, vec![(1, StateName::Scheduled)]);
}

async fn observing_tells_of_lost_workers_and_leaves_them(bench: Bench) {
    bench.accept([job(1)]).await;
    bench.take().await;
    bench.advance(Duration::from_secs(31)).await;
    let observe = Recovery { mode: RecoveryMode::Observe, ..Recovery::default() };
    for _ in 0..2 {
        assert!(rescue(&bench, observe).await.is_empty());
    }
    assert_eq!(bench.state_name(id(1)).await, StateName::Running);
    let topics = bench.topics().await;
    assert_eq!(topics.iter().filter(|t| **t == "recovery.detected").count(), 1, "{topics:?}");
}

async fn a_restart_takes_every_lease_at_once(bench: Bench) {
    bench.accept([job(1), job(2)]).await;
    bench.claim(2).await;
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::Restart };
    let rescued = bench.store.rescue(rescue).await.expect("it is answered");
    assert_eq!(rescued.jobs.len(), 2);
    bench.advance(SECOND).await;
    assert_eq!(bench.claim(2).await.jobs.len(), 2);
}

async fn ten_thousand_leases_are_all_rescued(bench: Bench) {
    bench.accept((1..=10_000).map(job)).await;
    assert_eq!(bench.claim(10_000).await.jobs.len(), 10_000);
    bench.advance(Duration::from_secs(30)).await;
    let mut rescued = 0;
    loop {
        let reason = RecoveryReason::LeaseExpired;
        let rescue = Rescue { recovery: Recovery::default(), reason };
        let answer = bench.store.rescue(rescue).await.expect("it is answered");
        rescued += answer.jobs.len();
        if !answer.more {
            break;
        }
    }
    assert_eq!(rescued, 10_000);
}
