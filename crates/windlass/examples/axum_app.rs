//! A web application that embeds the engine: POST enqueues and answers at once, GET asks how it is.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass::{Engine, Error, Failure, Job, Refusal};

#[derive(Serialize, Deserialize)]
struct Thumbnail {
    image: String,
}

impl Job for Thumbnail {
    const KIND: &'static str = "thumbnail";
    type Output = String;
}

async fn thumbnail(job: Thumbnail) -> Result<String, Failure> {
    Ok(format!("{}.small.png", job.image))
}

async fn create(
    State(engine): State<Engine>,
    Json(job): Json<Thumbnail>,
) -> Result<Json<Value>, (StatusCode, String)> {
    match engine.enqueue(job).queue("images").await {
        Ok(handle) => Ok(Json(json!({ "id": handle.id() }))),
        // Back-pressure reaches the client as what it is.
        Err(error @ Error::Refused(Refusal::QueueFull { .. })) => {
            Err((StatusCode::TOO_MANY_REQUESTS, error.to_string()))
        }
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    }
}

async fn show(State(engine): State<Engine>, Path(id): Path<String>) -> Result<String, StatusCode> {
    let id = id.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    let outcome = engine.handle::<Thumbnail>(id).outcome().await;
    outcome.map_err(|_| StatusCode::NOT_FOUND)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    engine.queue("images")?.max_depth(Some(1_000)).await?;
    let worker = engine.worker().handle(thumbnail).start().await?;

    let app = Router::new().route("/thumbnails", post(create)).route("/thumbnails/{id}", get(show));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(axum::serve(listener, app.with_state(engine)).into_future());

    // Its own client, so that the example shows the whole way.
    let body = r#"{"image":"cat"}"#;
    let length = body.len();
    let head = "content-type: application/json\r\nconnection: close\r\nhost: example.org";
    let request = format!("POST /thumbnails HTTP/1.1\r\n{head}\r\ncontent-length: {length}");
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(format!("{request}\r\n\r\n{body}").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("{}", answer.lines().next().unwrap_or_default());
    println!("{}", answer.lines().last().unwrap_or_default());

    server.abort();
    println!("{}", worker.stop().await?);
    Ok(())
}
