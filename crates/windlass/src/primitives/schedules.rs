//! Schedules: jobs that are enqueued again and again, at an interval or by a cron pattern.
//!
//! A schedule is an object whose alarm goes off at its next time. The turn that follows enqueues
//! the job and sets the next alarm: one commit, so no restart enqueues a run twice or forgets the
//! next. The id of each job is made from the schedule's name and the time it stands for; even a
//! turn that is made again gives the same job.
//!
//! No code of yours runs in that turn, so every worker with a handler of any kind takes the alarms
//! of schedules, whatever queues it is limited to. The jobs themselves wait for a worker that
//! handles them. A process that only enqueues keeps no schedule going.

use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::job::{JobId, NewJob, Start, Timeout, Unique, UniqueScope};
use windlass_core::name::Name;
use windlass_core::object::{ObjectStatus, ObjectView};
use windlass_core::retry::{Backoff, Jitter, Retry};
use windlass_core::time::Timestamp;

use super::objects::open_envelope;
use super::{Objects, Primitive, RunContext, Turn, check_job};
use crate::clock::BoxFuture;
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{self, Job};
use crate::options::{Options, option_setters};
use crate::schedule::{GRACE, MissedRuns, Schedule};

/// How many runs to come are shown.
const SHOWN: usize = 5;

/// The second part of the addresses of schedules; the key is the schedule's name.
const NAME: &str = "jobs";

/// The one definition of all schedules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enqueuer;

/// What a worker needs to take the alarms of schedules: the handler, and the queue they wait in.
pub(crate) fn register() -> Result<(handler::RegisteredHandler, String), Error> {
    let mut handlers = super::handlers(Enqueuer)?;
    // The other one runs code, and there is none.
    let alarm = handlers.pop().ok_or(Error::NoHandler)?;
    Ok((alarm, format!("{}.{NAME}", Enqueuer::KIND)))
}

/// What is kept of a schedule; `None` before it is set.
type StoredSchedule = Option<ScheduleState>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ScheduleState {
    schedule: Schedule,
    missed: MissedRuns,
    job: Template,
    /// Everything planned up to then was dealt with, in microseconds since 1970.
    dealt_us: i64,
    last: Option<Last>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Last {
    planned_us: i64,
    job: JobId,
}

impl ScheduleState {
    fn dealt(&self) -> Timestamp {
        Timestamp::from_micros(self.dealt_us)
    }
}

/// A job to be enqueued many times, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Template {
    kind: String,
    queue: String,
    payload: String,
    priority: i32,
    delay: Option<Duration>,
    /// The key, whether it is held in every state, and for how long.
    unique: Option<(String, bool, Option<Duration>)>,
    retry: Option<StoredRetry>,
    max_attempts: Option<u32>,
    #[serde(default, with = "timeout")]
    timeout: Option<Timeout>,
    expires_after: Option<Duration>,
    tags: Vec<String>,
    metadata: BTreeMap<String, String>,
}

/// A time-out as it is kept: how long, `off`, or nothing said.
mod timeout {
    use super::{Deserialize, Duration, Serialize, Timeout};

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum StoredTimeout {
        Off,
        After(Duration),
    }

