//! What a producer may say about a job: the same words on [`Options`] and on an enqueue.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::job::{
    Bytes, Dependency, JobId, Lane, NewJob, Priority, Start, Timeout, Unique, UniqueScope,
};
use windlass_core::name::{InvalidName, Name};
use windlass_core::refusal::Refusal;
use windlass_core::retry::Retry;

use crate::error::Error;

/// The queue of a job that names none.
pub const DEFAULT_QUEUE: &str = "default";

/// How a job should be kept and run. Names are checked when the job is enqueued.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) id: Option<JobId>,
    pub(crate) queue: Option<String>,
    pub(crate) priority: Priority,
    pub(crate) start: Start,
    pub(crate) unique_key: Option<String>,
    pub(crate) unique_scope: UniqueScope,
    pub(crate) unique_window: Option<Duration>,
    pub(crate) depends_on: Vec<Dependency>,
    pub(crate) retry: Option<Retry>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<Timeout>,
    pub(crate) expires_after: Option<Duration>,
    pub(crate) tags: Vec<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) trace: Option<String>,
    pub(crate) lane: Option<String>,
}

/// Defines the same setters for [`Options`] and for a type that holds them in a field.
macro_rules! option_setters {
    ($($field:ident)?) => {
        /// The line to wait in; `default` if none is named.
        pub fn queue(mut self, queue: impl Into<String>) -> Self {
            self.$($field.)?queue = Some(queue.into());
            self
        }

        /// The place among ready jobs: higher starts sooner.
        pub fn priority(mut self, priority: $crate::Priority) -> Self {
            self.$($field.)?priority = priority;
            self
        }

        /// Start no earlier than this long after the store accepts the job.
        pub fn delay(mut self, delay: std::time::Duration) -> Self {
            self.$($field.)?start = $crate::Start::After(delay);
            self
        }

        /// Start no earlier than this time; a time that has passed means now.
        pub fn at(mut self, time: std::time::SystemTime) -> Self {
            self.$($field.)?start = $crate::Start::At($crate::clock::timestamp(time));
            self
        }

        /// At most one open job with this key per queue and kind: a second enqueue returns the
        /// first job instead.
        pub fn unique(mut self, key: impl ToString) -> Self {
            self.$($field.)?unique_key = Some(key.to_string());
            self
        }

        /// In which states the unique key is held: while the job is open, if nothing else is
        /// said. Means nothing without [`unique`](Self::unique).
        pub fn unique_scope(mut self, scope: $crate::UniqueScope) -> Self {
            self.$($field.)?unique_scope = scope;
            self
        }

        /// How long the unique key is held at most. Means nothing without
        /// [`unique`](Self::unique).
        pub fn unique_for(mut self, window: std::time::Duration) -> Self {
            self.$($field.)?unique_window = Some(window);
            self
        }

        /// Start only after `job` has completed; die or be cancelled with it.
        pub fn depends_on(self, job: impl Into<$crate::JobId>) -> Self {
            self.depends_on_with(job, $crate::OnFailure::Cascade)
        }

        /// Start only after `job` has completed; `on_failure` says what to do if it does not.
        pub fn depends_on_with(
            mut self,
            job: impl Into<$crate::JobId>,
            on_failure: $crate::OnFailure,
        ) -> Self {
            let dependency = $crate::Dependency { on: job.into(), on_failure };
            self.$($field.)?depends_on.push(dependency);
            self
        }

        /// When a failed attempt is tried again; the kind's policy if none is given.
        pub fn retry(mut self, retry: $crate::Retry) -> Self {
            self.$($field.)?retry = Some(retry);
            self
        }

        /// Total runs, the first included; 3 if nothing else is said.
        pub fn max_attempts(mut self, max_attempts: u32) -> Self {
            self.$($field.)?max_attempts = Some(max_attempts);
            self
        }

        /// How long one attempt may run; 30 s if nothing else is said.
        pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
            self.$($field.)?timeout = Some($crate::Timeout::After(timeout));
            self
        }

        /// Let one attempt run for as long as it takes.
        pub fn no_timeout(mut self) -> Self {
            self.$($field.)?timeout = Some($crate::Timeout::Off);
            self
        }

        /// Cancel the job if it has not started this long after the store accepted it.
        pub fn expires_after(mut self, expires_after: std::time::Duration) -> Self {
            self.$($field.)?expires_after = Some(expires_after);
            self
        }

        /// A name to find the job by; may be called several times.
        pub fn tag(mut self, tag: impl Into<String>) -> Self {
            self.$($field.)?tags.push(tag.into());
            self
        }

        /// A label to carry along; may be called several times.
        pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
            self.$($field.)?metadata.insert(key.into(), value.into());
            self
        }

        /// Keeps its order with all jobs of the same lane in its queue: they run one at a time, by
        /// priority and acceptance, and one that has started keeps the others waiting until it
        /// has finished, retries included.
        pub fn lane(mut self, key: impl Into<String>) -> Self {
            self.$($field.)?lane = Some(key.into());
            self
        }

        /// The W3C `traceparent` of the producer. Without it, a job enqueued by a running job
        /// continues that job's trace, and any other begins one.
        pub fn trace(mut self, traceparent: impl Into<String>) -> Self {
            self.$($field.)?trace = Some(traceparent.into());
            self
        }

        /// The id to store the job under, so that the call can be repeated safely.
        pub fn id(mut self, id: $crate::JobId) -> Self {
            self.$($field.)?id = Some(id);
            self
        }
    };
}
pub(crate) use option_setters;

