//! Running jobs, as the model does it: claim, renew, settle, rescue.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::job::{
    CancelReason, DeadReason, JobId, JobStatus, Lease, LeaseToken, NewJob, State, StateName,
    UniqueScope,
};
use windlass_core::ledger::{
    Claim, Claimed, Claims, KindClaim, RecoveryMode, Renewal, Renewed, Rescue, Rescued, RescuedJob,
    Settled, Settlement,
};
use windlass_core::limits::{LEASE_MAX, LEASE_MIN, STEP_BYTES, STEPS_BYTES};
use windlass_core::name::Name;
use windlass_core::outcome::Verdict;
use windlass_core::record::{AttemptEnd, Report, Step};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady, Timestamp};

use super::accept::check_bytes;
use super::{Job, Naive};

impl Naive {
    pub(crate) fn claim(&mut self, claim: &Claim) -> Claims {
        let now = self.now.wall;
        let mut claims = Claims { jobs: self.claimed_before(claim), ..Claims::default() };
        let mut held_back: BTreeSet<(Name, Name)> = BTreeSet::new();
        let mut wait: Option<Duration> = None;
        let limit = if claims.jobs.is_empty() { claim.limit } else { 0 };
        while claims.jobs.len() < limit {
            let Some(id) = self.best(claim, &held_back) else { break };
            let job = &self.jobs[&id].new;
            let (queue, kind) = (job.queue.clone(), job.kind.clone());
            let terms = terms_of(claim, &kind).expect("it was claimable").clone();
            let running = self.jobs.values().filter(|job| job.new.kind == kind);
            let running = running.filter(|job| job.lease().is_some()).count();
            if terms.concurrency.is_some_and(|limit| running >= limit as usize) {
                self.turned_away.insert(kind.clone());
                held_back.insert((queue, kind));
                continue;
            }
            if let Some(rate) = terms.rate {
                let never = Timestamp::from_micros(i64::MIN);
                match rate.admit(self.full_at.get(&kind).copied().unwrap_or(never), now) {
                    Ok(full_at) => {
                        self.full_at.insert(kind.clone(), full_at);
                    }
                    Err(longer) => {
                        wait = Some(wait.map_or(longer, |other| other.min(longer)));
                        held_back.insert((queue, kind));
                        continue;
                    }
                }
            }
            claims.jobs.push(self.start(id, &claim.worker, &terms));
            self.job_mut(id).request = claim.request;
        }
        claims.ready = self.claimable(claim, &held_back).count() as u64;
        let due = self.jobs.values().filter_map(|job| due_at(job).map(|at| at.since(now))).min();
        let at_once = self.first_owing().map(|_| Duration::ZERO);
        claims.wake_in = [due, wait, at_once].into_iter().flatten().min();
        claims
    }

    /// What still runs of a claim that the worker repeats.
    fn claimed_before(&self, claim: &Claim) -> Vec<Claimed> {
        let again = |(id, job): (&JobId, &Job)| {
            let lease = job.lease().filter(|lease| lease.worker == claim.worker)?.clone();
            let JobStatus { attempts: attempt, recoveries, generation, .. } = job.status;
            let sequence = job.sequence;
            (claim.request.is_some() && job.request == claim.request).then_some(Claimed {
                id: *id,
                lease,
                attempt,
                recoveries,
                generation,
                sequence,
            })
        };
        let mut jobs: Vec<Claimed> = self.jobs.iter().filter_map(again).collect();
        jobs.sort_by_key(|claimed| claimed.lease.token);
        jobs
    }

    /// Ready jobs that the request may take.
    fn claimable(
        &self,
        claim: &Claim,
        held_back: &BTreeSet<(Name, Name)>,
    ) -> impl Iterator<Item = (JobId, &Job, Timestamp)> {
        self.jobs.iter().filter_map(move |(id, job)| {
            let State::Ready { since } = job.status.state else { return None };
            let (queue, kind) = (&job.new.queue, &job.new.kind);
            let listens = claim.queues.as_ref().is_none_or(|queues| queues.contains(queue));
            let paused = self.queues[queue].settings.paused;
            let open = !paused && !held_back.contains(&(queue.clone(), kind.clone()));
            let fits = listens && open && terms_of(claim, kind).is_some();
            (fits && self.is_its_turn(job)).then_some((*id, job, since))
        })
    }

