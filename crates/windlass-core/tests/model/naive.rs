//! The rules once more, in the plainest way: a flat map of jobs and a scan for every question.
//!
//! Written from the documentation and not from the ledger, so that the two can disagree. Nothing
//! here is indexed, counted or remembered that a scan can find, which makes it slow and hard to
//! get wrong. It borrows only the words of the core (states, commands, replies, refusals) and the
//! arithmetic of one rate limiter, which has its own tests.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::job::{
    Bytes, CancelReason, Condition, DeadReason, JobId, Lease, LeaseToken, NewJob, OnFailure, Start,
    State, StateName, UniqueScope,
};
use windlass_core::ledger::{
    Acceptance, CancelAnswer, Claim, Claimed, Claims, Cleared, Configure, Counts, Enqueued,
    KindClaim, LineCount, Promoted, QueueChange, QueueCount, RecoveryMode, Renewal, Renewed,
    Rescue, Rescued, RescuedJob, Settled, Settlement, Totals,
};
use windlass_core::limits::{DELAY_MAX, LEASE_MAX, LEASE_MIN, Limits};
use windlass_core::name::Name;
use windlass_core::outcome::Verdict;
use windlass_core::record::QueueSettings;
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady, Timestamp};

/// What an event is about, in a form that can be sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    Job(JobId),
    Queue(Name),
}

/// One job, with everything known about it in one place.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) new: NewJob,
    pub(crate) sequence: u64,
    pub(crate) accepted_at: Timestamp,
    pub(crate) condition: Condition,
    /// What it waits for, or waited for, in this generation.
    links: Vec<Link>,
    /// A job with an edited payload took its place and its key.
    gave_key_away: bool,
    lease_ends: Steady,
    /// Its loss was told by a rescue that only looks.
    told_lost: bool,
    pub(crate) first_started_at: Option<Timestamp>,
    pub(crate) starts: u32,
    pub(crate) output: Option<Bytes>,
    pub(crate) percent: Option<u8>,
}

#[derive(Clone, Debug)]
struct Link {
    on: JobId,
    on_failure: OnFailure,
    met: bool,
}

impl Job {
    fn name(&self) -> StateName {
        self.condition.state.name()
    }

    fn is_open(&self) -> bool {
        !self.name().is_terminal()
    }

    fn lease(&self) -> Option<&Lease> {
        match &self.condition.state {
            State::Running(lease) => Some(lease),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => None,
        }
    }

    fn key_until(&self) -> Option<Timestamp> {
        let window = self.new.unique.as_ref()?.window?;
        Some(self.accepted_at + window)
    }

    /// Whether the job holds its unique key at `now`.
    fn holds_key(&self, now: Timestamp) -> bool {
        let Some(unique) = &self.new.unique else { return false };
        let in_window = self.key_until().is_none_or(|until| now < until);
        let in_scope = unique.scope == UniqueScope::Any || self.is_open();
        in_window && in_scope && !self.gave_key_away
    }

    /// When a job that waits for its first start is called off.
    fn expires_at(&self) -> Option<Timestamp> {
        let untouched = self.name().is_waiting() && self.condition.attempts == 0;
        let after = self.new.expires_after?;
        untouched.then_some(self.accepted_at + after)
    }

    fn unmet(&self) -> u32 {
        self.links.iter().filter(|link| !link.met).count() as u32
    }
}

/// What is set for a queue, and the letters it lost.
#[derive(Clone, Debug, Default)]
struct Queue {
    settings: QueueSettings,
    dropped: u64,
}

enum Planned {
    Accept(NewJob, Vec<Link>),
    Known(JobId, Name, Acceptance),
}

