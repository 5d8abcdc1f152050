//! Giving back the jobs of lost workers, and letting old history go.
//!
//! A job is rescued by the lease that was seen to have ended, so a rescue that races the job's own
//! settlement changes nothing (the planted bug 06). It does not matter whether anyone here knows
//! the job's kind (the planted bug 07).

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::entries::HeldLease;
use super::settle::{Ended, Settlement};
use super::{Command, Effects, Ledger};
use crate::event::{EventKind, EventResult, RecoveryReason, RemoveReason};
use crate::job::{JobId, JobStatus, LeaseToken, State, StateName};
use crate::limits;
use crate::outcome::{ErrorText, Verdict};
use crate::record::{AttemptEnd, RecordNote};
use crate::refusal::Refusal;
use crate::time::Steady;
use crate::transition::{self, Input, Next};

/// What to do about jobs whose worker is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Recovery {
    /// Act, or only look.
    pub mode: RecoveryMode,
    /// How often one job is recovered before it is dead.
    pub max_recoveries: u32,
    /// How long a job rests before it runs again.
    pub delay: Duration,
}

/// Act, or only look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum RecoveryMode {
    /// Recover lost jobs.
    Act,
    /// Tell of lost jobs and leave them as they are: for trying out the settings.
    Observe,
}

impl Default for Recovery {
    fn default() -> Self {
        Self { mode: RecoveryMode::Act, max_recoveries: 3, delay: Duration::from_millis(100) }
    }
}

/// Give back jobs whose lease has ended.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Rescue {
    /// What to do with them.
    pub recovery: Recovery,
    /// How the loss was noticed. [`RecoveryReason::Restart`] takes every lease, whether it has
    /// ended or not: the caller knows that no worker of before is left. The reasons that are not
    /// about how a loss is noticed are taken for [`RecoveryReason::Manual`].
    pub reason: RecoveryReason,
}

/// Give back the jobs of workers whose process is known to have ended, at once and whenever their
/// leases end. For a store whose processes are all on one machine.
#[derive(Clone, Debug)]
pub struct RescueLost {
    /// What to do with them.
    pub recovery: Recovery,
    /// Whose jobs.
    pub lost: LostWorkers,
}

/// Workers whose process has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostWorkers {
    /// These.
    These(BTreeSet<Arc<str>>),
    /// All but these, as after an opening. Nobody knows when the leases of those that live end:
    /// each lasts as long as it was given for, from now on.
    AllBut(BTreeSet<Arc<str>>),
}

impl LostWorkers {
    fn include(&self, worker: &str) -> bool {
        match self {
            LostWorkers::These(lost) => lost.contains(worker),
            LostWorkers::AllBut(living) => !living.contains(worker),
        }
    }
}

/// What a rescue answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Rescued {
    /// The jobs that were given back, buried or cancelled, at most [`limits::SWEEP_BATCH`].
    pub jobs: Vec<RescuedJob>,
    /// More leases have ended than one call takes; call again.
    pub more: bool,
    /// How long until the next lease ends unless it is renewed; `None` if none is held.
    pub next_in: Option<Duration>,
}

/// What became of one rescued job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct RescuedJob {
    /// The job.
    pub id: JobId,
    /// Its state now.
    pub state: StateName,
}

impl Command for Rescue {
    type Reply = Rescued;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Rescued, Refusal> {
        let mut rescued = Rescued::default();
        let how = Rescue { reason: self.reason.noticed(), ..self };
        let all = self.reason == RecoveryReason::Restart;
        let mut looked_at = 0;
        ledger.untell(self.recovery.mode);
        while let Some(&(ends, token)) = ledger.lease_ends.first()
            && (all || ends <= effects.now.steady)
        {
            if looked_at == limits::SWEEP_BATCH {
                rescued.more = true;
                break;
            }
            looked_at += 1;
            rescued.jobs.extend(ledger.rescue(token, how, effects));
        }
        let next = ledger.lease_ends.first();
        rescued.next_in = next.map(|(ends, _)| ends.since(effects.now.steady));
        Ok(rescued)
    }
}

impl Command for RescueLost {
    type Reply = Rescued;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Rescued, Refusal> {
        let Self { recovery, lost } = self;
        ledger.untell(recovery.mode);
        if matches!(lost, LostWorkers::AllBut(_)) {
            ledger.keep_leases(|worker| !lost.include(worker), effects.now.steady);
        }
        let is_lost = |held: &HeldLease| !held.told && lost.include(&held.lease.worker);
        let held = ledger.leases.iter().filter(|(_, held)| is_lost(held));
        let mut tokens: Vec<LeaseToken> = held.map(|(token, _)| *token).collect();
        let more = tokens.len() > limits::SWEEP_BATCH;
        tokens.truncate(limits::SWEEP_BATCH);
        let how = Rescue { recovery, reason: RecoveryReason::Restart };
        let jobs = tokens.into_iter().filter_map(|token| ledger.rescue(token, how, effects));
        let jobs = jobs.collect();
        let next = ledger.lease_ends.first();
        let next_in = next.map(|(ends, _)| ends.since(effects.now.steady));
        Ok(Rescued { jobs, more, next_in })
    }
}

impl Ledger {
    /// Leases whose end was only told until now are as any other, if it is acted on.
    fn untell(&mut self, mode: RecoveryMode) {
        if mode == RecoveryMode::Act {
            for (ends, token) in core::mem::take(&mut self.told_ends) {
                self.lease_until(token, ends);
            }
        }
    }

