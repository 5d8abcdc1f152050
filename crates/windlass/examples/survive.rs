//! A process dies in the middle of a job; the next one finds the job and runs it to its end.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use windlass::{Attempt, Engine, Error, Failure, Job, State};

#[derive(Serialize, Deserialize)]
struct Charge {
    order: u64,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
    type Output = String;
}

/// Whether the handler takes the process down with it.
#[derive(Clone, Copy)]
struct Crash(bool);

async fn charge(
    job: Charge,
    attempt: Attempt,
    State(crash): State<Crash>,
) -> Result<String, Failure> {
    if crash.0 {
        std::process::abort(); // as a kill -9 or the power would: nothing is cleaned up
    }
    Ok(format!("order {} charged at attempt {}", job.order, attempt.number()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(path) = std::env::args().nth(1) {
        return Ok(run(&path, Crash(true)).await?);
    }
    let path = std::env::temp_dir().join(format!("windlass-survive-{}", std::process::id()));
    let program = std::env::current_exe()?;
    let died = Command::new(program).arg(&path).status()?;
    println!("the first process ended well: {}", died.success());
    run(&path.to_string_lossy(), Crash(false)).await?;
    std::fs::remove_dir_all(&path)?;
    Ok(())
}

async fn run(path: &str, crash: Crash) -> Result<(), Error> {
    let left_behind = Path::new(path).exists();
    let engine = Engine::open(path).await?;
    let worker = engine.worker().state(crash).handle(charge);
    let handle = if left_behind {
        let recovered = engine.opened().map_or(&[][..], |opened| &opened.recovered);
        println!("recovered: {} job, now {}", recovered.len(), recovered[0].state);
        engine.handle::<Charge>(recovered[0].id)
    } else {
        engine.enqueue(Charge { order: 7 }).await? // on stable storage when this returns
    };
    let worker = worker.start().await?;
    println!("{}", handle.outcome().await?);
    worker.stop().await?;
    engine.close().await;
    Ok(())
}
