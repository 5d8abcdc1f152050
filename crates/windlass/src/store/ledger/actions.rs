//! What can be done to chosen jobs, as commands of the ledger.

use windlass_core::job::JobId;
use windlass_core::ledger::{Cancel, Remove, RemoveGraph, Replay, Reschedule};
use windlass_core::refusal::Refusal;
use windlass_core::time::Now;

use super::{RecordedLedger, Records};
use crate::store::{Answer, JobAction, JobActionDone, JobActionResult};

impl<R: Records> RecordedLedger<R> {
    /// Does it to these jobs, each alone, in one commit.
    pub(super) fn act(
        &mut self,
        jobs: Vec<JobId>,
        action: JobAction,
        now: Now,
    ) -> Answer<Vec<JobActionResult>> {
        let chosen = jobs.clone();
        match action {
            JobAction::Cancel => {
                let reply = self.apply(Cancel { jobs }, now)?;
                Ok(results(chosen, reply, JobActionDone::Cancel))
            }
            JobAction::Reschedule(start) => {
                let reply = self.apply(Reschedule { jobs, start }, now)?;
                Ok(results(chosen, reply, JobActionDone::Rescheduled))
            }
            JobAction::Remove => {
                let reply = self.apply(Remove { jobs }, now)?;
                Ok(results(chosen, reply, |()| JobActionDone::Removed))
            }
            JobAction::RemoveGraph => {
                let reply = self.apply(RemoveGraph { roots: jobs }, now)?;
                Ok(results(chosen, reply, |jobs| JobActionDone::GraphRemoved { jobs }))
            }
            JobAction::Replay => {
                // It goes by acceptance, and says itself which job each answer is about.
                let (jobs, reply) = self.apply(Replay { jobs }, now)?.into_iter().unzip();
                Ok(results(jobs, reply, |()| JobActionDone::Replayed))
            }
        }
    }
}

fn results<T>(
    jobs: Vec<JobId>,
    reply: Vec<Result<T, Refusal>>,
    done: impl Fn(T) -> JobActionDone,
) -> Vec<JobActionResult> {
    let each = jobs.into_iter().zip(reply);
    each.map(|(job, result)| JobActionResult { job, result: result.map(&done) }).collect()
}
