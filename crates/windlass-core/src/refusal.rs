//! Why a store did not do what it was asked: every reason is something the caller can act on.

use alloc::borrow::Cow;
use alloc::string::String;

use crate::job::{JobId, StateName};
use crate::name::{InvalidName, Name};
use crate::object::Address;
use crate::transition::Refused;

/// Nothing was changed, and this is why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Refusal {
    /// The queue holds as many waiting jobs as it may. Back off and try again.
    #[error(
        "queue `{queue}` holds {depth} waiting jobs and its limit is {limit}; \
         slow down, or raise its `max_depth`"
    )]
    QueueFull {
        /// The queue.
        queue: Name,
        /// Waiting jobs it holds, without those that were refused.
        depth: u64,
        /// Its limit.
        limit: u64,
    },

    /// The lane holds as many waiting jobs as it may. Back off and try again.
    #[error(
        "lane {lane} of queue `{queue}` holds {depth} waiting jobs and its limit is {limit}; \
         slow down, use more lanes, or raise the limit"
    )]
    LaneFull {
        /// The queue.
        queue: Name,
        /// The lane.
        lane: u32,
        /// Waiting jobs it holds, without those that were refused.
        depth: u64,
        /// Its limit.
        limit: u64,
    },

    /// The id belongs to a job of another kind, queue or payload.
    #[error("job id {job} is already taken by a different job; choose a fresh id")]
    IdReused {
        /// The id.
        job: JobId,
    },

    /// The batch names the same id twice.
    #[error("job id {job} stands twice in one batch")]
    IdTwiceInBatch {
        /// The id.
        job: JobId,
    },

    /// A dependency is not in the store: never accepted, or no longer kept.
    #[error("job {job} depends on {dependency}, which is unknown")]
    UnknownDependency {
        /// The job that was refused.
        job: JobId,
        /// The dependency that is missing.
        dependency: JobId,
    },

    /// A dependency is dead or cancelled already, so the job could never start.
    #[error("job {job} depends on {dependency}, which has failed ({state})")]
    DependencyFailed {
        /// The job that was refused.
        job: JobId,
        /// The dependency.
        dependency: JobId,
        /// Its state.
        state: StateName,
    },

    /// The jobs wait for each other, or for themselves.
    #[error("job {job} depends on itself, directly or through others")]
    DependencyCycle {
        /// One job of the cycle.
        job: JobId,
    },

    /// No such job: never accepted, or no longer kept.
    #[error("job {job} is unknown; it was never accepted, or its history has been purged")]
    UnknownJob {
        /// The id.
        job: JobId,
    },

    /// The job is in a state in which this cannot be done.
    #[error("cannot {operation} job {job}: it is {state}")]
    WrongState {
        /// The job.
        job: JobId,
        /// Its state.
        state: StateName,
        /// What was asked.
        operation: Cow<'static, str>,
    },

    /// An open job depends on this completed one and may read its output.
    #[error(
        "cannot remove job {job}: job {by} depends on it, is open and may read its output; \
         wait for that job, or cancel it first"
    )]
    StillNeeded {
        /// The job that was to be removed.
        job: JobId,
        /// An open job that depends on it.
        by: JobId,
    },

    /// Another job holds the unique key of a job that no other can stand for: one that is
    /// replayed, or the alarm of an object.
    #[error("job {job} cannot have its unique key: job {holder} holds it")]
    KeyTaken {
        /// The job to be replayed, or that was to be the alarm.
        job: JobId,
        /// The job that holds the key.
        holder: JobId,
    },

    /// The lease ended: another worker may run the job, and its outcome counts.
    #[error("the lease on job {job} ended; another worker may be running it")]
    LeaseLost {
        /// The job.
        job: JobId,
    },

    /// Another turn of the object came first. Look at it again and decide anew.
    #[error("object {object} has changed; it is at version {version} now")]
    ObjectChanged {
        /// The object.
        object: Address,
        /// Its version now; 0 if it is gone.
        version: u64,
    },

    /// There is no such object.
    #[error("there is no object {object}; start it, or check its name and key")]
    UnknownObject {
        /// The object.
        object: Address,
    },

    /// A value is outside its bounds.
    #[error("{what} is {got}; {allowed}")]
    OutOfBounds {
        /// Which value.
        what: Cow<'static, str>,
        /// What was given.
        got: String,
        /// What would be accepted, and the knob if there is one.
        allowed: String,
    },

    /// A name breaks the rule for names.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),

    /// The engine is closing and takes no new work.
    #[error("the engine is shutting down and takes no new jobs")]
    ShuttingDown,

    /// The store did not do it and says so; trying again later may help.
    #[error("the store is unavailable: {why}")]
    Unavailable {
        /// What stands in the way.
        why: String,
    },

    /// The store keeps what it has and takes nothing new until there is room.
    #[error("the store has no room left: {why}; free some space, it goes on by itself")]
    StoreFull {
        /// What is full.
        why: String,
    },

    /// The store no longer knows what it has written, and does nothing until it is opened anew.
    #[error("the store stopped taking writes: {why}; reopen it")]
    StoreBroken {
        /// What went wrong.
        why: String,
    },
}

impl Refusal {
    /// The refusal of a transition, told about a job.
    pub fn of(refused: Refused, job: JobId, operation: &'static str) -> Self {
        match refused {
            Refused::LeaseLost => Refusal::LeaseLost { job },
            Refused::WrongState(state) => {
                Refusal::WrongState { job, state, operation: operation.into() }
            }
        }
    }
}
