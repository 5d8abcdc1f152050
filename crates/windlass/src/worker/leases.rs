//! Leases: the attempts that hold one, and when each must be renewed, told to stop, or given up.
//!
//! Invariant: an attempt is here from [`Leases::register`] until the one [`RegisteredAttempt`] of
//! it is dropped, so a lease is renewed as long as its attempt is not settled, and no longer. A
//! lease counts from when its last applied renewal was sent, never from the answer, so it ends no
//! later here than in the store. The renew and the watch loop look no later than any attempt needs
//! them to: whoever needs it sooner than planned wakes them. Once closed, it takes no attempt on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use windlass_core::job::LeaseToken;
use windlass_core::ledger::{Renewal, Renewed};
use windlass_core::refusal::Refusal;
use windlass_core::time::Steady;
use windlass_core::worker::{renew_every, store_backoff};

use crate::attempt::{Attempt, StopReason};
use crate::clock::Clock;

pub(super) struct Leases {
    clock: Arc<dyn Clock>,
    running: Mutex<RunningAttempts>,
    /// Held while reports are in flight, so that a settlement comes after them. Guarded by
    /// `a_renewal_that_hangs_neither_keeps_a_result_nor_loses_what_was_said` in
    /// `tests/main/lost_leases.rs` (the planted bugs 57 and 72).
    renewing: tokio::sync::Mutex<()>,
    /// A job began that the renew loop must look at sooner than it would.
    began: Notify,
    /// A job began that the watch loop must look at sooner than it would, or was told to stop.
    told: Notify,
    /// A handler has something to report.
    reported: Notify,
    /// An attempt let go of its lease.
    released: Notify,
}

/// The attempts that hold a lease, until the worker has stopped and takes no more.
#[derive(Default)]
struct RunningAttempts {
    attempts: BTreeMap<LeaseToken, Running>,
    closed: bool,
    /// When the renew loop looks next by itself; `None` if it does not.
    renewal_at: Option<Steady>,
    /// When the watch loop looks next by itself; `None` if it does not.
    watch_at: Option<Steady>,
    /// When the last request to cancel was heard of.
    cancel_heard: Option<Steady>,
}

/// An attempt that holds a lease.
struct Running {
    attempt: Attempt,
    lease: Duration,
    /// When the last renewal that was applied, or the claim, was sent.
    renewed: Steady,
    /// The store refused to renew it, and so would every time.
    refused: bool,
    /// When its time is up.
    deadline: Option<Steady>,
    /// When it has had enough time to obey, once it was told to stop.
    patience: Option<Steady>,
}

/// The right and the duty to settle an attempt, which exist once. Its lease is renewed until this
/// is dropped.
pub(super) struct RegisteredAttempt {
    leases: Arc<Leases>,
    attempt: Attempt,
}

impl Leases {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            running: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
            began: Notify::new(),
            told: Notify::new(),
            reported: Notify::new(),
            released: Notify::new(),
        })
    }

    /// Takes attempts on, all of them, unless the worker has stopped: then none. Their leases are
    /// as old as the claim.
    pub(super) fn register<'a>(
        &self,
        attempts: impl Iterator<Item = &'a Attempt>,
        claimed: Steady,
    ) -> bool {
        let now = self.steady();
        let (mut renew, mut watch) = (false, false);
        let mut running = self.running();
        if running.closed {
            return false;
        }
        for attempt in attempts {
            let (lease, timeout) = (attempt.lease(), attempt.timeout());
            let deadline = timeout.map(|timeout| now + timeout);
            let end = deadline.map_or(claimed + lease, |deadline| deadline.min(claimed + lease));
            renew |= running.needs_renewal_sooner(claimed, lease);
            watch |= is_sooner(end, running.watch_at);
            let (attempt, token) = (attempt.clone(), attempt.token());
            let (renewed, refused, patience) = (claimed, false, None);
            let taken_on = Running { attempt, lease, renewed, refused, deadline, patience };
            running.attempts.insert(token, taken_on);
        }
        drop(running);
        // Woken only if they would look too late: most attempts end long before either looks.
        if renew {
            self.began.notify_one();
        }
        if watch {
            self.told.notify_one();
        }
        true
    }

    /// Takes the right to settle an attempt; `None` if somebody else has it.
    pub(super) fn end(self: &Arc<Self>, attempt: &Attempt) -> Option<RegisteredAttempt> {
        let right = || RegisteredAttempt { leases: self.clone(), attempt: attempt.clone() };
        attempt.ending().take().then(right)
    }

    /// Tells every attempt that the worker stops. `true` if none holds a lease; from then on none
    /// is taken on.
    pub(super) fn stop_all(&self) -> bool {
        let mut running = self.running();
        for running in running.attempts.values() {
            running.attempt.tell(StopReason::Shutdown);
        }
        running.closed = running.attempts.is_empty();
        running.closed
    }

    /// Waits for an attempt that lets go of its lease.
    pub(super) fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    fn running(&self) -> MutexGuard<'_, RunningAttempts> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steady(&self) -> Steady {
        self.clock.now().steady
    }
}

