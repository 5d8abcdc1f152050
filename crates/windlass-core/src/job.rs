//! What a job is: its identity, what its producer asked for, and the state it is in.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;
use core::str::FromStr;
use core::time::Duration;

pub use crate::lease::{Lease, LeaseToken, RequestId};
use crate::limits::{self, Limits, at_most, no_longer_than, well_formed};
use crate::name::Name;
use crate::object::Address;
use crate::refusal::Refusal;
use crate::retry::{Backoff, Retry};
use crate::time::Timestamp;

/// The identity of a job: a UUID, version 7 when the engine chooses it.
///
/// A producer may choose its own, and should when it must be able to repeat an enqueue whose
/// answer was lost: the same id gives exactly one job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId([u8; 16]);

/// The namespace of ids that are made from a text.
const NAMED: uuid::Uuid = uuid::Uuid::from_u128(0x9e6f_5d1c_43a7_5b08_8a52_77d3_1c0e_64f9);

impl JobId {
    /// The id that this text stands for: the same text gives the same id, in every process and in
    /// every version. A producer that has a name for what is to be done, such as `order-7/receipt`,
    /// can so enqueue it as often as it likes, and gets one job for as long as that is kept.
    ///
    /// Ids are those of a whole store and not of a kind or a queue, so the text should say what
    /// is done, and not only to whom: another job under the same id is refused
    /// ([`Refusal::IdReused`]). Two texts that give the same id are not to be expected by chance
    /// (122 bits of a hash); do not rely on it against someone who searches for them. To count
    /// jobs once within a window of time, use a unique key instead.
    ///
    /// It is a UUID of version 5 in the namespace `9e6f5d1c-43a7-5b08-8a52-77d31c0e64f9`, which
    /// every language can make: `uuid_generate_v5(…, 'order-7/receipt')` in PostgreSQL.
    ///
    /// ```
    /// # use windlass_core::job::JobId;
    /// let id = JobId::named("order-7/receipt");
    /// assert_eq!(id.to_string(), "0eb45bec-dd46-5ba6-aa9c-fcdfc665c63a");
    /// assert_ne!(id, JobId::named("order-7/refund"));
    /// ```
    pub fn named(text: &str) -> Self {
        Self(uuid::Uuid::new_v5(&NAMED, text.as_bytes()).into_bytes())
    }

    /// The id with these sixteen bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id with this number, most significant byte first.
    pub const fn from_u128(number: u128) -> Self {
        Self(number.to_be_bytes())
    }

    /// The sixteen bytes of the id.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a job id; a job id is a UUID such as 0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10")]
pub struct InvalidJobId;

impl FromStr for JobId {
    type Err = InvalidJobId;

    fn from_str(text: &str) -> Result<Self, InvalidJobId> {
        uuid::Uuid::try_parse(text).map(|id| Self(id.into_bytes())).map_err(|_| InvalidJobId)
    }
}

/// As text, so that an id can travel in a payload; where nobody reads it, as its bytes.
impl serde::Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        uuid::Uuid::from_bytes(self.0).serialize(serializer)
    }
}

impl<'de> serde::Deserialize<'de> for JobId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = <alloc::borrow::Cow<'de, str>>::deserialize(deserializer)?;
            return text.parse().map_err(serde::de::Error::custom);
        }
        uuid::Uuid::deserialize(deserializer).map(|id| Self(id.into_bytes()))
    }
}

/// Which of two ready jobs starts first: the one with the higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Priority(pub i32);

impl Priority {
    /// After everything else: −10.
    pub const LOW: Priority = Priority(-10);
    /// The default: 0.
    pub const NORMAL: Priority = Priority(0);
    /// Before normal work: 10.
    pub const HIGH: Priority = Priority(10);
    /// Before everything else: 20.
    pub const CRITICAL: Priority = Priority(20);
}

/// Opaque bytes: a payload or an output. The engine never looks inside. Cloning is cheap.
pub type Bytes = Arc<[u8]>;

/// When a job may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Start {
    /// As soon as a worker is free.
    #[default]
    Now,
    /// This long after the store accepts it, by the store's clock.
    After(Duration),
    /// At this time. A time that has passed means now, so that it cannot jump the queue.
    At(Timestamp),
}

impl Start {
    /// When a job that is accepted at `now` may start.
    pub fn due(self, now: Timestamp) -> Timestamp {
        match self {
            Start::Now => now,
            Start::After(delay) => now + delay,
            Start::At(at) => at,
        }
    }

