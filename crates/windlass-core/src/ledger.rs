//! The whole ledger: every kept job, its indexes, limits and counters, as one pure structure.
//!
//! [`Ledger::apply`] takes a command and the time, and answers with a reply, the record changes to
//! persist, the events to tell and the queues to ring. It touches nothing else: a store decides
//! what "persist" means. The same commands at the same times give the same answers for ever, so a
//! run can be replayed from its seed.
//!
//! How it works inside:
//! - a command *decides*, mostly by asking [`crate::transition`], and every decision becomes one
//!   [`Change`];
//! - a change is taken over by one function, `Ledger::set`, which moves a job between the indexes
//!   and counts it; nothing else touches an index of states;
//! - [`Restore`] takes over what was persisted earlier, in any order that keeps a job's last record
//!   last, and makes a ledger equal to the one that was lost.
//!
//! Invariants, checked by [`Ledger::check`]:
//! - a job is in exactly one of the indexes: blocked, timers, a ready line, leases, finished, dead;
//! - slots in use are derived from leases, never counted apart, so they cannot leak;
//! - counters equal what a full scan would find;
//! - lease tokens, sequence and event numbers only grow.

mod alter;
mod bulk;
mod check;
mod checkpoint_entry;
mod claim;
mod configure;
mod control;
mod enqueue;
mod entries;
mod find;
mod graph;
mod hooks;
mod index;
mod lanes;
mod objects;
mod ranked;
mod renew;
mod rescue;
mod reserved;
mod restore;
mod settle;
mod steps;
mod summary;
mod totals;
mod view;
mod workers;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use alter::{Alter, JobAction, JobActionDone, JobActionResult};
pub use bulk::{BulkProgress, Clear, ClearProgress, Cleared};
pub use checkpoint_entry::CheckpointEntry;
pub use claim::{Claim, Claimed, Claims, KindClaim};
pub use configure::{Configure, QueueChange};
pub use control::{Cancel, CancelAnswer, Remove, RemoveGraph, Replay, ReplayEdited, Reschedule};
pub use enqueue::{Acceptance, Enqueue, Enqueued, LanePosition};
pub use entries::Partition;
pub use hooks::{Hook, hook_id};
pub use objects::Turned;
pub use renew::{Renew, Renewal, Renewed};
pub use rescue::{
    LostWorkers, Promote, Promoted, Recovery, RecoveryMode, Rescue, RescueLost, Rescued, RescuedJob,
};
pub use restore::Restore;
pub use settle::{Settle, Settled, Settlement, check_output};
pub use steps::{StepMark, admit_steps};
pub use summary::JobSummary;
pub use view::{Counts, LaneCount, QueueCount, QueueKindCount, WorkerView};
pub use workers::{Heartbeat, WorkerInfo, WorkerKind, WorkerReport};

pub use crate::record::Totals;

use self::entries::{
    Edge, Entry, HeldLease, Key, KeyHolder, KindEntry, Phase, QueueEntry, QueueKind, Slab,
};
use self::find::{Ids, Sequences};
use crate::event::{Event, EventKind, RemoveReason, Subject};
use crate::job::{DeadReason, JobId, JobStatus, LeaseToken, State};
use crate::limits::{self, Limits};
use crate::name::Name;
use crate::outcome::ErrorText;
use crate::record::{Change, NextIds, RecordNote, Update};
use crate::refusal::Refusal;
use crate::time::{Now, Steady, Timeline, Timestamp};
use crate::transition::{self, Input, Next, Refused};

/// A command the ledger can apply.
pub trait Command {
    /// What it answers.
    type Reply;

    /// Decides and changes the ledger; on `Err` nothing has been changed.
    #[doc(hidden)]
    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal>;
}

/// What a command caused, and its answer.
#[derive(Debug)]
pub struct Applied<R> {
    /// The answer.
    pub reply: Result<R, Refusal>,
    /// What to persist, in order, as one commit, before the answer is given.
    pub changes: Vec<Change>,
    /// What to tell, after the commit.
    pub events: Vec<Event>,
    /// Whom to wake, after the commit.
    pub rings: BTreeSet<Ring>,
}

/// What commands have caused and nobody has taken yet; see [`Applied`].
#[derive(Debug, Default)]
pub struct Caused {
    /// What to persist.
    pub changes: Vec<Change>,
    /// What to tell.
    pub events: Vec<Event>,
    /// Whom to wake.
    pub rings: BTreeSet<Ring>,
}

