//! A job as a producer writes it in JSON, and what becomes of that: a [`NewJob`].
//!
//! The fields are those of [`Options`]; what they mean, and the bounds, are decided by the engine.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::core::limits::{BATCH_JOBS, at_most};
use windlass::{
    Backoff, Dependency, Jitter, JobId, Name, NewJob, OnFailure, Options, Priority, Retry,
    UniqueScope,
};

use super::body::TakenBody;
use super::openapi::DependencyForms;
use super::problem::{Problem, ProblemCode};
use super::text::{DurationText, TimeText};

/// A job to be enqueued.
#[derive(Deserialize, ToSchema)]
#[schema(as = NewJob)]
#[serde(deny_unknown_fields)]
pub(super) struct NewJobBody {
    /// Its id, so that the call can be repeated; a fresh one if it is not said.
    #[schema(value_type = Option<String>, format = "uuid")]
    id: Option<JobId>,
    /// Which handler runs it.
    #[schema(value_type = String)]
    kind: Name,
    /// What the handler receives: any JSON, kept to the letter.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The line to wait in; `default` if none is named.
    #[schema(value_type = Option<String>)]
    queue: Option<Name>,
    /// The place among ready jobs: higher starts sooner.
    #[serde(default)]
    priority: i32,
    /// Start no earlier than this long from now.
    delay: Option<DurationText>,
    /// Start no earlier than this time.
    at: Option<TimeText>,
    /// At most one such job per queue and kind.
    unique: Option<UniqueBody>,
    /// Jobs that must complete first.
    #[serde(default)]
    #[schema(value_type = Vec<DependencyForms>)]
    depends_on: Vec<DependencyBody>,
    /// When a failed attempt is tried again.
    retry: Option<RetryBody>,
    /// Total runs, the first included.
    max_attempts: Option<u32>,
    /// How long one attempt may run.
    timeout: Option<DurationText>,
    /// Cancel the job if it has not started by then.
    expires_after: Option<DurationText>,
    /// Names to find it by.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    tags: Vec<Name>,
    /// Labels carried along.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Keeps its order with all jobs of the same lane.
    lane: Option<String>,
    /// The job it came from.
    #[schema(value_type = Option<String>, format = "uuid")]
    parent: Option<JobId>,
    /// The W3C `traceparent` of the producer.
    trace: Option<String>,
}

/// What makes a job the same job as another.
#[derive(Deserialize, ToSchema)]
#[schema(as = NewUnique)]
#[serde(deny_unknown_fields)]
struct UniqueBody {
    key: String,
    #[serde(default)]
    scope: ScopeText,
    /// How long the key is held at most.
    window: Option<DurationText>,
}

/// In which states a unique key is held.
#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[schema(as = UniqueScope)]
#[serde(rename_all = "snake_case")]
enum ScopeText {
    /// While the job is open.
    #[default]
    Open,
    /// In every state.
    Any,
}

/// A job to wait for: its id, or that with what to do if it fails.
struct DependencyBody(Dependency);

#[derive(Deserialize, ToSchema)]
#[schema(as = NewDependency)]
#[serde(deny_unknown_fields)]
pub(super) struct DependencyFields {
    #[schema(value_type = String, format = "uuid")]
    on: JobId,
    #[serde(default)]
    on_failure: OnFailureText,
}

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[schema(as = OnFailure)]
#[serde(rename_all = "snake_case")]
enum OnFailureText {
    #[default]
    Cascade,
    Ignore,
    Wait,
}

