//! What a store keeps of a job, and the changes it must make to keep it.
//!
//! The ledger answers a command with a list of [`Change`]s. Each says what is true now, not what
//! to do, so applying one twice is harmless and replaying them all rebuilds the ledger and every
//! record. [`JobRecord::absorb`] is the one place that turns a change into a record.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::event::RecoveryReason;
use crate::job::{Bytes, JobId, JobStatus, NewJob, State, StateName};
use crate::limits;
use crate::name::Name;
use crate::object::{Address, ObjectChange};
use crate::outcome::{ErrorText, cut};
use crate::time::Timestamp;

/// One change to persist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A job was accepted.
    Insert(Box<Accepted>),
    /// A job is now like this.
    Update(Update),
    /// A job is no longer kept.
    Remove {
        /// Which.
        job: JobId,
    },
    /// A queue's settings are now these.
    Queue {
        /// Which.
        queue: Name,
        /// Its settings.
        settings: QueueSettings,
        /// Dead letters dropped so far because there were too many.
        dead_letters_dropped: u64,
    },
    /// A kind's rate limit has been used up to this time.
    Rate {
        /// Which.
        kind: Name,
        /// When its bucket is full again.
        full_at: Timestamp,
    },
    /// So much has happened to the jobs of one kind in one queue.
    QueueKind {
        /// The queue.
        queue: Name,
        /// The kind.
        kind: Name,
        /// What has happened so far.
        totals: Totals,
    },
    /// An object is now like this.
    Object(Box<ObjectChange>),
    /// An object is no longer kept.
    ObjectGone {
        /// Which.
        address: Address,
    },
    /// So much has happened to the jobs of one lane of a queue.
    Lane {
        /// The queue.
        queue: Name,
        /// The lane.
        lane: u32,
        /// What has happened so far.
        totals: Totals,
    },
}

/// A job as it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// What its producer said.
    pub job: Arc<NewJob>,
    /// Its place in the order of acceptance.
    pub sequence: u64,
    /// When it was accepted.
    pub at: Timestamp,
    /// Its first condition.
    pub status: JobStatus,
    /// Dependencies that were met already.
    pub met: Vec<JobId>,
}

/// What is now true of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Which.
    pub job: JobId,
    /// Since when.
    pub at: Timestamp,
    /// Its condition.
    pub status: JobStatus,
    /// What else is to be remembered.
    pub note: Option<RecordNote>,
}

/// What a record remembers beyond the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordNote {
    /// An attempt began.
    Started {
        /// Who runs it.
        worker: Arc<str>,
    },
    /// An attempt ended.
    Ended {
        /// How.
        end: AttemptEnd,
        /// What the handler returned.
        output: Option<Bytes>,
        /// What went wrong.
        error: Option<ErrorText>,
    },
    /// The handler said how far it is.
    Reported(Box<Report>),
    /// The job died or was cancelled without an attempt.
    Failed(ErrorText),
    /// A job that this one waited for need not be waited for any more.
    Met {
        /// The dependency.
        on: JobId,
    },
    /// The job starts over.
    Replayed {
        /// Dependencies that need not be waited for this time.
        met: Vec<JobId>,
    },
}

/// How an attempt ended, for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum AttemptEnd {
    /// The handler succeeded.
    Completed,
    /// The handler failed.
    Failed,
    /// The handler asked for later.
    Snoozed,
    /// The worker gave it back.
    Released,
    /// It was called off.
    Cancelled,
    /// The worker was lost; why, and whether the job could be recovered.
    Crashed(RecoveryReason),
}

impl AttemptEnd {
    /// Why the attempt ended without an outcome of its own, if it did.
    pub const fn recovery(self) -> Option<RecoveryReason> {
        match self {
            AttemptEnd::Crashed(reason) => Some(reason),
            AttemptEnd::Released => Some(RecoveryReason::Released),
            AttemptEnd::Completed
            | AttemptEnd::Failed
            | AttemptEnd::Snoozed
            | AttemptEnd::Cancelled => None,
        }
    }

