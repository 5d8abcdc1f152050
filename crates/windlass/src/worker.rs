//! The worker: rescue, fill, wait.
//!
//! Three loops share one state. `fill` claims jobs for free slots and sleeps until the next due
//! time or a ring; `settle` writes what ended, in batches; `renew` keeps leases alive, in batches,
//! and learns of cancellations. Each is supervised. Rescue is the housekeeper's, so that it does
//! not depend on any worker.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use windlass_core::job::{JobId, LeaseToken};
use windlass_core::ledger::{
    Claim, KindClaim, Renewal, Settlement, WorkerCard, WorkerKind, WorkerNews,
};
use windlass_core::name::Name;
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::refusal::Refusal;
use windlass_core::time::Steady;
use windlass_core::worker::{Slots, renew_every, sleep_for, store_backoff};

use crate::attempt::{Attempt, StopReason, begin, conduct};
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{self, Handler, Job, KindOptions, States};
use crate::middleware::Middleware;
use crate::store::{Answer, StoreError};
use crate::supervise::supervise;
use crate::wake::{Interest, Listener};

/// A worker being put together.
#[must_use = "a worker does nothing until it is started"]
pub struct WorkerBuilder {
    engine: Engine,
    name: Option<String>,
    queues: Vec<String>,
    handlers: Vec<handler::Registered>,
    states: States,
    layers: Vec<Box<dyn Middleware>>,
    slots: Slots,
    timing: Timing,
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
            slots: Slots::default(),
            timing: Timing {
                poll_interval: Duration::from_secs(5),
                grace: Duration::from_secs(30),
                cancel_grace: Duration::from_secs(1),
            },
        }
    }

    /// Runs jobs of one kind with this async function.
    pub fn handle<A: 'static, H: Handler<A>>(self, handler: H) -> Self {
        self.handle_with(handler, |options| options)
    }

    /// Runs jobs of one kind with this async function, on terms of its own.
    pub fn handle_with<A: 'static, H: Handler<A>>(
        mut self,
        handler: H,
        options: impl FnOnce(KindOptions) -> KindOptions,
    ) -> Self {
        self.handlers.push(handler::Registered::new(handler, options(KindOptions::default())));
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
        self.handlers.push(handler::Registered::blocking(handler, options(KindOptions::default())));
        self
    }

    /// Shares a value with all handlers; one per type.
    pub fn state<S: Send + Sync + 'static>(mut self, state: S) -> Self {
        self.states.insert(state);
        self
    }

    /// Wraps every attempt. The first one added is the outermost.
    pub fn middleware(mut self, layer: impl Middleware) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// Takes jobs from this queue only; may be called several times. Without it, from all queues.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Runs up to `max` jobs at once, as many as are ready; 10 by default. A slot is a task and
    /// costs nothing while it is not in use; `min` of them, 1 by default, are shown as open even
    /// when idle.
    pub fn slots(mut self, min: u32, max: u32) -> Self {
        self.slots = Slots { min, max };
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
        let WorkerBuilder { engine, name, queues, handlers, states, layers, slots, timing } = self;
        if engine.is_closing() {
            return Err(Error::Refused(Refusal::ShuttingDown));
        }
        check_timing(slots, timing)?;
        let handlers = check_handlers(handlers, &states)?;
        let queues = queues.iter().map(|queue| Name::new(queue)).collect::<Result<Vec<_>, _>>()?;
        let name = Name::new(name.as_deref().unwrap_or("worker"))?;
        let suffix = uuid::Uuid::new_v4().simple().to_string();
        let id = format!("{name}-{}", &suffix[..12]);
        let (settle, settling) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            id: id.into(),
            queues: (!queues.is_empty()).then_some(queues),
            terms: handlers.iter().map(|(kind, h)| h.options.terms(kind.clone())).collect(),
            handlers,
            states: Arc::new(states),
            layers: layers.into(),
            timing,
            slots: Mutex::new(SlotBook { bounds: slots, open: slots.min, busy: 0 }),
            running: Mutex::default(),
            filling: tokio::sync::Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
            cancel_heard: AtomicU64::new(0),
            freed: Notify::new(),
            began: Notify::new(),
            reported: Arc::new(Notify::new()),
            stage: watch::Sender::new(Stage::Working),
            settle,
            settling: tokio::sync::Mutex::new(settling),
            tally: Mutex::default(),
            engine,
        });
        let started = WorkerNews::Started(shared.card());
        shared.engine.store().announce(shared.id.clone(), started).await?;
        shared.engine.adopt(&shared);
        shared.spawn("fill loop", fill);
        shared.spawn(SETTLE_LOOP, settle_loop);
        shared.spawn("renew loop", renew_loop);
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
        let kinds: Vec<_> = self.handlers.iter().map(|handler| handler.kind).collect();
        write!(f, "WorkerBuilder({kinds:?})")
    }
}

