//! What a handler has reported and the store may not have: progress and log lines.
//!
//! A report goes with the next renewal. It is kept until the renewal is answered; if the attempt is
//! settled first, it is settled with this too, because a line that is kept twice is better than one
//! that is lost. Guarded by `every_fault_of_a_renewal_is_told_and_loses_nothing_else` in
//! `tests/main/worker_faults.rs` (the planted bug 57).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use windlass_core::record::Report;

#[derive(Default)]
pub(crate) struct Reports {
    said: Mutex<Said>,
    /// There was something; most attempts report nothing.
    any: AtomicBool,
}

#[derive(Default)]
struct Said {
    waiting: Report,
    /// Sent with a renewal that is not answered yet.
    sent: Option<Report>,
}

impl Reports {
    pub(super) fn add(&self, add: impl FnOnce(&mut Report)) {
        add(&mut self.said().waiting);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Whether the handler has reported anything so far.
    pub(crate) fn were_made(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// What nobody knows to be written, to be sent with a renewal. It is kept until
    /// [`Reports::are_written`].
    pub(crate) fn send(&self) -> Report {
        let report = self.take();
        if !report.is_empty() {
            self.said().sent = Some(report.clone());
        }
        report
    }

    /// What was sent is written.
    pub(crate) fn are_written(&self) {
        self.said().sent = None;
    }

    /// What nobody knows to be written, to be settled with.
    pub(crate) fn take(&self) -> Report {
        let mut said = self.said();
        if let Some(sent) = said.sent.take() {
            said.put_before(sent);
        }
        std::mem::take(&mut said.waiting)
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    fn put_before(&mut self, earlier: Report) {
        let since = std::mem::replace(&mut self.waiting, earlier);
        self.waiting.lines.extend(since.lines);
        self.waiting.lines_dropped = self.waiting.lines_dropped.saturating_add(since.lines_dropped);
        self.waiting.keep_last_lines();
        self.waiting.progress = since.progress.or(self.waiting.progress.take());
    }
}
