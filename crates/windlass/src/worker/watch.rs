//! Watching: tell attempts whose time is up, and end those that were told to stop and do not.
//!
//! One timer for all attempts of a worker, and none of them waits for it to be moved: it is moved
//! only by an attempt whose time is up sooner than the loop would look.

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
    // What has ended only waits to be settled.
    for running in book.attempts.values_mut().filter(|running| !running.attempt.has_ended()) {
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
    /// Tells it to stop if its time is up. When it must be looked at again: when its time is up,
    /// or when it has had enough time to obey.
    fn due(&mut self, now: Steady, grace: Duration, forced: bool) -> Option<Steady> {
        let cancellation = self.attempt.cancellation();
        if self.deadline.is_some_and(|deadline| deadline <= now) && !cancellation.is_cancelled() {
            self.attempt.tell(StopReason::Timeout);
        }
        match self.attempt.cancellation().reason() {
            None => self.deadline,
            Some(_) if forced => Some(now),
            Some(_) => Some(*self.patience.get_or_insert(now + grace)),
        }
    }
}