/// The whole model.
pub(crate) struct Naive {
    limits: Limits,
    pub(crate) now: Now,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    queues: BTreeMap<Name, Queue>,
    /// Per queue and kind that ever had a job.
    totals: BTreeMap<(Name, Name), Totals>,
    full_at: BTreeMap<Name, Timestamp>,
    /// Kinds of which a claim got no more, because as many ran as may.
    pub(crate) turned_away: BTreeSet<Name>,
    next_sequence: u64,
    next_token: u64,
    /// What the command under way has told.
    pub(crate) told: Vec<(About, &'static str)>,
    /// Jobs found to wait for themselves by the command under way.
    pub(crate) cycles: BTreeSet<JobId>,
    /// Queues in which an open job ended during the command under way.
    ended_in: BTreeSet<Name>,
    trim_due: bool,
}

// Time, and what every command begins and ends with.
impl Naive {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            now: Now::default(),
            jobs: BTreeMap::new(),
            queues: BTreeMap::new(),
            totals: BTreeMap::new(),
            full_at: BTreeMap::new(),
            turned_away: BTreeSet::new(),
            next_sequence: 1,
            next_token: 1,
            told: Vec::new(),
            cycles: BTreeSet::new(),
            ended_in: BTreeSet::new(),
            trim_due: false,
        }
    }

    /// Time passes, due jobs become ready and expired ones are called off.
    pub(crate) fn begin(&mut self, reading: Now) {
        let passed = reading.steady.since(self.now.steady);
        let wall = reading.wall.max(self.now.wall + passed);
        self.now = Now { wall, steady: reading.steady };
        self.told.clear();
        self.cycles.clear();
        self.ended_in.clear();
        self.make_due_jobs_ready();
        let now = self.now.wall;
        while let Some((_, _, id)) = self
            .jobs
            .iter()
            .filter_map(|(id, job)| job.expires_at().map(|at| (at, job.sequence, *id)))
            .filter(|(at, _, _)| *at <= now)
            .min()
        {
            self.end(id, State::Cancelled { at: now, reason: CancelReason::Expired });
        }
    }

    /// What is left to do when the command has been decided.
    pub(crate) fn finish(&mut self) {
        for queue in std::mem::take(&mut self.ended_in) {
            let open = |job: &Job| job.new.queue == queue && job.is_open();
            if !self.jobs.values().any(open) {
                self.told.push((About::Queue(queue), "queue.empty"));
            }
        }
        self.make_due_jobs_ready();
        self.told.sort();
    }

    fn make_due_jobs_ready(&mut self) {
        let now = self.now.wall;
        for job in self.jobs.values_mut() {
            if let State::Scheduled { at } = job.condition.state
                && at <= now
            {
                job.condition.state = State::Ready { since: at };
            }
        }
    }

    fn tell(&mut self, id: JobId, topic: &'static str) {
        self.told.push((About::Job(id), topic));
    }

    fn job(&self, id: JobId) -> Result<&Job, Refusal> {
        self.jobs.get(&id).ok_or(Refusal::UnknownJob { job: id })
    }

    fn job_mut(&mut self, id: JobId) -> &mut Job {
        self.jobs.get_mut(&id).expect("the model names only jobs it has")
    }

    fn line(&mut self, id: JobId) -> &mut Totals {
        let job = &self.jobs[&id].new;
        self.totals.entry((job.queue.clone(), job.kind.clone())).or_default()
    }

    fn state_after(&self, start: Timestamp) -> State {
        let now = self.now.wall;
        if start > now { State::Scheduled { at: start } } else { State::Ready { since: now } }
    }

    fn waiting_in(&self, queue: &Name) -> u64 {
        let waiting = |job: &&Job| job.new.queue == *queue && job.name().is_waiting();
        self.jobs.values().filter(waiting).count() as u64
    }
}

// How jobs end, and what follows from it.
impl Naive {
    /// The job ends; those that depend on it hear of it; what is too much is let go.
    fn end(&mut self, id: JobId, state: State) {
        self.end_one(id, state);
        self.trim();
    }

