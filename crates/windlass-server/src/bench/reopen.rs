//! How long a store takes to open in which many jobs wait, and what it takes on the disk.
//!
//! The operating system still has the files in memory: what is measured is the reading of every
//! commit and the building of every index, not the disk.

use std::time::Instant;

use crate::bench::Plan;
use crate::bench::callers::fill;
use crate::bench::ground::Subject;
use crate::bench::result::{Extra, Measurement, rounded};
use crate::cli::Mode;

/// Fills a store, closes it, and opens it again.
pub(crate) async fn reopen(plan: &Plan) -> anyhow::Result<Measurement> {
    let Subject { engine, plot, .. } = Subject::open(Mode::Reopen, plan).await?;
    let mut filled = 0;
    fill(&engine, plan.jobs, plan.payload, |_, jobs| {
        filled += jobs;
        plan.progress.filled("reopen", filled, plan.jobs);
    })
    .await?;
    engine.close().await;
    drop(engine);
    let disk_bytes = plot.bytes()?;
    let began = Instant::now();
    let engine = plot.open().await?;
    let took = began.elapsed();
    let found = engine.opened().map_or(0, |opened| opened.jobs);
    anyhow::ensure!(found == plan.jobs, "{found} of {} jobs were found again", plan.jobs);
    let space = engine.store().info().space.unwrap_or_default();
    let (disk, live) = (disk_bytes as f64, space.live as f64);
    let extra = Extra::Reopen {
        open_ms: Some(rounded(took.as_secs_f64() * 1e3, 3)),
        disk_bytes: Some(disk),
        live_bytes: Some(live),
        disk_ratio: Some(rounded(disk / live.max(1.0), 3)),
    };
    let measured = Measurement::new(Mode::Reopen, plan, plan.jobs).durability(engine.durability());
    engine.close().await;
    Ok(measured.took(took).extra(extra))
}
