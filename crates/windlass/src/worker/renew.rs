//! Renewing: keep the leases of everything that runs, in one batch, with what handlers report.
//!
//! This loop waits for the store, and so it does not watch: the watch loop tells the attempts whose
//! leases end because no renewal was applied in time.

use std::sync::Arc;

use super::life::Stage;
use super::shared::Shared;
use crate::store::StoreError;
use crate::wake::Interest;

/// Keeps the leases of everything that runs, and learns what is to be cancelled.
pub(super) async fn renew_loop(shared: Arc<Shared>) {
    let mut cancels = shared.engine.wake().listen(Interest::Cancels);
    let leases = &shared.leases;
    let mut failures = 0;
    loop {
        let (next, urgent) = leases.plan_renewal(failures);
        let everything = tokio::select! {
            biased;
            () = shared.life.reached(Stage::Stopped) => return,
            () = cancels.heard() => {
                leases.hear_cancel();
                true
            }
            // After a failure reports wait for the next try, which comes soon.
            () = leases.reported(), if failures == 0 => false,
            () = leases.began() => match leases.may_be_cancelled() {
                true => true,
                false => continue,
            },
            () = shared.sleep(next) => false,
        };
        failures = match renew(&shared, everything || urgent).await {
            Ok(()) => 0,
            Err(error) => {
                let failures = failures + 1;
                shared.warn_again(&error, failures, "renewing");
                failures
            }
        };
    }
}

/// Renews in one batch what is due, or everything, and what has something to report.
async fn renew(shared: &Shared, everything: bool) -> Result<(), StoreError> {
    let mut batch = shared.leases.gather_renewals(everything).await;
    if batch.is_empty() {
        return Ok(());
    }
    let renew = shared.engine.store().renew(batch.take());
    batch.apply(shared.ask("renew", renew).await?);
    Ok(())
}
