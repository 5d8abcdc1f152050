//! What a measurement returns, and how it is printed.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::bench::Plan;
use crate::cli::{BenchOptions, Mode};
use crate::output::{self, grouped, table};

/// One measurement: one line of JSON, whose keys are the same for every mode and `null` where they
/// mean nothing. What only one mode has comes last.
#[derive(Debug, Serialize)]
pub(crate) struct Measurement {
    system: &'static str,
    store: String,
    durability: &'static str,
    mode: &'static str,
    /// Jobs, or samples, that were measured.
    n: u64,
    concurrency: u32,
    payload_bytes: usize,
    jobs_per_s: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
    /// Memory of the whole process when the measurement ended.
    rss_bytes: Option<u64>,
    bytes_written_per_job: u64,
    #[serde(flatten)]
    extra: Extra,
}

/// What only one mode has.
#[derive(Debug, Default, Serialize)]
#[serde(untagged)]
pub(crate) enum Extra {
    #[default]
    None,
    Batch {
        batch: u64,
    },
    Backlog {
        /// Waiting jobs while it was measured.
        backlog: u64,
        ns_per_job: f64,
        /// How much more than with the smallest backlog.
        ratio: f64,
    },
    Memory {
        /// The state the jobs wait in.
        state: &'static str,
        bytes_per_job: Option<f64>,
    },
}

impl Measurement {
    /// A measurement of `n` jobs that ends now.
    pub(crate) fn new(mode: Mode, plan: &Plan, n: u64) -> Self {
        Self {
            system: "windlass",
            store: plan.store.clone(),
            durability: durability(&plan.store),
            mode: mode.name(),
            n,
            concurrency: 1,
            payload_bytes: plan.payload,
            jobs_per_s: None,
            p50_ms: None,
            p99_ms: None,
            max_ms: None,
            rss_bytes: resident_bytes(),
            bytes_written_per_job: 0,
            extra: Extra::None,
        }
    }

    /// With so many callers, or slots.
    pub(crate) fn concurrency(self, concurrency: u32) -> Self {
        Self { concurrency, ..self }
    }

    /// All jobs together took so long.
    pub(crate) fn took(self, elapsed: Duration) -> Self {
        let jobs_per_s = Some(rounded(self.n as f64 / elapsed.as_secs_f64().max(1e-9), 1));
        Self { jobs_per_s, ..self }
    }

    /// Single calls took so long.
    pub(crate) fn latencies(self, latencies: &Latencies) -> Self {
        let p50_ms = Some(latencies.millis(0.5));
        let p99_ms = Some(latencies.millis(0.99));
        Self { p50_ms, p99_ms, max_ms: Some(latencies.millis(1.0)), ..self }
    }

    /// With what only one mode has.
    pub(crate) fn extra(self, extra: Extra) -> Self {
        Self { extra, ..self }
    }

    /// Without a payload, whatever was asked for.
    pub(crate) fn without_payload(self) -> Self {
        Self { payload_bytes: 0, ..self }
    }

    fn cells(&self) -> Vec<String> {
        let millis = |value: Option<f64>| value.map_or("–".to_string(), |ms| format!("{ms:.3}"));
        vec![
            format!("{}{}", self.mode, self.extra.variant()),
            short(self.n),
            grouped(self.concurrency.into()),
            self.jobs_per_s.map_or("–".to_string(), |rate| grouped(rate.round() as u64)),
            millis(self.p50_ms),
            millis(self.p99_ms),
            millis(self.max_ms),
            self.extra.words(),
        ]
    }
}

impl Extra {
    /// What tells two lines of one mode apart.
    fn variant(&self) -> String {
        match self {
            Extra::None => String::new(),
            Extra::Batch { batch } => format!(" × {}", short(*batch)),
            Extra::Backlog { backlog, .. } => format!(" {}", short(*backlog)),
            Extra::Memory { state, .. } => format!(" {state}"),
        }
    }

    fn words(&self) -> String {
        match self {
            Extra::None | Extra::Batch { .. } => String::new(),
            Extra::Backlog { ns_per_job, ratio, .. } => format!("{ns_per_job:.0} ns × {ratio:.2}"),
            Extra::Memory { bytes_per_job: Some(bytes), .. } => format!("{bytes:.0} bytes"),
            Extra::Memory { bytes_per_job: None, .. } => "unknown here".to_string(),
        }
    }
}

/// A number as short as it can be said exactly: 20k, 1M, 1,234.
fn short(number: u64) -> String {
    for (unit, name) in [(1_000_000, "M"), (1_000, "k")] {
        if number >= unit && number.is_multiple_of(unit) {
            return format!("{}{name}", grouped(number / unit));
        }
    }
    grouped(number)
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Enqueue => "enqueue",
            Mode::Bulk => "bulk",
            Mode::Drain => "drain",
            Mode::Lifecycle => "lifecycle",
            Mode::Latency => "latency",
            Mode::Backlog => "backlog",
            Mode::Memory => "memory",
            Mode::All => "all",
        }
    }
}

/// What the store promises once a call has returned.
fn durability(store: &str) -> &'static str {
    match store {
        "memory:" => "none",
        _ => "unknown",
    }
}

/// To so many digits after the point.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Prints what was measured for a person.
pub(crate) fn print_table(measured: &[Measurement], options: &BenchOptions) -> anyhow::Result<()> {
    let header = ["mode", "n", "at once", "jobs/s", "p50 ms", "p99 ms", "max ms", "per job"];
    let mut rows = table(&header);
    if let Some(column) = rows.column_mut(header.len() - 1) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    for each in measured {
        rows.add_row(each.cells());
    }
    let (store, payload) = (&options.store, grouped(options.payload.into()));
    let durability = durability(store);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    output::line(&format!(
        "store {store} (durability: {durability}), {payload} bytes of payload, {cores} cores\n"
    ))?;
    output::line(&rows.trim_fmt())
}

/// How long calls took, to three digits.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// The longest that is told apart: a call that takes longer counts as this long.
    const LONGEST: Duration = Duration::from_secs(600);

    pub(crate) fn new() -> anyhow::Result<Self> {
        let longest = u64::try_from(Self::LONGEST.as_nanos())?;
        Ok(Self(Histogram::new_with_bounds(1, longest, 3)?))
    }

    pub(crate) fn note(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn absorb(&mut self, other: &Latencies) -> anyhow::Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    pub(crate) fn nanos(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64
    }

    fn millis(&self, quantile: f64) -> f64 {
        rounded(self.nanos(quantile) / 1e6, 4)
    }
}

/// Memory of this process that is resident, where the system tells.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}
