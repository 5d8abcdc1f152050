//! Judging an attempt: what its end means, and the settlement that follows.
//!
//! No function here waits or asks anybody. The verdict itself is decided by the core.

use std::sync::LazyLock;
use std::time::Duration;

use windlass_core::job::Bytes;
use windlass_core::ledger::Settlement;
use windlass_core::outcome::{ErrorText, Outcome, RunCounts, Verdict, decide};
use windlass_core::record::Report;
use windlass_core::refusal::Refusal;
use windlass_core::retry::{Retry, jitter_seed};

use crate::attempt::{Attempt, StopReason};
use crate::failure::Failure;
use crate::handler::{RegisteredHandler, Returned};
use crate::panics;

/// What the handler ended with; a panic is text.
pub(super) type Ended = Result<Returned, String>;

/// How an attempt ended, and what there is to keep of it.
pub(super) struct Judged {
    outcome: Outcome,
    output: Option<Bytes>,
    error: Option<ErrorText>,
}

impl Judged {
    fn completed(output: Vec<u8>) -> Self {
        /// What every handler returns that returns nothing: they share it.
        static NULL: LazyLock<Bytes> = LazyLock::new(|| b"null".as_slice().into());
        let output = if output == **NULL { NULL.clone() } else { output.into() };
        Self { outcome: Outcome::Completed, output: Some(output), error: None }
    }

    fn without_output(outcome: Outcome, error: impl AsRef<str>) -> Self {
        Self { outcome, output: None, error: Some(ErrorText::new(error)) }
    }

    /// It failed, and may be tried again.
    pub(super) fn failed(error: impl AsRef<str>) -> Self {
        Self::without_output(Outcome::Failed(Default::default()), error)
    }
}

/// What an end means; `ended` is `None` if the handler has not returned. `None` if it counts for
/// nothing, because the lease is lost.
pub(super) fn judge(attempt: &Attempt, ended: Option<Ended>) -> Option<Judged> {
    let handler = attempt.handler();
    let unless_done = |ended: Option<Ended>, outcome, error: &str| match ended {
        // The work was done before the handler heard; that is the truth, so it counts.
        Some(Ok(Ok(output))) => Judged::completed(output),
        _ => Judged::without_output(outcome, error),
    };
    let judged = match attempt.cancellation().reason() {
        Some(StopReason::LeaseLost) => return None,
        Some(StopReason::Timeout) => {
            let limit = attempt.timeout().unwrap_or_default();
            // Whatever it returned came too late: the first report wins.
            Judged::failed(format!("timed out after {} ms", limit.as_millis()))
        }
        Some(StopReason::Cancelled) => {
            let judged = unless_done(ended, Outcome::Interrupted, "cancelled by request");
            Judged { outcome: judged.outcome.after_cancel_request(), ..judged }
        }
        Some(StopReason::Shutdown) => match ended {
            // What the handler decided counts; that it was cut short does not.
            Some(Ok(Err(failure))) if !failure.is_retry() => failed(handler, failure),
            ended => unless_done(ended, Outcome::Interrupted, "interrupted by shutdown"),
        },
        None => match ended? {
            Ok(Ok(output)) => Judged::completed(output),
            Ok(Err(failure)) => failed(handler, failure),
            Err(panic) => failed(handler, Failure::retry(panic)),
        },
    };
    Some(unless_completed_elsewhere(attempt, judged))
}

/// If the handler completed the job in a transaction that was committed, whatever is settled now
/// under the same lease changes nothing. If it counts, that transaction was not committed.
fn unless_completed_elsewhere(attempt: &Attempt, judged: Judged) -> Judged {
    if !attempt.completes_elsewhere() || judged.outcome != Outcome::Completed {
        return judged;
    }
    Judged::failed("the transaction in which it was completed was not committed")
}

fn failed(handler: &RegisteredHandler, failure: Failure) -> Judged {
    let retry_if = handler.options.retry_if.as_ref();
    // A decision that panics decides nothing.
    let decided = retry_if.map(|decide| panics::catch(|| decide(&failure)).unwrap_or(true));
    let refused = failure.is_retry() && decided == Some(false);
    let failure = if refused { failure.into_permanent() } else { failure };
    // An error may panic when it is asked what it is. It is dropped here too, for the same reason.
    let outcome = failure.outcome();
    let text = panics::catch(move || failure.text()).unwrap_or_else(ErrorText::new);
    Judged { outcome, output: None, error: Some(text) }
}

/// What an attempt is settled with when the store refuses what it returned: it failed for that
/// reason.
pub(super) fn refused(attempt: &Attempt, report: Report, refusal: &Refusal) -> Settlement {
    tracing::warn!(job = %attempt.id(), %refusal, "the store refused the outcome");
    let judged = Judged::failed(format!("the outcome was refused: {refusal}"));
    Settlement { report, ..settlement(attempt, judged) }
}

/// What is written of an attempt: the verdict on its job, and what there is to keep.
pub(super) fn settlement(attempt: &Attempt, judged: Judged) -> Settlement {
    let retry: &Retry = attempt.retry();
    let counts = RunCounts {
        attempt: attempt.number(),
        max_attempts: attempt.max_attempts(),
        since_first_start: match judged.outcome {
            Outcome::Failed(_) => attempt.since_first_start(),
            // Only a failure is limited in time, and most attempts do not fail.
            Outcome::Completed
            | Outcome::Snoozed(_)
            | Outcome::Cancelled(_)
            | Outcome::Interrupted => Duration::ZERO,
        },
        retry,
    };
    let seed = jitter_seed(attempt.id(), attempt.number());
    let verdict: Verdict = decide(&judged.outcome, counts, seed);
    Settlement {
        job: attempt.id(),
        token: attempt.token(),
        verdict,
        output: judged.output,
        error: judged.error,
        report: Report::default(),
        next: Vec::new(),
        turn: None,
    }
}
