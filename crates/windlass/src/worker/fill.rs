//! Filling slots: claim as many jobs as are free to run, and sleep when there are none.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use windlass_core::ledger::{Claim, Settlement};
use windlass_core::outcome::Verdict;
use windlass_core::time::Steady;
use windlass_core::worker::{sleep_for, store_backoff};

use super::shared::{RequestedSlots, Shared, Stage, warn_again};
use crate::attempt::{Begun, prepare, start};
use crate::store::{ClaimedJob, StoreError};
use crate::wake::{Interest, Listener};

/// Most claims on their way: while the jobs of one are started, the other is at the store.
const CLAIMS_AT_ONCE: usize = 2;

/// How things stood when a claim was answered.
struct ClaimResult {
    /// There was not enough, and nothing is left.
    dry: bool,
    /// In how long something is due.
    wake_in: Option<Duration>,
}

/// Claims jobs for free slots, and sleeps when there are none to claim.
pub(super) async fn fill(shared: Arc<Shared>) {
    let interest = Interest::Queues(shared.queues.clone());
    // Listening before the first claim: what comes in between is heard.
    let mut listener = shared.engine.wake().listen(interest);
    let mut claims = JoinSet::new();
    let (mut failures, mut more) = (0, true);
    while shared.stage() == Stage::Working {
        let may_ask = claims.is_empty() || more && claims.len() < CLAIMS_AT_ONCE;
        if may_ask && let Some(asked) = RequestedSlots::aside(&shared) {
            claims.spawn(claim(shared.clone(), asked));
            continue;
        }
        let answer = tokio::select! {
            biased;
            () = shared.reached(Stage::Stopping) => break,
            Some(answer) = claims.join_next() => answer,
            () = shared.freed.notified() => {
                // What else is ready to run goes first, and may free more slots to fill at once.
                tokio::task::yield_now().await;
                continue;
            }
        };
        let answer = match answer.map_err(JoinError::try_into_panic) {
            Ok(answer) => answer,
            Err(Ok(panic)) => {
                // The other one is not to blame, and has jobs on its way.
                claims.detach_all();
                resume_unwind(panic)
            }
            // The runtime ends.
            Err(Err(_)) => break,
        };
        match answer {
            Ok(result) => {
                failures = 0;
                more = !result.dry;
                if result.dry && claims.is_empty() {
                    let sleep = sleep_for(result.wake_in, shared.timing.poll_interval);
                    pause(&shared, &mut *listener, sleep).await;
                    // What else is ready to run goes first, and may bring more jobs to claim.
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => {
                failures += 1;
                more = false;
                warn_again(&shared, &error, failures, "claiming");
                // Rings do not help here: the store must answer first.
                tokio::select! {
                    biased;
                    () = shared.reached(Stage::Stopping) => {}
                    () = shared.engine.clock().sleep(store_backoff(failures)) => {}
                }
            }
        }
    }
    // What is on its way arrives, and is begun or given back.
    while claims.join_next().await.is_some() {}
}

/// Claims jobs for slots that were set aside, and starts them.
async fn claim(shared: Arc<Shared>, asked: RequestedSlots) -> Result<ClaimResult, StoreError> {
    let filling = shared.filling.read().await;
    if shared.stage() != Stage::Working {
        return Ok(ClaimResult { dry: true, wake_in: None });
    }
    let (began, limit) = (shared.steady(), asked.slots);
    let claim = Claim {
        worker: shared.id.clone(),
        queues: shared.queues.clone(),
        kinds: shared.terms.clone(),
        limit: limit as usize,
    };
    let handed = shared.ask("claim", shared.engine.store().claim(claim)).await?;
    let taken = u32::try_from(handed.jobs.len()).unwrap_or(u32::MAX);
    asked.take(taken);
    let too_late = begin(&shared, handed.jobs, began);
    drop(filling);
    if !too_late.is_empty() {
        // Forced to stop while the claim was on its way, or it took too long. If this fails, they
        // are rescued.
        let _ = shared.ask("release", shared.engine.store().settle(too_late)).await;
    }
    Ok(ClaimResult { dry: taken < limit && handed.ready == 0, wake_in: handed.wake_in })
}

/// Starts claimed jobs. Returns how to give back those that the worker takes on no more, and those
/// whose lease was over before the answer was here: another worker may have them already.
fn begin(shared: &Arc<Shared>, jobs: Vec<ClaimedJob>, claimed: Steady) -> Vec<Settlement> {
    let mut too_late = Vec::new();
    let mut all = Vec::with_capacity(jobs.len());
    let age = shared.steady().since(claimed);
    for handed in jobs {
        let (job, token) = (handed.job.id, handed.lease.token);
        match prepare(shared, handed, claimed) {
            Some(begun) if age < begun.attempt.lease() => all.push(begun),
            _ => too_late.push(Settlement::new(job, token, Verdict::Release)),
        }
    }
    if shared.register(&all, claimed) {
        all.into_iter().for_each(start);
    } else {
        let release = |Begun { attempt, .. }: &Begun| {
            Settlement::new(attempt.id(), attempt.token(), Verdict::Release)
        };
        too_late.extend(all.iter().map(release));
    }
    too_late
}

/// Sleeps until a ring, the end of the pause, or the end of the worker.
async fn pause(shared: &Shared, listener: &mut dyn Listener, duration: Duration) {
    tokio::select! {
        biased;
        () = shared.reached(Stage::Stopping) => {}
        () = listener.heard() => {}
        () = shared.engine.clock().sleep(duration) => {}
    }
}
