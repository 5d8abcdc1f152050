//! Waiting for jobs to end: who waits for which, and how they are told.
//!
//! Answers: many callers enqueue a job and wait for its outcome. If each read the store before it
//! waits, every job would cost a read in vain; if each had a subscription, every one of them would
//! look at the events of all others. And nobody may wait for ever because an event was missed.
//! Why not simpler: one listener hears events for all. A store of this process tells it of every
//! commit ([`EventListener`]), and no task has to read them; from any other store a task reads
//! them, the *pump*. The event of a completion carries what the handler returned, so whoever waits
//! is told from it; only an end whose event says less (a dead letter, a large output) is looked up,
//! in one call for all of them. But a job may end before its caller begins to wait. So a handle
//! knows an event number before its enqueue ([`Waiters::position`]), and the ends heard since are
//! kept (`recent`): only who may be among them, and is not found there, reads first. Another task
//! looks up those who wait, in case they were not told, a few at a time: everybody at once held up
//! the store (100,000 for a second, every five seconds).
//! Guarded by: `tests/main/outcomes.rs`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use windlass_core::event::{Event, EventKind, EventResult};
use windlass_core::job::{Bytes, JobId};
use windlass_core::record::JobRecord;

use crate::clock::Clock;
use crate::events::{ASK_AGAIN, PAGE, WAIT};
use crate::store::{EventListener, Store, StoreExt};

/// How often some of those who wait are looked up, in case they were not told.
pub(crate) const LOOK_FOR_YOURSELF: Duration = Duration::from_secs(5);

/// How many of them: what takes a store a few milliseconds.
const LOOKED_UP: usize = 1_024;

/// How many are looked up in one call.
const LOOKED_UP_AT_ONCE: usize = 64;

/// How long a store may take to answer the pump.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// How many ends of jobs are remembered for those who begin to wait a moment later, and how large
/// an output with it.
const RECENT: usize = 1_024;
const REMEMBERED_BYTES: usize = 256;

/// How a job has ended.
#[derive(Clone, Debug)]
pub(crate) enum JobEnd {
    /// It completed, and its handler returned this.
    Completed(Option<Bytes>),
    /// As its record says.
    Record(Box<JobRecord>),
}

impl JobEnd {
    fn is_small(&self) -> bool {
        match self {
            Self::Completed(output) => {
                output.as_ref().is_none_or(|it| it.len() <= REMEMBERED_BYTES)
            }
            Self::Record(_) => false,
        }
    }

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

/// What is known of a job that was accepted after some event.
enum HeardOf {
    /// It has not ended, as far as was heard.
    Nothing,
    /// It has ended; how, if that was said.
    End(Option<JobEnd>),
    /// Too much has been heard since to remember all of it.
    Unknown,
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
    /// The store tells its events itself.
    told: AtomicBool,
    /// It does so no longer, or from now on.
    source: Notify,
    /// Someone waits, after nobody did.
    came: Notify,
    /// There is something to look up.
    look_up: Notify,
}

#[derive(Debug, Default)]
struct WaiterMap {
    by_job: HashMap<JobId, OutcomeWaiter>,
    /// Those who wait, whoever was looked up longest ago first. Some wait no more.
    order: VecDeque<(u64, JobId)>,
    next_ticket: u64,
    /// The number of the last event that was heard.
    heard: u64,
    /// The ends of jobs among the events after `since` that were heard, oldest first.
    recent: VecDeque<RecentEnd>,
    since: u64,
    /// What was heard and not looked up yet.
    to_look_up: ToLookUp,
    /// The pump sleeps, because nobody waits.
    asleep: bool,
    /// The pump has ended.
    closed: bool,
}

/// The end of a job that was heard a moment ago.
#[derive(Debug)]
struct RecentEnd {
    number: u64,
    job: JobId,
    /// How it ended, if its event said all there is.
    end: Option<JobEnd>,
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

/// What was heard, and has to be looked up.
#[derive(Debug, Default)]
struct ToLookUp {
    /// Jobs that ended, and whose events do not say all there is.
    jobs: Vec<JobId>,
    /// Some events are gone, and any job may have ended with them.
    everybody: bool,
}

/// Those who are told when this is dropped.
#[derive(Default)]
struct Told(Vec<(OutcomeWaiter, JobEnd)>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(waiter, end)| waiter.tell(end));
    }
}

