//! WorkerPool: a number of lanes, each strictly sequential, for one kind of event.
//!
//! An event with a key keeps its order with all others of that key, over retries, crashes,
//! restarts and a change of the number of lanes; events without a key are spread evenly. An event
//! is a job in a queue of the pool's own, with a lane, so everything that holds for jobs holds for
//! events: nothing here keeps state.
//!
//! The number of lanes and the depth limit are settings of that queue. They are written when a
//! definition is first used by an engine; if two programs define the pool differently, the last one
//! counts.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::filter::Filter;
use windlass_core::job::{JobId, Lane, NewJob, Priority, State, StateName, Unique, UniqueScope};
use windlass_core::ledger::{Acceptance, CancelAnswer, Cleared, Enqueued, LaneCount, QueueChange};
use windlass_core::limits;
use windlass_core::name::{InvalidName, Name};
use windlass_core::record::JobRecord;
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::definition::{Code, Events, Named, code, definition_setters};
use crate::attempt::Attempt;
use crate::client::Handle;
use crate::clock::BoxFuture;
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{Job, KindOptions, RegisteredHandler, Returned};
use crate::options::new_id;
use crate::store::{AlterJobs, JobAction, JobActionDone, Selection, StoreExt, ext};

/// Waiting events a lane takes unless the pool says otherwise.
const LANE_DEPTH: u64 = 10_000;

/// The definition of a pool: see `docs/objects.md`. Cloning is cheap.
pub struct WorkerPool<E> {
    named: Named,
    /// Made once: every event needs it.
    queue: Result<Name, InvalidName>,
    events: Events<E>,
    lanes: u32,
    lane_depth: u64,
    run: Code<(E, PoolContext)>,
    on_dead: Option<Code<DeadEvent<E>>>,
    on_empty: Option<Code<EmptyLane>>,
}

impl<E> Clone for WorkerPool<E> {
    fn clone(&self) -> Self {
        Self {
            named: self.named.clone(),
            queue: self.queue.clone(),
            events: self.events.clone(),
            lanes: self.lanes,
            lane_depth: self.lane_depth,
            run: self.run.clone(),
            on_dead: self.on_dead.clone(),
            on_empty: self.on_empty.clone(),
        }
    }
}

impl<E> fmt::Debug for WorkerPool<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerPool({}, {} lanes)", self.named.name(), self.lanes)
    }
}

impl<E: Serialize + DeserializeOwned + Send + 'static> WorkerPool<E> {
    /// A pool of so many lanes whose events are handled by this async function: at most three
    /// runs, the second a second after the first, 30 s each, at most 10,000 waiting per lane. Until
    /// an event has ended, retries included, later ones of its key wait.
    ///
    /// Renaming it strands its events.
    pub fn new<F, Fut, X>(name: impl Into<Arc<str>>, lanes: u32, handler: F) -> Self
    where
        F: Fn(E, PoolContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), X>> + Send + 'static,
        X: Into<Failure>,
    {
        let named = Named::new(name);
        Self {
            queue: Name::new(&format!("pool.{}", named.name())),
            named,
            events: Events::default(),
            lanes,
            lane_depth: LANE_DEPTH,
            run: code(move |(event, context)| handler(event, context)),
            on_dead: None,
            on_empty: None,
        }
    }

    definition_setters!(remember_ids);
    definition_setters!(validate E);
    definition_setters!(options);

    /// Refuses events beyond so many that wait in their lane; 10,000 by default.
    pub fn lane_depth(mut self, limit: u64) -> Self {
        self.lane_depth = limit;
        self
    }

    /// Called for every event that will not be tried again. Its call is durable from the commit in
    /// which the event dies, and repeated until it succeeds or fails three times; the pool goes on
    /// meanwhile. The event is among the dead letters, and can be replayed.
    pub fn on_dead_letter<F, Fut, X>(mut self, hook: F) -> Self
    where
        F: Fn(DeadEvent<E>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), X>> + Send + 'static,
        X: Into<Failure>,
    {
        self.on_dead = Some(code(hook));
        self
    }

    /// Called when the last event of a lane has ended: once per time it becomes empty, durable from
    /// the commit in which it does.
    pub fn on_empty<F, Fut, X>(mut self, hook: F) -> Self
    where
        F: Fn(EmptyLane) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), X>> + Send + 'static,
        X: Into<Failure>,
    {
        self.on_empty = Some(code(hook));
        self
    }

    fn lanes(&self) -> Result<NonZeroU32, Error> {
        NonZeroU32::new(self.lanes).ok_or(Error::InvalidSetting {
            setting: "lanes",
            got: "0".to_string(),
            allowed: "a pool needs at least one lane",
        })
    }

    /// The kind of its events, and the queue they wait in.
    fn queue(&self) -> Result<Name, Error> {
        Ok(self.queue.clone()?)
    }

    fn dead_kind(&self) -> Result<Name, Error> {
        Ok(Name::new(&format!("pool.{}.dead", self.named.name()))?)
    }

    fn empty_kind(&self) -> Result<Name, Error> {
        Ok(Name::new(&format!("pool.{}.empty", self.named.name()))?)
    }

    /// The settings of its queue.
    fn settings(&self) -> Result<Vec<QueueChange>, Error> {
        self.events.check()?;
        let on_dead = self.on_dead.as_ref().map(|_| self.dead_kind()).transpose()?;
        let on_empty = self.on_empty.as_ref().map(|_| self.empty_kind()).transpose()?;
        Ok(vec![
            QueueChange::Lanes(Some(self.lanes()?)),
            QueueChange::LaneDepth(Some(self.lane_depth)),
            QueueChange::OnDead(on_dead),
            QueueChange::OnEmpty(on_empty),
        ])
    }
}

