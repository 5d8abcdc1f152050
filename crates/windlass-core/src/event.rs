//! Everything the world can be told: one event per committed change, numbered without gaps.

use alloc::sync::Arc;
use core::time::Duration;

use crate::job::{Bytes, CancelReason, DeadReason, JobId, Priority};
use crate::limits;
use crate::name::Name;
use crate::object::Address;
use crate::outcome::ErrorText;
use crate::time::Timestamp;

/// One committed change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Event {
    /// Its number: each event's is one more than the last one's.
    pub number: u64,
    /// When it happened, in engine time.
    pub at: Timestamp,
    /// What it is about.
    pub subject: Subject,
    /// What happened.
    pub what: EventKind,
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Subject {
    /// A job.
    Job {
        /// Which.
        id: JobId,
        /// Its kind.
        kind: Name,
        /// Its queue.
        queue: Name,
    },
    /// A queue.
    Queue(Name),
    /// A worker.
    Worker(Arc<str>),
    /// An object.
    Object(Address),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum EventKind {
    /// A job was accepted.
    JobEnqueued {
        /// Its priority.
        priority: Priority,
    },
    /// An enqueue met a job that already holds its unique key; nothing was added.
    JobDeduplicated {
        /// The payload was not the same.
        payload_differs: bool,
    },
    /// The job waits for others.
    JobBlocked {
        /// How many.
        unmet: u32,
    },
    /// The last job it waited for completed.
    JobUnblocked,
    /// The job waits for a time.
    JobScheduled {
        /// When.
        at: Timestamp,
    },
    /// A worker took it.
    JobStarted {
        /// Who.
        worker: Arc<str>,
        /// Which start.
        attempt: u32,
    },
    /// Its handler reported progress.
    JobProgress {
        /// Percent done, 0 to 100.
        percent: u8,
    },
    /// Its handler finished a step, which will not be done again.
    StepCompleted {
        /// The step.
        name: Name,
    },
    /// Its handler succeeded.
    JobCompleted {
        /// Who ran it.
        worker: Arc<str>,
        /// Which start.
        attempt: u32,
        /// How long this attempt ran.
        duration: Duration,
        /// What its handler returned.
        result: EventResult,
    },
    /// An attempt failed.
    JobFailed {
        /// Who ran it.
        worker: Arc<str>,
        /// The attempt that failed.
        attempt: u32,
        /// Why.
        error: ErrorText,
        /// When it is tried again; `None` if it is not.
        next_retry_at: Option<Timestamp>,
    },
    /// The job waits to be tried again.
    JobRetrying {
        /// When.
        at: Timestamp,
        /// The attempt that failed.
        attempt: u32,
    },
    /// Its handler asked to be called again later.
    JobSnoozed {
        /// When.
        until: Timestamp,
    },
    /// Its worker stopped and gave it back, the start uncounted.
    JobReleased {
        /// Who gave it back.
        worker: Arc<str>,
    },
    /// It gave up.
    JobDead {
        /// Why.
        reason: DeadReason,
        /// Starts counted.
        attempts: u32,
        /// The last error, or the chain that leads to a failed dependency.
        error: Option<ErrorText>,
    },
    /// Someone asked for a running job to stop.
    JobCancelRequested,
    /// It was called off.
    JobCancelled {
        /// Why.
        reason: CancelReason,
    },
    /// It left the dead letters to be tried again.
    JobReplayed {
        /// How often it has been replayed.
        generation: u32,
    },
    /// Its record was deleted.
    JobRemoved {
        /// Why.
        reason: RemoveReason,
    },
    /// A running job's worker is gone.
    RecoveryDetected {
        /// How it was noticed.
        reason: RecoveryReason,
        /// The attempt that was lost.
        attempt: u32,
        /// How long ago that attempt had begun.
        stale_for: Duration,
    },
    /// The job's worker was lost, and it will run again.
    JobRecovered {
        /// How the loss was noticed.
        reason: RecoveryReason,
        /// The attempt that was lost.
        attempt: u32,
        /// How often the job has been recovered since it last succeeded.
        recovery: u32,
        /// How long ago that attempt had begun.
        stale_for: Duration,
    },
    /// The job will not be recovered again; it is dead.
    RecoveryExhausted {
        /// How often it had been recovered.
        recoveries: u32,
    },
    /// No job of the queue starts any more.
    QueuePaused,
    /// Jobs of the queue start again.
    QueueResumed,
    /// Its waiting jobs were called off.
    QueueCleared {
        /// How many.
        jobs: u64,
    },
    /// Its last open job has finished.
    QueueEmpty,
    /// The last open job of one of its lanes has finished.
    LaneEmpty {
        /// The lane.
        lane: u32,
        /// Jobs completed in it so far.
        completed: u64,
    },
    /// It holds as many waiting jobs as it may.
    QueueFull {
        /// Its limit.
        limit: u64,
    },
    /// Its settings were changed.
    QueueConfigured,
    /// An object had its first turn.
    ObjectCreated,
    /// An object was purged.
    ObjectRemoved,
    /// Something that an object's primitive tells.
    Object {
        /// The dotted name subscribers filter by, such as `debounce.flushed`.
        topic: Name,
        /// What there is to say, as JSON.
        detail: Arc<str>,
    },
    /// A worker takes jobs.
    WorkerStarted,
    /// A worker takes no more jobs and finishes those it has.
    WorkerStopping,
    /// A worker has ended.
    WorkerStopped,
    /// A part of a worker crashed and was restarted, or gave up.
    WorkerError {
        /// What happened.
        error: ErrorText,
    },
}

/// What the handler of a completed job returned, as the event of its completion tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum EventResult {
    /// There is no output: whoever settled the attempt gave none.
    None,
    /// The output, to the byte; at most [`EVENT_RESULT_BYTES`](limits::EVENT_RESULT_BYTES). A
    /// handler that returns `()` gives `null`.
    Output(#[cfg_attr(feature = "wire", serde(with = "crate::wire::bytes"))] Bytes),
    /// The output is larger than an event carries. It is in the job's record for as long as that
    /// is kept.
    TooLarge {
        /// How many bytes it has.
        bytes: usize,
    },
    /// The job's record was gone when the event was read, and its output with it. Only a store
    /// that keeps outputs with the records alone tells so (PostgreSQL).
    Gone,
}

impl EventResult {
    /// What is told of an output.
    pub fn of(output: Option<&Bytes>) -> Self {
        match output {
            None => Self::None,
            Some(output) if output.len() > limits::EVENT_RESULT_BYTES => {
                Self::TooLarge { bytes: output.len() }
            }
            Some(output) => Self::Output(output.clone()),
        }
    }
}

/// Why a record was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum RemoveReason {
    /// Someone asked for it.
    Requested,
    /// It is older than history is kept, or history holds as many jobs as it may.
    Retention,
    /// Its queue holds as many dead letters as it may.
    DeadLettersFull,
}

