//! A graceful stop: running jobs finish, what takes too long goes back to its queue, uncounted.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Attempt, Engine, Error, Failure, Job, StateName};

#[derive(Serialize, Deserialize)]
struct Steps {
    count: u32,
}

impl Job for Steps {
    const KIND: &'static str = "steps";
    type Output = u32;
}

/// Works step by step, and looks between steps whether it should stop.
async fn steps(job: Steps, attempt: Attempt) -> Result<u32, Failure> {
    for _ in 0..job.count {
        tokio::select! {
            reason = attempt.cancellation().cancelled() => {
                println!("told to stop: {reason:?}");
                return Err(Failure::retry("stopped between two steps"));
            }
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
        }
    }
    Ok(job.count)
}

// On tokio's paused clock, where time passes only while nothing else can be done: it prints the
// same on a machine that is too busy for ten steps within the grace. A server leaves that out.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Error> {
    let engine = Engine::open("memory:").await?;
    let worker = engine.worker().handle(steps).grace(Duration::from_millis(300)).start().await?;

    let short = engine.enqueue(Steps { count: 10 }).await?;
    let long = engine.enqueue(Steps { count: 1_000_000 }).no_timeout().await?;
    while engine.counts().await?.in_state(StateName::Running) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    // In a server: worker.run_until(|| async { tokio::signal::ctrl_c().await.ok(); }).await
    println!("{}", worker.stop().await?);
    println!("short: {} steps", short.outcome().await?);
    let status = long.record().await?.status;
    println!("long: {}, {} attempts counted", status.state.name(), status.attempts);
    Ok(())
}
