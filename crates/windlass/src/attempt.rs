//! One run of a job: what the handler receives, and how the run is watched over.
//!
//! [`conduct`] reads as the life of an attempt: run the handler, watch for its end, a time-out or a
//! reason to stop, judge, settle, and give the slot back when the task has really ended.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::Instrument;
use windlass_core::job::{Bytes, CancelReason, JobId, LeaseToken, NewJob, Priority, Timeout};
use windlass_core::ledger::Settlement;
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::outcome::{ErrorText, Outcome, Progress as Standing, Verdict, decide};
use windlass_core::record::{LogLine, Progress, Report};
use windlass_core::refusal::Refusal;
use windlass_core::retry::{Retry, jitter_seed};
use windlass_core::time::{Steady, Timestamp};

use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{Job, Registered, Returned, State, States};
use crate::middleware::Next;
use crate::options::Options;
use crate::panics::{self, CatchPanic};
use crate::store::HandedJob;
use crate::worker::{self, Shared, Slot};

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
#[derive(Clone, Debug)]
pub struct Cancellation(watch::Receiver<Option<StopReason>>);

impl Cancellation {
    /// Why to stop, if there is a reason.
    pub fn reason(&self) -> Option<StopReason> {
        *self.0.borrow()
    }

    /// Whether to stop. For handlers that loop without waiting.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Waits until there is a reason to stop.
    pub async fn cancelled(&self) -> StopReason {
        let mut receiver = self.0.clone();
        match receiver.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(StopReason::Shutdown),
            // The worker is gone; nobody is left to say why.
            Err(_) => StopReason::Shutdown,
        }
    }
}

/// One run of a job, as its handler sees it. Cloning is cheap.
#[derive(Clone)]
pub struct Attempt {
    inner: Arc<Inner>,
}

struct Inner {
    handed: HandedJob,
    engine: Engine,
    states: Arc<States>,
    cancellation: Cancellation,
    timeout: Option<Duration>,
    claimed: Steady,
    report: Mutex<Report>,
    has_reported: AtomicBool,
    reported: Arc<Notify>,
    next: Mutex<Vec<Arc<NewJob>>>,
    slot: Weak<Slot>,
}

