//! Which process runs what: who lives, and what that means for leases.
//!
//! A worker lives as long as its process, and its name is that of no other worker. An opening
//! recovers what ran in processes that have ended, and nothing else; so does whoever notices that
//! one has ended. Nobody but the world tells the judge who lives: it asks neither the store nor
//! the list that the store was opened with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_core::event::{Event, EventKind, Subject};
use windlass_core::job::{JobId, LeaseToken};

use super::Oracle;
use super::model::Stand;
use crate::answer::{Request, Ticket};
use crate::cover::{Cover, Point};
use crate::{Checked, ensure};

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    /// Workers whose process lives.
    living: BTreeSet<Arc<str>>,
    /// Which worker runs, or has run, the attempt of a token.
    began: BTreeMap<LeaseToken, Arc<str>>,
    /// Calls that must not be made again: they were done.
    done: BTreeSet<Ticket>,
}

impl Oracle {
    /// A process has begun, and this is one of its workers.
    pub fn lives(&mut self, worker: &Arc<str>) {
        self.members.living.insert(worker.clone());
    }

    /// Its process has ended.
    pub fn died(&mut self, worker: &Arc<str>) {
        self.members.living.remove(worker);
    }

    /// A worker begins to run a job that it was handed.
    pub fn began(&mut self, worker: &Arc<str>, token: LeaseToken) -> Checked {
        let other = self.members.began.insert(token, worker.clone());
        ensure!(other.is_none(), "{worker} runs an attempt under {token}, and {other:?} did");
        Ok(())
    }

    /// Something counts that must not be done again if its answer is lost.
    pub(super) fn note_done(&mut self, ticket: Ticket) {
        self.members.done.insert(ticket);
    }

    /// A call is about to be made again: under this ticket it was made before.
    pub fn repeats(&self, request: &Request, before: Ticket) -> Checked {
        let done = self.members.done.contains(&before);
        let twice = done && request.happens_each_time();
        ensure!(
            !twice,
            "{before:?} was done and its answer lost, and it is made again: {request:?}"
        );
        Ok(())
    }

    fn runner(&self, event: &Event) -> Option<(JobId, Arc<str>)> {
        let (Subject::Job { id, .. }, EventKind::RecoveryDetected { .. }) =
            (&event.subject, &event.what)
        else {
            return None;
        };
        match &self.model.jobs.get(id)?.stand {
            Stand::Running { worker } => Some((*id, worker.clone())),
            Stand::Blocked
            | Stand::Scheduled { .. }
            | Stand::Ready
            | Stand::Completed { .. }
            | Stand::Dead { .. }
            | Stand::Cancelled { .. } => None,
        }
    }

    /// An opening takes nothing from workers that live.
    pub(super) fn check_opening(&self, event: &Event) -> Checked {
        let Some((job, worker)) = self.runner(event) else { return Ok(()) };
        let lives = self.members.living.contains(&worker);
        ensure!(!lives, "an opening recovered job {job}, and the process of {worker} lives");
        Ok(())
    }

    /// Whoever recovers jobs of lost workers takes nothing from others.
    pub(super) fn check_cause(&self, event: &Event, request: &Request) -> Checked {
        let Request::RescueLost(_) = request else { return Ok(()) };
        let Some((job, worker)) = self.runner(event) else { return Ok(()) };
        let lives = self.members.living.contains(&worker);
        ensure!(!lives, "job {job} was taken from {worker}, whose process lives");
        Ok(())
    }

    /// What runs when the store has been opened: only what living workers run.
    pub(super) fn survivors(&self, cover: &mut Cover) -> Checked<Vec<(JobId, LeaseToken)>> {
        let mut kept = Vec::new();
        for (job, told) in &self.model.jobs {
            let Stand::Running { worker } = &told.stand else { continue };
            let lives = self.members.living.contains(worker);
            ensure!(lives, "job {job} ran in {worker}, which is dead, and was not recovered");
            let Some(token) = told.token else {
                ensure!(false, "job {job} runs in {worker} under no lease");
                continue;
            };
            kept.push((*job, token));
        }
        cover.hit_if(Point::RanOn, !kept.is_empty());
        Ok(kept)
    }
}