/// What a handler knows of the event it handles.
#[derive(Clone, Debug)]
pub struct PoolContext {
    attempt: Attempt,
    lanes: NonZeroU32,
    pool: Arc<str>,
}

impl PoolContext {
    /// The attempt: steps, progress, cancellation, the engine.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// The key the event was given, whose order it keeps; `None` if it has none.
    pub fn key(&self) -> Option<&str> {
        key_of(self.attempt.lane())
    }

    /// The event's place in the order of acceptance.
    pub fn sequence(&self) -> u64 {
        self.attempt.sequence()
    }

    /// Which run of the event this is, 1 for the first.
    pub fn number(&self) -> u32 {
        self.attempt.number()
    }

    /// Whether the event has run before.
    pub fn is_retry(&self) -> bool {
        self.attempt.is_retry()
    }

    /// When the event was accepted.
    pub fn enqueued_at(&self) -> Timestamp {
        self.attempt.enqueued_at()
    }

    /// When this run began.
    pub fn started_at(&self) -> Timestamp {
        self.attempt.started_at()
    }

    /// The lane it runs in, by the number of lanes of this worker's definition.
    pub fn lane(&self) -> u32 {
        lane_of(self.attempt.lane(), self.lanes)
    }

    /// The pool's name.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The lane's name: `pool:{name}:{lane}`.
    pub fn lane_name(&self) -> String {
        format!("pool:{}:{}", self.pool, self.lane())
    }
}

/// The lane of an event: all of them have a partition.
fn lane_of(lane: Option<&Lane>, lanes: NonZeroU32) -> u32 {
    Lane::of(lane.and_then(Lane::partition).unwrap_or(0), lanes)
}

/// The key of an event, if it was given one.
fn key_of(lane: Option<&Lane>) -> Option<&str> {
    match lane {
        Some(Lane::Key(key)) => Some(key),
        Some(Lane::Spread | Lane::Turn(_)) | None => None,
    }
}

/// An event that will not be tried again.
#[derive(Clone, Debug)]
pub struct DeadEvent<E> {
    /// What was enqueued.
    pub event: E,
    /// Its id, to replay it with.
    pub id: JobId,
    /// The key it was given.
    pub key: Option<String>,
    /// The last error.
    pub error: String,
    /// Its place in the order of acceptance.
    pub sequence: u64,
    /// How often it ran.
    pub attempts: u32,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// When it died.
    pub failed_at: Timestamp,
    /// The lane it was in.
    pub lane: u32,
    /// The pool.
    pub pool: Arc<str>,
}

/// A lane whose last event has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmptyLane {
    /// The lane.
    pub lane: u32,
    /// Events it has completed so far.
    pub completed: u64,
    /// The pool.
    pub pool: Arc<str>,
}

/// What [`Pool::enqueue`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The id of the event's job.
    pub id: JobId,
    /// Its place in the order of acceptance.
    pub sequence: u64,
    /// The lane it is in; `None` if it has ended.
    pub lane: Option<u32>,
    /// Events of its lane ahead of it, 0 if it is the next to start; `None` once it has started.
    pub position: Option<u64>,
    /// An event with the same id was accepted before: this is where that one stands.
    pub duplicate: bool,
    /// Waiting events of the whole pool.
    pub depth: u64,
}

