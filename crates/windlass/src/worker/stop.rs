//! Stopping: no new claims, wait for the grace, then tell, abort and give back.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::ledger::WorkerReport;

use super::shared::{STORE_PATIENCE, Shared, Stage};
use crate::attempt::StopReason;

/// Brings a worker to its end.
pub(super) async fn bring_to_end(shared: Arc<Shared>) {
    shared.heartbeat(WorkerReport::Stopping).await;
    let clock = shared.engine.clock().clone();
    // No claim is on its way any more, so what runs is all there will be. A forced stop does not
    // wait for that; what is claimed too late is given back.
    tokio::select! {
        biased;
        _ = shared.filling.write() => {}
        () = shared.forced() => {}
    }
    tokio::select! {
        biased;
        () = idle(&shared) => {}
        () = shared.forced() => {}
        () = clock.sleep(shared.timing.grace) => {}
    }
    // Every attempt now ends within the time a handler has to obey, and is settled. If the store
    // does not answer for long after that, we stop without it: it will rescue the jobs.
    tokio::select! {
        biased;
        () = settled(&shared) => {}
        () = clock.sleep(shared.timing.cancel_grace.saturating_add(STORE_PATIENCE)) => {
            shared.advance(Stage::Forced);
            settled(&shared).await;
        }
    }
    // What has settled gives its slot back a moment later; what blocks its thread does not.
    tokio::select! {
        biased;
        () = idle(&shared) => {}
        () = clock.sleep(Duration::from_millis(50)) => {}
    }
    let busy = u64::from(shared.slots().busy);
    shared.tally(|tally| tally.abandoned = busy);
    shared.heartbeat(WorkerReport::Stopped).await;
    shared.advance(Stage::Stopped);
}

/// Waits until every slot is free.
async fn idle(shared: &Shared) {
    wait_until(shared, || shared.slots().busy == 0).await;
}

/// Tells every attempt to stop and waits until none holds a lease; from then on none is taken on.
/// Handlers that block may still run.
async fn settled(shared: &Shared) {
    let done = || {
        let mut running = shared.running();
        for running in running.attempts.values() {
            running.attempt.tell(StopReason::Shutdown);
        }
        running.closed = running.attempts.is_empty();
        running.closed
    };
    wait_until(shared, done).await;
}

async fn wait_until(shared: &Shared, done: impl Fn() -> bool) {
    while !done() {
        // Looking again by itself: several may wait, and one signal wakes only one of them.
        tokio::select! {
            biased;
            () = shared.freed.notified() => {}
            () = shared.engine.clock().sleep(Duration::from_millis(10)) => {}
        }
    }
}
