//! The Primitive contract: durable objects, each with a state, one alarm, and code of yours.
//!
//! A primitive says what its objects do with commands, alarms and outcomes, in pure methods that
//! change the state and ask a [`Turn`] for effects. Everything asked for in one turn (state, alarm,
//! runs, jobs, events) is one commit, so nothing can come between. The code of the user runs as a
//! job bound to its object: leases, retries, dead letters, recovery and events are those of jobs,
//! and the runs of one object never overlap.
//!
//! To add one, implement [`Primitive`] and give it to [`WorkerBuilder::primitive`]; commands go
//! through [`Engine::objects`]. `docs/primitives.md` walks through a whole one.
//!
//! [`WorkerBuilder::primitive`]: crate::WorkerBuilder::primitive
//! [`Engine::objects`]: crate::Engine::objects

mod continuous;
mod debounce;
mod definition;
mod objects;
mod runtime;
mod schedules;
mod task;
mod throttle;
pub(crate) mod worker_pool;

use std::future::Future;
use std::time::Duration;

pub use continuous::{
    Continuous, ContinuousCommand, ContinuousObjects, ContinuousReply, ContinuousState,
    ContinuousStatus, Remembered, Standing, Started, Tick, Ticked, Triggered,
};
pub use debounce::{
    Added, Debounce, DebounceClient, DebouncePhase, DebounceStatus, Flush, FlushReason,
};
pub(crate) use objects::TurnLocks;
pub use objects::{Commanded, Objects};
pub use runtime::RunContext;
pub(crate) use runtime::{AttemptEnding, Conclude, handlers};
pub(crate) use schedules::register as register_schedules;
pub use schedules::{LastRun, ScheduleView, Schedules, SetSchedule};
use serde::Serialize;
use serde::de::DeserializeOwned;
pub use task::{
    FailedRun, Sent, StateMachine, Task, TaskClient, TaskContext, TaskStatus, TaskTurn,
};
pub use throttle::{Offered, Throttle, ThrottleClient, ThrottleStatus, Throttled};
use windlass_core::job::Start;
use windlass_core::limits::{self, DELAY_MAX};
use windlass_core::object::{Address, ObjectMeta, ObjectStatus, Purge};
use windlass_core::time::Timestamp;
pub use worker_pool::{
    Cancelled, DeadEvent, EmptyLane, EventId, LaneState, LaneStatus, Pool, PoolContext, PoolEvent,
    PoolStatus, Queued, WorkerPool,
};

use crate::error::Error;
use crate::handler::{Job, KindOptions};
use crate::options::Options;

/// What the primitives of this crate tell, besides what is told of every object.
const BUILT_IN: [(&str, &[&str]); 5] = [
    ("continuous", &["started", "stopped", "terminated", "triggered", "executed"]),
    ("debounce", &["started", "flushed", "cleared"]),
    ("schedule", &["set", "fired", "paused", "resumed", "removed"]),
    ("task", &["terminated"]),
    ("throttle", &["started"]),
];

/// What may be told of an object of any kind.
const TOLD_OF_ALL: [&str; 2] = ["failed", "recovered"];

/// The topics of this crate's primitives.
pub(crate) fn built_in_topics() -> impl Iterator<Item = String> {
    BUILT_IN.into_iter().flat_map(|(kind, own)| {
        own.iter().chain(&TOLD_OF_ALL).map(move |what| format!("{kind}.{what}"))
    })
}

/// Whether this is the kind of one of this crate's primitives.
pub(crate) fn is_built_in(kind: &str) -> bool {
    BUILT_IN.into_iter().any(|(built_in, _)| built_in == kind)
}

/// Whether one of this crate's primitives may tell this.
fn may_tell(kind: &str, what: &str) -> bool {
    let topic = format!("{kind}.{what}");
    built_in_topics().any(|known| known == topic)
}

