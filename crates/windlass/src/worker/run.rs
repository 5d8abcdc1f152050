//! Running an attempt: from a claimed job to the settle queue, step by step.
//!
//! 1. [`prepare`] puts the attempt together; [`start`] gives it a task of its own.
//! 2. [`run_handler`] runs the handler under its middleware, and catches its panics.
//! 3. [`Leases::end`](super::leases::Leases::end): whoever ends an attempt first settles it. That
//!    is its task, or the watch loop by [`give_up`] if it was told to stop and did not.
//! 4. [`EndedRun::judge`] says what the end means.
//! 5. [`EndedRun::wait_for_reports`]: what the handler reported is written first.
//! 6. [`EndedRun::settling`] makes it a settlement.
//! 7. [`take_turn`] adds what it means to the object the job is bound to.
//! 8. [`Shared::settle`] puts it in the settle queue. Its slot is free from then on.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use tracing::Instrument;
use windlass_core::job::NewJob;
use windlass_core::ledger::Settlement;
use windlass_core::time::Steady;
use windlass_core::worker::store_backoff;

use super::judge::{Ended, Judged, judge, settlement};
use super::leases::RegisteredAttempt;
use super::settle_queue::Settling;
use super::shared::Shared;
use super::slots::TakenSlots;
use crate::attempt::{Attempt, HeldSlot, StopReason};
use crate::clock::BoxFuture;
use crate::error::Error;
use crate::middleware::Next;
use crate::panics;
use crate::primitives::AttemptEnding;
use crate::store::ClaimedJob;

/// A claimed job, and the slot to run it in.
pub(super) struct Begun {
    pub(super) attempt: Attempt,
    slot: HeldSlot,
}

/// Puts the attempt of a claimed job together. `None` if the worker has no handler for it.
pub(super) fn prepare(
    shared: &Arc<Shared>,
    job: ClaimedJob,
    slots: &mut TakenSlots,
    claimed: Steady,
) -> Option<Begun> {
    let handler = shared.handlers.get(&job.job.kind)?.clone();
    let attempt = Attempt::new(job, claimed, handler, shared.clone());
    let slot = attempt.hold_slot();
    slots.hand_over();
    Some(Begun { attempt, slot })
}

/// Starts an attempt that the worker has taken on, on a task of its own.
pub(super) fn start(shared: &Arc<Shared>, begun: Begun) {
    let attempt = begun.attempt.clone();
    let task = tokio::spawn(run(shared.clone(), begun));
    attempt.ending().set_task(task.abort_handle());
}

/// Ends an attempt that nobody has ended when its task ends: if that is by a panic of our own, its
/// lease must not be renewed for ever.
struct Unended<'a> {
    shared: &'a Shared,
    attempt: &'a Attempt,
}

impl Drop for Unended<'_> {
    fn drop(&mut self) {
        drop(self.shared.leases.end(self.attempt));
    }
}

/// Runs an attempt until its outcome is in the settle queue.
async fn run(shared: Arc<Shared>, Begun { attempt, slot }: Begun) {
    // Aborting ends the task at its next await. Until then it holds its slot, so that a worker
    // never runs more than it has slots for
    // (`a_handler_that_blocks_holds_its_slot_until_it_returns`).
    let _unended = Unended { shared: &shared, attempt: &attempt };
    let ended = run_handler(&shared, &attempt).await;
    let Some(registered) = shared.leases.end(&attempt) else { return };
    let ended = EndedRun { shared: &shared, registered, ended: Some(ended), slot: Some(slot) };
    if let Some(rest) = ended.conclude() {
        rest.await;
    }
}

async fn run_handler(shared: &Shared, attempt: &Attempt) -> Ended {
    let trace = attempt.trace();
    let span = tracing::info_span!(
        "job",
        job = %attempt.id(),
        kind = %attempt.kind(),
        queue = %attempt.queue(),
        attempt = attempt.number(),
        worker = attempt.worker(),
        trace_id = crate::trace::trace_id(trace),
        traceparent = %trace,
    );
    let next = Next::new(attempt.clone(), attempt.handler().clone(), shared.layers.clone());
    // Made inside the future, so that a middleware that panics before its first await is caught.
    let run = crate::trace::CURRENT.scope(attempt.clone(), async move { next.run().await });
    let mut run = pin!(run);
    poll_fn(|context| panics::poll(run.as_mut(), context)).instrument(span).await
}

