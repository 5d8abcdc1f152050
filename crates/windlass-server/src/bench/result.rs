//! What a measurement returns, the median of several, and how it is printed.

use std::time::Duration;

use comfy_table::CellAlignment;
use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use windlass::store::Durability;

use crate::bench::Plan;
use crate::bench::process::resident_bytes;
use crate::bench::verdict::KeptFigure;
use crate::cli::{BenchOptions, Mode};
use crate::output::{self, grouped, table};

/// Something that was measured; `None` where it means nothing or the system does not tell.
pub(crate) type Figure = Option<f64>;

/// One measurement: one line of JSON, whose keys are the same for every mode and `null` where they
/// mean nothing. What only one mode has comes last.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    system: &'static str,
    store: String,
    durability: String,
    mode: &'static str,
    /// Whether each figure is the median of several runs.
    median: bool,
    /// Jobs, or samples, that were measured.
    n: u64,
    concurrency: u32,
    payload_bytes: usize,
    jobs_per_s: Figure,
    p50_ms: Figure,
    p99_ms: Figure,
    max_ms: Figure,
    /// Memory of the whole process when the measurement ended.
    #[serde(serialize_with = "whole")]
    rss_bytes: Figure,
    /// Bytes written to the store's journal, or to the database's; zeros that make room beforehand
    /// are not among them.
    #[serde(serialize_with = "whole")]
    bytes_written_per_job: Figure,
    /// Commits of the database; `null` elsewhere.
    commits_per_job: Figure,
    /// Processor time of the whole process, callers included.
    cpu_us_per_job: Figure,
    /// Which part of the speed of a bare log was reached.
    ratio_to_limit: Figure,
    /// The same, if the bare log needs one write where the engine needs two.
    limit_one_write_ratio: Figure,
    #[serde(flatten)]
    extra: Extra,
}

/// What only one mode has.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(untagged)]
pub(crate) enum Extra {
    #[default]
    None,
    Batch {
        batch: u64,
        #[serde(serialize_with = "whole")]
        bytes_per_s: Figure,
    },
    Growth {
        /// What is in the batch, or what follows.
        of: &'static str,
        us_per_job: Figure,
        /// How much more that is than with the fewest jobs.
        ratio_to_smallest: Figure,
    },
    Backlog {
        /// Waiting jobs while it was measured.
        backlog: u64,
        /// To claim and settle a job.
        ns_per_job: Figure,
        /// How much more than with the smallest backlog.
        ratio: Figure,
        /// To claim a job.
        claim_ns_per_job: Figure,
        claim_ratio: Figure,
    },
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only a database has it"))]
    Pinned {
        /// Before, during, after or well after the transaction that is left open.
        part: &'static str,
        ratio_to_before: Figure,
        /// What the tables and indexes take on the disk when it ends.
        #[serde(serialize_with = "whole")]
        schema_bytes: Figure,
    },
    Memory {
        /// The ledger alone, or the whole store.
        of: &'static str,
        /// The state the jobs wait in.
        state: &'static str,
        bytes_per_job: Figure,
    },
    Pool {
        /// `plain`, a queue without lanes, or `lanes`.
        of: &'static str,
        lanes: u32,
        /// How fast it was, as part of the plain queue's speed.
        ratio_to_plain: Figure,
    },
    Debounce {
        keys: u64,
        flushes: u64,
        /// What a key with an open window takes in memory; `null` if another measurement came
        /// before.
        bytes_per_object: Figure,
    },
    Continuous {
        objects: u64,
        /// How often each of them runs.
        period_ms: u64,
        /// What an object that waits takes in memory; `null` if another measurement came before.
        bytes_per_object: Figure,
    },
    Reopen {
        open_ms: Figure,
        /// What its files take, unused ones included.
        #[serde(serialize_with = "whole")]
        disk_bytes: Figure,
        /// What its jobs take.
        #[serde(serialize_with = "whole")]
        live_bytes: Figure,
        disk_ratio: Figure,
    },
    Idle {
        seconds: u64,
        /// Of one core.
        cpu_percent: Figure,
    },
    Steady {
        /// What went on beside the small calls, and about how many jobs that was.
        beside: &'static str,
        jobs: u64,
        /// Calls that took more than 50 ms.
        #[serde(serialize_with = "whole")]
        stalls: Figure,
        /// How long what went on took.
        large_ms: Figure,
    },
    Door {
        /// What was measured: a mode, or `takeover`.
        of: &'static str,
        /// How the store is reached: `own`, `joined` or `http`.
        door: &'static str,
        /// How fast it was, as part of the speed of one's own store.
        ratio_to_own: Figure,
        /// How much longer half of the calls took at most.
        p50_more_ms: Figure,
    },
    Limit {
        /// The mode it is the limit of.
        of: &'static str,
        writes_per_job: f64,
        bytes_per_write: u64,
        #[serde(serialize_with = "whole")]
        bytes_per_s: Figure,
    },
}

