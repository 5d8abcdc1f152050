//! The whole book: every kept job, its indexes, limits and counters, as one pure structure.
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
//! - [`Ledger::absorb`] takes over changes that were persisted earlier, by the same function, so a
//!   rebuilt ledger equals the one that was lost.
//!
//! Invariants, checked by [`Ledger::check`]:
//! - a job is in exactly one of the indexes: blocked, timers, a ready line, leases, finished, dead;
//! - slots in use are derived from leases, never counted apart, so they cannot leak;
//! - counters equal what a full scan would find;
//! - lease tokens, sequence and event numbers only grow.

mod book;
mod check;
mod claim;
mod control;
mod enqueue;
mod renew;
mod rescue;
mod settle;
mod view;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use claim::{Claim, Claimed, Claims, KindClaim};
pub use control::{
    Announce, Cancel, CancelAnswer, Clear, Cleared, Configure, QueueChange, Remove, Replay,
    ReplayEdited, Reschedule, WorkerCard, WorkerKind, WorkerNews,
};
pub use enqueue::{Acceptance, Enqueue, Enqueued};
pub use renew::{Renew, Renewal, Renewed};
pub use rescue::{Promote, Promoted, Recovery, RecoveryMode, Rescue, Rescued, RescuedJob};
pub use settle::{Settle, Settled, Settlement};
pub use view::{Counts, LineCount, QueueCount, Totals, WorkerView};

use self::book::{Edge, Entry, Held, Hold, Key, KindBook, Line, Phase, QueueBook, ReadyKey, Slab};
use crate::event::{Event, RemoveReason, Subject, What};
use crate::job::{
    Condition, DeadReason, Dependency, JobId, LeaseToken, OnFailure, State, StateName, UniqueScope,
};
use crate::limits::{self, Limits};
use crate::name::Name;
use crate::outcome::ErrorText;
use crate::record::{Accepted, Change, Note, Update};
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

/// What a command caused.
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

/// Whom to wake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
}

/// The whole book. See the module documentation.
#[derive(Debug)]
pub struct Ledger {
    limits: Limits,
    time: Timeline,
    entries: Slab,
    ids: BTreeMap<JobId, u32>,
    queues: Vec<QueueBook>,
    queue_ids: BTreeMap<Name, u32>,
    kinds: Vec<KindBook>,
    kind_ids: BTreeMap<Name, u32>,
    lines: Vec<Line>,
    /// By kind first, so that a worker finds the lines of its kinds in any queue.
    line_ids: BTreeMap<(u32, u32), u32>,
    /// Scheduled jobs by due time and sequence. A map, not a set: its nodes have no padding.
    timers: BTreeMap<(Timestamp, u64), u32>,
    expiries: BTreeSet<(Timestamp, u64, u32)>,
    leases: BTreeMap<LeaseToken, Held>,
    lease_ends: BTreeSet<(Steady, LeaseToken)>,
    /// Leases whose end was told by a rescue that only looks, so that it is told once.
    told_ends: BTreeSet<(Steady, LeaseToken)>,
    /// Completed and cancelled jobs that nothing holds back, oldest first.
    finished: BTreeSet<(Timestamp, u64, u32)>,
    /// Finished jobs whose unique key is still held, by the end of their window.
    withheld: BTreeSet<(Timestamp, u32)>,
    /// (dependency, dependent)
    edges: BTreeMap<(JobId, JobId), Edge>,
    keys: BTreeMap<Key, Hold>,
    workers: BTreeMap<Arc<str>, control::WorkerState>,
    next_sequence: u64,
    next_token: u64,
    next_event: u64,
    /// Queues whose last open job finished during this command.
    emptied: Vec<u32>,
    /// Queues with more dead letters than are kept.
    overfull: Vec<u32>,
}