    pub(super) fn serialize<S: serde::Serializer>(
        timeout: &Option<Timeout>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let kept = timeout.map(|timeout| match timeout {
            Timeout::After(duration) => StoredTimeout::After(duration),
            Timeout::Off => StoredTimeout::Off,
        });
        kept.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timeout>, D::Error> {
        let kept = Option::<StoredTimeout>::deserialize(deserializer)?;
        Ok(kept.map(|kept| match kept {
            StoredTimeout::After(duration) => Timeout::After(duration),
            StoredTimeout::Off => Timeout::Off,
        }))
    }
}

/// A retry policy, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredRetry {
    backoff: StoredBackoff,
    cap: Duration,
    jitter: String,
    max_attempts: Option<u32>,
    max_duration: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredBackoff {
    Constant(Duration),
    Linear(Duration),
    Exponential { base: Duration, factor_milli: u32 },
    Custom(Vec<Duration>),
}

impl From<Retry> for StoredRetry {
    fn from(retry: Retry) -> Self {
        let backoff = match retry.backoff {
            Backoff::Constant(delay) => StoredBackoff::Constant(delay),
            Backoff::Linear(step) => StoredBackoff::Linear(step),
            Backoff::Exponential { base, factor_milli } => {
                StoredBackoff::Exponential { base, factor_milli }
            }
            Backoff::Custom(delays) => StoredBackoff::Custom(delays),
        };
        let jitter = match retry.jitter {
            Jitter::None => "none",
            Jitter::Tenth => "tenth",
            Jitter::Equal => "equal",
            Jitter::Full => "full",
        };
        let (cap, max_attempts, max_duration) = (retry.cap, retry.max_attempts, retry.max_duration);
        Self { backoff, cap, jitter: jitter.to_string(), max_attempts, max_duration }
    }
}

impl From<StoredRetry> for Retry {
    fn from(kept: StoredRetry) -> Self {
        let backoff = match kept.backoff {
            StoredBackoff::Constant(delay) => Backoff::Constant(delay),
            StoredBackoff::Linear(step) => Backoff::Linear(step),
            StoredBackoff::Exponential { base, factor_milli } => {
                Backoff::Exponential { base, factor_milli }
            }
            StoredBackoff::Custom(delays) => Backoff::Custom(delays),
        };
        let jitter = match kept.jitter.as_str() {
            "none" => Jitter::None,
            "equal" => Jitter::Equal,
            "full" => Jitter::Full,
            _ => Jitter::Tenth,
        };
        let (cap, max_attempts, max_duration) = (kept.cap, kept.max_attempts, kept.max_duration);
        Self { backoff, cap, jitter, max_attempts, max_duration }
    }
}

impl Template {
    /// Refuses what only one job can have: an id, a time of its own, jobs to wait for.
    fn new(job: NewJob, has_id: bool) -> Result<Self, Error> {
        let refused = |issues: &str| {
            let what = "the job of a schedule".to_string();
            Err(Error::Validation { what, issues: issues.to_string() })
        };
        let delay = match job.start {
            Start::Now => None,
            Start::After(delay) => Some(delay),
            Start::At(_) => return refused("its schedule says when it starts; use a delay"),
        };
        if has_id {
            return refused("each run has an id of its own");
        }
        if !job.depends_on.is_empty() {
            return refused("it cannot wait for other jobs");
        }
        let unique =
            job.unique.map(|unique| (unique.key, unique.scope == UniqueScope::Any, unique.window));
        Ok(Self {
            kind: job.kind.to_string(),
            queue: job.queue.to_string(),
            payload: String::from_utf8_lossy(&job.payload).into_owned(),
            priority: job.priority.0,
            delay,
            unique,
            retry: job.retry.map(StoredRetry::from),
            max_attempts: job.max_attempts,
            timeout: job.timeout,
            expires_after: job.expires_after,
            tags: job.tags.iter().map(Name::to_string).collect(),
            metadata: job.metadata,
        })
    }