fn check_timing(slots: Slots, timing: Timing) -> Result<(), Error> {
    let invalid =
        |setting, got: String, allowed| Err(Error::InvalidSetting { setting, got, allowed });
    if slots.max == 0 || slots.min > slots.max {
        let got = format!("{} to {}", slots.min, slots.max);
        return invalid("slots", got, "max must be at least 1 and not below min");
    }
    if timing.poll_interval < Duration::from_millis(1) {
        let got = format!("{:?}", timing.poll_interval);
        return invalid("poll_interval", got, "it must be at least 1 ms");
    }
    Ok(())
}

fn check_handlers(
    handlers: Vec<handler::Registered>,
    states: &States,
) -> Result<BTreeMap<Name, Arc<handler::Registered>>, Error> {
    let mut checked = BTreeMap::new();
    for handler in handlers {
        let kind = Name::new(handler.kind)?;
        handler.options.check()?;
        if let Some((state, name)) = handler.needs
            && !states.contains(state)
        {
            return Err(Error::MissingState { kind, state: name });
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

    /// How many slots it has open now, between its bounds.
    pub fn slots(&self) -> u32 {
        self.shared.slots().open
    }

    /// How many jobs it runs now.
    pub fn busy(&self) -> u32 {
        self.shared.slots().busy
    }

    /// Changes the bounds of its slots. Jobs that run are not interrupted.
    pub fn scale(&self, min: u32, max: u32) -> Result<(), Error> {
        let bounds = Slots { min, max };
        check_timing(bounds, self.shared.timing)?;
        {
            let mut slots = self.shared.slots();
            slots.bounds = bounds;
            slots.open = slots.open.clamp(min, max).max(slots.busy);
        }
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

/// Where a worker is on its way to the end. Only ever advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Working,
    Stopping,
    Forced,
    Stopped,
}

/// What the loops of one worker share.
pub(crate) struct Shared {
    engine: Engine,
    id: Arc<str>,
    queues: Option<Vec<Name>>,
    handlers: BTreeMap<Name, Arc<handler::Registered>>,
    terms: Vec<KindClaim>,
    states: Arc<States>,
    layers: Arc<[Box<dyn Middleware>]>,
    timing: Timing,
    slots: Mutex<SlotBook>,
    running: Mutex<RunningBook>,
    /// Held while a claim is on its way, so that a stop knows that none is.
    filling: tokio::sync::Mutex<()>,
    /// Held while reports are on their way, so that a settlement comes after them.
    renewing: tokio::sync::Mutex<()>,
    /// Just after the last request to cancel was heard of, in microseconds of the steady clock; 0
    /// if none was.
    cancel_heard: AtomicU64,
    /// A slot became free, or the bounds changed, or no job runs any more.
    freed: Notify,
    /// A job began.
    began: Notify,
    /// A handler has something to report.
    reported: Arc<Notify>,
    stage: watch::Sender<Stage>,
    settle: mpsc::UnboundedSender<Settling>,
    settling: tokio::sync::Mutex<mpsc::UnboundedReceiver<Settling>>,
    tally: Mutex<Tally>,
}

#[derive(Clone, Copy, Debug)]
struct SlotBook {
    bounds: Slots,
    open: u32,
    busy: u32,
}

/// The attempts that hold a lease, until the worker has stopped and takes no more.
#[derive(Default)]
struct RunningBook {
    attempts: BTreeMap<LeaseToken, Running>,
    closed: bool,
}

/// An attempt that holds a lease.
struct Running {
    attempt: Attempt,
    stop: watch::Sender<Option<StopReason>>,
    lease: Duration,
    renewed: Steady,
}

/// One of a worker's slots, in use until this is dropped: however an attempt ends, even by a
/// panic of our own, its slot is given back.
pub(crate) struct Slot(Arc<Shared>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.slots().busy -= 1;
        self.0.freed.notify_one();
    }
}

/// An attempt that the worker knows of until this is dropped: however it ends, its lease is not
/// renewed for ever.
pub(crate) struct Registered {
    shared: Arc<Shared>,
    token: LeaseToken,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.running().attempts.remove(&self.token);
        self.shared.freed.notify_one();
    }
}

struct Settling {
    settlement: Settlement,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    completed: u64,
    failed: u64,
    snoozed: u64,
    cancelled: u64,
    interrupted: u64,
    pub(crate) lost: u64,
    abandoned: u64,
    failure: Option<String>,
}

impl Tally {
    fn report(&self) -> StopReport {
        StopReport {
            completed: self.completed,
            failed: self.failed,
            snoozed: self.snoozed,
            cancelled: self.cancelled,
            interrupted: self.interrupted,
            lost: self.lost,
            abandoned: self.abandoned,
        }
    }
}

impl Shared {
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn states(&self) -> &Arc<States> {
        &self.states
    }

    pub(crate) fn layers(&self) -> Arc<[Box<dyn Middleware>]> {
        self.layers.clone()
    }

    pub(crate) fn reported(&self) -> &Arc<Notify> {
        &self.reported
    }

    pub(crate) fn cancel_grace(&self) -> Duration {
        self.timing.cancel_grace
    }

    pub(crate) fn handler(&self, kind: &Name) -> Option<Arc<handler::Registered>> {
        self.handlers.get(kind).cloned()
    }

    pub(crate) fn tally(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn count(&self, verdict: Verdict) {
        self.tally(|tally| match verdict {
            Verdict::Complete => tally.completed += 1,
            Verdict::Retry(_) | Verdict::Bury(_) => tally.failed += 1,
            Verdict::Snooze(_) => tally.snoozed += 1,
            Verdict::Release => tally.interrupted += 1,
            Verdict::Cancel(_) => tally.cancelled += 1,
        });
    }

    fn failure(&self) -> Option<Error> {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.failure.clone().map(|why| Error::WorkerFailed { why })
    }

    fn slots(&self) -> MutexGuard<'_, SlotBook> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, RunningBook> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steady(&self) -> Steady {
        self.engine.clock().now().steady
    }

    /// Takes an attempt on, unless the worker has stopped. Its lease is as old as the claim.
    pub(crate) fn register(
        self: &Arc<Self>,
        attempt: &Attempt,
        stop: watch::Sender<Option<StopReason>>,
        lease: Duration,
        claimed: Steady,
    ) -> Option<Registered> {
        let running = Running { attempt: attempt.clone(), stop, lease, renewed: claimed };
        let mut book = self.running();
        if book.closed {
            return None;
        }
        book.attempts.insert(attempt.token(), running);
        drop(book);
        self.began.notify_one();
        Some(Registered { shared: self.clone(), token: attempt.token() })
    }

    /// Waits for reports that are on their way.
    pub(crate) async fn reports_written(&self) {
        drop(self.renewing.lock().await);
    }

    /// Asks the store, but not for ever: a store that hangs must not hang the worker.
    async fn ask<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Answer<T>>,
    ) -> Answer<T> {
        let clock = self.engine.clock();
        let forced = async {
            self.forced().await;
            clock.sleep(FORCED_PATIENCE).await;
        };
        // Made only when it is waited for: most answers are there at once.
        let late = async { clock.sleep(STORE_PATIENCE).await };
        let patience = tokio::select! {
            biased;
            answer = call => return answer,
            () = forced => FORCED_PATIENCE,
            () = late => STORE_PATIENCE,
        };
        Err(StoreError::Unknown { doing, source: format!("no answer in {patience:?}").into() })
    }

    /// Begins to stop, once, on a task of its own: whoever asked may lose patience.
    pub(crate) fn begin_stop(self: &Arc<Self>, to: Stage) {
        let mut first = false;
        self.stage.send_if_modified(|stage| {
            first = *stage == Stage::Working;
            let later = to > *stage;
            *stage = to.max(*stage);
            later
        });
        if first {
            tokio::spawn(bring_to_end(self.clone()));
        }
    }

    /// Waits until the worker has stopped, and says what it did.
    pub(crate) async fn end(&self) -> StopReport {
        self.reached(Stage::Stopped).await;
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).report()
    }

    fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    fn advance(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let later = to > *stage;
            *stage = to.max(*stage);
            later
        });
    }

    async fn reached(&self, stage: Stage) {
        // The sender is part of `self`, so it cannot be gone.
        let _ = self.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    /// Waits until the worker is told to stop without waiting.
    pub(crate) async fn forced(&self) {
        self.reached(Stage::Forced).await;
    }

    fn card(&self) -> WorkerCard {
        let kinds = self.terms.iter().map(|terms| WorkerKind {
            kind: terms.kind.clone(),
            concurrency: terms.concurrency,
            rate: terms.rate,
        });
        let slots = self.slots().bounds.max;
        WorkerCard { queues: self.queues.clone(), kinds: kinds.collect(), slots }
    }

    async fn announce(&self, news: WorkerNews) {
        let announce = self.engine.store().announce(self.id.clone(), news);
        if let Err(error) = self.ask("announce", announce).await {
            tracing::warn!(worker = %self.id, %error, "the store did not take the news");
        }
    }

    /// Hands a settlement to the settle loop and waits for the store's answer.
    pub(crate) async fn settle(&self, settlement: Settlement) -> Result<(), Refusal> {
        loop {
            let (answer, answered) = oneshot::channel();
            let job = settlement.job;
            if self.settle.send(Settling { settlement: settlement.clone(), answer }).is_err() {
                return Err(Refusal::LeaseLost { job });
            }
            // Without an answer the loop crashed with the settlement in its hands. It is safe to
            // repeat: if it was applied, it is refused as lost.
            if let Ok(answer) = answered.await {
                return answer;
            }
        }
    }

    /// Runs one loop under supervision. If it is given up, the worker stops.
    fn spawn<Fut>(self: &Arc<Self>, part: &'static str, make: fn(Arc<Shared>) -> Fut)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let shared = self.clone();
        tokio::spawn(async move {
            let clock = shared.engine.clock().clone();
            let on_crash = |crash: &str| {
                let (shared, error) = (shared.clone(), ErrorText::new(crash));
                tokio::spawn(async move { shared.announce(WorkerNews::Error(error)).await });
            };
            let run = || make(shared.clone());
            let ended = supervise(part, clock, on_crash, run).await;
            if part == SETTLE_LOOP {
                shared.abandon_settlements().await;
            }
            if let Err(why) = ended {
                tracing::error!(worker = %shared.id, why, "the worker stops");
                shared.tally(|tally| tally.failure = Some(why));
                shared.begin_stop(Stage::Forced);
            }
        });
    }

    /// Nobody settles any more: attempts that wait for an answer are told that they lost.
    async fn abandon_settlements(&self) {
        let mut settling = self.settling.lock().await;
        settling.close();
        while settling.try_recv().is_ok() {}
    }
}

