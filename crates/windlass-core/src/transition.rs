//! The state machine: every legal change of a job, and nothing else.
//!
//! [`next`] is one exhaustive match of states and inputs with no wildcard on the state, so a new
//! state does not compile until every input has been thought about. A refusal is a value: losing a
//! race is ordinary. The ledger calls this function; a SQL store repeats it in SQL and the
//! conformance suite walks every cell of the table through both.

use core::time::Duration;

use crate::job::{CancelReason, DeadReason, JobStatus, Lease, LeaseToken, State, StateName};
use crate::outcome::Verdict;
use crate::time::Timestamp;

/// Something that may happen to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Its time has come.
    Due,
    /// The last job it waited for has completed.
    Unblock,
    /// A job it depends on, with a cascading edge, died (or was cancelled).
    DependencyFailed {
        /// The dependency was cancelled rather than dead.
        cancelled: bool,
    },
    /// A worker takes it.
    Claim(Lease),
    /// Its worker is alive.
    Renew {
        /// The lease the worker believes it holds.
        token: LeaseToken,
        /// The new end of the lease.
        until: Timestamp,
    },
    /// Its attempt ended.
    Settle {
        /// The lease the worker believes it holds.
        token: LeaseToken,
        /// What becomes of it.
        verdict: Verdict,
    },
    /// Its worker is gone: the lease with this token ended.
    Rescue {
        /// The lease that was seen to have ended.
        token: LeaseToken,
        /// How often a job may be recovered.
        max_recoveries: u32,
        /// How long it rests before it runs again.
        delay: Duration,
    },
    /// Someone calls it off.
    Cancel(CancelReason),
    /// It has not started when it expired.
    Expire,
    /// Someone moves its start; a time that has passed means now.
    Reschedule(Timestamp),
    /// Someone tries a dead or cancelled job again.
    Replay {
        /// Dependencies that have not completed.
        unmet: u32,
    },
    /// A new job with an edited payload takes the place of a dead one.
    Replace,
    /// Its record is deleted.
    Remove,
}

/// The name of an [`Input`], without its data; one column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is the input of the same name")]
pub enum InputName {
    Due,
    Unblock,
    DependencyFailed,
    Claim,
    Renew,
    Settle,
    Rescue,
    Cancel,
    Expire,
    Reschedule,
    Replay,
    Replace,
    Remove,
}

impl InputName {
    /// All columns of the table.
    pub const ALL: [InputName; 13] = [
        InputName::Due,
        InputName::Unblock,
        InputName::DependencyFailed,
        InputName::Claim,
        InputName::Renew,
        InputName::Settle,
        InputName::Rescue,
        InputName::Cancel,
        InputName::Expire,
        InputName::Reschedule,
        InputName::Replay,
        InputName::Replace,
        InputName::Remove,
    ];
}

/// What becomes of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is now like this.
    Is(JobStatus),
    /// It no longer exists.
    Gone,
}

/// Why nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The input does not apply to a job in this state.
    WrongState(StateName),
    /// The lease named is not the lease held.
    LeaseLost,
}

/// What becomes of a job in `status` when `input` happens at `now`, or why nothing does.
pub fn next(status: &JobStatus, input: &Input, now: Timestamp) -> Result<Next, Refused> {
    match input {
        Input::Due => due(status, now),
        Input::Unblock => unblock(status, now),
        Input::DependencyFailed { cancelled } => dependency_failed(status, *cancelled, now),
        Input::Claim(lease) => claim(status, lease),
        Input::Renew { token, until } => renew(status, *token, *until),
        Input::Settle { token, verdict } => settle(status, *token, *verdict, now),
        Input::Rescue { token, max_recoveries, delay } => {
            rescue(status, *token, *max_recoveries, *delay, now)
        }
        Input::Cancel(reason) => cancel(status, *reason, now),
        Input::Expire => expire(status, now),
        Input::Reschedule(at) => reschedule(status, *at, now),
        Input::Replay { unmet } => replay(status, *unmet, now),
        Input::Replace => replace(status, now),
        Input::Remove => remove(status),
    }
}

type TransitionResult = Result<Next, Refused>;

fn becomes(status: &JobStatus, state: State) -> TransitionResult {
    Ok(Next::Is(JobStatus { state, ..status.clone() }))
}

