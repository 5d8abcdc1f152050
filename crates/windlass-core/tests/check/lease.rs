//! Leases: two jobs, three worker slots of which two share a worker id, and a rescuer.
//!
//! Time is not counted but free: a lease may end at any moment, and whoever holds it may go on
//! believing in it for as long as it likes, which covers every pause and every clock. An answer
//! may be lost, so a settlement may be repeated. The rescuer sees an ended lease in one step and
//! acts in another, as it must in a store that scans before it writes.
//!
//! A job's condition changes only by [`transition::next`]; a broken variant differs in the guard
//! it puts before it. What a property needs to know and a store does not keep is noted beside the
//! condition: which claim is the current one, how often the job started, how often it ended.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use stateright::{Model, Property};
use windlass_core::job::{
    CancelReason, DeadReason, JobStatus, Lease, LeaseToken, State, StateName,
};
use windlass_core::outcome::{self, Outcome, Retryable, RunCounts, Verdict};
use windlass_core::retry::Retry;
use windlass_core::time::Timestamp;
use windlass_core::transition::{self, Input, Next};

/// Total runs allowed, uncounted starts and replays explored, per job: the first has a full life,
/// the second is there to keep slots and rescuer busy with something else.
const MAX_ATTEMPTS: [u32; 2] = [2, 1];
const UNCOUNTED: [u8; 2] = [1, 0];
const REPLAYS: [u32; 2] = [1, 0];
const MAX_RECOVERIES: u32 = 1;
/// Slots 0 and 1 belong to one worker.
const WORKERS: [&str; 3] = ["anna", "anna", "bert"];

/// What a write must name to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// The lease token, which only ever grows: ours.
    Token,
    /// The worker that holds the job.
    Worker,
    /// Nothing, but the job must be running.
    Running,
    /// Nothing at all.
    Job,
    /// A token that is the number of the attempt.
    Attempt,
    /// The lease token, except for the rescuer, which names only the job it saw.
    TokenExceptRescue,
}

struct Leases {
    guard: Guard,
}

/// A job, and what is noted about it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    status: JobStatus,
    /// The lease ended on the store's clock; a renewal makes it whole again.
    lease_ended: bool,
    /// Which of the job's claims is the current one.
    claim: u8,
    /// In this generation.
    starts: u32,
    uncounted: u8,
    outcomes: u8,
    answered_cancelled: bool,
}

/// What a slot, or the rescuer, believes to be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Belief {
    job: usize,
    token: LeaseToken,
    attempt: u32,
    claim: u8,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    jobs: [Job; 2],
    slots: [Option<Belief>; 3],
    /// The lease that the rescuer saw ended.
    seen: Option<Belief>,
    stale_write: bool,
    end_undone: bool,
    start_after_cancel: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Claim {
        slot: usize,
        job: usize,
    },
    LeaseEnds {
        job: usize,
    },
    Renew {
        slot: usize,
    },
    Settle {
        slot: usize,
        verdict: Verdict,
        answer_lost: bool,
    },
    /// The worker of a slot is gone for good.
    Crash {
        slot: usize,
    },
    See {
        job: usize,
    },
    Rescue,
    Cancel {
        job: usize,
    },
    Replay {
        job: usize,
    },
}

fn now() -> Timestamp {
    Timestamp::default()
}

/// A condition in numbers, because the core has no use for hashing one.
impl Hash for Job {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let JobStatus { state, attempts, recoveries, generation, begun, settled_by } = &self.status;
        settled_by.hash(hasher);
        begun.hash(hasher);
        state.name().hash(hasher);
        match state {
            State::Running(lease) => {
                (lease.token, &lease.worker, lease.cancel_requested).hash(hasher);
            }
            State::Dead { reason, .. } => (*reason as u8).hash(hasher),
            State::Cancelled { reason, .. } => (*reason as u8).hash(hasher),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Completed { .. } => {}
        }
        (attempts, recoveries, generation).hash(hasher);
        (self.lease_ended, self.claim, self.starts).hash(hasher);
        (self.uncounted, self.outcomes, self.answered_cancelled).hash(hasher);
    }
}

