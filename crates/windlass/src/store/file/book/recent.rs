//! Jobs accepted lately, kept at hand: most are claimed soon after they were enqueued, and settled
//! soon after that, and need not be read back from the disk for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use windlass_core::job::{JobId, NewJob};
use windlass_core::record::{Accepted, JobRecord, Step, Update};
use windlass_core::time::Timestamp;

/// Jobs accepted lately whose data is still at hand, and their bytes: what is claimed soon after
/// it was enqueued is not read back from the disk.
const RECENT_JOBS: usize = 4_096;
const RECENT_BYTES: usize = 8 << 20;

/// Jobs accepted lately, with what became of them since.
#[derive(Debug, Default)]
pub(super) struct Recent {
    jobs: HashMap<JobId, Recalled>,
    /// In the order in which they came; some may be gone.
    order: VecDeque<JobId>,
    bytes: usize,
}

#[derive(Debug)]
enum Recalled {
    /// Nothing has happened yet.
    Accepted(Box<Accepted>),
    Record(Box<JobRecord>),
}

impl Recalled {
    fn bytes(&self) -> usize {
        match self {
            Recalled::Accepted(accepted) => accepted.job.payload.len(),
            Recalled::Record(record) => {
                let steps: usize = record.steps.iter().map(|step| step.result.len()).sum();
                let output = record.output.as_ref().map_or(0, |output| output.len());
                record.job.payload.len() + output + steps
            }
        }
    }
}

impl Recent {
    pub(super) fn add(&mut self, accepted: Box<Accepted>) {
        let id = accepted.job.id;
        self.forget(id);
        let recalled = Recalled::Accepted(accepted);
        self.bytes += recalled.bytes();
        self.order.push_back(id);
        self.jobs.insert(id, recalled);
        while self.order.len() > RECENT_JOBS || self.bytes > RECENT_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            self.forget(oldest);
        }
    }

    pub(super) fn absorb(&mut self, update: &Update) {
        let Some(recalled) = self.jobs.get_mut(&update.job) else { return };
        self.bytes -= recalled.bytes();
        if let Recalled::Accepted(accepted) = recalled {
            *recalled = Recalled::Record(Box::new(JobRecord::new(accepted)));
        }
        if let Recalled::Record(record) = recalled {
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
            Recalled::Accepted(accepted) => JobRecord::new(accepted),
            Recalled::Record(record) => JobRecord::clone(record),
        })
    }

    /// What a worker needs of a job it claimed: the job, when it was accepted, when it first
    /// started, which is now unless it did before, and the steps it has finished.
    pub(super) fn claimed(
        &self,
        job: JobId,
        now: Timestamp,
    ) -> Option<(Arc<NewJob>, Timestamp, Timestamp, Vec<Step>)> {
        Some(match self.jobs.get(&job)? {
            Recalled::Accepted(accepted) => (accepted.job.clone(), accepted.at, now, Vec::new()),
            Recalled::Record(record) => {
                let started = record.first_started_at.unwrap_or(now);
                (record.job.clone(), record.created_at, started, record.steps.clone())
            }
        })
    }
}
