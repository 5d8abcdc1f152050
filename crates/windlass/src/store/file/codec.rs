//! Records as bytes: what a journal entry says, in a form that never changes its meaning.
//!
//! Numbers are little endian; counts and small numbers are LEB128 varints; texts and byte strings
//! carry their length; times are microseconds since 1970. `docs/format.md` is the same in words.
//! A new field gets a new record type or a new bit, so that old journals are read for ever.
//! Decoding takes any bytes at all: it answers with a record or with what is wrong, never panics,
//! and never allocates more than the bytes at hand could hold.

mod objects;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub(super) use objects::{encode_object, encode_object_checkpoint_entry, whole_object};
use windlass_core::job::{
    CancelReason, DeadReason, Dependency, JobId, JobStatus, Lane, Lease, LeaseToken, NewJob,
    OnFailure, Priority, Start, State, Timeout, Unique, UniqueScope,
};
use windlass_core::ledger::{CheckpointEntry, Partition, StepMark};
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectMeta, ObjectRecord};
use windlass_core::outcome::ErrorText;
use windlass_core::record::{
    Accepted, AttemptEnd, AttemptRecord, Change, JobRecord, LogLine, Progress, QueueSettings,
    RecordLocation, RecordNote, Report, Step, Totals, Update,
};
use windlass_core::retry::{Backoff, Jitter, Retry};
use windlass_core::time::Timestamp;

/// What is wrong with some bytes.
pub(super) type Wrong = &'static str;

/// One entry of the journal.
#[derive(Debug, PartialEq)]
pub(super) enum Entry {
    /// What the ledger decided, except updates.
    Change(Change),
    /// An update of a job, and where the entry before it about the same job stands.
    Update { update: Update, previous: u64, weight: u32 },
    /// A whole job as it was when it was copied here; entries before this one no longer count.
    Whole(Box<JobRecord>),
    /// What the ledger knew of a job at this point, for those who begin to read here.
    Checkpoint(Box<CheckpointEntry>),
    /// A whole object.
    Object(Box<ObjectRecord>),
    /// What the ledger knew of an object at this point, and where its record is kept.
    ObjectCheckpoint(Box<(Address, ObjectMeta, RecordLocation)>),
}

const INSERT: u8 = 1;
const UPDATE: u8 = 2;
const REMOVE: u8 = 3;
const QUEUE: u8 = 4;
const RATE: u8 = 5;
const LINE: u8 = 6;
const WHOLE: u8 = 7;
const SKETCH: u8 = 8;
/// A queue with settings that came later.
const LANED_QUEUE: u8 = 9;
const LANE: u8 = 10;
/// A checkpoint entry of a job with a lane, an object or finished steps.
const FULL_SKETCH: u8 = 11;
const OBJECT: u8 = 12;
const OBJECT_GONE: u8 = 13;
const OBJECT_SKETCH: u8 = 14;
/// A whole job, and its finished steps.
const WHOLE_WITH_STEPS: u8 = 16;

/// Whether an entry with this first byte is one that a chain of updates starts from.
pub(super) fn is_base(kind: u8) -> bool {
    matches!(kind, INSERT | WHOLE | WHOLE_WITH_STEPS)
}

/// The job an entry that is a base is about, without decoding the rest.
pub(super) fn base_job(body: &[u8]) -> Option<JobId> {
    let (kind, rest) = body.split_first()?;
    let id: [u8; 16] = rest.get(..16)?.try_into().ok()?;
    is_base(*kind).then(|| JobId::from_bytes(id))
}

/// Writes a change that is not an update.
pub(super) fn encode_change(change: &Change, to: &mut Vec<u8>) {
    match change {
        Change::Insert(accepted) => {
            to.push(INSERT);
            new_job(&accepted.job, to);
            varint(accepted.sequence, to);
            time(accepted.at, to);
            status(&accepted.status, accepted.at, to);
            ids(&accepted.met, to);
        }
        Change::Update(update) => encode_update(update, 0, 0, to),
        Change::Remove { job } => {
            to.push(REMOVE);
            to.extend(job.to_bytes());
        }
        Change::Queue { queue, settings, dead_letters_dropped } => {
            let QueueSettings { paused, max_depth, ageing, .. } = settings;
            let plain = QueueSettings { paused: *paused, ..QueueSettings::default() };
            let plain = QueueSettings { max_depth: *max_depth, ageing: *ageing, ..plain };
            to.push(if *settings == plain { QUEUE } else { LANED_QUEUE });
            text(queue.as_str(), to);
            to.push(u8::from(*paused));
            option(*max_depth, to, varint);
            option(*ageing, to, duration);
            varint(*dead_letters_dropped, to);
            if *settings != plain {
                option(settings.lanes, to, |lanes, to| varint(lanes.get().into(), to));
                varint(settings.paused_lanes.len() as u64, to);
                settings.paused_lanes.iter().for_each(|lane| varint((*lane).into(), to));
                option(settings.lane_depth, to, varint);
                option(settings.on_dead.as_ref(), to, |kind, to| text(kind.as_str(), to));
                option(settings.on_empty.as_ref(), to, |kind, to| text(kind.as_str(), to));
            }
        }
        Change::Rate { kind, full_at } => {
            to.push(RATE);
            text(kind.as_str(), to);
            time(*full_at, to);
        }
        Change::QueueKind { queue, kind, totals: so_far } => {
            to.push(LINE);
            text(queue.as_str(), to);
            text(kind.as_str(), to);
            totals(so_far, to);
        }
        Change::Lane { queue, lane, totals: so_far } => {
            to.push(LANE);
            text(queue.as_str(), to);
            varint((*lane).into(), to);
            totals(so_far, to);
        }
        Change::Object(change) => {
            // Its state, if it has not changed, is with whoever keeps objects.
            let state = change.state.clone().unwrap_or_else(|| Vec::new().into());
            let (address, meta) = (change.address.clone(), change.meta.clone());
            encode_object(&ObjectRecord { address, meta, state }, to);
        }
        Change::ObjectGone { address } => {
            to.push(OBJECT_GONE);
            objects::address(address, to);
        }
    }
}

