//! Wakes over real servers keep every promise of the public suite, and those of their own.
//!
//! Time is real here, because a server's is; nothing waits for a time to pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use windlass::conformance::wakes::{Cut, Pair, WakeHarness, cases, run};
use windlass::wake::{Interest, NatsWake, PostgresWake, RedisWake, Ring, Wake, WakeOptions};
use windlass::{Error, Name};
use windlass_testbed::{Fault, Missing, Nats, Pgbouncer, Postgres, Proxy, Redis, or_skip};

/// A server of any kind, and wakes over it, through a proxy.
struct Over<S> {
    server: S,
    kind: Kind,
    pairs: AtomicUsize,
}

#[derive(Clone, Copy)]
enum Kind {
    Postgres,
    Redis,
    Nats,
}

trait Server: Send + Sync {
    fn port(&self) -> u16;
    fn url(&self) -> String;
}

macro_rules! server {
    ($($server:ty),*) => {
        $(impl Server for $server {
            fn port(&self) -> u16 {
                <$server>::port(self)
            }
            fn url(&self) -> String {
                <$server>::url(self)
            }
        })*
    };
}
server!(Postgres, Redis, Nats);

#[derive(Debug)]
struct CutProxy(Proxy);

impl Cut for CutProxy {
    fn cut(&self) {
        self.0.cut();
    }
}

async fn connect(kind: Kind, url: &str, options: WakeOptions) -> Result<Arc<dyn Wake>, Error> {
    Ok(match kind {
        Kind::Postgres => Arc::new(PostgresWake::connect_with(url, options).await?),
        Kind::Redis => Arc::new(RedisWake::connect_with(url, options).await?),
        Kind::Nats => Arc::new(NatsWake::connect_with(url, options).await?),
    })
}

#[async_trait]
impl<S: Server> WakeHarness for Over<S> {
    async fn pair(&self) -> Pair {
        let proxy = Proxy::tcp(self.server.port());
        let url = proxy.url(&self.server.url());
        // Pairs on one server do not hear each other.
        let name = format!("pair_{}", self.pairs.fetch_add(1, Ordering::SeqCst));
        let options = WakeOptions { name, ..WakeOptions::default() };
        let here = connect(self.kind, &url, options.clone()).await.expect("it connects");
        let there = connect(self.kind, &url, options).await.expect("it connects");
        Pair { here, there, cut: Some(Arc::new(CutProxy(proxy))) }
    }
}

