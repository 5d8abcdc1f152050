//! What a durable object is: an address, a state that no one here looks into, at most one alarm.
//!
//! An object's alarm *is* a scheduled job bound to the object, so leases, retries, dead letters,
//! recovery and events are those of jobs. A [`Turn`] changes an object: its state, its alarm, jobs,
//! counters and events in one commit, or nothing.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::audit::Actor;
use crate::event::EventKind;
use crate::job::{Bytes, JobId, NewJob, Start};
use crate::limits::{self, at_most, no_longer_than};
use crate::name::{Name, excerpt};
use crate::outcome::{ErrorText, cut};
use crate::refusal::Refusal;
use crate::reserved;
use crate::time::Timestamp;

/// Which object: the primitive it is made by, the definition of that, and a key of its own.
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    kind: Name,
    name: Name,
    key: Arc<str>,
}

impl Address {
    /// The object with this key. It may have 1 to 512 bytes and no control characters.
    pub fn new(kind: Name, name: Name, key: &str) -> Result<Self, Refusal> {
        let problem = if key.is_empty() {
            "it must not be empty"
        } else if key.len() > limits::KEY_BYTES {
            "it may have at most 512 bytes; hash it"
        } else if key.chars().any(char::is_control) {
            "it must not hold control characters"
        } else {
            return Ok(Self { kind, name, key: key.into() });
        };
        Err(Refusal::OutOfBounds {
            what: "object key".into(),
            got: excerpt(key),
            allowed: problem.to_string(),
        })
    }

    /// The primitive, such as `debounce`.
    pub fn kind(&self) -> &Name {
        &self.kind
    }

    /// The definition, such as `webhooks`.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Which of the definition's objects.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Before the addresses of all objects of a kind, in their order. No object has it.
    pub(crate) fn before_all_of(kind: &Name) -> Self {
        Self { kind: kind.clone(), name: Name::least(), key: "".into() }
    }

    /// The same address, with names that others share.
    pub(crate) fn sharing(self, kind: Name, name: Name) -> Self {
        Self { kind, name, key: self.key }
    }
}

/// `kind/name/key`: neither names nor kinds hold a slash.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.name, self.key)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where an object stands. Whether its code runs right now is told by its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum ObjectStatus {
    /// It reacts to commands and alarms.
    Active,
    /// Someone stopped it; its state is kept.
    Stopped,
    /// It cannot go on by itself; the reason is told, its state is kept.
    Failed,
}

impl ObjectStatus {
    /// The word used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            ObjectStatus::Active => "active",
            ObjectStatus::Stopped => "stopped",
            ObjectStatus::Failed => "failed",
        }
    }
}

impl fmt::Display for ObjectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is known of an object besides its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct ObjectMeta {
    /// Grows with every turn; 1 for the first.
    pub version: u64,
    /// Tells it from others that had, or will have, its address: no job that is bound to it has a
    /// lower sequence number, and every job bound to one of the others before it has.
    pub incarnation: u64,
    /// Where it stands.
    pub status: ObjectStatus,
    /// Why it was stopped or failed.
    pub reason: Option<ErrorText>,
    /// When its first turn was.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When its code last succeeded.
    pub last_success_at: Option<Timestamp>,
    /// How often its code succeeded.
    pub runs: u64,
    /// How often its code failed for good.
    pub failures: u64,
    /// How often one of its jobs was recovered from a lost worker since its code last succeeded.
    pub recoveries: u32,
    /// When that was last.
    pub last_recovery_at: Option<Timestamp>,
    /// The job that is its alarm.
    pub alarm: Option<JobId>,
    /// When it is purged.
    pub purge_at: Option<Timestamp>,
}

impl ObjectMeta {
    /// An object that has had no turn yet; jobs accepted from now on have at least this number.
    pub fn new(at: Timestamp, next_sequence: u64) -> Self {
        Self {
            version: 0,
            incarnation: next_sequence,
            status: ObjectStatus::Active,
            reason: None,
            created_at: at,
            updated_at: at,
            last_success_at: None,
            runs: 0,
            failures: 0,
            recoveries: 0,
            last_recovery_at: None,
            alarm: None,
            purge_at: None,
        }
    }

    /// Whether a job with this address and sequence number is bound to this object, and not to
    /// one that had the address before.
    ///
    /// Numbers say so and not times: a clock may be put back between the two.
    pub fn owns(&self, sequence: u64) -> bool {
        sequence >= self.incarnation
    }

    /// Takes over what a turn says of the object: its version, status, counters and when it is
    /// purged. The alarm is not touched, which depends on the jobs there are.
    pub fn take_turn(&mut self, turn: &Turn, now: Timestamp) {
        self.version += 1;
        self.updated_at = now;
        if let Some((status, reason)) = &turn.status {
            (self.status, self.reason) = (*status, reason.clone());
        }
        match turn.ran {
            Some(RunResult::Well) => {
                self.runs += 1;
                self.last_success_at = Some(now);
                self.recoveries = 0;
            }
            Some(RunResult::Badly) => self.failures += 1,
            None => {}
        }
        match turn.purge {
            Purge::Keep | Purge::Now => {}
            Purge::After(delay) => self.purge_at = Some(now + delay),
            Purge::Never => self.purge_at = None,
        }
    }
}

/// Everything known about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct ObjectRecord {
    /// Which.
    pub address: Address,
    /// Where it stands.
    pub meta: ObjectMeta,
    /// Its state, opaque.
    #[cfg_attr(feature = "wire", serde(with = "crate::wire::bytes"))]
    pub state: Bytes,
}

