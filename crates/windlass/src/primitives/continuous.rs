//! Continuous: a loop per key that remembers a state, and runs at an interval or by a cron pattern.
//!
//! The alarm of the object is the next run itself. What a run leaves behind (the state, the count,
//! the next run) is one commit with its end, so there is no moment between a run and its successor
//! in which a crash could put the loop to sleep. The times are computed from the start and never
//! counted up: a late run does not move the next one.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::job::Start;
use windlass_core::limits;
use windlass_core::object::{ObjectStatus, ObjectView};
use windlass_core::time::Timestamp;

use super::definition::{self, Code, Named, definition_setters};
use super::{Objects, Primitive, RunContext, RunOutcome, Turn};
use crate::attempt::Attempt;
use crate::clock::timestamp;
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::KindOptions;
use crate::schedule::{GRACE, MissedRuns, RUNS_AT_ONCE, Schedule};

/// What a state must be able to do: be written as JSON, be read back, and move between threads.
///
/// Implemented for every type that can.
pub trait Remembered: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<S: Serialize + DeserializeOwned + Send + Sync + 'static> Remembered for S {}

/// A loop: which code runs, how often, and on what terms. One definition has any number of
/// objects, told apart by a key. Cloning is cheap.
///
/// ```
/// # use std::time::Duration;
/// # use windlass::primitives::Continuous;
/// # use windlass::{InvalidSchedule, Schedule};
/// # fn main() -> Result<(), InvalidSchedule> {
/// let every = Schedule::every(Duration::from_secs(1_800))?;
/// let refresher = Continuous::new("token-refresher", every, async |mut tick| {
///     let refreshed: u64 = tick.state;
///     tick.state = refreshed + 1; // kept if this returns `Ok`, and only then
///     Ok(tick)
/// });
/// # drop(refresher);
/// # Ok(()) }
/// ```
pub struct Continuous<S> {
    named: Named,
    schedule: Schedule,
    code: Code<Tick<S>, Tick<S>>,
    start_immediately: bool,
    missed: MissedRuns,
    purge_after: Option<Duration>,
}

impl<S> Clone for Continuous<S> {
    fn clone(&self) -> Self {
        Self {
            named: self.named.clone(),
            schedule: self.schedule.clone(),
            code: self.code.clone(),
            start_immediately: self.start_immediately,
            missed: self.missed,
            purge_after: self.purge_after,
        }
    }
}

impl<S> fmt::Debug for Continuous<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Continuous({}, {})", self.named.name(), self.schedule)
    }
}

impl<S: Remembered> Continuous<S> {
    /// A loop that runs `code` by `schedule`. An interval counts from the start of each object,
    /// unless the schedule has a start of its own.
    ///
    /// The code is given the tick and returns it: what the tick then carries is kept. On an error
    /// nothing is: the run is tried again, and when that is over, its job is among the dead letters
    /// and the loop goes on at its next time with the state as it was.
    ///
    /// Renaming a definition strands its objects; their names are checked when a worker is started
    /// or an object is addressed.
    pub fn new<F, Fut>(name: impl Into<Arc<str>>, schedule: Schedule, code: F) -> Self
    where
        F: Fn(Tick<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Tick<S>, Failure>> + Send + 'static,
    {
        Self {
            named: Named::new(name),
            schedule,
            code: definition::code(code),
            start_immediately: true,
            missed: MissedRuns::default(),
            purge_after: None,
        }
    }

    /// Whether an object runs when it is started, and not only when its time first comes; it does
    /// by default.
    pub fn start_immediately(mut self, start_immediately: bool) -> Self {
        self.start_immediately = start_immediately;
        self
    }

    /// What becomes of runs whose time passed while nobody could run them, because no worker was
    /// there or the run before took too long; [`MissedRuns::RunOnce`] by default.
    pub fn missed_runs(mut self, missed: MissedRuns) -> Self {
        self.missed = missed;
        self
    }

    definition_setters!(options);

    /// Keeps a terminated object for so long, stopped, before it is purged. Without it, it is
    /// purged at once.
    pub fn purge_after(mut self, delay: Duration) -> Self {
        self.purge_after = Some(delay);
        self
    }
}

/// One run of a loop: the state to change, and what is to come next.
pub struct Tick<S> {
    /// What the object remembers. Changes are kept if the run succeeds, in the commit that ends it.
    pub state: S,
    attempt: Attempt,
    key: String,
    run_count: u64,
    planned_at: Timestamp,
    next: Option<NextRun>,
    end: Option<End>,
}

impl<S> Tick<S> {
    /// The object's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Which run of the object this is: 1 for the first, and one more for every run that succeeded.
    pub fn run_count(&self) -> u64 {
        self.run_count
    }

