//! A worker put together: its handlers and settings, checked when it starts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_core::ledger::WorkerReport;
use windlass_core::name::Name;
use windlass_core::refusal::Refusal;
use windlass_core::worker::DEFAULT_SLOTS;

use super::leases::Leases;
use super::life::Life;
use super::settle_queue::SettleQueue;
use super::shared::{SETTLE_LOOP, Shared, Timing};
use super::slots::Slots;
use super::{Worker, fill, orders, renew, settle, watch};
use crate::attempt::Attempt;
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{Handler, Job, KindOptions, RegisteredHandler, States};
use crate::middleware::Middleware;
use crate::primitives::worker_pool::{self, PoolParts, WorkerPool};
use crate::primitives::{self, Primitive};

/// A worker being put together.
#[must_use = "a worker does nothing until it is started"]
pub struct WorkerBuilder {
    engine: Engine,
    name: Option<String>,
    queues: Vec<String>,
    handlers: Vec<RegisteredHandler>,
    states: States,
    layers: Vec<Box<dyn Middleware>>,
    slots: u32,
    timing: Timing,
    pools: Vec<PoolParts>,
    /// What is wrong with a definition it was given; told when it starts.
    wrong: Option<Error>,
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
        self.handlers.push(RegisteredHandler::new(handler, options(KindOptions::default())));
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
        self.handlers.push(RegisteredHandler::blocking(handler, options(KindOptions::default())));
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
    pub async fn start(mut self) -> Result<Worker, Error> {
        self.wrong.take().map_or(Ok(()), Err)?;
        if self.engine.is_closing() {
            return Err(Error::Refused(Refusal::ShuttingDown));
        }
        check_slots(self.slots)?;
        check_timing(self.timing)?;
        for pool in &self.pools {
            pool.set_up(&self.engine).await?;
        }
        let shared = Arc::new(self.into_shared()?);
        let started = WorkerReport::Started(shared.info());
        let heartbeat = shared.engine.store().heartbeat(shared.id.clone(), started);
        shared.ask("announce", heartbeat).await?;
        shared.engine.adopt(&shared);
        shared.spawn("fill loop", fill::fill);
        shared.spawn("watch loop", watch::watch_loop);
        shared.spawn(SETTLE_LOOP, settle::settle_loop);
        shared.spawn("renew loop", renew::renew_loop);
        shared.spawn("heartbeat loop", orders::heartbeat_loop);
        let worker = Worker { shared };
        // The engine may have been closed since the check above, before it knew of this worker.
        if worker.shared.engine.is_closing() {
            worker.stop_now().await?;
            return Err(Error::Refused(Refusal::ShuttingDown));
        }
        Ok(worker)
    }

    fn into_shared(self) -> Result<Shared, Error> {
        let (handlers, queues) = with_schedules(self.handlers, self.queues)?;
        let handlers = check_handlers(handlers, &self.states)?;
        let queues = queues.iter().map(|queue| Name::new(queue)).collect::<Result<Vec<_>, _>>()?;
        let name = Name::new(self.name.as_deref().unwrap_or("worker"))?;
        let unique = uuid::Uuid::new_v4();
        let id = format!("{name}-{}", &unique.simple().to_string()[..12]);
        Ok(Shared {
            id: id.into(),
            requests: unique.as_u64_pair().0,
            next_request: AtomicU64::new(1),
            queues: (!queues.is_empty()).then_some(queues),
            terms: handlers.iter().map(|(kind, h)| h.options.terms(kind.clone())).collect(),
            handlers,
            states: Arc::new(self.states),
            layers: self.layers.into(),
            timing: self.timing,
            slots: Slots::new(self.slots),
            leases: Leases::new(self.engine.clock().clone()),
            settle_queue: SettleQueue::new(self.engine.info().shares_commits),
            life: Life::new(),
            engine: self.engine,
        })
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.handlers.iter().map(|handler| &*handler.kind).collect();
        write!(f, "WorkerBuilder({kinds:?})")
    }
}

pub(super) fn check_slots(slots: u32) -> Result<(), Error> {
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
    mut handlers: Vec<RegisteredHandler>,
    mut queues: Vec<String>,
) -> Result<(Vec<RegisteredHandler>, Vec<String>), Error> {
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
    handlers: Vec<RegisteredHandler>,
    states: &States,
) -> Result<BTreeMap<Name, Arc<RegisteredHandler>>, Error> {
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