/// Claims jobs for free slots, and sleeps when there are none to claim.
async fn fill(shared: Arc<Shared>) {
    let interest = Interest::Queues(shared.queues.clone());
    // Listening before the first claim: what comes in between is heard.
    let mut listener = shared.engine.wake().listen(interest);
    let mut failures = 0;
    while shared.stage() == Stage::Working {
        let free = {
            let slots = shared.slots();
            slots.bounds.max.saturating_sub(slots.busy)
        };
        if free == 0 {
            tokio::select! {
                biased;
                () = shared.reached(Stage::Stopping) => {}
                () = shared.freed.notified() => {}
            }
            continue;
        }
        let filling = shared.filling.lock().await;
        if shared.stage() != Stage::Working {
            break;
        }
        let asked = shared.steady();
        let claim = Claim {
            worker: shared.id.clone(),
            queues: shared.queues.clone(),
            kinds: shared.terms.clone(),
            limit: free as usize,
        };
        let handed = match shared.ask("claim", shared.engine.store().claim(claim)).await {
            Ok(handed) => handed,
            Err(error) => {
                drop(filling);
                failures += 1;
                warn_again(&shared, &error, failures, "claiming");
                // Rings do not help here: the store must answer first.
                tokio::select! {
                    biased;
                    () = shared.reached(Stage::Stopping) => {}
                    () = shared.engine.clock().sleep(store_backoff(failures)) => {}
                }
                continue;
            }
        };
        failures = 0;
        let taken = u32::try_from(handed.jobs.len()).unwrap_or(u32::MAX);
        {
            let mut slots = shared.slots();
            slots.busy += taken;
            slots.open = slots.bounds.wanted(slots.busy, handed.ready);
        }
        let mut too_late = Vec::new();
        for job in handed.jobs {
            let release = Settlement::new(job.job.id, job.lease.token, Verdict::Release);
            match begin(&shared, Arc::new(Slot(shared.clone())), job, asked) {
                Some(begun) => drop(tokio::spawn(conduct(begun))),
                None => too_late.push(release),
            }
        }
        drop(filling);
        if !too_late.is_empty() {
            // Forced to stop while the claim was on its way. If this fails, they are rescued.
            let _ = shared.ask("release", shared.engine.store().settle(too_late)).await;
        }
        if taken < free && handed.ready == 0 {
            let sleep = sleep_for(handed.wake_in, shared.timing.poll_interval);
            pause(&shared, &mut *listener, sleep).await;
        }
    }
}

