//! A ledger that is rebuilt from what a store kept is the one that was lost, wherever the store
//! compacted its journal.
//!
//! Each test is a short story. After every command of it, the journal is compacted at every place
//! where it could be, in both ways, and the ledger rebuilt from what is left must be equal to it.
//! The model test does this with random stories; those here are the ones that are easy to get
//! wrong, by name.

#[path = "model/journal.rs"]
mod journal;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::audit::{Actor, AuditNote};
use windlass_core::filter::Filter;
use windlass_core::job::{
    DeadReason, Dependency, JobId, JobStatus, LeaseToken, NewJob, OnFailure, Start, State,
    StateName, Unique, UniqueScope,
};
use windlass_core::ledger::{
    Acceptance, Alter, Cancel, Claim, Clear, Command, Configure, Counts, Enqueue, Heartbeat,
    JobAction, JobSummary, KindClaim, Ledger, Promote, QueueChange, Remove, Replay, ReplayEdited,
    Restore, Settle, Settlement, WorkerInfo, WorkerReport,
};
use windlass_core::limits::{self, Limits};
use windlass_core::name::Name;
use windlass_core::object::{Purge, Turn};
use windlass_core::outcome::Verdict;
use windlass_core::rate::Rate;
use windlass_core::record::{Accepted, Change, JobRecord, NextIds, RecordLocation};
use windlass_core::refusal::Refusal;
use windlass_core::reserved;
use windlass_core::time::{Now, Steady, Timestamp};

use crate::journal::Journal;

const SECOND: Duration = Duration::from_secs(1);

fn small() -> Limits {
    Limits { dead_letters: 3, ..Limits::default() }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a proper name")
}

fn id(number: u32) -> JobId {
    JobId::from_u128(u128::from(number))
}

fn job(number: u32) -> NewJob {
    NewJob::new(id(number), name("mail"), name("east"), Vec::new())
}

fn enqueue(jobs: impl IntoIterator<Item = NewJob>) -> Enqueue {
    Enqueue { jobs: jobs.into_iter().map(Arc::new).collect() }
}

fn after(number: u32, on: &[(u32, OnFailure)]) -> NewJob {
    let edge =
        |(on, on_failure): &(u32, OnFailure)| Dependency { on: id(*on), on_failure: *on_failure };
    NewJob { depends_on: on.iter().map(edge).collect(), ..job(number) }
}

fn unique(number: u32, scope: UniqueScope, window: Option<Duration>) -> NewJob {
    NewJob { unique: Some(Unique { key: "order-7".into(), scope, window }), ..job(number) }
}

/// A ledger, and what a store keeps of it.
struct Story {
    ledger: Ledger,
    journal: Journal,
    records: BTreeMap<JobId, JobRecord>,
    now: Now,
}