/// Why an attempt ended without an outcome of its own, and what that meant for its job.
///
/// The first three say how the loss of a worker was noticed: they are told with
/// `recovery.detected` and `job.recovered`, and a [`Rescue`](crate::ledger::Rescue) names one of
/// them. The record of an attempt keeps the reason in its end
/// ([`AttemptEnd::recovery`](crate::record::AttemptEnd::recovery)).
///
/// In other systems' words:
///
/// | there | here |
/// |---|---|
/// | `stale_executing` | [`LeaseExpired`](Self::LeaseExpired) |
/// | `infrastructure_restart` | [`Restart`](Self::Restart) |
/// | `manual` | [`Manual`](Self::Manual) |
/// | `pending_resume` | [`Released`](Self::Released) |
/// | `max_attempts_exceeded` | [`LimitReached`](Self::LimitReached) |
/// | `orphaned_alarm` | cannot be: an alarm is a job, in one commit with what waits for it |
/// | `not_needed`, `no_job`, `already_terminal` | nothing is done and nothing is told |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum RecoveryReason {
    /// The lease was not renewed in time. The job runs again.
    LeaseExpired,
    /// The process that held the lease is known to be gone. The job runs again.
    Restart,
    /// Someone said that the worker is gone. The job runs again.
    Manual,
    /// The worker stopped and gave the job back, the start uncounted: told as `job.released`.
    Released,
    /// The worker was lost, and the job had used up its attempts or its recoveries: it is dead.
    /// Told as `recovery.exhausted`.
    LimitReached,
}

impl RecoveryReason {
    /// Every reason; the place of each is its number where it is stored.
    pub const ALL: [RecoveryReason; 5] =
        [Self::LeaseExpired, Self::Restart, Self::Manual, Self::Released, Self::LimitReached];

    /// How a loss was noticed, for a reason that says so; someone must have, for one that does not.
    #[must_use]
    pub const fn noticed(self) -> Self {
        match self {
            Self::LeaseExpired | Self::Restart | Self::Manual => self,
            Self::Released | Self::LimitReached => Self::Manual,
        }
    }

    /// The reason as one word, such as `lease_expired`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseExpired => "lease_expired",
            Self::Restart => "restart",
            Self::Manual => "manual",
            Self::Released => "released",
            Self::LimitReached => "limit_reached",
        }
    }
}

