//! A job as its producer sent it.
//!
//! Most jobs leave most fields at their defaults: in front of those that are there stands one bit
//! for each.

use windlass_core::job::{
    Dependency, Lane, NewJob, OnFailure, Priority, Start, Timeout, Unique, UniqueScope,
};
use windlass_core::retry::{Backoff, Jitter, Retry};

use super::Wrong;
use super::bytes::{
    EntryReader, RANGE, bytes, duration, id, list, name, option, text, time, varint,
};
use super::objects::address;

const START_AFTER: u64 = 1;
const START_AT: u64 = 1 << 1;
const UNIQUE: u64 = 1 << 2;
const DEPENDS_ON: u64 = 1 << 3;
const RETRY: u64 = 1 << 4;
const MAX_ATTEMPTS: u64 = 1 << 5;
const TIMEOUT: u64 = 1 << 6;
const TIMEOUT_OFF: u64 = 1 << 7;
const EXPIRES: u64 = 1 << 8;
const TAGS: u64 = 1 << 9;
const METADATA: u64 = 1 << 10;
const TRACE: u64 = 1 << 11;
const PARENT: u64 = 1 << 12;
const LANE_KEY: u64 = 1 << 13;
const LANE_SPREAD: u64 = 1 << 14;
const LANE_TURN: u64 = 1 << 15;
const OBJECT: u64 = 1 << 16;
const ALL: u64 = (1 << 17) - 1;

/// Which of the fields are there that a job may do without.
fn fields_of(job: &NewJob) -> u64 {
    let bit = |on: bool, bit: u64| if on { bit } else { 0 };
    let start = match job.start {
        Start::Now => 0,
        Start::After(_) => START_AFTER,
        Start::At(_) => START_AT,
    };
    let timeout = match job.timeout {
        None => 0,
        Some(Timeout::After(_)) => TIMEOUT,
        Some(Timeout::Off) => TIMEOUT_OFF,
    };
    let lane = match job.lane {
        None => 0,
        Some(Lane::Key(_)) => LANE_KEY,
        Some(Lane::Spread) => LANE_SPREAD,
        Some(Lane::Turn(_)) => LANE_TURN,
    };
    start
        | timeout
        | lane
        | bit(job.object.is_some(), OBJECT)
        | bit(job.unique.is_some(), UNIQUE)
        | bit(!job.depends_on.is_empty(), DEPENDS_ON)
        | bit(job.retry.is_some(), RETRY)
        | bit(job.max_attempts.is_some(), MAX_ATTEMPTS)
        | bit(job.expires_after.is_some(), EXPIRES)
        | bit(!job.tags.is_empty(), TAGS)
        | bit(!job.metadata.is_empty(), METADATA)
        | bit(job.trace.is_some(), TRACE)
        | bit(job.parent.is_some(), PARENT)
}

pub(super) fn new_job(job: &NewJob, to: &mut Vec<u8>) {
    id(job.id, to);
    name(&job.kind, to);
    name(&job.queue, to);
    bytes(&job.payload, to);
    to.extend(job.priority.0.to_le_bytes());
    varint(fields_of(job), to);
    rules(job, to);
    labels(job, to);
}

impl EntryReader<'_> {
    pub(super) fn new_job(&mut self) -> Result<NewJob, Wrong> {
        let (id, kind, queue) = (self.id()?, self.name()?, self.name()?);
        let mut job = NewJob::new(id, kind, queue, self.bytes()?);
        job.priority = Priority(i32::from_le_bytes(self.array()?));
        let fields = self.varint()?;
        if fields & !ALL != 0 {
            return Err("it has fields that this version does not know");
        }
        self.rules(&mut job, fields)?;
        self.labels(&mut job, fields)?;
        Ok(job)
    }
}

/// What is decided by.
fn rules(job: &NewJob, to: &mut Vec<u8>) {
    match job.start {
        Start::Now => {}
        Start::After(delay) => duration(delay, to),
        Start::At(at) => time(at, to),
    }
    if let Some(unique) = &job.unique {
        text(&unique.key, to);
        scope(unique.scope, to);
        option(unique.window, to, duration);
    }
    if !job.depends_on.is_empty() {
        dependencies(&job.depends_on, to);
    }
    if let Some(policy) = &job.retry {
        retry(policy, to);
    }
    if let Some(runs) = job.max_attempts {
        varint(runs.into(), to);
    }
    if let Some(Timeout::After(after)) = job.timeout {
        duration(after, to);
    }
    if let Some(after) = job.expires_after {
        duration(after, to);
    }
}

impl EntryReader<'_> {
    fn rules(&mut self, job: &mut NewJob, fields: u64) -> Result<(), Wrong> {
        let has = |bit| fields & bit != 0;
        if has(START_AFTER) {
            job.start = Start::After(self.duration()?);
        } else if has(START_AT) {
            job.start = Start::At(self.time()?);
        }
        if has(UNIQUE) {
            job.unique = Some(Unique {
                key: self.text()?.to_string(),
                scope: self.scope()?,
                window: self.option(EntryReader::duration)?,
            });
        }
        if has(DEPENDS_ON) {
            job.depends_on = self.dependencies()?;
        }
        if has(RETRY) {
            job.retry = Some(self.retry()?);
        }
        if has(MAX_ATTEMPTS) {
            job.max_attempts = Some(self.short()?);
        }
        if has(TIMEOUT) {
            job.timeout = Some(Timeout::After(self.duration()?));
        } else if has(TIMEOUT_OFF) {
            job.timeout = Some(Timeout::Off);
        }
        if has(EXPIRES) {
            job.expires_after = Some(self.duration()?);
        }
        Ok(())
    }
}