impl Job {
    fn new() -> Self {
        let state = State::Ready { since: now() };
        Self {
            status: JobStatus::new(state),
            lease_ended: false,
            claim: 0,
            starts: 0,
            uncounted: 0,
            outcomes: 0,
            answered_cancelled: false,
        }
    }

    fn name(&self) -> StateName {
        self.status.state.name()
    }

    fn lease(&self) -> Option<&Lease> {
        match &self.status.state {
            State::Running(lease) => Some(lease),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => None,
        }
    }

    /// The condition after an input, with whatever is due made ready; `None` if it was refused.
    fn after(&self, input: &Input) -> Option<JobStatus> {
        let Ok(Next::Is(status)) = transition::next(&self.status, input, now()) else {
            return None;
        };
        match transition::next(&status, &Input::Due, now()) {
            Ok(Next::Is(ready)) => Some(ready),
            Ok(Next::Gone) | Err(_) => Some(status),
        }
    }

    /// A write is real if it comes from the claim that is current.
    fn is_current(&self, belief: &Belief) -> bool {
        self.lease().is_some() && self.claim == belief.claim
    }
}

impl Leases {
    /// What a write of `belief` leads to under the guard; `None` if it is refused.
    fn write(
        &self,
        job: &Job,
        belief: &Belief,
        worker: &str,
        input: impl Fn(LeaseToken) -> Input,
    ) -> Option<JobStatus> {
        let held = job.lease().map(|lease| lease.token);
        match self.guard {
            Guard::Token | Guard::Attempt | Guard::TokenExceptRescue => {
                job.after(&input(belief.token))
            }
            Guard::Worker => {
                let same = job.lease().is_some_and(|lease| &*lease.worker == worker);
                held.filter(|_| same).and_then(|token| job.after(&input(token)))
            }
            Guard::Running => held.and_then(|token| job.after(&input(token))),
            Guard::Job => overwrite(job, belief, worker, input),
        }
    }

    fn rescue(&self, job: &Job, belief: &Belief) -> Option<JobStatus> {
        let delay = Duration::ZERO;
        let input = |token| Input::Rescue { token, max_recoveries: MAX_RECOVERIES, delay };
        match self.guard {
            Guard::TokenExceptRescue => overwrite(job, belief, "", input),
            Guard::Token | Guard::Worker | Guard::Running | Guard::Job | Guard::Attempt => {
                job.after(&input(belief.token))
            }
        }
    }
}

/// A write by job id alone: whatever the job is now, it is taken for what the writer believes.
fn overwrite(
    job: &Job,
    belief: &Belief,
    worker: &str,
    input: impl Fn(LeaseToken) -> Input,
) -> Option<JobStatus> {
    let token = belief.token;
    let of_ours = || lease(token, worker, MAX_ATTEMPTS[belief.job]);
    let lease = job.lease().cloned().unwrap_or_else(of_ours);
    let believed =
        JobStatus { state: State::Running(Lease { token, ..lease }), ..job.status.clone() };
    Job { status: believed, ..job.clone() }.after(&input(token))
}

fn lease(token: LeaseToken, worker: &str, max_attempts: u32) -> Lease {
    Lease {
        token,
        worker: worker.into(),
        since: now(),
        until: now(),
        max_attempts,
        cancel_requested: false,
    }
}

impl World {
    /// Puts a job into a condition that some write led to, and notes what that means.
    fn put(&mut self, number: usize, status: JobStatus) {
        let job = &mut self.jobs[number];
        let before = job.name();
        let after = status.state.name();
        self.end_undone |= before.is_terminal();
        job.outcomes += u8::from(after.is_terminal());
        job.uncounted += u8::from(status.attempts < job.status.attempts);
        job.lease_ended &= after == StateName::Running;
        job.status = status;
    }

