//! Every number that a user can give, at its extremes: it is taken or refused with a sentence, and
//! whatever became of it, an ordinary job still runs from end to end.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::filter::Filter;
use windlass_core::job::{Lane, LeaseToken, NewJob, Priority, Start, Timeout, Unique, UniqueScope};
use windlass_core::ledger::{
    Claim, KindClaim, QueueChange, Recovery, RecoveryMode, Renewal, Rescue, Settlement, WorkerInfo,
    WorkerKind, WorkerReport,
};
use windlass_core::limits::{DELAY_MAX, Limits};
use windlass_core::name::Name;
use windlass_core::object::{Address, Alarm, Purge, Turn};
use windlass_core::outcome::Verdict;
use windlass_core::rate::Rate;
use windlass_core::record::{LogLine, Progress, Report};
use windlass_core::retry::{Backoff, Jitter, Retry};
use windlass_core::time::Timestamp;

use super::{Bench, Case, SECOND, claim, id, job, name, named_cases};
use crate::store::{
    AlterJobs, Answer, Cursor, JobAction, ObjectFilter, Selection, StoreError, StoreExt,
};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_new_job_may_carry_any_number,
        any_priority_with_any_ageing_stops_no_claim,
        a_queue_may_be_given_any_number,
        a_claim_may_be_made_on_any_terms,
        a_lease_may_be_renewed_and_settled_with_any_number,
        lost_jobs_may_be_recovered_with_any_number,
        an_object_may_be_given_any_number,
        a_list_may_be_asked_for_with_any_number,
        the_smallest_and_the_largest_limits_stop_nothing,
    ]
}

const DURATIONS: [Duration; 9] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_micros(1),
    Duration::from_secs(3_600),
    DELAY_MAX,
    DELAY_MAX.saturating_add(Duration::from_nanos(1)),
    Duration::from_micros(i64::MAX as u64),
    Duration::from_micros(u64::MAX),
    Duration::MAX,
];
const TIMES: [i64; 7] = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
const COUNTS: [u32; 5] = [0, 1, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX];
const LONG_COUNTS: [u64; 5] = [0, 1, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX];

fn starts() -> Vec<Start> {
    let after = DURATIONS.map(Start::After);
    let at = TIMES.map(|micros| Start::At(Timestamp::from_micros(micros)));
    after.into_iter().chain(at).chain([Start::Now]).collect()
}

/// Either is fine, as long as it is one of the two.
#[track_caller]
fn taken_or_refused<T>(row: &str, answer: Answer<T>) -> Option<T> {
    match answer {
        Ok(taken) => Some(taken),
        Err(StoreError::Refused(refusal)) => {
            let sentence = refusal.to_string();
            assert!(sentence.contains(' '), "{row} is refused without a word: {sentence}");
            None
        }
        Err(other) => panic!("{row} fails: {other:?}"),
    }
}

/// Numbers of jobs that nobody has used.
#[derive(Default)]
struct Ids(u128);

impl Ids {
    fn next(&mut self) -> u128 {
        self.0 += 1;
        self.0
    }

    /// An ordinary job, with all others there, runs through every verb.
    async fn ordinary_job_runs(&mut self, bench: &Bench, row: &str) {
        let number = self.next();
        bench.accept([NewJob { priority: Priority::NORMAL, ..job(number) }]).await;
        let mut runs = false;
        for _ in 0..20 {
            let handed = bench.claim(1_000).await.jobs;
            let none_left = handed.is_empty();
            runs |= handed.iter().any(|handed| handed.job.id == id(number));
            let settle = |handed: &crate::store::ClaimedJob| {
                Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete)
            };
            let settlements: Vec<Settlement> = handed.iter().map(settle).collect();
            let settled = bench.store.settle(settlements).await.expect("it is answered");
            assert!(settled.iter().all(Result::is_ok), "after {row}: {settled:?}");
            if none_left {
                break;
            }
        }
        assert!(runs, "after {row} an ordinary job does not run any more");
        bench.store.promote().await.unwrap_or_else(|error| panic!("after {row}: {error:?}"));
        let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
        bench.store.rescue(rescue).await.unwrap_or_else(|error| panic!("after {row}: {error:?}"));
        bench.store.count().await.unwrap_or_else(|error| panic!("after {row}: {error:?}"));
    }
}

fn retries() -> Vec<Retry> {
    let mut retries = Vec::new();
    for duration in DURATIONS {
        for backoff in [
            Backoff::Constant(duration),
            Backoff::Linear(duration),
            Backoff::Exponential { base: duration, factor_milli: u32::MAX },
            Backoff::Custom(vec![duration]),
        ] {
            let (cap, jitter) = (duration, Jitter::Tenth);
            let (max_attempts, max_duration) = (Some(u32::MAX), Some(duration));
            retries.push(Retry { backoff, cap, jitter, max_attempts, max_duration });
        }
    }
    retries
}