    /// The time this run stands for: when it was due, or when it was triggered.
    pub fn planned_at(&self) -> Timestamp {
        self.planned_at
    }

    /// Which attempt of the run this is, 1 for the first.
    pub fn attempt_number(&self) -> u32 {
        self.attempt.number()
    }

    /// Whether an earlier attempt of this run has failed, or was lost in a crash.
    pub fn is_retry(&self) -> bool {
        self.attempt.is_retry()
    }

    /// How often a worker was lost during this run: not 0 means that it resumes after a crash, and
    /// that an earlier attempt may have done part of the work.
    pub fn recoveries(&self) -> u32 {
        self.attempt.recoveries()
    }

    /// The attempt: steps, progress, whether to stop, the worker's states, the engine.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Replaces the state.
    pub fn set_state(&mut self, state: S) {
        self.state = state;
    }

    /// The next run is so long after this one has ended, a century at most, and not when the
    /// schedule says. Later ones are as planned.
    pub fn next_in(&mut self, delay: Duration) {
        self.next = Some(NextRun::In(delay));
    }

    /// The next run is at this time; one that has passed means at once, and none is more than a
    /// century ahead.
    pub fn next_at(&mut self, time: SystemTime) {
        self.next = Some(NextRun::At(timestamp(time).as_micros()));
    }

    /// After this run the object is stopped, its state kept.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.end = Some(End::Stop(reason.into()));
    }

    /// After this run the object is no more.
    pub fn terminate(&mut self, reason: impl Into<String>) {
        self.end = Some(End::Terminate(reason.into()));
    }
}

impl<S> fmt::Debug for Tick<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tick({} #{})", self.key, self.run_count)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum NextRun {
    In(Duration),
    /// In microseconds since 1970.
    At(i64),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum End {
    Stop(String),
    Terminate(String),
}

/// What an object of a [`Continuous`] keeps: your state, and where the loop stands.
#[derive(Debug, Serialize, Deserialize)]
pub struct ContinuousState<S> {
    /// `None` only before the first start.
    state: Option<S>,
    run_count: u64,
    /// When it was started, in microseconds since 1970: what an interval is counted from.
    started_us: i64,
    /// What the next run, or the one under way, was planned for.
    planned_us: i64,
    /// It is to run however late it is.
    #[serde(default)]
    triggered: bool,
}

impl<S> Default for ContinuousState<S> {
    fn default() -> Self {
        Self { state: None, run_count: 0, started_us: 0, planned_us: 0, triggered: false }
    }
}

/// What a run of a [`Continuous`] hands over when it succeeds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ticked<S> {
    state: S,
    stands_for_us: i64,
    next: Option<NextRun>,
    end: Option<End>,
}

/// What can be asked of a loop.
#[derive(Debug)]
pub enum ContinuousCommand<S> {
    /// Begin, with this state if it is new.
    Start(S),
    /// Rest, and keep the state.
    Stop(Option<String>),
    /// Be no more.
    Terminate(Option<String>),
    /// Run now.
    Trigger,
}

/// What a loop answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContinuousReply {
    /// It was started, or had been.
    Started(Started),
    /// It runs now, or did already.
    Triggered(Triggered),
    /// It is done.
    Done,
}

/// What became of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// There was no such object before. If not, its state is the one it had.
    pub created: bool,
    /// It was stopped, or had failed, and is active again.
    pub resumed: bool,
}

/// What became of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Triggered {
    /// The next run begins as soon as a worker is free; one that waited to be tried again does so.
    Now,
    /// A run is under way; there is no second one.
    AlreadyRunning,
}

/// What to do with a run whose time has come, possibly long ago.
enum Begin {
    /// Run, and stand for this time.
    Run(Timestamp),
    /// It was missed and is left out; the next one is then.
    Wait(Timestamp),
}

impl<S: Remembered> Continuous<S> {
    fn rule(&self, state: &ContinuousState<S>) -> Schedule {
        self.schedule.counted_from(Timestamp::from_micros(state.started_us))
    }

