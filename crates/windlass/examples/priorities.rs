//! Priorities and delays: what is urgent starts first, what is for later waits.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Engine, Error, Failure, Job, Priority};

#[derive(Serialize, Deserialize)]
struct Say {
    text: String,
}

impl Job for Say {
    const KIND: &'static str = "say";
    type Output = ();
}

fn say(text: &str) -> Say {
    Say { text: text.to_string() }
}

async fn handle(job: Say) -> Result<(), Failure> {
    println!("{}", job.text);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;

    // Nobody runs them yet, so they wait and are sorted.
    let last = engine.enqueue(say("5: later")).delay(Duration::from_millis(100)).await?;
    engine.enqueue(say("4: low")).priority(Priority::LOW).await?;
    engine.enqueue(say("3: normal")).await?;
    engine.enqueue(say("2: high")).priority(Priority::HIGH).await?;
    engine.enqueue(say("1: critical")).priority(Priority::CRITICAL).await?;
    println!("{}", engine.explain(last.id()).await?);

    // Low work is never starved: it gains a point of priority for every minute it waits.
    engine.queue("default")?.ageing(Some(Duration::from_secs(60))).await?;

    let worker = engine.worker().slots(1).handle(handle).start().await?;
    last.outcome().await?;
    worker.stop().await?;
    Ok(())
}
