//! One run of a job: what the handler receives, and how the run is watched over.
//!
//! [`conduct`] reads as the life of an attempt: run the handler, judge how it ended, hand the
//! outcome to the settle loop, and give the slot back when the task has really ended. It runs on
//! one task. An attempt that was told to stop and does not is ended by the watch loop; whoever
//! ends an attempt first settles it.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::Instrument;
use windlass_core::job::{Bytes, CancelReason, JobId, Lane, LeaseToken, NewJob, Priority, Timeout};
use windlass_core::ledger::Settlement;
use windlass_core::name::Name;
use windlass_core::object::Address;
use windlass_core::outcome::{ErrorText, Outcome, RunCounts, Verdict, decide};
use windlass_core::record::{LogLine, Progress, Report, Step};
use windlass_core::refusal::Refusal;
use windlass_core::retry::{Retry, jitter_seed};
use windlass_core::time::{Steady, Timestamp};
use windlass_core::worker::store_backoff;

use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{Job, RegisteredHandler, Returned, State, States};
use crate::middleware::Next;
use crate::options::Options;
use crate::panics;
use crate::primitives::AttemptEnding;
use crate::steps::Steps;
use crate::store::ClaimedJob;
use crate::worker::{self, Settling, Shared, Slot};

/// Why an attempt should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It has run for as long as it may.
    Timeout,
    /// Someone asked for the job to be cancelled.
    Cancelled,
    /// The store has given the job to someone else, or will; nothing this attempt does counts.
    LeaseLost,
    /// The worker is stopping and its grace is over.
    Shutdown,
}

/// Tells a handler that it should stop, and why.
#[derive(Clone)]
pub struct Cancellation {
    /// All of the attempt: one allocation, which every attempt needs, is enough for both.
    inner: Arc<AttemptInner>,
}

impl Cancellation {
    /// Why to stop, if there is a reason.
    pub fn reason(&self) -> Option<StopReason> {
        self.inner.stop.get().copied()
    }

    /// Whether to stop. For handlers that loop without waiting.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Waits until there is a reason to stop.
    pub async fn cancelled(&self) -> StopReason {
        loop {
            // Made before looking: what changes in between is heard.
            let changed = self.inner.stopped.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            if self.inner.over.load(Ordering::SeqCst) {
                // The worker is done with it; nobody is left to say why.
                return StopReason::Shutdown;
            }
            changed.await;
        }
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancellation({:?})", self.reason())
    }
}

/// One run of a job, as its handler sees it. Cloning is cheap.
#[derive(Clone)]
pub struct Attempt {
    cancellation: Cancellation,
}

struct AttemptInner {
    handed: ClaimedJob,
    shared: Arc<Shared>,
    handler: Arc<RegisteredHandler>,
    timeout: Option<Duration>,
    claimed: Steady,
    /// Why to stop. The first reason counts.
    stop: OnceLock<StopReason>,
    /// There is a reason to stop, or there will never be one.
    stopped: Notify,
    /// Somebody took it on themselves to settle it.
    ended: AtomicBool,
    /// It has been settled, or given up.
    over: AtomicBool,
    task: OnceLock<AbortHandle>,
    /// Its task is to end, even if it is not known yet.
    aborted: AtomicBool,
    report: Mutex<Said>,
    has_reported: AtomicBool,
    /// The handler has completed the job in a transaction of its own.
    completed_elsewhere: AtomicBool,
    next: Mutex<Vec<Arc<NewJob>>>,
    steps: Steps,
    slot: Weak<Slot>,
}

/// What a handler has reported and the store may not have.
#[derive(Default)]
struct Said {
    waiting: Report,
    /// On its way with a renewal. If no answer comes before the attempt is settled, it is settled
    /// with this too: a line that is kept twice is better than one that is lost.
    sent: Option<Report>,
}

