//! Enqueue, inspect, cancel, replay: everything that needs no worker in this process.

use std::cell::Cell;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use windlass_core::explain::Explanation;
use windlass_core::filter::{Filter, Order};
use windlass_core::job::{Bytes, JobId, NewJob, Start, State, StateName};
use windlass_core::ledger::{Acceptance, CancelAnswer, Cleared, Counts, Enqueued, QueueChange};
use windlass_core::limits;
use windlass_core::name::{InvalidName, Name};
use windlass_core::record::{JobRecord, QueueSettings};
use windlass_core::refusal::Refusal;
use windlass_core::reserved::WorkerOrder;

use crate::clock::{BoxFuture, timestamp};
use crate::engine::Engine;
use crate::error::Error;
use crate::handler::Job;
use crate::options::{Options, option_setters};
use crate::outcomes::{JobEnd, LOOK_FOR_YOURSELF};
use crate::store::{
    AlterJobs, Cursor, JobAction, JobActionDone, JobActionResult, Page, Selection, StoreExt, ext,
};

/// How often a call whose answer was lost is repeated before the caller is told.
const REPEATS: u32 = 3;

impl Engine {
    /// Enqueues a job. Await the returned builder to do it.
    ///
    /// When it has been awaited, the job is in the store as durably as the store promises. On an
    /// error, it is not, unless the error is [`Error::Unknown`].
    pub fn enqueue<J: Job>(&self, job: J) -> EnqueueJob<J> {
        let options = job.options();
        EnqueueJob { engine: self.clone(), job, options }
    }

    /// Enqueues jobs of one kind in one commit: all of them or, on any error, none.
    pub async fn enqueue_many<J: Job>(
        &self,
        jobs: impl IntoIterator<Item = J>,
    ) -> Result<Vec<Handle<J>>, Error> {
        let mut batch = self.batch();
        let jobs = jobs.into_iter().map(|job| batch.add(job)).collect::<Result<Vec<_>, _>>()?;
        let before = self.waiters().position();
        let enqueued = batch.commit().await?;
        let handle = |each| Handle::new(self, each, before);
        Ok(jobs.into_iter().zip(enqueued).map(|(_, each)| handle(each)).collect())
    }

    /// Collects jobs of any kinds, which may depend on each other, for one commit.
    pub fn batch(&self) -> Batch {
        Batch { engine: self.clone(), jobs: Vec::new() }
    }

    /// Stores jobs that are already put together; for producers without Rust types.
    pub async fn enqueue_raw(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Error> {
        let jobs = jobs.into_iter().map(Arc::new).collect();
        self.enqueue_shared(JobsToEnqueue::Many(jobs)).await
    }

    async fn enqueue_shared(&self, jobs: JobsToEnqueue) -> Result<Vec<Enqueued>, Error> {
        if self.is_closing() {
            return Err(Error::Refused(Refusal::ShuttingDown));
        }
        let mut repeats = 0;
        let mut unknown = None;
        loop {
            match self.store().enqueue(jobs.list()).await.map_err(Error::from) {
                // The same ids again: what was accepted already is recognised.
                Err(error @ Error::Unknown { .. }) if repeats < REPEATS => {
                    repeats += 1;
                    unknown = Some(error);
                }
                // The store did not even look: what became of the first call is still unknown.
                Err(Error::Refused(
                    refusal @ (Refusal::StoreBroken { .. }
                    | Refusal::StoreFull { .. }
                    | Refusal::Unavailable { .. }
                    | Refusal::ShuttingDown),
                )) => return Err(unknown.unwrap_or(Error::Refused(refusal))),
                answer => return answer,
            }
        }
    }

    /// A handle to a job that was enqueued earlier, or elsewhere.
    pub fn handle<J: Job>(&self, job: JobId) -> Handle<J> {
        Handle {
            engine: self.clone(),
            id: job,
            enqueued: None,
            accepted_after: None,
            job: PhantomData,
        }
    }

    /// Everything known about a job; `None` if it was never accepted or is no longer kept.
    ///
    /// A [`JobRecord`] says what its producer said (`job`), where it stands
    /// ([`JobRecord::state`], and with its counters `status`), when it was accepted, last
    /// changed and first started, what it returned and its last error, its last attempts, and
    /// what its handler reported: progress, log lines, finished steps. Payload and output are the
    /// bytes that were stored, JSON unless you chose otherwise.
    ///
    /// ```
    /// # use windlass::{Engine, Error, JobId};
    /// # async fn demo(engine: Engine, id: JobId) -> Result<(), Error> {
    /// if let Some(record) = engine.find(id).await? {
    ///     println!("{} since {}", record.state(), record.updated_at);
    ///     for attempt in &record.attempts {
    ///         println!("attempt {} by {}", attempt.number, attempt.worker);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn find(&self, job: JobId) -> Result<Option<JobRecord>, Error> {
        Ok(self.store().find(&[job]).await?.pop().flatten())
    }

