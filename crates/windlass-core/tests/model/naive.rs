//! The rules once more, in the plainest way: a flat map of jobs and a scan for every question.
//!
//! Written from the documentation and not from the ledger, so that the two can disagree. Nothing
//! here is indexed, counted or remembered that a scan can find, which makes it slow and hard to
//! get wrong. It borrows only the words of the core (states, commands, replies, refusals) and the
//! arithmetic of one rate limiter, which has its own tests.

mod accept;
mod control;
mod objects;
mod running;

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::job::{
    Bytes, CancelReason, DeadReason, JobId, JobStatus, Lane, Lease, NewJob, OnFailure, Priority,
    RequestId, State, StateName, UniqueScope,
};
use windlass_core::ledger::{Counts, LaneCount, QueueCount, QueueKindCount, Totals};
use windlass_core::limits::Limits;
use windlass_core::name::Name;
use windlass_core::object::Address;
use windlass_core::record::{AttemptEnd, QueueSettings, Step};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady, Timestamp};

/// What an event is about, in a form that can be sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    Job(JobId),
    Queue(Name),
    Object(Address),
}

/// How many dependents one command tells at most, and how many each end within it: few, so that
/// cascades go on in later commands.
pub(crate) const CASCADE: (usize, usize) = (2, 1);

/// One job, with everything known about it in one place.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) new: NewJob,
    pub(crate) sequence: u64,
    pub(crate) accepted_at: Timestamp,
    pub(crate) status: JobStatus,
    /// What it waits for, or waited for, in this generation.
    links: Vec<Link>,
    /// A job with an edited payload took its place and its key.
    gave_key_away: bool,
    lease_ends: Steady,
    /// Its loss was told by a rescue that only looks.
    told_lost: bool,
    /// The claim that handed it out last.
    request: Option<RequestId>,
    pub(crate) first_started_at: Option<Timestamp>,
    pub(crate) last_recovery_at: Option<Timestamp>,
    /// How its last attempt ended, if it did.
    pub(crate) last_end: Option<AttemptEnd>,
    pub(crate) starts: u32,
    pub(crate) output: Option<Bytes>,
    pub(crate) percent: Option<u8>,
    pub(crate) lines: usize,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Link {
    on: JobId,
    on_failure: OnFailure,
    met: bool,
}

impl Job {
    fn name(&self) -> StateName {
        self.status.state.name()
    }

    fn id(&self) -> JobId {
        self.new.id
    }

    /// What its order is kept within.
    fn partition(&self) -> Option<u64> {
        self.new.lane.as_ref().and_then(Lane::partition)
    }

    /// Whether it has started and waits to go on.
    fn holds_its_key(&self) -> bool {
        self.status.begun && self.name().is_waiting()
    }

    fn is_open(&self) -> bool {
        !self.name().is_terminal()
    }

