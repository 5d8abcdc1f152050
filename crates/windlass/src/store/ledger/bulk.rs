//! Changes of many jobs, chosen by a filter or by their queue, in chunks.
//!
//! Each chunk is a call of its own and one commit, and holds the ledger for about a millisecond;
//! between two of them everyone else is let in.

use windlass_core::audit::{Actor, AuditNote};
use windlass_core::filter::Filter;
use windlass_core::job::JobId;
use windlass_core::ledger::{
    Alter, BulkProgress, Clear, ClearProgress, Cleared, JobAction, JobActionResult,
};
use windlass_core::name::Name;

use super::{Basis, CommitPath, LedgerStore, Need, RecordedLedger, Verb};
use crate::store::{Answer, bulk};

/// What a change of jobs is called in an error.
const DOING: &str = "change jobs";

impl<P: CommitPath> LedgerStore<P> {
    /// Changes these jobs, in one commit.
    pub(super) async fn alter_jobs(
        &self,
        jobs: Vec<JobId>,
        action: &JobAction,
        note: Option<AuditNote>,
    ) -> Answer<Vec<JobActionResult>> {
        let action = action.clone();
        self.ask(DOING, Basis::Everything, |ledger, now| {
            ledger.admit(Need::of_action(&action).and_audit(note.is_some()), now)?;
            ledger.apply(Alter { jobs, action, note }, now)
        })
        .await
    }

    /// Changes the jobs that a filter means, of those accepted before the call began.
    pub(super) async fn alter_matching(
        &self,
        filter: &Filter,
        action: &JobAction,
        note: Option<AuditNote>,
    ) -> Answer<Vec<JobActionResult>> {
        let mut progress = BulkProgress::default();
        let mut altered: Vec<JobActionResult> = Vec::new();
        let mut chunks = 0;
        loop {
            let chunk = |ledger: &mut RecordedLedger<P::Records>, now| {
                ledger.admit(Need::of_action(action).and_audit(note.is_some()), now)?;
                let jobs = ledger.select(filter, &mut progress, bulk::chunk_of(action), now)?;
                ledger.apply(Alter { jobs, action: action.clone(), note: note.clone() }, now)
            };
            let done = self.ask(DOING, Basis::Everything, chunk).await;
            let done = done.map_err(|error| bulk::after_others(error, chunks, DOING))?;
            chunks += usize::from(!done.is_empty());
            altered.extend(done);
            if progress.done {
                break;
            }
            self.shared.let_others_in().await;
        }
        let note = &note;
        let replay = |jobs| async move {
            self.shared.let_others_in().await;
            self.alter_jobs(jobs, &JobAction::Replay, note.clone()).await
        };
        bulk::replay_those_left(action, altered, chunks, DOING, replay).await
    }

    /// Calls off the waiting jobs of a queue, of those accepted before the call began.
    pub(super) async fn clear(&self, queue: Name, by: Option<Actor>) -> Answer<Cleared> {
        let mut clear = Clear::first(queue, by);
        loop {
            let called_off = clear.progress.cleared.cleared;
            let chunk = self.commit(clear.clone()).await;
            let some = usize::from(called_off > 0);
            clear.progress =
                chunk.map_err(|error| bulk::after_others(error, some, Clear::DOING))?;
            let ClearProgress { cleared, bulk: progress } = clear.progress;
            if progress.done {
                return Ok(cleared);
            }
            self.shared.let_others_in().await;
        }
    }
}
