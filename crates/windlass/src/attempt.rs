//! What the handler receives: one run of a job, and what it can say and ask while it runs.
//!
//! An attempt knows the worker that runs it only as its [`Host`], so that this file can be read,
//! and changed, without the worker. How an attempt is run is told by `worker/run.rs`.

mod cancellation;
mod ending;
mod reports;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use windlass_core::job::{JobId, Lane, LeaseToken, NewJob, Priority, Timeout};
use windlass_core::ledger::{Renewal, Renewed};
use windlass_core::name::Name;
use windlass_core::object::Address;
use windlass_core::outcome::ErrorText;
use windlass_core::record::{LogLine, Progress, Report, Step};
use windlass_core::refusal::Refusal;
use windlass_core::retry::Retry;
use windlass_core::time::{Steady, Timestamp};

use self::cancellation::Stop;
pub use self::cancellation::{Cancellation, StopReason};
use self::ending::Ending;
use self::reports::Reports;
use crate::clock::BoxFuture;
use crate::engine::Engine;
use crate::error::Error;
use crate::handler::{Job, RegisteredHandler, State, States};
use crate::options::Options;
use crate::steps::Steps;
use crate::store::{Answer, ClaimedJob};

/// The worker that runs an attempt, as the attempt sees it.
pub(crate) trait Host: Send + Sync {
    fn engine(&self) -> &Engine;

    /// What all handlers of the worker share.
    fn states(&self) -> &States;

    /// An attempt was told to stop, and must be watched from now on.
    fn was_told(&self);

    /// A handler has something to report.
    fn has_reported(&self);

    /// Nothing of an attempt runs any more: its slot is free.
    fn free_slot(&self);

    /// Renews one lease now, with what its handler waits to be kept.
    fn renew(&self, renewal: Renewal) -> BoxFuture<'_, Answer<Result<Renewed, Refusal>>>;
}

/// Something of an attempt that runs, and keeps its slot in use until this is dropped.
pub(crate) struct HeldSlot(Attempt);

impl Drop for HeldSlot {
    fn drop(&mut self) {
        let inner = self.0.inner();
        if inner.slot_holders.fetch_sub(1, Ordering::SeqCst) == 1 {
            inner.host.free_slot();
        }
    }
}

/// One run of a job, as its handler sees it. Cloning is cheap.
#[derive(Clone)]
pub struct Attempt {
    cancellation: Cancellation,
}

struct AttemptInner {
    job: ClaimedJob,
    /// When the claim was sent.
    claimed: Steady,
    handler: Arc<RegisteredHandler>,
    host: Arc<dyn Host>,
    /// How much of it runs; its slot is in use as long as that is not 0.
    slot_holders: AtomicU32,
    stop: Stop,
    ending: Ending,
    reports: Reports,
    /// The handler has completed the job in a transaction of its own.
    completed_elsewhere: AtomicBool,
    next: Mutex<Vec<Arc<NewJob>>>,
    steps: Steps,
}

