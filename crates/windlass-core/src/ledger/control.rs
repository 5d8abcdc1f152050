//! What people do to jobs: cancel, move, replay, remove.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::entries::{Key, Phase};
use super::graph::is_met;
use super::{Acceptance, Command, Effects, Enqueued, Ledger, Ring};
use crate::event::{EventKind, RemoveReason};
use crate::job::{CancelReason, JobId, NewJob, OnFailure, Start, State, StateName};
use crate::limits::{self};
use crate::record::RecordNote;
use crate::refusal::Refusal;
use crate::time::Timestamp;
use crate::transition::Input;

/// Call these jobs off. Each is answered on its own; dependents follow by the policy of each edge.
#[derive(Clone, Debug)]
pub struct Cancel {
    /// The jobs.
    pub jobs: Vec<JobId>,
}

/// What a cancellation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum CancelAnswer {
    /// The job had not started, or was waiting to be tried again. It will not start.
    Cancelled,
    /// The job runs. Its handler is told, and it will not be tried again.
    Requested,
}

impl Command for Cancel {
    type Reply = Vec<Result<CancelAnswer, Refusal>>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal> {
        let reason = CancelReason::Requested;
        Ok(self.jobs.into_iter().map(|job| ledger.cancel(job, reason, effects)).collect())
    }
}

/// Move the start of these waiting jobs. Each is answered on its own.
#[derive(Clone, Debug)]
pub struct Reschedule {
    /// The jobs.
    pub jobs: Vec<JobId>,
    /// When they may start now; [`Start::Now`] runs them as soon as a worker is free.
    pub start: Start,
}

impl Command for Reschedule {
    type Reply = Vec<Result<StateName, Refusal>>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal> {
        let now = effects.now.wall;
        self.start.check(now)?;
        let at = self.start.due(now);
        Ok(self.jobs.into_iter().map(|job| ledger.reschedule(job, at, effects)).collect())
    }
}

/// Try these dead or cancelled jobs again, with their attempts reset. Each is answered on its own.
///
/// They are taken in the order in which they were accepted, and one that depends on another of
/// them after it, so that a job and those that depend on it can be replayed together.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The jobs.
    pub jobs: Vec<JobId>,
}

impl Command for Replay {
    type Reply = Vec<(JobId, Result<(), Refusal>)>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal> {
        let mut jobs = self.jobs;
        let place = |job: &JobId| ledger.find(*job).map(|slot| ledger.entry(slot).sequence);
        jobs.sort_by_key(|job| (place(job), *job));
        jobs.dedup();
        let jobs = ledger.dependencies_first(jobs);
        Ok(jobs.into_iter().map(|job| (job, ledger.replay(job, effects))).collect())
    }
}

/// Put a new job in the place of a dead one, which is then cancelled as replaced and gives up its
/// unique key, whether the new one takes it or not.
#[derive(Clone, Debug)]
pub struct ReplayEdited {
    /// The dead job.
    pub job: JobId,
    /// The new one.
    pub edited: NewJob,
}

impl Command for ReplayEdited {
    type Reply = Enqueued;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Enqueued, Refusal> {
        let slot = ledger.slot(self.job)?;
        let state = ledger.entry(slot).phase.name();
        if state != StateName::Dead {
            return Err(Refusal::WrongState {
                job: self.job,
                state,
                operation: "edit and replay".into(),
            });
        }
        let edited = alloc::vec![Arc::new(self.edited)];
        let plan = ledger
            .plan_without_key_of(Some(slot), |ledger| ledger.plan(edited, effects.now.wall))?;
        // If the edited job is known already, or another holds its key, no new job would take the
        // place of the dead one: it is refused, and the dead one stays.
        match plan.first() {
            Some((_, Acceptance::Accepted)) | None => {}
            Some((job, Acceptance::AlreadyAccepted)) => return Err(Refusal::IdReused { job }),
            Some((holder, Acceptance::Deduplicated { .. })) => {
                return Err(Refusal::KeyTaken { job: self.job, holder });
            }
        }
        let enqueued = ledger.carry_out(plan, effects).remove(0);
        if let Ok(status) = ledger.transition(slot, &Input::Replace, None, effects) {
            ledger.tell_end(slot, &status, None, effects);
            ledger.after_end(slot, None, effects);
        }
        Ok(enqueued)
    }
}

/// Delete these finished jobs. Each is answered on its own; a completed one on which an open job
/// depends is kept, because that job may read its output. So is one for which more than
/// [`limits::CASCADE_JOBS`] wait: they would follow it, all in one commit.
#[derive(Clone, Debug)]
pub struct Remove {
    /// The jobs.
    pub jobs: Vec<JobId>,
}

