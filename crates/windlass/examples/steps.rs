//! Durable steps: an order is charged, rests, and is shipped. Each happens once, whatever fails.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Attempt, Engine, Error, Failure, Job, Options, Retry};

#[derive(Serialize, Deserialize)]
struct Order {
    number: u64,
}

impl Job for Order {
    const KIND: &'static str = "order";
    type Output = String;

    fn options(&self) -> Options {
        Options::default().retry(Retry::constant(Duration::from_millis(50)))
    }
}

/// Runs from the top after every failure and every sleep; what is finished is passed over.
async fn fulfil(order: Order, attempt: Attempt) -> Result<String, Failure> {
    println!("the handler runs");
    let number = order.number;
    let receipt = attempt
        .step("charge", || async move {
            println!("order {number} is charged");
            Ok(format!("receipt {number}-1"))
        })
        .await?;

    // No slot is held meanwhile, and a restart would not begin it anew.
    attempt.sleep("cool-down", Duration::from_millis(200)).await?;

    if !attempt.is_retry() {
        return Err(Failure::retry("the warehouse does not answer"));
    }
    let parcel = attempt
        .step("ship", || async move {
            println!("order {number} is shipped");
            Ok(format!("parcel {number}"))
        })
        .await?;
    Ok(format!("{receipt}, {parcel}"))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let worker = engine.worker().handle(fulfil).start().await?;
    let handle = engine.enqueue(Order { number: 7 }).await?;
    println!("done: {}", handle.outcome().await?);
    for step in handle.record().await?.steps {
        println!("step {}: {}", step.name, String::from_utf8_lossy(&step.result));
    }
    worker.stop().await?;
    Ok(())
}
