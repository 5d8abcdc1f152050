//! What is asked of the store, and what it answers: the verbs of the Store contract as values.

use std::collections::BTreeSet;
use std::sync::Arc;

use windlass::store::file::Basis;
use windlass::store::{ClaimedBatch, StoreError};
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, LeaseToken, NewJob, Start, StateName};
use windlass_core::ledger::{
    CancelAnswer, Claim, Cleared, Counts, Enqueued, Promoted, QueueChange, Renewal, Renewed,
    Rescue, RescueLost, Rescued, Settled, Settlement, Turned,
};
use windlass_core::name::Name;
use windlass_core::object::{Alarm, ObjectView, Turn};
use windlass_core::record::{JobRecord, QueueSettings};
use windlass_core::refusal::Refusal;
use windlass_core::time::Now;

/// Which call an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// One call.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each is the verb or command of the same name")]
pub enum Request {
    Enqueue(Vec<Arc<NewJob>>),
    Claim(Claim),
    Renew(Vec<Renewal>),
    Settle(Vec<Settlement>),
    Turn(Box<Turn>),
    Rescue(Rescue),
    RescueLost(RescueLost),
    /// A process joins: these are its workers, and what they hold.
    Join(BTreeSet<Arc<str>>, BTreeSet<LeaseToken>),
    Promote,
    Cancel(Vec<JobId>),
    Reschedule(Vec<JobId>, Start),
    Replay(Vec<JobId>),
    Remove(Vec<JobId>),
    RemoveGraph(Vec<JobId>),
    ReplayEdited(JobId, Box<NewJob>),
    Configure(Name, QueueChange),
    Clear(Name),
    Find(Vec<JobId>),
    Explain(JobId),
    /// Every job and every counter, as of one moment.
    Audit,
}

/// What a call answers when it is applied.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each belongs to the request of the same name")]
pub enum Reply {
    Enqueued(Vec<Enqueued>),
    ClaimedBatch(ClaimedBatch),
    Renewed(Vec<Result<Renewed, Refusal>>),
    Settled(Vec<Result<Settled, Refusal>>),
    Turned(Turned),
    Rescued(Rescued),
    /// What was given back, because the answer to its claim was lost.
    Joined(Vec<(Settlement, Result<Settled, Refusal>)>),
    Promoted(Promoted),
    Cancelled(Vec<Result<CancelAnswer, Refusal>>),
    Rescheduled(Vec<Result<StateName, Refusal>>),
    Replayed(Vec<(JobId, Result<(), Refusal>)>),
    Removed(Vec<Result<(), Refusal>>),
    GraphsRemoved(Vec<Result<u64, Refusal>>),
    Replaced(Enqueued),
    Configured(QueueSettings),
    Cleared(Cleared),
    Found(Vec<Option<JobRecord>>),
    Explained(Explanation),
    Audited(Box<Snapshot>),
}

impl Request {
    /// What its answer is based on.
    pub(crate) fn basis(&self) -> Basis<'_> {
        match self {
            Request::Claim(_) => Basis::Claim,
            Request::Find(jobs) => Basis::Jobs(jobs),
            _ => Basis::Everything,
        }
    }

    /// Whether making it twice may do it twice, or tell a caller what is not so: as the contract
    /// of the store has it, whatever the product believes.
    pub(crate) fn happens_each_time(&self) -> bool {
        match self {
            Request::Turn(_)
            | Request::Cancel(_)
            | Request::Reschedule(..)
            | Request::Replay(_)
            | Request::Remove(_)
            | Request::RemoveGraph(_)
            | Request::ReplayEdited(..)
            | Request::Clear(_) => true,
            Request::Claim(claim) => claim.request.is_none(),
            Request::Enqueue(_)
            | Request::Renew(_)
            | Request::Settle(_)
            | Request::Rescue(_)
            | Request::RescueLost(_)
            | Request::Join(..)
            | Request::Promote
            | Request::Configure(..)
            | Request::Find(_)
            | Request::Explain(_)
            | Request::Audit => false,
        }
    }

    /// The turns that it would make.
    pub fn turns(&self) -> Vec<&Turn> {
        match self {
            Request::Turn(turn) => vec![turn],
            Request::Settle(all) => all.iter().filter_map(|each| each.turn.as_deref()).collect(),
            _ => Vec::new(),
        }
    }
}

/// The jobs that a turn asks for, its alarm first.
pub(crate) fn jobs_of(turn: &Turn) -> impl Iterator<Item = &Arc<NewJob>> {
    let alarm = match &turn.alarm {
        Alarm::Set(job) => Some(job),
        Alarm::Keep | Alarm::Cancel | Alarm::Move(_) => None,
    };
    alarm.into_iter().chain(&turn.jobs)
}

/// Everything a user can see at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Every job, the last accepted first.
    pub jobs: Vec<JobRecord>,
    /// Every counter.
    pub counts: Counts,
    /// Every object, by its address.
    pub objects: Vec<ObjectView>,
}

/// Why a call was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was changed.
    Refused(Refusal),
    /// It may or may not have happened.
    Unknown,
}

impl From<&StoreError> for Failure {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Refused(refusal) => Failure::Refused(refusal.clone()),
            StoreError::Unknown { .. } => Failure::Unknown,
        }
    }
}

/// What comes back.
pub type Answer = Result<Reply, Failure>;

/// A call that was decided: what was asked, what the answer is once its commit has landed.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Which call.
    pub ticket: Ticket,
    /// What was asked.
    pub request: Request,
    /// What is or will be answered.
    pub answer: Answer,
    /// The number of the last event when it had been decided.
    pub mark: u64,
    /// When it was decided.
    pub now: Now,
    /// It has been answered already.
    pub answered: bool,
}