impl Measurement {
    /// A measurement of `n` jobs that ends now, of something that promises nothing.
    pub(crate) fn new(mode: Mode, plan: &Plan, n: u64) -> Self {
        Self {
            system: "windlass",
            store: plan.store.clone(),
            durability: Durability::None.to_string(),
            mode: mode.name(),
            median: false,
            n,
            concurrency: 1,
            payload_bytes: plan.payload,
            jobs_per_s: None,
            p50_ms: None,
            p99_ms: None,
            max_ms: None,
            rss_bytes: resident_bytes().map(|bytes| bytes as f64),
            bytes_written_per_job: None,
            commits_per_job: None,
            cpu_us_per_job: None,
            ratio_to_limit: None,
            limit_one_write_ratio: None,
            extra: Extra::None,
        }
    }

    /// Answers meant this.
    pub(crate) fn durability(self, durability: Durability) -> Self {
        Self { durability: durability.to_string(), ..self }
    }

    /// All jobs together wrote so many bytes.
    pub(crate) fn wrote(self, bytes: u64) -> Self {
        let bytes_written_per_job = (self.n > 0).then(|| bytes as f64 / self.n as f64);
        Self { bytes_written_per_job, ..self }
    }

    /// All jobs together took so many commits.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only a database has them"))]
    pub(crate) fn committed(self, commits: u64) -> Self {
        let commits_per_job = (self.n > 0).then(|| rounded(commits as f64 / self.n as f64, 4));
        Self { commits_per_job, ..self }
    }