    fn begin(&self, state: &ContinuousState<S>, now: Timestamp, must_run: bool) -> Begin {
        let planned = Timestamp::from_micros(state.planned_us);
        if now < planned {
            return Begin::Run(now);
        }
        let due = self.rule(state).due(planned, now, self.missed, GRACE);
        match self.missed {
            MissedRuns::RunOnce => Begin::Run(due.runs.last().copied().unwrap_or(planned)),
            MissedRuns::CatchUp { at_most } => match due.runs.first() {
                // So many have been missed that this one is left out.
                Some(first) if due.runs.len() >= (at_most as usize).clamp(1, RUNS_AT_ONCE) => {
                    Begin::Run(*first)
                }
                Some(_) | None => Begin::Run(planned),
            },
            MissedRuns::Skip => match (due.runs.first(), due.next) {
                (Some(latest), _) => Begin::Run(*latest),
                (None, Some(next)) if !must_run && now.since(planned) > GRACE => Begin::Wait(next),
                (None, _) => Begin::Run(planned),
            },
        }
    }

    /// Sets the alarm for the first run after everything up to `dealt` was dealt with.
    fn plan(&self, state: &mut ContinuousState<S>, dealt: Timestamp, turn: &mut Turn<Self>) {
        let due = self.rule(state).due(dealt, turn.now(), self.missed, GRACE);
        match due.runs.first().copied().or(due.next) {
            Some(next) => self.run_at(state, next, turn),
            None => self.stop_at(Some("its schedule has no more runs".to_string()), turn),
        }
    }

    fn run_at(&self, state: &mut ContinuousState<S>, at: Timestamp, turn: &mut Turn<Self>) {
        state.planned_us = at.as_micros();
        turn.alarm_to_run(Start::At(at), ());
    }

    fn start(&self, state: &mut ContinuousState<S>, initial: S, turn: &mut Turn<Self>) -> Started {
        let created = turn.object().is_none();
        if !created && turn.status() == ObjectStatus::Active {
            return Started { created, resumed: false };
        }
        let now = turn.now();
        if state.state.is_none() {
            state.state = Some(initial);
        }
        state.started_us = now.as_micros();
        state.triggered = false;
        turn.activate();
        turn.keep();
        if self.start_immediately {
            self.run_at(state, now, turn);
        } else {
            self.plan(state, now, turn);
        }
        turn.tell("started", serde_json::json!({ "key": turn.key(), "created": created }));
        Started { created, resumed: !created }
    }

    fn stop_at(&self, reason: Option<String>, turn: &mut Turn<Self>) {
        turn.cancel_alarm();
        turn.tell("stopped", serde_json::json!({ "key": turn.key(), "reason": reason }));
        turn.stop(reason);
    }

    fn terminate(&self, reason: Option<String>, turn: &mut Turn<Self>) {
        turn.cancel_alarm();
        turn.tell("terminated", serde_json::json!({ "key": turn.key(), "reason": reason }));
        match self.purge_after {
            None => turn.purge(),
            Some(delay) => {
                turn.stop(Some(reason.unwrap_or_else(|| "terminated".to_string())));
                turn.purge_after(delay);
            }
        }
    }

    /// A run that succeeded: its state, its count and its successor.
    fn take_over(&self, state: &mut ContinuousState<S>, ticked: Ticked<S>, turn: &mut Turn<Self>) {
        state.state = Some(ticked.state);
        state.run_count += 1;
        let goes_on = go_on(turn);
        match (ticked.end, ticked.next) {
            (Some(End::Terminate(reason)), _) => self.terminate(Some(reason), turn),
            (Some(End::Stop(reason)), _) => self.stop_at(Some(reason), turn),
            (None, _) if !goes_on => {}
            (None, Some(NextRun::In(delay))) => self.run_at(state, turn.now() + delay, turn),
            (None, Some(NextRun::At(at))) => self.run_at(state, Timestamp::from_micros(at), turn),
            (None, None) => self.plan(state, Timestamp::from_micros(ticked.stands_for_us), turn),
        }
        let executed = serde_json::json!({ "key": turn.key(), "run": state.run_count });
        turn.tell("executed", executed);
    }
}

/// Whether the run that ended is to have a successor: the object is not at rest, and no other run
/// of it waits. There is one if the run was replayed, or if the object was stopped and started
/// while it ran.
fn go_on<S: Remembered>(turn: &Turn<Continuous<S>>) -> bool {
    turn.status() == ObjectStatus::Active && turn.alarm_at().is_none()
}

impl<S: Remembered> Primitive for Continuous<S> {
    const KIND: &'static str = "continuous";
    const BUILT_IN: bool = true;
    type State = ContinuousState<S>;
    type Command = ContinuousCommand<S>;
    type Reply = ContinuousReply;
    /// The alarm is the same job wherever it is moved; what it stands for is in the state.
    type Run = ();
    type Output = Ticked<S>;

    fn name(&self) -> &str {
        self.named.name()
    }

    fn options(&self) -> KindOptions {
        self.named.options()
    }

