//! The memory store: a ledger whose records are in a map.
//!
//! Nothing survives the process. It is the fastest store, the reference for the others, and what
//! tests run on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use windlass_core::event::Event;
use windlass_core::job::{Bytes, JobId};
use windlass_core::ledger::{Ledger, Ring};
use windlass_core::limits::Limits;
use windlass_core::object::Address;
use windlass_core::record::{Change, JobRecord};
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::Answer;
use super::ledger::{
    Basis, Callers, ClaimHistory, CommitPath, EventBuffer, LedgerState, LedgerStore,
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
        let state = Mutex::new(LedgerState { ledger: Some(ledger), commits: () });
        let (path, events) = (MemoryPath, EventBuffer::new(0));
        Self {
            shared: Arc::new(SharedLedger {
                state,
                path,
                events,
                clock,
                wake,
                callers: Callers::default(),
            }),
        }
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
    rings: Vec<Ring>,
    /// Only to be dropped: others wait for the ledger meanwhile.
    _gone: (Gone, Vec<Arc<Event>>),
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
        let events = shared.events.keep(std::mem::take(&mut ledger.events));
        let rings = std::mem::take(&mut ledger.rings).into_iter().collect();
        Ok(MemoryPending { rings, _gone: (std::mem::take(&mut ledger.records.gone), events) })
    }

    async fn committed(
        shared: &Arc<SharedLedger<Self>>,
        MemoryPending { rings, .. }: MemoryPending,
        _doing: &'static str,
    ) -> Answer<()> {
        if !rings.is_empty() {
            shared.wake.ring(&rings).await;
        }
        Ok(())
    }
}

/// Job records and object states in maps.
#[derive(Debug, Default)]
pub struct MemoryRecords {
    /// Boxed, because the map moves what it holds.
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
        changes: Vec<Change>,
        _tells: bool,
    ) -> Result<(), Refusal> {
        changes.iter().for_each(|change| self.keep_one(change));
        self.gone.changes = changes;
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