/// What a kind of durable object does. See the module documentation.
///
/// The methods that take a [`Turn`] must be pure: they may be called again for the same event, when
/// another turn of the object came first. An error or a panic in one leaves the object as it was.
pub trait Primitive: Send + Sync + Sized + 'static {
    /// The first part of its objects' addresses and of its topics, such as `debounce`.
    ///
    /// Refused are the first words of the engine's own topics (`job`, `jobs`, `Job`, `queue`, …),
    /// the kinds of this crate's primitives, and more than 118 bytes.
    const KIND: &'static str;

    /// Whether it is one of this crate's, whose kinds nobody else may use.
    #[doc(hidden)]
    const BUILT_IN: bool = false;

    /// Whether the end of a run makes a turn although its object was purged since: of the object
    /// that has its address now, or of a new one. For primitives whose objects are forgotten while
    /// there is nothing to remember; false means that such an end changes and tells nothing.
    const OUTLIVES_OBJECT: bool = false;

    /// What an object remembers. Stored as JSON with every turn, at most 1 MiB; what can no longer
    /// be read parks the object, with the reason, and is not deleted.
    type State: Serialize + DeserializeOwned + Default + Send + Sync + 'static;

    /// What can be asked of an object.
    type Command: Send + Sync;

    /// What it answers.
    type Reply: Send;

    /// What a run of the user's code is given. Stored with its job.
    type Run: Serialize + DeserializeOwned + Send + Sync + 'static;

    /// What a run that succeeded returns.
    type Output: Serialize + DeserializeOwned + Send + Sync + 'static;

    /// The second part of the addresses: which definition this is, such as `webhooks`. Renaming it
    /// strands its objects.
    fn name(&self) -> &str;

    /// How runs are run: retries, time-out, concurrency, rate.
    fn options(&self) -> KindOptions {
        KindOptions::default()
    }

    /// What is wrong with the definition, if anything; asked before it is used.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Someone asks something of an object, which may not have been there before. An error changes
    /// nothing.
    fn on_command(
        &self,
        state: &mut Self::State,
        command: &Self::Command,
        turn: &mut Turn<Self>,
    ) -> Result<Self::Reply, Error>;

    /// The alarm that [`Turn::alarm`] set has gone off.
    fn on_alarm(&self, state: &mut Self::State, turn: &mut Turn<Self>) {
        let _ = (state, turn);
    }

    /// The user's code. It sees the state as it was when the run began; what it returns is taken
    /// over by [`Primitive::on_outcome`], in the commit that ends the run.
    fn run(
        &self,
        run: Self::Run,
        context: RunContext<Self>,
    ) -> impl Future<Output = Result<Self::Output, crate::Failure>> + Send;

    /// A run has ended for good: it will not be tried again by itself.
    fn on_outcome(
        &self,
        state: &mut Self::State,
        run: Self::Run,
        outcome: RunOutcome<Self::Output>,
        turn: &mut Turn<Self>,
    ) {
        let _ = (state, run, outcome, turn);
    }
}

/// How a run ended for good.
#[derive(Clone, Debug)]
pub enum RunOutcome<O> {
    /// It succeeded.
    Completed(O),
    /// It failed as often as it may; its job is among the dead letters and can be replayed.
    Failed {
        /// The last error.
        error: String,
        /// How often it ran.
        attempts: u32,
    },
    /// It was called off.
    Cancelled,
}

/// One change of one object: what it is at, and what is asked for. All of it is one commit.
pub struct Turn<P: Primitive> {
    now: Timestamp,
    address: Address,
    meta: Option<ObjectMeta>,
    alarm_at: Option<Timestamp>,
    open_jobs: u64,
    asked: TurnRequests<P>,
}

/// What a turn asks for.
struct TurnRequests<P: Primitive> {
    alarm: AlarmRequest<P>,
    runs: Vec<(Start, P::Run)>,
    jobs: Vec<windlass_core::job::NewJob>,
    status: Option<(ObjectStatus, Option<String>)>,
    news: Vec<(String, String)>,
    purge: Purge,
}

enum AlarmRequest<P: Primitive> {
    Keep,
    Cancel,
    Move(Start),
    /// Call [`Primitive::on_alarm`].
    Wake(Start),
    /// Run the user's code.
    Run(Start, P::Run),
}

impl<P: Primitive> Turn<P> {
    /// The time, by the clock of the engine.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The object's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The object's key.
    pub fn key(&self) -> &str {
        self.address.key()
    }

    /// What is known of the object; `None` if this is its first turn.
    pub fn object(&self) -> Option<&ObjectMeta> {
        self.meta.as_ref()
    }

    /// Where the object stands; [`ObjectStatus::Active`] if this is its first turn.
    pub fn status(&self) -> ObjectStatus {
        self.meta.as_ref().map_or(ObjectStatus::Active, |meta| meta.status)
    }

    /// An error unless the object is there, for verbs that make none.
    pub fn require(&self) -> Result<ObjectStatus, Error> {
        match &self.meta {
            Some(meta) => Ok(meta.status),
            None => Err(objects::unknown(&self.address)),
        }
    }

    /// An error unless the object is there and active.
    pub fn require_active(&self, operation: &'static str) -> Result<(), Error> {
        match self.require()? {
            ObjectStatus::Active => Ok(()),
            status @ (ObjectStatus::Stopped | ObjectStatus::Failed) => {
                let object = self.address.clone();
                Err(Error::WrongStatus { object, status, operation })
            }
        }
    }

    /// When its alarm goes off, as of before this turn.
    pub fn alarm_at(&self) -> Option<Timestamp> {
        self.alarm_at
    }

    /// How many of its jobs waited or ran before this turn: its alarm, its runs, and the one that
    /// ends with this turn, if one does.
    pub fn open_jobs(&self) -> u64 {
        self.open_jobs
    }

    /// Sets the alarm: [`Primitive::on_alarm`] is called then. An object has one alarm; a new one
    /// takes the place of the old. More than [`limits::DELAY_MAX`] ahead, a century, a command is
    /// refused; in other turns the alarm goes off after that.
    pub fn alarm(&mut self, start: Start) {
        self.asked.alarm = AlarmRequest::Wake(start);
    }

