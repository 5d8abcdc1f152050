//! Accepting jobs, as the model does it: one check after the other, each by looking at all jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::job::{JobId, JobStatus, Lane, NewJob, OnFailure, Start, State, StateName};
use windlass_core::ledger::{Acceptance, Enqueued, LanePosition};
use windlass_core::limits::DELAY_MAX;
use windlass_core::name::Name;
use windlass_core::object::Address;
use windlass_core::refusal::Refusal;
use windlass_core::time::Steady;

use super::{About, Job, Link, Naive};

/// What becomes of one item of a batch.
pub(super) enum Planned {
    Accept(Box<NewJob>, Vec<Link>),
    Known(JobId, Name, Acceptance),
}

impl Naive {
    pub(crate) fn enqueue(&mut self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Refusal> {
        let plan = self.plan(jobs, None, None)?;
        Ok(self.carry_out(plan))
    }

    /// Checks a batch; `giving` is a job that gives its unique key away in the same commit, and
    /// `object` one that is there when the batch is.
    pub(super) fn plan(
        &mut self,
        jobs: Vec<NewJob>,
        giving: Option<JobId>,
        object: Option<&Address>,
    ) -> Result<Vec<Planned>, Refusal> {
        jobs.iter().try_for_each(|job| self.check_bounds(job))?;
        let mut seen = BTreeSet::new();
        if let Some(twin) = jobs.iter().find(|job| !seen.insert(job.id)) {
            return Err(Refusal::IdTwiceInBatch { job: twin.id });
        }
        for job in &jobs {
            let bound = job.object.as_ref().filter(|bound| Some(*bound) != object);
            if let Some(unknown) = bound.filter(|bound| !self.objects.contains_key(bound)) {
                return Err(Refusal::UnknownObject { object: unknown.clone() });
            }
        }
        let mut plan: Vec<Planned> = Vec::new();
        let mut stands_for: BTreeMap<JobId, JobId> = BTreeMap::new();
        for job in jobs {
            let item = self.identify(job, &plan, giving, &mut stands_for)?;
            plan.push(item);
        }
        let batch: BTreeSet<JobId> = plan.iter().filter_map(accepted).map(|job| job.id).collect();
        for item in &mut plan {
            if let Planned::Accept(job, links) = item {
                *links = self.resolve(job, &batch, &stands_for)?;
            }
        }
        self.refuse_cycles(&plan)?;
        self.take_turns(&mut plan);
        self.refuse_overflow(&plan)?;
        self.refuse_lane_overflow(&plan)?;
        Ok(plan)
    }

    fn check_bounds(&self, job: &NewJob) -> Result<(), Refusal> {
        check_bytes("payload bytes", job.payload.len(), self.limits.payload_bytes)?;
        let delay = match job.start {
            Start::Now => Duration::ZERO,
            Start::After(delay) => delay,
            Start::At(at) => at.since(self.now.wall),
        };
        check_delay(delay)
    }

    /// New, a repeated call, or the same as a job that holds its key?
    fn identify(
        &self,
        job: NewJob,
        plan: &[Planned],
        giving: Option<JobId>,
        stands_for: &mut BTreeMap<JobId, JobId>,
    ) -> Result<Planned, Refusal> {
        if let Some(known) = self.jobs.get(&job.id) {
            return match same_content(&known.new, &job) {
                true => Ok(Planned::Known(job.id, job.queue, Acceptance::AlreadyAccepted)),
                false => Err(Refusal::IdReused { job: job.id }),
            };
        }
        let holder = match self.holder(&job, giving) {
            Some(holder) => Some(&self.jobs[&holder].new),
            None => plan.iter().filter_map(accepted).find(|other| same_key(other, &job)),
        };
        let Some(holder) = holder else { return Ok(Planned::Accept(Box::new(job), Vec::new())) };
        stands_for.insert(job.id, holder.id);
        let payload_differs = !same_content(holder, &job);
        Ok(Planned::Known(holder.id, job.queue, Acceptance::Deduplicated { payload_differs }))
    }

    /// Who holds the key that this job asks for.
    pub(super) fn holder(&self, job: &NewJob, giving: Option<JobId>) -> Option<JobId> {
        let holders: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(id, other)| {
                same_key(&other.new, job)
                    && other.holds_key(self.now.wall)
                    && giving != Some(**id)
                    && job.id != **id
            })
            .map(|(id, _)| *id)
            .collect();
        assert!(holders.len() <= 1, "jobs {holders:?} hold the same unique key");
        holders.first().copied()
    }