impl Attempt {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.inner.handed.job.id
    }

    /// The job's kind.
    pub fn kind(&self) -> &Name {
        &self.inner.handed.job.kind
    }

    /// The job's queue.
    pub fn queue(&self) -> &Name {
        &self.inner.handed.job.queue
    }

    /// Which run this is, 1 for the first.
    pub fn number(&self) -> u32 {
        self.inner.handed.attempt
    }

    /// Total runs the job may have.
    pub fn max_attempts(&self) -> u32 {
        self.inner.handed.lease.max_attempts
    }

    /// Whether the job has run before.
    pub fn is_retry(&self) -> bool {
        self.number() > 1
    }

    /// How often a worker was lost while running this job: not 0 means that an earlier attempt
    /// may have done part of the work.
    pub fn recoveries(&self) -> u32 {
        self.inner.handed.recoveries
    }

    /// The job's priority.
    pub fn priority(&self) -> Priority {
        self.inner.handed.job.priority
    }

    /// When the store accepted the job.
    pub fn enqueued_at(&self) -> Timestamp {
        self.inner.handed.created_at
    }

    /// When this attempt began.
    pub fn started_at(&self) -> Timestamp {
        self.inner.handed.lease.since
    }

    /// How long this attempt may run in all; `None` if there is no limit.
    pub fn timeout(&self) -> Option<Duration> {
        self.inner.timeout
    }

    /// The worker that runs it.
    pub fn worker(&self) -> &str {
        &self.inner.handed.lease.worker
    }

    /// The job's label of this name.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.inner.handed.job.metadata.get(key).map(String::as_str)
    }

    /// The job's tags.
    pub fn tags(&self) -> &[Name] {
        &self.inner.handed.job.tags
    }

    /// The producer's W3C `traceparent`.
    pub fn trace(&self) -> &str {
        self.inner.handed.job.trace.as_deref().unwrap_or_default()
    }

    /// The job's payload as it was stored.
    pub fn payload(&self) -> &[u8] {
        &self.inner.handed.job.payload
    }

    /// A text that is different for every run of every job, and the same for nobody else: an
    /// idempotency key for one attempt's calls to the outside.
    pub fn fence(&self) -> String {
        format!("{}-{}", self.id(), self.token())
    }

    pub(crate) fn token(&self) -> LeaseToken {
        self.inner.handed.lease.token
    }

    /// The engine that runs this attempt, to enqueue more work with.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Keeps the slot in use for as long as the returned value lives, for work that goes on after
    /// its task was aborted.
    pub(crate) fn hold_slot(&self) -> Option<Arc<Slot>> {
        self.inner.slot.upgrade()
    }

    pub(crate) fn states(&self) -> &States {
        &self.inner.states
    }

    /// The worker's shared state of this type, if it was given one.
    pub fn state<S: Send + Sync + 'static>(&self) -> Option<State<S>> {
        self.inner.states.get().map(State)
    }

    /// Tells whether and why to stop.
    pub fn cancellation(&self) -> &Cancellation {
        &self.inner.cancellation
    }

    /// Says how far the work is: 0 to 100 percent, and in words. Shown with the job; the last one
    /// counts. Fenced by the lease, like every write of an attempt.
    pub fn progress(&self, percent: u8, note: impl Into<String>) {
        let progress = Progress { percent: percent.min(100), note: note.into() };
        self.report(|report| report.progress = Some(progress));
    }

    /// Adds a line to the job's log, of which the last hundred are kept.
    pub fn log(&self, text: impl Into<String>) {
        let at = self.inner.engine.clock().now().wall;
        let line = LogLine { at, attempt: self.number(), text: text.into() };
        self.report(|report| {
            report.lines.push(line);
            keep_last(&mut report.lines);
        });
    }

    fn report(&self, add: impl FnOnce(&mut Report)) {
        add(&mut self.inner.report.lock().unwrap_or_else(PoisonError::into_inner));
        self.inner.has_reported.store(true, Ordering::SeqCst);
        self.inner.reported.notify_one();
    }

    /// What the handler has said since this was last asked.
    pub(crate) fn take_report(&self) -> Report {
        std::mem::take(&mut self.inner.report.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes back what could not be written, to be written with what has been said since. Nobody
    /// is notified: whoever could not write it tries again by itself.
    pub(crate) fn return_report(&self, unwritten: Report) {
        let mut report = self.inner.report.lock().unwrap_or_else(PoisonError::into_inner);
        let since = std::mem::replace(&mut *report, unwritten);
        report.lines.extend(since.lines);
        keep_last(&mut report.lines);
        report.progress = since.progress.or(report.progress.take());
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
        let trace = self.trace().to_string();
        let new_job = || crate::client::new_job(&job, options);
        let mut next = crate::trace::CURRENT.sync_scope(trace, new_job)?;
        next.parent = Some(self.id());
        let id = next.id;
        self.inner.next.lock().unwrap_or_else(PoisonError::into_inner).push(next.into());
        Ok(id)
    }

    fn take_next(&self) -> Vec<Arc<NewJob>> {
        std::mem::take(&mut self.inner.next.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The jobs this one waited for, in the order in which they were named.
    pub fn dependencies(&self) -> impl Iterator<Item = JobId> + '_ {
        self.inner.handed.job.depends_on.iter().map(|dependency| dependency.on)
    }

    /// What a job this one waited for returned; `None` if it did not complete (an edge that
    /// ignores failure) or is no longer kept.
    pub async fn output_of<T: DeserializeOwned>(&self, job: JobId) -> Result<Option<T>, Error> {
        let output = self.inner.engine.find(job).await?.and_then(|record| record.output);
        let decode = |source| Error::Decode { job, source };
        output.map(|bytes| serde_json::from_slice(&bytes).map_err(decode)).transpose()
    }
}

/// The last lines a job's log keeps.
fn keep_last(lines: &mut Vec<LogLine>) {
    let surplus = lines.len().saturating_sub(limits::LOG_LINES_KEPT);
    lines.drain(..surplus);
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({} {} #{})", self.kind(), self.id(), self.number())
    }
}

/// An attempt that the worker has taken on.
pub(crate) struct Begun {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    registered: worker::Registered,
    handler: Arc<Registered>,
    attempt: Attempt,
    stop: watch::Sender<Option<StopReason>>,
}

/// Takes a claimed job on. `None` if the worker has stopped; nothing has happened then.
pub(crate) fn begin(
    shared: &Arc<Shared>,
    slot: Arc<Slot>,
    handed: HandedJob,
    claimed: Steady,
) -> Option<Begun> {
    let handler = shared.handler(&handed.job.kind)?;
    let timeout = match handed.job.timeout.unwrap_or(handler.options.timeout) {
        Timeout::After(timeout) => Some(timeout),
        Timeout::Off => None,
    };
    let (stop, stopped) = watch::channel(None);
    let inner = Inner {
        handed,
        engine: shared.engine().clone(),
        states: shared.states().clone(),
        cancellation: Cancellation(stopped),
        timeout,
        claimed,
        report: Mutex::default(),
        has_reported: AtomicBool::new(false),
        reported: shared.reported().clone(),
        next: Mutex::default(),
        slot: Arc::downgrade(&slot),
    };
    let attempt = Attempt { inner: Arc::new(inner) };
    let lease = handler.options.lease;
    let registered = shared.register(&attempt, stop.clone(), lease, claimed)?;
    Some(Begun { shared: shared.clone(), slot, registered, handler, attempt, stop })
}

/// Runs an attempt from its start to its settlement, and gives its slot back.
pub(crate) async fn conduct(begun: Begun) {
    let Begun { shared, slot, registered, handler, attempt, stop } = begun;
    let mut task = run_handler(&shared, &handler, &attempt);
    let (reason, returned) = watch_over(&shared, &attempt, &mut task, &stop).await;
    let still_running = returned.is_none();
    match judge(&handler, &attempt, reason, returned) {
        Some(ended) => settle(&shared, &handler, &attempt, ended).await,
        None => shared.tally(|tally| tally.lost += 1),
    }
    drop(registered);
    if still_running {
        // Aborting ends a task at its next await. Until it really ended it holds its slot, so that
        // a worker never runs more than it has slots for.
        let _ = task.await;
    }
    drop(slot);
}

type HandlerTask = JoinHandle<Result<Returned, String>>;

fn run_handler(shared: &Shared, handler: &Arc<Registered>, attempt: &Attempt) -> HandlerTask {
    let trace = attempt.trace().to_string();
    let span = tracing::info_span!(
        "job",
        job = %attempt.id(),
        kind = %attempt.kind(),
        queue = %attempt.queue(),
        attempt = attempt.number(),
        worker = attempt.worker(),
        trace_id = crate::trace::trace_id(&trace),
        traceparent = %trace,
    );
    let next = Next::new(attempt.clone(), handler.clone(), shared.layers());
    // Made inside the task, so that a middleware that panics before its first await is caught too.
    let run = crate::trace::CURRENT.scope(trace, async move { next.run().await });
    tokio::spawn(CatchPanic(Box::pin(run)).instrument(span))
}

/// What the handler's task ended with; a panic is text.
type Ended = Result<Returned, String>;

/// Waits for the handler to end, or for a reason to stop it and then, for a while, for it to obey.
async fn watch_over(
    shared: &Shared,
    attempt: &Attempt,
    task: &mut HandlerTask,
    stop: &watch::Sender<Option<StopReason>>,
) -> (Option<StopReason>, Option<Ended>) {
    let clock = shared.engine().clock().clone();
    let time_is_up = async {
        match attempt.timeout() {
            Some(timeout) => clock.sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let reason = tokio::select! {
        biased;
        // A handler that was told to stop may have obeyed before we look.
        ended = &mut *task => return (attempt.cancellation().reason(), Some(flatten(ended))),
        reason = attempt.cancellation().cancelled() => reason,
        () = time_is_up => {
            stop.send_if_modified(|reason| reason.replace(StopReason::Timeout).is_none());
            StopReason::Timeout
        }
    };
    let patience = clock.sleep(shared.cancel_grace());
    tokio::select! {
        biased;
        ended = &mut *task => (Some(reason), Some(flatten(ended))),
        () = patience => {
            task.abort();
            (Some(reason), None)
        }
        () = shared.forced() => {
            task.abort();
            (Some(reason), None)
        }
    }
}

fn flatten(ended: Result<Ended, tokio::task::JoinError>) -> Ended {
    ended.unwrap_or_else(|error| Err(format!("its task was aborted: {error}")))
}

/// How an attempt ended, and what there is to keep of it.
struct Judged {
    outcome: Outcome,
    output: Option<Bytes>,
    error: Option<ErrorText>,
}

/// What an end means. `None` if it counts for nothing, because the lease is lost.
fn judge(
    handler: &Registered,
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

fn failed(handler: &Registered, failure: Failure) -> Judged {
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

/// Settles an attempt. If the store refuses what it returned, settles it as failed for that reason.
async fn settle(shared: &Shared, handler: &Registered, attempt: &Attempt, judged: Judged) {
    let next = attempt.take_next();
    if attempt.inner.has_reported.load(Ordering::SeqCst) {
        shared.reports_written().await;
    }
    let report = attempt.take_report();
    let settlement = settlement(shared, handler, attempt, judged);
    let settlement = Settlement { next, report: report.clone(), ..settlement };
    let verdict = settlement.verdict;
    match shared.settle(settlement).await {
        Ok(()) => shared.count(verdict),
        Err(Refusal::LeaseLost { .. }) => shared.tally(|tally| tally.lost += 1),
        Err(refusal) => {
            tracing::warn!(job = %attempt.id(), %refusal, "the store refused the outcome");
            let judged = Judged {
                outcome: Outcome::Failed(Default::default()),
                output: None,
                error: Some(ErrorText::new(format!("the outcome was refused: {refusal}"))),
            };
            let settlement = self::settlement(shared, handler, attempt, judged);
            let settlement = Settlement { report, ..settlement };
            let verdict = settlement.verdict;
            match shared.settle(settlement).await {
                Ok(()) => shared.count(verdict),
                Err(_) => shared.tally(|tally| tally.lost += 1),
            }
        }
    }
}

fn settlement(
    shared: &Shared,
    handler: &Registered,
    attempt: &Attempt,
    judged: Judged,
) -> Settlement {
    let handed = &attempt.inner.handed;
    let retry: &Retry = handed.job.retry.as_ref().unwrap_or(&handler.options.retry);
    // The store's times up to the claim, and the steady clock since: no step of a clock counts.
    let before = handed.lease.since.since(handed.first_started_at);
    let ran = shared.engine().clock().now().steady.since(attempt.inner.claimed);
    let standing = Standing {
        attempt: attempt.number(),
        max_attempts: attempt.max_attempts(),
        since_first_start: before.saturating_add(ran),
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
    }
}
