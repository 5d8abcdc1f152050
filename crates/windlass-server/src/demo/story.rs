//! What happens to the jobs of the scenes, in words.
//!
//! The scenes name their jobs before they enqueue them; the engine's own events then tell the
//! story. What happens to the other jobs is only counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;
use windlass::{CancelReason, Event, Heard, JobId, ObjectAddress, Subject, What};

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
    pub(crate) fn hear(&mut self, heard: &Heard) -> Option<Line> {
        let event = match heard {
            Heard::Event(event) => event,
            Heard::Lagged { missed } => {
                self.tally.missed += missed;
                return Some(Line::of("story", format!("{missed} events were missed")));
            }
        };
        match &event.what {
            What::JobDeduplicated { .. } => self.tally.duplicates += 1,
            What::JobReplayed { .. } | What::JobCancelled { reason: CancelReason::Replaced } => {
                self.tally.replayed += 1;
            }
            What::JobSnoozed { .. } => self.tally.snoozed += 1,
            What::Object { topic, .. } => match topic.as_str() {
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
                What::QueuePaused => {
                    Some(("pause", format!("queue `{queue}` is paused: its jobs wait")))
                }
                What::QueueResumed => Some(("pause", format!("queue `{queue}` goes on"))),
                _ => None,
            },
            Subject::Worker(worker) => match event.what {
                What::WorkerStarted => Some(("worker", format!("{worker} takes jobs"))),
                What::WorkerStopped => Some(("worker", format!("{worker} has stopped"))),
                _ => None,
            },
            Subject::Object(address) => of_object(event, address),
        }
    }
}

fn of_object(event: &Event, address: &ObjectAddress) -> Option<(&'static str, String)> {
    let What::Object { topic, detail } = &event.what else { return None };
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
        What::JobEnqueued { .. } | What::JobBlocked { unmet: 1 }
            if matches!(role.scene, "graph" | "lanes") =>
        {
            return None;
        }
        // Where nothing stands in the way, a job starts as soon as it is accepted.
        What::JobStarted { attempt: 1, .. } | What::JobProgress { .. }
            if role.scene != "progress" =>
        {
            return None;
        }
        What::JobEnqueued { priority } if priority.0 != 0 => {
            format!("{name} is accepted, priority {}", priority.0)
        }
        What::JobEnqueued { .. } => format!("{name} is accepted"),
        What::JobDeduplicated { .. } => {
            format!("{name} was asked for again: recognised, not added")
        }
        What::JobBlocked { unmet } => format!("{name} waits for {unmet} jobs"),
        What::JobUnblocked => format!("{name} may start: what it waited for is done"),
        What::JobStarted { attempt: 1, .. } => format!("{name} starts"),
        What::JobStarted { attempt, .. } => format!("{name} starts, attempt {attempt}"),
        What::StepCompleted { name: step } => format!("{name} has finished its step {step}"),
        What::JobProgress { percent } => format!("{name} is {percent} % done"),
        What::JobCompleted { attempt: 1, duration, .. } => {
            format!("{name} is done, after {} ms", duration.as_millis())
        }
        What::JobCompleted { attempt, .. } => format!("{name} is done, at attempt {attempt}"),
        What::JobFailed { attempt, error, next_retry_at: Some(at), .. } => {
            let pause = at.since(event.at).as_millis();
            format!("{name} failed, attempt {attempt} ({error}); again in {pause} ms")
        }
        What::JobSnoozed { until } => {
            let pause = until.since(event.at).as_millis();
            format!("{name} is too early and asks for {pause} ms more")
        }
        What::JobReleased { .. } => format!("{name} was interrupted and is back in its queue"),
        What::JobDead { error: Some(error), .. } => {
            format!("{name} died ({error})")
        }
        What::JobDead { reason, .. } => format!("{name} died ({reason:?})"),
        What::JobCancelled { reason: CancelReason::Replaced } => {
            format!("{name} is replayed, as a corrected copy")
        }
        What::JobCancelled { reason } => format!("{name} was called off ({reason:?})"),
        // Each is followed, or was preceded, by one that says more.
        _ => return None,
    };
    Some(text)
}