impl Command for Remove {
    type Reply = Vec<Result<(), Refusal>>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal> {
        let remove = |job| {
            let slot = ledger.slot(job)?;
            let state = ledger.entry(slot).phase.name();
            if !state.is_terminal() {
                return Err(Refusal::WrongState { job, state, operation: "remove".into() });
            }
            let kept = state == StateName::Completed || !ledger.few_wait_for(job);
            let needed = ledger.edges_from(job).next().filter(|_| kept);
            if let Some((by, _)) = needed {
                return Err(Refusal::StillNeeded { job, by });
            }
            ledger.remove(slot, RemoveReason::Requested, effects);
            ledger.keep_bounded(effects);
            Ok(())
        };
        Ok(self.jobs.into_iter().map(remove).collect())
    }
}

/// Delete finished graphs: each of these jobs, with all that depend on it, directly or through
/// others that are kept. Each is answered on its own, with how many jobs were deleted.
///
/// A graph that has an open job is refused whole and the job is named: of several, the one that was
/// accepted first. So is one of more than [`limits::BATCH_JOBS`] jobs.
///
/// What depends on a job is found by looking at all jobs there are: nobody pays for this until it
/// is asked for.
#[derive(Clone, Debug)]
pub struct RemoveGraph {
    /// The jobs on which the others depend.
    pub roots: Vec<JobId>,
}

impl Command for RemoveGraph {
    type Reply = Vec<Result<u64, Refusal>>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal> {
        if self.roots.is_empty() {
            return Ok(Vec::new());
        }
        let dependents = ledger.all_dependents();
        let remove = |root| {
            let graph = ledger.finished_graph(root, &dependents)?;
            for job in &graph {
                if let Some(slot) = ledger.find(*job) {
                    ledger.remove(slot, RemoveReason::Requested, effects);
                }
            }
            ledger.keep_bounded(effects);
            Ok(graph.len() as u64)
        };
        Ok(self.roots.into_iter().map(remove).collect())
    }
}

impl Ledger {
    pub(super) fn slot(&self, job: JobId) -> Result<u32, Refusal> {
        self.find(job).ok_or(Refusal::UnknownJob { job })
    }

    pub(super) fn cancel(
        &mut self,
        job: JobId,
        reason: CancelReason,
        effects: &mut Effects,
    ) -> Result<CancelAnswer, Refusal> {
        let answer = self.cancel_keeping_all(job, reason, effects)?;
        if answer == CancelAnswer::Cancelled {
            self.keep_bounded(effects);
        }
        Ok(answer)
    }

    /// Cancels a job within a larger change, which keeps the bounds when it is through.
    pub(super) fn cancel_keeping_all(
        &mut self,
        job: JobId,
        reason: CancelReason,
        effects: &mut Effects,
    ) -> Result<CancelAnswer, Refusal> {
        let slot = self.slot(job)?;
        let was_asked = match self.entry(slot).phase {
            Phase::Running { token } => self.leases[&token].lease.cancel_requested,
            Phase::Blocked { .. }
            | Phase::Scheduled { .. }
            | Phase::Ready { .. }
            | Phase::Completed { .. }
            | Phase::Dead { .. }
            | Phase::Cancelled { .. } => false,
        };
        if was_asked {
            return Ok(CancelAnswer::Requested);
        }
        let status = self
            .transition(slot, &Input::Cancel(reason), None, effects)
            .map_err(|refused| Refusal::of(refused, job, "cancel"))?;
        if let State::Running(_) = status.state {
            effects.rings.insert(Ring::Cancel);
            self.tell(slot, EventKind::JobCancelRequested, effects);
            return Ok(CancelAnswer::Requested);
        }
        self.tell_end(slot, &status, None, effects);
        self.spread(slot, None, effects);
        Ok(CancelAnswer::Cancelled)
    }

    pub(super) fn reschedule(
        &mut self,
        job: JobId,
        at: Timestamp,
        effects: &mut Effects,
    ) -> Result<StateName, Refusal> {
        let slot = self.slot(job)?;
        let status = self
            .transition(slot, &Input::Reschedule(at), None, effects)
            .map_err(|refused| Refusal::of(refused, job, "reschedule"))?;
        let at = at.max(effects.now.wall);
        self.tell(slot, EventKind::JobScheduled { at }, effects);
        Ok(status.state.name())
    }

    fn replay(&mut self, job: JobId, effects: &mut Effects) -> Result<(), Refusal> {
        let slot = self.slot(job)?;
        let state = self.entry(slot).phase.name();
        if !matches!(state, StateName::Dead | StateName::Cancelled) {
            return Err(Refusal::WrongState { job, state, operation: "replay".into() });
        }
        let (unmet, met) = self.dependencies_for_replay(slot)?;
        if let Some(key) = self.key_of(slot)
            && let Some((holder, _)) = self.holder(&key, effects.now.wall)
            && holder != job
        {
            return Err(Refusal::KeyTaken { job, holder });
        }
        let note = RecordNote::Replayed { met: met.clone() };
        let status = self
            .transition(slot, &Input::Replay { unmet }, Some(note), effects)
            .map_err(|refused| Refusal::of(refused, job, "replay"))?;
        self.take_over_key(slot);
        self.link_all(slot, &met);
        let generation = status.generation;
        self.tell(slot, EventKind::JobReplayed { generation }, effects);
        if let State::Blocked { unmet, .. } = status.state {
            self.tell(slot, EventKind::JobBlocked { unmet }, effects);
        }
        Ok(())
    }

