//! What the told events say is true: every job, every counter, event by event.
//!
//! Written from the documentation of the events and the rules, not from the engine: each event must
//! be one that could happen to a job in that state, caused by what was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_core::event::{Event, EventKind, EventResult, RemoveReason, Subject};
use windlass_core::job::{
    CancelReason, DeadReason, JobId, LeaseToken, NewJob, OnFailure, Start, State, StateName,
    UniqueScope,
};
use windlass_core::ledger::Totals;
use windlass_core::name::Name;
use windlass_core::object::Address;
use windlass_core::record::{QueueSettings, Step};
use windlass_core::time::Timestamp;

use super::Rules;
use super::objects::Believed;
use crate::answer::{Decided, Request, jobs_of};
use crate::cover::{Cover, Point};
use crate::{Checked, Violation, ensure};

/// Where a job stands, as told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    Blocked,
    Scheduled { at: Timestamp },
    Ready,
    Running { worker: Arc<str> },
    Completed { at: Timestamp },
    Dead { at: Timestamp, reason: DeadReason },
    Cancelled { at: Timestamp, reason: CancelReason },
}

impl Stand {
    pub(super) fn name(&self) -> StateName {
        match self {
            Stand::Blocked => StateName::Blocked,
            Stand::Scheduled { .. } => StateName::Scheduled,
            Stand::Ready => StateName::Ready,
            Stand::Running { .. } => StateName::Running,
            Stand::Completed { .. } => StateName::Completed,
            Stand::Dead { .. } => StateName::Dead,
            Stand::Cancelled { .. } => StateName::Cancelled,
        }
    }

    fn is_waiting(&self) -> bool {
        self.name().is_waiting()
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.name().is_terminal()
    }

    /// Whether a record in this state can be of this job: time alone makes a scheduled job ready.
    pub(super) fn looks_like(&self, state: &State) -> bool {
        match (self, state) {
            (Stand::Blocked, State::Blocked { .. }) => true,
            (Stand::Scheduled { at }, State::Scheduled { at: found }) => at == found,
            (Stand::Scheduled { at }, State::Ready { since }) => at == since,
            (Stand::Ready, State::Ready { .. }) => true,
            (Stand::Running { worker }, State::Running(lease)) => *worker == lease.worker,
            (Stand::Completed { at }, State::Completed { at: found }) => at == found,
            (Stand::Dead { at, reason }, State::Dead { at: found, reason: why }) => {
                (at, reason) == (found, why)
            }
            (Stand::Cancelled { at, reason }, State::Cancelled { at: found, reason: why }) => {
                (at, reason) == (found, why)
            }
            _ => false,
        }
    }

    /// Whether a state of this name can be told of this job.
    pub(super) fn may_be(&self, name: StateName) -> bool {
        let due = [StateName::Scheduled, StateName::Ready];
        self.name() == name || due.contains(&self.name()) && due.contains(&name)
    }
}

/// A job, as told.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) job: Arc<NewJob>,
    pub(super) stand: Stand,
    /// Its place in the order of acceptance.
    pub(super) place: u64,
    pub(super) created_at: Timestamp,
    /// It may not start earlier.
    due: Timestamp,
    pub(super) attempts: u32,
    pub(super) recoveries: u32,
    pub(super) started_at: Timestamp,
    pub(super) last_recovery_at: Option<Timestamp>,
    pub(super) generation: u32,
    /// Starts over all generations.
    pub(super) starts: u32,
    pub(super) met: BTreeSet<JobId>,
    pub(super) cancel_requested: bool,
    pub(super) output: Option<windlass_core::job::Bytes>,
    /// What its completion told, until that is compared with what was settled.
    pub(super) result: Option<EventResult>,
    /// Log lines, unless a crash has left that open.
    pub(super) lines: Option<usize>,
    /// Finished steps that were acknowledged. A crash may leave more.
    pub(super) steps: Vec<Step>,
    pub(super) updates: u32,
    pub(super) token: Option<LeaseToken>,
    /// Under which lease its last attempt was settled, if it was.
    pub(super) settled_by: Option<LeaseToken>,
}

