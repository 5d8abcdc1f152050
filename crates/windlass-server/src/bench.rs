//! Measurements of the engine on this machine, each on a store of its own.
//!
//! - `batch` measures batches by what is in them, and by how much
//! - `callers` measures producers: one job per call, a thousand per call, whole lifecycles
//! - `workers` measures a worker: emptying a queue, and picking up the first job
//! - `backlog` measures what a claim costs when few and when many jobs wait
//! - `memory` measures what a waiting job costs, `idle` what an engine without jobs costs
//! - `objects` measures pools with lanes, debounce and continuous objects
//! - `doors` measures a store that another process owns, over its socket and over HTTP
//! - `reopen` measures how long opening takes
//! - `limit` measures what the disk could do at best, to compare with, and `bare` what a database
//!   could
//! - `steady` measures whether one large work holds up everybody else
//! - `ground` is where the stores stand, `process` what the system tells about this process
//! - `result` is what they all return, `progress` what is shown meanwhile, `verdict` what it means

mod backlog;
#[cfg(feature = "postgres")]
mod bare;
mod batch;
mod callers;
mod doors;
mod ground;
mod idle;
mod limit;
mod memory;
mod objects;
#[cfg(feature = "postgres")]
mod pinned;
mod process;
mod progress;
mod reopen;
mod result;
#[cfg(feature = "postgres")]
mod server;
mod steady;
mod verdict;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use windlass::Job;

use crate::bench::doors::Door;
pub(crate) use crate::bench::ground::Ground;
use crate::bench::progress::Progress;
use crate::bench::result::{Measurement, medians, print_table};
use crate::cli::{BenchOptions, Format, Mode};
use crate::output;

/// What one measurement is asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    store: String,
    ground: Arc<Ground>,
    jobs: u64,
    concurrency: u32,
    payload: usize,
    door: Door,
    /// Nothing was measured in this process before: what that has freed would be used again
    /// unseen, so only the first can tell what something takes in memory.
    first: bool,
    /// How long an idle engine is watched.
    watch: Duration,
    progress: Progress,
}

/// Measures what was asked for and prints each result.
pub(crate) fn run(options: &BenchOptions) -> anyhow::Result<()> {
    let ground = Ground::new(&options.store, options.durability, options.keep)?;
    let ground = Arc::new(ground);
    let modes = match options.profile_modes() {
        Some(chosen) => chosen.iter().flat_map(|mode| modes(&[*mode], &ground)).flatten().collect(),
        None => modes(&options.mode, &ground)?,
    };
    let with_limit = modes.contains(&Mode::Limit);
    let mut measured = Vec::new();
    for mode in &modes {
        // It runs with those that are compared with it, if there are any.
        if *mode == Mode::Limit && modes.iter().any(|mode| mode.has_a_limit(&ground)) {
            continue;
        }
        let first = measured.is_empty();
        measured.extend(measure_often(*mode, options, &ground, with_limit, first)?);
    }
    let last = verdict::exchange(&options.store, &measured);
    if let Format::Table = options.format() {
        print_table(&measured, options)?;
        verdict::print_bounds(&measured)?;
        if let Ok(Some(last)) = &last {
            verdict::print_changes(&measured, last)?;
        }
    }
    last.map(drop)
}

/// What was asked for, in the order given. Of all, memory comes first: what other measurements
/// have freed would be used again unseen.
fn modes(asked: &[Mode], ground: &Ground) -> anyhow::Result<Vec<Mode>> {
    let can = |mode: Mode| match mode {
        Mode::Limit => ground.is_a_disk() || ground.is_a_database(),
        Mode::Pinned => ground.is_a_database(),
        mode => ground.is_a_disk() || !mode.needs_a_disk(),
    };
    let all = [
        Mode::Memory,
        Mode::Enqueue,
        Mode::Bulk,
        Mode::Batch,
        Mode::Drain,
        Mode::Lifecycle,
        Mode::Pool,
        Mode::Debounce,
        Mode::Continuous,
        Mode::Latency,
        Mode::Backlog,
        Mode::Pinned,
        Mode::Reopen,
        Mode::Idle,
        Mode::Limit,
    ];
    let mut modes = Vec::new();
    for mode in asked {
        match mode {
            Mode::All => modes.extend(all.iter().filter(|mode| can(**mode))),
            Mode::Pinned if !can(Mode::Pinned) => {
                bail!("`pinned` measures a database; name it with --store postgres://…")
            }
            mode if !can(*mode) => {
                bail!("`{}` measures a disk; name a directory with --store", mode.name())
            }
            mode => modes.push(*mode),
        }
    }
    let mut seen = Vec::new();
    modes.retain(|mode| {
        !seen.contains(mode) && {
            seen.push(*mode);
            true
        }
    });
    Ok(modes)
}

/// Makes a measurement as often as asked, prints each as JSON, and returns what counts.
fn measure_often(
    mode: Mode,
    options: &BenchOptions,
    ground: &Arc<Ground>,
    with_limit: bool,
    first: bool,
) -> anyhow::Result<Vec<Measurement>> {
    let runs = if mode == Mode::Memory { 1 } else { options.runs() };
    let mut measured: Vec<Vec<Measurement>> = Vec::new();
    for run in 0..runs {
        let plan = Plan { first: first && run == 0, ..plan(options, mode, ground) };
        let results = measure(mode, &plan, with_limit);
        plan.progress.finish();
        let results = results?;
        print_json(&results, options)?;
        measured.push(results);
    }
    if runs == 1 {
        return Ok(measured.pop().unwrap_or_default());
    }
    let medians = medians(&measured);
    print_json(&medians, options)?;
    Ok(medians)
}