fn warn_again(shared: &Shared, error: &StoreError, failures: u32, doing: &str) {
    tracing::warn!(worker = %shared.id, %error, failures, "{doing} will be tried again");
}

/// Sleeps until a ring, the end of the pause, or the end of the worker.
async fn pause(shared: &Shared, listener: &mut dyn Listener, duration: Duration) {
    tokio::select! {
        biased;
        () = shared.reached(Stage::Stopping) => {}
        () = listener.heard() => {}
        () = shared.engine.clock().sleep(duration) => {}
    }
}

/// Most settlements in one commit.
const SETTLE_BATCH: usize = 1_000;

/// Writes what ended, everything that waits in one commit.
async fn settle_loop(shared: Arc<Shared>) {
    let mut settling = shared.settling.lock().await;
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            received = settling.recv_many(&mut batch, SETTLE_BATCH) => {
                if received == 0 {
                    return;
                }
            }
            () = shared.reached(Stage::Stopped) => return,
        }
        settle_batch(&shared, batch).await;
    }
}

/// Settles a batch, again and again until the store answers. While it does not, the renew loop
/// cannot renew either, and tells the attempts when their leases are over.
async fn settle_batch(shared: &Shared, batch: Vec<Settling>) {
    let settlements: Vec<Settlement> =
        batch.iter().map(|settling| settling.settlement.clone()).collect();
    let mut failures = 0;
    let answers = loop {
        let settle = shared.engine.store().settle(settlements.clone());
        match shared.ask("settle", settle).await {
            Ok(answers) => break answers,
            Err(error) => {
                failures += 1;
                warn_again(shared, &error, failures, "settling");
                if shared.stage() >= Stage::Forced && failures > 3 {
                    // The store is gone and so are we: the jobs are rescued when it is back.
                    return answer_all(batch, |job| Err(Refusal::LeaseLost { job }));
                }
                shared.engine.clock().sleep(store_backoff(failures)).await;
            }
        }
    };
    for (settling, answer) in batch.into_iter().zip(answers) {
        // An attempt that no longer listens has been aborted with its worker.
        let _ = settling.answer.send(answer.map(drop));
    }
}