fn wrong_state(status: &JobStatus) -> TransitionResult {
    Err(Refused::WrongState(status.state.name()))
}

/// The state of a job that may start at `at`: a time that has passed means now, so that a past
/// due time cannot jump the queue.
pub fn waiting_until(at: Timestamp, now: Timestamp) -> State {
    if at > now { State::Scheduled { at } } else { State::Ready { since: now } }
}

fn due(status: &JobStatus, now: Timestamp) -> TransitionResult {
    match &status.state {
        State::Scheduled { at } if *at <= now => becomes(status, State::Ready { since: *at }),
        State::Scheduled { .. }
        | State::Blocked { .. }
        | State::Ready { .. }
        | State::Running(_)
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => wrong_state(status),
    }
}

fn unblock(status: &JobStatus, now: Timestamp) -> TransitionResult {
    match &status.state {
        State::Blocked { unmet: 0 | 1, not_before } => {
            becomes(status, waiting_until(*not_before, now))
        }
        State::Blocked { unmet, not_before } => {
            let state = State::Blocked { unmet: unmet - 1, not_before: *not_before };
            becomes(status, state)
        }
        State::Scheduled { .. }
        | State::Ready { .. }
        | State::Running(_)
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => wrong_state(status),
    }
}

fn dependency_failed(status: &JobStatus, cancelled: bool, now: Timestamp) -> TransitionResult {
    match &status.state {
        State::Blocked { .. } if cancelled => {
            let reason = CancelReason::DependencyCancelled;
            becomes(status, State::Cancelled { at: now, reason })
        }
        State::Blocked { .. } => {
            let reason = DeadReason::DependencyFailed;
            becomes(status, State::Dead { at: now, reason })
        }
        State::Scheduled { .. }
        | State::Ready { .. }
        | State::Running(_)
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => wrong_state(status),
    }
}

/// Starts are counted here, durably, before the handler can crash anything.
fn claim(status: &JobStatus, lease: &Lease) -> TransitionResult {
    match &status.state {
        State::Ready { .. } => Ok(Next::Is(JobStatus {
            state: State::Running(lease.clone()),
            attempts: status.attempts.saturating_add(1),
            begun: true,
            settled_by: None,
            ..status.clone()
        })),
        State::Blocked { .. }
        | State::Scheduled { .. }
        | State::Running(_)
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => wrong_state(status),
    }
}

/// The lease of a running job, if it is the one `token` names.
fn held(status: &JobStatus, token: LeaseToken) -> Result<&Lease, Refused> {
    match &status.state {
        State::Running(lease) if lease.token == token => Ok(lease),
        // Whatever the job is now, the caller's lease on it is over: the same answer whether it
        // was rescued, settled by someone else or replayed, so that no caller can tell them apart
        // and act on a guess. (That it was settled under this very token is no change of the job,
        // and for the ledger to answer.)
        State::Running(_)
        | State::Blocked { .. }
        | State::Scheduled { .. }
        | State::Ready { .. }
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => Err(Refused::LeaseLost),
    }
}

fn renew(status: &JobStatus, token: LeaseToken, until: Timestamp) -> TransitionResult {
    let lease = held(status, token)?;
    becomes(status, State::Running(Lease { until, ..lease.clone() }))
}

fn settle(
    status: &JobStatus,
    token: LeaseToken,
    verdict: Verdict,
    now: Timestamp,
) -> TransitionResult {
    let lease = held(status, token)?;
    let cancelled = State::Cancelled { at: now, reason: CancelReason::Requested };
    let uncounted = status.attempts.saturating_sub(1);
    let (state, attempts) = match verdict {
        Verdict::Complete => (State::Completed { at: now }, status.attempts),
        Verdict::Bury(reason) => (State::Dead { at: now, reason }, status.attempts),
        Verdict::Cancel(reason) => (State::Cancelled { at: now, reason }, status.attempts),
        // A request to cancel wins over every verdict that would run the job again.
        Verdict::Retry(_) | Verdict::Snooze(_) | Verdict::Release if lease.cancel_requested => {
            (cancelled, status.attempts)
        }
        Verdict::Retry(delay) => (State::Scheduled { at: now + delay }, status.attempts),
        Verdict::Snooze(pause) => (State::Scheduled { at: now + pause }, uncounted),
        Verdict::Release => (State::Ready { since: lease.since.min(now) }, uncounted),
    };
    let recoveries = if verdict == Verdict::Complete { 0 } else { status.recoveries };
    // Kept until the next attempt, so that a settlement whose answer was lost can be repeated.
    let settled_by = Some(token);
    Ok(Next::Is(JobStatus { state, attempts, recoveries, settled_by, ..status.clone() }))
}

