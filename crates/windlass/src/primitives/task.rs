//! Task: a durable state machine that is driven by events and by an alarm of its own.
//!
//! Every event is a run of the object, in the order in which they were accepted; so is the alarm. A
//! run sees the state, changes it, and asks for an alarm or for the end. All of that is taken over
//! in the commit that ends the run, and only if it succeeded. An event that fails is tried again
//! while the later ones wait; one that fails for good is a dead letter, and the next goes on.
//!
//! The hooks (nothing left to do; a run was given up) are part of that commit too. They are plain
//! functions: what they ask for happens exactly once, and effects on the outside are jobs that they
//! enqueue.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::job::{JobId, Start};
use windlass_core::object::{Address, ObjectMeta, ObjectStatus};
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::definition::{Events, Named, definition_setters};
use super::objects::{Commanded, Objects};
use super::{Primitive, RunContext, RunOutcome, Turn};
use crate::attempt::Attempt;
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{Job, KindOptions};
use crate::store::ObjectPage;

/// What a [`Task`] does with events and alarms.
pub trait StateMachine: Send + Sync + 'static {
    /// What it remembers. Stored as JSON, at most 1 MiB; a new task has the default.
    type State: Serialize + DeserializeOwned + Default + Send + Sync + 'static;

    /// What drives it. Stored as JSON with its job.
    type Event: Serialize + DeserializeOwned + Clone + Send + Sync + 'static;

    /// Handles an event. If it fails, the state is what it was before, and the event is tried again
    /// by the retry policy while the later ones wait.
    fn on_event(
        &self,
        task: &mut TaskContext<Self::State>,
        event: Self::Event,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The alarm that [`TaskContext::schedule`] set has gone off. Does nothing by default.
    fn on_alarm(
        &self,
        task: &mut TaskContext<Self::State>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = task;
        std::future::ready(Ok(()))
    }

    /// Nothing is left to do: no event waits and no alarm is set. Part of the commit that ends the
    /// last run, so it must be pure: it may be called again for the same moment, if another turn of
    /// the task came first.
    fn on_idle(&self, task: &mut TaskTurn<'_, Self>)
    where
        Self: Sized,
    {
        let _ = task;
    }

    /// A run was given up; its job is a dead letter. Part of that commit, and pure like
    /// [`StateMachine::on_idle`], which may follow.
    fn on_error(&self, task: &mut TaskTurn<'_, Self>, failed: FailedRun<Self::Event>)
    where
        Self: Sized,
    {
        let _ = (task, failed);
    }

    /// Refuses an event with [`Error::Validation`] and this text; nothing is stored of it.
    fn validate(&self, event: &Self::Event) -> Result<(), String> {
        let _ = event;
        Ok(())
    }
}

/// A run that was given up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailedRun<E> {
    /// The event; `None` if it was the alarm.
    pub event: Option<E>,
    /// The last error.
    pub error: String,
    /// How often it ran.
    pub attempts: u32,
}

/// A kind of durable state machines, one for each key: see `docs/objects.md`. Cloning is cheap.
///
/// ```
/// use std::time::Duration;
/// use windlass::primitives::{StateMachine, Task, TaskContext};
/// use windlass::{Engine, Failure};
///
/// /// Counts visits, and says goodbye when there was none for an hour.
/// struct Visits;
///
/// impl StateMachine for Visits {
///     type State = u64;
///     type Event = String;
///
///     async fn on_event(&self, task: &mut TaskContext<u64>, _: String) -> Result<(), Failure> {
///         task.state += 1;
///         task.schedule(Duration::from_secs(3_600));
///         Ok(())
///     }
///
///     async fn on_alarm(&self, task: &mut TaskContext<u64>) -> Result<(), Failure> {
///         println!("{} came {} times", task.key(), task.state);
///         task.terminate();
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), windlass::Error> {
/// let visits = Task::new("visits", Visits);
/// let engine = Engine::open("memory:").await?;
/// let _worker = engine.worker().primitive(visits.clone()).start().await?;
/// engine.task(&visits).send("ada", "home".to_string()).await?;
/// # Ok(()) }
/// ```
pub struct Task<M: StateMachine> {
    named: Named,
    events: Events<M::Event>,
    machine: Arc<M>,
}

impl<M: StateMachine> Clone for Task<M> {
    fn clone(&self) -> Self {
        Self {
            named: self.named.clone(),
            events: self.events.clone(),
            machine: self.machine.clone(),
        }
    }
}

impl<M: StateMachine> fmt::Debug for Task<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({})", self.named.name())
    }
}

