//! What happens to the jobs of the scenes, in words.
//!
//! The scenes name their jobs before they enqueue them; the engine's own events then tell the
//! story. What happens to the other jobs is only counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;
use windlass::{CancelReason, Event, EventKind, JobId, ObjectAddress, Received, Subject};

/// One line of the story.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The scene it belongs to.
    pub(crate) scene: &'static str,
    /// What happened, in words.
    pub(crate) text: String,
    /// The engine's event behind it, if there is one.
    pub(crate) event: Option<Told>,
}

/// Which event a line tells.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Told {
    pub(crate) number: u64,
    pub(crate) topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job: Option<String>,
}

impl Line {
    /// A line that no event is behind: someone outside the engine does something.
    pub(crate) fn of(scene: &'static str, text: impl Into<String>) -> Self {
        Self { scene, text: text.into(), event: None }
    }
}

/// The jobs that play a part, by id.
#[derive(Debug, Default)]
pub(crate) struct Cast(Mutex<BTreeMap<JobId, Role>>);

#[derive(Clone, Debug)]
struct Role {
    scene: &'static str,
    name: String,
}

impl Cast {
    /// Gives a job a part, before it is enqueued.
    pub(crate) fn add(&self, job: JobId, scene: &'static str, name: impl Into<String>) {
        let role = Role { scene, name: name.into() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(job, role);
    }

    /// Ends the parts of a scene that is over, so that a long run does not gather them for ever.
    pub(crate) fn dismiss(&self, scene: &'static str) {
        let mut roles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        roles.retain(|_, role| role.scene != scene);
    }

    fn role(&self, job: JobId) -> Option<Role> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&job).cloned()
    }
}

/// What is counted by listening.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) replayed: u64,
    pub(crate) duplicates: u64,
    pub(crate) snoozed: u64,
    /// Batches of a debounce that were flushed.
    pub(crate) flushed: u64,
    pub(crate) loop_runs: u64,
    /// Times at which a schedule enqueued its job.
    pub(crate) fired: u64,
    pub(crate) missed: u64,
}

/// Listens to the engine.
#[derive(Debug)]
pub(crate) struct Story {
    cast: Arc<Cast>,
    tally: Tally,
}

