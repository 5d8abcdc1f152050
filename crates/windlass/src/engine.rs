//! Open, wire together, close: the one file that knows every part.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle};
use windlass_core::audit::Actor;
use windlass_core::ledger::{QueueChange, Recovery};
use windlass_core::limits::{self, Limits};
use windlass_core::name::Name;

use crate::clock::{Clock, SystemClock};
use crate::error::Error;
use crate::events::{Subscription, Topics};
use crate::housekeeper::keep_house;
use crate::outcomes::{Waiters, look_up, pump, remind};
use crate::primitives::{Objects, Primitive, TurnLocks};
use crate::store::file::{FileOptions, LedgerOptions};
use crate::store::{
    Address, CommitPath, DirectoryOptions, DirectoryStore, Durability, LedgerStore, MemoryStore,
    OpenDirectory, Opened, Sharing, Store, StoreInfo,
};
use crate::supervise::supervise;
use crate::wake::{LocalWake, Wake};
use crate::worker::{Shared, Stage, StopReport, WorkerBuilder};

/// The job engine: enqueue, inspect and control jobs, and start workers.
///
/// A cheap handle that can be cloned and shared. It has no type parameters, whatever the store.
/// When the last handle and the last worker are gone, its background tasks end.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineInner>,
    /// Who acts through this handle; `None` for the program itself.
    actor: Option<Actor>,
}

struct EngineInner {
    store: Arc<dyn Store>,
    /// What the store said of itself when the engine was made: what does not change.
    info: StoreInfo,
    wake: Arc<dyn Wake>,
    clock: Arc<dyn Clock>,
    waiters: Arc<Waiters>,
    closing: AtomicBool,
    workers: Mutex<Vec<Weak<Shared>>>,
    turn_locks: TurnLocks,
    /// Settings that this engine has seen to.
    set_up: Mutex<BTreeMap<Name, Vec<QueueChange>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl EngineInner {
    /// Ends the background tasks; those that are returned may be in the middle of a step.
    fn abort_tasks(&self) -> Vec<JoinHandle<()>> {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.iter().for_each(JoinHandle::abort);
        tasks
    }
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        self.abort_tasks();
    }
}

impl Engine {
    /// Opens the store at `address` with default settings: a path such as `./jobs` keeps jobs in
    /// that directory, durably; `postgres://host/database` keeps them in a database that many
    /// processes share (with the feature `postgres`); `https://host:7878` is a Windlass server that
    /// keeps them (with the feature `remote`); `memory:` keeps them for as long as the process
    /// lives.
    ///
    /// A directory is made if need be. If another process has it open, this one joins it, and all
    /// works as if it were alone; when that one is gone, one of the others takes over
    /// ([`EngineBuilder::sharing`]). Jobs that were running in processes that are gone have been
    /// recovered when this returns, and [`Engine::opened`] tells which, if this process owns the
    /// directory.
    ///
    /// Must be called within a tokio runtime; background tasks start here.
    pub async fn open(address: &str) -> Result<Engine, Error> {
        Self::builder().open(address).await
    }

    /// An engine with settings of its own.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// The same engine, for somebody: what is changed through this handle, and through whatever it
    /// hands out, is written down with who did it, in the commit that changes it. That is
    /// cancelling, moving, replaying and removing jobs, what is done to queues, commands to objects
    /// and orders to workers; enqueues are not. [`StoreExt::audit`] lists it.
    ///
    /// ```
    /// # use windlass::{Actor, Engine, Error, JobId};
    /// # async fn demo(engine: Engine, job: JobId) -> Result<(), Error> {
    /// let anna = engine.acting_as(Actor::new("anna")?.from("10.0.0.7")?);
    /// anna.cancel(job).await?;
    /// anna.queue("mail")?.pause().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// [`StoreExt::audit`]: crate::store::StoreExt::audit
    pub fn acting_as(&self, actor: Actor) -> Engine {
        Engine { inner: self.inner.clone(), actor: Some(actor) }
    }

    /// Who acts through this handle; `None` for the program itself.
    pub fn actor(&self) -> Option<Actor> {
        self.actor.clone()
    }

