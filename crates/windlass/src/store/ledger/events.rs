//! Events that have been committed, kept for subscribers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use windlass_core::event::Event;
use windlass_core::limits;

/// The last events, [`limits::EVENTS_KEPT`] at most, and the number of the last of all.
#[derive(Debug)]
pub(in crate::store) struct EventBuffer {
    events: Mutex<VecDeque<Arc<Event>>>,
    committed: watch::Sender<u64>,
}

impl EventBuffer {
    /// Empty, after the event of this number.
    pub(in crate::store) fn new(last: u64) -> Self {
        Self { events: Mutex::default(), committed: watch::Sender::new(last) }
    }

    /// Adds events and tells of them. Returns those that had to make way: the memory store calls
    /// this with the ledger locked, and drops them when it has let go of it.
    pub(in crate::store) fn keep(&self, events: Vec<Event>) -> Vec<Arc<Event>> {
        let Some(last) = events.last().map(|event| event.number) else { return Vec::new() };
        let mut kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(events.into_iter().map(Arc::new));
        let surplus = kept.len().saturating_sub(limits::EVENTS_KEPT);
        let gone = kept.drain(..surplus).collect();
        drop(kept);
        self.committed.send_replace(last);
        gone
    }

    /// Events after the given number, the oldest first.
    pub(in crate::store) fn after(&self, number: u64, limit: usize) -> Vec<Arc<Event>> {
        let kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let first = kept.front().map_or(1, |event| event.number);
        let skip = number.saturating_add(1).saturating_sub(first);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        kept.iter().skip(skip).take(limit).cloned().collect()
    }

    /// The number of the last event, as it changes.
    pub(in crate::store) fn committed(&self) -> watch::Receiver<u64> {
        self.committed.subscribe()
    }
}
