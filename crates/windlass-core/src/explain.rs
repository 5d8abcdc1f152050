//! Why a job is not running: a chain of typed reasons, each with its remedy in words.
//!
//! A store gathers [`ExplainFacts`], and [`explain`] is the one place where they become reasons, so
//! that every store gives the same ones. First what is asked, then what is answered, then how.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::job::{CancelReason, DeadReason, JobId, StateName};
use crate::ledger::WorkerView;
use crate::limits;
use crate::name::{Name, nearest};
use crate::time::Timestamp;

/// All that bears on why a job is not running, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainFacts {
    /// That moment.
    pub now: Timestamp,
    /// Every live worker.
    pub workers: Vec<WorkerView>,
    /// The job.
    pub job: JobFacts,
}

/// A job and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// The job.
    pub job: JobId,
    /// What matters in its state.
    pub state: StateFacts,
}

/// What matters of a job, by its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateFacts {
    /// It waits for other jobs.
    Blocked {
        /// The first of them that are kept, as many as [`blockers_shown`] says.
        by: Vec<JobFacts>,
        /// How many of them are kept.
        of: usize,
    },
    /// It waits for a time.
    Scheduled {
        /// When.
        at: Timestamp,
        /// How often it has started.
        attempts: u32,
        /// Its queue and kind.
        queue_kind: QueueKindFacts,
    },
    /// It can start.
    Ready {
        /// Its queue and kind.
        queue_kind: QueueKindFacts,
        /// Its lane, if it has one.
        lane: Option<LaneFacts>,
        /// Jobs of its queue and kind that come first, counted up to [`limits::EXPLAIN_AHEAD`].
        ahead: u64,
    },
    /// It runs.
    Running {
        /// Someone has asked it to stop.
        cancel_requested: bool,
    },
    /// It has completed.
    Completed {
        /// When.
        at: Timestamp,
    },
    /// It is dead.
    Dead {
        /// When.
        at: Timestamp,
        /// Why.
        reason: DeadReason,
    },
    /// It was called off.
    Cancelled {
        /// When.
        at: Timestamp,
        /// Why.
        reason: CancelReason,
    },
}

/// What all jobs of a queue and kind have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueKindFacts {
    /// The queue.
    pub queue: Name,
    /// The queue is paused.
    pub paused: bool,
    /// The kind.
    pub kind: Name,
    /// How many jobs of the kind run, in all queues.
    pub running: u64,
    /// The arrival time of the kind's rate limiter.
    pub full_at: Timestamp,
}

/// The lane of a ready job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneFacts {
    /// Its number, if it is paused.
    pub paused: Option<u32>,
    /// Another job of the same partition that has begun and waits.
    pub holder: Option<JobId>,
    /// A job of it runs.
    pub busy: bool,
    /// The job is the first of it.
    pub first: bool,
    /// Waiting jobs of it ahead of the job.
    pub ahead: u64,
}

/// Where a job stands and everything that keeps it from running, the first cause first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Explanation {
    /// The job.
    pub job: JobId,
    /// Its state.
    pub state: StateName,
    /// Why it is not running; empty if nothing but a free worker is missing.
    pub reasons: Vec<Reason>,
}

