//! Events that have been committed: kept for subscribers, and told to whoever waits for outcomes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio::sync::watch;
use windlass_core::event::Event;
use windlass_core::limits;

/// Events up to so many that make way are dropped at once.
const DROPPED_AT_ONCE: usize = 64;

/// Hears every event of a store when it is committed.
pub(crate) trait EventListener: Send + Sync {
    /// These were committed, in this order, after those it heard of before. What is returned tells
    /// whom they concern when it is dropped, which may wake many.
    fn hear(&self, events: &[Event]) -> Option<Box<dyn Send>>;

    /// From now on every event is told here, or none is and they have to be read. Some may have
    /// been missed in between.
    fn source_changed(&self, told: bool);
}

/// The last events, [`limits::EVENTS_KEPT`] at most, and the number of the last of all.
///
/// They are kept by value, and a reader gets copies: nearly all are never read.
pub(in crate::store) struct EventBuffer {
    events: Mutex<VecDeque<Event>>,
    committed: watch::Sender<u64>,
    listener: OnceLock<Weak<dyn EventListener>>,
}

/// What is left to do after events were kept, best where nobody waits for it: it happens when this
/// is dropped.
#[derive(Default)]
pub(in crate::store) struct AfterEvents {
    told: Option<Box<dyn Send>>,
    /// To free many takes longer than to decide about them.
    gone: Vec<Event>,
}

impl fmt::Debug for EventBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventBuffer(up to {})", *self.committed.borrow())
    }
}

impl fmt::Debug for AfterEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AfterEvents")
    }
}

impl AfterEvents {
    /// Whether there is anything to do: somebody to tell, or much to free.
    pub(in crate::store) fn is_work(&self) -> bool {
        self.told.is_some() || !self.gone.is_empty()
    }
}

impl EventBuffer {
    /// Empty, after the event of this number.
    pub(in crate::store) fn new(last: u64) -> Self {
        let committed = watch::Sender::new(last);
        Self { events: Mutex::default(), committed, listener: OnceLock::new() }
    }

    /// Tells events to somebody from now on. There is one listener at most; the first stays.
    pub(in crate::store) fn listen(&self, listener: Weak<dyn EventListener>) {
        let _ = self.listener.set(listener);
    }

    /// Adds events and tells of them. Called in the order of commits.
    pub(in crate::store) fn keep(&self, events: Vec<Event>) -> AfterEvents {
        let Some(last) = events.last().map(|event| event.number) else {
            return AfterEvents::default();
        };
        let listener = self.listener.get().and_then(Weak::upgrade);
        let told = listener.and_then(|listener| listener.hear(&events));
        let mut kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(events);
        let surplus = kept.len().saturating_sub(limits::EVENTS_KEPT);
        let mut gone = Vec::new();
        match surplus > DROPPED_AT_ONCE {
            true => gone.extend(kept.drain(..surplus)),
            false => drop(kept.drain(..surplus)),
        }
        drop(kept);
        self.committed.send_replace(last);
        AfterEvents { told, gone }
    }

    /// Events after the given number, the oldest first.
    pub(in crate::store) fn after(&self, number: u64, limit: usize) -> Vec<Arc<Event>> {
        let kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let first = kept.front().map_or(1, |event| event.number);
        let skip = number.saturating_add(1).saturating_sub(first);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        kept.iter().skip(skip).take(limit).map(|event| Arc::new(event.clone())).collect()
    }

    /// The number of the last event, as it changes.
    pub(in crate::store) fn committed(&self) -> watch::Receiver<u64> {
        self.committed.subscribe()
    }
}
