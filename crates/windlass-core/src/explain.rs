//! Why a job is not running: a chain of typed reasons, each with its remedy in words.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::job::{CancelReason, DeadReason, JobId, StateName};
use crate::name::Name;
use crate::time::Timestamp;

/// Where a job stands and everything that keeps it from running, the first cause first.
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} is {}", self.job, self.state)?;
        for (index, reason) in self.reasons.iter().enumerate() {
            write!(f, "{} {reason}", if index == 0 { ":" } else { ";" })?;
        }
        Ok(())
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
