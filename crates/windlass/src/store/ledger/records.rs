//! What a ledger does not hold itself: the records of jobs and the states of objects.
//!
//! The ledger decides; a [`Records`] keeps what follows, in a map or in a journal. It is all that
//! the stores over a ledger differ in, beside when they answer ([`super::CommitPath`]).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use windlass_core::job::{Bytes, JobId, NewJob};
use windlass_core::ledger::Ledger;
use windlass_core::object::Address;
use windlass_core::outcome::ErrorText;
use windlass_core::record::{Change, JobRecord, Step};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Timestamp};

use super::Need;

/// See the module documentation.
pub trait Records: fmt::Debug + Send + 'static {
    /// Whether anything can still be decided; after a failure, why not.
    fn usable(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Makes sure that there is room for what a command writes, before it is decided.
    fn admit(&mut self, _need: Need, _now: Now) -> Result<(), Refusal> {
        Ok(())
    }

    /// Takes out what a command changed, and keeps it; `tells` says whether it has events. The
    /// ledger is given to note where records stand.
    fn keep(
        &mut self,
        ledger: &mut Ledger,
        changes: &mut Vec<Change>,
        tells: bool,
    ) -> Result<(), Refusal>;

    /// The record of a job, with its status as the ledger knows it; `None` if it is not kept.
    fn job(&mut self, ledger: &Ledger, job: JobId) -> Result<Option<Cow<'_, JobRecord>>, Refusal>;

    /// What the worker that claimed a job at `since` needs of it.
    fn claimed(
        &mut self,
        ledger: &Ledger,
        job: JobId,
        since: Timestamp,
    ) -> Result<ClaimHistory, Refusal>;

    /// The state of an object that the ledger holds.
    fn object_state(&mut self, ledger: &Ledger, address: &Address) -> Result<Bytes, Refusal>;
}

/// What a worker needs of a job it claimed, beside its lease.
#[derive(Debug)]
pub struct ClaimHistory {
    pub(in crate::store) job: Arc<NewJob>,
    pub(in crate::store) created_at: Timestamp,
    /// Now, unless it did before.
    pub(in crate::store) first_started_at: Timestamp,
    /// What earlier attempts have finished.
    pub(in crate::store) steps: Vec<Step>,
    /// What went wrong in the attempt before.
    pub(in crate::store) last_error: Option<ErrorText>,
}

impl ClaimHistory {
    /// Of a job that is claimed at `since`.
    pub(in crate::store) fn of(record: &JobRecord, since: Timestamp) -> Self {
        Self {
            job: record.job.clone(),
            created_at: record.created_at,
            first_started_at: record.first_started_at.unwrap_or(since),
            steps: record.steps.clone(),
            last_error: record.error.clone(),
        }
    }
}
