//! What lanes promise, and the jobs that queues ask for.

use std::num::NonZeroU32;
use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::explain::Reason;
use windlass_core::job::{DeadReason, Lane, NewJob, Priority, Start};
use windlass_core::ledger::{Claim, KindClaim, QueueChange, Recovery, Rescue};
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;

use super::{Bench, Case, HOUR, SECOND, id, job, name, named_cases, refused};
use crate::store::{ClaimedJob, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        jobs_of_one_key_run_one_at_a_time_and_in_order,
        jobs_of_different_keys_run_at_once,
        a_job_to_be_tried_again_holds_its_key_and_no_other,
        a_snoozed_and_a_released_job_hold_their_key,
        a_recovered_job_holds_its_key,
        an_urgent_job_overtakes_those_of_its_key_that_wait,
        a_delayed_job_joins_its_key_when_it_is_due,
        lanes_are_shared_by_keys_and_run_one_job_each,
        spread_jobs_take_the_lanes_in_turn,
        the_number_of_lanes_changes_under_waiting_and_running_jobs,
        a_full_lane_refuses_and_leaves_nothing_of_a_batch,
        a_paused_lane_starts_nothing_and_the_others_go_on,
        a_lane_that_does_not_exist_cannot_be_paused,
        lanes_are_counted_apart,
        explaining_a_job_of_a_lane_names_what_its_lane_waits_for,
        a_job_is_added_when_one_dies_however_it_dies,
        a_job_is_added_once_when_a_lane_becomes_empty,
    ]
}

fn keyed(number: u128, key: &str) -> NewJob {
    NewJob { lane: Some(Lane::Key(key.to_string())), ..job(number) }
}

fn spread(number: u128) -> NewJob {
    NewJob { lane: Some(Lane::Spread), ..job(number) }
}

async fn configure(bench: &Bench, change: QueueChange) {
    bench.store.configure(name("default"), change).await.expect("it can be set");
}

async fn lanes(bench: &Bench, lanes: u32) {
    configure(bench, QueueChange::Lanes(NonZeroU32::new(lanes))).await;
}

/// The numbers of the jobs that can be claimed now.
async fn claimable(bench: &Bench) -> Vec<ClaimedJob> {
    bench.claim(100).await.jobs
}

fn numbers(handed: &[ClaimedJob]) -> Vec<u128> {
    handed.iter().map(|handed| u128::from_be_bytes(handed.job.id.to_bytes())).collect()
}

async fn jobs_of_one_key_run_one_at_a_time_and_in_order(bench: Bench) {
    bench.accept((1..=5).map(|number| keyed(number, "k"))).await;
    for number in 1..=5 {
        let handed = claimable(&bench).await;
        assert_eq!(numbers(&handed), [number]);
        assert!(claimable(&bench).await.is_empty(), "one of the key runs");
        bench.accept([keyed(number + 5, "k")]).await;
        assert!(claimable(&bench).await.is_empty(), "whatever comes meanwhile");
        bench.settle(&handed[0], Verdict::Complete).await;
    }
}

async fn jobs_of_different_keys_run_at_once(bench: Bench) {
    bench.accept([keyed(1, "a"), keyed(2, "a"), keyed(3, "b"), job(4)]).await;
    assert_eq!(numbers(&claimable(&bench).await), [1, 3, 4]);
}

async fn a_job_to_be_tried_again_holds_its_key_and_no_other(bench: Bench) {
    lanes(&bench, 1).await;
    bench.accept([keyed(1, "a"), keyed(2, "a"), keyed(3, "b")]).await;
    let first = bench.take().await;
    bench.settle(&first, Verdict::Retry(HOUR)).await;
    bench.accept([keyed(4, "a")]).await;
    let other = bench.take().await;
    assert_eq!(numbers(std::slice::from_ref(&other)), [3], "key a waits, key b goes on");
    bench.settle(&other, Verdict::Complete).await;
    assert!(claimable(&bench).await.is_empty());
    bench.advance(HOUR).await;
    let again = bench.take().await;
    assert_eq!((again.job.id, again.attempt), (id(1), 2));
    bench.settle(&again, Verdict::Bury(DeadReason::Permanent)).await;
    assert_eq!(numbers(&claimable(&bench).await), [2]);
}

async fn a_snoozed_and_a_released_job_hold_their_key(bench: Bench) {
    bench.accept([keyed(1, "a"), keyed(2, "a")]).await;
    let first = bench.take().await;
    bench.settle(&first, Verdict::Snooze(HOUR)).await;
    assert!(claimable(&bench).await.is_empty(), "it has begun");
    bench.advance(HOUR).await;
    let first = bench.take().await;
    bench.settle(&first, Verdict::Release).await;
    assert_eq!(numbers(&claimable(&bench).await), [1]);
}