    /// Like [`Turn::alarm`], so much later.
    pub fn alarm_in(&mut self, delay: Duration) {
        self.alarm(Start::After(delay));
    }

    /// Sets the alarm to run the user's code, without a turn in between.
    pub fn alarm_to_run(&mut self, start: Start, run: P::Run) {
        self.asked.alarm = AlarmRequest::Run(start, run);
    }

    /// Moves the alarm that is set, whatever it does, if it waits: for its time, or to be tried
    /// again after a failure. One that runs is left alone.
    pub fn move_alarm(&mut self, start: Start) {
        self.asked.alarm = AlarmRequest::Move(start);
    }

    /// There is to be no alarm.
    pub fn cancel_alarm(&mut self) {
        self.asked.alarm = AlarmRequest::Cancel;
    }

    /// Runs the user's code as soon as it may: after the runs that were asked for before.
    pub fn run(&mut self, run: P::Run) {
        self.asked.runs.push((Start::Now, run));
    }

    /// Whether this turn asks for a run.
    pub(crate) fn asks_for_runs(&self) -> bool {
        !self.asked.runs.is_empty()
    }

    /// Enqueues a job of another kind in the same commit. Refuses what no store would take.
    pub fn enqueue<J: Job>(&mut self, job: &J, options: Options) -> Result<crate::JobId, Error> {
        let job = crate::client::new_job(job, options)?;
        check_job(&job, self.now)?;
        let id = job.id;
        self.asked.jobs.push(job);
        Ok(id)
    }

    /// Enqueues a job that is already put together.
    pub(crate) fn enqueue_new(&mut self, job: windlass_core::job::NewJob) {
        self.asked.jobs.push(job);
    }

    /// Tells something under the topic `{kind}.{what}`, with a detail that is written as JSON. A
    /// detail that cannot be written, or is longer than an event holds (10,000 bytes), is replaced
    /// by an object that says so: `{"omitted": "…"}`.
    pub fn tell(&mut self, what: &str, detail: impl Serialize) {
        let omitted = |why: String| serde_json::json!({ "omitted": why }).to_string();
        let detail = match serde_json::to_string(&detail) {
            Ok(detail) if detail.len() <= limits::ERROR_BYTES => detail,
            Ok(detail) => omitted(format!("{} bytes are too many", detail.len())),
            Err(error) => omitted(error.to_string()),
        };
        debug_assert!(!P::BUILT_IN || may_tell(P::KIND, what), "{}.{what} is in no list", P::KIND);
        self.asked.news.push((what.to_string(), detail));
    }

    /// The object reacts to commands and alarms, whatever it was before.
    pub fn activate(&mut self) {
        self.asked.status = Some((ObjectStatus::Active, None));
    }

    /// The object is stopped: its state is kept.
    pub fn stop(&mut self, reason: Option<String>) {
        self.asked.status = Some((ObjectStatus::Stopped, reason));
    }

    /// The object cannot go on by itself.
    pub fn fail(&mut self, reason: impl Into<String>) {
        self.asked.status = Some((ObjectStatus::Failed, Some(reason.into())));
    }

    /// The object goes in this commit, with its alarm and everything of it that waits. What runs is
    /// told to stop.
    pub fn purge(&mut self) {
        self.asked.purge = Purge::Now;
    }

    /// The object goes so much later, unless [`Turn::keep`] takes that back; at most
    /// [`limits::DELAY_MAX`] later, like an alarm.
    pub fn purge_after(&mut self, delay: Duration) {
        self.asked.purge = Purge::After(delay);
    }

    /// The object no longer goes by itself.
    pub fn keep(&mut self) {
        self.asked.purge = Purge::Never;
    }

    /// Brings times that are too far away within bounds. A command with such a time is refused; but
    /// a turn that follows from a job has no caller to refuse, and without it the rest of what the
    /// turn does would be lost.
    pub(crate) fn stay_within_bounds(&mut self) {
        let (now, soon) = (self.now, DELAY_MAX - Duration::from_secs(86_400));
        match &mut self.asked.alarm {
            AlarmRequest::Keep | AlarmRequest::Cancel => {}
            AlarmRequest::Move(start) | AlarmRequest::Wake(start) | AlarmRequest::Run(start, _) => {
                let is_near = match start {
                    Start::Now => true,
                    Start::After(delay) => *delay <= DELAY_MAX,
                    // The clock of the store may be behind.
                    Start::At(at) => at.since(now) <= soon,
                };
                if !is_near {
                    *start = Start::After(DELAY_MAX);
                }
            }
        }
        if let Purge::After(delay) = &mut self.asked.purge {
            *delay = (*delay).min(DELAY_MAX);
        }
    }
}

/// Refuses a job that no store would take, whatever else is in it. Only a store knows how large a
/// payload may be.
fn check_job(job: &windlass_core::job::NewJob, now: Timestamp) -> Result<(), Error> {
    let limits = limits::Limits { payload_bytes: usize::MAX, ..limits::Limits::default() };
    Ok(job.check(&limits, now)?)
}
