//! Records as they are, for a move to or from another store: no command is decided and no time
//! passes.

use std::io;

use windlass_core::object::{Address, ObjectRecord};
use windlass_core::record::{Change, JobRecord, NextIds};

use super::super::codec;
use super::super::journal::Full;
use super::super::layout::Place;
use super::super::records::JournalRecords;
use crate::store::Answer;
use crate::store::ledger::RecordedLedger;

impl RecordedLedger<JournalRecords> {
    /// Jobs accepted after `sequence`, in that order: at most so many, and not many more bytes.
    pub(in crate::store) fn records_after(
        &mut self,
        sequence: u64,
        most: usize,
        bytes: usize,
    ) -> Answer<Vec<JobRecord>> {
        let summaries = self.ledger.summaries_after(sequence).take(most);
        let jobs: Vec<_> = summaries.map(|summary| summary.id).collect();
        let (mut records, mut size) = (Vec::with_capacity(jobs.len()), 0);
        for job in jobs {
            let Some((record, bytes_of_it)) = self.records.record(&self.ledger, job)? else {
                continue;
            };
            size += bytes_of_it as usize;
            records.push(record);
            if size > bytes {
                break;
            }
        }
        Ok(records)
    }

    /// Objects after `address`, in that order: at most so many, and not many more bytes.
    pub(in crate::store) fn object_records_after(
        &mut self,
        address: Option<&Address>,
        most: usize,
        bytes: usize,
    ) -> Answer<Vec<ObjectRecord>> {
        let objects = self.ledger.objects_after(address).take(most);
        let places: Vec<_> = objects.map(|(address, _, kept)| (address.clone(), kept)).collect();
        let (mut records, mut size) = (Vec::with_capacity(places.len()), 0);
        for (address, kept) in places {
            let record = self.records.stored_object(&address, Place::unpack(kept.place));
            records.push(record.map_err(|why| self.records.fail_unreadable(why))?);
            size += kept.weight as usize;
            if size > bytes {
                break;
            }
        }
        Ok(records)
    }

    /// Writes records into a journal that nobody has used, as one commit, which is on stable
    /// storage when this returns. The ledger is not told: whoever opens the store next reads them.
    pub(in crate::store) fn take_over(
        &mut self,
        jobs: &[JobRecord],
        objects: &[ObjectRecord],
        changes: &[Change],
        next_ids: NextIds,
    ) -> io::Result<()> {
        self.records.journal.touch();
        for record in jobs {
            self.records.journal.stage(|to| codec::encode_whole(record, to));
        }
        for record in objects {
            self.records.journal.stage(|to| codec::encode_object(record, to));
        }
        for change in changes {
            self.records.journal.stage(|to| codec::encode_change(change, to));
        }
        self.records.journal.allocate_files().map_err(|Full(error)| error)?;
        let batch = self.records.journal.take(next_ids, self.records.journal.landed_commit());
        batch.write()?;
        super::super::journal::CommitBytes::sync(std::iter::once(&*batch))?;
        self.records.journal.written(batch.number);
        // Nothing that was written is let go, so no segment may leave.
        drop(self.records.journal.landed(&batch));
        self.records.journal.reuse(batch);
        self.records.journal.mark_used()
    }

    /// Begins an opening without recovering anything, for [`Self::take_over`].
    pub(in crate::store::file) fn begin_empty(
        &mut self,
        found: &super::super::scan::Found,
    ) -> io::Result<()> {
        self.records.journal.begin(found)
    }
}
