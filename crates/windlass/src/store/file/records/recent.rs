//! Jobs accepted lately, in memory.
//!
//! Answers: most jobs are claimed soon after they were enqueued, and settled soon after that. Each
//! would be read back from the disk and decoded for it.
//! Why not simpler: a plain cache drops the oldest first, but jobs start oldest first. When they
//! come faster than they start, it would drop just those that are claimed next; with
//! `makes_way` enqueueing many costs a sixth less (git log). A larger one is slower: what does not
//! fit the processor's cache costs more than it saves.
//! Guarded by: the test below.

use std::collections::{HashMap, VecDeque};

use windlass_core::job::JobId;
use windlass_core::record::{Accepted, JobRecord, Update};
use windlass_core::time::Timestamp;

use crate::store::ledger::ClaimHistory;

/// How many jobs are kept here at most, and how many bytes of payload, output and steps.
const RECENT_JOBS: usize = 4_096;
const RECENT_BYTES: usize = 8 << 20;

/// When it is full of jobs that still wait, one new job in so many takes the place of the oldest.
const PASSED_OVER: usize = 8;

/// Jobs accepted lately, with what became of them since.
#[derive(Debug, Default)]
pub(super) struct RecentJobs {
    jobs: HashMap<JobId, RecentJob>,
    /// In the order in which they came; some may be gone.
    order: VecDeque<JobId>,
    bytes: usize,
    /// How often the oldest still waited when there was no room for a new job.
    passed_over: usize,
}

#[derive(Debug)]
enum RecentJob {
    /// Nothing has happened yet.
    Accepted(Box<Accepted>),
    Record(Box<JobRecord>),
}

impl RecentJob {
    fn bytes(&self) -> usize {
        match self {
            RecentJob::Accepted(accepted) => accepted.job.payload.len(),
            RecentJob::Record(record) => {
                let steps: usize = record.steps.iter().map(|step| step.result.len()).sum();
                let output = record.output.as_ref().map_or(0, |output| output.len());
                record.job.payload.len() + output + steps
            }
        }
    }
}

impl RecentJobs {
    pub(super) fn add(&mut self, accepted: Box<Accepted>) {
        let id = accepted.job.id;
        self.forget(id);
        if !self.makes_way() {
            return;
        }
        let recalled = RecentJob::Accepted(accepted);
        self.bytes += recalled.bytes();
        self.order.push_back(id);
        self.jobs.insert(id, recalled);
    }

    /// Makes room for a new job by dropping the oldest. `false` if the oldest still waits: it will
    /// be claimed before the new one, so it stays. One time in [`PASSED_OVER`] it leaves all the
    /// same, because it may not be due for hours.
    fn makes_way(&mut self) -> bool {
        while self.order.len() >= RECENT_JOBS || self.bytes > RECENT_BYTES {
            let Some(oldest) = self.order.front().copied() else { break };
            if matches!(self.jobs.get(&oldest), Some(RecentJob::Accepted(_))) {
                self.passed_over += 1;
                if !self.passed_over.is_multiple_of(PASSED_OVER) {
                    return false;
                }
            }
            self.order.pop_front();
            self.forget(oldest);
        }
        true
    }

    pub(super) fn absorb(&mut self, update: &Update) {
        let Some(recalled) = self.jobs.get_mut(&update.job) else { return };
        self.bytes -= recalled.bytes();
        if let RecentJob::Accepted(accepted) = recalled {
            *recalled = RecentJob::Record(Box::new(JobRecord::new(accepted)));
        }
        if let RecentJob::Record(record) = recalled {
            record.absorb(update);
        }
        self.bytes += recalled.bytes();
    }

    pub(super) fn forget(&mut self, job: JobId) {
        if let Some(recalled) = self.jobs.remove(&job) {
            self.bytes -= recalled.bytes();
        }
    }

    pub(super) fn record(&self, job: JobId) -> Option<JobRecord> {
        Some(match self.jobs.get(&job)? {
            RecentJob::Accepted(accepted) => JobRecord::new(accepted),
            RecentJob::Record(record) => JobRecord::clone(record),
        })
    }

    /// What a worker needs of a job it claimed.
    pub(super) fn claimed(&self, job: JobId, now: Timestamp) -> Option<ClaimHistory> {
        Some(match self.jobs.get(&job)? {
            RecentJob::Accepted(accepted) => ClaimHistory {
                job: accepted.job.clone(),
                created_at: accepted.at,
                first_started_at: now,
                steps: Vec::new(),
                last_error: None,
            },
            RecentJob::Record(record) => ClaimHistory::of(record, now),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass_core::job::{JobStatus, NewJob, State};
    use windlass_core::name::Name;

    use super::*;

    fn accepted(number: u128) -> Box<Accepted> {
        let name = Name::new("work").expect("a name");
        let job = NewJob::new(JobId::from_u128(number), name.clone(), name, vec![1; 100]);
        let at = Timestamp::default();
        let status = JobStatus::new(State::Ready { since: at });
        let (job, sequence, met) = (Arc::new(job), 1, Vec::new());
        Box::new(Accepted { job, sequence, at, status, met })
    }

    #[test]
    fn what_waits_stays_at_hand_when_jobs_come_faster_than_they_start_but_not_for_ever() {
        let mut recent = RecentJobs::default();
        let jobs = RECENT_JOBS as u128;
        (0..2 * jobs).for_each(|number| recent.add(accepted(number)));
        let kept = |recent: &RecentJobs, number| recent.record(JobId::from_u128(number)).is_some();
        assert!(kept(&recent, jobs - 1) && !kept(&recent, 2 * jobs - 2));
        assert_eq!(recent.jobs.len(), RECENT_JOBS);
        (2 * jobs..10 * jobs).for_each(|number| recent.add(accepted(number)));
        assert!(!kept(&recent, jobs - 1), "it waits for too long");
        assert_eq!((recent.jobs.len(), recent.bytes), (RECENT_JOBS, 100 * RECENT_JOBS));
    }
}
