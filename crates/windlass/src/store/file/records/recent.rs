//! Jobs accepted lately, in memory, until they have run.
//!
//! Answers: most jobs are claimed soon after they were enqueued. Each would be read back from the
//! disk and decoded for it.
//! Why not simpler: a plain cache drops the oldest first, but jobs start oldest first. When they
//! come faster than they start, it would drop just those that are claimed next; with
//! `makes_way` enqueueing many costs a sixth less (git log). A larger one is slower: what does not
//! fit the processor's cache costs more than it saves. A job leaves with its first change after
//! the claim: hardly anybody reads a finished job, and to keep its record up to date cost each job
//! two allocations and a copy.
//! Guarded by: the test below.

use std::collections::{HashMap, VecDeque};

use windlass_core::job::{JobId, State};
use windlass_core::record::{Accepted, JobRecord, Update};
use windlass_core::time::Timestamp;

use crate::store::ledger::ClaimHistory;

/// How many jobs are kept here at most, and how many bytes of payload.
const RECENT_JOBS: usize = 4_096;
const RECENT_BYTES: usize = 8 << 20;

/// When it is full of jobs that still wait, one new job in so many takes the place of the oldest.
const PASSED_OVER: usize = 8;

/// Jobs accepted lately.
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
struct RecentJob {
    accepted: Box<Accepted>,
    /// It was claimed since, for the first time, and nothing else has happened.
    claimed: bool,
}

impl RecentJobs {
    pub(super) fn add(&mut self, accepted: Box<Accepted>) {
        let id = accepted.job.id;
        if !self.makes_way() {
            return;
        }
        self.bytes += accepted.job.payload.len();
        self.order.push_back(id);
        if let Some(before) = self.jobs.insert(id, RecentJob { accepted, claimed: false }) {
            self.bytes -= before.accepted.job.payload.len();
        }
    }

    /// Makes room for a new job by dropping the oldest. `false` if the oldest still waits: it will
    /// be claimed before the new one, so it stays. One time in [`PASSED_OVER`] it leaves all the
    /// same, because it may not be due for hours.
    fn makes_way(&mut self) -> bool {
        while self.order.len() >= RECENT_JOBS || self.bytes > RECENT_BYTES {
            let Some(oldest) = self.order.front().copied() else { break };
            if self.jobs.get(&oldest).is_some_and(|recent| !recent.claimed) {
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

    /// A job has changed: if it was claimed, its worker will ask for it in the same call.
    pub(super) fn absorb(&mut self, update: &Update) {
        let Some(recent) = self.jobs.get_mut(&update.job) else { return };
        let is_claim = matches!(update.status.state, State::Running(_));
        if is_claim && !recent.claimed {
            recent.claimed = true;
        } else {
            self.forget(update.job);
        }
    }

    pub(super) fn forget(&mut self, job: JobId) {
        if let Some(recent) = self.jobs.remove(&job) {
            self.bytes -= recent.accepted.job.payload.len();
        }
    }

    /// The record of a job to which nothing has happened yet.
    pub(super) fn record(&self, job: JobId) -> Option<JobRecord> {
        let recent = self.jobs.get(&job).filter(|recent| !recent.claimed)?;
        Some(JobRecord::new(&recent.accepted))
    }

    /// What a worker needs of a job it claimed for the first time.
    pub(super) fn claimed(&self, job: JobId, now: Timestamp) -> Option<ClaimHistory> {
        let RecentJob { accepted, .. } = self.jobs.get(&job)?;
        Some(ClaimHistory {
            job: accepted.job.clone(),
            created_at: accepted.at,
            first_started_at: now,
            steps: Vec::new(),
            last_error: None,
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
