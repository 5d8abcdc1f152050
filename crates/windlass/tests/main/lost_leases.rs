//! A lost lease is told in time, whatever the store does: hanging, late, failing, refusing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use windlass::{Attempt, Failure, KindOptions, StopReason};

use crate::common::{Counter, Fault, LeaseAnswer, Notes, Rig, SECOND, Work, pass, rig, work};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Who was told to stop, when, and why.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(String, Instant, StopReason)>>>);

impl Told {
    fn all(&self) -> Vec<(String, Instant, StopReason)> {
        self.0.lock().expect("no test panics while it notes").clone()
    }
}

/// Starts a worker with this lease whose handler waits until it is told to stop.
async fn waiting_for_a_reason(rig: &Rig, lease: Duration, told: &Told) {
    let told = told.clone();
    let waits = move |_: Work, attempt: Attempt| {
        let told = told.clone();
        async move {
            let reason = attempt.cancellation().cancelled().await;
            let note = (attempt.fence(), Instant::now(), reason);
            told.0.lock().expect("no test panics while it notes").push(note);
            Err::<i64, _>(Failure::retry("told"))
        }
    };
    let terms = move |options: KindOptions| options.lease(lease).no_timeout();
    drop(rig.engine.worker().handle_with(waits, terms).start().await.expect("it starts"));
}

/// Each on a runtime of its own, so that the workers of one end with it.
fn on_paused_time(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().expect("a runtime").block_on(test);
}

fn troubles() -> Vec<Fault> {
    let late = [100, 900, 1_500, 5_000, 9_900, 11_000, 60_000].map(Duration::from_millis);
    let mut troubles =
        vec![Fault::NotDone, Fault::Done, Fault::Hang, Fault::DoneHang, Fault::Refused];
    troubles.extend(late.map(Fault::Late));
    troubles.extend(late.map(Fault::Delayed));
    troubles
}

#[test]
fn a_lost_lease_is_told_within_it_and_a_second_whatever_the_store_does() {
    for lease in [1, 2, 9, 30, 90].map(|seconds| SECOND * seconds) {
        for (trouble, from) in troubles().into_iter().flat_map(|t| [(t, 1), (t, 2), (t, 5)]) {
            on_paused_time(troubled_renewals(lease, trouble, from));
        }
    }
}

async fn troubled_renewals(lease: Duration, trouble: Fault, from: u64) {
    let (rig, told) = (rig().await, Told::default());
    rig.store.tamper("renew", move |call| (call >= from).then_some(trouble));
    waiting_for_a_reason(&rig, lease, &told).await;
    rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(lease * 4 + SECOND * 20).await;
    let cell = format!("renewals of {lease:?} from call {from} on: {trouble:?}");
    let leases = rig.store.leases();
    for (fence, at, reason) in told.all() {
        assert_eq!(reason, StopReason::LeaseLost, "{cell}");
        let of_it = || leases.iter().filter(|answer| answer.fence == fence && answer.at <= at);
        let sent = of_it().filter(|answer| answer.applied).map(|answer| answer.sent);
        let ends = sent.max().expect("it was claimed") + lease;
        assert!(at <= ends + SECOND, "{cell}: told {:?} after its end", at - ends);
        let refused = of_it().any(|answer| !answer.applied);
        let unanswered = matches!(trouble, Fault::Done | Fault::DoneHang | Fault::Late(_));
        assert!(refused || unanswered || at >= ends, "{cell}: told {:?} early", ends - at);
    }
    assert_no_silent_gap(&cell, lease, &leases, &told.all());
    // One renewal is on its way at a time, so what takes less than half is always in time.
    let delay = match trouble {
        Fault::Late(delay) | Fault::Delayed(delay) if delay < SECOND * 10 => delay,
        _ => Duration::MAX,
    };
    let told = !told.all().is_empty();
    assert!(told || delay < lease, "{cell}: nobody was told");
    assert!(!told || delay >= lease / 2, "{cell}: told without need");
}

/// A lease that was over when its next renewal was applied had been told by then, even if that
/// renewal was still in time for the store.
fn assert_no_silent_gap(
    cell: &str,
    lease: Duration,
    leases: &[LeaseAnswer],
    told: &[(String, Instant, StopReason)],
) {
    let mut ends: BTreeMap<&str, Instant> = BTreeMap::new();
    for answer in leases.iter().filter(|answer| answer.applied) {
        let end = ends.entry(&answer.fence).or_insert(answer.sent + lease);
        let told_at = told.iter().find(|(fence, ..)| *fence == answer.fence).map(|(_, at, _)| *at);
        let silent = answer.at > *end + SECOND && told_at.is_none_or(|at| at > *end + SECOND);
        assert!(!silent, "{cell}: over, and renewed {:?} later without a word", answer.at - *end);
        *end = (*end).max(answer.sent + lease);
    }
}

