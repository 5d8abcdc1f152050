//! What `windlass bench` can be asked for.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use windlass::core::limits;
use windlass::store::Durability;

use crate::bench::Ground;
use crate::cli::Format;

#[derive(Args, Debug)]
#[command(after_long_help = COMPARED)]
pub(crate) struct BenchOptions {
    /// The store to measure: `memory:`, a directory that is empty or not there yet, in which each
    /// measurement gets a store of its own, or `postgres://…`, where each gets a schema of its own
    #[arg(long, value_name = "ADDRESS", default_value = "memory:", env = "WINDLASS_STORE")]
    #[arg(hide_env_values = true)]
    pub(crate) store: String,

    /// When a store on disk answers: `sync`, once it is on stable storage, or `relaxed:MS`, at
    /// once, and on stable storage at most so many milliseconds later [default: sync]
    #[arg(long, value_name = "HOW", value_parser = durability)]
    pub(crate) durability: Option<Durability>,

    /// What to measure; several with commas, such as `lifecycle,limit`
    #[arg(long, value_name = "MODE", default_value = "all", value_delimiter = ',')]
    pub(crate) mode: Vec<Mode>,

    /// A choice for those who do not want to choose: what to measure, how many jobs and how often
    #[arg(long, value_name = "PROFILE", conflicts_with = "mode")]
    profile: Option<Profile>,

    /// How many jobs, such as 20000, 100k or 1M; for `latency` how many samples, for `backlog`
    /// how many wait at most, for `debounce` how many events, for `continuous` how many objects
    /// [default: what the mode can do in seconds]
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

    /// How long `idle` watches, and `steady` each large work at least
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    #[arg(value_parser = value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: u64,

    /// How often each measurement is made; the median of each figure counts. `memory` is made
    /// once: what one run frees, the next would use unseen [default: 1; 5 with `--profile full`]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = value_parser!(u32).range(1..=100))]
    runs: Option<u32>,

    /// Leave the stores where they are, to look at them afterwards
    #[arg(long)]
    pub(crate) keep: bool,

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

    /// What to measure by the profile, as far as the store has it.
    pub(crate) fn profile_modes(&self) -> Option<&'static [Mode]> {
        self.profile.map(|profile| match profile {
            Profile::Quick => QUICK.as_slice(),
            Profile::Full => FULL.as_slice(),
        })
    }

    /// How often.
    pub(crate) fn runs(&self) -> u32 {
        let full = self.profile == Some(Profile::Full);
        self.runs.unwrap_or(if full { 5 } else { 1 })
    }

    /// How many jobs of those that a mode takes by itself.
    pub(crate) fn part_of(&self, jobs: u64) -> u64 {
        match self.profile {
            Some(Profile::Quick) => jobs / 10,
            Some(Profile::Full) | None => jobs,
        }
    }
}

/// What to measure when nobody says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// The main figures with a tenth of the jobs: some seconds
    Quick,
    /// Everything, `steady` too, five times each: up to half an hour
    Full,
}

const QUICK: [Mode; 6] =
    [Mode::Enqueue, Mode::Bulk, Mode::Drain, Mode::Lifecycle, Mode::Latency, Mode::Limit];
const FULL: [Mode; 2] = [Mode::All, Mode::Steady];

const COMPARED: &str = "\
What is compared with `limit`, the bare log:
  A bare log on the same disk does nothing but make bytes durable: callers on the same threads hand
  over as many bytes as the engine wrote per job, one thread writes what has gathered into files
  that were filled with zeros before the clock started, waits for the disk (fdatasync), and lets
  the callers go on. It checks nothing, keeps nothing in order and can read nothing back, so no
  store is faster on that disk. When `limit` is measured together with one of these, it runs right
  after it and `ratio_to_limit` says which part of its speed was reached:
    enqueue    as many callers, one write per job
    lifecycle  as many callers, two writes per job, each waited for, of half its bytes;
               `limit_one_write_ratio` is stricter: one write per job, of all its bytes
    bulk       one caller, one write per thousand jobs
  On `postgres://…` it is `drain` that is compared, with as many connections that insert a hundred
  rows, commit, delete them and commit, one insert and one delete per job.
  `limit` alone takes for the bytes of a job what an engine of this version writes.
  Syncs are what a disk is slow at: with `relaxed` the engine may be faster than the limit. Both are
  measured one after the other, so whatever else the machine does tells on the ratio: take
  `--runs 5`.

What `batch` tells:
  of every sort of job what one costs when a thousand, ten thousand and a hundred thousand (in ten
  calls) are enqueued, and of a job that ends what each of those costs that follow or are released;
  `ratio_to_smallest` compares with the smallest: about 1 where nothing is dearer because there is
  more of it.

What `steady` tells:
  how long small enqueues take, a thousand a second, each counted from the moment at which it is
  due, beside work that is large: jobs that flow while as many wait as `--jobs` says, so that the
  journal is compacted, a tenth as many callers that await an outcome, listing and cancelling by
  tag, cancelling half as many by filter, clearing a queue, and the end of a job for which a tenth
  as many wait. First come the same calls to a bare log, or as bare inserts, and with nothing beside
  them. A stall is a call of more than 50 ms.

