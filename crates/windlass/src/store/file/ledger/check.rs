//! Whether a store is sound: every record is read and compared with what the ledger knows.

use windlass_core::job::{JobId, JobStatus, Lease, State};

use super::super::layout::{Place, Unreadable};
use super::super::records::JournalRecords;
use crate::store::ledger::RecordedLedger;

impl RecordedLedger<JournalRecords> {
    /// Everything that is wrong with the store, in words; every record is read and compared.
    pub fn check(&mut self) -> Vec<String> {
        let mut wrong = self.ledger.check();
        let jobs: Vec<JobId> = self.ledger.summaries_after(0).map(|summary| summary.id).collect();
        for job in jobs {
            let Some(kept) = self.ledger.kept(job) else { continue };
            match self.records.chain(job, Place::unpack(kept.place)) {
                Err(Unreadable(why)) => wrong.push(format!("job {job}: {why}")),
                Ok((_, record)) => {
                    let known = self.ledger.status_of(job);
                    if !known.is_some_and(|known| agree(&record.status, &known)) {
                        wrong.push(format!("job {job}: its record and the ledger disagree"));
                    }
                }
            }
        }
        let objects = self.ledger.objects_after(None);
        let objects: Vec<_> =
            objects.map(|(address, meta, kept)| (address.clone(), meta.clone(), kept)).collect();
        for (address, meta, kept) in objects {
            match self.records.stored_object(&address, Place::unpack(kept.place)) {
                Err(Unreadable(why)) => wrong.push(format!("object {address}: {why}")),
                Ok(record) if record.meta != meta => {
                    wrong.push(format!("object {address}: its record and the ledger disagree"));
                }
                Ok(_) => {}
            }
        }
        wrong
    }
}

/// Whether a stored condition is the one the ledger knows. Two things are not written down: that a
/// time has come, and that a lease was renewed.
fn agree(stored: &JobStatus, known: &JobStatus) -> bool {
    let same_state = match (&stored.state, &known.state) {
        (State::Scheduled { at }, State::Ready { since }) => at == since,
        (State::Running(stored), State::Running(known)) => {
            Lease { until: known.until, ..stored.clone() } == *known
        }
        (stored, known) => stored == known,
    };
    let counters = |status: &JobStatus| (status.attempts, status.recoveries, status.generation);
    same_state && counters(stored) == counters(known)
}