fn totals(totals: &Totals, to: &mut Vec<u8>) {
    let Totals { enqueued, completed, failed, retried, rescued, dead, cancelled } = *totals;
    for number in [enqueued, completed, failed, retried, rescued, dead, cancelled] {
        varint(number, to);
    }
}

/// Writes an update; `previous` is where the entry before it about the same job stands.
pub(super) fn encode_update(update: &Update, previous: u64, weight: u32, to: &mut Vec<u8>) {
    to.push(UPDATE);
    to.extend(update.job.to_bytes());
    to.extend(previous.to_le_bytes());
    varint(weight.into(), to);
    time(update.at, to);
    status(&update.status, update.at, to);
    note(update.note.as_deref(), &update.status, to);
}

/// Writes a whole job.
pub(super) fn encode_whole(record: &JobRecord, to: &mut Vec<u8>) {
    let has_steps = !record.steps.is_empty();
    to.push(if has_steps { WHOLE_WITH_STEPS } else { WHOLE });
    new_job(&record.job, to);
    varint(record.sequence, to);
    time(record.created_at, to);
    time(record.updated_at, to);
    status(&record.status, record.updated_at, to);
    option(record.first_started_at, to, time);
    option(record.last_recovery_at, to, time);
    option(record.output.as_deref(), to, bytes);
    option(record.error.as_ref(), to, error);
    varint(record.attempts.len() as u64, to);
    for attempt in &record.attempts {
        varint(attempt.number.into(), to);
        text(&attempt.worker, to);
        time(attempt.started_at, to);
        option(attempt.ended, to, |(at, end), to| {
            time(at, to);
            to.push(end.number());
        });
        option(attempt.error.as_ref(), to, error);
    }
    varint(record.attempts_dropped.into(), to);
    option(record.progress.as_ref(), to, progress);
    lines(record.log.iter(), to);
    varint(record.log_dropped.into(), to);
    ids(&record.met, to);
    if has_steps {
        steps(&record.steps, to);
    }
}

/// Writes a checkpoint entry. Times are given in full: there is no other in it that they could be
/// told from.
pub(super) fn encode_checkpoint_entry(checkpoint_entry: &CheckpointEntry, to: &mut Vec<u8>) {
    let CheckpointEntry { partition, object, steps, .. } = checkpoint_entry;
    let plain = partition.is_none() && object.is_none() && steps.is_empty();
    to.push(if plain { SKETCH } else { FULL_SKETCH });
    to.extend(checkpoint_entry.id.to_bytes());
    text(checkpoint_entry.kind.as_str(), to);
    text(checkpoint_entry.queue.as_str(), to);
    varint(checkpoint_entry.sequence, to);
    status(&checkpoint_entry.status, NO_TIME, to);
    to.extend(checkpoint_entry.fingerprint.to_le_bytes());
    to.extend(checkpoint_entry.priority.0.to_le_bytes());
    varint(checkpoint_entry.max_attempts.into(), to);
    dependencies(&checkpoint_entry.depends_on, to);
    ids(&checkpoint_entry.met, to);
    option(checkpoint_entry.unique.as_ref(), to, |(key, scope, until), to| {
        text(key, to);
        to.push(u8::from(*scope == UniqueScope::Any));
        option(*until, to, time);
    });
    option(checkpoint_entry.expires_at, to, time);
    to.extend(checkpoint_entry.kept.place.to_le_bytes());
    varint(checkpoint_entry.kept.weight.into(), to);
    if !plain {
        option(*partition, to, |partition, to| {
            varint(partition.number, to);
            to.push(u8::from(partition.turn));
        });
        option(object.as_ref(), to, objects::address);
        varint(steps.len() as u64, to);
        for mark in steps {
            to.extend(mark.print.to_le_bytes());
            varint(mark.bytes.into(), to);
        }
    }
}

/// A time that no state can begin at.
const NO_TIME: Timestamp = Timestamp::from_micros(i64::MIN);

/// Reads one entry, which must be all there is.
pub(super) fn decode(body: &[u8]) -> Result<Entry, Wrong> {
    let mut from = EntryReader { left: body };
    let entry = match from.byte()? {
        INSERT => {
            let job = from.new_job()?;
            let (sequence, at) = (from.varint()?, from.time()?);
            let status = from.status(at)?;
            let met = from.ids()?;
            let accepted = Accepted { job: Arc::new(job), sequence, at, status, met };
            Entry::Change(Change::Insert(Box::new(accepted)))
        }
        UPDATE => {
            let (job, previous, weight) = (from.id()?, from.long()?, from.short()?);
            let at = from.time()?;
            let status = from.status(at)?;
            let note = from.note(&status)?.map(Box::new);
            Entry::Update { update: Update { job, at, status, note }, previous, weight }
        }
        REMOVE => Entry::Change(Change::Remove { job: from.id()? }),
        QUEUE => Entry::Change(from.queue()?),
        LANED_QUEUE => {
            let mut change = from.queue()?;
            if let Change::Queue { settings, .. } = &mut change {
                let lanes = from.option(EntryReader::short)?;
                settings.lanes =
                    lanes.map(|lanes| NonZeroU32::new(lanes).ok_or(RANGE)).transpose()?;
                let paused = (0..from.count(1)?).map(|_| from.short());
                settings.paused_lanes = paused.collect::<Result<_, _>>()?;
                settings.lane_depth = from.option(EntryReader::varint)?;
                settings.on_dead = from.option(EntryReader::name)?;
                settings.on_empty = from.option(EntryReader::name)?;
            }
            Entry::Change(change)
        }
        RATE => Entry::Change(Change::Rate { kind: from.name()?, full_at: from.time()? }),
        LINE => Entry::Change(Change::QueueKind {
            queue: from.name()?,
            kind: from.name()?,
            totals: from.totals()?,
        }),
        LANE => Entry::Change(Change::Lane {
            queue: from.name()?,
            lane: from.short()?,
            totals: from.totals()?,
        }),
        WHOLE => Entry::Whole(Box::new(from.whole()?)),
        SKETCH => Entry::Checkpoint(Box::new(from.checkpoint_entry()?)),
        FULL_SKETCH => {
            let mut checkpoint_entry = from.checkpoint_entry()?;
            checkpoint_entry.partition =
                from.option(|from| Ok(Partition { number: from.varint()?, turn: from.flag()? }))?;
            checkpoint_entry.object = from.option(EntryReader::address)?;
            checkpoint_entry.steps = from.step_marks()?;
            Entry::Checkpoint(Box::new(checkpoint_entry))
        }
        OBJECT => Entry::Object(Box::new(from.object()?)),
        OBJECT_GONE => Entry::Change(Change::ObjectGone { address: from.address()? }),
        OBJECT_SKETCH => {
            let (address, meta) = (from.address()?, from.object_meta()?);
            let kept = RecordLocation { place: from.long()?, weight: from.short()? };
            Entry::ObjectCheckpoint(Box::new((address, meta, kept)))
        }
        WHOLE_WITH_STEPS => {
            let whole = from.whole()?;
            Entry::Whole(Box::new(JobRecord { steps: from.steps()?, ..whole }))
        }
        _ => return Err("its type is unknown"),
    };
    if from.left.is_empty() { Ok(entry) } else { Err("it is longer than what it says") }
}

fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn time(time: Timestamp, to: &mut Vec<u8>) {
    to.extend(time.as_micros().to_le_bytes());
}

fn duration(duration: Duration, to: &mut Vec<u8>) {
    varint(duration.as_secs(), to);
    varint(duration.subsec_nanos().into(), to);
}

fn bytes(bytes: &[u8], to: &mut Vec<u8>) {
    varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

fn text(text: &str, to: &mut Vec<u8>) {
    bytes(text.as_bytes(), to);
}

fn error(error: &ErrorText, to: &mut Vec<u8>) {
    text(error.as_str(), to);
}

fn ids(ids: &[JobId], to: &mut Vec<u8>) {
    varint(ids.len() as u64, to);
    ids.iter().for_each(|id| to.extend(id.to_bytes()));
}

fn option<T>(value: Option<T>, to: &mut Vec<u8>, put: impl FnOnce(T, &mut Vec<u8>)) {
    to.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(value, to);
    }
}

/// Fields that most jobs leave at their defaults, one bit each in front of those that are there.
mod present {
    pub(super) const START_AFTER: u64 = 1;
    pub(super) const START_AT: u64 = 1 << 1;
    pub(super) const UNIQUE: u64 = 1 << 2;
    pub(super) const DEPENDS_ON: u64 = 1 << 3;
    pub(super) const RETRY: u64 = 1 << 4;
    pub(super) const MAX_ATTEMPTS: u64 = 1 << 5;
    pub(super) const TIMEOUT: u64 = 1 << 6;
    pub(super) const TIMEOUT_OFF: u64 = 1 << 7;
    pub(super) const EXPIRES: u64 = 1 << 8;
    pub(super) const TAGS: u64 = 1 << 9;
    pub(super) const METADATA: u64 = 1 << 10;
    pub(super) const TRACE: u64 = 1 << 11;
    pub(super) const PARENT: u64 = 1 << 12;
    pub(super) const LANE_KEY: u64 = 1 << 13;
    pub(super) const LANE_SPREAD: u64 = 1 << 14;
    pub(super) const LANE_TURN: u64 = 1 << 15;
    pub(super) const OBJECT: u64 = 1 << 16;
    pub(super) const ALL: u64 = (1 << 17) - 1;
}

/// Which of the parts are there that a job may do without.
fn present_in(job: &NewJob) -> u64 {
    let bit = |on: bool, bit: u64| if on { bit } else { 0 };
    let start = match job.start {
        Start::Now => 0,
        Start::After(_) => present::START_AFTER,
        Start::At(_) => present::START_AT,
    };
    let timeout = match job.timeout {
        None => 0,
        Some(Timeout::After(_)) => present::TIMEOUT,
        Some(Timeout::Off) => present::TIMEOUT_OFF,
    };
    let lane = match job.lane {
        None => 0,
        Some(Lane::Key(_)) => present::LANE_KEY,
        Some(Lane::Spread) => present::LANE_SPREAD,
        Some(Lane::Turn(_)) => present::LANE_TURN,
    };
    start
        | timeout
        | lane
        | bit(job.object.is_some(), present::OBJECT)
        | bit(job.unique.is_some(), present::UNIQUE)
        | bit(!job.depends_on.is_empty(), present::DEPENDS_ON)
        | bit(job.retry.is_some(), present::RETRY)
        | bit(job.max_attempts.is_some(), present::MAX_ATTEMPTS)
        | bit(job.expires_after.is_some(), present::EXPIRES)
        | bit(!job.tags.is_empty(), present::TAGS)
        | bit(!job.metadata.is_empty(), present::METADATA)
        | bit(job.trace.is_some(), present::TRACE)
        | bit(job.parent.is_some(), present::PARENT)
}

