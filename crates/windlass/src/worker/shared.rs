//! What the loops of one worker share: what it was given, its four owners, and how it asks a store.
//!
//! Everything that changes belongs to an owner with an invariant of its own, and only the owner
//! locks it: [`Slots`], [`Leases`], [`SettleQueue`] and [`Life`].

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass_core::job::RequestId;
use windlass_core::ledger::{KindClaim, Renewal, Renewed, WorkerInfo, WorkerKind, WorkerReport};
use windlass_core::name::Name;
use windlass_core::outcome::ErrorText;
use windlass_core::refusal::Refusal;
use windlass_core::time::Steady;

use super::leases::Leases;
use super::life::{Life, Stage};
use super::settle_queue::{SettleQueue, Settling};
use super::slots::Slots;
use crate::attempt::Host;
use crate::clock::BoxFuture;
use crate::engine::Engine;
use crate::handler::{RegisteredHandler, States};
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

/// What the loops of one worker share.
pub(crate) struct Shared {
    pub(super) engine: Engine,
    pub(super) id: Arc<str>,
    /// What its requests have in common, and those of no other worker: a random number.
    pub(super) requests: u64,
    /// The number of its next request.
    pub(super) next_request: AtomicU64,
    pub(super) queues: Option<Vec<Name>>,
    pub(super) handlers: BTreeMap<Name, Arc<RegisteredHandler>>,
    pub(super) terms: Vec<KindClaim>,
    pub(super) states: Arc<States>,
    pub(super) layers: Arc<[Box<dyn Middleware>]>,
    pub(super) timing: Timing,
    pub(super) slots: Arc<Slots>,
    pub(super) leases: Arc<Leases>,
    pub(super) settle_queue: SettleQueue,
    pub(super) life: Life,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) poll_interval: Duration,
    pub(super) grace: Duration,
    pub(super) cancel_grace: Duration,
}

impl Shared {
    pub(super) fn steady(&self) -> Steady {
        self.engine.clock().now().steady
    }

    /// Names a new claim.
    pub(super) fn new_request(&self) -> RequestId {
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        RequestId(u128::from(self.requests) << 64 | u128::from(number))
    }

    /// Sleeps for so long; for ever, if nothing is waited for.
    pub(super) async fn sleep(&self, wait: Option<Duration>) {
        match wait {
            Some(wait) => self.engine.clock().sleep(wait).await,
            None => std::future::pending().await,
        }
    }

    /// Asks the store, but not for ever: a store that hangs must not hang the worker.
    pub(super) async fn ask<T, E: From<StoreError>>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let clock = self.engine.clock();
        let forced = async {
            self.life.forced().await;
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

    /// Says that something will be tried again.
    pub(super) fn warn_again(&self, error: &StoreError, failures: u32, doing: &str) {
        tracing::warn!(worker = %self.id, %error, failures, "{doing} will be tried again");
    }

    pub(super) fn info(&self) -> WorkerInfo {
        let kinds = self.terms.iter().map(|terms| WorkerKind {
            kind: terms.kind.clone(),
            concurrency: terms.concurrency,
            rate: terms.rate,
        });
        let (slots, quiet) = (self.slots.all(), self.life.is_quiet());
        WorkerInfo { queues: self.queues.clone(), kinds: kinds.collect(), slots, quiet }
    }

    pub(super) async fn heartbeat(&self, news: WorkerReport) {
        let heartbeat = self.engine.store().heartbeat(self.id.clone(), news);
        // A worker that stops announces it, and nothing restarts a stop: a store that panics here
        // must not leave it half done.
        let mut asked = pin!(self.ask("announce", heartbeat));
        match poll_fn(|context| panics::poll(asked.as_mut(), context)).await {
            // A worker that starts, stops or crashed has no order to look for.
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(worker = %self.id, %error, "the store did not take the news");
            }
            Err(panic) => tracing::error!(worker = %self.id, panic, "the store crashed"),
        }
    }

    /// Hands an attempt to the settle loop.
    pub(super) fn settle(&self, settling: Settling) {
        if !self.settle_queue.push(settling) {
            // The worker has stopped, and the job will be rescued.
            self.life.count(|report| report.lost += 1);
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
                let abandoned = shared.settle_queue.abandon().await;
                shared.life.count(|report| report.lost += abandoned.len() as u64);
            }
            if let Err(why) = ended {
                tracing::error!(worker = %shared.id, why, "the worker stops");
                shared.life.fail(why);
                shared.begin_stop(Stage::Forced);
            }
        });
    }
}

impl Host for Shared {
    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn states(&self) -> &States {
        &self.states
    }

    fn was_told(&self) {
        self.leases.notify_told();
    }

    fn has_reported(&self) {
        self.leases.notify_reported();
    }

    fn free_slot(&self) {
        self.slots.free();
    }

    fn renew(&self, renewal: Renewal) -> BoxFuture<'_, Answer<Result<Renewed, Refusal>>> {
        Box::pin(async move {
            let doing = "keep a step";
            let (token, sent) = (renewal.token, self.steady());
            let answers = self.ask(doing, self.engine.store().renew(vec![renewal])).await?;
            let missing = || StoreError::Unknown { doing, source: "the answer was empty".into() };
            let answer = answers.into_iter().next().ok_or_else(missing)?;
            if answer.is_ok() {
                self.leases.renewed(token, sent);
            }
            Ok(answer)
        })
    }
}