    fn end_one(&mut self, id: JobId, state: State) {
        self.trim_due = true;
        let was_open = self.jobs[&id].is_open();
        match state {
            State::Completed { .. } => {
                self.line(id).completed += 1;
                self.tell(id, "job.completed");
            }
            State::Dead { .. } => {
                self.line(id).dead += 1;
                self.tell(id, "job.dead");
            }
            State::Cancelled { .. } => {
                self.line(id).cancelled += 1;
                self.tell(id, "job.cancelled");
            }
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_) => panic!("{state:?} is not an end"),
        }
        let job = self.job_mut(id);
        job.condition.state = state.clone();
        job.links.clear();
        let queue = job.new.queue.clone();
        if was_open {
            self.ended_in.insert(queue);
        }
        for dependent in self.waiting_for(id) {
            self.hear(dependent, id, &state);
        }
    }

    /// Jobs blocked by this one.
    fn waiting_for(&self, id: JobId) -> Vec<JobId> {
        let waits = |job: &Job| job.links.iter().any(|link| link.on == id && !link.met);
        self.jobs.iter().filter(|(_, job)| waits(job)).map(|(id, _)| *id).collect()
    }

    /// A job hears that one it waits for has ended.
    fn hear(&mut self, id: JobId, ended: JobId, state: &State) {
        let at = self.now.wall;
        let Some(link) = self.job_mut(id).links.iter_mut().find(|link| link.on == ended) else {
            return;
        };
        let policy = link.on_failure;
        match (state, policy) {
            (State::Completed { .. }, _) | (_, OnFailure::Ignore) => {
                link.met = true;
                self.unblock(id);
            }
            (_, OnFailure::Wait) => {}
            (State::Cancelled { .. }, OnFailure::Cascade) => {
                let reason = CancelReason::DependencyCancelled;
                self.end_one(id, State::Cancelled { at, reason });
            }
            (_, OnFailure::Cascade) => {
                self.end_one(id, State::Dead { at, reason: DeadReason::DependencyFailed });
            }
        }
    }

    /// One dependency less; with the last, the job may start.
    fn unblock(&mut self, id: JobId) {
        let job = &self.jobs[&id];
        let unmet = job.unmet();
        let State::Blocked { not_before, .. } = job.condition.state else { return };
        let state = match unmet {
            0 => self.state_after(not_before),
            _ => State::Blocked { unmet, not_before },
        };
        if unmet == 0 {
            self.tell(id, "job.unblocked");
        }
        if let State::Scheduled { .. } = state {
            self.tell(id, "job.scheduled");
        }
        self.job_mut(id).condition.state = state;
    }

    /// The record goes; what still waited for it dies with it.
    fn remove_one(&mut self, id: JobId) {
        let waiting = self.waiting_for(id);
        self.tell(id, "job.removed");
        self.jobs.remove(&id);
        for job in self.jobs.values_mut() {
            job.links.retain(|link| link.on != id || !link.met);
        }
        let at = self.now.wall;
        for dependent in waiting {
            if self.jobs.get(&dependent).is_some_and(Job::is_open) {
                let reason = DeadReason::DependencyFailed;
                self.end_one(dependent, State::Dead { at, reason });
            }
        }
    }

    /// Keeps dead letters and history within their bounds, the newest ones.
    fn trim(&mut self) {
        while std::mem::take(&mut self.trim_due) {
            let queues: BTreeSet<Name> = self.jobs.values().map(|j| j.new.queue.clone()).collect();
            for queue in queues {
                while let Some(oldest) = self.surplus_dead_letter(&queue) {
                    self.queues.entry(queue.clone()).or_default().dropped += 1;
                    self.remove_one(oldest);
                }
            }
            while let Some(oldest) = self.surplus_history() {
                self.remove_one(oldest);
            }
        }
    }

    fn surplus_dead_letter(&self, queue: &Name) -> Option<JobId> {
        let dead = self.jobs.iter().filter(|(_, job)| job.new.queue == *queue);
        let dead = dead.filter_map(|(id, job)| match job.condition.state {
            State::Dead { at, .. } => Some((at, job.sequence, *id)),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Cancelled { .. } => None,
        });
        let dead: Vec<_> = dead.collect();
        let oldest = dead.iter().min().map(|(_, _, id)| *id);
        oldest.filter(|_| dead.len() > self.limits.dead_letters)
    }

    /// Completed and cancelled jobs that nothing holds back, with the time they ended.
    fn history(&self) -> Vec<(Timestamp, u64, JobId)> {
        let needed: BTreeSet<JobId> =
            self.jobs.values().flat_map(|job| job.links.iter().map(|link| link.on)).collect();
        let free = self.jobs.iter().filter(|(id, job)| {
            let any = job.new.unique.as_ref().is_some_and(|u| u.scope == UniqueScope::Any);
            let held = any && job.key_until().is_some_and(|until| self.now.wall < until);
            !needed.contains(id) && !held
        });
        free.filter_map(|(id, job)| match job.condition.state {
            State::Completed { at } | State::Cancelled { at, .. } => Some((at, job.sequence, *id)),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Dead { .. } => None,
        })
        .collect()
    }

    fn surplus_history(&self) -> Option<JobId> {
        let history = self.history();
        let oldest = history.iter().min().map(|(_, _, id)| *id);
        oldest.filter(|_| history.len() > self.limits.history_jobs)
    }
}

