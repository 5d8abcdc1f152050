//! The worker: it claims jobs, runs them, and settles what ended.
//!
//! Five loops work on four owners. `fill` claims jobs for free slots and sleeps until the next due
//! time or a ring; `watch` tells attempts whose time is up, and ends those that were told to stop
//! and do not; `settle` writes what ended, in batches; `renew` keeps leases alive, in batches, and
//! learns of cancellations; `orders` says that the worker lives and does what the store answers.
//! Each is supervised. What they have in common belongs to `slots`,
//! `leases`, `settle_queue` and `life`, each with an invariant of its own; the loops lock nothing
//! themselves. `run` is the way of one attempt between them. Rescue is the housekeeper's, so that
//! it does not depend on any worker.

mod builder;
mod fill;
mod judge;
mod leases;
mod life;
mod orders;
mod renew;
mod run;
mod settle;
mod settle_queue;
mod shared;
mod slots;
mod stop;
mod watch;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

pub use self::builder::WorkerBuilder;
use self::builder::check_slots;
pub(crate) use self::life::Stage;
pub(crate) use self::shared::Shared;
use crate::error::Error;

/// A running worker. Dropping the handle leaves it running until the runtime ends.
pub struct Worker {
    shared: Arc<Shared>,
}

impl Worker {
    /// Its id: its name and a suffix that no other worker has.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// How many jobs it may run at once.
    pub fn slots(&self) -> u32 {
        self.shared.slots.all()
    }

    /// How many jobs it runs now: it follows the number of ready jobs, from none to all slots.
    pub fn busy(&self) -> u32 {
        self.shared.slots.busy()
    }

    /// Whether it was ordered to take no jobs for now ([`StoreExt::order_worker`]).
    ///
    /// [`StoreExt::order_worker`]: crate::store::StoreExt::order_worker
    pub fn is_quiet(&self) -> bool {
        self.shared.life.is_quiet()
    }

    /// Changes how many jobs it may run at once. Jobs that run are not interrupted: with fewer
    /// slots than are in use, it takes no job until enough have ended.
    pub fn scale(&self, slots: u32) -> Result<(), Error> {
        check_slots(slots)?;
        self.shared.slots.scale(slots);
        Ok(())
    }

    /// Stops gracefully: takes no more jobs, waits for those that run, at most for the grace, then
    /// tells them to stop, then aborts them. What was interrupted goes back to its queue, the
    /// start uncounted. Calling it again, or calling [`Worker::stop_now`] meanwhile, is fine.
    pub async fn stop(&self) -> Result<StopReport, Error> {
        self.shared.begin_stop(Stage::Stopping);
        self.stopped().await
    }

    /// Stops without waiting: aborts what runs and gives it back to its queue, uncounted.
    pub async fn stop_now(&self) -> Result<StopReport, Error> {
        self.shared.begin_stop(Stage::Forced);
        self.stopped().await
    }

    /// Waits until the worker has stopped, by whatever cause.
    pub async fn stopped(&self) -> Result<StopReport, Error> {
        self.shared.end().await;
        self.shared.life.result()
    }

    /// Works until `signal` completes, then stops gracefully; if a second `signal` comes
    /// meanwhile, without waiting.
    ///
    /// ```no_run
    /// # async fn demo(worker: windlass::Worker) -> Result<(), windlass::Error> {
    /// let report = worker.run_until(|| async { tokio::signal::ctrl_c().await.ok(); }).await?;
    /// println!("{report}");
    /// # Ok(()) }
    /// ```
    pub async fn run_until<Fut: Future<Output = ()>>(
        self,
        signal: impl Fn() -> Fut,
    ) -> Result<StopReport, Error> {
        tokio::select! {
            biased;
            report = self.stopped() => return report,
            () = signal() => {}
        }
        tracing::info!(worker = self.id(), "stopping; signal again to stop at once");
        let stop = self.stop();
        tokio::pin!(stop);
        tokio::select! {
            biased;
            report = &mut stop => return report,
            () = signal() => {}
        }
        self.shared.begin_stop(Stage::Forced);
        stop.await
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({})", self.shared.id)
    }
}

/// What a worker did in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Jobs it completed.
    pub completed: u64,
    /// Attempts that failed and were, or were not, to be tried again.
    pub failed: u64,
    /// Attempts that asked for later.
    pub snoozed: u64,
    /// Jobs that were called off while it ran them.
    pub cancelled: u64,
    /// Jobs that were interrupted by the stop and went back to their queues.
    pub interrupted: u64,
    /// Attempts whose outcome did not count, because the lease was lost.
    pub lost: u64,
    /// Handlers that had not returned when the worker stopped, because they block.
    pub abandoned: u64,
}

impl fmt::Display for StopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} completed, {} failed, {} snoozed, {} cancelled, {} interrupted and given back, \
             {} lost their lease, {} abandoned",
            self.completed,
            self.failed,
            self.snoozed,
            self.cancelled,
            self.interrupted,
            self.lost,
            self.abandoned
        )
    }
}
