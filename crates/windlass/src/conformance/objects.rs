//! What turns of objects promise.

use std::sync::Arc;

use windlass_core::event::RecoveryReason;
use windlass_core::job::{DeadReason, Lane, NewJob, Start, State, StateName};
use windlass_core::ledger::{Recovery, Rescue, Settlement};
use windlass_core::limits;
use windlass_core::object::{
    Address, Alarm, ObjectEvent, ObjectStatus, ObjectView, Purge, RunResult, Turn,
};
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::refusal::Refusal;

use super::{Bench, Case, HOUR, SECOND, id, job, name, named_cases, refused};
use crate::store::{AlterJobs, ClaimedJob, JobAction, ObjectFilter, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_turn_makes_state_alarm_jobs_and_news_in_one_commit,
        a_turn_for_another_version_is_refused_and_changes_nothing,
        a_turn_with_a_bad_job_changes_nothing,
        an_object_has_one_alarm_which_is_moved_replaced_and_called_off,
        an_alarm_is_moved_while_it_waits_and_left_alone_while_it_runs,
        an_outcome_and_its_turn_are_one_commit,
        a_refused_turn_leaves_the_attempt_unsettled,
        jobs_of_one_object_do_not_overlap,
        an_alarm_that_died_or_was_cancelled_fails_its_object,
        an_alarm_that_died_with_a_turn_leaves_its_object_to_the_turn,
        recoveries_are_counted_at_the_object_and_forgiven_by_success,
        a_purge_takes_the_alarm_and_everything_that_waits,
        an_object_is_purged_after_its_delay_unless_that_is_taken_back,
        a_delayed_purge_waits_for_the_last_open_job,
        a_job_of_an_unknown_object_is_refused,
        objects_are_listed_in_order_by_pages_and_by_what_they_are,
        a_state_beyond_its_bound_is_refused,
        a_purged_object_begins_anew,
        an_object_owns_its_jobs_and_not_those_of_the_one_before_it,
    ]
}

fn address(key: &str) -> Address {
    Address::new(name("test"), name("things"), key).expect("an address")
}

fn turn(key: &str, version: u64) -> Turn {
    Turn::new(address(key), version)
}

/// A job of the object with this key.
fn bound(number: u128, key: &str) -> NewJob {
    let lane = Some(Lane::Key(key.to_string()));
    NewJob { object: Some(address(key)), lane, ..job(number) }
}

fn alarm(number: u128, key: &str, start: Start) -> Alarm {
    Alarm::Set(Arc::new(NewJob { start, ..bound(number, key) }))
}

async fn make(bench: &Bench, turn: Turn) -> u64 {
    bench.store.turn(turn).await.expect("the turn is made").version
}

async fn find(bench: &Bench, key: &str) -> Option<ObjectView> {
    bench.store.object(&address(key)).await.expect("it is answered")
}

async fn view(bench: &Bench, key: &str) -> ObjectView {
    find(bench, key).await.expect("the object is there")
}

async fn a_turn_makes_state_alarm_jobs_and_news_in_one_commit(bench: Bench) {
    let news = vec![ObjectEvent { topic: name("test.born"), detail: "{}".to_string() }];
    let turn = Turn {
        state: Some(b"one".to_vec().into()),
        alarm: alarm(1, "a", Start::After(HOUR)),
        jobs: vec![Arc::new(job(2))],
        news,
        ..turn("a", 0)
    };
    let turned = bench.store.turn(turn).await.expect("the turn is made");
    assert_eq!((turned.version, turned.jobs.len()), (1, 1));
    let seen = view(&bench, "a").await;
    assert_eq!((&seen.record.state[..], seen.record.meta.alarm), (&b"one"[..], Some(id(1))));
    assert_eq!((seen.open_jobs, seen.record.meta.status), (1, ObjectStatus::Active));
    assert!(seen.alarm_at.is_some() && seen.executing_since.is_none());
    assert_eq!(bench.state_name(id(2)).await, StateName::Ready);
    let topics = bench.topics().await;
    let expected = ["object.created", "test.born"];
    assert!(expected.iter().all(|topic| topics.iter().any(|told| told == topic)), "{topics:?}");
}

