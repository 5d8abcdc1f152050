//! Accepting jobs: one batch, one decision, one commit.
//!
//! Answers: a batch with one bad item of a thousand must leave nothing behind, and a ledger cannot
//! roll back.
//! Why not simpler: item by item, the thousandth would be refused after 999 were written. So every
//! check is made first, against the ledger *and* the rest of the batch (`plan`), and then nothing
//! can fail (`carry_out`).
//! Guarded by: `a_batch_with_one_bad_item_of_a_thousand_stores_nothing` in
//! `windlass/tests/main/faults.rs`, and the planted bugs 10, 12 and 19.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::entries::Key;
use super::{Command, Effects, Ledger};
use crate::batch;
use crate::event::{EventKind, Subject};
use crate::job::{Dependency, JobId, JobStatus, Lane, NewJob, OnFailure, State, StateName};
use crate::limits;
use crate::name::Name;
use crate::object::Address;
use crate::record::{Accepted, Change};
use crate::refusal::Refusal;
use crate::time::Timestamp;
use crate::transition::waiting_until;

/// Accept these jobs, all or none.
#[derive(Clone, Debug)]
pub struct Enqueue {
    /// The jobs. They may depend on each other, in any order.
    pub jobs: Vec<Arc<NewJob>>,
}

/// What became of one item of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Enqueued {
    /// The job that now stands for the item: its own id, or that of the job that holds its key.
    pub id: JobId,
    /// Whether a job was added.
    pub acceptance: Acceptance,
    /// Waiting jobs in its queue after this batch.
    pub depth: u64,
    /// Its place in the order of acceptance.
    pub sequence: u64,
    /// Its lane, if its queue has lanes and it is in one.
    pub lane: Option<LanePosition>,
}

/// A job's place in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct LanePosition {
    /// Which of the lanes of its queue.
    pub lane: u32,
    /// Waiting jobs of that lane ahead of it: with 0 it is the next to start.
    pub position: u64,
}

/// Whether a job was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Acceptance {
    /// Yes.
    Accepted,
    /// No: the same job was accepted earlier under this id. The call was repeated.
    AlreadyAccepted,
    /// No: another job holds its unique key.
    Deduplicated {
        /// That job's payload is not the same.
        payload_differs: bool,
    },
}

impl Command for Enqueue {
    type Reply = Vec<Enqueued>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Vec<Enqueued>, Refusal> {
        let plan = ledger.plan(self.jobs, effects.now.wall)?;
        Ok(ledger.carry_out(plan, effects))
    }
}

/// A batch that has passed every check.
pub(super) struct Plan {
    items: Vec<Planned>,
}

enum Planned {
    Accept { job: Arc<NewJob>, fingerprint: u64 },
    Known { id: JobId, queue: Name, acceptance: Acceptance },
}

impl Planned {
    fn accepted(&self) -> Option<&NewJob> {
        match self {
            Planned::Accept { job, .. } => Some(job),
            Planned::Known { .. } => None,
        }
    }
}

impl Plan {
    /// Refuses a batch in which this item is not a new job.
    pub(super) fn must_add(&self, item: usize, job: JobId) -> Result<(), Refusal> {
        match self.items.get(item) {
            Some(Planned::Accept { .. }) | None => Ok(()),
            Some(Planned::Known { id, acceptance, .. }) => Err(match acceptance {
                Acceptance::Deduplicated { .. } => Refusal::KeyTaken { job, holder: *id },
                Acceptance::Accepted | Acceptance::AlreadyAccepted => Refusal::IdReused { job },
            }),
        }
    }

    /// The job that will stand for the first item, and whether it is added.
    pub(super) fn first(&self) -> Option<(JobId, Acceptance)> {
        self.items.first().map(|item| match item {
            Planned::Accept { job, .. } => (job.id, Acceptance::Accepted),
            Planned::Known { id, acceptance, .. } => (*id, *acceptance),
        })
    }
}

impl Ledger {
    /// Checks a batch without changing anything.
    pub(super) fn plan(&self, jobs: Vec<Arc<NewJob>>, now: Timestamp) -> Result<Plan, Refusal> {
        self.plan_for(jobs, None, now)
    }

