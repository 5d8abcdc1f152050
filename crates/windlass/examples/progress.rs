//! Progress and events: a long job says how far it is, and someone watches.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Attempt, Engine, Error, EventKind, Failure, Job, Received, Topics};

#[derive(Serialize, Deserialize)]
struct Import {
    files: u32,
}

impl Job for Import {
    const KIND: &'static str = "import";
    type Output = u32;
}

async fn import(job: Import, attempt: Attempt) -> Result<u32, Failure> {
    for file in 1..=job.files {
        tokio::time::sleep(Duration::from_millis(30)).await;
        attempt.log(format!("file {file} imported"));
        let percent = u8::try_from(file * 100 / job.files)?;
        attempt.progress(percent, format!("{file} of {} files", job.files));
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    Ok(job.files)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let mut events = engine.subscribe(Topics::all().topic("job.*"))?;
    let worker = engine.worker().handle(import).start().await?;
    let handle = engine.enqueue(Import { files: 4 }).await?;

    loop {
        match events.next().await {
            Received::Event(event) => match &event.what {
                EventKind::JobProgress { percent } => println!("{percent} %"),
                EventKind::JobCompleted { duration, .. } => {
                    println!("done in about {} ms", duration.as_millis() / 100 * 100);
                    break;
                }
                what if what.is_terminal() => break,
                _ => println!("{}", event.topic()),
            },
            Received::Lagged { missed } => println!("too slow, {missed} events missed"),
        }
    }
    for line in handle.record().await?.log {
        println!("log: {}", line.text);
    }
    worker.stop().await?;
    Ok(())
}
