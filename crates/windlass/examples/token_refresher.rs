//! A loop that keeps a token fresh: it remembers its state, and survives a failing provider.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{Continuous, Tick};
use windlass::{Engine, Error, Failure, Retry, Schedule, Topics};

#[derive(Debug, Serialize, Deserialize)]
struct Token {
    value: String,
    refreshed: u64,
}

async fn refresh(mut tick: Tick<Token>) -> Result<Tick<Token>, Failure> {
    if tick.run_count() == 2 && !tick.is_retry() {
        return Err(Failure::retry("the provider does not answer")); // the state stays as it was
    }
    tick.state.refreshed += 1;
    tick.state.value = format!("{}-{}", tick.key(), tick.state.refreshed);
    println!("run {}: token {}", tick.run_count(), tick.state.value);
    if tick.run_count() == 3 {
        tick.stop("three are enough for an example");
    }
    Ok(tick)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let every = Schedule::every(Duration::from_millis(200))?;
    let refresher = Continuous::new("token-refresher", every, refresh)
        .options(|options| options.retry(Retry::constant(Duration::from_millis(10))));
    let worker = engine.worker().primitive(refresher.clone()).start().await?;
    let mut stopped = engine.subscribe(Topics::all().topic("continuous.stopped"))?;

    let tokens = engine.continuous(&refresher);
    let first = Token { value: "none".to_string(), refreshed: 0 };
    println!("created: {}", tokens.start("github", first).await?.created);
    let again = Token { value: "ignored".to_string(), refreshed: 0 };
    println!("created again: {}", tokens.start("github", again).await?.created);
    stopped.next().await;

    show(&engine, &refresher).await?;
    worker.stop().await?;
    Ok(())
}

async fn show(engine: &Engine, refresher: &Continuous<Token>) -> Result<(), Error> {
    let tokens = engine.continuous(refresher);
    if let (Some(status), Some(token)) =
        (tokens.status("github").await?, tokens.state("github").await?)
    {
        let reason = status.reason.unwrap_or_default();
        println!("{:?} after {} runs: {reason}", status.standing, status.run_count);
        println!("kept: {} (refreshed {} times)", token.value, token.refreshed);
    }
    Ok(())
}
