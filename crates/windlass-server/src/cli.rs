//! What can be typed after `windlass`.

mod bench;
mod database;
mod offline;
mod serve;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use tracing::level_filters::LevelFilter;

pub(crate) use self::bench::{BenchOptions, Mode};
#[cfg(feature = "postgres")]
pub(crate) use self::database::Database;
pub(crate) use self::database::{MigrateCommand, MigrateOptions, MoveOptions};
pub(crate) use self::offline::{
    BackupOptions, ChangeOptions, DoctorOptions, ExportOptions, ListFormat, ListOptions,
    ObjectOptions, ObjectsOptions, ShowOptions,
};
pub(crate) use self::serve::ServeOptions;

/// Durable background jobs: what it acknowledges, it never loses.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, \
    4 in use by another process.")]
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
    /// Watch the engine at work: retries, a dead letter, a graph, lanes, a debounce, and more
    Demo(DemoOptions),
    /// Let programs on other machines reach a store, over HTTP
    Serve(ServeOptions),
    /// Measure the engine on this machine, and what part of its disk's speed it reaches
    Bench(BenchOptions),
    /// Check every checksum and every rule of a store, and say what is wrong
    Doctor(DoctorOptions),
    /// Copy a store, also while a process uses it
    Backup(BackupOptions),
    /// List the jobs of a store that nobody has open
    List(ListOptions),
    /// Show everything about a job, and why it is not running
    Show(ShowOptions),
    /// List the durable objects of a store that nobody has open
    Objects(ObjectsOptions),
    /// Show everything about an object, its state too
    Object(ObjectOptions),
    /// Try dead or cancelled jobs again
    #[command(after_help = RETRY_EXAMPLES, override_usage = RETRY_USAGE)]
    Retry(ChangeOptions),
    /// Call jobs off
    #[command(after_help = CANCEL_EXAMPLES, override_usage = CANCEL_USAGE)]
    Cancel(ChangeOptions),
    /// Print every field of every job, one JSON object per line
    Export(ExportOptions),
    /// Bring the schema of a PostgreSQL store up to date, or see what that would do
    Migrate(MigrateOptions),
    /// Move a store that nobody uses from a directory into a database, or back
    Move(MoveOptions),
    /// Print a completion script for a shell
    #[command(after_help = "For example: windlass completions bash > \
        ~/.local/share/bash-completion/completions/windlass")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

const RETRY_USAGE: &str = "windlass retry [OPTIONS] <PATH> <ID>...
       windlass retry [OPTIONS] <PATH> --state|--kind|--queue|--tag ... [--yes]";

const CANCEL_USAGE: &str = "windlass cancel [OPTIONS] <PATH> <ID>...
       windlass cancel [OPTIONS] <PATH> --state|--kind|--queue|--tag ... [--yes]";

const RETRY_EXAMPLES: &str = "Examples:
  windlass retry ./jobs 0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10
  windlass retry ./jobs --kind mail.send_receipt     all that are dead; asks first
  windlass retry ./jobs --state dead,cancelled --queue mail --yes";

const CANCEL_EXAMPLES: &str = "Examples:
  windlass cancel ./jobs 0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10
  windlass cancel ./jobs --queue mail                all that wait or run; asks first
  windlass cancel ./jobs --state scheduled --kind report.build --yes";

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// One JSON object per line
    Json,
}

#[derive(Args, Debug)]
#[command(after_help = "Try this: start it, kill it with `kill -9`, and start it again.")]
pub(crate) struct DemoOptions {
    /// Where to keep the jobs: a directory, which is made if need be, or `memory:`
    #[arg(long, value_name = "ADDRESS", default_value = "./.windlass/demo")]
    pub(crate) store: String,

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }
}