    /// Jobs chosen by state, kind, queue, tag and time: to list, or to change in one commit.
    pub fn jobs(&self) -> Query {
        Query { engine: self.clone(), filter: Filter::default(), problem: None }
    }

    /// The dead letters: jobs that gave up, newest first.
    pub fn dead_letters(&self) -> Query {
        self.jobs().state(StateName::Dead)
    }

    /// How many jobs there are per state, queue and kind, and what has happened so far. Kept with
    /// every change, never counted by scanning.
    ///
    /// [`Counts`] has a line for every queue and kind there are jobs of (`lines`), every queue with
    /// its settings and lanes (`queues`), and the live workers (`workers`); its methods add up what
    /// is asked for most.
    ///
    /// ```
    /// # use windlass::{Engine, Error, StateName};
    /// # async fn demo(engine: Engine) -> Result<(), Error> {
    /// let counts = engine.counts().await?;
    /// println!("{} are ready", counts.in_state(StateName::Ready));
    /// println!("{} of the queue `mail` are dead", counts.in_queue("mail", StateName::Dead));
    /// println!("{} have completed so far", counts.totals().completed);
    /// for (kind, waiting) in counts.unhandled() {
    ///     println!("no worker handles `{kind}`: {waiting} wait");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn counts(&self) -> Result<Counts, Error> {
        Ok(self.store().count().await?)
    }

    /// Calls a job off. A waiting one is cancelled at once; the handler of a running one is told
    /// to stop, and the job is not tried again.
    pub async fn cancel(&self, job: JobId) -> Result<CancelAnswer, Error> {
        match self.alter_one(job, JobAction::Cancel).await? {
            JobActionDone::Cancel(answer) => Ok(answer),
            JobActionDone::Rescheduled(_)
            | JobActionDone::Replayed
            | JobActionDone::Replaced(_)
            | JobActionDone::Removed
            | JobActionDone::GraphRemoved { .. } => Ok(CancelAnswer::Cancelled),
        }
    }

    /// Lets a scheduled or retrying job start now.
    pub async fn run_now(&self, job: JobId) -> Result<(), Error> {
        self.alter_one(job, JobAction::Reschedule(Start::Now)).await.map(drop)
    }

    /// Moves the start of a waiting job to a time; a time that has passed means now.
    pub async fn reschedule(&self, job: JobId, at: SystemTime) -> Result<(), Error> {
        let start = Start::At(timestamp(at));
        self.alter_one(job, JobAction::Reschedule(start)).await.map(drop)
    }

    /// Moves the start of a waiting job to this long from now.
    pub async fn reschedule_in(&self, job: JobId, delay: Duration) -> Result<(), Error> {
        let start = Start::After(delay);
        self.alter_one(job, JobAction::Reschedule(start)).await.map(drop)
    }

    /// Tries a dead or cancelled job again, its attempts reset.
    pub async fn replay(&self, job: JobId) -> Result<(), Error> {
        self.alter_one(job, JobAction::Replay).await.map(drop)
    }

    /// Tries a dead job again with another payload: a new job, linked to the old one by its
    /// `parent`, takes its place. Everything else the producer said is kept, but for dependencies
    /// and the start.
    pub async fn replay_edited<J: Job>(&self, job: JobId, edited: J) -> Result<Handle<J>, Error> {
        let payload = encode(&edited)?;
        let old = self.find(job).await?.ok_or(Refusal::UnknownJob { job })?;
        let mut new = NewJob::clone(&old.job);
        new.id = crate::options::new_id();
        new.kind = Name::new(J::KIND)?;
        new.payload = payload;
        new.parent = Some(job);
        new.depends_on = Vec::new();
        new.start = Start::Now;
        let before = self.waiters().position();
        let enqueued = ext::replay_edited(&**self.store(), job, new, self.actor()).await?;
        Ok(Handle::new(self, enqueued, before))
    }

    /// Deletes a finished job.
    pub async fn remove(&self, job: JobId) -> Result<(), Error> {
        self.alter_one(job, JobAction::Remove).await.map(drop)
    }

    /// Deletes a finished job and all that depend on it, directly or through others that are kept;
    /// answers how many jobs that were. If one of them has not finished, nothing is deleted and
    /// [`Refusal::WrongState`] names it. At most 10,000 jobs at once.
    pub async fn remove_graph(&self, root: JobId) -> Result<u64, Error> {
        match self.alter_one(root, JobAction::RemoveGraph).await? {
            JobActionDone::GraphRemoved { jobs } => Ok(jobs),
            JobActionDone::Cancel(_)
            | JobActionDone::Rescheduled(_)
            | JobActionDone::Replayed
            | JobActionDone::Replaced(_)
            | JobActionDone::Removed => Ok(1),
        }
    }

    async fn alter_one(&self, job: JobId, alteration: JobAction) -> Result<JobActionDone, Error> {
        let alter = AlterJobs::new(Selection::Jobs(vec![job]), alteration);
        let altered = self.store().alter(AlterJobs { by: self.actor(), ..alter }).await?;
        match altered.into_iter().next() {
            Some(JobActionResult { result, .. }) => Ok(result?),
            None => Err(Error::Refused(Refusal::UnknownJob { job })),
        }
    }

    /// Why a job is not running: a chain of reasons, the first cause first.
    pub async fn explain(&self, job: JobId) -> Result<Explanation, Error> {
        Ok(self.store().explain(job).await?)
    }

    /// The jobs that wait for this one.
    pub async fn dependents(&self, job: JobId) -> Result<Vec<JobId>, Error> {
        Ok(self.store().dependents(job).await?)
    }

    /// Tells a worker, wherever it runs, to claim nothing more or to stop; `None` withdraws that.
    /// It hears of it within some seconds. See [`StoreExt::order_worker`].
    pub async fn order_worker(
        &self,
        worker: &str,
        order: Option<WorkerOrder>,
    ) -> Result<(), Error> {
        Ok(self.store().order_worker(worker, order, self.actor()).await?)
    }

    /// A queue, to pause, resume, clear or configure.
    pub fn queue(&self, queue: &str) -> Result<Queue, Error> {
        Ok(Queue { engine: self.clone(), name: Name::new(queue)? })
    }
}

