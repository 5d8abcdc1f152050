//! What an engine costs that has nothing to do: a worker waits, and no job comes.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use windlass::Error;

use crate::bench::ground::Subject;
use crate::bench::process::processor_time;
use crate::bench::result::{Extra, Measurement, rounded};
use crate::bench::workers::start_worker;
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// Before it is watched, for everything that starts to have started.
const SETTLE: Duration = Duration::from_millis(500);

/// Processor time of the whole process, as part of one core's.
pub(crate) async fn idle(plan: &Plan) -> anyhow::Result<Measurement> {
    let subject = Subject::open(Mode::Idle, plan).await?;
    let nothing = |_: Nothing| async { Ok::<_, Error>(()) };
    let worker = start_worker(&subject.engine, plan, nothing).await?;
    sleep(SETTLE).await;
    let (before, began) = (processor_time(), Instant::now());
    sleep(plan.watch).await;
    let (after, watched) = (processor_time(), began.elapsed());
    let used = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    let part = used.map(|used| used.as_secs_f64() / watched.as_secs_f64());
    let cpu_percent = part.map(|part| rounded(part * 100.0, 3));
    worker.stop().await?;
    let measured = subject.measured(Mode::Idle, plan, 0).await?.concurrency(plan.concurrency);
    subject.end().await;
    Ok(measured.extra(Extra::Idle { seconds: watched.as_secs(), cpu_percent }))
}