    /// Checks a batch that is accepted with a turn of `object`, which may be new.
    pub(super) fn plan_for(
        &self,
        jobs: Vec<Arc<NewJob>>,
        object: Option<&Address>,
        now: Timestamp,
    ) -> Result<Plan, Refusal> {
        batch::check(&jobs, &self.limits, now)?;
        for job in &jobs {
            let bound = job.object.as_ref().filter(|bound| Some(*bound) != object);
            if let Some(unknown) = bound.filter(|bound| !self.objects.contains(bound)) {
                return Err(Refusal::UnknownObject { object: unknown.clone() });
            }
        }
        self.refuse_surplus_names(&jobs)?;
        let mut items = Vec::with_capacity(jobs.len());
        let depends = jobs.iter().any(|job| !job.depends_on.is_empty());
        let mut batch = Batch { depends, ..Batch::default() };
        for job in jobs {
            items.push(self.plan_identity(job, now, &mut batch)?);
        }
        for item in &mut items {
            if let Planned::Accept { job, .. } = item {
                self.plan_dependencies(job, &batch)?;
            }
        }
        batch::refuse_cycles(items.iter().filter_map(Planned::accepted))?;
        self.take_turns(&mut items);
        self.refuse_overflow(&items)?;
        self.refuse_lane_overflow(&items)?;
        Ok(Plan { items })
    }

    /// Gives the jobs that are spread over the lanes of their queue their turns.
    fn take_turns(&self, items: &mut [Planned]) {
        let mut next: BTreeMap<Name, u64> = BTreeMap::new();
        for item in items {
            let Planned::Accept { job, .. } = item else { continue };
            if job.lane != Some(Lane::Spread) {
                continue;
            }
            let known = || self.queue_ids.get(&job.queue).map(|id| &self.queues[*id as usize]);
            let next = next
                .entry(job.queue.clone())
                .or_insert_with(|| known().map_or(0, |queue| queue.next_turn));
            Arc::make_mut(job).lane = Some(Lane::Turn(*next));
            *next += 1;
        }
    }

    fn refuse_lane_overflow(&self, items: &[Planned]) -> Result<(), Refusal> {
        let mut added: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for item in items {
            let Planned::Accept { job, .. } = item else { continue };
            let Some(&queue) = self.queue_ids.get(&job.queue) else { continue };
            let settings = &self.queues[queue as usize].settings;
            let (Some(lanes), Some(limit)) = (settings.lanes, settings.lane_depth) else {
                continue;
            };
            let Some(partition) = job.lane.as_ref().and_then(Lane::partition) else { continue };
            let lane = Lane::of(partition, lanes);
            let (depth, _) = self.lane_load(queue, lane.into());
            let added = added.entry((queue, lane)).or_default();
            *added += 1;
            if depth + *added > limit {
                let queue = job.queue.clone();
                return Err(Refusal::LaneFull { queue, lane, depth, limit });
            }
        }
        Ok(())
    }

    /// A name is kept for ever, so it is counted here and noted only when a job is accepted.
    fn refuse_surplus_names(&self, jobs: &[Arc<NewJob>]) -> Result<(), Refusal> {
        let queues = jobs.iter().map(|job| &job.queue);
        let fresh = queues.filter(|name| !self.queue_ids.contains_key(*name));
        limits::QUEUES_BOUND.check(self.queues.len() + distinct(fresh))?;
        let kinds = jobs.iter().map(|job| &job.kind);
        let fresh = kinds.filter(|name| !self.kind_ids.contains_key(*name));
        limits::KINDS_BOUND.check(self.kinds.len() + distinct(fresh))
    }