/// The largest buffer that a thread keeps to write payloads in.
const BUFFER_KEPT: usize = 64 * 1024;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Writes a payload, in a buffer that each thread uses again: how long a payload is, is known only
/// when it is written, and a `Vec` that grew with it would be copied once more to fit.
fn encode<J: Job>(job: &J) -> Result<Bytes, Error> {
    // Taken, not borrowed: the payload's own `Serialize` may call this again.
    let mut buffer = BUFFER.take();
    buffer.clear();
    let written = serde_json::to_writer(&mut buffer, job);
    let payload = Bytes::from(buffer.as_slice());
    if buffer.capacity() <= BUFFER_KEPT {
        BUFFER.set(buffer);
    }
    written.map(|()| payload).map_err(|source| Error::Encode { kind: J::KIND.to_string(), source })
}

/// Puts a job together from its payload and options.
pub(crate) fn new_job<J: Job>(job: &J, options: Options) -> Result<NewJob, Error> {
    options.into_new_job(J::KIND, encode(job)?)
}

/// Jobs of one call, kept until it is answered, because it may have to be repeated.
enum JobsToEnqueue {
    /// Most calls have one, which needs no list until it is sent.
    One(Arc<NewJob>),
    Many(Vec<Arc<NewJob>>),
}

impl JobsToEnqueue {
    fn list(&self) -> Vec<Arc<NewJob>> {
        match self {
            Self::One(job) => vec![job.clone()],
            Self::Many(jobs) => jobs.clone(),
        }
    }
}