impl<M: StateMachine> Task<M> {
    /// Tasks of this name, which do what `machine` says.
    pub fn new(name: impl Into<Arc<str>>, machine: M) -> Self {
        let machine = Arc::new(machine);
        let mut events = Events::default();
        let checker = machine.clone();
        events.set_validate(move |event| checker.validate(event));
        Self { named: Named::new(name), events, machine }
    }

    definition_setters!(remember_ids);
    definition_setters!(options);
}

/// What a run asks for besides its state. Stored until it is taken over.
#[derive(Debug, Default, Serialize, Deserialize)]
struct TaskRequests {
    alarm: TaskAlarm,
    terminate: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
enum TaskAlarm {
    #[default]
    Keep,
    Cancel,
    After(Duration),
    At(i64),
}

impl TaskAlarm {
    fn is_set(self, before: bool) -> bool {
        match self {
            TaskAlarm::Keep => before,
            TaskAlarm::Cancel => false,
            TaskAlarm::After(_) | TaskAlarm::At(_) => true,
        }
    }
}

/// What a run of a task is given. Nothing it asks for is done unless the run succeeds.
#[derive(Debug)]
pub struct TaskContext<S> {
    /// The state, to be changed.
    pub state: S,
    attempt: Attempt,
    key: String,
    alarm_at: Option<Timestamp>,
    wishes: TaskRequests,
}

impl<S> TaskContext<S> {
    /// The task's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The attempt: which run it is, whether to stop, steps, progress. With
    /// [`Attempt::continue_with`] a job is enqueued in the commit that ends this run.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Whether the event has run before: in this process, in one that was lost, or before it was
    /// given up and replayed.
    pub fn is_retry(&self) -> bool {
        let Self { attempt, .. } = self;
        attempt.is_retry() || attempt.recoveries() > 0 || attempt.generation() > 0
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.attempt.engine()
    }

    /// When the alarm goes off, as it was set when this run began.
    pub fn alarm_at(&self) -> Option<Timestamp> {
        self.alarm_at
    }

    /// Sets the alarm to so long after the end of this run, a century at most; it takes the place
    /// of an earlier one.
    pub fn schedule(&mut self, after: Duration) {
        self.wishes.alarm = TaskAlarm::After(after);
    }

    /// Sets the alarm to this time; one that has passed is now, and none is more than a century
    /// ahead.
    pub fn schedule_at(&mut self, at: Timestamp) {
        self.wishes.alarm = TaskAlarm::At(at.as_micros());
    }

    /// There is to be no alarm.
    pub fn cancel_alarm(&mut self) {
        self.wishes.alarm = TaskAlarm::Cancel;
    }

    /// The task ends with this run: it is purged, with its alarm and the events that wait.
    pub fn terminate(&mut self) {
        self.wishes.terminate = true;
    }
}

/// What a hook of a task is given: everything it asks for is part of the commit it is called in.
pub struct TaskTurn<'a, M: StateMachine> {
    /// The state, to be changed.
    pub state: &'a mut M::State,
    turn: &'a mut Turn<Task<M>>,
    wishes: &'a mut TaskRequests,
}

impl<M: StateMachine> TaskTurn<'_, M> {
    /// The task's key.
    pub fn key(&self) -> &str {
        self.turn.key()
    }

    /// The time, by the clock of the engine.
    pub fn now(&self) -> Timestamp {
        self.turn.now()
    }

    /// Sets the alarm to so much later, a century at most.
    pub fn schedule(&mut self, after: Duration) {
        self.wishes.alarm = TaskAlarm::After(after);
    }

    /// There is to be no alarm.
    pub fn cancel_alarm(&mut self) {
        self.wishes.alarm = TaskAlarm::Cancel;
    }

    /// The task ends: it is purged, with its alarm and the events that wait.
    pub fn terminate(&mut self) {
        self.wishes.terminate = true;
    }

    /// Enqueues a job in this commit.
    pub fn enqueue<J: Job>(&mut self, job: &J) -> Result<JobId, Error> {
        self.turn.enqueue(job, job.options())
    }
}

impl<M: StateMachine> fmt::Debug for TaskTurn<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskTurn({})", self.key())
    }
}

