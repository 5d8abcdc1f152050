//! Unique jobs: one per key while it is open, or one per window of time.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Engine, Error, Failure, Job, UniqueScope};

#[derive(Serialize, Deserialize)]
struct Remind {
    user: u64,
}

impl Job for Remind {
    const KIND: &'static str = "remind";
    type Output = ();
}

async fn remind(job: Remind) -> Result<(), Failure> {
    println!("reminding user {}", job.user);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;

    // However often the button is clicked, one reminder waits.
    let first = engine.enqueue(Remind { user: 7 }).unique("user-7").await?;
    let second = engine.enqueue(Remind { user: 7 }).unique("user-7").await?;
    println!("the second is a duplicate: {}", second.is_duplicate());
    println!("of the first: {}", first.id() == second.id());

    let worker = engine.worker().handle(remind).start().await?;
    second.outcome().await?;

    // Done, so the key is free again.
    let third = engine.enqueue(Remind { user: 7 }).unique("user-7").await?;
    println!("the third is a duplicate: {}", third.is_duplicate());
    third.outcome().await?;

    // At most one per hour, even when the first has long completed.
    let hourly = || {
        let enqueue = engine.enqueue(Remind { user: 8 }).unique("hourly-8");
        enqueue.unique_scope(UniqueScope::Any).unique_for(Duration::from_secs(3_600))
    };
    hourly().await?.outcome().await?;
    println!("again within the hour is a duplicate: {}", hourly().await?.is_duplicate());

    worker.stop().await?;
    Ok(())
}