    fn claim(&mut self, slot: usize, number: usize, guard: Guard) -> Option<()> {
        let job = &self.jobs[number];
        let token = LeaseToken(match guard {
            Guard::Attempt => u64::from(job.status.attempts) + 1,
            // One that only ever grows. Each job may count for itself, because no slot ever
            // shows the token of one job for another.
            Guard::Token
            | Guard::Worker
            | Guard::Running
            | Guard::Job
            | Guard::TokenExceptRescue => u64::from(job.claim) + 1,
        });
        let lease = lease(token, WORKERS[slot], MAX_ATTEMPTS[number]);
        let status = job.after(&Input::Claim(lease))?;
        let job = &mut self.jobs[number];
        job.status = status;
        job.claim += 1;
        job.starts += 1;
        self.start_after_cancel |= job.answered_cancelled;
        let (attempt, claim) = (job.status.attempts, job.claim);
        self.slots[slot] = Some(Belief { job: number, token, attempt, claim });
        Some(())
    }

    fn renew(&mut self, slot: usize, model: &Leases) -> Option<()> {
        let belief = self.slots[slot]?;
        let job = &self.jobs[belief.job];
        let input = |token| Input::Renew { token, until: now() };
        match model.write(job, &belief, WORKERS[slot], input) {
            Some(status) => {
                self.stale_write |= !job.is_current(&belief);
                self.put(belief.job, status);
                self.jobs[belief.job].lease_ended = false;
            }
            // It is told that the lease is lost, and stops.
            None => self.slots[slot] = None,
        }
        Some(())
    }

    fn settle(
        &mut self,
        slot: usize,
        verdict: Verdict,
        answer_lost: bool,
        model: &Leases,
    ) -> Option<()> {
        let belief = self.slots[slot]?;
        let job = &self.jobs[belief.job];
        let input = |token| Input::Settle { token, verdict };
        if let Some(status) = model.write(job, &belief, WORKERS[slot], input) {
            self.stale_write |= !job.is_current(&belief);
            self.put(belief.job, status);
        }
        if !answer_lost {
            self.slots[slot] = None;
        }
        Some(())
    }

    fn rescue(&mut self, model: &Leases) -> Option<()> {
        let belief = self.seen.take()?;
        let job = &self.jobs[belief.job];
        if let Some(status) = model.rescue(job, &belief) {
            self.stale_write |= !job.is_current(&belief);
            self.put(belief.job, status);
        }
        Some(())
    }

    fn cancel(&mut self, number: usize) -> Option<()> {
        let status = self.jobs[number].after(&Input::Cancel(CancelReason::Requested))?;
        let cancelled = status.state.name() == StateName::Cancelled;
        self.put(number, status);
        self.jobs[number].answered_cancelled = cancelled;
        Some(())
    }

    fn replay(&mut self, number: usize) -> Option<()> {
        let job = &mut self.jobs[number];
        job.status = job.after(&Input::Replay { unmet: 0 })?;
        job.starts = 0;
        job.uncounted = 0;
        job.outcomes = 0;
        job.answered_cancelled = false;
        Some(())
    }
}

