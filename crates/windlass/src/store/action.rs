//! What can be done to chosen jobs and to queues.

use serde::{Deserialize, Serialize};
use windlass_core::audit::{Actor, AuditNote};
use windlass_core::filter::Filter;
use windlass_core::job::JobId;
use windlass_core::ledger::{Cleared, QueueChange};
pub use windlass_core::ledger::{JobAction, JobActionDone, JobActionResult};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::record::QueueSettings;
use windlass_core::refusal::Refusal;

/// Which jobs are meant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Selection {
    /// These.
    Jobs(Vec<JobId>),
    /// Those that match when their turn comes, of all that were accepted before the call began.
    Matching(Filter),
}

/// What is to be done to jobs, and who does it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AlterJobs {
    /// To which jobs.
    pub selection: Selection,
    /// What.
    pub action: JobAction,
    /// Who does it. Each commit that changes a job then has an audit entry in it. `None` if the
    /// program acts by itself, which is not recorded.
    pub by: Option<Actor>,
}

impl AlterJobs {
    /// What a program does by itself.
    pub fn new(selection: Selection, action: JobAction) -> Self {
        Self { selection, action, by: None }
    }

    /// Refuses what cannot be done to the jobs that were chosen; see [`Selection`].
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        self.selection.check(&self.action)
    }

    /// What its audit entries will say.
    pub(crate) fn note(&self) -> Option<AuditNote> {
        let by = self.by.clone()?;
        Some(match &self.selection {
            Selection::Jobs(jobs) => AuditNote::of_jobs(by, &self.action, jobs),
            Selection::Matching(filter) => AuditNote::of_filter(by, &self.action, filter),
        })
    }
}

/// What is to be done to a queue, and who does it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AlterQueue {
    /// To which queue.
    pub queue: Name,
    /// What.
    pub action: QueueAction,
    /// Who does it, as in [`AlterJobs::by`].
    pub by: Option<Actor>,
}

impl AlterQueue {
    /// What a program does by itself.
    pub fn new(queue: Name, action: QueueAction) -> Self {
        Self { queue, action, by: None }
    }
}

impl Selection {
    /// Refuses more jobs than one commit changes, and an edited job for more than one dead job, or
    /// for those of a filter: it can take the place of one.
    fn check(&self, action: &JobAction) -> Result<(), Refusal> {
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
        Err(Refusal::OutOfBounds { what: "choice for an edited replay".into(), got, allowed })
    }
}

/// What to do with a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueAction {
    /// Change one setting.
    Set(QueueChange),
    /// Call off every waiting job.
    Clear,
}

/// What was done to a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueActionDone {
    /// It has these settings now.
    Set(QueueSettings),
    /// So many jobs were called off.
    Cleared(Cleared),
}