    /// A job of it.
    fn job(&self, id: JobId) -> Result<NewJob, Error> {
        let payload = self.payload.clone().into_bytes();
        let job = NewJob::new(id, Name::new(&self.kind)?, Name::new(&self.queue)?, payload);
        let unique = self.unique.clone().map(|(key, any, window)| {
            let scope = if any { UniqueScope::Any } else { UniqueScope::Open };
            Unique { key, scope, window }
        });
        let tags = self.tags.iter().map(|tag| Name::new(tag)).collect::<Result<Vec<_>, _>>()?;
        Ok(NewJob {
            priority: windlass_core::job::Priority(self.priority),
            start: self.delay.map_or(Start::Now, Start::After),
            unique,
            retry: self.retry.clone().map(Retry::from),
            max_attempts: self.max_attempts,
            timeout: self.timeout,
            expires_after: self.expires_after,
            tags,
            metadata: self.metadata.clone(),
            trace: Some(crate::trace::of_new_job(id)),
            ..job
        })
    }
}

/// The id of the job that stands for one planned time of one schedule: it sorts by that time.
fn id_of(name: &str, planned: Timestamp) -> JobId {
    let mut text = planned.as_micros().to_be_bytes().to_vec();
    text.extend(name.as_bytes());
    let mut bytes = xxhash_rust::xxh3::xxh3_128(&text).to_be_bytes();
    let millis = u64::try_from(planned.as_millis()).unwrap_or(0);
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    // The version and the variant of an id that sorts by time.
    bytes[6] = 0x70 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    JobId::from_bytes(bytes)
}

/// What can be asked of a schedule.
#[derive(Debug)]
pub(crate) enum ScheduleCommand {
    Set(Box<(Schedule, MissedRuns, Template)>),
    Pause,
    Resume,
    /// With the id its job has.
    RunNow(JobId),
    Remove,
}

/// There is no code to run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Nothing {}

impl Enqueuer {
    /// Sets the alarm for the first time that was not dealt with; one that has passed means now.
    fn plan(self, entry: &ScheduleState, turn: &mut Turn<Self>) {
        match entry.schedule.next_after(entry.dealt()) {
            Some(next) => turn.alarm(Start::At(next)),
            None => turn.cancel_alarm(),
        }
    }

    fn fire(self, entry: &mut ScheduleState, turn: &mut Turn<Self>) -> Result<(), Error> {
        let now = turn.now();
        let due = entry.schedule.due(entry.dealt(), now, entry.missed, GRACE);
        for planned in &due.runs {
            let job = id_of(turn.key(), *planned);
            turn.enqueue_new(entry.job.job(job)?);
            entry.last = Some(Last { planned_us: planned.as_micros(), job });
        }
        let dealt = due.runs.last().copied().unwrap_or(now.max(entry.dealt()));
        entry.dealt_us = dealt.as_micros();
        let runs = due.runs.len();
        let told = serde_json::json!({ "runs": runs, "left_out": due.left_out });
        turn.tell("fired", told);
        Ok(())
    }
}

impl Primitive for Enqueuer {
    const KIND: &'static str = "schedule";
    const BUILT_IN: bool = true;
    type State = StoredSchedule;
    type Command = ScheduleCommand;
    type Reply = ();
    type Run = Nothing;
    type Output = ();

    fn name(&self) -> &str {
        NAME
    }

    fn on_command(
        &self,
        kept: &mut StoredSchedule,
        ask: &ScheduleCommand,
        turn: &mut Turn<Self>,
    ) -> Result<(), Error> {
        if let ScheduleCommand::Set(set) = ask {
            let (schedule, missed, job) = (**set).clone();
            check_job(&job.job(id_of(turn.key(), turn.now()))?, turn.now())?;
            let before = kept.take();
            // Another rule counts from now on; the same one still owes what it owes.
            let same = before.as_ref().filter(|entry| entry.schedule == schedule);
            let dealt_us = same.map_or(turn.now().as_micros(), |entry| entry.dealt_us);
            let last = before.and_then(|entry| entry.last);
            let entry = ScheduleState { schedule, missed, job, dealt_us, last };
            if turn.status() == ObjectStatus::Failed {
                turn.activate();
            }
            if turn.status() != ObjectStatus::Stopped {
                self.plan(&entry, turn);
            }
            turn.tell("set", entry.schedule.to_string());
            *kept = Some(entry);
            return Ok(());
        }
        let status = turn.require()?;
        let Some(entry) = kept else { return Ok(()) };
        match ask {
            ScheduleCommand::Set(_) => {}
            ScheduleCommand::Pause if status == ObjectStatus::Stopped => {}
            ScheduleCommand::Pause => {
                turn.cancel_alarm();
                turn.stop(Some("paused".to_string()));
                turn.tell("paused", turn.key().to_string());
            }
            ScheduleCommand::Resume if status == ObjectStatus::Active => {}
            ScheduleCommand::Resume => {
                entry.dealt_us = turn.now().as_micros().max(entry.dealt_us);
                turn.activate();
                self.plan(entry, turn);
                turn.tell("resumed", turn.key().to_string());
            }
            ScheduleCommand::RunNow(job) => {
                turn.enqueue_new(entry.job.job(*job)?);
                entry.last = Some(Last { planned_us: turn.now().as_micros(), job: *job });
                turn.tell("fired", serde_json::json!({ "runs": 1, "asked": true }));
            }
            ScheduleCommand::Remove => {
                turn.purge();
                turn.tell("removed", turn.key().to_string());
            }
        }
        Ok(())
    }