    fn check(&self) -> Result<(), Error> {
        match self.purge_after {
            Some(delay) if delay > limits::DELAY_MAX => {
                let (setting, allowed) = ("purge_after", "it must be at most a century");
                Err(Error::InvalidSetting { setting, got: format!("{delay:?}"), allowed })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn on_command(
        &self,
        state: &mut ContinuousState<S>,
        command: &ContinuousCommand<S>,
        turn: &mut Turn<Self>,
    ) -> Result<ContinuousReply, Error> {
        match command {
            ContinuousCommand::Start(initial) => {
                let initial = copy(initial)?;
                Ok(ContinuousReply::Started(self.start(state, initial, turn)))
            }
            ContinuousCommand::Stop(reason) => {
                turn.require_active("stop")?;
                self.stop_at(reason.clone(), turn);
                Ok(ContinuousReply::Done)
            }
            ContinuousCommand::Terminate(reason) => {
                turn.require()?;
                self.terminate(reason.clone(), turn);
                Ok(ContinuousReply::Done)
            }
            ContinuousCommand::Trigger => {
                turn.require_active("trigger")?;
                if turn.alarm_at().is_none() {
                    return Ok(ContinuousReply::Triggered(Triggered::AlreadyRunning));
                }
                state.triggered = true;
                turn.move_alarm(Start::Now);
                turn.tell("triggered", serde_json::json!({ "key": turn.key() }));
                Ok(ContinuousReply::Triggered(Triggered::Now))
            }
        }
    }

    async fn run(&self, (): (), context: RunContext<Self>) -> Result<Ticked<S>, Failure> {
        let attempt = context.attempt().clone();
        let key = context.key().to_string();
        let state = context.into_state();
        let now = attempt.store_time();
        let must_run = state.triggered || attempt.is_retry();
        let planned_at = match self.begin(&state, now, must_run) {
            Begin::Run(planned_at) => planned_at,
            Begin::Wait(until) => return Err(Failure::snooze(until.since(now))),
        };
        let run_count = state.run_count + 1;
        let state = state.state.ok_or_else(|| Failure::cancel("the object is no more"))?;
        let tick = Tick { state, attempt, key, run_count, planned_at, next: None, end: None };
        let tick = (self.code)(tick).await?;
        let stands_for_us = planned_at.as_micros();
        Ok(Ticked { state: tick.state, stands_for_us, next: tick.next, end: tick.end })
    }

    fn on_outcome(
        &self,
        state: &mut ContinuousState<S>,
        (): (),
        outcome: RunOutcome<Ticked<S>>,
        turn: &mut Turn<Self>,
    ) {
        state.triggered = false;
        match outcome {
            RunOutcome::Completed(ticked) => self.take_over(state, ticked, turn),
            RunOutcome::Failed { .. } | RunOutcome::Cancelled if go_on(turn) => {
                let dealt = match (self.missed, self.begin(state, turn.now(), true)) {
                    (MissedRuns::CatchUp { .. }, Begin::Run(planned)) => planned,
                    // What fails is not made up for: the next run is at its own time.
                    _ => turn.now(),
                };
                self.plan(state, dealt, turn);
            }
            RunOutcome::Failed { .. } | RunOutcome::Cancelled => {}
        }
    }
}

/// A state of its own: a turn may have to be made more than once.
fn copy<S: Remembered>(state: &S) -> Result<S, Error> {
    let invalid = |error: serde_json::Error| Error::Validation {
        what: "the initial state".to_string(),
        issues: error.to_string(),
    };
    serde_json::from_value(serde_json::to_value(state).map_err(invalid)?).map_err(invalid)
}

impl Engine {
    /// The objects of a loop: to start, stop, trigger and look at.
    pub fn continuous<'a, S: Remembered>(
        &'a self,
        definition: &'a Continuous<S>,
    ) -> ContinuousObjects<'a, S> {
        ContinuousObjects { objects: self.objects(definition) }
    }
}

/// The objects of one [`Continuous`]. When a verb has returned, what it did is durable.
pub struct ContinuousObjects<'a, S: Remembered> {
    objects: Objects<'a, Continuous<S>>,
}