async fn a_turn_for_another_version_is_refused_and_changes_nothing(bench: Bench) {
    let first = Turn { state: Some(b"one".to_vec().into()), ..turn("a", 0) };
    assert_eq!(make(&bench, first).await, 1);
    for version in [0, 2] {
        let jobs = vec![Arc::new(job(9))];
        let stale = Turn { state: Some(b"two".to_vec().into()), jobs, ..turn("a", version) };
        let refusal = refused(bench.store.turn(stale).await);
        assert_eq!(refusal, Refusal::ObjectChanged { object: address("a"), version: 1 });
    }
    assert_eq!(&view(&bench, "a").await.record.state[..], b"one");
    bench.assert_unknown(id(9)).await;
}

async fn a_turn_with_a_bad_job_changes_nothing(bench: Bench) {
    let large = vec![0; limits::PAYLOAD_BYTES + 1];
    let bad = NewJob { payload: large.into(), ..job(1) };
    let turn = Turn { jobs: vec![Arc::new(bad)], ..turn("a", 0) };
    assert!(matches!(refused(bench.store.turn(turn).await), Refusal::OutOfBounds { .. }));
    assert!(find(&bench, "a").await.is_none());
}

async fn an_object_has_one_alarm_which_is_moved_replaced_and_called_off(bench: Bench) {
    make(&bench, Turn { alarm: alarm(1, "a", Start::After(HOUR)), ..turn("a", 0) }).await;
    let first = view(&bench, "a").await.alarm_at;
    // The same kind and payload: the alarm that is there is moved.
    let same = NewJob { start: Start::After(HOUR * 2), ..bound(1, "a") };
    let moved = NewJob { id: id(2), ..same };
    make(&bench, Turn { alarm: Alarm::Set(Arc::new(moved)), ..turn("a", 1) }).await;
    let seen = view(&bench, "a").await;
    assert_eq!((seen.record.meta.alarm, seen.open_jobs), (Some(id(1)), 1));
    assert!(seen.alarm_at > first, "{seen:?}");
    bench.assert_unknown(id(2)).await;
    // Another payload: it is replaced.
    make(&bench, Turn { alarm: alarm(3, "a", Start::After(HOUR)), ..turn("a", 2) }).await;
    let seen = view(&bench, "a").await;
    assert_eq!((seen.record.meta.alarm, seen.open_jobs), (Some(id(3)), 1));
    bench.assert_unknown(id(1)).await;
    make(&bench, Turn { alarm: Alarm::Cancel, ..turn("a", 3) }).await;
    let seen = view(&bench, "a").await;
    assert_eq!((seen.record.meta.alarm, seen.alarm_at, seen.open_jobs), (None, None, 0));
    assert_eq!(seen.record.meta.status, ObjectStatus::Active, "called off by its own turn");
}

async fn an_alarm_is_moved_while_it_waits_and_left_alone_while_it_runs(bench: Bench) {
    let none = Turn { alarm: Alarm::Move(Start::Now), ..turn("a", 0) };
    make(&bench, none).await;
    assert_eq!(view(&bench, "a").await.record.meta.alarm, None, "there was none to move");
    make(&bench, Turn { alarm: alarm(1, "a", Start::After(HOUR)), ..turn("a", 1) }).await;
    make(&bench, Turn { alarm: Alarm::Move(Start::Now), ..turn("a", 2) }).await;
    let handed = bench.take().await;
    assert_eq!(handed.job.id, id(1));
    make(&bench, Turn { alarm: Alarm::Move(Start::After(HOUR)), ..turn("a", 3) }).await;
    assert_eq!(bench.state_name(id(1)).await, StateName::Running);
    bench.settle(&handed, Verdict::Retry(HOUR)).await;
    make(&bench, Turn { alarm: Alarm::Move(Start::Now), ..turn("a", 4) }).await;
    let handed = bench.take().await;
    assert_eq!(handed.attempt, 2, "a retry is moved too");
    make(&bench, Turn { alarm: alarm(2, "a", Start::After(HOUR)), ..turn("a", 5) }).await;
    assert_eq!(view(&bench, "a").await.record.meta.alarm, Some(id(2)), "its successor");
    let State::Running(lease) = bench.state(id(1)).await else { panic!("it runs") };
    assert!(!lease.cancel_requested, "and the one that runs goes on");
}