    fn resolve(
        &mut self,
        job: &mut NewJob,
        batch: &BTreeSet<JobId>,
        stands_for: &BTreeMap<JobId, JobId>,
    ) -> Result<Vec<Link>, Refusal> {
        let mut links: Vec<Link> = Vec::new();
        for dependency in &mut job.depends_on {
            if let Some(holder) = stands_for.get(&dependency.on) {
                dependency.on = *holder;
            }
            let (on, on_failure) = (dependency.on, dependency.on_failure);
            if on == job.id {
                self.cycles.insert(on);
                let first = *self.cycles.first().expect("one was just added");
                return Err(Refusal::DependencyCycle { job: first });
            }
            if links.iter().all(|link| link.on != on) {
                let met = !batch.contains(&on) && self.is_met(job.id, on, on_failure)?;
                links.push(Link { on, on_failure, met });
            }
        }
        let mut kept = BTreeSet::new();
        job.depends_on.retain(|dependency| kept.insert(dependency.on));
        Ok(links)
    }

    /// Whether a new or replayed job need not wait for `on`.
    pub(super) fn is_met(
        &self,
        job: JobId,
        on: JobId,
        on_failure: OnFailure,
    ) -> Result<bool, Refusal> {
        let Some(other) = self.jobs.get(&on) else {
            return Err(Refusal::UnknownDependency { job, dependency: on });
        };
        let state = other.name();
        match (state, on_failure) {
            (StateName::Completed, _) => Ok(true),
            (StateName::Dead | StateName::Cancelled, OnFailure::Ignore) => Ok(true),
            (StateName::Dead | StateName::Cancelled, OnFailure::Cascade) => {
                Err(Refusal::DependencyFailed { job, dependency: on, state })
            }
            (StateName::Dead | StateName::Cancelled, OnFailure::Wait)
            | (
                StateName::Blocked | StateName::Scheduled | StateName::Ready | StateName::Running,
                _,
            ) => Ok(false),
        }
    }

    /// Follows every chain of the batch and notes who comes back to where it began.
    fn refuse_cycles(&mut self, plan: &[Planned]) -> Result<(), Refusal> {
        let batch: BTreeMap<JobId, &NewJob> =
            plan.iter().filter_map(accepted).map(|job| (job.id, job)).collect();
        let mut found = false;
        for &start in batch.keys() {
            let mut reached = BTreeSet::new();
            let mut ahead = vec![start];
            while let Some(job) = ahead.pop().and_then(|id| batch.get(&id)) {
                let next = job.depends_on.iter().map(|dependency| dependency.on);
                ahead.extend(next.filter(|on| batch.contains_key(on) && reached.insert(*on)));
            }
            if reached.contains(&start) {
                self.cycles.insert(start);
                found = true;
            }
        }
        match self.cycles.first() {
            Some(&job) if found => Err(Refusal::DependencyCycle { job }),
            Some(_) | None => Ok(()),
        }
    }

    fn refuse_overflow(&self, plan: &[Planned]) -> Result<(), Refusal> {
        for (name, queue) in &self.queues {
            let Some(limit) = queue.settings.max_depth else { continue };
            let added = plan.iter().filter_map(accepted).filter(|job| job.queue == *name).count();
            let depth = self.waiting_in(name);
            if added > 0 && depth + added as u64 > limit {
                return Err(Refusal::QueueFull { queue: name.clone(), depth, limit });
            }
        }
        Ok(())
    }

    fn take_turns(&self, plan: &mut [Planned]) {
        let mut next = self.next_turn.clone();
        for item in plan {
            let Planned::Accept(job, _) = item else { continue };
            if job.lane == Some(Lane::Spread) {
                let next = next.entry(job.queue.clone()).or_default();
                job.lane = Some(Lane::Turn(*next));
                *next += 1;
            }
        }
    }

    fn refuse_lane_overflow(&self, plan: &[Planned]) -> Result<(), Refusal> {
        let mut added: BTreeMap<(&Name, u64), u64> = BTreeMap::new();
        for job in plan.iter().filter_map(accepted) {
            let Some(queue) = self.queues.get(&job.queue) else { continue };
            let (Some(lanes), Some(limit)) = (queue.settings.lanes, queue.settings.lane_depth)
            else {
                continue;
            };
            let Some(partition) = job.lane.as_ref().and_then(Lane::partition) else { continue };
            let lane = partition % u64::from(lanes.get());
            let open = self.open_in_lane(&job.queue, lane);
            let depth = open.iter().filter(|job| job.name().is_waiting()).count() as u64;
            let added = added.entry((&job.queue, lane)).or_default();
            *added += 1;
            if depth + *added > limit {
                let (queue, lane) = (job.queue.clone(), lane as u32);
                return Err(Refusal::LaneFull { queue, lane, depth, limit });
            }
        }
        Ok(())
    }