async fn a_new_job_may_carry_any_number(bench: Bench) {
    let unique = |key: String, scope, window| Some(Unique { key, scope, window: Some(window) });
    let mut jobs: Vec<(String, NewJob)> = Vec::new();
    let mut row = |what: String, new: NewJob| jobs.push((what, new));
    for start in starts() {
        row(format!("a start {start:?}"), NewJob { start, ..job(0) });
    }
    for duration in DURATIONS {
        let expires_after = Some(duration);
        row(format!("an expiry of {duration:?}"), NewJob { expires_after, ..job(0) });
        let timeout = Some(Timeout::After(duration));
        row(format!("a timeout of {duration:?}"), NewJob { timeout, ..job(0) });
        for scope in [UniqueScope::Open, UniqueScope::Any] {
            let unique = unique(format!("{duration:?}{scope:?}"), scope, duration);
            row(format!("a window of {duration:?}"), NewJob { unique, ..job(0) });
        }
    }
    for runs in COUNTS {
        row(format!("{runs} attempts"), NewJob { max_attempts: Some(runs), ..job(0) });
    }
    for turn in LONG_COUNTS {
        row(format!("turn {turn}"), NewJob { lane: Some(Lane::Turn(turn)), ..job(0) });
    }
    for retry in retries() {
        row(format!("{retry:?}"), NewJob { retry: Some(retry), ..job(0) });
    }
    let mut ids = Ids::default();
    for (what, new) in jobs {
        let number = ids.next();
        let taken = bench.enqueue(vec![NewJob { id: id(number), ..new }]).await;
        if taken_or_refused(&what, taken).is_some() {
            bench.store.explain(id(number)).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
        }
        if number % 10 == 0 {
            ids.ordinary_job_runs(&bench, &what).await;
        }
    }
    let number = ids.next();
    bench.accept([NewJob { start: Start::After(SECOND * 3_600), ..job(number) }]).await;
    for start in starts() {
        let what = format!("a move to {start:?}");
        let selection = Selection::Jobs(vec![id(number)]);
        let moved =
            bench.store.alter(AlterJobs::new(selection, JobAction::Reschedule(start))).await;
        taken_or_refused(&what, moved);
    }
    ids.ordinary_job_runs(&bench, "all of them").await;
}

async fn any_priority_with_any_ageing_stops_no_claim(bench: Bench) {
    let mut ids = Ids::default();
    let priorities = [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX];
    // Among them some whose product with a priority, cut to 64 bits, has the other sign.
    let more = [2 * 3_600, 10 * 86_400, 50 * 365 * 86_400].map(Duration::from_secs);
    let ageings = DURATIONS.into_iter().chain(more).map(Some).chain([None]).enumerate();
    for (at, ageing) in ageings {
        let what = format!("ageing {ageing:?}");
        let queue = name(&format!("queue{at}"));
        let change = QueueChange::Ageing(ageing);
        if taken_or_refused(&what, bench.store.configure(queue.clone(), change).await).is_none() {
            continue;
        }
        for priority in priorities.map(Priority) {
            for start in [Start::Now, Start::After(Duration::from_micros(1))] {
                let queue = queue.clone();
                bench.accept([NewJob { queue, priority, start, ..job(ids.next()) }]).await;
            }
        }
        // What was sorted by one rule is sorted by another.
        for again in [Some(DELAY_MAX), Some(Duration::from_millis(1)), None, ageing] {
            let change = QueueChange::Ageing(again);
            bench.store.configure(queue.clone(), change).await.expect("it is answered");
        }
        bench.advance(SECOND).await;
        let first = bench.take().await;
        assert_eq!(first.job.priority, Priority(i32::MAX), "{what}");
        bench.settle(&first, Verdict::Complete).await;
        ids.ordinary_job_runs(&bench, &what).await;
    }
}

async fn a_queue_may_be_given_any_number(bench: Bench) {
    let mut ids = Ids::default();
    let mut changes = Vec::new();
    for limit in LONG_COUNTS {
        changes.push(QueueChange::MaxDepth(Some(limit)));
        changes.push(QueueChange::LaneDepth(Some(limit)));
    }
    changes.extend([QueueChange::MaxDepth(None), QueueChange::LaneDepth(None)]);
    for count in COUNTS {
        changes.push(QueueChange::Lanes(NonZeroU32::new(count)));
        changes.push(QueueChange::PauseLane(count));
        changes.push(QueueChange::ResumeLane(count));
    }
    let queue = name("odd");
    for change in changes {
        let what = format!("{change:?}");
        taken_or_refused(&what, bench.store.configure(queue.clone(), change).await);
        let laned = |lane, number| NewJob { queue: queue.clone(), lane: Some(lane), ..job(number) };
        for lane in [Lane::Spread, Lane::Key("key".to_string())] {
            taken_or_refused(&what, bench.enqueue([laned(lane, ids.next())]).await);
        }
        ids.ordinary_job_runs(&bench, &what).await;
    }
}