/// One reason why a job is not running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Reason {
    /// It is running.
    Running {
        /// Someone has asked it to stop.
        cancel_requested: bool,
    },
    /// It has completed.
    Completed {
        /// When.
        at: Timestamp,
    },
    /// It is dead.
    Dead {
        /// When.
        at: Timestamp,
        /// Why.
        reason: DeadReason,
    },
    /// It was called off.
    Cancelled {
        /// When.
        at: Timestamp,
        /// Why.
        reason: CancelReason,
    },
    /// It waits for another job, which has reasons of its own.
    BlockedBy(Explanation),
    /// It waits for more jobs than are listed.
    BlockedByMore {
        /// How many more.
        jobs: u32,
    },
    /// It waits for a time.
    ScheduledFor {
        /// When.
        at: Timestamp,
        /// How often it has started before; not 0 means that it is a retry or was recovered.
        attempts: u32,
    },
    /// Its queue is paused.
    QueuePaused {
        /// The queue.
        queue: Name,
    },
    /// No live worker has a handler for its kind.
    NoWorkerForKind {
        /// The kind.
        kind: Name,
        /// The most similar kind some worker handles.
        nearest: Option<Name>,
    },
    /// Workers handle its kind, but none listens to its queue.
    NoWorkerForQueue {
        /// The queue.
        queue: Name,
    },
    /// As many jobs of its kind run as may.
    ConcurrencyLimit {
        /// The kind.
        kind: Name,
        /// How many run.
        running: u64,
        /// How many may.
        limit: u32,
    },
    /// Jobs of its kind start as fast as they may.
    RateLimit {
        /// The kind.
        kind: Name,
        /// When the next may start.
        wait: Duration,
    },
    /// Its lane is paused.
    LanePaused {
        /// The lane.
        lane: u32,
    },
    /// A job of its lane runs.
    LaneBusy {
        /// Waiting jobs of the lane ahead of it.
        ahead: u64,
    },
    /// A job of its key has started before it and waits to go on.
    BehindItsKey {
        /// That job.
        job: JobId,
    },
    /// Other jobs of its kind and queue come first.
    BehindOthers {
        /// How many, counted up to a bound.
        ahead: u64,
        /// There are more than were counted.
        at_least: bool,
    },
    /// Every worker that could run it is busy.
    WorkersBusy {
        /// Jobs they run.
        busy: u64,
        /// Jobs they can run at once.
        slots: u64,
    },
}

/// How many of the jobs that a blocked job waits for are explained themselves, if it is `depth`
/// jobs away from the one that was asked about.
pub fn blockers_shown(depth: usize) -> usize {
    if depth < limits::EXPLAIN_DEPTH { limits::EXPLAIN_BLOCKERS } else { 0 }
}

/// Why a job is not running.
pub fn explain(facts: &ExplainFacts) -> Explanation {
    facts.explain(&facts.job)
}

impl ExplainFacts {
    fn explain(&self, JobFacts { job, state }: &JobFacts) -> Explanation {
        let (state, reasons) = match state {
            StateFacts::Blocked { by, of } => (StateName::Blocked, self.blocked(by, *of)),
            StateFacts::Scheduled { at, attempts, queue_kind } => {
                let mut reasons = vec![Reason::ScheduledFor { at: *at, attempts: *attempts }];
                reasons.extend(self.queue_kind(queue_kind));
                (StateName::Scheduled, reasons)
            }
            StateFacts::Ready { queue_kind, lane, ahead } => {
                let mut reasons = self.queue_kind(queue_kind);
                match lane.as_ref().and_then(not_next_of) {
                    Some(reason) => reasons.push(reason),
                    None => reasons.extend(self.not_next(queue_kind, *ahead)),
                }
                (StateName::Ready, reasons)
            }
            StateFacts::Running { cancel_requested } => {
                let cancel_requested = *cancel_requested;
                (StateName::Running, vec![Reason::Running { cancel_requested }])
            }
            StateFacts::Completed { at } => {
                (StateName::Completed, vec![Reason::Completed { at: *at }])
            }
            StateFacts::Dead { at, reason } => {
                (StateName::Dead, vec![Reason::Dead { at: *at, reason: *reason }])
            }
            StateFacts::Cancelled { at, reason } => {
                (StateName::Cancelled, vec![Reason::Cancelled { at: *at, reason: *reason }])
            }
        };
        Explanation { job: *job, state, reasons }
    }

    fn blocked(&self, by: &[JobFacts], of: usize) -> Vec<Reason> {
        let shown = by.iter().map(|blocker| Reason::BlockedBy(self.explain(blocker)));
        let mut reasons: Vec<Reason> = shown.collect();
        if of > by.len() {
            let jobs = u32::try_from(of - by.len()).unwrap_or(u32::MAX);
            reasons.push(Reason::BlockedByMore { jobs });
        }
        reasons
    }

