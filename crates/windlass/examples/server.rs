//! A program that lets others reach its store, beside its own routes; and one of the others.
//!
//! `windlass serve` is the same without a program of your own.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use windlass::wire::http::{HttpDoor, PATH, Token};
use windlass::{Engine, Failure, Job};

#[derive(Serialize, Deserialize)]
struct Translate {
    word: String,
}

impl Job for Translate {
    const KIND: &'static str = "translate";
    type Output = String;
}

async fn translate(job: Translate) -> Result<String, Failure> {
    match job.word.as_str() {
        "windlass" => Ok("Seilwinde".to_string()),
        word => Err(Failure::permanent(format!("nobody knows {word}"))),
    }
}

const TOKEN: &str = "only-for-this-example";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The program that has the store. It takes calls only from who knows the token.
    let engine = Engine::open("memory:").await?;
    let door = HttpDoor::to_engine(&engine).token(Some(Token::new(TOKEN)?));
    let calls = {
        let door = door.clone();
        post(|request: Request| async move { door.answer(request).await.map(Body::new) })
    };
    let app = Router::new().route("/", get(|| async { "my own page" })).route(PATH, calls);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    // A program elsewhere: the same engine, client and worker as on a directory.
    let far = Engine::builder().token(TOKEN).open(&address).await?;
    let worker = far.worker().handle(translate).start().await?;
    let handle = far.enqueue(Translate { word: "windlass".to_string() }).await?;
    println!("windlass: {}", handle.outcome().await?);
    println!("{}", worker.stop().await?);
    far.close().await;

    door.close().await;
    serving.abort();
    engine.close().await;
    Ok(())
}
