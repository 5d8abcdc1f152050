//! The one store over a ledger: the memory store and the file store are both this.
//!
//! ```text
//!   Store verb ─► SharedLedger::decide ─► RecordedLedger ─► Ledger (the rules)
//!                        │                       └────────► Records (a map, or a journal)
//!                        └─► CommitPath: when the answer may be given
//! ```
//!
//! How a call reaches the ledger stands in [`SharedLedger::decide`] alone: it takes a lock, decides
//! at once, and leaves with what its answer still waits for.
//!
//! Answers: the memory store and the file store promise the same; written twice, the rules and the
//! order of lock, decision and answer would drift apart.
//! Why not simpler: they differ in where records are and in when an answer may be given, and in
//! nothing else. Those two are traits ([`Records`], [`CommitPath`]).
//! Guarded by: the conformance suite on both, and their twin test (`windlass-sim/tests/twin.rs`).

mod bulk;
mod events;
mod need;
mod pages;
mod recorded;
mod records;

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
pub(crate) use events::EventListener;
pub(super) use events::{AfterEvents, EventBuffer};
pub(super) use need::Verb;
pub use need::{Need, Size};
pub(super) use recorded::RecordedLedger;
pub(super) use records::{ClaimHistory, Records};
use tokio::runtime::Handle;
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{
    Claim, Configure, Counts, Enqueue, Enqueued, Heartbeat, Promote, Promoted, Renew, Renewal,
    Renewed, Rescue, Rescued, Ring, Settle, Settled, Settlement, Turned, WorkerReport,
};
use windlass_core::object::{Address as ObjectAddress, Turn};
use windlass_core::refusal::Refusal;
use windlass_core::time::Now;

use super::{
    AlterJobs, AlterQueue, Answer, ClaimedBatch, Durability, HeartbeatAnswer, JobActionResult,
    JobQuery, ObjectPage, ObjectQuery, Page, QueueAction, QueueActionDone, Selection, Store,
    StoreError, StoreInfo, events_within,
};
use crate::clock::Clock;
use crate::wake::Wake;

/// What an answer is based on, and so what must be committed before it may be given.
#[derive(Clone, Copy, Debug)]
pub enum Basis<'a> {
    /// All that the ledger holds.
    Everything,
    /// The claim itself: losing it only means that its jobs run again.
    Claim,
    /// These jobs.
    Jobs(&'a [JobId]),
    /// This object.
    Object(&'a ObjectAddress),
    /// Nothing: the call was turned away before it saw anything.
    Nothing,
}

/// How what was decided becomes an answer: at once, or when it is on the disk.
///
/// Two steps, because no lock may be held while a call waits: `decided` runs with the ledger
/// locked, `committed` without it.
pub trait CommitPath: fmt::Debug + Send + Sync + Sized + 'static {
    /// Where the records are kept.
    type Records: Records;
    /// What it keeps beside the ledger, under the same lock.
    type State: fmt::Debug + Send;
    /// What a caller takes along when it lets go of the ledger.
    type Pending: Send;

    /// A call was decided, and the ledger is still in its hands.
    fn decided(
        shared: &SharedLedger<Self>,
        state: &mut LedgerState<Self>,
        basis: Basis<'_>,
        doing: &'static str,
    ) -> Answer<Self::Pending>;

    /// Waits, without the ledger, until the answer may be given.
    fn committed(
        shared: &Arc<SharedLedger<Self>>,
        pending: Self::Pending,
        doing: &'static str,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Makes everything durable and lets go of what is held.
    fn close(_shared: &Arc<SharedLedger<Self>>) {}

    /// See [`Store::info`]; the last event is put in later.
    fn info(_shared: &SharedLedger<Self>) -> StoreInfo {
        StoreInfo::new(Durability::None, 0)
    }
}

/// A ledger that many callers share.
#[derive(Debug)]
pub struct SharedLedger<P: CommitPath> {
    pub(super) state: Mutex<LedgerState<P>>,
    pub(super) path: P,
    pub(super) events: EventBuffer,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) wake: Arc<dyn Wake>,
    callers: Callers,
}

/// How many calls had to wait for the lock, and how many of them have got it.
#[derive(Debug, Default)]
struct Callers {
    came: AtomicU64,
    got: AtomicU64,
}

/// What is under the lock.
#[derive(Debug)]
pub struct LedgerState<P: CommitPath> {
    /// `None` once closed.
    pub(super) ledger: Option<RecordedLedger<P::Records>>,
    pub(super) commits: P::State,
}

impl<P: CommitPath> SharedLedger<P> {
    pub(super) fn new(
        state: LedgerState<P>,
        path: P,
        events: EventBuffer,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
    ) -> Self {
        let (state, callers) = (Mutex::new(state), Callers::default());
        Self { state, callers, path, events, clock, wake }
    }