fn settled_with(handed: &ClaimedJob, verdict: Verdict, turn: Turn) -> Settlement {
    let settlement = Settlement::new(handed.job.id, handed.lease.token, verdict);
    Settlement { turn: Some(Box::new(turn)), ..settlement }
}

async fn an_outcome_and_its_turn_are_one_commit(bench: Bench) {
    make(&bench, Turn { alarm: alarm(1, "a", Start::Now), ..turn("a", 0) }).await;
    let handed = bench.take().await;
    let seen = view(&bench, "a").await;
    assert!(seen.executing_since.is_some() && seen.alarm_at.is_none());
    let next = Turn {
        state: Some(b"ran".to_vec().into()),
        ran: Some(RunResult::Well),
        alarm: alarm(2, "a", Start::After(HOUR)),
        ..turn("a", 1)
    };
    let settlement = settled_with(&handed, Verdict::Complete, next);
    let answers = bench.store.settle(vec![settlement]).await.expect("it is answered");
    assert!(answers[0].is_ok(), "{answers:?}");
    let seen = view(&bench, "a").await;
    assert_eq!((&seen.record.state[..], seen.record.meta.runs), (&b"ran"[..], 1));
    assert_eq!((seen.record.meta.alarm, seen.open_jobs), (Some(id(2)), 1));
    assert!(seen.record.meta.last_success_at.is_some());
    assert_eq!(bench.state_name(id(1)).await, StateName::Completed);
}

async fn a_refused_turn_leaves_the_attempt_unsettled(bench: Bench) {
    make(&bench, Turn { alarm: alarm(1, "a", Start::Now), ..turn("a", 0) }).await;
    let handed = bench.take().await;
    let stale = settled_with(&handed, Verdict::Complete, turn("a", 7));
    let answers = bench.store.settle(vec![stale]).await.expect("it is answered");
    let expected = Refusal::ObjectChanged { object: address("a"), version: 1 };
    assert_eq!(answers, [Err(expected)]);
    assert_eq!(bench.state_name(id(1)).await, StateName::Running);
    let right = settled_with(&handed, Verdict::Complete, turn("a", 1));
    let answers = bench.store.settle(vec![right]).await.expect("it is answered");
    assert!(answers[0].is_ok(), "{answers:?}");
}

async fn jobs_of_one_object_do_not_overlap(bench: Bench) {
    let jobs = (1..=3).map(|number| Arc::new(bound(number, "a"))).collect();
    make(&bench, Turn { jobs, ..turn("a", 0) }).await;
    let handed = bench.claim(10).await.jobs;
    assert_eq!(handed.len(), 1);
    assert_eq!(view(&bench, "a").await.open_jobs, 3);
    bench.accept([bound(4, "a")]).await;
    assert!(bench.claim(10).await.jobs.is_empty(), "one that comes meanwhile waits too");
}

async fn an_alarm_that_died_or_was_cancelled_fails_its_object(bench: Bench) {
    make(&bench, Turn { alarm: alarm(1, "a", Start::Now), ..turn("a", 0) }).await;
    make(&bench, Turn { alarm: alarm(2, "b", Start::After(HOUR)), ..turn("b", 0) }).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    let cancel = Selection::Jobs(vec![id(2)]);
    bench.store.alter(AlterJobs::new(cancel, JobAction::Cancel)).await.expect("it is answered");
    for key in ["a", "b"] {
        let seen = view(&bench, key).await;
        assert_eq!((seen.record.meta.status, seen.record.meta.alarm), (ObjectStatus::Failed, None));
        assert!(seen.record.meta.reason.is_some(), "it says why");
    }
    assert!(bench.topics().await.iter().any(|topic| topic == "test.failed"));
}