fn answer_all(batch: Vec<Settling>, answer: impl Fn(JobId) -> Result<(), Refusal>) {
    for settling in batch {
        let _ = settling.answer.send(answer(settling.settlement.job));
    }
}

/// Keeps the leases of everything that runs, and learns what is to be cancelled.
async fn renew_loop(shared: Arc<Shared>) {
    let mut cancels = shared.engine.wake().listen(Interest::Cancels);
    let mut failures = 0;
    loop {
        let (next, urgent) = next_renewal(&shared, failures);
        let everything = tokio::select! {
            biased;
            () = shared.reached(Stage::Stopped) => return,
            () = cancels.heard() => {
                shared.cancel_heard.store(shared.steady().as_micros() + 1, Ordering::SeqCst);
                true
            }
            // After a failure reports wait for the next try, which comes soon.
            () = shared.reported.notified(), if failures == 0 => false,
            // A job that was claimed before the last request to cancel may be the one it is for.
            () = shared.began.notified() => match claimed_before_cancel(&shared) {
                true => true,
                false => continue,
            },
            () = async {
                match next {
                    Some(wait) => shared.engine.clock().sleep(wait).await,
                    None => std::future::pending().await,
                }
            } => false,
        };
        failures = match renew(&shared, everything || urgent).await {
            Ok(()) => 0,
            Err(error) => {
                let failures = failures + 1;
                warn_again(&shared, &error, failures, "renewing");
                give_up_lost(&shared);
                failures
            }
        };
    }
}

