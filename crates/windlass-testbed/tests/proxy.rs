//! The proxy cuts exactly where it is told to, and the rest of the testbed can rely on that.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tokio_postgres::{Client, Error, NoTls};
use windlass_testbed::{Direction, Fault, Postgres, Proxy, or_skip};

async fn connect(proxy: &Proxy, server: &Postgres, database: &str) -> Result<Client, Error> {
    let url = proxy.url(&server.url_for(database));
    let (client, driver) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(driver);
    Ok(client)
}

/// A table to write to, behind a proxy.
fn table() -> Option<(&'static Postgres, Proxy, String)> {
    let server = or_skip(Postgres::shared())?;
    let database = server.create_database();
    server.sql(&database, "CREATE TABLE kept (number int)");
    Some((server, Proxy::postgres(server.port()), database))
}

fn kept(server: &Postgres, database: &str) -> String {
    server.sql(database, "SELECT count(*) FROM kept")
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_committed_and_the_client_does_not_know() {
    let Some((server, proxy, database)) = table() else { return };
    let client = connect(&proxy, server, &database).await.expect("it connects");
    client.batch_execute("BEGIN").await.expect("it is answered");
    client.execute("INSERT INTO kept VALUES (1)", &[]).await.expect("it is answered");
    proxy.set(Fault::CutBeforeAnswer { nth: 1 });
    let answer = client.batch_execute("COMMIT").await;
    assert!(answer.expect_err("the answer is lost").is_closed());
    assert_eq!(kept(server, &database), "1");
    assert_eq!(proxy.cuts(), 1);
    assert!(!proxy.is_armed(), "it cuts once");
    connect(&proxy, server, &database).await.expect("it connects again");
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_statement_of_its_own_is_committed_when_its_answer_is_lost() {
    let Some((server, proxy, database)) = table() else { return };
    let client = connect(&proxy, server, &database).await.expect("it connects");
    let insert = client.prepare("INSERT INTO kept VALUES (1)").await.expect("it is answered");
    proxy.set(Fault::CutBeforeAnswer { nth: 2 });
    client.execute(&insert, &[]).await.expect("the first is answered");
    client.execute(&insert, &[]).await.expect_err("the second is not");
    assert_eq!(kept(server, &database), "2");
}

#[tokio::test]
async fn a_commit_that_does_not_arrive_is_none() {
    let Some((server, proxy, database)) = table() else { return };
    let client = connect(&proxy, server, &database).await.expect("it connects");
    client.batch_execute("BEGIN; INSERT INTO kept VALUES (1)").await.expect("it is answered");
    proxy.set(Fault::CutBefore { direction: Direction::ToServer, message: b'Q', nth: 1 });
    client.batch_execute("COMMIT").await.expect_err("it does not arrive");
    assert_eq!(kept(server, &database), "0");
}

#[tokio::test]
async fn a_cut_between_two_messages_of_an_answer_lets_the_first_through() {
    let Some((server, proxy, database)) = table() else { return };
    let client = connect(&proxy, server, &database).await.expect("it connects");
    proxy.set(Fault::CutBefore { direction: Direction::ToClient, message: b'C', nth: 2 });
    let answer = client.batch_execute("INSERT INTO kept VALUES (1); SELECT 1").await;
    answer.expect_err("the second is cut off");
    // Both statements are one transaction, which has ended before the second answer is sent.
    assert_eq!(kept(server, &database), "1");
}

#[tokio::test]
async fn every_byte_of_an_answer_can_be_the_last() {
    let Some((server, proxy, database)) = table() else { return };
    let mut whole = 0;
    for bytes in 1.. {
        let client = connect(&proxy, server, &database).await.expect("it connects");
        proxy.set(Fault::CutAfter { direction: Direction::ToClient, bytes });
        let answer = client.simple_query("INSERT INTO kept VALUES (1)").await;
        whole += usize::from(answer.is_ok());
        if proxy.is_armed() {
            proxy.heal();
            assert!(answer.is_ok(), "nothing was cut");
            // CommandComplete (`INSERT 0 1`) is 16 bytes, ReadyForQuery 6.
            assert_eq!((bytes, kept(server, &database).as_str()), (23, "23"));
            break;
        }
    }
    assert_eq!(whole, 2, "only the last two were answered in full");
}

#[tokio::test]
async fn a_stream_of_single_bytes_and_one_that_is_late_are_the_same_stream() {
    let Some((server, proxy, database)) = table() else { return };
    for fault in [Fault::Slices, Fault::Delay(Duration::from_millis(1))] {
        proxy.set(fault);
        let client = connect(&proxy, server, &database).await.expect("it connects");
        let rows = client.query("SELECT repeat('x', 3000)", &[]).await.expect("it is answered");
        assert_eq!(rows[0].get::<_, String>(0).len(), 3000);
    }
    assert_eq!(proxy.cuts(), 0);
}

#[tokio::test]
async fn what_a_black_hole_swallowed_arrives_when_it_is_gone() {
    let Some((server, proxy, database)) = table() else { return };
    let client = connect(&proxy, server, &database).await.expect("it connects");
    proxy.set(Fault::BlackHole);
    let asked = tokio::spawn(async move { client.simple_query("SELECT 1").await.map(drop) });
    // A whole round trip on another way: time enough for the question to be swallowed.
    kept(server, &database);
    assert!(!asked.is_finished());
    proxy.heal();
    asked.await.expect("it ends").expect("it is answered");
}

#[tokio::test]
async fn a_refused_connection_ends_at_once_and_those_there_are_can_be_cut() {
    let Some((server, proxy, database)) = table() else { return };
    let client = connect(&proxy, server, &database).await.expect("it connects");
    proxy.set(Fault::Refuse);
    connect(&proxy, server, &database).await.expect_err("it is refused");
    client.simple_query("SELECT 1").await.expect("it is there");
    proxy.cut();
    client.simple_query("SELECT 1").await.expect_err("it is cut");
    assert_eq!((proxy.connections(), proxy.cuts()), (2, 1));
    proxy.heal();
    connect(&proxy, server, &database).await.expect("it connects");
}

#[test]
fn a_half_that_is_closed_leaves_the_other() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("it binds");
    let proxy = Proxy::tcp(listener.local_addr().expect("it is bound").port());
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).expect("it listens");
    let (mut server, _) = listener.accept().expect("it is carried on");
    proxy.set(Fault::HalfClose(Direction::ToServer));
    client.write_all(b"lost").expect("it is open");
    let mut heard = Vec::new();
    server.read_to_end(&mut heard).expect("it ends");
    assert_eq!(heard, b"");
    server.write_all(b"still here").expect("it is open");
    drop(server);
    client.read_to_end(&mut heard).expect("it ends");
    assert_eq!(heard, b"still here");
}

