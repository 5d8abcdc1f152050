//! Slots: how many jobs the worker may run at once, how many it runs, and for how many it asks.
//!
//! Invariant: `busy` counts the slots in use, those of [`TakenSlots`] and those that attempts hold
//! (`HeldSlot`); `unsettled` the [`Unsettled`] jobs, `claims` the [`SlotRequest`]s in flight, and
//! `asked` the jobs that those ask for. Each takes itself off when it is dropped, so a slot cannot
//! leak, however an attempt or a claim ends (the planted bugs 50 and 65). A claim asks only for
//! slots that are neither busy nor asked for, so a worker never runs more than it has slots for,
//! unless slots were taken away from it.
//!
//! A slot is free when its handler has ended, while its settlement is in flight.
//! Answers: a worker with few slots waited for a commit after every few jobs.
//! Why not simpler: with ten slots, a worker drained 11 thousand jobs a second that do nothing;
//! this way 59 thousand, where 512 slots drain 75 (file store, `sync`).
//! Guarded by: `a_slot_is_free_while_its_settlement_is_in_flight_and_a_silent_store_gets_no_more`
//! in `tests/main/worker.rs`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use windlass_core::worker::{most_unsettled, to_ask};

pub(super) struct Slots {
    counts: Mutex<SlotCounts>,
    /// A slot became free, or their number changed.
    freed: Notify,
    /// No claim is in flight any more.
    answered: Notify,
}

#[derive(Clone, Copy, Debug)]
struct SlotCounts {
    /// How many there are.
    all: u32,
    busy: u32,
    /// Jobs that have run, and whose settlement is in flight.
    unsettled: u32,
    /// How many jobs the claims in flight ask for.
    asked: u32,
    /// How many claims are in flight, until the jobs they brought are begun or given back.
    claims: u32,
}

/// Slots for jobs that came, until attempts hold them.
pub(super) struct TakenSlots {
    slots: Arc<Slots>,
    count: u32,
}

/// A job that has run, until it is settled and this is dropped.
pub(super) struct Unsettled(Arc<Slots>);

/// Slots for which a claim asks until this is dropped.
pub(super) struct SlotRequest {
    slots: Arc<Slots>,
    count: u32,
}

impl Slots {
    pub(super) fn new(all: u32) -> Arc<Self> {
        Arc::new(Self {
            counts: Mutex::new(SlotCounts { all, busy: 0, unsettled: 0, asked: 0, claims: 0 }),
            freed: Notify::new(),
            answered: Notify::new(),
        })
    }

    pub(super) fn all(&self) -> u32 {
        self.counts().all
    }

    pub(super) fn busy(&self) -> u32 {
        self.counts().busy
    }

    /// Changes how many there are. Those in use stay in use.
    pub(super) fn scale(&self, all: u32) {
        self.counts().all = all;
        self.freed.notify_one();
    }

    /// Sets slots aside to ask for; `None` if it is better to wait.
    pub(super) fn request(self: &Arc<Self>) -> Option<SlotRequest> {
        let mut counts = self.counts();
        let count = to_ask(counts.all, counts.busy, counts.asked, counts.unsettled);
        if count == 0 {
            return None;
        }
        counts.asked += count;
        counts.claims += 1;
        Some(SlotRequest { slots: self.clone(), count })
    }

    /// A slot is in use no longer.
    pub(super) fn free(&self) {
        self.counts().busy -= 1;
        self.freed.notify_one();
    }

    /// A job has run and waits to be settled.
    pub(super) fn unsettled(self: &Arc<Self>) -> Unsettled {
        self.counts().unsettled += 1;
        Unsettled(self.clone())
    }

    /// Waits for a slot that becomes free.
    pub(super) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Waits until no claim is in flight. Only one may wait.
    pub(super) async fn claims_answered(&self) {
        while self.counts().claims > 0 {
            self.answered.notified().await;
        }
    }

    fn counts(&self) -> MutexGuard<'_, SlotCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotRequest {
    /// For how many it asks.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Takes slots for the jobs that came, and asks for no more.
    pub(super) fn take(&mut self, jobs: usize) -> TakenSlots {
        let count = u32::try_from(jobs).unwrap_or(u32::MAX);
        let mut counts = self.slots.counts();
        counts.asked -= std::mem::take(&mut self.count);
        counts.busy += count;
        TakenSlots { slots: self.slots.clone(), count }
    }
}

impl TakenSlots {
    /// An attempt holds one of them now, and frees it.
    pub(super) fn hand_over(&mut self) {
        self.count -= 1;
    }
}

impl Drop for TakenSlots {
    fn drop(&mut self) {
        for _ in 0..self.count {
            self.slots.free();
        }
    }
}

impl Drop for SlotRequest {
    fn drop(&mut self) {
        let mut counts = self.slots.counts();
        counts.asked -= self.count;
        counts.claims -= 1;
        if counts.claims == 0 {
            self.slots.answered.notify_one();
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        let mut counts = self.0.counts();
        let held_back = counts.unsettled >= most_unsettled(counts.all);
        counts.unsettled -= 1;
        drop(counts);
        if held_back {
            self.0.freed.notify_one();
        }
    }
}
