//! Settling: write what ended, everything that waits in one commit.

use std::sync::Arc;

use windlass_core::job::JobId;
use windlass_core::ledger::Settlement;
use windlass_core::refusal::Refusal;
use windlass_core::worker::store_backoff;

use super::shared::{Settling, Shared, Stage, warn_again};

/// Most settlements in one commit.
const SETTLE_BATCH: usize = 1_000;

/// Writes what ended, everything that waits in one commit.
pub(super) async fn settle_loop(shared: Arc<Shared>) {
    let mut settling = shared.settling.lock().await;
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            received = settling.recv_many(&mut batch, SETTLE_BATCH) => {
                if received == 0 {
                    return;
                }
            }
            () = shared.reached(Stage::Stopped) => return,
        }
        settle_batch(&shared, batch).await;
    }
}

/// Settles a batch, again and again until the store answers. While it does not, the renew loop
/// cannot renew either, and tells the attempts when their leases are over.
async fn settle_batch(shared: &Shared, batch: Vec<Settling>) {
    let settlements: Vec<Settlement> =
        batch.iter().map(|settling| settling.settlement.clone()).collect();
    let mut failures = 0;
    let answers = loop {
        let settle = shared.engine.store().settle(settlements.clone());
        match shared.ask("settle", settle).await {
            Ok(answers) => break answers,
            Err(error) => {
                failures += 1;
                warn_again(shared, &error, failures, "settling");
                if shared.stage() >= Stage::Forced && failures > 3 {
                    // The store is gone and so are we: the jobs are rescued when it is back.
                    return answer_all(batch, |job| Err(Refusal::LeaseLost { job }));
                }
                shared.engine.clock().sleep(store_backoff(failures)).await;
            }
        }
    };
    for (settling, answer) in batch.into_iter().zip(answers) {
        // An attempt that no longer listens has been aborted with its worker.
        let _ = settling.answer.send(answer.map(drop));
    }
}

fn answer_all(batch: Vec<Settling>, answer: impl Fn(JobId) -> Result<(), Refusal>) {
    for settling in batch {
        let _ = settling.answer.send(answer(settling.settlement.job));
    }
}
