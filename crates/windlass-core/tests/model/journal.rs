//! What a store would have on disk: changes in order and, where it compacted, whole records.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use windlass_core::job::JobId;
use windlass_core::ledger::{Ledger, Restore};
use windlass_core::limits::Limits;
use windlass_core::record::{Change, Floors, JobRecord, Kept};

#[derive(Clone, Debug)]
enum Entry {
    Change(Change),
    Whole(Box<JobRecord>),
    Floors(Floors),
}

impl Entry {
    fn job(&self) -> Option<JobId> {
        match self {
            Entry::Change(Change::Insert(accepted)) => Some(accepted.job.id),
            Entry::Change(Change::Update(update)) => Some(update.job),
            Entry::Change(Change::Remove { job }) => Some(*job),
            Entry::Whole(record) => Some(record.id()),
            Entry::Change(
                Change::Queue { .. }
                | Change::Rate { .. }
                | Change::Line { .. }
                | Change::Lane { .. }
                | Change::Object(_)
                | Change::ObjectGone { .. },
            )
            | Entry::Floors(_) => None,
        }
    }

    /// Whether nothing of the job that came before is needed.
    fn is_whole(&self) -> bool {
        match self {
            Entry::Change(Change::Insert(_)) | Entry::Whole(_) => true,
            Entry::Change(
                Change::Update(_)
                | Change::Remove { .. }
                | Change::Queue { .. }
                | Change::Rate { .. }
                | Change::Line { .. }
                | Change::Lane { .. }
                | Change::Object(_)
                | Change::ObjectGone { .. },
            )
            | Entry::Floors(_) => false,
        }
    }
}

/// The journal of one ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    /// Each with the place at which it was written.
    entries: Vec<(u64, Entry)>,
    next_place: u64,
}

impl Journal {
    /// Writes what one command caused, and tells the ledger where.
    pub(crate) fn write(&mut self, changes: &[Change], ledger: &mut Ledger) {
        for change in changes.iter().cloned().chain(ledger.drain_lines()) {
            self.push(Entry::Change(change), ledger);
        }
        self.push(Entry::Floors(ledger.floors()), ledger);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Drops the entries in `span`, after writing once more what they alone tell: the jobs of
    /// which a part stands there (or `all` jobs), and what is not about a job.
    ///
    /// A removal stays if something stands before it, which would come back to life.
    pub(crate) fn compact(
        &mut self,
        span: Range<usize>,
        all: bool,
        records: &BTreeMap<JobId, JobRecord>,
        ledger: &mut Ledger,
    ) {
        let touched: BTreeSet<JobId> =
            self.entries[span.clone()].iter().filter_map(|(_, each)| each.job()).collect();
        let later = self.entries[span.end..].iter().map(|(_, each)| each);
        let whole: BTreeSet<JobId> =
            later.filter(|each| each.is_whole()).filter_map(Entry::job).collect();
        for change in ledger.image() {
            self.push(Entry::Change(change), ledger);
        }
        self.push(Entry::Floors(ledger.floors()), ledger);
        // Not in the order in which they were accepted.
        for (job, record) in records.iter().rev() {
            if all || (touched.contains(job) && !whole.contains(job)) {
                self.push(Entry::Whole(Box::new(record.clone())), ledger);
            }
        }
        let is_removal = |each: &Entry| matches!(each, Entry::Change(Change::Remove { .. }));
        let mut number = 0;
        self.entries.retain(|(_, each)| {
            number += 1;
            !span.contains(&(number - 1)) || (span.start > 0 && is_removal(each))
        });
    }

    /// The ledger that this journal tells of.
    pub(crate) fn restore(&self, limits: Limits) -> Ledger {
        let mut restore = Restore::new(limits);
        for (place, entry) in &self.entries {
            match entry {
                Entry::Change(change) => restore.absorb(change),
                Entry::Whole(record) => restore.put(record),
                Entry::Floors(floors) => restore.floors(*floors),
            }
            if let Some(job) = entry.job() {
                restore.keep(job, kept(*place));
            }
        }
        restore.finish()
    }

    fn push(&mut self, entry: Entry, ledger: &mut Ledger) {
        if let Some(job) = entry.job() {
            ledger.keep(job, kept(self.next_place));
        }
        self.entries.push((self.next_place, entry));
        self.next_place += 1;
    }
}

/// An entry at this place, with some weight.
fn kept(place: u64) -> Kept {
    Kept { place, weight: 50 + place as u32 % 7 }
}
