//! Workers as the ledger knows them: what they say of themselves, and whether they live.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Command, Effects, Ledger};
use crate::event::{EventKind, Subject};
use crate::name::Name;
use crate::outcome::ErrorText;
use crate::rate::Rate;
use crate::refusal::Refusal;
use crate::time::Steady;

/// A worker has news of itself.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Which worker.
    pub worker: Arc<str>,
    /// The news.
    pub news: WorkerReport,
}

/// What a worker says of itself.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum WorkerReport {
    /// It takes jobs.
    Started(WorkerInfo),
    /// It lives, and this is what it does now. Nothing is told of it.
    Alive(WorkerInfo),
    /// It takes no more jobs and finishes those it has.
    Stopping,
    /// It has ended.
    Stopped,
    /// A part of it crashed.
    Error(ErrorText),
}

/// What a worker is ready to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct WorkerInfo {
    /// From which queues it takes jobs; `None` for all.
    pub queues: Option<Vec<Name>>,
    /// Which kinds it handles.
    pub kinds: Vec<WorkerKind>,
    /// How many jobs it runs at once at most.
    pub slots: u32,
    /// It takes no jobs for now, because it was ordered not to.
    pub quiet: bool,
}

/// A kind a worker handles.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct WorkerKind {
    /// The kind.
    pub kind: Name,
    /// Most jobs of it running at once.
    pub concurrency: Option<u32>,
    /// How fast its jobs may start.
    pub rate: Option<Rate>,
}

/// A worker the ledger knows of. Not persisted: a worker that lives says so again.
#[derive(Clone, Debug)]
pub(super) struct WorkerState {
    pub(super) info: WorkerInfo,
    pub(super) seen: Steady,
    pub(super) stopping: bool,
}

/// A worker that asked for nothing for this long counts as gone. A live one claims every few
/// seconds.
pub(super) const WORKER_SILENCE: Duration = Duration::from_secs(60);

impl Command for Heartbeat {
    type Reply = ();

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<(), Refusal> {
        let seen = effects.now.steady;
        let what = match self.news {
            WorkerReport::Started(info) => {
                ledger
                    .workers
                    .insert(self.worker.clone(), WorkerState { info, seen, stopping: false });
                EventKind::WorkerStarted
            }
            WorkerReport::Alive(info) => {
                let stopping = ledger.workers.get(&self.worker).is_some_and(|old| old.stopping);
                ledger.workers.insert(self.worker.clone(), WorkerState { info, seen, stopping });
                ledger.keep_order(&self.worker, effects);
                return Ok(());
            }
            WorkerReport::Stopping => {
                if let Some(worker) = ledger.workers.get_mut(&self.worker) {
                    worker.stopping = true;
                }
                EventKind::WorkerStopping
            }
            WorkerReport::Stopped => {
                ledger.workers.remove(&self.worker);
                ledger.forget_order(&self.worker, effects);
                EventKind::WorkerStopped
            }
            WorkerReport::Error(error) => EventKind::WorkerError { error },
        };
        ledger.tell_of(Subject::Worker(self.worker), what, effects);
        Ok(())
    }
}

impl Ledger {
    pub(super) fn seen(&mut self, worker: &Arc<str>, now: Steady) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.seen = now;
        }
    }
}
