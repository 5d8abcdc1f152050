//! What the loops of one worker share: its slots, the attempts that hold a lease, and its stage.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use windlass_core::job::Bytes;
use windlass_core::job::LeaseToken;
use windlass_core::ledger::{
    KindClaim, Renewal, Renewed, Settlement, WorkerInfo, WorkerKind, WorkerReport,
};
use windlass_core::name::Name;
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::refusal::Refusal;
use windlass_core::time::Steady;
use windlass_core::worker::{ASK_AHEAD, renew_every, to_ask};

use super::stop::bring_to_end;
use super::{StopReport, Timing};
use crate::attempt::{Attempt, Begun};
use crate::engine::Engine;
use crate::error::Error;
use crate::handler::{self, States};
use crate::middleware::Middleware;
use crate::panics;
use crate::store::{Answer, StoreError};
use crate::supervise::supervise;

/// How long a store may take to answer before the answer counts as unknown.
pub(super) const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// The same, when the worker is told to stop without waiting.
const FORCED_PATIENCE: Duration = Duration::from_secs(1);

/// The name of the loop whose end leaves attempts without an answer.
pub(super) const SETTLE_LOOP: &str = "settle loop";

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
    pub(super) engine: Engine,
    pub(super) id: Arc<str>,
    pub(super) queues: Option<Vec<Name>>,
    pub(super) handlers: BTreeMap<Name, Arc<handler::RegisteredHandler>>,
    pub(super) terms: Vec<KindClaim>,
    pub(super) states: Arc<States>,
    pub(super) layers: Arc<[Box<dyn Middleware>]>,
    pub(super) timing: Timing,
    pub(super) slots: Mutex<SlotCounts>,
    pub(super) running: Mutex<RunningAttempts>,
    /// Read by claims that are on their way, so that a stop, which writes it, knows that none is.
    pub(super) filling: tokio::sync::RwLock<()>,
    /// Held while reports are on their way, so that a settlement comes after them.
    pub(super) renewing: tokio::sync::Mutex<()>,
    /// Just after the last request to cancel was heard of, in microseconds of the steady clock; 0
    /// if none was.
    pub(super) cancel_heard: AtomicU64,
    /// A slot became free, or their number changed, or no job runs any more.
    pub(super) freed: Notify,
    /// A job began that the renew loop must look at sooner than it would.
    pub(super) began: Notify,
    /// A job began that the watch loop must look at sooner than it would, or was told to stop.
    pub(super) told: Notify,
    /// A handler has something to report.
    pub(super) reported: Notify,
    pub(super) stage: watch::Sender<Stage>,
    pub(super) settle: mpsc::UnboundedSender<Settling>,
    pub(super) settling: tokio::sync::Mutex<SettleQueue>,
    /// How many attempts wait to be settled, or are being gathered.
    pub(super) ended: AtomicUsize,
    /// There are as many as are worth a commit beside another.
    pub(super) many_ended: Notify,
    pub(super) tally: Mutex<EndCounts>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SlotCounts {
    /// How many there are.
    pub(super) all: u32,
    pub(super) busy: u32,
    /// For how many jobs claims on their way have asked.
    pub(super) asked: u32,
}

/// The attempts that hold a lease, until the worker has stopped and takes no more.
#[derive(Default)]
pub(super) struct RunningAttempts {
    pub(super) attempts: BTreeMap<LeaseToken, Running>,
    pub(super) closed: bool,
    /// When the renew loop looks next by itself; `None` if it does not.
    pub(super) renewal_at: Option<Steady>,
    /// When the watch loop looks next by itself; `None` if it does not.
    pub(super) watch_at: Option<Steady>,
}

/// An attempt that holds a lease.
pub(super) struct Running {
    pub(super) attempt: Attempt,
    pub(super) lease: Duration,
    /// When the last renewal that was applied, or the claim, was sent.
    pub(super) renewed: Steady,
    /// The store refused to renew it, and so would every time.
    pub(super) refused: bool,
    /// When its time is up.
    pub(super) deadline: Option<Steady>,
    /// When it has had enough time to obey, once it was told to stop.
    pub(super) patience: Option<Steady>,
}

/// One of a worker's slots, in use until this is dropped: however an attempt ends, even by a
/// panic of our own, its slot is given back.
pub(crate) struct Slot(pub(crate) Arc<Shared>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.slots().busy -= 1;
        self.0.freed.notify_one();
    }
}

/// Slots for which a claim asks until this is dropped: however it ends, they can be asked for
/// again.
pub(super) struct RequestedSlots {
    shared: Arc<Shared>,
    pub(super) slots: u32,
}

impl RequestedSlots {
    /// Sets slots aside to ask for; `None` if it is better to wait.
    pub(super) fn aside(shared: &Arc<Shared>) -> Option<Self> {
        let mut book = shared.slots();
        let slots = to_ask(book.all, book.busy, book.asked);
        book.asked += slots;
        drop(book);
        (slots > 0).then(|| Self { shared: shared.clone(), slots })
    }

