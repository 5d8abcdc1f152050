//! What cannot be opened says why, in one sentence that tells what to do.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::Engine;
use windlass::wire::http::HttpDoor;

use crate::common::{Server, TOKEN, fresh, token};

async fn refused(builder: windlass::EngineBuilder, address: &str) -> String {
    let error = builder.open(address).await.expect_err(address);
    let said = error.to_string();
    assert!(!said.contains('\n') && said.len() < 400, "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_says_the_token_is_let_in() {
    let server = Server::with(HttpDoor::to(fresh()).token(token()), 0).await;
    let engine = Engine::builder().token(TOKEN).open(&server.url()).await.expect("it may");
    assert!(!format!("{engine:?}").contains(TOKEN), "a token is never printed");
    engine.close().await;
    let none = refused(Engine::builder(), &server.url()).await;
    assert!(none.contains("asks for a token") && none.contains("WINDLASS_TOKEN"), "{none}");
    let wrong = "another-token-that-is-long".to_string();
    let said = refused(Engine::builder().token(wrong.clone()), &server.url()).await;
    assert!(said.contains("does not know this token") && !said.contains(&wrong), "{said}");
    let said = refused(Engine::builder().token("short"), &server.url()).await;
    assert!(said.contains("at least 16"), "{said}");
}

/// A server that gives every request the same answer.
async fn stranger(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_windlass_server_is_told_apart() {
    for (answer, words) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
            "not a Windlass server",
        ),
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "not a Windlass server (404)"),
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "lets nobody in like this (403)"),
        ("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", "failed (502)"),
        ("220 mail.example ESMTP\r\n", "does not speak HTTP"),
        ("", "connection was lost"),
    ] {
        let said = refused(Engine::builder(), &stranger(answer).await).await;
        assert!(said.contains(words), "{answer:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_listens_is_said_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    drop(listener);
    let said = refused(Engine::builder(), &url).await;
    assert!(said.contains("nobody listens there") && said.contains("windlass serve"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_in_an_address_is_refused_and_not_repeated() {
    for address in ["http://me:hidden@host:1", "https://host:1/?token=hidden"] {
        let said = refused(Engine::builder(), address).await;
        assert!(!said.contains("hidden"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_where_https_was_meant_and_the_other_way_round() {
    let server = Server::start(fresh()).await;
    let said = refused(Engine::builder(), &server.url().replace("http:", "https:")).await;
    assert!(said.contains("TLS") || said.contains("root certificate"), "{said}");
}
