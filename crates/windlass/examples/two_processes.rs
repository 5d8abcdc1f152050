//! Two processes on one directory: this one works, and starts another one that enqueues.
//!
//! Both open the same path. Whoever comes first owns it, the other joins; neither is a server.

use std::process::Command;

use serde::{Deserialize, Serialize};
use windlass::{Engine, Failure, Job, Ownership};

#[derive(Serialize, Deserialize)]
struct Resize {
    picture: String,
}

impl Job for Resize {
    const KIND: &'static str = "resize";
    type Output = String;
}

async fn resize(job: Resize) -> Result<String, Failure> {
    Ok(format!("{} is small now", job.picture))
}

/// The second process: a script that wants something done, and its result.
async fn enqueue(directory: &str) -> anyhow::Result<()> {
    let engine = Engine::open(directory).await?;
    if let Some(Ownership::Joined { .. }) = engine.store().info().ownership {
        println!("the second process has joined the first");
    }
    let handle = engine.enqueue(Resize { picture: "cat.jpg".to_string() }).await?;
    println!("the second process hears: {}", handle.outcome().await?);
    engine.close().await;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if let Some(directory) = std::env::args().nth(1) {
        return enqueue(&directory).await;
    }
    let directory = std::env::temp_dir().join(format!("two-processes-{}", std::process::id()));
    let engine = Engine::open(&directory.display().to_string()).await?;
    let worker = engine.worker().handle(resize).start().await?;

    let mut second = Command::new(std::env::current_exe()?);
    let ended = tokio::task::spawn_blocking({
        let directory = directory.clone();
        move || second.arg(directory).status()
    });
    anyhow::ensure!(ended.await??.success(), "the second process failed");

    println!("the first process: {}", worker.stop().await?);
    engine.close().await;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