// Accepting jobs.
impl Naive {
    pub(crate) fn enqueue(&mut self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Refusal> {
        let plan = self.plan(jobs, None)?;
        Ok(self.carry_out(plan))
    }

    /// Checks a batch; `giving` is a job that gives its unique key away in the same commit.
    fn plan(&mut self, jobs: Vec<NewJob>, giving: Option<JobId>) -> Result<Vec<Planned>, Refusal> {
        for job in &jobs {
            self.check_bounds(job)?;
        }
        let mut plan: Vec<Planned> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut stands_for: BTreeMap<JobId, JobId> = BTreeMap::new();
        for job in jobs {
            if !seen.insert(job.id) {
                return Err(Refusal::IdTwiceInBatch { job: job.id });
            }
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
        self.refuse_overflow(&plan)?;
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
        let Some(holder) = holder else { return Ok(Planned::Accept(job, Vec::new())) };
        stands_for.insert(job.id, holder.id);
        let payload_differs = !same_content(holder, &job);
        Ok(Planned::Known(holder.id, job.queue, Acceptance::Deduplicated { payload_differs }))
    }

    /// Who holds the key that this job asks for.
    fn holder(&self, job: &NewJob, giving: Option<JobId>) -> Option<JobId> {
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
    fn is_met(&self, job: JobId, on: JobId, on_failure: OnFailure) -> Result<bool, Refusal> {
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

    fn carry_out(&mut self, plan: Vec<Planned>) -> Vec<Enqueued> {
        let mut placed = Vec::new();
        let mut grown = BTreeSet::new();
        for item in plan {
            placed.push(match item {
                Planned::Accept(job, links) => {
                    let (id, queue) = (job.id, job.queue.clone());
                    grown.insert(queue.clone());
                    self.accept(job, links);
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
            Enqueued { id, acceptance, depth }
        });
        enqueued.collect()
    }

    fn accept(&mut self, new: NewJob, links: Vec<Link>) {
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
            condition: Condition { state, attempts: 0, recoveries: 0, generation: 0 },
            links,
            gave_key_away: false,
            lease_ends: Steady::default(),
            told_lost: false,
            first_started_at: None,
            starts: 0,
            output: None,
            percent: None,
        };
        self.next_sequence += 1;
        self.jobs.insert(id, job);
        self.line(id).enqueued += 1;
    }
}

fn accepted(item: &Planned) -> Option<&NewJob> {
    match item {
        Planned::Accept(job, _) => Some(job),
        Planned::Known(..) => None,
    }
}

fn same_content(one: &NewJob, other: &NewJob) -> bool {
    one.kind == other.kind && one.queue == other.queue && one.payload == other.payload
}

fn same_key(one: &NewJob, other: &NewJob) -> bool {
    match (&one.unique, &other.unique) {
        (Some(a), Some(b)) => a.key == b.key && one.kind == other.kind && one.queue == other.queue,
        (None, _) | (_, None) => false,
    }
}

fn check_bytes(what: &'static str, got: usize, limit: usize) -> Result<(), Refusal> {
    if got <= limit {
        return Ok(());
    }
    let remedy = "raise `payload_bytes`, or store the data elsewhere";
    let allowed = format!("at most {limit} are allowed; {remedy}");
    Err(Refusal::OutOfBounds { what, got: got.to_string(), allowed })
}

fn check_delay(delay: Duration) -> Result<(), Refusal> {
    if delay <= DELAY_MAX {
        return Ok(());
    }
    let allowed = "it may be at most 100 years; check the unit".to_string();
    Err(Refusal::OutOfBounds { what: "delay", got: format!("{delay:?}"), allowed })
}

// Running jobs: claim, renew, settle, rescue.
impl Naive {
    pub(crate) fn claim(&mut self, claim: &Claim) -> Claims {
        let now = self.now.wall;
        let mut claims = Claims::default();
        let mut held_back: BTreeSet<(Name, Name)> = BTreeSet::new();
        let mut wait: Option<Duration> = None;
        while claims.jobs.len() < claim.limit {
            let Some(id) = self.best(claim, &held_back) else { break };
            let job = &self.jobs[&id].new;
            let (queue, kind) = (job.queue.clone(), job.kind.clone());
            let terms = terms_of(claim, &kind).expect("it was claimable").clone();
            let running = self.jobs.values().filter(|job| job.new.kind == kind);
            let running = running.filter(|job| job.lease().is_some()).count();
            if terms.concurrency.is_some_and(|limit| running >= limit as usize) {
                self.turned_away.insert(kind.clone());
                held_back.insert((queue, kind));
                continue;
            }
            if let Some(rate) = terms.rate {
                let never = Timestamp::from_micros(i64::MIN);
                match rate.admit(self.full_at.get(&kind).copied().unwrap_or(never), now) {
                    Ok(full_at) => {
                        self.full_at.insert(kind.clone(), full_at);
                    }
                    Err(longer) => {
                        wait = Some(wait.map_or(longer, |other| other.min(longer)));
                        held_back.insert((queue, kind));
                        continue;
                    }
                }
            }
            claims.jobs.push(self.start(id, &claim.worker, &terms));
        }
        claims.ready = self.claimable(claim, &held_back).count() as u64;
        let due = self.jobs.values().filter_map(|job| due_at(job).map(|at| at.since(now))).min();
        claims.wake_in = [due, wait].into_iter().flatten().min();
        claims
    }

    /// Ready jobs that the request may take.
    fn claimable(
        &self,
        claim: &Claim,
        held_back: &BTreeSet<(Name, Name)>,
    ) -> impl Iterator<Item = (JobId, &Job, Timestamp)> {
        self.jobs.iter().filter_map(move |(id, job)| {
            let State::Ready { since } = job.condition.state else { return None };
            let (queue, kind) = (&job.new.queue, &job.new.kind);
            let listens = claim.queues.as_ref().is_none_or(|queues| queues.contains(queue));
            let paused = self.queues[queue].settings.paused;
            let open = !paused && !held_back.contains(&(queue.clone(), kind.clone()));
            let fits = listens && open && terms_of(claim, kind).is_some();
            fits.then_some((*id, job, since))
        })
    }

    /// Which of them starts first: the highest priority, raised by waiting where the queue says
    /// so; then the one due first; then the one accepted first.
    fn best(&self, claim: &Claim, held_back: &BTreeSet<(Name, Name)>) -> Option<JobId> {
        let mut best: Option<(Standing, Reverse<(Timestamp, u64)>, JobId)> = None;
        for (id, job, since) in self.claimable(claim, held_back) {
            let ageing = self.queues[&job.new.queue].settings.ageing;
            let standing = Standing::new(job.new.priority.0, ageing, self.now.wall.since(since));
            let place = (standing, Reverse((since, job.sequence)), id);
            if best.as_ref().is_none_or(|other| place > *other) {
                best = Some(place);
            }
        }
        best.map(|(_, _, id)| id)
    }

    fn start(&mut self, id: JobId, worker: &Arc<str>, terms: &KindClaim) -> Claimed {
        let Now { wall, steady } = self.now;
        let token = LeaseToken(self.next_token);
        self.next_token += 1;
        let length = terms.lease.clamp(LEASE_MIN, LEASE_MAX);
        let job = self.job_mut(id);
        let lease = Lease {
            token,
            worker: worker.clone(),
            since: wall,
            until: wall + length,
            max_attempts: job.new.max_attempts().unwrap_or(terms.max_attempts),
            cancel_requested: false,
        };
        job.lease_ends = steady + length;
        job.told_lost = false;
        job.starts += 1;
        job.percent = None;
        job.first_started_at.get_or_insert(wall);
        job.condition.attempts += 1;
        job.condition.state = State::Running(lease.clone());
        let Condition { attempts: attempt, recoveries, .. } = job.condition;
        self.tell(id, "job.started");
        Claimed { id, lease, attempt, recoveries }
    }

    /// The lease on a job, if it is the one that `token` names.
    fn held(&self, id: JobId, token: LeaseToken) -> Result<Lease, Refusal> {
        let lease = self.jobs.get(&id).and_then(Job::lease);
        lease.filter(|lease| lease.token == token).cloned().ok_or(Refusal::LeaseLost { job: id })
    }

    pub(crate) fn renew(&mut self, renewal: &Renewal) -> Result<Renewed, Refusal> {
        let Now { wall, steady } = self.now;
        let mut lease = self.held(renewal.job, renewal.token)?;
        let length = renewal.lease.clamp(LEASE_MIN, LEASE_MAX);
        lease.until = wall + length;
        let renewed = Renewed { until: lease.until, cancel_requested: lease.cancel_requested };
        let job = self.job_mut(renewal.job);
        job.lease_ends = steady + length;
        job.told_lost = false;
        job.condition.state = State::Running(lease);
        if let Some(progress) = &renewal.report.progress {
            job.percent = Some(progress.percent.min(100));
            self.tell(renewal.job, "job.progress");
        }
        Ok(renewed)
    }

    pub(crate) fn settle(&mut self, settlement: Settlement) -> Result<Settled, Refusal> {
        let Settlement { job: id, token, verdict, output, next, .. } = settlement;
        let lease = self.held(id, token)?;
        let bytes = output.as_ref().map_or(0, |output| output.len());
        check_bytes("output bytes", bytes, self.limits.payload_bytes)?;
        if verdict == Verdict::Complete {
            // It is released when the job completes, which is this commit.
            let unique = self.jobs[&id].new.unique.as_ref();
            let giving = unique.filter(|unique| unique.scope == UniqueScope::Open).map(|_| id);
            let plan = self.plan(next, giving)?;
            self.carry_out(plan);
        }
        let at = self.now.wall;
        let off = State::Cancelled { at, reason: CancelReason::Requested };
        let uncounted = self.jobs[&id].condition.attempts - 1;
        match verdict {
            Verdict::Complete => {
                let job = self.job_mut(id);
                job.condition.recoveries = 0;
                job.output = output;
                self.end(id, State::Completed { at });
                return Ok(Settled { state: StateName::Completed });
            }
            Verdict::Cancel(reason) => self.end(id, State::Cancelled { at, reason }),
            Verdict::Bury(reason) => {
                self.count_failure(id);
                self.end(id, State::Dead { at, reason });
                return Ok(Settled { state: StateName::Dead });
            }
            Verdict::Retry(delay) => {
                self.count_failure(id);
                if !lease.cancel_requested {
                    self.job_mut(id).condition.state = State::Scheduled { at: at + delay };
                    self.count_retry(id);
                    return Ok(Settled { state: StateName::Scheduled });
                }
                self.end(id, off);
            }
            Verdict::Snooze(_) | Verdict::Release if lease.cancel_requested => self.end(id, off),
            Verdict::Snooze(pause) => {
                let condition = &mut self.job_mut(id).condition;
                condition.attempts = uncounted;
                condition.state = State::Scheduled { at: at + pause };
                self.tell(id, "job.snoozed");
                return Ok(Settled { state: StateName::Scheduled });
            }
            Verdict::Release => {
                let condition = &mut self.job_mut(id).condition;
                condition.attempts = uncounted;
                condition.state = State::Ready { since: lease.since };
                self.tell(id, "job.released");
                return Ok(Settled { state: StateName::Ready });
            }
        }
        Ok(Settled { state: StateName::Cancelled })
    }

    fn count_failure(&mut self, id: JobId) {
        self.line(id).failed += 1;
        self.tell(id, "job.failed");
    }

    fn count_retry(&mut self, id: JobId) {
        self.line(id).retried += 1;
        self.tell(id, "job.retrying");
    }

    pub(crate) fn rescue(&mut self, rescue: &Rescue) -> Rescued {
        let now = self.now.steady;
        let all = rescue.reason == RecoveryReason::Restart;
        let look = rescue.recovery.mode == RecoveryMode::Observe;
        for job in self.jobs.values_mut() {
            job.told_lost &= look;
        }
        let running = self.jobs.iter().filter_map(|(id, job)| job.lease().map(|l| (*id, job, l)));
        let mut lost: Vec<(Steady, LeaseToken, JobId)> = running
            .filter(|(_, job, _)| (all || job.lease_ends <= now) && !(look && job.told_lost))
            .map(|(id, job, lease)| (job.lease_ends, lease.token, id))
            .collect();
        lost.sort();
        let mut jobs = Vec::new();
        for (_, _, id) in lost {
            self.tell(id, "recovery.detected");
            if look {
                self.job_mut(id).told_lost = true;
            } else {
                let state = self.recover(id, rescue);
                jobs.push(RescuedJob { id, state });
            }
        }
        let left = self.jobs.values().filter(|job| job.lease().is_some() && !job.told_lost);
        let next_in = left.map(|job| job.lease_ends.since(now)).min();
        Rescued { jobs, more: false, next_in }
    }

    fn recover(&mut self, id: JobId, rescue: &Rescue) -> StateName {
        let at = self.now.wall;
        self.line(id).rescued += 1;
        self.count_failure(id);
        let job = &self.jobs[&id];
        let lease = job.lease().expect("only running jobs are rescued").clone();
        let Condition { attempts, recoveries, .. } = job.condition;
        if lease.cancel_requested {
            self.end(id, State::Cancelled { at, reason: CancelReason::Requested });
            return StateName::Cancelled;
        }
        if attempts >= lease.max_attempts || recoveries >= rescue.recovery.max_recoveries {
            self.tell(id, "recovery.exhausted");
            self.end(id, State::Dead { at, reason: DeadReason::Crashed });
            return StateName::Dead;
        }
        let condition = &mut self.job_mut(id).condition;
        condition.recoveries += 1;
        condition.state = State::Scheduled { at: at + rescue.recovery.delay };
        self.count_retry(id);
        self.tell(id, "recovery.executed");
        StateName::Scheduled
    }
}

fn terms_of<'a>(claim: &'a Claim, kind: &Name) -> Option<&'a KindClaim> {
    claim.kinds.iter().find(|terms| terms.kind == *kind)
}

fn due_at(job: &Job) -> Option<Timestamp> {
    match job.condition.state {
        State::Scheduled { at } => Some(at),
        State::Blocked { .. }
        | State::Ready { .. }
        | State::Running(_)
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => None,
    }
}

/// Priority as an exact fraction: `points` of `per` each.
#[derive(Clone, Copy, Debug)]
struct Standing {
    points: i128,
    per: i128,
}

impl Standing {
    fn new(priority: i32, ageing: Option<Duration>, waited: Duration) -> Self {
        match ageing {
            None => Self { points: i128::from(priority), per: 1 },
            Some(step) => {
                let per = step.as_micros() as i128;
                Self { points: i128::from(priority) * per + waited.as_micros() as i128, per }
            }
        }
    }
}

impl Ord for Standing {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.points * other.per).cmp(&(other.points * self.per))
    }
}

impl PartialOrd for Standing {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Standing {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Standing {}

// What people do to jobs and queues.
impl Naive {
    pub(crate) fn promote(&mut self) -> Promoted {
        let now = self.now.wall;
        let age = self.limits.history_age;
        let mut purged = 0;
        while let Some((_, _, id)) = self.history().into_iter().find(|(at, _, _)| *at + age <= now)
        {
            self.remove_one(id);
            purged += 1;
        }
        let due = self.jobs.values().filter_map(due_at);
        let expiries = self.jobs.values().filter_map(Job::expires_at);
        let old = self.history().into_iter().map(|(at, _, _)| at + age);
        let next = due.chain(expiries).chain(old).min();
        Promoted { purged, next_in: next.map(|at| at.since(now)) }
    }