impl Queued {
    fn of(enqueued: &Enqueued) -> Self {
        Self {
            id: enqueued.id,
            sequence: enqueued.sequence,
            lane: enqueued.lane.map(|place| place.lane),
            position: enqueued.lane.map(|place| place.position),
            duplicate: enqueued.acceptance != Acceptance::Accepted,
            depth: enqueued.depth,
        }
    }
}

/// An event, and how it is to be kept.
#[derive(Clone, Debug)]
pub struct PoolEvent<E> {
    event: E,
    key: Option<String>,
    id: Option<String>,
    priority: Priority,
}

impl<E> PoolEvent<E> {
    /// An event without a key: it goes to the lane whose turn it is.
    pub fn new(event: E) -> Self {
        Self { event, key: None, id: None, priority: Priority::NORMAL }
    }

    /// Keeps its order with all events of the same key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// An event with the same id counts once.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Overtakes waiting events of its lane with a lower priority.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }
}

impl<E> From<E> for PoolEvent<E> {
    fn from(event: E) -> Self {
        Self::new(event)
    }
}

/// Which event is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventId {
    /// The one whose job has this id, as [`Queued::id`] says.
    Job(JobId),
    /// The one that was given this id ([`PoolEvent::id`]).
    Given(String),
}

impl From<JobId> for EventId {
    fn from(id: JobId) -> Self {
        EventId::Job(id)
    }
}

impl From<&str> for EventId {
    fn from(id: &str) -> Self {
        EventId::Given(id.to_string())
    }
}

impl From<String> for EventId {
    fn from(id: String) -> Self {
        EventId::Given(id)
    }
}

/// What became of an event that was to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not started, or waited to be tried again. It will not run.
    Cancelled,
    /// It runs. Its handler is told, and it will not be tried again.
    Requested,
    /// It had ended already, like this.
    Ended(StateName),
    /// There is no such event, or it is no longer kept.
    NotFound,
}

/// What a lane is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// No event of it starts.
    Paused,
    /// An event of it runs.
    Processing,
    /// Nothing runs.
    Idle,
}

/// One lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// Which.
    pub lane: u32,
    /// What it is doing.
    pub state: LaneState,
    /// Waiting events.
    pub pending: u64,
    /// Events completed so far.
    pub completed: u64,
    /// Events that died so far.
    pub dead: u64,
    /// Events called off so far.
    pub cancelled: u64,
    /// The sequence of the event that runs.
    pub current: Option<u64>,
}

/// A whole pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// Its lanes, in order.
    pub lanes: Vec<LaneStatus>,
    /// Waiting events of all lanes.
    pub pending: u64,
    /// Events completed so far, in all lanes.
    pub completed: u64,
    /// Lanes in which an event runs.
    pub active: u32,
    /// Lanes that are paused.
    pub paused: u32,
}

/// A pool, to be used.
pub struct Pool<'a, E> {
    engine: &'a Engine,
    definition: &'a WorkerPool<E>,
}

impl Engine {
    /// A pool, to enqueue events in and to look after.
    pub fn pool<'a, E>(&'a self, definition: &'a WorkerPool<E>) -> Pool<'a, E> {
        Pool { engine: self, definition }
    }
}

impl<E: Serialize + DeserializeOwned + Send + 'static> Pool<'_, E> {
    /// Stores an event. When it has returned, the event is durable and will run at least once.
    ///
    /// Refused, with nothing stored: an event that the pool's check refuses, one too large, and one
    /// beyond the depth limit of its lane ([`Refusal::LaneFull`]).
    pub async fn enqueue(&self, event: impl Into<PoolEvent<E>>) -> Result<Queued, Error> {
        let answers = self.enqueue_many([event.into()]).await?;
        answers.first().copied().ok_or_else(|| unanswered("enqueue"))
    }

    /// Stores an event and waits until it has ended: it was handled, or [`Error::Died`], or
    /// [`Error::Cancelled`].
    pub async fn enqueue_and_wait(&self, event: impl Into<PoolEvent<E>>) -> Result<(), Error> {
        let queue = self.ready().await?;
        let job = self.job(event.into(), &queue)?;
        let before = self.engine.waiters().position();
        let mut answers = self.engine.enqueue_raw(vec![job]).await?;
        let enqueued = answers.pop().ok_or_else(|| unanswered("enqueue"))?;
        Handle::<Handled>::new(self.engine, enqueued, before).outcome().await
    }