impl Model for Leases {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            jobs: [Job::new(), Job::new()],
            slots: [None; 3],
            seen: None,
            stale_write: false,
            end_undone: false,
            start_after_cancel: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (number, job) in world.jobs.iter().enumerate() {
            let asked = job.lease().is_some_and(|lease| lease.cancel_requested);
            match job.name() {
                StateName::Ready => {
                    let idle = (0..WORKERS.len()).filter(|slot| world.slots[*slot].is_none());
                    actions.extend(idle.map(|slot| Action::Claim { slot, job: number }));
                    actions.push(Action::Cancel { job: number });
                }
                StateName::Running if job.lease_ended => {
                    actions.push(Action::See { job: number });
                }
                StateName::Running => {
                    actions.push(Action::LeaseEnds { job: number });
                    if !asked {
                        actions.push(Action::Cancel { job: number });
                    }
                }
                StateName::Dead | StateName::Cancelled => {
                    if job.status.generation < REPLAYS[number] {
                        actions.push(Action::Replay { job: number });
                    }
                }
                StateName::Blocked | StateName::Scheduled | StateName::Completed => {}
            }
        }
        for slot in 0..WORKERS.len() {
            if let Some(belief) = &world.slots[slot] {
                self.slot_actions(world, slot, belief, actions);
            }
        }
        if world.seen.is_some() {
            actions.push(Action::Rescue);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Claim { slot, job } => world.claim(slot, job, self.guard)?,
            Action::LeaseEnds { job } => world.jobs[job].lease_ended = true,
            Action::Renew { slot } => world.renew(slot, self)?,
            Action::Settle { slot, verdict, answer_lost } => {
                world.settle(slot, verdict, answer_lost, self)?;
            }
            Action::Crash { slot } => world.slots[slot] = None,
            Action::See { job: number } => {
                let job = &world.jobs[number];
                let token = job.lease()?.token;
                // Which attempt it was is nothing to the rescuer.
                world.seen = Some(Belief { job: number, token, attempt: 0, claim: job.claim });
            }
            Action::Rescue => world.rescue(self)?,
            Action::Cancel { job } => world.cancel(job)?,
            Action::Replay { job } => world.replay(job)?,
        }
        // Slots of one worker are interchangeable: half the states say the same.
        world.slots[..2].sort_by(|one, other| other.cmp(one));
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = rare_paths();
        properties.extend([
            Property::always("a terminal state changes only by a replay", |_, world: &World| {
                !world.end_undone
            }),
            Property::always("a generation has at most one outcome", |_, world: &World| {
                world.jobs.iter().all(|job| job.outcomes <= 1)
            }),
            Property::always("a stale holder changes nothing", |_, world: &World| {
                !world.stale_write
            }),
            Property::always("a job starts no more often than it may", |_, world: &World| {
                let most = MAX_ATTEMPTS.iter().zip(&world.jobs);
                most.clone().all(|(most, job)| job.starts <= most + u32::from(job.uncounted))
            }),
            Property::always("a job that was cancelled does not start", |_, world: &World| {
                !world.start_after_cancel
            }),
        ]);
        properties
    }
}

impl Leases {
    /// What a slot that believes to hold a lease may do.
    fn slot_actions(&self, world: &World, slot: usize, belief: &Belief, actions: &mut Vec<Action>) {
        let job = &world.jobs[belief.job];
        actions.push(Action::Renew { slot });
        actions.push(Action::Crash { slot });
        let mut verdicts = vec![
            Verdict::Complete,
            Verdict::Bury(DeadReason::Permanent),
            verdict_on_failure(belief),
        ];
        if job.uncounted < UNCOUNTED[belief.job] {
            verdicts.push(Verdict::Snooze(Duration::ZERO));
        }
        for verdict in verdicts {
            for answer_lost in [false, true] {
                actions.push(Action::Settle { slot, verdict, answer_lost });
            }
        }
    }
}

/// What the worker makes of a failure that may be tried again.
fn verdict_on_failure(belief: &Belief) -> Verdict {
    let retry = Retry::constant(Duration::ZERO);
    let progress = RunCounts {
        attempt: belief.attempt,
        max_attempts: MAX_ATTEMPTS[belief.job],
        since_first_start: Duration::ZERO,
        retry: &retry,
    };
    outcome::decide(&Outcome::Failed(Retryable::ByPolicy), progress, 0)
}

