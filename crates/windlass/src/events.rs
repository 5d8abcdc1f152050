//! Hearing what happens: every committed change, in order, without holding anyone up.
//!
//! A subscription is a place in the store's list of events. It holds no buffer of its own, so a
//! subscriber that never reads costs nothing; one that reads too slowly is told how many events
//! it missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use windlass_core::event::{Event, Subject};
use windlass_core::job::JobId;

use crate::clock::Clock;
use crate::store::Store;

/// Which events a subscriber wants. The conditions hold together.
#[derive(Clone, Debug, Default)]
pub struct Topics {
    patterns: Vec<String>,
    job: Option<JobId>,
    queue: Option<String>,
}

impl Topics {
    /// All events.
    pub fn all() -> Self {
        Self::default()
    }

    /// Events whose topic is `pattern`, such as `job.completed`, or begins like it, such as
    /// `job.*`. May be called several times.
    pub fn topic(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.push(pattern.into());
        self
    }

    /// Events of one job.
    pub fn job(mut self, job: JobId) -> Self {
        self.job = Some(job);
        self
    }

    /// Events of one queue and its jobs.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Whether an event is wanted.
    pub fn include(&self, event: &Event) -> bool {
        let topic = event.topic();
        let wanted = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => topic.starts_with(prefix),
            None => topic == pattern,
        };
        let queue = match &event.subject {
            Subject::Job { queue, .. } | Subject::Queue(queue) => Some(queue.as_str()),
            Subject::Worker(_) => None,
        };
        (self.patterns.is_empty() || self.patterns.iter().any(wanted))
            && (self.job.is_none() || self.job == event.job())
            && (self.queue.is_none() || self.queue.as_deref() == queue)
    }
}

/// What a subscriber hears.
#[derive(Clone, Debug)]
pub enum Heard {
    /// Something happened.
    Event(Arc<Event>),
    /// The subscriber was too slow, and this many events are gone.
    Lagged {
        /// How many.
        missed: u64,
    },
}

/// A place in the list of events.
#[derive(Debug)]
pub struct Subscription {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    topics: Topics,
    committed: watch::Receiver<u64>,
    after: u64,
    read: VecDeque<Arc<Event>>,
}

/// How many events are read at once.
const PAGE: usize = 256;

/// How often a subscriber looks by itself, in case it was not told: a store shared by several
/// processes may not tell each of every commit.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Subscription {
    /// Subscribes to what happens after event number `after`; `None` for what happens from now
    /// on. Complete when it returns: nothing committed later is missed.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        topics: Topics,
        after: Option<u64>,
    ) -> Self {
        let committed = store.committed();
        let after = after.unwrap_or_else(|| *committed.borrow());
        Self { store, clock, topics, committed, after, read: VecDeque::new() }
    }

    /// The number of the last event that was heard or passed over.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// Waits for the next event that is wanted. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Heard {
        loop {
            if let Some(heard) = self.take() {
                return heard;
            }
            self.committed.mark_unchanged();
            self.fetch().await;
            if self.read.is_empty() {
                let told = self.committed.changed();
                tokio::select! {
                    biased;
                    _ = told => {}
                    () = self.clock.sleep(LOOK_AGAIN) => {}
                }
            }
        }
    }

    /// The next event that is wanted, if there is one already.
    pub async fn try_next(&mut self) -> Option<Heard> {
        loop {
            if let Some(heard) = self.take() {
                return Some(heard);
            }
            self.fetch().await;
            if self.read.is_empty() {
                return None;
            }
        }
    }

    fn take(&mut self) -> Option<Heard> {
        while let Some(event) = self.read.front() {
            let missed = event.number.saturating_sub(self.after.saturating_add(1));
            if missed > 0 {
                self.after = event.number - 1;
                return Some(Heard::Lagged { missed });
            }
            self.after = event.number;
            let event = self.read.pop_front()?;
            if self.topics.include(&event) {
                return Some(Heard::Event(event));
            }
        }
        None
    }

    async fn fetch(&mut self) {
        match self.store.events(self.after, PAGE).await {
            Ok(events) => self.read = events.into(),
            Err(error) => tracing::warn!(%error, "events will be read again"),
        }
    }
}

/// Who waits for which job to finish.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    by_job: Mutex<BTreeMap<JobId, Vec<Arc<Notify>>>>,
}

impl Waiters {
    /// A signal that comes when `job` has finished, once or more. Look at the job after this.
    pub(crate) fn wait_for(&self, job: JobId) -> Arc<Notify> {
        let signal = Arc::new(Notify::new());
        let mut by_job = self.by_job.lock().unwrap_or_else(PoisonError::into_inner);
        by_job.entry(job).or_default().push(signal.clone());
        signal
    }

    /// Takes back a signal nobody waits for any more.
    pub(crate) fn forget(&self, job: JobId, signal: &Arc<Notify>) {
        let mut by_job = self.by_job.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(signals) = by_job.get_mut(&job) {
            signals.retain(|other| !Arc::ptr_eq(other, signal));
            if signals.is_empty() {
                by_job.remove(&job);
            }
        }
    }

    fn tell(&self, job: JobId) {
        // Not removed: what was told may be out of date, and then the waiter goes on waiting.
        let by_job = self.by_job.lock().unwrap_or_else(PoisonError::into_inner);
        for signal in by_job.get(&job).into_iter().flatten() {
            signal.notify_one();
        }
    }

    fn tell_all(&self) {
        let by_job = self.by_job.lock().unwrap_or_else(PoisonError::into_inner);
        for signal in by_job.values().flatten() {
            signal.notify_one();
        }
    }
}

/// Tells waiters when their jobs finish, until it is dropped.
pub(crate) async fn pump(mut subscription: Subscription, waiters: Arc<Waiters>) {
    loop {
        match subscription.next().await {
            Heard::Event(event) => {
                if let (true, Some(job)) = (event.what.is_terminal(), event.job()) {
                    waiters.tell(job);
                }
            }
            // Any of them may be among what was missed; each looks for itself.
            Heard::Lagged { .. } => waiters.tell_all(),
        }
    }
}
