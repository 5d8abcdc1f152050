//! A directory as one side of a move: read as it lies there, or written record by record.
//!
//! A directory that is moved into has a mark until every record is there and was read back; nobody
//! opens it meanwhile. A move that was interrupted begins anew: writing a directory is quick.

use std::path::Path;
use std::sync::Arc;

use windlass_core::object::{Address, ObjectRecord};
use windlass_core::record::{Change, JobRecord, NextIds};

use super::OpenError;
use super::disk::{Disk, RealDisk};
use super::layout::FORMAT;
use super::ledger::{JournaledLedger, LedgerOptions};
use crate::clock::{Clock, SystemClock};
use crate::store::StoreError;

/// The name of the file that says that a move into the directory is not finished.
pub(super) const MOVE_MARK: &str = "moving-in";

/// Refuses a store into which a move is not finished.
pub(super) fn refuse_half_moved(disk: &dyn Disk) -> Result<(), OpenError> {
    let names = disk.list().map_err(|error| OpenError::disk("list the files", error))?;
    if names.iter().any(|name| name == MOVE_MARK) { Err(OpenError::HalfMoved) } else { Ok(()) }
}

/// A store on disk that nobody has open, for as long as this lives.
#[derive(Debug)]
pub(in crate::store) struct FileSide {
    ledger: JournaledLedger,
}

impl FileSide {
    /// Opens the store that is moved away. What was running is recovered, durably: nobody has the
    /// directory open any more, so whoever ran it is gone. Refused while somebody does.
    pub(in crate::store) fn source(path: &Path) -> Result<Self, OpenError> {
        let disk = Arc::new(RealDisk::open_existing(path)?);
        crate::store::directory::refuse_members(path)?;
        let (ledger, _) =
            JournaledLedger::open(disk, &LedgerOptions::default(), SystemClock::new().now())?;
        Ok(Self { ledger })
    }

    pub(in crate::store) fn jobs_after(
        &mut self,
        sequence: u64,
        most: usize,
        bytes: usize,
    ) -> Result<Vec<JobRecord>, StoreError> {
        self.ledger.records_after(sequence, most, bytes)
    }

    pub(in crate::store) fn objects_after(
        &mut self,
        address: Option<&Address>,
        most: usize,
        bytes: usize,
    ) -> Result<Vec<ObjectRecord>, StoreError> {
        self.ledger.object_records_after(address, most, bytes)
    }

    /// All that is not about one job or object.
    pub(in crate::store) fn image(&self) -> Vec<Change> {
        self.ledger.ledger().image()
    }

    /// The next numbers.
    pub(in crate::store) fn next_ids(&self) -> NextIds {
        self.ledger.ledger().next_ids()
    }
}

/// A directory that is moved into.
#[derive(Debug)]
pub(in crate::store) struct FileTarget {
    disk: Arc<RealDisk>,
    ledger: JournaledLedger,
}

impl FileTarget {
    /// Marks the directory, which is made if need be and must hold no store, unless a move into it
    /// was interrupted: what that has left is removed.
    pub(in crate::store) fn begin(path: &Path) -> Result<Self, OpenError> {
        let disk = Arc::new(RealDisk::open(path)?);
        let failed = |error| OpenError::io(path, "move into", error);
        let names = disk.list().map_err(failed)?;
        let ours = |name: &&String| name.starts_with("journal-") || *name == FORMAT;
        if !names.iter().any(|name| name == MOVE_MARK) {
            if names.iter().any(|name| ours(&name)) {
                return Err(OpenError::NotEmpty { path: path.display().to_string() });
            }
            disk.create(MOVE_MARK, 1).map_err(failed)?;
            disk.sync_directory().map_err(failed)?;
        }
        for name in names.iter().filter(ours) {
            disk.remove(name).map_err(failed)?;
        }
        disk.sync_directory().map_err(failed)?;
        let (mut ledger, found) =
            JournaledLedger::read(disk.clone(), &LedgerOptions::default(), None)?;
        ledger.begin_empty(&found).map_err(failed)?;
        Ok(Self { disk, ledger })
    }

    /// Writes records as one commit.
    pub(in crate::store) fn put(
        &mut self,
        jobs: &[JobRecord],
        objects: &[ObjectRecord],
        changes: &[Change],
        next_ids: NextIds,
    ) -> Result<(), OpenError> {
        let written = self.ledger.take_over(jobs, objects, changes, next_ids);
        written.map_err(|error| OpenError::disk("write the records", error))
    }

    /// Reads back what was written.
    pub(in crate::store) fn read_back(&self) -> Result<FileSide, OpenError> {
        let options = LedgerOptions { thorough: true, ..LedgerOptions::default() };
        let (mut ledger, _) = JournaledLedger::read(self.disk.clone(), &options, None)?;
        match ledger.check().into_iter().next() {
            None => Ok(FileSide { ledger }),
            Some(why) => Err(OpenError::Damaged { file: "what was moved".into(), at: 0, why }),
        }
    }

    /// Takes the mark away: from now on it is a store like any other.
    pub(in crate::store) fn finish(self) -> Result<(), OpenError> {
        let gone = self.disk.remove(MOVE_MARK).and_then(|()| self.disk.sync_directory());
        gone.map_err(|error| OpenError::disk("take the mark of the move away", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_begins_anew_wherever_the_one_before_was_interrupted() {
        let name = format!("windlass-moving-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        for _ in 0..3 {
            let mut target = FileTarget::begin(&path).expect("it begins");
            target.put(&[], &[], &[], NextIds::default()).expect("it is written");
            // Without a word, as by a kill.
            drop(target);
            let refused = RealDisk::open(&path).map(|disk| refuse_half_moved(&disk));
            assert!(matches!(refused.expect("it is there"), Err(OpenError::HalfMoved)));
        }
        FileTarget::begin(&path).and_then(FileTarget::finish).expect("it finishes");
        std::fs::remove_dir_all(&path).expect("it goes");
    }
}