impl Told {
    fn unmet(&self) -> impl Iterator<Item = (JobId, OnFailure)> + '_ {
        let unmet = self.job.depends_on.iter().filter(|edge| !self.met.contains(&edge.on));
        unmet.map(|edge| (edge.on, edge.on_failure))
    }

    /// Whether the job holds its unique key at `now`.
    pub(super) fn holds_key(&self, now: Timestamp) -> bool {
        let Some(unique) = &self.job.unique else { return false };
        let ended = unique.window.is_some_and(|window| self.created_at + window <= now);
        let replaced =
            matches!(self.stand, Stand::Cancelled { reason: CancelReason::Replaced, .. });
        let by_state = match unique.scope {
            UniqueScope::Open => !self.stand.is_terminal(),
            UniqueScope::Any => !replaced,
        };
        by_state && !ended
    }

    fn same_key(&self, other: &NewJob) -> bool {
        let key = |job: &NewJob| job.unique.as_ref().map(|unique| unique.key.clone());
        let ours = &self.job;
        ours.unique.is_some()
            && key(ours) == key(other)
            && (&ours.queue, &ours.kind) == (&other.queue, &other.kind)
    }
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Model {
    rules: Rules,
    pub(super) jobs: BTreeMap<JobId, Told>,
    pub(super) settings: BTreeMap<Name, QueueSettings>,
    pub(super) dropped: BTreeMap<Name, u64>,
    /// By queue and kind.
    pub(super) totals: BTreeMap<(Name, Name), Totals>,
    running: BTreeMap<Name, u32>,
    waiting: BTreeMap<Name, u64>,
    blocked: BTreeSet<JobId>,
    starts: BTreeMap<Name, Vec<Timestamp>>,
    pub(super) accepted: u64,
    pub(super) last_event: u64,
    pub(super) last_at: Timestamp,
    pub(super) objects: BTreeMap<Address, Believed>,
    /// The command under way has called off a job of an object.
    pub(super) called_off: bool,
    /// Jobs that took a key over from another: it must have given it up by the end of the command.
    contested: Vec<(JobId, JobId)>,
    /// Jobs whose loss was told: by the end of the command it must be told what it meant.
    lost: Vec<JobId>,
}

/// What an event is judged by.
pub(super) struct Around<'a> {
    /// The call that caused it; none for what opening does.
    pub(super) cause: Option<&'a Decided>,
    /// What producers said of each job.
    pub(super) sent: &'a BTreeMap<JobId, Arc<NewJob>>,
    pub(super) cover: &'a mut Cover,
}