    pub(crate) fn cancel(
        &mut self,
        id: JobId,
        reason: CancelReason,
    ) -> Result<CancelAnswer, Refusal> {
        let state = self.job(id)?.name();
        if state.is_terminal() {
            return Err(Refusal::WrongState { job: id, state, operation: "cancel" });
        }
        if let State::Running(lease) = &mut self.job_mut(id).condition.state {
            if !std::mem::replace(&mut lease.cancel_requested, true) {
                self.tell(id, "job.cancel_requested");
            }
            return Ok(CancelAnswer::Requested);
        }
        let at = self.now.wall;
        self.end(id, State::Cancelled { at, reason });
        Ok(CancelAnswer::Cancelled)
    }

    pub(crate) fn reschedule(
        &mut self,
        ids: &[JobId],
        start: Start,
    ) -> Result<Vec<Result<StateName, Refusal>>, Refusal> {
        let now = self.now.wall;
        let at = match start {
            Start::Now => now,
            Start::After(delay) => now + delay,
            Start::At(at) => at,
        };
        check_delay(at.since(now))?;
        Ok(ids.iter().map(|id| self.reschedule_one(*id, at)).collect())
    }

    fn reschedule_one(&mut self, id: JobId, at: Timestamp) -> Result<StateName, Refusal> {
        let state = self.job(id)?.name();
        if !state.is_waiting() {
            return Err(Refusal::WrongState { job: id, state, operation: "reschedule" });
        }
        let moved = match self.jobs[&id].condition.state {
            State::Blocked { unmet, .. } => State::Blocked { unmet, not_before: at },
            State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => self.state_after(at),
        };
        let name = moved.name();
        self.job_mut(id).condition.state = moved;
        self.tell(id, "job.scheduled");
        Ok(name)
    }