    fn on_alarm(&self, kept: &mut StoredSchedule, turn: &mut Turn<Self>) {
        let Some(entry) = kept else { return };
        match self.fire(entry, turn) {
            Ok(()) => self.plan(entry, turn),
            // It was valid when it was set.
            Err(error) => turn.fail(error.to_string()),
        }
    }

    async fn run(&self, run: Nothing, _: RunContext<Self>) -> Result<(), Failure> {
        match run {}
    }
}

impl Engine {
    /// The schedules of this engine: jobs that are enqueued again and again.
    pub fn schedules(&self) -> Schedules<'_> {
        Schedules { engine: self }
    }
}

/// The schedules of an engine. When a verb has returned, what it did is durable.
#[derive(Clone, Copy, Debug)]
pub struct Schedules<'a> {
    engine: &'a Engine,
}

impl<'a> Schedules<'a> {
    fn objects(&self) -> Objects<'a, Enqueuer> {
        self.engine.objects(&Enqueuer)
    }

    /// Makes a schedule, or changes the one with this name. Await the returned builder to do it.
    ///
    /// A change keeps what is paused. If the times stay the same, runs that are due and have not
    /// been enqueued still are; other times count from now on. Setting what is set already does no
    /// harm: a program may do so whenever it starts.
    ///
    /// An interval without a start is counted from 1970, so that its times stay the same whoever
    /// sets it. Refuses a name or an option that no job could have, an id, a start at a fixed time,
    /// and dependencies.
    pub fn set<J: Job>(
        &self,
        name: impl Into<String>,
        schedule: Schedule,
        job: J,
    ) -> SetSchedule<'a, J> {
        let options = job.options();
        let missed = MissedRuns::default();
        SetSchedule { engine: self.engine, name: name.into(), schedule, missed, job, options }
    }

    /// Enqueues nothing by this schedule until it is resumed. Does nothing if it is paused.
    pub async fn pause(&self, name: &str) -> Result<(), Error> {
        self.objects().command(name, &ScheduleCommand::Pause).await
    }

    /// Goes on with the next time after now: what passed while it was paused is not made up for. A
    /// schedule that has failed goes on too. Does nothing if it is active.
    pub async fn resume(&self, name: &str) -> Result<(), Error> {
        self.objects().command(name, &ScheduleCommand::Resume).await
    }

    /// Enqueues its job now, even if it is paused; the planned times stay. Returns the job's id. If
    /// the answer is lost, it may have been enqueued.
    pub async fn run_now(&self, name: &str) -> Result<JobId, Error> {
        let id = crate::options::new_id();
        self.objects().command(name, &ScheduleCommand::RunNow(id)).await.map(|()| id)
    }

    /// Removes a schedule. Jobs that it has enqueued stay.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        match self.objects().command(name, &ScheduleCommand::Remove).await {
            Err(Error::UnreadableState { .. }) => self.objects().purge_unread(name).await,
            done => done,
        }
    }

    /// A schedule; `None` if there is none with this name.
    pub async fn get(&self, name: &str) -> Result<Option<ScheduleView>, Error> {
        let view = self.objects().view(name).await?;
        Ok(view.map(|view| self.show(&view)).transpose()?.flatten())
    }

    /// Schedules in the order of their names, at most `limit` of them, beginning after the name
    /// `after`. There are no more when fewer come than were asked for.
    pub async fn list(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ScheduleView>, Error> {
        let mut after = after.map(|name| self.objects().address(name)).transpose()?;
        let mut listed = Vec::new();
        while listed.len() < limit {
            let page = self.objects().list(after.as_ref(), limit - listed.len()).await?;
            for view in &page.objects {
                listed.extend(self.show(view)?);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(listed)
    }

    fn show(&self, view: &ObjectView) -> Result<Option<ScheduleView>, Error> {
        let record = &view.record;
        let envelope = open_envelope::<StoredSchedule>(&record.address, &record.state)?;
        let Some(entry) = envelope.state else { return Ok(None) };
        let now = self.engine.clock().now().wall;
        let paused = record.meta.status == ObjectStatus::Stopped;
        let last_run = entry.last.map(|last| LastRun {
            planned: Timestamp::from_micros(last.planned_us),
            job: last.job,
        });
        let failed = record.meta.status == ObjectStatus::Failed;
        let reason = record.meta.reason.as_ref().filter(|_| failed);
        Ok(Some(ScheduleView {
            name: record.address.key().to_string(),
            words: entry.schedule.describe(),
            next_runs: entry.schedule.upcoming(now, SHOWN),
            schedule: entry.schedule,
            missed: entry.missed,
            kind: entry.job.kind,
            queue: entry.job.queue,
            last_run,
            paused,
            failed: reason.map(ToString::to_string),
        }))
    }
}

/// A schedule as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleView {
    /// Its name.
    pub name: String,
    /// Its times.
    pub schedule: Schedule,
    /// Its times in words.
    pub words: String,
    /// Its next five times; nothing is enqueued at them while it is paused.
    pub next_runs: Vec<Timestamp>,
    /// The last job it enqueued.
    pub last_run: Option<LastRun>,
    /// What becomes of times that pass while no worker is there.
    pub missed: MissedRuns,
    /// The kind of its jobs.
    pub kind: String,
    /// Their queue.
    pub queue: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Why it cannot go on by itself, if it cannot; `resume` makes it go on.
    pub failed: Option<String>,
}

/// The last job of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRun {
    /// The time it stands for.
    pub planned: Timestamp,
    /// Its id.
    pub job: JobId,
}