    /// Which of them starts first: the highest priority, raised by waiting where the queue says
    /// so; then the one due first; then the one accepted first.
    fn best(&self, claim: &Claim, held_back: &BTreeSet<(Name, Name)>) -> Option<JobId> {
        let places = self.claimable(claim, held_back).map(|(id, job, since)| {
            let ageing = self.queues[&job.new.queue].settings.ageing;
            let standing = Standing::new(job.new.priority.0, ageing, self.now.wall.since(since));
            (standing, Reverse((since, job.sequence)), id)
        });
        places.max().map(|(_, _, id)| id)
    }

    /// Whether no job of its lane runs, none of its key has started before it, and none that could
    /// start comes first.
    pub(crate) fn is_its_turn(&self, job: &Job) -> bool {
        let others = self.in_lane_of(job);
        if others.is_empty() {
            return true;
        }
        let paused = self.is_lane_paused(job);
        if paused || others.iter().any(|other| other.lease().is_some()) {
            return false;
        }
        let may_start = |other: &Job| {
            let partition = other.partition();
            other.name() == StateName::Ready
                && !others.iter().any(|held| {
                    held.holds_its_key() && held.partition() == partition && held.id() != other.id()
                })
        };
        let ahead = |other: &&&Job| may_start(other) && self.standing(other) < self.standing(job);
        may_start(job) && others.iter().filter(ahead).count() == 0
    }

    /// Its place among the ready jobs of its lane, the first first.
    pub(super) fn standing(&self, job: &Job) -> (Reverse<Standing>, Timestamp, u64) {
        let ageing = self.queues[&job.new.queue].settings.ageing;
        let since = match job.status.state {
            State::Ready { since } => since,
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => Timestamp::from_micros(i64::MAX),
        };
        let standing = Standing::new(job.new.priority.0, ageing, self.now.wall.since(since));
        (Reverse(standing), since, job.sequence)
    }

    fn start(&mut self, id: JobId, worker: &Arc<str>, terms: &KindClaim) -> Claimed {
        let Now { wall, steady } = self.now;
        let token = LeaseToken(self.next_token);
        self.next_token += 1;
        let length = terms.lease.clamp(LEASE_MIN, LEASE_MAX);
        let job = self.job_mut(id);
        let lease = Lease {
            token,
            worker: worker.clone(),
            since: wall,
            until: wall + length,
            max_attempts: job.new.max_attempts().unwrap_or(terms.max_attempts),
            cancel_requested: false,
        };
        job.lease_ends = steady + length;
        job.told_lost = false;
        job.starts += 1;
        job.percent = None;
        job.last_end = None;
        job.first_started_at.get_or_insert(wall);
        job.status.attempts += 1;
        job.status.begun = true;
        job.status.settled_by = None;
        job.status.state = State::Running(lease.clone());
        let JobStatus { attempts: attempt, recoveries, generation, .. } = job.status;
        self.tell(id, "job.started");
        let sequence = self.jobs[&id].sequence;
        Claimed { id, lease, attempt, recoveries, generation, sequence }
    }

    /// The lease on a job, if it is the one that `token` names.
    fn held(&self, id: JobId, token: LeaseToken) -> Result<Lease, Refusal> {
        let lease = self.jobs.get(&id).and_then(Job::lease);
        lease.filter(|lease| lease.token == token).cloned().ok_or(Refusal::LeaseLost { job: id })
    }

    pub(crate) fn renew(&mut self, renewal: &Renewal) -> Result<Renewed, Refusal> {
        let Now { wall, steady } = self.now;
        let mut lease = self.held(renewal.job, renewal.token)?;
        self.admit_steps(renewal.job, &renewal.report.steps)?;
        let length = renewal.lease.clamp(LEASE_MIN, LEASE_MAX);
        lease.until = wall + length;
        let renewed = Renewed { until: lease.until, cancel_requested: lease.cancel_requested };
        let job = self.job_mut(renewal.job);
        job.lease_ends = steady + length;
        job.told_lost = false;
        job.status.state = State::Running(lease);
        self.hear_from(renewal.job, &renewal.report);
        Ok(renewed)
    }

    /// What the handler of a running job has to say.
    fn hear_from(&mut self, id: JobId, report: &Report) {
        let job = self.job_mut(id);
        job.lines += report.lines.len();
        if let Some(progress) = &report.progress {
            job.percent = Some(progress.percent.min(100));
            self.tell(id, "job.progress");
        }
        for step in &report.steps {
            if self.jobs[&id].steps.iter().all(|known| known.name != step.name) {
                self.job_mut(id).steps.push(step.clone());
                self.tell(id, "step.completed");
            }
        }
    }

