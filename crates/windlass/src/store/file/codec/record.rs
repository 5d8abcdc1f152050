//! The record of a job: as it was accepted, what happened to it since, all of it at once, and what
//! a checkpoint says of it.

use std::sync::Arc;

use windlass_core::job::{JobStatus, Priority, State};
use windlass_core::ledger::{CheckpointEntry, Partition, StepMark};
use windlass_core::record::{
    Accepted, AttemptEnd, AttemptRecord, JobRecord, LogLine, Progress, RecordLocation, RecordNote,
    Report, Step, Update,
};
use windlass_core::time::Timestamp;

use super::Wrong;
use super::bytes::{
    EntryReader, RANGE, bytes, error, id, ids, list, name, option, text, time, varint,
};
use super::job::{dependencies, new_job, scope};
use super::objects::address;
use super::status::status;

pub(super) fn accepted(accepted: &Accepted, to: &mut Vec<u8>) {
    new_job(&accepted.job, to);
    varint(accepted.sequence, to);
    time(accepted.at, to);
    status(&accepted.status, accepted.at, to);
    ids(&accepted.met, to);
}

impl EntryReader<'_> {
    pub(super) fn accepted(&mut self) -> Result<Accepted, Wrong> {
        let job = Arc::new(self.new_job()?);
        let (sequence, at) = (self.varint()?, self.time()?);
        let status = self.status(at)?;
        Ok(Accepted { job, sequence, at, status, met: self.ids()? })
    }
}

/// `previous` is where the entry before it about the same job stands, and `weight` how many bytes
/// there are of it so far.
pub(super) fn update(update: &Update, previous: u64, weight: u32, to: &mut Vec<u8>) {
    id(update.job, to);
    to.extend(previous.to_le_bytes());
    varint(weight.into(), to);
    time(update.at, to);
    status(&update.status, update.at, to);
    note(update.note.as_ref(), &update.status, to);
}

impl EntryReader<'_> {
    pub(super) fn update(&mut self) -> Result<(Update, u64, u32), Wrong> {
        let (job, previous, weight) = (self.id()?, self.long()?, self.short()?);
        let at = self.time()?;
        let status = self.status(at)?;
        let note = self.note(&status)?;
        Ok((Update { job, at, status, note }, previous, weight))
    }
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
        Some(RecordNote::Reported(said)) => {
            to.push(4);
            report(said, to);
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
            id(*on, to);
        }
    }
}

impl EntryReader<'_> {
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
            4 => RecordNote::Reported(Box::new(self.report()?)),
            5 => RecordNote::Failed(self.error()?),
            6 => RecordNote::Replayed { met: self.ids()? },
            7 => RecordNote::Met { on: self.id()? },
            _ => return Err(RANGE),
        }))
    }

    fn attempt_end(&mut self) -> Result<AttemptEnd, Wrong> {
        AttemptEnd::from_number(self.byte()?).ok_or(RANGE)
    }
}

fn report(report: &Report, to: &mut Vec<u8>) {
    option(report.progress.as_ref(), to, progress);
    list(report.lines.iter(), to, line);
    list(report.steps.iter(), to, step);
    varint(report.lines_dropped.into(), to);
}

impl EntryReader<'_> {
    fn report(&mut self) -> Result<Report, Wrong> {
        Ok(Report {
            progress: self.option(EntryReader::progress)?,
            lines: self.list(10, EntryReader::line)?,
            steps: self.list(3, EntryReader::step)?,
            lines_dropped: self.short()?,
        })
    }
}

fn step(step: &Step, to: &mut Vec<u8>) {
    name(&step.name, to);
    bytes(&step.result, to);
}

impl EntryReader<'_> {
    fn step(&mut self) -> Result<Step, Wrong> {
        Ok(Step { name: self.name()?, result: self.bytes()?.into() })
    }
}

fn progress(progress: &Progress, to: &mut Vec<u8>) {
    to.push(progress.percent);
    text(&progress.note, to);
}

impl EntryReader<'_> {
    fn progress(&mut self) -> Result<Progress, Wrong> {
        Ok(Progress { percent: self.byte()?, note: self.text()?.to_string() })
    }
}

fn line(line: &LogLine, to: &mut Vec<u8>) {
    time(line.at, to);
    varint(line.attempt.into(), to);
    text(&line.text, to);
}

