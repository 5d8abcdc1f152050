//! Settling: write what ended, everything that waits in one commit.

use std::sync::Arc;

use windlass_core::job::StateName;
use windlass_core::ledger::Settled;
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;
use windlass_core::worker::store_backoff;

use super::StopReport;
use super::judge::refused;
use super::life::Stage;
use super::run::take_turn_and_queue;
use super::settle_queue::{SettleBatch, Settling};
use super::shared::Shared;

type Answers = Vec<Result<Settled, Refusal>>;

/// Writes what ended, by two tasks, so that a second batch may go while the first is in flight.
pub(super) async fn settle_loop(shared: Arc<Shared>) {
    let [mut first, mut second] = shared.settle_queue.batches().await;
    tokio::join!(settle_task(&shared, &mut first), settle_task(&shared, &mut second));
}

/// Gathers what ended and settles it, until the worker has stopped.
async fn settle_task(shared: &Arc<Shared>, batch: &mut SettleBatch) {
    while shared.settle_queue.gather(batch, shared.life.reached(Stage::Stopped)).await {
        let in_flight = shared.settle_queue.send(batch);
        let answers = settle_batch(shared, batch).await;
        drop(in_flight);
        finish(shared, batch, answers);
    }
}

/// Settles a batch, again and again until the store answers. While it does not, the renew loop
/// cannot renew either, and the watch loop tells the attempts when their leases are over. `None` if
/// it is given up.
async fn settle_batch(shared: &Shared, batch: &SettleBatch) -> Option<Answers> {
    let mut failures = 0;
    loop {
        let settle = shared.engine.store().settle(batch.settlements());
        match shared.ask("settle", settle).await {
            Ok(answers) => return Some(answers),
            Err(error) => {
                failures += 1;
                shared.warn_again(&error, failures, "settling");
                if shared.life.gives_up_after(failures) {
                    return None;
                }
                shared.engine.clock().sleep(store_backoff(failures)).await;
            }
        }
    }
}

/// What becomes of an attempt after the store's answer.
enum AfterAnswer {
    /// It is settled, or lost.
    Done,
    /// It was made for a version of an object that is no longer its last, and takes its turn again.
    TurnAgain,
    /// The store refused what it returned, and takes that it failed instead.
    Refused(Refusal),
}

/// Counts what was settled and lets go of it. The rest is settled once more.
fn finish(shared: &Arc<Shared>, batch: &mut SettleBatch, answers: Option<Answers>) {
    let mut answers = answers.into_iter().flatten();
    let (mut done, mut again) = (Vec::new(), Vec::new());
    shared.life.count(|report| {
        for settling in batch.take() {
            match after_answer(&settling, answers.next(), report) {
                AfterAnswer::Done => done.push((settling.registered, settling.unsettled)),
                AfterAnswer::TurnAgain => again.push((settling, None)),
                AfterAnswer::Refused(refusal) => again.push((settling, Some(refusal))),
            }
        }
    });
    for (mut settling, refusal) in again {
        if let Some(refusal) = refusal {
            let report = std::mem::take(&mut settling.settlement.report);
            settling.settlement = refused(settling.registered.attempt(), report, &refusal);
            settling.refused = true;
        }
        let shared = shared.clone();
        tokio::spawn(async move { take_turn_and_queue(&shared, settling).await });
    }
    // Counted before it is let go of: whoever waits for the last one reads the count.
    drop(done);
}

fn after_answer(
    settling: &Settling,
    answer: Option<Result<Settled, Refusal>>,
    report: &mut StopReport,
) -> AfterAnswer {
    match answer {
        // Also if the handler completed it in a transaction of its own, and the settlement for when
        // that is not committed came after it.
        Some(Ok(Settled { state: StateName::Completed })) => report.count(Verdict::Complete),
        Some(Ok(_)) => report.count(settling.settlement.verdict),
        Some(Err(Refusal::LeaseLost { .. })) | None => report.lost += 1,
        Some(Err(Refusal::ObjectChanged { .. })) => return AfterAnswer::TurnAgain,
        Some(Err(_)) if settling.refused => report.lost += 1,
        Some(Err(refusal)) => return AfterAnswer::Refused(refusal),
    }
    AfterAnswer::Done
}