    pub(super) fn lock(&self) -> Answer<MutexGuard<'_, LedgerState<P>>> {
        let locked = match self.state.try_lock() {
            Ok(state) => return Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
            Err(TryLockError::WouldBlock) => {
                self.callers.came.fetch_add(1, Ordering::SeqCst);
                let locked = self.state.lock();
                self.callers.got.fetch_add(1, Ordering::SeqCst);
                locked
            }
        };
        locked.map_err(|_| {
            // A call has panicked with the ledger locked: it may hold half of a change.
            // `tests/main/files/failures.rs` crashes a call like that.
            let why = "an earlier call crashed while changing it".to_string();
            Refusal::StoreBroken { why }.into()
        })
    }

    /// Lets everyone have the ledger who waits for it now, before whoever gave it back takes it
    /// again; for a thread.
    ///
    /// Answers: the lock is not fair. A thread that takes it again at once takes it from the one it
    /// has just woken, and a row of short steps holds everybody up like a long one.
    /// Why not simpler: short steps alone left calls of 255 ms beside steps of one.
    /// Guarded by: `windlass bench --mode steady`; no test can see it without a clock.
    pub(super) fn let_callers_in(&self) {
        let came = self.callers.came.load(Ordering::SeqCst);
        while self.callers.got.load(Ordering::SeqCst) < came {
            std::thread::yield_now();
        }
    }

    /// The same for a task, and other tasks have their turn.
    pub async fn let_others_in(&self) {
        let came = self.callers.came.load(Ordering::SeqCst);
        loop {
            tokio::task::yield_now().await;
            if self.callers.got.load(Ordering::SeqCst) >= came {
                return;
            }
        }
    }

    /// Asks something of the ledger: the only way in. Returns its answer, and what must come to
    /// pass before it may be given.
    pub fn decide<T>(
        &self,
        doing: &'static str,
        basis: Basis<'_>,
        ask: impl FnOnce(&mut RecordedLedger<P::Records>, Now) -> Answer<T>,
    ) -> Answer<(Answer<T>, P::Pending)> {
        let mut state = self.lock()?;
        let now = self.clock.now();
        let ledger = state.ledger.as_mut().ok_or_else(closed)?;
        let answer = ledger.usable().and_then(|()| ask(ledger, now));
        // Nothing is committed any more in a broken store.
        let nothing = ledger.usable().is_err() || is_turned_away(&answer);
        let basis = if nothing { Basis::Nothing } else { basis };
        let rings = ledger.take_rings();
        let pending = P::decided(self, &mut state, basis, doing);
        drop(state);
        self.ring(rings);
        Ok((answer, pending?))
    }

    /// Wakes workers, as soon as there is something for them and not when it is committed.
    ///
    /// Answers: a job that is rung for when its acceptance has landed starts a sync later, and the
    /// lane of a settled job stands still until then.
    /// Why not simpler: a claim sees what was decided and has not landed in any case, and is
    /// written behind it, so waiting would promise nothing. With 64 callers a lifecycle is a fifth
    /// faster, with one caller two fifths, and a job starts in a third of the time (file store,
    /// `sync`).
    /// Guarded by: `a_job_runs_while_its_acceptance_is_synced` in `tests/main/files/answers.rs`
    /// (the planted bug 112).
    ///
    /// A wake is polled once, which is all that nearly every one needs, so that no call waits for
    /// it; one that is not done then goes on in the runtime.
    fn ring(&self, rings: BTreeSet<Ring>) {
        if rings.is_empty() {
            return;
        }
        let (wake, rings) = (self.wake.clone(), Vec::from_iter(rings));
        let mut ringing = Box::pin(async move { wake.ring(&rings).await });
        let polled = ringing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if polled == Poll::Pending
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(ringing);
        }
    }
}

fn closed() -> StoreError {
    Refusal::Unavailable { why: "it was closed".to_string() }.into()
}

/// Whether a call was turned away for want of room, before anything was decided.
fn is_turned_away<T>(answer: &Answer<T>) -> bool {
    let Err(error) = answer else { return false };
    matches!(error, StoreError::Unknown { .. } | StoreError::Refused(Refusal::StoreFull { .. }))
}

/// A store whose rules are a ledger's: [`super::MemoryStore`] and [`super::FileStore`].
pub struct LedgerStore<P: CommitPath> {
    pub(super) shared: Arc<SharedLedger<P>>,
}

impl<P: CommitPath> LedgerStore<P> {
    /// Tells every event to somebody when it is committed.
    pub(crate) fn listen(&self, listener: Weak<dyn EventListener>) {
        self.shared.events.listen(listener);
    }

    /// Decides a verb, and answers when everything it saw is committed.
    pub(super) async fn commit<V: Verb>(&self, verb: V) -> Answer<V::Reply> {
        self.ask(V::DOING, Basis::Everything, |ledger, now| ledger.commit(verb, now)).await
    }

    async fn ask<T>(
        &self,
        doing: &'static str,
        basis: Basis<'_>,
        ask: impl FnOnce(&mut RecordedLedger<P::Records>, Now) -> Answer<T>,
    ) -> Answer<T> {
        let (answer, pending) = self.shared.decide(doing, basis, ask)?;
        P::committed(&self.shared, pending, doing).await?;
        answer
    }
}

