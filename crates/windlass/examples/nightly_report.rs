//! A report every night at half past two, by the clocks of Berlin; and once now, to see it.

use serde::{Deserialize, Serialize};
use windlass::{Engine, Failure, Job, MissedRuns, Priority, Schedule};

#[derive(Serialize, Deserialize)]
struct NightlyReport {
    region: String,
}

impl Job for NightlyReport {
    const KIND: &'static str = "nightly_report";
    type Output = String;
}

async fn write_report(job: NightlyReport) -> Result<String, Failure> {
    Ok(format!("report for {}", job.region))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let worker = engine.worker().handle(write_report).start().await?;

    let night = Schedule::cron("30 2 * * *")?.in_zone("Europe/Berlin")?;
    let report = NightlyReport { region: "north".to_string() };
    let schedules = engine.schedules();
    schedules
        .set("nightly-report", night, report)
        .priority(Priority::LOW)
        .missed_runs(MissedRuns::RunOnce)
        .await?;

    if let Some(schedule) = schedules.get("nightly-report").await? {
        println!("{}: {}", schedule.name, schedule.words);
        schedule.next_runs.iter().for_each(|run| println!("  {run}"));
    }
    let job = schedules.run_now("nightly-report").await?;
    println!("{}", engine.handle::<NightlyReport>(job).outcome().await?);
    schedules.pause("nightly-report").await?;
    println!("paused: {}", schedules.get("nightly-report").await?.is_some_and(|view| view.paused));
    worker.stop().await?;
    Ok(())
}