/// When a failed attempt is tried again.
#[derive(Deserialize, ToSchema)]
#[schema(as = NewRetry)]
#[serde(deny_unknown_fields)]
struct RetryBody {
    /// How the delay grows.
    #[serde(default)]
    backoff: BackoffText,
    /// The first delay; 1 s if it is not said.
    delay: Option<DurationText>,
    /// No delay is longer.
    cap: Option<DurationText>,
    /// How much chance is mixed in.
    jitter: Option<JitterText>,
    /// Give up when the next try would start later than this after the first start.
    max_duration: Option<DurationText>,
}

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[schema(as = NewBackoff)]
#[serde(rename_all = "snake_case")]
enum BackoffText {
    Constant,
    Linear,
    #[default]
    Exponential,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[schema(as = JitterName)]
#[serde(rename_all = "snake_case")]
enum JitterText {
    None,
    Tenth,
    Equal,
    Full,
}

/// The jobs of a request, in its order.
pub(super) struct JobsBody {
    pub(super) jobs: Vec<NewJob>,
    /// It was a list, so the answer is one.
    pub(super) is_list: bool,
}

impl JobsBody {
    /// Reads one job or a list of them. Under an idempotency key, ids are made from it.
    pub(super) fn of(body: &TakenBody, key: Option<&str>) -> Result<Self, Problem> {
        let is_list = body.is_list();
        let said: Vec<NewJobBody> = match is_list {
            true => body.parse()?,
            false => vec![body.parse()?],
        };
        at_most("jobs of one request", said.len(), BATCH_JOBS, "send fewer at once")?;
        let jobs = said.into_iter().enumerate().map(|(place, job)| {
            let pointer = if is_list { format!("/{place}") } else { String::new() };
            job.into_new_job(key.map(|key| id_under(key, place)), &pointer)
        });
        Ok(Self { jobs: jobs.collect::<Result<_, _>>()?, is_list })
    }
}

/// The id of a job under an idempotency key: the same for the same place in the same request.
fn id_under(key: &str, place: usize) -> JobId {
    JobId::named(&format!("idempotency-key/{place}/{key}"))
}

impl NewJobBody {
    /// `pointer` is where the job stands in the body.
    fn into_new_job(self, under_key: Option<JobId>, pointer: &str) -> Result<NewJob, Problem> {
        let wrong = |field: &str, why: &str| {
            Problem::new(ProblemCode::InvalidField, why).at(&format!("{pointer}/{field}"))
        };
        let mut options = Options::new().priority(Priority(self.priority));
        options = match (under_key, self.id) {
            (Some(_), Some(_)) => {
                return Err(wrong("id", "say either `id` or the header `Idempotency-Key`"));
            }
            (Some(id), None) | (None, Some(id)) => options.id(id),
            (None, None) => options,
        };
        options = match (self.delay, self.at) {
            (Some(_), Some(_)) => return Err(wrong("at", "say either `delay` or `at`")),
            (Some(DurationText(delay)), None) => options.delay(delay),
            (None, Some(TimeText(at))) => options.at(at),
            (None, None) => options,
        };
        if let Some(queue) = &self.queue {
            options = options.queue(queue.as_str());
        }
        if let Some(unique) = self.unique {
            options = unique.add_to(options);
        }
        for DependencyBody(Dependency { on, on_failure }) in self.depends_on {
            options = options.depends_on_with(on, on_failure);
        }
        if let Some(retry) = self.retry {
            options = options.retry(retry.into_retry());
        }
        if let Some(max_attempts) = self.max_attempts {
            options = options.max_attempts(max_attempts);
        }
        if let Some(DurationText(timeout)) = self.timeout {
            options = options.timeout(timeout);
        }
        if let Some(DurationText(expires_after)) = self.expires_after {
            options = options.expires_after(expires_after);
        }
        if let Some(lane) = self.lane {
            options = options.lane(lane);
        }
        if let Some(trace) = self.trace {
            options = options.trace(trace);
        }
        options = self.tags.iter().fold(options, |options, tag| options.tag(tag.as_str()));
        let metadata = self.metadata.into_iter();
        options = metadata.fold(options, |options, (key, value)| options.metadata(key, value));
        let payload = self.payload.as_ref().map_or("null", |payload| payload.get());
        let job = options.into_new_job(self.kind.as_str(), payload.as_bytes().into())?;
        Ok(NewJob { parent: self.parent, ..job })
    }
}

impl UniqueBody {
    fn add_to(self, options: Options) -> Options {
        let scope = match self.scope {
            ScopeText::Open => UniqueScope::Open,
            ScopeText::Any => UniqueScope::Any,
        };
        let options = options.unique(self.key).unique_scope(scope);
        match self.window {
            Some(DurationText(window)) => options.unique_for(window),
            None => options,
        }
    }
}

impl RetryBody {
    /// What is not said is as in [`Retry::default`].
    fn into_retry(self) -> Retry {
        let usual = Retry::default();
        let delay = self.delay.map_or(std::time::Duration::from_secs(1), |DurationText(it)| it);
        let backoff = match self.backoff {
            BackoffText::Constant => Backoff::Constant(delay),
            BackoffText::Linear => Backoff::Linear(delay),
            BackoffText::Exponential => Backoff::Exponential { base: delay, factor_milli: 2_000 },
        };
        let jitter = match self.jitter {
            None => usual.jitter,
            Some(JitterText::None) => Jitter::None,
            Some(JitterText::Tenth) => Jitter::Tenth,
            Some(JitterText::Equal) => Jitter::Equal,
            Some(JitterText::Full) => Jitter::Full,
        };
        let cap = self.cap.map_or(usual.cap.max(delay), |DurationText(cap)| cap);
        let max_duration = self.max_duration.map(|DurationText(length)| length);
        Retry { backoff, cap, jitter, max_attempts: None, max_duration }
    }
}

impl<'de> Deserialize<'de> for DependencyBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DependencyForm)
    }
}

struct DependencyForm;

impl<'de> Visitor<'de> for DependencyForm {
    type Value = DependencyBody;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the id of a job, or an object with `on` and `on_failure`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<DependencyBody, E> {
        let on = text.parse().map_err(E::custom)?;
        Ok(DependencyBody(Dependency { on, on_failure: OnFailure::default() }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DependencyBody, A::Error> {
        let fields = DependencyFields::deserialize(MapAccessDeserializer::new(map))?;
        let on_failure = match fields.on_failure {
            OnFailureText::Cascade => OnFailure::Cascade,
            OnFailureText::Ignore => OnFailure::Ignore,
            OnFailureText::Wait => OnFailure::Wait,
        };
        Ok(DependencyBody(Dependency { on: fields.on, on_failure }))
    }
}