#[test]
fn nothing_of_a_lost_answer_gets_through() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("it binds");
    let proxy = Proxy::postgres(listener.local_addr().expect("it is bound").port());
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).expect("it listens");
    let (mut server, _) = listener.accept().expect("it is carried on");
    let (start, question) = (b"\0\0\0\x08\0\x03\0\0", b"Q\0\0\0\x05\0");
    let (news, complete, ready) = (b"A\0\0\0\x04", b"C\0\0\0\x0bCOMMIT\0", b"Z\0\0\0\x05I");
    client.write_all(start).expect("it is open");
    server.read_exact(&mut [0; 8]).expect("it arrives");
    // The answer to what was asked before is not counted.
    proxy.set(Fault::CutBeforeAnswer { nth: 2 });
    client.write_all(&[&question[..], question].concat()).expect("it is open");
    server.read_exact(&mut [0; 12]).expect("it arrives");
    for message in [&ready[..], complete, ready, complete, news, ready] {
        server.write_all(message).expect("it is open");
    }
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).expect("it ends");
    assert_eq!(heard, [&ready[..], complete, ready].concat());
}

#[test]
fn what_the_server_says_of_its_own_accord_is_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("it binds");
    let proxy = Proxy::postgres(listener.local_addr().expect("it is bound").port());
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).expect("it listens");
    let (mut server, _) = listener.accept().expect("it is carried on");
    proxy.set(Fault::CutBeforeAnswer { nth: 1 });
    server.write_all(b"A\0\0\0\x04").expect("it is open");
    client.read_exact(&mut [0; 5]).expect("it gets through");
    assert!(proxy.is_armed());
}