    /// The workers that take jobs and handle this kind.
    fn handling(&self, kind: &Name) -> impl DoubleEndedIterator<Item = &WorkerView> {
        self.taking().filter(|worker| worker.info.handles(kind))
    }

    fn taking(&self) -> impl DoubleEndedIterator<Item = &WorkerView> {
        self.workers.iter().filter(|worker| worker.takes_jobs())
    }

    /// What keeps every job of a queue and kind from starting.
    fn queue_kind(&self, facts: &QueueKindFacts) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if facts.paused {
            reasons.push(Reason::QueuePaused { queue: facts.queue.clone() });
        }
        reasons.extend(self.no_worker(facts));
        reasons.extend(self.limits(facts));
        reasons
    }

    fn no_worker(&self, QueueKindFacts { queue, kind, .. }: &QueueKindFacts) -> Option<Reason> {
        if self.handling(kind).next().is_none() {
            let kinds = self.taking().flat_map(|worker| &worker.info.kinds);
            let nearest = nearest(kind.as_str(), kinds.map(|known| &known.kind));
            return Some(Reason::NoWorkerForKind { kind: kind.clone(), nearest });
        }
        let unheard = !self.handling(kind).any(|worker| worker.info.listens_to(queue));
        unheard.then(|| Reason::NoWorkerForQueue { queue: queue.clone() })
    }

    /// The limits of a kind that are reached, by the terms of the last worker that handles it.
    fn limits(&self, facts: &QueueKindFacts) -> Vec<Reason> {
        let (kind, running) = (&facts.kind, facts.running);
        let mut kinds = self.handling(kind).flat_map(|worker| &worker.info.kinds);
        let Some(terms) = kinds.rfind(|known| known.kind == *kind) else { return Vec::new() };
        let concurrency = terms.concurrency.filter(|limit| running >= u64::from(*limit));
        let wait = terms.rate.and_then(|rate| rate.admit(facts.full_at, self.now).err());
        let concurrency = concurrency.map(|limit| {
            let kind = kind.clone();
            Reason::ConcurrencyLimit { kind, running, limit }
        });
        let rate = wait.map(|wait| Reason::RateLimit { kind: kind.clone(), wait });
        concurrency.into_iter().chain(rate).collect()
    }

    /// What keeps a ready job from being the next of its queue and kind to start.
    fn not_next(&self, facts: &QueueKindFacts, ahead: u64) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if ahead > 0 {
            let at_least = ahead >= limits::EXPLAIN_AHEAD as u64;
            reasons.push(Reason::BehindOthers { ahead, at_least });
        }
        let takers = self.handling(&facts.kind).filter(|it| it.info.listens_to(&facts.queue));
        let (busy, slots) = takers.fold((0, 0), |(busy, slots), worker| {
            (busy + worker.running, slots + u64::from(worker.info.slots))
        });
        if slots > 0 && busy >= slots {
            reasons.push(Reason::WorkersBusy { busy, slots });
        }
        reasons
    }
}

