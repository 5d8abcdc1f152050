//! The worker: fill, watch, settle, renew, stop.
//!
//! Four loops share one state. `fill` claims jobs for free slots and sleeps until the next due
//! time or a ring; `watch` tells attempts whose time is up, and ends those that were told to stop
//! and do not; `settle` writes what ended, in batches; `renew` keeps leases alive, in batches, and
//! learns of cancellations. Each is supervised. Rescue is the housekeeper's, so that it does not
//! depend on any worker.

mod fill;
mod renew;
mod settle;
mod shared;
mod stop;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
pub(crate) use shared::{RegisteredAttempt, Settling, Shared, Slot, Stage};
use tokio::sync::{Notify, mpsc};
use windlass_core::ledger::WorkerReport;
use windlass_core::name::Name;
use windlass_core::refusal::Refusal;
use windlass_core::worker::DEFAULT_SLOTS;

use self::shared::{SETTLE_LOOP, SettleQueue, SlotCounts};
use crate::attempt::Attempt;
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{self, Handler, Job, KindOptions, States};
use crate::middleware::Middleware;
use crate::primitives::worker_pool::{self, PoolParts, WorkerPool};
use crate::primitives::{self, Primitive};

/// A worker being put together.
#[must_use = "a worker does nothing until it is started"]
pub struct WorkerBuilder {
    engine: Engine,
    name: Option<String>,
    queues: Vec<String>,
    handlers: Vec<handler::RegisteredHandler>,
    states: States,
    layers: Vec<Box<dyn Middleware>>,
    slots: u32,
    timing: Timing,
    pools: Vec<PoolParts>,
    /// What is wrong with a definition it was given; told when it starts.
    wrong: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
struct Timing {
    poll_interval: Duration,
    grace: Duration,
    cancel_grace: Duration,
}

impl WorkerBuilder {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            name: None,
            queues: Vec::new(),
            handlers: Vec::new(),
            states: States::default(),
            layers: Vec::new(),
            slots: DEFAULT_SLOTS,
            timing: Timing {
                poll_interval: Duration::from_secs(5),
                grace: Duration::from_secs(30),
                cancel_grace: Duration::from_secs(1),
            },
            pools: Vec::new(),
            wrong: None,
        }
    }

    /// Runs jobs of one kind with this async function.
    ///
    /// It runs on any thread, so what it holds across an `await` must be `Send`. If it is not, the
    /// compiler says which value "cannot be sent between threads safely", and at which `await`:
    ///
    /// ```compile_fail,E0277
    /// # use serde::{Deserialize, Serialize};
    /// # use windlass::{Engine, Failure, Job};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Count;
    /// # impl Job for Count { const KIND: &'static str = "count"; type Output = u32; }
    /// async fn count(_: Count) -> Result<u32, Failure> {
    ///     let here = std::rc::Rc::new(1); // an `Arc` could be sent
    ///     tokio::task::yield_now().await;
    ///     Ok(*here)
    /// }
    /// # fn demo(engine: Engine) {
    /// let worker = engine.worker().handle(count);
    /// # }
    /// ```
    pub fn handle<A, H>(self, handler: H) -> Self
    where
        A: 'static,
        H: Handler<A> + Send + Sync + 'static,
        H::Future: Send,
    {
        self.handle_with(handler, |options| options)
    }

    /// Runs jobs of one kind with this async function, on terms of its own.
    pub fn handle_with<A, H>(
        mut self,
        handler: H,
        options: impl FnOnce(KindOptions) -> KindOptions,
    ) -> Self
    where
        A: 'static,
        H: Handler<A> + Send + Sync + 'static,
        H::Future: Send,
    {
        self.handlers
            .push(handler::RegisteredHandler::new(handler, options(KindOptions::default())));
        self
    }

    /// Runs jobs of one kind with this blocking function, on threads where it harms nobody. It
    /// cannot be aborted: look at [`Attempt::cancellation`] in long loops. Until it returns it
    /// holds its slot.
    pub fn handle_blocking<J, E, F>(self, handler: F) -> Self
    where
        J: Job,
        E: Into<Failure>,
        F: Fn(J, Attempt) -> Result<J::Output, E> + Send + Sync + 'static,
    {
        self.handle_blocking_with(handler, |options| options)
    }

    /// Like [`WorkerBuilder::handle_blocking`], on terms of its own.
    pub fn handle_blocking_with<J, E, F>(
        mut self,
        handler: F,
        options: impl FnOnce(KindOptions) -> KindOptions,
    ) -> Self
    where
        J: Job,
        E: Into<Failure>,
        F: Fn(J, Attempt) -> Result<J::Output, E> + Send + Sync + 'static,
    {
        self.handlers
            .push(handler::RegisteredHandler::blocking(handler, options(KindOptions::default())));
        self
    }

    /// Runs the objects of a definition: their code and their alarms.
    pub fn primitive<P: Primitive>(mut self, definition: P) -> Self {
        match primitives::handlers(definition) {
            Ok(handlers) => self.handlers.extend(handlers),
            Err(error) => self.wrong = self.wrong.or(Some(error)),
        }
        self
    }

    /// Runs the events of a pool, and its hooks.
    pub fn pool<E>(mut self, definition: &WorkerPool<E>) -> Self
    where
        E: Serialize + DeserializeOwned + Send + 'static,
    {
        match worker_pool::parts(definition) {
            Ok(mut parts) => {
                self.handlers.append(&mut parts.handlers);
                self.pools.push(parts);
            }
            Err(error) => self.wrong = self.wrong.or(Some(error)),
        }
        self
    }

    /// Shares a value with all handlers; one per type.
    pub fn state<S: Send + Sync + 'static>(self, state: S) -> Self {
        self.shared_state(Arc::new(state))
    }

    /// Shares a value that others hold too.
    pub(crate) fn shared_state<S: Send + Sync + 'static>(mut self, state: Arc<S>) -> Self {
        self.states.insert(state);
        self
    }

    /// Wraps every attempt. The first one added is the outermost; those of a kind
    /// ([`KindOptions::middleware`]) are inside of them.
    pub fn middleware(mut self, layer: impl Middleware) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// Takes jobs from this queue only; may be called several times. Without it, from all queues.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Runs up to so many jobs at once, as many as are ready; 10 by default. A slot is a task and
    /// costs nothing while it is not in use, so there is no lower bound to set.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// A name for logs and records. A unique suffix is always added, so two workers with the same
    /// name are not confused.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How long it sleeps at most when every ring is lost; 5 s by default.
    pub fn poll_interval(mut self, poll_interval: Duration) -> Self {
        self.timing.poll_interval = poll_interval;
        self
    }

    /// How long [`Worker::stop`] waits for running jobs; 30 s by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.timing.grace = grace;
        self
    }

    /// How long a handler that was told to stop has to return before it is aborted; 1 s by
    /// default.
    pub fn cancel_grace(mut self, cancel_grace: Duration) -> Self {
        self.timing.cancel_grace = cancel_grace;
        self
    }

    /// Checks everything and starts to take jobs. When it has returned, the worker is known to
    /// the store.
    pub async fn start(self) -> Result<Worker, Error> {
        let WorkerBuilder { engine, name, queues, handlers, states, layers, .. } = self;
        let WorkerBuilder { slots, timing, pools, wrong, .. } = self;
        wrong.map_or(Ok(()), Err)?;
        if engine.is_closing() {
            return Err(Error::Refused(Refusal::ShuttingDown));
        }
        check_slots(slots)?;
        check_timing(timing)?;
        for pool in &pools {
            pool.set_up(&engine).await?;
        }
        let (handlers, queues) = with_schedules(handlers, queues)?;
        let handlers = check_handlers(handlers, &states)?;
        let queues = queues.iter().map(|queue| Name::new(queue)).collect::<Result<Vec<_>, _>>()?;
        let name = Name::new(name.as_deref().unwrap_or("worker"))?;
        let suffix = uuid::Uuid::new_v4().simple().to_string();
        let id = format!("{name}-{}", &suffix[..12]);
        let (settle, waiting) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            id: id.into(),
            queues: (!queues.is_empty()).then_some(queues),
            terms: handlers.iter().map(|(kind, h)| h.options.terms(kind.clone())).collect(),
            handlers,
            states: Arc::new(states),
            layers: layers.into(),
            timing,
            slots: Mutex::new(SlotCounts { all: slots, busy: 0, asked: 0 }),
            running: Mutex::default(),
            filling: tokio::sync::RwLock::default(),
            renewing: tokio::sync::Mutex::default(),
            cancel_heard: AtomicU64::new(0),
            freed: Notify::new(),
            began: Notify::new(),
            told: Notify::new(),
            reported: Notify::new(),
            stage: tokio::sync::watch::Sender::new(Stage::Working),
            settle,
            settling: tokio::sync::Mutex::new(SettleQueue { waiting, batches: Default::default() }),
            ended: AtomicUsize::new(0),
            many_ended: Notify::new(),
            tally: Mutex::default(),
            engine,
        });
        let started = WorkerReport::Started(shared.info());
        let heartbeat = shared.engine.store().heartbeat(shared.id.clone(), started);
        shared.ask("announce", heartbeat).await?;
        shared.engine.adopt(&shared);
        shared.spawn("fill loop", fill::fill);
        shared.spawn("watch loop", watch::watch_loop);
        shared.spawn(SETTLE_LOOP, settle::settle_loop);
        shared.spawn("renew loop", renew::renew_loop);
        let worker = Worker { shared };
        // The engine may have been closed since the check above, before it knew of this worker.
        if worker.shared.engine.is_closing() {
            worker.stop_now().await?;
            return Err(Error::Refused(Refusal::ShuttingDown));
        }
        Ok(worker)
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.handlers.iter().map(|handler| &*handler.kind).collect();
        write!(f, "WorkerBuilder({kinds:?})")
    }
}

