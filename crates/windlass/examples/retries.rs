//! Retries, dead letters and replay: a job fails, is tried again, dies, is fixed and succeeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Attempt, Engine, Error, Failure, Job, Options, Retry, State};

#[derive(Serialize, Deserialize)]
struct Charge {
    cents: u64,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
    type Output = String;

    /// Three runs in all, 20 ms after the first failure, 40 ms after the second.
    fn options(&self) -> Options {
        Options::new().retry(Retry::exponential(Duration::from_millis(20)).up_to(3))
    }
}

/// A payment provider that can be down.
struct Provider {
    down: AtomicBool,
}

async fn charge(
    job: Charge,
    attempt: Attempt,
    provider: State<Arc<Provider>>,
) -> Result<String, Failure> {
    if job.cents == 0 {
        // Nothing will make this right: straight to the dead letters.
        return Err(Failure::permanent("there is nothing to charge"));
    }
    if provider.down.load(Ordering::SeqCst) {
        println!("attempt {} of {} fails", attempt.number(), attempt.max_attempts());
        return Err(Failure::retry("the provider is down"));
    }
    Ok(format!("charged {} cents", job.cents))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let provider = Arc::new(Provider { down: AtomicBool::new(true) });
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let worker = engine.worker().state(provider.clone()).handle(charge).start().await?;

    let handle = engine.enqueue(Charge { cents: 999 }).await?;
    if let Err(error) = handle.outcome().await {
        println!("{error}");
    }
    for dead in engine.dead_letters().page(None, 10).await?.jobs {
        println!("dead letter: {} after {} attempts", dead.job.kind, dead.status.attempts);
    }

    provider.down.store(false, Ordering::SeqCst);
    engine.replay(handle.id()).await?;
    println!("replayed: {}", handle.outcome().await?);

    let wrong = engine.enqueue(Charge { cents: 0 }).await?;
    if let Err(error) = wrong.outcome().await {
        println!("{error}");
    }
    let edited = engine.replay_edited(wrong.id(), Charge { cents: 50 }).await?;
    println!("edited and replayed: {}", edited.outcome().await?);

    worker.stop().await?;
    Ok(())
}
