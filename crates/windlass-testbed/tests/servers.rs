//! Small servers of the testbed start, are killed, and start again where they were.

use std::io::{Read, Write};
use std::net::TcpStream;

use windlass_testbed::{Nats, Pgbouncer, Postgres, Proxy, Redis, or_skip};

/// What the server on this port first answers to this.
fn ask(port: u16, question: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.write_all(question).expect("it is open");
    let mut answer = [0; 64];
    let read = stream.read(&mut answer).expect("it answers");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[test]
fn redis_answers_and_comes_back_after_a_kill() {
    let Some(mut redis) = or_skip(Redis::start()) else { return };
    assert_eq!(ask(redis.port(), b"PING\r\n"), "+PONG\r\n");
    redis.kill();
    assert!(TcpStream::connect(("127.0.0.1", redis.port())).is_err());
    redis.start_again();
    assert_eq!(ask(redis.port(), b"PING\r\n"), "+PONG\r\n");
    assert!(redis.url().ends_with(&redis.port().to_string()));
}

#[test]
fn nats_answers_and_comes_back_after_a_kill() {
    let Some(mut nats) = or_skip(Nats::start()) else { return };
    assert!(ask(nats.port(), b"").starts_with("INFO "));
    nats.kill();
    assert!(TcpStream::connect(("127.0.0.1", nats.port())).is_err());
    nats.start_again();
    assert!(ask(Proxy::tcp(nats.port()).port(), b"").starts_with("INFO "));
    assert!(nats.url().ends_with(&nats.port().to_string()));
}

#[tokio::test]
async fn pgbouncer_lends_a_connection_for_one_transaction() {
    let Some(postgres) = or_skip(Postgres::start()) else { return };
    let Some(pooler) = or_skip(Pgbouncer::start(&postgres)) else { return };
    let database = postgres.create_database();
    let url = pooler.url_for(&database);
    let (one, driver) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("it is");
    tokio::spawn(driver);
    let (other, driver) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("it is");
    tokio::spawn(driver);
    let mut backends = Vec::new();
    for client in [&one, &other] {
        let rows = client.simple_query("SELECT pg_backend_pid()").await.expect("it answers");
        backends.push(format!("{rows:?}"));
    }
    assert_eq!(backends[0], backends[1], "two clients share the connection behind");
}