impl<S: Remembered> ContinuousObjects<'_, S> {
    /// Starts the object with this key. One that is active stays as it is, with its state and its
    /// next run. One that was stopped or has failed goes on with the state it has; its interval
    /// counts from now.
    ///
    /// Refuses a state that cannot be written as JSON and read back, with nothing stored. If the
    /// answer is lost, call it again.
    pub async fn start(&self, key: &str, state: S) -> Result<Started, Error> {
        // A program starts its loops whenever it starts; most of the time there is nothing to do.
        if let Some(view) = self.objects.view(key).await?
            && view.record.meta.status == ObjectStatus::Active
        {
            return Ok(Started { created: false, resumed: false });
        }
        match self.objects.command(key, &ContinuousCommand::Start(state)).await? {
            ContinuousReply::Started(started) => Ok(started),
            ContinuousReply::Triggered(_) | ContinuousReply::Done => unreachable!("it was started"),
        }
    }

    /// Stops an active object and keeps its state; it is not recovered, and does not run until it
    /// is started again. A run that is under way is told to stop, and is not tried again; if it
    /// succeeds nevertheless, its state counts.
    pub async fn stop(&self, key: &str, reason: impl Into<String>) -> Result<(), Error> {
        let command = ContinuousCommand::Stop(Some(reason.into()));
        self.objects.command(key, &command).await.map(drop)
    }

    /// Purges an object with its state, whatever its status. A run that is under way is told to
    /// stop. The records of earlier runs stay until they are too old.
    pub async fn terminate(&self, key: &str) -> Result<(), Error> {
        match self.objects.command(key, &ContinuousCommand::Terminate(None)).await {
            Err(Error::UnreadableState { .. }) => self.objects.purge_unread(key).await,
            done => done.map(drop),
        }
    }

    /// Runs an active object now. The next planned run stays where it is. There is never a second
    /// run beside the one that waits or runs.
    pub async fn trigger(&self, key: &str) -> Result<Triggered, Error> {
        match self.objects.command(key, &ContinuousCommand::Trigger).await? {
            ContinuousReply::Triggered(triggered) => Ok(triggered),
            ContinuousReply::Started(_) | ContinuousReply::Done => unreachable!("it was triggered"),
        }
    }

    /// Where an object stands; `None` if there is none with this key.
    pub async fn status(&self, key: &str) -> Result<Option<ContinuousStatus>, Error> {
        Ok(self.objects.view(key).await?.map(ContinuousStatus::new))
    }

    /// What an object remembers; `None` if there is none with this key.
    pub async fn state(&self, key: &str) -> Result<Option<S>, Error> {
        Ok(self.objects.state(key).await?.and_then(|state| state.state))
    }

    /// Objects in the order of their keys, at most `limit` of them, beginning after the key
    /// `after`. There are no more when fewer come than were asked for.
    pub async fn list(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ContinuousStatus>, Error> {
        let mut after = after.map(|key| self.objects.address(key)).transpose()?;
        let mut listed: Vec<ContinuousStatus> = Vec::new();
        while listed.len() < limit {
            let page = self.objects.list(after.as_ref(), limit - listed.len()).await?;
            listed.extend(page.objects.into_iter().map(ContinuousStatus::new));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(listed)
    }
}

/// Whether an object runs, waits or rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It waits for its next run.
    Active,
    /// Its code runs.
    Executing,
    /// It was stopped; its state is kept.
    Stopped,
    /// It cannot go on by itself; its state is kept.
    Failed,
}

/// Where an object of a [`Continuous`] stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinuousStatus {
    /// Its key.
    pub key: String,
    /// Whether it runs, waits or rests.
    pub standing: Standing,
    /// Why it was stopped, or has failed.
    pub reason: Option<String>,
    /// When it runs next, or is tried again; `None` while it runs or rests.
    pub next_run: Option<Timestamp>,
    /// Since when its code runs.
    pub executing_since: Option<Timestamp>,
    /// Runs that succeeded.
    pub run_count: u64,
    /// Runs that failed for good.
    pub failures: u64,
    /// When a run last succeeded.
    pub last_success: Option<Timestamp>,
    /// How often a run was recovered from a lost worker since one last succeeded.
    pub recoveries: u32,
    /// When that was last.
    pub last_recovery: Option<Timestamp>,
    /// When it was first started.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl ContinuousStatus {
    fn new(view: ObjectView) -> Self {
        let meta = view.record.meta;
        let standing = match meta.status {
            ObjectStatus::Active if view.executing_since.is_some() => Standing::Executing,
            ObjectStatus::Active => Standing::Active,
            ObjectStatus::Stopped => Standing::Stopped,
            ObjectStatus::Failed => Standing::Failed,
        };
        Self {
            key: view.record.address.key().to_string(),
            standing,
            reason: meta.reason.map(|reason| reason.to_string()),
            next_run: view.alarm_at,
            executing_since: view.executing_since,
            run_count: meta.runs,
            failures: meta.failures,
            last_success: meta.last_success_at,
            recoveries: meta.recoveries,
            last_recovery: meta.last_recovery_at,
            created_at: meta.created_at,
            updated_at: meta.updated_at,
        }
    }
}
