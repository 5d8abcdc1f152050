//! What an owner does with the calls of those who have joined.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use windlass_core::time::Steady;

use super::member::this_process;
use crate::clock::{Clock, SystemClock};
use crate::store::{FileStore, Store};
use crate::wake::Wake;
use crate::wire::{Call, Fault, Joining, Reply, Served, Service};

/// A serving thread that was not there for this long has been stopped.
const STOPPED: Duration = Duration::from_secs(2);

/// Answers for an owner, whoever asks.
pub(super) struct OwnerService {
    store: Arc<FileStore>,
    served: Served,
    closing: watch::Sender<bool>,
    /// When the serving thread was last seen to run.
    awake: Mutex<Steady>,
    time: Arc<SystemClock>,
    /// Members that may still be asking something, one for each connection.
    asking: Mutex<Vec<String>>,
}

/// Answers one process that has joined. It lasts until the connection is over, and every call that
/// came over it.
///
/// Answers: a process can die with a claim on its way. If its jobs are recovered before that is
/// made, the claim leases jobs to a worker of whom nobody will know any more that it is dead.
/// Why not simpler: what was asked is carried through however the connection ends, so its end alone
/// says nothing.
/// Guarded by: `a_claim_that_is_made_after_its_process_died_waits_for_no_lease` in
/// `tests/processes/joined.rs`.
pub(super) struct JoinedService {
    owner: Arc<OwnerService>,
    member: Mutex<Option<String>>,
    /// Told when it is over.
    left: Arc<Notify>,
}

impl JoinedService {
    pub(super) fn new(owner: Arc<OwnerService>, left: Arc<Notify>) -> Self {
        Self { owner, member: Mutex::default(), left }
    }

    fn is_asking(&self, member: Option<String>) {
        let mut known = self.member.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            self.owner.asking().extend(member.clone());
            *known = member;
        }
    }
}

impl Drop for JoinedService {
    fn drop(&mut self) {
        let member = self.member.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(member) = member {
            let mut asking = self.owner.asking();
            if let Some(place) = asking.iter().position(|one| *one == member) {
                asking.swap_remove(place);
            }
        }
        self.left.notify_one();
    }
}

impl OwnerService {
    pub(super) fn new(store: Arc<FileStore>, wake: Arc<dyn Wake>, time: Arc<SystemClock>) -> Self {
        let served = Served { store: store.clone(), wake };
        let (closing, awake) = (watch::Sender::new(false), Mutex::new(time.now().steady));
        Self { store, served, closing, awake, time, asking: Mutex::default() }
    }

    fn asking(&self) -> MutexGuard<'_, Vec<String>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls of this member may still be made.
    pub(super) fn may_ask(&self, member: &str) -> bool {
        self.asking().iter().any(|one| one == member)
    }

    /// The serving thread runs.
    pub(super) fn note_awake(&self) {
        *self.awake.lock().unwrap_or_else(PoisonError::into_inner) = self.time.now().steady;
    }

    /// Whether it has run all the time until now.
    pub(super) fn is_awake(&self) -> bool {
        let awake = *self.awake.lock().unwrap_or_else(PoisonError::into_inner);
        self.time.now().steady.since(awake) < STOPPED
    }

    /// Takes no more calls.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    async fn join(&self, joining: Joining) -> Result<Reply, Fault> {
        if let Some(held) = joining.held {
            let workers: BTreeSet<Arc<str>> = joining.workers.into_iter().collect();
            let held = held.into_iter().collect();
            self.store.release_unheld(&workers, &held).await.map_err(Fault::from)?;
        }
        tracing::debug!(process = joining.process, "a process has joined the store");
        Ok(Reply::Joined { owner: this_process() })
    }
}

#[async_trait]
impl Service for JoinedService {
    async fn answer(&self, call: Call) -> Result<Reply, Fault> {
        match call {
            Call::Join(joining) => {
                self.is_asking(joining.member.clone());
                self.owner.join(joining).await
            }
            call => call.answered_by(&self.owner.served).await,
        }
    }

    fn last_event(&self) -> u64 {
        self.owner.store.info().last_event
    }

    fn is_awake(&self) -> bool {
        self.owner.is_awake()
    }

    async fn closing(&self) {
        // The sender is here, so this ends only when it is so.
        let _ = self.owner.closing.subscribe().wait_for(|closing| *closing).await;
    }
}
