//! The file store: jobs in a directory, which survive a crash and a power loss.
//!
//! Calls decide at once, under a lock, and put what they changed into the commit that is being
//! gathered. One writer takes that commit, writes it, waits until it is on stable storage, and only
//! then are the calls answered; meanwhile the next commit gathers. So the number of syncs, which is
//! what a disk is slow at, does not grow with the number of callers.
//!
//! - A claim is written before it is answered, so that a start is counted whatever the job does to
//!   its process; it does not wait for the disk. Losing one with the power only means that the job
//!   runs again, with that start uncounted.
//! - Everything else waits, reads and refusals too: nothing is told that a crash could undo.
//! - After a failed write or sync nothing is known, and everything is refused until reopened.

mod codec;
mod copy;
mod disk;
mod error;
mod journal;
mod layout;
mod ledger;
pub(in crate::store) mod moving;
mod offline;
mod path;
mod records;
mod scan;
mod writer;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

pub use copy::{Checked, Copied, back_up, check};
pub use disk::{Disk, DiskFile, RealDisk};
pub(in crate::store) use disk::{open_plain, open_to_read, try_lock};
pub use error::OpenError;
// For tests and simulations that drive a store by hand; no part of the contract.
#[doc(hidden)]
pub use journal::{Retired, WantedSpare};
pub use ledger::LedgerOptions;
#[doc(hidden)]
pub use ledger::{Commit, JournaledLedger};
pub use offline::OfflineStore;
pub(crate) use path::this_thread_serves;
#[doc(hidden)]
pub use path::{CommitInFlight, JournalPath, PendingAnswer, PendingLanding};
#[doc(hidden)]
pub use records::JournalRecords;
use tokio::runtime::Handle;
#[doc(hidden)]
use windlass_core::job::LeaseToken;
use windlass_core::ledger::{RescueLost, Rescued};
use windlass_core::limits;
pub use writer::{Writer, WriterStep};

use super::ledger::LedgerStore;
#[doc(hidden)]
pub use super::ledger::{Basis, CommitPath, Need, SharedLedger, Size};
use super::{Answer, Durability, Space, Store, StoreError};
use crate::clock::Clock;
use crate::wake::Wake;

/// How a file store is opened.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Limits, recovery, segment size.
    pub ledger: LedgerOptions,
    /// When an answer may be given.
    pub durability: Durability,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { ledger: LedgerOptions::default(), durability: Durability::Sync }
    }
}

/// Keeps jobs in a directory. See the module documentation.
pub type FileStore = LedgerStore<JournalPath>;

impl LedgerStore<JournalPath> {
    /// Opens the directory at `path`, making it if need be, and starts the writer thread. What was
    /// running in processes that have ended has been recovered, durably, when this returns. Nobody
    /// can join: that is for [`super::DirectoryStore`].
    ///
    /// Blocks while it reads; must be called within a tokio runtime.
    pub fn open(
        path: &Path,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenError> {
        let disk = Arc::new(RealDisk::open(path)?);
        let mut options = options.clone();
        options.ledger.living_workers.extend(super::directory::living_workers(path)?);
        Self::with_writer(disk, &options, clock, wake)
    }

    /// The same with a runtime for its answers, on a disk that is open.
    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
        runtime: Handle,
    ) -> Result<Self, OpenError> {
        let (shared, writer) = JournalPath::open(disk, options, clock, wake, Some(runtime))?;
        writer.run_in_a_thread(&shared)?;
        Ok(Self { shared })
    }

    /// Calls of other processes are answered by this runtime from now on.
    pub(crate) fn serve_on(&self, runtime: Handle) {
        self.shared.path.serve_on(runtime);
    }

    /// Gives back the jobs of workers whose process has ended; durable on return.
    pub(crate) async fn rescue_lost(&self, rescue: RescueLost) -> Answer<Rescued> {
        self.commit(rescue).await
    }

    /// Gives back, uncounted, jobs that were handed to these workers and that they do not hold: the
    /// answer to their claim never arrived.
    pub(crate) async fn release_unheld(
        &self,
        workers: &BTreeSet<Arc<str>>,
        held: &BTreeSet<LeaseToken>,
    ) -> Answer<()> {
        let unheld =
            |ledger: &mut JournaledLedger| ledger.ledger().releases_of_unheld(workers, held);
        for batch in self.shared.inspect(unheld).unwrap_or_default().chunks(limits::SWEEP_BATCH) {
            self.settle(batch.to_vec()).await?;
        }
        Ok(())
    }

    /// Whether any of these workers holds a lease.
    pub(crate) fn has_leases_of(&self, workers: &BTreeSet<Arc<str>>) -> bool {
        let leased = self.shared.inspect(|ledger| ledger.ledger().leased_to(workers));
        leased.is_some_and(|leased| !leased.is_empty())
    }

    /// Why nothing more can be done with it, if that is so.
    pub(crate) fn broken(&self) -> Option<StoreError> {
        match self.shared.lock() {
            Ok(state) => state.ledger.as_ref().and_then(|ledger| ledger.usable().err()),
            Err(error) => Some(error),
        }
    }

    /// Opens a store on a disk of your own, with a writer thread; within a tokio runtime.
    pub fn with_writer(
        disk: Arc<dyn Disk>,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenError> {
        Self::open_on(disk, options, clock, wake, Handle::current())
    }

    /// Opens a store on a disk of your own, with no thread: callers take the writer's steps
    /// themselves, until there is nothing left to do, and what they have written is synced when
    /// they return, however relaxed the store is. For tests on virtual time and simulated disks.
    pub fn on_disk(
        disk: Arc<dyn Disk>,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenError> {
        let (shared, writer) = JournalPath::open(disk, options, clock, wake, None)?;
        shared.path.driven_by_callers(writer);
        Ok(Self { shared })
    }

    /// What the store takes on its disk.
    pub fn space(&self) -> Space {
        JournalPath::space_of(&self.shared)
    }
}
