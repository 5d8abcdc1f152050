//! The smallest program: enqueue a job, run it, read what it returned.

use serde::{Deserialize, Serialize};
use windlass::{Engine, Error, Failure, Job};

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

impl Job for Greet {
    const KIND: &'static str = "greet";
    type Output = String;
}

async fn greet(job: Greet) -> Result<String, Failure> {
    Ok(format!("Hello, {}!", job.name))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let worker = engine.worker().handle(greet).start().await?;

    let handle = engine.enqueue(Greet { name: "Ada".to_string() }).await?;
    println!("{}", handle.outcome().await?);

    println!("{}", worker.stop().await?);
    Ok(())
}
