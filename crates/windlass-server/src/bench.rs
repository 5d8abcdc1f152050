//! Measurements of the engine on this machine, each on a store of its own.
//!
//! - `callers` measures producers: one job per call, a thousand per call, whole lifecycles
//! - `workers` measures a worker: emptying a queue, and picking up the first job
//! - `backlog` measures what a claim costs when few and when many jobs wait
//! - `memory` measures what a waiting job costs
//! - `result` is what they all return, and how it is printed

mod backlog;
mod callers;
mod memory;
mod result;
mod workers;

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use windlass::{Engine, Job};

use crate::bench::result::{Measurement, print_table};
use crate::cli::{BenchOptions, Format, Mode};
use crate::output;

/// What one measurement is asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    store: String,
    jobs: u64,
    concurrency: u32,
    payload: usize,
}

/// Measures what was asked for and prints each result.
pub(crate) fn run(options: &BenchOptions) -> anyhow::Result<()> {
    // An address that cannot be opened is refused before anything is measured.
    threads()?.block_on(Engine::open(&options.store))?;
    let mut measured = Vec::new();
    for mode in modes(options.mode) {
        let plan = plan(options, mode);
        let spinner = spinner(mode, &plan);
        let results = measure(mode, &plan)?;
        spinner.finish_and_clear();
        if options.format() == Format::Json {
            results.iter().try_for_each(output::json)?;
        }
        measured.extend(results);
    }
    match options.format() {
        Format::Table => print_table(&measured, options),
        Format::Json => Ok(()),
    }
}

/// Memory comes first: what other measurements have freed would be used again unseen.
fn modes(mode: Mode) -> Vec<Mode> {
    match mode {
        Mode::All => vec![
            Mode::Memory,
            Mode::Enqueue,
            Mode::Bulk,
            Mode::Drain,
            Mode::Lifecycle,
            Mode::Latency,
            Mode::Backlog,
        ],
        Mode::Enqueue
        | Mode::Bulk
        | Mode::Drain
        | Mode::Lifecycle
        | Mode::Latency
        | Mode::Backlog
        | Mode::Memory => vec![mode],
    }
}

fn plan(options: &BenchOptions, mode: Mode) -> Plan {
    let jobs = options.jobs.unwrap_or(match mode {
        Mode::Enqueue | Mode::Drain | Mode::Lifecycle => 100_000,
        Mode::Bulk | Mode::Backlog | Mode::Memory => 1_000_000,
        Mode::Latency => 500,
        // Only its parts are planned.
        Mode::All => 0,
    });
    Plan {
        store: options.store.clone(),
        jobs,
        concurrency: options.concurrency,
        payload: options.payload as usize,
    }
}

fn measure(mode: Mode, plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    let runtime = threads()?;
    let one = |measured: anyhow::Result<Measurement>| measured.map(|each| vec![each]);
    match mode {
        Mode::Enqueue => one(runtime.block_on(callers::enqueue(plan))),
        Mode::Bulk => one(runtime.block_on(callers::bulk(plan))),
        Mode::Lifecycle => one(runtime.block_on(callers::lifecycle(plan))),
        Mode::Drain => one(runtime.block_on(workers::drain(plan))),
        Mode::Latency => one(runtime.block_on(workers::latency(plan))),
        Mode::Backlog => runtime.block_on(backlog::claim_cost(plan)),
        Mode::Memory => memory::per_waiting_job(plan),
        Mode::All => Ok(Vec::new()),
    }
}

fn threads() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build()
}

/// Shows that something goes on, if someone watches. It only ticks, and counts nothing, so that it
/// does not disturb what it shows.
fn spinner(mode: Mode, plan: &Plan) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let jobs = output::grouped(plan.jobs);
    let spinner = ProgressBar::new_spinner().with_message(match mode {
        Mode::Latency => format!("latency: {jobs} samples"),
        Mode::Backlog => format!("backlog: up to {jobs} waiting jobs"),
        Mode::Enqueue | Mode::Lifecycle => {
            format!("{}: {jobs} jobs, {} callers", mode.name(), plan.concurrency)
        }
        Mode::Bulk | Mode::Drain | Mode::Memory | Mode::All => {
            format!("{}: {jobs} jobs", mode.name())
        }
    });
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} … {elapsed}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
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
