//! Settling: write what ended, everything that waits in one commit.
//!
//! Two hands do it, so that what ends while a commit is on its way need not wait for its answer.
//! The second goes only with enough to be worth a commit of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, Notify, mpsc};
use windlass_core::ledger::{Settled, Settlement};
use windlass_core::refusal::Refusal;
use windlass_core::worker::{is_worth_a_commit, store_backoff};

use super::shared::{RegisteredAttempt, SettleQueue, Settling, Shared, Stage, warn_again};
use crate::attempt::{refused, take_turn};

/// Most settlements in one commit.
const SETTLE_BATCH: usize = 2_000;

/// What the hands of a settle loop share.
struct SettleState<'a> {
    shared: &'a Arc<Shared>,
    /// Whoever holds it is the next to go.
    waiting: Mutex<&'a mut mpsc::UnboundedReceiver<Settling>>,
    /// How many hands have gone to the store and not come back.
    away: AtomicUsize,
    /// A hand came back.
    back: Notify,
}

/// Writes what ended, everything that waits in one commit.
pub(super) async fn settle_loop(shared: Arc<Shared>) {
    let mut line = shared.settling.lock().await;
    let SettleQueue { waiting, batches: [left, right] } = &mut *line;
    let waiting = Mutex::new(waiting);
    let desk =
        SettleState { shared: &shared, waiting, away: AtomicUsize::new(0), back: Notify::new() };
    tokio::join!(hand(&desk, left), hand(&desk, right));
}

/// Gathers what ended and settles it, until the worker has stopped.
async fn hand(desk: &SettleState<'_>, batch: &mut Vec<Settling>) {
    // Not empty if the loop before this one crashed.
    while !batch.is_empty() || gather(desk, batch).await {
        desk.away.fetch_add(1, Ordering::Relaxed);
        let answers = settle_batch(desk.shared, batch).await;
        desk.away.fetch_sub(1, Ordering::Relaxed);
        desk.back.notify_one();
        finish(desk.shared, batch.drain(..), answers);
    }
}

/// Waits for something to settle, and for more of it while another hand is away. `false` if
/// nothing comes any more.
async fn gather(desk: &SettleState<'_>, batch: &mut Vec<Settling>) -> bool {
    let mut waiting = desk.waiting.lock().await;
    tokio::select! {
        biased;
        received = waiting.recv_many(batch, SETTLE_BATCH) => {
            if received == 0 {
                return false;
            }
        }
        () = desk.shared.reached(Stage::Stopped) => return false,
    }
    // What else is ready to run goes first, and may end too: one commit for all of it.
    tokio::task::yield_now().await;
    loop {
        while batch.len() < SETTLE_BATCH
            && let Ok(another) = waiting.try_recv()
        {
            batch.push(another);
        }
        if is_worth_a_commit(batch.len(), desk.away.load(Ordering::Relaxed)) {
            desk.shared.ended.fetch_sub(batch.len(), Ordering::SeqCst);
            return true;
        }
        // Not woken by every one of them: mostly the other hand is back before there are many.
        tokio::select! {
            () = desk.back.notified() => {}
            () = desk.shared.many_ended.notified() => {}
        }
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
                if shared.gives_up_after(failures) {
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
        let RegisteredAttempt(attempt) = &settling.registered;
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
