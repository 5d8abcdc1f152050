//! What a store would have on disk: changes in order and, where it compacted, whole records.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use windlass_core::job::JobId;
use windlass_core::ledger::{Ledger, Restore};
use windlass_core::limits::Limits;
use windlass_core::object::{Address, ObjectMeta};
use windlass_core::record::{Change, JobRecord, NextIds, RecordLocation};

#[derive(Clone, Debug)]
enum Entry {
    Change(Change),
    Whole(Box<JobRecord>),
    Object(Address, Box<ObjectMeta>),
    NextIds(NextIds),
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
                | Change::QueueKind { .. }
                | Change::Lane { .. }
                | Change::Object(_)
                | Change::ObjectGone { .. },
            )
            | Entry::Object(..)
            | Entry::NextIds(_) => None,
        }
    }

    /// The object it is about, and what is known of that.
    fn object(&self) -> Option<(&Address, Option<&ObjectMeta>)> {
        match self {
            Entry::Change(Change::Object(change)) => Some((&change.address, Some(&change.meta))),
            Entry::Change(Change::ObjectGone { address }) => Some((address, None)),
            Entry::Object(address, meta) => Some((address, Some(meta))),
            Entry::Change(
                Change::Insert(_)
                | Change::Update(_)
                | Change::Remove { .. }
                | Change::Queue { .. }
                | Change::Rate { .. }
                | Change::QueueKind { .. }
                | Change::Lane { .. },
            )
            | Entry::Whole(_)
            | Entry::NextIds(_) => None,
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
                | Change::QueueKind { .. }
                | Change::Lane { .. }
                | Change::Object(_)
                | Change::ObjectGone { .. },
            )
            | Entry::Object(..)
            | Entry::NextIds(_) => false,
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
        for change in changes.iter().cloned().chain(ledger.drain_totals()) {
            self.push(Entry::Change(change), ledger);
        }
        self.push(Entry::NextIds(ledger.next_ids()), ledger);
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
        self.push(Entry::NextIds(ledger.next_ids()), ledger);
        // Not in the order in which they were accepted.
        for (job, record) in records.iter().rev() {
            if all || (touched.contains(job) && !whole.contains(job)) {
                self.push(Entry::Whole(Box::new(record.clone())), ledger);
            }
        }
        self.compact_objects(&span, all, ledger);
        let is_removal = |each: &Entry| {
            matches!(each, Entry::Change(Change::Remove { .. } | Change::ObjectGone { .. }))
        };
        let mut number = 0;
        self.entries.retain(|(_, each)| {
            number += 1;
            !span.contains(&(number - 1)) || (span.start > 0 && is_removal(each))
        });
    }

    /// Writes the objects once more whose last record stands in `span`, or `all`.
    fn compact_objects(&mut self, span: &Range<usize>, all: bool, ledger: &mut Ledger) {
        let objects = |entries: &[(u64, Entry)]| -> BTreeSet<Address> {
            let objects = entries.iter().filter_map(|(_, each)| each.object());
            objects.map(|(address, _)| address.clone()).collect()
        };
        let touched = objects(&self.entries[span.clone()]);
        let later = objects(&self.entries[span.end..]);
        let kept: Vec<(Address, ObjectMeta)> = ledger
            .objects_after(None)
            .map(|(address, meta, _)| (address.clone(), meta.clone()))
            .collect();
        for (address, meta) in kept.into_iter().rev() {
            if all || (touched.contains(&address) && !later.contains(&address)) {
                self.push(Entry::Object(address, Box::new(meta)), ledger);
            }
        }
    }

    /// The ledger that this journal tells of.
    pub(crate) fn restore(&self, limits: Limits) -> Ledger {
        let mut restore = Restore::new(limits);
        for (place, entry) in &self.entries {
            match entry {
                Entry::Change(change) => restore.absorb(change),
                Entry::Whole(record) => restore.put(record),
                Entry::Object(..) => {}
                Entry::NextIds(next_ids) => restore.next_ids(*next_ids),
            }
            if let Some((address, Some(meta))) = entry.object() {
                restore.object(address, meta.clone(), kept(*place));
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
        if let Some((address, Some(_))) = entry.object() {
            ledger.keep_object(address, kept(self.next_place));
        }
        self.entries.push((self.next_place, entry));
        self.next_place += 1;
    }
}

/// An entry at this place, with some weight.
fn kept(place: u64) -> RecordLocation {
    RecordLocation { place, weight: 50 + place as u32 % 7 }
}