/// A job about to be enqueued. Await it.
#[must_use = "nothing is enqueued until this is awaited"]
#[derive(Debug)]
pub struct EnqueueJob<J> {
    engine: Engine,
    job: J,
    options: Options,
}

impl<J: Job> EnqueueJob<J> {
    option_setters!(options);
}

#[cfg(feature = "postgres")]
impl<J: Job> EnqueueJob<J> {
    /// The engine, and the job as it would be enqueued.
    pub(crate) fn into_parts(self) -> Result<(Engine, NewJob), Error> {
        let job = new_job(&self.job, self.options)?;
        Ok((self.engine, job))
    }
}

#[cfg(feature = "postgres")]
impl Batch {
    /// The engine, and the jobs so far.
    pub(crate) fn into_parts(self) -> (Engine, Vec<Arc<NewJob>>) {
        (self.engine, self.jobs)
    }
}

impl<J: Job> IntoFuture for EnqueueJob<J> {
    type Output = Result<Handle<J>, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        // Put together here, so that the future is `Send` even if the payload is not shared.
        let new = new_job(&self.job, self.options).map(Arc::new);
        let engine = self.engine;
        Box::pin(async move {
            let before = engine.waiters().position();
            let enqueued = engine.enqueue_shared(JobsToEnqueue::One(new?)).await?;
            let enqueued = enqueued.into_iter().next().ok_or_else(|| Refusal::Unavailable {
                why: "it accepted a job without naming it".to_string(),
            })?;
            Ok(Handle::new(&engine, enqueued, before))
        })
    }
}

/// Jobs collected for one commit.
#[derive(Debug)]
pub struct Batch {
    engine: Engine,
    jobs: Vec<Arc<NewJob>>,
}

impl Batch {
    /// Adds a job and returns the id it will have, for others to depend on. If its unique key turns
    /// out to be held, the holder's id stands in its place in the answer, and for those that
    /// depend on it.
    pub fn add<J: Job>(&mut self, job: J) -> Result<JobId, Error> {
        let options = job.options();
        self.add_with(job, options)
    }

    /// Adds a job with options of its own.
    pub fn add_with<J: Job>(&mut self, job: J, options: Options) -> Result<JobId, Error> {
        let new = new_job(&job, options)?;
        let id = new.id;
        self.jobs.push(new.into());
        Ok(id)
    }

    /// Stores them all, or on any error none.
    pub async fn commit(self) -> Result<Vec<Enqueued>, Error> {
        self.engine.enqueue_shared(JobsToEnqueue::Many(self.jobs)).await
    }
}

/// A job that was enqueued.
pub struct Handle<J> {
    engine: Engine,
    id: JobId,
    /// What the store answered; `None` for a job that was enqueued elsewhere.
    enqueued: Option<Enqueued>,
    /// A number before all events of the job; `None` if there is none to name.
    accepted_after: Option<u64>,
    job: PhantomData<fn() -> J>,
}