fn claimed_before_cancel(shared: &Shared) -> bool {
    let heard = shared.cancel_heard.load(Ordering::SeqCst);
    shared.running().attempts.values().any(|running| running.renewed.as_micros() < heard)
}

/// How long until the next lease is due for renewal; `None` if nothing runs. After a failure, soon
/// and for everything.
fn next_renewal(shared: &Shared, failures: u32) -> (Option<Duration>, bool) {
    let running = &shared.running().attempts;
    if running.is_empty() {
        return (None, false);
    }
    let now = shared.steady();
    if failures > 0 {
        // Not beyond the end of a lease: an attempt that has lost it must hear at once.
        let untold = running.values().filter(|running| running.stop.borrow().is_none());
        let ends = untold.map(|running| running.lease.saturating_sub(now.since(running.renewed)));
        let wait = ends.chain([store_backoff(failures)]).min();
        return (wait, true);
    }
    let due = running
        .values()
        .map(|running| renew_every(running.lease).saturating_sub(now.since(running.renewed)));
    (due.min(), false)
}

/// Renews in one batch what is due, or everything, and what has something to report.
async fn renew(shared: &Shared, everything: bool) -> Result<(), StoreError> {
    let _renewing = shared.renewing.lock().await;
    let now = shared.steady();
    let mut renewals = Vec::new();
    for (token, running) in shared.running().attempts.iter() {
        let report = running.attempt.take_report();
        let due = now.since(running.renewed) >= renew_every(running.lease);
        if everything || due || !report.is_empty() {
            let (job, token, lease) = (running.attempt.id(), *token, running.lease);
            renewals.push(Renewal { job, token, lease, report });
        }
    }
    if renewals.is_empty() {
        return Ok(());
    }
    let tokens: Vec<LeaseToken> = renewals.iter().map(|renewal| renewal.token).collect();
    let renew = shared.engine.store().renew(renewals.clone());
    let answers = match shared.ask("renew", renew).await {
        Ok(answers) => answers,
        Err(error) => {
            return_reports(shared, renewals);
            return Err(error);
        }
    };
    let mut running = shared.running();
    for (token, answer) in tokens.into_iter().zip(answers) {
        let Some(running) = running.attempts.get_mut(&token) else { continue };
        match answer {
            Ok(renewed) => {
                running.renewed = now;
                if renewed.cancel_requested {
                    running.tell(StopReason::Cancelled);
                }
            }
            Err(_) => running.tell(StopReason::LeaseLost),
        }
    }
    Ok(())
}