    /// The end as one word, such as `crashed`.
    pub const fn as_str(self) -> &'static str {
        match self {
            AttemptEnd::Completed => "completed",
            AttemptEnd::Failed => "failed",
            AttemptEnd::Snoozed => "snoozed",
            AttemptEnd::Released => "released",
            AttemptEnd::Cancelled => "cancelled",
            AttemptEnd::Crashed(_) => "crashed",
        }
    }

    /// The end and its reason as one number, for those who keep it.
    pub const fn number(self) -> u8 {
        match self {
            AttemptEnd::Completed => 0,
            AttemptEnd::Failed => 1,
            AttemptEnd::Snoozed => 2,
            AttemptEnd::Released => 3,
            AttemptEnd::Cancelled => 4,
            AttemptEnd::Crashed(reason) => 5 + reason as u8,
        }
    }

    /// The end with this [`number`](Self::number), if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => AttemptEnd::Completed,
            1 => AttemptEnd::Failed,
            2 => AttemptEnd::Snoozed,
            3 => AttemptEnd::Released,
            4 => AttemptEnd::Cancelled,
            _ => {
                let reason = usize::from(number).checked_sub(5)?;
                AttemptEnd::Crashed(*RecoveryReason::ALL.get(reason)?)
            }
        })
    }
}

/// What a handler says while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Report {
    /// How far it is.
    pub progress: Option<Progress>,
    /// Lines for the job's log.
    pub lines: Vec<LogLine>,
    /// Lines before those that were dropped already, because a log keeps only the last.
    pub lines_dropped: u32,
    /// Steps it has finished. They are never cut: what is beyond a bound is refused.
    pub steps: Vec<Step>,
}

impl Report {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.progress.is_none() && self.lines.is_empty() && self.steps.is_empty()
    }

    /// Drops and counts the lines that a log would not keep.
    pub fn keep_last_lines(&mut self) {
        let surplus = self.lines.len().saturating_sub(limits::LOG_LINES_KEPT);
        self.lines.drain(..surplus);
        let surplus = u32::try_from(surplus).unwrap_or(u32::MAX);
        self.lines_dropped = self.lines_dropped.saturating_add(surplus);
    }

    /// The report, cut to what a record keeps: the last lines, and no text that is too long.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let fit = |text: &mut String| text.truncate(cut(text, limits::LOG_LINE_BYTES).len());
        if let Some(progress) = &mut self.progress {
            progress.percent = progress.percent.min(100);
            fit(&mut progress.note);
        }
        self.keep_last_lines();
        self.lines.iter_mut().for_each(|line| fit(&mut line.text));
        self
    }
}

/// A part of a handler's work that is done and will not be done again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Step {
    /// Its name, which no other step of the job has.
    pub name: Name,
    /// What it returned.
    #[cfg_attr(feature = "wire", serde(with = "crate::wire::bytes"))]
    pub result: Bytes,
}

/// How far a running job is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Progress {
    /// 0 to 100.
    pub percent: u8,
    /// In words.
    pub note: String,
}

/// One line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct LogLine {
    /// When it was written, by the worker's clock.
    pub at: Timestamp,
    /// The attempt that wrote it.
    pub attempt: u32,
    /// The text.
    pub text: String,
}

/// What can be set for a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueSettings {
    /// No job of the queue starts.
    pub paused: bool,
    /// Most waiting jobs; an enqueue beyond is refused.
    pub max_depth: Option<u64>,
    /// A waiting job gains one point of priority per this much waiting, so that none starves.
    pub ageing: Option<core::time::Duration>,
    /// How many lanes its jobs with a [`Lane`](crate::job::Lane) share; `None` gives each key one
    /// of its own.
    pub lanes: Option<NonZeroU32>,
    /// Lanes of which no job starts.
    pub paused_lanes: BTreeSet<u32>,
    /// Most waiting jobs of one lane, if it has lanes; an enqueue beyond is refused.
    pub lane_depth: Option<u64>,
    /// The kind, and queue, of the job that is added when one of this queue dies.
    pub on_dead: Option<Name>,
    /// The kind, and queue, of the job that is added when a lane of this queue has become empty.
    pub on_empty: Option<Name>,
}

