//! What holds however many jobs one call is about.

use crate::store::StoreExt as _;
use std::num::NonZeroU32;
use std::time::Duration;

use windlass_core::event::EventKind;
use windlass_core::job::{
    DeadReason, Dependency, Lane, NewJob, OnFailure, Priority, Start, StateName, Unique,
    UniqueScope,
};
use windlass_core::ledger::{Acceptance, Claim, KindClaim, QueueChange, Settlement};
use windlass_core::limits::Limits;
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::refusal::Refusal;

use super::{Bench, Case, HOUR, SECOND, id, job, name, named_cases, refused};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        many_completions_in_one_call_release_all_their_dependents,
        a_key_outlives_history_for_its_window_and_no_longer,
        of_a_batch_with_one_key_the_first_stands_for_all,
        a_circle_is_found_however_it_closes,
        a_known_job_closes_no_circle,
        spread_jobs_of_one_batch_take_their_turns,
        a_place_in_a_lane_counts_what_is_ahead,
        who_follows_says_whom_it_followed,
        who_follows_counts_as_a_dead_letter,
        whoever_follows_into_death_is_told_to_whom_it_concerns,
        who_follows_gives_its_key_back,
        who_follows_leaves_its_lane,
        the_lane_of_a_job_that_goes_on_is_free_after_it,
        one_runs_in_a_lane_after_lanes_were_joined,
    ]
}

fn after(number: u128, on: u128) -> NewJob {
    let edge = Dependency { on: id(on), on_failure: OnFailure::Cascade };
    NewJob { depends_on: vec![edge], ..job(number) }
}

fn unique(number: u128, scope: UniqueScope, window: Option<Duration>) -> NewJob {
    NewJob { unique: Some(Unique { key: "k".to_string(), scope, window }), ..job(number) }
}

fn keyed(number: u128, key: &str) -> NewJob {
    NewJob { lane: Some(Lane::Key(key.to_string())), ..job(number) }
}

async fn lanes(bench: &Bench, lanes: u32) {
    let change = QueueChange::Lanes(NonZeroU32::new(lanes));
    bench.store.configure(name("default"), change).await.expect("it is configured");
}

/// Lets the one job that can start die with this error.
async fn die(bench: &Bench, error: &str) {
    let handed = bench.take().await;
    let verdict = Verdict::Bury(DeadReason::Permanent);
    let mut settlement = Settlement::new(handed.job.id, handed.lease.token, verdict);
    settlement.error = Some(ErrorText::new(error));
    let settled = bench.store.settle(vec![settlement]).await.expect("it is answered");
    settled[0].clone().expect("the lease is held");
}

async fn many_completions_in_one_call_release_all_their_dependents(bench: Bench) {
    const MANY: u128 = 300;
    bench.accept((1..=MANY).map(job)).await;
    bench.accept((1..=MANY).map(|number| after(1_000 + number, number))).await;
    let handed = bench.claim(1_000).await.jobs;
    assert_eq!(handed.len(), 300);
    let settlements =
        handed.iter().map(|job| Settlement::new(job.job.id, job.lease.token, Verdict::Complete));
    let answers = bench.store.settle(settlements.collect()).await.expect("it is answered");
    assert!(answers.iter().all(Result::is_ok));
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Blocked), 0);
    assert_eq!(counts.in_state(StateName::Ready), 300);
    assert_eq!(bench.claim(1_000).await.jobs.len(), 300, "each of them can start");
}

async fn a_key_outlives_history_for_its_window_and_no_longer(bench: Bench) {
    let limits = Limits { history_age: SECOND, ..Limits::default() };
    for (window, held) in [(Some(HOUR), true), (None, false)] {
        let bench = bench.with_limits(limits.clone()).await;
        bench.accept([unique(1, UniqueScope::Any, window)]).await;
        let handed = bench.take().await;
        bench.settle(&handed, Verdict::Complete).await;
        bench.advance(SECOND * 60).await;
        bench.store.promote().await.expect("it is answered");
        let answer = bench.enqueue([unique(2, UniqueScope::Any, window)]).await.expect("answered");
        if !held {
            // A key without an end goes with the job that holds it.
            assert_eq!(answer[0].acceptance, Acceptance::Accepted, "window {window:?}");
            bench.assert_unknown(id(1)).await;
            continue;
        }
        assert_eq!(answer[0].id, id(1), "window {window:?}");
        bench.advance(HOUR).await;
        bench.store.promote().await.expect("it is answered");
        bench.assert_unknown(id(1)).await;
        bench.accept([unique(2, UniqueScope::Any, window)]).await;
        assert_eq!(bench.state_name(id(2)).await, StateName::Ready);
    }
}

