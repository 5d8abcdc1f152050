//! Letting an engine on virtual time run: until nothing happens at this moment, or until nothing
//! is left to do.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::job::StateName;
use windlass_core::ledger::{Counts, Ring};
use windlass_core::name::Name;

use super::VirtualClock;
use crate::clock::Clock;
use crate::engine::Engine;

/// How long a job may run, in virtual time, before it is taken for one that never ends.
const RUN_MAX: Duration = Duration::from_secs(86_400);

/// How long nothing may happen, in virtual time, before what is ready is taken for stuck.
const STUCK_AFTER: Duration = Duration::from_secs(3_600);

/// How often each task is polled without a commit before everything is taken for quiet. Tokio does
/// not say whether a task could still run; from a ring to a claim, and from an outcome to the next
/// claim, it takes fewer. Guarded by `a_lab_runs_what_is_due_and_leaves_what_is_not` in
/// `tests/main/kit.rs`.
const TURNS: usize = 8;

/// How many events may happen, while time stands still, before there is no end to be hoped for.
const EVENTS_MAX: u64 = 100_000;

/// How running everything ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PaceEnd {
    /// No job is open.
    Done,
    /// Jobs are open, and nothing will ever happen to them by itself.
    Stuck,
    /// There was more to do when the time was over.
    Horizon,
}

/// Jobs do not come to rest, for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endless(pub(super) &'static str);

/// An engine, and the clock it runs on.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    pub(super) engine: Engine,
    pub(super) clock: Arc<VirtualClock>,
}

impl Pace {
    fn committed(&self) -> u64 {
        self.engine.store().info().last_event
    }

    async fn counts(&self) -> Counts {
        self.engine.counts().await.unwrap_or_else(|error| panic!("cannot count jobs: {error}"))
    }

    /// Lets every task run until nothing more happens, without letting time pass.
    async fn quiet(&self) -> Result<(), Endless> {
        let began = self.committed();
        let mut seen = began;
        let mut turns = 0;
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        while turns < TURNS * (tasks() + 1) {
            tokio::task::yield_now().await;
            turns += 1;
            if self.committed() != seen {
                (seen, turns) = (self.committed(), 0);
            }
            if seen - began > EVENTS_MAX {
                return Err(Endless("100,000 events have happened, and no time has passed"));
            }
        }
        Ok(())
    }

    /// Waits for the next commit, at most for so long. Says whether there was one.
    async fn commit_within(&self, patience: Duration) -> bool {
        let events = self.engine.store().events(self.committed(), 1, patience).await;
        events.is_ok_and(|events| !events.is_empty())
    }

    /// Lets jobs run until none runs and none can start now. Time passes only as far as handlers
    /// wait for it.
    pub(super) async fn until_idle(&self) -> Result<(), Endless> {
        let began = self.clock.now().steady;
        loop {
            self.quiet().await?;
            let counts = self.counts().await;
            if counts.in_state(StateName::Running) > 0 {
                self.commit_within(RUN_MAX).await;
                if self.clock.now().steady.since(began) >= RUN_MAX {
                    return Err(Endless("jobs have been running for a day"));
                }
                continue;
            }
            if !self.start_ready(&counts).await? {
                return Ok(());
            }
        }
    }

    /// Makes workers look for what is ready, because their timers are coarser than due times. Says
    /// whether anything came of it.
    async fn start_ready(&self, counts: &Counts) -> Result<bool, Endless> {
        let is_ready = |queue: &Name| counts.in_queue(queue.as_str(), StateName::Ready) > 0;
        let queues = counts.queues.iter().map(|queue| &queue.queue);
        let rings: Vec<Ring> = queues.filter(|q| is_ready(q)).cloned().map(Ring::Queue).collect();
        if rings.is_empty() {
            return Ok(false);
        }
        let before = self.committed();
        self.engine.wake().ring(&rings).await;
        self.quiet().await?;
        Ok(self.committed() != before)
    }

    /// Lets time pass.
    pub(super) async fn pass(&self, duration: Duration) -> Result<(), Endless> {
        let end = self.clock.now().steady + duration;
        loop {
            self.quiet().await?;
            let counts = self.counts().await;
            if self.start_ready(&counts).await? {
                continue;
            }
            let left = end.since(self.clock.now().steady);
            if left.is_zero() {
                return Ok(());
            }
            let busy = [StateName::Running, StateName::Ready].map(|state| counts.in_state(state));
            if busy == [0, 0] {
                let due = self.next_due().await.unwrap_or(left);
                tokio::time::advance(due.min(left)).await;
            } else {
                self.commit_within(left).await;
            }
        }
    }

    /// Runs everything that is due within `horizon`, jumping from one due time to the next.
    pub(super) async fn until_done(&self, horizon: Duration) -> Result<PaceEnd, Endless> {
        let began = self.clock.now().steady;
        loop {
            self.until_idle().await?;
            let counts = self.counts().await;
            let open = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
            if open.map(|state| counts.in_state(state)).sum::<u64>() == 0 {
                return Ok(PaceEnd::Done);
            }
            let left = horizon.saturating_sub(self.clock.now().steady.since(began));
            if left.is_zero() {
                return Ok(PaceEnd::Horizon);
            }
            let waits = counts.in_state(StateName::Scheduled) > 0;
            match self.next_due().await.filter(|_| waits) {
                // No lease is held, so nothing is missed on the way.
                Some(due) => tokio::time::advance(due.min(left)).await,
                None if self.commit_within(STUCK_AFTER.min(left)).await => {}
                None => return Ok(PaceEnd::Stuck),
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
