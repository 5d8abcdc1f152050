//! The two partitions of what is ready, while an old transaction pins what is dead: new jobs go
//! into one, and of the other it is known how far it is empty. No claim passes over a job for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinHandle;
use tokio_postgres::{Client, IsolationLevel, Transaction};
use windlass::store::Store;
use windlass::store::postgres::Schema;
use windlass::{Limits, Priority};

use crate::common::{Ground, claim, raw};
use crate::schemas::{Trial, judge};

/// How large a partition may be before it is left: it is left at once, or never.
const AT_ONCE: i64 = 0;
const NEVER: i64 = i64::MAX;

/// Lets the partitions of a schema go a step on. It gives up rather than let others wait for long.
async fn step(client: &Client, schema: usize, worth: i64) {
    let _ = client.batch_execute(&format!("select s{schema}.rotate({worth})")).await;
}

/// Leaves the first half, once nobody writes into the second.
async fn leave_the_first_half(client: &Client) {
    for _ in 0..2 {
        step(client, 0, AT_ONCE).await;
    }
}

/// Whether it is told how far the half that was left is empty.
fn is_told(ground: &Ground) -> bool {
    ground.sql(
        "select coalesce((select queue_kinds from s0.low_water order by n desc limit 1), '{}') \
             <> '{}'",
    ) == "t"
}

async fn enqueue(store: &dyn Store, jobs: std::ops::RangeInclusive<u64>) {
    let jobs = jobs.map(|number| Arc::new(raw(number))).collect();
    store.enqueue(jobs).await.expect("the jobs are acceptable");
}

/// The numbers of the next jobs, which run from then on.
async fn take(store: &dyn Store, limit: usize) -> Vec<u64> {
    let handed = store.claim(claim("taker", limit)).await.expect("it is answered").jobs;
    let number = |payload: &[u8]| {
        let payload: serde_json::Value = serde_json::from_slice(payload).expect("it is JSON");
        payload["number"].as_u64().expect("it has a number")
    };
    handed.iter().map(|handed| number(&handed.job.payload)).collect()
}

async fn read_so_far(transaction: &Transaction<'_>) -> i64 {
    let read = "select pg_stat_get_xact_tuples_returned('s0.ready_0_pkey'::regclass)";
    transaction.query_one(read, &[]).await.expect("it is told").get(0)
}

/// How many entries of a half's index a claim of ten reads.
async fn entries_read(client: &mut Client) -> i64 {
    let transaction = client.transaction().await.expect("it begins");
    let claim = "select * from s0.claim('w', null, '{work}', '{60000000}', '{3}', \
         array[null::int], array[null::int], array[null::bigint], array[null::int], 10, null)";
    let before = read_so_far(&transaction).await;
    transaction.batch_execute(claim).await.expect("it is answered");
    let after = read_so_far(&transaction).await;
    transaction.rollback().await.expect("it is undone");
    after - before
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dead_in_front_of_a_backlog_is_passed_over_once() {
    let Some(ground) = Ground::new() else { return };
    ground.make_clock();
    let store = ground.store(Limits::default()).await;
    let (mut client, forgetful) = (ground.client().await, ground.client().await);
    forgetful.batch_execute("begin; select pg_current_xact_id()").await.expect("it begins");
    enqueue(&*store, 1..=6_000).await;
    leave_the_first_half(&client).await;
    enqueue(&*store, 6_001..=6_100).await;
    assert_eq!(take(&*store, 4_000).await.last(), Some(&4_000));
    let before = entries_read(&mut client).await;
    assert!(before >= 4_000, "nothing is pinned: {before} entries read");
    for _ in 0..2 {
        step(&client, 0, AT_ONCE).await;
    }
    assert!(is_told(&ground));
    let read = entries_read(&mut client).await;
    assert!(read < 200, "{read} entries read for ten jobs");
    // Nobody is passed over for it, and everybody has his turn, in both halves.
    let mut urgent = raw(7_000);
    urgent.priority = Priority(1);
    store.enqueue(vec![Arc::new(urgent)]).await.expect("it is acceptable");
    assert_eq!(take(&*store, 2).await, [7_000, 4_001]);
    assert_eq!(take(&*store, 9).await, Vec::from_iter(4_002..=4_010));
    assert_eq!(take(&*store, 1_980).await.last(), Some(&5_990));
    assert_eq!(take(&*store, 20).await, Vec::from_iter(5_991..=6_010));
    assert_eq!(take(&*store, 1_000).await, Vec::from_iter(6_011..=6_100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_found_whatever_its_producer_knows_of_rotations() {
    let Some(ground) = Ground::new() else { return };
    ground.make_clock();
    let store = ground.store(Limits::default()).await;
    let client = ground.client().await;
    let (mut early, mut blind) = (ground.client().await, ground.client().await);
    enqueue(&*store, 1..=3).await;
    step(&client, 0, NEVER).await;
    // One has written into the first half when it is left; one sees all as it was before that.
    let early = early.transaction().await.expect("it begins");
    let job = |number: u64, priority: i32| {
        let payload = format!("{{\"number\": {number}}}");
        format!("select s0.enqueue('work', '{payload}', priority => {priority})")
    };
    early.batch_execute(&job(4, 1)).await.expect("it is taken");
    let blind = blind.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let blind = blind.start().await.expect("it begins");
    blind.batch_execute("select count(*) from s0.job").await.expect("it is answered");
    step(&client, 0, AT_ONCE).await;
    for _ in 0..3 {
        step(&client, 0, NEVER).await;
        assert!(!is_told(&ground), "somebody still writes there");
    }
    assert_eq!(take(&*store, 9).await, [1, 2, 3]);
    early.commit().await.expect("it commits");
    step(&client, 0, NEVER).await;
    assert!(is_told(&ground));
    assert_eq!(take(&*store, 9).await, [4]);
    // All is taken, and it is told that the first half is empty.
    step(&client, 0, NEVER).await;
    blind.batch_execute(&job(5, 2)).await.expect("it is taken");
    blind.commit().await.expect("it commits");
    assert_eq!(take(&*store, 9).await, [5]);
}

/// How many rotations there were.
static ROTATIONS: AtomicU64 = AtomicU64::new(0);

/// Rotates the partitions of a schema all the time.
fn rotate_always(client: Client, schema: Schema) -> JoinHandle<()> {
    tokio::spawn(async move {
        // Left, told of, emptied.
        for worth in [AT_ONCE, AT_ONCE, NEVER, NEVER, NEVER, AT_ONCE].into_iter().cycle() {
            let rotate = format!("select {schema}.rotate({worth})");
            let turned = client.query_one(&rotate, &[]).await;
            if turned.is_ok_and(|turned| turned.get(0)) {
                ROTATIONS.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_of_the_suite_is_kept_while_partitions_rotate() {
    let trials = Trial::all(Some(rotate_always));
    let cases = trials.len() as u64;
    let broken = judge(trials).await;
    assert!(broken.is_empty(), "{} promises are broken\n{}", broken.len(), broken.join("\n"));
    let turns = ROTATIONS.load(Ordering::SeqCst);
    assert!(turns > cases, "there were only {turns} rotations");
}