    /// A worker for this engine, to be given handlers and started.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.clone())
    }

    /// Subscribes to events from now on. Complete when it returns.
    ///
    /// A topic that no event can have, such as `job.complete`, is refused, and the nearest one
    /// named.
    pub fn subscribe(&self, topics: Topics) -> Result<Subscription, Error> {
        self.subscribe_after(topics, None)
    }

    /// Subscribes to events after number `after`, as far as they are still kept; with `None`, to
    /// events from now on. Refuses as [`Engine::subscribe`] does.
    pub fn subscribe_after(
        &self,
        topics: Topics,
        after: Option<u64>,
    ) -> Result<Subscription, Error> {
        Ok(Subscription::new(self.store().clone(), self.clock().clone(), topics, after)?)
    }

    /// Calls `callback` for every event from now on, on a task of its own, until the returned
    /// guard is dropped. A callback that panics is reported and called again for the next event.
    /// Refuses as [`Engine::subscribe`] does.
    pub fn on_event(
        &self,
        topics: Topics,
        callback: impl Fn(crate::events::Received) + Send + Sync + 'static,
    ) -> Result<Subscribed, Error> {
        let mut subscription = self.subscribe(topics)?;
        let task = tokio::spawn(async move {
            loop {
                let heard = subscription.next().await;
                if let Err(panic) = crate::panics::catch(|| callback(heard)) {
                    tracing::error!(panic, "an event subscriber failed");
                }
            }
        });
        Ok(Subscribed { task: task.abort_handle() })
    }

    /// Refuses new jobs, stops every worker gracefully, and ends the background tasks.
    ///
    /// Jobs that were interrupted go back to their queues, uncounted.
    pub async fn close(&self) -> Vec<StopReport> {
        self.inner.closing.store(true, Ordering::SeqCst);
        let workers = self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut reports = Vec::new();
        let workers: Vec<Arc<Shared>> = workers.iter().filter_map(Weak::upgrade).collect();
        // All of them first: none may take jobs while another finishes.
        workers.iter().for_each(|worker| worker.begin_stop(Stage::Stopping));
        for worker in workers {
            reports.push(worker.end().await);
        }
        // A task ends at its next pause. One that asked a store that is closed would warn of it.
        for task in self.inner.abort_tasks() {
            let _aborted = task.await;
        }
        self.inner.waiters.close();
        self.inner.store.close().await;
        self.inner.wake.flush().await;
        reports
    }

    /// Whether [`Engine::close`] was called.
    pub fn is_closing(&self) -> bool {
        self.inner.closing.load(Ordering::SeqCst)
    }

    /// What was found and recovered when the store was opened; `None` for a store without files.
    pub fn opened(&self) -> Option<&Opened> {
        self.inner.info.opened.as_deref()
    }

    /// What the store said of itself when it was opened.
    pub(crate) fn info(&self) -> &StoreInfo {
        &self.inner.info
    }

    /// What an answer means when the power fails.
    pub fn durability(&self) -> Durability {
        self.inner.info.durability
    }

    /// The store, for what the engine does not offer itself.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// What workers of this engine are woken by.
    pub fn wake(&self) -> &Arc<dyn Wake> {
        &self.inner.wake
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// The objects of a definition.
    pub fn objects<'a, P: Primitive>(&'a self, definition: &'a P) -> Objects<'a, P> {
        Objects::new(self, definition)
    }

    /// Whether these settings of a queue were written by this engine.
    pub(crate) fn is_set_up(&self, queue: &Name, settings: &[QueueChange]) -> bool {
        let set_up = self.inner.set_up.lock().unwrap_or_else(PoisonError::into_inner);
        set_up.get(queue).is_some_and(|known| known == settings)
    }

    pub(crate) fn note_set_up(&self, queue: &Name, settings: Vec<QueueChange>) {
        let mut set_up = self.inner.set_up.lock().unwrap_or_else(PoisonError::into_inner);
        set_up.insert(queue.clone(), settings);
    }

    pub(crate) fn turn_locks(&self) -> &TurnLocks {
        &self.inner.turn_locks
    }

    pub(crate) fn waiters(&self) -> &Arc<Waiters> {
        &self.inner.waiters
    }

    pub(crate) fn adopt(&self, worker: &Arc<Shared>) {
        let mut workers = self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(worker));
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({:?})", self.inner.store)
    }
}

/// Keeps an event callback subscribed; dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscribed {
    task: AbortHandle,
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Settings of an engine.
#[derive(Debug, Default)]
pub struct EngineBuilder {
    limits: Limits,
    recovery: Recovery,
    clock: Option<Arc<dyn Clock>>,
    wake: Option<Arc<dyn Wake>>,
    durability: Option<Durability>,
    sharing: Sharing,
    #[cfg(feature = "remote")]
    token: Option<Result<crate::wire::http::Token, crate::wire::http::InvalidToken>>,
    #[cfg(feature = "remote")]
    root_certificate: Option<Vec<u8>>,
}