    /// All jobs together took so much of the processors; `None` where the system does not tell.
    pub(crate) fn worked(self, processors: Option<Duration>) -> Self {
        let each = |time: Duration| rounded(time.as_secs_f64() * 1e6 / self.n as f64, 2);
        let cpu_us_per_job = processors.filter(|_| self.n > 0).map(each);
        Self { cpu_us_per_job, ..self }
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

    /// As a line of another mode, which has made it.
    pub(crate) fn part_of_mode(self, mode: Mode) -> Self {
        Self { mode: mode.name(), ..self }
    }

    /// Without a payload, whatever was asked for.
    pub(crate) fn without_payload(self) -> Self {
        Self { payload_bytes: 0, ..self }
    }

    /// What it is called in the table.
    pub(crate) fn title(&self) -> String {
        format!("{}{}", self.mode, self.extra.variant())
    }

    pub(crate) fn of_limit(&self) -> Figure {
        self.ratio_to_limit
    }

    /// How many processors were busy with it, and for how long with each job in microseconds, if it
    /// is about how fast jobs go.
    pub(crate) fn processors(&self) -> Option<(f64, f64)> {
        let speed = ["enqueue", "bulk", "drain", "lifecycle", "pool"].contains(&self.mode);
        let each = self.cpu_us_per_job.filter(|_| speed)?;
        Some((each * self.jobs_per_s? / 1e6, each))
    }

    /// What is kept of it for the next run, if it is about how fast jobs go.
    pub(crate) fn kept(&self) -> Option<KeptFigure> {
        Some(KeptFigure {
            title: self.title(),
            durability: self.durability.clone(),
            n: self.n,
            concurrency: self.concurrency,
            payload_bytes: self.payload_bytes,
            jobs_per_s: self.jobs_per_s?,
        })
    }

    pub(crate) fn bytes_per_job(&self) -> f64 {
        self.bytes_written_per_job.unwrap_or(0.0)
    }

    /// Notes how near it came to what a bare log does.
    pub(crate) fn compare(&mut self, limit: &Measurement) {
        self.ratio_to_limit = self.part_of(limit);
    }

    /// Notes how near it came to a bare log that needs only one write per job.
    pub(crate) fn compare_with_one_write(&mut self, limit: &Measurement) {
        self.limit_one_write_ratio = self.part_of(limit);
    }

    pub(crate) fn part_of(&self, limit: &Measurement) -> Figure {
        let (reached, possible) = self.jobs_per_s.zip(limit.jobs_per_s)?;
        Some(rounded(reached / possible.max(1e-9), 3))
    }

    /// By how many milliseconds half of its calls were later than those of another.
    pub(crate) fn later_than(&self, other: &Measurement) -> Figure {
        self.p50_ms.zip(other.p50_ms).map(|(ours, theirs)| rounded(ours - theirs, 3))
    }

    /// Everything that differs from run to run, always in the same order.
    fn figures(&mut self) -> Vec<&mut Figure> {
        let mut figures = vec![
            &mut self.jobs_per_s,
            &mut self.p50_ms,
            &mut self.p99_ms,
            &mut self.max_ms,
            &mut self.rss_bytes,
            &mut self.bytes_written_per_job,
            &mut self.commits_per_job,
            &mut self.cpu_us_per_job,
            &mut self.ratio_to_limit,
            &mut self.limit_one_write_ratio,
        ];
        figures.extend(self.extra.figures());
        figures
    }

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_string());
        let millis = |value: Figure| or_dash(value.map(|ms| format!("{ms:.3}")));
        let whole = |value: Figure| or_dash(value.map(|value| grouped(value.round() as u64)));
        let mut of_limit = or_dash(self.ratio_to_limit.map(|ratio| format!("{ratio:.2}")));
        if let Some(ratio) = self.limit_one_write_ratio {
            of_limit = format!("{of_limit} ({ratio:.2})");
        }
        vec![
            self.title(),
            short(self.n),
            grouped(self.concurrency.into()),
            whole(self.jobs_per_s),
            millis(self.p50_ms),
            millis(self.p99_ms),
            millis(self.max_ms),
            whole(self.bytes_written_per_job),
            of_limit,
            self.extra.words(),
        ]
    }
}

impl Extra {
    fn figures(&mut self) -> Vec<&mut Figure> {
        match self {
            Extra::None => Vec::new(),
            Extra::Batch { batch: _, bytes_per_s } => vec![bytes_per_s],
            Extra::Growth { of: _, us_per_job, ratio_to_smallest } => {
                vec![us_per_job, ratio_to_smallest]
            }
            Extra::Backlog { backlog: _, ns_per_job, ratio, claim_ns_per_job, claim_ratio } => {
                vec![ns_per_job, ratio, claim_ns_per_job, claim_ratio]
            }
            Extra::Pinned { part: _, ratio_to_before, schema_bytes } => {
                vec![ratio_to_before, schema_bytes]
            }
            Extra::Memory { of: _, state: _, bytes_per_job } => vec![bytes_per_job],
            Extra::Pool { of: _, lanes: _, ratio_to_plain } => vec![ratio_to_plain],
            Extra::Debounce { keys: _, flushes: _, bytes_per_object }
            | Extra::Continuous { objects: _, period_ms: _, bytes_per_object } => {
                vec![bytes_per_object]
            }
            Extra::Reopen { open_ms, disk_bytes, live_bytes, disk_ratio } => {
                vec![open_ms, disk_bytes, live_bytes, disk_ratio]
            }
            Extra::Idle { seconds: _, cpu_percent } => vec![cpu_percent],
            Extra::Steady { beside: _, jobs: _, stalls, large_ms } => vec![stalls, large_ms],
            Extra::Door { of: _, door: _, ratio_to_own, p50_more_ms } => {
                vec![ratio_to_own, p50_more_ms]
            }
            Extra::Limit { of: _, writes_per_job: _, bytes_per_write: _, bytes_per_s } => {
                vec![bytes_per_s]
            }
        }
    }