impl Story {
    pub(crate) fn new(cast: Arc<Cast>) -> Self {
        Self { cast, tally: Tally::default() }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Counts what was heard, and puts it into words if it belongs to the story.
    pub(crate) fn hear(&mut self, heard: &Received) -> Option<Line> {
        let event = match heard {
            Received::Event(event) => event,
            Received::Lagged { missed } => {
                self.tally.missed += missed;
                return Some(Line::of("story", format!("{missed} events were missed")));
            }
        };
        match &event.what {
            EventKind::JobDeduplicated { .. } => self.tally.duplicates += 1,
            EventKind::JobReplayed { .. }
            | EventKind::JobCancelled { reason: CancelReason::Replaced } => {
                self.tally.replayed += 1;
            }
            EventKind::JobSnoozed { .. } => self.tally.snoozed += 1,
            EventKind::Object { topic, .. } => match topic.as_str() {
                "debounce.flushed" => self.tally.flushed += 1,
                "continuous.executed" => self.tally.loop_runs += 1,
                "schedule.fired" => self.tally.fired += 1,
                _ => {}
            },
            _ => {}
        }
        let (scene, text) = self.words(event)?;
        let job = event.job().map(|job| job.to_string());
        let told = Told { number: event.number, topic: event.topic().to_string(), job };
        Some(Line { scene, text, event: Some(told) })
    }

    fn words(&self, event: &Event) -> Option<(&'static str, String)> {
        match &event.subject {
            Subject::Job { id, .. } => {
                let role = self.cast.role(*id)?;
                Some((role.scene, of_job(event, &role)?))
            }
            Subject::Queue(queue) => match event.what {
                EventKind::QueuePaused => {
                    Some(("pause", format!("queue `{queue}` is paused: its jobs wait")))
                }
                EventKind::QueueResumed => Some(("pause", format!("queue `{queue}` goes on"))),
                _ => None,
            },
            Subject::Worker(worker) => match event.what {
                EventKind::WorkerStarted => Some(("worker", format!("{worker} takes jobs"))),
                EventKind::WorkerStopped => Some(("worker", format!("{worker} has stopped"))),
                _ => None,
            },
            Subject::Object(address) => of_object(event, address),
        }
    }
}

fn of_object(event: &Event, address: &ObjectAddress) -> Option<(&'static str, String)> {
    let EventKind::Object { topic, detail } = &event.what else { return None };
    let detail: Value = serde_json::from_str(detail).unwrap_or_default();
    let key = address.key();
    match topic.as_str() {
        "debounce.started" => Some(("debounce", format!("{key}: a window is open, and gathers"))),
        "debounce.flushed" => {
            Some(("debounce", format!("{key}: {} edits, indexed once", detail["count"])))
        }
        "continuous.executed" => {
            Some(("loop", format!("run {} of `{key}` is done", detail["run"])))
        }
        "schedule.fired" => Some(("schedule", format!("`{key}` is due: its job is enqueued"))),
        _ => None,
    }
}

fn of_job(event: &Event, role: &Role) -> Option<String> {
    let name = &role.name;
    let text = match &event.what {
        // Its lines are many, and one says it all: the batch was announced.
        EventKind::JobEnqueued { .. } | EventKind::JobBlocked { unmet: 1 }
            if matches!(role.scene, "graph" | "lanes") =>
        {
            return None;
        }
        // Where nothing stands in the way, a job starts as soon as it is accepted.
        EventKind::JobStarted { attempt: 1, .. } | EventKind::JobProgress { .. }
            if role.scene != "progress" =>
        {
            return None;
        }
        EventKind::JobEnqueued { priority } if priority.0 != 0 => {
            format!("{name} is accepted, priority {}", priority.0)
        }
        EventKind::JobEnqueued { .. } => format!("{name} is accepted"),
        EventKind::JobDeduplicated { .. } => {
            format!("{name} was asked for again: recognised, not added")
        }
        EventKind::JobBlocked { unmet } => format!("{name} waits for {unmet} jobs"),
        EventKind::JobUnblocked => format!("{name} may start: what it waited for is done"),
        EventKind::JobStarted { attempt: 1, .. } => format!("{name} starts"),
        EventKind::JobStarted { attempt, .. } => format!("{name} starts, attempt {attempt}"),
        EventKind::StepCompleted { name: step } => format!("{name} has finished its step {step}"),
        EventKind::JobProgress { percent } => format!("{name} is {percent} % done"),
        EventKind::JobCompleted { attempt: 1, duration, .. } => {
            format!("{name} is done, after {} ms", duration.as_millis())
        }
        EventKind::JobCompleted { attempt, .. } => format!("{name} is done, at attempt {attempt}"),
        EventKind::JobFailed { attempt, error, next_retry_at: Some(at), .. } => {
            let pause = at.since(event.at).as_millis();
            format!("{name} failed, attempt {attempt} ({error}); again in {pause} ms")
        }
        EventKind::JobSnoozed { until } => {
            let pause = until.since(event.at).as_millis();
            format!("{name} is too early and asks for {pause} ms more")
        }
        EventKind::JobReleased { .. } => format!("{name} was interrupted and is back in its queue"),
        EventKind::JobDead { error: Some(error), .. } => {
            format!("{name} died ({error})")
        }
        EventKind::JobDead { reason, .. } => format!("{name} died ({reason:?})"),
        EventKind::JobCancelled { reason: CancelReason::Replaced } => {
            format!("{name} is replayed, as a corrected copy")
        }
        EventKind::JobCancelled { reason } => format!("{name} was called off ({reason:?})"),
        // Each is followed, or was preceded, by one that says more.
        _ => return None,
    };
    Some(text)
}