What `doors` tells:
  enqueue, bulk, drain and latency three times each: on a directory that this process owns, on one
  that another process owns and this one has joined, and on one behind a server, over HTTP on the
  loopback; `ratio_to_own` and `p50_more_ms` compare with the first. The other process is `windlass
  serve`. Then ten takeovers: from the death of the owner until its successor answers an enqueue,
  while a tenth of the jobs wait.

What the modes with objects tell:
  pool        one line for a queue without lanes, one for the pool; `ratio_to_plain` compares them
  debounce    events per second until the last flush has run, and what a key takes in memory
  continuous  how late runs start, after the time they were planned for, and what an object takes
  What something takes in memory is told only by the first measurement of a process.

What the table ends with:
  what bounds each measurement: the disk, if it reached three quarters of a bare log's speed, else
  the processor, if four fifths of all were busy, else the callers, who wait for their answers. On a
  directory also what changed since the last run there, which is kept beside it (bench.last.json
  for ./bench).

Examples:
  windlass bench                                          the engine alone, in memory
  windlass bench --store ./bench --profile quick          the main figures of this disk
  windlass bench --store ./bench --mode lifecycle,limit --runs 5
  windlass bench --store ./bench --mode backlog --jobs 10M --json
  windlass bench --store ./bench --mode debounce --jobs 1M    100,000 keys";

/// A payload is JSON, and an empty string is its smallest.
const PAYLOAD_MIN: i64 = 2;

/// Each mode is one file under `bench/`, or one function of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Callers enqueue jobs one by one and wait for each answer
    Enqueue,
    /// One caller enqueues a thousand jobs per call
    Bulk,
    /// Batches of every sort of job at three sizes, and cascades: what they cost per job
    Batch,
    /// A worker empties a full queue of jobs that do nothing
    Drain,
    /// Callers enqueue a job, wait for its outcome, and go on
    Lifecycle,
    /// The same with a pool of 16 lanes and with keys, next to a queue without lanes
    Pool,
    /// Callers add events to many keys, ten each, and a worker flushes them
    Debounce,
    /// Many objects run again and again: how late their alarms are
    Continuous,
    /// From an enqueue into an idle engine until the handler starts
    Latency,
    /// What a claim costs when few and when many jobs wait
    Backlog,
    /// On PostgreSQL: how fast jobs flow before, while and after a transaction is left open
    Pinned,
    /// What a waiting job costs in memory
    Memory,
    /// How long it takes to open a store in which many jobs wait
    Reopen,
    /// What an idle engine with a worker costs in processor time
    Idle,
    /// A thousand small enqueues a second, beside one large work after another; see below
    Steady,
    /// A directory that this process owns, one it has joined, and one behind a server; see below
    Doors,
    /// What the disk could do at best; see below
    Limit,
    /// All that the store has, but for `steady` and `doors`, which take longer
    All,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Enqueue => "enqueue",
            Mode::Bulk => "bulk",
            Mode::Batch => "batch",
            Mode::Drain => "drain",
            Mode::Lifecycle => "lifecycle",
            Mode::Pool => "pool",
            Mode::Debounce => "debounce",
            Mode::Continuous => "continuous",
            Mode::Latency => "latency",
            Mode::Backlog => "backlog",
            Mode::Pinned => "pinned",
            Mode::Memory => "memory",
            Mode::Reopen => "reopen",
            Mode::Idle => "idle",
            Mode::Steady => "steady",
            Mode::Doors => "doors",
            Mode::Limit => "limit",
            Mode::All => "all",
        }
    }

    /// Whether it only makes sense on a disk.
    pub(crate) fn needs_a_disk(self) -> bool {
        matches!(self, Mode::Reopen | Mode::Limit | Mode::Doors)
    }

    /// Whether the bare log, or the bare database, can do the like.
    pub(crate) fn has_a_limit(self, ground: &Ground) -> bool {
        if ground.is_a_database() {
            return self == Mode::Drain;
        }
        matches!(self, Mode::Enqueue | Mode::Bulk | Mode::Lifecycle)
    }
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

/// The longest that may pass until what was answered is on stable storage.
const RELAXED_MAX_MS: u64 = 60_000;

fn durability(text: &str) -> Result<Durability, String> {
    let relaxed = text.strip_prefix("relaxed:").and_then(|millis| millis.parse().ok());
    match (text, relaxed) {
        ("sync", _) => Ok(Durability::Sync),
        (_, Some(millis @ 1..=RELAXED_MAX_MS)) => {
            Ok(Durability::Relaxed(Duration::from_millis(millis)))
        }
        _ => Err(format!("expected `sync`, or `relaxed:MS` with 1 to {RELAXED_MAX_MS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_may_have_a_unit() {
        assert_eq!(job_count("20_000"), Ok(20_000));
        assert_eq!(job_count("100k"), Ok(100_000));
        assert_eq!(job_count("10M"), Ok(10_000_000));
        for bad in ["", "0", "k", "-1", "1.5k", "999999999999999999999", "21M"] {
            assert!(job_count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durability_is_sync_or_relaxed_with_a_time() {
        assert_eq!(durability("sync"), Ok(Durability::Sync));
        let relaxed = Durability::Relaxed(Duration::from_millis(50));
        assert_eq!(durability("relaxed:50"), Ok(relaxed));
        for bad in ["", "none", "relaxed", "relaxed:", "relaxed:0", "relaxed:60001", "sync:1"] {
            assert!(durability(bad).is_err(), "{bad}");
        }
    }
}