impl<J> Clone for Handle<J> {
    fn clone(&self) -> Self {
        let (engine, enqueued) = (self.engine.clone(), self.enqueued.clone());
        let (id, accepted_after) = (self.id, self.accepted_after);
        Self { engine, id, enqueued, accepted_after, job: PhantomData }
    }
}

impl<J> fmt::Debug for Handle<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.id)
    }
}

impl<J> From<&Handle<J>> for JobId {
    fn from(handle: &Handle<J>) -> Self {
        handle.id
    }
}

impl<J: Job> Handle<J> {
    pub(crate) fn new(engine: &Engine, enqueued: Enqueued, before: u64) -> Self {
        let (engine, id) = (engine.clone(), enqueued.id);
        let accepted_after = match enqueued.acceptance {
            Acceptance::Accepted => Some(before),
            // Accepted earlier: it may have finished long ago.
            Acceptance::AlreadyAccepted | Acceptance::Deduplicated { .. } => None,
        };
        Self { engine, id, enqueued: Some(enqueued), accepted_after, job: PhantomData }
    }

    /// The job's id; that of the job that was there before, if this one was a duplicate.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Whether a job was added, or one was there already; `None` if it was enqueued elsewhere.
    pub fn acceptance(&self) -> Option<Acceptance> {
        self.enqueued.as_ref().map(|enqueued| enqueued.acceptance)
    }

    /// Whether another job holds the unique key, and this handle is to that one.
    pub fn is_duplicate(&self) -> bool {
        matches!(self.acceptance(), Some(Acceptance::Deduplicated { .. }))
    }

    /// How many jobs waited in the queue after this one was accepted; `None` if it was enqueued
    /// elsewhere.
    pub fn depth(&self) -> Option<u64> {
        self.enqueued.as_ref().map(|enqueued| enqueued.depth)
    }

    /// Everything known about the job.
    pub async fn record(&self) -> Result<JobRecord, Error> {
        let job = self.id();
        let record = self.engine.find(job).await?;
        record.ok_or(Error::Refused(Refusal::UnknownJob { job }))
    }

    /// Waits until the job has finished and returns what its handler returned; or
    /// [`Error::Died`], or [`Error::Cancelled`].
    pub async fn outcome(&self) -> Result<J::Output, Error> {
        let mut accepted_after = self.accepted_after;
        loop {
            let waiting = self.engine.waiters().wait_for(self.id(), accepted_after.take());
            if waiting.look_first
                && let Some(outcome) = finished::<J>(&self.record().await?)
            {
                return outcome;
            }
            let told = match waiting.alone {
                false => waiting.told().await,
                true => tokio::select! {
                    biased;
                    told = waiting.told() => told,
                    () = self.engine.clock().sleep(LOOK_FOR_YOURSELF) => None,
                },
            };
            match told {
                Some(JobEnd::Completed(output)) => {
                    return returned::<J>(self.id, output.as_deref());
                }
                Some(JobEnd::Record(record)) => {
                    if let Some(outcome) = finished::<J>(&record) {
                        return outcome;
                    }
                }
                None => {}
            }
        }
    }

    /// Like [`Handle::outcome`], for at most `patience`; then [`Error::TimedOut`]. The job goes on.
    pub async fn outcome_within(&self, patience: Duration) -> Result<J::Output, Error> {
        tokio::select! {
            biased;
            outcome = self.outcome() => outcome,
            () = self.engine.clock().sleep(patience) => {
                Err(Error::TimedOut { job: self.id(), waited: patience })
            }
        }
    }

    /// Calls the job off. See [`Engine::cancel`].
    pub async fn cancel(&self) -> Result<CancelAnswer, Error> {
        self.engine.cancel(self.id()).await
    }
}

/// What the handler of a completed job returned.
fn returned<J: Job>(job: JobId, output: Option<&[u8]>) -> Result<J::Output, Error> {
    serde_json::from_slice(output.unwrap_or(b"null"))
        .map_err(|source| Error::Decode { job, source })
}