    /// Gives leases whose end is not known the time they were made for, from now on.
    fn keep_leases(&mut self, kept: impl Fn(&str) -> bool, now: Steady) {
        let leases = self.leases.iter().filter(|(_, held)| kept(&held.lease.worker));
        let ends = leases.map(|(token, held)| {
            let length = held.lease.until.since(held.lease.since);
            (*token, now + length.clamp(limits::LEASE_MIN, limits::LEASE_MAX))
        });
        for (token, ends) in ends.collect::<Vec<_>>() {
            self.lease_until(token, ends);
        }
    }

    /// The jobs that run under leases of these workers.
    pub fn leased_to(&self, workers: &BTreeSet<Arc<str>>) -> Vec<(JobId, LeaseToken)> {
        let held = self.leases.iter().filter(|(_, held)| workers.contains(&held.lease.worker));
        held.map(|(token, held)| (self.entry(held.slot).id, *token)).collect()
    }

    /// Gives back, uncounted, what these workers were handed and do not hold: the answer to their
    /// claim never arrived.
    pub fn releases_of_unheld(
        &self,
        workers: &BTreeSet<Arc<str>>,
        held: &BTreeSet<LeaseToken>,
    ) -> Vec<Settlement> {
        let leased = self.leased_to(workers).into_iter();
        let unheld = leased.filter(|(_, token)| !held.contains(token));
        unheld.map(|(job, token)| Settlement::new(job, token, Verdict::Release)).collect()
    }

    fn rescue(
        &mut self,
        token: LeaseToken,
        how: Rescue,
        effects: &mut Effects,
    ) -> Option<RescuedJob> {
        let held = &self.leases[&token];
        let (slot, lease, ends) = (held.slot, held.lease.clone(), held.ends);
        let attempt = self.entry(slot).attempts;
        let stale_for = effects.now.wall.since(lease.since);
        let detected = EventKind::RecoveryDetected { reason: how.reason, attempt, stale_for };
        self.tell(slot, detected, effects);
        if how.recovery.mode == RecoveryMode::Observe {
            // Moved to the index of leases whose end was told, so that it is told once. A renewal
            // moves it back.
            self.lease_ends.remove(&(ends, token));
            self.told_ends.insert((ends, token));
            self.leases.entry(token).and_modify(|held| held.told = true);
            return None;
        }
        let error = ErrorText::new("crashed: its worker was lost while running it");
        let input = Input::Rescue {
            token,
            max_recoveries: how.recovery.max_recoveries,
            delay: how.recovery.delay,
        };
        // The record of the attempt says what the loss meant, so that is asked first.
        let end = match transition::next(&self.status(slot), &input, effects.now.wall).ok()? {
            Next::Is(JobStatus { state: State::Dead { .. }, .. }) => {
                AttemptEnd::Crashed(RecoveryReason::LimitReached)
            }
            Next::Is(_) | Next::Gone => AttemptEnd::Crashed(how.reason),
        };
        let note = RecordNote::Ended { end, output: None, error: Some(error.clone()) };
        let status = self.transition(slot, &input, Some(note), effects).ok()?;
        self.totals(slot, |totals| totals.rescued += 1);
        let (worker, result) = (lease.worker, EventResult::None);
        let ended = Ended { worker, attempt, ran: stale_for, end, result };
        self.tell_settled(slot, &status, ended, Some(error.clone()), effects);
        match status.state {
            State::Scheduled { .. } => {
                let recovery = status.recoveries;
                let reason = how.reason;
                let recovered = EventKind::JobRecovered { reason, attempt, recovery, stale_for };
                self.tell(slot, recovered, effects);
                self.note_recovery(slot, effects);
            }
            State::Dead { .. } => {
                let recoveries = status.recoveries;
                self.tell(slot, EventKind::RecoveryExhausted { recoveries }, effects);
            }
            State::Blocked { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Cancelled { .. } => {}
        }
        let id = self.entry(slot).id;
        let state = status.state.name();
        if state.is_terminal() {
            self.after_end(slot, Some(&error), effects);
        }
        Some(RescuedJob { id, state })
    }
}

/// Let time pass: due jobs become ready, expired ones are cancelled, old history goes.
///
/// Every other command lets time pass too; this one is for when nothing else happens.
#[derive(Clone, Copy, Debug)]
pub struct Promote;

/// What [`Promote`] answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Promoted {
    /// Records that were too old to keep.
    pub purged: u64,
    /// Cascades go on that were too large for one commit; call again.
    pub more: bool,
    /// How long until something is due, expires or becomes too old; `None` for never.
    pub next_in: Option<Duration>,
}

impl Command for Promote {
    type Reply = Promoted;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Promoted, Refusal> {
        ledger.go_on_with_cascades(usize::MAX, effects);
        let now = effects.now.wall;
        let age = ledger.limits.history_age;
        let mut purged = 0;
        while let Some(&(at, _, slot)) = ledger.finished.first()
            && now.since(at) >= age
            && purged < limits::SWEEP_BATCH as u64
        {
            ledger.remove(slot, RemoveReason::Retention, effects);
            purged += 1;
        }
        purged += ledger.purge_objects(effects);
        let due = ledger.timers.keys().next().map(|(at, _)| *at);
        let expiry = ledger.expiries.first().map(|(at, _, _)| *at);
        // How old it is, and not when it will be too old: that may be beyond the end of time.
        let old = ledger.finished.first().map(|(at, _, _)| age.saturating_sub(now.since(*at)));
        let kept_for_key = ledger.withheld.first().map(|(until, _)| *until);
        let next = [due, expiry, kept_for_key, ledger.next_purge()].into_iter().flatten().min();
        let more = ledger.owes();
        let at_once = more.then_some(Duration::ZERO);
        let next_in = next.map(|at| at.since(now)).into_iter().chain(old).chain(at_once).min();
        Ok(Promoted { purged, more, next_in })
    }
}
