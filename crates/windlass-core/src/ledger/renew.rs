//! A worker says that it is alive, and what there is to say about each job it runs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Command, Effects, Ledger};
use crate::event::EventKind;
use crate::job::{JobId, LeaseToken, State};
use crate::limits;
use crate::record::{Change, RecordNote, Report, Update};
use crate::refusal::Refusal;
use crate::time::Timestamp;
use crate::transition::Input;

/// Renew these leases. Each is answered on its own.
#[derive(Clone, Debug)]
pub struct Renew {
    /// The leases.
    pub renewals: Vec<Renewal>,
}

/// One lease to renew.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Renewal {
    /// The job.
    pub job: JobId,
    /// The lease the worker believes it holds.
    pub token: LeaseToken,
    /// How much longer, from now.
    pub lease: Duration,
    /// What its handler has to say.
    pub report: Report,
}

/// The lease goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Renewed {
    /// Until when.
    pub until: Timestamp,
    /// Someone asked for the job to stop.
    pub cancel_requested: bool,
}

impl Command for Renew {
    type Reply = Vec<Result<Renewed, Refusal>>;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Self::Reply, Refusal> {
        Ok(self.renewals.into_iter().map(|renewal| ledger.renew(renewal, effects)).collect())
    }
}

impl Ledger {
    fn renew(&mut self, renewal: Renewal, effects: &mut Effects) -> Result<Renewed, Refusal> {
        let Renewal { job, token, lease, report } = renewal;
        let slot = self.find(job).ok_or(Refusal::LeaseLost { job })?;
        // A stale worker hears that it is stale, whatever else is wrong.
        if self.leases.get(&token).is_some_and(|held| held.slot == slot) {
            self.admit_steps(slot, &report.steps)?;
        }
        let now = effects.now;
        let length = lease.clamp(limits::LEASE_MIN, limits::LEASE_MAX);
        let until = now.wall + length;
        let status = self
            .transition(slot, &Input::Renew { token, until }, None, effects)
            .map_err(|refused| Refusal::of(refused, job, "renew"))?;
        self.lease_until(token, now.steady + length);
        self.record_report(slot, report, effects);
        let State::Running(lease) = status.state else {
            return Err(Refusal::LeaseLost { job });
        };
        let worker = lease.worker.clone();
        self.seen(&worker, now.steady);
        Ok(Renewed { until, cancel_requested: lease.cancel_requested })
    }

    /// Records what the handler of a running job has to say; its lease was checked.
    pub(super) fn record_report(&mut self, slot: u32, report: Report, effects: &mut Effects) {
        if report.is_empty() {
            return;
        }
        let report = report.bounded();
        let percent = report.progress.as_ref().map(|progress| progress.percent);
        let steps = report.steps.clone();
        effects.changes.push(Change::Update(Update {
            job: self.entry(slot).id,
            at: effects.now.wall,
            status: self.status(slot),
            note: Some(RecordNote::Reported(Box::new(report))),
        }));
        if let Some(percent) = percent {
            self.tell(slot, EventKind::JobProgress { percent }, effects);
        }
        self.finish_steps(slot, steps, effects);
    }
}
