//! Looking at jobs in the order of acceptance, without their records.
//!
//! A store that keeps records elsewhere finds out here which of them it needs to read.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Ledger;
use super::entries::Phase;
use crate::filter::{Filter, Order};
use crate::job::{JobId, JobStatus, StateName};
use crate::limits;
use crate::name::Name;
use crate::record::RecordLocation;

/// What the ledger itself knows of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSummary<'a> {
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
    /// What is known of a job; `None` if the ledger does not hold it.
    pub fn summary(&self, job: JobId) -> Option<JobSummary<'_>> {
        self.find(job).map(|slot| self.summary_at(slot))
    }

    /// All jobs accepted before the given sequence, the last accepted first.
    pub fn summaries_before(&self, sequence: u64) -> impl Iterator<Item = JobSummary<'_>> {
        self.sequences.before(sequence).map(|slot| self.summary_at(slot))
    }

    /// All jobs accepted after the given sequence, the first accepted first; 0 for all.
    pub fn summaries_after(&self, sequence: u64) -> impl Iterator<Item = JobSummary<'_>> {
        let first = sequence.saturating_add(1);
        self.sequences.starting_at(first).map(|slot| self.summary_at(slot))
    }

    /// The jobs that a filter may mean, in the order it asks for. `cursor` is where a list in that
    /// order was left; `None` for its beginning. Which of them it does mean, as far as the ledger
    /// knows, [`Ledger::may_mean`] says.
    ///
    /// Jobs that wait for another are found by looking at that one alone, unless they are many:
    /// they would have to be sorted anew for every page.
    pub fn candidates<'a>(
        &'a self,
        filter: &Filter,
        cursor: Option<u64>,
    ) -> Box<dyn Iterator<Item = JobSummary<'a>> + Send + 'a> {
        let (before, first) = (cursor.unwrap_or(u64::MAX), cursor.unwrap_or(0));
        let few = filter.blocked_by.and_then(|on| self.few_dependents(on));
        let Some(mut waiting) = few else {
            return match filter.order {
                Order::NewestFirst => Box::new(self.summaries_before(before)),
                Order::OldestFirst => Box::new(self.summaries_after(first.saturating_sub(1))),
            };
        };
        waiting.sort_unstable_by_key(|summary| summary.sequence);
        match filter.order {
            Order::NewestFirst => {
                waiting.retain(|summary| summary.sequence < before);
                Box::new(waiting.into_iter().rev())
            }
            Order::OldestFirst => {
                waiting.retain(|summary| summary.sequence >= first);
                Box::new(waiting.into_iter())
            }
        }
    }

    /// Whether a filter may mean this candidate: if not, its record need not be read.
    pub fn may_mean(&self, filter: &Filter, summary: &JobSummary<'_>) -> bool {
        let waits = |on: JobId| self.edges.get(&(on, summary.id)).is_some_and(|edge| !edge.met);
        filter.may_match(summary) && filter.blocked_by.is_none_or(waits)
    }

    /// The jobs that depend on this one and are open, unless they are many.
    fn few_dependents(&self, on: JobId) -> Option<Vec<JobSummary<'_>>> {
        let few: Vec<JobId> =
            self.edges_from(on).map(|(job, _)| job).take(limits::PAGE_JOBS + 1).collect();
        let summaries = || few.iter().filter_map(|job| self.summary(*job)).collect();
        (few.len() <= limits::PAGE_JOBS).then(summaries)
    }

    /// The status of a job; `None` if the ledger does not hold it.
    pub fn status_of(&self, job: JobId) -> Option<JobStatus> {
        self.find(job).map(|slot| self.status(slot))
    }

    /// Where the store keeps the job's record, as it last said.
    pub fn kept(&self, job: JobId) -> Option<RecordLocation> {
        self.find(job).map(|slot| self.entry(slot).kept())
    }

    /// Notes where the store keeps the job's record now; an unknown job is passed over.
    pub fn keep(&mut self, job: JobId, kept: RecordLocation) {
        if let Some(slot) = self.find(job) {
            self.keep_at(slot, kept);
        }
    }

    pub(super) fn keep_at(&mut self, slot: u32, kept: RecordLocation) {
        let before = self.entries.get_mut(slot).keep(kept);
        self.kept_bytes += u64::from(kept.weight);
        self.kept_bytes -= u64::from(before);
    }

    /// The bytes that the records of all jobs take where the store keeps them.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    fn summary_at(&self, slot: u32) -> JobSummary<'_> {
        let entry = self.entry(slot);
        let line = &self.lines[entry.line as usize];
        let state = match entry.phase {
            Phase::Scheduled { at } if at <= self.time.latest().wall => StateName::Ready,
            phase => phase.name(),
        };
        JobSummary {
            id: entry.id,
            sequence: entry.sequence,
            queue: &self.queues[line.queue as usize].name,
            kind: &self.kinds[line.kind as usize].name,
            state,
        }
    }
}
