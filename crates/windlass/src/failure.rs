//! What a handler returns when it does not succeed.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use windlass_core::job::CancelReason;
use windlass_core::outcome::{ErrorText, Outcome, Retryable};

/// An error of any type, boxed.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why an attempt did not succeed, and what the handler wants to happen next.
///
/// Any error becomes a failure that is retried by the job's policy, so `?` just works:
///
/// ```
/// # use windlass::Failure;
/// fn parse(text: &str) -> Result<u64, Failure> {
///     Ok(text.parse()?)
/// }
/// # assert!(parse("x").is_err());
/// ```
pub struct Failure {
    wish: FailureKind,
    error: BoxError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureKind {
    Retry,
    RetryAfter(Duration),
    Permanent,
    Snooze(Duration),
    Cancel,
}

impl Failure {
    /// Try again, by the job's retry policy. The same as `?`.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self { wish: FailureKind::Retry, error: error.into() }
    }

    /// Try again after `delay`, if the policy allows another attempt. For servers that say when.
    pub fn retry_after(delay: Duration, error: impl Into<BoxError>) -> Self {
        Self { wish: FailureKind::RetryAfter(delay), error: error.into() }
    }

    /// Do not try again: the job goes to the dead letters.
    pub fn permanent(error: impl Into<BoxError>) -> Self {
        Self { wish: FailureKind::Permanent, error: error.into() }
    }

    /// Not a failure: run again after `pause`, and do not count this start.
    pub fn snooze(pause: Duration) -> Self {
        Self { wish: FailureKind::Snooze(pause), error: format!("snoozed for {pause:?}").into() }
    }

    /// Call the job off: it is cancelled, not dead.
    pub fn cancel(reason: impl Into<BoxError>) -> Self {
        Self { wish: FailureKind::Cancel, error: reason.into() }
    }

    /// The error, for a retry policy or a middleware to look at.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self.error.as_ref()
    }

    /// Whether the job's retry policy decides what happens next.
    pub fn is_retry(&self) -> bool {
        self.wish == FailureKind::Retry
    }

    /// The same error, but never retried.
    pub(crate) fn into_permanent(self) -> Self {
        Self { wish: FailureKind::Permanent, ..self }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match self.wish {
            FailureKind::Retry => Outcome::Failed(Retryable::ByPolicy),
            FailureKind::RetryAfter(delay) => Outcome::Failed(Retryable::After(delay)),
            FailureKind::Permanent => Outcome::Failed(Retryable::Never),
            FailureKind::Snooze(pause) => Outcome::Snoozed(pause),
            FailureKind::Cancel => Outcome::Cancelled(CancelReason::Handler),
        }
    }

    pub(crate) fn text(&self) -> ErrorText {
        ErrorText::new(self.to_string())
    }
}

/// The error and everything that caused it, on one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        let mut source = self.error.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.wish)
    }
}

/// `Failure` is deliberately not an error itself, so that every error can become one.
impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_becomes_a_failure_that_is_retried() {
        fn io() -> Result<(), Failure> {
            Err(std::io::Error::other("disk"))?
        }
        fn text() -> Result<(), Failure> {
            Err("plain text")?
        }
        fn any() -> Result<(), Failure> {
            Err(anyhow::anyhow!("inner").context("outer"))?
        }
        fn failure() -> Result<(), Failure> {
            Err(Failure::permanent("kept as it is"))?
        }
        assert!(io().is_err_and(|failure| failure.is_retry()));
        assert!(text().is_err_and(|failure| failure.is_retry()));
        assert_eq!(any().map_err(|f| f.to_string()), Err("outer: inner".to_string()));
        assert!(failure().is_err_and(|failure| !failure.is_retry()));
    }
}
