//! Filling slots: claim as many jobs as are free to run, and sleep when there are none.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use windlass_core::job::RequestId;
use windlass_core::ledger::{Claim, KindClaim, Settlement};
use windlass_core::outcome::Verdict;
use windlass_core::time::Steady;
use windlass_core::worker::{sleep_for, store_backoff};

use super::life::Stage;
use super::run::{Begun, prepare, start};
use super::shared::Shared;
use super::slots::{SlotRequest, TakenSlots};
use crate::store::{ClaimedJob, StoreError};
use crate::wake::{Interest, Listener};

/// Most claims in flight: while the jobs of one are started, the other is at the store.
///
/// Answers: with one claim at a time, slots are free and the store idle in turns.
/// Why not simpler: on PostgreSQL a drain went from 59,000–64,000 to 89,000–100,000 jobs/s with the
/// commit that added the second claim, and other changes with it (git log). A small worker still
/// asks once for all its slots (`to_ask` in the core): every call costs as much as many jobs.
/// Guarded by: `a_large_worker_asks_ahead_and_never_runs_more_than_its_slots` and
/// `a_stop_waits_for_every_claim_on_its_way_and_strands_no_job` in `tests/main/worker.rs`.
const CLAIMS_AT_ONCE: usize = 2;

/// How things stood when a claim was answered.
struct ClaimResult {
    /// It brought fewer jobs than it asked for, and no ready job is left.
    dry: bool,
    /// In how long something is due.
    wake_in: Option<Duration>,
}

/// A claim that is to be made, or made again.
struct PlannedClaim {
    request: RequestId,
    slots: SlotRequest,
    /// When it was sent for the first time.
    sent: Steady,
}

/// A claim that brought nothing.
struct FailedClaim {
    error: StoreError,
    /// The same again, if nobody knows what became of it.
    ///
    /// Answers: jobs of a claim whose answer was lost waited until their leases ended, with nobody
    /// to run them.
    /// Why not simpler: a new claim would take other jobs. Its slots stay set aside, because it may
    /// bring as many jobs as the first.
    /// Guarded by: `jobs_of_a_claim_that_lost_its_answer_start_when_it_is_repeated` in
    /// `tests/main/worker.rs`, and `tests/postgres/cuts.rs`.
    again: Option<PlannedClaim>,
}

type ClaimTasks = JoinSet<Result<ClaimResult, FailedClaim>>;

/// Claims jobs for free slots, and sleeps when there are none to claim.
pub(super) async fn fill(shared: Arc<Shared>) {
    let interest = Interest::Queues(shared.queues.clone());
    // Listening begins before the first claim, and a ring is kept until it is waited for: a job
    // that comes between an empty claim and the sleep ends the sleep
    // (`with_rings_a_job_starts_at_once_and_without_within_the_poll_interval`).
    let mut listener = shared.engine.wake().listen(interest);
    let mut claims = ClaimTasks::new();
    let mut unanswered: Vec<PlannedClaim> = Vec::new();
    let (mut failures, mut more) = (0, true);
    while shared.life.stage() == Stage::Working {
        if shared.life.is_quiet() {
            // Claims in flight go on by themselves, and their answers wait for us.
            tokio::select! {
                biased;
                () = shared.life.reached(Stage::Stopping) => break,
                () = shared.life.resumed() => more = true,
            }
        }
        let may_ask = claims.is_empty() || more && claims.len() < CLAIMS_AT_ONCE;
        if may_ask && let Some(planned) = plan(&shared, &mut unanswered) {
            claims.spawn(claim(shared.clone(), planned));
            continue;
        }
        let answer = tokio::select! {
            biased;
            () = shared.life.reached(Stage::Stopping) => break,
            Some(answer) = claims.join_next() => answer,
            () = shared.slots.freed() => {
                // Other tasks that are ready run first, and may free more slots for the same claim.
                tokio::task::yield_now().await;
                continue;
            }
        };
        let Some(answer) = unless_crashed(answer, &mut claims) else { break };
        match answer {
            Ok(result) => {
                failures = 0;
                more = !result.dry;
                if result.dry && claims.is_empty() && unanswered.is_empty() {
                    let sleep = sleep_for(result.wake_in, shared.timing.poll_interval);
                    pause(&shared, &mut *listener, sleep).await;
                    // Other tasks that are ready run first, and may enqueue more for that claim.
                    tokio::task::yield_now().await;
                }
            }
            Err(FailedClaim { error, again }) => {
                failures += 1;
                more = false;
                unanswered.extend(again);
                shared.warn_again(&error, failures, "claiming");
                back_off(&shared, failures).await;
            }
        }
    }
    // Claims in flight are waited for: their jobs are begun or given back.
    while claims.join_next().await.is_some() {}
}

