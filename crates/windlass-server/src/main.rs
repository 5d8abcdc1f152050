//! The `windlass` command.
//!
//! - [`cli`] says what can be typed
//! - [`demo`] shows the engine at work
//! - [`bench`] measures it
//! - [`output`] prints, and turns every end into an exit code
//! - [`signals`] hears Ctrl-C

mod bench;
mod cli;
mod demo;
mod output;
mod signals;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tracing::level_filters::LevelFilter;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr(cli.log_level());
    output::exit_code(run(&cli))
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        Command::Demo(options) => demo::run(options, cli.verbose > 0),
        Command::Bench(options) => bench::run(options),
        Command::Completions { shell } => {
            // Rendered first and written at once: the generator panics when its pipe is closed.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "windlass", &mut script);
            output::write(&script)
        }
    }
}

fn log_to_stderr(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(output::stderr_has_colour())
        .init();
}
