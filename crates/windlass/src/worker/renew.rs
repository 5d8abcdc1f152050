//! Renewing: keep the leases of everything that runs, in one batch, with what handlers report.
//!
//! This loop waits for the store, and so it does not watch: the watch loop tells the attempts whose
//! leases end because no renewal was applied in time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use windlass_core::job::LeaseToken;
use windlass_core::ledger::Renewal;
use windlass_core::time::Steady;
use windlass_core::worker::{renew_every, store_backoff};

use super::shared::{Running, Shared, Stage, warn_again};
use crate::attempt::StopReason;
use crate::store::StoreError;
use crate::wake::Interest;

/// Keeps the leases of everything that runs, and learns what is to be cancelled.
pub(super) async fn renew_loop(shared: Arc<Shared>) {
    let mut cancels = shared.engine.wake().listen(Interest::Cancels);
    let mut failures = 0;
    loop {
        let (next, urgent) = next_renewal(&shared, failures);
        let everything = tokio::select! {
            biased;
            () = shared.reached(Stage::Stopped) => return,
            () = cancels.heard() => {
                shared.cancel_heard.store(shared.steady().as_micros() + 1, Ordering::SeqCst);
                true
            }
            // After a failure reports wait for the next try, which comes soon.
            () = shared.reported.notified(), if failures == 0 => false,
            // A job that was claimed before the last request to cancel may be the one it is for.
            () = shared.began.notified() => match claimed_before_cancel(&shared) {
                true => true,
                false => continue,
            },
            () = async {
                match next {
                    Some(wait) => shared.engine.clock().sleep(wait).await,
                    None => std::future::pending().await,
                }
            } => false,
        };
        failures = match renew(&shared, everything || urgent).await {
            Ok(()) => 0,
            Err(error) => {
                let failures = failures + 1;
                warn_again(&shared, &error, failures, "renewing");
                failures
            }
        };
    }
}

fn claimed_before_cancel(shared: &Shared) -> bool {
    let heard = shared.cancel_heard.load(Ordering::SeqCst);
    shared.running().attempts.values().any(|running| running.renewed.as_micros() < heard)
}

/// How long until the next lease is due for renewal; `None` if nothing runs. After a failure, soon
/// and for everything.
fn next_renewal(shared: &Shared, failures: u32) -> (Option<Duration>, bool) {
    let now = shared.steady();
    let mut book = shared.running();
    let (wait, everything) = until_renewal(&book.attempts, now, failures);
    book.renewal_at = wait.map(|wait| now + wait);
    (wait, everything)
}

fn until_renewal(
    running: &BTreeMap<LeaseToken, Running>,
    now: Steady,
    failures: u32,
) -> (Option<Duration>, bool) {
    let due = running
        .values()
        .filter(|running| !running.refused)
        .map(|running| renew_every(running.lease).saturating_sub(now.since(running.renewed)));
    match due.min() {
        Some(_) if failures > 0 => (Some(store_backoff(failures)), true),
        due => (due, false),
    }
}

/// Renews in one batch what is due, or everything, and what has something to report.
async fn renew(shared: &Shared, everything: bool) -> Result<(), StoreError> {
    let _renewing = shared.renewing.lock().await;
    // Before it is sent: a lease is as old as the question, however late the answer is.
    let now = shared.steady();
    let mut renewals = Vec::new();
    for (token, running) in shared.running().attempts.iter().filter(|(_, it)| !it.refused) {
        let report = running.attempt.send_report();
        let due = now.since(running.renewed) >= renew_every(running.lease);
        if everything || due || !report.is_empty() {
            let (job, token, lease) = (running.attempt.id(), *token, running.lease);
            renewals.push(Renewal { job, token, lease, report });
        }
    }
    if renewals.is_empty() {
        return Ok(());
    }
    let tokens: Vec<LeaseToken> = renewals.iter().map(|renewal| renewal.token).collect();
    let renew = shared.engine.store().renew(renewals);
    let answers = shared.ask("renew", renew).await?;
    let mut running = shared.running();
    for (token, answer) in tokens.into_iter().zip(answers) {
        let Some(running) = running.attempts.get_mut(&token) else { continue };
        match answer {
            Ok(renewed) => {
                running.renewed = running.renewed.max(now);
                running.attempt.report_is_written();
                if renewed.cancel_requested {
                    running.attempt.tell(StopReason::Cancelled);
                }
            }
            Err(_) => {
                running.refused = true;
                running.attempt.tell(StopReason::LeaseLost);
            }
        }
    }
    Ok(())
}
