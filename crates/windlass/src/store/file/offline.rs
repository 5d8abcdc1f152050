//! Looking into a store that nobody has open.
//!
//! Opening a store recovers what was running and lets time pass. Looking does neither and writes
//! nothing, so that what is seen is what a crash has left.

use std::path::Path;
use std::sync::Arc;

use windlass_core::explain::Explanation;
use windlass_core::filter::Filter;
use windlass_core::job::JobId;
use windlass_core::ledger::Counts;
use windlass_core::object::{Address as ObjectAddress, ObjectView};
use windlass_core::record::JobRecord;

use super::OpenError;
use super::disk::RealDisk;
use super::ledger::{JournaledLedger, LedgerOptions};
use crate::clock::{Clock, SystemClock};
use crate::store::{Cursor, ObjectFilter, ObjectPage, Page, StoreError};

/// A store as it lies on the disk. Nobody else can open it for as long as this lives.
#[derive(Debug)]
pub struct OfflineStore {
    ledger: JournaledLedger,
    clock: SystemClock,
}

impl OfflineStore {
    /// Reads the store at `path`, which must be there. Blocks while it reads.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let disk = Arc::new(RealDisk::open_existing(path)?);
        super::moving::refuse_half_moved(&*disk)?;
        let (ledger, _) = JournaledLedger::read(disk, &LedgerOptions::default(), None)?;
        Ok(Self { ledger, clock: SystemClock::new() })
    }

    /// Everything known about a job; `None` if it was never accepted or is no longer kept.
    pub fn find(&mut self, job: JobId) -> Result<Option<JobRecord>, StoreError> {
        Ok(self.ledger.find(&[job], self.clock.now())?.pop().flatten())
    }

    /// A page of jobs, the last accepted first; it may be short and still name where to go on.
    pub fn list(
        &mut self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.ledger.list(filter, after, limit, self.clock.now())
    }

    /// An object and what its jobs say; `None` if it never was, or was purged.
    pub fn object(&mut self, address: &ObjectAddress) -> Result<Option<ObjectView>, StoreError> {
        self.ledger.object(address, self.clock.now())
    }

    /// A page of objects, by their addresses; it may be short and still name where to go on.
    pub fn objects(
        &mut self,
        filter: &ObjectFilter,
        after: Option<&ObjectAddress>,
        limit: usize,
    ) -> Result<ObjectPage, StoreError> {
        self.ledger.objects(filter, after, limit, self.clock.now())
    }

    /// How many jobs there are per state, queue and kind, and what has happened so far.
    pub fn counts(&mut self) -> Counts {
        self.ledger.count(self.clock.now())
    }

    /// Why a job is not running.
    pub fn explain(&mut self, job: JobId) -> Result<Explanation, StoreError> {
        self.ledger.explain(job, self.clock.now())
    }

    /// The jobs that wait for this one.
    pub fn dependents(&self, job: JobId) -> Vec<JobId> {
        self.ledger.dependents(job)
    }
}
