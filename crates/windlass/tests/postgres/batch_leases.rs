//! Leases that cover their jobs: what befalls such a job from several sides at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use windlass::core::event::RecoveryReason;
use windlass::core::filter::Filter;
use windlass::core::job::LeaseToken;
use windlass::core::ledger::{CancelAnswer, QueueChange, Recovery, Renewal, Rescue, Settlement};
use windlass::core::outcome::Verdict;
use windlass::core::record::Report;
use windlass::store::{AlterJobs, ClaimedJob, JobAction, JobActionDone, Selection, StoreExt};
use windlass::{Engine, JobId, StateName};

use crate::common::{Dice, Ground, claim, count, name, raw, records, until};

/// A claim in SQL, for one whose commit is slow to come.
const CLAIM_TWO: &str = "select sum(cardinality(ids)) from s0.claim('slow', null, array['work'], \
     array[60000000::bigint], array[3::bigint], array[null::int], array[null::int], \
     array[null::bigint], array[null::int], 2, null)";

async fn accept(engine: &Engine, jobs: std::ops::RangeInclusive<u64>) -> Vec<JobId> {
    let jobs: Vec<_> = jobs.map(raw).collect();
    let ids = jobs.iter().map(|job| job.id).collect();
    engine.enqueue_raw(jobs).await.expect("the jobs are acceptable");
    ids
}