    /// Stores events, all or none, in one commit.
    pub async fn enqueue_many(
        &self,
        events: impl IntoIterator<Item = impl Into<PoolEvent<E>>>,
    ) -> Result<Vec<Queued>, Error> {
        let queue = self.ready().await?;
        let jobs = events.into_iter().map(|event| self.job(event.into(), &queue));
        let jobs = jobs.collect::<Result<Vec<NewJob>, Error>>()?;
        let answers = self.engine.enqueue_raw(jobs).await?;
        Ok(answers.iter().map(Queued::of).collect())
    }

    fn job(&self, event: PoolEvent<E>, queue: &Name) -> Result<NewJob, Error> {
        let PoolEvent { event, key, id, priority } = event;
        let definition = self.definition;
        definition.events.check_event("pool", definition.named.name(), &event)?;
        let encode = |source| Error::Encode { kind: queue.to_string(), source };
        let payload = serde_json::to_vec(&event).map_err(encode)?;
        let mut job = NewJob::new(new_id(), queue.clone(), queue.clone(), payload);
        job.priority = priority;
        job.lane = Some(key.map_or(Lane::Spread, Lane::Key));
        job.unique = id.map(|key| Unique {
            key,
            scope: UniqueScope::Any,
            window: Some(definition.events.remember_ids),
        });
        job.trace = Some(crate::trace::of_new_job(job.id));
        Ok(job)
    }

    /// Starts no more events: of one lane, or of all. Running ones finish, new ones are accepted,
    /// due times are kept.
    pub async fn pause(&self, lane: Option<u32>) -> Result<(), Error> {
        self.configure(lane.map_or(QueueChange::Pause, QueueChange::PauseLane)).await
    }

    /// Starts events again: of one lane, or of all that were not paused one by one.
    pub async fn resume(&self, lane: Option<u32>) -> Result<(), Error> {
        self.configure(lane.map_or(QueueChange::Resume, QueueChange::ResumeLane)).await
    }

    /// Calls off every waiting event that was accepted before: of one lane, or of all. What runs is
    /// left alone, and counters are kept. Returns how many there were. Many are called off in more
    /// than one commit; if it is cut short, repeating it finds the rest.
    pub async fn clear(&self, lane: Option<u32>) -> Result<u64, Error> {
        let queue = self.ready().await?;
        let Some(lane) = lane else {
            let (store, by) = (self.engine.store(), self.engine.actor());
            let Cleared { cleared, .. } = ext::clear(&**store, queue, by).await?;
            return Ok(cleared);
        };
        let waiting = [StateName::Blocked, StateName::Scheduled, StateName::Ready];
        let jobs = self.events_in(&waiting, lane).await?;
        let (done, mut cancelled) = (Ok(JobActionDone::Cancel(CancelAnswer::Cancelled)), 0);
        for chunk in jobs.chunks(limits::CHUNK_JOBS) {
            let selection = Selection::Jobs(chunk.iter().map(JobRecord::id).collect());
            let cancel = AlterJobs::new(selection, JobAction::Cancel);
            let cancel = AlterJobs { by: self.engine.actor(), ..cancel };
            let altered = self.engine.store().alter(cancel).await?;
            cancelled += altered.iter().filter(|altered| altered.result == done).count() as u64;
        }
        Ok(cancelled)
    }

    /// Calls off one event: by the id it was given, or by that of its job.
    ///
    /// If an id was given to several events, which is possible when it is no longer remembered,
    /// the one that has not ended is meant, or else the latest. Events that have ended are found
    /// by their given id for as long as it is remembered. By a given id, the pool's events are
    /// looked through; by that of the job, nothing is searched.
    pub async fn cancel(&self, event: impl Into<EventId>) -> Result<Cancelled, Error> {
        let id = match event.into() {
            EventId::Job(id) => id,
            EventId::Given(given) => match self.find(&given).await? {
                Some(id) => id,
                None => return Ok(Cancelled::NotFound),
            },
        };
        match self.engine.cancel(id).await {
            Ok(CancelAnswer::Cancelled) => Ok(Cancelled::Cancelled),
            Ok(CancelAnswer::Requested) => Ok(Cancelled::Requested),
            Err(Error::Refused(Refusal::WrongState { state, .. })) => Ok(Cancelled::Ended(state)),
            Err(Error::Refused(Refusal::UnknownJob { .. })) => Ok(Cancelled::NotFound),
            Err(error) => Err(error),
        }
    }

