//! What is kept of who acts: an audit entry in the commit of every change that names somebody.

use std::sync::Arc;

use windlass_core::audit::{Actor, AuditEntry};
use windlass_core::filter::Filter;
use windlass_core::job::{DeadReason, Dependency, NewJob, OnFailure, Start, StateName};
use windlass_core::ledger::QueueChange;
use windlass_core::limits::{self, Limits};
use windlass_core::object::{Address, ObjectStatus, Purge, Turn};
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;
use windlass_core::reserved::{self, WorkerOrder};

use super::{Bench, Case, SECOND, id, job, name, named_cases, refused};
use crate::store::{
    AlterJobs, AlterQueue, JobAction, ObjectFilter, QueueAction, Selection, StoreExt,
};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_change_of_jobs_by_somebody_is_kept_with_who_did_what_and_to_how_many,
        a_change_that_nobody_is_named_for_is_not_kept,
        a_refused_change_is_not_kept_as_done,
        a_graph_that_is_removed_and_a_job_that_is_replaced_are_kept,
        every_chunk_of_a_change_by_filter_and_of_a_clear_has_its_entry,
        a_setting_is_kept_if_it_changes,
        a_turn_by_somebody_is_kept_with_its_object,
        orders_and_values_are_kept_by_name_and_without_what_is_in_them,
        the_audit_trail_is_listed_the_latest_first_and_by_pages,
        the_audit_trail_is_bounded_and_the_oldest_goes,
        nobody_but_the_store_writes_the_audit_trail,
    ]
}

fn anna() -> Option<Actor> {
    Some(Actor::new("anna").and_then(|anna| anna.from("10.0.0.7")).expect("short text"))
}

fn these(jobs: impl IntoIterator<Item = u128>) -> Selection {
    Selection::Jobs(jobs.into_iter().map(id).collect())
}

/// Does something as anna, and says how many jobs it was done to.
async fn act(bench: &Bench, selection: Selection, action: JobAction) -> usize {
    let alter = AlterJobs { by: anna(), ..AlterJobs::new(selection, action) };
    let done = bench.store.alter(alter).await.expect("it is answered");
    done.iter().filter(|done| done.result.is_ok()).count()
}

async fn set(bench: &Bench, action: QueueAction) {
    let alter = AlterQueue { by: anna(), ..AlterQueue::new(name("default"), action) };
    bench.store.alter_queue(alter).await.expect("it is answered");
}

/// The audit trail, the latest first.
async fn entries(bench: &Bench) -> Vec<AuditEntry> {
    bench.store.audit(None, 1_000).await.expect("it is answered").entries
}

/// What the latest entry says was done, to what, with what, and to how many jobs.
async fn latest(bench: &Bench) -> (String, String, String, u64) {
    let AuditEntry { action, target, detail, jobs, .. } = entries(bench).await.remove(0);
    (action, target, detail, jobs)
}

fn said(action: &str, target: &str, detail: &str, jobs: u64) -> (String, String, String, u64) {
    (action.to_string(), target.to_string(), detail.to_string(), jobs)
}

fn after(number: u128, on: u128) -> NewJob {
    let on = Dependency { on: id(on), on_failure: OnFailure::Cascade };
    NewJob { depends_on: vec![on], ..job(number) }
}

async fn a_change_of_jobs_by_somebody_is_kept_with_who_did_what_and_to_how_many(bench: Bench) {
    bench.accept((1..=4).map(job)).await;
    bench.advance(SECOND).await;
    assert_eq!(act(&bench, these([1, 2]), JobAction::Cancel).await, 2);
    let entry = entries(&bench).await.remove(0);
    assert_eq!((entry.by.name(), entry.by.place()), ("anna", Some("10.0.0.7")));
    assert_eq!(entry.at, bench.record(id(1)).await.updated_at, "of the same moment");
    let target = format!("job:{} job:{}", id(1), id(2));
    assert_eq!(latest(&bench).await, said("cancel", &target, "", 2));
    act(&bench, these([1]), JobAction::Replay).await;
    assert_eq!(latest(&bench).await, said("replay", &format!("job:{}", id(1)), "", 1));
    act(&bench, these([2]), JobAction::Remove).await;
    assert_eq!(latest(&bench).await, said("remove", &format!("job:{}", id(2)), "", 1));
    act(&bench, these([3]), JobAction::Reschedule(Start::Now)).await;
    assert_eq!(latest(&bench).await, said("reschedule", &format!("job:{}", id(3)), "now", 1));
    let ready = Filter { states: vec![StateName::Ready], ..Filter::default() };
    act(&bench, Selection::Matching(ready), JobAction::Cancel).await;
    assert_eq!(latest(&bench).await, said("cancel", "state:ready", "", 3));
    assert_eq!(entries(&bench).await.len(), 5);
}