    /// Refuses a start further away than [`limits::DELAY_MAX`].
    pub fn check(self, now: Timestamp) -> Result<(), Refusal> {
        match self {
            Start::Now => Ok(()),
            Start::After(delay) => no_longer_than("delay", delay),
            Start::At(at) => no_longer_than("delay", at.since(now)),
        }
    }
}

/// What "the same job" means for [`Unique`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum UniqueScope {
    /// The key is held while the job is open, and released when it completes, dies or is
    /// cancelled.
    #[default]
    Open,
    /// The key is held in every state, until the window ends; without a window, for as long as the
    /// job can be found. A job whose place an edited one took holds it no longer.
    Any,
}

/// At most one job per queue, kind and key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Unique {
    /// What makes the job the same job.
    pub key: String,
    /// In which states the key is held.
    pub scope: UniqueScope,
    /// How long after acceptance the key is held at most.
    pub window: Option<Duration>,
}

/// What becomes of a job when one it depends on dies or is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum OnFailure {
    /// It follows: dead after a death, cancelled after a cancellation.
    #[default]
    Cascade,
    /// It counts the dependency as met and runs.
    Ignore,
    /// It stays blocked until the dependency is replayed and completes. If the dependency is
    /// removed instead, it follows as with [`OnFailure::Cascade`].
    Wait,
}

/// One edge of the dependency graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Dependency {
    /// The job that must complete first.
    pub on: JobId,
    /// What to do if it does not.
    pub on_failure: OnFailure,
}

/// Which jobs of its queue a job neither overtakes nor overlaps with.
///
/// Jobs of one lane run one at a time. Jobs with the same key are in one lane for ever, however
/// many lanes their queue has, and start in the order of their priority and acceptance: one that
/// has started keeps the others of its key waiting until it has finished, retries included. Jobs
/// that wait for a time or for other jobs join the line when they need not wait any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Lane {
    /// The lane of this key: one of the lanes of its queue, or its own if the queue has none.
    Key(String),
    /// The lane whose turn it is, so that a queue's lanes get equally many.
    Spread,
    /// What [`Lane::Spread`] becomes when the job is accepted: its number among such jobs.
    Turn(u64),
}

impl Lane {
    /// The number that stands for all jobs which must keep their order among each other; `None`
    /// before it is known.
    pub fn partition(&self) -> Option<u64> {
        match self {
            Lane::Key(key) => Some(xxhash_rust::xxh3::xxh3_64(key.as_bytes())),
            Lane::Spread => None,
            Lane::Turn(turn) => Some(*turn),
        }
    }

    /// Which of so many lanes the jobs of this partition are in.
    pub fn of(partition: u64, lanes: NonZeroU32) -> u32 {
        let lane = partition % u64::from(lanes.get());
        u32::try_from(lane).expect("a remainder is smaller than what it was divided by")
    }
}

/// How long one attempt may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Timeout {
    /// The attempt is told to stop after this long, and failed.
    After(Duration),
    /// No limit; the lease is renewed for as long as the worker lives.
    Off,
}

/// Everything a producer says about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct NewJob {
    /// Its identity.
    pub id: JobId,
    /// Which handler runs it.
    pub kind: Name,
    /// The line it waits in.
    pub queue: Name,
    /// What the handler receives.
    #[cfg_attr(feature = "wire", serde(with = "crate::wire::bytes"))]
    pub payload: Bytes,
    /// Its place among ready jobs.
    pub priority: Priority,
    /// When it may start.
    pub start: Start,
    /// At most one such job.
    pub unique: Option<Unique>,
    /// Jobs that must complete first.
    pub depends_on: Vec<Dependency>,
    /// When a failed attempt is tried again; `None` leaves it to the worker's kind.
    pub retry: Option<Retry>,
    /// Total runs, whatever the policy says; `None` leaves it to the policy.
    pub max_attempts: Option<u32>,
    /// How long one attempt may run; `None` leaves it to the worker's kind.
    pub timeout: Option<Timeout>,
    /// A job that has not started this long after acceptance is cancelled as expired.
    pub expires_after: Option<Duration>,
    /// Names to find it by.
    pub tags: Vec<Name>,
    /// Labels carried along.
    pub metadata: BTreeMap<String, String>,
    /// W3C trace context of the producer.
    pub trace: Option<String>,
    /// The job it came from: the one that continued with it, or whose payload was edited.
    pub parent: Option<JobId>,
    /// Jobs it neither overtakes nor overlaps with; `None` for none.
    pub lane: Option<Lane>,
    /// The object it is bound to, which must be there when the job is accepted.
    pub object: Option<Address>,
}