    /// What tells two lines of one mode apart.
    fn variant(&self) -> String {
        match self {
            Extra::None | Extra::Reopen { .. } | Extra::Idle { .. } => String::new(),
            Extra::Pool { lanes: 0, .. } => " plain".to_string(),
            Extra::Pool { lanes, .. } => format!(", {lanes} lanes"),
            Extra::Debounce { keys, .. } => format!(", {} keys", short(*keys)),
            Extra::Continuous { objects, .. } => format!(" × {}", short(*objects)),
            Extra::Batch { batch, .. } => format!(" × {}", short(*batch)),
            Extra::Growth { of, .. } => format!(", {of}"),
            Extra::Door { of, door, .. } => format!(", {of}, {door}"),
            Extra::Backlog { backlog, .. } => format!(" {}", short(*backlog)),
            Extra::Pinned { part, .. } => format!(", {part}"),
            Extra::Memory { of, state, .. } => format!(" {of}, {state}"),
            Extra::Steady { beside, jobs: 0, .. } => format!(", {beside}"),
            Extra::Steady { beside, jobs, .. } => format!(", {beside}, {}", short(*jobs)),
            Extra::Limit { of, writes_per_job, .. } if *writes_per_job > 1.0 => {
                format!(" of {of}, {writes_per_job:.0} writes")
            }
            Extra::Limit { of, .. } => format!(" of {of}"),
        }
    }

    /// What the columns do not say.
    fn words(&self) -> String {
        let unknown = || "unknown here".to_string();
        let megabytes = |bytes: &Figure| bytes.unwrap_or(0.0) / 1e6;
        match self {
            Extra::None
            | Extra::Batch { bytes_per_s: Some(0.0), .. }
            | Extra::Limit { bytes_per_s: None, .. } => String::new(),
            Extra::Batch { bytes_per_s, .. } | Extra::Limit { bytes_per_s, .. } => {
                format!("{:.1} MB/s", megabytes(bytes_per_s))
            }
            Extra::Growth { us_per_job, ratio_to_smallest, .. } => {
                let [each, ratio] =
                    [us_per_job, ratio_to_smallest].map(|figure| figure.unwrap_or(0.0));
                format!("{each:.1} µs per job × {ratio:.2}")
            }
            Extra::Backlog { ns_per_job, ratio, claim_ns_per_job, claim_ratio, .. } => {
                let [both, ratio] = [ns_per_job, ratio].map(|figure| figure.unwrap_or(0.0));
                let [claim, claim_ratio] =
                    [claim_ns_per_job, claim_ratio].map(|figure| figure.unwrap_or(0.0));
                format!("{both:.0} ns × {ratio:.2} (claim {claim:.0} ns × {claim_ratio:.2})")
            }
            Extra::Pinned { ratio_to_before, schema_bytes, .. } => {
                let (ratio, megabytes) = (ratio_to_before.unwrap_or(0.0), megabytes(schema_bytes));
                format!("× {ratio:.2}, {megabytes:.0} MB of tables and indexes")
            }
            Extra::Memory { bytes_per_job, .. } => {
                bytes_per_job.map_or_else(unknown, |bytes| format!("{bytes:.0} bytes of memory"))
            }
            Extra::Door { door: "own", .. } => String::new(),
            Extra::Door { ratio_to_own: Some(ratio), .. } => format!("{ratio:.2} of one's own"),
            Extra::Door { p50_more_ms, .. } => {
                p50_more_ms.map_or_else(String::new, |more| format!("p50 {more:+.3} ms"))
            }
            Extra::Pool { ratio_to_plain, .. } => ratio_to_plain
                .map_or_else(String::new, |ratio| format!("{ratio:.2} of the plain queue")),
            Extra::Debounce { flushes, bytes_per_object, .. } => {
                format!("{} flushes{}", grouped(*flushes), per_object(bytes_per_object))
            }
            Extra::Continuous { period_ms, bytes_per_object, .. } => {
                let seconds = *period_ms as f64 / 1e3;
                format!("lag, every {seconds} s{}", per_object(bytes_per_object))
            }
            Extra::Reopen { open_ms, disk_bytes, disk_ratio, .. } => {
                let [millis, ratio] = [open_ms, disk_ratio].map(|figure| figure.unwrap_or(0.0));
                let disk = megabytes(disk_bytes);
                format!("{millis:.0} ms, {disk:.0} MB on disk = {ratio:.2} × live")
            }
            Extra::Steady { stalls, large_ms, .. } => {
                let stalls = grouped(stalls.unwrap_or(0.0).round() as u64);
                let took = large_ms.map_or_else(String::new, |ms| format!(", it took {ms:.0} ms"));
                format!("{stalls} above 50 ms{took}")
            }
            Extra::Idle { cpu_percent, .. } => {
                cpu_percent.map_or_else(unknown, |percent| format!("{percent:.2} % of a core"))
            }
        }
    }
}