    /// Is there room for the names of a queue and of the jobs it asks for?
    pub(super) fn refuse_surplus_hooks<'a>(
        &self,
        queue: &'a Name,
        hooks: impl Iterator<Item = &'a Name> + Clone,
    ) -> Result<(), Refusal> {
        let queues = hooks.clone().chain([queue]);
        let fresh = queues.filter(|name| !self.queue_ids.contains_key(*name));
        limits::QUEUES_BOUND.check(self.queues.len() + distinct(fresh))?;
        let fresh = hooks.filter(|name| !self.kind_ids.contains_key(*name));
        limits::KINDS_BOUND.check(self.kinds.len() + distinct(fresh))
    }

    /// Is this job new, a repeated call, or the same as one that holds its key?
    fn plan_identity(
        &self,
        job: Arc<NewJob>,
        now: Timestamp,
        batch: &mut Batch,
    ) -> Result<Planned, Refusal> {
        let stand = |id, acceptance| Planned::Known { id, queue: job.queue.clone(), acceptance };
        let fingerprint = job.fingerprint();
        if let Some(slot) = self.find(job.id) {
            if self.entry(slot).fingerprint != fingerprint {
                return Err(Refusal::IdReused { job: job.id });
            }
            return Ok(stand(job.id, Acceptance::AlreadyAccepted));
        }
        if let Some(unique) = &job.unique {
            let known = self.key(&job.queue, &job.kind, &unique.key);
            let holder = known.and_then(|key| self.holder(&key, now));
            let key = (job.queue.clone(), job.kind.clone(), unique.key.clone());
            if let Some((holder, theirs)) = holder.or(batch.keys.get(&key).copied()) {
                let payload_differs = theirs != fingerprint;
                batch.aliases.insert(job.id, holder);
                return Ok(stand(holder, Acceptance::Deduplicated { payload_differs }));
            }
            batch.keys.insert(key, (job.id, fingerprint));
        }
        if batch.depends {
            batch.accepted.insert(job.id);
        }
        Ok(Planned::Accept { job, fingerprint })
    }

    /// The key in the ledger's own terms; `None` if no job of the queue or kind was ever accepted.
    fn key(&self, queue: &Name, kind: &Name, key: &str) -> Option<Key> {
        let (queue, kind) = (*self.queue_ids.get(queue)?, *self.kind_ids.get(kind)?);
        Some(Key { queue, kind, key: key.into() })
    }

    /// Who holds a key at `now`, and the fingerprint of that job.
    pub(super) fn holder(&self, key: &Key, now: Timestamp) -> Option<(JobId, u64)> {
        let hold = self.keys.get(key)?;
        let held = hold.until.is_none_or(|until| until > now);
        held.then_some((hold.job, hold.fingerprint))
    }

    /// Resolves a job's dependencies, each of which must be there and must not have failed.
    fn plan_dependencies(&self, job: &mut Arc<NewJob>, batch: &Batch) -> Result<(), Refusal> {
        let mut seen = BTreeSet::new();
        let mut resolved: Vec<Dependency> = Vec::with_capacity(job.depends_on.len());
        for dependency in &job.depends_on {
            let on = batch.aliases.get(&dependency.on).copied().unwrap_or(dependency.on);
            if on == job.id {
                return Err(Refusal::DependencyCycle { job: job.id });
            }
            if !seen.insert(on) {
                continue;
            }
            resolved.push(Dependency { on, on_failure: dependency.on_failure });
            self.refuse_lost_dependency(job.id, on, dependency.on_failure, batch)?;
        }
        // Only a dependency that was named twice, or through an alias, costs a copy of the job.
        if resolved != job.depends_on {
            Arc::make_mut(job).depends_on = resolved;
        }
        Ok(())
    }

    fn refuse_lost_dependency(
        &self,
        job: JobId,
        on: JobId,
        on_failure: OnFailure,
        batch: &Batch,
    ) -> Result<(), Refusal> {
        if batch.accepted.contains(&on) {
            return Ok(());
        }
        let Some(slot) = self.find(on) else {
            return Err(Refusal::UnknownDependency { job, dependency: on });
        };
        let state = self.entry(slot).phase.name();
        match state {
            StateName::Blocked
            | StateName::Scheduled
            | StateName::Ready
            | StateName::Running
            | StateName::Completed => Ok(()),
            StateName::Dead | StateName::Cancelled => match on_failure {
                OnFailure::Cascade => Err(Refusal::DependencyFailed { job, dependency: on, state }),
                OnFailure::Ignore | OnFailure::Wait => Ok(()),
            },
        }
    }

    fn refuse_overflow(&self, items: &[Planned]) -> Result<(), Refusal> {
        let limited = |name: &Name| {
            let queue = &self.queues[*self.queue_ids.get(name)? as usize];
            queue.settings.max_depth.map(|limit| (queue.waiting, limit))
        };
        // Most queues have no limit, and nothing is counted for them. The first by name is refused.
        let mut added: BTreeMap<&Name, u64> = BTreeMap::new();
        for job in items.iter().filter_map(Planned::accepted) {
            if limited(&job.queue).is_some() {
                *added.entry(&job.queue).or_default() += 1;
            }
        }
        for (name, jobs) in added {
            let Some((depth, limit)) = limited(name) else { continue };
            if depth + jobs > limit {
                return Err(Refusal::QueueFull { queue: name.clone(), depth, limit });
            }
        }
        Ok(())
    }

    /// Writes a checked batch. Nothing can fail any more.
    pub(super) fn carry_out(&mut self, plan: Plan, effects: &mut Effects) -> Vec<Enqueued> {
        for item in &plan.items {
            match item {
                Planned::Accept { job, fingerprint } => {
                    self.accept(job.clone(), *fingerprint, effects);
                }
                Planned::Known { id, acceptance, .. } => {
                    if let Acceptance::Deduplicated { payload_differs } = *acceptance
                        && let Some(slot) = self.find(*id)
                    {
                        self.tell(slot, EventKind::JobDeduplicated { payload_differs }, effects);
                    }
                }
            }
        }
        self.tell_full_queues(&plan.items, effects);
        plan.items.iter().map(|item| self.enqueued(item)).collect()
    }

    fn enqueued(&self, item: &Planned) -> Enqueued {
        let (id, queue, acceptance) = match item {
            Planned::Accept { job, .. } => (job.id, &job.queue, Acceptance::Accepted),
            Planned::Known { id, queue, acceptance } => (*id, queue, *acceptance),
        };
        let depth = self.queues[self.queue_ids[queue] as usize].waiting;
        // The job that stands for it may have gone: a hold on a key can outlive its holder.
        let Some(slot) = self.find(id) else {
            return Enqueued { id, acceptance, depth, sequence: 0, lane: None };
        };
        let entry = self.entry(slot);
        let spot = self.spot(slot).filter(|_| entry.phase.name().is_waiting());
        let lane = spot.filter(|spot| self.queues[spot.queue as usize].settings.lanes.is_some());
        let lane = lane.map(|spot| LanePosition {
            lane: u32::try_from(spot.lane).unwrap_or(u32::MAX),
            position: self.position(slot),
        });
        Enqueued { id, acceptance, depth, sequence: entry.sequence, lane }
    }

    pub(super) fn accept(&mut self, job: Arc<NewJob>, fingerprint: u64, effects: &mut Effects) {
        let now = effects.now.wall;
        let not_before = job.start.due(now);
        // Not as it was planned: what it depends on may have ended since, in the same commit.
        let met = self.met_by_now(&job.depends_on);
        let unmet = u32::try_from(job.depends_on.len() - met.len()).unwrap_or(u32::MAX);
        let state = match unmet {
            0 => waiting_until(not_before, now),
            _ => State::Blocked { unmet, not_before },
        };
        let status = JobStatus::new(state);
        let priority = job.priority;
        let sequence = self.next_sequence;
        let accepted = Accepted { job, sequence, at: now, status, met };
        let slot = self.insert(&accepted, fingerprint);
        self.totals(slot, |totals| totals.enqueued += 1);
        self.tell(slot, EventKind::JobEnqueued { priority }, effects);
        match accepted.status.state {
            State::Blocked { unmet, .. } => {
                self.tell(slot, EventKind::JobBlocked { unmet }, effects)
            }
            State::Scheduled { at } => {
                self.tell(slot, EventKind::JobScheduled { at }, effects);
                self.ring(slot, effects);
            }
            State::Ready { .. } => self.ring(slot, effects),
            State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => {}
        }
        effects.changes.push(Change::Insert(alloc::boxed::Box::new(accepted)));
    }

    fn tell_full_queues(&mut self, items: &[Planned], effects: &mut Effects) {
        let full: BTreeMap<&Name, u64> = items
            .iter()
            .filter_map(Planned::accepted)
            .filter_map(|job| {
                let entries = &self.queues[self.queue_ids[&job.queue] as usize];
                let limit = entries.settings.max_depth.filter(|limit| *limit == entries.waiting)?;
                Some((&job.queue, limit))
            })
            .collect();
        for (queue, limit) in full {
            self.tell_of(Subject::Queue(queue.clone()), EventKind::QueueFull { limit }, effects);
        }
    }
}

/// What a batch says about itself, while it is checked.
#[derive(Default)]
struct Batch {
    /// Some job of it depends on others; only then is it of interest which were accepted.
    depends: bool,
    accepted: BTreeSet<JobId>,
    keys: BTreeMap<(Name, Name, String), (JobId, u64)>,
    /// An item that met the holder of its key is depended on through that holder.
    aliases: BTreeMap<JobId, JobId>,
}

fn distinct<'a>(names: impl Iterator<Item = &'a Name>) -> usize {
    names.collect::<BTreeSet<&Name>>().len()
}