async fn an_alarm_that_died_with_a_turn_leaves_its_object_to_the_turn(bench: Bench) {
    make(&bench, Turn { alarm: alarm(1, "a", Start::Now), ..turn("a", 0) }).await;
    let handed = bench.take().await;
    let verdict = Verdict::Bury(DeadReason::Permanent);
    let settlement =
        settled_with(&handed, verdict, Turn { ran: Some(RunResult::Badly), ..turn("a", 1) });
    bench.store.settle(vec![settlement]).await.expect("it is answered");
    let meta = view(&bench, "a").await.record.meta;
    assert_eq!((meta.status, meta.failures), (ObjectStatus::Active, 1), "it said nothing else");
    assert_eq!((meta.alarm, meta.version), (None, 2));
}

async fn recoveries_are_counted_at_the_object_and_forgiven_by_success(bench: Bench) {
    make(&bench, Turn { alarm: alarm(1, "a", Start::Now), ..turn("a", 0) }).await;
    bench.take().await;
    bench.advance(HOUR).await;
    let reason = RecoveryReason::LeaseExpired;
    let rescue = Rescue { recovery: Recovery::default(), reason };
    bench.store.rescue(rescue).await.expect("it is answered");
    let seen = view(&bench, "a").await;
    assert_eq!(seen.record.meta.recoveries, 1);
    assert!(seen.record.meta.last_recovery_at.is_some());
    assert!(bench.topics().await.iter().any(|topic| topic == "test.recovered"));
    bench.advance(SECOND).await;
    let handed = bench.take().await;
    let well = Turn { ran: Some(RunResult::Well), ..turn("a", seen.record.meta.version) };
    let settlement = settled_with(&handed, Verdict::Complete, well);
    bench.store.settle(vec![settlement]).await.expect("it is answered");
    let seen = view(&bench, "a").await;
    assert_eq!((seen.record.meta.recoveries, seen.record.meta.runs), (0, 1));
}

async fn a_purge_takes_the_alarm_and_everything_that_waits(bench: Bench) {
    let jobs = vec![Arc::new(bound(2, "a")), Arc::new(bound(3, "a"))];
    let alarm = alarm(1, "a", Start::After(HOUR));
    make(&bench, Turn { alarm, jobs, ..turn("a", 0) }).await;
    let handed = bench.take().await;
    assert_eq!(make(&bench, Turn { purge: Purge::Now, ..turn("a", 1) }).await, 0);
    assert!(find(&bench, "a").await.is_none());
    bench.assert_unknown(id(1)).await;
    bench.assert_unknown(id(3)).await;
    assert_eq!(handed.job.id, id(2));
    assert_eq!(bench.state_name(id(2)).await, StateName::Running, "what runs is told to stop");
    assert_eq!(bench.settle(&handed, Verdict::Retry(SECOND)).await, StateName::Cancelled);
}

async fn an_object_is_purged_after_its_delay_unless_that_is_taken_back(bench: Bench) {
    for key in ["a", "b"] {
        make(&bench, Turn { purge: Purge::After(HOUR), ..turn(key, 0) }).await;
    }
    make(&bench, Turn { purge: Purge::Never, ..turn("b", 1) }).await;
    bench.advance(HOUR - SECOND).await;
    bench.store.promote().await.expect("it is answered");
    assert!(find(&bench, "a").await.is_some(), "not before its time");
    bench.advance(SECOND).await;
    assert_eq!(bench.store.promote().await.expect("it is answered").purged, 1);
    assert!(find(&bench, "a").await.is_none());
    assert!(find(&bench, "b").await.is_some());
}

async fn a_delayed_purge_waits_for_the_last_open_job(bench: Bench) {
    let jobs = vec![Arc::new(bound(1, "a"))];
    make(&bench, Turn { purge: Purge::After(SECOND), jobs, ..turn("a", 0) }).await;
    let handed = bench.take().await;
    bench.advance(SECOND).await;
    assert_eq!(bench.store.promote().await.expect("it is answered").purged, 0);
    bench.settle(&handed, Verdict::Complete).await;
    assert_eq!(bench.store.promote().await.expect("it is answered").purged, 1);
    assert!(find(&bench, "a").await.is_none());
}

