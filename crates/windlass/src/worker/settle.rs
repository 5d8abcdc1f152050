//! Settling: write what ended, everything that waits in one commit.

use std::sync::Arc;

use windlass_core::ledger::{Settled, Settlement};
use windlass_core::refusal::Refusal;
use windlass_core::worker::store_backoff;

use super::shared::{Registered, Settling, Shared, Stage, warn_again};
use crate::attempt::{refused, take_turn};

/// Most settlements in one commit.
const SETTLE_BATCH: usize = 2_000;

/// Writes what ended, everything that waits in one commit.
pub(super) async fn settle_loop(shared: Arc<Shared>) {
    let mut line = shared.settling.lock().await;
    loop {
        let line = &mut *line;
        // Not empty if the loop before this one crashed.
        if line.batch.is_empty() {
            tokio::select! {
                biased;
                received = line.waiting.recv_many(&mut line.batch, SETTLE_BATCH) => {
                    if received == 0 {
                        return;
                    }
                }
                () = shared.reached(Stage::Stopped) => return,
            }
            // What else is ready to run goes first, and may end too: one commit for all of it.
            tokio::task::yield_now().await;
            while line.batch.len() < SETTLE_BATCH
                && let Ok(another) = line.waiting.try_recv()
            {
                line.batch.push(another);
            }
        }
        let answers = settle_batch(&shared, &line.batch).await;
        finish(&shared, line.batch.drain(..), answers);
    }
}

/// Settles a batch, again and again until the store answers. While it does not, the renew loop
/// cannot renew either, and tells the attempts when their leases are over. `None` if it is given
/// up.
async fn settle_batch(
    shared: &Shared,
    batch: &[Settling],
) -> Option<Vec<Result<Settled, Refusal>>> {
    let mut failures = 0;
    loop {
        let settlements: Vec<Settlement> =
            batch.iter().map(|settling| settling.settlement.clone()).collect();
        match shared.ask("settle", shared.engine.store().settle(settlements)).await {
            Ok(answers) => return Some(answers),
            Err(error) => {
                failures += 1;
                warn_again(shared, &error, failures, "settling");
                if shared.stage() >= Stage::Forced && failures > 3 {
                    // The store is gone and so are we: the jobs are rescued when it is back.
                    return None;
                }
                shared.engine.clock().sleep(store_backoff(failures)).await;
            }
        }
    }
}

/// Counts what was settled and lets go of it. What the store refused is settled once more; so is
/// what was made for a version of an object that is no longer its last.
fn finish(
    shared: &Arc<Shared>,
    batch: impl Iterator<Item = Settling>,
    answers: Option<Vec<Result<Settled, Refusal>>>,
) {
    let (mut again, mut turned) = (Vec::new(), Vec::new());
    let mut done = Vec::new();
    let mut answers = answers.into_iter().flatten();
    shared.tally(|tally| {
        for settling in batch {
            match answers.next() {
                Some(Ok(_)) => tally.count(settling.settlement.verdict),
                Some(Err(Refusal::LeaseLost { .. }))
                    if settling.registered.0.completes_elsewhere() =>
                {
                    tally.count(windlass_core::outcome::Verdict::Complete);
                }
                Some(Err(Refusal::LeaseLost { .. })) | None => tally.lost += 1,
                Some(Err(Refusal::ObjectChanged { .. })) => {
                    turned.push(settling);
                    continue;
                }
                Some(Err(_)) if settling.refused => tally.lost += 1,
                Some(Err(refusal)) => {
                    again.push((settling, refusal));
                    continue;
                }
            }
            done.push((settling.registered, settling.slot));
        }
    });
    for (settling, refusal) in again {
        let Registered(attempt) = &settling.registered;
        let settlement = refused(attempt, settling.settlement.report, &refusal);
        turned.push(Settling { settlement, refused: true, ..settling });
    }
    for settling in turned {
        let shared = shared.clone();
        tokio::spawn(async move {
            if let Some(settling) = take_turn(settling).await {
                shared.settle(settling);
            }
        });
    }
    // Counted before it is let go of: whoever waits for the last one reads the count.
    drop(done);
}