/// Gives what handlers said back to them, after it could not be written.
fn return_reports(shared: &Shared, renewals: Vec<Renewal>) {
    let running = shared.running();
    for renewal in renewals.into_iter().filter(|renewal| !renewal.report.is_empty()) {
        if let Some(running) = running.attempts.get(&renewal.token) {
            running.attempt.return_report(renewal.report);
        }
    }
}

/// Stops attempts whose lease has surely ended because it could not be renewed.
fn give_up_lost(shared: &Shared) {
    let now = shared.steady();
    for running in shared.running().attempts.values() {
        if now.since(running.renewed) >= running.lease {
            running.tell(StopReason::LeaseLost);
        }
    }
}

impl Running {
    /// The first reason counts.
    fn tell(&self, reason: StopReason) {
        self.stop.send_if_modified(|current| {
            let first = current.is_none();
            current.get_or_insert(reason);
            first
        });
    }
}

/// How long a store may take to answer before the answer counts as unknown.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// The same, when the worker is told to stop without waiting.
const FORCED_PATIENCE: Duration = Duration::from_secs(1);

/// The name of the loop whose end leaves attempts without an answer.
const SETTLE_LOOP: &str = "settle loop";

/// Brings a worker to its end.
async fn bring_to_end(shared: Arc<Shared>) {
    shared.announce(WorkerNews::Stopping).await;
    let clock = shared.engine.clock().clone();
    // No claim is on its way any more, so what runs is all there will be. A forced stop does not
    // wait for that; what is claimed too late is given back.
    tokio::select! {
        biased;
        _ = shared.filling.lock() => {}
        () = shared.forced() => {}
    }
    tokio::select! {
        biased;
        () = idle(&shared) => {}
        () = shared.forced() => {}
        () = clock.sleep(shared.timing.grace) => {}
    }
    // Every attempt now ends within the time a handler has to obey, and is settled. If the store
    // does not answer for long after that, we stop without it: it will rescue the jobs.
    tokio::select! {
        biased;
        () = settled(&shared) => {}
        () = clock.sleep(shared.timing.cancel_grace.saturating_add(STORE_PATIENCE)) => {
            shared.advance(Stage::Forced);
            settled(&shared).await;
        }
    }
    // What has settled gives its slot back a moment later; what blocks its thread does not.
    tokio::select! {
        biased;
        () = idle(&shared) => {}
        () = clock.sleep(Duration::from_millis(50)) => {}
    }
    let busy = u64::from(shared.slots().busy);
    shared.tally(|tally| tally.abandoned = busy);
    shared.announce(WorkerNews::Stopped).await;
    shared.advance(Stage::Stopped);
}

/// Waits until every slot is free.
async fn idle(shared: &Shared) {
    wait_until(shared, || shared.slots().busy == 0).await;
}

/// Tells every attempt to stop and waits until none holds a lease; from then on none is taken on.
/// Handlers that block may still run.
async fn settled(shared: &Shared) {
    let done = || {
        let mut running = shared.running();
        running.attempts.values().for_each(|running| running.tell(StopReason::Shutdown));
        running.closed = running.attempts.is_empty();
        running.closed
    };
    wait_until(shared, done).await;
}

async fn wait_until(shared: &Shared, done: impl Fn() -> bool) {
    while !done() {
        // Looking again by itself: several may wait, and one signal wakes only one of them.
        tokio::select! {
            biased;
            () = shared.freed.notified() => {}
            () = shared.engine.clock().sleep(Duration::from_millis(10)) => {}
        }
    }
}
