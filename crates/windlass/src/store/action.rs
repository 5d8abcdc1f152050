//! What can be done to chosen jobs and to queues.

use windlass_core::filter::Filter;
use windlass_core::job::JobId;
use windlass_core::ledger::{Cleared, QueueChange};
pub use windlass_core::ledger::{JobAction, JobActionDone, JobActionResult};
use windlass_core::limits;
use windlass_core::record::QueueSettings;
use windlass_core::refusal::Refusal;

/// Which jobs are meant.
#[derive(Clone, Debug)]
pub enum Selection {
    /// These.
    Jobs(Vec<JobId>),
    /// Those that match when their turn comes, of all that were accepted before the call began.
    Matching(Filter),
}

impl Selection {
    /// Refuses more jobs than one commit changes, and an edited job for more than one dead job, or
    /// for those of a filter: it can take the place of one.
    pub(crate) fn check(&self, action: &JobAction) -> Result<(), Refusal> {
        if let Selection::Jobs(jobs) = self {
            limits::NAMED_JOBS_BOUND.check(jobs.len())?;
        }
        let got = match (action, self) {
            (JobAction::ReplayEdited(_), Selection::Matching(_)) => "a filter".to_string(),
            (JobAction::ReplayEdited(_), Selection::Jobs(jobs)) if jobs.len() != 1 => {
                format!("{} jobs", jobs.len())
            }
            _ => return Ok(()),
        };
        let allowed = "name the one dead job that it replaces".to_string();
        Err(Refusal::OutOfBounds { what: "choice for an edited replay", got, allowed })
    }
}

/// What to do with a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueAction {
    /// Change one setting.
    Set(QueueChange),
    /// Call off every waiting job.
    Clear,
}

/// What was done to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueActionDone {
    /// It has these settings now.
    Set(QueueSettings),
    /// So many jobs were called off.
    Cleared(Cleared),
}