/// How a job has finished; `None` if it has not.
pub(crate) fn finished<J: Job>(record: &JobRecord) -> Option<Result<J::Output, Error>> {
    let job = record.id();
    match &record.status.state {
        State::Completed { .. } => Some(returned::<J>(job, record.output.as_deref())),
        State::Dead { reason, .. } => {
            let error = record.error.as_ref().map(ToString::to_string).unwrap_or_default();
            Some(Err(Error::Died { job, reason: *reason, error }))
        }
        State::Cancelled { reason, .. } => Some(Err(Error::Cancelled { job, reason: *reason })),
        State::Blocked { .. }
        | State::Scheduled { .. }
        | State::Ready { .. }
        | State::Running(_) => None,
    }
}

/// A choice of jobs. An invalid name in it is an error of the call that uses it.
///
/// A change of what it chooses ([`cancel`](Self::cancel) and those beside it) is about the jobs
/// that were accepted before the call began and that match when they are reached. It is made in
/// chunks of 250 jobs, each in one commit, so that nobody waits for long; meanwhile a job that was
/// not reached may still start, and is then a running one. When the call has returned, nothing is
/// left undone. If it is cut short, a part is done, and repeating it finds the rest.
///
/// Jobs are found by state, kind, queue and `blocked_by` without reading them, and by `parent` on
/// PostgreSQL by an index. A tag or a time of acceptance has none: every job that matches
/// otherwise is read for it, a few at a time.
#[must_use = "a query does nothing until one of its verbs is awaited"]
#[derive(Clone, Debug)]
pub struct Query {
    engine: Engine,
    filter: Filter,
    problem: Option<InvalidName>,
}

impl Query {
    /// In this state; several mean any of them.
    pub fn state(mut self, state: StateName) -> Self {
        self.filter.states.push(state);
        self
    }

    /// Of this kind; several mean any of them.
    pub fn kind(mut self, kind: &str) -> Self {
        if let Some(kind) = self.name(kind) {
            self.filter.kinds.push(kind);
        }
        self
    }

    /// In this queue; several mean any of them.
    pub fn queue(mut self, queue: &str) -> Self {
        if let Some(queue) = self.name(queue) {
            self.filter.queues.push(queue);
        }
        self
    }

    /// With this tag; several mean all of them.
    pub fn tag(mut self, tag: &str) -> Self {
        if let Some(tag) = self.name(tag) {
            self.filter.tags.push(tag);
        }
        self
    }

    /// Accepted at this time or later.
    pub fn created_from(mut self, from: SystemTime) -> Self {
        self.filter.created_from = Some(timestamp(from));
        self
    }

    /// Accepted before this time.
    pub fn created_before(mut self, before: SystemTime) -> Self {
        self.filter.created_before = Some(timestamp(before));
        self
    }

    /// That follow from this job: those whose [`parent`](crate::core::job::NewJob::parent) it is.
    pub fn parent(mut self, parent: impl Into<JobId>) -> Self {
        self.filter.parent = Some(parent.into());
        self
    }

    /// That wait for this job, on which they depend.
    pub fn blocked_by(mut self, job: impl Into<JobId>) -> Self {
        self.filter.blocked_by = Some(job.into());
        self
    }

    /// Lists the first accepted first, where a list begins with the last accepted otherwise.
    pub fn oldest_first(mut self) -> Self {
        self.filter.order = Order::OldestFirst;
        self
    }

    fn name(&mut self, text: &str) -> Option<Name> {
        match Name::new(text) {
            Ok(name) => Some(name),
            Err(error) => {
                self.problem = Some(error);
                None
            }
        }
    }

    fn filter(self) -> Result<(Engine, Filter), Error> {
        match self.problem {
            Some(problem) => Err(problem.into()),
            None => Ok((self.engine, self.filter)),
        }
    }

