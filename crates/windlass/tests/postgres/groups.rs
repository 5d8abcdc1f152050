//! Group commit: calls of one process that arrive together share a statement, and nobody can tell
//! by the answers.
//!
//! On one thread, calls that are polled together join in their order before any of them is
//! answered: the first goes alone, the others in the next statement.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinHandle;
use windlass::clock::SystemClock;
use windlass::core::job::{NewJob, Unique, UniqueScope};
use windlass::core::ledger::{Acceptance, Enqueued, QueueChange};
use windlass::core::refusal::Refusal;
use windlass::store::postgres::PostgresStore;
use windlass::store::{MemoryStore, Store, StoreError, StoreExt};
use windlass::wake::LocalWake;
use windlass::{JobId, Limits};

use crate::common::{Dice, Ground, name, raw, soon, until};

type EnqueueAnswer = Result<Vec<Enqueued>, StoreError>;

/// Makes these calls at once, on tasks of their own.
async fn together(store: &Arc<PostgresStore>, calls: Vec<Vec<Arc<NewJob>>>) -> Vec<EnqueueAnswer> {
    let mut answers = Vec::new();
    for call in begin(store, calls) {
        answers.push(soon("the answer", call).await.expect("it ends"));
    }
    answers
}

/// Begins these calls. They join in this order when the caller next waits for something.
fn begin(
    store: &Arc<PostgresStore>,
    calls: Vec<Vec<Arc<NewJob>>>,
) -> Vec<JoinHandle<EnqueueAnswer>> {
    let call = |jobs| {
        let store = store.clone();
        tokio::spawn(async move { store.enqueue(jobs).await })
    };
    calls.into_iter().map(call).collect()
}

/// A store that knows the kind of the tests already, so that no call has to ask for its number.
async fn opened(ground: &Ground) -> Arc<PostgresStore> {
    ground.make_clock();
    let store = ground.store(Limits::default()).await;
    store.enqueue(vec![Arc::new(raw(0))]).await.expect("it is acceptable");
    store
}

/// In how many commits jobs were accepted.
fn commits(ground: &Ground) -> u64 {
    let commits = ground.sql("select count(distinct xmin::text) from s0.job");
    commits.parse().expect("it is a number")
}

fn one(number: u64) -> Vec<Arc<NewJob>> {
    vec![Arc::new(raw(number))]
}

