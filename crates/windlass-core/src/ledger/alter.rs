//! What people do to chosen jobs, as one command: each action of `control`, and what became of it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{
    Cancel, CancelAnswer, Command, Effects, Enqueued, Ledger, Remove, RemoveGraph, Replay,
    ReplayEdited, Reschedule,
};
use crate::audit::AuditNote;
use crate::job::{JobId, NewJob, Start, StateName};
use crate::refusal::Refusal;

/// Do this to these jobs. Each is answered on its own, in the order given; a replay goes by
/// acceptance.
#[derive(Clone, Debug)]
pub struct Alter {
    /// The jobs.
    pub jobs: Vec<JobId>,
    /// What to do.
    pub action: JobAction,
    /// What to keep of who does it, if anything is changed.
    pub note: Option<AuditNote>,
}

/// What to do with jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum JobAction {
    /// Call them off.
    Cancel,
    /// Move their start.
    Reschedule(Start),
    /// Try dead or cancelled ones again, attempts reset.
    Replay,
    /// Put this job in the place of a dead one, which is then cancelled as replaced and gives up
    /// its unique key. A store refuses it for more than one job.
    ReplayEdited(Arc<NewJob>),
    /// Delete finished ones.
    Remove,
    /// Delete finished ones together with all that depend on them, directly or through others that
    /// are kept. Refused whole, with the job that is in the way, if one of them has not finished;
    /// and if they are more than [`BATCH_JOBS`](crate::limits::BATCH_JOBS).
    RemoveGraph,
}

impl JobAction {
    /// The word used in output.
    pub const fn as_str(&self) -> &'static str {
        match self {
            JobAction::Cancel => "cancel",
            JobAction::Reschedule(_) => "reschedule",
            JobAction::Replay => "replay",
            JobAction::ReplayEdited(_) => "replay_edited",
            JobAction::Remove => "remove",
            JobAction::RemoveGraph => "remove_graph",
        }
    }
}

/// What became of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct JobActionResult {
    /// The job.
    pub job: JobId,
    /// What was done, or why nothing was.
    pub result: Result<JobActionDone, Refusal>,
}

/// What was done to one job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum JobActionDone {
    /// It is cancelled, or its handler has been asked to stop.
    Cancel(CancelAnswer),
    /// It may start at another time; it is in this state now.
    Rescheduled(StateName),
    /// It starts over.
    Replayed,
    /// This one was accepted in its place.
    Replaced(Enqueued),
    /// Its record is gone.
    Removed,
    /// Its record is gone, and so are those of the jobs that depended on it.
    GraphRemoved {
        /// How many, with its own.
        jobs: u64,
    },
}

impl Command for Alter {
    type Reply = Vec<JobActionResult>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal> {
        let note = self.note.clone();
        let results = self.change(ledger, effects)?;
        let changed = results.iter().map(JobActionResult::changed).sum();
        if changed > 0 {
            ledger.audit(note.as_ref(), changed, effects);
        }
        Ok(results)
    }
}

impl JobActionResult {
    /// How many jobs were changed.
    fn changed(&self) -> u64 {
        match self.result {
            Ok(JobActionDone::GraphRemoved { jobs }) => jobs,
            Ok(
                JobActionDone::Cancel(_)
                | JobActionDone::Rescheduled(_)
                | JobActionDone::Replayed
                | JobActionDone::Replaced(_)
                | JobActionDone::Removed,
            ) => 1,
            Err(_) => 0,
        }
    }
}

impl Alter {
    fn change(
        self,
        ledger: &mut Ledger,
        effects: &mut Effects,
    ) -> Result<Vec<JobActionResult>, Refusal> {
        let Self { jobs, action, note: _ } = self;
        let results: Vec<Result<JobActionDone, Refusal>> = match action {
            JobAction::Cancel => {
                let reply = Cancel { jobs: jobs.clone() }.run(ledger, effects)?;
                reply.into_iter().map(|each| each.map(JobActionDone::Cancel)).collect()
            }
            JobAction::Reschedule(start) => {
                let reply = Reschedule { jobs: jobs.clone(), start }.run(ledger, effects)?;
                reply.into_iter().map(|each| each.map(JobActionDone::Rescheduled)).collect()
            }
            JobAction::Remove => {
                let reply = Remove { jobs: jobs.clone() }.run(ledger, effects)?;
                reply.into_iter().map(|each| each.map(|()| JobActionDone::Removed)).collect()
            }
            JobAction::RemoveGraph => {
                let reply = RemoveGraph { roots: jobs.clone() }.run(ledger, effects)?;
                let done = |jobs| JobActionDone::GraphRemoved { jobs };
                reply.into_iter().map(|each| each.map(done)).collect()
            }
            JobAction::ReplayEdited(edited) => {
                let replace = |job: &JobId| {
                    let replay = ReplayEdited { job: *job, edited: NewJob::clone(&edited) };
                    replay.run(ledger, effects).map(JobActionDone::Replaced)
                };
                jobs.iter().map(replace).collect()
            }
            JobAction::Replay => {
                let reply = Replay { jobs }.run(ledger, effects)?;
                let replayed = |(job, each): (JobId, Result<(), Refusal>)| JobActionResult {
                    job,
                    result: each.map(|()| JobActionDone::Replayed),
                };
                return Ok(reply.into_iter().map(replayed).collect());
            }
        };
        let result = |(job, result)| JobActionResult { job, result };
        Ok(jobs.into_iter().zip(results).map(result).collect())
    }
}
