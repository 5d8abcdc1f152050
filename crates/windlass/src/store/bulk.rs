//! Changes of many jobs in chunks, each one commit: what every store does the same way.

use std::future::Future;

use windlass_core::job::JobId;
use windlass_core::ledger::{JobAction, JobActionResult};
use windlass_core::limits;
use windlass_core::refusal::Refusal;

use super::{Answer, StoreError};

/// How many jobs of a filter one commit changes.
pub(super) fn chunk_of(action: &JobAction) -> usize {
    match action {
        JobAction::Cancel
        | JobAction::Reschedule(_)
        | JobAction::Replay
        | JobAction::ReplayEdited(_)
        | JobAction::Remove => limits::CHUNK_JOBS,
        // A ledger looks at all jobs there are to find out who depends on whom, in each commit.
        JobAction::RemoveGraph => limits::BATCH_JOBS,
    }
}

/// A refusal says that nothing was changed, which is not true any more after a chunk that was: the
/// call can be repeated, and finds the rest.
pub(super) fn after_others(error: StoreError, chunks: usize, doing: &'static str) -> StoreError {
    match error {
        StoreError::Refused(refusal) if chunks > 0 => {
            StoreError::Unknown { doing, source: Box::new(refusal) }
        }
        StoreError::Refused(_) | StoreError::Unknown { .. } => error,
    }
}

/// Replays those again, by `replay`, that were refused because of a job they depend on: it may have
/// been accepted after them, in the same batch, and so be replayed in a later chunk.
pub(super) async fn replay_those_left<Replayed>(
    action: &JobAction,
    altered: Vec<JobActionResult>,
    chunks: usize,
    doing: &'static str,
    replay: impl Fn(Vec<JobId>) -> Replayed,
) -> Answer<Vec<JobActionResult>>
where
    Replayed: Future<Output = Answer<Vec<JobActionResult>>> + Send,
{
    if chunks <= 1 || *action != JobAction::Replay {
        return Ok(altered);
    }
    let waits =
        |altered: &JobActionResult| matches!(altered.result, Err(Refusal::DependencyFailed { .. }));
    let (mut left, mut altered): (Vec<_>, Vec<_>) = altered.into_iter().partition(waits);
    loop {
        let before = left.len();
        let mut still = Vec::new();
        // The last accepted first, so that one pass suffices for most.
        for chunk in left.rchunks(limits::CHUNK_JOBS) {
            let replayed = replay(chunk.iter().map(|refused| refused.job).collect()).await;
            let replayed = replayed.map_err(|error| after_others(error, chunks, doing))?;
            let (waiting, done): (Vec<_>, Vec<_>) = replayed.into_iter().partition(waits);
            altered.extend(done);
            still.push(waiting);
        }
        left = still.into_iter().rev().flatten().collect();
        if left.len() == before {
            altered.extend(left);
            return Ok(altered);
        }
    }
}