impl Ledger {
    /// An empty book.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            time: Timeline::default(),
            entries: Slab::default(),
            ids: BTreeMap::new(),
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
            finished: BTreeSet::new(),
            withheld: BTreeSet::new(),
            edges: BTreeMap::new(),
            keys: BTreeMap::new(),
            workers: BTreeMap::new(),
            next_sequence: 1,
            next_token: 1,
            next_event: 1,
            emptied: Vec::new(),
            overfull: Vec::new(),
        }
    }

    /// Applies one command at the time `reading`.
    ///
    /// First, time passes: due jobs become ready, expired ones are cancelled. Then the command
    /// decides. If it refuses, the changes and events hold only what time alone caused.
    pub fn apply<C: Command>(&mut self, command: C, reading: Now) -> Applied<C::Reply> {
        let now = self.glance(reading);
        let mut effects =
            Effects { now, changes: Vec::new(), events: Vec::new(), rings: BTreeSet::new() };
        self.expire(&mut effects);
        let reply = command.run(self, &mut effects);
        self.tell_emptied_queues(&mut effects);
        let Effects { changes, events, rings, .. } = effects;
        Applied { reply, changes, events, rings }
    }

    /// Lets time pass without deciding anything: what is due becomes ready. Returns engine time.
    pub fn glance(&mut self, reading: Now) -> Now {
        let now = self.time.observe(reading);
        for _ in 0..limits::PROMOTE_BATCH {
            let Some((&(at, _), &slot)) = self.timers.first_key_value() else { break };
            if at > now.wall {
                break;
            }
            let mut condition = self.condition(slot);
            condition.state = State::Ready { since: at };
            self.set(slot, &condition);
        }
        while let Some(&(until, slot)) = self.withheld.first()
            && until <= now.wall
        {
            self.withheld.remove(&(until, slot));
            self.offer_for_purge(slot);
        }
        now
    }

    /// Takes over a change that an earlier ledger decided and a store kept.
    ///
    /// Changes must come in the order in which they were made; taking one over twice is harmless.
    pub fn absorb(&mut self, change: &Change) {
        match change {
            Change::Insert(accepted) => {
                self.time.resume_at(accepted.at);
                self.insert(accepted);
            }
            Change::Update(update) => {
                self.time.resume_at(update.at);
                let Some(&slot) = self.ids.get(&update.job) else { return };
                if let State::Running(lease) = &update.condition.state {
                    self.next_token = self.next_token.max(lease.token.0 + 1);
                }
                self.set(slot, &update.condition);
                if let Some(Note::Replayed) = update.note.as_deref() {
                    self.take_over_key(slot);
                    self.relink(slot);
                }
                self.settle_edges_of(update.job);
            }
            Change::Remove { job } => {
                if let Some(&slot) = self.ids.get(job) {
                    self.forget(slot);
                }
            }
            Change::Queue { queue, settings } => {
                if let Ok(queue) = self.queue_id(queue) {
                    self.configure(queue, settings.clone());
                }
            }
            Change::Rate { kind, full_at } => {
                if let Ok(kind) = self.kind_id(kind) {
                    self.kinds[kind as usize].full_at = *full_at;
                }
            }
        }
        // What emptied or overfilled a queue back then was dealt with back then.
        self.emptied.clear();
        self.overfull.clear();
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The number of the last event told, 0 before the first.
    pub fn last_event(&self) -> u64 {
        self.next_event - 1
    }

    fn entry(&self, slot: u32) -> &Entry {
        self.entries.get(slot)
    }

    /// The job's condition, put together from the compact entry and its lease.
    fn condition(&self, slot: u32) -> Condition {
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
        Condition {
            state,
            attempts: entry.attempts,
            recoveries: u32::from(entry.recoveries),
            generation: u32::from(entry.generation),
        }
    }

    /// Asks the state machine, takes its answer over and records it.
    fn transition(
        &mut self,
        slot: u32,
        input: &Input,
        note: Option<Note>,
        effects: &mut Effects,
    ) -> Result<Condition, Refused> {
        let condition = self.condition(slot);
        match transition::next(&condition, input, effects.now.wall)? {
            Next::Is(next) => {
                self.set(slot, &next);
                if let (State::Running(_), false) = (&condition.state, next.state.is_running()) {
                    self.ring_turned_away(slot, effects);
                }
                effects.changes.push(Change::Update(Update {
                    job: self.entry(slot).id,
                    at: effects.now.wall,
                    condition: next.clone(),
                    note: note.map(Box::new),
                }));
                if let State::Ready { .. } | State::Scheduled { .. } = next.state {
                    self.ring(slot, effects);
                }
                Ok(next)
            }
            Next::Gone => Ok(condition),
        }
    }

    /// Puts a job into a condition: the one place where indexes and counters change.
    fn set(&mut self, slot: u32, condition: &Condition) {
        let old = self.entry(slot).phase.name();
        let (ends, told) = self.lease_end_of(slot);
        self.unindex(slot);
        if let State::Running(lease) = &condition.state {
            self.leases.insert(lease.token, Held { slot, lease: lease.clone(), ends, told });
        }
        let phase = Phase::of(&condition.state);
        let entry = self.entries.get_mut(slot);
        entry.phase = phase;
        entry.attempts = condition.attempts;
        entry.recoveries = u16::try_from(condition.recoveries).unwrap_or(u16::MAX);
        entry.generation = u16::try_from(condition.generation).unwrap_or(u16::MAX);
        let line = entry.line;
        self.count(line, Some(old), Some(phase.name()));
        self.index(slot);
    }

    /// When the job's lease ends, and whether that was told; at once, if it holds none yet.
    fn lease_end_of(&self, slot: u32) -> (Steady, bool) {
        match self.entry(slot).phase {
            Phase::Running { token } => (self.leases[&token].ends, self.leases[&token].told),
            Phase::Blocked { .. }
            | Phase::Scheduled { .. }
            | Phase::Ready { .. }
            | Phase::Completed { .. }
            | Phase::Dead { .. }
            | Phase::Cancelled { .. } => (self.time.latest().steady, false),
        }
    }

    fn count(&mut self, line: u32, from: Option<StateName>, to: Option<StateName>) {
        let line = &mut self.lines[line as usize];
        let queue = &mut self.queues[line.queue as usize];
        if let Some(from) = from {
            line.states[from as usize] -= 1;
            queue.waiting -= u64::from(from.is_waiting());
            queue.open -= u64::from(!from.is_terminal());
        }
        if let Some(to) = to {
            line.states[to as usize] += 1;
            queue.waiting += u64::from(to.is_waiting());
            queue.open += u64::from(!to.is_terminal());
        }
        let was_open = from.is_some_and(|from| !from.is_terminal());
        if was_open && queue.open == 0 {
            self.emptied.push(line.queue);
        }
    }

    fn index(&mut self, slot: u32) {
        let entry = self.entries.get(slot);
        let (id, sequence, line, phase) = (entry.id, entry.sequence, entry.line, entry.phase);
        let attempts = entry.attempts;
        let (queue, kind) = (self.lines[line as usize].queue, self.lines[line as usize].kind);
        match phase {
            Phase::Blocked { .. } => {}
            Phase::Scheduled { at } => {
                self.timers.insert((at, sequence), slot);
            }
            Phase::Ready { since } => {
                let key = self.ready_key(slot, since);
                self.lines[line as usize].ready.insert(key, slot);
            }
            Phase::Running { token } => {
                self.kinds[kind as usize].running += 1;
                let held = &self.leases[&token];
                let ends = if held.told { &mut self.told_ends } else { &mut self.lease_ends };
                ends.insert((held.ends, token));
            }
            Phase::Completed { .. } | Phase::Cancelled { .. } => self.offer_for_purge(slot),
            Phase::Dead { at, .. } => {
                let dead = &mut self.queues[queue as usize].dead;
                dead.insert((at, sequence, slot));
                if dead.len() > self.limits.dead_letters {
                    self.overfull.push(queue);
                }
            }
        }
        let waiting = phase.name().is_waiting();
        if let Some(extras) = &self.entries.get(slot).extras {
            if let Some(at) = extras.expires_at
                && waiting
                && attempts == 0
            {
                self.expiries.insert((at, sequence, slot));
            }
            self.release_key(slot, id, phase.name());
        }
    }

    fn unindex(&mut self, slot: u32) {
        let entry = self.entries.get(slot);
        let (sequence, line, phase) = (entry.sequence, entry.line, entry.phase);
        let (queue, kind) = (self.lines[line as usize].queue, self.lines[line as usize].kind);
        if let Some(at) = entry.extras.as_ref().and_then(|extras| extras.expires_at) {
            self.expiries.remove(&(at, sequence, slot));
        }
        match phase {
            Phase::Blocked { .. } => {}
            Phase::Scheduled { at } => {
                self.timers.remove(&(at, sequence));
            }
            Phase::Ready { since } => {
                let key = self.ready_key(slot, since);
                self.lines[line as usize].ready.remove(&key);
            }
            Phase::Running { token } => {
                self.kinds[kind as usize].running -= 1;
                if let Some(held) = self.leases.remove(&token) {
                    self.lease_ends.remove(&(held.ends, token));
                    self.told_ends.remove(&(held.ends, token));
                }
            }
            Phase::Completed { at } | Phase::Cancelled { at, .. } => {
                self.finished.remove(&(at, sequence, slot));
                if let Some(until) = self.key_until(slot) {
                    self.withheld.remove(&(until, slot));
                }
            }
            Phase::Dead { at, .. } => {
                self.queues[queue as usize].dead.remove(&(at, sequence, slot));
            }
        }
    }

    /// A finished job may be purged unless an open job depends on it or its key is still held.
    fn offer_for_purge(&mut self, slot: u32) {
        let entry = self.entries.get(slot);
        let at = match entry.phase {
            Phase::Completed { at } | Phase::Cancelled { at, .. } => at,
            Phase::Blocked { .. }
            | Phase::Scheduled { .. }
            | Phase::Ready { .. }
            | Phase::Running { .. }
            | Phase::Dead { .. } => return,
        };
        let (id, sequence) = (entry.id, entry.sequence);
        if self.edges_from(id).next().is_some() {
            return;
        }
        match self.key_until(slot) {
            Some(until) if until > self.time.latest().wall => {
                self.withheld.insert((until, slot));
            }
            _ => {
                self.finished.insert((at, sequence, slot));
            }
        }
    }

    /// Until when the job's key outlives the job, if it does.
    fn key_until(&self, slot: u32) -> Option<Timestamp> {
        let unique = self.entry(slot).extras.as_ref()?.unique.as_ref()?;
        (unique.scope == UniqueScope::Any).then_some(unique.until)?
    }

    fn key_scope(&self, slot: u32) -> Option<UniqueScope> {
        self.entry(slot).extras.as_ref()?.unique.as_ref().map(|unique| unique.scope)
    }

    fn release_key(&mut self, slot: u32, id: JobId, state: StateName) {
        if state.is_terminal()
            && self.key_scope(slot) == Some(UniqueScope::Open)
            && let Some(key) = self.key_of(slot)
            && self.keys.get(&key).is_some_and(|hold| hold.job == id)
        {
            self.keys.remove(&key);
        }
    }

    /// A job that was just accepted or replayed takes its key. Whoever stands there holds it no
    /// longer, which was checked: the window ended, or the key was passed on.
    fn take_over_key(&mut self, slot: u32) {
        let entry = self.entries.get(slot);
        let Some(key) = self.key_of(slot) else { return };
        let unique = entry.extras.as_ref().and_then(|extras| extras.unique.as_ref());
        let until = unique.and_then(|unique| unique.until);
        let hold = Hold { job: entry.id, until, fingerprint: entry.fingerprint };
        self.keys.insert(key, hold);
    }

    fn ready_key(&self, slot: u32, since: Timestamp) -> ReadyKey {
        let entry = self.entry(slot);
        let queue = self.lines[entry.line as usize].queue;
        let rank = self.queues[queue as usize].rank(entry.priority, since);
        ReadyKey { rank, since, sequence: entry.sequence }
    }

    /// Writes a newly accepted job into the book.
    fn insert(&mut self, accepted: &Accepted) {
        if self.ids.contains_key(&accepted.job.id) {
            return;
        }
        let (Ok(queue), Ok(kind)) =
            (self.queue_id(&accepted.job.queue), self.kind_id(&accepted.job.kind))
        else {
            return;
        };
        let line = self.line_id(kind, queue);
        let slot = self.entries.insert(Entry::new(accepted, line));
        self.ids.insert(accepted.job.id, slot);
        self.next_sequence = self.next_sequence.max(accepted.sequence + 1);
        for dependency in &accepted.job.depends_on {
            self.link(dependency.on, accepted.job.id, dependency.on_failure);
        }
        if let State::Running(lease) = &accepted.condition.state {
            let ends = self.time.latest().steady;
            self.leases.insert(lease.token, Held { slot, lease: lease.clone(), ends, told: false });
            self.next_token = self.next_token.max(lease.token.0 + 1);
        }
        let name = accepted.condition.state.name();
        self.count(line, None, Some(name));
        self.take_over_key(slot);
        self.index(slot);
    }

    /// Deletes a job from the book.
    fn forget(&mut self, slot: u32) {
        self.unindex(slot);
        let entry = self.entries.get(slot);
        let (id, line, name) = (entry.id, entry.line, entry.phase.name());
        if let Some(unique) = entry.extras.as_ref().and_then(|extras| extras.unique.as_ref()) {
            let line = &self.lines[line as usize];
            let key = Key { queue: line.queue, kind: line.kind, key: unique.key.clone() };
            if self.keys.get(&key).is_some_and(|hold| hold.job == id) {
                self.keys.remove(&key);
            }
        }
        self.count(line, Some(name), None);
        self.ids.remove(&id);
        self.entries.remove(slot);
        let dependents: Vec<JobId> = self.edges_from(id).map(|(job, _)| job).collect();
        for dependent in dependents {
            self.edges.remove(&(id, dependent));
        }
    }

    fn edges_from(&self, dependency: JobId) -> impl Iterator<Item = (JobId, Edge)> + '_ {
        let first = (dependency, JobId::from_u128(0));
        let last = (dependency, JobId::from_u128(u128::MAX));
        self.edges.range(first..=last).map(|((_, dependent), edge)| (*dependent, *edge))
    }

    /// Notes that `dependent` depends on `on`, met or not as `on` stands now.
    fn link(&mut self, on: JobId, dependent: JobId, on_failure: OnFailure) {
        let state = self.ids.get(&on).map(|slot| self.entry(*slot).phase.name());
        let met = match state {
            Some(StateName::Completed) => true,
            Some(StateName::Dead | StateName::Cancelled) => on_failure == OnFailure::Ignore,
            Some(
                StateName::Blocked | StateName::Scheduled | StateName::Ready | StateName::Running,
            ) => false,
            // Not in the book yet: it comes later in the same batch.
            None => false,
        };
        self.edges.insert((on, dependent), Edge { on_failure, met });
        if let Some(&slot) = self.ids.get(&on) {
            // It is needed for its output now, so it must not be purged.
            let entry = self.entry(slot);
            if let Phase::Completed { at } | Phase::Cancelled { at, .. } = entry.phase {
                let key = (at, entry.sequence, slot);
                self.finished.remove(&key);
                if let Some(until) = self.key_until(slot) {
                    self.withheld.remove(&(until, slot));
                }
            }
        }
    }

    /// Notes again what a job depends on, after it had finished.
    fn relink(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let id = entry.id;
        let dependencies: Vec<Dependency> = entry.dependencies().copied().collect();
        for dependency in dependencies {
            if self.ids.contains_key(&dependency.on) {
                self.link(dependency.on, id, dependency.on_failure);
            }
        }
    }

    /// Brings the edges around a job in line with the state it is in.
    fn settle_edges_of(&mut self, job: JobId) {
        let Some(&slot) = self.ids.get(&job) else { return };
        let state = self.entry(slot).phase.name();
        if state.is_terminal() {
            self.unlink(slot);
        }
        let met_on_failure = matches!(state, StateName::Dead | StateName::Cancelled);
        let met: Vec<JobId> = self
            .edges_from(job)
            .filter(|(_, edge)| match edge.on_failure {
                OnFailure::Ignore => state == StateName::Completed || met_on_failure,
                OnFailure::Cascade | OnFailure::Wait => state == StateName::Completed,
            })
            .map(|(dependent, _)| dependent)
            .collect();
        for dependent in met {
            if let Some(edge) = self.edges.get_mut(&(job, dependent)) {
                edge.met = true;
            }
        }
    }

    /// Removes the edges from a finished job to those it depended on, which may now be purged.
    fn unlink(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let id = entry.id;
        let dependencies: Vec<JobId> =
            entry.dependencies().map(|dependency| dependency.on).collect();
        for on in dependencies {
            self.edges.remove(&(on, id));
            if let Some(&slot) = self.ids.get(&on) {
                self.offer_for_purge(slot);
            }
        }
    }

    /// Tells a finished job's dependents, and keeps the dead letters and the history within their
    /// bounds. The job itself may be gone afterwards.
    ///
    /// `error` is why it failed, for the record of those that follow.
    fn after_end(&mut self, slot: u32, error: Option<&ErrorText>, effects: &mut Effects) {
        self.spread(slot, error, effects);
        self.keep_bounded(effects);
    }

    /// Tells a finished job's dependents, theirs if they follow, and so on.
    ///
    /// Nothing is removed on the way: those still to be told must be there.
    fn spread(&mut self, slot: u32, error: Option<&ErrorText>, effects: &mut Effects) {
        let root = self.entry(slot).id;
        let mut ended: Vec<u32> = alloc::vec![slot];
        while let Some(slot) = ended.pop() {
            let id = self.entry(slot).id;
            let state = self.entry(slot).phase.name();
            self.unlink(slot);
            let dependents: Vec<(JobId, Edge)> =
                self.edges_from(id).filter(|(_, edge)| !edge.met).collect();
            for (dependent, edge) in dependents {
                let fails = state != StateName::Completed;
                match edge.on_failure {
                    OnFailure::Wait if fails => {}
                    OnFailure::Cascade if fails => {
                        ended.extend(self.follow(dependent, id, root, state, error, effects));
                    }
                    OnFailure::Cascade | OnFailure::Wait | OnFailure::Ignore => {
                        self.release(id, dependent, effects);
                    }
                }
            }
            self.offer_for_purge(slot);
        }
    }

    /// A dependent dies or is cancelled with the job it depends on.
    fn follow(
        &mut self,
        dependent: JobId,
        dependency: JobId,
        root: JobId,
        state: StateName,
        error: Option<&ErrorText>,
        effects: &mut Effects,
    ) -> Option<u32> {
        let slot = *self.ids.get(&dependent)?;
        let cause = error.map_or(state.as_str(), ErrorText::as_str);
        let text = if dependency == root {
            format!("depends on job {dependency}, which is {state}: {cause}")
        } else {
            format!(
                "depends on job {dependency}, which is {state} because job {root} failed: {cause}"
            )
        };
        let error = ErrorText::new(text);
        let cancelled = state == StateName::Cancelled;
        let input = Input::DependencyFailed { cancelled };
        let note = Some(Note::Failed(error.clone()));
        let condition = self.transition(slot, &input, note, effects).ok()?;
        self.tell_end(slot, &condition, Some(error), effects);
        Some(slot)
    }

    /// One of a blocked job's dependencies is met.
    fn release(&mut self, dependency: JobId, dependent: JobId, effects: &mut Effects) {
        if let Some(edge) = self.edges.get_mut(&(dependency, dependent)) {
            edge.met = true;
        }
        let Some(&slot) = self.ids.get(&dependent) else { return };
        let Ok(condition) = self.transition(slot, &Input::Unblock, None, effects) else { return };
        match condition.state {
            State::Ready { .. } => self.tell(slot, What::JobUnblocked, effects),
            State::Scheduled { at } => {
                self.tell(slot, What::JobUnblocked, effects);
                self.tell(slot, What::JobScheduled { at }, effects);
            }
            State::Blocked { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => {}
        }
    }

    /// Tells that a job died or was cancelled without an attempt, and counts it.
    fn tell_end(
        &mut self,
        slot: u32,
        condition: &Condition,
        error: Option<ErrorText>,
        effects: &mut Effects,
    ) {
        let line = self.entry(slot).line as usize;
        match &condition.state {
            State::Dead { reason, .. } => {
                self.lines[line].totals.dead += 1;
                let attempts = condition.attempts;
                self.tell(slot, What::JobDead { reason: *reason, attempts, error }, effects);
            }
            State::Cancelled { reason, .. } => {
                self.lines[line].totals.cancelled += 1;
                self.tell(slot, What::JobCancelled { reason: *reason }, effects);
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
        while let Some(queue) = self.overfull.pop() {
            let queue = queue as usize;
            while self.queues[queue].dead.len() > self.limits.dead_letters {
                let Some(&(_, _, oldest)) = self.queues[queue].dead.first() else { break };
                self.queues[queue].dead_letters_dropped += 1;
                self.remove(oldest, RemoveReason::DeadLettersFull, effects);
            }
        }
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
        self.tell(slot, What::JobRemoved { reason }, effects);
        self.forget(slot);
        effects.changes.push(Change::Remove { job: id });
        for dependent in waiting {
            let Some(&slot) = self.ids.get(&dependent) else { continue };
            let error = ErrorText::new(format!("depends on job {id}, which was removed"));
            let note = Some(Note::Failed(error.clone()));
            let input = Input::DependencyFailed { cancelled: false };
            if let Ok(condition) = self.transition(slot, &input, note, effects) {
                self.tell_end(slot, &condition, Some(error.clone()), effects);
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
            let note = Some(Note::Failed(error.clone()));
            if let Ok(condition) = self.transition(slot, &Input::Expire, note, effects) {
                self.tell_end(slot, &condition, Some(error.clone()), effects);
                self.after_end(slot, Some(&error), effects);
            }
        }
    }

    fn ring(&self, slot: u32, effects: &mut Effects) {
        let queue = self.lines[self.entry(slot).line as usize].queue;
        effects.rings.insert(Ring::Queue(self.queues[queue as usize].name.clone()));
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

    fn tell(&mut self, slot: u32, what: What, effects: &mut Effects) {
        let entry = self.entry(slot);
        let line = &self.lines[entry.line as usize];
        let subject = Subject::Job {
            id: entry.id,
            kind: self.kinds[line.kind as usize].name.clone(),
            queue: self.queues[line.queue as usize].name.clone(),
        };
        self.tell_of(subject, what, effects);
    }

    fn tell_of(&mut self, subject: Subject, what: What, effects: &mut Effects) {
        let number = self.next_event;
        self.next_event += 1;
        effects.events.push(Event { number, at: effects.now.wall, subject, what });
    }

    fn tell_emptied_queues(&mut self, effects: &mut Effects) {
        let mut emptied = core::mem::take(&mut self.emptied);
        emptied.sort_unstable();
        emptied.dedup();
        for queue in emptied {
            let book = &self.queues[queue as usize];
            if book.open == 0 {
                let subject = Subject::Queue(book.name.clone());
                self.tell_of(subject, What::QueueEmpty, effects);
            }
        }
    }

    fn queue_id(&mut self, name: &Name) -> Result<u32, Refusal> {
        if let Some(&id) = self.queue_ids.get(name) {
            return Ok(id);
        }
        let id = fresh_id(self.queues.len(), "distinct queues")?;
        self.queues.push(QueueBook::new(name.clone()));
        self.queue_ids.insert(name.clone(), id);
        Ok(id)
    }

    fn kind_id(&mut self, name: &Name) -> Result<u32, Refusal> {
        if let Some(&id) = self.kind_ids.get(name) {
            return Ok(id);
        }
        let id = fresh_id(self.kinds.len(), "distinct kinds")?;
        self.kinds.push(KindBook::new(name.clone()));
        self.kind_ids.insert(name.clone(), id);
        Ok(id)
    }

    fn line_id(&mut self, kind: u32, queue: u32) -> u32 {
        let next = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        let lines = &mut self.lines;
        *self.line_ids.entry((kind, queue)).or_insert_with(|| {
            lines.push(Line::new(kind, queue));
            next
        })
    }
}

fn fresh_id(known: usize, what: &'static str) -> Result<u32, Refusal> {
    if known >= limits::NAMES {
        return Err(Refusal::OutOfBounds {
            what,
            got: format!("{}", known + 1),
            allowed: format!("at most {} are kept", limits::NAMES),
        });
    }
    Ok(u32::try_from(known).unwrap_or(u32::MAX))
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
