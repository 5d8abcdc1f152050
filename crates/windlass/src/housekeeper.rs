//! Housekeeping, which no call asks for: jobs of lost workers are given back, old history leaves.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::ledger::{Recovery, Rescue};
use windlass_core::worker::store_backoff;

use crate::clock::Clock;
use crate::store::{Ownership, Store, StoreError};

/// The longest it sleeps: a lease that begins meanwhile lasts at least as long.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a round may take before it is begun anew: a store that hangs once must not keep the
/// jobs of lost workers for ever (`a_housekeeper_whose_store_hangs_once_recovers_jobs_afterwards`
/// in `tests/main/lost_leases.rs`).
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps a store in order until it is dropped.
pub(crate) async fn keep_house(store: Arc<dyn Store>, clock: Arc<dyn Clock>, recovery: Recovery) {
    let mut failures = 0;
    loop {
        let round = tokio::select! {
            biased;
            round = one_round(&*store, recovery) => round,
            () = clock.sleep(PATIENCE) => {
                let source = format!("no answer in {PATIENCE:?}").into();
                Err(StoreError::Unknown { doing: "keep house", source })
            }
        };
        let pause = match round {
            Ok(pause) => {
                failures = 0;
                pause
            }
            Err(error) => {
                failures += 1;
                tracing::warn!(%error, failures, "housekeeping will be tried again");
                store_backoff(failures)
            }
        };
        clock.sleep(pause).await;
    }
}

/// Does what is due and says how long to rest.
async fn one_round(store: &dyn Store, recovery: Recovery) -> Result<Duration, StoreError> {
    // Whoever owns a directory keeps it in order, with the directory's settings.
    let info = store.info();
    if matches!(info.ownership, Some(Ownership::Joined { .. } | Ownership::Seeking)) {
        return Ok(PAUSE_MAX);
    }
    let recovery = info.recovery.unwrap_or(recovery);
    let rescue = Rescue { recovery, reason: RecoveryReason::LeaseExpired };
    let rescued = store.rescue(rescue).await?;
    if !rescued.jobs.is_empty() {
        tracing::warn!(jobs = rescued.jobs.len(), "workers were lost; their jobs were recovered");
    }
    let promoted = store.promote().await?;
    if rescued.more || promoted.more {
        return Ok(Duration::ZERO);
    }
    let next = [rescued.next_in, promoted.next_in].into_iter().flatten().min();
    // At least a millisecond, so that a due time that is always a little ahead cannot spin.
    Ok(next.unwrap_or(PAUSE_MAX).clamp(Duration::from_millis(1), PAUSE_MAX))
}
