//! Waiting for jobs to end: who waits for which, and how they are told.
//!
//! Answers: many callers enqueue a job and wait for its outcome. If each read the store before it
//! waits, every job would cost a read in vain; if each had a subscription, every one of them would
//! look at the events of all others. And nobody may wait for ever because an event was missed.
//! Why not simpler: one task, the *pump*, reads events for all. The event of a completion carries
//! what the handler returned, so whoever waits is told from it; only an end whose event says less
//! (a dead letter, a large output) is looked up, in one call for all of them. But a job may end
//! before its caller begins to wait. So a handle knows an event number before its enqueue
//! ([`Waiters::position`]), and the ends heard since are kept (`recent`): only who may be among
//! them reads first. A second task looks up those who wait, in case they were not told, a few at a
//! time: everybody at once held up the store (100,000 for a second, every five seconds).
//! Guarded by: `tests/main/outcomes.rs`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use windlass_core::event::{Event, EventKind, EventResult};
use windlass_core::job::{Bytes, JobId};
use windlass_core::record::JobRecord;

use crate::clock::Clock;
use crate::events::{ASK_AGAIN, PAGE, WAIT};
use crate::store::{Store, StoreExt};

/// How often some of those who wait are looked up, in case they were not told.
pub(crate) const LOOK_FOR_YOURSELF: Duration = Duration::from_secs(5);

/// How many of them: what takes a store a few milliseconds.
const LOOKED_UP: usize = 1_024;

/// How many are looked up in one call.
const LOOKED_UP_AT_ONCE: usize = 64;

/// How long a store may take to answer the pump.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// How many ends of jobs are remembered for those who begin to wait a moment later.
const RECENT: usize = 1_024;

/// How a job has ended.
#[derive(Clone, Debug)]
pub(crate) enum JobEnd {
    /// It completed, and its handler returned this.
    Completed(Option<Bytes>),
    /// As its record says.
    Record(Box<JobRecord>),
}

impl JobEnd {
    /// What an event tells of the end of its job, if it tells all there is.
    fn told_by(event: &Event) -> Option<Self> {
        let EventKind::JobCompleted { result, .. } = &event.what else { return None };
        match result {
            EventResult::None => Some(Self::Completed(None)),
            EventResult::Output(output) => Some(Self::Completed(Some(output.clone()))),
            EventResult::TooLarge { .. } | EventResult::Gone => None,
        }
    }
}

/// Who waits for which job to finish.
///
/// While nobody waits, the pump sleeps: nothing is read, and nothing is remembered. Whoever comes
/// then reads first, because ends before the pump goes on are not told. That an idle engine reads
/// no events is measured by `windlass bench --mode idle`; no test guards it.
#[derive(Debug)]
pub(crate) struct Waiters {
    waiting: Mutex<WaiterMap>,
    /// `heard` of the map, to be read without its lock.
    heard: AtomicU64,
    store: Arc<dyn Store>,
    /// Someone waits, after nobody did.
    came: Notify,
}

#[derive(Debug, Default)]
struct WaiterMap {
    by_job: HashMap<JobId, OutcomeWaiter>,
    /// Those who wait, whoever was looked up longest ago first. Some wait no more.
    order: VecDeque<(u64, JobId)>,
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
    tell: oneshot::Sender<JobEnd>,
    /// Others who wait for the same job.
    others: Vec<OutcomeWaiter>,
}

impl OutcomeWaiter {
    fn tell(self, end: JobEnd) {
        for other in self.others {
            let _ = other.tell.send(end.clone());
        }
        let _ = self.tell.send(end);
    }
}

/// A place among those who wait, given up when it is dropped.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    job: JobId,
    ticket: u64,
    told: oneshot::Receiver<JobEnd>,
    /// The job may have finished before this was made: look once before waiting.
    pub(crate) look_first: bool,
    /// Nobody will tell: look from time to time.
    pub(crate) alone: bool,
}

