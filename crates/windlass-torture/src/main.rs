//! Proves the file store on real processes, real filesystems and real faults.
//!
//! A *victim* (`work`) enqueues and runs jobs on a directory and says every fact on a pipe. The
//! *harness* (every other word) starts victims, does something terrible to them, and holds what it
//! heard against what a later opening finds. See `ledger.rs` for the rules.

mod facts;
mod ledger;
mod look;
mod machine;
mod plan;
mod process;
mod random;
mod scenario;
mod supervise;
mod victim;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::scenario::Scenario;
use crate::victim::WorkOptions;

/// Torture for the file store.
#[derive(Parser)]
#[command(name = "windlass-torture", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// The victim: enqueues and runs jobs until it is killed, and says every fact.
    Work(WorkOptions),
    /// Looks at a store that nobody has open: is it whole, and what is in it?
    Check {
        /// The directory of the store.
        path: PathBuf,
    },
    /// Kills, stops and doubles processes.
    Kill(Extent),
    /// Handlers that end their process.
    Poison(Extent),
    /// Pulls the plug: a copy of a filesystem's image at one moment is what the power leaves.
    Plug(Extent),
    /// Syncs, writes and renames that fail.
    Errors(Extent),
    /// A disk that is full.
    Full(Extent),
    /// Flipped bits and cut files.
    Flips(Extent),
    /// Wall clocks that jump.
    Clock(Extent),
    /// Several processes on one directory, killed and stopped.
    Processes(Extent),
    /// All of them.
    All {
        /// The sizes that every run of the tests can afford; ten times as much without.
        #[arg(long)]
        ci: bool,
        /// Makes the same choices again.
        #[arg(long)]
        seed: Option<u64>,
    },
}

/// How much of a scenario.
#[derive(clap::Args)]
struct Extent {
    /// How many times; what every run of the tests can afford if not given.
    #[arg(long)]
    rounds: Option<u64>,
    /// Makes the same choices again.
    #[arg(long)]
    seed: Option<u64>,
}

impl Extent {
    fn of(self, scenario: Scenario) -> supervise::Task {
        let rounds = self.rounds.unwrap_or(scenario.rounds());
        supervise::Task { scenarios: vec![(scenario, rounds)], seed: self.seed }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let task = match Arguments::parse().verb {
        Verb::Work(options) => return victim::work(options).map(|()| ExitCode::SUCCESS),
        Verb::Check { path } => return look::check(&path).map(|()| ExitCode::SUCCESS),
        Verb::Kill(extent) => extent.of(Scenario::Kill),
        Verb::Poison(extent) => extent.of(Scenario::Poison),
        Verb::Plug(extent) => extent.of(Scenario::Plug),
        Verb::Errors(extent) => extent.of(Scenario::Errors),
        Verb::Full(extent) => extent.of(Scenario::Full),
        Verb::Flips(extent) => extent.of(Scenario::Flips),
        Verb::Clock(extent) => extent.of(Scenario::Clock),
        Verb::Processes(extent) => extent.of(Scenario::Processes),
        Verb::All { ci, seed } => {
            let times = if ci { 1 } else { 10 };
            let all = Scenario::ALL.map(|scenario| (scenario, scenario.rounds() * times));
            supervise::Task { scenarios: all.to_vec(), seed }
        }
    };
    supervise::supervise(task)
}