/// An object as it is now, with what its jobs say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct ObjectView {
    /// What is kept of it.
    pub record: ObjectRecord,
    /// Since when a job of it runs.
    pub executing_since: Option<Timestamp>,
    /// When its alarm goes off, unless it has.
    pub alarm_at: Option<Timestamp>,
    /// Jobs bound to it that wait or run, its alarm among them.
    pub open_jobs: u64,
}

/// What is now true of an object, to be persisted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectChange {
    /// Which.
    pub address: Address,
    /// Where it stands.
    pub meta: ObjectMeta,
    /// Its state; `None` if that has not changed.
    pub state: Option<Bytes>,
}

/// One change of one object: all of it in one commit, or nothing.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Turn {
    /// Which object.
    pub object: Address,
    /// The version the turn was made for; 0 if there is none yet. If another turn came between,
    /// this one is refused and can be made again.
    pub version: u64,
    /// Its new state; `None` leaves it. A new object without one has an empty state.
    #[cfg_attr(feature = "wire", serde(default, with = "crate::wire::maybe_bytes"))]
    pub state: Option<Bytes>,
    /// Its new status, and why; `None` leaves both.
    pub status: Option<(ObjectStatus, Option<ErrorText>)>,
    /// What its code has achieved, if the turn follows from that.
    pub ran: Option<RunResult>,
    /// What becomes of its alarm.
    pub alarm: Alarm,
    /// Jobs to accept, by the rules of an enqueue.
    pub jobs: Vec<Arc<NewJob>>,
    /// What to tell of it.
    pub news: Vec<ObjectEvent>,
    /// What becomes of the object itself.
    pub purge: Purge,
    /// Who makes it; the commit then has an audit entry. `None` if the program does by itself.
    pub by: Option<Actor>,
}

impl Turn {
    /// A turn that changes nothing yet.
    pub fn new(object: Address, version: u64) -> Self {
        Self {
            object,
            version,
            state: None,
            status: None,
            ran: None,
            alarm: Alarm::Keep,
            jobs: Vec::new(),
            news: Vec::new(),
            purge: Purge::Keep,
            by: None,
        }
    }

    /// Refuses a turn beyond the bounds of its state, its news or its delays, one of an audit
    /// entry, and one with a job that is bound to another object.
    ///
    /// Its jobs are checked with the batch they are accepted in ([`crate::batch::check`]); what
    /// remains is whether the version is still that of the object.
    pub fn check(&self, now: Timestamp) -> Result<(), Refusal> {
        reserved::check_turn_of(&self.object)?;
        let bytes = self.state.as_ref().map_or(0, |state| state.len());
        reserved::state_bound(self.object.kind()).check(bytes)?;
        at_most("news of one turn", self.news.len(), limits::OBJECT_NEWS, "tell less")?;
        if let Purge::After(delay) = self.purge {
            no_longer_than("purge delay", delay)?;
        }
        let alarm = match &self.alarm {
            Alarm::Keep | Alarm::Cancel => None,
            Alarm::Move(start) => {
                start.check(now)?;
                None
            }
            Alarm::Set(job) => {
                job.start.check(now)?;
                Some(job)
            }
        };
        let bound = alarm.into_iter().chain(&self.jobs).filter_map(|job| job.object.as_ref());
        match bound.into_iter().find(|object| **object != self.object) {
            Some(other) => Err(Refusal::UnknownObject { object: other.clone() }),
            None => Ok(()),
        }
    }

    /// The job of the alarm it sets, bound to the object.
    pub fn alarm_job(&self) -> Option<Arc<NewJob>> {
        match &self.alarm {
            Alarm::Keep | Alarm::Cancel | Alarm::Move(_) => None,
            Alarm::Set(job) => {
                let mut job = job.clone();
                if job.object.is_none() {
                    Arc::make_mut(&mut job).object = Some(self.object.clone());
                }
                Some(job)
            }
        }
    }
}

/// What an object's code has achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum RunResult {
    /// It succeeded: counted, and recoveries are forgiven.
    Well,
    /// It failed for good: counted.
    Badly,
}

/// What becomes of an object's alarm.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Alarm {
    /// It stays as it is.
    Keep,
    /// It will not go off. If its job runs, or ran and waits to be tried again, that is cancelled.
    Cancel,
    /// It is this job, bound to the object. An alarm that waits for its first start is moved to
    /// when this job starts if it is of the same kind and payload, and replaced otherwise; one that
    /// has started is left alone, and this one is its successor.
    Set(Arc<NewJob>),
    /// It goes off then, if it waits: for its first start, or to be tried again. One that runs is
    /// left alone, and so is an object that has none.
    Move(Start),
}

/// Something to tell of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct ObjectEvent {
    /// The dotted name subscribers filter by, such as `debounce.flushed`.
    pub topic: Name,
    /// What there is to say, as JSON.
    pub detail: String,
}

impl ObjectEvent {
    /// The event that tells it, with its detail cut to what an event holds.
    pub fn told(self) -> EventKind {
        let detail = cut(&self.detail, limits::ERROR_BYTES).into();
        EventKind::Object { topic: self.topic, detail }
    }
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Purge {
    /// It stays.
    Keep,
    /// It goes in this commit, with its alarm and everything of it that waits.
    Now,
    /// It goes so much later, unless a turn takes that back, and not before its last open job has
    /// ended.
    After(Duration),
    /// It no longer goes by itself.
    Never,
}
