//! Webhooks come in bursts: per customer, one delivery with the latest of each burst.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{Debounce, Flush};
use windlass::{Engine, Error, Failure, Received, Retry, Topics};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Changed {
    version: u32,
}

async fn deliver(flush: Flush<Changed>) -> Result<(), Failure> {
    let Flush { key, kept, count, reason, .. } = &flush;
    if key == "acme" && !flush.is_retry() {
        return Err(Failure::retry("acme does not answer"));
    }
    println!("{key}: version {} of {count} changes ({reason:?})", kept.version);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let webhooks = Debounce::new("webhooks", Duration::from_millis(200), deliver)
        .max_events(20)
        .validate(|changed: &Changed| match changed.version {
            0 => Err("versions are counted from 1".to_string()),
            _ => Ok(()),
        })
        .options(|options| options.retry(Retry::constant(Duration::from_millis(50))));

    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let mut flushed = engine.subscribe(Topics::all().topic("debounce.flushed"))?;
    let worker = engine.worker().primitive(webhooks.clone()).start().await?;
    let client = engine.debounce(&webhooks);

    // The first event opens a window, which is not extended.
    for version in 1..=3 {
        let id = format!("change-{version}");
        let added = client.add_once("acme", &id, Changed { version }).await?;
        println!("acme: {} gathered", added.event_count);
    }
    // A sender that repeats itself changes nothing.
    let again = client.add_once("acme", "change-3", Changed { version: 3 }).await?;
    println!("again is a duplicate: {}", again.duplicate);
    // The twentieth closes the window at once.
    for version in 1..=20 {
        client.add("initech", Changed { version }).await?;
    }
    if let Err(error) = client.add("acme", Changed { version: 0 }).await {
        println!("refused: {error}");
    }

    for _ in 0..2 {
        if let Received::Event(event) = flushed.next().await {
            println!("{}", event.topic());
        }
    }
    worker.stop().await?;
    Ok(())
}
