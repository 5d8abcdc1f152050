//! The memory store: a ledger whose records are in a map.
//!
//! Nothing survives the process. It is the fastest store, the reference for the others, and what
//! tests run on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use windlass_core::job::{Bytes, JobId};
use windlass_core::ledger::Ledger;
use windlass_core::limits::Limits;
use windlass_core::object::Address;
use windlass_core::record::{Change, JobRecord};
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::Answer;
use super::ledger::{
    AfterEvents, Basis, ClaimHistory, CommitPath, EventBuffer, LedgerState, LedgerStore,
    RecordedLedger, Records, SharedLedger,
};
use crate::clock::Clock;
use crate::wake::Wake;

/// Keeps jobs for as long as the process lives.
pub type MemoryStore = LedgerStore<MemoryPath>;

impl LedgerStore<MemoryPath> {
    /// An empty store.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>, wake: Arc<dyn Wake>) -> Self {
        let ledger = RecordedLedger::empty(limits, MemoryRecords::default());
        let state = LedgerState { ledger: Some(ledger), commits: () };
        let (path, events) = (MemoryPath, EventBuffer::new(0));
        Self { shared: Arc::new(SharedLedger::new(state, path, events, clock, wake)) }
    }
}

/// What was decided is committed: there is nothing else that could keep it.
pub struct MemoryPath;

impl fmt::Debug for MemoryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

/// What a call takes along from the ledger.
#[derive(Debug, Default)]
pub struct MemoryPending {
    /// Dropped with this, after the lock of the ledger was given back: to free many records takes
    /// longer than to decide about them, and so does telling those who wait.
    _gone: (Gone, AfterEvents),
}

impl CommitPath for MemoryPath {
    type Records = MemoryRecords;
    type State = ();
    type Pending = MemoryPending;

    fn decided(
        shared: &SharedLedger<Self>,
        state: &mut LedgerState<Self>,
        _basis: Basis<'_>,
        _doing: &'static str,
    ) -> Answer<MemoryPending> {
        let Some(ledger) = state.ledger.as_mut() else { return Ok(MemoryPending::default()) };
        let events = shared.events.keep(ledger.take_events());
        Ok(MemoryPending { _gone: (std::mem::take(&mut ledger.records.gone), events) })
    }

    async fn committed(
        _shared: &Arc<SharedLedger<Self>>,
        _pending: MemoryPending,
        _doing: &'static str,
    ) -> Answer<()> {
        Ok(())
    }
}

/// Job records and object states in maps.
#[derive(Debug, Default)]
pub struct MemoryRecords {
    /// Boxed, because a B-tree moves its entries when it changes, and a record is large.
    jobs: BTreeMap<JobId, Box<JobRecord>>,
    states: BTreeMap<Address, Bytes>,
    gone: Gone,
}

/// What a call has let go of.
#[derive(Debug, Default)]
struct Gone {
    #[expect(clippy::vec_box, reason = "as they were kept; they are only dropped")]
    records: Vec<Box<JobRecord>>,
    changes: Vec<Change>,
}

impl MemoryRecords {
    fn keep_one(&mut self, change: &Change) {
        match change {
            Change::Insert(accepted) => {
                self.jobs.insert(accepted.job.id, Box::new(JobRecord::new(accepted)));
            }
            Change::Update(update) => {
                if let Some(record) = self.jobs.get_mut(&update.job) {
                    record.absorb(update);
                }
            }
            Change::Remove { job } => self.gone.records.extend(self.jobs.remove(job)),
            Change::Object(change) => {
                if let Some(state) = &change.state {
                    self.states.insert(change.address.clone(), state.clone());
                }
            }
            Change::ObjectGone { address } => {
                self.states.remove(address);
            }
            // The ledger itself keeps these for as long as the process lives.
            Change::Queue { .. }
            | Change::Rate { .. }
            | Change::QueueKind { .. }
            | Change::Lane { .. } => {}
        }
    }
}

impl Records for MemoryRecords {
    fn keep(
        &mut self,
        _ledger: &mut Ledger,
        changes: &mut Vec<Change>,
        _tells: bool,
    ) -> Result<(), Refusal> {
        changes.iter().for_each(|change| self.keep_one(change));
        self.gone.changes = std::mem::take(changes);
        Ok(())
    }

    fn job(&mut self, _ledger: &Ledger, job: JobId) -> Result<Option<Cow<'_, JobRecord>>, Refusal> {
        Ok(self.jobs.get(&job).map(|record| Cow::Borrowed(&**record)))
    }

    fn claimed(
        &mut self,
        _ledger: &Ledger,
        job: JobId,
        since: Timestamp,
    ) -> Result<ClaimHistory, Refusal> {
        let record = self.jobs.get(&job).ok_or(Refusal::UnknownJob { job })?;
        Ok(ClaimHistory::of(record, since))
    }

    fn object_state(&mut self, _ledger: &Ledger, address: &Address) -> Result<Bytes, Refusal> {
        Ok(self.states.get(address).cloned().unwrap_or_else(|| Vec::new().into()))
    }
}
