//! The run ledger: every job that was ever put into a worker's hands, as the worker saw it.
//!
//! It follows decisions, not commits, because a claim is answered before it has landed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass::store::ClaimedBatch;
use windlass_core::job::{JobId, LeaseToken, NewJob, RequestId};
use windlass_core::ledger::{Claim, LostWorkers, Renewal, Renewed, Rescued, Settled, Settlement};
use windlass_core::limits::{LEASE_MAX, LEASE_MIN};
use windlass_core::name::Name;
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady};

use super::Rules;
use crate::cover::{Cover, Point};
use crate::{Checked, ensure};

#[derive(Clone, Debug)]
struct Held {
    token: LeaseToken,
    kind: Name,
    worker: Arc<str>,
    /// The claim that it can be asked for with again.
    request: Option<RequestId>,
    /// How long the lease is.
    lease: Duration,
    ends: Steady,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    last_token: u64,
    /// Tokens below this one were given out before the store was last opened.
    epoch: u64,
    held: BTreeMap<JobId, Held>,
    /// Every lease that was ever given.
    given: BTreeMap<LeaseToken, Held>,
    /// Settlements that were decided.
    settled: BTreeSet<(JobId, LeaseToken)>,
    /// Jobs of which a completion was decided.
    completing: BTreeSet<JobId>,
    /// Those of them of which it was answered: they never start again.
    completed: BTreeSet<JobId>,
    /// Starts that were handed out, those that were given back, and those lost in a crash.
    starts: BTreeMap<JobId, u32>,
    returned: BTreeMap<JobId, u32>,
    replays: BTreeMap<JobId, u32>,
    /// Queues of which a pause was decided and no resumption was asked for since.
    pausing: BTreeSet<Name>,
    /// Those of them of which it was answered.
    paused: BTreeSet<Name>,
}

impl Runs {
    pub(super) fn handed(
        &mut self,
        claim: &Claim,
        handed: &ClaimedBatch,
        now: Now,
        sent: &BTreeMap<JobId, Arc<NewJob>>,
        rules: &Rules,
        cover: &mut Cover,
    ) -> Checked {
        ensure!(handed.jobs.len() <= claim.limit, "more jobs were handed out than asked for");
        for job in &handed.jobs {
            let (id, token) = (job.job.id, job.lease.token);
            if self.is_repeated(claim, id, token) {
                cover.hit(Point::ClaimRepeated);
                continue;
            }
            ensure!(token.0 > self.last_token, "token {token} came after {}", self.last_token);
            self.last_token = token.0;
            let terms = claim.kinds.iter().find(|terms| terms.kind == job.job.kind);
            let terms = terms.filter(|_| {
                claim.queues.as_ref().is_none_or(|queues| queues.contains(&job.job.queue))
            });
            let Some(terms) = terms else {
                ensure!(false, "job {id} was handed to a worker that does not want it");
                return Ok(());
            };
            ensure!(sent.get(&id) == Some(&job.job), "job {id} was handed out altered");
            ensure!(!self.completed.contains(&id), "job {id} started after it had completed");
            let queue = &job.job.queue;
            ensure!(!self.paused.contains(queue), "job {id} started and {queue} is paused");
            let other = self.held.get(&id).map(|held| held.token);
            ensure!(other.is_none(), "job {id} runs under {other:?} and under {token}");
            let lease = clamp(terms.lease);
            let (worker, ends) = (claim.worker.clone(), now.steady + lease);
            let kind = job.job.kind.clone();
            let running = self.held.values().filter(|held| held.kind == kind).count();
            let limit = rules.kind(&kind).concurrency;
            let within = limit.is_none_or(|limit| running < limit as usize);
            ensure!(within, "job {id} is one too many of kind {kind}");
            let held = Held { token, kind, worker, request: claim.request, lease, ends };
            self.given.insert(token, held.clone());
            self.held.insert(id, held);
            *self.starts.entry(id).or_default() += 1;
            self.check_starts(&job.job, rules)?;
        }
        Ok(())
    }

    /// Whether this is what the worker was handed before, when it made the same claim.
    fn is_repeated(&self, claim: &Claim, job: JobId, token: LeaseToken) -> bool {
        self.held.get(&job).is_some_and(|held| {
            let same = held.token == token && held.worker == claim.worker;
            same && claim.request.is_some() && held.request == claim.request
        })
    }

    /// No job is started more often than it may be.
    fn check_starts(&self, job: &NewJob, rules: &Rules) -> Checked {
        let id = job.id;
        let most = job.max_attempts().unwrap_or(rules.kind(&job.kind).max_attempts);
        let count = |of: &BTreeMap<JobId, u32>| of.get(&id).copied().unwrap_or(0);
        let allowed = most * (count(&self.replays) + 1) + count(&self.returned);
        let starts = count(&self.starts);
        ensure!(starts <= allowed, "job {id} started {starts} times and may {allowed} times");
        Ok(())
    }

    pub(super) fn replayed(&mut self, job: JobId) {
        *self.replays.entry(job).or_default() += 1;
    }

    pub(super) fn renewed(
        &mut self,
        renewal: &Renewal,
        answer: &Result<Renewed, Refusal>,
        now: Now,
    ) -> Checked {
        let holds = self.held.get(&renewal.job).is_some_and(|held| held.token == renewal.token);
        ensure!(holds == answer.is_ok(), "{renewal:?} was answered with {answer:?}");
        if let Some(held) = self.held.get_mut(&renewal.job).filter(|_| holds) {
            held.ends = now.steady + clamp(renewal.lease);
        }
        Ok(())
    }

