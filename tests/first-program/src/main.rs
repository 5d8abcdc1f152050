//! The program at the top of the README, word for word.

use serde::{Deserialize, Serialize};
use windlass::{Attempt, Engine, Error, Failure, Job, Priority};

#[derive(Serialize, Deserialize)]
struct SendReceipt {
    order: u64,
    to: String,
}

impl Job for SendReceipt {
    const KIND: &'static str = "send_receipt";
    type Output = String;
}

async fn send_receipt(job: SendReceipt, attempt: Attempt) -> Result<String, Failure> {
    if !job.to.contains('@') {
        return Err(Failure::permanent("that is not an address")); // straight to the dead letters
    }
    Ok(format!("receipt {} to {}, attempt {}", job.order, job.to, attempt.number()))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let engine = Engine::open("./jobs").await?; // a directory: survives kill -9 and the plug
    let worker = engine.worker().handle(send_receipt).start().await?;

    let receipt = SendReceipt { order: 7, to: "ada@example.org".into() };
    let handle = engine.enqueue(receipt).priority(Priority::HIGH).unique("order-7").await?;
    println!("{}", handle.outcome().await?); // typed: the handler's own return value

    println!("{}", worker.stop().await?); // graceful, with a report
    engine.close().await;
    Ok(())
}