    pub(crate) fn replay(&mut self, mut ids: Vec<JobId>) -> Vec<(JobId, Result<(), Refusal>)> {
        ids.sort_by_key(|id| self.jobs.get(id).map(|job| job.sequence));
        ids.dedup();
        ids.into_iter().map(|id| (id, self.replay_one(id))).collect()
    }

    fn replay_one(&mut self, id: JobId) -> Result<(), Refusal> {
        let job = self.job(id)?;
        let state = job.name();
        if !matches!(state, StateName::Dead | StateName::Cancelled) {
            return Err(Refusal::WrongState { job: id, state, operation: "replay" });
        }
        let mut links = Vec::new();
        for dependency in &job.new.depends_on {
            let (on, on_failure) = (dependency.on, dependency.on_failure);
            // One that is gone counts as met: whoever replays the job has decided so.
            if self.jobs.contains_key(&on) {
                links.push(Link { on, on_failure, met: self.is_met(id, on, on_failure)? });
            }
        }
        if let Some(holder) = self.holder(&job.new, None) {
            return Err(Refusal::KeyTaken { job: id, holder });
        }
        let now = self.now.wall;
        let job = self.job_mut(id);
        job.links = links;
        job.gave_key_away = false;
        job.first_started_at = None;
        job.output = None;
        job.percent = None;
        let unmet = job.unmet();
        let state = match unmet {
            0 => State::Ready { since: now },
            _ => State::Blocked { unmet, not_before: now },
        };
        let generation = job.condition.generation + 1;
        job.condition = Condition { state, attempts: 0, recoveries: 0, generation };
        self.tell(id, "job.replayed");
        if unmet > 0 {
            self.tell(id, "job.blocked");
        }
        Ok(())
    }