/// A crash is counted here, at detection, and leads to the dead letters like a failure does.
fn rescue(
    status: &JobStatus,
    token: LeaseToken,
    max_recoveries: u32,
    delay: Duration,
    now: Timestamp,
) -> TransitionResult {
    let lease = held(status, token)?;
    let exhausted = status.attempts >= lease.max_attempts || status.recoveries >= max_recoveries;
    let (state, recoveries) = if lease.cancel_requested {
        let reason = CancelReason::Requested;
        (State::Cancelled { at: now, reason }, status.recoveries)
    } else if exhausted {
        (State::Dead { at: now, reason: DeadReason::Crashed }, status.recoveries)
    } else {
        (State::Scheduled { at: now + delay }, status.recoveries + 1)
    };
    Ok(Next::Is(JobStatus { state, recoveries, ..status.clone() }))
}

fn cancel(status: &JobStatus, reason: CancelReason, now: Timestamp) -> TransitionResult {
    match &status.state {
        State::Blocked { .. } | State::Scheduled { .. } | State::Ready { .. } => {
            becomes(status, State::Cancelled { at: now, reason })
        }
        // The handler must be asked; the request is durable and reaches it at the next renewal
        // even if every wake is lost.
        State::Running(lease) => {
            let lease = Lease { cancel_requested: true, ..lease.clone() };
            becomes(status, State::Running(lease))
        }
        State::Completed { .. } | State::Dead { .. } | State::Cancelled { .. } => {
            wrong_state(status)
        }
    }
}

fn expire(status: &JobStatus, now: Timestamp) -> TransitionResult {
    match &status.state {
        // Whoever replays a job wants it to run, however late it is.
        State::Blocked { .. } | State::Scheduled { .. } | State::Ready { .. }
            if status.attempts == 0 && status.generation == 0 =>
        {
            let reason = CancelReason::Expired;
            becomes(status, State::Cancelled { at: now, reason })
        }
        State::Blocked { .. }
        | State::Scheduled { .. }
        | State::Ready { .. }
        | State::Running(_)
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => wrong_state(status),
    }
}

fn reschedule(status: &JobStatus, at: Timestamp, now: Timestamp) -> TransitionResult {
    match &status.state {
        State::Scheduled { .. } | State::Ready { .. } => becomes(status, waiting_until(at, now)),
        State::Blocked { unmet, .. } => {
            becomes(status, State::Blocked { unmet: *unmet, not_before: at })
        }
        State::Running(_)
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => wrong_state(status),
    }
}

fn replay(status: &JobStatus, unmet: u32, now: Timestamp) -> TransitionResult {
    let state = match unmet {
        0 => State::Ready { since: now },
        _ => State::Blocked { unmet, not_before: now },
    };
    match &status.state {
        State::Dead { .. } | State::Cancelled { .. } => Ok(Next::Is(JobStatus {
            state,
            attempts: 0,
            recoveries: 0,
            generation: status.generation.saturating_add(1),
            begun: false,
            settled_by: None,
        })),
        State::Blocked { .. }
        | State::Scheduled { .. }
        | State::Ready { .. }
        | State::Running(_)
        | State::Completed { .. } => wrong_state(status),
    }
}

fn replace(status: &JobStatus, now: Timestamp) -> TransitionResult {
    match &status.state {
        State::Dead { .. } => {
            let reason = CancelReason::Replaced;
            becomes(status, State::Cancelled { at: now, reason })
        }
        State::Blocked { .. }
        | State::Scheduled { .. }
        | State::Ready { .. }
        | State::Running(_)
        | State::Completed { .. }
        | State::Cancelled { .. } => wrong_state(status),
    }
}

fn remove(status: &JobStatus) -> TransitionResult {
    match &status.state {
        State::Completed { .. } | State::Dead { .. } | State::Cancelled { .. } => Ok(Next::Gone),
        State::Blocked { .. }
        | State::Scheduled { .. }
        | State::Ready { .. }
        | State::Running(_) => wrong_state(status),
    }
}
