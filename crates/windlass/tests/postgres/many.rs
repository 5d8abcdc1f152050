//! Many engines, as many processes would be: what is promised holds across all of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use windlass::core::event::RecoveryReason;
use windlass::core::job::{Lane, LeaseToken, NewJob, Unique};
use windlass::core::ledger::{QueueChange, Settlement};
use windlass::core::outcome::Verdict;
use windlass::core::record::AttemptEnd;
use windlass::primitives::{Debounce, Flush};
use windlass::store::{AlterJobs, ClaimedJob, JobAction, Selection, StoreError, StoreExt};
use windlass::{
    Acceptance, Attempt, CancelReason, Dependency, Engine, Error, EventKind, Failure, JobId,
    JobState, OnFailure, Rate, Refusal, Start, StateName, UniqueScope,
};

use crate::common::{
    Dice, Ground, Interval, Work, claim, count, intervals, is_completed, most_at_once, name, open,
    raw, records, soon, until, work,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(engine: &Engine, jobs: Vec<NewJob>) -> Vec<JobId> {
    let ids = jobs.iter().map(|job| job.id).collect();
    engine.enqueue_raw(jobs).await.expect("the jobs are acceptable");
    ids
}

/// Jobs in somebody's hands, by what the test knows.
type Hands = Arc<Mutex<HashMap<JobId, LeaseToken>>>;

/// Claims until nothing is left, and completes two of three; the third goes back.
async fn take_and_give(engine: Engine, hands: Hands, me: u64, seed: u64) {
    let mut dice = Dice::new(seed ^ me);
    let store = engine.store();
    while count(&engine, StateName::Completed).await < 600 {
        let limit = 1 + usize::try_from(dice.roll(20)).unwrap_or(1);
        let handed = store.claim(claim(&format!("w{me}"), limit)).await.expect("it is answered");
        let mut ends = Vec::new();
        for ClaimedJob { job, lease, .. } in handed.jobs {
            let other = lock(&hands).insert(job.id, lease.token);
            assert_eq!(other, None, "{} is in two hands (seed {seed})", job.id);
            let done = dice.roll(3) > 0;
            let verdict = if done { Verdict::Complete } else { Verdict::Release };
            ends.push(Settlement::new(job.id, lease.token, verdict));
        }
        // From here on somebody else may have them.
        for end in &ends {
            lock(&hands).remove(&end.job);
        }
        for answer in store.settle(ends).await.expect("it is answered") {
            answer.unwrap_or_else(|refusal| panic!("the lease was held: {refusal} ({seed})"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_handed_out_twice_however_many_engines_claim() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    let jobs = accept(&engines[0], (0..600).map(raw).collect()).await;
    let hands = Hands::default();
    let mut claimers = JoinSet::new();
    for me in 0..8 {
        let engine = engines[me % 4].clone();
        claimers.spawn(take_and_give(engine, hands.clone(), me as u64, 11));
    }
    soon("all jobs", claimers.join_all()).await;
    let records = records(&engines[1], &jobs).await;
    for record in &records {
        let completed = |end: &(_, AttemptEnd)| end.1 == AttemptEnd::Completed;
        let ends = record.attempts.iter().filter_map(|attempt| attempt.ended);
        assert_eq!(ends.filter(completed).count(), 1, "{record:?}");
        assert_eq!(most_at_once(&intervals(record)), 1, "{record:?}");
    }
    for state in [StateName::Ready, StateName::Running, StateName::Scheduled] {
        assert_eq!(count(&engines[2], state).await, 0, "{state:?}");
    }
    let nothing = engines[3].store().claim(claim("last", 10)).await.expect("it is answered");
    assert_eq!((nothing.jobs.len(), nothing.ready), (0, 0));
}

/// Takes whatever is there and gives it back at once, again and again.
async fn take_and_release(engine: Engine, me: usize) {
    for _ in 0..100 {
        let handed = engine.store().claim(claim(&format!("w{me}"), 3)).await;
        let release = |handed: &ClaimedJob| {
            Settlement::new(handed.job.id, handed.lease.token, Verdict::Release)
        };
        let ends = handed.expect("it is answered").jobs.iter().map(release).collect();
        engine.store().settle(ends).await.expect("it is answered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_many_take_and_give_back_at_once_are_offered_once() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    let jobs = accept(&engines[0], (0..3).map(raw).collect()).await;
    let mut claimers = JoinSet::new();
    for me in 0..8 {
        claimers.spawn(take_and_release(engines[me % 2].clone(), me));
    }
    soon("the claimers", claimers.join_all()).await;
    let all = engines[0].store().claim(claim("last", 10)).await.expect("it is answered");
    assert_eq!((all.jobs.len(), all.ready), (3, 0), "each is offered once, and nothing else is");
    for record in records(&engines[1], &jobs).await {
        assert_eq!(most_at_once(&intervals(&record)), 1, "{record:?}");
    }
}

/// Works on the lanes of a queue until nothing is left. Some jobs are dropped at their first
/// attempt, as a process that dies would drop them.
async fn work_or_vanish(engine: Engine, me: usize, jobs: u64) {
    let store = engine.store();
    while count(&engine, StateName::Completed).await < jobs {
        let mut request = claim(&format!("w{me}"), 3);
        request.kinds[0].lease = SECOND;
        request.kinds[0].max_attempts = 10;
        let handed = store.claim(request).await.expect("it is answered");
        let kept = handed.jobs.into_iter().filter(|handed| {
            let number: u64 = serde_json::from_slice::<Work>(&handed.job.payload)
                .map_or(0, |payload| payload.number);
            handed.attempt > 1 || !number.is_multiple_of(17)
        });
        let ends: Vec<Settlement> = kept
            .map(|handed| Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete))
            .collect();
        // One that is late is refused, and somebody else does it.
        store.settle(ends).await.expect("it is answered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_keep_their_order_across_engines_some_of_which_lose_jobs() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    let lanes = QueueChange::Lanes(NonZeroU32::new(8));
    engines[0].store().configure(name("default"), lanes).await.expect("it is answered");
    let key = |number: u64| format!("key-{}", number % 12);
    let mut workers = JoinSet::new();
    for (me, engine) in engines.iter().enumerate() {
        workers.spawn(work_or_vanish(engine.clone(), me, 200));
    }
    let mut jobs = Vec::new();
    // One by one, while others end: neither may overlook the other when it says who is next.
    for number in 0..200 {
        let laned = NewJob { lane: Some(Lane::Key(key(number))), ..raw(number) };
        let engine = &engines[usize::try_from(number % 4).unwrap_or(0)];
        jobs.extend(accept(engine, vec![laned]).await);
    }
    soon("all jobs", workers.join_all()).await;
    let mut by_key: BTreeMap<String, Vec<(u64, Vec<Interval>)>> = BTreeMap::new();
    for record in records(&engines[0], &jobs).await {
        let Some(Lane::Key(key)) = &record.job.lane else { panic!("it has a lane") };
        by_key.entry(key.clone()).or_default().push((record.sequence, intervals(&record)));
    }
    let mut lost = 0;
    for (key, mut jobs) in by_key {
        jobs.sort_unstable();
        lost += jobs.iter().filter(|(_, attempts)| attempts.len() > 1).count();
        let attempts: Vec<Interval> = jobs.into_iter().flat_map(|(_, attempts)| attempts).collect();
        let in_order = attempts.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        assert!(in_order, "{key} is out of order: {attempts:?}");
    }
    assert!(lost >= 11, "only {lost} jobs were lost and tried again");
}

/// Starts a worker in each engine and waits until all of these jobs have completed.
async fn run_all<F>(engines: &[Engine], jobs: &[JobId], terms: F)
where
    F: Fn(windlass::KindOptions) -> windlass::KindOptions,
{
    async fn handle(job: Work) -> Result<u64, Failure> {
        tokio::time::sleep(Duration::from_millis(5 + job.number % 20)).await;
        Ok(job.number)
    }
    let mut workers = Vec::new();
    for engine in engines {
        let worker = engine.worker().slots(10).handle_with(handle, &terms);
        let worker = worker.poll_interval(Duration::from_millis(100));
        workers.push(worker.start().await.expect("the worker starts"));
    }
    let all = jobs.len() as u64;
    until("all jobs are done", || async { count(&engines[0], StateName::Completed).await == all })
        .await;
    for worker in workers {
        worker.stop().await.expect("the worker stops");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_concurrency_holds_across_engines() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    let jobs = accept(&engines[0], (0..80).map(raw).collect()).await;
    run_all(&engines, &jobs, |terms| terms.concurrency(3)).await;
    let records = records(&engines[0], &jobs).await;
    let all: Vec<Interval> = records.iter().flat_map(intervals).collect();
    let most = most_at_once(&all);
    assert!((2..=3).contains(&most), "{most} ran at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_holds_across_engines_in_every_window() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    let jobs = accept(&engines[0], (0..60).map(raw).collect()).await;
    let rate = Rate::per_second(20).burst(5);
    run_all(&engines, &jobs, |terms| terms.rate(rate)).await;
    let records = records(&engines[0], &jobs).await;
    let mut starts: Vec<i64> = records.iter().flat_map(intervals).map(|(at, _)| at).collect();
    starts.sort_unstable();
    for (first, from) in starts.iter().enumerate() {
        for (last, to) in starts.iter().enumerate().skip(first) {
            let (started, allowed) = (last - first + 1, 5 + (to - from) * 20 / 1_000_000);
            assert!(started as i64 <= allowed, "{started} in {} µs", to - from);
        }
    }
}

/// Enqueues these jobs at once, each by a task of its own, spread over the engines.
async fn enqueue_at_once(engines: &[Engine], jobs: Vec<NewJob>) -> Vec<Result<JobId, Error>> {
    let mut producers = JoinSet::new();
    let start = Arc::new(tokio::sync::Barrier::new(jobs.len()));
    for (number, job) in jobs.into_iter().enumerate() {
        let (engine, start) = (engines[number % engines.len()].clone(), start.clone());
        producers.spawn(async move {
            start.wait().await;
            Ok(engine.enqueue_raw(vec![job]).await?[0].id)
        });
    }
    soon("the producers", producers.join_all()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_depth_is_exact_with_64_enqueuers() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    for round in 0..4 {
        let queue = name(&format!("queue-{round}"));
        let limit = QueueChange::MaxDepth(Some(50));
        engines[0].store().configure(queue.clone(), limit).await.expect("it is answered");
        let job = |number| NewJob { queue: queue.clone(), ..raw(number) };
        let answers = enqueue_at_once(&engines, (0..64).map(job).collect()).await;
        let refused = answers.iter().filter(|answer| {
            matches!(answer, Err(Error::Refused(Refusal::QueueFull { limit: 50, .. })))
        });
        let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!((accepted, refused.count()), (50, 14));
        assert_eq!(count(&engines[1], StateName::Ready).await, 50 * (round + 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_64_who_enqueue_one_key_at_once_one_is_accepted_and_all_get_its_id() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    for round in 0..6 {
        let key = format!("key-{round}");
        let unique = Unique { key, scope: UniqueScope::Open, window: None };
        let job = |number| NewJob { unique: Some(unique.clone()), ..raw(number) };
        let answers = enqueue_at_once(&engines, (0..64).map(job).collect()).await;
        let ids: Vec<JobId> = answers.into_iter().map(|id| id.expect("it is answered")).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "round {round}: {ids:?}");
        assert_eq!(count(&engines[1], StateName::Ready).await, round + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_used_by_many_at_once_is_one_job() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    for round in 0..6 {
        let job = raw(round);
        let answers = enqueue_at_once(&engines, vec![job.clone(); 32]).await;
        for answer in answers {
            assert_eq!(answer.expect("it is answered"), job.id);
        }
        assert_eq!(count(&engines[1], StateName::Ready).await, round + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_leases_of_a_vanished_worker_are_given_back_within_two_seconds() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    let mut jobs = Vec::new();
    // How fast the machine is just now: others may be at work on it.
    let begun = Instant::now();
    for batch in 0..10 {
        let batch = (0..1_000).map(|number| raw(batch * 1_000 + number)).collect();
        jobs.extend(accept(&engines[0], batch).await);
    }
    let accepting = begun.elapsed();
    let mut until_by_job = HashMap::new();
    while until_by_job.len() < jobs.len() {
        let mut request = claim("vanished", 10_000);
        request.kinds[0].lease = 2 * SECOND;
        request.kinds[0].max_attempts = 10;
        let handed = engines[0].store().claim(request).await.expect("it is answered");
        until_by_job.extend(handed.jobs.iter().map(|job| (job.job.id, job.lease.until)));
    }
    until("all are given back", || async { count(&engines[1], StateName::Running).await == 0 })
        .await;
    let mut slowest = Duration::ZERO;
    for record in records(&engines[0], &jobs).await {
        assert_eq!(record.attempts.len(), 1, "{record:?}");
        let attempt = &record.attempts[0];
        let (ended, how) = attempt.ended.expect("it has ended");
        assert_eq!(how, AttemptEnd::Crashed(RecoveryReason::LeaseExpired));
        slowest = slowest.max(ended.since(until_by_job[&record.id()]));
    }
    let allowed = (2 * SECOND).max(SECOND + 3 * accepting);
    assert!(slowest <= allowed, "the last came back {slowest:?} after its lease");
}

/// What a handler waits for, and what it has seen.
#[derive(Clone, Debug, Default)]
struct Gate {
    open: Arc<Notify>,
    entered: Arc<Notify>,
}

/// A worker of an engine in a runtime of its own, which ends like a process that is killed.
fn worker_to_kill(address: String, gate: Gate) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    runtime.spawn(async move {
        let engine = open(&address).await;
        let handler = move |job: Work, _: Attempt| {
            let gate = gate.clone();
            async move {
                gate.entered.notify_one();
                gate.open.notified().await;
                Ok::<u64, Failure>(job.number)
            }
        };
        let worker = engine.worker().name("same").slots(1);
        let worker = worker.handle_with(handler, |terms| terms.lease(SECOND));
        worker.start().await.expect("the worker starts").stopped().await.expect("it works on")
    });
    runtime
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_of_one_name_are_told_apart_when_one_of_them_dies() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let engine = open(&address).await;
    let (first, second) = (Gate::default(), Gate::default());
    let doomed = worker_to_kill(address.clone(), first.clone());
    let lost = engine.enqueue(work(1)).await.expect("it is accepted");
    soon("the first worker", first.entered.notified()).await;
    let living = worker_to_kill(address, second.clone());
    let kept = engine.enqueue(work(2)).await.expect("it is accepted");
    soon("the second worker", second.entered.notified()).await;
    let workers = engine.counts().await.expect("counters are answered").workers;
    assert_eq!(workers.len(), 2, "{workers:?}");
    assert!(workers.iter().all(|worker| worker.worker.starts_with("same-") && worker.running == 1));

    doomed.shutdown_background();
    until("the lost job is given back", || async {
        lost.record().await.expect("it is kept").status.recoveries == 1
    })
    .await;
    let record = kept.record().await.expect("it is kept");
    assert!(matches!(record.status.state, JobState::Running(_)), "{record:?}");
    second.open.notify_one();
    assert_eq!(soon("its outcome", kept.outcome()).await.expect("it completes"), 2);
    soon("the lost job", second.entered.notified()).await;
    second.open.notify_one();
    assert_eq!(soon("its outcome", lost.outcome()).await.expect("it completes"), 1);
    let record = kept.record().await.expect("it is kept");
    assert_eq!((record.status.attempts, record.attempts.len()), (1, 1));
    living.shutdown_background();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_in_every_engine_from_the_moment_it_returns() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(3).await;
    let mut workers = Vec::new();
    for engine in &engines[1..] {
        let worker =
            engine.worker().handle(|job: Work| async move { Ok::<_, Failure>(job.number) });
        workers.push(worker.poll_interval(HOUR).start().await.expect("the worker starts"));
    }
    let queue = engines[0].queue("default").expect("a name");
    for round in 0..10 {
        queue.pause().await.expect("it is answered");
        let paused =
            engines[0].store().events(0, usize::MAX, Duration::ZERO).await.expect("events");
        let paused = paused.last().expect("a pause is told").number;
        let batch = (0..20).map(|number| raw(round * 20 + number)).collect();
        let jobs = accept(&engines[usize::try_from(round % 3).unwrap_or(0)], batch).await;
        assert_eq!(count(&engines[0], StateName::Ready).await, 20);
        queue.resume().await.expect("it is answered");
        until("all are done", || async {
            records(&engines[0], &jobs).await.iter().all(is_completed)
        })
        .await;
        let events =
            engines[0].store().events(paused, usize::MAX, Duration::ZERO).await.expect("events");
        let resumed = events.iter().position(|event| event.what == EventKind::QueueResumed);
        let started =
            events.iter().position(|event| matches!(event.what, EventKind::JobStarted { .. }));
        assert!(resumed.is_some() && resumed < started, "{resumed:?} {started:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_reaches_a_job_that_another_engine_runs() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    let gate = Gate::default();
    let entered = gate.entered.clone();
    let handler = move |_: Work, attempt: Attempt| {
        let entered = entered.clone();
        async move {
            entered.notify_one();
            attempt.cancellation().cancelled().await;
            Err::<u64, _>(Failure::cancel("told to stop"))
        }
    };
    // Its lease is so long that it would not ask by itself before the test ends, and no time-out
    // tells the handler to stop before.
    let terms = |terms: windlass::KindOptions| terms.lease(HOUR).no_timeout();
    let worker = engines[1].worker().handle_with(handler, terms);
    worker.poll_interval(HOUR).start().await.expect("the worker starts");
    let job = engines[0].enqueue(work(1)).await.expect("it is accepted");
    soon("the handler", gate.entered.notified()).await;
    job.cancel().await.expect("it is answered");
    let outcome = soon("its end", job.outcome()).await;
    assert!(
        matches!(outcome, Err(Error::Cancelled { reason: CancelReason::Requested, .. })),
        "{outcome:?}"
    );
}

/// Lets the end of a job race the enqueue of one that depends on it, and says what became of that.
async fn race(engines: &[Engine], number: u64, verdict: Verdict) -> Option<StateName> {
    let queue = name(&format!("race-{number}"));
    let first = NewJob { queue: queue.clone(), ..raw(number) };
    let depends_on = vec![Dependency { on: first.id, on_failure: OnFailure::default() }];
    let second = NewJob { queue: queue.clone(), depends_on, ..raw(number) };
    let (one, other) = (engines[0].store(), engines[1].store());
    one.enqueue(vec![Arc::new(first.clone())]).await.expect("it is accepted");
    let request = windlass::core::ledger::Claim { queues: Some(vec![queue]), ..claim("w", 1) };
    let handed = one.claim(request).await.expect("it is answered").jobs.remove(0);
    let end = Settlement::new(first.id, handed.lease.token, verdict);
    let id = second.id;
    let (settled, enqueued) =
        tokio::join!(one.settle(vec![end]), other.enqueue(vec![Arc::new(second)]));
    settled.expect("it is answered").remove(0).expect("the lease was held");
    match enqueued {
        Ok(_) => Some(records(&engines[0], &[id]).await[0].status.state.name()),
        Err(StoreError::Refused(Refusal::DependencyFailed { .. })) => None,
        Err(other) => panic!("race {number}: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dependency_that_ends_while_its_dependent_is_enqueued_leaves_it_never_stuck() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    let mut races = JoinSet::new();
    for lane in 0..4 {
        let engines = engines.clone();
        races.spawn(async move {
            for number in (lane * 1_000)..(lane * 1_000 + 40) {
                let completed = race(&engines, number, Verdict::Complete).await;
                assert_eq!(completed, Some(StateName::Ready), "race {number}");
                let bury = Verdict::Bury(windlass::DeadReason::Permanent);
                let died = race(&engines, number + 500, bury).await;
                let followed = [None, Some(StateName::Dead), Some(StateName::Cancelled)];
                assert!(followed.contains(&died), "race {number}: {died:?}");
            }
        });
    }
    soon("the races", races.join_all()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_batch_meets_itself_and_is_answered_as_such_by_every_engine() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    let batch: Vec<Arc<NewJob>> = (0..50).map(|number| Arc::new(raw(number))).collect();
    for round in 0..5 {
        let (one, other) = (engines[0].store(), engines[1].store());
        let (one, other) = tokio::join!(one.enqueue(batch.clone()), other.enqueue(batch.clone()));
        let (one, other) = (one.expect("it is answered"), other.expect("it is answered"));
        let new = one.iter().chain(&other).filter(|each| each.acceptance == Acceptance::Accepted);
        assert_eq!(new.count(), if round == 0 { 50 } else { 0 });
    }
    assert_eq!(count(&engines[0], StateName::Ready).await, 50);
}

/// The numbers below `count`, in an order of its own for every seed.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut dice = Dice::new(seed + 1);
    let mut numbers: Vec<(u64, u64)> =
        (0..count).map(|number| (dice.roll(1 << 40), number)).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|(_, number)| number).collect()
}

/// Moves all of these jobs, in an order of its own.
async fn move_all(engine: &Engine, jobs: &[JobId], seed: u64) {
    let order = shuffled(jobs.len() as u64, seed);
    let mixed = order.iter().filter_map(|at| jobs.get(usize::try_from(*at).ok()?).copied());
    let start = Start::After(Duration::from_secs(60 + seed));
    let selection = Selection::Jobs(mixed.collect());
    let moved = engine.store().alter(AlterJobs::new(selection, JobAction::Reschedule(start))).await;
    assert_eq!(moved.expect("it is answered").len(), jobs.len());
}

/// Enqueues a job for each of forty keys, in an order of its own.
async fn take_all_keys(engine: &Engine, round: u64, seed: u64) {
    let order = shuffled(40, seed);
    let unique = |number: u64| {
        let key = format!("{round}-{number}");
        let unique = Unique { key, scope: UniqueScope::Open, window: None };
        NewJob { unique: Some(unique), ..raw(number) }
    };
    engine.enqueue_raw(order.into_iter().map(unique).collect()).await.expect("it is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_name_the_same_jobs_in_another_order_get_in_nobodys_way_for_good() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    let jobs = accept(&engines[0], (0..40).map(raw).collect()).await;
    let mut callers = JoinSet::new();
    let all = Arc::new(tokio::sync::Barrier::new(8));
    for me in 0..8_usize {
        let (engine, jobs) = (engines[me % 4].clone(), jobs.clone());
        let mover = engine.clone();
        callers.spawn(async move {
            for round in 0..5 {
                move_all(&mover, &jobs, me as u64 * 100 + round).await;
            }
        });
        let all = all.clone();
        callers.spawn(async move {
            for round in 0..5 {
                all.wait().await;
                take_all_keys(&engine, round, me as u64 * 100 + round).await;
            }
        });
    }
    soon("the callers", callers.join_all()).await;
    assert_eq!(count(&engines[0], StateName::Scheduled).await, 40);
    assert_eq!(count(&engines[0], StateName::Ready).await, 5 * 40);
    // A circle would be broken by the server and the call repeated, so it must be asked for. What a
    // session has counted is known for sure when it has ended.
    for engine in engines {
        engine.close().await;
    }
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() \
         and pid <> pg_backend_pid()";
    until("all sessions have ended", || async { ground.sql(sessions) == "0" }).await;
    let circles = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(ground.sql(circles), "0", "calls waited for each other in a circle");
}

/// Whoever ends an attempt of an object holds the job and then the object; whoever asks something
/// of the object must not hold them the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_something_of_an_object_holds_its_jobs_first() {
    let Some(ground) = Ground::new() else { return };
    let engine = open(&ground.text_address()).await;
    let pages = Debounce::new("pages", HOUR, |_: Flush<u64>| async { Ok::<(), Failure>(()) });
    let settling = ground.client().await;
    for purges in [false, true] {
        engine.debounce(&pages).add("home", 1).await.expect("it is added");
        let hold = "begin; select from s0.job_state p join s0.job j using (seq) \
             join s0.object o on o.alarm = j.id for update of p";
        settling.batch_execute(hold).await.expect("nobody has it");
        let (engine, pages) = (engine.clone(), pages.clone());
        let asked = tokio::spawn(async move {
            match purges {
                false => engine.debounce(&pages).add("home", 2).await.map(drop),
                true => engine.debounce(&pages).clear("home").await.map(drop),
            }
        });
        let waits = "select count(*) from pg_stat_activity where datname = current_database() \
             and wait_event_type = 'Lock' and query like '%s0.turn(%'";
        until("it waits for the job", || async { ground.sql(waits) == "1" }).await;
        let object = "select from s0.object for update nowait";
        settling.batch_execute(object).await.expect("nobody holds the object meanwhile");
        settling.batch_execute("commit").await.expect("it ends");
        soon("the answer", asked).await.expect("no panic").expect("it is done");
    }
    engine.close().await;
}

/// Claims a few jobs at a time and completes them together, until none of these is open.
async fn complete_in_batches(engine: Engine, me: usize) {
    let store = engine.store();
    loop {
        let handed = store.claim(claim(&format!("w{me}"), 5)).await.expect("it is answered");
        if handed.jobs.is_empty() {
            return;
        }
        let end = |handed: &ClaimedJob| {
            let mut end = Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete);
            // Half of them do not take the short way.
            if handed.sequence.is_multiple_of(2) {
                end.output = Some(b"1".to_vec().into());
                end.next = vec![Arc::new(NewJob { queue: name("after"), ..raw(0) })];
            }
            end
        };
        let mut ends: Vec<Settlement> = handed.jobs.iter().map(end).collect();
        if me.is_multiple_of(2) {
            ends.reverse();
        }
        for answer in store.settle(ends).await.expect("it is answered") {
            answer.expect("the lease is held");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_of_jobs_that_end_in_many_batches_at_once_are_released_once() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(4).await;
    let first = accept(&engines[0], (0..80).map(raw).collect()).await;
    let dependent = |number: u64| {
        let chosen = shuffled(80, number).into_iter().take(20);
        let on = chosen.filter_map(|at| first.get(usize::try_from(at).ok()?).copied());
        let on = on.map(|on| Dependency { on, on_failure: OnFailure::default() });
        NewJob { depends_on: on.collect(), queue: name("later"), ..raw(number) }
    };
    let waiting = accept(&engines[1], (0..40).map(dependent).collect()).await;
    engines[0].queue("later").expect("a name").pause().await.expect("it is answered");
    engines[0].queue("after").expect("a name").pause().await.expect("it is answered");
    let mut workers = JoinSet::new();
    for me in 0..8 {
        workers.spawn(complete_in_batches(engines[me % 4].clone(), me));
    }
    soon("the workers", workers.join_all()).await;
    for record in records(&engines[2], &waiting).await {
        assert_eq!(record.status.state.name(), StateName::Ready, "{record:?}");
        assert_eq!(record.met.len(), 20, "{record:?}");
    }
    let events = engines[3].store().events(0, usize::MAX, Duration::ZERO).await.expect("events");
    let unblocked = events.iter().filter(|event| event.what == EventKind::JobUnblocked);
    assert_eq!(unblocked.count(), 40);
    assert_eq!(count(&engines[3], StateName::Blocked).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_joins_a_lane_while_the_last_of_it_ends_is_not_overlooked() {
    let Some(ground) = Ground::new() else { return };
    let engine = ground.engines(1).await.remove(0);
    let laned = |number| NewJob { lane: Some(Lane::Key("k".to_string())), ..raw(number) };
    accept(&engine, vec![laned(1)]).await;
    let handed = engine.store().claim(claim("w", 1)).await.expect("it is answered");
    let ClaimedJob { job, lease, .. } = &handed.jobs[0];
    let mut client = ground.client().await;
    let transaction = client.transaction().await.expect("it begins");
    let settle = format!(
        "select * from s0.settle(0, array['{}']::uuid[], null, null, null, null, \
         array[null]::bigint[], array[{}]::bigint[], array[0]::smallint[], null, '', null, null, \
         null, null, null)",
        job.id, lease.token.0
    );
    transaction.batch_execute(&settle).await.expect("it is answered");
    let joining = tokio::spawn({
        let engine = engine.clone();
        async move { accept(&engine, vec![laned(2)]).await }
    });
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
         and wait_event_type = 'Lock'";
    until("it waits for who is there, or does not", || async {
        ground.sql(waiting) != "0" || joining.is_finished()
    })
    .await;
    transaction.commit().await.expect("it commits");
    let second = soon("the second job", joining).await.expect("it ends");
    let handed = engine.store().claim(claim("w", 1)).await.expect("it is answered");
    let handed: Vec<JobId> = handed.jobs.iter().map(|handed| handed.job.id).collect();
    assert_eq!(handed, second, "nobody is left who would offer it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_keeps_out_of_the_way_of_another_finds_what_there_is() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(1).await;
    accept(&engines[0], (1..=20).map(raw).collect()).await;
    let client = ground.client().await;
    let claim = |half: &str| {
        format!(
            "select sum(cardinality(ids)) from s0.claim('w', null, array['work'], \
             array[60000000::bigint], array[3::bigint], array[null::int], array[null::int], \
             array[null::bigint], array[null::int], 10, {half})"
        )
    };
    // All have small numbers, which is the same half.
    for half in ["0", "1"] {
        let started: i64 =
            client.query_one(&claim(half), &[]).await.expect("it is answered").get(0);
        assert_eq!(started, 10, "of half {half}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_claims_at_once_take_every_job_once() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(1).await;
    accept(&engines[0], (1..=3_000).map(raw).collect()).await;
    let store = engines[0].store();
    let mut taken = HashSet::new();
    while taken.len() < 3_000 {
        let large = || store.claim(claim("w", 700));
        let (one, two, three) = tokio::join!(large(), large(), large());
        for handed in [one, two, three] {
            for job in handed.expect("it is answered").jobs {
                assert!(taken.insert(job.job.id), "{} was handed out twice", job.job.id);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_waits_for_a_claim_that_did_not_know_of_it() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(1).await;
    accept(&engines[0], vec![raw(1), raw(2)]).await;
    let mut client = ground.client().await;
    // A claim whose commit is slow to come.
    let transaction = client.transaction().await.expect("it begins");
    let claim = "select sum(cardinality(ids)) from s0.claim('slow', null, array['work'], \
         array[60000000::bigint], array[3::bigint], array[null::int], array[null::int], \
         array[null::bigint], array[null::int], 1, null)";
    let started: i64 = transaction.query_one(claim, &[]).await.expect("it is answered").get(0);
    assert_eq!(started, 1);
    let pausing = tokio::spawn({
        let queue = engines[0].queue("default").expect("a name");
        async move { queue.pause().await }
    });
    until("the pause waits", || async { ground.waiting() == 1 }).await;
    assert!(!pausing.is_finished(), "a job could start after the pause has returned");
    transaction.commit().await.expect("it commits");
    pausing.await.expect("it ends").expect("it is answered");
    assert_eq!(count(&engines[0], StateName::Running).await, 1);
    let handed = engines[0].store().claim(crate::many::claim("late", 10)).await;
    assert!(handed.expect("it is answered").jobs.is_empty());
}