/// Lets a claim of two jobs be under way while `other` is asked for, and commits it when that
/// waits.
async fn while_a_claim_is_under_way<T: Send + 'static>(
    ground: &Ground,
    other: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut client = ground.client().await;
    let transaction = client.transaction().await.expect("it begins");
    let taken: i64 = transaction.query_one(CLAIM_TWO, &[]).await.expect("it is answered").get(0);
    assert_eq!(taken, 2);
    let other = tokio::spawn(other);
    until("it waits for the claim", || async { ground.waiting() == 1 }).await;
    assert!(!other.is_finished());
    transaction.commit().await.expect("it commits");
    other.await.expect("it ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_being_claimed_is_told_to_stop_and_not_taken_away() {
    let Some(ground) = Ground::new() else { return };
    let engine = ground.engines(1).await.remove(0);
    let jobs = accept(&engine, 1..=3).await;
    let store = engine.store().clone();
    let (second, third) = (jobs[1], jobs[2]);
    let cancelled = while_a_claim_is_under_way(&ground, async move {
        let jobs = Selection::Jobs(vec![second, third]);
        store.alter(AlterJobs::new(jobs, JobAction::Cancel)).await.expect("it is answered")
    })
    .await;
    assert_eq!(cancelled[0].result, Ok(JobActionDone::Cancel(CancelAnswer::Requested)));
    assert_eq!(cancelled[1].result, Ok(JobActionDone::Cancel(CancelAnswer::Cancelled)));
    assert_eq!(count(&engine, StateName::Running).await, 2);
    assert_eq!(count(&engine, StateName::Cancelled).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_sorted_anew_without_what_is_being_claimed() {
    let Some(ground) = Ground::new() else { return };
    let engine = ground.engines(1).await.remove(0);
    let jobs = accept(&engine, 1..=3).await;
    let store = engine.store().clone();
    while_a_claim_is_under_way(&ground, async move {
        let ageing = QueueChange::Ageing(Some(Duration::from_secs(1)));
        store.configure(name("default"), ageing).await.expect("it is answered");
    })
    .await;
    let handed = engine.store().claim(claim("late", 9)).await.expect("it is answered").jobs;
    assert_eq!(handed.iter().map(|handed| handed.job.id).collect::<Vec<_>>(), [jobs[2]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_with_the_last_of_its_jobs_whoever_settles_it() {
    let Some(ground) = Ground::new() else { return };
    let engine = ground.engines(1).await.remove(0);
    for round in 0..30 {
        accept(&engine, round * 100..=round * 100 + 99).await;
        let handed = engine.store().claim(claim("w", 100)).await.expect("it is answered").jobs;
        let ends = |part: usize| {
            let mine = handed.iter().skip(part).step_by(3);
            mine.map(|ClaimedJob { job, lease, .. }| {
                Settlement::new(job.id, lease.token, Verdict::Complete)
            })
            .collect()
        };
        let store = engine.store();
        let (one, two, three) =
            tokio::join!(store.settle(ends(0)), store.settle(ends(1)), store.settle(ends(2)));
        for answer in [one, two, three].into_iter().flat_map(|answer| answer.expect("it answers")) {
            assert_eq!(answer.expect("it is held").state, StateName::Completed);
        }
        assert_eq!(ground.sql("select count(*) from s0.lease"), "0", "in round {round}");
    }
}

const STORM_JOBS: u64 = 600;

/// What the sides of a storm know of each other: who is in whose hands.
type Hands = Arc<tokio::sync::Mutex<HashMap<JobId, LeaseToken>>>;

/// Claims in batches and ends them in pieces of any size, until nothing is open.
async fn work_off(engine: Engine, hands: Hands, mut dice: Dice) {
    let store = engine.store();
    loop {
        let limit = 1 + usize::try_from(dice.roll(40)).unwrap_or(1);
        let handed = store.claim(claim("w", limit)).await.expect("it is answered").jobs;
        for ClaimedJob { job, lease, .. } in &handed {
            hands.lock().await.insert(job.id, lease.token);
        }
        if handed.is_empty() && hands.lock().await.is_empty() {
            let open = [StateName::Ready, StateName::Scheduled, StateName::Running];
            let mut left = 0;
            for state in open {
                left += count(&engine, state).await;
            }
            if left == 0 {
                return;
            }
        }
        let mut ends = Vec::new();
        let sides = 1 + dice.roll(4);
        hands.lock().await.retain(|job, token| {
            let ends_now = dice.roll(sides) == 0;
            if ends_now {
                let verdict = match dice.roll(12) {
                    0 => Verdict::Release,
                    1 => Verdict::Retry(Duration::ZERO),
                    _ => Verdict::Complete,
                };
                ends.push(Settlement::new(*job, *token, verdict));
            }
            !ends_now
        });
        for answer in store.settle(ends).await.expect("it is answered") {
            answer.expect("nobody else settles");
        }
    }
}

/// Cancels, renews and lists at random, until told to stop.
async fn interfere(engine: Engine, hands: Hands, jobs: Vec<JobId>, mut dice: Dice) {
    let store = engine.store();
    loop {
        let any = jobs[usize::try_from(dice.roll(STORM_JOBS)).unwrap_or(0)];
        match dice.roll(4) {
            0 => {
                let altered = store
                    .alter(AlterJobs::new(Selection::Jobs(vec![any]), JobAction::Cancel))
                    .await;
                altered.expect("it is answered");
            }
            1 => {
                let filter = Filter { states: vec![StateName::Running], ..Filter::default() };
                store.list(&filter, None, 50).await.expect("it is answered");
            }
            2 => {
                store.find(&[any]).await.expect("it is answered");
            }
            _ => {
                let held: Vec<_> =
                    hands.lock().await.iter().take(5).map(|(job, token)| (*job, *token)).collect();
                let renewal = |(job, token)| Renewal {
                    job,
                    token,
                    lease: Duration::from_secs(60),
                    report: Report::default(),
                };
                // It may have been settled since.
                let renewals = held.into_iter().map(renewal).collect();
                drop(store.renew(renewals).await.expect("it is answered"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_storm_of_verbs_every_job_ends_once_and_no_lease_stays() {
    let Some(ground) = Ground::new() else { return };
    let seed = u64::from(std::process::id());
    let engines = ground.engines(3).await;
    let jobs = accept(&engines[0], 1..=STORM_JOBS).await;
    let hands = Hands::default();
    let mut others = JoinSet::new();
    for (number, engine) in engines.iter().enumerate().skip(1) {
        let dice = Dice::new(seed + number as u64);
        others.spawn(interfere(engine.clone(), hands.clone(), jobs.clone(), dice));
    }
    println!("seed {seed}");
    work_off(engines[0].clone(), hands, Dice::new(seed)).await;
    others.shutdown().await;
    for record in records(&engines[0], &jobs).await {
        let state = record.status.state.name();
        let ended = matches!(state, StateName::Completed | StateName::Cancelled);
        assert!(ended, "{} is {state} (seed {seed})", record.id());
    }
    let (completed, cancelled) = (
        count(&engines[0], StateName::Completed).await,
        count(&engines[0], StateName::Cancelled).await,
    );
    assert_eq!(completed + cancelled, STORM_JOBS, "seed {seed}");
    let ends = "select count(*) = count(distinct j) from s0.event e cross join unnest(e.jobs) j \
         where e.topic in ('job.completed', 'job.cancelled')";
    assert_eq!(ground.sql(ends), "t", "one ended twice (seed {seed})");
    assert_eq!(ground.sql("select count(*) from s0.ready"), "0", "seed {seed}");
    // What ended one by one is taken from its lease when somebody looks.
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    engines[0].store().rescue(rescue).await.expect("it is answered");
    assert_eq!(ground.sql("select count(*) from s0.lease"), "0", "seed {seed}");
}
