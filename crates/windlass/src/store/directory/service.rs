//! What an owner does with the calls of those who have joined.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use windlass_core::time::Steady;

use super::member::this_process;
use crate::clock::{Clock, SystemClock};
use crate::store::{FileStore, Store};
use crate::wake::Wake;
use crate::wire::{Call, Fault, Joining, Reply, Served, Service};

/// A serving thread that was not there for this long has been stopped.
const STOPPED: Duration = Duration::from_secs(2);

/// Answers for an owner.
pub(super) struct OwnerService {
    store: Arc<FileStore>,
    served: Served,
    closing: watch::Sender<bool>,
    /// When the serving thread was last seen to run.
    awake: Mutex<Steady>,
    time: Arc<SystemClock>,
}

impl OwnerService {
    pub(super) fn new(store: Arc<FileStore>, wake: Arc<dyn Wake>, time: Arc<SystemClock>) -> Self {
        let served = Served { store: store.clone(), wake };
        let (closing, awake) = (watch::Sender::new(false), Mutex::new(time.now().steady));
        Self { store, served, closing, awake, time }
    }

    /// The serving thread runs.
    pub(super) fn note_awake(&self) {
        *self.awake.lock().unwrap_or_else(PoisonError::into_inner) = self.time.now().steady;
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
impl Service for OwnerService {
    async fn answer(&self, call: Call) -> Result<Reply, Fault> {
        match call {
            Call::Join(joining) => self.join(joining).await,
            call => call.answered_by(&self.served).await,
        }
    }

    fn last_event(&self) -> u64 {
        self.store.info().last_event
    }

    fn is_awake(&self) -> bool {
        let awake = *self.awake.lock().unwrap_or_else(PoisonError::into_inner);
        self.time.now().steady.since(awake) < STOPPED
    }

    async fn closing(&self) {
        // The sender is here, so this ends only when it is so.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}
