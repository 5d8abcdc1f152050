//! Jobs in the user's own transaction: with its rows, or not at all.

use serde::{Deserialize, Serialize};
use sqlx::Connection as _;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};
use windlass::core::event::RecoveryReason;
use windlass::core::ledger::{Recovery, Rescue, Settlement};
use windlass::core::outcome::Verdict;
use windlass::postgres::{complete_in, enqueue_in, enqueue_many_in};
use windlass::store::Store as _;
use windlass::store::postgres::{PostgresAddress, PostgresStore};
use windlass::wake::LocalWake;
use windlass::{Attempt, Engine, Error, Failure, Job, Options, Refusal, State, StateName};

use crate::common::{Ground, claim, raw};

#[derive(Clone, Serialize, Deserialize)]
struct Charge {
    order: i64,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
    type Output = i64;
}

struct Shop {
    engine: Engine,
    url: String,
    ground: Ground,
}

impl Shop {
    async fn open() -> Option<Self> {
        let ground = Ground::new()?;
        let engine = Engine::open(&ground.text_address()).await.expect("it opens");
        ground.sql("create table orders (id bigint primary key)");
        let url = ground.server.url_for(&ground.database);
        Some(Self { engine, url, ground })
    }

    async fn client(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.url, NoTls).await.expect("connects");
        tokio::spawn(connection);
        client
    }

    fn orders(&self) -> String {
        self.ground.sql("select count(*) from orders")
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_job_is_there_if_and_only_if_the_transaction_commits() {
    let Some(shop) = Shop::open().await else { return };
    let mut client = shop.client().await;
    for commits in [false, true] {
        let transaction = client.transaction().await.expect("it begins");
        transaction.execute("insert into orders values (1)", &[]).await.expect("it is inserted");
        let handle = enqueue_in(&transaction, shop.engine.enqueue(Charge { order: 1 })).await;
        let handle = handle.expect("it is accepted");
        assert!(shop.engine.find(handle.id()).await.expect("answered").is_none(), "not yet");
        if commits {
            transaction.commit().await.expect("it commits");
        } else {
            transaction.rollback().await.expect("it rolls back");
        }
        let found = shop.engine.find(handle.id()).await.expect("answered");
        assert_eq!(found.is_some(), commits);
        assert_eq!(shop.orders(), if commits { "1" } else { "0" });
    }
    let counts = shop.engine.counts().await.expect("answered");
    assert_eq!(counts.totals().enqueued, 1, "what was rolled back is not counted");
    let mut events =
        shop.engine.subscribe_after(windlass::Topics::all(), Some(0)).expect("the topic is known");
    let mut told = 0;
    while events.try_next().await.is_some() {
        told += 1;
    }
    assert_eq!(told, 1, "what was rolled back is not told");
}

#[tokio::test(flavor = "current_thread")]
async fn a_refused_job_leaves_what_stands_before_its_savepoint() {
    let Some(shop) = Shop::open().await else { return };
    shop.engine.queue("default").expect("a name").max_depth(Some(1)).await.expect("configured");
    let mut client = shop.client().await;
    let mut transaction = client.transaction().await.expect("it begins");
    enqueue_in(&transaction, shop.engine.enqueue(Charge { order: 1 })).await.expect("accepted");
    let savepoint = transaction.savepoint("one_more").await.expect("it is set");
    let refused = enqueue_in(&savepoint, shop.engine.enqueue(Charge { order: 2 })).await;
    let refused = refused.expect_err("the queue is full");
    assert!(matches!(refused, Error::Refused(Refusal::QueueFull { limit: 1, .. })), "{refused}");
    savepoint.rollback().await.expect("it rolls back");
    transaction.commit().await.expect("it commits");
    let counts = shop.engine.counts().await.expect("answered");
    assert_eq!(counts.in_state(StateName::Ready), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_batch_joins_a_transaction_of_sqlx() {
    let Some(shop) = Shop::open().await else { return };
    let mut connection = sqlx::PgConnection::connect(&shop.url).await.expect("it connects");
    for commits in [false, true] {
        let mut transaction = connection.begin().await.expect("it begins");
        let mut batch = shop.engine.batch();
        let first = batch.add(Charge { order: 1 }).expect("it is added");
        batch.add_with(Charge { order: 2 }, Options::new().depends_on(first)).expect("it is added");
        let enqueued = enqueue_many_in(&mut *transaction, batch).await.expect("accepted");
        assert_eq!(enqueued.len(), 2);
        if commits {
            transaction.commit().await.expect("it commits");
        } else {
            transaction.rollback().await.expect("it rolls back");
        }
    }
    let counts = shop.engine.counts().await.expect("answered");
    assert_eq!(counts.in_state(StateName::Ready), 1);
    assert_eq!(counts.in_state(StateName::Blocked), 1);
}

/// How a handler deals with its transaction.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Commits,
    Forgets,
}

async fn charge(
    job: Charge,
    attempt: Attempt,
    State(shop): State<(Mutex<Client>, Manner)>,
) -> Result<i64, Failure> {
    let (client, manner) = &*shop;
    let mut client = client.lock().await;
    let transaction = client.transaction().await?;
    transaction.execute("insert into orders values ($1)", &[&job.order]).await?;
    if job.order == 1 {
        attempt.continue_with(Charge { order: 2 })?;
    }
    complete_in(&transaction, &attempt, &job.order).await?;
    if *manner == Manner::Commits {
        transaction.commit().await?;
    }
    Ok(job.order)
}

#[tokio::test(flavor = "current_thread")]
async fn a_completion_its_rows_and_its_next_job_are_one_commit() {
    let Some(shop) = Shop::open().await else { return };
    let client = Mutex::new(shop.client().await);
    let worker = shop.engine.worker().state((client, Manner::Commits)).handle(charge);
    let worker = worker.start().await.expect("it starts");
    let handle = shop.engine.enqueue(Charge { order: 1 }).await.expect("accepted");
    assert_eq!(handle.outcome().await.expect("it completes"), 1);
    let next = shop.engine.jobs().page(None, 10).await.expect("answered");
    let next = next.jobs.iter().find(|record| record.id() != handle.id()).expect("it is there");
    let next: windlass::Handle<Charge> = shop.engine.handle(next.id());
    assert_eq!(next.outcome().await.expect("it completes"), 2);
    assert_eq!(shop.orders(), "2");
    let report = worker.stop().await.expect("it stops");
    assert_eq!((report.completed, report.lost), (2, 0), "{report:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_completion_that_is_not_committed_is_a_failed_attempt() {
    let Some(shop) = Shop::open().await else { return };
    let client = Mutex::new(shop.client().await);
    let worker = shop.engine.worker().state((client, Manner::Forgets)).handle(charge);
    let worker = worker.start().await.expect("it starts");
    let job = shop.engine.enqueue(Charge { order: 7 }).max_attempts(1);
    let died = job.await.expect("accepted").outcome().await.expect_err("it dies");
    assert!(died.to_string().contains("was not committed"), "{died}");
    assert_eq!(shop.orders(), "0");
    worker.stop().await.expect("it stops");
}

#[tokio::test(flavor = "current_thread")]
async fn an_engine_on_another_store_cannot_join() {
    let Some(shop) = Shop::open().await else { return };
    let elsewhere = Engine::open("memory:").await.expect("it opens");
    let mut client = shop.client().await;
    let transaction = client.transaction().await.expect("it begins");
    let refused = enqueue_in(&transaction, elsewhere.enqueue(Charge { order: 1 })).await;
    assert!(matches!(refused.expect_err("it cannot"), Error::NotPostgres));
}

/// Whether a completion is refused whose worker has lost its lease to another, and leaves nothing.
/// The schema is on the clock of its ground.
pub(crate) async fn is_refused_with_a_lost_lease(
    ground: &Ground,
    address: &PostgresAddress,
) -> bool {
    let wake = std::sync::Arc::new(LocalWake::new());
    let store = PostgresStore::open(address, windlass::Limits::default(), wake).await;
    let store = store.expect("it opens");
    let job = std::sync::Arc::new(raw(1));
    store.enqueue(vec![job.clone()]).await.expect("it is accepted");
    let stale = store.claim(claim("one", 1)).await.expect("answered").jobs.remove(0);
    ground.advance(std::time::Duration::from_secs(3_600));
    let recovery = Recovery { delay: std::time::Duration::ZERO, ..Recovery::default() };
    let rescue = Rescue { recovery, reason: RecoveryReason::LeaseExpired };
    store.rescue(rescue).await.expect("answered");
    let held = store.claim(claim("two", 1)).await.expect("answered").jobs.remove(0);
    let mut client = ground.client().await;
    client.batch_execute("create table kept (id bigint)").await.expect("it is new");
    let transaction = client.transaction().await.expect("it begins");
    transaction.execute("insert into kept values (1)", &[]).await.expect("it is inserted");
    let said = format!(
        "{{\"job\":\"{}\",\"token\":{},\"output\":\"\",\"extra\":null}}",
        job.id,
        stale.lease.token.0.cast_signed()
    );
    let complete = format!("select {}.complete_in('{said}')", address.schema);
    let refused = transaction.batch_execute(&complete).await.err();
    // Whoever commits nevertheless has kept nothing.
    transaction.batch_execute("commit").await.expect("it ends");
    let settlement = Settlement::new(job.id, held.lease.token, Verdict::Complete);
    let settled = store.settle(vec![settlement]).await.expect("answered").remove(0);
    let nothing = ground.sql("select count(*) from kept") == "0";
    let code = refused.as_ref().and_then(tokio_postgres::Error::code);
    code.is_some_and(|code| code.code() == "WL001") && nothing && settled.is_ok()
}

#[tokio::test(flavor = "current_thread")]
async fn a_completion_whose_lease_is_lost_is_refused_and_nothing_of_it_is_kept() {
    let Some(ground) = Ground::new() else { return };
    ground.make_clock();
    let address = ground.text_address();
    ground.store_at(&address, windlass::Limits::default()).await;
    let address: PostgresAddress = address.parse().expect("it is well formed");
    assert!(is_refused_with_a_lost_lease(&ground, &address).await);
}
