//! Hearing what happens: every committed change, in order, without holding anyone up.
//!
//! A subscription is a place in the store's list of events. It holds no buffer of its own, so a
//! subscriber that never reads costs nothing; one that reads too slowly is told how many events
//! it missed.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use windlass_core::event::{Event, Subject, TOPICS};
use windlass_core::job::JobId;
use windlass_core::name::{Name, nearest};
use windlass_core::record::JobRecord;
use windlass_core::refusal::Refusal;

use crate::clock::Clock;
use crate::primitives::{built_in_topics, is_built_in};
use crate::store::{Store, StoreExt};

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
            Err(Refusal::OutOfBounds { what: "topic", got: format!("`{pattern}`"), allowed })
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
}

/// How many events are read at once.
const PAGE: usize = 256;

/// How long a store is asked to wait for the next event, before it is asked again.
const WAIT: Duration = Duration::from_secs(10);

/// How long a store that could not be asked is left alone.
const ASK_AGAIN: Duration = Duration::from_secs(1);

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
        Ok(Self { store, clock, topics, after, read: VecDeque::new() })
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
            if self.read.is_empty() {
                return None;
            }
        }
    }

    fn take(&mut self) -> Option<Received> {
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
    async fn fetch(&mut self, wait: Duration) -> bool {
        match self.store.events(self.after, PAGE, wait).await {
            Ok(events) => {
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

/// How often whoever waits for an outcome looks by itself, in case it was not told.
pub(crate) const LOOK_FOR_YOURSELF: Duration = Duration::from_secs(5);

/// How long a store may take to answer the event pump.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// How many ends of jobs are remembered for those who begin to wait a moment later.
const RECENT: usize = 1_024;

/// Who waits for which job to finish.
///
/// Answers: many callers enqueue a job and wait for its outcome. If each read the store before it
/// waits, every job would cost a read in vain; if each had a subscription, every one of them would
/// look at the events of all others.
/// Why not simpler: one task, the *pump*, reads events for all and tells each waiter the record.
/// But a job may end before its caller begins to wait. So a handle knows an event number before
/// its enqueue ([`Waiters::position`]), and the ends heard since are kept (`recent`): only who may
/// be among them reads first. Whoever could not be told reads by itself ([`LOOK_FOR_YOURSELF`]).
/// Guarded by: `whoever_waits_is_told_the_outcome_and_need_not_look`,
/// `whoever_begins_to_wait_after_the_end_does_not_wait_for_it` and
/// `whoever_could_not_be_told_looks_for_themselves` in `tests/main/events.rs`.
///
/// While nobody waits, the pump sleeps: nothing is read, and nothing is remembered. Whoever comes
/// then reads first, because ends before the pump goes on are not told. That an idle engine reads
/// no events is measured by `windlass bench --mode idle`; no test guards it.
#[derive(Debug)]
pub(crate) struct Waiters {
    book: Mutex<WaiterMap>,
    /// `heard` of the map, to be read without its lock.
    heard: AtomicU64,
    store: Arc<dyn Store>,
    /// Someone waits, after nobody did.
    came: Notify,
}

#[derive(Debug, Default)]
struct WaiterMap {
    by_job: HashMap<JobId, Vec<OutcomeWaiter>>,
    next_ticket: u64,
    /// The number of the last event that the pump has heard.
    heard: u64,
    /// The ends of jobs among the events after `since` that the pump has heard, oldest first.
    recent: VecDeque<(u64, JobId)>,
    since: u64,
    /// The pump sleeps, because nobody waits.
    asleep: bool,
    /// The pump has ended.
    closed: bool,
}

#[derive(Debug)]
struct OutcomeWaiter {
    ticket: u64,
    tell: oneshot::Sender<JobRecord>,
}

/// A place among those who wait, given up when it is dropped.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    job: JobId,
    ticket: u64,
    told: oneshot::Receiver<JobRecord>,
    /// The job may have finished before this was made: look once before waiting.
    pub(crate) look_first: bool,
    /// Nobody will tell: look from time to time.
    pub(crate) alone: bool,
}

impl Waiting<'_> {
    /// Waits for the record of the finished job; `None` means: look for yourself, and wait anew.
    pub(crate) async fn told(mut self) -> Option<JobRecord> {
        (&mut self.told).await.ok()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.told.is_terminated() {
            self.waiters.forget(self.job, self.ticket);
        }
    }
}

impl Waiters {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let book = WaiterMap { asleep: true, ..WaiterMap::default() };
        let (heard, came) = (AtomicU64::new(0), Notify::new());
        Self { book: Mutex::new(book), heard, store, came }
    }

    fn book(&self) -> MutexGuard<'_, WaiterMap> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number before every event that is committed from now on.
    pub(crate) fn position(&self) -> u64 {
        self.heard.load(Ordering::SeqCst)
    }

    /// Begins to wait for `job`. If it was accepted after the event number `accepted_after`, and
    /// no end of it was heard since, it has not finished as far as we know, and its end will be
    /// told; otherwise, the caller must look first.
    pub(crate) fn wait_for(&self, job: JobId, accepted_after: Option<u64>) -> Waiting<'_> {
        let (tell, told) = oneshot::channel();
        let mut book = self.book();
        let mut look_first = accepted_after.is_none_or(|after| book.may_have_ended(job, after));
        if std::mem::take(&mut book.asleep) {
            // The pump goes on with what happens from here on: what ended before must be read.
            look_first = true;
            book.begin_at(self.store.info().last_event);
            self.heard.store(book.heard, Ordering::SeqCst);
        }
        let first = book.by_job.is_empty();
        let ticket = book.next_ticket;
        book.next_ticket += 1;
        book.by_job.entry(job).or_default().push(OutcomeWaiter { ticket, tell });
        let alone = book.closed;
        drop(book);
        if first {
            self.came.notify_waiters();
        }
        Waiting { waiters: self, job, ticket, told, look_first: look_first || alone, alone }
    }

    fn forget(&self, job: JobId, ticket: u64) {
        let mut book = self.book();
        if let Some(waiters) = book.by_job.get_mut(&job) {
            waiters.retain(|waiter| waiter.ticket != ticket);
            if waiters.is_empty() {
                book.by_job.remove(&job);
            }
        }
    }

    /// Returns at once if someone waits, or else when someone does.
    async fn someone(&self, asleep: impl Fn(&mut WaiterMap)) {
        loop {
            // Made before looking: whoever comes between the look and the wait is heard of.
            let came = self.came.notified();
            {
                let mut book = self.book();
                if !book.by_job.is_empty() {
                    return;
                }
                asleep(&mut book);
            }
            came.await;
        }
    }

    /// Takes note of events, and returns the jobs among those that ended for which someone waits.
    fn hear(&self, events: &[Arc<Event>]) -> Vec<JobId> {
        let mut waited_for = Vec::new();
        let mut book = self.book();
        let (heard, mut missed) = (book.heard, false);
        for event in events.iter().skip_while(|event| event.number <= heard) {
            missed |= event.number > book.heard + 1;
            book.heard = event.number;
            if let (true, Some(job)) = (event.what.is_terminal(), event.job()) {
                book.note_end(event.number, job);
                if book.by_job.contains_key(&job) {
                    waited_for.push(job);
                }
            }
        }
        self.heard.store(book.heard, Ordering::SeqCst);
        if missed {
            // The store keeps only so many events. Any of the waiters may wait for one that is
            // gone, so each is sent to look for itself.
            let heard = book.heard;
            book.begin_at(heard);
            book.by_job.clear();
            waited_for.clear();
        }
        waited_for
    }

    /// Tells those who wait for these jobs. What was heard may be out of date: if a job runs
    /// again, they go on waiting.
    fn tell(&self, jobs: &[JobId], records: Vec<Option<JobRecord>>) {
        let mut book = self.book();
        for (job, record) in jobs.iter().zip(records) {
            if record.as_ref().is_some_and(|record| !record.state().is_terminal()) {
                continue;
            }
            let mut waiters = book.by_job.remove(job).into_iter().flatten();
            // Without a record, they look for themselves.
            let (Some(record), Some(first)) = (record, waiters.next()) else { continue };
            for waiter in waiters {
                let _ = waiter.tell.send(record.clone());
            }
            let _ = first.tell.send(record);
        }
    }

    /// Lets everyone who waits for these jobs look for themselves.
    fn let_look(&self, jobs: &[JobId]) {
        let mut book = self.book();
        jobs.iter().for_each(|job| drop(book.by_job.remove(job)));
    }

    /// The pump has ended: from now on, everyone looks for themselves.
    pub(crate) fn close(&self) {
        let mut book = self.book();
        book.closed = true;
        book.by_job.clear();
    }
}

