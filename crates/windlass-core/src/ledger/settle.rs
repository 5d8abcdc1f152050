//! An attempt has ended: the verdict, the output, the next jobs and the dependents in one commit.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Command, Effects, Ledger, died_of_attempts};
use crate::event::{EventKind, EventResult};
use crate::job::{Bytes, JobId, JobStatus, LeaseToken, NewJob, State, StateName, UniqueScope};
use crate::limits::{self, Limits, at_most};
use crate::object::Turn;
use crate::outcome::{ErrorText, Verdict};
use crate::record::{AttemptEnd, RecordNote, Report};
use crate::refusal::Refusal;
use crate::transition::Input;

/// Settle these attempts. Each is answered on its own.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The attempts.
    pub settlements: Vec<Settlement>,
}

/// The end of one attempt.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Settlement {
    /// The job.
    pub job: JobId,
    /// The lease the worker believes it holds.
    pub token: LeaseToken,
    /// What becomes of the job.
    pub verdict: Verdict,
    /// What the handler returned.
    #[cfg_attr(feature = "wire", serde(default, with = "crate::wire::maybe_bytes"))]
    pub output: Option<Bytes>,
    /// What went wrong.
    pub error: Option<ErrorText>,
    /// What the handler said last, in the same commit.
    pub report: Report,
    /// Jobs to accept in the same commit if the verdict is [`Verdict::Complete`].
    pub next: Vec<Arc<NewJob>>,
    /// A turn of an object to make in the same commit. If it is refused, nothing is settled.
    pub turn: Option<Box<Turn>>,
}

impl Settlement {
    /// A settlement with nothing but its verdict.
    pub fn new(job: JobId, token: LeaseToken, verdict: Verdict) -> Self {
        Self {
            job,
            token,
            verdict,
            output: None,
            error: None,
            report: Report::default(),
            next: Vec::new(),
            turn: None,
        }
    }
}

/// Refuses an output that is too large.
pub fn check_output(output: Option<&Bytes>, limits: &Limits) -> Result<(), Refusal> {
    let bytes = output.map_or(0, |output| output.len());
    at_most(limits::OUTPUT_WHAT, bytes, limits.payload_bytes, limits::PAYLOAD_REMEDY)
}

/// The verdict counts, or one that was settled before under the same token does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Settled {
    /// The state the job is in now.
    pub state: StateName,
}

impl Command for Settle {
    type Reply = Vec<Result<Settled, Refusal>>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal> {
        Ok(self.settlements.into_iter().map(|each| ledger.settle(each, effects)).collect())
    }
}

impl Ledger {
    fn settle(
        &mut self,
        settlement: Settlement,
        effects: &mut Effects,
    ) -> Result<Settled, Refusal> {
        let Settlement { job, token, verdict, output, error, report, next, turn } = settlement;
        let held = self.leases.get(&token).map(|held| held.slot);
        let Some(slot) = held.filter(|slot| self.entry(*slot).id == job) else {
            return self.settled_before(job, token).ok_or(Refusal::LeaseLost { job });
        };
        let lease = self.leases[&token].lease.clone();
        check_output(output.as_ref(), &self.limits)?;
        self.admit_steps(slot, &report.steps)?;
        let next = if verdict == Verdict::Complete { next } else { Vec::new() };
        // A job may continue with one of the same key, which it gives up by completing.
        let scope = self.key_scope(slot).filter(|_| verdict == Verdict::Complete);
        let giving = (scope == Some(UniqueScope::Open)).then_some(slot);
        let (next, turn) = match turn {
            Some(turn) => {
                let plan = |ledger: &Ledger| ledger.plan_turn(*turn, next, effects.now.wall);
                (None, Some(self.plan_without_key_of(giving, plan)?))
            }
            None if next.is_empty() => (None, None),
            None => {
                let plan = |ledger: &Ledger| ledger.plan(next, effects.now.wall);
                (Some(self.plan_without_key_of(giving, plan)?), None)
            }
        };
        if let Some(next) = next {
            self.carry_out(next, effects);
        }
        self.record_report(slot, report, effects);
        let end = match verdict {
            Verdict::Complete => AttemptEnd::Completed,
            Verdict::Retry(_) | Verdict::Bury(_) => AttemptEnd::Failed,
            Verdict::Snooze(_) => AttemptEnd::Snoozed,
            Verdict::Release => AttemptEnd::Released,
            Verdict::Cancel(_) => AttemptEnd::Cancelled,
        };
        let attempt = self.entry(slot).attempts;
        let result = EventResult::of(output.as_ref());
        let note = RecordNote::Ended { end, output, error: error.clone() };
        let status = self
            .transition(slot, &Input::Settle { token, verdict }, Some(note), effects)
            .map_err(|refused| Refusal::of(refused, job, "settle"))?;
        let ran = effects.now.wall.since(lease.since);
        let attempt = Ended { worker: lease.worker, attempt, ran, end, result };
        self.tell_settled(slot, &status, attempt, error.clone(), effects);
        let state = status.state.name();
        // The turn says what this end means to the object. `tell_objects`, at the end of the
        // command, then finds nothing left to do about it.
        let turned = turn.map(|turn| self.carry_out_turn(turn, effects)).is_some();
        if state.is_terminal() {
            self.spread(slot, error.as_ref(), effects);
        }
        // The turn may have called off the very job, if that was to go on.
        let state = self.entry(slot).phase.name();
        if turned || state.is_terminal() {
            self.keep_bounded(effects);
        }
        Ok(Settled { state })
    }

