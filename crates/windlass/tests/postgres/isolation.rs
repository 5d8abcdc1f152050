//! Isolation levels: our own calls are in READ COMMITTED whatever a session's default is, and what
//! cannot be exact in a caller's own transaction is refused.

use tokio::sync::Mutex;
use tokio_postgres::{Client, IsolationLevel};
use windlass::core::ledger::Settlement;
use windlass::core::outcome::Verdict;
use windlass::postgres::{complete_in, enqueue_in, enqueue_many_in};
use windlass::{Attempt, Error, Failure, Options, State, StateName};
use windlass_testbed::{Pgbouncer, or_skip};

use crate::common::{Ground, Work, claim, count, open, soon, until, work};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

const HIGHER: [IsolationLevel; 2] = [IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// Waits until a call stands in line for a row that somebody else has locked.
async fn until_someone_waits(ground: &Ground) {
    until("a call waits for a lock", || async { ground.waiting() > 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dependent_that_comes_while_its_dependency_settles_is_released_at_every_level() {
    let Some(ground) = Ground::new() else { return };
    let Some(pooler) = or_skip(Pgbouncer::start(ground.server)) else { return };
    let (database, url) = (&ground.database, ground.server.url_for(&ground.database));
    for level in LEVELS {
        let default = format!("set default_transaction_isolation = '{level}'");
        ground.server.sql("postgres", &format!("alter database {database} {default}"));
        let address = ground.text_address();
        // Through a pooler as well, where settings of a session are nobody's.
        let pooled = ground.text_address().replace(&url, &pooler.url_for(database));
        for address in [address, format!("{pooled}&windlass_listen=off")] {
            release_a_late_dependent(&ground, &address).await;
        }
    }
}

/// Someone has seen that a job runs, and has not committed yet that another one waits for it, when
/// the first one is completed.
async fn release_a_late_dependent(ground: &Ground, address: &str) {
    let engine = open(address).await;
    let store = engine.store().clone();
    let first = engine.enqueue(work(1)).await.expect("it is accepted").id();
    let handed = store.claim(claim("w", 1)).await.expect("answered").jobs.remove(0);
    let producer = ground.client().await;
    let schema = store.info().schema.expect("it has one");
    let dependent = format!(
        "begin isolation level read committed; select {schema}.enqueue('work', \
         '{{\"number\":2}}', depends_on => array['{first}'::uuid])"
    );
    producer.batch_execute(&dependent).await.expect("it is accepted");
    let settlement = Settlement::new(first, handed.lease.token, Verdict::Complete);
    let settling = tokio::spawn({
        let store = store.clone();
        async move { store.settle(vec![settlement]).await }
    });
    until_someone_waits(ground).await;
    producer.batch_execute("commit").await.expect("it commits");
    soon("the settlement", settling).await.expect("no panic").expect("it is settled");
    let next = store.claim(claim("w", 1)).await.expect("answered");
    assert_eq!(next.jobs.len(), 1, "the dependent stays blocked at {address}");
}

/// Begins a transaction that has its snapshot.
macro_rules! begin {
    ($client:expr, $level:expr) => {{
        let begun = $client.build_transaction().isolation_level($level).start().await;
        let transaction = begun.expect("it begins");
        transaction.batch_execute("select 1").await.expect("it has its snapshot");
        transaction
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producers_own_snapshot_does_not_pass_a_limit_of_depth() {
    let Some(ground) = Ground::new() else { return };
    let engine = open(&ground.text_address()).await;
    engine.queue("default").expect("a name").max_depth(Some(1)).await.expect("it is set");
    let known = engine.enqueue(work(0)).await.expect("there is room");
    known.cancel().await.expect("its queue and kind are known");
    for level in HIGHER {
        let mut client = ground.client().await;
        let transaction = begin!(client, level);
        let other = engine.enqueue(work(1)).await.expect("there is room");
        let refused = enqueue_in(&transaction, engine.enqueue(work(2))).await;
        let refused = refused.expect_err("there is none left").to_string();
        assert!(refused.contains("ISOLATION LEVEL READ COMMITTED"), "{refused}");
        transaction.rollback().await.expect("it ends");
        other.cancel().await.expect("there is room again");
    }
    assert_eq!(count(&engine, StateName::Ready).await, 0);
}

/// What a call in a transaction with an old snapshot comes to.
#[derive(Debug, PartialEq)]
enum Comes {
    /// It is accepted.
    Accepted,
    /// It is refused, with a word about the isolation level.
    Refused,
    /// It fails like any serialization failure: who begins anew gets an answer.
    ToBeTriedAgain,
}

#[tokio::test(flavor = "multi_thread")]
async fn within_a_producers_own_snapshot_a_job_is_exact_or_refused() {
    let Some(ground) = Ground::new() else { return };
    let engine = open(&ground.text_address()).await;
    for level in HIGHER {
        let held = engine.enqueue(work(1)).unique("held").await.expect("accepted").id();
        let ends = engine.enqueue(work(2)).await.expect("accepted");
        let mut client = ground.client().await;
        let options = Options::new;
        let cases = [
            (options(), Comes::Accepted),
            (options().delay(std::time::Duration::from_secs(9)), Comes::Accepted),
            (options().unique("held"), Comes::Accepted),
            (options().depends_on(held), Comes::Accepted),
            (options().lane("k"), Comes::Refused),
            (options().unique("late"), Comes::ToBeTriedAgain),
            (options().depends_on(ends.id()), Comes::ToBeTriedAgain),
        ];
        let mut transaction = begin!(client, level);
        // After its snapshot.
        let late = engine.enqueue(work(3)).unique("late").await.expect("accepted");
        ends.cancel().await.expect("it ends");
        for (options, expected) in cases {
            let said = format!("{options:?}");
            let savepoint = transaction.savepoint("one").await.expect("it is set");
            let mut batch = engine.batch();
            batch.add_with(work(4), options).expect("it is added");
            let comes = match enqueue_many_in(&savepoint, batch).await {
                Ok(_) => Comes::Accepted,
                Err(Error::Refused(refusal)) => {
                    assert!(refusal.to_string().contains("READ COMMITTED"), "{refusal}");
                    Comes::Refused
                }
                Err(Error::Transaction { source }) => {
                    assert!(source.to_string().contains("serialize") || is_40001(&*source));
                    Comes::ToBeTriedAgain
                }
                Err(other) => panic!("{said} comes to {other}"),
            };
            assert_eq!(comes, expected, "{said}");
            savepoint.rollback().await.expect("it rolls back");
        }
        transaction.rollback().await.expect("it ends");
        late.cancel().await.expect("it ends");
        engine.cancel(held).await.expect("it ends");
    }
}

fn is_40001(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<tokio_postgres::Error>();
    error.and_then(tokio_postgres::Error::code).is_some_and(|code| code.code() == "40001")
}

async fn complete_at(
    job: Work,
    attempt: Attempt,
    State(client): State<Mutex<Client>>,
) -> Result<u64, Failure> {
    let mut client = client.lock().await;
    let transaction = begin!(client, HIGHER[job.number as usize]);
    complete_in(&transaction, &attempt, &job.number).await.map_err(Failure::permanent)?;
    transaction.commit().await?;
    Ok(job.number)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_own_snapshot_does_not_complete_a_job() {
    let Some(ground) = Ground::new() else { return };
    let engine = open(&ground.text_address()).await;
    let client = Mutex::new(ground.client().await);
    let worker = engine.worker().state(client).handle(complete_at);
    let worker = worker.start().await.expect("it starts");
    for number in 0..2 {
        let job = engine.enqueue(work(number)).await.expect("accepted");
        let died = soon("its end", job.outcome()).await.expect_err("it is refused").to_string();
        assert!(died.contains("ISOLATION LEVEL READ COMMITTED"), "{died}");
    }
    worker.stop().await.expect("it stops");
}