/// What has happened so far, which only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Totals {
    /// Jobs accepted.
    pub enqueued: u64,
    /// Jobs completed.
    pub completed: u64,
    /// Attempts that failed or crashed.
    pub failed: u64,
    /// Failed attempts that were followed by another.
    pub retried: u64,
    /// Jobs recovered, buried or cancelled because their worker was lost.
    pub rescued: u64,
    /// Jobs that went to the dead letters.
    pub dead: u64,
    /// Jobs called off.
    pub cancelled: u64,
}

impl core::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.enqueued += other.enqueued;
        self.completed += other.completed;
        self.failed += other.failed;
        self.retried += other.retried;
        self.rescued += other.rescued;
        self.dead += other.dead;
        self.cancelled += other.cancelled;
    }
}

/// The next numbers to be used, and the latest engine time.
///
/// No change tells all of them: an event has no record, and the job with the greatest number may
/// be gone. A store keeps them beside the changes, so that no number is used twice and time does
/// not go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextIds {
    /// The next place in the order of acceptance.
    pub sequence: u64,
    /// The next lease token.
    pub token: u64,
    /// The next event number.
    pub event: u64,
    /// Engine time, which does not go back before this.
    pub wall: Timestamp,
}

/// Where a store keeps the record of a job. The ledger carries it and does not look inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordLocation {
    /// Where, in the store's own terms.
    pub place: u64,
    /// How many bytes it takes there.
    pub weight: u32,
}

/// One start of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct AttemptRecord {
    /// Which start, as counted when it began.
    pub number: u32,
    /// Who ran it.
    pub worker: Arc<str>,
    /// When it began.
    pub started_at: Timestamp,
    /// When and how it ended; `None` while it runs.
    pub ended: Option<(Timestamp, AttemptEnd)>,
    /// What went wrong.
    pub error: Option<ErrorText>,
}

/// Everything known about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct JobRecord {
    /// What its producer said.
    pub job: Arc<NewJob>,
    /// Its place in the order of acceptance. In a database it is taken before the commit: of two
    /// calls that overlap, the one with the smaller number may be accepted later.
    pub sequence: u64,
    /// Where it stands.
    pub status: JobStatus,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When its first attempt of this generation began.
    pub first_started_at: Option<Timestamp>,
    /// When it was last recovered from the loss of its worker. Unlike the count in its condition,
    /// success and replay leave it.
    pub last_recovery_at: Option<Timestamp>,
    /// What its handler returned.
    #[cfg_attr(feature = "wire", serde(default, with = "crate::wire::maybe_bytes"))]
    pub output: Option<Bytes>,
    /// The last error; cleared by success and replay.
    pub error: Option<ErrorText>,
    /// The last attempts, oldest first.
    pub attempts: VecDeque<AttemptRecord>,
    /// Earlier attempts no longer kept.
    pub attempts_dropped: u32,
    /// How far the handler is, or was.
    pub progress: Option<Progress>,
    /// The last log lines, oldest first.
    pub log: VecDeque<LogLine>,
    /// Earlier log lines no longer kept.
    pub log_dropped: u32,
    /// Dependencies that need not be waited for, in the order in which they were met.
    pub met: Vec<JobId>,
    /// Finished steps, in the order in which they finished. A replay goes on from them.
    pub steps: Vec<Step>,
}

impl JobRecord {
    /// The record of a job that was just accepted.
    pub fn new(accepted: &Accepted) -> Self {
        Self {
            job: accepted.job.clone(),
            sequence: accepted.sequence,
            status: accepted.status.clone(),
            created_at: accepted.at,
            updated_at: accepted.at,
            first_started_at: None,
            last_recovery_at: None,
            output: None,
            error: None,
            attempts: VecDeque::new(),
            attempts_dropped: 0,
            progress: None,
            log: VecDeque::new(),
            log_dropped: 0,
            met: accepted.met.clone(),
            steps: Vec::new(),
        }
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.job.id
    }