fn per_object(bytes: &Figure) -> String {
    bytes.map_or_else(String::new, |bytes| format!(", {bytes:.0} bytes of memory each"))
}

/// The median of each figure over several runs, each of which gave the same measurements.
pub(crate) fn medians(runs: &[Vec<Measurement>]) -> Vec<Measurement> {
    let Some(first) = runs.first() else { return Vec::new() };
    let of = |index: usize| runs.iter().filter_map(move |run| run.get(index)).cloned().collect();
    (0..first.len()).filter_map(|index| median_of(of(index))).collect()
}

fn median_of(mut runs: Vec<Measurement>) -> Option<Measurement> {
    let mut median = Measurement { median: true, ..runs.first()?.clone() };
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for run in &mut runs {
        let figures = run.figures();
        columns.resize(figures.len(), Vec::new());
        for (column, figure) in columns.iter_mut().zip(figures) {
            column.extend(*figure);
        }
    }
    for (figure, column) in median.figures().into_iter().zip(&mut columns) {
        *figure = middle(column).map(|middle| rounded(middle, 4));
    }
    Some(median)
}

/// The middle of some numbers, or the mean of the two in the middle.
fn middle(numbers: &mut [f64]) -> Figure {
    numbers.sort_unstable_by(f64::total_cmp);
    let half = numbers.len() / 2;
    let upper = numbers.get(half)?;
    let lower = if numbers.len().is_multiple_of(2) { numbers.get(half - 1)? } else { upper };
    Some(f64::midpoint(*lower, *upper))
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

/// To so many digits after the point.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Writes a figure that has no digits after the point.
fn whole<S: Serializer>(figure: &Figure, serializer: S) -> Result<S::Ok, S::Error> {
    figure.map(|value| value.round() as u64).serialize(serializer)
}

/// Prints what was measured for a person.
pub(crate) fn print_table(measured: &[Measurement], options: &BenchOptions) -> anyhow::Result<()> {
    let header = [
        "mode",
        "n",
        "at once",
        "jobs/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "bytes/job",
        "of limit",
        "",
    ];
    let mut rows = table(&header);
    if let Some(column) = rows.column_mut(header.len() - 1) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    for each in measured {
        rows.add_row(each.cells());
    }
    let (store, payload) = (&options.store, grouped(options.payload.into()));
    let promises = measured.iter().map(|each| each.durability.as_str());
    let durability = promises.reduce(|one, other| if one == "none" { other } else { one });
    let durability = durability.unwrap_or("none");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runs = match options.runs() {
        1 => String::new(),
        runs => format!(", medians of {runs} runs"),
    };
    output::line(&format!(
        "store {store} (durability: {durability}), {payload} bytes of payload, \
         {cores} cores{runs}\n"
    ))?;
    output::line(&rows.trim_fmt())?;
    if measured.iter().any(|each| each.ratio_to_limit.is_some()) {
        output::line(
            "\nof limit: the part of a bare log's speed on the same disk; for lifecycle with two \
             writes per job (with one). `windlass bench --help` says more.",
        )?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_numbers() {
        assert_eq!(middle(&mut []), None);
        assert_eq!(middle(&mut [3.0]), Some(3.0));
        assert_eq!(middle(&mut [9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(middle(&mut [4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }
}