impl NewJob {
    /// A job with nothing but identity, kind, queue and payload; the rest is default.
    pub fn new(id: JobId, kind: Name, queue: Name, payload: impl Into<Bytes>) -> Self {
        Self {
            id,
            kind,
            queue,
            payload: payload.into(),
            priority: Priority::NORMAL,
            start: Start::Now,
            unique: None,
            depends_on: Vec::new(),
            retry: None,
            max_attempts: None,
            timeout: None,
            expires_after: None,
            tags: Vec::new(),
            metadata: BTreeMap::new(),
            trace: None,
            parent: None,
            lane: None,
            object: None,
        }
    }

    /// Refuses a job that is beyond a bound of what a job may be, whatever the store holds.
    ///
    /// What remains to be checked is how it stands to other jobs: its id, its unique key, its
    /// dependencies, its object, and whether its queue has room.
    pub fn check(&self, limits: &Limits, now: Timestamp) -> Result<(), Refusal> {
        let payload_knob = limits::PAYLOAD_REMEDY;
        at_most("payload bytes", self.payload.len(), limits.payload_bytes, payload_knob)?;
        at_most("tags", self.tags.len(), limits::TAGS, "use fewer")?;
        at_most("dependencies", self.depends_on.len(), limits::DEPENDENCIES, "chain the jobs")?;
        let entries = self.metadata.len();
        at_most("metadata entries", entries, limits::METADATA_ENTRIES, "use the payload")?;
        let bytes = self.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        at_most("metadata bytes", bytes, limits::METADATA_BYTES, "use the payload")?;
        if let Some(unique) = &self.unique {
            well_formed("unique key", &unique.key)?;
            no_longer_than("unique window", unique.window.unwrap_or_default())?;
        }
        match &self.lane {
            Some(Lane::Key(key)) => well_formed("lane key", key)?,
            Some(Lane::Turn(turn)) if *turn > limits::TURN_MAX => {
                return Err(Refusal::OutOfBounds {
                    what: "turn".into(),
                    got: turn.to_string(),
                    allowed: "use `Lane::Spread`, which takes the next one".to_string(),
                });
            }
            Some(Lane::Turn(_) | Lane::Spread) | None => {}
        }
        let trace_bytes = self.trace.as_ref().map_or(0, |trace| trace.len());
        at_most("trace context bytes", trace_bytes, limits::TRACE_BYTES, "send a traceparent")?;
        if let Some(Backoff::Custom(delays)) = self.retry.as_ref().map(|retry| &retry.backoff) {
            at_most("retry delays", delays.len(), limits::CUSTOM_DELAYS, "the last one repeats")?;
        }
        if self.timeout == Some(Timeout::After(Duration::ZERO)) {
            return Err(Refusal::OutOfBounds {
                what: "timeout".into(),
                got: "0 s".to_string(),
                allowed: "turn it off instead".to_string(),
            });
        }
        no_longer_than("expiry", self.expires_after.unwrap_or_default())?;
        self.start.check(now)
    }

    /// Total runs the producer asked for, if it did; at least one.
    pub fn max_attempts(&self) -> Option<u32> {
        let by_policy = self.retry.as_ref().and_then(|retry| retry.max_attempts);
        self.max_attempts.or(by_policy).map(|runs| runs.max(1))
    }

    /// A number that differs when kind, queue or payload differ: tells a repeated enqueue from a
    /// reused id.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        for part in [self.kind.as_str().as_bytes(), self.queue.as_str().as_bytes(), &self.payload] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.digest()
    }
}

/// Why a job is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum DeadReason {
    /// It failed as often as it may run.
    AttemptsExhausted,
    /// Its handler said that trying again is pointless.
    Permanent,
    /// Its retry policy's maximum duration is over.
    DurationExhausted,
    /// Workers died while running it, as often as it may run or be recovered.
    Crashed,
    /// A job it depends on died or was removed.
    DependencyFailed,
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeadReason::AttemptsExhausted => "it failed as often as it may run",
            DeadReason::Permanent => "its handler said that trying again is pointless",
            DeadReason::DurationExhausted => "its time for retries is over",
            DeadReason::Crashed => "its workers were lost",
            DeadReason::DependencyFailed => "a job it depends on failed",
        })
    }
}