impl Said {
    fn put_before(&mut self, earlier: Report) {
        let since = std::mem::replace(&mut self.waiting, earlier);
        self.waiting.lines.extend(since.lines);
        self.waiting.lines_dropped = self.waiting.lines_dropped.saturating_add(since.lines_dropped);
        self.waiting.keep_last_lines();
        self.waiting.progress = since.progress.or(self.waiting.progress.take());
    }
}

impl Attempt {
    fn inner(&self) -> &AttemptInner {
        &self.cancellation.inner
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.inner().handed.job.id
    }

    /// The job's kind.
    pub fn kind(&self) -> &Name {
        &self.inner().handed.job.kind
    }

    /// The job's queue.
    pub fn queue(&self) -> &Name {
        &self.inner().handed.job.queue
    }

    /// Which run this is, 1 for the first.
    pub fn number(&self) -> u32 {
        self.inner().handed.attempt
    }

    /// Total runs the job may have.
    pub fn max_attempts(&self) -> u32 {
        self.inner().handed.lease.max_attempts
    }

    /// Whether the job has run before.
    pub fn is_retry(&self) -> bool {
        self.number() > 1
    }

    /// How often a worker was lost while running this job: not 0 means that an earlier attempt
    /// may have done part of the work.
    pub fn recoveries(&self) -> u32 {
        self.inner().handed.recoveries
    }

    /// How often the job was replayed: not 0 means that it was given up before, and that an
    /// earlier attempt may have done part of the work. Numbers of attempts count from the last
    /// replay.
    pub fn generation(&self) -> u32 {
        self.inner().handed.generation
    }

    /// What went wrong in the attempt before this one, since the job was last replayed: how its
    /// handler failed, or that its worker was lost. `None` for a first attempt. An attempt that
    /// was put off or given back is passed over.
    pub fn last_error(&self) -> Option<&str> {
        self.inner().handed.last_error.as_ref().map(ErrorText::as_str)
    }

    /// The job's priority.
    pub fn priority(&self) -> Priority {
        self.inner().handed.job.priority
    }

    /// When the store accepted the job.
    pub fn enqueued_at(&self) -> Timestamp {
        self.inner().handed.created_at
    }

    /// When this attempt began.
    pub fn started_at(&self) -> Timestamp {
        self.inner().handed.lease.since
    }

    /// How long this attempt may run in all; `None` if there is no limit.
    pub fn timeout(&self) -> Option<Duration> {
        self.inner().timeout
    }

    /// The worker that runs it.
    pub fn worker(&self) -> &str {
        &self.inner().handed.lease.worker
    }

    /// The job's place in the order of acceptance; on PostgreSQL, of two calls that overlapped the
    /// one with the smaller number may have been accepted later.
    pub fn sequence(&self) -> u64 {
        self.inner().handed.sequence
    }

    /// The jobs it neither overtakes nor overlaps with.
    pub fn lane(&self) -> Option<&Lane> {
        self.inner().handed.job.lane.as_ref()
    }

    /// The object the job is bound to.
    pub fn object(&self) -> Option<&Address> {
        self.inner().handed.job.object.as_ref()
    }