impl Model {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            jobs: BTreeMap::new(),
            settings: BTreeMap::new(),
            dropped: BTreeMap::new(),
            totals: BTreeMap::new(),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            blocked: BTreeSet::new(),
            starts: BTreeMap::new(),
            accepted: 0,
            last_event: 0,
            last_at: Timestamp::from_micros(i64::MIN),
            objects: BTreeMap::new(),
            called_off: false,
            contested: Vec::new(),
            lost: Vec::new(),
        }
    }

    pub(super) fn waiting(&self, queue: &Name) -> u64 {
        self.waiting.get(queue).copied().unwrap_or(0)
    }

    pub(super) fn settings(&self, queue: &Name) -> QueueSettings {
        self.settings.get(queue).cloned().unwrap_or_default()
    }

    pub(super) fn told(&self, job: JobId) -> Checked<&Told> {
        self.jobs.get(&job).ok_or_else(|| Violation(format!("job {job} is told of and unknown")))
    }

    /// Takes one event for true.
    pub(super) fn take(&mut self, event: &Event, around: &mut Around<'_>) -> Checked {
        let (number, last) = (event.number, self.last_event);
        ensure!(number == last + 1, "event {number} was told after event {last}");
        ensure!(event.at >= self.last_at, "event {number} lies before the one before it in time");
        (self.last_event, self.last_at) = (number, event.at);
        match &event.subject {
            Subject::Job { id, kind, queue } => {
                self.job_event(*id, (queue, kind), event, around).map_err(|Violation(why)| {
                    Violation(format!("event {number} {} of job {id}: {why}", event.topic()))
                })
            }
            Subject::Queue(queue) => self.queue_event(queue, event, around),
            Subject::Object(address) => {
                self.object_event(address, event, around.cover);
                Ok(())
            }
            Subject::Worker(_) => Ok(()),
        }
    }

    /// The events of one command have been taken.
    pub(super) fn end_command(&mut self) -> Checked {
        self.called_off = false;
        self.end_alarms();
        let uncounted = std::mem::take(&mut self.lost);
        ensure!(uncounted.is_empty(), "{uncounted:?} were lost, and their recovery not counted");
        for (taker, holder) in std::mem::take(&mut self.contested) {
            let holds = |job: &JobId| self.jobs.get(job).is_some_and(|t| t.holds_key(self.last_at));
            let both = holds(&taker) && holds(&holder);
            ensure!(!both, "jobs {taker} and {holder} hold the same unique key");
        }
        Ok(())
    }

    fn queue_event(&mut self, queue: &Name, event: &Event, around: &mut Around<'_>) -> Checked {
        let configures = matches!(around.cause.map(|cause| &cause.request),
            Some(Request::Configure(name, _)) if name == queue);
        let settings = self.settings.entry(queue.clone()).or_default();
        match &event.what {
            EventKind::QueuePaused => {
                ensure!(configures && !settings.paused, "{queue} was paused and nobody asked");
                settings.paused = true;
            }
            EventKind::QueueResumed => {
                ensure!(configures && settings.paused, "{queue} was resumed and nobody asked");
                settings.paused = false;
            }
            EventKind::QueueConfigured => {
                ensure!(configures, "{queue} was configured and nobody asked");
            }
            EventKind::QueueFull { limit } => {
                let depth = self.waiting(queue);
                ensure!(depth == *limit, "{queue} is told to be full with {depth} of {limit}");
            }
            EventKind::QueueEmpty => {
                let of_queue = |told: &&Told| told.job.queue == *queue;
                let open =
                    self.jobs.values().filter(of_queue).any(|told| !told.stand.is_terminal());
                ensure!(!open, "{queue} is told to be empty and is not");
            }
            _ => {}
        }
        Ok(())
    }

    fn set(&mut self, job: JobId, stand: Stand) {
        let Some(told) = self.jobs.get_mut(&job) else { return };
        told.updates += 1;
        let old = std::mem::replace(&mut told.stand, stand.clone());
        let (queue, kind) = (told.job.queue.clone(), told.job.kind.clone());
        self.count(&queue, &kind, &old, -1);
        self.count(&queue, &kind, &stand, 1);
        if stand == Stand::Blocked {
            self.blocked.insert(job);
        } else {
            self.blocked.remove(&job);
        }
    }

    fn count(&mut self, queue: &Name, kind: &Name, stand: &Stand, change: i64) {
        if stand.is_waiting() {
            let waiting = self.waiting.entry(queue.clone()).or_default();
            *waiting = waiting.wrapping_add_signed(change);
        }
        if let Stand::Running { .. } = stand {
            let running = self.running.entry(kind.clone()).or_default();
            *running = running.wrapping_add_signed(change as i32);
        }
    }

    fn job_event(
        &mut self,
        id: JobId,
        line: (&Name, &Name),
        event: &Event,
        around: &mut Around<'_>,
    ) -> Checked {
        if let EventKind::JobEnqueued { .. } = event.what {
            return self.enqueued(id, line, event.at, around);
        }
        let told = self.told(id)?;
        let ours = (&told.job.queue, &told.job.kind);
        ensure!(ours == line, "its line is {line:?} and was {ours:?}");
        self.total(line, &event.what);
        match &event.what {
            EventKind::JobEnqueued { .. } | EventKind::JobDeduplicated { .. } => Ok(()),
            EventKind::JobBlocked { unmet } => self.is_blocked(id, *unmet),
            EventKind::JobUnblocked => self.unblocked(id, around.cover),
            EventKind::JobScheduled { at } => self.scheduled(id, *at, event.at),
            EventKind::JobStarted { worker, attempt } => {
                self.started(id, worker, *attempt, event.at, around)
            }
            EventKind::JobProgress { .. } | EventKind::StepCompleted { .. } => {
                self.runs(id).map(|_| ())
            }
            EventKind::JobCancelRequested => {
                let told = self.runs(id)?;
                ensure!(!told.cancel_requested, "it was asked to stop twice");
                told.cancel_requested = true;
                told.updates += 1;
                Ok(())
            }
            EventKind::JobCompleted { .. }
            | EventKind::JobFailed { .. }
            | EventKind::JobRetrying { .. }
            | EventKind::JobSnoozed { .. }
            | EventKind::JobReleased { .. } => self.ended(id, event),
            EventKind::JobDead { reason, attempts, .. } => {
                self.died(id, *reason, *attempts, event.at, around)
            }
            EventKind::JobCancelled { reason } => self.cancelled(id, *reason, event.at, around),
            EventKind::JobReplayed { generation } => {
                self.replayed(id, *generation, event.at, around)
            }
            EventKind::JobRemoved { reason } => self.removed(id, *reason, event.at, around),
            EventKind::RecoveryDetected { .. } => {
                self.lost.push(id);
                self.runs(id).map(|_| ())
            }
            EventKind::JobRecovered { attempt, recovery, stale_for, .. } => {
                let told = self.told(id)?;
                let lost = (told.attempts, event.at.since(told.started_at));
                ensure!((*attempt, *stale_for) == lost, "it was lost at {lost:?}");
                self.recovered(id, *recovery, event.at, around)
            }
            EventKind::RecoveryExhausted { .. } => {
                let dead = matches!(self.told(id)?.stand, Stand::Dead { .. });
                ensure!(dead, "it is told to be exhausted and is not dead");
                around.cover.hit(Point::RecoveredToDead);
                self.lost.retain(|lost| *lost != id);
                Ok(())
            }
            other => Err(Violation(format!("{other:?} is not about a job"))),
        }
    }

    fn total(&mut self, (queue, kind): (&Name, &Name), what: &EventKind) {
        let totals = self.totals.entry((queue.clone(), kind.clone())).or_default();
        match what {
            EventKind::JobEnqueued { .. } => totals.enqueued += 1,
            EventKind::JobCompleted { .. } => totals.completed += 1,
            EventKind::JobFailed { .. } => totals.failed += 1,
            EventKind::JobRetrying { .. } => totals.retried += 1,
            EventKind::RecoveryDetected { .. } => totals.rescued += 1,
            EventKind::JobDead { .. } => totals.dead += 1,
            EventKind::JobCancelled { .. } => totals.cancelled += 1,
            _ => {}
        }
    }

    fn runs(&mut self, id: JobId) -> Checked<&mut Told> {
        let told = self.jobs.get_mut(&id).ok_or_else(|| Violation("it is unknown".into()))?;
        let running = matches!(told.stand, Stand::Running { .. });
        ensure!(running, "it is {} and does not run", told.stand.name());
        Ok(told)
    }

    fn enqueued(
        &mut self,
        id: JobId,
        line: (&Name, &Name),
        at: Timestamp,
        around: &mut Around<'_>,
    ) -> Checked {
        let asked = around.cause.is_some_and(|cause| cause.answer.is_ok() && asks_for(cause, id));
        ensure!(asked, "it was accepted and nobody was told so");
        ensure!(!self.jobs.contains_key(&id), "it was accepted a second time");
        let job = around.sent.get(&id).cloned();
        let job = job.ok_or_else(|| Violation("nobody ever sent it".into()))?;
        let due = match job.start {
            Start::Now => at,
            Start::After(delay) => at + delay,
            Start::At(time) => time,
        };
        self.contest(id, &job, at);
        self.accepted += 1;
        let mut told = Told {
            job,
            stand: Stand::Ready,
            place: self.accepted,
            created_at: at,
            due,
            attempts: 0,
            recoveries: 0,
            started_at: at,
            last_recovery_at: None,
            generation: 0,
            starts: 0,
            met: BTreeSet::new(),
            cancel_requested: false,
            output: None,
            result: None,
            lines: Some(0),
            steps: Vec::new(),
            updates: 0,
            token: None,
            settled_by: None,
        };
        told.met = self.met_now(&told.job, false);
        self.jobs.insert(id, told);
        self.total(line, &EventKind::JobEnqueued { priority: Default::default() });
        self.count(line.0, line.1, &Stand::Ready, 1);
        let (depth, limit) = (self.waiting(line.0), self.settings(line.0).max_depth);
        // A job that is tried again waits once more, whatever the limit, in the same commit as the
        // jobs of its turn.
        let back = around.cause.map_or(0, |cause| match &cause.request {
            Request::Settle(all) => all.iter().filter(|each| each.turn.is_some()).count() as u64,
            _ => 0,
        });
        let within = limit.is_none_or(|limit| depth <= limit + back);
        ensure!(within, "{depth} wait where {limit:?} may");
        Ok(())
    }

    /// Dependencies that need not be waited for; in a replay, one that is gone counts as met.
    fn met_now(&self, job: &NewJob, gone_is_met: bool) -> BTreeSet<JobId> {
        let met = job.depends_on.iter().filter(|edge| {
            self.jobs.get(&edge.on).map_or(gone_is_met, |on| match on.stand {
                Stand::Completed { .. } => true,
                Stand::Dead { .. } | Stand::Cancelled { .. } => {
                    edge.on_failure == OnFailure::Ignore
                }
                Stand::Blocked | Stand::Scheduled { .. } | Stand::Ready | Stand::Running { .. } => {
                    false
                }
            })
        });
        met.map(|edge| edge.on).collect()
    }

    /// Notes who else holds the key that this job takes.
    fn contest(&mut self, id: JobId, job: &NewJob, now: Timestamp) {
        if job.unique.is_none() {
            return;
        }
        let holders = self
            .jobs
            .iter()
            .filter(|(other, told)| **other != id && told.same_key(job) && told.holds_key(now));
        let contested: Vec<(JobId, JobId)> = holders.map(|(other, _)| (id, *other)).collect();
        self.contested.extend(contested);
    }

    fn is_blocked(&mut self, id: JobId, unmet: u32) -> Checked {
        let told = self.told(id)?;
        let counted = told.unmet().count();
        ensure!(told.stand == Stand::Ready, "it is {}", told.stand.name());
        ensure!(counted == unmet as usize, "it waits for {unmet} jobs and should for {counted}");
        self.set(id, Stand::Blocked);
        Ok(())
    }

    fn unblocked(&mut self, id: JobId, cover: &mut Cover) -> Checked {
        let told = self.told(id)?;
        ensure!(told.stand == Stand::Blocked, "it is {} and not blocked", told.stand.name());
        let unmet: Vec<JobId> = told.unmet().map(|(on, _)| on).collect();
        ensure!(unmet.is_empty(), "it still waits for {unmet:?}");
        for edge in &told.job.depends_on {
            let Some(on) = self.jobs.get(&edge.on) else { continue };
            let completed = matches!(on.stand, Stand::Completed { .. });
            cover.hit_if(Point::IgnoredFailure, !completed);
            let waited = edge.on_failure == OnFailure::Wait && on.generation > 0 && completed;
            cover.hit_if(Point::WaitedForReplay, waited);
        }
        self.set(id, Stand::Ready);
        Ok(())
    }

    fn scheduled(&mut self, id: JobId, at: Timestamp, now: Timestamp) -> Checked {
        let told = self.told(id)?;
        ensure!(told.stand.is_waiting(), "it is {} and does not wait", told.stand.name());
        let blocked = told.stand == Stand::Blocked;
        self.jobs.entry(id).and_modify(|told| told.due = at);
        if !blocked {
            self.set(id, if at > now { Stand::Scheduled { at } } else { Stand::Ready });
        }
        Ok(())
    }

    fn started(
        &mut self,
        id: JobId,
        worker: &Arc<str>,
        attempt: u32,
        at: Timestamp,
        around: &mut Around<'_>,
    ) -> Checked {
        let asked = around.cause.is_some_and(|cause| match &cause.request {
            Request::Claim(claim) => claim.worker == *worker,
            _ => false,
        });
        ensure!(asked, "it was started and no worker asked");
        let told = self.told(id)?;
        let startable = matches!(told.stand, Stand::Ready | Stand::Scheduled { .. });
        ensure!(startable, "it was started and is {}", told.stand.name());
        ensure!(at >= told.due, "it was started at {at} and due at {}", told.due);
        let expiry = told.job.expires_after.map(|after| told.created_at + after);
        let first = (told.attempts, told.generation) == (0, 0);
        let expired = first && expiry.is_some_and(|expiry| expiry <= at);
        ensure!(!expired, "it was started at {at} and had expired");
        let (counted, kind) = (told.attempts + 1, told.job.kind.clone());
        ensure!(attempt == counted, "start {attempt} is start {counted}");
        let rules = self.rules.kind(&kind);
        let most = told.job.max_attempts().unwrap_or(rules.max_attempts);
        ensure!(attempt <= most, "start {attempt} of {most}");
        let paused = self.settings(&told.job.queue).paused;
        ensure!(!paused, "its queue is paused");
        self.check_lane(id)?;
        self.set(id, Stand::Running { worker: worker.clone() });
        self.jobs.entry(id).and_modify(|told| {
            told.attempts = attempt;
            told.started_at = at;
            told.starts += 1;
            (told.cancel_requested, told.settled_by) = (false, None);
        });
        let running = self.running.get(&kind).copied().unwrap_or(0);
        let within = rules.concurrency.is_none_or(|limit| running <= limit);
        ensure!(within, "{running} of kind {kind} run where {:?} may", rules.concurrency);
        self.note_start(&kind, at)
    }

    /// Jobs of one key run one at a time, and those that never had to wait start in their order.
    fn check_lane(&self, id: JobId) -> Checked {
        let told = self.told(id)?;
        let Some(lane) = &told.job.lane else { return Ok(()) };
        let plain = |told: &Told| {
            let now = told.job.start == Start::Now && told.job.depends_on.is_empty();
            now && told.starts == 0 && told.generation == 0 && told.due == told.created_at
        };
        let others = self.jobs.iter().filter(|(other, others)| {
            let same = others.job.queue == told.job.queue && others.job.lane.as_ref() == Some(lane);
            same && **other != id
        });
        for (other, others) in others {
            let runs = matches!(others.stand, Stand::Running { .. });
            ensure!(!runs, "job {other} of its key runs");
            let ready = others.stand == Stand::Ready && plain(others);
            let first = ready && plain(told) && others.place < told.place;
            let overtaken = first && others.job.priority == told.job.priority;
            ensure!(!overtaken, "job {other} of its key was there before it");
        }
        Ok(())
    }

    /// In no window did more jobs of the kind start than its rate allows.
    fn note_start(&mut self, kind: &Name, at: Timestamp) -> Checked {
        let Some(rate) = self.rules.kind(kind).rate else { return Ok(()) };
        let starts = self.starts.entry(kind.clone()).or_default();
        starts.push(at);
        for (back, from) in starts.iter().rev().take(64).enumerate() {
            let window = at.since(*from).as_micros();
            let earned = window * u128::from(rate.jobs) / rate.period.as_micros().max(1);
            let allowed = u128::from(rate.burst) + earned + 1;
            let started = back as u128 + 1;
            ensure!(started <= allowed, "{started} jobs of kind {kind} started within {window} µs");
        }
        Ok(())
    }

    fn ended(&mut self, id: JobId, event: &Event) -> Checked {
        let told = self.runs(id)?;
        match &event.what {
            EventKind::JobCompleted { result, .. } => {
                told.recoveries = 0;
                told.result = Some(result.clone());
                self.set(id, Stand::Completed { at: event.at });
                self.spread(id, true);
            }
            EventKind::JobFailed { attempt, .. } => {
                let counted = told.attempts;
                ensure!(*attempt == counted, "attempt {attempt} failed, attempt {counted} ran");
            }
            EventKind::JobRetrying { at, .. } => {
                told.due = *at;
                self.set(id, Stand::Scheduled { at: *at });
            }
            EventKind::JobSnoozed { until } => {
                told.due = *until;
                told.attempts -= 1;
                self.set(id, Stand::Scheduled { at: *until });
            }
            _ => {
                told.attempts -= 1;
                self.set(id, Stand::Ready);
            }
        }
        Ok(())
    }

    /// A job has ended: what waits for it is told.
    fn spread(&mut self, id: JobId, completed: bool) {
        for waiting in &self.blocked {
            let Some(told) = self.jobs.get_mut(waiting) else { continue };
            let edges = told.job.depends_on.iter();
            let met = edges
                .filter(|edge| edge.on == id)
                .any(|edge| completed || edge.on_failure == OnFailure::Ignore);
            if met {
                told.met.insert(id);
                told.updates += 1;
            }
        }
    }

    fn died(
        &mut self,
        id: JobId,
        reason: DeadReason,
        attempts: u32,
        at: Timestamp,
        around: &mut Around<'_>,
    ) -> Checked {
        let told = self.told(id)?;
        ensure!(attempts == told.attempts, "it counts {attempts} starts, not {}", told.attempts);
        let most = self.rules.kind(&told.job.kind).max_attempts;
        let most = told.job.max_attempts().unwrap_or(most);
        let recoveries = told.recoveries;
        if reason == DeadReason::DependencyFailed {
            ensure!(told.stand == Stand::Blocked, "it is {} and not blocked", told.stand.name());
            let gone = |on: &JobId| !self.jobs.contains_key(on);
            let failed = |on: &JobId| {
                self.jobs.get(on).is_some_and(|t| matches!(t.stand, Stand::Dead { .. }))
            };
            let removed = told.unmet().any(|(on, _)| gone(&on));
            let cascade = told.unmet().any(|(on, edge)| edge == OnFailure::Cascade && failed(&on));
            ensure!(cascade || removed, "no job it depends on has failed");
            around.cover.hit(if removed { Point::RemovedUnderWaiting } else { Point::CascadeDead });
        } else {
            self.runs(id)?;
        }
        let exhausted = attempts >= most;
        match reason {
            DeadReason::AttemptsExhausted => {
                ensure!(exhausted, "it is exhausted after {attempts} of {most} starts");
            }
            DeadReason::Crashed => {
                let capped = recoveries >= self.rules.recovery.max_recoveries;
                ensure!(exhausted || capped, "it is given up after {recoveries} recoveries");
            }
            DeadReason::Permanent
            | DeadReason::DurationExhausted
            | DeadReason::DependencyFailed => {}
        }
        self.set(id, Stand::Dead { at, reason });
        self.spread(id, false);
        Ok(())
    }

    fn cancelled(
        &mut self,
        id: JobId,
        reason: CancelReason,
        at: Timestamp,
        around: &mut Around<'_>,
    ) -> Checked {
        let told = self.told(id)?;
        let (waiting, running) = (told.stand.is_waiting(), !told.stand.is_terminal());
        let running = running && !waiting;
        let asked = around.cause.map(|cause| &cause.request);
        let could = match reason {
            CancelReason::Requested if waiting => {
                matches!(asked, Some(Request::Cancel(jobs)) if jobs.contains(&id))
                    || told.job.object.is_some() && asked.is_some_and(may_call_off)
            }
            CancelReason::Requested => running && told.cancel_requested,
            CancelReason::Handler => running && matches!(asked, Some(Request::Settle(_))),
            CancelReason::Expired => {
                let expiry = told.job.expires_after.map(|after| told.created_at + after);
                waiting
                    && (told.attempts, told.generation) == (0, 0)
                    && expiry.is_some_and(|expiry| expiry <= at)
            }
            CancelReason::Cleared => waiting && matches!(asked, Some(Request::Clear(_))),
            CancelReason::DependencyCancelled => {
                let cancelled = |on: &JobId| {
                    self.jobs.get(on).is_some_and(|t| matches!(t.stand, Stand::Cancelled { .. }))
                };
                told.stand == Stand::Blocked
                    && told.unmet().any(|(on, edge)| edge == OnFailure::Cascade && cancelled(&on))
            }
            CancelReason::Replaced => matches!(told.stand, Stand::Dead { .. }),
        };
        ensure!(could, "{reason:?} cannot be: it is {}", told.stand.name());
        let recovered = running && !matches!(asked, Some(Request::Settle(_)));
        around.cover.hit_if(Point::CancelledAtRecovery, recovered);
        around.cover.hit_if(Point::Expired, reason == CancelReason::Expired);
        let followed = reason == CancelReason::DependencyCancelled;
        around.cover.hit_if(Point::CascadeCancelled, followed);
        around.cover.hit_if(Point::Replaced, reason == CancelReason::Replaced);
        self.lost.retain(|lost| *lost != id);
        self.set(id, Stand::Cancelled { at, reason });
        self.spread(id, false);
        Ok(())
    }

    fn replayed(
        &mut self,
        id: JobId,
        generation: u32,
        at: Timestamp,
        around: &mut Around<'_>,
    ) -> Checked {
        let asked = matches!(around.cause.map(|cause| &cause.request),
            Some(Request::Replay(jobs)) if jobs.contains(&id));
        ensure!(asked, "nobody asked for it");
        let told = self.told(id)?;
        let failed = matches!(told.stand, Stand::Dead { .. } | Stand::Cancelled { .. });
        ensure!(failed, "it is {}", told.stand.name());
        let counted = told.generation + 1;
        ensure!(generation == counted, "generation {generation} is {counted}");
        let job = told.job.clone();
        let met = self.met_now(&job, true);
        self.set(id, Stand::Ready);
        self.jobs.entry(id).and_modify(|told| {
            (told.attempts, told.recoveries, told.generation) = (0, 0, generation);
            (told.due, told.met, told.output) = (at, met, None);
            (told.cancel_requested, told.settled_by) = (false, None);
        });
        self.contest(id, &job, at);
        Ok(())
    }

    fn recovered(
        &mut self,
        id: JobId,
        recovery: u32,
        at: Timestamp,
        around: &mut Around<'_>,
    ) -> Checked {
        let most = self.rules.recovery.max_recoveries;
        let told = self.told(id)?;
        let waits = matches!(told.stand, Stand::Scheduled { .. });
        let counted = told.recoveries + 1;
        ensure!(waits, "it was recovered and is {}", told.stand.name());
        ensure!(recovery == counted, "recovery {recovery} is recovery {counted}");
        ensure!(recovery <= most, "recovery {recovery} of {most}");
        self.jobs.entry(id).and_modify(|told| {
            told.recoveries = recovery;
            told.last_recovery_at = Some(at);
        });
        self.lost.retain(|lost| *lost != id);
        let point = match around.cause.map(|cause| &cause.request) {
            None => Point::RecoveredAtOpen,
            Some(Request::RescueLost(_)) => Point::RecoveredWhenNoticed,
            Some(_) => Point::RecoveredByLease,
        };
        around.cover.hit(point);
        Ok(())
    }

    fn removed(
        &mut self,
        id: JobId,
        reason: RemoveReason,
        at: Timestamp,
        around: &mut Around<'_>,
    ) -> Checked {
        let told = self.told(id)?;
        let asked = around.cause.map(|cause| &cause.request);
        // What an object calls off before it has started leaves no trace.
        if told.stand.is_waiting() && told.job.object.is_some() && asked.is_some_and(may_call_off) {
            let (line, stand) = ((told.job.queue.clone(), told.job.kind.clone()), &told.stand);
            let stand = stand.clone();
            self.count(&line.0, &line.1, &stand, -1);
            self.blocked.remove(&id);
            self.jobs.remove(&id);
            self.called_off = true;
            around.cover.hit(Point::CalledOff);
            return Ok(());
        }
        ensure!(told.stand.is_terminal(), "it is {}", told.stand.name());
        let queue = told.job.queue.clone();
        let limits = &self.rules.limits;
        match reason {
            RemoveReason::Requested => {
                let depends = !told.job.depends_on.is_empty();
                let asked = match asked {
                    Some(Request::Remove(jobs)) => jobs.contains(&id),
                    Some(Request::RemoveGraph(roots)) => roots.contains(&id) || depends,
                    _ => false,
                };
                ensure!(asked, "nobody asked for it");
            }
            RemoveReason::Retention => {
                let finished = |told: &&Told| {
                    matches!(told.stand, Stand::Completed { .. } | Stand::Cancelled { .. })
                };
                let (Stand::Completed { at: end } | Stand::Cancelled { at: end, .. }) = told.stand
                else {
                    return Err(Violation("a dead letter is not history".into()));
                };
                let old = end + limits.history_age <= at;
                let many = self.jobs.values().filter(finished).count() > limits.history_jobs;
                ensure!(old || many, "there was room for it, and time");
                around.cover.hit(Point::HistoryDropped);
            }
            RemoveReason::DeadLettersFull => {
                let dead = |told: &&Told| {
                    told.job.queue == queue && matches!(told.stand, Stand::Dead { .. })
                };
                let dead = self.jobs.values().filter(dead).count();
                ensure!(dead > limits.dead_letters, "there was room for {dead} dead letters");
                *self.dropped.entry(queue).or_default() += 1;
                around.cover.hit(Point::DeadLetterDropped);
            }
        }
        self.jobs.remove(&id);
        Ok(())
    }

    /// Blocked jobs that wait for ever for one that failed, as their producers wanted.
    pub(super) fn stuck(&self) -> BTreeSet<JobId> {
        let mut stuck: BTreeSet<JobId> = BTreeSet::new();
        loop {
            let more: Vec<JobId> = self
                .blocked
                .iter()
                .filter(|id| !stuck.contains(*id))
                .filter(|id| {
                    let on = |(on, edge): (JobId, OnFailure)| {
                        let failed = self.jobs.get(&on).is_some_and(|on| {
                            matches!(on.stand, Stand::Dead { .. } | Stand::Cancelled { .. })
                        });
                        failed && edge == OnFailure::Wait || stuck.contains(&on)
                    };
                    self.jobs[*id].unmet().any(on)
                })
                .copied()
                .collect();
            if more.is_empty() {
                return stuck;
            }
            stuck.extend(more);
        }
    }

    /// Nothing waits without something to wait for.
    pub(super) fn check_blocked(&self) -> Checked {
        for id in &self.blocked {
            let told = &self.jobs[id];
            ensure!(told.unmet().next().is_some(), "job {id} is blocked by nothing");
            for (on, edge) in told.unmet() {
                let Some(other) = self.jobs.get(&on) else {
                    return Err(Violation(format!("job {id} waits for {on}, which is gone")));
                };
                let failed = matches!(other.stand, Stand::Dead { .. } | Stand::Cancelled { .. });
                let ended = other.stand.is_terminal() && !(failed && edge == OnFailure::Wait);
                ensure!(!ended, "job {id} waits for {on}, which is {}", other.stand.name());
            }
        }
        Ok(())
    }
}

/// Whether the call may take jobs of an object out of the ledger.
fn may_call_off(request: &Request) -> bool {
    !request.turns().is_empty() || matches!(request, Request::Promote)
}

/// Whether the call would have this job accepted.
fn asks_for(cause: &Decided, id: JobId) -> bool {
    match &cause.request {
        Request::Enqueue(jobs) => jobs.iter().any(|job| job.id == id),
        Request::Settle(settlements) => {
            let next = settlements.iter().flat_map(|each| &each.next);
            let turns = settlements.iter().flat_map(|each| &each.turn);
            next.chain(turns.flat_map(|turn| jobs_of(turn))).any(|job| job.id == id)
        }
        Request::Turn(turn) => jobs_of(turn).any(|job| job.id == id),
        Request::ReplayEdited(_, edited) => edited.id == id,
        _ => false,
    }
}