    /// The bounds of finished steps. That there are too many is beyond what is tried here.
    fn admit_steps(&self, id: JobId, steps: &[Step]) -> Result<(), Refusal> {
        let beyond = |what, got: usize, limit: usize| {
            let remedy = "store the data elsewhere, and return its address";
            let allowed = format!("at most {limit} are allowed; {remedy}");
            Err(Refusal::OutOfBounds { what, got: got.to_string(), allowed })
        };
        let Some(step) = steps.first() else { return Ok(()) };
        if step.result.len() > STEP_BYTES {
            return beyond("a step's result in bytes".into(), step.result.len(), STEP_BYTES);
        }
        let known = &self.jobs[&id].steps;
        let mut bytes: usize = known.iter().map(|known| known.result.len()).sum();
        if known.iter().all(|known| known.name != step.name) {
            bytes += step.result.len();
        }
        if bytes > STEPS_BYTES {
            return beyond("results of all steps in bytes".into(), bytes, STEPS_BYTES);
        }
        Ok(())
    }

    pub(crate) fn settle(&mut self, settlement: Settlement) -> Result<Settled, Refusal> {
        let Settlement { job: id, token, verdict, output, report, next, turn, .. } = settlement;
        if let Some(job) = self.jobs.get(&id)
            && job.status.settled_by == Some(token)
        {
            // Said before, and done before.
            return Ok(Settled { state: job.name() });
        }
        let lease = self.held(id, token)?;
        let bytes = output.as_ref().map_or(0, |output| output.len());
        check_bytes("output bytes", bytes, self.limits.payload_bytes)?;
        self.admit_steps(id, &report.steps)?;
        let completes = verdict == Verdict::Complete;
        // It is released when the job completes, which is this commit.
        let unique = self.jobs[&id].new.unique.as_ref().filter(|_| completes);
        let giving = unique.filter(|unique| unique.scope == UniqueScope::Open).map(|_| id);
        let next: Vec<NewJob> =
            next.iter().filter(|_| completes).map(|job| NewJob::clone(job)).collect();
        match turn {
            Some(turn) => {
                self.turn_of_settlement = Some(self.plan_turn(*turn, next, giving)?);
                self.trim_due = true;
            }
            None => {
                let plan = self.plan(next, giving, None)?;
                self.carry_out(plan);
            }
        }
        self.hear_from(id, &report);
        self.job_mut(id).status.settled_by = Some(token);
        let mut state = self.apply_verdict(id, verdict, &lease);
        // It has not ended, but the turn may call it off.
        if let Some(turn) = self.turn_of_settlement.take() {
            self.carry_out_turn(turn);
            state = self.jobs[&id].name();
            self.trim();
        }
        if verdict == Verdict::Complete {
            // Kept with the record, if there is one: a bound may have let it go at once.
            if let Some(job) = self.jobs.get_mut(&id) {
                job.output = output;
            }
        }
        Ok(Settled { state })
    }

    fn apply_verdict(&mut self, id: JobId, verdict: Verdict, lease: &Lease) -> StateName {
        let at = self.now.wall;
        let failed = matches!(verdict, Verdict::Retry(_) | Verdict::Bury(_));
        let again = matches!(verdict, Verdict::Retry(_) | Verdict::Snooze(_) | Verdict::Release);
        self.job_mut(id).last_end = Some(match verdict {
            Verdict::Complete => AttemptEnd::Completed,
            Verdict::Retry(_) | Verdict::Bury(_) => AttemptEnd::Failed,
            Verdict::Snooze(_) => AttemptEnd::Snoozed,
            Verdict::Release => AttemptEnd::Released,
            Verdict::Cancel(_) => AttemptEnd::Cancelled,
        });
        if failed {
            self.count_failure(id);
        }
        if again && lease.cancel_requested {
            self.end(id, State::Cancelled { at, reason: CancelReason::Requested });
            return StateName::Cancelled;
        }
        let status = &mut self.job_mut(id).status;
        let (state, topic) = match verdict {
            Verdict::Complete => {
                status.recoveries = 0;
                self.end(id, State::Completed { at });
                return StateName::Completed;
            }
            Verdict::Bury(reason) => {
                self.end(id, State::Dead { at, reason });
                return StateName::Dead;
            }
            Verdict::Cancel(reason) => {
                self.end(id, State::Cancelled { at, reason });
                return StateName::Cancelled;
            }
            Verdict::Retry(delay) => (State::Scheduled { at: at + delay }, "job.retrying"),
            Verdict::Snooze(pause) => (State::Scheduled { at: at + pause }, "job.snoozed"),
            Verdict::Release => (State::Ready { since: lease.since }, "job.released"),
        };
        let name = state.name();
        status.state = state;
        status.attempts -= u32::from(!failed);
        self.tally(id, |totals| totals.retried += u64::from(failed));
        self.tell(id, topic);
        name
    }