fn new_job(job: &NewJob, to: &mut Vec<u8>) {
    to.extend(job.id.to_bytes());
    text(job.kind.as_str(), to);
    text(job.queue.as_str(), to);
    bytes(&job.payload, to);
    to.extend(job.priority.0.to_le_bytes());
    varint(present_in(job), to);
    match job.start {
        Start::Now => {}
        Start::After(delay) => duration(delay, to),
        Start::At(at) => time(at, to),
    }
    if let Some(unique) = &job.unique {
        text(&unique.key, to);
        to.push(u8::from(unique.scope == UniqueScope::Any));
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
    labels(job, to);
}

/// What is only kept, and never decided by.
fn labels(job: &NewJob, to: &mut Vec<u8>) {
    if !job.tags.is_empty() {
        varint(job.tags.len() as u64, to);
        job.tags.iter().for_each(|tag| text(tag.as_str(), to));
    }
    if !job.metadata.is_empty() {
        varint(job.metadata.len() as u64, to);
        for (key, value) in &job.metadata {
            text(key, to);
            text(value, to);
        }
    }
    if let Some(trace) = &job.trace {
        text(trace, to);
    }
    if let Some(parent) = job.parent {
        to.extend(parent.to_bytes());
    }
    match &job.lane {
        Some(Lane::Key(key)) => text(key, to),
        Some(Lane::Turn(turn)) => varint(*turn, to),
        Some(Lane::Spread) | None => {}
    }
    if let Some(object) = &job.object {
        objects::address(object, to);
    }
}

fn dependencies(dependencies: &[Dependency], to: &mut Vec<u8>) {
    varint(dependencies.len() as u64, to);
    for dependency in dependencies {
        to.extend(dependency.on.to_bytes());
        to.push(match dependency.on_failure {
            OnFailure::Cascade => 0,
            OnFailure::Ignore => 1,
            OnFailure::Wait => 2,
        });
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
            varint(delays.len() as u64, to);
            delays.iter().for_each(|delay| duration(*delay, to));
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

/// `at` is the time of the entry: a state that began then does not repeat it.
fn status(status: &JobStatus, at: Timestamp, to: &mut Vec<u8>) {
    let since = |tag: u8, since: Timestamp, to: &mut Vec<u8>| {
        to.push(u8::from(status.begun) << 7 | tag << 1 | u8::from(since == at));
        if since != at {
            time(since, to);
        }
    };
    match &status.state {
        State::Blocked { unmet, not_before } => {
            since(0, *not_before, to);
            varint((*unmet).into(), to);
        }
        State::Scheduled { at } => since(1, *at, to),
        State::Ready { since: ready } => since(2, *ready, to),
        State::Running(lease) => {
            since(3, lease.since, to);
            varint(lease.token.0, to);
            text(&lease.worker, to);
            time(lease.until, to);
            varint(lease.max_attempts.into(), to);
            to.push(u8::from(lease.cancel_requested));
        }
        State::Completed { at } => since(4, *at, to),
        State::Dead { at, reason } => {
            since(5, *at, to);
            to.push(match reason {
                DeadReason::AttemptsExhausted => 0,
                DeadReason::Permanent => 1,
                DeadReason::DurationExhausted => 2,
                DeadReason::Crashed => 3,
                DeadReason::DependencyFailed => 4,
            });
        }
        State::Cancelled { at, reason } => {
            since(6, *at, to);
            to.push(match reason {
                CancelReason::Requested => 0,
                CancelReason::Handler => 1,
                CancelReason::Expired => 2,
                CancelReason::Cleared => 3,
                CancelReason::DependencyCancelled => 4,
                CancelReason::Replaced => 5,
            });
        }
    }
    varint(status.attempts.into(), to);
    varint(status.recoveries.into(), to);
    varint(status.generation.into(), to);
}

fn note(note: Option<&RecordNote>, status: &JobStatus, to: &mut Vec<u8>) {
    match note {
        None => to.push(0),
        Some(RecordNote::Started { worker }) => match &status.state {
            // The lease names the same worker.
            State::Running(lease) if lease.worker == *worker => to.push(1),
            _ => {
                to.push(2);
                text(worker, to);
            }
        },
        Some(RecordNote::Ended { end, output, error: why }) => {
            to.push(3);
            to.push(end.number());
            option(output.as_deref(), to, bytes);
            option(why.as_ref(), to, error);
        }
        Some(RecordNote::Reported(report)) => {
            let (cut, has_steps) = (report.lines_dropped > 0, !report.steps.is_empty());
            to.push(match (cut, has_steps) {
                (true, _) => REPORTED_CUT,
                (false, true) => REPORTED_STEPS,
                (false, false) => 4,
            });
            option(report.progress.as_ref(), to, progress);
            lines(report.lines.iter(), to);
            if cut || has_steps {
                steps(&report.steps, to);
            }
            if cut {
                varint(report.lines_dropped.into(), to);
            }
        }
        Some(RecordNote::Failed(why)) => {
            to.push(5);
            error(why, to);
        }
        Some(RecordNote::Replayed { met }) => {
            to.push(6);
            ids(met, to);
        }
        Some(RecordNote::Met { on }) => {
            to.push(7);
            to.extend(on.to_bytes());
        }
    }
}

/// A note that is a report with finished steps.
const REPORTED_STEPS: u8 = 16;

/// A note that is a report of which lines were dropped before it was made.
const REPORTED_CUT: u8 = 17;

fn steps(steps: &[Step], to: &mut Vec<u8>) {
    varint(steps.len() as u64, to);
    for step in steps {
        text(step.name.as_str(), to);
        bytes(&step.result, to);
    }
}

fn progress(progress: &Progress, to: &mut Vec<u8>) {
    to.push(progress.percent);
    text(&progress.note, to);
}

fn lines<'a>(lines: impl ExactSizeIterator<Item = &'a LogLine>, to: &mut Vec<u8>) {
    varint(lines.len() as u64, to);
    for line in lines {
        time(line.at, to);
        varint(line.attempt.into(), to);
        text(&line.text, to);
    }
}

const SHORT: Wrong = "it ends too early";
const RANGE: Wrong = "a number in it is out of range";

/// What is left to read of one entry.
struct EntryReader<'a> {
    left: &'a [u8],
}

impl<'a> EntryReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(SHORT)?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    fn byte(&mut self) -> Result<u8, Wrong> {
        Ok(self.array::<1>()?[0])
    }

    fn flag(&mut self) -> Result<bool, Wrong> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag in it is neither set nor unset"),
        }
    }

    fn long(&mut self) -> Result<u64, Wrong> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn varint(&mut self) -> Result<u64, Wrong> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(RANGE);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RANGE)
    }

    fn short(&mut self) -> Result<u32, Wrong> {
        u32::try_from(self.varint()?).map_err(|_| RANGE)
    }

    /// A count of things of which each takes at least `size` bytes.
    fn count(&mut self, size: usize) -> Result<usize, Wrong> {
        let count = usize::try_from(self.varint()?).map_err(|_| RANGE)?;
        if count > self.left.len() / size { Err(SHORT) } else { Ok(count) }
    }

    fn time(&mut self) -> Result<Timestamp, Wrong> {
        Ok(Timestamp::from_micros(i64::from_le_bytes(self.array()?)))
    }

    fn duration(&mut self) -> Result<Duration, Wrong> {
        let (seconds, nanos) = (self.varint()?, self.short()?);
        if nanos < 1_000_000_000 { Ok(Duration::new(seconds, nanos)) } else { Err(RANGE) }
    }

    fn bytes(&mut self) -> Result<&'a [u8], Wrong> {
        let count = self.count(1)?;
        self.take(count)
    }

    fn text(&mut self) -> Result<&'a str, Wrong> {
        core::str::from_utf8(self.bytes()?).map_err(|_| "a text in it is not UTF-8")
    }

    fn name(&mut self) -> Result<Name, Wrong> {
        Name::new(self.text()?).map_err(|_| "a name in it is not a name")
    }

    fn error(&mut self) -> Result<ErrorText, Wrong> {
        Ok(ErrorText::new(self.text()?))
    }

    fn id(&mut self) -> Result<JobId, Wrong> {
        Ok(JobId::from_bytes(self.array()?))
    }

    fn ids(&mut self) -> Result<Vec<JobId>, Wrong> {
        (0..self.count(16)?).map(|_| self.id()).collect()
    }

    fn option<T>(
        &mut self,
        get: impl FnOnce(&mut Self) -> Result<T, Wrong>,
    ) -> Result<Option<T>, Wrong> {
        if self.flag()? { get(self).map(Some) } else { Ok(None) }
    }

    fn new_job(&mut self) -> Result<NewJob, Wrong> {
        let (id, kind, queue) = (self.id()?, self.name()?, self.name()?);
        let mut job = NewJob::new(id, kind, queue, self.bytes()?);
        job.priority = Priority(i32::from_le_bytes(self.array()?));
        let fields = self.varint()?;
        if fields & !present::ALL != 0 {
            return Err("it has fields that this version does not know");
        }
        let has = |bit| fields & bit != 0;
        if has(present::START_AFTER) {
            job.start = Start::After(self.duration()?);
        } else if has(present::START_AT) {
            job.start = Start::At(self.time()?);
        }
        if has(present::UNIQUE) {
            job.unique = Some(Unique {
                key: self.text()?.to_string(),
                scope: if self.flag()? { UniqueScope::Any } else { UniqueScope::Open },
                window: self.option(EntryReader::duration)?,
            });
        }
        if has(present::DEPENDS_ON) {
            job.depends_on = self.dependencies()?;
        }
        if has(present::RETRY) {
            job.retry = Some(self.retry()?);
        }
        if has(present::MAX_ATTEMPTS) {
            job.max_attempts = Some(self.short()?);
        }
        if has(present::TIMEOUT) {
            job.timeout = Some(Timeout::After(self.duration()?));
        } else if has(present::TIMEOUT_OFF) {
            job.timeout = Some(Timeout::Off);
        }
        if has(present::EXPIRES) {
            job.expires_after = Some(self.duration()?);
        }
        if has(present::TAGS) {
            job.tags = (0..self.count(2)?).map(|_| self.name()).collect::<Result<_, _>>()?;
        }
        if has(present::METADATA) {
            let entries = (0..self.count(2)?)
                .map(|_| Ok((self.text()?.to_string(), self.text()?.to_string())));
            job.metadata = entries.collect::<Result<BTreeMap<_, _>, Wrong>>()?;
        }
        if has(present::TRACE) {
            job.trace = Some(self.text()?.to_string());
        }
        if has(present::PARENT) {
            job.parent = Some(self.id()?);
        }
        if has(present::LANE_KEY) {
            job.lane = Some(Lane::Key(self.text()?.to_string()));
        } else if has(present::LANE_TURN) {
            job.lane = Some(Lane::Turn(self.varint()?));
        } else if has(present::LANE_SPREAD) {
            job.lane = Some(Lane::Spread);
        }
        if has(present::OBJECT) {
            job.object = Some(self.address()?);
        }
        Ok(job)
    }

    fn queue(&mut self) -> Result<Change, Wrong> {
        Ok(Change::Queue {
            queue: self.name()?,
            settings: QueueSettings {
                paused: self.flag()?,
                max_depth: self.option(EntryReader::varint)?,
                ageing: self.option(EntryReader::duration)?,
                ..QueueSettings::default()
            },
            dead_letters_dropped: self.varint()?,
        })
    }

    fn totals(&mut self) -> Result<Totals, Wrong> {
        Ok(Totals {
            enqueued: self.varint()?,
            completed: self.varint()?,
            failed: self.varint()?,
            retried: self.varint()?,
            rescued: self.varint()?,
            dead: self.varint()?,
            cancelled: self.varint()?,
        })
    }

    fn dependencies(&mut self) -> Result<Vec<Dependency>, Wrong> {
        (0..self.count(17)?).map(|_| self.dependency()).collect()
    }

    fn dependency(&mut self) -> Result<Dependency, Wrong> {
        let on = self.id()?;
        let on_failure = match self.byte()? {
            0 => OnFailure::Cascade,
            1 => OnFailure::Ignore,
            2 => OnFailure::Wait,
            _ => return Err(RANGE),
        };
        Ok(Dependency { on, on_failure })
    }

    fn retry(&mut self) -> Result<Retry, Wrong> {
        let backoff = match self.byte()? {
            0 => Backoff::Constant(self.duration()?),
            1 => Backoff::Linear(self.duration()?),
            2 => Backoff::Exponential { base: self.duration()?, factor_milli: self.short()? },
            3 => {
                let delays = (0..self.count(2)?).map(|_| self.duration());
                Backoff::Custom(delays.collect::<Result<_, _>>()?)
            }
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

    fn status(&mut self, at: Timestamp) -> Result<JobStatus, Wrong> {
        let tag = self.byte()?;
        let since = if tag & 1 == 1 { at } else { self.time()? };
        let state = match tag >> 1 & 0x3f {
            0 => State::Blocked { not_before: since, unmet: self.short()? },
            1 => State::Scheduled { at: since },
            2 => State::Ready { since },
            3 => State::Running(Lease {
                since,
                token: LeaseToken(self.varint()?),
                worker: self.text()?.into(),
                until: self.time()?,
                max_attempts: self.short()?,
                cancel_requested: self.flag()?,
            }),
            4 => State::Completed { at: since },
            5 => State::Dead { at: since, reason: self.dead_reason()? },
            6 => State::Cancelled { at: since, reason: self.cancel_reason()? },
            _ => return Err(RANGE),
        };
        Ok(JobStatus {
            state,
            attempts: self.short()?,
            recoveries: self.short()?,
            generation: self.short()?,
            begun: tag & 0x80 != 0,
        })
    }

    fn dead_reason(&mut self) -> Result<DeadReason, Wrong> {
        Ok(match self.byte()? {
            0 => DeadReason::AttemptsExhausted,
            1 => DeadReason::Permanent,
            2 => DeadReason::DurationExhausted,
            3 => DeadReason::Crashed,
            4 => DeadReason::DependencyFailed,
            _ => return Err(RANGE),
        })
    }

    fn cancel_reason(&mut self) -> Result<CancelReason, Wrong> {
        Ok(match self.byte()? {
            0 => CancelReason::Requested,
            1 => CancelReason::Handler,
            2 => CancelReason::Expired,
            3 => CancelReason::Cleared,
            4 => CancelReason::DependencyCancelled,
            5 => CancelReason::Replaced,
            _ => return Err(RANGE),
        })
    }

    fn attempt_end(&mut self) -> Result<AttemptEnd, Wrong> {
        AttemptEnd::from_number(self.byte()?).ok_or(RANGE)
    }

    fn note(&mut self, status: &JobStatus) -> Result<Option<RecordNote>, Wrong> {
        Ok(Some(match self.byte()? {
            0 => return Ok(None),
            1 => match &status.state {
                State::Running(lease) => RecordNote::Started { worker: lease.worker.clone() },
                _ => return Err("it tells of a start of a job that does not run"),
            },
            2 => RecordNote::Started { worker: self.text()?.into() },
            3 => RecordNote::Ended {
                end: self.attempt_end()?,
                output: self.option(EntryReader::bytes)?.map(Into::into),
                error: self.option(EntryReader::error)?,
            },
            4 => RecordNote::Reported(Report {
                progress: self.option(EntryReader::progress)?,
                lines: self.lines()?,
                ..Report::default()
            }),
            REPORTED_STEPS => RecordNote::Reported(Report {
                progress: self.option(EntryReader::progress)?,
                lines: self.lines()?,
                steps: self.steps()?,
                lines_dropped: 0,
            }),
            REPORTED_CUT => RecordNote::Reported(Report {
                progress: self.option(EntryReader::progress)?,
                lines: self.lines()?,
                steps: self.steps()?,
                lines_dropped: self.short()?,
            }),
            5 => RecordNote::Failed(self.error()?),
            6 => RecordNote::Replayed { met: self.ids()? },
            7 => RecordNote::Met { on: self.id()? },
            _ => return Err(RANGE),
        }))
    }

    fn progress(&mut self) -> Result<Progress, Wrong> {
        Ok(Progress { percent: self.byte()?, note: self.text()?.to_string() })
    }

    fn lines(&mut self) -> Result<Vec<LogLine>, Wrong> {
        let line = |from: &mut Self| {
            let (at, attempt) = (from.time()?, from.short()?);
            Ok(LogLine { at, attempt, text: from.text()?.to_string() })
        };
        (0..self.count(10)?).map(|_| line(self)).collect()
    }

    fn steps(&mut self) -> Result<Vec<Step>, Wrong> {
        let step = |from: &mut Self| Ok(Step { name: from.name()?, result: from.bytes()?.into() });
        (0..self.count(3)?).map(|_| step(self)).collect()
    }

    fn step_marks(&mut self) -> Result<Vec<StepMark>, Wrong> {
        let mark = |from: &mut Self| Ok(StepMark { print: from.long()?, bytes: from.short()? });
        (0..self.count(9)?).map(|_| mark(self)).collect()
    }

    fn checkpoint_entry(&mut self) -> Result<CheckpointEntry, Wrong> {
        Ok(CheckpointEntry {
            id: self.id()?,
            kind: self.name()?,
            queue: self.name()?,
            sequence: self.varint()?,
            status: self.status(NO_TIME)?,
            fingerprint: self.long()?,
            priority: Priority(i32::from_le_bytes(self.array()?)),
            max_attempts: self.short()?,
            depends_on: self.dependencies()?,
            met: self.ids()?,
            unique: self.option(|from| {
                let key = from.text()?.to_string();
                let scope = if from.flag()? { UniqueScope::Any } else { UniqueScope::Open };
                Ok((key, scope, from.option(EntryReader::time)?))
            })?,
            expires_at: self.option(EntryReader::time)?,
            partition: None,
            object: None,
            steps: Vec::new(),
            kept: RecordLocation { place: self.long()?, weight: self.short()? },
        })
    }

    fn attempt(&mut self) -> Result<AttemptRecord, Wrong> {
        Ok(AttemptRecord {
            number: self.short()?,
            worker: self.text()?.into(),
            started_at: self.time()?,
            ended: self.option(|from| Ok((from.time()?, from.attempt_end()?)))?,
            error: self.option(EntryReader::error)?,
        })
    }

    fn whole(&mut self) -> Result<JobRecord, Wrong> {
        let job = Arc::new(self.new_job()?);
        let sequence = self.varint()?;
        let (created_at, updated_at) = (self.time()?, self.time()?);
        let status = self.status(updated_at)?;
        Ok(JobRecord {
            job,
            sequence,
            status,
            created_at,
            updated_at,
            first_started_at: self.option(EntryReader::time)?,
            last_recovery_at: self.option(EntryReader::time)?,
            output: self.option(EntryReader::bytes)?.map(Into::into),
            error: self.option(EntryReader::error)?,
            attempts: (0..self.count(12)?)
                .map(|_| self.attempt())
                .collect::<Result<VecDeque<_>, _>>()?,
            attempts_dropped: self.short()?,
            progress: self.option(EntryReader::progress)?,
            log: self.lines()?.into(),
            log_dropped: self.short()?,
            met: self.ids()?,
            steps: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::object::ObjectStatus;

    use super::*;

    fn id(number: u128) -> JobId {
        JobId::from_u128(number)
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn object() -> Address {
        Address::new(name("debounce"), name("webhooks"), "ключ / 1").expect("an address")
    }

    /// An object that leaves nothing at its default.
    fn meta(status: ObjectStatus) -> ObjectMeta {
        ObjectMeta {
            version: u64::MAX,
            incarnation: u64::MAX - 1,
            status,
            reason: Some(ErrorText::new("why")),
            created_at: at(1),
            updated_at: at(2),
            last_success_at: Some(at(3)),
            runs: 4,
            failures: 5,
            recoveries: 6,
            last_recovery_at: Some(at(7)),
            alarm: Some(id(8)),
            purge_at: Some(at(9)),
        }
    }

    /// A job that leaves nothing at its default.
    fn full_job() -> NewJob {
        let mut job = NewJob::new(id(7), name("kind"), name("queue"), vec![1, 2, 3]);
        job.priority = Priority(-10);
        job.start = Start::At(at(-5));
        let window = Some(Duration::new(u64::MAX, 999_999_999));
        job.unique = Some(Unique { key: "ключ".to_string(), scope: UniqueScope::Any, window });
        job.depends_on = [OnFailure::Cascade, OnFailure::Ignore, OnFailure::Wait]
            .into_iter()
            .enumerate()
            .map(|(number, on_failure)| Dependency { on: id(number as u128), on_failure })
            .collect();
        job.retry = Some(Retry {
            backoff: Backoff::Custom(vec![Duration::from_millis(5), Duration::MAX]),
            cap: Duration::MAX,
            jitter: Jitter::Full,
            max_attempts: Some(9),
            max_duration: Some(Duration::from_secs(1)),
        });
        job.max_attempts = Some(u32::MAX);
        job.timeout = Some(Timeout::After(Duration::from_nanos(1)));
        job.expires_after = Some(Duration::from_secs(60));
        job.tags = vec![name("one"), name("two")];
        job.metadata = BTreeMap::from([("key".to_string(), "value".to_string())]);
        job.trace = Some("00-trace".to_string());
        job.parent = Some(id(u128::MAX));
        job.lane = Some(Lane::Key("customer 7".to_string()));
        job.object = Some(object());
        job
    }

    fn states() -> Vec<State> {
        let lease = Lease {
            token: LeaseToken(1 << 40),
            worker: "worker".into(),
            since: at(10),
            until: at(20),
            max_attempts: 3,
            cancel_requested: true,
        };
        let dead = [
            DeadReason::AttemptsExhausted,
            DeadReason::Permanent,
            DeadReason::DurationExhausted,
            DeadReason::Crashed,
            DeadReason::DependencyFailed,
        ];
        let cancelled = [
            CancelReason::Requested,
            CancelReason::Handler,
            CancelReason::Expired,
            CancelReason::Cleared,
            CancelReason::DependencyCancelled,
            CancelReason::Replaced,
        ];
        let mut states = vec![
            State::Blocked { unmet: 300, not_before: at(10) },
            State::Scheduled { at: at(i64::MAX) },
            State::Ready { since: at(10) },
            State::Running(lease),
            State::Completed { at: at(i64::MIN) },
        ];
        states.extend(dead.map(|reason| State::Dead { at: at(1), reason }));
        states.extend(cancelled.map(|reason| State::Cancelled { at: at(1), reason }));
        states
    }

    fn notes() -> Vec<Option<RecordNote>> {
        let ends = (0..).map_while(AttemptEnd::from_number);
        let line = LogLine { at: at(3), attempt: 2, text: "a line".to_string() };
        let progress = Some(Progress { percent: 100, note: "done".to_string() });
        let ended = |end| {
            let (output, error) = (Some(vec![0].into()), Some(ErrorText::new("why")));
            Some(RecordNote::Ended { end, output, error })
        };
        let mut notes: Vec<Option<RecordNote>> = ends.map(ended).collect();
        notes.extend([
            None,
            Some(RecordNote::Started { worker: "worker".into() }),
            Some(RecordNote::Started { worker: "another".into() }),
            Some(RecordNote::Reported(Report {
                progress: progress.clone(),
                lines: vec![line.clone()],
                ..Report::default()
            })),
            Some(RecordNote::Reported(Report {
                progress: progress.clone(),
                lines: vec![line.clone()],
                steps: finished(),
                lines_dropped: 0,
            })),
            Some(RecordNote::Reported(Report {
                progress,
                lines: vec![line],
                steps: Vec::new(),
                lines_dropped: 50,
            })),
            Some(RecordNote::Failed(ErrorText::new("gone"))),
            Some(RecordNote::Replayed { met: vec![id(1), id(2)] }),
            Some(RecordNote::Met { on: id(3) }),
        ]);
        notes
    }

    fn finished() -> Vec<Step> {
        let step = |text: &str, result: &[u8]| Step { name: name(text), result: result.into() };
        vec![step("charge", b"{\"cents\":5}"), step("ship", b"")]
    }

    fn whole(state: State) -> JobRecord {
        let status = JobStatus { state, attempts: 1, recoveries: 2, generation: 3, begun: true };
        let (job, sequence) = (Arc::new(full_job()), u64::MAX);
        let met = vec![id(1)];
        let mut record = JobRecord::new(&Accepted { job, sequence, at: at(10), status, met });
        for note in notes() {
            let status = record.status.clone();
            let (job, note) = (record.id(), note.map(Box::new));
            record.absorb(&Update { job, at: at(10), status, note });
        }
        record.output = Some(vec![9; 300].into());
        record.last_recovery_at = Some(at(8));
        record.attempts_dropped = 4;
        record.log_dropped = 5;
        record
    }

    fn checkpoint_entry(status: JobStatus) -> CheckpointEntry {
        let job = full_job();
        CheckpointEntry {
            id: job.id,
            kind: job.kind,
            queue: job.queue,
            sequence: 5,
            status,
            fingerprint: u64::MAX,
            priority: job.priority,
            max_attempts: 7,
            depends_on: job.depends_on,
            met: vec![id(1)],
            unique: Some(("key".to_string(), UniqueScope::Any, Some(at(9)))),
            expires_at: Some(at(8)),
            partition: Some(Partition { number: u64::MAX, turn: true }),
            object: Some(object()),
            steps: finished().iter().map(StepMark::of).collect(),
            kept: RecordLocation { place: u64::MAX, weight: 6 },
        }
    }

    /// Every kind of entry, with everything it can hold.
    fn all() -> Vec<(Entry, Vec<u8>)> {
        let mut all = Vec::new();
        let mut add = |entry: Entry, encode: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            encode(&mut bytes);
            all.push((entry, bytes));
        };
        for state in states() {
            let status =
                JobStatus { state, attempts: 9, recoveries: 8, generation: 7, begun: true };
            for note in notes() {
                let (status, note) = (status.clone(), note.map(Box::new));
                let update = Update { job: id(5), at: at(10), status, note };
                let encoded = update.clone();
                let entry = Entry::Update { update, previous: u64::MAX, weight: u32::MAX };
                add(entry, &|to| encode_update(&encoded, u64::MAX, u32::MAX, to));
            }
            let record = whole(status.state.clone());
            add(Entry::Whole(Box::new(record.clone())), &|to| encode_whole(&record, to));
            let record = JobRecord { steps: Vec::new(), ..record };
            add(Entry::Whole(Box::new(record.clone())), &|to| encode_whole(&record, to));
            let checkpoint_entry = checkpoint_entry(status.clone());
            add(Entry::Checkpoint(Box::new(checkpoint_entry.clone())), &|to| {
                encode_checkpoint_entry(&checkpoint_entry, to)
            });
            let plain = CheckpointEntry {
                partition: None,
                object: None,
                steps: Vec::new(),
                ..checkpoint_entry
            };
            add(Entry::Checkpoint(Box::new(plain.clone())), &|to| {
                encode_checkpoint_entry(&plain, to)
            });
            let (job, met) = (Arc::new(full_job()), vec![id(9)]);
            let accepted = Accepted { job, sequence: 1, at: at(10), status, met };
            let insert = Change::Insert(Box::new(accepted));
            add(Entry::Change(insert.clone()), &|to| encode_change(&insert, to));
        }
        let settings = QueueSettings {
            paused: true,
            max_depth: Some(0),
            ageing: Some(Duration::from_secs(3)),
            ..QueueSettings::default()
        };
        let laned = QueueSettings {
            lanes: NonZeroU32::new(7),
            paused_lanes: [0, 6].into(),
            lane_depth: Some(u64::MAX),
            on_dead: Some(name("dead")),
            on_empty: Some(name("empty")),
            ..settings.clone()
        };
        for status in [ObjectStatus::Active, ObjectStatus::Stopped, ObjectStatus::Failed] {
            let (address, meta) = (object(), meta(status));
            let kept = RecordLocation { place: u64::MAX, weight: 6 };
            let checkpoint_entry =
                Entry::ObjectCheckpoint(Box::new((address.clone(), meta.clone(), kept)));
            add(checkpoint_entry, &|to| encode_object_checkpoint_entry(&address, &meta, kept, to));
            let (address, meta) = (address.clone(), meta.clone());
            let record = ObjectRecord { address, meta, state: vec![1, 2].into() };
            add(Entry::Object(Box::new(record.clone())), &|to| encode_object(&record, to));
        }
        let totals = Totals { enqueued: 1, completed: u64::MAX, ..Totals::default() };
        for change in [
            Change::Remove { job: id(4) },
            Change::Queue { queue: name("q"), settings, dead_letters_dropped: 77 },
            Change::Queue { queue: name("q"), settings: laned, dead_letters_dropped: 1 },
            Change::Lane { queue: name("q"), lane: 4_095, totals },
            Change::ObjectGone { address: object() },
            Change::Rate { kind: name("k"), full_at: at(-1) },
            Change::QueueKind { queue: name("q"), kind: name("k"), totals },
        ] {
            add(Entry::Change(change.clone()), &|to| encode_change(&change, to));
        }
        all
    }

    #[test]
    fn what_is_written_is_read_back() {
        for (entry, bytes) in all() {
            assert_eq!(decode(&bytes).as_ref(), Ok(&entry));
        }
        let mut plain = Vec::new();
        let mut job = NewJob::new(id(1), name("k"), name("q"), vec![]);
        for (start, timeout) in
            [(Start::Now, None), (Start::After(Duration::ZERO), Some(Timeout::Off))]
        {
            (job.start, job.timeout) = (start, timeout);
            plain.clear();
            new_job(&job, &mut plain);
            assert_eq!(EntryReader { left: &plain }.new_job().as_ref(), Ok(&job));
        }
        for lane in [Lane::Spread, Lane::Turn(u64::MAX)] {
            job.lane = Some(lane);
            plain.clear();
            new_job(&job, &mut plain);
            assert_eq!(EntryReader { left: &plain }.new_job().as_ref(), Ok(&job));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused_and_never_panic() {
        for (entry, bytes) in all() {
            for length in 0..bytes.len() {
                assert!(decode(&bytes[..length]).is_err(), "{entry:?} cut at {length}");
            }
            let mut changed = bytes.clone();
            for at in 0..bytes.len() {
                for change in [1, 0x80, 0xff] {
                    changed[at] ^= change;
                    let _ = decode(&changed);
                    changed[at] ^= change;
                }
            }
            changed.push(0);
            assert!(decode(&changed).is_err(), "{entry:?} with a byte too many");
        }
    }
}