    fn lease(&self) -> Option<&Lease> {
        match &self.status.state {
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
        let first = self.status.attempts == 0 && self.status.generation == 0;
        let untouched = self.name().is_waiting() && first;
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
    /// Lanes whose last open job ended then.
    ended_in_lanes: BTreeSet<(Name, u64)>,
    /// Per queue and lane of queues with lanes.
    lane_totals: BTreeMap<(Name, u32), Totals>,
    next_turn: BTreeMap<Name, u64>,
    trim_due: bool,
    /// A dead letter too many is kept, because too many wait for it.
    trim_put_off: bool,
    /// How many dependents of finished jobs the command under way may still tell.
    dependents_left: usize,
    pub(crate) objects: BTreeMap<Address, objects::Object>,
    /// A turn that counts as soon as the job that is being settled has ended.
    turn_of_settlement: Option<objects::PlannedTurn>,
    /// Jobs of objects that ended during the command under way.
    ended_bound: Vec<(Address, JobId, StateName)>,
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
            ended_in_lanes: BTreeSet::new(),
            lane_totals: BTreeMap::new(),
            next_turn: BTreeMap::new(),
            trim_due: false,
            trim_put_off: false,
            dependents_left: 0,
            objects: BTreeMap::new(),
            turn_of_settlement: None,
            ended_bound: Vec::new(),
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
        self.ended_in_lanes.clear();
        self.make_due_jobs_ready();
        self.dependents_left = CASCADE.0;
        self.go_on_with_cascades(CASCADE.1);
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
        self.hear_of_alarms();
        for (queue, lane) in std::mem::take(&mut self.ended_in_lanes) {
            let has_lanes = self.queues[&queue].settings.lanes.is_some();
            if has_lanes && self.open_in_lane(&queue, lane).is_empty() {
                self.told.push((About::Queue(queue), "pool.empty"));
            }
        }
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
            if let State::Scheduled { at } = job.status.state
                && at <= now
            {
                job.status.state = State::Ready { since: at };
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

    /// Counts something in the line of a job, and in its lane if its queue has lanes.
    fn tally(&mut self, id: JobId, count: impl Fn(&mut Totals)) {
        let job = &self.jobs[&id];
        let (queue, kind) = (job.new.queue.clone(), job.new.kind.clone());
        let has_lanes = self.queues[&queue].settings.lanes.is_some();
        if let Some(lane) = self.lane_of(job).filter(|_| has_lanes) {
            count(self.lane_totals.entry((queue.clone(), lane as u32)).or_default());
        }
        count(self.totals.entry((queue, kind)).or_default());
    }

    fn state_after(&self, start: Timestamp) -> State {
        let now = self.now.wall;
        if start > now { State::Scheduled { at: start } } else { State::Ready { since: now } }
    }

    /// The lane a job is in, as its queue is configured.
    fn lane_of(&self, job: &Job) -> Option<u64> {
        let partition = job.partition()?;
        let lanes = self.queues[&job.new.queue].settings.lanes;
        Some(lanes.map_or(partition, |lanes| partition % u64::from(lanes.get())))
    }

    /// The jobs in the same lane as this one, itself among them; none if it has no lane.
    pub(crate) fn in_lane_of(&self, job: &Job) -> Vec<&Job> {
        let lane = self.lane_of(job);
        lane.map_or_else(Vec::new, |lane| self.open_in_lane(&job.new.queue, lane))
    }

    fn is_lane_paused(&self, job: &Job) -> bool {
        let settings = &self.queues[&job.new.queue].settings;
        let lane = self.lane_of(job).filter(|_| settings.lanes.is_some());
        lane.is_some_and(|lane| settings.paused_lanes.contains(&(lane as u32)))
    }

    /// The jobs of a lane that wait or run.
    fn open_in_lane(&self, queue: &Name, lane: u64) -> Vec<&Job> {
        let jobs = self.jobs.values().filter(|job| job.new.queue == *queue && job.is_open());
        jobs.filter(|job| self.lane_of(job) == Some(lane)).collect()
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
        self.end_keeping_all(id, state);
        self.trim();
    }

    /// The job ends, and as many hear of it as one command may tell: those it ends first.
    fn end_keeping_all(&mut self, id: JobId, state: State) {
        self.end_one(id, state);
        let most = self.dependents_left.max(CASCADE.1);
        let mut left = most;
        let mut ended = vec![id];
        while let Some(id) = ended.pop() {
            ended.extend(self.tell_dependents(id, &mut left));
        }
        self.dependents_left = self.dependents_left.saturating_sub(most - left);
    }

    /// Those hear of an end that did not when it came, because they were too many.
    pub(crate) fn go_on_with_cascades(&mut self, most: usize) {
        let most = most.min(self.dependents_left);
        let mut left = most;
        while left > 0
            && let Some(id) = self.first_owing()
        {
            self.tell_dependents(id, &mut left);
            self.trim_due = true;
        }
        self.dependents_left -= most - left;
        self.trim();
    }

    /// The first accepted of the finished jobs whose dependents have not all heard of it.
    pub(crate) fn first_owing(&self) -> Option<JobId> {
        let owes = |job: &&Job| !self.owed_by(job.id()).is_empty();
        self.jobs.values().filter(owes).min_by_key(|job| job.sequence).map(Job::id)
    }

    /// Those that wait for a job although it has ended in a way that concerns them.
    fn owed_by(&self, id: JobId) -> Vec<JobId> {
        let completed = matches!(self.jobs[&id].status.state, State::Completed { .. });
        let concerns = |dependent: &JobId| {
            let link = self.jobs[dependent].links.iter().find(|link| link.on == id);
            link.is_some_and(|link| completed || link.on_failure != OnFailure::Wait)
        };
        let waiting = if self.jobs[&id].is_open() { Vec::new() } else { self.waiting_for(id) };
        waiting.into_iter().filter(concerns).collect()
    }

    /// Tells as many as are left to tell, by their ids; those that end with it.
    fn tell_dependents(&mut self, id: JobId, left: &mut usize) -> Vec<JobId> {
        let state = self.jobs[&id].status.state.clone();
        let mut ended = Vec::new();
        for dependent in self.owed_by(id).into_iter().take(*left) {
            *left -= 1;
            self.hear(dependent, id, &state);
            ended.extend((!self.jobs[&dependent].is_open()).then_some(dependent));
        }
        ended
    }

    fn end_one(&mut self, id: JobId, state: State) {
        self.trim_due = true;
        let was_open = self.jobs[&id].is_open();
        match state {
            State::Completed { .. } => {
                self.tally(id, |totals| totals.completed += 1);
                self.tell(id, "job.completed");
            }
            State::Dead { .. } => {
                self.tally(id, |totals| totals.dead += 1);
                self.tell(id, "job.dead");
            }
            State::Cancelled { .. } => {
                self.tally(id, |totals| totals.cancelled += 1);
                self.tell(id, "job.cancelled");
            }
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_) => panic!("{state:?} is not an end"),
        }
        let lane = self.lane_of(&self.jobs[&id]);
        let job = self.job_mut(id);
        job.status.state = state.clone();
        job.links.clear();
        let queue = job.new.queue.clone();
        if was_open {
            let emptied = lane.filter(|lane| self.open_in_lane(&queue, *lane).is_empty());
            self.ended_in_lanes.extend(emptied.map(|lane| (queue.clone(), lane)));
            self.ended_in.insert(queue);
            let bound = self.jobs[&id].new.object.clone();
            self.ended_bound.extend(bound.map(|address| (address, id, state.name())));
        }
        // Before anyone hears of it: the turn decides what this end means to its object.
        if let Some(turn) = self.turn_of_settlement.take() {
            self.carry_out_turn(turn);
        }
    }

    /// Jobs blocked by this one.
    pub(crate) fn waiting_for(&self, id: JobId) -> Vec<JobId> {
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
        let State::Blocked { not_before, .. } = job.status.state else { return };
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
        self.job_mut(id).status.state = state;
    }

    /// A job that has not started goes without an end.
    fn remove_waiting(&mut self, id: JobId) {
        let lane = self.lane_of(&self.jobs[&id]);
        let queue = self.jobs[&id].new.queue.clone();
        self.remove_one(id);
        let emptied = lane.filter(|lane| self.open_in_lane(&queue, *lane).is_empty());
        self.ended_in_lanes.extend(emptied.map(|lane| (queue.clone(), lane)));
        self.ended_in.insert(queue);
    }

    /// The record goes; what still waited for it dies with it.
    fn remove_one(&mut self, id: JobId) {
        let waiting = self.waiting_for(id);
        self.tell(id, "job.removed");
        self.jobs.remove(&id);
        let at = self.now.wall;
        for dependent in waiting {
            if self.jobs.get(&dependent).is_some_and(Job::is_open) {
                let reason = DeadReason::DependencyFailed;
                self.end_keeping_all(dependent, State::Dead { at, reason });
            }
        }
    }

    /// Keeps dead letters and history within their bounds, the newest ones.
    fn trim(&mut self) {
        let mut due = std::mem::take(&mut self.trim_put_off);
        while std::mem::take(&mut self.trim_due) || std::mem::take(&mut due) {
            let queues: BTreeSet<Name> = self.jobs.values().map(|j| j.new.queue.clone()).collect();
            for queue in queues {
                while let Some(oldest) = self.surplus_dead_letter(&queue) {
                    self.queues.entry(queue.clone()).or_default().dropped += 1;
                    self.remove_one(oldest);
                }
                self.trim_put_off |= self.dead_letters(&queue).len() > self.limits.dead_letters;
            }
            while let Some(oldest) = self.surplus_history() {
                self.remove_one(oldest);
            }
        }
    }

    /// The oldest dead letter, if there are too many, for which no more wait than can follow it.
    fn surplus_dead_letter(&self, queue: &Name) -> Option<JobId> {
        let dead = self.dead_letters(queue);
        let few = |(_, _, id): &&(Timestamp, u64, JobId)| self.waiting_for(*id).len() <= CASCADE.0;
        let oldest = dead.iter().filter(few).min().map(|(_, _, id)| *id);
        oldest.filter(|_| dead.len() > self.limits.dead_letters)
    }

    fn dead_letters(&self, queue: &Name) -> Vec<(Timestamp, u64, JobId)> {
        let dead = self.jobs.iter().filter(|(_, job)| job.new.queue == *queue);
        let dead = dead.filter_map(|(id, job)| match job.status.state {
            State::Dead { at, .. } => Some((at, job.sequence, *id)),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Cancelled { .. } => None,
        });
        dead.collect()
    }

    /// Completed and cancelled jobs that no open job needs, with the time they ended.
    fn finished(&self) -> impl Iterator<Item = (Timestamp, &Job)> {
        let needed: BTreeSet<JobId> =
            self.jobs.values().flat_map(|job| job.links.iter().map(|link| link.on)).collect();
        let free = self.jobs.values().filter(move |job| !needed.contains(&job.new.id));
        free.filter_map(|job| match job.status.state {
            State::Completed { at } | State::Cancelled { at, .. } => Some((at, job)),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Dead { .. } => None,
        })
    }

    /// Those of them that can be let go, because they hold no key for a time.
    fn history(&self) -> Vec<(Timestamp, u64, JobId)> {
        let free = self.finished().filter(|(_, job)| self.held_back(job).is_none());
        free.map(|(at, job)| (at, job.sequence, job.new.id)).collect()
    }

    /// When those that hold a key for a time can be let go.
    fn held_back_until(&self) -> impl Iterator<Item = Timestamp> {
        self.finished().filter_map(|(_, job)| self.held_back(job))
    }

    /// Until when a finished job is kept for its key.
    fn held_back(&self, job: &Job) -> Option<Timestamp> {
        let unique = job.new.unique.as_ref().filter(|unique| unique.scope == UniqueScope::Any);
        unique.and_then(|_| job.key_until()).filter(|until| self.now.wall < *until)
    }

    fn surplus_history(&self) -> Option<JobId> {
        let history = self.history();
        let oldest = history.iter().min().map(|(_, _, id)| *id);
        oldest.filter(|_| history.len() > self.limits.history_jobs)
    }
}

// What there is to see.
impl Naive {
    fn lane_counts(&self, name: &Name, queue: &Queue) -> Vec<LaneCount> {
        let lanes = queue.settings.lanes.map_or(0, |lanes| lanes.get());
        let count = |lane: u32| {
            let open = self.open_in_lane(name, lane.into());
            let running = open.iter().filter(|job| job.lease().is_some()).count() as u64;
            let totals = self.lane_totals.get(&(name.clone(), lane)).copied();
            let waiting = open.len() as u64 - running;
            let paused = queue.settings.paused_lanes.contains(&lane);
            LaneCount { waiting, running, paused, totals: totals.unwrap_or_default() }
        };
        (0..lanes).map(count).collect()
    }

    /// All counters, by counting.
    pub(crate) fn counts(&self) -> Counts {
        let lines = self.totals.iter().map(|((queue, kind), totals)| {
            let mut states = [0; 7];
            let jobs = self.jobs.values().map(|job| (&job.new, job.name()));
            for (_, state) in jobs.filter(|(job, _)| job.queue == *queue && job.kind == *kind) {
                states[state as usize] += 1;
            }
            QueueKindCount { queue: queue.clone(), kind: kind.clone(), states, totals: *totals }
        });
        let queues = self.queues.iter().map(|(name, queue)| QueueCount {
            queue: name.clone(),
            settings: queue.settings.clone(),
            waiting: self.waiting_in(name),
            waiting_by_priority: self.waiting_by_priority(name),
            dead_letters_dropped: queue.dropped,
            lanes: self.lane_counts(name, queue),
        });
        Counts { lines: lines.collect(), queues: queues.collect(), workers: Vec::new() }
    }

    fn waiting_by_priority(&self, queue: &Name) -> Vec<(Priority, u64)> {
        let mut counts: BTreeMap<Priority, u64> = BTreeMap::new();
        let waits = |job: &&Job| job.new.queue == *queue && job.name().is_waiting();
        for job in self.jobs.values().filter(waits) {
            *counts.entry(job.new.priority).or_default() += 1;
        }
        counts.into_iter().rev().collect()
    }
}