    /// A new job in the place of a dead one, or a refusal: never the one without the other.
    pub(crate) fn replay_edited(&mut self, id: JobId, edited: NewJob) -> Result<Enqueued, Refusal> {
        let state = self.job(id)?.name();
        if state != StateName::Dead {
            return Err(Refusal::WrongState { job: id, state, operation: "edit and replay" });
        }
        let takes_key = same_key(&self.jobs[&id].new, &edited);
        let plan = self.plan(vec![edited], Some(id))?;
        if let Planned::Known(known, _, acceptance) = &plan[0] {
            return Err(match acceptance {
                Acceptance::Deduplicated { .. } => Refusal::KeyTaken { job: id, holder: *known },
                Acceptance::Accepted | Acceptance::AlreadyAccepted => {
                    Refusal::IdReused { job: *known }
                }
            });
        }
        let enqueued = self.carry_out(plan).remove(0);
        self.job_mut(id).gave_key_away |= takes_key;
        let at = self.now.wall;
        self.end(id, State::Cancelled { at, reason: CancelReason::Replaced });
        Ok(enqueued)
    }

    pub(crate) fn remove(&mut self, id: JobId) -> Result<(), Refusal> {
        let state = self.job(id)?.name();
        if !state.is_terminal() {
            return Err(Refusal::WrongState { job: id, state, operation: "remove" });
        }
        self.remove_one(id);
        self.trim_due = true;
        self.trim();
        Ok(())
    }