async fn a_claim_may_be_made_on_any_terms(bench: Bench) {
    let mut ids = Ids::default();
    let plain = KindClaim::new(name("work"));
    let mut terms = Vec::new();
    for lease in DURATIONS {
        terms.push(KindClaim { lease, ..plain.clone() });
    }
    for count in COUNTS {
        terms.push(KindClaim { max_attempts: count, ..plain.clone() });
        terms.push(KindClaim { concurrency: Some(count), ..plain.clone() });
        for period in DURATIONS {
            for burst in [0, 1, u32::MAX] {
                let rate = Some(Rate { jobs: count, period, burst });
                terms.push(KindClaim { rate, ..plain.clone() });
            }
        }
    }
    for (at, terms) in terms.into_iter().enumerate() {
        let what = format!("{terms:?}");
        // A rate is remembered with its kind, and must not hold up the others.
        let kind = name(&format!("kind{at}"));
        let terms = KindClaim { kind: kind.clone(), ..terms };
        for _ in 0..2 {
            bench.accept([NewJob { kind: kind.clone(), ..job(ids.next()) }]).await;
        }
        let kinds = vec![terms.clone()];
        for limit in [0, 1, usize::MAX] {
            let claim = Claim {
                worker: "w".into(),
                queues: None,
                kinds: kinds.clone(),
                limit,
                request: None,
            };
            taken_or_refused(&what, bench.store.claim(claim).await);
        }
        let (concurrency, rate) = (terms.concurrency, terms.rate);
        let info = WorkerInfo {
            queues: None,
            kinds: vec![WorkerKind { kind, concurrency, rate }],
            slots: u32::MAX,
            quiet: false,
        };
        bench.store.heartbeat("w".into(), WorkerReport::Started(info)).await.expect("answered");
        bench.store.explain(id(ids.0)).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
        if rate.is_some() {
            a_corrected_rate_holds_up_nobody(&bench, &terms.kind, &mut ids, &what).await;
        }
        if at % 10 == 0 {
            ids.ordinary_job_runs(&bench, &what).await;
        }
    }
    ids.ordinary_job_runs(&bench, "all terms").await;
}

/// Whatever rate there was before, a job of the kind starts as soon as its rate now says.
async fn a_corrected_rate_holds_up_nobody(bench: &Bench, kind: &Name, ids: &mut Ids, what: &str) {
    let rate = Some(Rate { jobs: 1, period: Duration::from_millis(1), burst: 1 });
    let number = ids.next();
    bench.accept([NewJob { kind: kind.clone(), ..job(number) }]).await;
    bench.advance(Duration::from_millis(2)).await;
    let kinds = vec![KindClaim { rate, ..KindClaim::new(kind.clone()) }];
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit: 10, request: None };
    let handed = bench.store.claim(claim).await.expect("it is answered").jobs;
    assert!(!handed.is_empty(), "after {what} an ordinary rate holds up its kind");
}

async fn a_lease_may_be_renewed_and_settled_with_any_number(bench: Bench) {
    let mut ids = Ids::default();
    for duration in DURATIONS {
        for verdict in [Verdict::Retry(duration), Verdict::Snooze(duration)] {
            let what = format!("{verdict:?}");
            bench.accept([job(ids.next())]).await;
            let handed = bench.take().await;
            let line = |at| LogLine { at, attempt: u32::MAX, text: "said".to_string() };
            let report = Report {
                progress: Some(Progress { percent: u8::MAX, note: String::new() }),
                lines: TIMES.map(Timestamp::from_micros).map(line).to_vec(),
                lines_dropped: i32::MAX as u32,
                ..Report::default()
            };
            let (job, token) = (handed.job.id, handed.lease.token);
            let renewal = Renewal { job, token, lease: duration, report };
            let renewed = bench.store.renew(vec![renewal.clone()]).await.expect("it is answered");
            assert!(renewed[0].is_ok(), "{what}: {renewed:?}");
            for token in LONG_COUNTS.map(LeaseToken).into_iter().filter(|stale| *stale != token) {
                let stale = Renewal { token, ..renewal.clone() };
                let answer = bench.store.renew(vec![stale]).await.expect("it is answered");
                assert!(answer[0].is_err(), "{what}: {token:?} renews");
                let settlement = Settlement::new(job, token, verdict);
                let answer = bench.store.settle(vec![settlement]).await.expect("it is answered");
                assert!(answer[0].is_err(), "{what}: {token:?} settles");
            }
            bench.settle(&handed, verdict).await;
            bench.record(job).await;
            ids.ordinary_job_runs(&bench, &what).await;
        }
    }
}