    /// The answer to a settlement that is repeated, because its first answer was lost: under this
    /// token the job's last attempt was settled. Nothing happens again.
    fn settled_before(&self, job: JobId, token: LeaseToken) -> Option<Settled> {
        let entry = self.entry(self.find(job)?);
        (entry.settled_by() == Some(token)).then(|| Settled { state: entry.phase.name() })
    }

    /// Tells what became of an attempt and of its job, and counts both.
    pub(super) fn tell_settled(
        &mut self,
        slot: u32,
        status: &JobStatus,
        ended: Ended,
        error: Option<ErrorText>,
        effects: &mut Effects,
    ) {
        let Ended { worker, attempt, ran: duration, end, result } = ended;
        let failed = match (&status.state, end) {
            (State::Dead { reason, .. }, _) => died_of_attempts(*reason),
            (_, AttemptEnd::Failed | AttemptEnd::Crashed(_)) => true,
            (
                _,
                AttemptEnd::Completed
                | AttemptEnd::Snoozed
                | AttemptEnd::Released
                | AttemptEnd::Cancelled,
            ) => false,
        };
        if failed {
            self.totals(slot, |totals| totals.failed += 1);
            let next_retry_at = match status.state {
                State::Scheduled { at } => Some(at),
                State::Blocked { .. }
                | State::Ready { .. }
                | State::Running(_)
                | State::Completed { .. }
                | State::Dead { .. }
                | State::Cancelled { .. } => None,
            };
            let error = error.clone().unwrap_or_else(|| ErrorText::new("no reason was given"));
            let worker = worker.clone();
            self.tell(
                slot,
                EventKind::JobFailed { worker, attempt, error, next_retry_at },
                effects,
            );
        }
        match &status.state {
            State::Completed { .. } => {
                self.totals(slot, |totals| totals.completed += 1);
                self.tell(
                    slot,
                    EventKind::JobCompleted { worker, attempt, duration, result },
                    effects,
                );
            }
            State::Scheduled { at } if failed => {
                self.totals(slot, |totals| totals.retried += 1);
                self.tell(slot, EventKind::JobRetrying { at: *at, attempt }, effects);
            }
            State::Scheduled { at } => {
                self.tell(slot, EventKind::JobSnoozed { until: *at }, effects);
            }
            State::Ready { .. } => self.tell(slot, EventKind::JobReleased { worker }, effects),
            State::Dead { .. } | State::Cancelled { .. } => {
                self.tell_end(slot, status, error, effects);
            }
            State::Blocked { .. } | State::Running(_) => {}
        }
    }
}

/// An attempt that ended, as told.
pub(super) struct Ended {
    pub(super) worker: Arc<str>,
    pub(super) attempt: u32,
    pub(super) ran: Duration,
    pub(super) end: AttemptEnd,
    pub(super) result: EventResult,
}
