//! Filling slots: claim as many jobs as are free to run, and sleep when there are none.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::ledger::{Claim, Settlement};
use windlass_core::outcome::Verdict;
use windlass_core::time::Steady;
use windlass_core::worker::{sleep_for, store_backoff};

use super::shared::{Shared, Stage, warn_again};
use crate::attempt::{Begun, prepare, start};
use crate::store::HandedJob;
use crate::wake::{Interest, Listener};

/// Claims jobs for free slots, and sleeps when there are none to claim.
pub(super) async fn fill(shared: Arc<Shared>) {
    let interest = Interest::Queues(shared.queues.clone());
    // Listening before the first claim: what comes in between is heard.
    let mut listener = shared.engine.wake().listen(interest);
    let mut failures = 0;
    while shared.stage() == Stage::Working {
        let free = {
            let slots = shared.slots();
            slots.bounds.max.saturating_sub(slots.busy)
        };
        if free == 0 {
            tokio::select! {
                biased;
                () = shared.reached(Stage::Stopping) => {}
                () = shared.freed.notified() => {}
            }
            // What else is ready to run goes first, and may free more slots to fill at once.
            tokio::task::yield_now().await;
            continue;
        }
        let filling = shared.filling.lock().await;
        if shared.stage() != Stage::Working {
            break;
        }
        let asked = shared.steady();
        let claim = Claim {
            worker: shared.id.clone(),
            queues: shared.queues.clone(),
            kinds: shared.terms.clone(),
            limit: free as usize,
        };
        let handed = match shared.ask("claim", shared.engine.store().claim(claim)).await {
            Ok(handed) => handed,
            Err(error) => {
                drop(filling);
                failures += 1;
                warn_again(&shared, &error, failures, "claiming");
                // Rings do not help here: the store must answer first.
                tokio::select! {
                    biased;
                    () = shared.reached(Stage::Stopping) => {}
                    () = shared.engine.clock().sleep(store_backoff(failures)) => {}
                }
                continue;
            }
        };
        failures = 0;
        let taken = u32::try_from(handed.jobs.len()).unwrap_or(u32::MAX);
        {
            let mut slots = shared.slots();
            slots.busy += taken;
            slots.open = slots.bounds.wanted(slots.busy, handed.ready);
        }
        let too_late = begin(&shared, handed.jobs, asked);
        drop(filling);
        if !too_late.is_empty() {
            // Forced to stop while the claim was on its way. If this fails, they are rescued.
            let _ = shared.ask("release", shared.engine.store().settle(too_late)).await;
        }
        if taken < free && handed.ready == 0 {
            let sleep = sleep_for(handed.wake_in, shared.timing.poll_interval);
            pause(&shared, &mut *listener, sleep).await;
            // What else is ready to run goes first, and may bring more jobs to claim at once.
            tokio::task::yield_now().await;
        }
    }
}

/// Starts claimed jobs. Returns how to give back those that the worker takes on no more.
fn begin(shared: &Arc<Shared>, jobs: Vec<HandedJob>, claimed: Steady) -> Vec<Settlement> {
    let mut too_late = Vec::new();
    let mut all = Vec::with_capacity(jobs.len());
    for handed in jobs {
        let (job, token) = (handed.job.id, handed.lease.token);
        match prepare(shared, handed, claimed) {
            Some(begun) => all.push(begun),
            None => too_late.push(Settlement::new(job, token, Verdict::Release)),
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