/// Situations that must come up, or the properties say little.
fn rare_paths() -> Vec<Property<Leases>> {
    vec![
        Property::sometimes("a slot is stale and its own worker holds the job", |_, world| {
            is_held_twice(world, 0, 1) || is_held_twice(world, 1, 0)
        }),
        Property::sometimes("a slot is stale and another worker holds the job", |_, world| {
            is_held_twice(world, 1, 2) || is_held_twice(world, 2, 1)
        }),
        Property::sometimes("a slot is stale and the job has completed", |_, world: &World| {
            let stale = world.slots.iter().flatten();
            stale.clone().any(|belief| world.jobs[belief.job].name() == StateName::Completed)
        }),
        Property::sometimes("a slot is stale and the job was replayed", |_, world: &World| {
            let stale = world.slots.iter().flatten().map(|belief| &world.jobs[belief.job]);
            stale.clone().any(|job| job.status.generation > 0 && job.starts == 0)
        }),
        Property::sometimes("a lease that ended can still be renewed", |_, world: &World| {
            let held = world.slots.iter().flatten();
            held.clone().any(|belief| {
                let job = &world.jobs[belief.job];
                job.lease_ended && job.is_current(belief)
            })
        }),
        Property::sometimes("a rescue comes after the settlement", |_, world: &World| {
            world.seen.is_some_and(|seen| world.jobs[seen.job].name() == StateName::Completed)
        }),
        Property::sometimes("a rescue comes after the next claim", |_, world: &World| {
            world.seen.is_some_and(|seen| {
                let job = &world.jobs[seen.job];
                job.lease().is_some() && job.claim > seen.claim
            })
        }),
        Property::sometimes("a job dies of crashes", |_, world: &World| {
            world.jobs.iter().any(|job| {
                let reason = DeadReason::Crashed;
                job.status.state == State::Dead { at: now(), reason }
            })
        }),
        Property::sometimes("a running job is cancelled on request", |_, world: &World| {
            let cancelled = |job: &&Job| job.name() == StateName::Cancelled;
            world.jobs.iter().filter(cancelled).any(|job| !job.answered_cancelled)
        }),
        Property::sometimes("an uncounted start allows one more", |_, world: &World| {
            world.jobs.iter().zip(MAX_ATTEMPTS).any(|(job, most)| job.starts > most)
        }),
        Property::sometimes("a replayed job completes", |_, world: &World| {
            let completed = |job: &&Job| job.name() == StateName::Completed;
            world.jobs.iter().filter(completed).any(|job| job.status.generation > 0)
        }),
    ]
}

/// Two slots believe to hold the same job, and the second is right.
fn is_held_twice(world: &World, stale: usize, current: usize) -> bool {
    match (world.slots[stale], world.slots[current]) {
        (Some(one), Some(other)) => {
            let job = &world.jobs[other.job];
            one.job == other.job && !job.is_current(&one) && job.is_current(&other)
        }
        (None, _) | (_, None) => false,
    }
}

const STALE: &str = "a stale holder changes nothing";

#[test]
fn with_a_token_of_its_own_a_stale_worker_changes_nothing() {
    crate::holds(Leases { guard: Guard::Token }, "leases guarded by the token");
}

#[test]
fn a_guard_by_worker_id_lets_a_stale_slot_of_the_same_worker_write() {
    crate::breaks(Leases { guard: Guard::Worker }, "leases guarded by the worker id", STALE);
}

#[test]
fn a_guard_by_the_running_state_lets_a_stale_worker_write() {
    crate::breaks(Leases { guard: Guard::Running }, "leases guarded by the state", STALE);
}

#[test]
fn a_guard_by_job_id_lets_a_job_end_twice() {
    let broken = "a generation has at most one outcome";
    crate::breaks(Leases { guard: Guard::Job }, "leases guarded by the job id", broken);
}

#[test]
fn a_token_that_is_the_attempt_comes_back_after_a_snooze() {
    crate::breaks(Leases { guard: Guard::Attempt }, "leases guarded by the attempt", STALE);
}

#[test]
fn a_rescue_without_a_guard_undoes_an_end_that_came_after_it_looked() {
    let broken = "a terminal state changes only by a replay";
    crate::breaks(Leases { guard: Guard::TokenExceptRescue }, "an unguarded rescue", broken);
}