impl EngineBuilder {
    /// When a file store may answer: once it is on stable storage ([`Durability::Sync`], the
    /// default), or earlier ([`Durability::Relaxed`]), at the price of what the power takes.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// How the engine takes part in a directory that other processes may have open: by default it
    /// owns the directory if nobody does, else joins whoever does, and takes over when that one is
    /// gone.
    ///
    /// Limits, recovery and durability belong to the directory: those of whoever opened it while
    /// nobody else had it open.
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// The bounds that may be moved.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// What to do about jobs whose worker was lost.
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = recovery;
        self
    }

    /// Where time comes from.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How workers are woken.
    pub fn wake(mut self, wake: Arc<dyn Wake>) -> Self {
        self.wake = Some(wake);
        self
    }

    /// What a Windlass server is told to be let in. Without it, the variable `WINDLASS_TOKEN` is
    /// looked at. It is never printed. What cannot be a token
    /// ([`Token::new`](crate::wire::http::Token::new)) is refused when a server is opened.
    #[cfg(feature = "remote")]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(crate::wire::http::Token::new(token));
        self
    }

    /// The root, as PEM, by which the certificate of a Windlass server is known. Without it, it is
    /// the roots of this machine.
    #[cfg(feature = "remote")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// Opens the store at `address`.
    pub async fn open(self, address: &str) -> Result<Engine, Error> {
        self.check()?;
        let clock = self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::new()));
        let local = || self.wake.clone().unwrap_or_else(|| Arc::new(LocalWake::new()));
        match address.parse()? {
            Address::Memory => {
                let wake = local();
                let store = MemoryStore::new(self.limits.clone(), clock.clone(), wake.clone());
                Ok(self.start_on_ledger(store, wake, clock))
            }
            Address::Directory(path) => self.open_directory(&path).await,
            Address::Postgres(address) => {
                let (store, wake) = self.open_postgres(&address).await?;
                Ok(self.start(Waiters::new(store), wake, clock))
            }
            Address::Http(address) => {
                let (store, wake) = self.open_http(&address).await?;
                Ok(self.start(Waiters::new(store), wake, clock))
            }
        }
    }

    /// Starts on a store that tells its events itself.
    fn start_on_ledger<P: CommitPath>(
        self,
        store: LedgerStore<P>,
        wake: Arc<dyn Wake>,
        clock: Arc<dyn Clock>,
    ) -> Engine {
        let store = Arc::new(store);
        let waiters = Waiters::told_by(store.clone(), |waiters| store.listen(waiters));
        self.start(waiters, wake, clock)
    }

    /// Opens a database, with wakes over it unless there are others.
    #[cfg(feature = "postgres")]
    async fn open_postgres(&self, address: &str) -> Result<(Arc<dyn Store>, Arc<dyn Wake>), Error> {
        use crate::store::postgres::{PostgresAddress, PostgresStore};
        let address: PostgresAddress = address.parse()?;
        let wake: Arc<dyn Wake> = match &self.wake {
            Some(wake) => wake.clone(),
            None => Arc::new(crate::wake::PostgresWake::of(&address).await?),
        };
        let store = PostgresStore::open(&address, self.limits.clone(), wake.clone()).await?;
        Ok((Arc::new(store), wake))
    }

    #[cfg(not(feature = "postgres"))]
    async fn open_postgres(
        &self,
        _address: &str,
    ) -> Result<(Arc<dyn Store>, Arc<dyn Wake>), Error> {
        Err(Error::NoPostgres)
    }

    /// Reaches a server, with wakes over it unless there are others.
    #[cfg(feature = "remote")]
    async fn open_http(&self, address: &str) -> Result<(Arc<dyn Store>, Arc<dyn Wake>), Error> {
        use crate::wire::http::{HttpOptions, open};
        let token = self.token.clone().transpose();
        let token = token.map_err(|error| Error::ServerAddress { why: error.to_string() })?;
        let options = HttpOptions { token, root_certificate: self.root_certificate.clone() };
        let (store, wake) = open(address, &options).await?;
        let wake = self.wake.clone().unwrap_or_else(|| Arc::new(wake));
        Ok((Arc::new(store), wake))
    }

    #[cfg(not(feature = "remote"))]
    async fn open_http(&self, _address: &str) -> Result<(Arc<dyn Store>, Arc<dyn Wake>), Error> {
        Err(Error::NoRemote)
    }

    /// Opens a directory, or joins the process that has it open.
    async fn open_directory(self, path: &Path) -> Result<Engine, Error> {
        let ledger = LedgerOptions {
            limits: self.limits.clone(),
            recovery: self.recovery,
            ..LedgerOptions::default()
        };
        let options = DirectoryOptions {
            file: FileOptions { ledger, durability: self.durability.unwrap_or(Durability::Sync) },
            sharing: self.sharing,
            clock: self.clock.clone(),
            wake: self.wake.clone(),
        };
        let OpenDirectory { store, clock, wake } = DirectoryStore::open(path, options).await?;
        let waiters = Waiters::told_by(store.clone(), |waiters| store.listen(waiters));
        Ok(self.start(waiters, wake, clock))
    }

    /// Runs an engine on a store of your own. The store must ring the same wake, and tell the same
    /// time, as this engine. Limits are the store's own; those of this builder are not used.
    pub fn on_store(
        self,
        store: Arc<dyn Store>,
        wake: Arc<dyn Wake>,
        clock: Arc<dyn Clock>,
    ) -> Result<Engine, Error> {
        self.check()?;
        Ok(self.start(Waiters::new(store), wake, clock))
    }

    fn check(&self) -> Result<(), Error> {
        let invalid =
            |setting, got: String, allowed| Err(Error::InvalidSetting { setting, got, allowed });
        let (payload, recovery) = (self.limits.payload_bytes, self.recovery);
        if payload == 0 || payload > limits::PAYLOAD_BYTES_MAX {
            return invalid("payload_bytes", payload.to_string(), "it must be 1 to 16 MiB");
        }
        if self.limits.dead_letters == 0 {
            return invalid("dead_letters", "0".into(), "it must be at least 1");
        }
        if recovery.max_recoveries == 0 {
            return invalid("max_recoveries", "0".into(), "it must be at least 1");
        }
        if recovery.delay > Duration::from_secs(3_600) {
            let got = format!("{:?}", recovery.delay);
            return invalid("recovery delay", got, "it must be at most an hour");
        }
        Ok(())
    }

    fn start(self, waiters: Arc<Waiters>, wake: Arc<dyn Wake>, clock: Arc<dyn Clock>) -> Engine {
        crate::panics::watch();
        let store = waiters.store().clone();
        let recovery = self.recovery;
        let housekeeper = {
            let (store, clock) = (store.clone(), clock.clone());
            tokio::spawn(async move {
                let keep = || keep_house(store.clone(), clock.clone(), recovery);
                keep_up("housekeeper", clock.clone(), keep).await;
            })
        };
        let teller = {
            let (store, clock, waiters) = (store.clone(), clock.clone(), waiters.clone());
            tokio::spawn(async move {
                loop {
                    // Which of the two it is changes when another process takes a store over.
                    let tell = || look_up(clock.clone(), waiters.clone());
                    tokio::select! {
                        () = keep_up("event listener", clock.clone(), tell) => {}
                        () = waiters.source_is(false) => {}
                    }
                    let tell = || pump(store.clone(), clock.clone(), waiters.clone());
                    tokio::select! {
                        () = keep_up("event pump", clock.clone(), tell) => {}
                        () = waiters.source_is(true) => {}
                    }
                }
            })
        };
        let reminder = {
            let (clock, waiters) = (clock.clone(), waiters.clone());
            tokio::spawn(async move {
                let remind = || remind(clock.clone(), waiters.clone());
                keep_up("reminder", clock.clone(), remind).await;
            })
        };
        let inner = EngineInner {
            info: store.info(),
            store,
            wake,
            clock,
            waiters,
            closing: AtomicBool::new(false),
            workers: Mutex::default(),
            turn_locks: TurnLocks::default(),
            set_up: Mutex::default(),
            tasks: Mutex::new(vec![housekeeper, teller, reminder]),
        };
        Engine { inner: Arc::new(inner), actor: None }
    }
}

/// Keeps a part of the engine running for as long as the engine lives: what no worker can do
/// without is never given up, only tried less often.
async fn keep_up<Fut>(
    part: &'static str,
    clock: Arc<dyn Clock>,
    make: impl Fn() -> Fut + Send + Sync,
) where
    Fut: Future<Output = ()> + Send + 'static,
{
    const REST: Duration = Duration::from_secs(10);
    while let Err(why) = supervise(part, clock.clone(), |_| {}, &make).await {
        tracing::error!(why, "tried again in {REST:?}");
        clock.sleep(REST).await;
    }
}
