//! Who ends an attempt, which is decided once, and how its task is ended.
//!
//! Answers: its task, because the handler returned, and the watch loop, because it did not obey,
//! may end an attempt at the same moment; and so may the end of its task by a panic of our own.
//! Why not simpler: the store would refuse the second settlement by its token. But what a handler
//! has reported and its next jobs can be taken only once, and the attempt would be counted twice.
//! So whoever takes the right first settles, and the others do nothing.
//! Guarded by: `a_handler_that_ignores_cancellation_is_aborted_and_the_job_settled` and
//! `a_timeout_fails_the_attempt_frees_the_slot_and_ignores_the_late_result` in
//! `tests/main/worker.rs`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

#[derive(Default)]
pub(crate) struct Ending {
    /// Somebody took it on themselves to settle the attempt.
    taken: AtomicBool,
    task: OnceLock<AbortHandle>,
    /// The task is to end, even if it is not known yet.
    aborted: AtomicBool,
}

impl Ending {
    /// Takes the right and the duty to settle the attempt. `false` if somebody else has them.
    pub(crate) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// The task that runs the attempt. It may run, and be aborted, before it is known here: each of
    /// the two writes first and then looks at what the other has written.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        let task = self.task.get_or_init(|| task);
        if self.aborted.load(Ordering::SeqCst) {
            task.abort();
        }
    }

    /// Ends the task at its next await.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}