impl WaiterMap {
    /// Whether the job may have ended after the event number `after`, as far as was heard.
    fn may_have_ended(&self, job: JobId, after: u64) -> bool {
        let mut since = self.recent.iter().rev().take_while(|(number, _)| *number > after);
        after < self.since || since.any(|(_, ended)| *ended == job)
    }

    fn note_end(&mut self, number: u64, job: JobId) {
        if self.recent.len() == RECENT
            && let Some((oldest, _)) = self.recent.pop_front()
        {
            self.since = oldest;
        }
        self.recent.push_back((number, job));
    }

    fn begin_at(&mut self, number: u64) {
        self.heard = number;
        self.since = number;
        self.recent.clear();
    }
}

/// Tells waiters when their jobs finish, until it is dropped.
pub(crate) async fn pump(store: Arc<dyn Store>, clock: Arc<dyn Clock>, waiters: Arc<Waiters>) {
    loop {
        waiters.someone(|book| book.asleep = true).await;
        let events = match store.events(waiters.position(), PAGE, WAIT).await {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "events will be read again");
                clock.sleep(ASK_AGAIN).await;
                continue;
            }
        };
        let ended = waiters.hear(&events);
        if ended.is_empty() {
            continue;
        }
        let found = tokio::select! {
            biased;
            found = store.find(&ended) => found.ok(),
            () = async { clock.sleep(STORE_PATIENCE).await } => None,
        };
        match found {
            Some(records) => waiters.tell(&ended, records),
            None => waiters.let_look(&ended),
        }
    }
}

/// Lets everyone who waits look for themselves from time to time, in case they were not told. One
/// timer for all of them, and none while nobody waits.
pub(crate) async fn remind(clock: Arc<dyn Clock>, waiters: Arc<Waiters>) {
    loop {
        waiters.someone(|_| {}).await;
        clock.sleep(LOOK_FOR_YOURSELF).await;
        waiters.book().by_job.clear();
    }
}
