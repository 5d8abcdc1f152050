//! Calls with jobs in common wait for each other in one order, and never in a circle.

use std::sync::Arc;
use std::time::Duration;

use windlass::Limits;
use windlass::core::filter::Filter;
use windlass::core::job::{Start, StateName};
use windlass::core::ledger::Settlement;
use windlass::core::outcome::Verdict;
use windlass::store::postgres::{PostgresAddress, PostgresStore};
use windlass::store::{AlterJobs, JobAction, Selection, Store};
use windlass::wake::LocalWake;

use crate::common::{Ground, claim, clock_sql, raw, soon, until};

/// A worker settles two jobs while a third comes due, and somebody cancels the second and the
/// third. How many circles of locks the server had to break for that.
pub(crate) async fn circles(ground: &Ground, address: &PostgresAddress) -> u64 {
    let wake = Arc::new(LocalWake::new());
    let store = PostgresStore::open(address, Limits::default(), wake).await;
    let store = Arc::new(store.expect("it opens"));
    ground.sql(&clock_sql(&address.schema));
    let jobs = [raw(1), raw(2)].map(Arc::new);
    store.enqueue(jobs.to_vec()).await.expect("they are taken");
    let running = store.claim(claim("worker", 2)).await.expect("it is answered").jobs;
    let mut due = raw(3);
    due.start = Start::After(Duration::from_secs(1));
    let chosen = Selection::Jobs(vec![running[1].job.id, due.id]);
    store.enqueue(vec![Arc::new(due)]).await.expect("it is taken");
    ground.advance(Duration::from_secs(2));
    // Somebody is slow with the first job, so that the settlement has to wait for it.
    let holder = ground.client().await;
    let first = running[0].sequence;
    let hold =
        format!("begin; select from {}.job_state where seq = {first} for update", address.schema);
    holder.batch_execute(&hold).await.expect("nobody else has it");
    let settle = tokio::spawn({
        let store = store.clone();
        let retry = |running: &windlass::store::ClaimedJob| {
            let again = Verdict::Retry(Duration::from_secs(1));
            Settlement::new(running.job.id, running.lease.token, again)
        };
        let ends = running.iter().map(retry).collect();
        async move { store.settle(ends).await }
    });
    until("the settlement waits", || async { ground.waiting() == 1 }).await;
    let cancel = tokio::spawn({
        let store = store.clone();
        async move { store.alter(AlterJobs::new(chosen, JobAction::Cancel)).await }
    });
    until("the cancellation is done or waits", || async {
        cancel.is_finished() || ground.waiting() == 2
    })
    .await;
    holder.batch_execute("rollback").await.expect("it ends");
    drop(holder);
    let settled = soon("the settlement", settle).await.expect("no panic");
    assert!(settled.expect("it is answered").iter().all(Result::is_ok));
    let cancelled = soon("the cancellation", cancel).await.expect("no panic");
    assert!(cancelled.expect("it is answered").iter().all(|altered| altered.result.is_ok()));
    // A session tells of circles at its end at the latest.
    store.close().await;
    until("all sessions have ended", || async {
        let others = "select count(*) from pg_stat_activity where datname = current_database() \
             and pid <> pg_backend_pid() and backend_type = 'client backend'";
        ground.sql(others) == "0"
    })
    .await;
    let broken = "select deadlocks from pg_stat_database where datname = current_database()";
    ground.sql(broken).parse().expect("it is a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_by_filter_passes_over_what_somebody_else_changes_before_it_is_reached() {
    let Some(ground) = Ground::new() else { return };
    let address: PostgresAddress = ground.text_address().parse().expect("it is well formed");
    let store = PostgresStore::open(&address, Limits::default(), Arc::new(LocalWake::new())).await;
    let store = Arc::new(store.expect("it opens"));
    let jobs: Vec<_> = (1..=3).map(|number| Arc::new(raw(number))).collect();
    store.enqueue(jobs.clone()).await.expect("they are taken");
    let holder = ground.client().await;
    let cancel = format!(
        "begin; select from {}.alter(array['{}'::uuid], null, 0, null, 1, 0, 0, null)",
        address.schema, jobs[1].id
    );
    holder.batch_execute(&cancel).await.expect("nobody else has it");
    let all = Filter { states: vec![StateName::Ready], ..Filter::default() };
    let others = tokio::spawn({
        let store = store.clone();
        let change = AlterJobs::new(Selection::Matching(all), JobAction::Cancel);
        async move { store.alter(change).await }
    });
    until("the change by filter waits", || async { ground.waiting() == 1 }).await;
    holder.batch_execute("commit").await.expect("it ends");
    let altered = soon("the change", others).await.expect("no panic").expect("it is answered");
    let seen: Vec<_> = altered.iter().map(|it| (it.job, it.result.is_ok())).collect();
    assert_eq!(seen, [(jobs[0].id, true), (jobs[2].id, true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_lets_time_pass_holds_nothing_that_others_wait_for_in_a_circle() {
    let Some(ground) = Ground::new() else { return };
    ground.make_clock();
    let address = ground.text_address().parse().expect("it is well formed");
    assert_eq!(circles(&ground, &address).await, 0);
}