impl EntryReader<'_> {
    fn line(&mut self) -> Result<LogLine, Wrong> {
        let (at, attempt) = (self.time()?, self.short()?);
        Ok(LogLine { at, attempt, text: self.text()?.to_string() })
    }
}

pub(super) fn whole(record: &JobRecord, to: &mut Vec<u8>) {
    new_job(&record.job, to);
    varint(record.sequence, to);
    time(record.created_at, to);
    time(record.updated_at, to);
    status(&record.status, record.updated_at, to);
    option(record.first_started_at, to, time);
    option(record.last_recovery_at, to, time);
    option(record.output.as_deref(), to, bytes);
    option(record.error.as_ref(), to, error);
    list(record.attempts.iter(), to, attempt);
    varint(record.attempts_dropped.into(), to);
    option(record.progress.as_ref(), to, progress);
    list(record.log.iter(), to, line);
    varint(record.log_dropped.into(), to);
    ids(&record.met, to);
    list(record.steps.iter(), to, step);
}

impl EntryReader<'_> {
    pub(super) fn whole(&mut self) -> Result<JobRecord, Wrong> {
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
            attempts: self.list(12, EntryReader::attempt)?,
            attempts_dropped: self.short()?,
            progress: self.option(EntryReader::progress)?,
            log: self.list(10, EntryReader::line)?,
            log_dropped: self.short()?,
            met: self.ids()?,
            steps: self.list(3, EntryReader::step)?,
        })
    }
}

fn attempt(attempt: &AttemptRecord, to: &mut Vec<u8>) {
    varint(attempt.number.into(), to);
    text(&attempt.worker, to);
    time(attempt.started_at, to);
    option(attempt.ended, to, |(at, end), to| {
        time(at, to);
        to.push(end.number());
    });
    option(attempt.error.as_ref(), to, error);
}

impl EntryReader<'_> {
    fn attempt(&mut self) -> Result<AttemptRecord, Wrong> {
        Ok(AttemptRecord {
            number: self.short()?,
            worker: self.text()?.into(),
            started_at: self.time()?,
            ended: self.option(|from| Ok((from.time()?, from.attempt_end()?)))?,
            error: self.option(EntryReader::error)?,
        })
    }
}

/// A time that no state begins at. Other entries leave out a time that equals their own; a
/// checkpoint entry has none of its own, so with this one every time is written in full.
const NO_TIME: Timestamp = Timestamp::from_micros(i64::MIN);

pub(super) fn checkpoint_entry(entry: &CheckpointEntry, to: &mut Vec<u8>) {
    id(entry.id, to);
    name(&entry.kind, to);
    name(&entry.queue, to);
    varint(entry.sequence, to);
    status(&entry.status, NO_TIME, to);
    to.extend(entry.fingerprint.to_le_bytes());
    to.extend(entry.priority.0.to_le_bytes());
    varint(entry.max_attempts.into(), to);
    dependencies(&entry.depends_on, to);
    ids(&entry.met, to);
    option(entry.unique.as_ref(), to, |(key, meant, until), to| {
        text(key, to);
        scope(*meant, to);
        option(*until, to, time);
    });
    option(entry.expires_at, to, time);
    option(entry.partition, to, |partition, to| {
        varint(partition.number, to);
        to.push(u8::from(partition.turn));
    });
    option(entry.object.as_ref(), to, address);
    list(entry.steps.iter(), to, |mark, to| {
        to.extend(mark.print.to_le_bytes());
        varint(mark.bytes.into(), to);
    });
    location(entry.kept, to);
}

impl EntryReader<'_> {
    pub(super) fn checkpoint_entry(&mut self) -> Result<CheckpointEntry, Wrong> {
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
                Ok((key, from.scope()?, from.option(EntryReader::time)?))
            })?,
            expires_at: self.option(EntryReader::time)?,
            partition: self
                .option(|from| Ok(Partition { number: from.varint()?, turn: from.flag()? }))?,
            object: self.option(EntryReader::address)?,
            steps: self
                .list(9, |from| Ok(StepMark { print: from.long()?, bytes: from.short()? }))?,
            kept: self.location()?,
        })
    }
}

pub(super) fn location(location: RecordLocation, to: &mut Vec<u8>) {
    to.extend(location.place.to_le_bytes());
    varint(location.weight.into(), to);
}

impl EntryReader<'_> {
    pub(super) fn location(&mut self) -> Result<RecordLocation, Wrong> {
        Ok(RecordLocation { place: self.long()?, weight: self.short()? })
    }
}