async fn a_job_of_an_unknown_object_is_refused(bench: Bench) {
    let unknown = Refusal::UnknownObject { object: address("a") };
    assert_eq!(refused(bench.enqueue([bound(1, "a")]).await), unknown);
    make(&bench, turn("a", 0)).await;
    let turn = Turn { jobs: vec![Arc::new(bound(1, "a"))], ..turn("b", 0) };
    assert_eq!(refused(bench.store.turn(turn).await), unknown, "a turn is of one object");
    assert!(find(&bench, "b").await.is_none());
}

async fn objects_are_listed_in_order_by_pages_and_by_what_they_are(bench: Bench) {
    for key in ["c", "a", "b"] {
        make(&bench, turn(key, 0)).await;
    }
    let status = Some((ObjectStatus::Stopped, Some(ErrorText::new("enough"))));
    make(&bench, Turn { status, ..turn("b", 1) }).await;
    let all = ObjectFilter::default();
    let list = |filter: ObjectFilter, after: Option<Address>, limit: usize| {
        let store = bench.store.clone();
        async move {
            let page = store.list_objects(&filter, after.as_ref(), limit).await.expect("answered");
            let keys = page.objects.iter().map(|seen| seen.record.address.key().to_string());
            (keys.collect::<Vec<_>>(), page.next)
        }
    };
    let (keys, next) = list(all.clone(), None, 2).await;
    assert_eq!((keys, next.clone()), (vec!["a".to_string(), "b".to_string()], Some(address("b"))));
    assert_eq!(list(all, next, 2).await, (vec!["c".to_string()], None));
    let stopped = ObjectFilter { status: Some(ObjectStatus::Stopped), ..ObjectFilter::default() };
    assert_eq!(list(stopped, None, 10).await.0, ["b"]);
    let other = ObjectFilter { kind: Some(name("other")), ..ObjectFilter::default() };
    assert!(list(other, None, 10).await.0.is_empty());
}

async fn a_state_beyond_its_bound_is_refused(bench: Bench) {
    let large = vec![0; limits::OBJECT_STATE_BYTES + 1];
    let turn = Turn { state: Some(large.into()), ..turn("a", 0) };
    assert!(matches!(refused(bench.store.turn(turn).await), Refusal::OutOfBounds { .. }));
    assert!(find(&bench, "a").await.is_none());
}

async fn a_purged_object_begins_anew(bench: Bench) {
    let first =
        Turn { state: Some(b"one".to_vec().into()), ran: Some(RunResult::Well), ..turn("a", 0) };
    make(&bench, first).await;
    make(&bench, Turn { purge: Purge::Now, ..turn("a", 1) }).await;
    assert_eq!(make(&bench, turn("a", 0)).await, 1);
    let seen = view(&bench, "a").await;
    assert_eq!((seen.record.meta.runs, seen.record.state.len()), (0, 0));
}

async fn an_object_owns_its_jobs_and_not_those_of_the_one_before_it(bench: Bench) {
    let owns =
        async |handed: &ClaimedJob| view(&bench, "a").await.record.meta.owns(handed.sequence);
    make(&bench, Turn { jobs: vec![Arc::new(bound(1, "a"))], ..turn("a", 0) }).await;
    let first = bench.take().await;
    bench.accept([bound(2, "a")]).await;
    assert!(owns(&first).await, "a job that came with the object");
    make(&bench, Turn { purge: Purge::Now, ..turn("a", 1) }).await;
    // In the same instant, as far as any clock knows.
    make(&bench, Turn { alarm: alarm(3, "a", Start::Now), ..turn("a", 0) }).await;
    bench.accept([bound(4, "a")]).await;
    make(&bench, turn("a", 1)).await;
    assert!(!owns(&first).await, "a job of the object before it");
    bench.settle(&first, Verdict::Complete).await;
    for number in [3, 4] {
        let handed = bench.take().await;
        assert_eq!(handed.job.id, id(number));
        assert!(owns(&handed).await, "job {number}");
        bench.settle(&handed, Verdict::Complete).await;
    }
}