async fn a_recovered_job_holds_its_key(bench: Bench) {
    bench.accept([keyed(1, "a"), keyed(2, "a")]).await;
    bench.take().await;
    bench.advance(HOUR).await;
    let reason = RecoveryReason::LeaseExpired;
    let rescue = Rescue { recovery: Recovery::default(), reason };
    let rescued = bench.store.rescue(rescue).await.expect("it is answered");
    assert_eq!(rescued.jobs.len(), 1);
    assert_eq!(bench.record(id(1)).await.status.recoveries, 1);
    assert!(claimable(&bench).await.is_empty(), "it rests before it runs again");
    bench.advance(SECOND).await;
    assert_eq!(numbers(&claimable(&bench).await), [1]);
}

async fn an_urgent_job_overtakes_those_of_its_key_that_wait(bench: Bench) {
    let urgent = NewJob { priority: Priority::HIGH, ..keyed(3, "a") };
    bench.accept([keyed(1, "a"), keyed(2, "a")]).await;
    let first = bench.take().await;
    bench.accept([urgent]).await;
    bench.settle(&first, Verdict::Complete).await;
    assert_eq!(numbers(&claimable(&bench).await), [3]);
}

async fn a_delayed_job_joins_its_key_when_it_is_due(bench: Bench) {
    let late = NewJob { start: Start::After(HOUR), ..keyed(1, "a") };
    bench.accept([late, keyed(2, "a")]).await;
    let second = bench.take().await;
    assert_eq!(second.job.id, id(2), "what waits for a time holds up nobody");
    bench.advance(HOUR).await;
    assert!(claimable(&bench).await.is_empty(), "but does not overlap either");
    bench.settle(&second, Verdict::Complete).await;
    assert_eq!(numbers(&claimable(&bench).await), [1]);
}

async fn lanes_are_shared_by_keys_and_run_one_job_each(bench: Bench) {
    lanes(&bench, 3).await;
    bench.accept((1..=60).map(|number| keyed(number, &format!("key-{}", number % 20)))).await;
    let handed = claimable(&bench).await;
    assert_eq!(handed.len(), 3, "twenty keys fall into three lanes");
    assert!(claimable(&bench).await.is_empty());
}

async fn spread_jobs_take_the_lanes_in_turn(bench: Bench) {
    lanes(&bench, 4).await;
    let answers = bench.enqueue((1..=10).map(spread)).await.expect("accepted");
    let taken: Vec<u32> = answers.iter().filter_map(|a| a.lane).map(|place| place.lane).collect();
    assert_eq!(taken, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]);
    let ahead = answers.iter().filter_map(|answer| answer.lane).map(|place| place.position);
    assert_eq!(ahead.collect::<Vec<u64>>(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
}

async fn the_number_of_lanes_changes_under_waiting_and_running_jobs(bench: Bench) {
    lanes(&bench, 1).await;
    bench.accept((1..=16).map(|number| keyed(number, &format!("key-{}", number % 8)))).await;
    let running = bench.take().await;
    lanes(&bench, 64).await;
    let more = claimable(&bench).await;
    assert!(more.len() > 1 && more.len() < 8, "each key has two: {more:?}");
    lanes(&bench, 1).await;
    assert!(claimable(&bench).await.is_empty(), "its one lane is busy");
    for handed in more.iter().chain([&running]) {
        assert!(claimable(&bench).await.is_empty(), "until the last of them has ended");
        bench.settle(handed, Verdict::Complete).await;
    }
    assert_eq!(claimable(&bench).await.len(), 1);
}

async fn a_full_lane_refuses_and_leaves_nothing_of_a_batch(bench: Bench) {
    lanes(&bench, 2).await;
    configure(&bench, QueueChange::LaneDepth(Some(2))).await;
    let full = |depth| Refusal::LaneFull { queue: name("default"), lane: 0, depth, limit: 2 };
    assert_eq!(refused(bench.enqueue((1..=5).map(spread)).await), full(0), "by itself alone");
    bench.assert_unknown(id(1)).await;
    bench.accept((1..=4).map(spread)).await;
    assert_eq!(refused(bench.enqueue([job(5), spread(6)]).await), full(2));
    bench.assert_unknown(id(5)).await;
    let first = bench.take().await;
    bench.settle(&first, Verdict::Complete).await;
    bench.accept([spread(7)]).await;
}

async fn a_paused_lane_starts_nothing_and_the_others_go_on(bench: Bench) {
    lanes(&bench, 2).await;
    bench.accept((1..=4).map(spread)).await;
    configure(&bench, QueueChange::PauseLane(0)).await;
    assert_eq!(numbers(&claimable(&bench).await), [2]);
    configure(&bench, QueueChange::ResumeLane(0)).await;
    assert_eq!(numbers(&claimable(&bench).await), [1]);
}

async fn a_lane_that_does_not_exist_cannot_be_paused(bench: Bench) {
    lanes(&bench, 2).await;
    let answer = bench.store.configure(name("default"), QueueChange::PauseLane(2)).await;
    assert!(matches!(refused(answer), Refusal::OutOfBounds { what, .. } if what == "lane"));
}

async fn lanes_are_counted_apart(bench: Bench) {
    lanes(&bench, 2).await;
    bench.accept((1..=5).map(spread)).await;
    let handed = claimable(&bench).await;
    bench.settle(&handed[0], Verdict::Complete).await;
    let counts = bench.store.count().await.expect("it is answered");
    let queue = counts.queues.iter().find(|count| count.queue == name("default"));
    let lanes = queue.expect("it is there").lanes.clone();
    let seen: Vec<(u64, u64, u64)> =
        lanes.iter().map(|lane| (lane.waiting, lane.running, lane.totals.completed)).collect();
    assert_eq!(seen, [(2, 0, 1), (1, 1, 0)]);
}

/// Claims jobs of a kind that a queue has asked for.
async fn asked_for(bench: &Bench, kind: &str) -> Vec<String> {
    let kinds = vec![KindClaim::new(name(kind))];
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit: 100, request: None };
    let handed = bench.store.claim(claim).await.expect("a claim is answered");
    let text = |handed: &ClaimedJob| String::from_utf8_lossy(&handed.job.payload).into_owned();
    handed.jobs.iter().map(text).collect()
}