fn is_sooner(at: Steady, planned: Option<Steady>) -> bool {
    planned.is_none_or(|planned| at < planned)
}

impl RunningAttempts {
    fn needs_renewal_sooner(&self, claimed: Steady, lease: Duration) -> bool {
        is_sooner(claimed + renew_every(lease), self.renewal_at) || self.may_be_cancelled(claimed)
    }

    /// A job that was claimed before the last request to cancel may be the one it is for.
    fn may_be_cancelled(&self, renewed: Steady) -> bool {
        self.cancel_heard.is_some_and(|heard| renewed <= heard)
    }
}

impl RegisteredAttempt {
    pub(super) fn attempt(&self) -> &Attempt {
        &self.attempt
    }
}

impl Drop for RegisteredAttempt {
    fn drop(&mut self) {
        let removed = self.leases.running().attempts.remove(&self.attempt.token());
        drop(removed);
        self.attempt.let_go();
        self.leases.released.notify_one();
    }
}

/// Renewing.
impl Leases {
    /// A handler has something to report.
    pub(super) fn notify_reported(&self) {
        self.reported.notify_one();
    }

    /// Waits for something to report.
    pub(super) fn reported(&self) -> Notified<'_> {
        self.reported.notified()
    }

    /// Waits for an attempt that must be renewed sooner than planned.
    pub(super) fn began(&self) -> Notified<'_> {
        self.began.notified()
    }

    /// Somebody has asked to cancel a running job. Which one, the answer to a renewal says.
    pub(super) fn hear_cancel(&self) {
        self.running().cancel_heard = Some(self.steady());
    }

    /// Whether a request to cancel may be for one of them.
    pub(super) fn may_be_cancelled(&self) -> bool {
        let running = self.running();
        running.attempts.values().any(|it| running.may_be_cancelled(it.renewed))
    }

    /// How long until the next lease is due for renewal; `None` if nothing runs. After a failure,
    /// soon and for everything.
    pub(super) fn plan_renewal(&self, failures: u32) -> (Option<Duration>, bool) {
        let now = self.steady();
        let mut running = self.running();
        let renewable = running.attempts.values().filter(|it| !it.refused);
        let due = renewable.map(|it| renew_every(it.lease).saturating_sub(now.since(it.renewed)));
        let (wait, everything) = match due.min() {
            Some(_) if failures > 0 => (Some(store_backoff(failures)), true),
            due => (due, false),
        };
        running.renewal_at = wait.map(|wait| now + wait);
        (wait, everything)
    }

    /// What is to be renewed now: what is due, or everything, and what has something to report.
    pub(super) async fn gather_renewals(&self, everything: bool) -> RenewalBatch<'_> {
        let renewing = self.renewing.lock().await;
        // Before it is sent: a lease is as old as the question, however late the answer is.
        let sent = self.steady();
        let mut renewals = Vec::new();
        for (token, running) in self.running().attempts.iter().filter(|(_, it)| !it.refused) {
            let report = running.attempt.reports().send();
            let due = sent.since(running.renewed) >= renew_every(running.lease);
            if everything || due || !report.is_empty() {
                let (job, token, lease) = (running.attempt.id(), *token, running.lease);
                renewals.push(Renewal { job, token, lease, report });
            }
        }
        let tokens = renewals.iter().map(|renewal| renewal.token).collect();
        RenewalBatch { leases: self, sent, renewals, tokens, _renewing: renewing }
    }

    /// A lease was renewed by a question that was sent then.
    pub(super) fn renewed(&self, token: LeaseToken, sent: Steady) {
        if let Some(running) = self.running().attempts.get_mut(&token) {
            running.renewed = running.renewed.max(sent);
        }
    }

    /// Waits for reports of an attempt that are in flight, but for half of what is left of its
    /// lease at most: a store that does not answer a renewal may well answer a settlement.
    pub(super) async fn reports_written(&self, token: LeaseToken) {
        let now = self.steady();
        let left = |running: &Running| running.lease_end().since(now);
        let left = self.running().attempts.get(&token).map_or(Duration::ZERO, left);
        tokio::select! {
            biased;
            _ = self.renewing.lock() => {}
            () = self.clock.sleep(left / 2) => {}
        }
    }
}