#[test]
fn a_lease_is_renewed_when_a_third_of_it_has_passed_so_that_more_tries_fit() {
    for lease in [1, 2, 9, 30, 90].map(|seconds| SECOND * seconds) {
        on_paused_time(renewed_at_every_third(lease));
        on_paused_time(renewed_after_an_outage(lease));
    }
}

async fn renewed_at_every_third(lease: Duration) {
    let (rig, told) = (rig().await, Told::default());
    waiting_for_a_reason(&rig, lease, &told).await;
    rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(lease * 3 + MILLISECOND * 100).await;
    assert_eq!(told.all(), [], "{lease:?}");
    let sent: Vec<Instant> = rig.store.leases().iter().map(|answer| answer.sent).collect();
    assert_eq!(sent.len(), 10, "{lease:?}: the claim, and nine thirds");
    for (earlier, later) in sent.iter().zip(&sent[1..]) {
        // Sleeps end on whole milliseconds.
        let late = (*later - *earlier).saturating_sub(lease / 3);
        assert!(late <= MILLISECOND * 2, "{lease:?}: renewed {late:?} after a third");
    }
}

/// Whoever begins to try with two thirds of the lease left finds the store that has come back.
async fn renewed_after_an_outage(lease: Duration) {
    let (rig, told) = (rig().await, Told::default());
    let back = Instant::now() + lease * 6 / 10;
    rig.store.tamper("renew", move |_| (Instant::now() < back).then_some(Fault::NotDone));
    waiting_for_a_reason(&rig, lease, &told).await;
    rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(lease * 3).await;
    assert_eq!(told.all(), [], "{lease:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_is_told_once_and_not_asked_again() {
    let rig = rig().await;
    rig.store.tamper("renew", |call| (call == 1).then_some(Fault::Refused));
    let reasons = Notes::default();
    let notes = reasons.clone();
    let slow_to_obey = move |job: Work, attempt: Attempt| {
        let notes = notes.clone();
        async move {
            if attempt.recoveries() == 0 {
                notes.add(format!("{:?}", attempt.cancellation().cancelled().await));
                tokio::time::sleep(SECOND * 5).await;
            }
            Ok::<_, Failure>(job.number)
        }
    };
    let terms = |options: KindOptions| options.lease(SECOND * 3).no_timeout();
    let worker = rig.engine.worker().cancel_grace(SECOND * 60);
    let worker = worker.handle_with(slow_to_obey, terms);
    let _worker = worker.start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(5)).await.expect("it is accepted");
    let start = Instant::now();
    pass(MILLISECOND * 1_100).await;
    assert_eq!(reasons.all(), ["LeaseLost"], "told at the refusal, a second after the claim");
    assert_eq!(handle.outcome_within(SECOND * 10).await.expect("it completes"), 5);
    assert!(start.elapsed() < SECOND * 5, "it ran again while the first wound down");
    assert_eq!(rig.store.calls("renew"), 1, "nobody asks again for what was refused");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_as_old_as_its_claim_was_sent_however_late_the_answer() {
    for delay in [500, 900, 1_100, 5_000].map(|ms| MILLISECOND * ms) {
        let (rig, told) = (rig().await, Told::default());
        rig.store.tamper("claim", move |call| (call == 1).then_some(Fault::Late(delay)));
        rig.store.tamper("renew", |_| Some(Fault::Hang));
        rig.engine.enqueue(work(1)).await.expect("it is accepted");
        waiting_for_a_reason(&rig, SECOND, &told).await;
        pass(SECOND * 30).await;
        let leases = rig.store.leases();
        let first = leases.first().expect("it was claimed");
        let told = told.all();
        let of_first = told.iter().find(|(fence, ..)| *fence == first.fence);
        match of_first {
            Some((_, at, reason)) => {
                assert!(delay < SECOND, "{delay:?}: it began after its lease was over");
                assert_eq!(*reason, StopReason::LeaseLost);
                let after = *at - first.sent;
                assert!(after >= SECOND && after <= SECOND * 2, "{delay:?}: told after {after:?}");
            }
            None => assert!(delay >= SECOND, "{delay:?}: nobody was told"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_claim_outlasted_its_lease_is_given_back_unrun() {
    let rig = rig().await;
    rig.store.tamper("claim", |call| (call == 1).then_some(Fault::Delayed(SECOND * 5)));
    let runs = Counter::default();
    let counter = runs.clone();
    let quick = move |job: Work| {
        counter.add();
        async move { Ok::<_, Failure>(job.number) }
    };
    let terms = |options: KindOptions| options.lease(SECOND * 3);
    let handle = rig.engine.enqueue(work(7)).await.expect("it is accepted");
    let worker = rig.engine.worker().handle_with(quick, terms).slots(1);
    let worker = worker.start().await.expect("it starts");
    assert_eq!(handle.outcome_within(SECOND * 10).await.expect("it completes"), 7);
    let status = handle.record().await.expect("it is kept").status;
    assert_eq!((runs.get(), status.attempts, status.recoveries), (1, 1, 0));
    pass(SECOND).await;
    assert_eq!(worker.busy(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kept_step_renews_the_lease_and_a_lost_one_ends_the_wait_for_it() {
    let rig = rig().await;
    // Only the renewals of steps are answered: those of the renew loop come at a third.
    rig.store.tamper("renew", |call| (call >= 4).then_some(Fault::Hang));
    let ends = Arc::new(Mutex::new(Vec::new()));
    let noted = ends.clone();
    let steps = move |_: Work, attempt: Attempt| {
        let noted = noted.clone();
        async move {
            let began = Instant::now();
            for number in 0..10 {
                tokio::time::sleep(MILLISECOND * 300).await;
                let step = attempt.step(&format!("step-{number}"), || async { Ok(number) }).await;
                if let Err(failure) = step {
                    let reason = attempt.cancellation().reason();
                    noted.lock().expect("not poisoned").push((began.elapsed(), reason));
                    return Err(failure);
                }
            }
            Ok::<i64, Failure>(1)
        }
    };
    let terms = |options: KindOptions| options.lease(SECOND);
    let worker = rig.engine.worker().handle_with(steps, terms).start().await.expect("it starts");
    rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(SECOND * 3).await;
    let (after, reason) = ends.lock().expect("not poisoned").first().copied().expect("it ended");
    assert_eq!(reason, Some(StopReason::LeaseLost));
    // Steps at 0.3, 0.6 and 0.9 s were kept, so the lease ended at 1.9 s.
    assert_eq!(after, MILLISECOND * 1_900);
    rig.store.heal();
    worker.stop().await.expect("it stops");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_neither_keeps_a_result_nor_loses_what_was_said() {
    for fault in [Fault::Hang, Fault::DoneHang] {
        let rig = rig().await;
        rig.store.tamper("renew", move |call| (call == 1).then_some(fault));
        let says = |job: Work, attempt: Attempt| async move {
            attempt.log("said");
            attempt.progress(50, "half");
            tokio::time::sleep(SECOND).await;
            Ok::<_, Failure>(job.number)
        };
        let terms = |options: KindOptions| options.lease(SECOND * 3);
        let worker = rig.engine.worker().handle_with(says, terms);
        let _worker = worker.start().await.expect("it starts");
        let handle = rig.engine.enqueue(work(3)).await.expect("it is accepted");
        assert_eq!(handle.outcome_within(SECOND * 30).await.expect("it completes"), 3);
        let record = handle.record().await.expect("it is kept");
        let status = &record.status;
        assert_eq!((status.attempts, status.recoveries), (1, 0), "{fault:?}");
        assert!(record.log.iter().any(|line| line.text == "said"), "{fault:?}");
        assert_eq!(record.progress.map(|progress| progress.percent), Some(50), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_housekeeper_whose_store_hangs_once_recovers_jobs_afterwards() {
    for verb in ["rescue", "promote"] {
        let rig = rig().await;
        rig.store.tamper(verb, |call| (call == 3).then_some(Fault::Hang));
        rig.store.tamper("settle", |call| (call == 1).then_some(Fault::Refused));
        let quick = |job: Work| async move {
            tokio::time::sleep(SECOND * 5).await;
            Ok::<_, Failure>(job.number)
        };
        let worker = rig.engine.worker().handle(quick);
        let _worker = worker.start().await.expect("it starts");
        let handle = rig.engine.enqueue(work(3)).await.expect("it is accepted");
        let outcome = handle.outcome_within(SECOND * 200).await;
        assert_eq!(outcome.expect("it is recovered and completes"), 3, "{verb}");
    }
}
