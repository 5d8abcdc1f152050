//! The settle queue: attempts that have ended and wait to be written.
//!
//! Invariant: what was pushed is in the queue or in one of two batches until it is settled or
//! abandoned. The batches are kept here and not by the settle loop, so that a loop that takes over
//! from one that crashed goes on with them; that is safe, because what was applied already is
//! answered as the first time, and not done again. `ended` counts what was pushed and has not been
//! sent.
//!
//! Up to two batches are in flight. The second goes at once where calls share commits
//! ([`StoreInfo::shares_commits`]), and elsewhere only with 500 results or more (`is_worth_a_call`
//! in the core).
//!
//! Answers: with one batch at a time, what ends during a commit waits for its answer.
//! Why not simpler: on a database, two small commits would take the place of one, and a commit
//! costs as much as many results. A journal takes whatever is there into the next commit, and a
//! result that waits for the answer of the one before comes too late for it: with two at once a
//! lifecycle is about a tenth faster, and more than two bring nothing (64 callers, file store,
//! `sync`).
//! Guarded by: `tests/main/worker.rs`
//! (`a_second_settlement_goes_beside_the_first_with_five_hundred_and_not_with_fewer`,
//! `where_calls_share_commits_a_second_settlement_goes_at_once`,
//! `a_settle_loop_that_crashes_leaves_nothing_behind_in_either_hand`; the planted bug 69).
//!
//! [`StoreInfo::shares_commits`]: crate::store::StoreInfo::shares_commits

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, MutexGuard, Notify, mpsc};
use windlass_core::job::Bytes;
use windlass_core::ledger::Settlement;
use windlass_core::worker::is_worth_a_call;

use super::leases::RegisteredAttempt;
use super::slots::Unsettled;

/// Most settlements in one commit.
const SETTLE_BATCH: usize = 2_000;

/// An attempt that has ended and is not settled.
pub(super) struct Settling {
    pub(super) settlement: Settlement,
    pub(super) registered: RegisteredAttempt,
    pub(super) unsettled: Unsettled,
    /// The store refused its outcome; this is what is settled instead.
    pub(super) refused: bool,
    /// What a run of an object returned, from which its turn is made.
    pub(super) returned: Option<Bytes>,
}

pub(super) struct SettleQueue {
    sender: mpsc::UnboundedSender<Settling>,
    /// Whoever holds it gathers the next batch.
    waiting: Mutex<mpsc::UnboundedReceiver<Settling>>,
    batches: [Mutex<SettleBatch>; 2],
    shares_commits: bool,
    /// How many attempts wait, in the queue or in a batch that was not sent.
    ended: AtomicUsize,
    /// There are as many as are worth a commit beside another.
    many_ended: Notify,
    /// How many batches were sent and not answered.
    in_flight: AtomicUsize,
    /// A batch was answered.
    answered: Notify,
}

/// Attempts that are settled in one commit.
#[derive(Default)]
pub(super) struct SettleBatch {
    settling: Vec<Settling>,
    /// It was sent, and its attempts are not among those that wait.
    sent: bool,
}

/// A batch that was sent, until this is dropped.
pub(super) struct InFlight<'a>(&'a SettleQueue);

impl SettleQueue {
    /// For a store whose calls share commits, or do not.
    pub(super) fn new(shares_commits: bool) -> Self {
        let (sender, waiting) = mpsc::unbounded_channel();
        Self {
            sender,
            waiting: Mutex::new(waiting),
            batches: Default::default(),
            shares_commits,
            ended: AtomicUsize::new(0),
            many_ended: Notify::new(),
            in_flight: AtomicUsize::new(0),
            answered: Notify::new(),
        }
    }

    /// Adds an attempt that has ended. `false` if nobody settles any more.
    pub(super) fn push(&self, settling: Settling) -> bool {
        if self.sender.send(settling).is_err() {
            return false;
        }
        let before = self.ended.fetch_add(1, Ordering::SeqCst);
        // Only when the bound is reached, and not for every result: a gathering task that was woken
        // for each of them would look at the queue in vain.
        if !self.is_worth_a_call(before, 1) && self.is_worth_a_call(before + 1, 1) {
            self.many_ended.notify_one();
        }
        true
    }

    fn is_worth_a_call(&self, waiting: usize, in_flight: usize) -> bool {
        is_worth_a_call(waiting, in_flight, self.shares_commits)
    }

    /// The two batches, for whoever settles.
    pub(super) async fn batches(&self) -> [MutexGuard<'_, SettleBatch>; 2] {
        let [first, second] = &self.batches;
        [first.lock().await, second.lock().await]
    }

    /// Fills a batch with what ended, and with more of it while it is not worth a commit. `false`
    /// if nothing comes any more. A batch that is not empty was left by a loop that crashed, and
    /// goes as it is.
    pub(super) async fn gather(
        &self,
        batch: &mut SettleBatch,
        stopped: impl Future<Output = ()>,
    ) -> bool {
        if !batch.settling.is_empty() {
            return true;
        }
        let mut waiting = self.waiting.lock().await;
        tokio::select! {
            biased;
            received = waiting.recv_many(&mut batch.settling, SETTLE_BATCH) => {
                if received == 0 {
                    return false;
                }
            }
            () = stopped => return false,
        }
        // Other tasks that are ready run first, and may end too: one commit for all of them.
        tokio::task::yield_now().await;
        loop {
            while batch.settling.len() < SETTLE_BATCH
                && let Ok(another) = waiting.try_recv()
            {
                batch.settling.push(another);
            }
            if self.is_worth_a_call(batch.settling.len(), self.in_flight.load(Ordering::SeqCst)) {
                return true;
            }
            tokio::select! {
                () = self.answered.notified() => {}
                () = self.many_ended.notified() => {}
            }
        }
    }

    /// Marks a batch as sent. What is dropped in the end says that it was answered.
    pub(super) fn send(&self, batch: &mut SettleBatch) -> InFlight<'_> {
        if !std::mem::replace(&mut batch.sent, true) {
            self.ended.fetch_sub(batch.settling.len(), Ordering::SeqCst);
        }
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlight(self)
    }

    /// Takes no more, and gives up what is there: nobody settles any more.
    pub(super) async fn abandon(&self) -> Vec<Settling> {
        let mut waiting = self.waiting.lock().await;
        waiting.close();
        let mut abandoned = Vec::new();
        for mut batch in self.batches().await {
            abandoned.extend(batch.take());
        }
        while let Ok(another) = waiting.try_recv() {
            abandoned.push(another);
        }
        abandoned
    }
}

impl SettleBatch {
    pub(super) fn settlements(&self) -> Vec<Settlement> {
        self.settling.iter().map(|settling| settling.settlement.clone()).collect()
    }

    /// Takes out what was answered.
    pub(super) fn take(&mut self) -> std::vec::Drain<'_, Settling> {
        self.sent = false;
        self.settling.drain(..)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.0.answered.notify_one();
    }
}