/// What says where it belongs, and what is only kept.
fn labels(job: &NewJob, to: &mut Vec<u8>) {
    if !job.tags.is_empty() {
        list(job.tags.iter(), to, name);
    }
    if !job.metadata.is_empty() {
        list(job.metadata.iter(), to, |(key, value), to| {
            text(key, to);
            text(value, to);
        });
    }
    if let Some(trace) = &job.trace {
        text(trace, to);
    }
    if let Some(parent) = job.parent {
        id(parent, to);
    }
    match &job.lane {
        Some(Lane::Key(key)) => text(key, to),
        Some(Lane::Turn(turn)) => varint(*turn, to),
        Some(Lane::Spread) | None => {}
    }
    if let Some(object) = &job.object {
        address(object, to);
    }
}

impl EntryReader<'_> {
    fn labels(&mut self, job: &mut NewJob, fields: u64) -> Result<(), Wrong> {
        let has = |bit| fields & bit != 0;
        if has(TAGS) {
            job.tags = self.list(2, EntryReader::name)?;
        }
        if has(METADATA) {
            let entry = |from: &mut Self| Ok((from.text()?.to_string(), from.text()?.to_string()));
            job.metadata = self.list(2, entry)?;
        }
        if has(TRACE) {
            job.trace = Some(self.text()?.to_string());
        }
        if has(PARENT) {
            job.parent = Some(self.id()?);
        }
        if has(LANE_KEY) {
            job.lane = Some(Lane::Key(self.text()?.to_string()));
        } else if has(LANE_TURN) {
            job.lane = Some(Lane::Turn(self.varint()?));
        } else if has(LANE_SPREAD) {
            job.lane = Some(Lane::Spread);
        }
        if has(OBJECT) {
            job.object = Some(self.address()?);
        }
        Ok(())
    }
}

pub(super) fn scope(scope: UniqueScope, to: &mut Vec<u8>) {
    to.push(match scope {
        UniqueScope::Open => 0,
        UniqueScope::Any => 1,
    });
}

impl EntryReader<'_> {
    pub(super) fn scope(&mut self) -> Result<UniqueScope, Wrong> {
        Ok(if self.flag()? { UniqueScope::Any } else { UniqueScope::Open })
    }
}

pub(super) fn dependencies(dependencies: &[Dependency], to: &mut Vec<u8>) {
    list(dependencies.iter(), to, |dependency, to| {
        id(dependency.on, to);
        to.push(match dependency.on_failure {
            OnFailure::Cascade => 0,
            OnFailure::Ignore => 1,
            OnFailure::Wait => 2,
        });
    });
}

impl EntryReader<'_> {
    pub(super) fn dependencies(&mut self) -> Result<Vec<Dependency>, Wrong> {
        self.list(17, |from| {
            let on = from.id()?;
            let on_failure = match from.byte()? {
                0 => OnFailure::Cascade,
                1 => OnFailure::Ignore,
                2 => OnFailure::Wait,
                _ => return Err(RANGE),
            };
            Ok(Dependency { on, on_failure })
        })
    }
}

fn retry(policy: &Retry, to: &mut Vec<u8>) {
    match &policy.backoff {
        Backoff::Constant(delay) => {
            to.push(0);
            duration(*delay, to);
        }
        Backoff::Linear(step) => {
            to.push(1);
            duration(*step, to);
        }
        Backoff::Exponential { base, factor_milli } => {
            to.push(2);
            duration(*base, to);
            varint((*factor_milli).into(), to);
        }
        Backoff::Custom(delays) => {
            to.push(3);
            list(delays.iter(), to, |delay, to| duration(*delay, to));
        }
    }
    duration(policy.cap, to);
    to.push(match policy.jitter {
        Jitter::None => 0,
        Jitter::Tenth => 1,
        Jitter::Equal => 2,
        Jitter::Full => 3,
    });
    option(policy.max_attempts, to, |runs, to| varint(runs.into(), to));
    option(policy.max_duration, to, duration);
}

impl EntryReader<'_> {
    fn retry(&mut self) -> Result<Retry, Wrong> {
        let backoff = match self.byte()? {
            0 => Backoff::Constant(self.duration()?),
            1 => Backoff::Linear(self.duration()?),
            2 => Backoff::Exponential { base: self.duration()?, factor_milli: self.short()? },
            3 => Backoff::Custom(self.list(2, EntryReader::duration)?),
            _ => return Err(RANGE),
        };
        Ok(Retry {
            backoff,
            cap: self.duration()?,
            jitter: match self.byte()? {
                0 => Jitter::None,
                1 => Jitter::Tenth,
                2 => Jitter::Equal,
                3 => Jitter::Full,
                _ => return Err(RANGE),
            },
            max_attempts: self.option(EntryReader::short)?,
            max_duration: self.option(EntryReader::duration)?,
        })
    }
}
