//! Middleware: log lines that carry the job they belong to, without a word in the handlers.

use serde::{Deserialize, Serialize};
use windlass::{Attempt, Engine, Error, Failure, Job, Next, Returned};

#[derive(Serialize, Deserialize)]
struct Resize {
    image: String,
}

impl Job for Resize {
    const KIND: &'static str = "resize";
    type Output = ();
}

tokio::task_local! {
    /// What every log line of an attempt begins with.
    static CONTEXT: String;
}

/// A logger that knows nothing of jobs, used deep inside a handler.
fn log(text: &str) {
    let context = CONTEXT.try_with(Clone::clone).unwrap_or_default();
    println!("{context} {text}");
}

async fn resize(job: Resize) -> Result<(), Failure> {
    log(&format!("reading {}", job.image));
    log("writing the thumbnail");
    Ok(())
}

/// Sets the context around everything inside it.
async fn with_context(attempt: Attempt, next: Next) -> Returned {
    let context = format!("[{} attempt {}]", attempt.kind(), attempt.number());
    CONTEXT.scope(context, next.run()).await
}

/// Inside the one above, so its lines carry the context too.
async fn with_result(_: Attempt, next: Next) -> Returned {
    log("begins");
    let returned = next.run().await;
    log(if returned.is_ok() { "succeeded" } else { "failed" });
    returned
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    // The library's own spans carry job, kind, attempt, worker and trace id, for `tracing` users.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();

    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let worker = engine.worker().middleware(with_context).middleware(with_result);
    let worker = worker.handle(resize).start().await?;
    engine.enqueue(Resize { image: "cat.png".to_string() }).await?.outcome().await?;
    worker.stop().await?;
    Ok(())
}
