//! One call to the ledger, as a verb of the store makes it.

use std::sync::Arc;

use windlass::store::file::{JournaledLedger, Need};
use windlass::store::{Answer, ObjectFilter};
use windlass_core::filter::Filter;
use windlass_core::ledger::{
    Alter, Cancel, Clear, Configure, Enqueue, JobAction, JobActionDone, Promote, Remove,
    RemoveGraph, Renew, Replay, Reschedule, Settle,
};
use windlass_core::time::Now;

use crate::answer::{Reply, Request, Snapshot};

/// Decides a call and says what it will be answered.
pub(super) fn decide(ledger: &mut JournaledLedger, request: Request, now: Now) -> Answer<Reply> {
    ledger.usable()?;
    Ok(match request {
        Request::Enqueue(jobs) => Reply::Enqueued(ledger.commit(Enqueue { jobs }, now)?),
        Request::Claim(claim) => {
            let claims = ledger.commit(claim, now)?;
            Reply::ClaimedBatch(ledger.hand_out(claims)?)
        }
        Request::Renew(renewals) => Reply::Renewed(ledger.commit(Renew { renewals }, now)?),
        Request::Settle(settlements) => Reply::Settled(ledger.commit(Settle { settlements }, now)?),
        Request::Turn(turn) => Reply::Turned(ledger.commit(*turn, now)?),
        Request::Rescue(rescue) => Reply::Rescued(ledger.commit(rescue, now)?),
        Request::RescueLost(rescue) => Reply::Rescued(ledger.commit(rescue, now)?),
        Request::Join(workers, held) => {
            let settlements = ledger.ledger().releases_of_unheld(&workers, &held);
            let releases = settlements.clone();
            // As in the product, a process that holds everything asks for nothing.
            let answers = match settlements.is_empty() {
                true => Vec::new(),
                false => ledger.commit(Settle { settlements }, now)?,
            };
            Reply::Joined(releases.into_iter().zip(answers).collect())
        }
        Request::Promote => Reply::Promoted(ledger.commit(Promote, now)?),
        Request::ReplayEdited(job, edited) => {
            let action = JobAction::ReplayEdited(Arc::new(*edited));
            ledger.admit(Need::of_action(&action), now)?;
            let mut done = ledger.apply(Alter { jobs: vec![job], action, note: None }, now)?;
            match done.remove(0).result? {
                JobActionDone::Replaced(enqueued) => Reply::Replaced(enqueued),
                other => unreachable!("{other:?} is no answer to an edited replay"),
            }
        }
        Request::Configure(queue, change) => {
            Reply::Configured(ledger.commit(Configure { queue, change, by: None }, now)?)
        }
        Request::Clear(queue) => return clear(ledger, Clear::first(queue, None), now),
        Request::Find(jobs) => Reply::Found(ledger.find(&jobs, now)?),
        Request::Explain(job) => Reply::Explained(ledger.explain(job, now)?),
        Request::Audit => return audit(ledger, now),
        alteration => return alter(ledger, alteration, now),
    })
}

/// All chunks of it: a queue of the simulation has no more jobs than are called off at once.
fn clear(ledger: &mut JournaledLedger, mut clear: Clear, now: Now) -> Answer<Reply> {
    while !clear.progress.bulk.done {
        clear.progress = ledger.commit(clear.clone(), now)?;
    }
    Ok(Reply::Cleared(clear.progress.cleared))
}

fn alter(ledger: &mut JournaledLedger, alteration: Request, now: Now) -> Answer<Reply> {
    ledger.admit(Need::LITTLE, now)?;
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

/// All jobs, page by page, and all counters.
fn audit(ledger: &mut JournaledLedger, now: Now) -> Answer<Reply> {
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