    /// The job's label of this name.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.inner().handed.job.metadata.get(key).map(String::as_str)
    }

    /// The job's tags.
    pub fn tags(&self) -> &[Name] {
        &self.inner().handed.job.tags
    }

    /// The producer's W3C `traceparent`.
    pub fn trace(&self) -> &str {
        self.inner().handed.job.trace.as_deref().unwrap_or_default()
    }

    /// The job's payload as it was stored.
    pub fn payload(&self) -> &[u8] {
        &self.inner().handed.job.payload
    }

    /// A text that is different for every run of every job, and the same for nobody else: an
    /// idempotency key for one attempt's calls to the outside.
    pub fn fence(&self) -> String {
        format!("{}-{}", self.id(), self.token())
    }

    pub(crate) fn token(&self) -> LeaseToken {
        self.inner().handed.lease.token
    }

    /// The engine that runs this attempt, to enqueue more work with.
    pub fn engine(&self) -> &Engine {
        self.inner().shared.engine()
    }

    /// Keeps the slot in use for as long as the returned value lives, for work that goes on after
    /// its task was aborted.
    pub(crate) fn hold_slot(&self) -> Option<Arc<Slot>> {
        self.inner().slot.upgrade()
    }

    pub(crate) fn states(&self) -> &States {
        self.inner().shared.states()
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

    fn report(&self, add: impl FnOnce(&mut Report)) {
        add(&mut self.said().waiting);
        self.inner().has_reported.store(true, Ordering::SeqCst);
        self.inner().shared.reported().notify_one();
    }

    /// What the handler has said and nobody knows to be written, to be sent with a renewal. It is
    /// kept until [`Attempt::report_is_written`].
    pub(crate) fn send_report(&self) -> Report {
        let report = self.take_report();
        if !report.is_empty() {
            self.said().sent = Some(report.clone());
        }
        report
    }

    /// What the handler has said and nobody knows to be written, to be settled with.
    fn take_report(&self) -> Report {
        let mut said = self.said();
        if let Some(sent) = said.sent.take() {
            said.put_before(sent);
        }
        std::mem::take(&mut said.waiting)
    }

    /// What was sent is written.
    pub(crate) fn report_is_written(&self) {
        self.said().sent = None;
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.inner().report.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(crate) fn take_next(&self) -> Vec<Arc<NewJob>> {
        std::mem::take(&mut self.inner().next.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The jobs this one waited for, in the order in which they were named.
    pub fn dependencies(&self) -> impl Iterator<Item = JobId> + '_ {
        self.inner().handed.job.depends_on.iter().map(|dependency| dependency.on)
    }

    /// What a job this one waited for returned; `None` if it did not complete (an edge that
    /// ignores failure) or is no longer kept.
    pub async fn output_of<T: DeserializeOwned>(&self, job: JobId) -> Result<Option<T>, Error> {
        let output = self.engine().find(job).await?.and_then(|record| record.output);
        let decode = |source| Error::Decode { job, source };
        output.map(|bytes| serde_json::from_slice(&bytes).map_err(decode)).transpose()
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({} {} #{})", self.kind(), self.id(), self.number())
    }
}

impl Attempt {
    /// The handler completes the job in a transaction of its own.
    #[cfg(feature = "postgres")]
    pub(crate) fn note_completion_elsewhere(&self) {
        self.inner().completed_elsewhere.store(true, Ordering::SeqCst);
    }

    pub(crate) fn completes_elsewhere(&self) -> bool {
        self.inner().completed_elsewhere.load(Ordering::SeqCst)
    }

    /// If the handler completed the job in a transaction that was committed, the lease is over and
    /// whatever is settled now is refused. If it still counts, that transaction was not committed.
    fn unless_completed_elsewhere(&self, judged: Judged) -> Judged {
        if !self.completes_elsewhere() || judged.outcome != Outcome::Completed {
            return judged;
        }
        let error = "the transaction in which it was completed was not committed";
        Judged {
            outcome: Outcome::Failed(Default::default()),
            output: None,
            error: Some(ErrorText::new(error)),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner().shared
    }

    /// The steps it has begun.
    pub(crate) fn steps(&self) -> &Steps {
        &self.inner().steps
    }

    /// The steps that earlier attempts have finished.
    pub(crate) fn steps_before(&self) -> &[Step] {
        &self.inner().handed.steps
    }

    /// The store's time, as it was at the claim and has passed on the steady clock since: no step
    /// of a clock moves it.
    pub(crate) fn store_time(&self) -> Timestamp {
        let steady = self.engine().clock().now().steady;
        self.started_at() + steady.since(self.inner().claimed)
    }

    /// How long its lease lasts without a renewal.
    pub(crate) fn lease(&self) -> Duration {
        self.inner().handler.options.lease
    }

    /// Tells the handler to stop, and whether that is news to it. The first reason counts.
    pub(crate) fn tell(&self, reason: StopReason) -> bool {
        let first = self.inner().stop.set(reason).is_ok();
        if first {
            self.inner().stopped.notify_waiters();
            self.shared().told().notify_one();
        }
        first
    }

    fn has_lost_its_lease(&self) -> bool {
        self.cancellation.reason() == Some(StopReason::LeaseLost)
    }

    /// Takes the right and the duty to settle it, which exist once.
    pub(crate) fn end(&self) -> Option<worker::RegisteredAttempt> {
        let first = !self.inner().ended.swap(true, Ordering::SeqCst);
        first.then(|| worker::RegisteredAttempt(self.clone()))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.inner().ended.load(Ordering::SeqCst)
    }

    /// Nobody will tell it to stop any more.
    pub(crate) fn let_go(&self) {
        self.inner().over.store(true, Ordering::SeqCst);
        self.inner().stopped.notify_waiters();
    }

    /// Ends its task at the next await.
    fn abort(&self) {
        self.inner().aborted.store(true, Ordering::SeqCst);
        if let Some(task) = self.inner().task.get() {
            task.abort();
        }
    }
}

/// A claimed job, and the slot to run it in.
pub(crate) struct Begun {
    pub(crate) attempt: Attempt,
    slot: Arc<Slot>,
}

/// Puts the attempt of a claimed job together. `None` if the worker has no handler for it.
pub(crate) fn prepare(shared: &Arc<Shared>, handed: ClaimedJob, claimed: Steady) -> Option<Begun> {
    let slot = Arc::new(Slot(shared.clone()));
    let handler = shared.handler(&handed.job.kind)?;
    let timeout = match handed.job.timeout.unwrap_or(handler.options.timeout) {
        Timeout::After(timeout) => Some(timeout),
        Timeout::Off => None,
    };
    let inner = AttemptInner {
        handed,
        shared: shared.clone(),
        handler,
        timeout,
        claimed,
        stop: OnceLock::new(),
        stopped: Notify::new(),
        ended: AtomicBool::new(false),
        over: AtomicBool::new(false),
        task: OnceLock::new(),
        aborted: AtomicBool::new(false),
        report: Mutex::default(),
        has_reported: AtomicBool::new(false),
        completed_elsewhere: AtomicBool::new(false),
        next: Mutex::default(),
        steps: Steps::default(),
        slot: Arc::downgrade(&slot),
    };
    let attempt = Attempt { cancellation: Cancellation { inner: Arc::new(inner) } };
    Some(Begun { attempt, slot })
}

/// Starts an attempt that the worker has taken on, on a task of its own.
pub(crate) fn start(begun: Begun) {
    let attempt = begun.attempt.clone();
    let task = tokio::spawn(conduct(begun));
    let _ = attempt.inner().task.set(task.abort_handle());
    if attempt.inner().aborted.load(Ordering::SeqCst) {
        task.abort();
    }
}

/// Ends an attempt that nobody has ended, however its task ends: even if that is by a panic of our
/// own, its lease is not renewed for ever.
struct Unended(Attempt);

impl Drop for Unended {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

/// Runs an attempt until its outcome is in the hands of the settle loop.
async fn conduct(Begun { attempt, slot }: Begun) {
    // Aborting ends the task at its next await. Until it really ended it holds its slot, so that a
    // worker never runs more than it has slots for.
    let Unended(attempt) = &Unended(attempt);
    let ended = run_handler(attempt).await;
    let Some(registered) = attempt.end() else { return };
    // A handler that was told to stop may have obeyed.
    conclude(registered, attempt.cancellation().reason(), Some(ended), Some(slot)).await;
}

/// What the handler ended with; a panic is text.
type Ended = Result<Returned, String>;

async fn run_handler(attempt: &Attempt) -> Ended {
    let trace = attempt.trace();
    let span = tracing::info_span!(
        "job",
        job = %attempt.id(),
        kind = %attempt.kind(),
        queue = %attempt.queue(),
        attempt = attempt.number(),
        worker = attempt.worker(),
        trace_id = crate::trace::trace_id(trace),
        traceparent = %trace,
    );
    let (handler, layers) = (attempt.inner().handler.clone(), attempt.shared().layers());
    let next = Next::new(attempt.clone(), handler, layers);
    // Made inside the future, so that a middleware that panics before its first await is caught.
    let run = crate::trace::CURRENT.scope(attempt.clone(), async move { next.run().await });
    let mut run = pin!(run);
    poll_fn(|context| panics::poll(run.as_mut(), context)).instrument(span).await
}

/// Ends an attempt that was told to stop and has not, although it was waited for.
pub(crate) fn give_up(attempt: &Attempt) {
    let Some(registered) = attempt.end() else { return };
    attempt.abort();
    let reason = attempt.cancellation().reason();
    tokio::spawn(conclude(registered, reason, None, None));
}

/// Judges how an attempt ended and hands that to the settle loop.
async fn conclude(
    registered: worker::RegisteredAttempt,
    reason: Option<StopReason>,
    ended: Option<Ended>,
    slot: Option<Arc<Slot>>,
) {
    let worker::RegisteredAttempt(attempt) = &registered;
    let shared = attempt.shared().clone();
    let Some(judged) = judge(&attempt.inner().handler, attempt, reason, ended) else {
        shared.tally(|tally| tally.lost += 1);
        return;
    };
    let judged = attempt.unless_completed_elsewhere(judged);
    let next = attempt.take_next();
    if attempt.inner().has_reported.load(Ordering::SeqCst) {
        shared.reports_written(attempt.token()).await;
    }
    let report = attempt.take_report();
    let settlement = Settlement { next, report, ..settlement(attempt, judged) };
    let settling = Settling::new(settlement, registered, slot);
    if let Some(settling) = take_turn(settling).await {
        shared.settle(settling);
    }
}

/// Adds to a settlement what it means to the object the job is bound to, if it is bound to one.
/// Asked again when another turn of the object came first. `None` if it is given up.
pub(crate) async fn take_turn(mut settling: Settling) -> Option<Settling> {
    let worker::RegisteredAttempt(attempt) = &settling.registered;
    let Some(conclude) = attempt.inner().handler.conclude.clone() else { return Some(settling) };
    // A run returns what its object is to become: it belongs there, and not in the job's record.
    let returned = settling.settlement.output.take();
    settling.returned = returned.or(settling.returned);
    let mut failures = 0;
    loop {
        let ending = AttemptEnding {
            verdict: settling.settlement.verdict,
            output: settling.returned.as_ref(),
            error: settling.settlement.error.as_ref(),
        };
        let worker::RegisteredAttempt(attempt) = &settling.registered;
        let shared = attempt.shared();
        match shared.ask("conclude a run", conclude.turn(attempt, ending)).await {
            Ok(turn) => {
                settling.settlement.turn = turn.map(Box::new);
                return Some(settling);
            }
            Err(Error::Unknown { .. } | Error::Refused(_))
                if !attempt.has_lost_its_lease() && !shared.gives_up_after(failures + 1) =>
            {
                failures += 1;
                attempt.engine().clock().sleep(store_backoff(failures)).await;
            }
            Err(Error::Unknown { .. } | Error::Refused(_)) => {
                shared.tally(|tally| tally.lost += 1);
                return None;
            }
            Err(error) => {
                let judged = Judged {
                    outcome: Outcome::Failed(Default::default()),
                    output: None,
                    error: Some(ErrorText::new(error.to_string())),
                };
                settling.settlement = Settlement {
                    report: settling.settlement.report.clone(),
                    ..settlement(attempt, judged)
                };
                return Some(settling);
            }
        }
    }
}

/// How an attempt ended, and what there is to keep of it.
struct Judged {
    outcome: Outcome,
    output: Option<Bytes>,
    error: Option<ErrorText>,
}

/// What an end means. `None` if it counts for nothing, because the lease is lost.
fn judge(
    handler: &RegisteredHandler,
    attempt: &Attempt,
    reason: Option<StopReason>,
    ended: Option<Ended>,
) -> Option<Judged> {
    let completed = |output: Vec<u8>| Judged {
        outcome: Outcome::Completed,
        output: Some(output.into()),
        error: None,
    };
    let unless_done = |ended: Option<Ended>, outcome, error: &str| match ended {
        // The work was done before the handler heard; that is the truth, so it counts.
        Some(Ok(Ok(output))) => completed(output),
        _ => Judged { outcome, output: None, error: Some(ErrorText::new(error)) },
    };
    match reason {
        Some(StopReason::LeaseLost) => None,
        Some(StopReason::Timeout) => {
            let limit = attempt.timeout().unwrap_or_default();
            // Whatever it returned came too late: the first report wins.
            Some(Judged {
                outcome: Outcome::Failed(Default::default()),
                output: None,
                error: Some(ErrorText::new(format!("timed out after {} ms", limit.as_millis()))),
            })
        }
        Some(StopReason::Cancelled) => {
            let outcome = Outcome::Cancelled(CancelReason::Requested);
            Some(unless_done(ended, outcome, "cancelled by request"))
        }
        Some(StopReason::Shutdown) => Some(match ended {
            // What the handler decided counts; that it was cut short does not.
            Some(Ok(Err(failure))) if !failure.is_retry() => failed(handler, failure),
            ended => unless_done(ended, Outcome::Interrupted, "interrupted by shutdown"),
        }),
        None => Some(match ended? {
            Ok(Ok(output)) => completed(output),
            Ok(Err(failure)) => failed(handler, failure),
            Err(panic) => failed(handler, Failure::retry(panic)),
        }),
    }
}

fn failed(handler: &RegisteredHandler, failure: Failure) -> Judged {
    let retry_if = handler.options.retry_if.as_ref();
    // A decision that panics decides nothing.
    let decided = retry_if.map(|decide| panics::catch(|| decide(&failure)).unwrap_or(true));
    let refused = failure.is_retry() && decided == Some(false);
    let failure = if refused { failure.into_permanent() } else { failure };
    // An error may panic when it is asked what it is. It is dropped here too, for the same reason.
    let outcome = failure.outcome();
    let text = panics::catch(move || failure.text()).unwrap_or_else(ErrorText::new);
    Judged { outcome, output: None, error: Some(text) }
}

/// What an attempt is settled with when the store refuses what it returned: it failed for that
/// reason.
pub(crate) fn refused(attempt: &Attempt, report: Report, refusal: &Refusal) -> Settlement {
    tracing::warn!(job = %attempt.id(), %refusal, "the store refused the outcome");
    let judged = Judged {
        outcome: Outcome::Failed(Default::default()),
        output: None,
        error: Some(ErrorText::new(format!("the outcome was refused: {refusal}"))),
    };
    Settlement { report, ..settlement(attempt, judged) }
}

fn settlement(attempt: &Attempt, judged: Judged) -> Settlement {
    let inner = attempt.inner();
    let handed = &inner.handed;
    let retry: &Retry = handed.job.retry.as_ref().unwrap_or(&inner.handler.options.retry);
    let standing = RunCounts {
        attempt: attempt.number(),
        max_attempts: attempt.max_attempts(),
        since_first_start: match judged.outcome {
            // The store's times up to the claim, and the steady clock since: no step of a clock
            // counts.
            Outcome::Failed(_) => {
                let before = handed.lease.since.since(handed.first_started_at);
                let ran = inner.shared.engine().clock().now().steady.since(inner.claimed);
                before.saturating_add(ran)
            }
            // Only a failure is limited in time, and most attempts do not fail.
            Outcome::Completed
            | Outcome::Snoozed(_)
            | Outcome::Cancelled(_)
            | Outcome::Interrupted => Duration::ZERO,
        },
        retry,
    };
    let seed = jitter_seed(attempt.id(), attempt.number());
    let verdict: Verdict = decide(&judged.outcome, standing, seed);
    Settlement {
        job: attempt.id(),
        token: attempt.token(),
        verdict,
        output: judged.output,
        error: judged.error,
        report: Report::default(),
        next: Vec::new(),
        turn: None,
    }
}
