//! Every cell of states × inputs, walked through the store and compared with the pure function.

use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::job::{
    CancelReason, DeadReason, Dependency, JobId, JobStatus, Lease, LeaseToken, OnFailure, Start,
    StateName,
};
use windlass_core::ledger::{Recovery, Renewal, Rescue, Settlement};
use windlass_core::outcome::Verdict;
use windlass_core::record::Report;
use windlass_core::time::Timestamp;
use windlass_core::transition::{self, Input, InputName, Next};

use super::{Bench, Case, HOUR, SECOND, id, job, name};
use crate::store::{AlterJobs, JobAction, Selection, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for state in StateName::ALL {
        for input in InputName::ALL {
            let cell = format!("a {state} job follows the state machine on {input:?}");
            cases.push(Case::new(cell, move |bench| check_cell(bench, state, input)));
        }
    }
    cases
}

const JOB: u128 = 1;
const DEPENDENCY: u128 = 2;

async fn check_cell(bench: Bench, state: StateName, input: InputName) {
    let token = bring_into(&bench, state, input == InputName::Expire).await;
    let before = bench.record(id(JOB)).await.status;
    assert_eq!(before.state.name(), state, "the suite could not make a {state} job");
    let expected = transition::next(&before, &pure(input, token), FAR_AHEAD);
    apply(&bench, input, token).await;
    let after = bench.store.find(&[id(JOB)]).await.expect("a find is answered").remove(0);
    match (expected, after) {
        (Ok(Next::Gone), None) => {}
        (Ok(Next::Is(expected)), Some(after)) => same(&after.status, &expected),
        (Err(_), Some(after)) => same(&after.status, &before),
        (expected, after) => panic!("expected {expected:?}, found {after:?}"),
    }
}

/// Later than anything the suite does, so that what is due is due.
const FAR_AHEAD: Timestamp = Timestamp::from_millis(i64::MAX / 4_000);

/// Equal but for times, which the pure function was given differently.
fn same(found: &JobStatus, expected: &JobStatus) {
    let bare = |status: &JobStatus| {
        let JobStatus { state, attempts, recoveries, generation, begun, settled_by } = status;
        (state.name(), *attempts, *recoveries, *generation, *begun, *settled_by)
    };
    // A job moved to a time that has passed is ready in the far future and scheduled now.
    assert_eq!(bare(found), bare(expected), "found {found:?}, expected {expected:?}");
}

/// Puts the job into a state by ordinary verbs; returns the last lease token it had.
async fn bring_into(bench: &Bench, state: StateName, expires: bool) -> LeaseToken {
    let mut new = job(JOB);
    new.expires_after = expires.then_some(HOUR / 2);
    match state {
        StateName::Blocked => {
            let mut dependency = job(DEPENDENCY);
            dependency.kind = name("other");
            bench.accept([dependency]).await;
            let on_failure = OnFailure::Cascade;
            new.depends_on = vec![Dependency { on: id(DEPENDENCY), on_failure }];
            bench.accept([new]).await;
            LeaseToken(0)
        }
        StateName::Scheduled => {
            new.start = Start::After(HOUR);
            bench.accept([new]).await;
            LeaseToken(0)
        }
        StateName::Ready => {
            bench.accept([new]).await;
            LeaseToken(0)
        }
        StateName::Running => {
            bench.accept([new]).await;
            bench.take().await.lease.token
        }
        StateName::Completed => finish(bench, new, Verdict::Complete).await,
        StateName::Dead => finish(bench, new, Verdict::Bury(DeadReason::Permanent)).await,
        StateName::Cancelled => finish(bench, new, Verdict::Cancel(CancelReason::Handler)).await,
    }
}

async fn finish(bench: &Bench, new: windlass_core::job::NewJob, verdict: Verdict) -> LeaseToken {
    bench.accept([new]).await;
    let handed = bench.take().await;
    bench.settle(&handed, verdict).await;
    handed.lease.token
}

/// The input as the pure function takes it.
fn pure(input: InputName, token: LeaseToken) -> Input {
    let Recovery { max_recoveries, delay, .. } = Recovery::default();
    match input {
        InputName::Due => Input::Due,
        InputName::Unblock => Input::Unblock,
        InputName::DependencyFailed => Input::DependencyFailed { cancelled: false },
        InputName::Claim => Input::Claim(Lease {
            token: LeaseToken(u64::MAX),
            worker: "w".into(),
            since: FAR_AHEAD,
            until: FAR_AHEAD,
            max_attempts: 3,
            cancel_requested: false,
        }),
        InputName::Renew => Input::Renew { token, until: FAR_AHEAD },
        InputName::Settle => Input::Settle { token, verdict: Verdict::Complete },
        InputName::Rescue => Input::Rescue { token, max_recoveries, delay },
        InputName::Cancel => Input::Cancel(CancelReason::Requested),
        InputName::Expire => Input::Expire,
        InputName::Reschedule => Input::Reschedule(FAR_AHEAD + HOUR),
        InputName::Replay => Input::Replay { unmet: 0 },
        InputName::Replace => Input::Replace,
        InputName::Remove => Input::Remove,
    }
}

/// The input as verbs of the store.
async fn apply(bench: &Bench, input: InputName, token: LeaseToken) {
    match input {
        InputName::Due => {
            bench.advance(HOUR + SECOND).await;
            bench.store.promote().await.expect("it is answered");
        }
        InputName::Unblock => end_dependency(bench, Verdict::Complete).await,
        InputName::DependencyFailed => {
            end_dependency(bench, Verdict::Bury(DeadReason::Permanent)).await;
        }
        InputName::Claim => {
            bench.claim(10).await;
        }
        InputName::Renew => {
            let lease = Duration::from_secs(30);
            let renewal = Renewal { job: id(JOB), token, lease, report: Report::default() };
            bench.store.renew(vec![renewal]).await.expect("it is answered");
        }
        InputName::Settle => {
            let settlement = Settlement::new(id(JOB), token, Verdict::Complete);
            bench.store.settle(vec![settlement]).await.expect("it is answered");
        }
        InputName::Rescue => {
            bench.advance(Duration::from_secs(31)).await;
            let reason = RecoveryReason::LeaseExpired;
            let rescue = Rescue { recovery: Recovery::default(), reason };
            bench.store.rescue(rescue).await.expect("it is answered");
        }
        InputName::Expire => {
            bench.advance(HOUR / 2 + SECOND).await;
            bench.store.promote().await.expect("it is answered");
        }
        InputName::Cancel => alter(bench, JobAction::Cancel).await,
        InputName::Reschedule => alter(bench, JobAction::Reschedule(Start::After(HOUR * 2))).await,
        InputName::Replay => alter(bench, JobAction::Replay).await,
        InputName::Remove => alter(bench, JobAction::Remove).await,
        InputName::Replace => {
            // Refused unless the job is dead.
            let _ = bench.store.replay_edited(id(JOB), job(99)).await;
        }
    }
}

async fn alter(bench: &Bench, alteration: JobAction) {
    let selection = Selection::Jobs(vec![JobId::from_u128(JOB)]);
    bench.store.alter(AlterJobs::new(selection, alteration)).await.expect("it is answered");
}

/// Ends the dependency, if there is one.
async fn end_dependency(bench: &Bench, verdict: Verdict) {
    let mut claim = super::claim(1);
    claim.kinds[0].kind = name("other");
    let handed = bench.store.claim(claim).await.expect("a claim is answered");
    for handed in handed.jobs {
        bench.settle(&handed, verdict).await;
    }
}