/// Ends an attempt that was told to stop and has not, although it was waited for.
pub(super) fn give_up(shared: &Arc<Shared>, attempt: &Attempt) {
    let Some(registered) = shared.leases.end(attempt) else { return };
    attempt.ending().abort();
    let shared = shared.clone();
    tokio::spawn(async move {
        let ended = EndedRun { shared: &shared, registered, ended: None, slot: None };
        if let Some(rest) = ended.conclude() {
            rest.await;
        }
    });
}

/// An attempt that has ended, on its way to the settle queue.
struct EndedRun<'a> {
    shared: &'a Shared,
    registered: RegisteredAttempt,
    /// `None` if its handler has not returned.
    ended: Option<Ended>,
    /// `None` if its task has not ended and holds it.
    slot: Option<HeldSlot>,
}

impl<'a> EndedRun<'a> {
    /// Judges and queues it. If that must wait, for reports or for a turn, what is left to do is
    /// returned: most attempts need none of it, and so no room for it in their tasks.
    fn conclude(mut self) -> Option<BoxFuture<'a, ()>> {
        let shared = self.shared;
        let Some(judged) = self.judge() else {
            shared.life.count(|report| report.lost += 1);
            return None;
        };
        let next = self.attempt().take_next();
        let attempt = self.attempt();
        if !attempt.reports().were_made() && attempt.handler().conclude.is_none() {
            let (settling, slot) = self.settling(judged, next);
            shared.settle(settling);
            drop(slot);
            return None;
        }
        Some(Box::pin(async move {
            self.wait_for_reports().await;
            let (settling, slot) = self.settling(judged, next);
            take_turn_and_queue(shared, settling).await;
            drop(slot);
        }))
    }

    fn attempt(&self) -> &Attempt {
        self.registered.attempt()
    }

    /// What the end means. `None` if it counts for nothing, because the lease is lost.
    fn judge(&mut self) -> Option<Judged> {
        let ended = self.ended.take();
        judge(self.attempt(), ended)
    }

    async fn wait_for_reports(&self) {
        if self.attempt().reports().were_made() {
            self.shared.leases.reports_written(self.attempt().token()).await;
        }
    }

    /// What is to be settled, and the slot, which is in use until that is in the queue.
    fn settling(self, judged: Judged, next: Vec<Arc<NewJob>>) -> (Settling, Option<HeldSlot>) {
        let Self { shared, registered, slot, .. } = self;
        let attempt = registered.attempt();
        let report = attempt.reports().take();
        let settlement = Settlement { next, report, ..settlement(attempt, judged) };
        let unsettled = shared.slots.unsettled();
        let (refused, returned) = (false, None);
        (Settling { settlement, registered, unsettled, refused, returned }, slot)
    }
}

/// The last two steps, which an attempt makes again if its turn came too late, or was refused.
pub(super) async fn take_turn_and_queue(shared: &Shared, settling: Settling) {
    if let Some(settling) = take_turn(shared, settling).await {
        shared.settle(settling);
    }
}

/// Adds to a settlement what it means to the object the job is bound to, if it is bound to one.
/// Asked again when another turn of the object came first. `None` if it is given up.
async fn take_turn(shared: &Shared, mut settling: Settling) -> Option<Settling> {
    let attempt = settling.registered.attempt();
    let Some(conclude) = attempt.handler().conclude.clone() else { return Some(settling) };
    // A run returns what its object is to become: it belongs there, and not in the job's record.
    let returned = settling.settlement.output.take();
    settling.returned = returned.or(settling.returned);
    let mut failures = 0;
    loop {
        let ending = AttemptEnding {
            verdict: settling.settlement.verdict,
            output: settling.returned.as_ref(),
            error: settling.settlement.error.as_ref(),
        };
        let attempt = settling.registered.attempt();
        match shared.ask("conclude a run", conclude.turn(attempt, ending)).await {
            Ok(turn) => {
                settling.settlement.turn = turn.map(Box::new);
                return Some(settling);
            }
            Err(Error::Unknown { .. } | Error::Refused(_))
                if !has_lost_its_lease(attempt) && !shared.life.gives_up_after(failures + 1) =>
            {
                failures += 1;
                shared.engine.clock().sleep(store_backoff(failures)).await;
            }
            Err(Error::Unknown { .. } | Error::Refused(_)) => {
                shared.life.count(|report| report.lost += 1);
                return None;
            }
            Err(error) => {
                let report = settling.settlement.report.clone();
                let failed = settlement(attempt, Judged::failed(error.to_string()));
                settling.settlement = Settlement { report, ..failed };
                return Some(settling);
            }
        }
    }
}

fn has_lost_its_lease(attempt: &Attempt) -> bool {
    attempt.cancellation().reason() == Some(StopReason::LeaseLost)
}