impl Story {
    fn new() -> Self {
        let wall = Timestamp::from_millis(1_800_000_000_000);
        Self {
            ledger: Ledger::new(small()),
            journal: Journal::default(),
            records: BTreeMap::new(),
            now: Now { wall, steady: Steady::default() },
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { wall: self.now.wall + time, steady: self.now.steady + time };
    }

    /// Applies a command, keeps what it caused, and compares every ledger that could come back.
    fn tell<C: Command + Debug>(&mut self, command: C) -> C::Reply {
        let told = format!("{command:?}");
        self.try_tell(command).unwrap_or_else(|refusal| panic!("{told}: {refusal}"))
    }

    fn try_tell<C: Command + Debug>(&mut self, command: C) -> Result<C::Reply, Refusal> {
        let told = format!("{command:?}");
        let applied = self.ledger.apply(command, self.now);
        for change in &applied.changes {
            match change {
                Change::Insert(accepted) => {
                    self.records.insert(accepted.job.id, JobRecord::new(accepted));
                }
                Change::Update(update) => {
                    let record = self.records.get_mut(&update.job);
                    record.expect("an update follows its insert").absorb(update);
                }
                Change::Remove { job } => {
                    self.records.remove(job);
                }
                Change::Queue { .. }
                | Change::Rate { .. }
                | Change::QueueKind { .. }
                | Change::Lane { .. }
                | Change::Object(_)
                | Change::ObjectGone { .. } => {}
            }
        }
        self.journal.write(&applied.changes, &mut self.ledger);
        let places = 0..=self.journal.len();
        let spans = places.clone().flat_map(|to| (0..=to).map(move |from| from..to));
        for span in spans {
            for all in [false, true] {
                let when = format!("compacted {span:?}, all: {all}, after {told}");
                let mut journal = self.journal.clone();
                journal.compact(span.clone(), all, &self.records, &mut self.ledger);
                self.compare(journal.restore(small()), &when);
            }
        }
        applied.reply
    }

    fn compare(&mut self, mut back: Ledger, when: &str) {
        assert_eq!(back.next_ids(), self.ledger.next_ids(), "{when}");
        back.glance(self.now);
        assert_eq!(back.check(), Vec::<String>::new(), "{when}");
        assert_eq!(back.dump(), self.ledger.dump(), "{when}");
        // Workers say by themselves that they live.
        let now = self.now;
        let counted = |ledger: &mut Ledger| Counts { workers: Vec::new(), ..ledger.counts(now) };
        assert_eq!(counted(&mut back), counted(&mut self.ledger), "{when}");
    }

    fn enqueue(&mut self, job: NewJob) -> Acceptance {
        self.tell(enqueue([job])).remove(0).acceptance
    }

    /// A worker takes everything that is ready.
    fn start(&mut self) -> Vec<JobId> {
        let kinds = vec![KindClaim::new(name("mail"))];
        let claim = Claim { worker: "anna".into(), queues: None, kinds, limit: 100, request: None };
        self.tell(claim).jobs.into_iter().map(|claimed| claimed.id).collect()
    }

    fn token(&self, number: u32) -> LeaseToken {
        let status = self.ledger.status_of(id(number)).expect("it is kept");
        let State::Running(lease) = status.state else { panic!("{number} does not run") };
        lease.token
    }

    fn settle(&mut self, number: u32, verdict: Verdict) {
        let settlements = vec![Settlement::new(id(number), self.token(number), verdict)];
        self.tell(Settle { settlements }).remove(0).expect("the lease is held");
    }

    fn bury(&mut self, number: u32) {
        self.settle(number, Verdict::Bury(DeadReason::Permanent));
    }

    fn replay(&mut self, number: u32) {
        self.tell(Replay { jobs: vec![id(number)] }).remove(0).1.expect("it can be replayed");
    }

    fn remove(&mut self, number: u32) {
        self.tell(Remove { jobs: vec![id(number)] }).remove(0).expect("it has finished");
    }

    fn state(&self, number: u32) -> StateName {
        self.ledger.summary(id(number)).expect("it is kept").state
    }
}

#[test]
fn what_each_policy_made_of_a_failure_is_known_after_a_restart() {
    let mut story = Story::new();
    story.tell(enqueue([job(1), job(2)]));
    for (number, policy) in [(3, OnFailure::Cascade), (4, OnFailure::Ignore), (5, OnFailure::Wait)]
    {
        story.enqueue(after(number, &[(1, policy), (2, OnFailure::Cascade)]));
    }
    story.start();
    story.bury(1);
    assert_eq!(
        [3, 4, 5].map(|number| story.state(number)),
        [StateName::Dead, StateName::Blocked, StateName::Blocked]
    );
    story.settle(2, Verdict::Complete);
    assert_eq!([story.state(4), story.state(5)], [StateName::Ready, StateName::Blocked]);
    story.replay(1);
    story.start();
    story.settle(1, Verdict::Complete);
    assert_eq!(story.state(5), StateName::Ready);
    story.replay(3);
    assert_eq!(story.state(3), StateName::Ready);
}

#[test]
fn a_failure_that_was_ignored_stays_ignored_when_the_failed_job_is_replayed() {
    let mut story = Story::new();
    story.tell(enqueue([job(1), job(2)]));
    story.enqueue(after(3, &[(1, OnFailure::Ignore), (2, OnFailure::Cascade)]));
    story.start();
    story.bury(1);
    // One that comes later finds the failure there already.
    story.enqueue(after(4, &[(1, OnFailure::Ignore), (2, OnFailure::Cascade)]));
    story.replay(1);
    assert_eq!(story.ledger.dependents(id(1)), []);
    // A job that is replayed itself waits for it again.
    story.bury(2);
    story.replay(2);
    story.replay(3);
    assert_eq!(story.ledger.dependents(id(1)), [id(3)]);
    story.start();
    story.settle(2, Verdict::Complete);
    assert_eq!([story.state(3), story.state(4)], [StateName::Blocked, StateName::Dead]);
}

#[test]
fn a_key_that_an_edited_job_took_is_not_given_back_to_the_replaced_one() {
    let mut story = Story::new();
    for (number, scope) in [(1, UniqueScope::Any), (11, UniqueScope::Open)] {
        let edited = unique(number + 1, UniqueScope::Open, None);
        story.enqueue(unique(number, scope, None));
        story.start();
        story.bury(number);
        story.tell(ReplayEdited { job: id(number), edited });
        let refused = story.enqueue(unique(number + 2, UniqueScope::Open, None));
        assert_eq!(refused, Acceptance::Deduplicated { payload_differs: false });
        // The edited one gives it up; the replaced one is still there, and must not have it back.
        story.start();
        story.settle(number + 1, Verdict::Complete);
        assert_eq!(
            story.enqueue(unique(number + 3, UniqueScope::Open, None)),
            Acceptance::Accepted
        );
        story.tell(Cancel { jobs: vec![id(number + 3)] });
        story.replay(number);
        story.tell(Cancel { jobs: vec![id(number)] });
        story.remove(number);
    }
}

#[test]
fn a_replaced_job_gives_its_key_up_even_if_the_edited_one_has_another() {
    let mut story = Story::new();
    story.enqueue(unique(1, UniqueScope::Any, None));
    story.start();
    story.bury(1);
    story.tell(ReplayEdited { job: id(1), edited: job(2) });
    assert_eq!(story.enqueue(unique(3, UniqueScope::Any, None)), Acceptance::Accepted);
}

#[test]
fn a_key_is_held_by_the_last_job_whose_window_has_not_ended() {
    let mut story = Story::new();
    story.enqueue(unique(1, UniqueScope::Any, Some(10 * SECOND)));
    story.start();
    story.settle(1, Verdict::Complete);
    story.pass(5 * SECOND);
    let refused = Acceptance::Deduplicated { payload_differs: false };
    assert_eq!(story.enqueue(unique(2, UniqueScope::Any, None)), refused);
    story.pass(5 * SECOND);
    // The first hold has ended, and the job that had it is still kept.
    story.tell(Promote);
    story.enqueue(unique(3, UniqueScope::Any, Some(10 * SECOND)));
    story.pass(20 * SECOND);
    story.enqueue(unique(4, UniqueScope::Any, None));
    assert_eq!(story.enqueue(unique(5, UniqueScope::Open, None)), refused);
    story.start();
    story.settle(4, Verdict::Complete);
    story.remove(4);
    assert_eq!(story.enqueue(unique(6, UniqueScope::Open, None)), Acceptance::Accepted);
}

#[test]
fn a_dependency_that_was_removed_and_came_back_under_its_id_is_not_waited_for() {
    let mut story = Story::new();
    story.tell(enqueue([job(1), job(2)]));
    story.enqueue(after(3, &[(1, OnFailure::Ignore), (2, OnFailure::Cascade)]));
    story.start();
    story.bury(1);
    story.remove(1);
    assert_eq!(story.enqueue(job(1)), Acceptance::Accepted);
    assert_eq!(story.ledger.dependents(id(1)), []);
    story.settle(2, Verdict::Complete);
    assert_eq!(story.state(3), StateName::Ready);
    // A job that is replayed without one of its dependencies does not wait for it either.
    story.tell(Cancel { jobs: vec![id(3), id(1)] });
    story.remove(1);
    story.replay(3);
    assert_eq!(story.state(3), StateName::Ready);
    story.enqueue(job(1));
    story.start();
    story.settle(3, Verdict::Complete);
}

#[test]
fn whoever_waits_for_a_removed_job_dies_and_stays_dead() {
    let mut story = Story::new();
    story.enqueue(job(1));
    story.enqueue(after(2, &[(1, OnFailure::Wait)]));
    story.enqueue(after(3, &[(2, OnFailure::Ignore)]));
    story.start();
    story.bury(1);
    story.remove(1);
    assert_eq!([story.state(2), story.state(3)], [StateName::Dead, StateName::Ready]);
}

#[test]
fn jobs_of_one_batch_that_wait_for_later_ones_do_so_after_a_restart() {
    let mut story = Story::new();
    let jobs = vec![after(1, &[(2, OnFailure::Cascade), (3, OnFailure::Wait)]), job(2), job(3)];
    story.tell(enqueue(jobs));
    story.start();
    story.settle(3, Verdict::Complete);
    story.settle(2, Verdict::Complete);
    assert_eq!(story.state(1), StateName::Ready);
}

#[test]
fn counters_settings_and_rates_outlive_the_jobs_they_came_from() {
    let mut story = Story::new();
    for number in 1..=4 {
        story.enqueue(NewJob { expires_after: Some(3600 * SECOND), ..job(number) });
        story.start();
        story.bury(number);
    }
    story.enqueue(NewJob { start: Start::After(60 * SECOND), ..job(5) });
    story.tell(Configure {
        queue: name("east"),
        change: QueueChange::Ageing(Some(SECOND)),
        by: None,
    });
    story.tell(Configure { queue: name("west"), change: QueueChange::Pause, by: None });
    story.tell(Configure { queue: name("west"), change: QueueChange::Resume, by: None });
    story.pass(60 * SECOND);
    let rate = Rate { jobs: 1, period: 60 * SECOND, burst: 1 };
    let kinds = vec![KindClaim { rate: Some(rate), ..KindClaim::new(name("mail")) }];
    story.tell(Claim { worker: "anna".into(), queues: None, kinds, limit: 1, request: None });
    story.settle(5, Verdict::Complete);
    for number in 2..=5 {
        story.remove(number);
    }
    let counts = story.ledger.counts(story.now);
    assert_eq!(counts.totals().enqueued, 5);
    assert_eq!(counts.queues[0].dead_letters_dropped, 1);
    assert_eq!(story.ledger.next_ids().token, 6);
}

#[test]
fn the_audit_trail_and_the_orders_to_workers_come_back() {
    let mut story = Story::new();
    let anna = || Actor::new("anna").expect("a name");
    story.enqueue(job(1));
    story.enqueue(job(2));
    let note = Some(AuditNote::of_jobs(anna(), &JobAction::Cancel, &[id(1)]));
    story.tell(Alter { jobs: vec![id(1)], action: JobAction::Cancel, note });
    let change = QueueChange::Pause;
    story.tell(Configure { queue: name("east"), change, by: Some(anna()) });
    story.tell(Clear::first(name("east"), Some(anna())));
    let order = reserved::order_address("w").expect("an address");
    let purge = Purge::After(limits::ORDER_KEPT);
    story.tell(Turn { purge, by: Some(anna()), ..Turn::new(order.clone(), 0) });
    let info = WorkerInfo { queues: None, kinds: Vec::new(), slots: 1, quiet: false };
    for _ in 0..4 {
        story.pass(limits::ORDER_KEPT / 3);
        let news = WorkerReport::Alive(info.clone());
        story.tell(Heartbeat { worker: "w".into(), news });
        story.tell(Promote);
    }
    assert!(story.ledger.object(&order).is_some(), "it is kept while the worker lives");
    story.tell(Heartbeat { worker: "w".into(), news: WorkerReport::Stopped });
    assert!(story.ledger.object(&order).is_none());
    assert_eq!(story.ledger.objects_of(&name(reserved::AUDIT), None).count(), 4);
}

#[test]
fn a_count_is_handed_over_once_and_not_again_with_the_settings() {
    let mut ledger = Ledger::new(Limits { dead_letters: 0, ..Limits::default() });
    let now = Now::default();
    assert_eq!(ledger.drain_totals(), []);
    ledger.apply(enqueue([job(1)]), now);
    let drained = ledger.drain_totals();
    assert!(matches!(&drained[..], [Change::QueueKind { totals, .. }] if totals.enqueued == 1));
    assert_eq!(ledger.drain_totals(), []);
    let kinds = vec![KindClaim::new(name("mail"))];
    let claim = Claim { worker: "anna".into(), queues: None, kinds, limit: 1, request: None };
    let token = ledger.apply(claim, now).reply.expect("a claim is answered").jobs[0].lease.token;
    let verdict = Verdict::Bury(DeadReason::Permanent);
    ledger.apply(Settle { settlements: vec![Settlement::new(id(1), token, verdict)] }, now);
    let configure = Configure { queue: name("east"), change: QueueChange::Pause, by: None };
    let changes = ledger.apply(configure, now).changes;
    let [Change::Queue { dead_letters_dropped: 1, settings, .. }] = &changes[..] else {
        panic!("one change of the queue: {changes:?}");
    };
    assert!(settings.paused);
    let drained = ledger.drain_totals();
    assert!(
        matches!(&drained[..], [Change::QueueKind { totals, .. }] if totals.dead == 1),
        "{drained:?}"
    );
}

#[test]
fn a_ledger_knows_what_its_records_weigh() {
    let mut ledger = Ledger::new(small());
    let now = Now::default();
    let heavy = RecordLocation { place: 1 << 40, weight: u32::MAX };
    ledger.apply(enqueue([job(1), job(2)]), now);
    assert_eq!((ledger.kept(id(1)), ledger.kept_bytes()), (Some(RecordLocation::default()), 0));
    ledger.keep(id(1), heavy);
    ledger.keep(id(2), heavy);
    ledger.keep(id(9), heavy);
    assert_eq!((ledger.kept(id(1)), ledger.kept(id(9))), (Some(heavy), None));
    assert_eq!(ledger.kept_bytes(), 2 * u64::from(u32::MAX));
    ledger.keep(id(1), RecordLocation { place: 7, weight: 10 });
    ledger.apply(Cancel { jobs: vec![id(2)] }, now);
    assert_eq!(ledger.kept_bytes(), u64::from(u32::MAX) + 10);
    ledger.apply(Remove { jobs: vec![id(2)] }, now);
    assert_eq!(ledger.kept_bytes(), 10);
    assert_eq!(ledger.check(), Vec::<String>::new());
}

#[test]
fn a_restored_ledger_knows_where_each_record_was_last_kept() {
    let kept = |place| RecordLocation { place, weight: 10 };
    let mut restore = Restore::new(small());
    let first = accepted(1, 1);
    restore.absorb(&Change::Insert(Box::new(first.clone())));
    restore.keep(id(1), kept(1));
    restore.put(&JobRecord::new(&first));
    assert_eq!(restore.kept(id(1)), Some(kept(1)));
    restore.keep(id(1), kept(2));
    restore.absorb(&Change::Insert(Box::new(accepted(2, 2))));
    restore.keep(id(2), kept(3));
    restore.keep(id(1), kept(4));
    restore.absorb(&Change::Remove { job: id(2) });
    restore.keep(id(2), kept(5));
    assert_eq!((restore.knows(id(1)), restore.knows(id(2))), (true, false));
    assert_eq!((restore.kept(id(1)), restore.kept(id(2))), (Some(kept(4)), None));
    let ledger = restore.finish();
    assert_eq!((ledger.kept(id(1)), ledger.kept_bytes()), (Some(kept(4)), 10));
}

#[test]
fn the_last_record_of_a_job_wins_and_a_reused_id_is_a_new_job() {
    let mut restore = Restore::new(small());
    let (first, again) = (accepted(1, 3), accepted(1, 8));
    restore.put(&JobRecord::new(&first));
    let earlier = Accepted { at: Timestamp::from_micros(1), ..accepted(1, 2) };
    restore.absorb(&Change::Insert(Box::new(earlier)));
    restore.next_ids(NextIds { sequence: 5, token: 7, event: 9, wall: Timestamp::from_micros(40) });
    restore.next_ids(NextIds::default());
    restore.absorb(&Change::Insert(Box::new(again)));
    restore.keep(id(1), RecordLocation { place: 3, weight: 3 });
    restore.absorb(&Change::Insert(Box::new(accepted(1, 8))));
    let ledger = restore.finish();
    assert_eq!(ledger.summary(id(1)).map(|summary| summary.sequence), Some(8));
    assert_eq!((ledger.kept_bytes(), ledger.check()), (3, Vec::new()));
    let wall = Timestamp::from_micros(40);
    assert_eq!(ledger.next_ids(), NextIds { sequence: 9, token: 7, event: 9, wall });
}

#[test]
fn dead_letters_beyond_a_lowered_bound_go_with_the_next_death() {
    let mut restore = Restore::new(small());
    for number in 1..=4 {
        let at = Timestamp::from_micros(i64::from(number));
        let mut dead = accepted(number, u64::from(number));
        dead.status.state = State::Dead { at, reason: DeadReason::Permanent };
        restore.absorb(&Change::Insert(Box::new(dead)));
    }
    let mut ledger = restore.finish();
    assert_eq!(ledger.counts(Now::default()).in_state(StateName::Dead), 4);
    ledger.apply(enqueue([job(5)]), Now::default());
    ledger.apply(Cancel { jobs: vec![id(5)] }, Now::default());
    assert_eq!(ledger.counts(Now::default()).in_state(StateName::Dead), 3);
}

#[test]
fn a_cascade_that_a_crash_cuts_short_goes_on_in_the_ledger_that_is_restored() {
    const MANY: u32 = 2_500;
    let after = |number: u32| {
        let on_failure =
            if number.is_multiple_of(2) { OnFailure::Cascade } else { OnFailure::Ignore };
        NewJob { depends_on: vec![Dependency { on: id(1), on_failure }], ..job(number) }
    };
    let mut ledger = Ledger::new(Limits::default());
    let mut changes = ledger.apply(enqueue([job(1)]), Now::default()).changes;
    changes.extend(ledger.apply(enqueue((2..=MANY + 1).map(after)), Now::default()).changes);
    let cancelled = ledger.apply(Cancel { jobs: vec![id(1)] }, Now::default());
    changes.extend(cancelled.changes);
    let mut told = BTreeMap::new();
    let mut commands = 0;
    // A crash after every command: what is left to do is seen in the records alone.
    loop {
        let mut restore = Restore::new(Limits::default());
        changes.iter().for_each(|change| restore.absorb(change));
        let mut restored = restore.finish();
        assert_eq!(restored.check(), Vec::<String>::new());
        let promoted = restored.apply(Promote, Now::default());
        let on_its_own = ledger.apply(Promote, Now::default());
        assert_eq!(promoted.changes, on_its_own.changes, "the ledger that lives does the same");
        for event in &promoted.events {
            *told.entry(format!("{:?}", event.subject)).or_insert(0) += 1;
        }
        assert!(promoted.changes.len() <= 1_000, "{} changes", promoted.changes.len());
        changes.extend(promoted.changes);
        commands += 1;
        if !promoted.reply.expect("it is answered").more {
            break;
        }
    }
    assert!(commands > 1, "it was all done at once");
    let counts = ledger.counts(Now::default());
    assert_eq!(counts.in_state(StateName::Cancelled), u64::from(MANY / 2 + 1));
    assert_eq!(counts.in_state(StateName::Ready), u64::from(MANY / 2));
    assert!(told.values().all(|times| *times == 1), "somebody was told twice");
}

#[test]
fn jobs_are_listed_in_the_order_of_acceptance_whatever_has_gone() {
    let mut ledger = Ledger::new(Limits::default());
    let now = Now::default();
    ledger.apply(enqueue((1..=300).map(job)), now);
    let gone: Vec<JobId> =
        (1..=300).filter(|n| n % 3 == 0 || (64..=191).contains(n)).map(id).collect();
    ledger.apply(Cancel { jobs: gone.clone() }, now);
    ledger.apply(Remove { jobs: gone.clone() }, now);
    let left: Vec<u64> = (1..=300).filter(|n| !gone.contains(&id(*n))).map(u64::from).collect();
    let listed = |summaries: &mut dyn Iterator<Item = JobSummary<'_>>| -> Vec<u64> {
        summaries.map(|summary| summary.sequence).collect()
    };
    for edge in [0, 1, 2, 63, 64, 65, 128, 191, 192, 193, 300, 301, 1_000, u64::MAX] {
        let mut before: Vec<u64> = left.iter().copied().filter(|each| *each < edge).collect();
        before.reverse();
        assert_eq!(listed(&mut ledger.summaries_before(edge)), before, "before {edge}");
        let after: Vec<u64> = left.iter().copied().filter(|each| *each > edge).collect();
        assert_eq!(listed(&mut ledger.summaries_after(edge)), after, "after {edge}");
    }
    assert_eq!(ledger.check(), Vec::<String>::new());
}