/// What keeps a ready job from being the next of its lane.
fn not_next_of(lane: &LaneFacts) -> Option<Reason> {
    let ahead = lane.ahead;
    match (lane.holder, lane.paused) {
        (Some(job), _) => Some(Reason::BehindItsKey { job }),
        (None, Some(lane)) => Some(Reason::LanePaused { lane }),
        (None, None) if lane.busy => Some(Reason::LaneBusy { ahead }),
        (None, None) if lane.first => None,
        (None, None) => Some(Reason::BehindOthers { ahead, at_least: false }),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} is {}", self.job, self.state)?;
        for (index, reason) in self.reasons.iter().enumerate() {
            write!(f, "{} {reason}", if index == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl Reason {
    /// What kind of reason it is, for programs: a word that does not change.
    pub const fn code(&self) -> &'static str {
        match self {
            Reason::Running { .. } => "running",
            Reason::Completed { .. } => "completed",
            Reason::Dead { .. } => "dead",
            Reason::Cancelled { .. } => "cancelled",
            Reason::BlockedBy(_) => "blocked_by",
            Reason::BlockedByMore { .. } => "blocked_by_more",
            Reason::ScheduledFor { .. } => "scheduled_for",
            Reason::QueuePaused { .. } => "queue_paused",
            Reason::NoWorkerForKind { .. } => "no_worker_for_kind",
            Reason::NoWorkerForQueue { .. } => "no_worker_for_queue",
            Reason::ConcurrencyLimit { .. } => "concurrency_limit",
            Reason::RateLimit { .. } => "rate_limit",
            Reason::LanePaused { .. } => "lane_paused",
            Reason::LaneBusy { .. } => "lane_busy",
            Reason::BehindItsKey { .. } => "behind_its_key",
            Reason::BehindOthers { .. } => "behind_others",
            Reason::WorkersBusy { .. } => "workers_busy",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Running { cancel_requested: false } => f.write_str("a worker runs it"),
            Reason::Running { cancel_requested: true } => {
                f.write_str("a worker runs it and has been asked to stop")
            }
            Reason::Completed { at } => write!(f, "it completed at {at}"),
            Reason::Dead { at, reason } => {
                write!(f, "it died at {at} ({reason}); replay it to try again")
            }
            Reason::Cancelled { at, reason } => write!(f, "it was cancelled at {at} ({reason})"),
            Reason::BlockedBy(other) => write!(f, "it waits for [{other}]"),
            Reason::BlockedByMore { jobs } => write!(f, "it waits for {jobs} more jobs"),
            Reason::ScheduledFor { at, attempts: 0 } => write!(f, "it is scheduled for {at}"),
            Reason::ScheduledFor { at, attempts } => {
                write!(f, "it is tried again at {at} after {attempts} attempts")
            }
            Reason::QueuePaused { queue } => {
                write!(f, "queue `{queue}` is paused; resume it to start jobs")
            }
            Reason::NoWorkerForKind { kind, nearest: None } => {
                write!(f, "no worker handles `{kind}`")
            }
            Reason::NoWorkerForKind { kind, nearest: Some(nearest) } => {
                write!(f, "no worker handles `{kind}`; the nearest known kind is `{nearest}`")
            }
            Reason::NoWorkerForQueue { queue } => {
                write!(f, "no worker for its kind listens to queue `{queue}`")
            }
            Reason::ConcurrencyLimit { kind, running, limit } => {
                write!(f, "{running} jobs of kind `{kind}` run and the limit is {limit}")
            }
            Reason::RateLimit { kind, wait } => {
                write!(f, "the rate limit of kind `{kind}` allows the next start in {wait:?}")
            }
            Reason::LanePaused { lane } => {
                write!(f, "lane {lane} of its queue is paused; resume it to start jobs")
            }
            Reason::LaneBusy { ahead } => {
                write!(f, "another job of its lane runs, and {ahead} are ahead of it")
            }
            Reason::BehindItsKey { job } => {
                write!(f, "job {job} of the same key has started before it and must finish first")
            }
            Reason::BehindOthers { ahead, at_least: false } => {
                write!(f, "{ahead} jobs are ahead of it")
            }
            Reason::BehindOthers { ahead, at_least: true } => {
                write!(f, "at least {ahead} jobs are ahead of it")
            }
            Reason::WorkersBusy { busy, slots } => {
                write!(f, "its workers run {busy} jobs in {slots} slots")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::ledger::{WorkerInfo, WorkerKind};
    use crate::rate::Rate;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn id(number: u128) -> JobId {
        JobId::from_bytes(number.to_be_bytes())
    }

    fn queue_kind() -> QueueKindFacts {
        let (queue, kind) = (name("mail"), name("send"));
        QueueKindFacts { queue, kind, paused: false, running: 0, full_at: NOW }
    }

    fn lane() -> LaneFacts {
        LaneFacts { paused: None, holder: None, busy: false, first: true, ahead: 0 }
    }

    fn ready(queue_kind: QueueKindFacts, lane: Option<LaneFacts>, ahead: u64) -> StateFacts {
        StateFacts::Ready { queue_kind, lane, ahead }
    }

    /// A worker of one slot, for all queues.
    fn worker(kind: &str) -> WorkerView {
        let terms = WorkerKind { kind: name(kind), concurrency: None, rate: None };
        let info = WorkerInfo { queues: None, kinds: vec![terms], slots: 1, quiet: false };
        WorkerView { worker: Arc::from("w"), info, running: 0, stopping: false }
    }

    fn limited(concurrency: Option<u32>, rate: Option<Rate>) -> WorkerView {
        let mut limited = worker("send");
        limited.info.kinds = vec![WorkerKind { kind: name("send"), concurrency, rate }];
        limited
    }

    fn why(workers: Vec<WorkerView>, state: StateFacts) -> Explanation {
        let job = JobFacts { job: id(1), state };
        explain(&ExplainFacts { now: NOW, workers, job })
    }

    #[track_caller]
    fn check(workers: Vec<WorkerView>, state: StateFacts, reasons: &[Reason]) {
        assert_eq!(why(workers, state).reasons, reasons);
    }

    #[test]
    fn what_has_ended_or_runs_has_one_reason() {
        let (dead, cancelled) = (DeadReason::Crashed, CancelReason::Expired);
        let (at, reason) = (NOW, dead);
        let table = [
            (StateFacts::Completed { at }, StateName::Completed, Reason::Completed { at }),
            (StateFacts::Dead { at, reason }, StateName::Dead, Reason::Dead { at, reason }),
            (
                StateFacts::Cancelled { at, reason: cancelled },
                StateName::Cancelled,
                Reason::Cancelled { at, reason: cancelled },
            ),
            (
                StateFacts::Running { cancel_requested: true },
                StateName::Running,
                Reason::Running { cancel_requested: true },
            ),
        ];
        for (facts, state, reason) in table {
            let reasons = vec![reason];
            assert_eq!(why(Vec::new(), facts), Explanation { job: id(1), state, reasons });
        }
    }

    #[test]
    fn nothing_keeps_a_job_that_is_first_and_has_a_free_worker() {
        check(vec![worker("send")], ready(queue_kind(), None, 0), &[]);
        check(vec![worker("send")], ready(queue_kind(), Some(lane()), 0), &[]);
    }

    #[test]
    fn a_queue_or_kind_that_nobody_takes_is_named() {
        let (kind, queue) = (name("send"), name("mail"));
        let no_worker = |nearest| Reason::NoWorkerForKind { kind: kind.clone(), nearest };
        check(Vec::new(), ready(queue_kind(), None, 0), &[no_worker(None)]);
        let near = no_worker(Some(name("sent")));
        check(vec![worker("sent"), worker("bake")], ready(queue_kind(), None, 0), &[near]);
        let stopping = WorkerView { stopping: true, ..worker("send") };
        check(vec![stopping], ready(queue_kind(), None, 0), &[no_worker(None)]);
        let mut elsewhere = worker("send");
        elsewhere.info.queues = Some(vec![name("post")]);
        let reason = Reason::NoWorkerForQueue { queue: queue.clone() };
        check(vec![elsewhere.clone()], ready(queue_kind(), None, 0), &[reason]);
        check(vec![elsewhere, worker("send")], ready(queue_kind(), None, 0), &[]);
        let paused = QueueKindFacts { paused: true, ..queue_kind() };
        check(vec![worker("send")], ready(paused, None, 0), &[Reason::QueuePaused { queue }]);
    }

    #[test]
    fn a_limit_is_named_when_it_is_reached_and_the_last_worker_sets_it() {
        let running = |running| QueueKindFacts { running, ..queue_kind() };
        let reached =
            |running, limit| Reason::ConcurrencyLimit { kind: name("send"), running, limit };
        let two = || limited(Some(2), None);
        check(vec![two()], ready(running(1), None, 0), &[]);
        check(vec![two()], ready(running(2), None, 0), &[reached(2, 2)]);
        check(vec![two(), limited(Some(3), None)], ready(running(2), None, 0), &[]);
        check(vec![limited(Some(3), None), two()], ready(running(2), None, 0), &[reached(2, 2)]);
        let rate = Rate { jobs: 1, period: SECOND, burst: 1 };
        let full_at = |full_at| QueueKindFacts { full_at, ..queue_kind() };
        let wait = Reason::RateLimit { kind: name("send"), wait: SECOND };
        check(vec![limited(None, Some(rate))], ready(full_at(NOW + SECOND), None, 0), &[wait]);
        check(vec![limited(None, Some(rate))], ready(full_at(NOW), None, 0), &[]);
    }

    #[test]
    fn a_place_behind_others_is_exact_up_to_a_bound() {
        let behind = |ahead, at_least| Reason::BehindOthers { ahead, at_least };
        let free = || vec![worker("send")];
        check(free(), ready(queue_kind(), None, 999), &[behind(999, false)]);
        check(free(), ready(queue_kind(), None, 1_000), &[behind(1_000, true)]);
        let busy = || WorkerView { running: 1, ..worker("send") };
        let both = [behind(3, false), Reason::WorkersBusy { busy: 2, slots: 2 }];
        check(vec![busy(), busy()], ready(queue_kind(), None, 3), &both);
        check(vec![busy(), worker("send")], ready(queue_kind(), None, 0), &[]);
        check(vec![busy(), worker("bake")], ready(queue_kind(), None, 3), &both_of_one());
    }

    fn both_of_one() -> [Reason; 2] {
        let behind = Reason::BehindOthers { ahead: 3, at_least: false };
        [behind, Reason::WorkersBusy { busy: 1, slots: 1 }]
    }

    #[test]
    fn of_a_lane_the_first_cause_counts_and_hides_the_queue() {
        let holder = Some(id(7));
        let table = [
            (LaneFacts { holder, ..lane() }, Reason::BehindItsKey { job: id(7) }),
            (LaneFacts { holder, paused: Some(3), ..lane() }, Reason::BehindItsKey { job: id(7) }),
            (LaneFacts { paused: Some(3), busy: true, ..lane() }, Reason::LanePaused { lane: 3 }),
            (LaneFacts { busy: true, ahead: 5, ..lane() }, Reason::LaneBusy { ahead: 5 }),
            (
                LaneFacts { first: false, ahead: 5, ..lane() },
                Reason::BehindOthers { ahead: 5, at_least: false },
            ),
        ];
        for (facts, reason) in table {
            check(vec![worker("send")], ready(queue_kind(), Some(facts), 9), &[reason]);
        }
    }

    #[test]
    fn a_time_comes_before_what_else_keeps_a_job() {
        let queue_kind = QueueKindFacts { paused: true, ..queue_kind() };
        let facts = StateFacts::Scheduled { at: NOW + SECOND, attempts: 2, queue_kind };
        let scheduled = Reason::ScheduledFor { at: NOW + SECOND, attempts: 2 };
        let paused = Reason::QueuePaused { queue: name("mail") };
        check(vec![worker("send")], facts, &[scheduled, paused]);
    }

    #[test]
    fn a_blocked_job_is_kept_by_what_keeps_its_blockers() {
        let running =
            |job| JobFacts { job: id(job), state: StateFacts::Running { cancel_requested: false } };
        let blocked =
            JobFacts { job: id(2), state: StateFacts::Blocked { by: vec![running(3)], of: 1 } };
        let facts = StateFacts::Blocked { by: vec![blocked, running(4)], of: 7 };
        let by =
            |job, state, reasons| Reason::BlockedBy(Explanation { job: id(job), state, reasons });
        let runs =
            |job| by(job, StateName::Running, vec![Reason::Running { cancel_requested: false }]);
        let reasons =
            [by(2, StateName::Blocked, vec![runs(3)]), runs(4), Reason::BlockedByMore { jobs: 5 }];
        check(Vec::new(), facts, &reasons);
        assert_eq!([blockers_shown(0), blockers_shown(15), blockers_shown(16)], [3, 3, 0]);
    }
}
