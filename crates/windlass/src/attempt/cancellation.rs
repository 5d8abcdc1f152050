//! Why an attempt should stop, and how its handler hears of it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use super::AttemptInner;

/// Why an attempt should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It has run for as long as it may.
    Timeout,
    /// Someone asked for the job to be cancelled.
    Cancelled,
    /// The store has given the job to someone else, or will; nothing this attempt does counts.
    LeaseLost,
    /// The worker is stopping and its grace is over.
    Shutdown,
}

/// Tells a handler that it should stop, and why.
#[derive(Clone)]
pub struct Cancellation {
    /// All of the attempt: one allocation, which every attempt needs, is enough for both.
    attempt: Arc<AttemptInner>,
}

impl Cancellation {
    pub(super) fn of(attempt: Arc<AttemptInner>) -> Self {
        Self { attempt }
    }

    pub(super) fn inner(&self) -> &AttemptInner {
        &self.attempt
    }

    /// Why to stop, if there is a reason.
    pub fn reason(&self) -> Option<StopReason> {
        self.attempt.stop.reason.get().copied()
    }

    /// Whether to stop. For handlers that loop without waiting.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Waits until there is a reason to stop.
    pub async fn cancelled(&self) -> StopReason {
        let stop = &self.attempt.stop;
        loop {
            // Made before looking: what changes in between is heard.
            let changed = stop.changed.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            if stop.over.load(Ordering::SeqCst) {
                // The worker is done with it; nobody is left to say why.
                return StopReason::Shutdown;
            }
            changed.await;
        }
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancellation({:?})", self.reason())
    }
}

/// Whether and why an attempt is to stop. The first reason counts.
#[derive(Default)]
pub(super) struct Stop {
    reason: OnceLock<StopReason>,
    /// There is a reason, or there will never be one.
    changed: Notify,
    /// The attempt has been settled, or given up.
    over: AtomicBool,
}

impl Stop {
    /// Whether that is news.
    pub(super) fn tell(&self, reason: StopReason) -> bool {
        let first = self.reason.set(reason).is_ok();
        if first {
            self.changed.notify_waiters();
        }
        first
    }

    /// Nobody will tell a reason any more.
    pub(super) fn let_go(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}
