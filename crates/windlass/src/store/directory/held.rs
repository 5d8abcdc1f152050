//! What a process that has joined says it holds: leases that another process gave to its workers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use windlass_core::job::LeaseToken;
use windlass_core::ledger::Settled;
use windlass_core::refusal::Refusal;

use crate::store::ClaimedBatch;

/// How long claims whose answers have arrived are waited for before others are told what is held.
const CLAIMS_PATIENCE: Duration = Duration::from_secs(1);

/// The leases of jobs that were handed to workers of this process by another. Not part of the
/// contract: public for the simulation.
///
/// Answers: when the owner dies with the answer to a claim, nobody runs the jobs of that claim
/// until their leases end. Whoever owns the directory next does not know of the request.
/// Why not simpler: only this process knows what has arrived here. So it says so when it joins, and
/// everything else that its workers were given is given back.
/// Guarded by: `a_claim_whose_answer_died_with_the_owner_waits_for_no_lease` in
/// `tests/processes/joined.rs`, and the simulation.
#[derive(Debug, Default)]
pub struct HeldLeases {
    tokens: Mutex<Option<BTreeSet<LeaseToken>>>,
    /// Claims that were sent and whose answers are not in `tokens` yet.
    on_their_way: AtomicUsize,
    arrived: Notify,
}

impl HeldLeases {
    /// A process begins, and holds nothing.
    pub fn begin() -> Self {
        Self { tokens: Mutex::new(Some(BTreeSet::new())), ..Self::default() }
    }

    fn tokens(&self) -> MutexGuard<'_, Option<BTreeSet<LeaseToken>>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Jobs were handed to workers of this process.
    pub fn claimed(&self, claimed: &ClaimedBatch) {
        if let Some(tokens) = &mut *self.tokens() {
            tokens.extend(claimed.jobs.iter().map(|job| job.lease.token));
        }
    }

    /// Settlements under these tokens were answered like this. Whoever is refused for another
    /// reason than a lost lease goes on holding it, and settles again.
    pub fn settled(&self, tokens: &[LeaseToken], answers: &[Result<Settled, Refusal>]) {
        if let Some(held) = &mut *self.tokens() {
            for (token, answer) in tokens.iter().zip(answers) {
                if matches!(answer, Ok(_) | Err(Refusal::LeaseLost { .. })) {
                    held.remove(token);
                }
            }
        }
    }

    /// Leases are no longer counted: this process hands out its own.
    pub fn forget_all(&self) {
        *self.tokens() = None;
    }

    /// What is held, as far as answers have arrived; `None` if that is not known.
    pub fn known(&self) -> Option<BTreeSet<LeaseToken>> {
        self.tokens().clone()
    }

    /// What is held, when every answer that has arrived is among it; `None` if that is not known.
    pub(super) async fn all(&self) -> Option<BTreeSet<LeaseToken>> {
        let settled = async {
            loop {
                let arrived = self.arrived.notified();
                if self.on_their_way.load(Ordering::SeqCst) == 0 {
                    return;
                }
                arrived.await;
            }
        };
        tokio::time::timeout(CLAIMS_PATIENCE, settled).await.ok()?;
        self.known()
    }
}

/// A claim whose answer is on its way.
pub(super) struct ClaimOnItsWay<'a>(&'a HeldLeases);

impl<'a> ClaimOnItsWay<'a> {
    pub(super) fn begin(held: &'a HeldLeases) -> Self {
        held.on_their_way.fetch_add(1, Ordering::SeqCst);
        Self(held)
    }
}

impl Drop for ClaimOnItsWay<'_> {
    fn drop(&mut self) {
        self.0.on_their_way.fetch_sub(1, Ordering::SeqCst);
        self.0.arrived.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::job::{JobId, StateName};

    use super::*;

    #[test]
    fn whoever_is_refused_and_has_not_lost_its_lease_goes_on_holding_it() {
        let held = HeldLeases::begin();
        let tokens = [1, 2, 3].map(LeaseToken);
        *held.tokens() = Some(BTreeSet::from(tokens));
        let (job, state) = (JobId::from_u128(1), StateName::Completed);
        let refused = Refusal::StoreFull { why: "its disk".to_string() };
        let answers = [Ok(Settled { state }), Err(Refusal::LeaseLost { job }), Err(refused)];
        held.settled(&tokens, &answers);
        assert_eq!(held.known(), Some(BTreeSet::from([LeaseToken(3)])));
    }
}