    /// Who depends on whom, of all kept jobs, finished or not.
    fn all_dependents(&self) -> BTreeMap<JobId, Vec<JobId>> {
        let mut dependents: BTreeMap<JobId, Vec<JobId>> = BTreeMap::new();
        for (_, entry) in self.entries.iter() {
            for dependency in entry.dependencies() {
                dependents.entry(dependency.on).or_default().push(entry.id);
            }
        }
        dependents
    }

    /// A finished job and all that depend on it, by acceptance, if they have finished too.
    fn finished_graph(
        &self,
        root: JobId,
        dependents: &BTreeMap<JobId, Vec<JobId>>,
    ) -> Result<Vec<JobId>, Refusal> {
        self.slot(root)?;
        let (mut graph, mut ahead) = (BTreeMap::new(), alloc::vec![root]);
        while let Some(job) = ahead.pop() {
            let Some(slot) = self.find(job) else { continue };
            if graph.insert(self.entry(slot).sequence, (job, slot)).is_none() {
                ahead.extend(dependents.get(&job).into_iter().flatten());
            }
        }
        limits::GRAPH_BOUND.check(graph.len())?;
        for &(job, slot) in graph.values() {
            let state = self.entry(slot).phase.name();
            if !state.is_terminal() {
                return Err(Refusal::WrongState { job, state, operation: "remove".into() });
            }
        }
        Ok(graph.into_values().map(|(job, _)| job).collect())
    }

    /// The jobs in their order, but each after those it depends on: within one batch a job may
    /// have been accepted before them.
    fn dependencies_first(&self, jobs: Vec<JobId>) -> Vec<JobId> {
        enum Walk {
            Visit(JobId),
            Add(JobId),
        }
        let wanted: BTreeSet<JobId> = jobs.iter().copied().collect();
        let mut visited = BTreeSet::new();
        let mut placed = Vec::with_capacity(jobs.len());
        let mut ahead: Vec<Walk> = jobs.into_iter().rev().map(Walk::Visit).collect();
        while let Some(next) = ahead.pop() {
            match next {
                Walk::Add(job) => placed.push(job),
                Walk::Visit(job) if visited.insert(job) => {
                    ahead.push(Walk::Add(job));
                    let entry = self.find(job).map(|slot| self.entry(slot));
                    let before = entry.into_iter().flat_map(|entry| entry.dependencies());
                    let before: Vec<JobId> = before.map(|dependency| dependency.on).collect();
                    let before = before.into_iter().rev().filter(|on| wanted.contains(on));
                    ahead.extend(before.map(Walk::Visit));
                }
                Walk::Visit(_) => {}
            }
        }
        placed
    }

    /// How many dependencies a replayed job must wait for again, and those that are met.
    ///
    /// One that is no longer kept counts as met: whoever replays the job has decided so.
    fn dependencies_for_replay(&self, slot: u32) -> Result<(u32, Vec<JobId>), Refusal> {
        let entry = self.entry(slot);
        let (mut unmet, mut met) = (0, Vec::new());
        for dependency in entry.dependencies() {
            let state = self.find(dependency.on).map(|on| self.entry(on).phase.name());
            match state {
                Some(state) if !is_met(state, dependency.on_failure) => {
                    if dependency.on_failure == OnFailure::Cascade && state.is_terminal() {
                        let (job, dependency) = (entry.id, dependency.on);
                        return Err(Refusal::DependencyFailed { job, dependency, state });
                    }
                    unmet += 1;
                }
                Some(_) | None => met.push(dependency.on),
            }
        }
        Ok((unmet, met))
    }

    pub(super) fn key_of(&self, slot: u32) -> Option<Key> {
        let entry = self.entry(slot);
        let unique = entry.extras.as_ref()?.unique.as_ref()?;
        let line = &self.lines[entry.line as usize];
        Some(Key { queue: line.queue, kind: line.kind, key: unique.key.clone() })
    }

    /// Makes a plan for the commit in which a job ends and gives up its key, if that is so: the
    /// key must not stand in the way of its successor.
    pub(super) fn plan_without_key_of<P>(
        &mut self,
        slot: Option<u32>,
        plan: impl FnOnce(&Self) -> Result<P, Refusal>,
    ) -> Result<P, Refusal> {
        let held = slot.and_then(|slot| {
            let ours = self.entry(slot).id;
            self.key_of(slot).filter(|key| self.keys.get(key).is_some_and(|h| h.job == ours))
        });
        let kept = held.and_then(|key| self.keys.remove_entry(&key));
        let plan = plan(self);
        if let Some((key, hold)) = kept {
            self.keys.insert(key, hold);
        }
        plan
    }
}
