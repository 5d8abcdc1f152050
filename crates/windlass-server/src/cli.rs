//! What can be typed after `windlass`.

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use tracing::level_filters::LevelFilter;
use windlass::core::limits;

/// Durable background jobs: what it acknowledges, it never loses.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage.")]
pub(crate) struct Cli {
    /// Log more on standard error: -v for information, -vv to debug, -vvv for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    #[arg(help_heading = "Logging")]
    pub(crate) verbose: u8,

    /// Log this much on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "WINDLASS_LOG", global = true)]
    #[arg(help_heading = "Logging")]
    log: Option<LevelFilter>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    pub(crate) fn log_level(&self) -> LevelFilter {
        match (self.verbose, self.log) {
            (0, chosen) => chosen.unwrap_or(LevelFilter::WARN),
            (1, _) => LevelFilter::INFO,
            (2, _) => LevelFilter::DEBUG,
            (3.., _) => LevelFilter::TRACE,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch the engine at work: retries, a dead letter, a graph, a paused queue, and more
    Demo(DemoOptions),
    /// Measure the engine on this machine
    Bench(BenchOptions),
    /// Print a completion script for a shell
    #[command(after_help = "For example: windlass completions bash > \
        ~/.local/share/bash-completion/completions/windlass")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// One JSON object per line
    Json,
}

#[derive(Args, Debug)]
pub(crate) struct DemoOptions {
    /// End after this long [default: run until Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,

    /// How long the longest job runs; with a long one, try Ctrl-C once, and twice
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    #[arg(value_parser = value_parser!(u64).range(1..=86_400))]
    pub(crate) longest: u64,

    /// Where chance begins: the same seed gives the same jobs
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
pub(crate) struct BenchOptions {
    /// The store to measure
    #[arg(long, value_name = "ADDRESS", default_value = "memory:", env = "WINDLASS_STORE")]
    pub(crate) store: String,

    /// What to measure
    #[arg(long, value_name = "MODE", default_value = "all")]
    pub(crate) mode: Mode,

    /// How many jobs, such as 20000, 100k or 1M; for `latency` how many samples, for `backlog`
    /// how many wait at most [default: what the mode can do in seconds]
    #[arg(long, value_name = "N", value_parser = job_count)]
    pub(crate) jobs: Option<u64>,

    /// How many callers, and how many slots for the worker
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// How many bytes of payload each job has
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    #[arg(value_parser = value_parser!(u32).range(PAYLOAD_MIN..=limits::PAYLOAD_BYTES as i64))]
    pub(crate) payload: u32,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,

    /// Short for `--output json`
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl BenchOptions {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

/// A payload is JSON, and an empty string is its smallest.
const PAYLOAD_MIN: i64 = 2;

/// Each mode is one file under `bench/`, or one function of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Callers enqueue jobs one by one and wait for each answer
    Enqueue,
    /// One caller enqueues a thousand jobs per call
    Bulk,
    /// A worker empties a full queue of jobs that do nothing
    Drain,
    /// Callers enqueue a job, wait for its outcome, and go on
    Lifecycle,
    /// From an enqueue into an idle engine until the handler starts
    Latency,
    /// What a claim costs when few and when many jobs wait
    Backlog,
    /// What a waiting job costs in memory, without its payload
    Memory,
    /// All of them, in under a minute
    All,
}

/// Most jobs one measurement takes: some ten gigabytes of waiting jobs.
const JOBS_MAX: u64 = 20_000_000;

fn job_count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => match text.strip_suffix(['m', 'M']) {
            Some(digits) => (digits, 1_000_000),
            None => (text, 1),
        },
    };
    let number = digits.replace('_', "").parse::<u64>().ok();
    let number = number.and_then(|number| number.checked_mul(unit));
    number.filter(|number| (1..=JOBS_MAX).contains(number)).ok_or_else(|| {
        format!("expected a number of jobs from 1 to {JOBS_MAX}, such as 20000, 100k or 1M")
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn counts_may_have_a_unit() {
        assert_eq!(job_count("20_000"), Ok(20_000));
        assert_eq!(job_count("100k"), Ok(100_000));
        assert_eq!(job_count("10M"), Ok(10_000_000));
        for bad in ["", "0", "k", "-1", "1.5k", "999999999999999999999", "21M"] {
            assert!(job_count(bad).is_err(), "{bad}");
        }
    }
}
