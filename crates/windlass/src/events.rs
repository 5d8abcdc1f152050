//! Hearing what happens: every committed change, in order, without holding anyone up.
//!
//! A subscription is a place in the store's list of events. It holds no buffer of its own, so a
//! subscriber that never reads costs nothing; one that reads too slowly is told how many events
//! it missed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::{Event, Subject, TOPICS};
use windlass_core::job::JobId;
use windlass_core::name::{Name, nearest};
use windlass_core::refusal::Refusal;

use crate::clock::Clock;
use crate::primitives::{built_in_topics, is_built_in};
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
    /// `job.*`. May be called several times. A pattern that no event can match is refused when
    /// subscribing ([`Topics::check`]).
    pub fn topic(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.push(pattern.into());
        self
    }

    /// Refuses a pattern that no event can ever match, and names the nearest topic there is.
    /// Subscribing refuses it in the same words.
    ///
    /// Topics of objects begin with the kind of the object, which may be one of yours; no primitive
    /// of yours can have a kind that the engine's own topics begin with, nor its plural.
    pub fn check(&self) -> Result<(), Refusal> {
        self.patterns.iter().filter(|pattern| !may_match(pattern)).try_for_each(|pattern| {
            let names: Vec<Name> = known().filter_map(|topic| Name::new(&topic).ok()).collect();
            let meant = pattern.trim_end_matches('*').trim_end_matches('.');
            let allowed = match nearest(meant, names.iter()) {
                Some(topic) => format!("no event has it; the nearest is `{topic}`"),
                None => {
                    format!("no event has it; there are {} and those of objects", TOPICS.join(", "))
                }
            };
            Err(Refusal::OutOfBounds { what: "topic".into(), got: format!("`{pattern}`"), allowed })
        })
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
            Subject::Worker(_) | Subject::Object(_) => None,
        };
        (self.patterns.is_empty() || self.patterns.iter().any(wanted))
            && (self.job.is_none() || self.job == event.job())
            && (self.queue.is_none() || self.queue.as_deref() == queue)
    }
}

/// Every topic but those of primitives that are not ours.
fn known() -> impl Iterator<Item = String> {
    TOPICS.into_iter().map(str::to_string).chain(built_in_topics())
}

/// Whether there may be an event with a topic like this.
fn may_match(pattern: &str) -> bool {
    let prefix = pattern.strip_suffix('*');
    let matches = |topic: &str| prefix.map_or(topic == pattern, |prefix| topic.starts_with(prefix));
    if known().any(|topic| matches(&topic)) {
        return true;
    }
    // What is left are topics of primitives that are not ours: `kind.what`, which is a name.
    let is_name = |text: &str| Name::new(text).is_ok();
    match (pattern.split_once('.'), prefix) {
        (Some((kind, _)), _) if is_family(kind) || is_built_in(kind) => false,
        (Some(_), None) => is_name(pattern),
        (None, None) => false,
        (_, Some(prefix)) => is_name(prefix) || is_name(&format!("{prefix}x")),
    }
}

/// Whether a kind begins like one of the engine's own topics (`job`, `queue`, …), also in the
/// plural or in capitals. All other topics belong to objects.
pub(crate) fn is_family(kind: &str) -> bool {
    let first = |topic: &str| topic.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let word = first(kind);
    let singular = word.strip_suffix('s').unwrap_or(&word);
    TOPICS.into_iter().any(|topic| first(topic) == singular)
}

/// What a subscriber hears.
#[derive(Clone, Debug)]
pub enum Received {
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
    after: u64,
    read: VecDeque<Arc<Event>>,
    /// Events that are gone, with none after them.
    missed: u64,
}

/// How many events are read at once.
pub(crate) const PAGE: usize = 256;

/// How long a store is asked to wait for the next event, before it is asked again.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

/// How long a store that could not be asked is left alone.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Subscription {
    /// Subscribes to what happens after event number `after`; `None` for what happens from now
    /// on. Complete when it returns: nothing committed later is missed. Refused if no event can
    /// have one of the topics.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        topics: Topics,
        after: Option<u64>,
    ) -> Result<Self, Refusal> {
        topics.check()?;
        let after = after.unwrap_or_else(|| store.info().last_event);
        Ok(Self { store, clock, topics, after, read: VecDeque::new(), missed: 0 })
    }

    /// The number of the last event that was heard or passed over.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// Waits for the next event that is wanted. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Received {
        loop {
            if let Some(heard) = self.take() {
                return heard;
            }
            if !self.fetch(WAIT).await {
                self.clock.sleep(ASK_AGAIN).await;
            }
        }
    }

    /// The next event that is wanted, if there is one already.
    pub async fn try_next(&mut self) -> Option<Received> {
        loop {
            if let Some(heard) = self.take() {
                return Some(heard);
            }
            self.fetch(Duration::ZERO).await;
            if self.read.is_empty() && self.missed == 0 {
                return None;
            }
        }
    }

    fn take(&mut self) -> Option<Received> {
        let missed = std::mem::take(&mut self.missed);
        if missed > 0 {
            self.after += missed;
            return Some(Received::Lagged { missed });
        }
        while let Some(event) = self.read.front() {
            let missed = event.number.saturating_sub(self.after.saturating_add(1));
            if missed > 0 {
                self.after = event.number - 1;
                return Some(Received::Lagged { missed });
            }
            self.after = event.number;
            let event = self.read.pop_front()?;
            if self.topics.include(&event) {
                return Some(Received::Event(event));
            }
        }
        None
    }

    /// Reads what comes next, and says whether the store answered.
    ///
    /// If another process has taken a store over, events of before are gone, and nothing may happen
    /// for long: so whoever is behind the last event, and is told of none, has missed those.
    async fn fetch(&mut self, wait: Duration) -> bool {
        // Read before asking, so that events in between are not taken for lost.
        let last = self.store.info().last_event;
        let wait = if last > self.after { Duration::ZERO } else { wait };
        match self.store.events(self.after, PAGE, wait).await {
            Ok(events) => {
                self.missed = if events.is_empty() { last.saturating_sub(self.after) } else { 0 };
                self.read = events.into();
                true
            }
            Err(error) => {
                tracing::warn!(%error, "events will be read again");
                false
            }
        }
    }
}
