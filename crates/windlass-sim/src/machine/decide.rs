//! One call to the ledger, as `FileStore` makes it: room first, then the decision.

use std::sync::Arc;

use windlass::store::file::{JournaledLedger, Need, Size};
use windlass::store::{ObjectFilter, StoreError};
use windlass_core::filter::Filter;
use windlass_core::job::NewJob;
use windlass_core::ledger::{
    Cancel, Clear, Command, Configure, Enqueue, Promote, Remove, RemoveGraph, Renew, Replay,
    ReplayEdited, Reschedule, Settle,
};
use windlass_core::limits;
use windlass_core::object::Turn;
use windlass_core::refusal::Refusal;
use windlass_core::time::Now;

use crate::answer::{Answer, Failure, Reply, Request, Snapshot, jobs_of};

/// Decides a call and says what it will be answered.
pub(super) fn decide(ledger: &mut JournaledLedger, request: Request, now: Now) -> Answer {
    ledger.usable()?;
    match request {
        Request::Enqueue(jobs) => {
            let need = Need::Growth(jobs.iter().map(size_of).collect());
            commit(ledger, need, Enqueue { jobs }, now).map(Reply::Enqueued)
        }
        Request::Claim(claim) => {
            let all = claim.limit.min(limits::CLAIM_JOBS) as u64 * 256;
            let need = Need::Progress(Size { all, largest: 0 });
            let claims = commit(ledger, need, claim, now)?;
            Ok(Reply::ClaimedBatch(ledger.hand(claims)?))
        }
        Request::Renew(renewals) => {
            let sizes = renewals.iter().map(|renewal| {
                let lines = renewal.report.lines.iter();
                lines.map(|line| line.text.len() as u64 + 64).sum::<u64>() + 256
            });
            let need = Need::Progress(sizes.collect());
            commit(ledger, need, Renew { renewals }, now).map(Reply::Renewed)
        }
        Request::Settle(settlements) => {
            let sizes = settlements.iter().map(|settlement| {
                settlement.output.as_ref().map_or(0, |output| output.len()) as u64 + 1_024
            });
            let next = settlements.iter().flat_map(|settlement| &settlement.next);
            let turns = settlements.iter().filter_map(|settlement| settlement.turn.as_deref());
            let turns = turns.flat_map(turn_sizes);
            let need = Need::Progress(sizes.chain(next.map(size_of)).chain(turns).collect());
            commit(ledger, need, Settle { settlements }, now).map(Reply::Settled)
        }
        Request::Turn(turn) => {
            let need = Need::Growth(turn_sizes(&turn).collect());
            commit(ledger, need, *turn, now).map(Reply::Turned)
        }
        Request::Rescue(rescue) => {
            commit(ledger, Need::Progress(Size::default()), rescue, now).map(Reply::Rescued)
        }
        Request::Promote => {
            commit(ledger, Need::Progress(Size::default()), Promote, now).map(Reply::Promoted)
        }
        Request::ReplayEdited(job, edited) => {
            let need = Need::Growth([size_of_job(&edited)].into_iter().collect());
            let command = ReplayEdited { job, edited: *edited };
            commit(ledger, need, command, now).map(Reply::Replaced)
        }
        Request::Configure(queue, change) => {
            let command = Configure { queue, change };
            commit(ledger, Need::Progress(Size::default()), command, now).map(Reply::Configured)
        }
        Request::Clear(queue) => {
            commit(ledger, Need::Progress(Size::default()), Clear { queue }, now)
                .map(Reply::Cleared)
        }
        Request::Find(jobs) => Ok(Reply::Found(ledger.find(&jobs, now)?)),
        Request::Explain(job) => Ok(Reply::Explained(ledger.explain(job, now)?)),
        Request::Audit => audit(ledger, now),
        alteration => alter(ledger, alteration, now),
    }
}

fn alter(ledger: &mut JournaledLedger, alteration: Request, now: Now) -> Answer {
    ledger.admit(Need::Progress(Size::default()), now)?;
    match alteration {
        Request::Cancel(jobs) => Ok(Reply::Cancelled(ledger.apply(Cancel { jobs }, now)?)),
        Request::Reschedule(jobs, start) => {
            Ok(Reply::Rescheduled(ledger.apply(Reschedule { jobs, start }, now)?))
        }
        Request::Remove(jobs) => Ok(Reply::Removed(ledger.apply(Remove { jobs }, now)?)),
        Request::RemoveGraph(roots) => {
            Ok(Reply::GraphsRemoved(ledger.apply(RemoveGraph { roots }, now)?))
        }
        Request::Replay(jobs) => Ok(Reply::Replayed(ledger.apply(Replay { jobs }, now)?)),
        other => unreachable!("{other:?} alters nothing"),
    }
}

fn commit<C: Command>(
    ledger: &mut JournaledLedger,
    need: Need,
    command: C,
    now: Now,
) -> Result<C::Reply, Failure> {
    ledger.admit(need, now).map_err(|full: Refusal| match need {
        Need::Growth(_) => Failure::Refused(full),
        Need::Progress(_) => Failure::Unknown,
    })?;
    ledger.apply(command, now).map_err(|error: StoreError| error.into())
}

/// All jobs, page by page, and all counters.
fn audit(ledger: &mut JournaledLedger, now: Now) -> Answer {
    let mut jobs = Vec::new();
    let mut after = None;
    loop {
        let page = ledger.list(&Filter::default(), after, 100, now)?;
        jobs.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let counts = ledger.count(now);
    let objects = ledger.objects(&ObjectFilter::default(), None, 100, now)?.objects;
    Ok(Reply::Audited(Box::new(Snapshot { jobs, counts, objects })))
}

fn size_of(job: &Arc<NewJob>) -> u64 {
    size_of_job(job)
}

fn turn_sizes(turn: &Turn) -> impl Iterator<Item = u64> {
    let state = turn.state.as_ref().map_or(0, |state| state.len()) as u64 + 2_048;
    jobs_of(turn).map(size_of).chain([state])
}

/// What `FileStore` takes a job for.
fn size_of_job(job: &NewJob) -> u64 {
    let labels: usize = job.metadata.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
    (job.payload.len() + labels + job.depends_on.len() * 17 + 1_024) as u64
}