    /// Jobs of its lane that come before a waiting one.
    fn ahead_of(&self, job: &Job) -> u64 {
        let Some(lane) = self.lane_of(job) else { return 0 };
        let ready = |job: &Job| job.name() == StateName::Ready;
        let ahead = self.open_in_lane(&job.new.queue, lane).into_iter().filter(|other| {
            let first = !ready(job) || self.standing(other) < self.standing(job);
            let waits_to_go_on = other.holds_its_key() && !ready(other);
            other.id() != job.id() && (waits_to_go_on || (ready(other) && first))
        });
        ahead.count() as u64
    }

    pub(super) fn carry_out(&mut self, plan: Vec<Planned>) -> Vec<Enqueued> {
        let mut placed = Vec::new();
        let mut grown = BTreeSet::new();
        for item in plan {
            placed.push(match item {
                Planned::Accept(job, links) => {
                    let (id, queue) = (job.id, job.queue.clone());
                    grown.insert(queue.clone());
                    self.accept(*job, links);
                    (id, queue, Acceptance::Accepted)
                }
                Planned::Known(id, queue, acceptance) => {
                    if let Acceptance::Deduplicated { .. } = acceptance {
                        self.tell(id, "job.deduplicated");
                    }
                    (id, queue, acceptance)
                }
            });
        }
        for queue in grown {
            if self.queues[&queue].settings.max_depth == Some(self.waiting_in(&queue)) {
                self.told.push((About::Queue(queue), "queue.full"));
            }
        }
        let enqueued = placed.into_iter().map(|(id, queue, acceptance)| {
            let depth = self.waiting_in(&queue);
            let job = &self.jobs[&id];
            let has_lanes = self.queues[&job.new.queue].settings.lanes.is_some();
            let lane = self.lane_of(job).filter(|_| has_lanes && job.name().is_waiting());
            let lane =
                lane.map(|lane| LanePosition { lane: lane as u32, position: self.ahead_of(job) });
            Enqueued { id, acceptance, depth, sequence: job.sequence, lane }
        });
        enqueued.collect()
    }

    fn accept(&mut self, new: NewJob, mut links: Vec<Link>) {
        // What it waits for may have ended since it was planned, in the same commit.
        for link in &mut links {
            link.met |= self.is_met(new.id, link.on, link.on_failure) == Ok(true);
        }
        let now = self.now.wall;
        let not_before = match new.start {
            Start::Now => now,
            Start::After(delay) => now + delay,
            Start::At(at) => at,
        };
        let unmet = links.iter().filter(|link| !link.met).count() as u32;
        let state = match unmet {
            0 => self.state_after(not_before),
            _ => State::Blocked { unmet, not_before },
        };
        let id = new.id;
        if let Some(Lane::Turn(turn)) = new.lane {
            let next = self.next_turn.entry(new.queue.clone()).or_default();
            *next = (*next).max(turn + 1);
        }
        self.tell(id, "job.enqueued");
        match state {
            State::Blocked { .. } => self.tell(id, "job.blocked"),
            State::Scheduled { .. } => self.tell(id, "job.scheduled"),
            State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => {}
        }
        self.queues.entry(new.queue.clone()).or_default();
        let job = Job {
            new,
            sequence: self.next_sequence,
            accepted_at: now,
            status: JobStatus::new(state),
            links,
            gave_key_away: false,
            lease_ends: Steady::default(),
            told_lost: false,
            request: None,
            first_started_at: None,
            last_recovery_at: None,
            last_end: None,
            starts: 0,
            output: None,
            percent: None,
            lines: 0,
            steps: Vec::new(),
        };
        self.next_sequence += 1;
        self.jobs.insert(id, job);
        self.tally(id, |totals| totals.enqueued += 1);
    }
}

fn accepted(item: &Planned) -> Option<&NewJob> {
    match item {
        Planned::Accept(job, _) => Some(job),
        Planned::Known(..) => None,
    }
}

pub(super) fn same_content(one: &NewJob, other: &NewJob) -> bool {
    one.kind == other.kind && one.queue == other.queue && one.payload == other.payload
}

pub(super) fn same_key(one: &NewJob, other: &NewJob) -> bool {
    match (&one.unique, &other.unique) {
        (Some(a), Some(b)) => a.key == b.key && one.kind == other.kind && one.queue == other.queue,
        (None, _) | (_, None) => false,
    }
}

pub(super) fn check_bytes(what: &'static str, got: usize, limit: usize) -> Result<(), Refusal> {
    if got <= limit {
        return Ok(());
    }
    let remedy = "raise `payload_bytes`, or store the data elsewhere";
    let allowed = format!("at most {limit} are allowed; {remedy}");
    Err(Refusal::OutOfBounds { what: what.into(), got: got.to_string(), allowed })
}

pub(super) fn check_delay(delay: Duration) -> Result<(), Refusal> {
    if delay <= DELAY_MAX {
        return Ok(());
    }
    let allowed = "it may be at most 100 years; check the unit".to_string();
    Err(Refusal::OutOfBounds { what: "delay".into(), got: format!("{delay:?}"), allowed })
}