async fn lost_jobs_may_be_recovered_with_any_number(bench: Bench) {
    let mut ids = Ids::default();
    for delay in DURATIONS {
        for max_recoveries in COUNTS {
            let what = format!("a recovery after {delay:?}, {max_recoveries} at most");
            bench.accept([job(ids.next())]).await;
            bench.claim(1).await;
            let recovery = Recovery { mode: RecoveryMode::Act, max_recoveries, delay };
            let rescue = Rescue { recovery, reason: RecoveryReason::Restart };
            let rescued = bench.store.rescue(rescue).await;
            let rescued = taken_or_refused(&what, rescued).expect("nothing is wrong with it");
            assert_eq!(rescued.jobs.len(), 1, "{what}");
            if max_recoveries == 1 {
                ids.ordinary_job_runs(&bench, &what).await;
            }
        }
    }
}

async fn an_object_may_be_given_any_number(bench: Bench) {
    let mut ids = Ids::default();
    let address = |key: u128| Address::new(name("test"), name("things"), &key.to_string());
    for start in starts() {
        let what = format!("an alarm {start:?}");
        let number = ids.next();
        let object = address(number).expect("an address");
        let set = NewJob { start, object: Some(object.clone()), ..job(number) };
        let turn = Turn { alarm: Alarm::Set(Arc::new(set)), ..Turn::new(object.clone(), 0) };
        if let Some(turned) = taken_or_refused(&what, bench.store.turn(turn).await) {
            let moved = Turn { alarm: Alarm::Move(start), ..Turn::new(object, turned.version) };
            taken_or_refused(&what, bench.store.turn(moved).await);
        }
        ids.ordinary_job_runs(&bench, &what).await;
    }
    for delay in DURATIONS {
        let what = format!("a purge after {delay:?}");
        let object = address(ids.next()).expect("an address");
        let turn = Turn { purge: Purge::After(delay), ..Turn::new(object.clone(), 0) };
        taken_or_refused(&what, bench.store.turn(turn).await);
        for version in LONG_COUNTS {
            taken_or_refused(&what, bench.store.turn(Turn::new(object.clone(), version)).await);
        }
        ids.ordinary_job_runs(&bench, &what).await;
    }
}

async fn a_list_may_be_asked_for_with_any_number(bench: Bench) {
    bench.accept((1..=3).map(job)).await;
    for time in TIMES.map(Timestamp::from_micros) {
        let filter =
            Filter { created_from: Some(time), created_before: Some(time), ..Filter::default() };
        let page = bench.store.list(&filter, None, 10).await.expect("it is answered");
        assert!(page.jobs.is_empty(), "no time is before itself");
        bench
            .store
            .alter(AlterJobs::new(Selection::Matching(filter), JobAction::Cancel))
            .await
            .expect("answered");
    }
    for limit in [0, 1, i64::MAX as usize, usize::MAX] {
        for cursor in LONG_COUNTS {
            let page = bench.store.list(&Filter::default(), Some(Cursor(cursor)), limit).await;
            page.expect("it is answered");
            bench.store.events(cursor, limit, Duration::ZERO).await.expect("it is answered");
        }
        let objects = bench.store.list_objects(&ObjectFilter::default(), None, limit).await;
        objects.expect("it is answered");
    }
    Ids(10).ordinary_job_runs(&bench, "the lists").await;
}

async fn the_smallest_and_the_largest_limits_stop_nothing(bench: Bench) {
    let largest = Limits {
        payload_bytes: usize::MAX,
        dead_letters: usize::MAX,
        history_age: Duration::MAX,
        history_jobs: usize::MAX,
        audit_entries: usize::MAX,
    };
    let smallest = Limits {
        payload_bytes: 10,
        dead_letters: 0,
        history_age: Duration::ZERO,
        history_jobs: 0,
        audit_entries: 0,
    };
    for limits in [largest, smallest] {
        let what = format!("{limits:?}");
        let bench = bench.with_limits(limits).await;
        let mut ids = Ids::default();
        for _ in 0..3 {
            ids.ordinary_job_runs(&bench, &what).await;
            bench.accept([job(ids.next())]).await;
            let handed = bench.take().await;
            let reason = windlass_core::job::DeadReason::Permanent;
            bench.settle(&handed, Verdict::Bury(reason)).await;
            bench.advance(SECOND).await;
        }
        let claims = bench.store.claim(claim(1)).await.expect("it is answered");
        assert!(claims.jobs.is_empty());
    }
}
