//! The right to run a job: who has it, until when, and the number that every write of it names.

use alloc::sync::Arc;
use core::fmt;

use crate::time::Timestamp;

/// Proof of the right to run a job: a number that only ever grows.
///
/// It is not the attempt, which snooze and replay reset, and it is never used twice, so a write
/// that carries an old token is recognised as stale for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct LeaseToken(pub u64);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one claim of a worker, so that it can be repeated if its answer was lost.
///
/// The worker chooses it: new for each claim, and used again only to repeat one of which it does
/// not know what became. No other claim, of whatever worker, may have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u128);

/// The right of one worker to run one job until a time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Lease {
    /// Fences every write of the attempt.
    pub token: LeaseToken,
    /// Who holds it.
    pub worker: Arc<str>,
    /// Since when.
    pub since: Timestamp,
    /// Until when, unless renewed; an estimate where leases run on a steady clock.
    pub until: Timestamp,
    /// Total runs allowed, decided when the job was claimed.
    pub max_attempts: u32,
    /// Someone asked for the job to be cancelled.
    pub cancel_requested: bool,
}
