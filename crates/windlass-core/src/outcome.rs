//! How an attempt ended, and what becomes of the job.
//!
//! The worker turns an [`Outcome`] into a [`Verdict`] with [`decide`], here, once; a store only
//! applies the verdict, guarded by the lease. Delays are relative, so that the store's clock and
//! no other says when a retry is due.

use alloc::string::{String, ToString};
use core::time::Duration;

use crate::job::{CancelReason, DeadReason};
use crate::limits;
use crate::retry::Retry;

/// Whether a failed attempt should be followed by another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retryable {
    /// By the job's retry policy.
    #[default]
    ByPolicy,
    /// After this long instead of the policy's delay, if the policy allows another attempt.
    After(Duration),
    /// Never: the job goes to the dead letters.
    Never,
}

/// Text of an error, cut to what a store keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorText(String);

impl ErrorText {
    /// Keeps the first [`limits::ERROR_BYTES`] of `text`.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(cut(text.as_ref(), limits::ERROR_BYTES).to_string())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl core::fmt::Display for ErrorText {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The longest start of `text` that fits in `bytes` and ends between characters.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The handler succeeded.
    Completed,
    /// The handler failed, panicked or ran out of time.
    Failed(Retryable),
    /// The handler wants to be called again later; this start is not counted.
    Snoozed(Duration),
    /// The handler, or someone else through it, called the job off.
    Cancelled(CancelReason),
    /// The worker is stopping; this start is not counted.
    Interrupted,
}

impl Outcome {
    /// What it counts as if someone asked for the job to stop meanwhile: what was done before its
    /// handler heard is done, and everything else is called off.
    pub fn after_cancel_request(self) -> Self {
        match self {
            Self::Completed => Self::Completed,
            Self::Failed(_) | Self::Snoozed(_) | Self::Cancelled(_) | Self::Interrupted => {
                Self::Cancelled(CancelReason::Requested)
            }
        }
    }
}

/// What becomes of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Verdict {
    /// It is done.
    Complete,
    /// It failed and is tried again after the delay.
    Retry(Duration),
    /// It runs again after the pause, the start uncounted.
    Snooze(Duration),
    /// It goes back to its queue as ready, the start uncounted.
    Release,
    /// It failed and goes to the dead letters.
    Bury(DeadReason),
    /// It is called off.
    Cancel(CancelReason),
}

/// What [`decide`] needs to know about the job.
#[derive(Clone, Copy, Debug)]
pub struct RunCounts<'a> {
    /// Which start this was, 1 for the first.
    pub attempt: u32,
    /// Total runs allowed.
    pub max_attempts: u32,
    /// Time since the first start of this generation.
    pub since_first_start: Duration,
    /// The policy that applies.
    pub retry: &'a Retry,
}