impl Waiters {
    /// With a pump to read the events of this store.
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self::of(store, false))
    }

    /// Told by a store, to which it is introduced.
    pub(crate) fn told_by(
        store: Arc<dyn Store>,
        introduce: impl FnOnce(Weak<dyn EventListener>),
    ) -> Arc<Self> {
        let waiters = Arc::new(Self::of(store, true));
        let listener: Arc<dyn EventListener> = waiters.clone();
        introduce(Arc::downgrade(&listener));
        let mut map = waiters.lock();
        map.asleep = false;
        let last = waiters.store.info().last_event;
        map.begin_at(last);
        waiters.heard.store(last, Ordering::SeqCst);
        drop(map);
        waiters
    }

    fn of(store: Arc<dyn Store>, told: bool) -> Self {
        let waiting = WaiterMap { asleep: true, ..WaiterMap::default() };
        let (waiting, told) = (Mutex::new(waiting), AtomicBool::new(told));
        let (heard, came, look_up) = (AtomicU64::new(0), Notify::new(), Notify::new());
        Self { waiting, heard, store, told, source: Notify::new(), came, look_up }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Whether the store tells its events, so that nobody need read them.
    pub(crate) fn are_told(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }

    /// Returns when that has changed.
    pub(crate) async fn source_is(&self, told: bool) {
        loop {
            // Made before looking: a change in between is heard.
            let changed = self.source.notified();
            if self.are_told() == told {
                return;
            }
            changed.await;
        }
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
        let (mut look_first, end) = match accepted_after.map(|after| map.heard_of(job, after)) {
            Some(HeardOf::Nothing) => (false, None),
            Some(HeardOf::End(end)) => (end.is_none(), end),
            Some(HeardOf::Unknown) | None => (true, None),
        };
        if let Some(end) = end {
            drop(map);
            let _ = tell.send(end);
            let (ticket, alone) = (u64::MAX, false);
            return Waiting { waiters: self, job, ticket, told, look_first, alone };
        }
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

    /// Takes note of events, and finds those who wait for a job whose event says all there is.
    fn take_note<'a>(&self, events: impl Iterator<Item = &'a Event>) -> Told {
        let mut told = Told::default();
        let mut missed = false;
        let mut map = self.lock();
        let last = map.heard;
        for event in events.skip_while(|event| event.number <= last) {
            missed |= event.number > map.heard + 1;
            map.heard = event.number;
            let (true, Some(job)) = (event.what.is_terminal(), event.job()) else { continue };
            let end = JobEnd::told_by(event);
            match (map.by_job.remove(&job), end.clone()) {
                (Some(waiter), Some(end)) => told.0.push((waiter, end)),
                (Some(waiter), None) => {
                    map.by_job.insert(job, waiter);
                    map.to_look_up.jobs.push(job);
                }
                (None, _) => {}
            }
            map.note_end(event.number, job, end);
        }
        self.heard.store(map.heard, Ordering::SeqCst);
        if missed {
            let last = map.heard;
            map.begin_at(last);
            map.to_look_up.everybody = true;
        }
        if missed || !map.to_look_up.jobs.is_empty() {
            self.look_up.notify_one();
        }
        told
    }

    /// Looks up what was heard, and tells those who wait.
    async fn look_up_heard(&self, clock: &dyn Clock) {
        let ToLookUp { jobs, everybody } = std::mem::take(&mut self.lock().to_look_up);
        if everybody {
            self.look_up_longest(usize::MAX, clock).await;
        } else if !jobs.is_empty() {
            self.look_up(&jobs, clock).await;
        }
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

    /// What was heard of a job after the event number `after`.
    fn heard_of(&self, job: JobId, after: u64) -> HeardOf {
        let mut since = self.recent.iter().rev().take_while(|recent| recent.number > after);
        match since.find(|recent| recent.job == job) {
            Some(recent) => HeardOf::End(recent.end.clone()),
            None if after < self.since => HeardOf::Unknown,
            None => HeardOf::Nothing,
        }
    }

    fn note_end(&mut self, number: u64, job: JobId, end: Option<JobEnd>) {
        if self.recent.len() == RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            self.since = oldest.number;
        }
        // A large output is looked up again by the few who come late, and not kept for them.
        let end = end.filter(JobEnd::is_small);
        self.recent.push_back(RecentEnd { number, job, end });
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
        let read = tokio::select! {
            biased;
            read = store.events(waiters.position(), PAGE, WAIT) => read,
            // Another process has the store now, and what happened before is not told again.
            () = waiters.look_up.notified() => Ok(Vec::new()),
        };
        let events = match read {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "events will be read again");
                clock.sleep(ASK_AGAIN).await;
                continue;
            }
        };
        drop(waiters.take_note(events.iter().map(|event| &**event)));
        waiters.look_up_heard(&*clock).await;
    }
}

/// The same where the store tells events itself: looks up what they do not say.
pub(crate) async fn look_up(clock: Arc<dyn Clock>, waiters: Arc<Waiters>) {
    loop {
        waiters.look_up.notified().await;
        waiters.look_up_heard(&*clock).await;
    }
}

impl EventListener for Waiters {
    fn hear(&self, events: &[Event]) -> Option<Box<dyn Send>> {
        let told = self.take_note(events.iter());
        (!told.0.is_empty()).then(|| Box::new(told) as Box<dyn Send>)
    }

    fn source_changed(&self, told: bool) {
        let last = self.store.info().last_event;
        let mut map = self.lock();
        self.told.store(told, Ordering::SeqCst);
        // A pump that sleeps is woken by whoever comes; nobody wakes a store that tells.
        map.asleep &= !told;
        let heard = last.max(map.heard);
        map.begin_at(heard);
        self.heard.store(map.heard, Ordering::SeqCst);
        map.to_look_up.everybody = !map.by_job.is_empty();
        drop(map);
        self.look_up.notify_one();
        self.source.notify_waiters();
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