fn check_slots(slots: u32) -> Result<(), Error> {
    let (setting, allowed) = ("slots", "there must be at least 1");
    if slots > 0 {
        return Ok(());
    }
    Err(Error::InvalidSetting { setting, got: slots.to_string(), allowed })
}

fn check_timing(timing: Timing) -> Result<(), Error> {
    let (setting, allowed) = ("poll_interval", "it must be at least 1 ms");
    if timing.poll_interval >= Duration::from_millis(1) {
        return Ok(());
    }
    Err(Error::InvalidSetting { setting, got: format!("{:?}", timing.poll_interval), allowed })
}

/// Adds the alarms of schedules to what a worker takes, because no code of a user is needed for
/// them. One without any handler stays without.
fn with_schedules(
    mut handlers: Vec<handler::RegisteredHandler>,
    mut queues: Vec<String>,
) -> Result<(Vec<handler::RegisteredHandler>, Vec<String>), Error> {
    if !handlers.is_empty() {
        let (handler, queue) = primitives::register_schedules()?;
        handlers.push(handler);
        // Without a queue it takes from all of them.
        if !queues.is_empty() {
            queues.push(queue);
        }
    }
    Ok((handlers, queues))
}

fn check_handlers(
    handlers: Vec<handler::RegisteredHandler>,
    states: &States,
) -> Result<BTreeMap<Name, Arc<handler::RegisteredHandler>>, Error> {
    let mut checked = BTreeMap::new();
    for handler in handlers {
        let kind = Name::new(&handler.kind)?;
        handler.options.check()?;
        let missing = handler.needs.iter().find(|(state, _)| !states.contains(*state));
        if let Some((_, state)) = missing {
            return Err(Error::MissingState { kind, state });
        }
        if checked.insert(kind.clone(), Arc::new(handler)).is_some() {
            return Err(Error::DuplicateKind { kind });
        }
    }
    if checked.is_empty() {
        return Err(Error::NoHandler);
    }
    Ok(checked)
}

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
        self.shared.slots().all
    }

    /// How many jobs it runs now: it follows the number of ready jobs, from none to all slots.
    pub fn busy(&self) -> u32 {
        self.shared.slots().busy
    }

    /// Changes how many jobs it may run at once. Jobs that run are not interrupted: with fewer
    /// slots than are in use, it takes no job until enough have ended.
    pub fn scale(&self, slots: u32) -> Result<(), Error> {
        check_slots(slots)?;
        self.shared.slots().all = slots;
        self.shared.freed.notify_one();
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
        let report = self.shared.end().await;
        self.shared.failure().map_or(Ok(report), Err)
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