/// Decides what becomes of a job when one attempt of it ends.
pub fn decide(outcome: &Outcome, job: RunCounts<'_>, seed: u64) -> Verdict {
    let retryable = match outcome {
        Outcome::Completed => return Verdict::Complete,
        Outcome::Cancelled(reason) => return Verdict::Cancel(*reason),
        Outcome::Snoozed(pause) => return Verdict::Snooze((*pause).min(limits::DELAY_MAX)),
        // A deploy is not the job's fault: back to the queue, and the attempt is not counted.
        Outcome::Interrupted => return Verdict::Release,
        Outcome::Failed(retryable) => retryable,
    };
    let delay = match retryable {
        Retryable::Never => return Verdict::Bury(DeadReason::Permanent),
        Retryable::After(delay) => *delay,
        Retryable::ByPolicy => job.retry.delay(job.attempt, seed),
    };
    if job.attempt >= job.max_attempts {
        return Verdict::Bury(DeadReason::AttemptsExhausted);
    }
    let next_start = job.since_first_start.saturating_add(delay);
    if job.retry.max_duration.is_some_and(|budget| next_start > budget) {
        return Verdict::Bury(DeadReason::DurationExhausted);
    }
    Verdict::Retry(delay.min(limits::DELAY_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::{Jitter, UNLIMITED};

    fn verdict(outcome: Outcome, attempt: u32, retry: &Retry) -> Verdict {
        let job = RunCounts {
            attempt,
            max_attempts: retry.max_attempts.unwrap_or(3),
            since_first_start: Duration::from_secs(10),
            retry,
        };
        decide(&outcome, job, 0)
    }

    #[test]
    fn max_attempts_counts_all_runs_the_first_included() {
        let retry = Retry::constant(Duration::from_secs(1)).jitter(Jitter::None).up_to(2);
        let failed = Outcome::Failed(Retryable::ByPolicy);
        assert_eq!(verdict(failed.clone(), 1, &retry), Verdict::Retry(Duration::from_secs(1)));
        assert_eq!(verdict(failed, 2, &retry), Verdict::Bury(DeadReason::AttemptsExhausted));
    }

    #[test]
    fn unlimited_attempts_never_run_out() {
        let retry = Retry::default().unlimited();
        let failed = Outcome::Failed(Retryable::ByPolicy);
        assert!(matches!(verdict(failed, UNLIMITED - 1, &retry), Verdict::Retry(_)));
    }

    #[test]
    fn a_handler_may_set_the_delay_but_not_exceed_the_attempts() {
        let retry = Retry::default().up_to(2);
        let later = Outcome::Failed(Retryable::After(Duration::from_secs(90)));
        assert_eq!(verdict(later.clone(), 1, &retry), Verdict::Retry(Duration::from_secs(90)));
        assert_eq!(verdict(later, 2, &retry), Verdict::Bury(DeadReason::AttemptsExhausted));
    }

    #[test]
    fn a_retry_that_would_start_after_the_maximum_duration_is_not_made() {
        let retry = Retry::constant(Duration::from_secs(5)).jitter(Jitter::None);
        let failed = Outcome::Failed(Retryable::ByPolicy);
        let inside = retry.clone().within(Duration::from_secs(15));
        assert!(matches!(verdict(failed.clone(), 1, &inside), Verdict::Retry(_)));
        let outside = retry.within(Duration::from_secs(14));
        assert_eq!(verdict(failed, 1, &outside), Verdict::Bury(DeadReason::DurationExhausted));
    }

    #[test]
    fn permanent_failures_snoozes_interruptions_and_cancels_ignore_the_policy() {
        let retry = Retry::never();
        let pause = Duration::from_secs(3);
        let cancelled = Outcome::Cancelled(CancelReason::Handler);
        for (outcome, expected) in [
            (Outcome::Failed(Retryable::Never), Verdict::Bury(DeadReason::Permanent)),
            (Outcome::Snoozed(pause), Verdict::Snooze(pause)),
            (Outcome::Interrupted, Verdict::Release),
            (cancelled, Verdict::Cancel(CancelReason::Handler)),
            (Outcome::Completed, Verdict::Complete),
        ] {
            assert_eq!(verdict(outcome, 9, &retry), expected);
        }
    }

    #[test]
    fn what_was_done_before_a_cancellation_was_heard_is_done_and_all_else_is_called_off() {
        assert_eq!(Outcome::Completed.after_cancel_request(), Outcome::Completed);
        for other in [
            Outcome::Failed(Retryable::Never),
            Outcome::Snoozed(Duration::from_secs(3)),
            Outcome::Cancelled(CancelReason::Handler),
            Outcome::Interrupted,
        ] {
            let called_off = Outcome::Cancelled(CancelReason::Requested);
            assert_eq!(other.after_cancel_request(), called_off);
        }
    }

    #[test]
    fn error_text_is_cut_between_characters() {
        let long = "é".repeat(limits::ERROR_BYTES);
        let text = ErrorText::new(&long);
        assert_eq!(text.as_str().len(), limits::ERROR_BYTES);
        assert!(long.starts_with(text.as_str()));
    }
}
