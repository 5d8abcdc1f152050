//! The life of a worker: which stage it has reached, and what it has done so far.
//!
//! Invariant: the stage only ever advances, and everybody who waits for a stage hears of it; so
//! does whoever waits for the end of a quiet time, which comes and goes while it works. What
//! ended is counted before the attempt lets go of its lease, so that whoever has waited for the
//! last lease reads the whole count.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use windlass_core::outcome::Verdict;

use super::StopReport;
use crate::error::Error;

/// The stages of a worker's life, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Working,
    Stopping,
    Forced,
    Stopped,
}

pub(super) struct Life {
    stage: watch::Sender<Stage>,
    /// It was ordered to claim nothing.
    quiet: watch::Sender<bool>,
    ends: Mutex<EndCounts>,
}

#[derive(Debug, Default)]
struct EndCounts {
    report: StopReport,
    /// Why it could not go on.
    failure: Option<String>,
}

impl Life {
    pub(super) fn new() -> Self {
        let stage = watch::Sender::new(Stage::Working);
        Self { stage, quiet: watch::Sender::new(false), ends: Mutex::default() }
    }

    pub(super) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Moves on to a later stage, never back, and returns the stage before.
    pub(super) fn advance(&self, to: Stage) -> Stage {
        let mut before = to;
        self.stage.send_if_modified(|stage| {
            before = *stage;
            *stage = to.max(before);
            *stage > before
        });
        before
    }

    pub(super) async fn reached(&self, stage: Stage) {
        // The sender is part of `self`, so it cannot be gone.
        let _ = self.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    /// Whether it may claim jobs: it neither stops nor is quiet.
    pub(super) fn may_claim(&self) -> bool {
        self.stage() == Stage::Working && !self.is_quiet()
    }

    pub(super) fn is_quiet(&self) -> bool {
        *self.quiet.borrow()
    }

    /// Makes it quiet, or lets it claim again. Says whether it was otherwise before.
    pub(super) fn set_quiet(&self, quiet: bool) -> bool {
        self.quiet.send_if_modified(|before| std::mem::replace(before, quiet) != quiet)
    }

    /// Waits until it is not quiet.
    pub(super) async fn resumed(&self) {
        // The sender is part of `self`, so it cannot be gone.
        let _ = self.quiet.subscribe().wait_for(|quiet| !quiet).await;
    }

    /// Waits until the worker is told to stop without waiting.
    pub(super) async fn forced(&self) {
        self.reached(Stage::Forced).await;
    }

    /// Whether a call that failed so often is to be given up: the store is gone and so are we. The
    /// job is rescued when it is back.
    pub(super) fn gives_up_after(&self, failures: u32) -> bool {
        self.stage() >= Stage::Forced && failures > 3
    }

    /// Counts what ended.
    pub(super) fn count(&self, count: impl FnOnce(&mut StopReport)) {
        count(&mut self.ends().report);
    }

    pub(super) fn fail(&self, why: String) {
        self.ends().failure = Some(why);
    }

    /// What it has done, or why it could not go on.
    pub(super) fn result(&self) -> Result<StopReport, Error> {
        let ends = self.ends();
        let failure = ends.failure.clone().map(|why| Error::WorkerFailed { why });
        failure.map_or(Ok(ends.report), Err)
    }

    pub(super) fn report(&self) -> StopReport {
        self.ends().report
    }

    fn ends(&self) -> MutexGuard<'_, EndCounts> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StopReport {
    pub(super) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Complete => self.completed += 1,
            Verdict::Retry(_) | Verdict::Bury(_) => self.failed += 1,
            Verdict::Snooze(_) => self.snoozed += 1,
            Verdict::Release => self.interrupted += 1,
            Verdict::Cancel(_) => self.cancelled += 1,
        }
    }
}