impl Attempt {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.inner().job.job.id
    }

    /// The job's kind.
    pub fn kind(&self) -> &Name {
        &self.inner().job.job.kind
    }

    /// The job's queue.
    pub fn queue(&self) -> &Name {
        &self.inner().job.job.queue
    }

    /// Which run this is, 1 for the first.
    pub fn number(&self) -> u32 {
        self.inner().job.attempt
    }

    /// Total runs the job may have.
    pub fn max_attempts(&self) -> u32 {
        self.inner().job.lease.max_attempts
    }

    /// Whether the job has run before.
    pub fn is_retry(&self) -> bool {
        self.number() > 1
    }

    /// How often a worker was lost while running this job: not 0 means that an earlier attempt
    /// may have done part of the work.
    pub fn recoveries(&self) -> u32 {
        self.inner().job.recoveries
    }

    /// How often the job was replayed: not 0 means that it was given up before, and that an
    /// earlier attempt may have done part of the work. Numbers of attempts count from the last
    /// replay.
    pub fn generation(&self) -> u32 {
        self.inner().job.generation
    }

    /// What went wrong in the attempt before this one, since the job was last replayed: how its
    /// handler failed, or that its worker was lost. `None` for a first attempt. An attempt that
    /// was put off or given back is passed over.
    pub fn last_error(&self) -> Option<&str> {
        self.inner().job.last_error.as_ref().map(ErrorText::as_str)
    }

    /// The job's priority.
    pub fn priority(&self) -> Priority {
        self.inner().job.job.priority
    }

    /// When the store accepted the job.
    pub fn enqueued_at(&self) -> Timestamp {
        self.inner().job.created_at
    }

    /// When this attempt began.
    pub fn started_at(&self) -> Timestamp {
        self.inner().job.lease.since
    }

    /// How long this attempt may run in all; `None` if there is no limit.
    pub fn timeout(&self) -> Option<Duration> {
        match self.inner().job.job.timeout.unwrap_or(self.inner().handler.options.timeout) {
            Timeout::After(timeout) => Some(timeout),
            Timeout::Off => None,
        }
    }

    /// The worker that runs it.
    pub fn worker(&self) -> &str {
        &self.inner().job.lease.worker
    }

    /// The job's place in the order of acceptance; on PostgreSQL, of two calls that overlapped the
    /// one with the smaller number may have been accepted later.
    pub fn sequence(&self) -> u64 {
        self.inner().job.sequence
    }

    /// The jobs it neither overtakes nor overlaps with.
    pub fn lane(&self) -> Option<&Lane> {
        self.inner().job.job.lane.as_ref()
    }

    /// The object the job is bound to.
    pub fn object(&self) -> Option<&Address> {
        self.inner().job.job.object.as_ref()
    }

    /// The job's label of this name.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.inner().job.job.metadata.get(key).map(String::as_str)
    }

    /// The job's tags.
    pub fn tags(&self) -> &[Name] {
        &self.inner().job.job.tags
    }

    /// The producer's W3C `traceparent`.
    pub fn trace(&self) -> &str {
        self.inner().job.job.trace.as_deref().unwrap_or_default()
    }

    /// The job's payload as it was stored.
    pub fn payload(&self) -> &[u8] {
        &self.inner().job.job.payload
    }

    /// A text that is different for every run of every job, and the same for nobody else: an
    /// idempotency key for one attempt's calls to the outside.
    pub fn fence(&self) -> String {
        format!("{}-{}", self.id(), self.token())
    }

    /// The engine that runs this attempt, to enqueue more work with.
    pub fn engine(&self) -> &Engine {
        self.inner().host.engine()
    }

    /// The worker's shared state of this type, if it was given one.
    pub fn state<S: Send + Sync + 'static>(&self) -> Option<State<S>> {
        self.states().get().map(State)
    }

    /// Tells whether and why to stop.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Says how far the work is: 0 to 100 percent, and in words. Shown with the job; the last one
    /// counts. Fenced by the lease, like every write of an attempt.
    pub fn progress(&self, percent: u8, note: impl Into<String>) {
        let progress = Progress { percent: percent.min(100), note: note.into() };
        self.report(|report| report.progress = Some(progress));
    }

    /// Adds a line to the job's log, of which the last hundred are kept.
    pub fn log(&self, text: impl Into<String>) {
        let at = self.engine().clock().now().wall;
        let line = LogLine { at, attempt: self.number(), text: text.into() };
        self.report(|report| {
            report.lines.push(line);
            report.keep_last_lines();
        });
    }

    /// Continues with another job: it is accepted in the same commit that completes this one, or,
    /// if this attempt does not complete, not at all. Returns the id it will have, unless its
    /// unique key is held then; the job that holds it stands for it.
    pub fn continue_with<J: Job>(&self, job: J) -> Result<JobId, Error> {
        let options = job.options();
        self.continue_with_options(job, options)
    }

    /// Like [`Attempt::continue_with`], with options of its own.
    pub fn continue_with_options<J: Job>(&self, job: J, options: Options) -> Result<JobId, Error> {
        let new_job = || crate::client::new_job(&job, options);
        let mut next = crate::trace::CURRENT.sync_scope(self.clone(), new_job)?;
        next.parent = Some(self.id());
        let id = next.id;
        self.inner().next.lock().unwrap_or_else(PoisonError::into_inner).push(next.into());
        Ok(id)
    }

    /// The jobs this one waited for, in the order in which they were named.
    pub fn dependencies(&self) -> impl Iterator<Item = JobId> + '_ {
        self.inner().job.job.depends_on.iter().map(|dependency| dependency.on)
    }

    /// What a job this one waited for returned; `None` if it did not complete (an edge that
    /// ignores failure) or is no longer kept.
    pub async fn output_of<T: DeserializeOwned>(&self, job: JobId) -> Result<Option<T>, Error> {
        let output = self.engine().find(job).await?.and_then(|record| record.output);
        let decode = |source| Error::Decode { job, source };
        output.map(|bytes| serde_json::from_slice(&bytes).map_err(decode)).transpose()
    }
}