#[test]
fn a_glimpse_tells_what_a_filter_asks_first() {
    let mut ledger = Ledger::new(Limits::default());
    let later = NewJob { start: Start::After(SECOND), kind: name("scan"), ..job(2) };
    ledger.apply(enqueue([job(1), later]), Now::default());
    let filter = |states: &[StateName], kinds: &[&str], queues: &[&str]| Filter {
        states: states.to_vec(),
        kinds: kinds.iter().map(|kind| name(kind)).collect(),
        queues: queues.iter().map(|queue| name(queue)).collect(),
        ..Filter::default()
    };
    let matching = |ledger: &Ledger, filter: &Filter| -> Vec<JobId> {
        let all = ledger.summaries_after(0).filter(|summary| filter.may_match(summary));
        all.map(|summary| summary.id).collect()
    };
    assert_eq!(matching(&ledger, &Filter::default()), [id(1), id(2)]);
    assert_eq!(matching(&ledger, &filter(&[StateName::Ready], &[], &[])), [id(1)]);
    assert_eq!(matching(&ledger, &filter(&[], &["scan"], &["east"])), [id(2)]);
    assert_eq!(matching(&ledger, &filter(&[], &[], &["west"])), []);
    // Time alone makes it ready.
    ledger.glance(Now { wall: Timestamp::default() + SECOND, steady: Steady::default() });
    assert_eq!(matching(&ledger, &filter(&[StateName::Ready], &[], &[])), [id(1), id(2)]);
    assert_eq!((ledger.summary(id(3)), ledger.status_of(id(3))), (None, None));
}

fn accepted(number: u32, sequence: u64) -> Accepted {
    let at = Timestamp::default();
    let state = State::Ready { since: at };
    let status = JobStatus::new(state);
    Accepted { job: Arc::new(job(number)), sequence, at, status, met: Vec::new() }
}