    /// One page, the last accepted first, unless [`oldest_first`](Self::oldest_first) is asked
    /// for. `after` is the cursor of the page before. A page may be short, even empty, and still
    /// name where to go on. At most 1,000 jobs fit on it, and 250 of a file store; none is refused.
    pub async fn page(self, after: Option<Cursor>, limit: usize) -> Result<Page, Error> {
        let (engine, filter) = self.filter()?;
        if limit == 0 {
            let allowed = format!("a page has 1 to {} jobs", limits::PAGE_JOBS);
            let got = limit.to_string();
            return Err(Refusal::OutOfBounds { what: "page size".into(), got, allowed }.into());
        }
        Ok(engine.store().list(&filter, after, limit).await?)
    }

    /// How many there are, exactly. Counted by looking at all jobs, a bounded number at a time, so
    /// that nobody waits for it; [`Engine::counts`] has what is asked for most without looking.
    pub async fn count(self) -> Result<u64, Error> {
        let (engine, filter) = self.filter()?;
        Ok(engine.store().count_matching(&filter).await?)
    }

    /// Calls them all off.
    pub async fn cancel(self) -> Result<Vec<JobActionResult>, Error> {
        self.alter(JobAction::Cancel).await
    }

    /// Tries them all again, attempts reset. What depends on others of them is tried after those.
    pub async fn replay(self) -> Result<Vec<JobActionResult>, Error> {
        self.alter(JobAction::Replay).await
    }

    /// Lets them all start now.
    pub async fn run_now(self) -> Result<Vec<JobActionResult>, Error> {
        self.alter(JobAction::Reschedule(Start::Now)).await
    }

    /// Deletes them all; those that have not finished are refused.
    pub async fn remove(self) -> Result<Vec<JobActionResult>, Error> {
        self.alter(JobAction::Remove).await
    }

    async fn alter(self, alteration: JobAction) -> Result<Vec<JobActionResult>, Error> {
        let (engine, filter) = self.filter()?;
        let alter = AlterJobs::new(Selection::Matching(filter), alteration);
        Ok(engine.store().alter(AlterJobs { by: engine.actor(), ..alter }).await?)
    }
}

/// One queue.
#[derive(Debug)]
pub struct Queue {
    engine: Engine,
    name: Name,
}

impl Queue {
    /// Starts no more of its jobs, in any worker. Durable; running jobs finish.
    pub async fn pause(&self) -> Result<QueueSettings, Error> {
        self.configure(QueueChange::Pause).await
    }

    /// Starts its jobs again.
    pub async fn resume(&self) -> Result<QueueSettings, Error> {
        self.configure(QueueChange::Resume).await
    }

    /// Refuses enqueues beyond so many waiting jobs with [`Refusal::QueueFull`]; `None` for no
    /// limit.
    pub async fn max_depth(&self, limit: Option<u64>) -> Result<QueueSettings, Error> {
        self.configure(QueueChange::MaxDepth(limit)).await
    }

    /// Raises a waiting job by one point of priority per `step`, so that a job `n` points below
    /// the others starts at the latest when it has waited `n × step` longer; `None` for strict
    /// priorities.
    pub async fn ageing(&self, step: Option<Duration>) -> Result<QueueSettings, Error> {
        self.configure(QueueChange::Ageing(step)).await
    }

    /// Calls off all its waiting jobs that were accepted before; running ones are left alone.
    ///
    /// That is done in chunks of 250 jobs, each in one commit, so that nobody waits for long; a job
    /// that was not reached may still start meanwhile, and is then left alone. When the call has
    /// returned, none of them waits. If it is cut short, repeating it finds the rest.
    pub async fn clear(&self) -> Result<Cleared, Error> {
        let Self { engine, name } = self;
        Ok(ext::clear(&**engine.store(), name.clone(), engine.actor()).await?)
    }

    async fn configure(&self, change: QueueChange) -> Result<QueueSettings, Error> {
        let Self { engine, name } = self;
        Ok(ext::configure(&**engine.store(), name.clone(), change, engine.actor()).await?)
    }
}