async fn a_change_that_nobody_is_named_for_is_not_kept(bench: Bench) {
    bench.accept((1..=2).map(job)).await;
    let cancel = AlterJobs::new(these([1]), JobAction::Cancel);
    bench.store.alter(cancel).await.expect("it is answered");
    bench.store.configure(name("default"), QueueChange::Pause).await.expect("it is answered");
    bench.store.clear(name("default")).await.expect("it is answered");
    bench.store.set_value("key", *b"x", 0, None).await.expect("it is answered");
    assert_eq!(entries(&bench).await, []);
}

async fn a_refused_change_is_not_kept_as_done(bench: Bench) {
    bench.accept((1..=2).map(job)).await;
    assert_eq!(act(&bench, these([1, 9]), JobAction::Replay).await, 0);
    assert_eq!(act(&bench, these([1]), JobAction::RemoveGraph).await, 0);
    let edited = JobAction::ReplayEdited(Arc::new(job(3)));
    assert_eq!(act(&bench, these([1]), edited).await, 0);
    let none = Filter { states: vec![StateName::Dead], ..Filter::default() };
    assert_eq!(act(&bench, Selection::Matching(none), JobAction::Replay).await, 0);
    let lane = QueueAction::Set(QueueChange::PauseLane(7));
    let lane = AlterQueue { by: anna(), ..AlterQueue::new(name("default"), lane) };
    refused(bench.store.alter_queue(lane).await);
    let address = Address::new(name("test"), name("things"), "a").expect("an address");
    let late = Turn { by: anna(), ..Turn::new(address.clone(), 7) };
    refused(bench.store.turn(late).await);
    let jobs =
        vec![Arc::new(NewJob { payload: vec![0; limits::PAYLOAD_BYTES + 1].into(), ..job(4) })];
    refused(bench.store.turn(Turn { by: anna(), jobs, ..Turn::new(address, 0) }).await);
    assert_eq!(entries(&bench).await, []);
    assert_eq!(act(&bench, these([1, 2, 9]), JobAction::Cancel).await, 2);
    assert_eq!(latest(&bench).await.3, 2, "of three one was refused");
}

async fn a_graph_that_is_removed_and_a_job_that_is_replaced_are_kept(bench: Bench) {
    bench.accept([job(1), after(2, 1), after(3, 2)]).await;
    let handed = bench.take().await;
    bench.settle(&handed, Verdict::Bury(DeadReason::Permanent)).await;
    let edited = JobAction::ReplayEdited(Arc::new(job(9)));
    assert_eq!(act(&bench, these([1]), edited).await, 1);
    let (one, nine) = (format!("job:{}", id(1)), format!("as job:{}", id(9)));
    assert_eq!(latest(&bench).await, said("replay_edited", &one, &nine, 1));
    assert_eq!(act(&bench, these([1]), JobAction::RemoveGraph).await, 1);
    assert_eq!(latest(&bench).await, said("remove_graph", &one, "", 3));
}

async fn every_chunk_of_a_change_by_filter_and_of_a_clear_has_its_entry(bench: Bench) {
    let most = limits::CHUNK_JOBS as u128;
    let all = most * 2 + 7;
    let counts = async |action: &str| {
        let entries = entries(&bench).await.into_iter().rev();
        let of_action = entries.filter(|entry| entry.action == action);
        of_action.map(|entry| u128::from(entry.jobs)).collect::<Vec<_>>()
    };
    bench.accept((1..=all).map(job)).await;
    let ready = Filter { states: vec![StateName::Ready], ..Filter::default() };
    act(&bench, Selection::Matching(ready), JobAction::Cancel).await;
    assert_eq!(counts("cancel").await, [most, most, 7]);
    let cancelled = Filter { states: vec![StateName::Cancelled], ..Filter::default() };
    act(&bench, Selection::Matching(cancelled), JobAction::Replay).await;
    assert_eq!(counts("replay").await.iter().sum::<u128>(), all);
    set(&bench, QueueAction::Clear).await;
    assert_eq!(counts("clear").await, [most, most, 7]);
    assert_eq!(latest(&bench).await, said("clear", "queue:default", "", 7));
    set(&bench, QueueAction::Clear).await;
    assert_eq!(counts("clear").await.len(), 3, "nothing was left to call off");
}

async fn a_setting_is_kept_if_it_changes(bench: Bench) {
    set(&bench, QueueAction::Set(QueueChange::Pause)).await;
    assert_eq!(latest(&bench).await, said("pause", "queue:default", "", 0));
    set(&bench, QueueAction::Set(QueueChange::Pause)).await;
    assert_eq!(entries(&bench).await.len(), 1, "it was paused already");
    set(&bench, QueueAction::Set(QueueChange::MaxDepth(Some(7)))).await;
    assert_eq!(latest(&bench).await, said("max_depth", "queue:default", "7", 0));
    set(&bench, QueueAction::Set(QueueChange::MaxDepth(None))).await;
    assert_eq!(latest(&bench).await, said("max_depth", "queue:default", "none", 0));
    set(&bench, QueueAction::Set(QueueChange::OnDead(Some(name("report"))))).await;
    assert_eq!(latest(&bench).await, said("on_dead", "queue:default", "report", 0));
}