async fn of_a_batch_with_one_key_the_first_stands_for_all(bench: Bench) {
    let mut same = unique(2, UniqueScope::Open, None);
    same.payload = job(1).payload;
    let batch = [unique(1, UniqueScope::Open, None), same, unique(3, UniqueScope::Open, None)];
    let follows = after(4, 3);
    let answer = bench.enqueue(batch.into_iter().chain([follows])).await.expect("answered");
    let stands: Vec<_> = answer.iter().map(|each| (each.id, each.acceptance)).collect();
    let deduplicated = |payload_differs| Acceptance::Deduplicated { payload_differs };
    assert_eq!(
        stands,
        [
            (id(1), Acceptance::Accepted),
            (id(1), deduplicated(false)),
            (id(1), deduplicated(true)),
            (id(4), Acceptance::Accepted),
        ]
    );
    let record = bench.record(id(4)).await;
    assert_eq!(record.job.depends_on[0].on, id(1), "it waits for who stands there");
    let told = bench.topics().await;
    assert_eq!(told.iter().filter(|topic| *topic == "job.deduplicated").count(), 2);
}

async fn a_circle_is_found_however_it_closes(bench: Bench) {
    // 700 in a row, the first of which waits for the last.
    let row = (2..=700).map(|number| after(number, number - 1));
    let refusal = refused(bench.enqueue([after(1, 700)].into_iter().chain(row)).await);
    assert!(matches!(refusal, Refusal::DependencyCycle { .. }), "{refusal:?}");
    // The third stands for the first: so the second waits for the first, which waits for it.
    let first = NewJob { depends_on: after(1, 2).depends_on, ..unique(1, UniqueScope::Open, None) };
    let batch = [first, after(2, 3), unique(3, UniqueScope::Open, None)];
    let refusal = refused(bench.enqueue(batch).await);
    assert!(matches!(refusal, Refusal::DependencyCycle { .. }), "{refusal:?}");
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!(counts.totals().enqueued, 0, "nothing is left of them");
}

async fn a_known_job_closes_no_circle(bench: Bench) {
    bench.accept([job(1)]).await;
    // The same job by its id and its payload: what it is said to wait for now is of no account.
    let row = (2..=700).map(|number| after(number, number - 1));
    let answer = bench.enqueue([after(1, 700)].into_iter().chain(row)).await.expect("answered");
    assert_eq!(answer[0].acceptance, Acceptance::AlreadyAccepted);
    assert_eq!(answer[699].acceptance, Acceptance::Accepted);
}

async fn spread_jobs_of_one_batch_take_their_turns(bench: Bench) {
    lanes(&bench, 4).await;
    let spread = |number| NewJob { lane: Some(Lane::Spread), ..job(number) };
    let mut seen = Vec::new();
    for batch in [1..=6_u128, 7..=8] {
        let answer = bench.enqueue(batch.map(spread)).await.expect("it is answered");
        let places = answer.iter().map(|each| each.lane.expect("it has a lane"));
        seen.extend(places.map(|place| (place.lane, place.position)));
    }
    assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1)]);
}

async fn a_place_in_a_lane_counts_what_is_ahead(bench: Bench) {
    lanes(&bench, 1).await;
    bench.accept([keyed(1, "a"), keyed(2, "b"), keyed(3, "c")]).await;
    // The first has begun and waits for a time, the second runs.
    let first = bench.take().await;
    bench.settle(&first, Verdict::Retry(HOUR)).await;
    bench.take().await;
    let urgent = NewJob { priority: Priority(5), ..keyed(5, "e") };
    let later = NewJob { start: Start::After(HOUR), ..keyed(6, "f") };
    let batch = [keyed(4, "d"), urgent, later, keyed(7, "g")];
    let answer = bench.enqueue(batch).await.expect("it is answered");
    let places: Vec<_> =
        answer.iter().map(|each| each.lane.expect("it has a lane").position).collect();
    // Ready are then 5, 3, 4, 7 in this order; who waits for a time comes after all of them.
    assert_eq!(places, [3, 1, 5, 4]);
}