fn print_json(results: &[Measurement], options: &BenchOptions) -> anyhow::Result<()> {
    match options.format() {
        Format::Table => Ok(()),
        Format::Json => results.iter().try_for_each(output::json),
    }
}

fn plan(options: &BenchOptions, mode: Mode, ground: &Arc<Ground>) -> Plan {
    let jobs = options.jobs.unwrap_or_else(|| {
        options.part_of(match mode {
            Mode::Enqueue | Mode::Drain | Mode::Lifecycle | Mode::Limit => 100_000,
            Mode::Batch | Mode::Pool | Mode::Debounce | Mode::Doors => 100_000,
            Mode::Continuous => 10_000,
            Mode::Bulk | Mode::Backlog | Mode::Pinned | Mode::Memory | Mode::Reopen => 1_000_000,
            Mode::Steady => 1_000_000,
            Mode::Latency => 500,
            // One has no jobs, of the other only its parts are planned.
            Mode::Idle | Mode::All => 0,
        })
    });
    Plan {
        store: options.store.clone(),
        ground: ground.clone(),
        jobs,
        concurrency: options.concurrency,
        payload: options.payload as usize,
        door: Door::Own,
        first: true,
        watch: Duration::from_secs(options.seconds),
        progress: Progress::start(describe(mode, jobs, options)),
    }
}

fn describe(mode: Mode, jobs: u64, options: &BenchOptions) -> String {
    let (name, jobs) = (mode.name(), output::grouped(jobs));
    match mode {
        Mode::Latency => format!("latency: {jobs} samples"),
        Mode::Batch => format!("batch: up to {jobs} jobs"),
        Mode::Backlog => format!("backlog: up to {jobs} waiting jobs"),
        Mode::Idle => format!("idle: {} seconds", options.seconds),
        Mode::Steady => format!("steady: beside up to {jobs} jobs"),
        Mode::Debounce => format!("debounce: {jobs} events, {} callers", options.concurrency),
        Mode::Continuous => format!("continuous: {jobs} objects"),
        Mode::Enqueue | Mode::Lifecycle | Mode::Pool | Mode::Limit | Mode::Doors => {
            format!("{name}: {jobs} jobs, {} callers", options.concurrency)
        }
        Mode::Bulk | Mode::Drain | Mode::Pinned | Mode::Memory | Mode::Reopen | Mode::All => {
            format!("{name}: {jobs} jobs")
        }
    }
}

fn measure(mode: Mode, plan: &Plan, with_limit: bool) -> anyhow::Result<Vec<Measurement>> {
    let runtime = threads()?;
    let one = |measured: anyhow::Result<Measurement>| measured.map(|each| vec![each]);
    let mut measured = match mode {
        Mode::Enqueue => one(runtime.block_on(callers::enqueue(plan))),
        Mode::Bulk => one(runtime.block_on(callers::bulk(plan))),
        Mode::Batch => runtime.block_on(batch::batches(plan)),
        Mode::Lifecycle => one(runtime.block_on(callers::lifecycle(mode, plan))),
        Mode::Drain => one(runtime.block_on(workers::drain(plan))),
        Mode::Pool => runtime.block_on(objects::pool(plan)),
        Mode::Debounce => one(runtime.block_on(objects::debounce(plan))),
        Mode::Continuous => one(runtime.block_on(objects::continuous(plan))),
        Mode::Latency => one(runtime.block_on(workers::latency(plan))),
        Mode::Backlog => runtime.block_on(backlog::claim_cost(plan)),
        #[cfg(feature = "postgres")]
        Mode::Pinned => runtime.block_on(pinned::pinned(plan)),
        #[cfg(not(feature = "postgres"))]
        Mode::Pinned => Ok(Vec::new()),
        Mode::Memory => runtime.block_on(memory::per_waiting_job(plan)),
        Mode::Reopen => one(runtime.block_on(reopen::reopen(plan))),
        Mode::Idle => one(runtime.block_on(idle::idle(plan))),
        Mode::Steady => runtime.block_on(steady::steady(plan)),
        Mode::Doors => runtime.block_on(doors::doors(plan)),
        #[cfg(feature = "postgres")]
        Mode::Limit if plan.ground.is_a_database() => {
            one(runtime.block_on(bare::insert_and_delete(plan)))
        }
        Mode::Limit => runtime.block_on(limit::alone(plan)),
        Mode::All => Ok(Vec::new()),
    }?;
    #[cfg(feature = "postgres")]
    if with_limit && mode == Mode::Drain && plan.ground.is_a_database() {
        let limit = runtime.block_on(bare::insert_and_delete(plan))?;
        measured[0].compare(&limit);
        measured.push(limit);
        return Ok(measured);
    }
    if with_limit && mode.has_a_limit(&plan.ground) {
        let limits = runtime.block_on(limit::beside(mode, plan, &mut measured[0]))?;
        measured.extend(limits);
    }
    Ok(measured)
}

fn threads() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build()
}

/// A job that does nothing, with a payload of a chosen size.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Nothing(String);

impl Nothing {
    /// With so many bytes of payload, the two quotes of JSON included.
    fn of_bytes(bytes: usize) -> Self {
        Self("x".repeat(bytes.saturating_sub(2)))
    }
}

impl Job for Nothing {
    const KIND: &'static str = "bench.nothing";
    type Output = ();
}