/// What can be asked of a task.
#[derive(Debug)]
pub enum TaskCommand<E> {
    /// Handle this event.
    Send(E),
    /// End.
    Terminate,
}

/// What a run is for. Stored, as the payload of its job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskRun<E> {
    /// An event.
    Event(E),
    /// The alarm.
    Alarm,
}

/// What a run that succeeded leaves to be taken over.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaskEnd<S> {
    state: S,
    wishes: TaskRequests,
    /// Which task it was: one that was terminated meanwhile may have a successor of the same key.
    incarnation: u64,
    version: u64,
}

impl<M: StateMachine> Primitive for Task<M> {
    const KIND: &'static str = "task";
    const BUILT_IN: bool = true;
    type State = M::State;
    type Command = TaskCommand<M::Event>;
    type Reply = u64;
    type Run = TaskRun<M::Event>;
    type Output = TaskEnd<M::State>;

    fn name(&self) -> &str {
        self.named.name()
    }

    fn options(&self) -> KindOptions {
        self.named.options()
    }

    fn check(&self) -> Result<(), Error> {
        self.events.check()
    }

    fn on_command(
        &self,
        _: &mut M::State,
        command: &TaskCommand<M::Event>,
        turn: &mut Turn<Self>,
    ) -> Result<u64, Error> {
        match command {
            TaskCommand::Send(event) => {
                self.events.check_event(Self::KIND, self.named.name(), event)?;
                if turn.status() != ObjectStatus::Active {
                    turn.activate();
                }
                turn.run(TaskRun::Event(event.clone()));
                Ok(turn.open_jobs().saturating_sub(u64::from(turn.alarm_at().is_some())))
            }
            TaskCommand::Terminate if turn.object().is_none() => {
                Err(Refusal::UnknownObject { object: turn.address().clone() }.into())
            }
            TaskCommand::Terminate => {
                terminate(turn);
                Ok(0)
            }
        }
    }

    async fn run(
        &self,
        run: TaskRun<M::Event>,
        context: RunContext<Self>,
    ) -> Result<TaskEnd<M::State>, Failure> {
        let Some(view) = context.object() else {
            return Err(Failure::permanent("its task has been terminated"));
        };
        let (incarnation, version) = identity(&view.record.meta);
        let mut task = TaskContext {
            alarm_at: view.alarm_at,
            attempt: context.attempt().clone(),
            key: context.key().to_string(),
            state: context.into_state(),
            wishes: TaskRequests::default(),
        };
        match run {
            TaskRun::Event(event) => self.machine.on_event(&mut task, event).await?,
            TaskRun::Alarm => self.machine.on_alarm(&mut task).await?,
        }
        Ok(TaskEnd { state: task.state, wishes: task.wishes, incarnation, version })
    }

    fn on_outcome(
        &self,
        state: &mut M::State,
        run: TaskRun<M::Event>,
        outcome: RunOutcome<TaskEnd<M::State>>,
        turn: &mut Turn<Self>,
    ) {
        let mut wishes = TaskRequests::default();
        match outcome {
            RunOutcome::Completed(end) => {
                let now = turn.object().map_or((0, 0), identity);
                if now.0 != end.incarnation || now.1 < end.version {
                    return;
                }
                *state = end.state;
                wishes = end.wishes;
            }
            RunOutcome::Failed { error, attempts } => {
                let event = match run {
                    TaskRun::Event(event) => Some(event),
                    TaskRun::Alarm => None,
                };
                let mut task = TaskTurn { state, turn, wishes: &mut wishes };
                self.machine.on_error(&mut task, FailedRun { event, error, attempts });
            }
            RunOutcome::Cancelled => {}
        }
        let has_alarm = turn.alarm_at().is_some();
        let events = turn.open_jobs().saturating_sub(1 + u64::from(has_alarm));
        if events == 0 && !wishes.terminate && !wishes.alarm.is_set(has_alarm) {
            let mut task = TaskTurn { state, turn, wishes: &mut wishes };
            self.machine.on_idle(&mut task);
        }
        take_over(wishes, turn);
    }
}

/// What tells a task from another of the same key.
fn identity(meta: &ObjectMeta) -> (u64, u64) {
    (meta.incarnation, meta.version)
}