    /// What the pool is doing, as a whole and lane by lane.
    pub async fn status(&self) -> Result<PoolStatus, Error> {
        let queue = self.ready().await?;
        let counts = self.engine.store().count().await?;
        let count = counts.queues.iter().find(|count| count.queue == queue);
        let paused = count.is_some_and(|count| count.settings.paused);
        let lanes = count.map(|count| count.lanes.clone()).unwrap_or_default();
        let mut current = BTreeMap::new();
        for event in self.events(&[StateName::Running]).await? {
            let lane = lane_of(event.job.lane.as_ref(), self.definition.lanes()?);
            current.entry(lane).or_insert(event.sequence);
        }
        let lanes: Vec<LaneStatus> = (0..)
            .zip(&lanes)
            .map(|(lane, count)| lane_status(lane, count, paused, current.get(&lane).copied()))
            .collect();
        let is = |state| lanes.iter().filter(|lane| lane.state == state).count() as u32;
        Ok(PoolStatus {
            pending: lanes.iter().map(|lane| lane.pending).sum(),
            completed: lanes.iter().map(|lane| lane.completed).sum(),
            active: lanes.iter().filter(|lane| lane.current.is_some()).count() as u32,
            paused: is(LaneState::Paused),
            lanes,
        })
    }

    /// What one lane is doing.
    pub async fn lane_status(&self, lane: u32) -> Result<LaneStatus, Error> {
        let status = self.status().await?;
        let number = usize::try_from(lane).unwrap_or(usize::MAX);
        status.lanes.get(number).copied().ok_or_else(|| Error::InvalidSetting {
            setting: "lane",
            got: lane.to_string(),
            allowed: "lanes are numbered from 0 to one less than there are",
        })
    }