async fn who_follows_says_whom_it_followed(bench: Bench) {
    // Of the two ways to the fourth, that over the third counts: of dependents, the last goes on.
    let fourth = NewJob {
        depends_on: [2, 3].iter().flat_map(|on| after(4, *on).depends_on).collect(),
        ..job(4)
    };
    bench.accept([job(1), after(2, 1), after(3, 1), fourth, after(5, 4)]).await;
    die(&bench, "boom").await;
    let (root, events) =
        (id(1), bench.store.events(0, usize::MAX, Duration::ZERO).await.expect("answered"));
    for (number, on) in [(2, 1), (3, 1), (4, 3), (5, 4)] {
        let expected = match on {
            1 => format!("depends on job {root}, which is dead: boom"),
            _ => {
                let on = id(on);
                format!("depends on job {on}, which is dead because job {root} failed: boom")
            }
        };
        let told = events.iter().find_map(|event| match &event.what {
            EventKind::JobDead { error, .. } if event.job() == Some(id(number)) => error.clone(),
            _ => None,
        });
        assert_eq!(told.as_ref().map(ErrorText::as_str), Some(expected.as_str()), "job {number}");
        let kept = bench.record(id(number)).await.error;
        assert_eq!(kept.as_ref().map(ErrorText::as_str), Some(expected.as_str()), "job {number}");
    }
}

async fn who_follows_counts_as_a_dead_letter(bench: Bench) {
    let bench = bench.with_limits(Limits { dead_letters: 3, ..Limits::default() }).await;
    // Of a queue in which nobody else died.
    let first = NewJob { queue: name("another"), ..job(1) };
    bench.accept([first].into_iter().chain((2..=9).map(|number| after(number, 1)))).await;
    die(&bench, "boom").await;
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Dead), 1 + 3);
    let dropped = counts.queues.iter().map(|queue| queue.dead_letters_dropped).sum::<u64>();
    assert_eq!((counts.totals().dead, dropped), (9, 5));
    for number in 7..=9 {
        assert_eq!(bench.state_name(id(number)).await, StateName::Dead, "the oldest go first");
    }
}

async fn whoever_follows_into_death_is_told_to_whom_it_concerns(bench: Bench) {
    let change = QueueChange::OnDead(Some(name("alert")));
    bench.store.configure(name("default"), change).await.expect("it is configured");
    bench.accept([job(1), after(2, 1), after(3, 2)]).await;
    die(&bench, "boom").await;
    let kinds = vec![KindClaim::new(name("alert"))];
    let alerts = Claim { worker: "w".into(), queues: None, kinds, limit: 9, request: None };
    let alerts = bench.store.claim(alerts).await.expect("it is answered").jobs;
    let mut parents: Vec<_> = alerts.iter().map(|alert| alert.job.parent).collect();
    parents.sort_unstable();
    assert_eq!(parents, [1, 2, 3].map(|number| Some(id(number))));
}

async fn who_follows_gives_its_key_back(bench: Bench) {
    let second =
        NewJob { depends_on: after(2, 1).depends_on, ..unique(2, UniqueScope::Open, None) };
    bench.accept([job(1), second]).await;
    die(&bench, "boom").await;
    bench.accept([unique(3, UniqueScope::Open, None)]).await;
    assert_eq!(bench.state_name(id(3)).await, StateName::Ready);
}

async fn who_follows_leaves_its_lane(bench: Bench) {
    lanes(&bench, 1).await;
    bench.accept([job(1), NewJob { depends_on: after(2, 1).depends_on, ..keyed(2, "a") }]).await;
    die(&bench, "boom").await;
    let told = bench.topics().await;
    assert_eq!(told.iter().filter(|topic| *topic == "pool.empty").count(), 1, "{told:?}");
}

async fn the_lane_of_a_job_that_goes_on_is_free_after_it(bench: Bench) {
    bench.accept([keyed(1, "a"), keyed(2, "a")]).await;
    let first = bench.take().await;
    bench.settle(&first, Verdict::Snooze(HOUR)).await;
    bench.advance(HOUR).await;
    let again = bench.take().await;
    assert_eq!(again.job.id, id(1));
    bench.settle(&again, Verdict::Complete).await;
    assert_eq!(bench.take().await.job.id, id(2));
}

async fn one_runs_in_a_lane_after_lanes_were_joined(bench: Bench) {
    bench.accept([keyed(1, "a"), keyed(2, "b"), keyed(3, "c")]).await;
    let running = bench.claim(2).await.jobs;
    assert_eq!(running.len(), 2);
    lanes(&bench, 1).await;
    assert!(bench.claim(9).await.jobs.is_empty(), "two run in the only lane");
    bench.settle(&running[0], Verdict::Complete).await;
    assert!(bench.claim(9).await.jobs.is_empty(), "one still runs");
    bench.settle(&running[1], Verdict::Complete).await;
    assert_eq!(bench.take().await.job.id, id(3));
}