fn take_over<M: StateMachine>(wishes: TaskRequests, turn: &mut Turn<Task<M>>) {
    match wishes.alarm {
        TaskAlarm::Keep => {}
        TaskAlarm::Cancel => turn.cancel_alarm(),
        TaskAlarm::After(delay) => turn.alarm_to_run(Start::After(delay), TaskRun::Alarm),
        TaskAlarm::At(at) => {
            turn.alarm_to_run(Start::At(Timestamp::from_micros(at)), TaskRun::Alarm);
        }
    }
    if wishes.terminate {
        terminate(turn);
    }
}

fn terminate<M: StateMachine>(turn: &mut Turn<Task<M>>) {
    turn.tell("terminated", ());
    turn.purge();
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// How many runs of the task come before it.
    pub ahead: u64,
    /// Whether an event with this id was accepted before; nothing was changed then.
    pub duplicate: bool,
}

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskStatus {
    /// Failed means that its alarm was cancelled by hand, or that its state cannot be read.
    pub status: ObjectStatus,
    /// Why.
    pub reason: Option<String>,
    /// Since when a run of it runs.
    pub executing_since: Option<Timestamp>,
    /// Events that wait or run.
    pub events: u64,
    /// When its alarm goes off.
    pub alarm_at: Option<Timestamp>,
    /// Events and alarms that succeeded.
    pub runs: u64,
    /// Events and alarms that were given up.
    pub failures: u64,
}

impl Engine {
    /// Sends events to tasks, and looks.
    pub fn task<'a, M: StateMachine>(&'a self, definition: &'a Task<M>) -> TaskClient<'a, M> {
        TaskClient { objects: self.objects(definition) }
    }
}

/// The tasks of one definition. What a call has answered is durable.
pub struct TaskClient<'a, M: StateMachine> {
    objects: Objects<'a, Task<M>>,
}

impl<M: StateMachine> TaskClient<'_, M> {
    /// Sends an event to a task, which is made if there is none. Refuses what the state machine
    /// finds invalid ([`Error::Validation`]), and stores nothing then.
    pub async fn send(&self, key: &str, event: M::Event) -> Result<Sent, Error> {
        let ahead = self.objects.command(key, &TaskCommand::Send(event)).await?;
        Ok(Sent { ahead, duplicate: false })
    }

    /// Like [`TaskClient::send`]; an event whose id the task accepted within the memory of the
    /// definition changes nothing. Of one task, the last 1,024 ids are remembered.
    pub async fn send_once(
        &self,
        key: &str,
        event_id: &str,
        event: M::Event,
    ) -> Result<Sent, Error> {
        let window = self.objects.primitive().events.remember_ids;
        let command = TaskCommand::Send(event);
        match self.objects.command_once(key, event_id, window, &command).await? {
            Commanded::Done(ahead) => Ok(Sent { ahead, duplicate: false }),
            Commanded::Duplicate => Ok(Sent { ahead: 0, duplicate: true }),
        }
    }

    /// What a task remembers; `None` if there is no such task.
    pub async fn state(&self, key: &str) -> Result<Option<M::State>, Error> {
        self.objects.state(key).await
    }

    /// Where a task stands; `None` if there is no such task.
    pub async fn status(&self, key: &str) -> Result<Option<TaskStatus>, Error> {
        let Some(view) = self.objects.view(key).await? else { return Ok(None) };
        let meta = &view.record.meta;
        Ok(Some(TaskStatus {
            status: meta.status,
            reason: meta.reason.as_ref().map(|reason| reason.as_str().to_string()),
            executing_since: view.executing_since,
            events: view.open_jobs.saturating_sub(u64::from(meta.alarm.is_some())),
            alarm_at: view.alarm_at,
            runs: meta.runs,
            failures: meta.failures,
        }))
    }

    /// Ends a task: it is purged with its alarm and the events that wait, and a run of it is told
    /// to stop. Refuses if there is none ([`Refusal::UnknownObject`]).
    pub async fn terminate(&self, key: &str) -> Result<(), Error> {
        self.objects.command(key, &TaskCommand::Terminate).await.map(|_| ())
    }

    /// A page of the tasks, by key; it may be short and still name where to go on.
    pub async fn list(&self, after: Option<&Address>, limit: usize) -> Result<ObjectPage, Error> {
        self.objects.list(after, limit).await
    }
}

impl<M: StateMachine> fmt::Debug for TaskClient<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskClient({})", self.objects.primitive().named.name())
    }
}
