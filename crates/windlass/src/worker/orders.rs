//! Saying that the worker lives, and obeying the orders that a store answers with.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::ledger::WorkerReport;
use windlass_core::reserved::WorkerOrder;

use super::life::Stage;
use super::shared::Shared;

/// How often a worker says that it lives: so soon it hears of an order, and far more often than a
/// store needs to take it for alive.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);

/// Says that the worker lives until it stops. A stop gives up a call that is on its way, so that no
/// news of a living worker comes after that it has ended.
pub(super) async fn heartbeat_loop(shared: Arc<Shared>) {
    let mut failures = 0;
    loop {
        let heard = async {
            shared.engine.clock().sleep(HEARTBEAT).await;
            // What it obeyed is said at once, so that others see it.
            while say_alive(&shared, &mut failures).await {}
        };
        tokio::select! {
            biased;
            () = shared.life.reached(Stage::Stopping) => return,
            () = heard => {}
        }
    }
}

/// Says that the worker lives and what it does. Says whether it does something else now.
async fn say_alive(shared: &Arc<Shared>, failures: &mut u32) -> bool {
    let alive = WorkerReport::Alive(shared.info());
    let heartbeat = shared.engine.store().heartbeat(shared.id.clone(), alive);
    match shared.ask("announce", heartbeat).await {
        Ok(answer) => {
            *failures = 0;
            obey(shared, answer.order)
        }
        Err(error) => {
            *failures += 1;
            shared.warn_again(&error, *failures, "a heartbeat");
            false
        }
    }
}

/// Does what a store ordered. Says whether the worker does something else now.
fn obey(shared: &Arc<Shared>, order: Option<WorkerOrder>) -> bool {
    let changed = match order {
        None => shared.life.set_quiet(false),
        Some(WorkerOrder::Quiet) => shared.life.set_quiet(true),
        Some(WorkerOrder::Stop) => {
            tracing::info!(worker = %shared.id, "stopping, as it was ordered to");
            shared.begin_stop(Stage::Stopping);
            return false;
        }
    };
    if changed {
        let quiet = shared.life.is_quiet();
        tracing::info!(worker = %shared.id, quiet, "doing as it was ordered to");
    }
    changed
}
