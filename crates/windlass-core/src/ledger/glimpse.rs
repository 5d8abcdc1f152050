//! Looking at jobs in the order of acceptance, without their records.
//!
//! A store that keeps records elsewhere finds out here which of them it needs to read.

use super::Ledger;
use super::book::Phase;
use crate::job::{Condition, JobId, StateName};
use crate::name::Name;
use crate::record::Kept;

/// What the ledger itself knows of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glimpse<'a> {
    /// The job.
    pub id: JobId,
    /// Its place in the order of acceptance.
    pub sequence: u64,
    /// The line it waits in.
    pub queue: &'a Name,
    /// Which handler runs it.
    pub kind: &'a Name,
    /// Its state at the latest engine time: a scheduled job whose time has come is ready.
    pub state: StateName,
}

impl Ledger {
    /// What is known of a job; `None` if the book does not hold it.
    pub fn glimpse(&self, job: JobId) -> Option<Glimpse<'_>> {
        self.find(job).map(|slot| self.glimpse_at(slot))
    }

    /// All jobs accepted before the given sequence, the last accepted first.
    pub fn glimpses_before(&self, sequence: u64) -> impl Iterator<Item = Glimpse<'_>> {
        self.sequences.before(sequence).map(|slot| self.glimpse_at(slot))
    }

    /// All jobs accepted after the given sequence, the first accepted first; 0 for all.
    pub fn glimpses_after(&self, sequence: u64) -> impl Iterator<Item = Glimpse<'_>> {
        let first = sequence.saturating_add(1);
        self.sequences.starting_at(first).map(|slot| self.glimpse_at(slot))
    }

    /// The condition of a job; `None` if the book does not hold it.
    pub fn condition_of(&self, job: JobId) -> Option<Condition> {
        self.find(job).map(|slot| self.condition(slot))
    }

    /// Where the store keeps the job's record, as it last said.
    pub fn kept(&self, job: JobId) -> Option<Kept> {
        self.find(job).map(|slot| self.entry(slot).kept())
    }

    /// Notes where the store keeps the job's record now; an unknown job is passed over.
    pub fn keep(&mut self, job: JobId, kept: Kept) {
        if let Some(slot) = self.find(job) {
            self.keep_at(slot, kept);
        }
    }

    pub(super) fn keep_at(&mut self, slot: u32, kept: Kept) {
        let before = self.entries.get_mut(slot).keep(kept);
        self.kept_bytes += u64::from(kept.weight);
        self.kept_bytes -= u64::from(before);
    }

    /// The bytes that the records of all jobs take where the store keeps them.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    fn glimpse_at(&self, slot: u32) -> Glimpse<'_> {
        let entry = self.entry(slot);
        let line = &self.lines[entry.line as usize];
        let state = match entry.phase {
            Phase::Scheduled { at } if at <= self.time.latest().wall => StateName::Ready,
            phase => phase.name(),
        };
        Glimpse {
            id: entry.id,
            sequence: entry.sequence,
            queue: &self.queues[line.queue as usize].name,
            kind: &self.kinds[line.kind as usize].name,
            state,
        }
    }
}