/// Renewals in flight. Until this is dropped, settlements of attempts that report wait.
pub(super) struct RenewalBatch<'a> {
    leases: &'a Leases,
    sent: Steady,
    renewals: Vec<Renewal>,
    tokens: Vec<LeaseToken>,
    _renewing: tokio::sync::MutexGuard<'a, ()>,
}

impl RenewalBatch<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// What is to be sent.
    pub(super) fn take(&mut self) -> Vec<Renewal> {
        std::mem::take(&mut self.renewals)
    }

    /// Takes the answers over, and tells the attempts what they mean.
    pub(super) fn apply(self, answers: Vec<Result<Renewed, Refusal>>) {
        let Self { leases, sent, tokens, .. } = self;
        let mut running = leases.running();
        for (token, answer) in tokens.into_iter().zip(answers) {
            let Some(running) = running.attempts.get_mut(&token) else { continue };
            match answer {
                Ok(renewed) => {
                    running.renewed = running.renewed.max(sent);
                    running.attempt.reports().are_written();
                    if renewed.cancel_requested {
                        running.attempt.tell(StopReason::Cancelled);
                    }
                }
                Err(_) => {
                    running.refused = true;
                    running.attempt.tell(StopReason::LeaseLost);
                }
            }
        }
    }
}

/// Watching.
impl Leases {
    /// An attempt was told to stop.
    pub(super) fn notify_told(&self) {
        self.told.notify_one();
    }

    /// Waits for an attempt that must be watched sooner than planned.
    pub(super) fn told(&self) -> Notified<'_> {
        self.told.notified()
    }

    /// Tells attempts whose time is up or whose lease is over. Returns those that were told to stop
    /// and have had enough time for it, which is `grace`, or none if `forced`; and how long until
    /// the next time is up, `None` if nothing is waited for.
    pub(super) fn watch(&self, grace: Duration, forced: bool) -> (Vec<Attempt>, Option<Duration>) {
        let now = self.steady();
        let mut overdue = Vec::new();
        let mut next: Option<Steady> = None;
        let mut running = self.running();
        for running in running.attempts.values_mut() {
            match running.due(now, grace, forced) {
                Some(due) if due <= now => overdue.push(running.attempt.clone()),
                Some(due) => next = Some(next.map_or(due, |next| next.min(due))),
                None => {}
            }
        }
        running.watch_at = next;
        (overdue, next.map(|next| next.since(now)))
    }
}

impl Running {
    fn lease_end(&self) -> Steady {
        self.renewed + self.lease
    }

    /// Tells it to stop if its lease is over or its time is up. When it must be looked at again:
    /// when either will be so, or when it has had enough time to obey.
    fn due(&mut self, now: Steady, grace: Duration, forced: bool) -> Option<Steady> {
        let lease_end = self.lease_end();
        let has_ended = self.attempt.ending().is_taken();
        // What has ended only waits to be settled, which takes its lease but no time of its own.
        let deadline = self.deadline.filter(|_| !has_ended);
        // The lease first: whoever has lost it must not fail the attempt as timed out.
        if lease_end <= now {
            self.attempt.tell(StopReason::LeaseLost);
        } else if deadline.is_some_and(|deadline| deadline <= now) {
            self.attempt.tell(StopReason::Timeout);
        }
        match self.attempt.cancellation().reason() {
            None => Some(deadline.map_or(lease_end, |deadline| deadline.min(lease_end))),
            Some(_) if has_ended => None,
            Some(_) if forced => Some(now),
            Some(_) => Some(*self.patience.get_or_insert(now + grace)),
        }
    }
}