    /// The event that was given this id.
    async fn find(&self, given: &str) -> Result<Option<JobId>, Error> {
        let open = [StateName::Running, StateName::Ready, StateName::Scheduled, StateName::Blocked];
        let remembered = self.engine.clock().now().wall - self.definition.events.remember_ids;
        let queues = vec![self.definition.queue()?];
        let open = Filter { queues: queues.clone(), states: open.to_vec(), ..Filter::default() };
        let recent = Filter { queues, created_from: Some(remembered), ..Filter::default() };
        for filter in [open, recent] {
            let mut after = None;
            loop {
                let page = self.engine.store().list(&filter, after, 1_000).await?;
                let has_id = |record: &&JobRecord| {
                    record.job.unique.as_ref().is_some_and(|unique| unique.key == given)
                };
                if let Some(found) = page.jobs.iter().find(has_id) {
                    return Ok(Some(found.id()));
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(None)
    }

    async fn events_in(&self, states: &[StateName], lane: u32) -> Result<Vec<JobRecord>, Error> {
        let lanes = self.definition.lanes()?;
        let mut events = self.events(states).await?;
        events.retain(|record| lane_of(record.job.lane.as_ref(), lanes) == lane);
        Ok(events)
    }

    /// All events in one of these states.
    async fn events(&self, states: &[StateName]) -> Result<Vec<JobRecord>, Error> {
        let queue = self.definition.queue()?;
        let filter = Filter { queues: vec![queue], states: states.to_vec(), ..Filter::default() };
        let (mut events, mut after) = (Vec::new(), None);
        loop {
            let page = self.engine.store().list(&filter, after, 1_000).await?;
            events.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(events)
    }

    async fn configure(&self, change: QueueChange) -> Result<(), Error> {
        let queue = self.ready().await?;
        ext::configure(&**self.engine.store(), queue, change, self.engine.actor()).await?;
        Ok(())
    }

    /// Makes sure that the queue is set up as the definition says, and returns it.
    async fn ready(&self) -> Result<Name, Error> {
        let queue = self.definition.queue()?;
        set_up(self.engine, &queue, self.definition.settings()?).await?;
        Ok(queue)
    }
}

fn lane_status(
    lane: u32,
    count: &LaneCount,
    pool_paused: bool,
    current: Option<u64>,
) -> LaneStatus {
    let state = match (pool_paused || count.paused, count.running > 0) {
        (true, _) => LaneState::Paused,
        (false, true) => LaneState::Processing,
        (false, false) => LaneState::Idle,
    };
    LaneStatus {
        lane,
        state,
        pending: count.waiting,
        completed: count.totals.completed,
        dead: count.totals.dead,
        cancelled: count.totals.cancelled,
        current,
    }
}

/// Writes settings of a queue, once per engine: if nothing differs, nothing is written.
async fn set_up(engine: &Engine, queue: &Name, settings: Vec<QueueChange>) -> Result<(), Error> {
    if engine.is_set_up(queue, &settings) {
        return Ok(());
    }
    for change in &settings {
        engine.store().configure(queue.clone(), change.clone()).await?;
    }
    engine.note_set_up(queue, settings);
    Ok(())
}

fn unanswered(doing: &'static str) -> Error {
    Error::Unknown { doing, source: "the store answered with nothing".into() }
}

/// What the job of an event returns: nothing.
#[derive(Serialize, Deserialize)]
struct Handled;

impl Job for Handled {
    const KIND: &'static str = "pool";
    type Output = ();
}

/// What a dead event's hook is given.
#[derive(Deserialize)]
struct DeadHook {
    job: JobId,
}

/// What an empty lane's hook is given.
#[derive(Deserialize)]
struct EmptyHook {
    lane: u32,
    completed: u64,
}

/// What a worker needs to run a pool.
pub(crate) struct PoolParts {
    pub(crate) queue: Name,
    pub(crate) settings: Vec<QueueChange>,
    pub(crate) handlers: Vec<RegisteredHandler>,
}

impl PoolParts {
    pub(crate) async fn set_up(&self, engine: &Engine) -> Result<(), Error> {
        set_up(engine, &self.queue, self.settings.clone()).await
    }
}

/// The handlers of a pool: its events, and its hooks.
pub(crate) fn parts<E>(definition: &WorkerPool<E>) -> Result<PoolParts, Error>
where
    E: Serialize + DeserializeOwned + Send + 'static,
{
    let (queue, settings) = (definition.queue()?, definition.settings()?);
    let pool = definition.named.name().clone();
    let options = definition.named.options();
    let (run, lanes, name) = (definition.run.clone(), definition.lanes()?, pool.clone());
    let mut handlers = vec![registered(&queue, options, move |attempt: Attempt| {
        let (run, pool) = (run.clone(), name.clone());
        async move {
            let event: E = decode(attempt.payload())?;
            run((event, PoolContext { attempt, lanes, pool })).await
        }
    })];
    if let Some(hook) = definition.on_dead.clone() {
        let name = pool.clone();
        handlers.push(registered(
            &definition.dead_kind()?,
            KindOptions::default(),
            move |attempt| {
                let (hook, pool) = (hook.clone(), name.clone());
                async move {
                    match dead_event(&attempt, lanes, pool).await? {
                        Some(letter) => hook(letter).await,
                        // It was replayed or removed before anyone could be told.
                        None => Ok(()),
                    }
                }
            },
        ));
    }
    if let Some(hook) = definition.on_empty.clone() {
        let kind = definition.empty_kind()?;
        handlers.push(registered(&kind, KindOptions::default(), move |attempt: Attempt| {
            let (hook, pool) = (hook.clone(), pool.clone());
            async move {
                let EmptyHook { lane, completed } = decode(attempt.payload())?;
                hook(EmptyLane { lane, completed, pool }).await
            }
        }));
    }
    Ok(PoolParts { queue, settings, handlers })
}

async fn dead_event<E: DeserializeOwned>(
    attempt: &Attempt,
    lanes: NonZeroU32,
    pool: Arc<str>,
) -> Result<Option<DeadEvent<E>>, Failure> {
    let DeadHook { job } = decode(attempt.payload())?;
    let Some(record) = attempt.engine().find(job).await? else { return Ok(None) };
    let State::Dead { at, .. } = record.status.state else { return Ok(None) };
    Ok(Some(DeadEvent {
        event: decode(&record.job.payload)?,
        id: job,
        key: key_of(record.job.lane.as_ref()).map(str::to_string),
        error: record.error.as_ref().map_or_else(String::new, ToString::to_string),
        sequence: record.sequence,
        attempts: record.status.attempts,
        enqueued_at: record.created_at,
        failed_at: at,
        lane: lane_of(record.job.lane.as_ref(), lanes),
        pool,
    }))
}

fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(payload)
        .map_err(|error| Failure::permanent(format!("the event cannot be read: {error}")))
}

fn registered<F, Fut>(kind: &Name, options: KindOptions, run: F) -> RegisteredHandler
where
    F: Fn(Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let run = move |attempt: Attempt| -> BoxFuture<'static, Returned> {
        let run = run(attempt);
        Box::pin(async move { run.await.map(|()| b"null".to_vec()) })
    };
    let kind = kind.to_string().into();
    RegisteredHandler { kind, needs: Vec::new(), options, run: Box::new(run), conclude: None }
}