    /// So many slots more are in use.
    pub(super) fn take(self, taken: u32) {
        self.shared.slots().busy += taken;
    }
}

impl Drop for RequestedSlots {
    fn drop(&mut self) {
        self.shared.slots().asked -= self.slots;
    }
}

/// An attempt that the worker knows of until this is dropped: however it ends, its lease is not
/// renewed for ever.
pub(crate) struct RegisteredAttempt(pub(crate) Attempt);

impl Drop for RegisteredAttempt {
    fn drop(&mut self) {
        let Self(attempt) = self;
        let removed = attempt.shared().running().attempts.remove(&attempt.token());
        drop(removed);
        attempt.let_go();
        attempt.shared().freed.notify_one();
    }
}

/// An attempt on its way to the store.
pub(crate) struct Settling {
    pub(crate) settlement: Settlement,
    pub(crate) registered: RegisteredAttempt,
    /// Given back when it is settled; `None` if its task has not ended and holds it.
    pub(super) slot: Option<Arc<Slot>>,
    /// The store refused its outcome; this is what is settled instead.
    pub(super) refused: bool,
    /// What a run of an object returned, from which its turn is made.
    pub(crate) returned: Option<Bytes>,
}

impl Settling {
    pub(crate) fn new(
        settlement: Settlement,
        registered: RegisteredAttempt,
        slot: Option<Arc<Slot>>,
    ) -> Self {
        Self { settlement, registered, slot, refused: false, returned: None }
    }
}

/// What waits to be settled.
pub(super) struct SettleQueue {
    pub(super) waiting: mpsc::UnboundedReceiver<Settling>,
    /// In the two hands of the settle loop: if it crashes, the next one goes on with these. That is
    /// safe: what was applied is refused as lost.
    pub(super) batches: [Vec<Settling>; 2],
}

#[derive(Debug, Default)]
pub(crate) struct EndCounts {
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) snoozed: u64,
    pub(super) cancelled: u64,
    pub(super) interrupted: u64,
    pub(crate) lost: u64,
    pub(super) abandoned: u64,
    pub(super) failure: Option<String>,
}