#[tokio::test(flavor = "current_thread")]
async fn calls_that_arrive_together_share_a_commit_and_each_has_its_own_answer() {
    let Some(ground) = Ground::new() else { return };
    let store = opened(&ground).await;
    let mut dice = Dice::new(7);
    let calls: Vec<Vec<Arc<NewJob>>> = (0..40)
        .map(|_| (0..1 + dice.roll(3)).map(|number| Arc::new(raw(number))).collect())
        .collect();
    let answers = together(&store, calls.clone()).await;
    assert_eq!(commits(&ground), 3, "one before, the first, and all others");
    let (mut depth, mut last) = (1, 0);
    for (jobs, answer) in calls.iter().zip(answers) {
        let enqueued = answer.expect("it is acceptable");
        depth += jobs.len() as u64;
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        assert_eq!(enqueued.iter().map(|one| one.id).collect::<Vec<_>>(), ids);
        let kept = store.find(&ids).await.expect("it is answered");
        for (one, kept) in enqueued.iter().zip(kept) {
            let kept = kept.expect("it is kept");
            assert_eq!((one.acceptance, one.depth), (Acceptance::Accepted, depth));
            assert_eq!((kept.job.id, kept.sequence), (one.id, one.sequence));
            assert!(one.sequence > last, "they are accepted in the order of the calls");
            last = one.sequence;
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_refused_caller_takes_nobody_with_it() {
    let Some(ground) = Ground::new() else { return };
    let store = opened(&ground).await;
    let known = Arc::new(raw(1));
    store.enqueue(vec![known.clone()]).await.expect("it is acceptable");
    let mut other = raw(2);
    other.id = known.id;
    let companion = Arc::new(raw(3));
    let calls = vec![one(4), one(5), vec![companion.clone(), Arc::new(other)], one(6)];
    let ids: Vec<JobId> = calls.iter().map(|jobs| jobs[0].id).collect();
    let answers = together(&store, calls).await;
    for (number, answer) in answers.into_iter().enumerate() {
        match (number, answer) {
            (2, Err(StoreError::Refused(Refusal::IdReused { job }))) => assert_eq!(job, known.id),
            (2, answer) => panic!("another payload under its id: {answer:?}"),
            (_, answer) => {
                let enqueued = answer.expect("it has nothing to do with that");
                assert_eq!(enqueued[0].acceptance, Acceptance::Accepted);
            }
        }
    }
    let kept = store.find(&ids).await.expect("it is answered");
    let kept: Vec<bool> = kept.iter().map(Option::is_some).collect();
    assert_eq!(kept, [true, true, false, true], "a call is accepted as a whole or not at all");
}

#[tokio::test(flavor = "current_thread")]
async fn a_call_that_repeats_another_is_told_so_though_both_arrive_together() {
    let Some(ground) = Ground::new() else { return };
    let store = opened(&ground).await;
    let (first, twice) = (one(1), one(2));
    let calls = vec![first.clone(), twice.clone(), twice, first, one(3)];
    let answers = together(&store, calls).await;
    let told = answers.into_iter().map(|answer| answer.expect("it is acceptable")[0].acceptance);
    let (new, known) = (Acceptance::Accepted, Acceptance::AlreadyAccepted);
    assert_eq!(told.collect::<Vec<_>>(), [new, new, known, known, new]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_limit_of_depth_is_exact_for_calls_that_arrive_together() {
    let Some(ground) = Ground::new() else { return };
    let store = opened(&ground).await;
    let (limited, free) = (name("limited"), name("default"));
    store.configure(limited.clone(), QueueChange::MaxDepth(Some(10))).await.expect("it is taken");
    let job = |number: u64| {
        let mut job = raw(number);
        job.queue = if number.is_multiple_of(2) { limited.clone() } else { free.clone() };
        vec![Arc::new(job)]
    };
    // Its number is asked for once.
    store.enqueue(job(0)).await.expect("there is room");
    let answers = together(&store, (1..=40).map(job).collect()).await;
    let mut taken: BTreeMap<bool, u64> = BTreeMap::new();
    for (number, answer) in (1..=40_u64).zip(answers) {
        match answer {
            Ok(_) => *taken.entry(number.is_multiple_of(2)).or_default() += 1,
            Err(StoreError::Refused(Refusal::QueueFull { queue, limit: 10, .. })) => {
                assert_eq!((queue, number % 2), (limited.clone(), 0));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(taken, BTreeMap::from([(false, 20), (true, 9)]));
}

/// A call of random jobs: new ones, known ones, known ids with another payload, delayed ones,
/// several queues, and now and then a unique key, which goes by itself.
fn random_call(dice: &mut Dice, known: &mut Vec<NewJob>) -> Vec<Arc<NewJob>> {
    let mut jobs: Vec<Arc<NewJob>> = Vec::new();
    for _ in 0..1 + dice.roll(3) {
        let mut job = raw(dice.roll(1_000));
        job.queue = name(["default", "other"][dice.roll(2) as usize]);
        job.priority.0 = i32::try_from(dice.roll(3)).unwrap_or(0) - 1;
        if dice.roll(10) == 0 {
            job.unique = Some(Unique {
                key: format!("key-{}", dice.roll(3)),
                scope: UniqueScope::Open,
                window: None,
            });
        }
        if !known.is_empty() && dice.roll(6) == 0 {
            job = known[dice.roll(known.len() as u64) as usize].clone();
            if dice.roll(2) == 0 {
                job.payload = Arc::from(&b"{}"[..]);
            }
        } else {
            known.push(job.clone());
        }
        if jobs.iter().all(|other| other.id != job.id) {
            jobs.push(Arc::new(job));
        }
    }
    jobs
}

/// What a caller is told, but for numbers that depend on who came first.
fn told(answer: &EnqueueAnswer) -> String {
    match answer {
        Ok(enqueued) => {
            let each = enqueued.iter().map(|one| format!("{} {:?}", one.id, one.acceptance));
            each.collect::<Vec<_>>().join(", ")
        }
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn random_calls_that_arrive_together_are_answered_as_one_after_the_other() {
    let Some(ground) = Ground::new() else { return };
    let store = opened(&ground).await;
    let clock = Arc::new(SystemClock::new());
    let memory = MemoryStore::new(Limits::default(), clock, Arc::new(LocalWake::new()));
    for seed in 1..=12 {
        let (mut dice, mut known) = (Dice::new(seed), Vec::new());
        // What is known from the round before stands in both stores by now.
        for round in 0..4 {
            let mut fresh = known.clone();
            let calls: Vec<_> = (0..12).map(|_| random_call(&mut dice, &mut fresh)).collect();
            // Of two calls of one round about the same job either may be first.
            let mut seen = std::collections::BTreeSet::new();
            let is_alone = |jobs: &Vec<Arc<NewJob>>| {
                let keys = jobs.iter().filter_map(|job| Some(job.unique.as_ref()?.key.clone()));
                let ids = jobs.iter().map(|job| job.id.to_string());
                let all: Vec<String> = ids.chain(keys).collect();
                let is_new = !all.iter().any(|one| seen.contains(one));
                seen.extend(all);
                is_new
            };
            let calls: Vec<_> = calls.into_iter().filter(is_alone).collect();
            let answers = together(&store, calls.clone()).await;
            for (jobs, answer) in calls.into_iter().zip(answers) {
                let expected = memory.enqueue(jobs.clone()).await;
                let (seen, expected) = (told(&answer), told(&expected));
                assert_eq!(seen, expected, "seed {seed}, round {round}: {jobs:?}");
                if answer.is_ok() {
                    known.extend(jobs.iter().map(|job| (**job).clone()));
                }
            }
        }
    }
}

/// Statements that wait for a lock.
async fn waiting(watcher: &tokio_postgres::Client) -> i64 {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() \
         and wait_event_type = 'Lock' and state = 'active'";
    watcher.query_one(sql, &[]).await.expect("it is answered").get(0)
}

const HOLD: &str = "begin; lock table s0.job in share mode";

/// The numbers of the jobs that are kept.
fn kept(ground: &Ground) -> String {
    let number = "convert_from(payload, 'UTF8')::jsonb->>'number'";
    ground.sql(&format!("select string_agg({number}, ' ' order by seq) from s0.job"))
}

#[tokio::test(flavor = "current_thread")]
async fn an_answer_that_is_lost_is_unknown_for_its_own_callers_alone() {
    let Some(ground) = Ground::new() else { return };
    let store = opened(&ground).await;
    let (holder, watcher) = (ground.client().await, ground.client().await);
    holder.batch_execute(HOLD).await.expect("nobody else has it");
    let calls = begin(&store, (1..=3).map(one).collect());
    // Whoever is slow keeps nobody from being sent.
    until("both statements wait", || async { waiting(&watcher).await == 2 }).await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity \
         where datname = current_database() and wait_event_type = 'Lock' \
         order by query_start desc limit 1";
    watcher.execute(end, &[]).await.expect("it is ended");
    let later = begin(&store, vec![one(4)]);
    holder.batch_execute("rollback").await.expect("it ends");
    let mut told = Vec::new();
    for call in calls.into_iter().chain(later) {
        told.push(match soon("the answer", call).await.expect("it ends") {
            Ok(_) => "accepted",
            Err(StoreError::Unknown { .. }) => "unknown",
            Err(_) => "refused",
        });
    }
    assert_eq!(told, ["accepted", "unknown", "unknown", "accepted"]);
    assert_eq!(kept(&ground), "0 1 4");
}

#[tokio::test(flavor = "current_thread")]
async fn a_caller_that_gives_up_takes_nobody_with_it() {
    let Some(ground) = Ground::new() else { return };
    let store = opened(&ground).await;
    let (holder, watcher) = (ground.client().await, ground.client().await);
    holder.batch_execute(HOLD).await.expect("nobody else has it");
    let mut calls = begin(&store, (1..=5).map(one).collect());
    tokio::task::yield_now().await;
    // Before it is sent: it is not made.
    calls.remove(1).abort();
    until("both statements wait", || async { waiting(&watcher).await == 2 }).await;
    // After that: it is made with the others.
    calls.remove(2).abort();
    tokio::task::yield_now().await;
    holder.batch_execute("rollback").await.expect("it ends");
    for call in calls {
        soon("the answer", call).await.expect("it ends").expect("it is accepted");
    }
    assert_eq!(kept(&ground), "0 1 3 4 5");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_that_enqueue_one_job_at_once_one_is_told_that_it_is_known() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    for number in 0..50 {
        let job = raw(number);
        let calls = [&engines[0], &engines[1]].map(|engine| engine.enqueue_raw(vec![job.clone()]));
        let [one, other] = calls;
        let (one, other) = tokio::join!(one, other);
        let told = [one, other].map(|answer| answer.expect("it is taken")[0].acceptance);
        let mut told = told.map(|acceptance| acceptance == Acceptance::Accepted);
        told.sort_unstable();
        assert_eq!(told, [false, true], "job {number}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn callers_that_come_together_register_a_pair_once() {
    let Some(ground) = Ground::new() else { return };
    ground.make_clock();
    let store = ground.store(Limits::default()).await;
    ground.sql(
        "create sequence s0.registered; \
         alter function s0.register(text, text) rename to register_now; \
         create function s0.register(_queue text, _kind text) returns int language plpgsql as $$ \
           begin perform nextval('s0.registered'); return s0.register_now(_queue, _kind); end $$",
    );
    for answer in together(&store, (0..8).map(one).collect()).await {
        assert_eq!(answer.expect("it is acceptable").len(), 1);
    }
    let times = "select case when is_called then last_value else 0 end from s0.registered";
    assert_eq!(ground.sql(times), "1");
}
