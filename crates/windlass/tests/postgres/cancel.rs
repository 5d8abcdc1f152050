//! A call that is given up does not run on, on the server.

use std::sync::Arc;

use windlass::Limits;
use windlass::store::StoreExt;
use windlass::store::postgres::{PostgresAddress, PostgresStore};
use windlass::wake::LocalWake;
use windlass_testbed::{Pgbouncer, Postgres, or_skip};

use crate::common::{Ground, until};

/// Gives a call up that waits for a lock, and waits until the server has stopped it while the lock
/// is still held.
pub(crate) async fn stops_when_it_is_given_up(server: &Postgres, database: &str, address: &str) {
    // A store alone: an engine has calls of its own under way, which wait for the lock and end
    // after a time.
    let address: PostgresAddress = address.parse().expect("the address is well formed");
    let wake = Arc::new(LocalWake::new());
    let store = PostgresStore::open(&address, Limits::default(), wake).await;
    let store = Arc::new(store.expect("the schema can be made"));
    let client = || async {
        let url = server.url_for(database);
        let client = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
        let (client, connection) = client.expect("it connects");
        tokio::spawn(connection);
        client
    };
    // Who is in a transaction sees of others what they did when it first looked.
    let (holder, watcher) = (client().await, client().await);
    let lock = format!("begin; lock table {}.job_state in access exclusive mode", address.schema);
    holder.batch_execute(&lock).await.expect("nobody else has it");
    let waiting = || async {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() \
             and wait_event_type = 'Lock' and state = 'active'";
        watcher.query_one(sql, &[]).await.expect("it is answered").get::<_, i64>(0)
    };
    // Reading has no time limit of its own: but for being stopped it would wait for ever.
    let reader = store.clone();
    let call = tokio::spawn(async move { reader.find(&[windlass::new_id()]).await });
    until("the call waits", || async { waiting().await == 1 }).await;
    call.abort();
    until("nothing waits any longer", || async { waiting().await == 0 }).await;
    holder.batch_execute("rollback").await.expect("it ends");
    let found = store.find(&[windlass::new_id()]).await.expect("it goes on");
    assert_eq!(found, [None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_stops_on_the_server() {
    let Some(ground) = Ground::new() else { return };
    let url = ground.server.url_for(&ground.database);
    let address = format!("{url}?windlass_schema=given_up");
    stops_when_it_is_given_up(ground.server, &ground.database, &address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_stops_behind_a_pooler() {
    let Some(ground) = Ground::new() else { return };
    let Some(pooler) = or_skip(Pgbouncer::start(ground.server)) else { return };
    let url = pooler.url_for(&ground.database);
    let address = format!("{url}?windlass_schema=given_up&windlass_listen=off");
    stops_when_it_is_given_up(ground.server, &ground.database, &address).await;
}