    pub(crate) fn clear(&mut self, queue: &Name) -> Cleared {
        if !self.queues.contains_key(queue) {
            return Cleared::default();
        }
        let cancelled = |model: &Self, inside: bool| -> u64 {
            let lines = model.totals.iter().filter(|((name, _), _)| (name == queue) == inside);
            lines.map(|(_, totals)| totals.cancelled).sum()
        };
        let before = (cancelled(self, true), cancelled(self, false));
        let mut waiting: Vec<(u64, JobId)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.new.queue == *queue && job.name().is_waiting())
            .map(|(id, job)| (job.sequence, *id))
            .collect();
        waiting.sort();
        for (_, id) in waiting {
            // It may have followed one before it, and even be gone by now.
            if self.jobs.get(&id).is_some_and(|job| job.name().is_waiting()) {
                let _ = self.cancel(id, CancelReason::Cleared);
            }
        }
        self.told.push((About::Queue(queue.clone()), "queue.cleared"));
        Cleared {
            cleared: cancelled(self, true) - before.0,
            followed: cancelled(self, false) - before.1,
        }
    }

    pub(crate) fn configure(&mut self, configure: &Configure) -> QueueSettings {
        let old = self.queues.get(&configure.queue).cloned().unwrap_or_default();
        let mut new = old.clone();
        let topic = match configure.change {
            QueueChange::Pause => {
                new.settings.paused = true;
                "queue.paused"
            }
            QueueChange::Resume => {
                new.settings.paused = false;
                "queue.resumed"
            }
            QueueChange::MaxDepth(limit) => {
                new.settings.max_depth = limit;
                "queue.configured"
            }
            QueueChange::Ageing(step) => {
                new.settings.ageing = step;
                "queue.configured"
            }
        };
        let settings = new.settings.clone();
        if settings != old.settings {
            self.told.push((About::Queue(configure.queue.clone()), topic));
            self.queues.insert(configure.queue.clone(), new);
        }
        settings
    }

    /// All counters, by counting.
    pub(crate) fn counts(&self) -> Counts {
        let lines = self.totals.iter().map(|((queue, kind), totals)| {
            let mut states = [0; 7];
            let jobs = self.jobs.values().map(|job| (&job.new, job.name()));
            for (_, state) in jobs.filter(|(job, _)| job.queue == *queue && job.kind == *kind) {
                states[state as usize] += 1;
            }
            LineCount { queue: queue.clone(), kind: kind.clone(), states, totals: *totals }
        });
        let queues = self.queues.iter().map(|(name, queue)| QueueCount {
            queue: name.clone(),
            settings: queue.settings.clone(),
            waiting: self.waiting_in(name),
            dead_letters_dropped: queue.dropped,
        });
        Counts { lines: lines.collect(), queues: queues.collect(), workers: Vec::new() }
    }
}