impl Waiting<'_> {
    /// Waits for the end of the job; `None` means: look for yourself, and wait anew.
    pub(crate) async fn told(mut self) -> Option<JobEnd> {
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

/// What a page of events means to those who wait.
#[derive(Debug, Default)]
struct Heard {
    /// Jobs that ended, whose ends have to be looked up.
    to_look_up: Vec<JobId>,
    /// Some events are gone, and any job may have ended with them.
    missed: bool,
}

impl Waiters {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let waiting = WaiterMap { asleep: true, ..WaiterMap::default() };
        let (heard, came) = (AtomicU64::new(0), Notify::new());
        Self { waiting: Mutex::new(waiting), heard, store, came }
    }

    fn lock(&self) -> MutexGuard<'_, WaiterMap> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut map = self.lock();
        let mut look_first = accepted_after.is_none_or(|after| map.may_have_ended(job, after));
        if std::mem::take(&mut map.asleep) {
            // The pump goes on from here. What ended before can be seen by looking.
            look_first = true;
            map.begin_at(self.store.info().last_event);
            self.heard.store(map.heard, Ordering::SeqCst);
        }
        let first = map.by_job.is_empty();
        let ticket = map.add(job, tell);
        let alone = map.closed;
        drop(map);
        if first {
            self.came.notify_waiters();
        }
        Waiting { waiters: self, job, ticket, told, look_first: look_first || alone, alone }
    }

    fn forget(&self, job: JobId, ticket: u64) {
        let mut map = self.lock();
        let Some(mut first) = map.by_job.remove(&job) else { return };
        first.others.retain(|other| other.ticket != ticket);
        if first.ticket != ticket {
            map.by_job.insert(job, first);
        } else if let Some(mut next) = first.others.pop() {
            next.others = first.others;
            map.by_job.insert(job, next);
        }
    }

    /// Returns at once if someone waits, or else when someone does.
    async fn someone(&self, asleep: impl Fn(&mut WaiterMap)) {
        loop {
            // Made before looking: whoever comes in between is heard.
            let came = self.came.notified();
            {
                let mut map = self.lock();
                if !map.by_job.is_empty() {
                    return;
                }
                asleep(&mut map);
            }
            came.await;
        }
    }

    /// Takes note of events, and tells those who wait for a job whose event says all there is.
    fn hear(&self, events: &[Arc<Event>]) -> Heard {
        let mut told = Vec::new();
        let mut heard = Heard::default();
        let mut map = self.lock();
        let last = map.heard;
        for event in events.iter().skip_while(|event| event.number <= last) {
            heard.missed |= event.number > map.heard + 1;
            map.heard = event.number;
            let (true, Some(job)) = (event.what.is_terminal(), event.job()) else { continue };
            map.note_end(event.number, job);
            match JobEnd::told_by(event) {
                Some(end) => told.extend(map.by_job.remove(&job).map(|waiter| (waiter, end))),
                None if map.by_job.contains_key(&job) => heard.to_look_up.push(job),
                None => {}
            }
        }
        self.heard.store(map.heard, Ordering::SeqCst);
        if heard.missed {
            let last = map.heard;
            map.begin_at(last);
        }
        drop(map);
        told.into_iter().for_each(|(waiter, end)| waiter.tell(end));
        heard
    }

    /// Tells those who wait for these jobs. What was heard may be out of date: if a job runs
    /// again, they go on waiting.
    fn tell(&self, jobs: &[JobId], records: Vec<Option<JobRecord>>) {
        let mut map = self.lock();
        for (job, record) in jobs.iter().zip(records) {
            if record.as_ref().is_some_and(|record| !record.state().is_terminal()) {
                continue;
            }
            // Without a record, they look for themselves.
            if let (Some(waiter), Some(record)) = (map.by_job.remove(job), record) {
                waiter.tell(JobEnd::Record(Box::new(record)));
            }
        }
    }

    /// Looks jobs up, and tells those who wait for them. If the store does not answer, they look
    /// for themselves and find out why.
    async fn look_up(&self, jobs: &[JobId], clock: &dyn Clock) -> bool {
        let found = tokio::select! {
            biased;
            found = self.store.find(jobs) => found.ok(),
            () = async { clock.sleep(STORE_PATIENCE).await } => None,
        };
        let answered = found.is_some();
        match found {
            Some(records) => self.tell(jobs, records),
            None => {
                let mut map = self.lock();
                jobs.iter().for_each(|job| drop(map.by_job.remove(job)));
            }
        }
        answered
    }

    /// Looks up so many of those who wait, whoever was looked up longest ago first. If the store
    /// does not answer, everyone looks for themselves.
    async fn look_up_longest(&self, most: usize, clock: &dyn Clock) {
        let (mut left, last) = (most, self.lock().next_ticket);
        while left > 0 {
            let jobs = self.lock().longest(left.min(LOOKED_UP_AT_ONCE), last);
            if jobs.is_empty() {
                return;
            }
            left -= jobs.len();
            if !self.look_up(&jobs, clock).await {
                return self.lock().by_job.clear();
            }
            // What else is ready to run goes first.
            tokio::task::yield_now().await;
        }
    }

    /// The pump has ended: from now on, everyone looks for themselves.
    pub(crate) fn close(&self) {
        let mut map = self.lock();
        map.closed = true;
        map.by_job.clear();
    }
}

impl WaiterMap {
    fn add(&mut self, job: JobId, tell: oneshot::Sender<JobEnd>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let waiter = OutcomeWaiter { ticket, tell, others: Vec::new() };
        match self.by_job.entry(job) {
            std::collections::hash_map::Entry::Occupied(mut first) => {
                first.get_mut().others.push(waiter);
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(waiter);
                self.order.push_back((ticket, job));
            }
        }
        // Most are told before they are looked up, and leave their place behind.
        if self.order.len() > 2 * self.by_job.len() + LOOKED_UP {
            let by_job = &self.by_job;
            self.order.retain(|(_, job)| by_job.contains_key(job));
        }
        ticket
    }

    /// So many of those who wait, whoever was looked up longest ago first; they are then the last.
    /// None that got their place after the ticket `last` was next.
    fn longest(&mut self, most: usize, last: u64) -> Vec<JobId> {
        let mut jobs = Vec::new();
        while jobs.len() < most
            && let Some((ticket, job)) = self.order.front().copied()
            && ticket < last
        {
            self.order.pop_front();
            if self.by_job.contains_key(&job) {
                self.order.push_back((self.next_ticket, job));
                self.next_ticket += 1;
                jobs.push(job);
            }
        }
        jobs
    }

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
        waiters.someone(|map| map.asleep = true).await;
        let events = match store.events(waiters.position(), PAGE, WAIT).await {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "events will be read again");
                clock.sleep(ASK_AGAIN).await;
                continue;
            }
        };
        let heard = waiters.hear(&events);
        if heard.missed {
            waiters.look_up_longest(usize::MAX, &*clock).await;
        } else if !heard.to_look_up.is_empty() {
            waiters.look_up(&heard.to_look_up, &*clock).await;
        }
    }
}

/// Looks up some of those who wait from time to time, in case they were not told.
pub(crate) async fn remind(clock: Arc<dyn Clock>, waiters: Arc<Waiters>) {
    loop {
        waiters.someone(|_| {}).await;
        clock.sleep(LOOK_FOR_YOURSELF).await;
        waiters.look_up_longest(LOOKED_UP, &*clock).await;
    }
}