/// Why a job is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum CancelReason {
    /// Someone asked for it.
    Requested,
    /// Its own handler said so.
    Handler,
    /// It had not started when it expired.
    Expired,
    /// Its queue was cleared.
    Cleared,
    /// A job it depends on was cancelled.
    DependencyCancelled,
    /// A new job with an edited payload took its place.
    Replaced,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CancelReason::Requested => "someone asked for it",
            CancelReason::Handler => "its handler said so",
            CancelReason::Expired => "it had not started when it expired",
            CancelReason::Cleared => "its queue was cleared",
            CancelReason::DependencyCancelled => "a job it depends on was cancelled",
            CancelReason::Replaced => "an edited job took its place",
        })
    }
}

/// Where a job stands. Data that exists only in one state lives in its variant, so a job without a
/// lease cannot be running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum State {
    /// Waits for `unmet` other jobs.
    Blocked {
        /// How many dependencies have not completed.
        unmet: u32,
        /// The job may not start earlier, even when unblocked.
        not_before: Timestamp,
    },
    /// Waits for a time: delayed, snoozed, or to be tried again.
    Scheduled {
        /// When it becomes ready.
        at: Timestamp,
    },
    /// May start at any moment.
    Ready {
        /// When it became due, which decides its place within its priority.
        since: Timestamp,
    },
    /// A worker runs it.
    Running(Lease),
    /// Its handler succeeded.
    Completed {
        /// When.
        at: Timestamp,
    },
    /// It gave up and waits among the dead letters for a replay.
    Dead {
        /// When.
        at: Timestamp,
        /// Why.
        reason: DeadReason,
    },
    /// It was called off.
    Cancelled {
        /// When.
        at: Timestamp,
        /// Why.
        reason: CancelReason,
    },
}

/// The name of a [`State`], without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum StateName {
    /// [`State::Blocked`]
    Blocked,
    /// [`State::Scheduled`]
    Scheduled,
    /// [`State::Ready`]
    Ready,
    /// [`State::Running`]
    Running,
    /// [`State::Completed`]
    Completed,
    /// [`State::Dead`]
    Dead,
    /// [`State::Cancelled`]
    Cancelled,
}

impl StateName {
    /// All seven, in the order of a job's life.
    pub const ALL: [StateName; 7] = [
        StateName::Blocked,
        StateName::Scheduled,
        StateName::Ready,
        StateName::Running,
        StateName::Completed,
        StateName::Dead,
        StateName::Cancelled,
    ];

    /// The word used in output and filters.
    pub const fn as_str(self) -> &'static str {
        match self {
            StateName::Blocked => "blocked",
            StateName::Scheduled => "scheduled",
            StateName::Ready => "ready",
            StateName::Running => "running",
            StateName::Completed => "completed",
            StateName::Dead => "dead",
            StateName::Cancelled => "cancelled",
        }
    }

    /// Whether the job has not started or will start again: blocked, scheduled or ready.
    pub const fn is_waiting(self) -> bool {
        matches!(self, StateName::Blocked | StateName::Scheduled | StateName::Ready)
    }

    /// Whether nothing more happens to the job by itself.
    pub const fn is_terminal(self) -> bool {
        matches!(self, StateName::Completed | StateName::Dead | StateName::Cancelled)
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl State {
    /// Whether a worker holds the job.
    pub const fn is_running(&self) -> bool {
        matches!(self, State::Running(_))
    }

    /// The name of the state.
    pub const fn name(&self) -> StateName {
        match self {
            State::Blocked { .. } => StateName::Blocked,
            State::Scheduled { .. } => StateName::Scheduled,
            State::Ready { .. } => StateName::Ready,
            State::Running(_) => StateName::Running,
            State::Completed { .. } => StateName::Completed,
            State::Dead { .. } => StateName::Dead,
            State::Cancelled { .. } => StateName::Cancelled,
        }
    }
}

/// The part of a job that changes: its state and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct JobStatus {
    /// Where it stands.
    pub state: State,
    /// Starts counted so far: raised at claim, taken back by a snooze or an interruption.
    pub attempts: u32,
    /// Times it was recovered from a lost worker since it last succeeded or was replayed.
    pub recoveries: u32,
    /// How often it was replayed.
    pub generation: u32,
    /// It has started since it was accepted or last replayed.
    pub begun: bool,
    /// The lease under which its last attempt was settled. `None` while it runs, and if that
    /// attempt ended otherwise, because its worker was lost, or there was none since the job was
    /// accepted or last replayed. Whoever settles again under it is answered and not refused.
    pub settled_by: Option<LeaseToken>,
}

impl JobStatus {
    /// The status of a job that was just accepted.
    pub const fn new(state: State) -> Self {
        Self { state, attempts: 0, recoveries: 0, generation: 0, begun: false, settled_by: None }
    }
}