async fn a_turn_by_somebody_is_kept_with_its_object(bench: Bench) {
    let address = Address::new(name("test"), name("things"), "a").expect("an address");
    let turn = |version| Turn { by: anna(), ..Turn::new(address.clone(), version) };
    let jobs = vec![Arc::new(job(1)), Arc::new(job(2))];
    bench.store.turn(Turn { jobs, ..turn(0) }).await.expect("it is made");
    assert_eq!(latest(&bench).await, said("turn", "object:test/things/a", "", 2));
    let status = Some((ObjectStatus::Stopped, None));
    bench.store.turn(Turn { status, ..turn(1) }).await.expect("it is made");
    assert_eq!(latest(&bench).await, said("turn", "object:test/things/a", "stopped", 0));
    bench.store.turn(Turn { purge: Purge::Now, ..turn(2) }).await.expect("it is made");
    assert_eq!(latest(&bench).await, said("purge", "object:test/things/a", "", 0));
}

async fn orders_and_values_are_kept_by_name_and_without_what_is_in_them(bench: Bench) {
    bench.store.order_worker("w", Some(WorkerOrder::Quiet), anna()).await.expect("answered");
    assert_eq!(latest(&bench).await, said("turn", "object:windlass.order/worker/w", "", 0));
    bench.store.order_worker("w", None, anna()).await.expect("answered");
    assert_eq!(latest(&bench).await, said("purge", "object:windlass.order/worker/w", "", 0));
    bench.store.set_value("secret", *b"hidden", 0, anna()).await.expect("answered");
    assert_eq!(latest(&bench).await, said("turn", "object:windlass.value/named/secret", "", 0));
    bench.store.set_value("secret", *b"late", 0, anna()).await.expect("answered");
    assert_eq!(entries(&bench).await.len(), 3, "a race that was lost changed nothing");
    bench.store.remove_value("secret", 1, anna()).await.expect("answered");
    assert_eq!(latest(&bench).await, said("purge", "object:windlass.value/named/secret", "", 0));
    let shown = format!("{:?}", entries(&bench).await);
    assert!(!shown.contains("hidden"), "{shown}");
}

async fn the_audit_trail_is_listed_the_latest_first_and_by_pages(bench: Bench) {
    bench.accept((1..=9).map(job)).await;
    for number in 1..=9 {
        // Some in one moment, as far as any clock knows.
        if number % 3 == 0 {
            bench.advance(SECOND).await;
        }
        act(&bench, these([number]), JobAction::Cancel).await;
    }
    let (mut seen, mut next) = (Vec::new(), None);
    loop {
        let page = bench.store.audit(next.as_ref(), 2).await.expect("it is answered");
        seen.extend(page.entries.into_iter().map(|entry| entry.target));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    let expected: Vec<String> = (1..=9).rev().map(|number| format!("job:{}", id(number))).collect();
    assert_eq!(seen, expected);
    let all = bench.store.list_objects(&ObjectFilter::default(), None, 10).await;
    assert!(all.expect("it is answered").objects.is_empty(), "no list of objects has them");
}

async fn the_audit_trail_is_bounded_and_the_oldest_goes(bench: Bench) {
    let bench = bench.with_limits(Limits { audit_entries: 3, ..Limits::default() }).await;
    bench.accept((1..=5).map(job)).await;
    for number in 1..=5 {
        bench.advance(SECOND).await;
        act(&bench, these([number]), JobAction::Cancel).await;
    }
    let targets = entries(&bench).await.into_iter().map(|entry| entry.target);
    let expected: Vec<String> = (3..=5).rev().map(|number| format!("job:{}", id(number))).collect();
    assert_eq!(targets.collect::<Vec<_>>(), expected);
}

async fn nobody_but_the_store_writes_the_audit_trail(bench: Bench) {
    bench.accept([job(1)]).await;
    act(&bench, these([1]), JobAction::Cancel).await;
    let filter = ObjectFilter { kind: Some(name(reserved::AUDIT)), ..ObjectFilter::default() };
    let page = bench.store.list_objects(&filter, None, 1).await.expect("it is answered");
    let entry = page.objects[0].record.address.clone();
    let forged = Address::new(name(reserved::AUDIT), name("entry"), "0").expect("an address");
    for turn in [
        Turn { state: Some(b"bob\n\ncancel\n\n\n1".to_vec().into()), ..Turn::new(forged, 0) },
        Turn {
            state: Some(b"bob\n\ncancel\n\n\n1".to_vec().into()),
            ..Turn::new(entry.clone(), 1)
        },
        Turn { purge: Purge::Now, ..Turn::new(entry, 1) },
    ] {
        let refusal = refused(bench.store.turn(turn).await);
        assert!(matches!(refusal, Refusal::OutOfBounds { .. }), "{refusal}");
    }
    let entries = entries(&bench).await;
    assert_eq!((entries.len(), entries[0].by.name()), (1, "anna"));
}
