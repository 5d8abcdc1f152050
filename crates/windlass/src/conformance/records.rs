//! What is kept of a job and told about it.

use std::time::Duration;

use windlass_core::event::{RecoveryReason, What};
use windlass_core::job::{JobId, NewJob, State};
use windlass_core::ledger::{Recovery, Rescue};
use windlass_core::outcome::Verdict;
use windlass_core::record::AttemptEnd;
use windlass_core::retry::Retry;

use super::{Bench, Case, SECOND, id, job, named_cases};

pub(super) fn cases() -> Vec<Case> {
    named_cases![a_recovery_is_told_and_recorded_with_its_reason_and_time]
}

impl Bench {
    /// What was told of a job, in order.
    async fn told(&self, job: JobId) -> Vec<What> {
        let events = self.store.events(0, usize::MAX).await.expect("events are answered");
        let of_job = events.iter().filter(|event| event.job() == Some(job));
        of_job.map(|event| event.what.clone()).collect()
    }

    /// The reasons of recovery that were told of a job, with the topics that told them.
    async fn recoveries_told(&self, job: JobId) -> Vec<(String, RecoveryReason)> {
        let told = self.told(job).await;
        let reason = |what: &What| Some((what.topic().to_string(), what.recovery()?));
        told.iter().filter_map(reason).collect()
    }

    /// How the last attempt of a job ended.
    async fn last_end(&self, job: JobId) -> AttemptEnd {
        let record = self.record(job).await;
        record.attempts.back().expect("it has begun").ended.expect("it has ended").1
    }

    async fn rescue_as(&self, reason: RecoveryReason, max_recoveries: u32) {
        let recovery = Recovery { max_recoveries, ..Recovery::default() };
        let rescued = self.store.rescue(Rescue { recovery, reason }).await;
        assert_eq!(rescued.expect("it is answered").jobs.len(), 1);
    }
}

async fn a_recovery_is_told_and_recorded_with_its_reason_and_time(bench: Bench) {
    // Alone in its lane, so that a database cannot recover it together with others.
    let lane = Some(windlass_core::job::Lane::Key("one".to_string()));
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
        assert_eq!(record.condition.recoveries, recovery);
        let stale_for = ended.since(handed.lease.since);
        assert!(stale_for >= Duration::from_secs(31), "{stale_for:?}");
        let attempt = handed.attempt;
        let told = bench.told(job).await;
        let recovered = What::JobRecovered { reason, attempt, recovery, stale_for };
        assert_eq!(told.last(), Some(&recovered));
        assert!(told.contains(&What::RecoveryDetected { reason, attempt, stale_for }), "{told:?}");
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

    let replayed = bench.store.alter(
        crate::store::Selection::Jobs(vec![job]),
        crate::store::Alteration::Replay,
    );
    assert!(replayed.await.expect("it is answered")[0].result.is_ok());
    assert_eq!(bench.last_end(job).await, AttemptEnd::Crashed(limit), "the attempt is kept");
    bench.settle(&bench.take().await, Verdict::Complete).await;
    let record = bench.record(job).await;
    let State::Completed { at } = record.condition.state else { panic!("{record:?}") };
    assert_eq!(record.last_success_at(), Some(at));
    assert_eq!(record.last_recovery_at, last_recovery, "success and replay leave it");
    assert_eq!(record.condition.recoveries, 0);
}