impl Options {
    /// Nothing said yet.
    pub fn new() -> Self {
        Self::default()
    }

    option_setters!();

    /// The job these options and a payload make, for [`Engine::enqueue_raw`]. Refuses names and a
    /// trace context that break their rules.
    ///
    /// [`Engine::enqueue_raw`]: crate::Engine::enqueue_raw
    pub fn into_new_job(self, kind: &str, payload: Bytes) -> Result<NewJob, Error> {
        let id = self.id.unwrap_or_else(new_id);
        let trace = self.trace.map_or_else(|| Ok(crate::trace::of_new_job(id)), check_trace)?;
        let queue = name(self.queue.as_deref().unwrap_or(DEFAULT_QUEUE))?;
        let unique = self.unique_key.map(|key| Unique {
            key,
            scope: self.unique_scope,
            window: self.unique_window,
        });
        let tags: Result<Vec<Name>, InvalidName> = self.tags.iter().map(|tag| name(tag)).collect();
        Ok(NewJob {
            priority: self.priority,
            start: self.start,
            unique,
            depends_on: self.depends_on,
            retry: self.retry,
            max_attempts: self.max_attempts,
            timeout: self.timeout,
            expires_after: self.expires_after,
            tags: tags?,
            metadata: self.metadata,
            trace: Some(trace),
            lane: self.lane.map(Lane::Key),
            ..NewJob::new(id, name(kind)?, queue, payload)
        })
    }
}

/// How many names a thread remembers.
const NAMES_KEPT: usize = 16;

/// A name, checked and allocated once for all the jobs that a thread enqueues one after the other:
/// there are few kinds and queues, and many jobs.
fn name(text: &str) -> Result<Name, InvalidName> {
    thread_local! {
        static USED: RefCell<Vec<Name>> = const { RefCell::new(Vec::new()) };
    }
    USED.with_borrow_mut(|used| {
        if let Some(name) = used.iter().find(|name| name.as_str() == text) {
            return Ok(name.clone());
        }
        let name = Name::new(text)?;
        if used.len() == NAMES_KEPT {
            used.clear();
        }
        used.push(name.clone());
        Ok(name)
    })
}

/// A fresh id that sorts by time.
pub fn new_id() -> JobId {
    #[cfg(feature = "testing")]
    if let Some(id) = crate::testing::next_id() {
        return id;
    }
    JobId::from_bytes(uuid::Uuid::now_v7().into_bytes())
}

/// `JobId::new()`, an id that nobody else has and that sorts by time. It is a trait because the id
/// itself belongs to the rules of the engine, which know neither the time nor chance.
///
/// ```
/// use windlass::{JobId, NewJobId};
///
/// assert_ne!(JobId::new(), JobId::new());
/// assert_eq!(JobId::named("order-7"), JobId::named("order-7"));
/// ```
pub trait NewJobId: Sized {
    /// A fresh id that sorts by time, like [`new_id`].
    fn new() -> Self;
}

impl NewJobId for JobId {
    fn new() -> Self {
        new_id()
    }
}

fn check_trace(traceparent: String) -> Result<String, Error> {
    if crate::trace::is_traceparent(&traceparent) {
        return Ok(traceparent);
    }
    Err(Error::Refused(Refusal::OutOfBounds {
        what: "trace context".into(),
        got: traceparent.chars().take(64).collect(),
        allowed: "it must be a W3C traceparent, such as \
                  00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            .to_string(),
    }))
}
