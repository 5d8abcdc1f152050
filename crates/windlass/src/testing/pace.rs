//! Letting an engine on virtual time run: until nothing happens at this moment, or until nothing
//! is left to do.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::job::StateName;
use windlass_core::ledger::{Counts, Ring};

use super::VirtualClock;
use crate::clock::Clock;
use crate::engine::Engine;

/// How long a job may run, in virtual time, before it is taken for one that never ends.
const RUN_MAX: Duration = Duration::from_secs(86_400);

/// How long nothing may happen, in virtual time, before what is ready is taken for stuck.
const STUCK_AFTER: Duration = Duration::from_secs(3_600);

/// How often each task is given its turn before everything is taken for quiet. A ring becomes a
/// claim, and an outcome becomes the next claim, in fewer.
const TURNS: usize = 8;

/// How running everything ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// No job is open.
    Done,
    /// Jobs are open, and nothing will ever happen to them by itself.
    Stuck,
    /// There was always more to do.
    Endless,
}

/// An engine, and the clock it runs on.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    pub(super) engine: Engine,
    pub(super) clock: Arc<VirtualClock>,
}

impl Pace {
    fn committed(&self) -> u64 {
        *self.engine.store().committed().borrow()
    }

    pub(super) async fn counts(&self) -> Counts {
        self.engine.counts().await.unwrap_or_else(|error| panic!("cannot count jobs: {error}"))
    }

    /// Lets every task run until nothing more happens, without letting time pass.
    pub(super) async fn quiet(&self) {
        let mut seen = self.committed();
        let mut turns = 0;
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        while turns < TURNS * (tasks() + 1) {
            tokio::task::yield_now().await;
            turns += 1;
            if self.committed() != seen {
                (seen, turns) = (self.committed(), 0);
            }
        }
    }

    /// Waits for the next commit, at most for so long. Says whether there was one.
    async fn commit_within(&self, patience: Duration) -> bool {
        let mut committed = self.engine.store().committed();
        committed.mark_unchanged();
        tokio::select! {
            biased;
            changed = committed.changed() => changed.is_ok(),
            () = self.clock.sleep(patience) => false,
        }
    }

    /// Lets jobs run until none runs and none can start now. Time passes only as far as handlers
    /// wait for it. Says whether that was ever so.
    pub(super) async fn until_idle(&self) -> bool {
        let began = self.clock.now().steady;
        loop {
            self.quiet().await;
            let counts = self.counts().await;
            if counts.in_state(StateName::Running) > 0 {
                self.commit_within(RUN_MAX).await;
                if self.clock.now().steady.since(began) >= RUN_MAX {
                    return false;
                }
                continue;
            }
            // A worker's timer is coarser than a due time: it is told to look.
            let queues = counts
                .queues
                .iter()
                .filter(|queue| counts.in_queue(queue.queue.as_str(), StateName::Ready) > 0);
            let rings: Vec<Ring> = queues.map(|queue| Ring::Queue(queue.queue.clone())).collect();
            if rings.is_empty() {
                return true;
            }
            let before = self.committed();
            self.engine.wake().ring(&rings).await;
            self.quiet().await;
            if self.committed() == before {
                return true;
            }
        }
    }

    /// Runs everything that is due within `horizon`, jumping from one due time to the next.
    pub(super) async fn until_done(&self, horizon: Duration) -> Ending {
        let began = self.clock.now().steady;
        loop {
            if !self.until_idle().await {
                return Ending::Endless;
            }
            let counts = self.counts().await;
            let open = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
            if open.map(|state| counts.in_state(state)).sum::<u64>() == 0 {
                return Ending::Done;
            }
            let left = horizon.saturating_sub(self.clock.now().steady.since(began));
            if left.is_zero() {
                return Ending::Endless;
            }
            let waits = counts.in_state(StateName::Scheduled) > 0;
            match self.next_due().await.filter(|_| waits) {
                // No lease is held, so nothing is missed on the way.
                Some(due) => tokio::time::advance(due.min(left)).await,
                None if self.commit_within(STUCK_AFTER.min(left)).await => {}
                None => return Ending::Stuck,
            }
        }
    }

    /// How long until something is due; at least a millisecond, the finest step of the clock.
    async fn next_due(&self) -> Option<Duration> {
        let promoted = self.engine.store().promote().await;
        let promoted = promoted.unwrap_or_else(|error| panic!("cannot ask what is due: {error}"));
        promoted.next_in.map(|due| due.max(Duration::from_millis(1)))
    }

    /// The jobs that are still open, and why, for whoever must know what does not end.
    pub(super) async fn open_jobs(&self) -> String {
        const SHOWN: usize = 10;
        let open = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
        let query = open.fold(self.engine.jobs(), |query, state| query.state(state));
        let mut text = String::new();
        let Ok(page) = query.page(None, SHOWN + 1).await else { return text };
        for record in page.jobs.iter().take(SHOWN) {
            let Ok(why) = self.engine.explain(record.id()).await else { continue };
            let _ = write!(text, "\n  `{}`: {why}", record.job.kind);
        }
        if page.jobs.len() > SHOWN || page.next.is_some() {
            text.push_str("\n  and more");
        }
        text
    }
}