    pub(super) fn settled(
        &mut self,
        settlement: &Settlement,
        answer: &Result<Settled, Refusal>,
        cover: &mut Cover,
    ) -> Checked {
        let (job, token) = (settlement.job, settlement.token);
        let holds = self.held.get(&job).is_some_and(|held| held.token == token);
        match answer {
            // Whether it may still be repeated is seen when it has landed.
            Ok(_) if !holds && self.settled.contains(&(job, token)) => {}
            Ok(_) => {
                ensure!(holds, "a stale worker settled job {job} under {token}");
                self.settled.insert((job, token));
                cover.hit_if(Point::SettledAfterTakeover, self.is_before_reopening(token));
                self.held.remove(&job);
                if settlement.verdict == Verdict::Complete {
                    self.completing.insert(job);
                }
                let returned = matches!(settlement.verdict, Verdict::Snooze(_) | Verdict::Release);
                *self.returned.entry(job).or_default() += u32::from(returned);
            }
            Err(Refusal::LeaseLost { .. }) => {
                ensure!(!holds, "job {job} was settled under {token}, which is held, and refused");
                let before = self.is_before_reopening(token);
                cover.hit(if before { Point::StaleAfterReopen } else { Point::StaleAfterExpiry });
            }
            Err(_) => ensure!(holds, "settling job {job} under {token} was refused as {answer:?}"),
        }
        Ok(())
    }

    pub(super) fn completed(&mut self, job: JobId) {
        if self.completing.contains(&job) {
            self.completed.insert(job);
        }
    }

    pub(super) fn rescued(&mut self, rescued: &Rescued, now: Now) -> Checked {
        for job in &rescued.jobs {
            let held = self.held.remove(&job.id);
            let ended = held.as_ref().is_some_and(|held| held.ends <= now.steady);
            ensure!(ended, "job {} was rescued from a lease that had not ended", job.id);
        }
        Ok(())
    }

    /// The end of a process was noticed: what its workers ran is recovered, and nothing else.
    pub(super) fn recovered(&mut self, lost: &LostWorkers, rescued: &Rescued) -> Checked {
        let LostWorkers::These(lost) = lost else { return Ok(()) };
        for job in &rescued.jobs {
            let held = self.held.remove(&job.id);
            let was_lost = held.is_some_and(|held| lost.contains(&held.worker));
            ensure!(was_lost, "job {} was recovered from a worker that was not lost", job.id);
        }
        let left = self.held.iter().find(|(_, held)| lost.contains(&held.worker));
        let left = left.filter(|_| !rescued.more);
        ensure!(left.is_none(), "{left:?} ran in a process that is dead, and was not recovered");
        Ok(())
    }

    /// A process has said what its workers hold: that is left alone, and the rest given back.
    pub(super) fn joined(
        &mut self,
        workers: &BTreeSet<Arc<str>>,
        said: &BTreeSet<LeaseToken>,
        answers: &[(Settlement, Result<Settled, Refusal>)],
        cover: &mut Cover,
    ) -> Checked {
        for (settlement, answer) in answers {
            let (job, token) = (settlement.job, settlement.token);
            ensure!(!said.contains(&token), "job {job} was taken from a process that holds it");
            self.settled(settlement, answer, cover)?;
            cover.hit(Point::UnheldReleased);
        }
        let waits = |held: &Held| workers.contains(&held.worker) && !said.contains(&held.token);
        let left = self.held.iter().find(|(_, held)| waits(held));
        ensure!(left.is_none(), "{left:?} waits for its lease, and its process holds it not");
        Ok(())
    }

    pub(super) fn pausing(&mut self, queue: &Name) {
        self.pausing.insert(queue.clone());
    }

    pub(super) fn paused(&mut self, queue: &Name) {
        if self.pausing.contains(queue) {
            self.paused.insert(queue.clone());
        }
    }

    pub(super) fn resuming(&mut self, queue: &Name) {
        self.pausing.remove(queue);
        self.paused.remove(queue);
    }

    /// A job was accepted. If there was one under its id before, that was removed.
    pub(super) fn accepted(&mut self, job: JobId) {
        self.completing.remove(&job);
        self.completed.remove(&job);
        for counts in [&mut self.starts, &mut self.returned, &mut self.replays] {
            counts.remove(&job);
        }
    }

    /// A claim was handed out and its commit is gone: those starts do not count.
    pub(super) fn lost(&mut self, handed: &ClaimedBatch) {
        for job in &handed.jobs {
            *self.returned.entry(job.job.id).or_default() += 1;
        }
    }

    /// Whether a token was given out before the store was last opened.
    pub(super) fn is_before_reopening(&self, token: LeaseToken) -> bool {
        token.0 < self.epoch
    }

    /// The store was opened anew: every lease has ended but these, which begin anew.
    pub(super) fn reopened(&mut self, kept: Vec<(JobId, LeaseToken)>, now: Now) {
        self.held.clear();
        for (job, token) in kept {
            if let Some(given) = self.given.get(&token) {
                let ends = now.steady + given.lease;
                self.held.insert(job, Held { ends, ..given.clone() });
            }
        }
        self.epoch = self.last_token + 1;
    }
}

fn clamp(lease: Duration) -> Duration {
    lease.clamp(LEASE_MIN, LEASE_MAX)
}
