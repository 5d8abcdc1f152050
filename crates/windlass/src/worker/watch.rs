//! Watching: tell attempts whose time is up or whose lease is over, and end those that were told
//! to stop and do not.
//!
//! One timer for all attempts of a worker, and none of them waits for it to be moved: it is moved
//! only by an attempt whose time is up sooner than the loop would look.
//!
//! This loop never asks the store. A lease ends on this worker's own clock, counted from when its
//! last applied renewal was sent, so an attempt hears of it in time even while the renew loop waits
//! for a store that hangs.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::time::Steady;

use super::shared::{Running, Shared, Stage};
use crate::attempt::{StopReason, give_up};

/// Watches over everything that runs.
pub(super) async fn watch_loop(shared: Arc<Shared>) {
    loop {
        let next = look(&shared);
        let stage = shared.stage();
        tokio::select! {
            biased;
            () = shared.reached(Stage::Stopped) => return,
            () = shared.forced(), if stage < Stage::Forced => {}
            () = shared.told.notified() => {}
            () = async {
                match next {
                    Some(wait) => shared.engine.clock().sleep(wait).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

/// Does what is due, and says how long until the next time is up; `None` if nothing is waited for.
fn look(shared: &Shared) -> Option<Duration> {
    let forced = shared.stage() >= Stage::Forced;
    let now = shared.steady();
    let mut overdue = Vec::new();
    let mut book = shared.running();
    let mut next: Option<Steady> = None;
    for running in book.attempts.values_mut() {
        match running.due(now, shared.timing.cancel_grace, forced) {
            Some(due) if due <= now => overdue.push(running.attempt.clone()),
            Some(due) => next = Some(next.map_or(due, |next| next.min(due))),
            None => {}
        }
    }
    book.watch_at = next;
    drop(book);
    overdue.iter().for_each(give_up);
    next.map(|next| next.since(now))
}

impl Running {
    /// Tells it to stop if its lease is over or its time is up. When it must be looked at again:
    /// when either will be so, or when it has had enough time to obey.
    fn due(&mut self, now: Steady, grace: Duration, forced: bool) -> Option<Steady> {
        let lease_end = self.renewed + self.lease;
        // What has ended only waits to be settled, which takes its lease but no time of its own.
        let deadline = self.deadline.filter(|_| !self.attempt.has_ended());
        // The lease first: whoever has lost it must not fail the attempt as timed out.
        if lease_end <= now {
            self.attempt.tell(StopReason::LeaseLost);
        } else if deadline.is_some_and(|deadline| deadline <= now) {
            self.attempt.tell(StopReason::Timeout);
        }
        match self.attempt.cancellation().reason() {
            None => Some(deadline.map_or(lease_end, |deadline| deadline.min(lease_end))),
            Some(_) if self.attempt.has_ended() => None,
            Some(_) if forced => Some(now),
            Some(_) => Some(*self.patience.get_or_insert(now + grace)),
        }
    }
}