/// Every topic but those that objects tell, which begin with the kind of the object.
pub const TOPICS: [&str; 34] = [
    "job.enqueued",
    "job.deduplicated",
    "job.blocked",
    "job.unblocked",
    "job.scheduled",
    "job.started",
    "job.progress",
    "job.completed",
    "job.failed",
    "job.retrying",
    "job.snoozed",
    "job.released",
    "job.dead",
    "job.cancel_requested",
    "job.cancelled",
    "job.replayed",
    "job.removed",
    "step.completed",
    "recovery.detected",
    "job.recovered",
    "recovery.exhausted",
    "queue.paused",
    "queue.resumed",
    "queue.cleared",
    "queue.empty",
    "queue.full",
    "queue.configured",
    "pool.empty",
    "object.created",
    "object.removed",
    "worker.started",
    "worker.stopping",
    "worker.stopped",
    "worker.error",
];

impl EventKind {
    /// The dotted name subscribers filter by.
    pub fn topic(&self) -> &str {
        match self {
            EventKind::JobEnqueued { .. } => "job.enqueued",
            EventKind::JobDeduplicated { .. } => "job.deduplicated",
            EventKind::JobBlocked { .. } => "job.blocked",
            EventKind::JobUnblocked => "job.unblocked",
            EventKind::JobScheduled { .. } => "job.scheduled",
            EventKind::JobStarted { .. } => "job.started",
            EventKind::JobProgress { .. } => "job.progress",
            EventKind::StepCompleted { .. } => "step.completed",
            EventKind::JobCompleted { .. } => "job.completed",
            EventKind::JobFailed { .. } => "job.failed",
            EventKind::JobRetrying { .. } => "job.retrying",
            EventKind::JobSnoozed { .. } => "job.snoozed",
            EventKind::JobReleased { .. } => "job.released",
            EventKind::JobDead { .. } => "job.dead",
            EventKind::JobCancelRequested => "job.cancel_requested",
            EventKind::JobCancelled { .. } => "job.cancelled",
            EventKind::JobReplayed { .. } => "job.replayed",
            EventKind::JobRemoved { .. } => "job.removed",
            EventKind::RecoveryDetected { .. } => "recovery.detected",
            EventKind::JobRecovered { .. } => "job.recovered",
            EventKind::RecoveryExhausted { .. } => "recovery.exhausted",
            EventKind::QueuePaused => "queue.paused",
            EventKind::QueueResumed => "queue.resumed",
            EventKind::QueueCleared { .. } => "queue.cleared",
            EventKind::QueueEmpty => "queue.empty",
            EventKind::LaneEmpty { .. } => "pool.empty",
            EventKind::QueueFull { .. } => "queue.full",
            EventKind::QueueConfigured => "queue.configured",
            EventKind::ObjectCreated => "object.created",
            EventKind::ObjectRemoved => "object.removed",
            EventKind::Object { topic, .. } => topic.as_str(),
            EventKind::WorkerStarted => "worker.started",
            EventKind::WorkerStopping => "worker.stopping",
            EventKind::WorkerStopped => "worker.stopped",
            EventKind::WorkerError { .. } => "worker.error",
        }
    }

    /// Whether an attempt failed that is followed by another.
    pub const fn will_retry(&self) -> bool {
        matches!(self, EventKind::JobFailed { next_retry_at: Some(_), .. })
    }

    /// Why an attempt ended without an outcome of its own, if that is what happened.
    pub const fn recovery(&self) -> Option<RecoveryReason> {
        match self {
            EventKind::RecoveryDetected { reason, .. } | EventKind::JobRecovered { reason, .. } => {
                Some(*reason)
            }
            EventKind::JobReleased { .. } => Some(RecoveryReason::Released),
            EventKind::RecoveryExhausted { .. } => Some(RecoveryReason::LimitReached),
            _ => None,
        }
    }

    /// Whether this is the last event of a job's generation.
    pub const fn is_terminal(&self) -> bool {
        matches!(
            self,
            EventKind::JobCompleted { .. }
                | EventKind::JobDead { .. }
                | EventKind::JobCancelled { .. }
        )
    }
}

impl Event {
    /// The dotted name subscribers filter by.
    pub fn topic(&self) -> &str {
        self.what.topic()
    }

    /// The job it is about, if it is about one.
    pub const fn job(&self) -> Option<JobId> {
        match &self.subject {
            Subject::Job { id, .. } => Some(*id),
            Subject::Queue(_) | Subject::Worker(_) | Subject::Object(_) => None,
        }
    }
}