async fn check<S: Server + 'static>(kind: Kind, server: Result<S, Missing>) {
    let Some(server) = or_skip(server) else { return };
    let broken = run(Arc::new(Over { server, kind, pairs: AtomicUsize::new(0) })).await;
    let told: Vec<String> =
        broken.iter().map(|broken| format!("{}: {}", broken.name, broken.seen)).collect();
    assert!(told.is_empty(), "{} of {}:\n{}", told.len(), cases().len(), told.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wake_over_postgresql_keeps_every_promise_of_the_suite() {
    check(Kind::Postgres, Postgres::start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wake_over_redis_keeps_every_promise_of_the_suite() {
    check(Kind::Redis, Redis::start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wake_over_nats_keeps_every_promise_of_the_suite() {
    check(Kind::Nats, Nats::start()).await;
}

fn mail() -> Ring {
    Ring::Queue(Name::new("mail").expect("a name"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_rings_with_plain_sql_and_only_when_it_commits() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let database = server.create_database();
    let wake = PostgresWake::connect(&server.url_for(&database)).await.expect("it connects");
    let mut mail = wake.listen(Interest::Queues(Some(vec![Name::new("mail").expect("a name")])));
    let mut other = wake.listen(Interest::Queues(Some(vec![Name::new("other").expect("a name")])));
    // Words that mean nothing do no harm.
    server.sql(&database, "SELECT pg_notify('windlass', x) FROM unnest('{q:,x,q:a b}'::text[]) x");
    server.sql(&database, "BEGIN; SELECT pg_notify('windlass', 'q:other'); ROLLBACK");
    server.sql(&database, "BEGIN; SELECT pg_notify('windlass', 'q:mail'); COMMIT");
    mail.heard().await;
    assert!(!is_rung(&mut *other).await);
}

async fn is_rung(listener: &mut dyn windlass::wake::Listener) -> bool {
    let mut heard = listener.heard();
    std::future::poll_fn(|context| std::task::Poll::Ready(heard.as_mut().poll(context).is_ready()))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_a_wake_that_does_not_listen_still_rings_others() {
    let Some(server) = or_skip(Postgres::start()) else { return };
    let Some(pooler) = or_skip(Pgbouncer::start(&server)) else { return };
    let options = WakeOptions { listening: false, ..WakeOptions::default() };
    let pooled = pooler.url_for("postgres");
    let pooled = PostgresWake::connect_with(&pooled, options).await.expect("it connects");
    let direct = PostgresWake::connect(&server.url()).await.expect("it connects");
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE query ~ '^LISTEN'";
    assert_eq!(server.sql("postgres", listening), "1", "the pooled one does not listen");
    let mut heard = direct.listen(Interest::Queues(None));
    let mut own = pooled.listen(Interest::Queues(None));
    pooled.ring(&[mail()]).await;
    own.heard().await;
    heard.heard().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_hears_its_own_ring_at_once_and_not_again_from_the_server() {
    let Some(postgres) = or_skip(Postgres::shared()) else { return };
    let Some(redis) = or_skip(Redis::start()) else { return };
    let Some(nats) = or_skip(Nats::start()) else { return };
    for (kind, url) in
        [(Kind::Postgres, postgres.url()), (Kind::Redis, redis.url()), (Kind::Nats, nats.url())]
    {
        let here = connect(kind, &url, WakeOptions::default()).await.expect("it connects");
        let there = connect(kind, &url, WakeOptions::default()).await.expect("it connects");
        let mut own = here.listen(Interest::Queues(None));
        let mut other = there.listen(Interest::Queues(None));
        here.ring(&[mail()]).await;
        assert!(is_rung(&mut *own).await, "no round trip is needed");
        other.heard().await;
        // What comes back from there is heard after anything that went there before.
        let mut cancels = here.listen(Interest::Cancels);
        there.ring(&[Ring::Cancel]).await;
        cancels.heard().await;
        assert!(!is_rung(&mut *own).await, "it was rung twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_restarted_carries_wakes_again() {
    let Some(mut server) = or_skip(Postgres::start()) else { return };
    let here = PostgresWake::connect(&server.url()).await.expect("it connects");
    let there = PostgresWake::connect(&server.url()).await.expect("it connects");
    let mut heard = there.listen(Interest::Queues(None));
    server.kill_postmaster();
    // Rung while nobody is there: it is kept, and goes out later.
    here.ring(&[mail()]).await;
    server.start_again();
    heard.heard().await;
    here.ring(&[mail()]).await;
    heard.heard().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_redis_and_a_killed_nats_carry_wakes_again() {
    let Some(mut redis) = or_skip(Redis::start()) else { return };
    let Some(mut nats) = or_skip(Nats::start()) else { return };
    let here = RedisWake::connect(&redis.url()).await.expect("it connects");
    let there = RedisWake::connect(&redis.url()).await.expect("it connects");
    let mut heard = there.listen(Interest::Queues(None));
    redis.kill();
    redis.start_again();
    heard.heard().await;
    here.ring(&[mail()]).await;
    heard.heard().await;
    let here = NatsWake::connect(&nats.url()).await.expect("it connects");
    let there = NatsWake::connect(&nats.url()).await.expect("it connects");
    let mut heard = there.listen(Interest::Queues(None));
    nats.kill();
    nats.start_again();
    heard.heard().await;
    here.ring(&[mail()]).await;
    heard.heard().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_told_to_look_again_is_listening_already() {
    let Some(server) = or_skip(Postgres::start()) else { return };
    let proxy = Proxy::postgres(server.port());
    let url = proxy.url(&server.url());
    let wake = PostgresWake::connect(&url).await.expect("it connects");
    let mut heard = wake.listen(Interest::Queues(None));
    // The new connection's `LISTEN` does not arrive: it is no reason to look.
    proxy.set(Fault::BlackHole);
    proxy.cut();
    let connected = "SELECT count(*) FROM pg_stat_activity WHERE query ~ '^LISTEN'";
    while server.sql("postgres", connected) != "0" {}
    assert!(!is_rung(&mut *heard).await);
    proxy.heal();
    heard.heard().await;
    assert_eq!(server.sql("postgres", connected), "1", "it looks before it listens");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_that_need_not_connect_at_once_finds_its_server_later() {
    let Some(mut server) = or_skip(Redis::start()) else { return };
    server.kill();
    let options = WakeOptions { at_once: false, ..WakeOptions::default() };
    let there = RedisWake::connect_with(&server.url(), options).await.expect("it may wait");
    let mut heard = there.listen(Interest::Queues(None));
    there.ring(&[mail()]).await;
    heard.heard().await;
    server.start_again();
    heard.heard().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_wake_leaves_no_connection() {
    let Some(server) = or_skip(Postgres::start()) else { return };
    let wake = PostgresWake::connect(&server.url()).await.expect("it connects");
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE query ~ '^LISTEN'";
    assert_eq!(server.sql("postgres", ours), "1");
    drop(wake);
    while server.sql("postgres", ours) != "0" {}
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_said_in_one_sentence_without_the_password() {
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("it binds");
        listener.local_addr().expect("it is bound").port()
    };
    for (kind, scheme, server) in [
        (Kind::Postgres, "postgres", "PostgreSQL"),
        (Kind::Redis, "redis", "Redis"),
        (Kind::Nats, "nats", "NATS"),
    ] {
        let url = format!("{scheme}://someone:secret@127.0.0.1:{nobody}");
        let error = connect(kind, &url, WakeOptions::default()).await.expect_err("nobody is there");
        assert!(matches!(error, Error::WakeUnreachable { .. }), "{error:?}");
        let told = error.to_string();
        let begins = format!("no wakes over {server} at 127.0.0.1:{nobody}: ");
        assert!(told.starts_with(&begins), "{told}");
        assert!(!format!("{told} {error:?}").contains("secret"), "{told}");
        for wrong in ["", "::", &format!("{scheme}://someone:secret@[")] {
            let error = connect(kind, wrong, WakeOptions::default()).await;
            let error = error.expect_err("it is no address");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_cannot_be_carried_is_refused() {
    for name in ["", "a b", "a..b", "a.", "\"", &"x".repeat(64)] {
        let options = WakeOptions { name: name.to_owned(), ..WakeOptions::default() };
        let error = NatsWake::connect_with("nats://127.0.0.1:1", options).await;
        let error = error.expect_err("it is refused");
        assert!(matches!(error, Error::InvalidSetting { .. }), "{name}: {error}");
    }
}