impl<P: CommitPath> fmt::Debug for LedgerStore<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.path.fmt(f)
    }
}

impl<P: CommitPath> Drop for LedgerStore<P> {
    fn drop(&mut self) {
        P::close(&self.shared);
    }
}

#[async_trait]
impl<P: CommitPath> Store for LedgerStore<P> {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        self.commit(Enqueue { jobs }).await
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        self.ask(Claim::DOING, Basis::Claim, |ledger, now| {
            let claims = ledger.commit(claim, now)?;
            ledger.hand_out(claims)
        })
        .await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        self.commit(Renew { renewals }).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        self.commit(Settle { settlements }).await
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        self.commit(rescue).await
    }

    async fn promote(&self) -> Answer<Promoted> {
        self.commit(Promote).await
    }

    async fn alter(&self, alter: AlterJobs) -> Answer<Vec<JobActionResult>> {
        alter.check()?;
        let note = alter.note();
        match alter.selection {
            Selection::Jobs(jobs) => self.alter_jobs(jobs, &alter.action, note).await,
            Selection::Matching(filter) => self.alter_matching(&filter, &alter.action, note).await,
        }
    }

    async fn alter_queue(&self, alter: AlterQueue) -> Answer<QueueActionDone> {
        let AlterQueue { queue, action, by } = alter;
        match action {
            QueueAction::Set(change) => {
                self.commit(Configure { queue, change, by }).await.map(QueueActionDone::Set)
            }
            QueueAction::Clear => self.clear(queue, by).await.map(QueueActionDone::Cleared),
        }
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        self.commit(turn).await
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        let basis = match query {
            ObjectQuery::Address(address) => Basis::Object(address),
            ObjectQuery::Page { .. } => Basis::Everything,
        };
        self.ask("read objects", basis, |ledger, now| match query {
            ObjectQuery::Address(address) => {
                let objects = ledger.object(address, now)?.into_iter().collect();
                Ok(ObjectPage { objects, next: None })
            }
            ObjectQuery::Page { filter, after, limit } => {
                ledger.objects(filter, after.as_ref(), *limit, now)
            }
        })
        .await
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<HeartbeatAnswer> {
        let heartbeat = Heartbeat { worker, news };
        self.ask(Heartbeat::DOING, Basis::Everything, |ledger, now| {
            ledger.heartbeat(heartbeat, now)
        })
        .await
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        let basis = match query {
            JobQuery::Ids(jobs) => Basis::Jobs(jobs),
            JobQuery::Page { .. } | JobQuery::Count { .. } => Basis::Everything,
        };
        if query.goes_on() {
            self.shared.let_others_in().await;
        }
        self.ask("read jobs", basis, |ledger, now| match query {
            JobQuery::Ids(jobs) => {
                Ok(Page::of(ledger.find(jobs, now)?.into_iter().flatten().collect()))
            }
            JobQuery::Page { filter, after, limit } => ledger.list(filter, *after, *limit, now),
            JobQuery::Count { filter, after } => ledger.count_matching(filter, *after, now),
        })
        .await
    }

    async fn count(&self) -> Answer<Counts> {
        self.ask("count", Basis::Everything, |ledger, now| Ok(ledger.count(now))).await
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        self.ask("explain", Basis::Everything, |ledger, now| ledger.explain(job, now)).await
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        let (clock, events) = (&*self.shared.clock, &self.shared.events);
        let look = || async { Ok(events.after(after, limit)) };
        // Every commit is one of this process, so there is nothing to look for in between.
        events_within(wait, Duration::MAX, clock, events.committed(), look).await
    }

    fn info(&self) -> StoreInfo {
        StoreInfo { last_event: *self.shared.events.committed().borrow(), ..P::info(&self.shared) }
    }

    async fn close(&self) {
        P::close(&self.shared);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use windlass_core::limits::Limits;

    use super::*;
    use crate::clock::SystemClock;
    use crate::store::MemoryStore;
    use crate::wake::LocalWake;

    #[test]
    fn whoever_waits_for_the_ledger_is_let_in_before_the_next_chunk() {
        let clock = Arc::new(SystemClock::new());
        let store = MemoryStore::new(Limits::default(), clock, Arc::new(LocalWake::new()));
        let shared = store.shared.clone();
        let held = shared.lock().expect("it is in order");
        let before = shared.callers.came.load(Ordering::SeqCst);
        let other = std::thread::spawn({
            let shared = shared.clone();
            move || drop(shared.lock().expect("it is in order"))
        });
        while shared.callers.came.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        let mut next = pin!(shared.let_others_in());
        let mut look = Context::from_waker(Waker::noop());
        for _ in 0..10 {
            assert_eq!(next.as_mut().poll(&mut look), Poll::Pending, "someone waits");
        }
        drop(held);
        other.join().expect("it got its turn");
        assert_eq!(next.as_mut().poll(&mut look), Poll::Ready(()));
    }
}