/// The next claim: one that was not answered, as long as the leases it may have taken can be held,
/// or a new one if there are slots to ask for.
fn plan(shared: &Shared, unanswered: &mut Vec<PlannedClaim>) -> Option<PlannedClaim> {
    let sent = shared.steady();
    let shortest = shared.terms.iter().map(KindClaim::lease_length).min().unwrap_or_default();
    unanswered.retain(|planned| sent.since(planned.sent) < shortest);
    unanswered.pop().or_else(|| {
        let slots = shared.slots.request()?;
        Some(PlannedClaim { request: shared.new_request(), slots, sent })
    })
}

/// The answer of a claim; `None` if the runtime ends. If the claim crashed, so does the loop.
fn unless_crashed<T>(answer: Result<T, JoinError>, claims: &mut ClaimTasks) -> Option<T> {
    match answer.map_err(JoinError::try_into_panic) {
        Ok(answer) => Some(answer),
        Err(Ok(panic)) => {
            // The other claim goes on by itself: the jobs that it brings must be begun.
            claims.detach_all();
            resume_unwind(panic)
        }
        Err(Err(_)) => None,
    }
}

/// Claims jobs for slots that were set aside, and starts them.
async fn claim(shared: Arc<Shared>, planned: PlannedClaim) -> Result<ClaimResult, FailedClaim> {
    // Looked at while the request counts as a claim in flight: a stop that was told just before is
    // seen here, and one that is told just after waits for this claim
    // (`a_stop_that_races_a_claim_loses_and_counts_nothing`).
    if !shared.life.may_claim() {
        return Ok(ClaimResult { dry: true, wake_in: None });
    }
    let PlannedClaim { request: id, slots: mut request, sent } = planned;
    let limit = request.count() as usize;
    let claim = Claim {
        worker: shared.id.clone(),
        queues: shared.queues.clone(),
        kinds: shared.terms.clone(),
        limit,
        request: Some(id),
    };
    let claimed = match shared.ask("claim", shared.engine.store().claim(claim)).await {
        Ok(claimed) => claimed,
        Err(error) => {
            let unknown = matches!(error, StoreError::Unknown { .. });
            let again = PlannedClaim { request: id, slots: request, sent };
            return Err(FailedClaim { error, again: unknown.then_some(again) });
        }
    };
    let taken = claimed.jobs.len();
    let slots = request.take(taken);
    let too_late = begin(&shared, claimed.jobs, slots, sent);
    drop(request);
    if !too_late.is_empty() {
        // Forced to stop while the claim was in flight, or it took longer than its leases. If this
        // fails, the jobs are rescued when their leases end.
        let _ = shared.ask("release", shared.engine.store().settle(too_late)).await;
    }
    Ok(ClaimResult { dry: taken < limit && claimed.ready == 0, wake_in: claimed.wake_in })
}

/// Starts claimed jobs. Returns how to give back those that the worker takes on no more, and those
/// whose lease was over before the answer was here: another worker may have them already.
fn begin(
    shared: &Arc<Shared>,
    jobs: Vec<ClaimedJob>,
    mut slots: TakenSlots,
    claimed: Steady,
) -> Vec<Settlement> {
    let mut too_late = Vec::new();
    let mut all = Vec::with_capacity(jobs.len());
    let age = shared.steady().since(claimed);
    for job in jobs {
        let (id, token) = (job.job.id, job.lease.token);
        match prepare(shared, job, &mut slots, claimed) {
            Some(begun) if age < begun.attempt.lease() => all.push(begun),
            _ => too_late.push(Settlement::new(id, token, Verdict::Release)),
        }
    }
    if shared.leases.register(all.iter().map(|begun| &begun.attempt), claimed) {
        all.into_iter().for_each(|begun| start(shared, begun));
    } else {
        let release = |Begun { attempt, .. }: &Begun| {
            Settlement::new(attempt.id(), attempt.token(), Verdict::Release)
        };
        too_late.extend(all.iter().map(release));
    }
    too_late
}

/// Sleeps until a ring, the end of the pause, or the end of the worker.
async fn pause(shared: &Shared, listener: &mut dyn Listener, duration: Duration) {
    tokio::select! {
        biased;
        () = shared.life.reached(Stage::Stopping) => {}
        () = listener.heard() => {}
        () = shared.engine.clock().sleep(duration) => {}
    }
}

/// Waits after a failure. Rings do not help here: the store must answer first.
async fn back_off(shared: &Shared, failures: u32) {
    tokio::select! {
        biased;
        () = shared.life.reached(Stage::Stopping) => {}
        () = shared.engine.clock().sleep(store_backoff(failures)) => {}
    }
}