    fn count_failure(&mut self, id: JobId) {
        self.tally(id, |totals| totals.failed += 1);
        self.tell(id, "job.failed");
    }

    pub(crate) fn rescue(&mut self, rescue: &Rescue) -> Rescued {
        let now = self.now.steady;
        let all = rescue.reason == RecoveryReason::Restart;
        let look = rescue.recovery.mode == RecoveryMode::Observe;
        for job in self.jobs.values_mut() {
            job.told_lost &= look;
        }
        let running = self.jobs.iter().filter_map(|(id, job)| job.lease().map(|l| (*id, job, l)));
        let mut lost: Vec<(Steady, LeaseToken, JobId)> = running
            .filter(|(_, job, _)| (all || job.lease_ends <= now) && !(look && job.told_lost))
            .map(|(id, job, lease)| (job.lease_ends, lease.token, id))
            .collect();
        lost.sort();
        let mut jobs = Vec::new();
        for (_, _, id) in lost {
            self.tell(id, "recovery.detected");
            if look {
                self.job_mut(id).told_lost = true;
            } else {
                let state = self.recover(id, rescue);
                jobs.push(RescuedJob { id, state });
            }
        }
        let left = self.jobs.values().filter(|job| job.lease().is_some() && !job.told_lost);
        let next_in = left.map(|job| job.lease_ends.since(now)).min();
        Rescued { jobs, more: false, next_in }
    }

    fn recover(&mut self, id: JobId, rescue: &Rescue) -> StateName {
        let at = self.now.wall;
        self.tally(id, |totals| totals.rescued += 1);
        self.count_failure(id);
        let job = &self.jobs[&id];
        let lease = job.lease().expect("only running jobs are rescued").clone();
        let JobStatus { attempts, recoveries, .. } = job.status;
        self.job_mut(id).last_end = Some(AttemptEnd::Crashed(rescue.reason));
        if lease.cancel_requested {
            self.end(id, State::Cancelled { at, reason: CancelReason::Requested });
            return StateName::Cancelled;
        }
        if attempts >= lease.max_attempts || recoveries >= rescue.recovery.max_recoveries {
            self.job_mut(id).last_end = Some(AttemptEnd::Crashed(RecoveryReason::LimitReached));
            self.tell(id, "recovery.exhausted");
            self.end(id, State::Dead { at, reason: DeadReason::Crashed });
            return StateName::Dead;
        }
        let status = &mut self.job_mut(id).status;
        status.recoveries += 1;
        status.state = State::Scheduled { at: at + rescue.recovery.delay };
        self.job_mut(id).last_recovery_at = Some(at);
        self.tally(id, |totals| totals.retried += 1);
        self.tell(id, "job.retrying");
        self.tell(id, "job.recovered");
        self.count_recovery(id);
        StateName::Scheduled
    }
}

fn terms_of<'a>(claim: &'a Claim, kind: &Name) -> Option<&'a KindClaim> {
    claim.kinds.iter().find(|terms| terms.kind == *kind)
}

pub(super) fn due_at(job: &Job) -> Option<Timestamp> {
    match job.status.state {
        State::Scheduled { at } => Some(at),
        State::Blocked { .. }
        | State::Ready { .. }
        | State::Running(_)
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => None,
    }
}

/// Priority as an exact fraction: `points` of `per` each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    points: i128,
    per: i128,
}

impl Standing {
    fn new(priority: i32, ageing: Option<Duration>, waited: Duration) -> Self {
        match ageing {
            None => Self { points: i128::from(priority), per: 1 },
            Some(step) => {
                let per = step.as_micros() as i128;
                Self { points: i128::from(priority) * per + waited.as_micros() as i128, per }
            }
        }
    }
}

impl Ord for Standing {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.points * other.per).cmp(&(other.points * self.per))
    }
}

impl PartialOrd for Standing {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Standing {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Standing {}