/// What the engine does with an attempt.
impl Attempt {
    pub(crate) fn new(
        job: ClaimedJob,
        claimed: Steady,
        handler: Arc<RegisteredHandler>,
        host: Arc<dyn Host>,
    ) -> Self {
        let inner = AttemptInner {
            job,
            claimed,
            handler,
            host,
            slot_holders: AtomicU32::new(0),
            stop: Stop::default(),
            ending: Ending::default(),
            reports: Reports::default(),
            completed_elsewhere: AtomicBool::new(false),
            next: Mutex::default(),
            steps: Steps::default(),
        };
        Self { cancellation: Cancellation::of(Arc::new(inner)) }
    }

    fn inner(&self) -> &AttemptInner {
        self.cancellation.inner()
    }

    pub(crate) fn token(&self) -> LeaseToken {
        self.inner().job.lease.token
    }

    pub(crate) fn handler(&self) -> &Arc<RegisteredHandler> {
        &self.inner().handler
    }

    pub(crate) fn host(&self) -> &dyn Host {
        &*self.inner().host
    }

    pub(crate) fn states(&self) -> &States {
        self.inner().host.states()
    }

    /// Who ends it, and how its task is ended.
    pub(crate) fn ending(&self) -> &Ending {
        &self.inner().ending
    }

    /// What its handler has said.
    pub(crate) fn reports(&self) -> &Reports {
        &self.inner().reports
    }

    /// The steps it has begun.
    pub(crate) fn steps(&self) -> &Steps {
        &self.inner().steps
    }

    /// The steps that earlier attempts have finished.
    pub(crate) fn steps_before(&self) -> &[Step] {
        &self.inner().job.steps
    }

    /// How long its lease lasts without a renewal.
    pub(crate) fn lease(&self) -> Duration {
        self.handler().options.lease
    }

    /// When it is tried again: as the job says, or its handler.
    pub(crate) fn retry(&self) -> &Retry {
        self.inner().job.job.retry.as_ref().unwrap_or(&self.handler().options.retry)
    }

    /// How long ago its claim was sent, on the steady clock.
    fn since_claim(&self) -> Duration {
        self.engine().clock().now().steady.since(self.inner().claimed)
    }

    /// The store's time, as it was at the claim and has passed on the steady clock since: no step
    /// of a clock moves it.
    pub(crate) fn store_time(&self) -> Timestamp {
        self.started_at() + self.since_claim()
    }

    /// How long ago the job first started. The store's times up to the claim, and the steady clock
    /// since: no step of a clock counts.
    pub(crate) fn since_first_start(&self) -> Duration {
        let before = self.started_at().since(self.inner().job.first_started_at);
        before.saturating_add(self.since_claim())
    }

    /// Keeps the slot in use for as long as the returned value lives. Whoever runs the attempt
    /// holds it first; so does work that goes on after its task was aborted, and begins before.
    pub(crate) fn hold_slot(&self) -> HeldSlot {
        self.inner().slot_holders.fetch_add(1, Ordering::SeqCst);
        HeldSlot(self.clone())
    }

    /// Tells the handler to stop. The first reason counts.
    pub(crate) fn tell(&self, reason: StopReason) {
        if self.inner().stop.tell(reason) {
            self.inner().host.was_told();
        }
    }

    /// Nobody will tell it to stop any more: it has been settled, or given up.
    pub(crate) fn let_go(&self) {
        self.inner().stop.let_go();
    }

    fn report(&self, add: impl FnOnce(&mut Report)) {
        self.inner().reports.add(add);
        self.inner().host.has_reported();
    }

    /// The handler completes the job in a transaction of its own.
    #[cfg(feature = "postgres")]
    pub(crate) fn note_completion_elsewhere(&self) {
        self.inner().completed_elsewhere.store(true, Ordering::SeqCst);
    }

    pub(crate) fn completes_elsewhere(&self) -> bool {
        self.inner().completed_elsewhere.load(Ordering::SeqCst)
    }

    /// The jobs it continues with.
    pub(crate) fn take_next(&self) -> Vec<Arc<NewJob>> {
        std::mem::take(&mut self.inner().next.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({} {} #{})", self.kind(), self.id(), self.number())
    }
}
