//! Where a job stands.

use windlass_core::job::{CancelReason, DeadReason, JobStatus, Lease, LeaseToken, State};
use windlass_core::time::Timestamp;

use super::Wrong;
use super::bytes::{EntryReader, RANGE, text, time, varint};

/// `at` is the time of the entry: a state that began then does not repeat it.
pub(super) fn status(status: &JobStatus, at: Timestamp, to: &mut Vec<u8>) {
    let flags = u8::from(status.begun) << 7 | u8::from(status.settled_by.is_some()) << 6;
    let since = |tag: u8, since: Timestamp, to: &mut Vec<u8>| {
        to.push(flags | tag << 1 | u8::from(since == at));
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
        State::Running(held) => {
            since(3, held.since, to);
            lease(held, to);
        }
        State::Completed { at } => since(4, *at, to),
        State::Dead { at, reason } => {
            since(5, *at, to);
            dead_reason(*reason, to);
        }
        State::Cancelled { at, reason } => {
            since(6, *at, to);
            cancel_reason(*reason, to);
        }
    }
    varint(status.attempts.into(), to);
    varint(status.recoveries.into(), to);
    varint(status.generation.into(), to);
    if let Some(token) = status.settled_by {
        varint(token.0, to);
    }
}

impl EntryReader<'_> {
    pub(super) fn status(&mut self, at: Timestamp) -> Result<JobStatus, Wrong> {
        let tag = self.byte()?;
        let since = if tag & 1 == 1 { at } else { self.time()? };
        let state = match tag >> 1 & 0x1f {
            0 => State::Blocked { not_before: since, unmet: self.short()? },
            1 => State::Scheduled { at: since },
            2 => State::Ready { since },
            3 => State::Running(self.lease(since)?),
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
            settled_by: match tag & 0x40 {
                0 => None,
                _ => Some(LeaseToken(self.varint()?)),
            },
        })
    }
}

fn lease(lease: &Lease, to: &mut Vec<u8>) {
    varint(lease.token.0, to);
    text(&lease.worker, to);
    time(lease.until, to);
    varint(lease.max_attempts.into(), to);
    to.push(u8::from(lease.cancel_requested));
}

impl EntryReader<'_> {
    fn lease(&mut self, since: Timestamp) -> Result<Lease, Wrong> {
        Ok(Lease {
            since,
            token: LeaseToken(self.varint()?),
            worker: self.text()?.into(),
            until: self.time()?,
            max_attempts: self.short()?,
            cancel_requested: self.flag()?,
        })
    }
}

fn dead_reason(reason: DeadReason, to: &mut Vec<u8>) {
    to.push(match reason {
        DeadReason::AttemptsExhausted => 0,
        DeadReason::Permanent => 1,
        DeadReason::DurationExhausted => 2,
        DeadReason::Crashed => 3,
        DeadReason::DependencyFailed => 4,
    });
}

impl EntryReader<'_> {
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
}

fn cancel_reason(reason: CancelReason, to: &mut Vec<u8>) {
    to.push(match reason {
        CancelReason::Requested => 0,
        CancelReason::Handler => 1,
        CancelReason::Expired => 2,
        CancelReason::Cleared => 3,
        CancelReason::DependencyCancelled => 4,
        CancelReason::Replaced => 5,
    });
}

impl EntryReader<'_> {
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
}