impl EndCounts {
    pub(super) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Complete => self.completed += 1,
            Verdict::Retry(_) | Verdict::Bury(_) => self.failed += 1,
            Verdict::Snooze(_) => self.snoozed += 1,
            Verdict::Release => self.interrupted += 1,
            Verdict::Cancel(_) => self.cancelled += 1,
        }
    }

    pub(super) fn report(&self) -> StopReport {
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

    pub(crate) fn reported(&self) -> &Notify {
        &self.reported
    }

    pub(crate) fn told(&self) -> &Notify {
        &self.told
    }

    pub(crate) fn handler(&self, kind: &Name) -> Option<Arc<handler::RegisteredHandler>> {
        self.handlers.get(kind).cloned()
    }

    pub(crate) fn tally(&self, count: impl FnOnce(&mut EndCounts)) {
        count(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn failure(&self) -> Option<Error> {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.failure.clone().map(|why| Error::WorkerFailed { why })
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, SlotCounts> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn running(&self) -> MutexGuard<'_, RunningAttempts> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn steady(&self) -> Steady {
        self.engine.clock().now().steady
    }

    /// Takes attempts on, all of them, unless the worker has stopped: then none. Their leases are
    /// as old as the claim.
    pub(super) fn register(&self, begun: &[Begun], claimed: Steady) -> bool {
        let now = self.steady();
        let sooner = |at: Steady, planned: Option<Steady>| planned.is_none_or(|then| at < then);
        let (mut renew, mut watch) = (false, false);
        let mut book = self.running();
        if book.closed {
            return false;
        }
        let cancel_heard = self.cancel_heard.load(Ordering::SeqCst);
        for Begun { attempt, .. } in begun {
            let lease = attempt.lease();
            let deadline = attempt.timeout().map(|timeout| now + timeout);
            // The loops are woken only if they would look too late: mostly they need not know.
            renew |= sooner(claimed + renew_every(lease), book.renewal_at);
            // A job that was claimed before the last request to cancel may be the one it is for.
            renew |= claimed.as_micros() < cancel_heard;
            watch |= sooner(claimed + lease, book.watch_at);
            watch |= deadline.is_some_and(|deadline| sooner(deadline, book.watch_at));
            let attempt = attempt.clone();
            let token = attempt.token();
            let (renewed, refused, patience) = (claimed, false, None);
            let running = Running { attempt, lease, renewed, refused, deadline, patience };
            book.attempts.insert(token, running);
        }
        drop(book);
        if renew {
            self.began.notify_one();
        }
        if watch {
            self.told.notify_one();
        }
        true
    }

    /// Waits for reports of an attempt that are on their way, but for half of what is left of its
    /// lease at most: a store that does not answer a renewal may well answer a settlement.
    pub(crate) async fn reports_written(&self, token: LeaseToken) {
        let now = self.steady();
        let left = |running: &Running| (running.renewed + running.lease).since(now);
        let left = self.running().attempts.get(&token).map_or(Duration::ZERO, left);
        tokio::select! {
            biased;
            _ = self.renewing.lock() => {}
            () = self.engine.clock().sleep(left / 2) => {}
        }
    }

    /// Renews one lease now, with what its handler waits to be kept.
    pub(crate) async fn renew_one(&self, renewal: Renewal) -> Answer<Result<Renewed, Refusal>> {
        let doing = "keep a step";
        let (token, sent) = (renewal.token, self.steady());
        let answers = self.ask(doing, self.engine.store().renew(vec![renewal])).await?;
        let missing = || StoreError::Unknown { doing, source: "the answer was empty".into() };
        let answer = answers.into_iter().next().ok_or_else(missing)?;
        if answer.is_ok()
            && let Some(running) = self.running().attempts.get_mut(&token)
        {
            running.renewed = running.renewed.max(sent);
        }
        Ok(answer)
    }

    /// Asks the store, but not for ever: a store that hangs must not hang the worker.
    pub(crate) async fn ask<T, E: From<StoreError>>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
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
        let source = format!("no answer in {patience:?}").into();
        Err(StoreError::Unknown { doing, source }.into())
    }

    /// Whether a call that failed so often is to be given up: the store is gone and so are we. The
    /// job is rescued when it is back.
    pub(crate) fn gives_up_after(&self, failures: u32) -> bool {
        self.stage() >= Stage::Forced && failures > 3
    }

    /// Begins to stop, once, on a task of its own: whoever asked may lose patience.
    pub(crate) fn begin_stop(self: &Arc<Self>, to: Stage) {
        if self.advance(to) == Stage::Working {
            tokio::spawn(bring_to_end(self.clone()));
        }
    }

    /// Waits until the worker has stopped, and says what it did.
    pub(crate) async fn end(&self) -> StopReport {
        self.reached(Stage::Stopped).await;
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).report()
    }

    pub(super) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Moves on to a later stage, never back, and returns the stage before.
    pub(super) fn advance(&self, to: Stage) -> Stage {
        let mut before = to;
        self.stage.send_if_modified(|stage| {
            before = *stage;
            *stage = to.max(before);
            *stage > before
        });
        before
    }

    pub(super) async fn reached(&self, stage: Stage) {
        // The sender is part of `self`, so it cannot be gone.
        let _ = self.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    /// Waits until the worker is told to stop without waiting.
    pub(crate) async fn forced(&self) {
        self.reached(Stage::Forced).await;
    }

    pub(super) fn info(&self) -> WorkerInfo {
        let kinds = self.terms.iter().map(|terms| WorkerKind {
            kind: terms.kind.clone(),
            concurrency: terms.concurrency,
            rate: terms.rate,
        });
        let slots = self.slots().all;
        WorkerInfo { queues: self.queues.clone(), kinds: kinds.collect(), slots }
    }

    pub(super) async fn heartbeat(&self, news: WorkerReport) {
        let heartbeat = self.engine.store().heartbeat(self.id.clone(), news);
        // A worker that stops announces it, and nothing restarts a stop: a store that panics here
        // must not leave it half done.
        let mut asked = pin!(self.ask("announce", heartbeat));
        match poll_fn(|context| panics::poll(asked.as_mut(), context)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(worker = %self.id, %error, "the store did not take the news");
            }
            Err(panic) => tracing::error!(worker = %self.id, panic, "the store crashed"),
        }
    }

    /// Hands an attempt to the settle loop.
    pub(crate) fn settle(&self, settling: Settling) {
        if self.settle.send(settling).is_err() {
            // Nobody settles any more: the worker has stopped, and the job will be rescued.
            self.tally(|tally| tally.lost += 1);
        } else if self.ended.fetch_add(1, Ordering::SeqCst) == ASK_AHEAD as usize - 1 {
            self.many_ended.notify_one();
        }
    }

    /// Runs one loop under supervision. If it is given up, the worker stops.
    pub(super) fn spawn<Fut>(self: &Arc<Self>, part: &'static str, make: fn(Arc<Shared>) -> Fut)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let shared = self.clone();
        tokio::spawn(async move {
            let clock = shared.engine.clock().clone();
            let on_crash = |crash: &str| {
                let (shared, error) = (shared.clone(), ErrorText::new(crash));
                tokio::spawn(async move { shared.heartbeat(WorkerReport::Error(error)).await });
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

    /// Nobody settles any more: attempts that wait for it have lost.
    async fn abandon_settlements(&self) {
        let mut settling = self.settling.lock().await;
        settling.waiting.close();
        let mut abandoned: Vec<_> = settling.batches.iter_mut().flat_map(std::mem::take).collect();
        while let Ok(another) = settling.waiting.try_recv() {
            abandoned.push(another);
        }
        self.tally(|tally| tally.lost += abandoned.len() as u64);
    }
}

/// Says that something will be tried again.
pub(super) fn warn_again(shared: &Shared, error: &StoreError, failures: u32, doing: &str) {
    tracing::warn!(worker = %shared.id, %error, failures, "{doing} will be tried again");
}