/// A schedule about to be set, with the options of its jobs. Await it.
#[must_use = "nothing is set until this is awaited"]
pub struct SetSchedule<'a, J> {
    engine: &'a Engine,
    name: String,
    schedule: Schedule,
    missed: MissedRuns,
    job: J,
    options: Options,
}

impl<J: Job> SetSchedule<'_, J> {
    option_setters!(options);

    /// What becomes of times that pass while no worker is there; [`MissedRuns::RunOnce`] by
    /// default.
    pub fn missed_runs(mut self, missed: MissedRuns) -> Self {
        self.missed = missed;
        self
    }

    /// All options of its jobs at once.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }
}

impl<J> fmt::Debug for SetSchedule<'_, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetSchedule({}, {})", self.name, self.schedule)
    }
}

impl<'a, J: Job> IntoFuture for SetSchedule<'a, J> {
    type Output = Result<(), Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let has_id = self.options.id.is_some();
        let job = crate::client::new_job(&self.job, self.options);
        let template = job.and_then(|job| Template::new(job, has_id));
        let (engine, name, schedule, missed) = (self.engine, self.name, self.schedule, self.missed);
        Box::pin(async move {
            let set = ScheduleCommand::Set(Box::new((schedule, missed, template?)));
            engine.objects(&Enqueuer).command(&name, &set).await
        })
    }
}