    /// Whether it waits for the job `on`.
    pub fn is_blocked_by(&self, on: JobId) -> bool {
        matches!(self.status.state, State::Blocked { .. })
            && self.job.depends_on.iter().any(|dependency| dependency.on == on)
            && !self.met.contains(&on)
    }

    /// Since when its handler runs; `None` if it does not.
    pub fn executing_since(&self) -> Option<Timestamp> {
        match &self.status.state {
            State::Running(lease) => Some(lease.since),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => None,
        }
    }

    /// When it succeeded; `None` if it has not. A job that completed is not run again.
    pub fn last_success_at(&self) -> Option<Timestamp> {
        match &self.status.state {
            State::Completed { at } => Some(*at),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Dead { .. }
            | State::Cancelled { .. } => None,
        }
    }

    /// The name of the state the job is in, as of when the record was read.
    pub fn state(&self) -> StateName {
        self.status.state.name()
    }

    /// The state the job is in at `now`: a scheduled job whose time has come is ready.
    pub fn state_at(&self, now: Timestamp) -> StateName {
        match self.status.state {
            State::Scheduled { at } if at <= now => StateName::Ready,
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => self.status.state.name(),
        }
    }

    /// The record as it looks at `now`: a scheduled job whose time has come is ready.
    pub fn seen_at(mut self, now: Timestamp) -> Self {
        if let State::Scheduled { at } = self.status.state
            && at <= now
        {
            self.status.state = State::Ready { since: at };
        }
        self
    }

    /// Takes over what is now true.
    pub fn absorb(&mut self, update: &Update) {
        self.status = update.status.clone();
        self.updated_at = update.at;
        let Some(note) = &update.note else { return };
        match note {
            RecordNote::Started { worker } => self.attempt_started(worker, update),
            RecordNote::Ended { end, output, error } => {
                if let Some(last) = self.attempts.back_mut() {
                    last.ended = Some((update.at, *end));
                    last.error.clone_from(error);
                }
                if let (AttemptEnd::Crashed(_), State::Scheduled { .. }) = (end, &self.status.state)
                {
                    self.last_recovery_at = Some(update.at);
                }
                match end {
                    AttemptEnd::Completed => {
                        self.output.clone_from(output);
                        self.error = None;
                    }
                    AttemptEnd::Failed | AttemptEnd::Crashed(_) | AttemptEnd::Cancelled => {
                        self.error.clone_from(error);
                    }
                    AttemptEnd::Snoozed | AttemptEnd::Released => {}
                }
            }
            RecordNote::Reported(report) => self.report(report),
            RecordNote::Failed(error) => self.error = Some(error.clone()),
            RecordNote::Met { on } => {
                if !self.met.contains(on) {
                    self.met.push(*on);
                }
            }
            RecordNote::Replayed { met } => {
                self.met.clone_from(met);
                self.error = None;
                self.output = None;
                self.progress = None;
                self.first_started_at = None;
            }
        }
    }

    fn attempt_started(&mut self, worker: &Arc<str>, update: &Update) {
        self.first_started_at.get_or_insert(update.at);
        self.progress = None;
        if self.attempts.len() == limits::ATTEMPTS_KEPT {
            self.attempts.pop_front();
            self.attempts_dropped += 1;
        }
        self.attempts.push_back(AttemptRecord {
            number: update.status.attempts,
            worker: worker.clone(),
            started_at: update.at,
            ended: None,
            error: None,
        });
    }

    fn report(&mut self, report: &Report) {
        if let Some(progress) = &report.progress {
            self.progress = Some(progress.clone());
        }
        self.log_dropped = self.log_dropped.saturating_add(report.lines_dropped);
        for line in &report.lines {
            if self.log.len() == limits::LOG_LINES_KEPT {
                self.log.pop_front();
                self.log_dropped = self.log_dropped.saturating_add(1);
            }
            self.log.push_back(line.clone());
        }
        for step in &report.steps {
            // The first result counts: a report that is repeated says the same once more.
            if !self.steps.iter().any(|known| known.name == step.name) {
                self.steps.push(step.clone());
            }
        }
    }
}
