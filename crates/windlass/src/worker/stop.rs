//! Stopping: no new claims, wait for the grace, then tell, abort and give back.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::ledger::WorkerReport;

use super::StopReport;
use super::life::Stage;
use super::shared::{STORE_PATIENCE, Shared};

impl Shared {
    /// Begins to stop, once, on a task of its own: whoever asked may lose patience.
    pub(crate) fn begin_stop(self: &Arc<Self>, to: Stage) {
        if self.life.advance(to) == Stage::Working {
            tokio::spawn(bring_to_end(self.clone()));
        }
    }

    /// Waits until the worker has stopped, and says what it did.
    pub(crate) async fn end(&self) -> StopReport {
        self.life.reached(Stage::Stopped).await;
        self.life.report()
    }
}

/// Brings a worker to its end.
async fn bring_to_end(shared: Arc<Shared>) {
    shared.heartbeat(WorkerReport::Stopping).await;
    let clock = shared.engine.clock().clone();
    // When no claim is in flight any more, no further job will begin. A forced stop does not wait
    // for that; what is claimed too late is given back.
    tokio::select! {
        biased;
        () = shared.slots.claims_answered() => {}
        () = shared.life.forced() => {}
    }
    tokio::select! {
        biased;
        () = idle(&shared) => {}
        () = shared.life.forced() => {}
        () = clock.sleep(shared.timing.grace) => {}
    }
    // Every attempt now ends within the time a handler has to obey, and is settled. If the store
    // does not answer for long after that, we stop without it: it will rescue the jobs.
    tokio::select! {
        biased;
        () = settled(&shared) => {}
        () = clock.sleep(shared.timing.cancel_grace.saturating_add(STORE_PATIENCE)) => {
            shared.life.advance(Stage::Forced);
            settled(&shared).await;
        }
    }
    // What has settled gives its slot back a moment later; what blocks its thread does not.
    tokio::select! {
        biased;
        () = idle(&shared) => {}
        () = clock.sleep(Duration::from_millis(50)) => {}
    }
    let busy = u64::from(shared.slots.busy());
    shared.life.count(|report| report.abandoned = busy);
    shared.heartbeat(WorkerReport::Stopped).await;
    shared.life.advance(Stage::Stopped);
}

/// Waits until every slot is free.
async fn idle(shared: &Shared) {
    while shared.slots.busy() > 0 {
        look_again(shared, shared.slots.freed()).await;
    }
}

/// Tells every attempt to stop and waits until none holds a lease; from then on none is taken on.
/// Handlers that block may still run.
async fn settled(shared: &Shared) {
    while !shared.leases.stop_all() {
        look_again(shared, shared.leases.released()).await;
    }
}

/// Waits for a change, for 10 ms at most: others may wait for the same signal (the fill loop for
/// free slots), and it wakes only one of them.
async fn look_again(shared: &Shared, changed: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = changed => {}
        () = shared.engine.clock().sleep(Duration::from_millis(10)) => {}
    }
}
