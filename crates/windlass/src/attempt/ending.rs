//! How an attempt is ended: by whom, which is decided once, and its task with it.

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

    /// The task that runs the attempt.
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