/// Whom to wake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Ring {
    /// Workers of a queue: it has a ready job, or one that is due sooner than they know.
    Queue(Name),
    /// Workers that run jobs: one of them is to be cancelled.
    Cancel,
}

/// Collects what a command causes.
#[derive(Debug)]
pub struct Effects {
    now: Now,
    changes: Vec<Change>,
    events: Vec<Event>,
    rings: BTreeSet<Ring>,
    /// How many dependents of finished jobs it may still tell.
    dependents_left: usize,
}

/// The whole ledger. See the module documentation.
#[derive(Debug)]
pub struct Ledger {
    limits: Limits,
    time: Timeline,
    entries: Slab,
    ids: Ids,
    sequences: Sequences,
    queues: Vec<QueueEntry>,
    queue_ids: BTreeMap<Name, u32>,
    kinds: Vec<KindEntry>,
    kind_ids: BTreeMap<Name, u32>,
    lines: Vec<QueueKind>,
    /// By kind first, so that a worker finds the lines of its kinds in any queue.
    line_ids: BTreeMap<(u32, u32), u32>,
    /// Scheduled jobs by due time and sequence. A map, not a set: its nodes have no padding.
    timers: BTreeMap<(Timestamp, u64), u32>,
    expiries: BTreeSet<(Timestamp, u64, u32)>,
    leases: BTreeMap<LeaseToken, HeldLease>,
    lease_ends: BTreeSet<(Steady, LeaseToken)>,
    /// Leases whose end was told by a rescue that only looks, so that it is told once.
    told_ends: BTreeSet<(Steady, LeaseToken)>,
    requests: claim::Requests,
    /// Completed and cancelled jobs that nothing holds back, oldest first.
    finished: BTreeSet<(Timestamp, u64, u32)>,
    /// Finished jobs whose unique key is still held, by the end of their window.
    withheld: BTreeSet<(Timestamp, u32)>,
    /// (dependency, dependent)
    edges: BTreeMap<(JobId, JobId), Edge>,
    /// Finished jobs that have dependents to tell, by acceptance.
    owing: BTreeMap<u64, graph::Owing>,
    /// How many dependents one command tells at most, and how many each end within it may.
    cascade_bounds: (usize, usize),
    keys: BTreeMap<Key, KeyHolder>,
    workers: BTreeMap<Arc<str>, workers::WorkerState>,
    next_sequence: u64,
    next_token: u64,
    next_event: u64,
    /// Queues whose last open job finished during this command.
    emptied: Vec<u32>,
    /// Jobs with a lane, by queue and lane.
    lanes: BTreeMap<(u32, u64), lanes::LaneEntry>,
    objects: objects::Objects,
    /// Queues with a lane that has a new job to offer.
    offering: Vec<u32>,
    /// What became of jobs of queues that asked for a job when it does.
    hooks: Vec<hooks::Hook>,
    /// Lanes whose last open job finished during this command.
    emptied_lanes: Vec<(u32, u64)>,
    /// Queues with more dead letters than are kept.
    overfull: Vec<u32>,
    /// What has been counted since it was last asked for.
    uncollected: totals::ChangedCounters,
    /// The bytes a store needs for all jobs.
    kept_bytes: u64,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            time: Timeline::default(),
            entries: Slab::default(),
            ids: Ids::default(),
            sequences: Sequences::default(),
            queues: Vec::new(),
            queue_ids: BTreeMap::new(),
            kinds: Vec::new(),
            kind_ids: BTreeMap::new(),
            lines: Vec::new(),
            line_ids: BTreeMap::new(),
            timers: BTreeMap::new(),
            expiries: BTreeSet::new(),
            leases: BTreeMap::new(),
            lease_ends: BTreeSet::new(),
            told_ends: BTreeSet::new(),
            requests: claim::Requests::default(),
            finished: BTreeSet::new(),
            withheld: BTreeSet::new(),
            edges: BTreeMap::new(),
            owing: BTreeMap::new(),
            cascade_bounds: (limits::CASCADE_JOBS, limits::CASCADE_EACH),
            keys: BTreeMap::new(),
            workers: BTreeMap::new(),
            next_sequence: 1,
            next_token: 1,
            next_event: 1,
            emptied: Vec::new(),
            lanes: BTreeMap::new(),
            objects: objects::Objects::default(),
            offering: Vec::new(),
            hooks: Vec::new(),
            emptied_lanes: Vec::new(),
            overfull: Vec::new(),
            uncollected: totals::ChangedCounters::default(),
            kept_bytes: 0,
        }
    }

    /// Applies one command at the time `reading`.
    ///
    /// First, time passes: due jobs become ready, expired ones are cancelled, and cascades that
    /// were too large for the commands before go on. Then the command decides. If it refuses, the
    /// changes and events hold only what came of that.
    pub fn apply<C: Command>(&mut self, command: C, reading: Now) -> Applied<C::Reply> {
        let mut caused = Caused::default();
        let reply = self.apply_into(command, reading, &mut caused);
        let Caused { changes, events, rings } = caused;
        Applied { reply, changes, events, rings }
    }

    /// The same, and adds what it causes to what others have caused. Whoever applies one command
    /// after the other uses the same memory for all of them.
    pub fn apply_into<C: Command>(
        &mut self,
        command: C,
        reading: Now,
        caused: &mut Caused,
    ) -> Result<C::Reply, Refusal> {
        let now = self.glance(reading);
        let Caused { changes, events, rings } = core::mem::take(caused);
        let dependents_left = self.cascade_bounds.0;
        let mut effects = Effects { now, changes, events, rings, dependents_left };
        // Few: a caller that has nothing to do with them waits for them. `Promote` takes many.
        self.go_on_with_cascades(self.cascade_bounds.1, &mut effects);
        self.expire(&mut effects);
        let reply = command.run(self, &mut effects);
        self.tell_objects(&mut effects);
        self.tell_emptied_lanes(&mut effects);
        self.add_hook_jobs(&mut effects);
        self.tell_emptied_queues(&mut effects);
        self.ring_for_lanes(&mut effects);
        let Effects { changes, events, rings, .. } = effects;
        *caused = Caused { changes, events, rings };
        reply
    }

    /// Lets time pass: what is due becomes ready. Returns engine time.
    ///
    /// It changes the ledger and no record: that a due time has come follows from the time, so a
    /// restored ledger finds it out again.
    pub fn glance(&mut self, reading: Now) -> Now {
        // Guarded by: the planted bug 18, and in `windlass/tests/main/files/reopening.rs`
        // `a_due_time_does_not_move_when_the_clock_falls_back_over_a_restart`.
        let now = self.time.observe(reading);
        for _ in 0..limits::PROMOTE_BATCH {
            let Some((&(at, _), &slot)) = self.timers.first_key_value() else { break };
            if at > now.wall {
                break;
            }
            let mut status = self.status(slot);
            status.state = State::Ready { since: at };
            self.set(slot, &status);
        }
        while let Some(&(until, slot)) = self.withheld.first()
            && until <= now.wall
        {
            self.withheld.remove(&(until, slot));
            self.offer_for_purge(slot);
        }
        now
    }

    /// Lets one command tell at most so many dependents, and each end within it so many: for tests,
    /// in which a large cascade is one of three jobs.
    #[doc(hidden)]
    pub fn bound_cascades(&mut self, most: usize, each: usize) {
        self.cascade_bounds = (most, each);
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The next numbers to be used, and the latest engine time.
    pub fn next_ids(&self) -> NextIds {
        NextIds {
            sequence: self.next_sequence,
            token: self.next_token,
            event: self.next_event,
            wall: self.time.latest().wall,
        }
    }

    /// How many jobs are kept, in whatever state.
    pub fn jobs(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The number of the last event told, 0 before the first.
    pub fn last_event(&self) -> u64 {
        self.next_event - 1
    }

    fn find(&self, job: JobId) -> Option<u32> {
        self.ids.get(job, &self.entries)
    }

    fn entry(&self, slot: u32) -> &Entry {
        self.entries.get(slot)
    }

    /// The job's condition, put together from the compact entry and its lease.
    fn status(&self, slot: u32) -> JobStatus {
        let entry = self.entry(slot);
        let state = match entry.phase {
            Phase::Blocked { unmet, not_before } => State::Blocked { unmet, not_before },
            Phase::Scheduled { at } => State::Scheduled { at },
            Phase::Ready { since } => State::Ready { since },
            Phase::Running { token } => State::Running(self.leases[&token].lease.clone()),
            Phase::Completed { at } => State::Completed { at },
            Phase::Dead { at, reason } => State::Dead { at, reason },
            Phase::Cancelled { at, reason } => State::Cancelled { at, reason },
        };
        JobStatus {
            state,
            attempts: entry.attempts,
            recoveries: u32::from(entry.recoveries),
            generation: entry.generation(),
            begun: entry.begun(),
            settled_by: entry.settled_by(),
        }
    }

    /// Asks the state machine, takes its answer over and records it.
    fn transition(
        &mut self,
        slot: u32,
        input: &Input,
        note: Option<RecordNote>,
        effects: &mut Effects,
    ) -> Result<JobStatus, Refused> {
        let status = self.status(slot);
        match transition::next(&status, input, effects.now.wall)? {
            Next::Is(next) => {
                self.set(slot, &next);
                if let (State::Running(_), false) = (&status.state, next.state.is_running()) {
                    self.ring_turned_away(slot, effects);
                }
                effects.changes.push(Change::Update(Update {
                    job: self.entry(slot).id,
                    at: effects.now.wall,
                    status: next.clone(),
                    note,
                }));
                if let State::Ready { .. } | State::Scheduled { .. } = next.state {
                    self.ring(slot, effects);
                }
                Ok(next)
            }
            Next::Gone => Ok(status),
        }
    }

    /// Tells that a job died or was cancelled without an attempt, and counts it.
    fn tell_end(
        &mut self,
        slot: u32,
        status: &JobStatus,
        error: Option<ErrorText>,
        effects: &mut Effects,
    ) {
        match &status.state {
            State::Dead { reason, .. } => {
                self.totals(slot, |totals| totals.dead += 1);
                let attempts = status.attempts;
                self.tell(slot, EventKind::JobDead { reason: *reason, attempts, error }, effects);
                self.note_death(slot);
            }
            State::Cancelled { reason, .. } => {
                self.totals(slot, |totals| totals.cancelled += 1);
                self.tell(slot, EventKind::JobCancelled { reason: *reason }, effects);
            }
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. } => {}
        }
    }

    /// Lets go of dead letters and history beyond their bounds, the oldest first.
    ///
    /// What waited for a dead letter dies with it and may be one too many itself. That chain can
    /// be as long as the bound, so it is followed by a loop and not by recursion.
    fn keep_bounded(&mut self, effects: &mut Effects) {
        let mut put_off = Vec::new();
        while let Some(queue) = self.overfull.pop() {
            while self.queues[queue as usize].dead.len() > self.limits.dead_letters {
                // One for which many wait stays: they would all follow it in one commit.
                let dead = self.queues[queue as usize].dead.iter().map(|(_, _, slot)| *slot);
                let mut can_go = dead.filter(|slot| self.few_wait_for(self.entry(*slot).id));
                let Some(oldest) = can_go.next() else {
                    put_off.push(queue);
                    break;
                };
                self.count_dropped(queue);
                self.remove(oldest, RemoveReason::DeadLettersFull, effects);
            }
        }
        self.overfull = put_off;
        while self.finished.len() > self.limits.history_jobs {
            let Some(&(_, _, oldest)) = self.finished.first() else { break };
            self.remove(oldest, RemoveReason::Retention, effects);
        }
    }

    /// Deletes a finished job. What still waited for it can only follow it.
    fn remove(&mut self, slot: u32, reason: RemoveReason, effects: &mut Effects) {
        let id = self.entry(slot).id;
        let waiting: Vec<JobId> =
            self.edges_from(id).filter(|(_, edge)| !edge.met).map(|(job, _)| job).collect();
        self.unlink(slot);
        self.tell(slot, EventKind::JobRemoved { reason }, effects);
        self.forget(slot);
        effects.changes.push(Change::Remove { job: id });
        for dependent in waiting {
            let Some(slot) = self.find(dependent) else { continue };
            let error = ErrorText::new(format!("depends on job {id}, which was removed"));
            let note = Some(RecordNote::Failed(error.clone()));
            let input = Input::DependencyFailed { cancelled: false };
            if let Ok(status) = self.transition(slot, &input, note, effects) {
                self.tell_end(slot, &status, Some(error.clone()), effects);
                self.spread(slot, Some(&error), effects);
            }
        }
    }

    /// Cancels jobs that have not started by the time they expire.
    fn expire(&mut self, effects: &mut Effects) {
        for _ in 0..limits::SWEEP_BATCH {
            let Some(&(at, sequence, slot)) = self.expiries.first() else { break };
            if at > effects.now.wall {
                break;
            }
            self.expiries.remove(&(at, sequence, slot));
            let error = ErrorText::new(format!("it had not started when it expired at {at}"));
            let note = Some(RecordNote::Failed(error.clone()));
            if let Ok(status) = self.transition(slot, &Input::Expire, note, effects) {
                self.tell_end(slot, &status, Some(error.clone()), effects);
                self.after_end(slot, Some(&error), effects);
            }
        }
    }

    fn ring(&self, slot: u32, effects: &mut Effects) {
        let queue = self.lines[self.entry(slot).line as usize].queue;
        effects.rings.insert(Ring::Queue(self.queues[queue as usize].name.clone()));
    }

    /// The next job of a lane may start: whoever found nothing there may try again.
    fn ring_for_lanes(&mut self, effects: &mut Effects) {
        for queue in core::mem::take(&mut self.offering) {
            effects.rings.insert(Ring::Queue(self.queues[queue as usize].name.clone()));
        }
    }

    /// A job of this kind ended: whoever the kind's concurrency limit turned away may try again.
    fn ring_turned_away(&mut self, slot: u32, effects: &mut Effects) {
        let kind = self.lines[self.entry(slot).line as usize].kind;
        if !core::mem::take(&mut self.kinds[kind as usize].turned_away) {
            return;
        }
        for line in self.line_ids.range((kind, 0)..=(kind, u32::MAX)).map(|(_, line)| line) {
            let line = &self.lines[*line as usize];
            if !line.ready.is_empty() {
                let queue = self.queues[line.queue as usize].name.clone();
                effects.rings.insert(Ring::Queue(queue));
            }
        }
    }

    fn tell(&mut self, slot: u32, what: EventKind, effects: &mut Effects) {
        let entry = self.entry(slot);
        let line = &self.lines[entry.line as usize];
        let subject = Subject::Job {
            id: entry.id,
            kind: self.kinds[line.kind as usize].name.clone(),
            queue: self.queues[line.queue as usize].name.clone(),
        };
        self.tell_of(subject, what, effects);
    }

    fn tell_of(&mut self, subject: Subject, what: EventKind, effects: &mut Effects) {
        let number = self.next_event;
        self.next_event += 1;
        effects.events.push(Event { number, at: effects.now.wall, subject, what });
    }

    fn tell_emptied_queues(&mut self, effects: &mut Effects) {
        let mut emptied = core::mem::take(&mut self.emptied);
        emptied.sort_unstable();
        emptied.dedup();
        // By name: the numbers of a ledger that was restored are others.
        let name = |queue: u32| &self.queues[queue as usize].name;
        emptied.sort_by(|one, other| name(*one).cmp(name(*other)));
        for queue in emptied {
            let entries = &self.queues[queue as usize];
            if entries.open == 0 {
                let subject = Subject::Queue(entries.name.clone());
                self.tell_of(subject, EventKind::QueueEmpty, effects);
            }
        }
    }

    /// The queue's number. Whether there is room for one more name was checked.
    fn queue_id(&mut self, name: &Name) -> u32 {
        if let Some(&id) = self.queue_ids.get(name) {
            return id;
        }
        let id = u32::try_from(self.queues.len()).expect("names are bounded");
        self.queues.push(QueueEntry::new(name.clone()));
        self.queue_ids.insert(name.clone(), id);
        id
    }

    /// The kind's number. Whether there is room for one more name was checked.
    fn kind_id(&mut self, name: &Name) -> u32 {
        if let Some(&id) = self.kind_ids.get(name) {
            return id;
        }
        let id = u32::try_from(self.kinds.len()).expect("names are bounded");
        self.kinds.push(KindEntry::new(name.clone()));
        self.kind_ids.insert(name.clone(), id);
        id
    }

    fn line_id(&mut self, kind: u32, queue: u32) -> u32 {
        let next = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        let lines = &mut self.lines;
        *self.line_ids.entry((kind, queue)).or_insert_with(|| {
            lines.push(QueueKind::new(kind, queue));
            next
        })
    }
}

/// Whether a death of this kind came from attempts of the job itself.
fn died_of_attempts(reason: DeadReason) -> bool {
    match reason {
        DeadReason::AttemptsExhausted
        | DeadReason::Permanent
        | DeadReason::DurationExhausted
        | DeadReason::Crashed => true,
        DeadReason::DependencyFailed => false,
    }
}