/// The last reason why a job is not running. The first is that no worker is here.
async fn last_reason(bench: &Bench, number: u128) -> Option<Reason> {
    bench.store.explain(id(number)).await.expect("it is answered").reasons.pop()
}

async fn explaining_a_job_of_a_lane_names_what_its_lane_waits_for(bench: Bench) {
    lanes(&bench, 1).await;
    bench.accept([keyed(1, "a"), keyed(2, "b"), keyed(3, "a")]).await;
    let nobody = Some(Reason::NoWorkerForKind { kind: name("work"), nearest: None });
    assert_eq!(last_reason(&bench, 1).await, nobody, "it is the first of its lane");
    let behind = Reason::BehindOthers { ahead: 2, at_least: false };
    assert_eq!(last_reason(&bench, 3).await, Some(behind));
    configure(&bench, QueueChange::PauseLane(0)).await;
    assert_eq!(last_reason(&bench, 1).await, Some(Reason::LanePaused { lane: 0 }));
    configure(&bench, QueueChange::ResumeLane(0)).await;
    let first = bench.take().await;
    assert_eq!(last_reason(&bench, 3).await, Some(Reason::LaneBusy { ahead: 1 }));
    bench.settle(&first, Verdict::Retry(HOUR)).await;
    assert_eq!(last_reason(&bench, 3).await, Some(Reason::BehindItsKey { job: id(1) }));
    assert_eq!(last_reason(&bench, 2).await, nobody, "another key goes on");
}

async fn a_job_is_added_when_one_dies_however_it_dies(bench: Bench) {
    configure(&bench, QueueChange::OnDead(Some(name("mourner")))).await;
    bench.accept([job(1), NewJob { max_attempts: Some(1), ..job(2) }]).await;
    let first = bench.take().await;
    bench.take().await;
    bench.settle(&first, Verdict::Bury(DeadReason::Permanent)).await;
    bench.advance(HOUR).await;
    let reason = RecoveryReason::LeaseExpired;
    let rescue = Rescue { recovery: Recovery::default(), reason };
    bench.store.rescue(rescue).await.expect("it is answered");
    let told = |number| format!("{{\"job\":\"{}\"}}", id(number));
    assert_eq!(asked_for(&bench, "mourner").await, [told(1), told(2)]);
}

async fn a_job_is_added_once_when_a_lane_becomes_empty(bench: Bench) {
    lanes(&bench, 2).await;
    configure(&bench, QueueChange::OnEmpty(Some(name("sweeper")))).await;
    bench.accept([spread(1), spread(2), spread(3)]).await;
    for _ in 0..3 {
        let handed = bench.take().await;
        bench.settle(&handed, Verdict::Complete).await;
    }
    let mut told = asked_for(&bench, "sweeper").await;
    told.sort();
    let expected = ["{\"lane\":0,\"completed\":2}", "{\"lane\":1,\"completed\":1}"];
    assert_eq!(told, expected);
    bench.advance(Duration::from_secs(1)).await;
    bench.store.promote().await.expect("it is answered");
    assert!(asked_for(&bench, "sweeper").await.is_empty(), "told once");
}
